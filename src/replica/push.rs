//! Sends PostgreSQL the data that it lacks. That is all data when an installation moves to
//! PostgreSQL, and the last entries after a lagging standby was promoted.
//!
//! This file must not change an entry.

use super::hold::not_a_copy;
use accounts::db::AppDb;
use ledger::StoreError;
use ledger::copy::Copy;
use ledger::postgres::{Domain, HomeCommit, MAX_PAGE_ENTRIES, Position, PostgresHome};
use ledger::{ChainHead, Ledger, LedgerEntry};
use rusqlite::Connection;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PushReport {
    /// Number of entries.
    pub entries: i64,
    /// Position of the last entry, which is now the same on both sides.
    pub last: i64,
    pub hash: Vec<u8>,
}

/// Sends PostgreSQL the data that it lacks. The lease must be free or belong to this data
/// directory, so that no other directory commits meanwhile.
///
/// # Errors
/// Returns an error if PostgreSQL has other entries, if another data directory holds the lease, or
/// if either side cannot be read or written.
pub fn push(ledger: &Ledger, app: &AppDb) -> Result<PushReport, StoreError> {
    let (home, holder, held) = ledger
        .with_copy(|copy, connection| {
            let (holder, held) = copy.held(connection)?;
            Ok((copy.home().clone(), holder, held))
        })
        .ok_or_else(not_a_copy)??;
    let first = home.holding(Domain::Ledger)?.position;
    let ours = ledger.rows().heads()?.last;
    if first.seq > ours.seq && is_in(&home, &ours)? {
        return Ok(PushReport {
            entries: 0,
            last: first.seq,
            hash: first.hash,
        });
    }
    if first.seq > 0 {
        let ours = ledger.rows().entries_after(first.seq - 1, 1)?;
        if ours
            .first()
            .is_none_or(|entry| entry.seq != first.seq || entry.hash != first.hash)
        {
            return Err(StoreError::Unusable(format!(
                "PostgreSQL has another ledger: its last entry, {}, is not the one of this data directory",
                first.seq
            )));
        }
    }
    let Some(epoch) = home.take_lease(&holder, held)? else {
        return Err(StoreError::NotHolder(
            "another data directory holds the ledger: stop its sidecar first".into(),
        ));
    };
    let mut position = first.clone();
    loop {
        let entries = ledger
            .rows()
            .entries_after(position.seq, MAX_PAGE_ENTRIES)?;
        let Some(last) = entries.last() else { break };
        let after = after(&position, last);
        home.commit(HomeCommit {
            domain: Domain::Ledger,
            epoch,
            before: position,
            after: after.clone(),
            entries,
            accounts: Vec::new(),
            rows: Vec::new(),
        })?;
        position = after;
    }
    let rows = |copy: &Copy, connection: &mut Connection| {
        copy.set_held(connection, &holder, epoch)?;
        copy.push_rows(connection)
    };
    ledger.with_copy(rows).ok_or_else(not_a_copy)??;
    app.with_copy(rows).ok_or_else(not_a_copy)??;
    home.release_lease(epoch)?;
    Ok(PushReport {
        entries: position.seq - first.seq,
        last: position.seq,
        hash: position.hash,
    })
}

/// Returns whether PostgreSQL has the last entry of a copy.
fn is_in(home: &PostgresHome, last: &ChainHead) -> Result<bool, StoreError> {
    if last.seq == 0 {
        return Ok(true);
    }
    let entry = home.entry_at(last.seq)?;
    Ok(entry.is_some_and(|entry| entry.hash == last.hash))
}

fn after(before: &Position, last: &LedgerEntry) -> Position {
    Position {
        seq: last.seq,
        hash: last.hash.clone(),
        version: before.version + 1,
    }
}
