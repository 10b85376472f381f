//! Makes a data directory the one that may change its data in PostgreSQL.
//!
//! This file must not decide when to do so: `app/standby.rs` does.

use accounts::db::AppDb;
use ledger::Ledger;
use ledger::StoreError;
use ledger::copy::{Copy, make_copy};
use rusqlite::Connection;
use std::path::Path;

pub(crate) fn not_a_copy() -> StoreError {
    StoreError::Unusable("the data directory is not a copy of PostgreSQL".into())
}

/// Brings both files up to date, so that reads return current data.
///
/// # Errors
/// Returns an error if PostgreSQL cannot be reached or lacks data of the files.
pub fn catch_up(ledger: &Ledger, app: &AppDb) -> Result<(), StoreError> {
    let catch_up = |copy: &Copy, connection: &mut Connection| copy.catch_up(connection);
    ledger.with_copy(catch_up).ok_or_else(not_a_copy)??;
    app.with_copy(catch_up).ok_or_else(not_a_copy)?
}

/// Brings both files up to date, takes the lease, and records that this data directory has it.
/// Returns its epoch, or `None` if another data directory has the lease.
///
/// # Errors
/// Returns an error if PostgreSQL cannot be reached or lacks data of the files.
pub fn take(ledger: &Ledger, app: &AppDb) -> Result<Option<i64>, StoreError> {
    catch_up(ledger, app)?;
    let taken = ledger.with_copy(|copy, connection| {
        let (holder, held) = copy.held(connection)?;
        let epoch = copy.home().take_lease(&holder, held)?;
        Ok(epoch.map(|epoch| (holder, epoch)))
    });
    let Some((holder, epoch)) = taken.ok_or_else(not_a_copy)?? else {
        return Ok(None);
    };
    // Fetch the commits of the last holder. From this point on, no other directory commits.
    catch_up(ledger, app)?;
    let record = |copy: &Copy, connection: &mut Connection| {
        copy.set_held(connection, &holder, epoch)?;
        copy.push_first_rows(connection)
    };
    ledger.with_copy(record).ok_or_else(not_a_copy)??;
    app.with_copy(record).ok_or_else(not_a_copy)??;
    Ok(Some(epoch))
}

/// Releases the lease, if the ledger is in PostgreSQL.
///
/// # Errors
/// Returns an error if PostgreSQL cannot be reached; the lease then expires.
pub fn give_back(ledger: &Ledger) -> Result<(), StoreError> {
    let release = |copy: &Copy, connection: &mut Connection| {
        let (_, epoch) = copy.held(connection)?;
        copy.home().release_lease(epoch)
    };
    ledger.with_copy(release).unwrap_or(Ok(()))
}

/// Marks the files in `data_dir` as copies, regardless of their content. The caller must send that
/// to PostgreSQL.
///
/// # Errors
/// Returns an error if one of them cannot be opened or written.
pub fn adopt(data_dir: &Path) -> Result<(), StoreError> {
    let sql = |source| StoreError::sqlite("make the ledger a copy", source);
    let ledger = Ledger::open_for_audit(data_dir)?;
    ledger.with_writer(make_copy).map_err(sql)?;
    AppDb::open_unchecked(data_dir)?
        .with_writer(make_copy)
        .map_err(sql)
}

/// Makes the files in the data directory the home of the data. PostgreSQL gets no further changes.
///
/// # Errors
/// Returns an error if another data directory holds the lease, or if a file cannot be read or
/// written.
pub fn detach(ledger: &Ledger, app: &AppDb) -> Result<(), StoreError> {
    let Some(epoch) = take(ledger, app)? else {
        return Err(StoreError::NotHolder(
            "another data directory holds the ledger: stop its sidecar first".into(),
        ));
    };
    let forget = |_: &Copy, connection: &mut Connection| {
        connection
            .execute("DELETE FROM copy", [])
            .map(drop)
            .map_err(|source| StoreError::sqlite("make a copy the ledger", source))
    };
    let home = ledger
        .with_copy(|copy, _| Ok(copy.home().clone()))
        .ok_or_else(not_a_copy)??;
    app.with_copy(forget).ok_or_else(not_a_copy)??;
    ledger.with_copy(forget).ok_or_else(not_a_copy)??;
    home.release_lease(epoch)
}
