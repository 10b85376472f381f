//! What keys have spent, day by day: counted in the transaction that enters a debit, so that no
//! admission adds entries up.
//!
//! Must not know what a key may spend.

use super::{Ending, Ledger};
use crate::billing::bounds;
use crate::money::{Micro, Parts};
use crate::store::StoreError;
use rusqlite::{Transaction, params};
use std::collections::BTreeMap;

/// A key's spending as one snapshot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KeySpend {
    /// Since the day that was asked for.
    pub spent: Micro,
    pub total: Micro,
    /// How much of the total the boot that was asked for has settled.
    pub applied: Micro,
    /// When a request of the key last ended.
    pub used_at_ms: Option<i64>,
}

impl Ledger {
    /// What a key has spent from `first_day` on (days since 1970), and how much of it `boot` has
    /// settled. A point read.
    ///
    /// # Errors
    /// The ledger cannot be read.
    pub fn key_spend(&self, key: &str, first_day: i64, boot: &str) -> Result<KeySpend, StoreError> {
        self.read("read a key's spending", |connection| {
            connection
                .prepare_cached(
                    "SELECT
                       ifnull((SELECT total FROM key_spend WHERE key = ?1 ORDER BY day DESC LIMIT 1), 0),
                       ifnull((SELECT total FROM key_spend WHERE key = ?1 AND day < ?2 ORDER BY day DESC LIMIT 1), 0),
                       ifnull((SELECT spent FROM applied_key WHERE boot = ?3 AND key = ?1), 0),
                       (SELECT used_at FROM key_spend WHERE key = ?1 ORDER BY day DESC LIMIT 1)",
                )?
                .query_row(params![key, first_day, boot], |row| {
                    let (total, before): (Micro, Micro) = (row.get(0)?, row.get(1)?);
                    Ok(KeySpend { spent: total.minus(before), total, applied: row.get(2)?, used_at_ms: row.get(3)? })
                })
        })
    }
}

impl Ledger {
    /// What a key has spent from each of `first_days` on, and the ledger's last entry: as of one
    /// moment.
    ///
    /// # Errors
    /// The ledger cannot be read.
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
        self.read("read a key's spending to seed", |connection| {
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

/// What endings took, by key and day, added up before it is written.
#[derive(Default)]
pub(super) struct Spending<'a>(BTreeMap<(&'a str, i64), Spent>);

#[derive(Default)]
struct Spent {
    taken: Micro,
    used_at_ms: i64,
}

impl<'a> Spending<'a> {
    /// Counts what was taken for an ending. One that comes late is counted on its own day, and so
    /// on every day after it.
    pub(super) fn count(&mut self, ending: &'a Ending, taken: Micro) {
        let spent = self
            .0
            .entry((&ending.detail.key_id, bounds::day(ending.at_ms)))
            .or_default();
        spent.taken = spent.taken.plus(taken);
        spent.used_at_ms = spent.used_at_ms.max(ending.at_ms);
    }

    pub(super) fn write(self, transaction: &Transaction<'_>) -> rusqlite::Result<()> {
        for ((key, day), Spent { taken, used_at_ms }) in &self.0 {
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

/// What `boot` has settled, by account and by key, added up before it is counted as being in the
/// ledger.
#[derive(Default)]
pub(super) struct Applied<'a> {
    accounts: BTreeMap<&'a str, Parts>,
    keys: BTreeMap<&'a str, Micro>,
}

impl<'a> Applied<'a> {
    pub(super) fn count(&mut self, ending: &'a Ending) {
        let parts = Parts {
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

    pub(super) fn write(self, transaction: &Transaction<'_>, boot: &str) -> rusqlite::Result<()> {
        for (account, Parts { paid, trial }) in &self.accounts {
            transaction
                .prepare_cached(APPLY)?
                .execute(params![boot, account, paid, trial])?;
        }
        for (key, spent) in &self.keys {
            transaction
                .prepare_cached(APPLY_KEY)?
                .execute(params![boot, key, spent])?;
        }
        Ok(())
    }
}

const APPLY: &str = "INSERT INTO applied (boot, account, paid, trial) VALUES (?1, ?2, ?3, ?4)
     ON CONFLICT (boot, account) DO UPDATE SET paid = paid + excluded.paid, trial = trial + excluded.trial";

const APPLY_KEY: &str = "INSERT INTO applied_key (boot, key, spent) VALUES (?1, ?2, ?3)
     ON CONFLICT (boot, key) DO UPDATE SET spent = spent + excluded.spent";
