//! Spending of API keys and of members, by day. The transaction that enters a debit updates the
//! spending, so that admission need not sum up entries. In the place of a key's id, a member has
//! that of the membership.
//!
//! This file must not depend on a spending limit.

use crate::StoreError;
use crate::entry::account::KeySpend;
use crate::statements::applied::number_of;
use crate::views::LedgerRows;
use credits::money::Micro;
use rusqlite::params;

impl LedgerRows<'_> {
    /// Returns a key's spending from `first_day` on (days since 1970), and the part of it that the
    /// given instance has settled, by a point read.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn key_spend(
        &self,
        key: &str,
        first_day: i64,
        instance_id: &str,
    ) -> Result<KeySpend, StoreError> {
        self.0.read_for_request("read a key's spending", |connection| {
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

    /// Returns a key's spending from each of `first_days` on, and the ledger's last entry, from one
    /// snapshot.
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
        self.0.read("read a key's spending", |connection| {
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
