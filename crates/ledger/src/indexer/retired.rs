//! Removes the indexes of `entry` and the sums from `ledger.db` that older versions used for pages.
//!
//! `index.db` replaces them. Each call is one short transaction, so that a ledger of millions of
//! entries keeps serving meanwhile. This module must not change an entry, a balance or the spending
//! of keys.

#[cfg(test)]
mod tests;

use crate::StoreError;
use crate::views::LedgerIndexing;
use base::failpoint::{self, Point};
use rusqlite::{Connection, OptionalExtension};

/// Indexes that only pages of older versions use. The audit tolerates them.
pub(crate) const RETIRED_INDEXES: [&str; 8] = [
    "entry_by_account",
    "entry_by_time",
    "entry_by_model",
    "entry_by_key",
    "entry_by_outcome",
    "entry_by_conversation",
    "entry_postings",
    "entry_implausible",
];

/// Tables of sums that are no longer written, with their keys. A process of an older version may
/// still write to them while it ends its requests.
const RETIRED_TABLES: [(&str, &str); 4] = [
    ("usage_hour", "account, hour, model, key_id"),
    ("usage_day", "account, day, model, key_id"),
    ("usage_total", "day, model"),
    ("conversation", "account, id"),
];

/// Maximum number of rows that one transaction removes.
const MAX_ROWS: u32 = 2_000;

impl LedgerIndexing<'_> {
    /// Drops one index, or removes some rows of an aggregate that older versions kept. Returns
    /// false if all of them are gone. The caller must make sure that `index.db` has caught up and
    /// that no older version reads the removed data.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be written.
    pub fn remove_retired(&self) -> Result<bool, StoreError> {
        let operation = "remove what older versions read pages from";
        let Some(sql) = self.0.read(operation, find_retired)? else {
            return Ok(false);
        };
        self.0.write(operation, |transaction| {
            transaction.execute_batch(&sql)?;
            failpoint::hit(Point::MidRetired);
            Ok(true)
        })
    }
}

/// Returns the statement that removes the next part.
fn find_retired(connection: &Connection) -> rusqlite::Result<Option<String>> {
    let mut exists = connection
        .prepare_cached("SELECT 1 FROM sqlite_schema WHERE type = 'index' AND name = ?1")?;
    for index in RETIRED_INDEXES {
        if exists.exists([index])? {
            return Ok(Some(format!("DROP INDEX IF EXISTS {index}")));
        }
    }
    for (table, key) in RETIRED_TABLES {
        let row = connection
            .prepare_cached(&format!("SELECT 1 FROM {table} LIMIT 1"))?
            .query_row([], |_| Ok(()))
            .optional()?;
        if row.is_some() {
            return Ok(Some(format!(
                "DELETE FROM {table} WHERE ({key}) IN (SELECT {key} FROM {table} LIMIT {MAX_ROWS})"
            )));
        }
    }
    Ok(None)
}
