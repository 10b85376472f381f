//! A batch of entries in an index: their rows and the new watermark, together.
//!
//! Must not open a file or begin a transaction.

use super::names::NameTables;
use super::write::write_entries;
use crate::store::ledger::entry::LedgerEntry;
use crate::store::ledger::lookup::EntryPosition;
use rusqlite::Connection;

pub(in crate::store::ledger) const MIGRATIONS: &[&str] = &[include_str!("001.sql")];

/// Maximum number of entries in one transaction.
pub const MAX_INDEX_BATCH: u32 = 4_096;

/// Page size in bytes. Smaller pages write a quarter less if each entry is of another account, but
/// cost half as much time again.
pub(in crate::store::ledger) const PAGE_BYTES: u32 = 4_096;

/// Page cache of the connection that writes, in KiB.
pub(in crate::store::ledger) const WRITER_CACHE_KIB: i64 = 16_384;

/// How far the index is.
pub(in crate::store::ledger) struct Watermark {
    pub position: EntryPosition,
    pub conversations: i64,
}

/// Adds the rows of `entries`, which follow `from`, and moves the watermark.
pub(in crate::store::ledger) fn add_entries(
    connection: &Connection,
    entries: &[LedgerEntry],
    names: &mut NameTables,
    from: Watermark,
) -> rusqlite::Result<Watermark> {
    let Some(last) = entries.last() else {
        return Ok(from);
    };
    let conversations = write_entries(connection, entries, names, from.conversations)?;
    let to = Watermark {
        position: (last.seq, last.hash.clone()),
        conversations,
    };
    connection
        .prepare_cached("UPDATE watermark SET seq = ?1, hash = ?2, conversations = ?3")?
        .execute((to.position.0, &to.position.1, to.conversations))?;
    Ok(to)
}

pub(in crate::store::ledger) fn watermark(connection: &Connection) -> rusqlite::Result<Watermark> {
    connection
        .prepare_cached("SELECT seq, hash, conversations FROM watermark")?
        .query_row([], |row| {
            Ok(Watermark {
                position: (row.get(0)?, row.get(1)?),
                conversations: row.get(2)?,
            })
        })
}

/// Removes all rows, as in a new file.
pub(in crate::store::ledger) fn clear(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute_batch(
        "DELETE FROM activity; DELETE FROM posting; DELETE FROM usage_hour; DELETE FROM usage_day;
         DELETE FROM usage_total; DELETE FROM conversation; DELETE FROM account; DELETE FROM model;
         DELETE FROM api_key; DELETE FROM outcome WHERE id > 0;
         UPDATE watermark SET seq = 0, hash = zeroblob(32), conversations = 0;",
    )
}
