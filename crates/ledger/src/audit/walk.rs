//! Walks over all entries, oldest first, on a separate connection.
//!
//! The walk reads in slices, and has no transaction open between two slices, so that the database
//! can write its log back. Only the last read ([`LedgerWalk::finish`]) is one transaction over the
//! rest of the entries and the balances. Neither the writer nor point reads wait for a walk. This
//! module must not check an entry. Read next: `walk/references.rs`.

mod reference_sorter;
mod references;

use crate::StoreError;
use crate::entry::account::LedgerAccountRow;
use crate::entry::{ENTRY_COLUMNS, LedgerEntry, entry};
use crate::views::LedgerChecks;
use credits::money::Micro;
pub use reference_sorter::{ReferenceSorter, RepeatedReference};
use references::MAX_REFERENCES_LOOKED_UP;
pub use references::{EndingRow, ReferenceIndex, ReferenceRow};
use rusqlite::{Connection, OptionalExtension, params};

pub const MAX_SLICE_ENTRIES: usize = 4_096;
/// Maximum size of the details in a slice, in bytes, without the last entry's detail.
const MAX_SLICE_BYTES: usize = 4 << 20;
/// Page cache of the connection, in KiB. The cache is small because a walk reads each page once.
const CACHE_KIB: u32 = 1_024;
/// Maximum number of times that the walk reads entries that were added meanwhile, before it takes
/// the rest in one read. Each time there are fewer, unless the writer is as fast as the walk.
const MAX_CATCH_UPS: u32 = 4;

/// A position in the ledger and the connection that reads from there.
pub struct LedgerWalk {
    connection: Connection,
    /// Position of the last entry that was read.
    after: i64,
    /// Position up to which slices are read.
    target: i64,
    catch_ups: u32,
}

/// An item of the last read of a walk. The items come in the order of the variants.
pub enum WalkItem {
    Slice(Vec<LedgerEntry>),
    Account(LedgerAccountRow),
    KeySpend(KeySpendRow),
}

/// The stored spending of a key up to the end of a day. Rows are sorted by key and day.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeySpendRow {
    pub key: String,
    /// Days since 1970 UTC.
    pub day: i64,
    pub total: Micro,
    pub used_at_ms: i64,
}

impl LedgerChecks<'_> {
    /// Begins a walk after the entry `after_seq`.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be opened.
    pub fn walk(&self, after_seq: i64) -> Result<LedgerWalk, StoreError> {
        Ok(LedgerWalk {
            connection: self.0.readers.open_separate(CACHE_KIB, "read the ledger")?,
            after: after_seq,
            target: i64::MIN,
            catch_ups: 0,
        })
    }
}

impl LedgerWalk {
    /// Returns the position of the ledger's last entry; 0 if the ledger is empty.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn last_seq(&self) -> Result<i64, StoreError> {
        let last = || {
            self.connection
                .prepare_cached("SELECT seq FROM entry ORDER BY seq DESC LIMIT 1")?
                .query_row([], |row| row.get(0))
                .optional()
        };
        Ok(last().map_err(sql)?.unwrap_or(0))
    }

    /// Returns the position of the last entry that was read.
    pub fn position(&self) -> i64 {
        self.after
    }

    /// Returns at most one slice of the postings after `after` and up to the walk's start.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn postings_before(&self, start: i64, after: i64) -> Result<Vec<LedgerEntry>, StoreError> {
        let postings = "AND kind NOT IN ('debit', 'void')";
        read_slice(&self.connection, after, start, postings).map_err(sql)
    }

    /// Returns at most one slice of the ends of requests after `after` and up to `last`.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn endings_before(&self, last: i64, after: i64) -> Result<Vec<LedgerEntry>, StoreError> {
        let endings = "AND kind IN ('debit', 'void')";
        read_slice(&self.connection, after, last, endings).map_err(sql)
    }

    /// Reads the rest of the entries, then all accounts and the spending of all keys, as of one
    /// moment.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn finish(&mut self, each: &mut dyn FnMut(WalkItem)) -> Result<(), StoreError> {
        let snapshot = self.connection.transaction().map_err(sql)?;
        loop {
            let slice = read_slice(&snapshot, self.after, i64::MAX, "").map_err(sql)?;
            let Some(last) = slice.last() else { break };
            self.after = last.seq;
            each(WalkItem::Slice(slice));
        }
        read_accounts(&snapshot, each).map_err(sql)?;
        read_key_spend(&snapshot, each).map_err(sql)?;
        snapshot.commit().map_err(sql)
    }

    /// Returns the ends of these requests, in any order.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn endings(&self, request_ids: &[&str]) -> Result<Vec<EndingRow>, StoreError> {
        let mut found = Vec::new();
        for some in request_ids.chunks(MAX_REFERENCES_LOOKED_UP) {
            found.extend(references::endings(&self.connection, some).map_err(sql)?);
        }
        Ok(found)
    }

    /// Calls `each` for at most one slice of the references in `index` that follow `after`, in the
    /// order of the index. Returns the last one, or `None` at the end or if the index does not
    /// exist or cannot serve the query.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn references(
        &self,
        index: ReferenceIndex,
        after: &(String, String),
        each: &mut dyn FnMut(ReferenceRow<'_>),
    ) -> Result<Option<(String, String)>, StoreError> {
        references::read_index(&self.connection, index, after, MAX_SLICE_ENTRIES, each).map_err(sql)
    }

    /// Calls `each` for all references that `index` should contain for the entries up to the walk's
    /// position. The references have the order of the index, but the query does not use it: SQLite
    /// sorts in a temporary file.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn sorted_references(
        &self,
        index: ReferenceIndex,
        each: &mut dyn FnMut(ReferenceRow<'_>),
    ) -> Result<(), StoreError> {
        references::sort_table(&self.connection, index, self.after, each).map_err(sql)
    }
}

/// Yields slices until few entries are left, which [`LedgerWalk::finish`] reads.
impl Iterator for LedgerWalk {
    type Item = Result<Vec<LedgerEntry>, StoreError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.after >= self.target {
            self.catch_ups += 1;
            self.target = match self.last_seq() {
                Ok(last) => last,
                Err(error) => return Some(Err(error)),
            };
            let left = i128::from(self.target) - i128::from(self.after.max(0));
            if left <= MAX_SLICE_ENTRIES as i128 || self.catch_ups > MAX_CATCH_UPS {
                return None;
            }
        }
        match read_slice(&self.connection, self.after, i64::MAX, "") {
            Err(error) => Some(Err(sql(error))),
            Ok(slice) => {
                self.after = slice.last()?.seq;
                Some(Ok(slice))
            }
        }
    }
}

fn sql(source: rusqlite::Error) -> StoreError {
    StoreError::sqlite("read the whole ledger", source)
}

fn read_slice(
    connection: &Connection,
    after: i64,
    up_to: i64,
    which: &str,
) -> rusqlite::Result<Vec<LedgerEntry>> {
    let mut statement = connection.prepare_cached(&format!(
        "SELECT {ENTRY_COLUMNS} FROM entry WHERE seq > ?1 AND seq <= ?2 {which} ORDER BY seq LIMIT ?3"
    ))?;
    let limit = i64::try_from(MAX_SLICE_ENTRIES).unwrap_or(i64::MAX);
    let mut rows = statement.query(params![after, up_to, limit])?;
    let (mut slice, mut bytes) = (Vec::with_capacity(MAX_SLICE_ENTRIES), 0);
    while bytes < MAX_SLICE_BYTES
        && let Some(row) = rows.next()?
    {
        let entry = entry(row)?;
        bytes += entry.detail.len();
        slice.push(entry);
    }
    Ok(slice)
}

fn read_accounts(connection: &Connection, each: &mut dyn FnMut(WalkItem)) -> rusqlite::Result<()> {
    let mut statement = connection
        .prepare("SELECT id, paid, trial, credited, trial_ends_at FROM account ORDER BY id")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        each(WalkItem::Account(LedgerAccountRow {
            id: row.get(0)?,
            paid: row.get(1)?,
            trial: row.get(2)?,
            credited: row.get(3)?,
            trial_ends_at_ms: row.get(4)?,
        }));
    }
    Ok(())
}

fn read_key_spend(connection: &Connection, each: &mut dyn FnMut(WalkItem)) -> rusqlite::Result<()> {
    let mut statement =
        connection.prepare("SELECT key, day, total, used_at FROM key_spend ORDER BY key, day")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        each(WalkItem::KeySpend(KeySpendRow {
            key: row.get(0)?,
            day: row.get(1)?,
            total: row.get(2)?,
            used_at_ms: row.get(3)?,
        }));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
