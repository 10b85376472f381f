//! Opens accounts, stores price versions, and removes the rows of ended processes.
//!
//! This file must not decide an amount.

use super::trial::Posting;
use crate::StoreError;
use crate::sqlite::to_json;
use crate::views::LedgerRows;
use credits::money::Micro;
use credits::price_list::PriceList;
use credits::trial::Trial;
use rusqlite::{Transaction, params};

impl LedgerRows<'_> {
    /// Opens an account with zero balances. An account that is already open does not change.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be written.
    pub fn open_account(
        &self,
        account: &str,
        trial_ends_at_ms: Option<i64>,
        at_ms: i64,
    ) -> Result<(), StoreError> {
        let sql = "INSERT INTO account (id, paid, trial, trial_ends_at, opened_at) VALUES (?1, 0, 0, ?2, ?3)
                   ON CONFLICT (id) DO NOTHING";
        self.0.write("open an account", |transaction| {
            transaction
                .execute(sql, params![account, trial_ends_at_ms, at_ms])
                .map(drop)
        })
    }

    /// Opens an account with its trial. The grant has the reference `trial:<account>`, so a second
    /// call has no effect.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be written.
    pub fn open_account_with_trial(
        &self,
        account: &str,
        trial: Option<Trial>,
        now_ms: i64,
    ) -> Result<(), StoreError> {
        self.open_account(account, trial.map(|trial| trial.ends_at_ms), now_ms)?;
        if let Some(trial) = trial {
            self.0.changes().post(&Posting {
                kind: "trial",
                reference: &format!("trial:{account}"),
                account,
                d_paid: Micro::ZERO,
                d_trial: trial.credits,
                at_ms: now_ms,
            })?;
        }
        Ok(())
    }

    /// Stores a price version, before its first use.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be written.
    pub fn store_price(&self, price: &PriceList, at_ms: i64) -> Result<(), StoreError> {
        self.0.write("store a price version", |transaction| {
            insert_price(transaction, price, at_ms)
        })
    }

    /// Deletes the rows of these instances in `applied`, `applied_key`, `claim` and `instance`.
    /// Their processes must have ended, and the ledger must have every request of their journals.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be written.
    pub fn forget_instances(&self, instance_ids: &[String]) -> Result<(), StoreError> {
        let instance_ids = serde_json::to_string(instance_ids).unwrap_or_default();
        self.0
            .write("remove the records of ended processes", |transaction| {
                for table in ["applied", "applied_key", "claim", "instance"] {
                    let sql = format!(
                        "DELETE FROM {table} WHERE boot IN (SELECT value FROM json_each(?1))"
                    );
                    transaction.execute(&sql, [&instance_ids])?;
                }
                Ok(())
            })
    }
}

/// Stores a price version, unless the ledger has it.
pub(crate) fn insert_price(
    transaction: &Transaction<'_>,
    price: &PriceList,
    at_ms: i64,
) -> rusqlite::Result<()> {
    let json = to_json(price)?;
    transaction
        .prepare_cached(
            "INSERT INTO price_version (id, json, first_used_at) VALUES (?1, ?2, ?3) ON CONFLICT (id) DO NOTHING",
        )?
        .execute(params![price.version, json, at_ms])
        .map(drop)
}
