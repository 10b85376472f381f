//! Checks the rule `sums` for the spending of keys and members, on which limits depend: the total
//! up to the end of each day is the sum of the debits.
//!
//! The memory grows with the keys and the days on which each key was used. This file must not
//! depend on a limit.

use super::debits::EndingView;
use super::findings::LedgerAuditReport;
use crate::LedgerEntry;
use crate::audit::walk::KeySpendRow;
use std::collections::HashMap;

const DAY_MS: i64 = 86_400_000;

/// The spending of a key on one day, in 24 bytes because an audit may keep many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct KeyDay {
    /// Days since 1970 UTC.
    day: i64,
    /// Spending on this day in µc. Once all entries are read, spending up to the end of this day.
    spent: i64,
    /// Time of the last use, in ms after the start of the day.
    used_ms: i32,
    is_stored: bool,
}

pub(crate) struct KeySpendRule {
    /// The days of each key, sorted. `None` if the spending at the start of the walk is unknown.
    keys: Option<HashMap<Box<str>, Vec<KeyDay>>>,
    has_totals: bool,
}

impl KeySpendRule {
    /// Begins with the spending of keys at the start of the walk, by key and day.
    pub fn new(start: Option<&[KeySpendRow]>) -> Self {
        let keys = start.map(|rows| {
            let mut keys: HashMap<Box<str>, Vec<KeyDay>> = HashMap::new();
            let mut before: Option<&KeySpendRow> = None;
            for row in rows {
                let earlier = before.filter(|before| before.key == row.key);
                let spent = row.total.get() - earlier.map_or(0, |before| before.total.get());
                let days = keys.entry(row.key.as_str().into()).or_default();
                add(days, row.day, row.used_at_ms, spent);
                before = Some(row);
            }
            keys
        });
        Self {
            keys,
            has_totals: false,
        }
    }

    /// Turns the rule off, because some entries could not be read.
    pub fn give_up(&mut self) {
        self.keys = None;
    }

    /// Adds the end of a request to its key and its member.
    pub fn add_all(&mut self, entry: &LedgerEntry, detail: &EndingView<'_>) {
        self.add(entry, &detail.key_id);
        if let Some(member) = &detail.member {
            self.add(entry, member);
        }
    }

    fn add(&mut self, entry: &LedgerEntry, key: &str) {
        let Some(keys) = &mut self.keys else { return };
        let days = match keys.get_mut(key) {
            Some(days) => days,
            None => keys.entry(key.into()).or_default(),
        };
        let spent = entry.change().get().saturating_neg();
        add(days, entry.at_ms / DAY_MS, entry.at_ms, spent);
    }

    /// Checks a stored total. All entries must have been added.
    pub fn check(&mut self, row: &KeySpendRow, report: &mut LedgerAuditReport) {
        self.add_up();
        let Some(keys) = &mut self.keys else { return };
        let known = keys.get_mut(row.key.as_str()).and_then(|days| {
            let index = days.binary_search_by_key(&row.day, |day| day.day).ok()?;
            days.get_mut(index)
        });
        let is_right = known.is_some_and(|known| {
            known.is_stored = true;
            let used_at_ms = known.day * DAY_MS + i64::from(known.used_ms);
            (known.spent, used_at_ms) == (row.total.get(), row.used_at_ms)
        });
        if !is_right {
            add_finding(&row.key, row.day, report);
        }
    }

    /// Reports missing totals. All stored totals must have been checked.
    pub fn finish(&mut self, report: &mut LedgerAuditReport) {
        self.add_up();
        let mut keys: Vec<_> = self.keys.take().into_iter().flatten().collect();
        keys.sort_unstable_by(|one, other| one.0.cmp(&other.0));
        for (key, days) in keys {
            for missing in days.iter().filter(|day| !day.is_stored) {
                add_finding(&key, missing.day, report);
            }
        }
    }

    fn add_up(&mut self) {
        if std::mem::replace(&mut self.has_totals, true) {
            return;
        }
        for days in self.keys.iter_mut().flat_map(HashMap::values_mut) {
            let mut total = 0_i64;
            for day in days {
                total = total.saturating_add(day.spent);
                day.spent = total;
            }
        }
    }
}

fn add(days: &mut Vec<KeyDay>, day: i64, at_ms: i64, spent: i64) {
    let used_ms = i32::try_from(at_ms - day * DAY_MS).unwrap_or(i32::MAX);
    // Entries are nearly in the order of time, so the day is usually the last one.
    let index = match days.last() {
        Some(last) if last.day == day => Ok(days.len() - 1),
        _ => days.binary_search_by_key(&day, |known| known.day),
    };
    match index {
        Ok(index) => {
            if let Some(known) = days.get_mut(index) {
                known.spent = known.spent.saturating_add(spent);
                known.used_ms = known.used_ms.max(used_ms);
            }
        }
        Err(index) => days.insert(
            index,
            KeyDay {
                day,
                spent,
                used_ms,
                is_stored: false,
            },
        ),
    }
}

fn add_finding(key: &str, day: i64, report: &mut LedgerAuditReport) {
    let message =
        format!("key_spend: the total of key {key}, day {day} differs from the sum of its entries");
    report.add_finding("sums", 0, message);
}

#[cfg(test)]
mod tests {
    use super::*;
    use credits::money::Micro;

    fn row(key: &str, day: i64, total: i64, used_at_ms: i64) -> KeySpendRow {
        KeySpendRow {
            key: key.into(),
            day,
            total: Micro::new(total),
            used_at_ms,
        }
    }

    fn findings(
        start: Option<&[KeySpendRow]>,
        ends: &[(i64, i64)],
        stored: &[KeySpendRow],
    ) -> usize {
        let mut report = LedgerAuditReport::default();
        let mut rule = KeySpendRule::new(start);
        for (at_ms, spent) in ends {
            rule.add(&entry(*at_ms, *spent), "key");
        }
        for row in stored {
            rule.check(row, &mut report);
        }
        rule.finish(&mut report);
        report.findings.len()
    }

    fn entry(at_ms: i64, spent: i64) -> LedgerEntry {
        let zero = Micro::ZERO;
        LedgerEntry {
            seq: 1,
            kind: "debit".into(),
            reference: "req".into(),
            account: "acct".into(),
            at_ms,
            d_paid: Micro::new(-spent),
            d_trial: zero,
            bal_paid: zero,
            bal_trial: zero,
            writeoff: zero,
            detail: String::new(),
            prev: Vec::new(),
            hash: Vec::new(),
        }
    }

    #[test]
    fn a_late_ending_counts_on_its_own_day_and_on_all_later_ones() {
        let day = |day: i64| day * DAY_MS;
        let ends = [
            (day(7) + 5, 10),
            (day(9), 20),
            (day(8) + 1, 3),
            (day(7) + 4, 1),
        ];
        let stored = [
            row("key", 7, 11, day(7) + 5),
            row("key", 8, 14, day(8) + 1),
            row("key", 9, 34, day(9)),
        ];
        assert_eq!(findings(Some(&[]), &ends, &stored), 0);
        assert_eq!(
            findings(Some(&[]), &ends, &stored[..2]),
            1,
            "one is missing"
        );
        let wrong = [row("key", 7, 11, day(7) + 4), row("key", 8, 11, day(8) + 1)];
        assert_eq!(findings(Some(&[]), &ends, &wrong), 3);
        assert_eq!(findings(Some(&[]), &ends[..2], &stored), 3, "one too many");
        // A walk that begins later has the totals at its start.
        let start = [row("key", 7, 10, day(7) + 5), row("key", 9, 30, day(9))];
        assert_eq!(findings(Some(&start), &ends[2..], &stored), 0);
        assert_eq!(findings(None, &ends[2..], &stored), 0, "unknown: unchecked");
    }
}
