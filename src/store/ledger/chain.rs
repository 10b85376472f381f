//! The chain of entries: each one contains the hash of the one before it, so that no entry can be
//! changed, removed or put in between without notice.
//!
//! Must not decide an amount. A caller that appends does so in a write transaction.

use super::entry::{ENTRY_COLUMNS, LedgerEntry};
use credits::money::{CreditSplit, Micro};
use rusqlite::{Connection, OptionalExtension, Transaction, params};
use sha2::{Digest, Sha256};

/// Returns an entry's hash, over the previous entry's hash and all fields of the entry.
pub fn entry_hash(entry: &LedgerEntry) -> Vec<u8> {
    let mut hash = Sha256::new();
    hash.update(&entry.prev);
    let numbers = [
        entry.d_paid,
        entry.d_trial,
        entry.bal_paid,
        entry.bal_trial,
        entry.writeoff,
    ]
    .map(Micro::get);
    let LedgerEntry {
        seq,
        kind,
        reference,
        account,
        at_ms,
        detail,
        ..
    } = entry;
    hash.update(format!(
        "{seq}\x1f{kind}\x1f{reference}\x1f{account}\x1f{at_ms}\x1f{numbers:?}\x1f{detail}"
    ));
    hash.finalize().to_vec()
}

/// Chains `entry` to the last one, stores it, and sets the account's balance to the one in the
/// entry.
pub(super) fn append(
    transaction: &Transaction<'_>,
    mut entry: LedgerEntry,
) -> rusqlite::Result<()> {
    let (seq, hash) = last_entry(transaction)?;
    (entry.seq, entry.prev) = (seq + 1, hash);
    entry.hash = entry_hash(&entry);
    insert(transaction, &entry, "")?;
    set_balance(
        transaction,
        &entry.account,
        CreditSplit {
            paid: entry.bal_paid,
            trial: entry.bal_trial,
        },
    )
}

pub(super) fn last_entry(connection: &Connection) -> rusqlite::Result<(i64, Vec<u8>)> {
    let last = connection
        .prepare_cached("SELECT seq, hash FROM entry ORDER BY seq DESC LIMIT 1")?
        .query_row([], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    Ok(last.unwrap_or((0, vec![0; 32])))
}

pub(super) fn insert(
    transaction: &Transaction<'_>,
    entry: &LedgerEntry,
    otherwise: &str,
) -> rusqlite::Result<bool> {
    let sql = format!(
        "INSERT INTO entry ({ENTRY_COLUMNS}) VALUES (?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13){otherwise}"
    );
    let inserted = transaction.prepare_cached(&sql)?.execute(params![
        entry.seq,
        entry.kind,
        entry.reference,
        entry.account,
        entry.at_ms,
        entry.d_paid,
        entry.d_trial,
        entry.bal_paid,
        entry.bal_trial,
        entry.writeoff,
        entry.detail,
        entry.prev,
        entry.hash,
    ])?;
    Ok(inserted > 0)
}

pub(super) fn set_balance(
    transaction: &Transaction<'_>,
    account: &str,
    parts: CreditSplit,
) -> rusqlite::Result<()> {
    let sql = "UPDATE account SET paid = ?2, trial = ?3 WHERE id = ?1";
    transaction
        .prepare_cached(sql)?
        .execute(params![account, parts.paid, parts.trial])?;
    Ok(())
}
