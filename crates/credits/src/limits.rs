//! Defines the limits on a request besides its account's credits: the spend limits of the key and
//! of its member, the rates per minute, and the number of concurrent requests.
//!
//! This file only defines and parses the limits. `billing/holds.rs` or the shared store counts
//! requests. This file must not depend on the accounts' rows or HTTP.

use crate::money::Micro;
use crate::rates::RateQuota;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

const DAY_MS: i64 = 86_400_000;

/// All limits that apply to one request. The default is no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RequestLimits {
    pub key: RateQuota,
    pub account: RateQuota,
    /// The spend limits of the key and of its member, in the order of [`Spender::ALL`].
    pub spend: [Option<SpendLimit>; 2],
    /// Estimated number of tokens that the request may use.
    pub tokens: u64,
}

impl RequestLimits {
    pub fn is_unbounded(&self) -> bool {
        self.spend == [None; 2] && self.key.is_unlimited() && self.account.is_unlimited()
    }
}

/// Whose spending a request counts as, and a spend limit restricts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spender {
    Key,
    /// The member of an organisation whose key it is. Their spend limit is called a budget.
    Member,
}

impl Spender {
    /// All spenders, in the order in which their limits are judged, each by itself.
    pub const ALL: [Self; 2] = [Self::Key, Self::Member];
}

/// Period of a spend limit, in UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Period {
    Day,
    /// A week, which starts on Monday.
    Week,
    Month,
    /// The whole lifetime of the spender.
    Total,
}

impl Period {
    pub const ALL: [Self; 4] = [Self::Day, Self::Week, Self::Month, Self::Total];

    pub fn name(self) -> &'static str {
        match self {
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
            Self::Total => "total",
        }
    }

    /// Returns the first day of the period that contains `now_ms`, in days since 1970.
    pub fn first_day(self, now_ms: i64) -> i64 {
        let today = day_number(now_ms);
        match self {
            Self::Day => today,
            // 1970 began on a Thursday, three days after a Monday.
            Self::Week => today - (today + 3).rem_euclid(7),
            Self::Month => {
                let at = jiff::Timestamp::from_millisecond(now_ms).unwrap_or_default();
                today - i64::from(at.to_zoned(jiff::tz::TimeZone::UTC).day()) + 1
            }
            Self::Total => i64::MIN,
        }
    }

    /// Returns the end of the period that contains `now_ms`, in ms since 1970; `None`: it has none.
    pub fn end_ms(self, now_ms: i64) -> Option<i64> {
        let days = match self {
            Self::Day => 1,
            Self::Week => 7,
            // The first day of the next month is the first one in another month.
            Self::Month => (28..=31).find(|days| {
                let next_ms = (self.first_day(now_ms) + days) * DAY_MS;
                self.first_day(next_ms) > self.first_day(now_ms)
            })?,
            Self::Total => return None,
        };
        Some((self.first_day(now_ms) + days) * DAY_MS)
    }
}

/// Returns the day that contains `at_ms`, in days since 1970.
pub fn day_number(at_ms: i64) -> i64 {
    at_ms.div_euclid(DAY_MS)
}

/// Credits that a key or a member may spend in a period, in texts such as `100/day`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpendLimit {
    pub credits: Micro,
    pub period: Period,
}

/// The error for a text that is not a valid spend limit.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("not a spend limit: write credits, a slash, and day, week, month or total, as in 100/day")]
pub struct SpendLimitParseError;

impl FromStr for SpendLimit {
    type Err = SpendLimitParseError;

    fn from_str(text: &str) -> Result<Self, SpendLimitParseError> {
        let (credits, period) = text.split_once('/').ok_or(SpendLimitParseError)?;
        let credits: Micro = credits.parse().map_err(|_| SpendLimitParseError)?;
        let period = Period::ALL
            .into_iter()
            .find(|known| known.name() == period)
            .ok_or(SpendLimitParseError)?;
        if credits < Micro::ZERO {
            Err(SpendLimitParseError)
        } else {
            Ok(Self { credits, period })
        }
    }
}

impl fmt::Display for SpendLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.credits, self.period.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_period_begins_at_midnight_on_monday_and_on_the_first_all_in_utc() {
        // Thursday, 29 February 2024, 12:00 UTC.
        let noon = 1_709_208_000_000;
        let today = 19_782;
        assert_eq!(day_number(noon), today);
        assert_eq!(Period::Day.first_day(noon), today);
        assert_eq!(Period::Week.first_day(noon), today - 3);
        assert_eq!(Period::Month.first_day(noon), today - 28);
        assert!(Period::Total.first_day(noon) < 0);
        let midnight = (today + 1) * DAY_MS;
        assert_eq!(Period::Day.first_day(midnight - 1), today);
        assert_eq!(Period::Day.first_day(midnight), today + 1);
        assert_eq!(Period::Month.first_day(midnight - 1), today - 28);
        assert_eq!(Period::Month.first_day(midnight), today + 1, "1 March");
        // Sunday, 3 March, and the Monday after it.
        assert_eq!(Period::Week.first_day((today + 4) * DAY_MS - 1), today - 3);
        assert_eq!(Period::Week.first_day((today + 4) * DAY_MS), today + 4);
    }

    #[test]
    fn a_period_ends_where_the_next_one_begins() {
        for now_ms in (19_000..20_000).map(|day| day * DAY_MS + 1) {
            for period in [Period::Day, Period::Week, Period::Month] {
                let end_ms = period.end_ms(now_ms).unwrap();
                assert_eq!(period.first_day(end_ms - 1), period.first_day(now_ms));
                assert_eq!(period.first_day(end_ms) * DAY_MS, end_ms);
            }
            assert_eq!(Period::Total.end_ms(now_ms), None);
        }
    }

    #[test]
    fn a_spend_limit_reads_and_prints_as_credits_per_period() {
        for text in ["100/day", "0.5/week", "25.000001/month", "0/total"] {
            assert_eq!(text.parse::<SpendLimit>().unwrap().to_string(), text);
        }
        for bad in [
            "",
            "100",
            "100/",
            "/day",
            "100/year",
            "-1/day",
            "x/day",
            "100/Day",
            "1/day/day",
        ] {
            assert_eq!(
                bad.parse::<SpendLimit>(),
                Err(SpendLimitParseError),
                "{bad}"
            );
        }
    }
}
