//! Reads entries by their position in the ledger, and by their reference.
//!
//! This file must not search: `index.rs` finds the positions.

use crate::entry::{ENTRY_COLUMNS, LedgerEntry, entry};
use rusqlite::{Connection, OptionalExtension, params};

/// Returns the entries at these positions, in this order. A position without an entry is left out;
/// `ledger verify` reports the removed entry.
pub(crate) fn entries_at(
    connection: &Connection,
    seqs: &[i64],
) -> rusqlite::Result<Vec<LedgerEntry>> {
    // Use one snapshot for all entries, so that SQLite locks once.
    let snapshot = connection.unchecked_transaction()?;
    let sql = format!("SELECT {ENTRY_COLUMNS} FROM entry WHERE seq = ?1");
    let mut statement = snapshot.prepare_cached(&sql)?;
    let mut entries = Vec::with_capacity(seqs.len());
    for seq in seqs {
        entries.extend(statement.query_row([seq], entry).optional()?);
    }
    Ok(entries)
}

/// Returns at most `limit` entries after the position `seq`, in order.
pub(crate) fn entries_after(
    connection: &Connection,
    seq: i64,
    limit: u32,
) -> rusqlite::Result<Vec<LedgerEntry>> {
    connection
        .prepare_cached(&format!(
            "SELECT {ENTRY_COLUMNS} FROM entry WHERE seq > ?1 ORDER BY seq LIMIT ?2"
        ))?
        .query_map(params![seq, limit], entry)?
        .collect()
}

/// Returns the stored hash of the entry at `seq`, if there is one.
pub(crate) fn hash_at(connection: &Connection, seq: i64) -> rusqlite::Result<Option<Vec<u8>>> {
    connection
        .prepare_cached("SELECT hash FROM entry WHERE seq = ?1")?
        .query_row([seq], |row| row.get(0))
        .optional()
}

pub(crate) fn find_entry(
    connection: &Connection,
    kind: &str,
    reference: &str,
) -> rusqlite::Result<Option<LedgerEntry>> {
    connection
        .prepare_cached(&format!(
            "SELECT {ENTRY_COLUMNS} FROM entry WHERE kind = ?1 AND ref = ?2"
        ))?
        .query_row([kind, reference], entry)
        .optional()
}
