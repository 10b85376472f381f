//! A copy of the books while they are written.
//!
//! The order makes it whole: the idempotency keys first, then the journal, the ledger, the
//! accounts. A key that is spent in the copy has its debit in it; one that still ran is judged by
//! the restored ledger. An ending that was journalled before the copy began is in the journal's
//! copy, or its file was removed because the ledger had it, and then the later copy of the ledger
//! has it. The other way round an ending could pass from the one to the other unseen. What is in
//! both counts once at the restored gateway's start. Must not write to what it copies.

use super::Billing;
use super::journal;
use crate::store::StoreError;
use crate::store::ledger;
use crate::store::sqlite;
use std::path::Path;

impl Billing {
    /// Copies everything that a gateway needs to go on into the new folder `to`, which is a
    /// `data_dir` then. Returns the number of the journal's files in it.
    ///
    /// # Errors
    /// `to` is there already, or something cannot be read or written; what was copied so far is
    /// left beside it.
    pub fn backup(&self, to: &Path) -> Result<usize, StoreError> {
        let from = &self.0.data_dir;
        if to.exists() {
            return Err(StoreError::Refused(format!(
                "back up to {}: it is there already",
                to.display()
            )));
        }
        // Under its own name only once it is whole: half a copy must not be taken for one.
        let mut partial = to.as_os_str().to_owned();
        partial.push(".partial");
        let partial = Path::new(&partial);
        let failed = |source| StoreError::io("finish a backup", source);
        if partial.exists() {
            std::fs::remove_dir_all(partial).map_err(failed)?;
        }
        sqlite::create_dir(partial)?;
        let keys = from.join("idempotency.db");
        if keys.exists() {
            sqlite::copy(
                &keys,
                &partial.join("idempotency.db"),
                "back up idempotency.db",
            )?;
        }
        let files = journal::copy(from, partial)?;
        // Before the ledger, which is never behind it then.
        ledger::anchor::copy(from, partial)?;
        sqlite::copy(
            &from.join("ledger.db"),
            &partial.join("ledger.db"),
            "back up the ledger",
        )?;
        let accounts = from.join("app.db");
        if accounts.exists() {
            sqlite::copy(&accounts, &partial.join("app.db"), "back up app.db")?;
        }
        sqlite::sync_dir(partial).map_err(failed)?;
        std::fs::rename(partial, to).map_err(failed)?;
        let parent = to
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty())
            .unwrap_or(Path::new("."));
        sqlite::sync_dir(parent).map_err(failed)?;
        Ok(files)
    }
}
