//! Checks whether reads of the databases end, and lists the counts by which writes are watched.
//!
//! Each file has a thread of its own: a read that hangs holds up the checks of its file alone, so
//! that the error names the right one. This file must not depend on a table.

use crate::billing::Billing;
use accounts::Accounts;
use base::disk_pool::DiskPool;
use ledger::StoreError;
use ledger::sqlite::writer::WriteCount;
use std::time::Duration;

/// Time limit of a read. A process that cannot read counts as stopped a second later, and then the
/// reason is known.
pub(super) const READ_TIMEOUT: Duration = Duration::from_secs(4);

static APP_DB: DiskPool = DiskPool::new("app-db-check", 1);
static LEDGER_DB: DiskPool = DiskPool::new("ledger-check", 1);

/// Reads `app.db` and `ledger.db` past the pages in memory.
///
/// # Errors
/// Returns an error if a file fails or does not answer in time.
pub async fn check_reads(accounts: Accounts, billing: Billing) -> Result<(), StoreError> {
    let app = APP_DB.run_within(READ_TIMEOUT, move || accounts.database().check_reads());
    let ledger = LEDGER_DB.run_within(READ_TIMEOUT, move || billing.ledger().check_reads());
    let (app, ledger) = tokio::join!(app, ledger);
    app.map_err(|error| StoreError::io("read app.db", error.into()))??;
    ledger.map_err(|error| StoreError::io("read ledger.db", error.into()))?
}

/// Returns the counts of writes to `app.db` and `ledger.db`, with the file of each.
pub fn write_counts(accounts: &Accounts, billing: &Billing) -> Vec<(&'static str, WriteCount)> {
    vec![
        ("app.db", accounts.database().write_count()),
        ("ledger.db", billing.ledger().write_count()),
    ]
}
