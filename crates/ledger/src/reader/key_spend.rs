//! Spending of API keys and of members, by day. The transaction that enters a debit updates the
//! spending, so that admission need not sum up entries. In the place of a key's id, a member has
//! that of the membership.
//!
//! This file must not depend on a spending limit.

use crate::StoreError;
use crate::database::AdmissionRow;
use crate::entry::account::KeySpend;
use crate::statements::applied::number_of;
use crate::views::LedgerRows;
use credits::money::Micro;
use rusqlite::params;
use std::sync::atomic::Ordering;

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
        self.0.read("read a key's spending", |connection| {
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

    /// Returns the spending like [`Self::key_spend`], if it is in memory; only `spent` and
    /// `applied` are right together, like the parts of [`LedgerRows::account_in_memory`].
    pub fn key_spend_in_memory(
        &self,
        key: &str,
        first_day: i64,
        instance_id: &str,
    ) -> Option<KeySpend> {
        let name = cached_as(key, first_day, instance_id);
        match self.0.admission_rows.peek(&name) {
            Some(AdmissionRow::KeySpend(spend)) => Some(spend),
            _ => None,
        }
    }

    /// Reads the spending of [`Self::key_spend_in_memory`] into memory.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn load_key_spend(
        &self,
        key: &str,
        first_day: i64,
        instance_id: &str,
    ) -> Result<(), StoreError> {
        self.0
            .newest_first_day
            .fetch_max(first_day, Ordering::AcqRel);
        let read = || {
            let spend = self.key_spend(key, first_day, instance_id)?;
            Ok(Some(AdmissionRow::KeySpend(spend)))
        };
        let name = cached_as(key, first_day, instance_id);
        self.0.admission_rows.get(&name, read).map(drop)
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

/// Returns the name of a key's spending in the cache.
fn cached_as(key: &str, first_day: i64, instance_id: &str) -> Vec<u8> {
    [
        instance_id.as_bytes(),
        key.as_bytes(),
        &first_day.to_le_bytes(),
    ]
    .concat()
}
