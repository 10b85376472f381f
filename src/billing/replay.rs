//! The replay of dead processes' journals into the ledger.
//!
//! Replaying twice is harmless: a request ends once. Must not touch the journal of a process that
//! lives.

use super::journal;
use crate::store::StoreError;
use crate::store::ledger::{Ending, Ledger, RequestOutcome};
use crate::telemetry::METRICS;
use credits::money::CreditSplit;
use std::path::Path;

/// Enters the journals of dead processes into the ledger, then deletes the claims of those in
/// `known` that are gone.
pub(super) fn recover_dead_instances(
    ledger: &Ledger,
    data_dir: &Path,
    known: &[String],
) -> Result<(), StoreError> {
    replay_orphaned_journals(ledger, data_dir)?;
    // An instance that has a journal is alive or not yet replayed. Read this list after `known`.
    let with_journal = journal::instance_ids(data_dir)?;
    let ended: Vec<_> = known
        .iter()
        .filter(|instance_id| !with_journal.contains(instance_id))
        .cloned()
        .collect();
    if ended.is_empty() {
        Ok(())
    } else {
        ledger.forget_instances(&ended)
    }
}

/// Enters the journals of dead processes into the ledger.
fn replay_orphaned_journals(ledger: &Ledger, data_dir: &Path) -> Result<(), StoreError> {
    for orphaned in journal::claim_orphaned(data_dir)? {
        orphaned.remove_reserve();
        let (endings, unreadable) = orphaned.endings()?;
        let interrupted = endings
            .iter()
            .filter(|ending| ending.detail.outcome == RequestOutcome::Interrupted)
            .count();
        let new = enter_endings(ledger, &endings)?;
        METRICS
            .interrupted
            .with_label_values::<&str>(&[])
            .inc_by(interrupted as u64);
        log::warn!(
            "replayed the journal of instance {}: {} ended requests, {new} of them new to the ledger, {interrupted} interrupted; {unreadable} lines are unreadable",
            orphaned.instance_id,
            endings.len(),
        );
        orphaned.remove(unreadable)?;
    }
    Ok(())
}

pub(super) fn enter_endings(ledger: &Ledger, endings: &[Ending]) -> Result<usize, StoreError> {
    let mut new = 0;
    for batch in endings.chunks(512) {
        let batch: Vec<_> = batch
            .iter()
            .map(|ending| (ending, CreditSplit::ZERO))
            .collect();
        new += ledger.enter_endings(&batch, "")?;
    }
    Ok(new)
}
