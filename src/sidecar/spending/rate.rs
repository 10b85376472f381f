//! Computes the current rate of spending, today and per hour. All times are UTC, and the pages say
//! so.
//!
//! This file must not read the ledger: the caller passes hourly totals.

use crate::billing::usage::{HOUR_MS, HourlySpend};
use base::clock::rfc3339;
use credits::money::Micro;

const DAY_HOURS: i64 = 24;
const MINUTE_MS: i64 = 60_000;

/// Spending since midnight UTC, and in the previous hour plus the elapsed part of the current one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpendRate {
    pub today: Micro,
    recent: Micro,
    since_ms: i64,
}

impl SpendRate {
    /// Returns the first hour that [`SpendRate::new`] needs.
    pub fn first_hour(now_ms: i64) -> i64 {
        let hour = now_ms.div_euclid(HOUR_MS);
        (hour - hour.rem_euclid(DAY_HOURS)).min(hour - 1)
    }

    pub fn new(spent: &[HourlySpend], now_ms: i64) -> Self {
        let hour = now_ms.div_euclid(HOUR_MS);
        let from = |first: i64| {
            let hours = spent.iter().filter(|spent| spent.hour >= first);
            hours.fold(Micro::ZERO, |sum, spent| sum.plus(spent.sum.credits))
        };
        Self {
            today: from(hour - hour.rem_euclid(DAY_HOURS)),
            recent: from(hour - 1),
            since_ms: (hour - 1).saturating_mul(HOUR_MS),
        }
    }

    /// Describes the rate of spending, and the time for which `available` lasts. If a usual request
    /// reserves more than that (`reserve`), the text says that credits are too low.
    pub fn describe(&self, available: Micro, reserve: Micro, now_ms: i64) -> String {
        let since = rfc3339(self.since_ms);
        let since = since.get(11..16).unwrap_or_default();
        if !self.recent.is_positive() {
            return format!("Nothing spent since {since} UTC");
        }
        // The time is rounded to the minute, because otherwise the text would change at every read.
        let minutes = i128::from(
            now_ms
                .saturating_sub(self.since_ms)
                .div_euclid(MINUTE_MS)
                .max(1),
        );
        let recent = i128::from(self.recent.get());
        let an_hour = Micro::new(i64::try_from(recent * 60 / minutes).unwrap_or(i64::MAX));
        let left = i128::from(available.or_zero().get()) * minutes / recent;
        let left = i64::try_from(left)
            .unwrap_or(i64::MAX)
            .saturating_mul(MINUTE_MS);
        let an_hour = round_to_thousandth(an_hour);
        if available < reserve {
            return format!(
                "{an_hour} credits per hour since {since} UTC; a usual request reserves more than is available"
            );
        }
        format!(
            "{an_hour} credits per hour since {since} UTC; at this rate your credits last {}",
            format_time_left(left)
        )
    }
}

/// Formats an amount with a few significant digits, down to a thousandth.
fn round_to_thousandth(amount: Micro) -> String {
    match amount.get() {
        0..1_000 => "less than 0.001".to_owned(),
        micro => Micro::new(micro - micro % 1_000).to_string(),
    }
}

/// Formats a duration as `5 days 3 h`, `3 h 12 min` or `12 min`.
pub fn format_time_left(ms: i64) -> String {
    let minutes = ms.max(0) / MINUTE_MS;
    let (days, hours, minutes) = (minutes / 1_440, minutes / 60 % 24, minutes % 60);
    match (days, hours, minutes) {
        (400.., ..) => "more than a year".to_owned(),
        (1, hours, _) => format!("1 day {hours} h"),
        (2.., hours, _) => format!("{days} days {hours} h"),
        (_, 1.., _) => format!("{hours} h {minutes} min"),
        (_, _, 1..) => format!("{minutes} min"),
        _ => "less than a minute".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::billing::activity::SpendTotals;

    /// 2027-01-15 08:00 UTC.
    const NOW: i64 = 1_800_000_000_000;
    const HOUR: i64 = NOW / HOUR_MS;

    fn spent(hour: i64, model: &str, credits: i64) -> HourlySpend {
        let sum = SpendTotals {
            responses: 1,
            credits: Micro::new(credits * 1_000_000),
            input: 40,
            cache_read: 30,
            output: 5,
        };
        HourlySpend {
            hour,
            model: model.into(),
            sum,
        }
    }

    #[test]
    fn the_pace_is_of_the_last_full_hour_and_this_one() {
        assert_eq!(rfc3339(NOW), "2027-01-15T08:00:00.000Z");
        let rows = [
            spent(HOUR - 9, "a", 50),
            spent(HOUR - 7, "a", 4),
            spent(HOUR - 1, "a", 2),
            spent(HOUR, "b", 1),
        ];
        let now_ms = NOW + 30 * MINUTE_MS;
        let pace = SpendRate::new(&rows, now_ms);
        assert_eq!(pace.today.to_string(), "7", "yesterday is not today");
        // Three credits in ninety minutes are two per hour, so ten credits last five hours.
        let ten = Micro::new(10_000_000);
        let words = "2 credits per hour since 07:00 UTC; at this rate your credits last 5 h 0 min";
        assert_eq!(pace.describe(ten, ten, now_ms), words);
        assert_eq!(
            pace.describe(ten, Micro::new(10_000_001), now_ms),
            "2 credits per hour since 07:00 UTC; a usual request reserves more than is available"
        );
        assert_eq!(
            pace.describe(ten, Micro::ZERO, now_ms + 59_999),
            words,
            "the words change by the minute"
        );
        assert_eq!(
            SpendRate::new(&rows[..2], now_ms).describe(ten, Micro::ZERO, now_ms),
            "Nothing spent since 07:00 UTC"
        );
        assert_eq!(
            SpendRate::new(&rows, now_ms)
                .describe(Micro::ZERO, Micro::ZERO, now_ms)
                .split("last ")
                .last(),
            Some("less than a minute")
        );
        // Just after midnight, the previous hour counts for the rate, but not for today.
        let midnight = HOUR - 8;
        assert_eq!(SpendRate::first_hour(midnight * HOUR_MS), midnight - 1);
        let early = SpendRate::new(&[spent(midnight - 1, "a", 6)], midnight * HOUR_MS);
        assert_eq!(
            (early.today, early.recent),
            (Micro::ZERO, Micro::new(6_000_000))
        );
    }

    #[test]
    fn spans_are_said_in_two_units_at_most() {
        let minutes = |count: i64| format_time_left(count * MINUTE_MS);
        assert_eq!(
            [0, 1, 59, 60, 1_439, 1_440, 7_403, 576_000].map(minutes),
            [
                "less than a minute",
                "1 min",
                "59 min",
                "1 h 0 min",
                "23 h 59 min",
                "1 day 0 h",
                "5 days 3 h",
                "more than a year"
            ]
        );
        assert_eq!(format_time_left(-5), "less than a minute");
    }
}
