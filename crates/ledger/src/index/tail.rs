//! Maintains the tail, which has the entries that `index.db` lacks, indexed in memory for readers.
//!
//! `index.db` is written rarely, in large batches, and a page must show every entry. So each
//! process has a connection to a database in memory with the tables of the index, and with
//! `index.db` attached. A read first indexes the entries that are new since the last read. After
//! any process has written `index.db`, the tail starts over behind its last entry. This module must
//! not write `index.db`, and must not outlive the connections to it.

#[cfg(test)]
mod tests;

use super::batch::{IndexBatch, ReadEntries};
use super::limits::{INDEX_SLICE, MAX_INDEX_BATCH, MIGRATIONS, READER_TIMEOUT};
use super::names::NameTables;
use super::tables::{BASE, IndexTables};
use super::write::{clear, read_watermark, set_watermark, watermark};
use crate::StoreError;
use crate::entry::chain::ChainHead;
use crate::sqlite;
use rusqlite::{Connection, OpenFlags};
use std::path::Path;

/// The limits on the size of the tail.
#[derive(Clone, Copy)]
pub(crate) struct TailLimits {
    /// Maximum number of entries in the tail. If more are missing, the index is being built for the
    /// first time, and readers see the entries that it has.
    pub entries: u32,
    /// Maximum number of entries that one read adds.
    pub entries_per_read: u32,
}

impl TailLimits {
    /// Production limits. `index.db` is written once the tail is half full. The longest read that
    /// fills the tail takes about half a second and usually happens only after a start.
    pub(crate) const DEFAULT: Self = Self {
        entries: 2 * MAX_INDEX_BATCH,
        entries_per_read: MAX_INDEX_BATCH,
    };
}

const OPERATION: &str = "index the newest entries in memory";

pub(crate) struct IndexTail {
    connection: Connection,
    names: NameTables,
    /// Version of `index.db` after which the tail begins. `None` before the first read.
    base_version: Option<i64>,
    limits: TailLimits,
}

/// The state of the tail at the start of a read.
enum TailState {
    Ready,
    /// `index.db` has an entry that the ledger lacks, so it belongs to another ledger.
    Foreign,
}

impl IndexTail {
    /// Creates an empty tail for the existing `index.db` at `path`.
    pub(crate) fn open(path: &Path, limits: TailLimits) -> Result<Self, StoreError> {
        Ok(Self {
            connection: connect(path)?,
            names: NameTables::new(),
            base_version: None,
            limits,
        })
    }

    /// Adds the entries up to the ledger's last one, `last`, and calls `read`. Returns `None` if
    /// `index.db` belongs to another ledger.
    ///
    /// # Errors
    /// The outer error is the reason why the tail could not be brought up to date. The inner error
    /// comes from `read`.
    pub(crate) fn read<T>(
        &mut self,
        last: &ChainHead,
        entries: &ReadEntries<'_>,
        read: impl FnOnce(IndexTables<'_>) -> rusqlite::Result<T>,
    ) -> Result<Option<rusqlite::Result<T>>, StoreError> {
        let sql = |source| StoreError::sqlite(OPERATION, source);
        // All further queries use one snapshot of `index.db`.
        let transaction = self.connection.unchecked_transaction().map_err(sql)?;
        let tables = IndexTables::with_base(&transaction);
        let state = begin_behind_base(tables, &mut self.names, &mut self.base_version)
            .and_then(|base| catch_up(tables, &mut self.names, base, self.limits, last, entries));
        if !matches!(state, Ok(TailState::Ready)) {
            drop(transaction);
            self.names = NameTables::new();
            self.base_version = None;
            return state.map(|_| None);
        }
        let found = read(tables);
        // The added entries are right even if the query failed.
        transaction.commit().map_err(sql)?;
        Ok(Some(found))
    }
}

/// Opens a connection with an empty index in memory, and attaches the index at `path`.
pub(crate) fn connect(path: &Path) -> Result<Connection, StoreError> {
    let sql = |source| StoreError::sqlite(OPERATION, source);
    // The flag SQLITE_OPEN_CREATE is missing, because it would also create the attached file.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_in_memory_with_flags(flags).map_err(sql)?;
    sqlite::migrate(&mut connection, MIGRATIONS, OPERATION)?;
    connection
        .execute("ATTACH ?1 AS base", [path.to_string_lossy()])
        .map_err(sql)?;
    connection.busy_timeout(READER_TIMEOUT).map_err(sql)?;
    connection.set_prepared_statement_cache_capacity(64);
    Ok(connection)
}

/// Empties the tail if `index.db` has changed. Returns the last entry in `index.db`.
fn begin_behind_base(
    tables: IndexTables<'_>,
    names: &mut NameTables,
    base_version: &mut Option<i64>,
) -> Result<i64, StoreError> {
    let sql = |source| StoreError::sqlite(OPERATION, source);
    let connection = tables.connection();
    let base = read_watermark(connection, BASE).map_err(sql)?;
    let version = connection
        .pragma_query_value(Some(BASE), "data_version", |row| row.get(0))
        .map_err(sql)?;
    if *base_version != Some(version) {
        clear(connection).map_err(sql)?;
        set_watermark(connection, &base).map_err(sql)?;
        *names = NameTables::new();
        *base_version = Some(version);
    }
    Ok(base.position.seq)
}

/// Adds the entries up to `last`, or as many as the limits allow.
fn catch_up(
    tables: IndexTables<'_>,
    names: &mut NameTables,
    base_seq: i64,
    limits: TailLimits,
    last: &ChainHead,
    entries: &ReadEntries<'_>,
) -> Result<TailState, StoreError> {
    let sql = |source| StoreError::sqlite(OPERATION, source);
    let mut end = watermark(tables.connection()).map_err(sql)?;
    let count = end.position.seq - base_seq;
    if count == 0 && last.seq - base_seq > i64::from(limits.entries) {
        return Ok(TailState::Ready);
    }
    let room = i64::from(limits.entries) - count;
    let mut left = u32::try_from(room)
        .unwrap_or(0)
        .min(limits.entries_per_read);
    while end.position != *last && left > 0 {
        let Some(slice) = entries(&end.position, left.min(INDEX_SLICE))? else {
            return Ok(TailState::Foreign);
        };
        if slice.is_empty() {
            break;
        }
        left = left.saturating_sub(u32::try_from(slice.len()).unwrap_or(u32::MAX));
        let mut batch = IndexBatch::default();
        batch.add(tables, &slice, names).map_err(sql)?;
        end = batch.write(tables, end).map_err(sql)?;
    }
    Ok(TailState::Ready)
}
