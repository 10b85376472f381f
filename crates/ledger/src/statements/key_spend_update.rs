//! Sums up the spending of keys and members in a commit by key and day, before it is written. A
//! member has rows like a key's, under the id of the membership.
//!
//! This file must not depend on a spending limit.

use super::applied::apply_to_key;
use crate::entry::ending::{Ending, EndingDetail};
use credits::limits;
use credits::money::Micro;
use rusqlite::{Transaction, params};
use std::collections::BTreeMap;

/// Debits of endings, summed up by key and day before they are written.
#[derive(Default)]
pub(crate) struct KeySpendUpdate<'a>(BTreeMap<&'a str, KeySpendChange>);

#[derive(Default)]
struct KeySpendChange {
    days: BTreeMap<i64, KeyDaySpend>,
    /// Credits that the instance has settled for these endings, and that are now applied.
    applied: Micro,
}

#[derive(Clone, Copy, Default)]
struct KeyDaySpend {
    taken: Micro,
    used_at_ms: i64,
}

impl<'a> KeySpendUpdate<'a> {
    /// Adds the debit of an ending. A late ending counts on its own day, and therefore in the
    /// totals of all later days.
    pub(crate) fn add(&mut self, detail: &'a EndingDetail, at_ms: i64, taken: Micro) {
        for spender in detail.spenders() {
            let spender = self.0.entry(spender).or_default();
            let spent = spender.days.entry(limits::day_number(at_ms)).or_default();
            spent.taken = spent.taken.plus(taken);
            spent.used_at_ms = spent.used_at_ms.max(at_ms);
        }
    }

    /// Adds the credits that the instance settled for an ending.
    pub(crate) fn apply(&mut self, ending: &'a Ending, settled: Micro) {
        for spender in ending.detail.spenders() {
            let spender = self.0.entry(spender).or_default();
            spender.applied = spender.applied.plus(settled);
        }
    }

    /// Writes the spending, and the applied amount of the instance with the given number.
    pub(crate) fn write(
        self,
        transaction: &Transaction<'_>,
        instance: Option<i64>,
    ) -> rusqlite::Result<()> {
        for (key, KeySpendChange { days, applied }) in &self.0 {
            if let Some(instance) = instance
                && let Some((day, KeyDaySpend { taken, used_at_ms })) = days.first_key_value()
                && days.len() == 1
            {
                let values = params![key, day, taken, used_at_ms, applied, instance];
                if transaction
                    .prepare_cached(COUNT_AND_APPLY)?
                    .execute(values)?
                    > 0
                {
                    continue;
                }
            }
            for (day, KeyDaySpend { taken, used_at_ms }) in days {
                transaction
                    .prepare_cached(COUNT)?
                    .execute(params![key, day, taken, used_at_ms])?;
                transaction
                    .prepare_cached(COUNT_LATER)?
                    .execute(params![key, day, taken])?;
            }
            if let Some(instance) = instance
                && applied.is_positive()
            {
                apply_to_key(transaction, instance, key, *applied)?;
            }
        }
        Ok(())
    }
}

/// SQL for the most frequent case: the key has a row of the day, no later one, and the instance's
/// applied amount is in that row.
const COUNT_AND_APPLY: &str =
    "UPDATE key_spend SET total = total + ?3, used_at = max(used_at, ?4), applied = applied + ?5
     WHERE key = ?1 AND day = ?2 AND applied_by = ?6
       AND NOT EXISTS (SELECT 1 FROM key_spend AS later WHERE later.key = ?1 AND later.day > ?2)";

const COUNT: &str = "INSERT INTO key_spend (key, day, total, used_at)
     VALUES (?1, ?2, ?3 + ifnull((SELECT total FROM key_spend WHERE key = ?1 AND day < ?2 ORDER BY day DESC LIMIT 1), 0),
       ?4)
     ON CONFLICT (key, day) DO UPDATE SET total = total + ?3, used_at = max(used_at, excluded.used_at)";

const COUNT_LATER: &str = "UPDATE key_spend SET total = total + ?3 WHERE key = ?1 AND day > ?2";
