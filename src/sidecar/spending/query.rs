//! Parses the URL of the spending page: a range of time, and a grouping.
//!
//! This file must not read the ledger.

use crate::sidecar::form::FormFault;
use askama::filters::urlencode_strict;
use base::clock::{day_start_ms, month_number, month_start_ms, rfc3339};
use ledger::{HOUR_MS, UsageInterval, UsageSpan};
use serde::Deserialize;

const DAY_MS: i64 = 86_400_000;
const DAY_HOURS: i64 = 24;

/// Maximum number of days for which a report has a row for each hour.
const MAX_DAYS_BY_HOUR: i64 = 2;

/// Maximum number of days for which a report has a row for each day. Longer reports have a row for
/// each month.
const MAX_DAYS_BY_DAY: i64 = 92;

/// Maximum number of months of a report: ten years.
const MAX_MONTHS: i64 = 120;

/// The page's query. An empty value selects the default.
#[derive(Deserialize, Default)]
#[serde(default)]
pub struct SpendingQuery {
    range: String,
    pub(super) from: String,
    pub(super) to: String,
    by: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpendingGroup {
    Model,
    Key,
    Time,
    /// By member of an organisation.
    Member,
    /// By vendor over all accounts, for operators. The vendor's name is in place of the model's.
    Vendor,
    /// By account over all accounts, for operators.
    Account,
}

impl SpendingGroup {
    const ALL: [(Self, &'static str, &'static str); 4] = [
        (Self::Model, "model", "By model"),
        (Self::Key, "key", "By key"),
        (Self::Member, "member", "By member"),
        (Self::Time, "day", "By day"),
    ];
}

/// Ranges that a link selects: the value in the URL, and the text.
const RANGES: [(&str, &str); 5] = [
    ("24h", "24 hours"),
    ("7d", "7 days"),
    ("30d", "30 days"),
    ("month", "This month"),
    ("last-month", "Last month"),
];

const DEFAULT_RANGE: &str = "30d";
const CUSTOM_RANGE: &str = "custom";

/// A link to a range or a grouping.
pub struct SpendingChoice {
    pub text: &'static str,
    pub url: String,
    pub chosen: bool,
}

/// Period that a report covers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpendingPeriod {
    pub span: UsageSpan,
    pub interval: UsageInterval,
    /// First and last day, for the page and for links to the activity page.
    pub first_day: String,
    pub last_day: String,
    /// True if the period has not ended, so that further responses may fall into it.
    pub is_open: bool,
}

impl SpendingPeriod {
    /// Returns a period of whole days. The day `to` is exclusive.
    fn from_days(from: i64, to: i64, today: i64) -> Self {
        let days = to - from;
        let (span, interval) = if days <= MAX_DAYS_BY_HOUR {
            let span = UsageSpan::Hours(from * DAY_HOURS, to * DAY_HOURS);
            (span, UsageInterval::Unit)
        } else if days <= MAX_DAYS_BY_DAY {
            (UsageSpan::Days(from, to), UsageInterval::Unit)
        } else {
            (UsageSpan::Days(from, to), UsageInterval::Month)
        };
        Self {
            span,
            interval,
            first_day: day_text(from),
            last_day: day_text(to - 1),
            is_open: to > today,
        }
    }

    /// Returns the period of the last `days` days, including today.
    pub fn from_last_days(days: i64, now_ms: i64) -> Self {
        let today = now_ms.div_euclid(DAY_MS);
        Self {
            span: UsageSpan::Days(today - days + 1, today + 1),
            interval: UsageInterval::Unit,
            ..Self::from_days(today - days + 1, today + 1, today)
        }
    }

    /// Returns the period of the last `hours` hours, including the current one.
    fn from_last_hours(hours: i64, now_ms: i64) -> Self {
        let hour = now_ms.div_euclid(HOUR_MS);
        let first = hour - (hours - 1);
        Self {
            span: UsageSpan::Hours(first, hour + 1),
            interval: UsageInterval::Unit,
            first_day: day_text(first.div_euclid(DAY_HOURS)),
            last_day: day_text(hour.div_euclid(DAY_HOURS)),
            is_open: true,
        }
    }

    /// Returns the start and the exclusive end in ms since 1970.
    pub(super) fn times_ms(&self) -> (i64, i64) {
        match self.span {
            UsageSpan::Hours(from, to) => (from * HOUR_MS, to * HOUR_MS),
            UsageSpan::Days(from, to) => (from * DAY_MS, to * DAY_MS),
        }
    }
}

impl SpendingQuery {
    fn range(&self) -> &str {
        match self.range.as_str() {
            "" if self.from.is_empty() && self.to.is_empty() => DEFAULT_RANGE,
            "" => CUSTOM_RANGE,
            range => range,
        }
    }

    pub(super) fn group_value(&self) -> &str {
        if self.by.is_empty() {
            "model"
        } else {
            &self.by
        }
    }

    /// # Errors
    /// Returns the fault of the query as a text for the user.
    pub(super) fn read(&self, now_ms: i64) -> Result<(SpendingPeriod, SpendingGroup), FormFault> {
        let group = SpendingGroup::ALL
            .iter()
            .find(|(_, value, _)| *value == self.group_value())
            .map(|(group, ..)| *group)
            .ok_or("Spending is divided by model, by key or by day. Choose one of them.")?;
        Ok((self.period(now_ms)?, group))
    }

    fn period(&self, now_ms: i64) -> Result<SpendingPeriod, FormFault> {
        let today = now_ms.div_euclid(DAY_MS);
        let month = month_number(now_ms);
        let month_day =
            |month| month_start_ms(month).map_or(today, |start_ms| start_ms.div_euclid(DAY_MS));
        let (from, to) = match self.range() {
            "24h" => return Ok(SpendingPeriod::from_last_hours(24, now_ms)),
            "7d" => (today - 6, today + 1),
            "30d" => (today - 29, today + 1),
            "month" => (month_day(month), today + 1),
            "last-month" => (month_day(month - 1), month_day(month)),
            CUSTOM_RANGE => self.custom_days(today)?,
            _ => {
                let fault = "Unknown range. Choose one of the links, or a first and a last day.";
                return Err(fault.into());
            }
        };
        Ok(SpendingPeriod::from_days(from, to, today))
    }

    fn custom_days(&self, today: i64) -> Result<(i64, i64), FormFault> {
        let day = |field: &'static str, text: &str| match text {
            "" => Err(FormFault::at(field, "Choose a first and a last day.")),
            text => day_start_ms(text)
                .map(|start_ms| start_ms.div_euclid(DAY_MS))
                .ok_or_else(|| FormFault::at(field, "Write a day of the calendar as 2026-11-21.")),
        };
        let (from, last) = (day("from", &self.from)?, day("to", &self.to)?);
        if from > last {
            let fault = "The first day must not be after the last day.";
            return Err(FormFault::at("from", fault));
        }
        // In time zones east of Greenwich, tomorrow may have begun.
        if last > today + 1 {
            let fault = "The last day must not be in the future.";
            return Err(FormFault::at("to", fault));
        }
        if earliest_first_day(last).is_some_and(|earliest| from < earliest) {
            let fault = "Choose at most ten years, such as 2016-11-23 to 2026-11-23.";
            return Err(FormFault::at("from", fault));
        }
        Ok((from, last + 1))
    }

    pub(super) fn range_choices(&self) -> Vec<SpendingChoice> {
        let group = self.group_value();
        let choice = |(value, text)| SpendingChoice {
            text,
            url: format!("spending?{}", encode(&[("range", value), ("by", group)])),
            chosen: value == self.range(),
        };
        RANGES.into_iter().map(choice).collect()
    }

    /// `has_members`: the account is an organisation's.
    pub(super) fn group_choices(&self, has_members: bool) -> Vec<SpendingChoice> {
        let choice = |(_, value, text)| {
            let mut fields = vec![("range", self.range()), ("by", value)];
            if self.range() == CUSTOM_RANGE {
                fields.extend([("from", self.from.as_str()), ("to", self.to.as_str())]);
            }
            SpendingChoice {
                text,
                url: format!("spending?{}", encode(&fields)),
                chosen: value == self.group_value(),
            }
        };
        SpendingGroup::ALL
            .into_iter()
            .filter(|(group, ..)| has_members || *group != SpendingGroup::Member)
            .map(choice)
            .collect()
    }
}

/// Returns the earliest first day, which is the same date ten years before the last day. For 29
/// February, the result is 1 March if that year has no leap day. `None` if the date is outside the
/// calendar.
fn earliest_first_day(last: i64) -> Option<i64> {
    let month = month_number(last.saturating_mul(DAY_MS));
    let first_of = |month| Some(month_start_ms(month)?.div_euclid(DAY_MS));
    Some(first_of(month - MAX_MONTHS)? + last - first_of(month)?)
}

pub fn encode(fields: &[(&str, &str)]) -> String {
    let field = |(name, value): &(&str, &str)| {
        let value = urlencode_strict(value).map_or_else(|_| String::new(), |it| it.to_string());
        format!("{name}={value}")
    };
    fields.iter().map(field).collect::<Vec<_>>().join("&")
}

/// Formats a day since 1970 as `2026-11-21`.
pub(super) fn day_text(day: i64) -> String {
    let text = rfc3339(day.saturating_mul(DAY_MS));
    text.get(..10).unwrap_or(&text).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-11-23 16:30 UTC.
    const NOW: i64 = 1_795_451_400_000;
    const TODAY: i64 = NOW / DAY_MS;

    fn query(range: &str, from: &str, to: &str) -> SpendingQuery {
        SpendingQuery {
            range: range.into(),
            from: from.into(),
            to: to.into(),
            by: String::new(),
        }
    }

    #[test]
    fn a_range_ends_today_or_with_its_last_day() {
        let days = |from: i64, to: i64| UsageSpan::Days(TODAY + from, TODAY + to);
        for (range, span, first, last, is_open) in [
            ("", days(-29, 1), "2026-10-25", "2026-11-23", true),
            ("7d", days(-6, 1), "2026-11-17", "2026-11-23", true),
            ("30d", days(-29, 1), "2026-10-25", "2026-11-23", true),
            ("month", days(-22, 1), "2026-11-01", "2026-11-23", true),
            (
                "last-month",
                days(-53, -22),
                "2026-10-01",
                "2026-10-31",
                false,
            ),
        ] {
            let found = query(range, "", "").read(NOW).unwrap().0;
            let expected = SpendingPeriod {
                span,
                interval: UsageInterval::Unit,
                first_day: first.into(),
                last_day: last.into(),
                is_open,
            };
            assert_eq!(found, expected, "{range}");
        }
        let day = query("24h", "", "").read(NOW).unwrap().0;
        let hour = NOW / HOUR_MS;
        assert_eq!(day.span, UsageSpan::Hours(hour - 23, hour + 1));
        assert_eq!(
            (day.first_day.as_str(), day.last_day.as_str()),
            ("2026-11-22", "2026-11-23")
        );
        // At the start of a year, the month before is of another year.
        let new_year = 1_798_761_600_000;
        let last = query("last-month", "", "").read(new_year).unwrap().0;
        assert_eq!(
            (last.first_day.as_str(), last.last_day.as_str()),
            ("2026-12-01", "2026-12-31")
        );
    }

    #[test]
    fn a_longer_range_has_longer_intervals() {
        let read = |from, to| query("custom", from, to).read(NOW).unwrap().0;
        let one = read("2026-11-23", "2026-11-23");
        assert_eq!(one.span, UsageSpan::Hours(TODAY * 24, TODAY * 24 + 24));
        assert!(one.is_open);
        assert!(!read("2026-11-22", "2026-11-22").is_open);
        for (from, interval, is_hours) in [
            ("2026-11-22", UsageInterval::Unit, true),
            ("2026-11-21", UsageInterval::Unit, false),
            ("2026-08-24", UsageInterval::Unit, false),
            ("2026-08-23", UsageInterval::Month, false),
        ] {
            let found = read(from, "2026-11-23");
            assert_eq!(found.interval, interval, "{from}");
            let has_hours = matches!(found.span, UsageSpan::Hours(..));
            assert_eq!(has_hours, is_hours, "{from}");
        }
        // Without a range, the days are enough.
        assert_eq!(
            query("", "2026-11-23", "2026-11-23").read(NOW).unwrap().0,
            one
        );
    }

    #[test]
    fn a_bad_range_is_named() {
        let fault = |range, from, to| query(range, from, to).read(NOW).unwrap_err().to_string();
        for (from, to, word) in [
            ("", "2026-11-23", "a first and a last day"),
            ("2026-11-23", "", "a first and a last day"),
            ("2026-02-30", "2026-11-23", "of the calendar"),
            ("never", "2026-11-23", "of the calendar"),
            ("2026-11-23", "2026-11-22", "must not be after"),
            ("2026-11-23", "2026-11-25", "in the future"),
            (
                "2016-11-22",
                "2026-11-23",
                "at most ten years, such as 2016-11-23 to",
            ),
            ("2009-12-31", "2020-01-01", "at most ten years"),
            ("2014-02-28", "2024-02-29", "at most ten years"),
            ("0001-01-01", "2026-11-23", "at most ten years"),
        ] {
            let text = fault("custom", from, to);
            assert!(text.contains(word), "{from} {to}: {text}");
        }
        // The limits themselves.
        for (from, to) in [
            ("2016-11-23", "2026-11-23"),
            ("2010-01-01", "2020-01-01"),
            ("2014-03-01", "2024-02-29"),
            ("0001-01-01", "0002-01-01"),
            ("2026-11-24", "2026-11-24"),
        ] {
            assert!(query("custom", from, to).read(NOW).is_ok(), "{from}");
        }
        assert!(fault("year", "", "").contains("Unknown range"));
        let by = SpendingQuery {
            by: "vendor".into(),
            ..SpendingQuery::default()
        };
        assert!(
            by.read(NOW)
                .unwrap_err()
                .to_string()
                .contains("by model, by key")
        );
    }

    #[test]
    fn a_link_keeps_what_it_does_not_choose() {
        let custom = SpendingQuery {
            by: "key".into(),
            ..query("custom", "2026-11-01", "2026-11-02")
        };
        let urls = |choices: Vec<SpendingChoice>| -> Vec<_> {
            let chosen = choices.iter().filter(|choice| choice.chosen).count();
            assert!(chosen < 2);
            choices.into_iter().map(|choice| choice.url).collect()
        };
        assert_eq!(
            urls(custom.range_choices())[4],
            "spending?range=last-month&by=key"
        );
        assert_eq!(
            urls(custom.group_choices(false))[2],
            "spending?range=custom&by=day&from=2026-11-01&to=2026-11-02"
        );
        let hostile = query("\"><script>", "", "");
        assert!(!urls(hostile.group_choices(true))[0].contains('<'));
    }
}
