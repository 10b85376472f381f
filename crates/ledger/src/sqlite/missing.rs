//! Checks whether `ledger.db` or `app.db` is missing while the other one still has accounts.
//!
//! Neither can replace the other's data, and without this check a start would create an empty file
//! in place of the missing one. An empty file counts as missing. This file must not write.

use crate::StoreError;
use crate::sqlite;
use rusqlite::Connection;
use std::collections::HashSet;
use std::path::Path;

const LEDGER: &str = "ledger.db";
const APP: &str = "app.db";
const ANCHOR: &str = "ledger.anchor";
/// Maximum number of accounts that the message names.
const MAX_LOST: usize = 100;
const OPERATION: &str = "look for accounts";

/// Returns the reason why no ledger may be opened in `dir`: `ledger.db` is missing, and `app.db`
/// has accounts.
///
/// # Errors
/// Returns an error if `app.db` cannot be read.
pub fn ledger(dir: &Path) -> Result<Option<String>, StoreError> {
    let is_missing = !is_nonempty(dir, LEDGER) && has_accounts(dir, APP)?;
    let dir = dir.display();
    Ok(is_missing.then(|| {
        format!(
            "{dir}/{LEDGER} is missing, and {APP} has accounts: restore {LEDGER} (with {ANCHOR}) from the latest backup, and keep {dir}/journal; if that backup is older, start once with --accept-older-ledger"
        )
    }))
}

/// Returns the reason why no accounts may be opened in `dir`: `app.db` has no accounts (it is
/// missing or newly created), and `ledger.db` has entries.
///
/// # Errors
/// Returns an error if one of the databases cannot be read.
pub fn app(dir: &Path) -> Result<Option<String>, StoreError> {
    let is_missing = has_rows(dir, LEDGER, "entry")? && !has_accounts(dir, APP)?;
    let what = if is_nonempty(dir, APP) {
        "has no account"
    } else {
        "is missing"
    };
    let dir = dir.display();
    Ok(is_missing.then(|| {
        format!(
            "{dir}/{APP} {what}, and {LEDGER} has entries: restore {APP} from the latest backup, with the gateway stopped and {APP}-wal and {APP}-shm removed; keys and accounts newer than that backup are lost, credits are not"
        )
    }))
}

/// Returns at most 100 accounts of `ledger.db` that `app.db` lacks, sorted. If there are any,
/// `app.db` is an older copy, because a sign-up writes `app.db` first.
///
/// # Errors
/// Returns an error if one of the databases cannot be read.
pub fn accounts(dir: &Path) -> Result<Vec<String>, StoreError> {
    let ids = |name: &str| -> Result<Vec<String>, StoreError> {
        let Some(connection) = open_with(dir, name, "account")? else {
            return Ok(Vec::new());
        };
        let read = || -> rusqlite::Result<_> {
            connection
                .prepare("SELECT id FROM account")?
                .query_map([], |row| row.get(0))?
                .collect()
        };
        read().map_err(|source| sqlite::explain(&dir.join(name), OPERATION, source))
    };
    let ledger = ids(LEDGER)?;
    let known: HashSet<String> = ids(APP)?.into_iter().collect();
    let mut lost: Vec<_> = ledger
        .into_iter()
        .filter(|id| !known.contains(id))
        .collect();
    lost.sort();
    lost.truncate(MAX_LOST);
    Ok(lost)
}

/// Returns whether the database's file exists and is not empty.
fn is_nonempty(dir: &Path, name: &str) -> bool {
    std::fs::metadata(dir.join(name)).is_ok_and(|metadata| metadata.len() > 0)
}

fn has_accounts(dir: &Path, name: &str) -> Result<bool, StoreError> {
    has_rows(dir, name, "account")
}

fn has_rows(dir: &Path, name: &str, table: &str) -> Result<bool, StoreError> {
    let Some(connection) = open_with(dir, name, table)? else {
        return Ok(false);
    };
    connection
        .query_row(
            &format!("SELECT EXISTS (SELECT 1 FROM {table})"),
            [],
            |row| row.get(0),
        )
        .map_err(|source| sqlite::explain(&dir.join(name), OPERATION, source))
}

/// Opens the database `name` in `dir` without changing it. Returns `None` without the table.
///
/// # Errors
/// Returns an error if the file cannot be read.
pub fn open_with(dir: &Path, name: &str, table: &str) -> Result<Option<Connection>, StoreError> {
    if !is_nonempty(dir, name) {
        return Ok(None);
    }
    let connection = sqlite::open_reader(&dir.join(name), OPERATION)?;
    let has_table = connection
        .prepare("SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?1")
        .and_then(|mut statement| statement.exists([table]))
        .map_err(|source| sqlite::explain(&dir.join(name), OPERATION, source))?;
    Ok(has_table.then_some(connection))
}
