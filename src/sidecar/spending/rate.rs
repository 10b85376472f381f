//! Computes the current rate of spending, today and per hour. All times are UTC, and the pages say
//! so.
//!
//! This file must not read the ledger: the caller passes hourly totals.

use base::clock::rfc3339;
use credits::money::Micro;
use ledger::{HOUR_MS, HourlySpend, UsageSpan};

const DAY_HOURS: i64 = 24;
/// Number of days whose use makes a forecast possible.
const FORECAST_DAYS: i64 = 30;
const MINUTE_MS: i64 = 60_000;

/// Spending since midnight, and in the previous hour plus the elapsed part of this one, but not
/// from before the account existed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpendRate {
    pub today: Micro,
    recent: Micro,
    since_ms: i64,
    /// The rate says how long funds last. The first hours of use say nothing of the next days.
    has_forecast: bool,
}

/// What an account can spend.
#[derive(Debug, Clone, Copy)]
pub struct SpendableFunds {
    pub available: Micro,
    /// What a usual request reserves.
    pub reserve: Micro,
    /// Credits of a running trial that are left, and its end in ms since 1970.
    pub trial: Option<(Micro, i64)>,
}

impl SpendRate {
    /// Returns the first hour that [`SpendRate::new`] needs.
    pub fn first_hour(now_ms: i64) -> i64 {
        let hour = now_ms.div_euclid(HOUR_MS);
        (hour - hour.rem_euclid(DAY_HOURS)).min(hour - 1)
    }

    /// `opened_ms`: when the account was opened.
    pub fn new(spent: &[HourlySpend], opened_ms: i64, now_ms: i64) -> Self {
        let hour = now_ms.div_euclid(HOUR_MS);
        let from = |first: i64| {
            let hours = spent.iter().filter(|spent| spent.hour >= first);
            hours.fold(Micro::ZERO, |sum, spent| sum.plus(spent.sum.credits))
        };
        Self {
            today: from(hour - hour.rem_euclid(DAY_HOURS)),
            recent: from(hour - 1),
            since_ms: (hour - 1).saturating_mul(HOUR_MS).max(opened_ms),
            has_forecast: false,
        }
    }

    /// Returns the hours in which a use makes a forecast possible: those of the last month that
    /// are a day ago.
    pub fn forecast_hours(now_ms: i64) -> UsageSpan {
        let end = now_ms.div_euclid(HOUR_MS) - DAY_HOURS + 1;
        UsageSpan::Hours(end - FORECAST_DAYS * DAY_HOURS, end)
    }

    /// `has_forecast`: the account was used in [`SpendRate::forecast_hours`].
    #[must_use]
    pub fn with_forecast(self, has_forecast: bool) -> Self {
        Self {
            has_forecast,
            ..self
        }
    }

    pub fn has_forecast(&self) -> bool {
        self.has_forecast
    }

    /// Describes the rate of spending, and how long the funds last at it: not at all, if a usual
    /// request reserves more than is available, and trial credits no longer than the trial.
    pub fn describe(&self, funds: &SpendableFunds, now_ms: i64) -> String {
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
        let last_ms = |credits: Micro| {
            let left = i128::from(credits.or_zero().get()) * minutes / recent;
            let left = i64::try_from(left).unwrap_or(i64::MAX);
            left.saturating_mul(MINUTE_MS)
        };
        let an_hour = round_to_thousandth(an_hour);
        if funds.available < funds.reserve {
            return format!(
                "{an_hour} credits per hour since {since} UTC; a usual request reserves more than is available"
            );
        }
        if !self.has_forecast {
            return format!("{an_hour} credits per hour since {since} UTC");
        }
        let mut left = last_ms(funds.available);
        let mut of_trial = "";
        if let Some((trial, ends_at_ms)) = funds.trial {
            let trial_ms = ends_at_ms.saturating_sub(now_ms).max(0);
            if left > trial_ms {
                // What is not of the trial is spent after it, as trial credits are spent first.
                let bought = last_ms(funds.available.minus(trial));
                left = left.min(trial_ms.saturating_add(bought));
                if bought == 0 {
                    of_trial = ", until the trial ends";
                }
            }
        }
        format!(
            "{an_hour} credits per hour since {since} UTC; at this rate your credits last {}{of_trial}",
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
        let describe = |rate: &SpendRate, available, reserve, now_ms| {
            let trial = None;
            let funds = SpendableFunds {
                available,
                reserve,
                trial,
            };
            rate.describe(&funds, now_ms)
        };
        let first = SpendRate::new(&rows, 0, now_ms);
        let pace = first.with_forecast(true);
        assert_eq!(pace.today.to_string(), "7", "yesterday is not today");
        // Three credits in ninety minutes are two per hour, so ten credits last five hours.
        let ten = Micro::new(10_000_000);
        let words = "2 credits per hour since 07:00 UTC; at this rate your credits last 5 h 0 min";
        assert_eq!(describe(&pace, ten, ten, now_ms), words);
        assert_eq!(
            describe(&first, ten, ten, now_ms),
            "2 credits per hour since 07:00 UTC",
            "less than a day of use says nothing of the next days"
        );
        let UsageSpan::Hours(_, end) = SpendRate::forecast_hours(now_ms) else {
            panic!("hours");
        };
        assert_eq!(end, HOUR - 23, "the hour of 24 hours ago is the last one");
        assert_eq!(
            describe(&pace, ten, Micro::new(10_000_001), now_ms),
            "2 credits per hour since 07:00 UTC; a usual request reserves more than is available"
        );
        assert_eq!(
            describe(&pace, ten, Micro::ZERO, now_ms + 59_999),
            words,
            "the words change by the minute"
        );
        assert_eq!(
            describe(
                &SpendRate::new(&rows[..2], 0, now_ms),
                ten,
                Micro::ZERO,
                now_ms
            ),
            "Nothing spent since 07:00 UTC"
        );
        assert_eq!(
            describe(&pace, Micro::ZERO, Micro::ZERO, now_ms)
                .split("last ")
                .last(),
            Some("less than a minute")
        );
        // Just after midnight, the previous hour counts for the rate, but not for today.
        let midnight = HOUR - 8;
        assert_eq!(SpendRate::first_hour(midnight * HOUR_MS), midnight - 1);
        let early = SpendRate::new(&[spent(midnight - 1, "a", 6)], 0, midnight * HOUR_MS);
        assert_eq!(
            (early.today, early.recent),
            (Micro::ZERO, Micro::new(6_000_000))
        );
    }

    #[test]
    fn trial_credits_last_no_longer_than_the_trial_nor_count_hours_before_the_account() {
        let now_ms = NOW + 30 * MINUTE_MS;
        // One credit in the half hour since the account was opened: two an hour.
        let rate = SpendRate::new(&[spent(HOUR, "a", 1)], NOW, now_ms).with_forecast(true);
        let says = |available: i64, trial: i64, hours: i64| {
            let funds = SpendableFunds {
                available: Micro::new(available * 1_000_000),
                reserve: Micro::ZERO,
                trial: Some((Micro::new(trial * 1_000_000), now_ms + hours * HOUR_MS)),
            };
            let text = rate.describe(&funds, now_ms);
            let text = text.strip_prefix("2 credits per hour since 08:00 UTC; at this rate your ");
            text.unwrap().to_owned()
        };
        // 300 credits would last 150 hours.
        assert_eq!(says(300, 300, 150), "credits last 6 days 6 h");
        let until = "credits last 6 days 5 h, until the trial ends";
        assert_eq!(says(300, 300, 149), until);
        // Of the 20 credits, ten are bought: those last five hours after the trial.
        assert_eq!(says(20, 10, 2), "credits last 7 h 0 min");
        assert_eq!(says(20, 10, 8), "credits last 10 h 0 min");
        assert_eq!(
            says(20, 20, 0),
            "credits last less than a minute, until the trial ends"
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
