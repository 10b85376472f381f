//! Copies the data directory while the gateway writes to it.
//!
//! The order makes the copy consistent: first the idempotency keys, then the journal, the ledger,
//! its unarchived segments, and the accounts. A used idempotency key in the copy has its debit in
//! the copy, and the restored ledger decides about a key that was still in use. An ending that was
//! journalled before the copy began is in the copy of the journal, or else in the later copy of the
//! ledger, because a journal file is only removed once the ledger has its endings. In the reverse
//! order an ending could move from the journal to the ledger unnoticed. An ending in both counts
//! once when the restored gateway starts. This file must not write to the original.

use super::views::BillingUpkeep;
use ledger::StoreError;
use ledger::journal;

use base::clock;
use base::file_owner;
use ledger::sqlite;
use std::path::Path;

pub struct Backup {
    pub journal_files: usize,
    /// Faults of segments that are neither in the data directory nor in the archive.
    pub missing_segments: Vec<String>,
}

impl BillingUpkeep<'_> {
    /// Copies all data that a gateway needs into the new directory `to`, which can then serve as a
    /// `data_dir`. Returns the content, and the faults of missing segments.
    ///
    /// # Errors
    /// Returns an error if `to` exists or if a file cannot be read or written. The incomplete copy
    /// then remains next to `to`.
    pub fn backup(&self, to: &Path) -> Result<Backup, StoreError> {
        let from = &self.0.0.data_dir;
        let began_ms = clock::now_ms();
        if to.exists() {
            return Err(StoreError::Refused(format!(
                "cannot back up to {}: it already exists",
                to.display()
            )));
        }
        // The folder gets its final name once it is complete, so that nobody takes a partial copy
        // for a backup.
        let mut partial = to.as_os_str().to_owned();
        partial.push(".partial");
        let partial = Path::new(&partial);
        let failed = |source| StoreError::io("finish the backup", source);
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
        let journal_files = journal::copy_journals(from, partial)?;
        // Copy the anchor before the ledger, so the copied ledger is never older than its anchor.
        ledger::anchor::copy(from, partial)?;
        sqlite::copy(
            &from.join("ledger.db"),
            &partial.join("ledger.db"),
            "back up the ledger",
        )?;
        // Copy the segments after the ledger, when every segment that the copied ledger has
        // recorded exists.
        let missing_segments = self
            .0
            .0
            .ledger
            .segments()
            .copy_segments(partial, began_ms)?;
        let accounts = from.join("app.db");
        if accounts.exists() {
            sqlite::copy(&accounts, &partial.join("app.db"), "back up app.db")?;
        }
        sqlite::sync_dir(partial).map_err(failed)?;
        file_owner::rename(partial, to).map_err(failed)?;
        let parent = to
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty())
            .unwrap_or(Path::new("."));
        sqlite::sync_dir(parent).map_err(failed)?;
        Ok(Backup {
            journal_files,
            missing_segments,
        })
    }
}
