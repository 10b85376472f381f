//! Appends entries to the chain, and changes the balances of accounts with them.
//!
//! This file must not decide an amount. A caller must append in a write transaction.

use crate::entry::chain::{ChainHead, entry_hash};
use crate::entry::compact_detail::compact;
use crate::entry::{ENTRY_COLUMNS, LedgerEntry};
use credits::money::{CreditSplit, Micro};
use rusqlite::{Connection, OptionalExtension, Transaction, params};
use std::borrow::Cow;

/// Chains `entry` to the last one, stores it, and sets the account's balance to the balance in the
/// entry.
pub(crate) fn append(
    transaction: &Transaction<'_>,
    mut entry: LedgerEntry,
) -> rusqlite::Result<()> {
    let last = chain_head(transaction)?;
    (entry.seq, entry.prev) = (last.seq + 1, last.hash);
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

pub(crate) fn chain_head(connection: &Connection) -> rusqlite::Result<ChainHead> {
    let last = connection
        .prepare_cached("SELECT seq, hash FROM entry ORDER BY seq DESC LIMIT 1")?
        .query_row([], |row| {
            Ok(ChainHead {
                seq: row.get(0)?,
                hash: row.get(1)?,
            })
        })
        .optional()?;
    Ok(last.unwrap_or_else(ChainHead::genesis))
}

/// Inserts a chained entry. `otherwise` ends the statement. Returns false if it left the entry out.
pub(crate) fn insert(
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
        stored_detail(entry),
        entry.prev,
        entry.hash,
    ])?;
    Ok(inserted > 0)
}

/// Returns the stored form of a detail. Details of endings are compacted, and those of the few
/// other entries are not.
fn stored_detail(entry: &LedgerEntry) -> Cow<'_, str> {
    if entry.is_ending() {
        compact(&entry.detail)
    } else {
        Cow::Borrowed(&entry.detail)
    }
}

pub(crate) fn set_balance(
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

pub(crate) fn balances(
    transaction: &Transaction<'_>,
    account: &str,
) -> rusqlite::Result<(Micro, Micro)> {
    transaction
        .prepare_cached("SELECT paid, trial FROM account WHERE id = ?1")?
        .query_row([account], |row| Ok((row.get(0)?, row.get(1)?)))
}
