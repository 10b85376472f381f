//! What a response costs, and the most it can cost: pure arithmetic over token counts and prices.
//!
//! Must not know accounts or stores.

use crate::catalog::Price;
use crate::money::{self, Micro};
use crate::usage::Usage;

/// The token classes that are priced, in the order a receipt lists them, with each one's count and price.
pub fn lines(usage: &Usage, price: &Price) -> [(&'static str, u64, Micro); 5] {
    [
        ("input", usage.input, price.input),
        ("cache_read", usage.cache_read, price.cache_read),
        ("cache_write_5m", usage.cache_write_5m, price.cache_write_5m),
        ("cache_write_1h", usage.cache_write_1h, price.cache_write_1h),
        ("output", usage.output, price.output),
    ]
}

/// What `usage` costs: rounded once, up to the next µc.
pub fn cost(usage: &Usage, price: &Price) -> Micro {
    money::cost(lines(usage, price).map(|(_, tokens, price)| (tokens, price)))
}

/// The largest possible cost of a request, as a function of its output limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quote {
    /// Upper bound of the input, in tokens, and the dearest price it can be charged at.
    pub input_tokens: u64,
    pub input_price: Micro,
    pub output_price: Micro,
    /// Answers asked for at once.
    pub choices: u64,
    /// Output limit per answer, in tokens: the caller's, or the model's own.
    pub output_limit: u64,
    /// The least limit worth running the request with.
    pub output_floor: u64,
}

impl Quote {
    pub fn cost(&self, output_limit: u64) -> Micro {
        money::bounded(self.wide_cost(output_limit))
    }

    fn wide_cost(&self, output_limit: u64) -> i128 {
        let output = u128::from(output_limit).saturating_mul(u128::from(self.choices));
        money::wide_cost([(u128::from(self.input_tokens), self.input_price), (output, self.output_price)])
    }

    /// The largest output limit, at most the one asked for, whose cost fits into `available`; `None` where not even
    /// the floor fits.
    pub fn fit(&self, available: Micro) -> Option<u64> {
        if self.wide_cost(self.output_limit) <= i128::from(available.get()) {
            return Some(self.output_limit);
        }
        let per_token = i128::from(self.output_price.get()) * i128::from(self.choices);
        let input = i128::from(self.input_tokens) * i128::from(self.input_price.get());
        let rest = i128::from(available.get()) * i128::from(money::MICRO_PER_CREDIT) - input;
        if per_token <= 0 || rest < 0 {
            return None;
        }
        let limit = u64::try_from(rest / per_token).unwrap_or(u64::MAX).min(self.output_limit);
        (limit >= self.output_floor && limit > 0).then_some(limit)
    }
}

/// `usage` lowered until it costs at most `most`: the output first, then the input. An estimate is billed like any
/// usage, so its receipt must add up to what was taken.
pub fn within(usage: Usage, price: &Price, most: Micro) -> Usage {
    let mut usage = usage;
    let fits = |usage: &Usage| {
        let terms = lines(usage, price).map(|(_, tokens, price)| (u128::from(tokens), price));
        money::wide_cost(terms) <= i128::from(most.get())
    };
    if fits(&usage) {
        return usage;
    }
    let without = |usage: &Usage, output, input| Usage { output, input, ..*usage };
    let affordable = |rest: Micro, per_million: Micro| {
        let tokens =
            i128::from(rest.get()) * i128::from(money::MICRO_PER_CREDIT) / i128::from(per_million.get().max(1));
        u64::try_from(tokens).unwrap_or(0)
    };
    let rest = most.minus(cost(&without(&usage, 0, usage.input), price));
    usage.output = usage.output.min(affordable(rest, price.output));
    if !fits(&usage) {
        let rest = most.minus(cost(&without(&usage, usage.output, 0), price));
        usage.input = usage.input.min(affordable(rest, price.input));
    }
    usage
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quote(output_limit: u64) -> Quote {
        Quote {
            input_tokens: 1_000,
            input_price: Micro::new(500_000_000),
            output_price: Micro::new(2_500_000_000),
            choices: 1,
            output_limit,
            output_floor: 256,
        }
    }

    #[test]
    fn a_limit_is_lowered_to_exactly_what_the_balance_pays() {
        let quote = quote(64_000);
        assert_eq!(quote.cost(64_000), Micro::new(160_500_000));
        assert_eq!(quote.fit(Micro::new(160_500_000)), Some(64_000));
        let lowered = quote.fit(Micro::new(100_000_000)).unwrap();
        assert!(quote.cost(lowered) <= Micro::new(100_000_000));
        assert!(quote.cost(lowered + 1) > Micro::new(100_000_000), "one more token would not have fitted");
    }

    #[test]
    fn below_the_floor_nothing_fits() {
        let quote = quote(64_000);
        let floor = quote.cost(256);
        assert_eq!(quote.fit(floor), Some(256));
        assert_eq!(quote.fit(floor.minus(Micro::new(1))), None);
        assert_eq!(quote.fit(Micro::ZERO), None);
    }

    #[test]
    fn a_free_model_fits_into_nothing() {
        let quote = Quote { input_price: Micro::ZERO, output_price: Micro::ZERO, ..quote(10) };
        assert_eq!(quote.fit(Micro::ZERO), Some(10));
    }

    #[test]
    fn an_estimate_is_lowered_until_the_hold_bears_it() {
        let credits = |whole: i64| Micro::new(whole * 1_000_000);
        let price = Price::new([credits(100), credits(10), credits(125), credits(200), credits(500)]);
        let usage = Usage { input: 5_000, output: 2_000, ..Usage::default() };
        assert_eq!(within(usage, &price, credits(2)), usage);
        let lowered = within(usage, &price, credits(1));
        assert_eq!((lowered.input, lowered.output, cost(&lowered, &price)), (5_000, 1_000, credits(1)));
        let lowered = within(usage, &price, Micro::new(100_000));
        assert_eq!((lowered.input, lowered.output), (1_000, 0));
        assert_eq!(within(usage, &price, Micro::ZERO), Usage::default());
    }
}
