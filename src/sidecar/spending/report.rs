//! Builds a spending report: sums by model, by key or by time, and their chart over time.
//!
//! This file must not read the ledger: the caller passes its sums.

use super::colours::{OTHERS_COLOUR, assign_colours};
use super::month::MAX_CHART_SERIES;
use super::query::{SpendingGroup, SpendingPeriod, day_text, encode};
use crate::billing::activity::SpendTotals;
use crate::sidecar::display::{Credits, group_digits, percent};
use crate::sidecar::key_names::KeyNames;
use accounts::Member;
use base::clock::{month_number, month_start_ms, rfc3339};
use credits::money::Micro;
use ledger::{HOUR_MS, UsageInterval, UsageRow, UsageSpan};
use std::collections::BTreeMap;

const DAY_MS: i64 = 86_400_000;

/// Maximum number of models or keys with their own row. All others share one more row.
const MAX_GROUP_ROWS: usize = 100;

pub struct SpendingReport {
    pub period: SpendingPeriod,
    /// Kind of the rows of the chart's table: `Hour`, `Day` or `Month`.
    pub interval_name: &'static str,
    /// Approximate number of seconds between two rows of the chart's table.
    pub step_s: i64,
    /// Kind of the rows of the table of groups, such as `Model`; empty without groups.
    pub group_name: &'static str,
    /// Groups in descending order of cost.
    pub groups: Vec<SpendingGroupRow>,
    /// Names of the chart's series.
    pub series: Vec<SpendingSeries>,
    /// Rows in ascending order of time, including those without spending.
    pub times: Vec<SpendingTimeRow>,
    pub total: SpendingSum,
    pub is_empty: bool,
}

/// A sum, formatted for a row of a table.
pub struct SpendingSum {
    pub credits: Credits,
    pub responses: String,
    pub tokens_in: String,
    /// Percentage of the input that came from a cache.
    pub cached_percent: u64,
    pub tokens_out: String,
    /// Credits per response.
    pub average: Credits,
    pub percent: u64,
}

pub struct SpendingGroupRow {
    /// Name of the model, or id of the key or the membership; `None` for the row of all others.
    pub id: Option<String>,
    pub name: String,
    /// Shortened text of the key.
    pub key_shown: Option<String>,
    pub is_revoked: bool,
    pub sum: SpendingSum,
    /// Number of the group's colour, starting at 1.
    pub colour: usize,
    /// Address of the activity page with the responses of the row.
    pub activity_url: Option<String>,
}

/// A column of the chart's table.
pub struct SpendingSeries {
    pub name: String,
    pub colour: usize,
}

pub struct SpendingTimeRow {
    pub text: String,
    /// Seconds since 1970, for the axis of the chart.
    pub at_s: i64,
    pub sum: SpendingSum,
    /// Credits of each series, in the order of the series.
    pub credits: Vec<Credits>,
    pub activity_url: String,
}

impl SpendingSum {
    fn new(sum: SpendTotals, total: Micro) -> Self {
        let micro = |amount: Micro| amount.or_zero().get().unsigned_abs();
        let average = micro(sum.credits) / sum.responses.max(1);
        Self {
            credits: Credits(sum.credits),
            responses: group_digits(sum.responses),
            tokens_in: group_digits(sum.input),
            cached_percent: percent(sum.cache_read, sum.input),
            tokens_out: group_digits(sum.output),
            average: Credits(Micro::new(i64::try_from(average).unwrap_or(i64::MAX))),
            percent: percent(micro(sum.credits), micro(total)),
        }
    }
}

/// Returns the text of the shared row for all groups after the first `kept`.
fn others(groups: usize, kept: usize) -> String {
    format!("{} others", groups - kept)
}

impl SpendingReport {
    /// Builds a report. The positions in `order`, the catalog's models, determine the colours.
    pub fn new(
        period: &SpendingPeriod,
        group: SpendingGroup,
        rows: &[UsageRow],
        order: &[&str],
    ) -> Self {
        let group_id = |row: &UsageRow| match group {
            SpendingGroup::Key => row.key_id.clone(),
            SpendingGroup::Member => row.member.clone(),
            SpendingGroup::Time => String::new(),
            SpendingGroup::Model | SpendingGroup::Vendor | SpendingGroup::Account => {
                row.model.clone()
            }
        };
        let mut sums: BTreeMap<String, SpendTotals> = BTreeMap::new();
        for row in rows {
            let sum = sums.entry(group_id(row)).or_default();
            *sum = sum.plus(row.sum);
        }
        let mut sums: Vec<_> = sums.into_iter().collect();
        // The sort is stable, so equal sums are in the order of their names.
        sums.sort_by_key(|(_, sum)| std::cmp::Reverse(sum.credits));
        let all = sums
            .iter()
            .fold(SpendTotals::default(), |all, (_, sum)| all.plus(*sum));
        let column_of: BTreeMap<&str, usize> = sums
            .iter()
            .enumerate()
            .map(|(index, (id, _))| (id.as_str(), index.min(MAX_CHART_SERIES)))
            .collect();
        let columns = sums.len().min(MAX_CHART_SERIES + 1);
        let named = sums.iter().take(MAX_CHART_SERIES);
        let named: Vec<_> = named.map(|(id, _)| id.as_str()).collect();
        let colours = match group {
            SpendingGroup::Time => vec![1],
            _ => assign_colours(&named, order),
        };
        let mut times: BTreeMap<i64, (SpendTotals, Vec<Credits>)> = all_times(period)
            .into_iter()
            .map(|time| (time, (SpendTotals::default(), vec![Credits::ZERO; columns])))
            .collect();
        for row in rows {
            let Some((sum, credits)) = times.get_mut(&row.time) else {
                continue;
            };
            *sum = sum.plus(row.sum);
            let column = column_of.get(group_id(row).as_str()).copied();
            if let Some(cell) = column.and_then(|column| credits.get_mut(column)) {
                cell.0 = cell.0.plus(row.sum.credits);
            }
        }
        let (interval_name, step_s) = match (period.span, period.interval) {
            (_, UsageInterval::Month) => ("Month", 30 * 86_400),
            (UsageSpan::Days(..), UsageInterval::Unit) => ("Day", 86_400),
            (UsageSpan::Hours(..), UsageInterval::Unit) => ("Hour", 3_600),
        };
        let time_row = |(time, (sum, credits))| {
            let (start_ms, text) = start_and_text(period, time);
            SpendingTimeRow {
                at_s: start_ms / 1_000,
                sum: SpendingSum::new(sum, all.credits),
                credits,
                activity_url: time_url(period, time),
                text,
            }
        };
        Self {
            interval_name,
            step_s,
            group_name: match group {
                SpendingGroup::Model => "Model",
                SpendingGroup::Key => "Key",
                SpendingGroup::Member => "Member",
                SpendingGroup::Vendor => "Vendor",
                SpendingGroup::Account => "Account",
                SpendingGroup::Time => "",
            },
            series: series(&sums, group, &colours),
            groups: group_rows(period, group, &sums, all, &colours),
            times: times.into_iter().map(time_row).collect(),
            total: SpendingSum::new(all, all.credits),
            is_empty: rows.is_empty(),
            period: period.clone(),
        }
    }

    pub fn group_ids(&self) -> Vec<&str> {
        let ids = self.groups.iter();
        ids.filter_map(|group| group.id.as_deref()).collect()
    }

    /// Replaces the ids of keys by the keys' names.
    pub fn name_keys(&mut self, names: &KeyNames) {
        self.name_groups(|group, id| {
            let key = names.get(id, id);
            group.key_shown = Some(key.shown);
            group.is_revoked = key.is_revoked;
            key.name
        });
    }

    /// Replaces the ids of memberships by the e-mails of the members, or by the account's id of who
    /// has left.
    pub fn name_members(&mut self, members: &[Member]) {
        self.name_groups(|_, id| match id.rsplit_once('/') {
            None => "Keys of no member".to_owned(),
            Some((_, person)) => match members.iter().find(|it| it.person == person) {
                Some(member) => member.email.clone(),
                None => format!("Former member ({person})"),
            },
        });
    }

    /// Names the groups, also in the chart, by their ids.
    fn name_groups(&mut self, name: impl Fn(&mut SpendingGroupRow, &str) -> String) {
        for (index, group) in self.groups.iter_mut().enumerate() {
            let Some(id) = group.id.clone() else { continue };
            group.name = name(group, &id);
            if let Some(series) = self
                .series
                .get_mut(index)
                .filter(|_| index < MAX_CHART_SERIES)
            {
                series.name.clone_from(&group.name);
            }
        }
    }
}

/// Returns the colour of the group at `index`. All groups after the last of `colours` share one.
fn colour_at(colours: &[usize], index: usize) -> usize {
    colours.get(index).copied().unwrap_or(OTHERS_COLOUR)
}

fn series(
    sums: &[(String, SpendTotals)],
    group: SpendingGroup,
    colours: &[usize],
) -> Vec<SpendingSeries> {
    let named = |(index, (id, _)): (usize, &(String, SpendTotals))| SpendingSeries {
        name: match group {
            SpendingGroup::Time => "Credits".to_owned(),
            _ => id.clone(),
        },
        colour: colour_at(colours, index),
    };
    let mut series: Vec<_> = sums
        .iter()
        .take(MAX_CHART_SERIES)
        .enumerate()
        .map(named)
        .collect();
    if sums.len() > MAX_CHART_SERIES {
        series.push(SpendingSeries {
            name: others(sums.len(), MAX_CHART_SERIES),
            colour: OTHERS_COLOUR,
        });
    }
    series
}

fn group_rows(
    period: &SpendingPeriod,
    group: SpendingGroup,
    sums: &[(String, SpendTotals)],
    all: SpendTotals,
    colours: &[usize],
) -> Vec<SpendingGroupRow> {
    let field = match group {
        SpendingGroup::Model => Some("model"),
        SpendingGroup::Key => Some("key"),
        SpendingGroup::Member | SpendingGroup::Vendor | SpendingGroup::Account => None,
        SpendingGroup::Time => return Vec::new(),
    };
    let row = |(index, (id, sum)): (usize, &(String, SpendTotals))| SpendingGroupRow {
        id: Some(id.clone()),
        name: id.clone(),
        key_shown: None,
        is_revoked: false,
        sum: SpendingSum::new(*sum, all.credits),
        colour: colour_at(colours, index),
        activity_url: field.map(|field| activity_url(period, Some((field, id)))),
    };
    let (shown, rest) = sums.split_at(sums.len().min(MAX_GROUP_ROWS));
    let mut rows: Vec<_> = shown.iter().enumerate().map(row).collect();
    if !rest.is_empty() {
        let sum = rest
            .iter()
            .fold(SpendTotals::default(), |all, (_, sum)| all.plus(*sum));
        rows.push(SpendingGroupRow {
            id: None,
            name: others(sums.len(), MAX_GROUP_ROWS),
            key_shown: None,
            is_revoked: false,
            sum: SpendingSum::new(sum, all.credits),
            colour: OTHERS_COLOUR,
            activity_url: None,
        });
    }
    rows
}

/// Returns the relative address of the activity page for the period, with one more filter field.
fn activity_url(period: &SpendingPeriod, field: Option<(&str, &str)>) -> String {
    let mut fields = vec![
        ("from", period.first_day.as_str()),
        ("to", period.last_day.as_str()),
    ];
    fields.extend(field);
    format!("activity?{}", encode(&fields))
}

/// Returns the address of the activity page for one hour's day, one day, or one month. See
/// [`activity_url`].
fn time_url(period: &SpendingPeriod, time: i64) -> String {
    let (start_ms, _) = start_and_text(period, time);
    let (next_ms, _) = start_and_text(period, time + 1);
    let first = day_text(start_ms.div_euclid(DAY_MS)).max(period.first_day.clone());
    let last = day_text((next_ms - 1).div_euclid(DAY_MS)).min(period.last_day.clone());
    let fields = [("from", first.as_str()), ("to", last.as_str())];
    format!("activity?{}", encode(&fields))
}

/// Returns every hour, day or month of the period.
fn all_times(period: &SpendingPeriod) -> Vec<i64> {
    match (period.span, period.interval) {
        (UsageSpan::Hours(from, to) | UsageSpan::Days(from, to), UsageInterval::Unit) => {
            (from..to).collect()
        }
        (UsageSpan::Hours(from, to), UsageInterval::Month) => months(from * HOUR_MS, to * HOUR_MS),
        (UsageSpan::Days(from, to), UsageInterval::Month) => months(from * DAY_MS, to * DAY_MS),
    }
}

fn months(from_ms: i64, to_ms: i64) -> Vec<i64> {
    (month_number(from_ms)..=month_number(to_ms - 1)).collect()
}

/// Returns the start of an hour, a day or a month in ms since 1970, and its text.
fn start_and_text(period: &SpendingPeriod, time: i64) -> (i64, String) {
    let (start_ms, length) = match (period.span, period.interval) {
        (_, UsageInterval::Month) => (month_start_ms(time).unwrap_or_default(), 7),
        (UsageSpan::Days(..), UsageInterval::Unit) => (time * DAY_MS, 10),
        (UsageSpan::Hours(..), UsageInterval::Unit) => (time * HOUR_MS, 16),
    };
    let text = rfc3339(start_ms).replace('T', " ");
    (start_ms, text.get(..length).unwrap_or(&text).to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::query::SpendingQuery;
    use super::*;
    use axum::extract::Query;

    /// 2026-11-23 16:30 UTC.
    const NOW: i64 = 1_795_451_400_000;
    const TODAY: i64 = NOW / DAY_MS;

    fn period(query: &str) -> SpendingPeriod {
        let uri = format!("/?{query}").parse().unwrap();
        let Query(query) = Query::<SpendingQuery>::try_from_uri(&uri).unwrap();
        query.read(NOW).unwrap().0
    }

    fn row(time: i64, model: &str, key_id: &str, micro: i64) -> UsageRow {
        UsageRow {
            time,
            model: model.into(),
            key_id: key_id.into(),
            member: String::new(),
            sum: SpendTotals {
                responses: 3,
                credits: Micro::new(micro),
                input: 40,
                cache_read: 10,
                output: 5,
            },
        }
    }

    fn total(amounts: impl Iterator<Item = Credits>) -> i64 {
        amounts.map(|amount| amount.0.get()).sum()
    }

    #[test]
    fn a_report_has_the_dearest_first_every_day_and_nothing_twice() {
        let rows = [
            row(TODAY - 29, "a", "", 1_000_000),
            row(TODAY, "a", "", 1_000_001),
            row(TODAY, "b", "", 6_000_000),
        ];
        let report = SpendingReport::new(
            &period("range=30d"),
            SpendingGroup::Model,
            &rows,
            &["a", "b"],
        );
        let groups: Vec<_> = report
            .groups
            .iter()
            .map(|group| (group.name.as_str(), group.sum.percent, group.colour))
            .collect();
        assert_eq!(
            groups,
            [("b", 74, 2), ("a", 25, 1)],
            "colours of the catalog"
        );
        assert_eq!(
            report.groups[1].activity_url.as_deref(),
            Some("activity?from=2026-10-25&to=2026-11-23&model=a")
        );
        let sum = &report.groups[1].sum;
        assert_eq!(
            (
                sum.responses.as_str(),
                sum.tokens_in.as_str(),
                sum.cached_percent
            ),
            ("6", "80", 25)
        );
        assert_eq!(sum.average.0.get(), 333_333);
        assert_eq!(report.total.credits.exact(), "8.000001");
        let times = &report.times;
        assert_eq!((times.len(), report.interval_name), (30, "Day"));
        assert_eq!(
            (times[0].text.as_str(), times[29].text.as_str()),
            ("2026-10-25", "2026-11-23")
        );
        assert_eq!(
            times[29].activity_url,
            "activity?from=2026-11-23&to=2026-11-23"
        );
        assert_eq!(times[29].at_s, TODAY * 86_400);
        let cells = |index: usize| times[index].credits.iter().map(|one| one.0.get());
        assert!(cells(29).eq([6_000_000, 1_000_001]));
        assert!(cells(0).eq([0, 1_000_000]));
        assert!(cells(1).eq([0, 0]), "a day without spending");
    }

    #[test]
    fn more_groups_than_colours_or_rows_share_the_last_and_lose_nothing() {
        let rows: Vec<_> = (0..150)
            .map(|n| row(TODAY, "", &format!("key_{n:03}"), 1_000 + n))
            .collect();
        let report = SpendingReport::new(&period("range=7d"), SpendingGroup::Key, &rows, &[]);
        let sum = report.total.credits.0.get();
        let expected: i64 = rows.iter().map(|row| row.sum.credits.get()).sum();
        assert_eq!(sum, expected);
        assert_eq!(report.groups.len(), MAX_GROUP_ROWS + 1);
        let last = report.groups.last().unwrap();
        assert_eq!((last.name.as_str(), last.id.is_none()), ("50 others", true));
        assert_eq!(report.group_ids().len(), MAX_GROUP_ROWS);
        assert_eq!(
            total(report.groups.iter().map(|group| group.sum.credits)),
            sum
        );
        assert_eq!(report.series.len(), MAX_CHART_SERIES + 1);
        assert_eq!(report.series[MAX_CHART_SERIES].name, "143 others");
        assert_eq!(report.groups[99].colour, OTHERS_COLOUR);
        let today = &report.times[6];
        assert_eq!(total(today.credits.iter().copied()), sum);
        // At the limits, nothing is shared.
        for (count, series, groups) in [(7, 7, 7), (8, 8, 8), (100, 8, 100)] {
            let report =
                SpendingReport::new(&period("range=7d"), SpendingGroup::Key, &rows[..count], &[]);
            assert_eq!((report.series.len(), report.groups.len()), (series, groups));
        }
    }

    #[test]
    fn hours_and_months_are_told_apart() {
        let hour = NOW / HOUR_MS;
        let day = SpendingReport::new(
            &period("range=24h"),
            SpendingGroup::Time,
            &[row(hour, "", "", 7)],
            &[],
        );
        assert_eq!(
            (day.times.len(), day.interval_name, day.step_s),
            (24, "Hour", 3_600)
        );
        assert_eq!(day.times[23].text, "2026-11-23 16:00");
        assert_eq!(day.times[23].sum.credits.0.get(), 7);
        assert!(day.groups.is_empty());
        assert_eq!(day.series[0].name, "Credits");

        let november = month_number(NOW);
        let year = SpendingReport::new(
            &period("from=2025-12-15&to=2026-11-23"),
            SpendingGroup::Model,
            &[row(november - 11, "a", "", 1), row(november, "a", "", 2)],
            &[],
        );
        assert_eq!((year.times.len(), year.interval_name), (12, "Month"));
        let (first, last) = (&year.times[0], &year.times[11]);
        assert_eq!(
            (first.text.as_str(), last.text.as_str()),
            ("2025-12", "2026-11")
        );
        assert_eq!(first.activity_url, "activity?from=2025-12-15&to=2025-12-31");
        assert_eq!(last.activity_url, "activity?from=2026-11-01&to=2026-11-23");
        assert_eq!(total(year.times.iter().map(|time| time.sum.credits)), 3);

        let nothing = SpendingReport::new(&period("range=7d"), SpendingGroup::Time, &[], &[]);
        assert!(nothing.is_empty && nothing.series.is_empty());
        assert_eq!(nothing.total.average, Credits::ZERO);
    }
}
