//! Starts the upkeep of a process that keeps the ledger: it completes interrupted sign-ups and
//! merges, and starts the threads that keep the files small.
//!
//! This file must not depend on requests or pages.

use super::database_logs;
use crate::account_merge;
use crate::billing::Billing;
use accounts::Accounts;
use anyhow::Context as _;
use arc_swap::ArcSwap;
use config::Settings;
use std::path::Path;
use std::sync::Arc;

/// Grants the trial credits of sign-ups that a crash interrupted.
pub fn complete_sign_ups(
    accounts: &Accounts,
    billing: &Billing,
    now_ms: i64,
) -> anyhow::Result<()> {
    let completed = accounts::complete_sign_ups(accounts, billing.ledger(), now_ms)?;
    if completed > 0 {
        log::warn!(
            "completed {completed} sign-ups that a crash had interrupted before their trial credits were granted"
        );
    }
    Ok(())
}

/// Completes the merges of accounts that a crash interrupted, in a thread, because one may have to
/// wait for running requests.
pub fn complete_merges(accounts: &Accounts, billing: &Billing) -> anyhow::Result<()> {
    let (accounts, billing) = (accounts.clone(), billing.clone());
    let complete = move || {
        if let Err(error) = account_merge::complete_merges(&accounts, &billing) {
            log::error!("cannot list the merges that have not ended: {error}");
        }
    };
    std::thread::Builder::new()
        .name("merges".into())
        .spawn(complete)
        .map(drop)
        .context("cannot start the thread that completes merges of accounts")
}

/// Starts a thread that empties the databases' logs.
pub fn start_database_logs(data_dir: &Path) -> anyhow::Result<()> {
    database_logs::start(data_dir, database_logs::wait_an_hour)
        .context("cannot start the thread that empties the databases' logs")
}

/// Starts a thread that seals and archives the ledger according to the current settings.
pub fn start(billing: &Billing, settings: &Arc<ArcSwap<Settings>>) -> anyhow::Result<()> {
    let current = Arc::clone(settings);
    billing
        .upkeep()
        .start_upkeep(move || current.load().ledger.clone())
        .context("cannot start the thread that seals the ledger")
}
