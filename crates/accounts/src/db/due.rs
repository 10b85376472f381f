//! Takes rows whose time has come, so that no other process takes them too.
//!
//! This file must not know what the rows are.

use super::database::AppDb;
use super::rows::first_column;
use ledger::StoreError;
use rusqlite::{Params, Row};

/// Runs the statement `take`, which returns the rows that it takes, if any row of `due` is due:
/// looking for one needs no transaction. `due` names a table and a condition on the time `?1`.
///
/// # Errors
/// Returns an error if the database fails.
pub(super) fn take_due<T>(
    db: &AppDb,
    operation: &'static str,
    (due, now_ms): (&str, i64),
    take: &str,
    parameters: impl Params + Copy,
    row: fn(&Row<'_>) -> rusqlite::Result<T>,
) -> Result<Vec<T>, StoreError> {
    let is_due: bool = db.read(operation, |connection| {
        connection
            .prepare_cached(&format!("SELECT EXISTS(SELECT 1 FROM {due})"))?
            .query_row([now_ms], first_column)
    })?;
    if !is_due {
        return Ok(Vec::new());
    }
    db.write(operation, |transaction| {
        transaction
            .prepare_cached(take)?
            .query_map(parameters, row)?
            .collect()
    })
}
