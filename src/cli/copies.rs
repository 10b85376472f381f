//! Updates the local copies of a ledger in PostgreSQL for commands.
//!
//! This file must not decide who holds the ledger.

use super::home::open_home;
use crate::replica::catch_up_with_postgres;
use config::CommandSettings;

/// Brings the copies up to date before a command reads them. A failure is reported on stderr, and
/// the command continues.
///
/// # Errors
/// Returns the faults of the section `ledger`, if it has any.
pub fn catch_up(settings: &CommandSettings) -> anyhow::Result<()> {
    let Some(home) = open_home(settings)? else {
        return Ok(());
    };
    if let Err(error) = catch_up_with_postgres(&settings.data_dir, home) {
        eprintln!("model-gateway: warning: what this data directory has may be old: {error}");
    }
    Ok(())
}
