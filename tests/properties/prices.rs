//! Price arithmetic at its bounds, against long multiplication of its own.
//!
//! It must not share a number type with the program: what overflows there must not overflow here.

use crate::cases;
use model_gateway::billing::pricing::{self, Quote};
use model_gateway::catalog::Price;
use model_gateway::money::{MICRO_MAX, Micro, exact_line};
use model_gateway::usage::Usage;
use proptest::prelude::*;
use std::cmp::Ordering;

/// A whole number of any size, base 2^32, the least digit first, no leading zeroes.
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
                let product = u64::from(*one) * u64::from(other.0.get(offset).copied().unwrap_or(0));
                let sum = u64::from(digits[place + offset]) + product + carry;
                digits[place + offset] = sum as u32;
                carry = sum >> 32;
            }
        }
        Self(digits).trimmed()
    }

    /// Quotient and remainder.
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

    /// The millionth part, rounded up.
    fn millionth_up(&self) -> Self {
        let (quotient, rest) = self.by(1_000_000);
        if rest == 0 { quotient } else { quotient.plus(&Self::new(1)) }
    }

    fn compare(&self, other: &Self) -> Ordering {
        let by_length = self.0.len().cmp(&other.0.len());
        by_length.then_with(|| self.0.iter().rev().cmp(other.0.iter().rev()))
    }

    fn is_at_most(&self, amount: Micro) -> bool {
        u64::try_from(amount.get()).is_ok_and(|amount| self.compare(&Self::new(amount)) != Ordering::Greater)
    }

    /// Decimal digits.
    fn text(&self) -> String {
        let (mut rest, mut digits) = (self.clone(), Vec::new());
        while !rest.0.is_empty() {
            let (quotient, digit) = rest.by(10);
            digits.push(char::from_digit(digit, 10).unwrap());
            rest = quotient;
        }
        if digits.is_empty() { "0".into() } else { digits.iter().rev().collect() }
    }
}

fn of(amount: Micro) -> Big {
    Big::new(u64::try_from(amount.get()).unwrap())
}

/// A cost as it is kept: amounts end at [`MICRO_MAX`].
fn kept(cost: &Big) -> Micro {
    if cost.is_at_most(Micro::new(MICRO_MAX)) {
        Micro::new(cost.text().parse().unwrap())
    } else {
        Micro::new(MICRO_MAX)
    }
}

/// Counts at every size, and their bounds.
fn tokens() -> impl Strategy<Value = u64> {
    let bits = (0..=64_u32, any::<u64>()).prop_map(|(bits, any)| any.checked_shr(64 - bits).unwrap_or(0));
    prop_oneof![8 => bits, 1 => Just(u64::MAX), 1 => Just(0), 1 => Just(1), 2 => 0..2_000_000_u64]
}

fn amount() -> impl Strategy<Value = Micro> {
    let bits = (0..=53_u32, any::<u64>()).prop_map(|(bits, any)| any.checked_shr(64 - bits).unwrap_or(0));
    let largest = u64::try_from(MICRO_MAX).unwrap();
    let near = (0..3_u64).prop_map(move |less| largest - less);
    let round = (0..20_000_u64).prop_map(|count| count * 500_000);
    prop_oneof![8 => bits, 1 => near, 1 => Just(0), 1 => Just(1), 3 => round]
        .prop_map(|amount| Micro::new(i64::try_from(amount).unwrap()))
}

fn price() -> impl Strategy<Value = Price> {
    [amount(), amount(), amount(), amount(), amount()].prop_map(Price::new)
}

fn usage() -> impl Strategy<Value = Usage> {
    [tokens(), tokens(), tokens(), tokens(), tokens()].prop_map(|[input, cache_read, five, hour, output]| Usage {
        input,
        cache_read,
        cache_write_5m: five,
        cache_write_1h: hour,
        output,
        reasoning: 0,
    })
}

fn exact(usage: &Usage, price: &Price) -> Big {
    let terms = [
        (usage.input, price.input),
        (usage.cache_read, price.cache_read),
        (usage.cache_write_5m, price.cache_write_5m),
        (usage.cache_write_1h, price.cache_write_1h),
        (usage.output, price.output),
    ];
    terms.iter().fold(Big::new(0), |sum, (tokens, price)| sum.plus(&Big::new(*tokens).times(&of(*price))))
}

fn quote() -> impl Strategy<Value = Quote> {
    (tokens(), amount(), amount(), tokens(), tokens(), tokens()).prop_map(
        |(input_tokens, input_price, output_price, choices, output_limit, floor)| Quote {
            input_tokens,
            input_price,
            output_price,
            choices: choices.max(1),
            output_limit,
            output_floor: floor.min(output_limit),
        },
    )
}

fn quoted(quote: &Quote, limit: u64) -> Big {
    let output = Big::new(limit).times(&Big::new(quote.choices)).times(&of(quote.output_price));
    Big::new(quote.input_tokens).times(&of(quote.input_price)).plus(&output).millionth_up()
}

#[test]
fn the_long_multiplication_is_right_where_a_word_is_wide_enough() {
    for (one, other) in [(0, 7), (1 << 40, 3), (u64::MAX, u64::MAX), (0xffff_ffff, 0x1_0000_0001)] {
        let (sum, product) = (u128::from(one) + u128::from(other), u128::from(one) * u128::from(other));
        let product_big = Big::new(one).times(&Big::new(other));
        assert_eq!(
            (Big::new(one).plus(&Big::new(other)).text(), product_big.text()),
            (sum.to_string(), product.to_string())
        );
        assert_eq!(product_big.millionth_up().text(), product.div_ceil(1_000_000).to_string());
    }
}

proptest! {
    #![proptest_config(cases(2_000))]

    #[test]
    fn a_cost_is_the_exact_sum_rounded_up_once(usage in usage(), price in price()) {
        prop_assert_eq!(pricing::cost(&usage, &price), kept(&exact(&usage, &price).millionth_up()));
    }

    #[test]
    fn a_receipts_lines_are_exact(tokens in tokens(), price in amount()) {
        let digits = format!("{:0>13}", Big::new(tokens).times(&of(price)).text());
        let (whole, part) = digits.split_at(digits.len() - 12);
        let text = format!("{whole}.{part}");
        prop_assert_eq!(exact_line(tokens, price), text.trim_end_matches('0').trim_end_matches('.'));
    }

    #[test]
    fn a_quote_is_the_exact_worst_case(quote in quote(), limit in tokens()) {
        prop_assert_eq!(quote.cost(limit), kept(&quoted(&quote, limit)));
    }

    #[test]
    fn a_limit_that_fits_is_the_largest_that_does(quote in quote(), available in amount()) {
        let fits = |limit| quoted(&quote, limit).is_at_most(available);
        match quote.fit(available) {
            Some(limit) => {
                prop_assert!(fits(limit));
                prop_assert!(limit >= quote.output_floor && limit <= quote.output_limit);
                prop_assert!(limit == quote.output_limit || !fits(limit + 1));
            }
            None => prop_assert!(!fits(quote.output_floor.max(1).min(quote.output_limit))),
        }
    }

    #[test]
    fn an_estimate_never_passes_its_hold_and_grows_nowhere(given in usage(), price in price(), most in amount()) {
        let given = Usage { cache_read: 0, cache_write_5m: 0, cache_write_1h: 0, ..given };
        let lowered = pricing::within(given, &price, most);
        prop_assert!(exact(&lowered, &price).millionth_up().is_at_most(most), "{lowered:?}");
        prop_assert!(lowered.input <= given.input && lowered.output <= given.output);
        if exact(&given, &price).millionth_up().is_at_most(most) {
            prop_assert_eq!(lowered, given);
        }
    }
}
