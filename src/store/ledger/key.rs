//! What keys have spent, day by day: counted in the transaction that enters a debit, so that no admission adds entries up.
//!
//! Must not know what a key may spend.

use super::{Ending, Ledger};
use crate::billing::bounds;
use crate::money::{Micro, Parts};
use crate::store::StoreError;
use rusqlite::{Transaction, params};

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
    /// What a key has spent from `first_day` on (days since 1970), and how much of it `boot` has settled. A point read.
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
    /// What a key has spent from each of `first_days` on, and the ledger's last entry: as of one moment.
    ///
    /// # Errors
    /// The ledger cannot be read.
    pub fn key_spend_as_of(&self, key: &str, first_days: [i64; 4]) -> Result<([Micro; 4], i64), StoreError> {
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
            connection.prepare_cached(&sql)?.query_row(params![key, first, second, third, fourth], |row| {
                let total: Micro = row.get(0)?;
                let since = |index| row.get::<_, Micro>(index).map(|before| total.minus(before));
                Ok(([since(1)?, since(2)?, since(3)?, since(4)?], row.get(5)?))
            })
        })
    }
}

/// Counts what was taken for an ending. One that comes late is counted on its own day, and so on every day after it.
pub(super) fn count(transaction: &Transaction<'_>, ending: &Ending, taken: Parts) -> rusqlite::Result<()> {
    let (key, day, taken) = (&ending.detail.key_id, bounds::day(ending.at_ms), taken.total());
    transaction
        .prepare_cached(
            "INSERT INTO key_spend (key, day, total, used_at)
             VALUES (?1, ?2, ?3 + ifnull((SELECT total FROM key_spend WHERE key = ?1 AND day < ?2 ORDER BY day DESC LIMIT 1), 0),
               ?4)
             ON CONFLICT (key, day) DO UPDATE SET total = total + ?3, used_at = max(used_at, excluded.used_at)",
        )?
        .execute(params![key, day, taken, ending.at_ms])?;
    transaction
        .prepare_cached("UPDATE key_spend SET total = total + ?3 WHERE key = ?1 AND day > ?2")?
        .execute(params![key, day, taken])?;
    Ok(())
}

/// Counts what `boot` has settled as being in the ledger.
pub(super) fn apply(transaction: &Transaction<'_>, ending: &Ending, boot: &str) -> rusqlite::Result<()> {
    transaction
        .prepare_cached(
            "INSERT INTO applied_key (boot, key, spent) VALUES (?1, ?2, ?3)
             ON CONFLICT (boot, key) DO UPDATE SET spent = spent + excluded.spent",
        )?
        .execute(params![boot, ending.detail.key_id, ending.paid.plus(ending.trial)])?;
    Ok(())
}
