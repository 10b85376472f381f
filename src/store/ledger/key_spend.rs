//! Spending of API keys, by day. It is updated in the transaction that enters a debit, so that no
//! admission sums up entries.
//!
//! Must not know a key's spending limit.

use super::applied::{apply_to_key, number_of};
use super::database::Ledger;
use super::ending::Ending;
use crate::store::StoreError;
use credits::limits;
use credits::money::Micro;
use rusqlite::{Transaction, params};
use std::collections::BTreeMap;

/// A key's spending as one snapshot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KeySpend {
    /// Spending since the requested day.
    pub spent: Micro,
    pub total: Micro,
    /// Part of the total that the requested instance has settled.
    pub applied: Micro,
    /// End of the key's last request.
    pub used_at_ms: Option<i64>,
}

impl Ledger {
    /// Returns a key's spending from `first_day` on (days since 1970), and the part of it that the
    /// given instance has settled. A point read.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn key_spend(
        &self,
        key: &str,
        first_day: i64,
        instance_id: &str,
    ) -> Result<KeySpend, StoreError> {
        self.read("read a key's spending", |connection| {
            connection
                .prepare_cached(&format!(
                    "SELECT
                       ifnull((SELECT total FROM key_spend WHERE key = ?1 ORDER BY day DESC LIMIT 1), 0),
                       ifnull((SELECT total FROM key_spend WHERE key = ?1 AND day < ?2 ORDER BY day DESC LIMIT 1), 0),
                       coalesce((SELECT applied FROM key_spend WHERE key = ?1 AND applied_by = {} ORDER BY day DESC LIMIT 1),
                         (SELECT spent FROM applied_key WHERE boot = ?3 AND key = ?1), 0),
                       (SELECT used_at FROM key_spend WHERE key = ?1 ORDER BY day DESC LIMIT 1)",
                    number_of(3)
                ))?
                .query_row(params![key, first_day, instance_id], |row| {
                    let (total, before): (Micro, Micro) = (row.get(0)?, row.get(1)?);
                    Ok(KeySpend { spent: total.minus(before), total, applied: row.get(2)?, used_at_ms: row.get(3)? })
                })
        })
    }
}

impl Ledger {
    /// Returns a key's spending from each of `first_days` on, and the ledger's last entry, as of
    /// one moment.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn key_spend_as_of(
        &self,
        key: &str,
        first_days: [i64; 4],
    ) -> Result<([Micro; 4], i64), StoreError> {
        let before = |index: u8| {
            format!(
                "ifnull((SELECT total FROM key_spend WHERE key = ?1 AND day < ?{index} ORDER BY day DESC LIMIT 1), 0)"
            )
        };
        let sql = format!(
            "SELECT ifnull((SELECT total FROM key_spend WHERE key = ?1 ORDER BY day DESC LIMIT 1), 0), {}, {}, {}, {},
               (SELECT ifnull(max(seq), 0) FROM entry)",
            before(2),
            before(3),
            before(4),
            before(5),
        );
        let [first, second, third, fourth] = first_days;
        self.read("read a key's spending", |connection| {
            connection.prepare_cached(&sql)?.query_row(
                params![key, first, second, third, fourth],
                |row| {
                    let total: Micro = row.get(0)?;
                    let since =
                        |index| row.get::<_, Micro>(index).map(|before| total.minus(before));
                    Ok(([since(1)?, since(2)?, since(3)?, since(4)?], row.get(5)?))
                },
            )
        })
    }
}

/// Debits of endings, summed up by key and day before they are written.
#[derive(Default)]
pub(super) struct KeySpendUpdate<'a>(BTreeMap<&'a str, KeySpendChange>);

#[derive(Default)]
struct KeySpendChange {
    days: BTreeMap<i64, KeyDaySpend>,
    /// Credits that the instance settled, and that these endings apply.
    applied: Micro,
}

#[derive(Clone, Copy, Default)]
struct KeyDaySpend {
    taken: Micro,
    used_at_ms: i64,
}

impl<'a> KeySpendUpdate<'a> {
    /// Adds the debit of an ending. A late ending counts on its own day, and so in the totals of
    /// all later days.
    pub(super) fn add(&mut self, ending: &'a Ending, taken: Micro) {
        let key = self.0.entry(&ending.detail.key_id).or_default();
        let spent = key
            .days
            .entry(limits::day_number(ending.at_ms))
            .or_default();
        spent.taken = spent.taken.plus(taken);
        spent.used_at_ms = spent.used_at_ms.max(ending.at_ms);
    }

    /// Adds what the instance settled for an ending.
    pub(super) fn apply(&mut self, ending: &'a Ending, settled: Micro) {
        let key = self.0.entry(&ending.detail.key_id).or_default();
        key.applied = key.applied.plus(settled);
    }

    /// Writes the spending, and what the instance with the given number has applied.
    pub(super) fn write(
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

/// What nearly every debit needs: the key has a row of the day, no later one, and the instance's
/// applied amount stands in it.
const COUNT_AND_APPLY: &str =
    "UPDATE key_spend SET total = total + ?3, used_at = max(used_at, ?4), applied = applied + ?5
     WHERE key = ?1 AND day = ?2 AND applied_by = ?6
       AND NOT EXISTS (SELECT 1 FROM key_spend AS later WHERE later.key = ?1 AND later.day > ?2)";

const COUNT: &str = "INSERT INTO key_spend (key, day, total, used_at)
     VALUES (?1, ?2, ?3 + ifnull((SELECT total FROM key_spend WHERE key = ?1 AND day < ?2 ORDER BY day DESC LIMIT 1), 0),
       ?4)
     ON CONFLICT (key, day) DO UPDATE SET total = total + ?3, used_at = max(used_at, excluded.used_at)";

const COUNT_LATER: &str = "UPDATE key_spend SET total = total + ?3 WHERE key = ?1 AND day > ?2";
