//! Computes the cost of a response, and the maximum cost of a request, from token counts and
//! prices.
//!
//! The size of the whole input selects the prices of the whole request, and the service tier
//! multiplies the cost of its tokens. This file must not depend on accounts or stores.

use crate::money::{self, Factor, Micro, Term};
use crate::price_list::{PriceBand, PriceList, TierFactors, factor_for, listed_tier};
use llm_protocol::usage::{
    CompactionPass, CountedUnit, ServerTool, ServiceTier, Usage, UsageBounds,
};

/// One line of a receipt: the usage of one class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CostLine {
    pub class: &'static str,
    pub unit: Unit,
    pub count: u64,
    /// Price per 1 000 000 tokens, or per 1 000 uses.
    pub price: Micro,
    /// Factor of the service tier. It is 1 for classes other than tokens.
    pub factor: Factor,
    /// Number of the compaction pass, from 1. `None` for the response itself.
    pub pass: Option<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    Tokens,
    Uses,
    Units,
}

impl Unit {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tokens => "tokens",
            Self::Uses => "uses",
            Self::Units => "units",
        }
    }
}

impl CostLine {
    /// Returns the exact amount of this line, as a decimal number of credits.
    pub fn credits(&self) -> String {
        money::exact_line(self.count, self.price, self.term().factor)
    }

    fn term(&self) -> Term {
        let factor = match self.unit {
            Unit::Tokens => self.factor,
            Unit::Uses | Unit::Units => Factor::THOUSAND,
        };
        Term::new(self.count, self.price, factor)
    }
}

/// Number of token classes and server tools.
const LINE_COUNT: usize = 9 + ServerTool::ALL.len() + CountedUnit::ALL.len();

/// Returns all billable lines in the order of a receipt: first the response itself, and then each
/// compaction pass, priced by the size of its own input.
pub fn cost_lines(usage: &Usage, price: &PriceList) -> Vec<CostLine> {
    iter_cost_lines(usage, price).collect()
}

fn iter_cost_lines(usage: &Usage, price: &PriceList) -> impl Iterator<Item = CostLine> {
    let passes = usage.compactions;
    let (service_tier, inference_geo, speed) =
        (usage.service_tier, usage.inference_geo, usage.speed);
    let of_pass = move |(index, pass): (usize, CompactionPass)| {
        let lines = answer_lines(
            &Usage {
                service_tier,
                inference_geo,
                speed,
                ..pass.into()
            },
            price,
        );
        lines.map(|line| CostLine {
            pass: Some(index),
            ..line
        })
    };
    answer_lines(&usage.without_passes(), price)
        .into_iter()
        .chain((1..).zip(passes).flat_map(of_pass))
}

/// Returns the lines of an answer. Audio and images without a price of their own are charged as
/// text.
fn answer_lines(usage: &Usage, price: &PriceList) -> [CostLine; LINE_COUNT] {
    let rates = price.band_for(usage.input_total()).rates;
    let features = &price.features;
    let factor = price.factor(usage);
    let prices = [
        rates.input,
        rates.cache_read,
        rates.cache_write_5m,
        rates.cache_write_1h,
        features.audio_input.unwrap_or(rates.input),
        features.image_input.unwrap_or(rates.input),
        rates.output,
        features.audio_output.unwrap_or(rates.output),
        features.image_output.unwrap_or(rates.output),
    ];
    let tokens = usage.tokens().into_iter().zip(prices);
    let tokens = tokens.map(|((class, count), price)| CostLine {
        class,
        unit: Unit::Tokens,
        count,
        price,
        factor,
        pass: None,
    });
    let uses = ServerTool::ALL.into_iter().map(|tool| CostLine {
        class: tool.key(),
        unit: Unit::Uses,
        count: usage.uses(tool),
        price: features.tool_price(tool).unwrap_or_default(),
        factor: Factor::ONE,
        pass: None,
    });
    let units = CountedUnit::ALL.into_iter().map(|unit| CostLine {
        class: unit.key(),
        unit: Unit::Units,
        count: usage.units(unit),
        price: features.unit_price(unit).unwrap_or_default(),
        factor: Factor::ONE,
        pass: None,
    });
    let nothing = CostLine {
        class: "",
        unit: Unit::Uses,
        count: 0,
        price: Micro::ZERO,
        factor: Factor::ONE,
        pass: None,
    };
    let mut lines = [nothing; LINE_COUNT];
    for (slot, line) in lines.iter_mut().zip(tokens.chain(uses).chain(units)) {
        *slot = line;
    }
    lines
}

/// Returns the cost of `usage`, rounded once, up to the next µc.
pub fn cost(usage: &Usage, price: &PriceList) -> Micro {
    money::clamp_amount(wide_cost(usage, price))
}

/// Returns the credits that the vendor's cache saved. They are the cost if every cached token had
/// been plain input, minus the actual cost. The result is negative if writes cost more than reads
/// saved.
pub fn cache_savings(usage: &Usage, price: &PriceList) -> Micro {
    let mut input_price = Micro::ZERO;
    let uncached = iter_cost_lines(usage, price).map(|mut line| {
        match line.class {
            // This is the first line of the response and of each pass.
            "input" => input_price = line.price,
            "cache_read" | "cache_write_5m" | "cache_write_1h" => line.price = input_price,
            _ => {}
        }
        line.term()
    });
    money::cost(uncached).minus(cost(usage, price))
}

/// Returns the minimum cost of a request, which has one input token, one output token and one of
/// each unit that has a price, at the standard tier.
pub fn min_cost(price: &PriceList) -> Micro {
    let least = Usage {
        input: 1,
        output: 1,
        ..Usage::default()
    };
    let least = CountedUnit::ALL.into_iter().fold(least, |mut usage, unit| {
        *usage.units_mut(unit) = 1;
        usage
    });
    cost(&least, price)
}

/// Returns the cost of `usage` before rounding, as a decimal number of credits.
pub fn exact_cost(usage: &Usage, price: &PriceList) -> String {
    money::exact_sum(iter_cost_lines(usage, price).map(|line| line.term()))
}

fn wide_cost(usage: &Usage, price: &PriceList) -> i128 {
    money::wide_cost(iter_cost_lines(usage, price).map(|line| line.term()))
}

/// The service tiers in which the vendor may serve a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TierRequest {
    /// The vendor chooses, because the request asks for that or names no tier.
    #[default]
    Auto,
    /// Only the standard tier is allowed.
    Usual,
    Named(ServiceTier),
}

impl TierRequest {
    /// Returns the largest factor that can be billed.
    pub fn max_factor(self, factors: &TierFactors) -> Factor {
        match self {
            Self::Auto => factors.values().copied().fold(Factor::ONE, Factor::max),
            Self::Usual => Factor::ONE,
            Self::Named(tier) => factor_for(factors, Some(tier)),
        }
    }

    /// Returns the tier to bill. It is the tier that the vendor reported, or the requested one if
    /// the vendor reported none or a more expensive one. `None` is the standard tier.
    pub fn billed_tier(
        self,
        reported: Option<ServiceTier>,
        factors: &TierFactors,
    ) -> Option<ServiceTier> {
        let requested = match self {
            Self::Named(tier) => Some(tier),
            Self::Auto | Self::Usual => None,
        };
        let reported = reported
            .filter(|reported| factor_for(factors, Some(*reported)) <= self.max_factor(factors))
            .or(requested);
        listed_tier(factors, reported?)
    }
}

/// The ways in which the vendor may serve a request, which determine the factors on its token
/// prices. By default the vendor chooses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ServiceTerms {
    pub tier: TierRequest,
    pub geo: TierRequest,
    pub speed: TierRequest,
}

impl ServiceTerms {
    /// Terms with the base prices only.
    pub const USUAL: Self = Self {
        tier: TierRequest::Usual,
        geo: TierRequest::Usual,
        speed: TierRequest::Usual,
    };

    /// Returns the largest factor that can be billed.
    pub fn max_factor(&self, price: &PriceList) -> Factor {
        let requested = [self.tier, self.geo, self.speed];
        let dearest = requested
            .into_iter()
            .zip(price.features.factors())
            .map(|(requested, (_, all))| requested.max_factor(all));
        dearest.fold(Factor::ONE, Factor::times)
    }

    /// Sets the billed tier, region and speed in `usage`.
    pub fn with_billed_terms(&self, usage: Usage, price: &PriceList) -> Usage {
        let features = &price.features;
        Usage {
            service_tier: self
                .tier
                .billed_tier(usage.service_tier, &features.service_tier),
            inference_geo: self
                .geo
                .billed_tier(usage.inference_geo, &features.inference_geo),
            speed: self.speed.billed_tier(usage.speed, &features.speed),
            ..usage
        }
    }
}

/// The uses of one server tool for which a request holds credits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ToolHold {
    pub tool: ServerTool,
    pub uses: u64,
    /// Price per 1 000 uses.
    pub price: Micro,
}

/// The maximum cost of a request, as a function of its output limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quote {
    /// Worst case for each price tier that may apply to the input, at its largest size and highest
    /// price. The list is never empty.
    pub reaches: Vec<WorstCase>,
    /// The unit of the input, as messages name it.
    pub input_unit: &'static str,
    /// Number of responses that the request asks for.
    pub choices: u64,
    /// Server tools that the vendor may use.
    pub tools: Vec<ToolHold>,
    pub service: ServiceTerms,
    /// Largest factor that `service` allows.
    pub factor: Factor,
    /// Output limit per response in tokens. It is the client's or the model's own, and the largest
    /// among the models that may answer.
    pub output_limit: u64,
    /// Minimum output limit at which the request is worth running.
    pub output_floor: u64,
    /// Output limit for this model. It differs if another model's limit is higher.
    pub own_limit: u64,
    /// Quotes of the models that may answer instead. The most expensive one is the worst case.
    pub others: Vec<Self>,
    /// Maximum usage apart from the output limit.
    pub bounds: UsageBounds,
}

/// The worst case within one price tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorstCase {
    /// Upper bound of the input in tokens.
    pub input_tokens: u64,
    pub input_price: Micro,
    pub output_price: Micro,
}

impl Quote {
    /// Creates a quote for tokens only, with one input price and one output price.
    pub fn flat(reach: WorstCase, choices: u64, output_limit: u64, output_floor: u64) -> Self {
        Self {
            reaches: vec![reach],
            input_unit: "input tokens",
            choices,
            tools: Vec::new(),
            service: ServiceTerms::USUAL,
            factor: Factor::ONE,
            output_limit,
            output_floor,
            own_limit: output_limit,
            others: Vec::new(),
            bounds: UsageBounds::default(),
        }
    }

    /// Returns the maximum usage of the model if the hold covers `output_limit`.
    pub fn usage_bounds(&self, output_limit: u64) -> UsageBounds {
        let output = output_limit
            .min(self.own_limit)
            .saturating_mul(self.choices);
        UsageBounds {
            output,
            ..self.bounds
        }
    }

    /// Lowers the output limit to at most `limit`, the maximum output of the model.
    #[must_use]
    pub fn with_output_limit(mut self, limit: u64) -> Self {
        self.output_limit = self.output_limit.min(limit);
        self.own_limit = self.own_limit.min(limit);
        self.output_floor = self.output_floor.min(self.output_limit);
        self
    }

    /// Adds the quote of another model that may answer instead, so that the hold covers both.
    #[must_use]
    pub fn with_alternative(mut self, other: Self) -> Self {
        self.output_limit = self.output_limit.max(other.output_limit);
        self.output_floor = self.output_floor.max(other.output_floor);
        self.others.push(other);
        self
    }

    pub fn cost(&self, output_limit: u64) -> Micro {
        money::clamp_amount(self.wide_cost(output_limit))
    }

    fn wide_cost(&self, output_limit: u64) -> i128 {
        let others = self
            .others
            .iter()
            .map(|other| other.wide_cost(output_limit));
        others.fold(self.own_cost(output_limit.min(self.own_limit)), i128::max)
    }

    fn own_cost(&self, output_limit: u64) -> i128 {
        let output = u128::from(output_limit).saturating_mul(u128::from(self.choices));
        let tools = self
            .tools
            .iter()
            .map(|hold| Term::new(hold.uses, hold.price, Factor::THOUSAND));
        let cost = |reach: &WorstCase| {
            let input = Term::new(reach.input_tokens, reach.input_price, self.factor);
            let output = Term {
                count: output,
                price: reach.output_price,
                factor: self.factor,
            };
            money::wide_cost([input, output].into_iter().chain(tools.clone()))
        };
        self.reaches.iter().map(cost).max().unwrap_or(i128::MAX)
    }

    /// Returns the largest output limit, up to the requested one, whose cost fits into `available`.
    /// Returns `None` if not even the floor fits.
    pub fn max_affordable_output(&self, available: Micro) -> Option<u64> {
        let fits = |limit| self.wide_cost(limit) <= i128::from(available.get());
        if fits(self.output_limit) {
            return Some(self.output_limit);
        }
        largest_fitting(self.output_floor.max(1), self.output_limit, fits)
    }

    /// Returns the largest output limit, up to the requested one, that `available` pays for, even
    /// if it is below the floor. Returns `None` if `available` does not pay for the input.
    pub fn payable_output(&self, available: Micro) -> Option<u64> {
        let fits = |limit| self.wide_cost(limit) <= i128::from(available.get());
        largest_fitting(0, self.output_limit, fits)
    }
}

impl WorstCase {
    /// The most of the input tokens that `available` pays for, if there is no output.
    pub fn payable_input(&self, available: Micro) -> u64 {
        let fits = |count| {
            let term = Term::new(count, self.input_price, Factor::ONE);
            money::wide_cost([term]) <= i128::from(available.get())
        };
        largest_fitting(0, self.input_tokens, fits).unwrap_or(0)
    }
}

/// Returns the largest number from `min` to `max` that fits. The fitting numbers must be contiguous
/// from `min`.
fn largest_fitting(min: u64, max: u64, fits: impl Fn(u64) -> bool) -> Option<u64> {
    if min > max || !fits(min) {
        return None;
    }
    let (mut fitting, mut rest) = (min, max.saturating_sub(min));
    // At most `rest` more may fit.
    while rest > 0 {
        let step = rest.div_ceil(2);
        let tried = fitting.saturating_add(step);
        if fits(tried) {
            fitting = tried;
            rest = rest.saturating_sub(step);
        } else {
            rest = step.saturating_sub(1);
        }
    }
    Some(fitting)
}

/// Classes in the order in which they are kept: the counts that the vendor certainly reported, then
/// the input, and last the output.
const CLASS_PRIORITY: [fn(&mut Usage) -> &mut u64; LINE_COUNT] = [
    |usage| &mut usage.cache_read,
    |usage| &mut usage.cache_write_5m,
    |usage| &mut usage.cache_write_1h,
    |usage| &mut usage.audio_input,
    |usage| &mut usage.image_input,
    |usage| &mut usage.input,
    |usage| &mut usage.web_searches,
    |usage| &mut usage.web_fetches,
    |usage| &mut usage.code_executions,
    |usage| &mut usage.tool_searches,
    |usage| &mut usage.mcp_calls,
    |usage| &mut usage.search_units,
    |usage| &mut usage.images,
    |usage| &mut usage.characters,
    |usage| &mut usage.seconds,
    |usage| &mut usage.audio_output,
    |usage| &mut usage.image_output,
    |usage| &mut usage.output,
];

/// Lowers `usage` until it costs at most `max_cost`. The classes are filled in their order of
/// priority, each as far as the remaining amount allows. An estimate is billed like any usage, so
/// its receipt must add up to the amount debited.
pub fn clamp_usage_to_cost(usage: Usage, price: &PriceList, max_cost: Micro) -> Usage {
    let fits = |usage: &Usage| wide_cost(usage, price) <= i128::from(max_cost.get());
    if fits(&usage) {
        return usage;
    }
    let mut original = usage;
    let Usage {
        service_tier,
        inference_geo,
        speed,
        ..
    } = usage;
    let mut kept = Usage {
        service_tier,
        inference_geo,
        speed,
        ..Usage::default()
    };
    for of in CLASS_PRIORITY {
        let with = |count| {
            let mut usage = kept;
            *of(&mut usage) = count;
            usage
        };
        let (original, beside) = (*of(&mut original), kept.input_total());
        // Within one price span, a higher count never costs less, but from one span to the next it
        // may. So try each span, the highest first. For classes other than input, the spans make no
        // difference.
        let fitting = |span: PriceBand| {
            let (min, max) = span.range_beyond(beside)?;
            largest_fitting(min, max.min(original), |count| fits(&with(count)))
        };
        kept = with(price.bands().rev().find_map(fitting).unwrap_or(0));
    }
    Usage {
        reasoning: usage.reasoning.min(kept.output),
        ..kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::price_list::{FeaturePrices, InputTier, TokenPrices};
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn quote(output_limit: u64) -> Quote {
        let reach = WorstCase {
            input_tokens: 1_000,
            input_price: Micro::new(500_000_000),
            output_price: Micro::new(2_500_000_000),
        };
        Quote::flat(reach, 1, output_limit, 256)
    }

    fn credits(whole: i64) -> Micro {
        Micro::new(whole * 1_000_000)
    }

    fn rates(prices: [i64; 5]) -> TokenPrices {
        let [input, cache_read, cache_write_5m, cache_write_1h, output] = prices.map(credits);
        TokenPrices {
            input,
            cache_read,
            cache_write_5m,
            cache_write_1h,
            output,
        }
    }

    fn tier(name: &str) -> ServiceTier {
        ServiceTier::from_wire(name)
    }

    /// Prices that double above 1 000 input tokens.
    fn list() -> PriceList {
        let tiers = vec![InputTier {
            above_input_tokens: 1_000,
            rates: rates([200, 20, 250, 400, 1_000]),
        }];
        let factor = |decimal: &str| Factor::from_decimal(decimal.parse().unwrap()).unwrap();
        let features = FeaturePrices {
            audio_input: Some(credits(3_000)),
            audio_output: Some(credits(6_000)),
            web_search: Some(credits(1_000)),
            mcp: Some(Micro::ZERO),
            service_tier: BTreeMap::from([
                (tier("priority"), factor("1.75")),
                (tier("flex"), factor("0.5")),
            ]),
            inference_geo: BTreeMap::from([(tier("us"), factor("1.1"))]),
            ..FeaturePrices::default()
        };
        PriceList::from_tiers(rates([100, 10, 125, 200, 500]), tiers, features)
    }

    #[test]
    fn a_limit_is_lowered_to_exactly_what_the_balance_pays() {
        let quote = quote(64_000);
        assert_eq!(quote.cost(64_000), Micro::new(160_500_000));
        assert_eq!(
            quote.max_affordable_output(Micro::new(160_500_000)),
            Some(64_000)
        );
        let lowered = quote
            .max_affordable_output(Micro::new(100_000_000))
            .unwrap();
        assert!(quote.cost(lowered) <= Micro::new(100_000_000));
        assert!(
            quote.cost(lowered + 1) > Micro::new(100_000_000),
            "one more token would not have fitted"
        );
    }

    #[test]
    fn below_the_floor_nothing_fits() {
        let quote = quote(64_000);
        let floor = quote.cost(256);
        assert_eq!(quote.max_affordable_output(floor), Some(256));
        assert_eq!(
            quote.max_affordable_output(floor.minus(Micro::new(1))),
            None
        );
        assert_eq!(quote.max_affordable_output(Micro::ZERO), None);
        assert_eq!(
            Quote {
                output_floor: 0,
                ..quote.clone()
            }
            .max_affordable_output(quote.cost(0)),
            None,
            "a limit of 0 says nothing"
        );
    }

    #[test]
    fn with_other_models_a_quote_is_the_dearest_one_s_each_at_its_own_limit() {
        let reach = |price| WorstCase {
            input_tokens: 0,
            input_price: Micro::ZERO,
            output_price: credits(price),
        };
        let cheap = Quote::flat(reach(100), 1, 8_000, 256);
        let dear = Quote::flat(reach(500), 1, 1_000, 300);
        let both = cheap.clone().with_alternative(dear.clone());
        assert_eq!((both.output_limit, both.output_floor), (8_000, 300));
        assert_eq!(both.cost(1_000), dear.cost(1_000), "the dearer one");
        assert_eq!(
            both.cost(8_000),
            cheap.cost(8_000),
            "which never gets more than its own limit"
        );
        assert_eq!(
            dear.clone().with_alternative(cheap.clone()).cost(8_000),
            both.cost(8_000),
            "whichever was asked for"
        );
        let fitted = both.max_affordable_output(dear.cost(600)).unwrap();
        assert_eq!(fitted, 600);
        assert!(both.cost(fitted + 1) > dear.cost(600));
        assert_eq!(
            both.max_affordable_output(dear.cost(299)),
            None,
            "no model runs below its floor"
        );
        assert_eq!(
            cheap.max_affordable_output(dear.cost(299)),
            Some(1_495),
            "which the cheap one alone would"
        );
    }

    #[test]
    fn a_free_model_fits_into_nothing() {
        let reach = WorstCase {
            input_tokens: 1_000,
            input_price: Micro::ZERO,
            output_price: Micro::ZERO,
        };
        assert_eq!(
            Quote::flat(reach, 1, 10, 256).max_affordable_output(Micro::ZERO),
            Some(10)
        );
    }

    #[test]
    fn a_quote_is_the_dearest_of_its_reaches_and_all_must_fit() {
        let reach = |input_tokens, input_price, output_price| WorstCase {
            input_tokens,
            input_price: credits(input_price),
            output_price: credits(output_price),
        };
        // 1 000 × 400 + 10 × 100, or 2 000 × 100 + 10 × 500: the limit decides which costs more.
        let reaches = vec![reach(1_000, 400, 100), reach(2_000, 100, 500)];
        let quote = Quote {
            reaches,
            ..Quote::flat(reach(0, 0, 0), 1, 2_000, 1)
        };
        assert_eq!(quote.cost(10), Micro::new(401_000));
        assert_eq!(quote.cost(1_000), Micro::new(700_000));
        assert_eq!(quote.max_affordable_output(Micro::new(450_000)), Some(500));
        assert_eq!(quote.max_affordable_output(Micro::new(450_499)), Some(500));
        assert_eq!(quote.max_affordable_output(Micro::new(399_999)), None);
        let held = ToolHold {
            tool: ServerTool::WebSearch,
            uses: 3,
            price: credits(1_000),
        };
        let searches = Quote {
            tools: vec![held],
            ..quote.clone()
        };
        assert_eq!(searches.cost(10), Micro::new(3_401_000));
        let half = Factor::from_decimal("0.5".parse().unwrap()).unwrap();
        let flex = Quote {
            factor: half,
            ..searches
        };
        assert_eq!(
            flex.cost(10),
            Micro::new(3_200_500),
            "a tier multiplies tokens, not uses"
        );
        assert_eq!(
            Quote {
                choices: 3,
                ..quote
            }
            .cost(1_000),
            Micro::new(1_700_000)
        );
    }

    #[test]
    fn a_cache_saves_what_its_tokens_cost_less_than_input_and_costs_what_its_writes_cost_more() {
        let price = PriceList::new([500, 50, 625, 1_000, 2_500].map(credits));
        let usage = |cache_read, cache_write_5m, cache_write_1h| Usage {
            input: 7,
            output: 9,
            cache_read,
            cache_write_5m,
            cache_write_1h,
            ..Usage::default()
        };
        let saved = |usage: Usage| cache_savings(&usage, &price).get();
        assert_eq!(saved(usage(0, 0, 0)), 0);
        assert_eq!(saved(usage(1_000, 0, 0)), 450_000);
        assert_eq!(saved(usage(0, 1_000, 0)), -125_000);
        assert_eq!(saved(usage(0, 0, 1_000)), -500_000);
        assert_eq!(saved(usage(1_000, 1_000, 200)), 225_000);
        // A pass counts at the prices of its own size.
        let pass = CompactionPass {
            cache_read: 1_000,
            ..CompactionPass::default()
        };
        let passes = usage(1_000, 0, 0).with_passes([pass].into_iter().collect());
        assert_eq!(saved(passes), 900_000);
    }

    proptest! {
        /// A vendor without a cache would have counted the same tokens as input, at the same size.
        #[test]
        fn what_was_billed_and_what_was_saved_is_the_price_without_a_cache(
            counts in any::<[u32; 6]>(),
            prices in any::<[u32; 5]>(),
            factor in 1_u32..4_000_000,
            at in any::<u32>(),
        ) {
            let [input, cache_read, cache_write_5m, cache_write_1h, audio_input, output] =
                counts.map(u64::from);
            let usage = Usage {
                input, cache_read, cache_write_5m, cache_write_1h, audio_input, output,
                web_searches: 3,
                service_tier: Some(ServiceTier::from_wire("x")),
                ..Usage::default()
            };
            let [input, cache_read, cache_write_5m, cache_write_1h, output] =
                prices.map(|price| Micro::new(price.into()));
            let base = TokenPrices { input, cache_read, cache_write_5m, cache_write_1h, output };
            let above = TokenPrices { input: output, cache_read: input, ..base };
            let tier = InputTier { above_input_tokens: at.into(), rates: above };
            let factor = Factor::from_decimal(Micro::new(factor.into())).unwrap();
            let features = FeaturePrices {
                web_search: Some(credits(1_000)),
                service_tier: [(ServiceTier::from_wire("x"), factor)].into(),
                ..FeaturePrices::default()
            };
            let price = PriceList::from_tiers(base, vec![tier], features);
            let plain = Usage {
                input: usage.input_total() - usage.audio_input,
                cache_read: 0,
                cache_write_5m: 0,
                cache_write_1h: 0,
                ..usage
            };
            prop_assert_eq!(
                cost(&usage, &price).plus(cache_savings(&usage, &price)),
                cost(&plain, &price)
            );
        }
    }

    #[test]
    fn the_whole_request_is_charged_at_the_tier_of_its_whole_input() {
        let below = Usage {
            input: 500,
            cache_read: 300,
            cache_write_5m: 150,
            cache_write_1h: 50,
            output: 70,
            ..Usage::default()
        };
        assert_eq!(below.input_total(), 1_000);
        assert_eq!(
            cost(&below, &list()),
            Micro::new(50_000 + 3_000 + 18_750 + 10_000 + 35_000)
        );
        for class in [
            Usage {
                input: 501,
                ..below
            },
            Usage {
                cache_read: 301,
                ..below
            },
            Usage {
                cache_write_5m: 151,
                ..below
            },
            Usage {
                cache_write_1h: 51,
                ..below
            },
            Usage {
                audio_input: 1,
                ..below
            },
        ] {
            let lines = cost_lines(&class, &list());
            let output = lines.iter().find(|line| line.class == "output").unwrap();
            assert_eq!(output.price, credits(1_000), "{class:?}");
        }
        let above = Usage {
            input: 501,
            ..below
        };
        assert_eq!(
            cost(&above, &list()),
            Micro::new(100_200 + 6_000 + 37_500 + 20_000 + 70_000)
        );
    }

    #[test]
    fn features_are_lines_of_their_own_and_a_tier_multiplies_tokens_only() {
        let usage = Usage {
            input: 10,
            audio_input: 20,
            output: 30,
            audio_output: 40,
            web_searches: 5,
            ..Usage::default()
        };
        let line_texts = |usage: &Usage, price: &PriceList| {
            let lines = cost_lines(usage, price)
                .into_iter()
                .filter(|line| line.count > 0);
            lines
                .map(|line| format!("{} {} {}", line.class, line.unit.as_str(), line.credits()))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            line_texts(&usage, &list()),
            [
                "input tokens 0.001",
                "audio_input tokens 0.06",
                "output tokens 0.015",
                "audio_output tokens 0.24",
                "web_search uses 5"
            ]
        );
        assert_eq!(cost(&usage, &list()), Micro::new(5_316_000));
        let priority = Usage {
            service_tier: Some(tier("priority")),
            ..usage
        };
        assert_eq!(
            line_texts(&priority, &list())[1],
            "audio_input tokens 0.105"
        );
        assert_eq!(cost(&priority, &list()), Micro::new(5_000_000 + 553_000));
        let unlisted = Usage {
            service_tier: Some(tier("scale")),
            ..usage
        };
        assert_eq!(cost(&unlisted, &list()), cost(&usage, &list()));
        let flat = PriceList::new([100, 10, 125, 200, 500].map(credits));
        let plain = [
            "input tokens 0.001",
            "audio_input tokens 0.002",
            "output tokens 0.015",
            "audio_output tokens 0.02",
            "web_search uses 0",
        ];
        assert_eq!(
            line_texts(&usage, &flat),
            plain,
            "audio without a price is charged as text"
        );
    }

    #[test]
    fn the_tier_that_served_is_billed_and_never_one_dearer_than_was_asked_for() {
        let (price, priority, flex) = (list(), tier("priority"), tier("flex"));
        let (usual, other) = (tier("default"), tier("scale"));
        for (requested, reported, billed) in [
            (TierRequest::Auto, None, None),
            (TierRequest::Auto, Some(usual), None),
            (TierRequest::Auto, Some(priority), Some(priority)),
            (TierRequest::Auto, Some(flex), Some(flex)),
            (TierRequest::Auto, Some(other), None),
            (TierRequest::Usual, None, None),
            (TierRequest::Usual, Some(priority), None),
            (TierRequest::Usual, Some(flex), Some(flex)),
            (TierRequest::Named(priority), None, Some(priority)),
            (TierRequest::Named(priority), Some(usual), None),
            (TierRequest::Named(priority), Some(priority), Some(priority)),
            (TierRequest::Named(flex), None, Some(flex)),
            (TierRequest::Named(flex), Some(usual), Some(flex)),
            (TierRequest::Named(flex), Some(priority), Some(flex)),
        ] {
            let factors = &price.features.service_tier;
            assert_eq!(
                requested.billed_tier(reported, factors),
                billed,
                "{reported:?} for {requested:?}"
            );
            assert!(
                factor_for(factors, billed) <= requested.max_factor(factors),
                "the hold bears what is billed"
            );
        }
        let text = |requested: TierRequest| {
            requested
                .max_factor(&price.features.service_tier)
                .to_string()
        };
        let dearest = [
            TierRequest::Auto,
            TierRequest::Usual,
            TierRequest::Named(flex),
        ]
        .map(text);
        assert_eq!(dearest, ["1.75", "1", "0.5"]);
        let none = TierFactors::new();
        assert_eq!(TierRequest::Auto.max_factor(&none), Factor::ONE);
        assert_eq!(TierRequest::Auto.billed_tier(Some(priority), &none), None);
    }

    #[test]
    fn two_names_of_one_tier_have_one_price() {
        let factors = |names: &[&str]| -> TierFactors {
            let two = Factor::from_decimal("2".parse().unwrap()).unwrap();
            names.iter().map(|name| (tier(name), two)).collect()
        };
        let priority = factors(&["priority", "flex"]);
        let fast = factors(&["fast", "flex"]);
        let both = factors(&["fast", "priority"]);
        for (listed, requested, reported, billed) in [
            (&priority, "fast", Some("priority"), Some("priority")),
            (&priority, "fast", Some("fast"), Some("priority")),
            (&priority, "fast", None, Some("priority")),
            (&priority, "fast", Some("default"), None),
            (&priority, "ultrafast", Some("default"), None),
            (&fast, "fast", Some("priority"), Some("fast")),
            (&fast, "priority", Some("priority"), Some("fast")),
            (&both, "fast", Some("priority"), Some("priority")),
        ] {
            let named = TierRequest::Named(tier(requested));
            let found = named.billed_tier(reported.map(tier), listed);
            assert_eq!(found, billed.map(tier), "{reported:?} for {requested}");
            let paid = factor_for(listed, found);
            assert!(paid <= named.max_factor(listed), "the hold covers the bill");
        }
        let hold = |requested| TierRequest::Named(tier(requested)).max_factor(&priority);
        assert_eq!(
            ["fast", "ultrafast"].map(|name| hold(name).to_string()),
            ["2", "1"]
        );
    }

    #[test]
    fn the_largest_that_fits_is_found() {
        for max in 0..40 {
            for bound in 0..45 {
                for min in 0..4 {
                    let expected = (min <= bound.min(max)).then_some(bound.min(max));
                    assert_eq!(
                        largest_fitting(min, max, |number| number <= bound),
                        expected,
                        "{min}..={max} to {bound}"
                    );
                }
            }
        }
        assert_eq!(largest_fitting(0, u64::MAX, |_| true), Some(u64::MAX));
        assert_eq!(
            largest_fitting(3, u64::MAX, |number| number < u64::MAX),
            Some(u64::MAX - 1)
        );
    }

    #[test]
    fn an_estimate_is_lowered_until_the_hold_bears_it() {
        let price = PriceList::new([100, 10, 125, 200, 500].map(credits));
        let usage = Usage {
            input: 5_000,
            output: 2_000,
            reasoning: 1_500,
            ..Usage::default()
        };
        assert_eq!(clamp_usage_to_cost(usage, &price, credits(2)), usage);
        let lowered = clamp_usage_to_cost(usage, &price, credits(1));
        assert_eq!(
            (lowered.input, lowered.output, cost(&lowered, &price)),
            (5_000, 1_000, credits(1))
        );
        assert_eq!(lowered.reasoning, 1_000);
        let lowered = clamp_usage_to_cost(usage, &price, Micro::new(100_000));
        assert_eq!((lowered.input, lowered.output), (1_000, 0));
        assert_eq!(
            clamp_usage_to_cost(usage, &price, Micro::ZERO),
            Usage::default()
        );
    }

    #[test]
    fn an_estimate_above_a_threshold_is_lowered_to_it_where_that_is_what_fits() {
        let usage = Usage {
            input: 1_500,
            output: 1_000,
            service_tier: Some(tier("flex")),
            ..Usage::default()
        };
        // Half of 1 500 × 200 + 1 000 × 1 000.
        assert_eq!(cost(&usage, &list()), Micro::new(650_000));
        let lowered = clamp_usage_to_cost(usage, &list(), Micro::new(649_999));
        assert_eq!(
            (lowered.input, lowered.output, lowered.service_tier),
            (1_500, 999, usage.service_tier)
        );
        // 1 000 tokens cost half of 1 000 × 100; one more token raises the price of all of them.
        let lowered = clamp_usage_to_cost(usage, &list(), Micro::new(100_000));
        assert_eq!((lowered.input, lowered.output), (1_000, 200));
        assert_eq!(cost(&lowered, &list()), Micro::new(100_000));
        let lowered = clamp_usage_to_cost(usage, &list(), Micro::new(100_100));
        assert_eq!((lowered.input, lowered.output), (1_001, 0));
        // The distance to the next threshold does not limit classes other than input.
        let near = Usage {
            input: 999,
            web_searches: 5,
            audio_output: 6,
            output: 1_000,
            ..Usage::default()
        };
        assert_eq!(
            clamp_usage_to_cost(near, &list(), Micro::new(5_635_899)),
            Usage {
                output: 999,
                ..near
            }
        );
        let cached = Usage {
            cache_read: 1_100,
            input: 10,
            web_searches: 2,
            audio_output: 9,
            ..usage
        };
        // Half of 1 100 × 20 + 10 × 200, 2 × 1, half of 9 × 6 000 + 1 000 × 1 000.
        assert_eq!(
            cost(&cached, &list()),
            Micro::new(12_000 + 2_000_000 + 27_000 + 500_000)
        );
        for (max_cost, kept) in [
            (2_538_999, (1_100, 10, 2, 9, 999)),
            (2_026_999, (1_100, 10, 2, 4, 5)),
            (1_999_999, (1_100, 10, 1, 9, 1_000)),
            (11_999, (1_100, 9, 0, 0, 0)),
            (10_999, (1_099, 0, 0, 0, 0)),
            (10_009, (1_000, 0, 0, 1, 8)),
            (5, (1, 0, 0, 0, 0)),
        ] {
            let kept_now = clamp_usage_to_cost(cached, &list(), Micro::new(max_cost));
            let Usage {
                cache_read,
                input,
                web_searches,
                audio_output,
                output,
                ..
            } = kept_now;
            assert_eq!(
                (cache_read, input, web_searches, audio_output, output),
                kept,
                "{max_cost}"
            );
            assert!(cost(&kept_now, &list()) <= Micro::new(max_cost));
        }
    }

    #[test]
    fn where_more_input_is_cheaper_the_larger_size_is_kept() {
        let tiers = vec![InputTier {
            above_input_tokens: 1_000,
            rates: rates([10; 5]),
        }];
        let price = PriceList::from_tiers(rates([100; 5]), tiers, FeaturePrices::default());
        let (count, max_cost) = (1_500, Micro::new(14_000));
        for usage in [
            Usage {
                cache_read: count,
                ..Usage::default()
            },
            Usage {
                cache_write_5m: count,
                ..Usage::default()
            },
            Usage {
                cache_write_1h: count,
                ..Usage::default()
            },
            Usage {
                audio_input: count,
                ..Usage::default()
            },
            Usage {
                input: count,
                ..Usage::default()
            },
        ] {
            let kept = clamp_usage_to_cost(usage, &price, max_cost);
            assert_eq!(
                (kept.input_total(), cost(&kept, &price)),
                (1_400, max_cost),
                "{usage:?}"
            );
        }
    }
}
