//! Implements `model-gateway ledger reindex`, which is also a part of `ledger verify`.
//!
//! This file must not change an entry or a balance.

use super::account::command_line_actor;
use super::home::open_home;
use super::progress::{ProgressDisplay, ProgressReporter};
use crate::billing::Billing;
use accounts::Accounts;
use base::clock;
use config::CommandSettings;
use serde_json::json;
use std::io::Write;

/// Name of a rebuild in the audit log, when it is a command of its own. The next constant is its
/// name as a part of `verify`.
pub const REINDEX_ACT: &str = "ledger.reindex";
pub const REBUILD_ACT: &str = "ledger.rebuild-aggregates";

/// Rebuilds the index and the cached totals from the ledger's entries. Returns the number of wrong
/// rows.
///
/// # Errors
/// Returns an error if the ledger or its index cannot be read or written.
pub fn reindex(
    billing: &Billing,
    settings: &CommandSettings,
    act: &'static str,
    progress: ProgressDisplay,
) -> anyhow::Result<usize> {
    let (by, now_ms) = (command_line_actor(), clock::now_ms());
    let accounts = Accounts::open_with_home(&settings.data_dir, open_home(settings)?)?;
    let mut progress = ProgressReporter::new(progress);
    let mut show = |count: u64| progress.update(|| format!("indexed {count} entries"));
    let rebuild = || billing.upkeep().reindex(&mut show);
    let acting = accounts.with_actor(&by, now_ms);
    Ok(acting.record_then_run(act, "ledger", &json!({}), rebuild)?)
}

/// Prints the result of a rebuild.
///
/// # Errors
/// Returns an error if `out` cannot be written.
pub fn print_reindex(wrong: usize, json: bool, out: &mut impl Write) -> anyhow::Result<()> {
    if json {
        writeln!(out, "{}", json!({"wrong": wrong}))?;
    } else {
        writeln!(
            out,
            "rebuilt the index and the cached totals; {wrong} rows were wrong"
        )?;
    }
    Ok(())
}
