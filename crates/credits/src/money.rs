//! Represents amounts of credit as integers of micro-credits, with one defined rounding.
//!
//! 1 credit = 1 000 000 micro-credits (µc). Amounts are integers internally and decimal strings
//! externally (`"299.999128"`). This file uses neither floating point nor unchecked arithmetic. It
//! must not depend on accounts, the origin of prices, or stores.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// Number of micro-credits in one credit. A price also refers to this number of tokens.
const MICRO_PER_CREDIT: i64 = 1_000_000;

/// The largest magnitude of any amount, in µc. It is 2^53 − 1, because a store whose scripts use
/// doubles must represent it exactly.
pub const MAX_MICRO: i64 = (1 << 53) - 1;

/// An amount of credit in µc. It is serialised as a decimal string of credits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Micro(i64);

/// The error for a text that is not an amount of credits.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("not an amount of credits: {0:?}; write a decimal number with at most 6 decimals")]
pub struct AmountParseError(pub String);

impl Micro {
    pub const ZERO: Self = Self(0);

    /// Returns an amount of `micro` micro-credits, limited to ±[`MAX_MICRO`].
    pub const fn new(micro: i64) -> Self {
        if micro > MAX_MICRO {
            Self(MAX_MICRO)
        } else if micro < -MAX_MICRO {
            Self(-MAX_MICRO)
        } else {
            Self(micro)
        }
    }

    pub const fn get(self) -> i64 {
        self.0
    }

    pub const fn is_positive(self) -> bool {
        self.0 > 0
    }

    /// Returns `self + other`, limited to ±[`MAX_MICRO`].
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self::new(self.0.saturating_add(other.0))
    }

    /// Returns `self − other`, limited to ±[`MAX_MICRO`].
    #[must_use]
    pub const fn minus(self, other: Self) -> Self {
        Self::new(self.0.saturating_sub(other.0))
    }

    #[must_use]
    pub fn or_zero(self) -> Self {
        self.max(Self::ZERO)
    }
}

/// An amount, split by the buckets of credits from which it comes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CreditSplit {
    pub paid: Micro,
    pub trial: Micro,
}

impl CreditSplit {
    pub const ZERO: Self = Self {
        paid: Micro::ZERO,
        trial: Micro::ZERO,
    };

    pub const fn total(self) -> Micro {
        self.paid.plus(self.trial)
    }

    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            paid: self.paid.plus(other.paid),
            trial: self.trial.plus(other.trial),
        }
    }

    #[must_use]
    pub const fn minus(self, other: Self) -> Self {
        Self {
            paid: self.paid.minus(other.paid),
            trial: self.trial.minus(other.trial),
        }
    }

    /// Replaces each negative part by zero.
    #[must_use]
    pub fn or_zero(self) -> Self {
        Self {
            paid: self.paid.or_zero(),
            trial: self.trial.or_zero(),
        }
    }

    /// Returns the part of this split that `has` covers. If one bucket lacks credits, the other
    /// covers the rest as far as it can.
    #[must_use]
    pub fn clamp_to(self, has: Self) -> Self {
        let own = Self {
            paid: self.paid.min(has.paid),
            trial: self.trial.min(has.trial),
        };
        let (lacking, left) = (self.minus(own), has.minus(own));
        own.plus(Self {
            paid: lacking.trial.min(left.paid),
            trial: lacking.paid.min(left.trial),
        })
    }

    /// Returns a split with the same total, in which no bucket is below zero as long as the other
    /// covers it.
    #[must_use]
    pub fn rebalance(self) -> Self {
        let Self { paid, trial } = self;
        if trial < Micro::ZERO {
            Self {
                paid: paid.plus(trial),
                trial: Micro::ZERO,
            }
        } else if paid < Micro::ZERO {
            Self {
                paid: Micro::ZERO,
                trial: trial.plus(paid),
            }
        } else {
            self
        }
    }

    /// Returns the part of `amount` that this split covers, from the trial first.
    #[must_use]
    pub fn draw(self, amount: Micro) -> Self {
        let trial = amount.min(self.trial.or_zero());
        Self {
            trial,
            paid: amount.minus(trial).min(self.paid.or_zero()),
        }
    }
}

impl fmt::Display for Micro {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let magnitude = self.0.unsigned_abs();
        let (whole, part) = (magnitude / 1_000_000, magnitude % 1_000_000);
        if self.0 < 0 {
            f.write_str("-")?;
        }
        if part == 0 {
            return write!(f, "{whole}");
        }
        let digits = format!("{part:06}");
        write!(f, "{whole}.{}", digits.trim_end_matches('0'))
    }
}

impl FromStr for Micro {
    type Err = AmountParseError;

    fn from_str(text: &str) -> Result<Self, AmountParseError> {
        parse(text).ok_or_else(|| AmountParseError(text.chars().take(40).collect()))
    }
}

fn parse(text: &str) -> Option<Micro> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let (whole, part) = digits.split_once('.').unwrap_or((digits, "0"));
    let plain = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
    if !plain(whole) || !plain(part) || part.len() > 6 {
        return None;
    }
    let whole: i64 = whole.parse().ok()?;
    let part: i64 = format!("{part:0<6}").parse().ok()?;
    let micro = whole.checked_mul(MICRO_PER_CREDIT)?.checked_add(part)?;
    if micro > MAX_MICRO {
        return None;
    }
    Some(Micro(if negative { -micro } else { micro }))
}

impl Serialize for Micro {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Micro {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// A multiple of a price, in millionths. It is as exact as an amount, and has the same text format
/// (`"1.75"`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Factor(i64);

impl Factor {
    pub const ONE: Self = Self(MICRO_PER_CREDIT);
    /// The maximum factor. It also converts a price per 1 000 000 units to a price per 1 000.
    pub const THOUSAND: Self = Self(1_000 * MICRO_PER_CREDIT);

    /// Converts a decimal. Returns `None` unless the decimal is above 0 and at most
    /// [`Factor::THOUSAND`].
    pub fn from_decimal(decimal: Micro) -> Option<Self> {
        (1..=Self::THOUSAND.0)
            .contains(&decimal.0)
            .then_some(Self(decimal.0))
    }

    /// Multiplies both factors, rounded up to the next millionth.
    #[must_use]
    pub fn times(self, other: Self) -> Self {
        let product = i128::from(self.0).saturating_mul(other.0.into());
        let (whole, part) = (
            product / i128::from(MICRO_PER_CREDIT),
            product % i128::from(MICRO_PER_CREDIT),
        );
        Self(i64::try_from(whole.saturating_add(i128::from(part > 0))).unwrap_or(i64::MAX))
    }
}

impl fmt::Display for Factor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Micro(self.0).fmt(f)
    }
}

impl Serialize for Factor {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Factor {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let decimal = Micro::deserialize(deserializer)?;
        Self::from_decimal(decimal).ok_or_else(|| {
            serde::de::Error::custom(format!("{decimal} is not a valid price factor"))
        })
    }
}

/// One part of a cost: a count, times a price per 1 000 000 units, times a factor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Term {
    pub count: u128,
    pub price: Micro,
    pub factor: Factor,
}

impl Term {
    pub fn new(count: u64, price: Micro, factor: Factor) -> Self {
        Self {
            count: count.into(),
            price,
            factor,
        }
    }

    /// Returns the cost in millionths of a millionth of a µc, which is the unit of a count times µc
    /// per million times millionths.
    fn exact(&self) -> i128 {
        let count = i128::try_from(self.count).unwrap_or(i128::MAX);
        count
            .saturating_mul(self.price.0.into())
            .saturating_mul(self.factor.0.into())
    }
}

/// Number of units of a [`Term`]'s exact cost in one µc.
const TERM_SCALE: i128 = MICRO_PER_CREDIT as i128 * MICRO_PER_CREDIT as i128;

/// Returns the cost of the terms, rounded once, up to the next µc.
pub fn cost(terms: impl IntoIterator<Item = Term>) -> Micro {
    clamp_amount(wide_cost(terms))
}

/// Returns the cost of the terms in µc without the limit of an amount, so that a comparison with an
/// amount is not capped.
pub fn wide_cost(terms: impl IntoIterator<Item = Term>) -> i128 {
    let sum = terms
        .into_iter()
        .fold(0i128, |sum, term| sum.saturating_add(term.exact()));
    sum.saturating_add(TERM_SCALE - 1).div_euclid(TERM_SCALE)
}

/// Returns the unrounded cost of the terms, as a decimal string of credits with up to 18 decimals.
pub fn exact_sum(terms: impl IntoIterator<Item = Term>) -> String {
    const ATTO: i128 = TERM_SCALE * MICRO_PER_CREDIT as i128;
    let sum = terms
        .into_iter()
        .fold(0i128, |sum, term| sum.saturating_add(term.exact()))
        .max(0);
    let (whole, part) = (sum / ATTO, sum % ATTO);
    if part == 0 {
        return whole.to_string();
    }
    let digits = format!("{part:018}");
    format!("{whole}.{}", digits.trim_end_matches('0'))
}

/// Returns `micro` µc, limited to the bounds of an amount.
pub fn clamp_amount(micro: i128) -> Micro {
    Micro::new(micro.clamp(i64::MIN.into(), i64::MAX.into()) as i64)
}

/// Returns `count × price × factor` exactly, as a decimal string of credits with up to 18 decimals.
/// Receipts show such lines.
pub fn exact_line(count: u64, price: Micro, factor: Factor) -> String {
    const PICO: u128 = 1_000_000_000_000;
    let pico = u128::from(count).saturating_mul(u128::from(price.0.unsigned_abs()));
    // The product is computed in two parts, because it does not fit into one word.
    let factor = u128::from(factor.0.unsigned_abs());
    let low = (pico % PICO) * factor;
    let micro = (pico / PICO) * factor + low / PICO;
    let (whole, part) = (micro / 1_000_000, (micro % 1_000_000) * PICO + low % PICO);
    if part == 0 {
        return whole.to_string();
    }
    let digits = format!("{part:018}");
    format!("{whole}.{}", digits.trim_end_matches('0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_bucket_lacks_the_other_bears_up_to_the_sum() {
        let parts = |paid, trial| CreditSplit {
            paid: Micro::new(paid),
            trial: Micro::new(trial),
        };
        for (requested, has, borne) in [
            ((5, 3), (10, 10), (5, 3)),
            ((0, 8), (10, 3), (5, 3)),
            ((8, 0), (3, 10), (3, 5)),
            ((8, 8), (10, 0), (10, 0)),
            ((9, 9), (0, 4), (0, 4)),
            ((9, 9), (0, 0), (0, 0)),
        ] {
            assert_eq!(
                parts(requested.0, requested.1).clamp_to(parts(has.0, has.1)),
                parts(borne.0, borne.1),
                "{requested:?}"
            );
        }
        for (has, shown) in [
            ((5, 3), (5, 3)),
            ((5, -3), (2, 0)),
            ((-3, 5), (0, 2)),
            ((1, -3), (-2, 0)),
        ] {
            assert_eq!(
                parts(has.0, has.1).rebalance(),
                parts(shown.0, shown.1),
                "{has:?}"
            );
        }
    }

    #[test]
    fn amounts_read_and_print_as_decimal_credits() {
        for (text, micro) in [
            ("300", 300_000_000),
            ("0.000001", 1),
            ("299.999128", 299_999_128),
            ("-1.5", -1_500_000),
        ] {
            assert_eq!(text.parse::<Micro>(), Ok(Micro(micro)));
            assert_eq!(Micro(micro).to_string(), text);
        }
        assert_eq!(
            "-0".parse::<Micro>().unwrap().to_string(),
            "0",
            "who owes nothing reads no sign"
        );
        assert_eq!("9007199254.740991".parse(), Ok(Micro(MAX_MICRO)));
        assert!("9007199254.740992".parse::<Micro>().is_err());
        for bad in [
            "",
            ".",
            "1.",
            ".5",
            "1e3",
            "0.0000001",
            "+1",
            " 1",
            "1,5",
            "99999999999999",
            "--1",
        ] {
            assert!(
                bad.parse::<Micro>().is_err(),
                "{bad:?} was taken for an amount"
            );
        }
    }

    #[test]
    fn no_sum_leaves_the_bounds_that_every_store_holds_exactly() {
        let (max, one) = (Micro(MAX_MICRO), Micro(1));
        let min = Micro(-MAX_MICRO);
        assert_eq!(
            (Micro::new(MAX_MICRO + 1), Micro::new(-MAX_MICRO - 1)),
            (max, min)
        );
        assert_eq!((max.plus(one), min.minus(one)), (max, min));
        assert_eq!(
            (max.minus(one), min.plus(one)),
            (Micro(MAX_MICRO - 1), Micro(1 - MAX_MICRO))
        );
        for (wide, held) in [
            (i128::MAX, max),
            (i128::MIN, min),
            (7, Micro(7)),
            (0, Micro::ZERO),
            (-7, Micro(-7)),
        ] {
            assert_eq!(clamp_amount(wide), held);
        }
    }

    #[test]
    fn an_account_has_credit_from_the_first_millionth_on_and_none_that_it_owes() {
        assert_eq!(
            [-1, 0, 1].map(|micro| Micro(micro).is_positive()),
            [false, false, true]
        );
        assert_eq!(
            [-5, 0, 5].map(|micro| Micro(micro).or_zero().get()),
            [0, 0, 5]
        );
    }

    #[test]
    fn a_cost_is_borne_by_the_trial_first_and_then_by_what_was_paid_for() {
        let parts = |paid, trial| CreditSplit {
            paid: Micro(paid),
            trial: Micro(trial),
        };
        assert_eq!(parts(5, 3).total(), Micro(8));
        assert_eq!(parts(5, 3).plus(parts(10, 20)), parts(15, 23));
        assert_eq!(parts(5, 3).minus(parts(10, 2)), parts(-5, 1));
        assert_eq!(parts(-5, 3).or_zero(), parts(0, 3));
        assert_eq!(parts(5, -3).or_zero(), parts(5, 0));
        for (amount, borne) in [
            (0, parts(0, 0)),
            (2, parts(0, 2)),
            (3, parts(0, 3)),
            (4, parts(1, 3)),
            (9, parts(5, 3)),
        ] {
            assert_eq!(parts(5, 3).draw(Micro(amount)), borne, "{amount}");
        }
        assert_eq!(
            parts(5, -3).draw(Micro(4)),
            parts(4, 0),
            "a bucket that owes bears nothing"
        );
        assert_eq!(parts(-5, 3).draw(Micro(4)), parts(0, 3));
    }

    #[test]
    fn a_cost_is_rounded_once_and_up() {
        let (price, half) = (Micro(500_000_000), Factor(500_000));
        let one = |count, price| Term::new(count, price, Factor::ONE);
        assert_eq!(cost([one(1, price)]), Micro(500));
        assert_eq!(
            cost([one(1, Micro(1)), one(1, Micro(1))]),
            Micro(1),
            "two half µc are rounded together, not each"
        );
        assert_eq!(cost([one(0, price)]), Micro::ZERO);
        assert_eq!(
            cost([one(u64::MAX, Micro(MAX_MICRO))]),
            Micro(MAX_MICRO),
            "an absurd count saturates"
        );
        assert_eq!(cost([Term::new(3, price, half)]), Micro(750));
        let thirds = Term::new(1, Micro(1_000_000), Factor(333_333));
        assert_eq!(cost([thirds]), Micro(1));
        assert_eq!(
            cost([thirds; 3]),
            Micro(1),
            "a factor is part of the sum that is rounded once"
        );
        assert_eq!(cost([thirds; 4]), Micro(2));
    }

    #[test]
    fn a_line_is_exact_to_the_last_digit() {
        assert_eq!(exact_line(3, Micro(75_000), Factor::ONE), "0.000000225");
        assert_eq!(
            exact_line(1_000_000, Micro(500_000_000), Factor::ONE),
            "500"
        );
        assert_eq!(
            exact_line(3, Micro(75_001), Factor(1_750_001)),
            "0.000000393755475003"
        );
        let max = exact_line(u64::MAX, Micro(MAX_MICRO), Factor::THOUSAND);
        assert_eq!(max, "166153499473114465657224609.570750465");
    }

    #[test]
    fn a_sum_is_exact_before_it_is_rounded() {
        let term = |count, price| Term::new(count, Micro(price), Factor::ONE);
        assert_eq!(
            exact_sum([term(3, 75_000), term(1, 500_000_000)]),
            "0.000500225"
        );
        assert_eq!(exact_sum([term(1_000_000, 1_000_000), term(0, 7)]), "1");
        assert_eq!(
            exact_sum([Term::new(1, Micro(1), Factor(1))]),
            "0.000000000000000001"
        );
        assert_eq!(exact_sum([]), "0");
    }

    #[test]
    fn two_factors_make_one_that_is_rounded_up_to_the_next_millionth() {
        for (one, other, both) in [
            (1_750_000, 1_100_000, 1_925_000),
            (1_000_000, 1_100_000, 1_100_000),
            (333_333, 333_333, 111_111),
            (333_333, 100_000, 33_334),
            (1, 1, 1),
            (1_000_000_000, 1_000_000_000, 1_000_000_000_000),
        ] {
            assert_eq!(
                Factor(one).times(Factor(other)),
                Factor(both),
                "{one} {other}"
            );
            assert_eq!(
                Factor(other).times(Factor(one)),
                Factor(both),
                "{other} {one}"
            );
        }
        let max = Factor(i64::MAX).times(Factor::THOUSAND);
        assert_eq!(max, Factor(i64::MAX));
    }

    #[test]
    fn a_factor_is_a_decimal_above_zero_and_at_most_a_thousand() {
        for (text, factor) in [
            ("1.75", 1_750_000),
            ("0.000001", 1),
            ("1000", 1_000_000_000),
        ] {
            let json = format!("{text:?}");
            assert_eq!(
                serde_json::from_str::<Factor>(&json).unwrap(),
                Factor(factor)
            );
            assert_eq!(serde_json::to_string(&Factor(factor)).unwrap(), json);
        }
        for bad in ["\"0\"", "\"-1\"", "\"1000.000001\"", "\"x\"", "1"] {
            assert!(
                serde_json::from_str::<Factor>(bad).is_err(),
                "{bad} was taken for a factor"
            );
        }
    }
}
