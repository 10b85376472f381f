//! Spending of API keys, by day. It is updated in the transaction that enters a debit, so that no
//! admission sums up entries.
//!
//! Must not know a key's spending limit.

use super::database::Ledger;
use super::ending::Ending;
use crate::store::StoreError;
use credits::limits;
use credits::money::{CreditSplit, Micro};
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
                .prepare_cached(
                    "SELECT
                       ifnull((SELECT total FROM key_spend WHERE key = ?1 ORDER BY day DESC LIMIT 1), 0),
                       ifnull((SELECT total FROM key_spend WHERE key = ?1 AND day < ?2 ORDER BY day DESC LIMIT 1), 0),
                       ifnull((SELECT spent FROM applied_key WHERE boot = ?3 AND key = ?1), 0),
                       (SELECT used_at FROM key_spend WHERE key = ?1 ORDER BY day DESC LIMIT 1)",
                )?
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
pub(super) struct KeySpendUpdate<'a>(BTreeMap<(&'a str, i64), KeyDaySpend>);

#[derive(Default)]
struct KeyDaySpend {
    taken: Micro,
    used_at_ms: i64,
}

impl<'a> KeySpendUpdate<'a> {
    /// Adds the debit of an ending. A late ending counts on its own day, and so in the totals of
    /// all later days.
    pub(super) fn add(&mut self, ending: &'a Ending, taken: Micro) {
        let spent = self
            .0
            .entry((&ending.detail.key_id, limits::day_number(ending.at_ms)))
            .or_default();
        spent.taken = spent.taken.plus(taken);
        spent.used_at_ms = spent.used_at_ms.max(ending.at_ms);
    }

    pub(super) fn write(self, transaction: &Transaction<'_>) -> rusqlite::Result<()> {
        for ((key, day), KeyDaySpend { taken, used_at_ms }) in &self.0 {
            transaction
                .prepare_cached(COUNT)?
                .execute(params![key, day, taken, used_at_ms])?;
            transaction
                .prepare_cached(COUNT_LATER)?
                .execute(params![key, day, taken])?;
        }
        Ok(())
    }
}

const COUNT: &str = "INSERT INTO key_spend (key, day, total, used_at)
     VALUES (?1, ?2, ?3 + ifnull((SELECT total FROM key_spend WHERE key = ?1 AND day < ?2 ORDER BY day DESC LIMIT 1), 0),
       ?4)
     ON CONFLICT (key, day) DO UPDATE SET total = total + ?3, used_at = max(used_at, excluded.used_at)";

const COUNT_LATER: &str = "UPDATE key_spend SET total = total + ?3 WHERE key = ?1 AND day > ?2";

/// Credits that an instance has settled, summed up by account and by key before they are written as
/// applied.
#[derive(Default)]
pub(super) struct AppliedUpdate<'a> {
    accounts: BTreeMap<&'a str, CreditSplit>,
    keys: BTreeMap<&'a str, Micro>,
}

impl<'a> AppliedUpdate<'a> {
    pub(super) fn add(&mut self, ending: &'a Ending) {
        let parts = CreditSplit {
            paid: ending.paid,
            trial: ending.trial,
        };
        if !ending.paid.is_positive() && !ending.trial.is_positive() {
            return;
        }
        let of_account = self.accounts.entry(&ending.account).or_default();
        *of_account = of_account.plus(parts);
        let of_key = self.keys.entry(&ending.detail.key_id).or_default();
        *of_key = of_key.plus(parts.total());
    }

    pub(super) fn write(
        self,
        transaction: &Transaction<'_>,
        instance_id: &str,
    ) -> rusqlite::Result<()> {
        for (account, CreditSplit { paid, trial }) in &self.accounts {
            transaction.prepare_cached(APPLY)?.execute(params![
                instance_id,
                account,
                paid,
                trial
            ])?;
        }
        for (key, spent) in &self.keys {
            transaction
                .prepare_cached(APPLY_KEY)?
                .execute(params![instance_id, key, spent])?;
        }
        Ok(())
    }
}

const APPLY: &str = "INSERT INTO applied (boot, account, paid, trial) VALUES (?1, ?2, ?3, ?4)
     ON CONFLICT (boot, account) DO UPDATE SET paid = paid + excluded.paid, trial = trial + excluded.trial";

const APPLY_KEY: &str = "INSERT INTO applied_key (boot, key, spent) VALUES (?1, ?2, ?3)
     ON CONFLICT (boot, key) DO UPDATE SET spent = spent + excluded.spent";
