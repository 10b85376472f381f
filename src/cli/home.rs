//! Opens a command's connection to PostgreSQL, if the ledger is there.
//!
//! This file must not be used by `run`, `edge` and `sidecar`, which open their own connections.

use config::CommandSettings;
use ledger::StoreError;
use ledger::postgres::{PostgresHome, PostgresSettings};
use std::sync::OnceLock;

/// Connection of this process. One suffices, because a command has one config file.
static HOME: OnceLock<PostgresHome> = OnceLock::new();

/// # Errors
/// Returns the faults of the section `ledger`, if it has any, and an error if no thread can be
/// started.
pub(super) fn open_home(
    settings: &CommandSettings,
) -> Result<Option<&'static PostgresHome>, StoreError> {
    let postgres = settings
        .postgres()
        .map_err(|faults| StoreError::Unusable(faults.to_string()))?;
    let Some(postgres) = postgres else {
        return Ok(None);
    };
    if HOME.get().is_none() {
        let home = PostgresHome::new(PostgresSettings {
            url: postgres.url.reveal().to_owned(),
            require_standby: postgres.require_standby,
            // A command never serves requests, so it has no address.
            address: String::new(),
        })?;
        let _ = HOME.set(home);
    }
    Ok(HOME.get())
}
