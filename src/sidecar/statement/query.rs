//! Parses the URL of the statement: a first and a last month.
//!
//! This file must not read the ledger.

use crate::billing::activity::ActivityCursor;
use crate::sidecar::error::PageError;
use crate::sidecar::form::FormFault;
use crate::sidecar::page_cursor::parse_cursor;
use base::clock::{day_start_ms, month_number, month_start_ms, rfc3339};
use serde::Deserialize;

const DAY_MS: i64 = 86_400_000;

/// Default number of months of a statement, including the current one.
const DEFAULT_MONTHS: i64 = 12;

/// Maximum number of months of a statement: ten years.
const MAX_MONTHS: i64 = 120;

/// The page's query. An empty value selects the default.
#[derive(Deserialize, Default)]
#[serde(default)]
pub struct StatementQuery {
    pub(super) from: String,
    pub(super) to: String,
    /// Position of the last line of the previous page.
    pub(super) before: String,
}

/// The first and the last month, in months since January 1970 UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatementPeriod {
    pub from: i64,
    pub to: i64,
}

impl StatementPeriod {
    /// Returns the first day and the exclusive last day, in days since 1970.
    pub fn days(self) -> (i64, i64) {
        let first_day =
            |month| month_start_ms(month).map_or(0, |start_ms| start_ms.div_euclid(DAY_MS));
        (first_day(self.from), first_day(self.to + 1))
    }
}

impl StatementQuery {
    /// # Errors
    /// Returns the fault of the query as a text for the user.
    pub(super) fn read(&self, now_ms: i64) -> Result<StatementPeriod, FormFault> {
        let current = month_number(now_ms);
        let month = |field: &'static str, text: &str| match text {
            "" => Ok(None),
            text => parse_month(text)
                .map(Some)
                .ok_or_else(|| FormFault::at(field, "Write a month as 2026-11.")),
        };
        let to = month("to", &self.to)?.unwrap_or(current);
        let from = month("from", &self.from)?.unwrap_or(to - DEFAULT_MONTHS + 1);
        if from > to {
            let fault = "The first month must not be after the last month.";
            return Err(FormFault::at("from", fault));
        }
        // In time zones east of Greenwich, the next month may have begun.
        if to > month_number(now_ms.saturating_add(DAY_MS)) {
            let fault = "The last month must not be in the future.";
            return Err(FormFault::at("to", fault));
        }
        if to - from >= MAX_MONTHS {
            return Err(FormFault::at("from", "Choose at most ten years."));
        }
        Ok(StatementPeriod { from, to })
    }

    pub(super) fn cursor(&self) -> Result<Option<ActivityCursor>, PageError> {
        parse_cursor(&self.before)
    }
}

fn parse_month(text: &str) -> Option<i64> {
    day_start_ms(&format!("{text}-01")).map(month_number)
}

/// Formats a month since January 1970 as `2026-11`.
pub(super) fn month_text(month: i64) -> String {
    let text = rfc3339(month_start_ms(month).unwrap_or_default());
    text.get(..7).unwrap_or(&text).to_owned()
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

    fn read(from: &str, to: &str) -> Result<(String, String), FormFault> {
        let query = StatementQuery {
            from: from.into(),
            to: to.into(),
            before: String::new(),
        };
        let period = query.read(NOW)?;
        Ok((month_text(period.from), month_text(period.to)))
    }

    #[test]
    fn a_statement_is_of_whole_months_up_to_the_current_one() {
        let months = |from: &str, to: &str| Ok((from.to_owned(), to.to_owned()));
        assert_eq!(read("", ""), months("2025-12", "2026-11"));
        assert_eq!(read("2026-11", ""), months("2026-11", "2026-11"));
        assert_eq!(read("", "2026-01"), months("2025-02", "2026-01"));
        assert_eq!(read("2016-12", "2026-11"), months("2016-12", "2026-11"));
        let query = StatementQuery {
            from: "2026-02".into(),
            to: "2026-02".into(),
            before: String::new(),
        };
        let (first, end) = query.read(NOW).unwrap().days();
        assert_eq!(
            (day_text(first), day_text(end)),
            ("2026-02-01".to_owned(), "2026-03-01".to_owned())
        );
    }

    #[test]
    fn a_bad_period_is_named() {
        for (from, to, word) in [
            ("2026-13", "", "Write a month"),
            ("2026-11-01", "", "Write a month"),
            ("", "november", "Write a month"),
            ("2026-11", "2026-10", "must not be after"),
            ("", "2026-12", "in the future"),
            ("2016-11", "2026-11", "at most ten years"),
        ] {
            let fault = read(from, to).unwrap_err().to_string();
            assert!(fault.contains(word), "{from} {to}: {fault}");
        }
        let bad = |before: &str| StatementQuery {
            before: before.into(),
            ..StatementQuery::default()
        };
        assert!(bad("x").cursor().is_err() && bad("1.x").cursor().is_err());
        assert!(bad("1.9223372036854775807").cursor().unwrap().is_some());
    }
}
