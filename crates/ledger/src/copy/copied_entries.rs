//! Reads and inserts entries that are copied between `ledger.db` and PostgreSQL (`copy.rs`).
//!
//! This file must not change an entry.

use crate::StoreError;
use crate::entry::chain::{ChainHead, EntryHasher};
use crate::entry::ending::EndingDetail;
use crate::entry::{ENTRY_COLUMNS, LedgerEntry, entry};
use crate::statements::chain::{self, chain_head};
use crate::statements::key_spend_update::KeySpendUpdate;
use credits::money::Micro;
use rusqlite::{Connection, Transaction, params};

/// Returns the unsealed entries after a position.
pub fn after(connection: &Connection, seq: i64) -> rusqlite::Result<Vec<LedgerEntry>> {
    connection
        .prepare_cached(&format!(
            "SELECT {ENTRY_COLUMNS} FROM entry WHERE seq > ?1 ORDER BY seq"
        ))?
        .query_map([seq], entry)?
        .collect()
}

/// Inserts the entries that follow the last one unchanged, and applies them to balances and the
/// spending of keys. The accounts must be open.
///
/// # Errors
/// Returns an error if an entry does not follow its predecessor, or if the file cannot be written.
pub fn insert(transaction: &Transaction<'_>, entries: &[LedgerEntry]) -> Result<(), StoreError> {
    let sql = |source| StoreError::sqlite("bring the ledger up to date", source);
    let ChainHead {
        mut seq,
        hash: mut prev,
    } = chain_head(transaction).map_err(sql)?;
    let mut hasher = EntryHasher::default();
    let mut keys = KeySpendUpdate::default();
    let details: Vec<Option<EndingDetail>> = entries
        .iter()
        .map(|entry| {
            entry
                .is_ending()
                .then(|| serde_json::from_str(&entry.detail).ok())
                .flatten()
        })
        .collect();
    for (entry, detail) in entries.iter().zip(&details) {
        let follows = entry.seq == seq + 1 && entry.prev == prev;
        if !follows || hasher.hash(entry).as_slice() != entry.hash {
            return Err(StoreError::Unusable(format!(
                "entry {} in PostgreSQL is not chained to the one before it: somebody changed it",
                entry.seq
            )));
        }
        (seq, prev) = (entry.seq, entry.hash.clone());
        chain::insert(transaction, entry, "").map_err(sql)?;
        transaction
            .prepare_cached(
                "UPDATE account SET paid = ?2, trial = ?3, credited = credited + ?4 WHERE id = ?1",
            )
            .and_then(|mut statement| {
                statement.execute(params![
                    entry.account,
                    entry.bal_paid,
                    entry.bal_trial,
                    entry.credited()
                ])
            })
            .map_err(sql)?;
        if let Some(detail) = detail {
            keys.add(detail, entry.at_ms, Micro::ZERO.minus(entry.change()));
        }
    }
    keys.write(transaction, None).map_err(sql)
}
