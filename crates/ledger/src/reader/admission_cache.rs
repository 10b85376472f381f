//! The rows in memory by which requests are admitted: accounts, and the spending of keys.
//!
//! This file must not read the ledger itself: `accounts.rs` and `key_spend.rs` do.

use crate::StoreError;
use crate::database::AdmissionRow;
use crate::entry::account::{KeySpend, LedgerAccount};
use crate::views::AdmissionCache;
use std::sync::atomic::Ordering;

impl AdmissionCache<'_> {
    /// Returns the account like `LedgerRows::account`, if its row is in memory. Never waits for the
    /// disk. The row can lack a change that another process made within the last 50 ms
    /// (`sqlite/row_cache.rs`). This is safe, because the commit of an ending never debits more
    /// than the account has. It can also lack endings that this process has entered: they move the
    /// same credits from `paid` or `trial` to `applied`, so the sum that admission computes is the
    /// same.
    pub fn account(&self, account: &str, instance_id: &str) -> Option<LedgerAccount> {
        let key = [instance_id, account].concat();
        match self.0.admission_rows.peek(key.as_bytes()) {
            Some(AdmissionRow::Account(row)) => Some(row),
            _ => None,
        }
    }

    /// Reads the row of [`Self::account`] into memory. Returns false if there is no such account.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn load_account(&self, account: &str, instance_id: &str) -> Result<bool, StoreError> {
        let key = [instance_id, account].concat();
        let read = || {
            let row = self.0.rows().account(account, instance_id)?;
            Ok(row.map(AdmissionRow::Account))
        };
        let row = self.0.admission_rows.get(key.as_bytes(), read)?;
        Ok(row.is_some())
    }

    /// See [`RowCache::pause_checks`].
    #[cfg(any(test, feature = "fixtures"))]
    pub fn pause_checks(&self) {
        self.0.admission_rows.pause_checks();
    }

    pub fn clear(&self) {
        self.0.admission_rows.clear();
    }

    /// Returns the spending like `LedgerRows::key_spend`, if it is in memory; only `spent` and
    /// `applied` are right together, like the parts of [`Self::account`].
    pub fn key_spend(&self, key: &str, first_day: i64, instance_id: &str) -> Option<KeySpend> {
        let name = cached_as(key, first_day, instance_id);
        match self.0.admission_rows.peek(&name) {
            Some(AdmissionRow::KeySpend(spend)) => Some(spend),
            _ => None,
        }
    }

    /// Reads the spending of [`Self::key_spend`] into memory.
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
            let spend = self.0.rows().key_spend(key, first_day, instance_id)?;
            Ok(Some(AdmissionRow::KeySpend(spend)))
        };
        let name = cached_as(key, first_day, instance_id);
        self.0.admission_rows.get(&name, read).map(drop)
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
