//! Price arithmetic at its bounds, compared with long multiplication implemented here.
//!
//! The tests must not share a number type with the program: a value that overflows there must not
//! overflow here.

use crate::cases;
use credits::money::{Factor, MAX_MICRO, Micro, exact_line};
use credits::price_list::{FeaturePrices, InputTier, PriceList, TokenPrices};
use credits::pricing::{self, Quote, ServiceTerms, TierRequest, ToolHold, WorstCase};
use llm_protocol::usage::{CountedUnit, PerTool, ServerTool, ServiceTier, Usage, UsageBounds};
use proptest::prelude::*;
use std::cmp::Ordering;
use std::collections::BTreeMap;

/// A whole number of any size in base 2^32, least significant digit first, without leading zeroes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Big(Vec<u32>);

impl Big {
    fn new(number: u64) -> Self {
        Self(vec![number as u32, (number >> 32) as u32]).trimmed()
    }

    fn trimmed(mut self) -> Self {
        while self.0.last() == Some(&0) {
            self.0.pop();
        }
        self
    }

    fn plus(&self, other: &Self) -> Self {
        let mut carry = 0_u64;
        let mut digits = Vec::new();
        for index in 0..self.0.len().max(other.0.len()) + 1 {
            let digit = |big: &Self| u64::from(big.0.get(index).copied().unwrap_or(0));
            let sum = digit(self) + digit(other) + carry;
            digits.push(sum as u32);
            carry = sum >> 32;
        }
        Self(digits).trimmed()
    }

    fn times(&self, other: &Self) -> Self {
        let mut digits = vec![0_u32; self.0.len() + other.0.len() + 1];
        for (place, one) in self.0.iter().enumerate() {
            let mut carry = 0_u64;
            for offset in 0..=other.0.len() {
                let product =
                    u64::from(*one) * u64::from(other.0.get(offset).copied().unwrap_or(0));
                let sum = u64::from(digits[place + offset]) + product + carry;
                digits[place + offset] = sum as u32;
                carry = sum >> 32;
            }
        }
        Self(digits).trimmed()
    }

    /// Divides; returns the quotient and the remainder.
    fn by(&self, divisor: u32) -> (Self, u32) {
        let mut rest = 0_u64;
        let mut digits = self.0.clone();
        for digit in digits.iter_mut().rev() {
            let part = rest << 32 | u64::from(*digit);
            *digit = (part / u64::from(divisor)) as u32;
            rest = part % u64::from(divisor);
        }
        (Self(digits).trimmed(), rest as u32)
    }

    /// Divides by a million twice and rounds up.
    fn micro_up(&self) -> Self {
        let (millionth, rest) = self.by(1_000_000);
        let (quotient, more) = millionth.by(1_000_000);
        if rest == 0 && more == 0 {
            quotient
        } else {
            quotient.plus(&Self::new(1))
        }
    }

    fn compare(&self, other: &Self) -> Ordering {
        let by_length = self.0.len().cmp(&other.0.len());
        by_length.then_with(|| self.0.iter().rev().cmp(other.0.iter().rev()))
    }

    fn is_at_most(&self, amount: Micro) -> bool {
        u64::try_from(amount.get())
            .is_ok_and(|amount| self.compare(&Self::new(amount)) != Ordering::Greater)
    }

    /// The number in decimal digits.
    fn text(&self) -> String {
        let (mut rest, mut digits) = (self.clone(), Vec::new());
        while !rest.0.is_empty() {
            let (quotient, digit) = rest.by(10);
            digits.push(char::from_digit(digit, 10).unwrap());
            rest = quotient;
        }
        if digits.is_empty() {
            "0".into()
        } else {
            digits.iter().rev().collect()
        }
    }
}

fn of(amount: Micro) -> Big {
    Big::new(u64::try_from(amount.get()).unwrap())
}

/// The cost as the program stores it: at most [`MAX_MICRO`].
fn kept(cost: &Big) -> Micro {
    if cost.is_at_most(Micro::new(MAX_MICRO)) {
        Micro::new(cost.text().parse().unwrap())
    } else {
        Micro::new(MAX_MICRO)
    }
}

/// Counts of every size, and their bounds.
fn tokens() -> impl Strategy<Value = u64> {
    let bits =
        (0..=64_u32, any::<u64>()).prop_map(|(bits, any)| any.checked_shr(64 - bits).unwrap_or(0));
    prop_oneof![8 => bits, 1 => Just(u64::MAX), 1 => Just(0), 1 => Just(1), 2 => 0..2_000_000_u64]
}

fn amount() -> impl Strategy<Value = Micro> {
    let bits =
        (0..=53_u32, any::<u64>()).prop_map(|(bits, any)| any.checked_shr(64 - bits).unwrap_or(0));
    let largest = u64::try_from(MAX_MICRO).unwrap();
    let near = (0..3_u64).prop_map(move |less| largest - less);
    let round = (0..20_000_u64).prop_map(|count| count * 500_000);
    prop_oneof![8 => bits, 1 => near, 1 => Just(0), 1 => Just(1), 3 => round]
        .prop_map(|amount| Micro::new(i64::try_from(amount).unwrap()))
}

fn factor() -> impl Strategy<Value = Factor> {
    let most = 1_000_000_000_i64;
    let bits = (0..30_u32, 1..=most).prop_map(move |(bits, any)| (any >> bits).clamp(1, most));
    prop_oneof![4 => bits, 2 => Just(1_000_000), 1 => Just(1_750_000), 1 => Just(1), 1 => Just(most)]
        .prop_map(|millionths| Factor::from_decimal(Micro::new(millionths)).unwrap())
}

fn rates() -> impl Strategy<Value = TokenPrices> {
    [amount(), amount(), amount(), amount(), amount()].prop_map(
        |[input, cache_read, cache_write_5m, cache_write_1h, output]| TokenPrices {
            input,
            cache_read,
            cache_write_5m,
            cache_write_1h,
            output,
        },
    )
}

/// Names that may have a price, and one that never has a price.
const NAMES: [&str; 3] = ["priority", "flex", "unlisted"];

/// Boxed, like the next two strategies: the frames of large nested strategies do not fit a test's
/// stack.
fn features() -> BoxedStrategy<FeaturePrices> {
    let some = || proptest::option::of(amount());
    let factors = || {
        [
            proptest::option::of(factor()),
            proptest::option::of(factor()),
        ]
        .prop_map(|factors| {
            let named = NAMES
                .iter()
                .zip(factors)
                .filter_map(|(name, factor)| Some((ServiceTier::from_wire(name), factor?)));
            named.collect::<BTreeMap<_, _>>()
        })
        .boxed()
    };
    let media = [some(), some(), some(), some()];
    let units = [some(), some(), some()];
    let tools = [some(), some(), some(), some(), some(), some()];
    (media, units, tools, [factors(), factors(), factors()])
        .prop_map(
            |(media, units, tools, [service_tier, inference_geo, speed])| {
                let [audio_input, audio_output, image_input, image_output] = media;
                let [image, character, second] = units;
                let [
                    web_search,
                    web_fetch,
                    code_execution,
                    tool_search,
                    mcp,
                    search_unit,
                ] = tools;
                FeaturePrices {
                    audio_input,
                    audio_output,
                    web_search,
                    web_fetch,
                    code_execution,
                    tool_search,
                    mcp,
                    image_input,
                    image_output,
                    search_unit,
                    image,
                    character,
                    second,
                    service_tier,
                    inference_geo,
                    speed,
                }
            },
        )
        .boxed()
}

/// A price list with up to three long-context tiers, at any prices.
fn price() -> BoxedStrategy<PriceList> {
    let threshold =
        prop_oneof![tokens(), 0..2_000_000_u64].prop_map(|tokens| tokens.clamp(1, u64::MAX - 1));
    let tiers = proptest::collection::btree_map(threshold, rates(), 0..=3).prop_map(
        |tiers: BTreeMap<_, _>| {
            tiers
                .into_iter()
                .map(|(above_input_tokens, rates)| InputTier {
                    above_input_tokens,
                    rates,
                })
                .collect::<Vec<_>>()
        },
    );
    (rates(), tiers, features())
        .prop_map(|(base, tiers, features)| PriceList::from_tiers(base, tiers, features))
        .boxed()
}

fn usage() -> BoxedStrategy<Usage> {
    let word = || {
        let name = proptest::option::of(proptest::sample::select(&NAMES[..]));
        name.prop_map(|name| name.map(ServiceTier::from_wire))
    };
    let counts = [
        tokens(),
        tokens(),
        tokens(),
        tokens(),
        tokens(),
        tokens(),
        tokens(),
        tokens(),
        tokens(),
    ];
    let units = [tokens(), tokens(), tokens(), tokens()];
    let uses = [tokens(), tokens(), tokens(), tokens(), tokens()];
    (counts, units, uses, [word(), word(), word()])
        .prop_map(
            |(counts, units, uses, [service_tier, inference_geo, speed])| {
                let [
                    input,
                    cache_read,
                    cache_write_5m,
                    cache_write_1h,
                    output,
                    audio_input,
                    audio_output,
                    image_input,
                    image_output,
                ] = counts;
                let [search_units, images, characters, seconds] = units;
                let [web_search, web_fetch, code_execution, tool_search, mcp] = uses;
                let usage = Usage {
                    input,
                    cache_read,
                    cache_write_5m,
                    cache_write_1h,
                    output,
                    audio_input,
                    audio_output,
                    image_input,
                    image_output,
                    search_units,
                    images,
                    characters,
                    seconds,
                    service_tier,
                    inference_geo,
                    speed,
                    ..Usage::default()
                };
                usage.with_uses(PerTool {
                    web_search,
                    web_fetch,
                    code_execution,
                    tool_search,
                    mcp,
                })
            },
        )
        .boxed()
}

fn asked() -> impl Strategy<Value = TierRequest> {
    prop_oneof![
        Just(TierRequest::Auto),
        Just(TierRequest::Usual),
        proptest::sample::select(&NAMES[..])
            .prop_map(|name| TierRequest::Named(ServiceTier::from_wire(name))),
    ]
}

/// The usage if its counts add up without overflow, else the usage with a sixteenth of each count.
fn countable(usage: Usage) -> Usage {
    let Usage {
        input,
        cache_read,
        cache_write_5m,
        cache_write_1h,
        output,
        audio_input,
        audio_output,
        image_input,
        image_output,
        ..
    } = usage;
    let sum = |parts: &[u64]| {
        parts
            .iter()
            .try_fold(0_u64, |sum, part| sum.checked_add(*part))
    };
    if sum(&[
        input,
        cache_read,
        cache_write_5m,
        cache_write_1h,
        audio_input,
        output,
        audio_output,
        image_input,
        image_output,
    ])
    .is_some()
    {
        return usage;
    }
    Usage {
        input: input / 16,
        cache_read: cache_read / 16,
        cache_write_5m: cache_write_5m / 16,
        cache_write_1h: cache_write_1h / 16,
        output: output / 16,
        audio_input: audio_input / 16,
        audio_output: audio_output / 16,
        image_input: image_input / 16,
        image_output: image_output / 16,
        ..usage
    }
}

/// The usage in tokens and uses of tools: a quote of tokens covers no other units.
fn without_units(usage: Usage) -> Usage {
    CountedUnit::ALL.into_iter().fold(usage, |mut usage, unit| {
        *usage.units_mut(unit) = 0;
        usage
    })
}

/// A price list, and a usage whose input is at a threshold of the list or one beside it, if it has
/// thresholds.
fn billed() -> impl Strategy<Value = (Usage, PriceList)> {
    (usage(), price(), any::<prop::sample::Index>(), 0..4_u64).prop_map(
        |(usage, price, index, beside)| {
            if price.tiers.is_empty() || beside == 3 {
                return (usage, price);
            }
            let total = index.get(&price.tiers).above_input_tokens - 1 + beside;
            let none = Usage {
                cache_read: 0,
                cache_write_5m: 0,
                cache_write_1h: 0,
                audio_input: 0,
                image_input: 0,
                ..usage
            };
            // Part of the input comes from a cache, part of it is audio.
            let (cache_read, audio_input) = (
                usage.cache_read.min(total / 2),
                usage.audio_input.min(total / 4),
            );
            let input = total - cache_read - audio_input;
            (
                Usage {
                    input,
                    cache_read,
                    audio_input,
                    ..none
                },
                price,
            )
        },
    )
}

fn millionths(factor: Factor) -> Big {
    of(factor.to_string().parse().unwrap())
}

/// The rates for an input of this size, found by a search from the end of the list.
fn in_force(usage: &Usage, price: &PriceList) -> TokenPrices {
    let parts = [
        usage.input,
        usage.cache_read,
        usage.cache_write_5m,
        usage.cache_write_1h,
        usage.audio_input,
        usage.image_input,
    ];
    let total = parts
        .iter()
        .fold(Big::new(0), |sum, part| sum.plus(&Big::new(*part)));
    let is_above =
        |tier: &&InputTier| total.compare(&Big::new(tier.above_input_tokens)) == Ordering::Greater;
    let base = TokenPrices {
        input: price.input,
        cache_read: price.cache_read,
        cache_write_5m: price.cache_write_5m,
        cache_write_1h: price.cache_write_1h,
        output: price.output,
    };
    price
        .tiers
        .iter()
        .rev()
        .find(is_above)
        .map_or(base, |tier| tier.rates)
}

/// The exact cost, in millionths of a millionth of a µc.
fn exact(usage: &Usage, price: &PriceList) -> Big {
    let (rates, features) = (in_force(usage, price), &price.features);
    let terms = [
        (usage.input, rates.input),
        (usage.cache_read, rates.cache_read),
        (usage.cache_write_5m, rates.cache_write_5m),
        (usage.cache_write_1h, rates.cache_write_1h),
        (
            usage.audio_input,
            features.audio_input.unwrap_or(rates.input),
        ),
        (usage.output, rates.output),
        (
            usage.audio_output,
            features.audio_output.unwrap_or(rates.output),
        ),
        (
            usage.image_input,
            features.image_input.unwrap_or(rates.input),
        ),
        (
            usage.image_output,
            features.image_output.unwrap_or(rates.output),
        ),
    ];
    let sum = terms.iter().fold(Big::new(0), |sum, (tokens, price)| {
        sum.plus(&Big::new(*tokens).times(&of(*price)))
    });
    let tables = [
        &features.service_tier,
        &features.inference_geo,
        &features.speed,
    ];
    let factors = tables
        .into_iter()
        .zip([usage.service_tier, usage.inference_geo, usage.speed]);
    let factor = factors.fold(Big::new(1_000_000), |product, (table, word)| {
        let factor = word.and_then(|word| table.get(&word).copied());
        let (whole, part) = product
            .times(&factor.map_or(Big::new(1_000_000), millionths))
            .by(1_000_000);
        if part == 0 {
            whole
        } else {
            whole.plus(&Big::new(1))
        }
    });
    let uses = [
        (usage.web_searches, features.web_search),
        (usage.web_fetches, features.web_fetch),
        (usage.code_executions, features.code_execution),
        (usage.tool_searches, features.tool_search),
        (usage.mcp_calls, features.mcp),
        (usage.search_units, features.search_unit),
        (usage.images, features.image),
        (usage.characters, features.character),
        (usage.seconds, features.second),
    ];
    let uses = uses.iter().fold(Big::new(0), |sum, (count, price)| {
        sum.plus(&Big::new(*count).times(&of(price.unwrap_or(Micro::ZERO))))
    });
    sum.times(&factor)
        .plus(&uses.times(&Big::new(1_000_000_000)))
}

fn reach() -> impl Strategy<Value = WorstCase> {
    (tokens(), amount(), amount()).prop_map(|(input_tokens, input_price, output_price)| WorstCase {
        input_tokens,
        input_price,
        output_price,
    })
}

/// A quote for one model, or for two of which either may answer.
fn quote() -> impl Strategy<Value = Quote> {
    prop_oneof![
        of_one_model(),
        (of_one_model(), of_one_model()).prop_map(|(one, other)| one.with_alternative(other))
    ]
}

fn of_one_model() -> impl Strategy<Value = Quote> {
    let reaches = proptest::collection::vec(reach(), 1..=3);
    let searches = (prop_oneof![Just(0), tokens()], amount());
    (reaches, tokens(), searches, factor(), tokens(), tokens()).prop_map(
        |(reaches, choices, (uses, price), factor, output_limit, floor)| Quote {
            reaches,
            input_unit: "input tokens",
            choices: choices.max(1),
            tools: vec![
                ToolHold {
                    tool: ServerTool::WebSearch,
                    uses,
                    price
                };
                2
            ],
            service: ServiceTerms::default(),
            factor,
            output_limit,
            output_floor: floor.min(output_limit),
            own_limit: output_limit,
            others: Vec::new(),
            bounds: UsageBounds::default(),
        },
    )
}

fn quoted(quote: &Quote, limit: u64) -> Big {
    let searches = quote.tools.iter().fold(Big::new(0), |sum, hold| {
        sum.plus(
            &Big::new(hold.uses)
                .times(&of(hold.price))
                .times(&Big::new(1_000_000_000)),
        )
    });
    let cost = |reach: &WorstCase| {
        let output = Big::new(limit.min(quote.own_limit))
            .times(&Big::new(quote.choices))
            .times(&of(reach.output_price));
        let tokens = Big::new(reach.input_tokens)
            .times(&of(reach.input_price))
            .plus(&output);
        tokens
            .times(&millionths(quote.factor))
            .plus(&searches)
            .micro_up()
    };
    let others = quote.others.iter().map(|other| quoted(other, limit));
    quote
        .reaches
        .iter()
        .map(cost)
        .chain(others)
        .max_by(Big::compare)
        .unwrap()
}

#[test]
fn the_long_multiplication_is_right_where_a_word_is_wide_enough() {
    for (one, other) in [
        (0, 7),
        (1 << 40, 3),
        (u64::MAX, u64::MAX),
        (0xffff_ffff, 0x1_0000_0001),
    ] {
        let (sum, product) = (
            u128::from(one) + u128::from(other),
            u128::from(one) * u128::from(other),
        );
        let product_big = Big::new(one).times(&Big::new(other));
        assert_eq!(
            (
                Big::new(one).plus(&Big::new(other)).text(),
                product_big.text()
            ),
            (sum.to_string(), product.to_string())
        );
        assert_eq!(
            product_big.micro_up().text(),
            product.div_ceil(1_000_000_000_000).to_string()
        );
    }
}

proptest! {
    #![proptest_config(cases(2_000))]

    #[test]
    fn a_cost_is_the_exact_sum_rounded_up_once((usage, price) in billed()) {
        prop_assert_eq!(pricing::cost(&usage, &price), kept(&exact(&usage, &price).micro_up()));
    }

    #[test]
    fn a_receipts_lines_are_exact(tokens in tokens(), price in amount(), factor in factor()) {
        let digits = format!("{:0>19}", Big::new(tokens).times(&of(price)).times(&millionths(factor)).text());
        let (whole, part) = digits.split_at(digits.len() - 18);
        let text = format!("{whole}.{part}");
        prop_assert_eq!(exact_line(tokens, price, factor), text.trim_end_matches('0').trim_end_matches('.'));
    }

    #[test]
    fn a_receipts_lines_add_up_to_what_was_billed((usage, price) in billed()) {
        let lines = pricing::cost_lines(&usage, &price);
        // An exact number of credits has up to 18 decimal places.
        let parts = |decimal: &str| {
            let (whole, part) = decimal.split_once('.').unwrap_or((decimal, ""));
            let digits = format!("{whole}{part:0<18}");
            digits.bytes().fold(Big::new(0), |sum, digit| {
                sum.times(&Big::new(10)).plus(&Big::new(u64::from(digit - b'0')))
            })
        };
        let sum = lines.iter().fold(Big::new(0), |sum, line| sum.plus(&parts(&line.credits())));
        prop_assert_eq!(kept(&sum.micro_up()), pricing::cost(&usage, &price));
    }

    #[test]
    fn a_quote_is_the_exact_worst_case(quote in quote(), limit in tokens()) {
        prop_assert_eq!(quote.cost(limit), kept(&quoted(&quote, limit)));
    }

    #[test]
    fn a_limit_that_fits_is_the_largest_that_does(quote in quote(), available in amount()) {
        let fits = |limit| quoted(&quote, limit).is_at_most(available);
        match quote.max_affordable_output(available) {
            Some(limit) => {
                prop_assert!(fits(limit));
                prop_assert!(limit >= quote.output_floor && limit <= quote.output_limit);
                prop_assert!(limit == quote.output_limit || !fits(limit + 1));
            }
            None => prop_assert!(!fits(quote.output_floor.max(1).min(quote.output_limit))),
        }
    }

    #[test]
    fn an_estimate_never_passes_its_hold_and_grows_nowhere((given, price) in billed(), most in amount()) {
        let lowered = pricing::clamp_usage_to_cost(given, &price, most);
        prop_assert!(exact(&lowered, &price).micro_up().is_at_most(most), "{lowered:?}");
        let counts = |usage: &Usage| usage.tokens().map(|(_, count)| count);
        prop_assert!(counts(&lowered).iter().zip(counts(&given)).all(|(lowered, given)| *lowered <= given));
        prop_assert!(ServerTool::ALL.iter().all(|tool| lowered.uses(*tool) <= given.uses(*tool)));
        let words = |usage: &Usage| [usage.service_tier, usage.inference_geo, usage.speed];
        prop_assert_eq!(words(&lowered), words(&given));
        let fits = |usage: &Usage| exact(usage, &price).micro_up().is_at_most(most);
        if fits(&given) {
            prop_assert_eq!(lowered, given);
        } else if lowered.output < given.output {
            prop_assert!(!fits(&Usage { output: lowered.output + 1, ..lowered }), "{lowered:?}");
        }
        if lowered.input < given.input {
            // No more input fits beside the classes kept before it, neither at the price tier of
            // its own size nor at any other.
            let alone = Usage { output: 0, audio_output: 0, image_output: 0, ..lowered };
            let alone = without_units(alone).with_uses(PerTool::default());
            let ends = price.tiers.iter().map(|tier| tier.above_input_tokens.saturating_sub(lowered.input_total()));
            for more in ends.flat_map(|end| [end, end.saturating_add(1)]).chain([1]).filter(|more| *more > 0) {
                let input = lowered.input.saturating_add(more);
                prop_assert!(input > given.input || !fits(&Usage { input, ..alone }), "{more} more than {lowered:?}");
            }
        }
    }

    /// If a request stays within its bounds, it costs at most the credit that was held for it.
    #[test]
    fn what_stays_within_its_bounds_stays_within_its_hold(
        (usage, price) in billed(),
        (tier, geo, speed) in (asked(), asked(), asked()),
        slack in 0..3_u64,
    ) {
        let usage = without_units(countable(usage));
        let service = ServiceTerms { tier, geo, speed };
        let features = &price.features;
        let largest = usage.input_total().saturating_add(slack);
        let limit = usage.output_total();
        let reaches = price.bands().filter(|span| span.min_tokens <= largest).map(|span| {
            let rates = span.rates;
            let classes = [rates.cache_read, rates.cache_write_5m, rates.cache_write_1h, rates.input];
            WorstCase {
                input_tokens: largest.min(span.max_tokens),
                input_price: classes.into_iter().chain(features.audio_input).chain(features.image_input).max().unwrap(),
                output_price: [features.audio_output, features.image_output].into_iter().flatten().fold(rates.output, Micro::max),
            }
        });
        let quote = Quote {
            reaches: reaches.collect(),
            input_unit: "input tokens",
            choices: 1,
            tools: ServerTool::ALL
                .map(|tool| ToolHold { tool, uses: usage.uses(tool), price: features.tool_price(tool).unwrap_or_default() })
                .into(),
            service,
            factor: service.max_factor(&price),
            output_limit: limit,
            output_floor: 1,
            own_limit: limit,
            others: Vec::new(),
            bounds: UsageBounds::default(),
        };
        prop_assert!(pricing::cost(&service.with_billed_terms(usage, &price), &price) <= quote.cost(limit));
    }
}
