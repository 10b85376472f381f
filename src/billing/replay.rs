//! The replay of dead processes' journals into the ledger.
//!
//! Replaying twice is harmless: a request ends once. Must not touch the journal of a process that
//! lives.

use super::journal;
use crate::store::StoreError;
use crate::store::ledger::{Ending, EnteredEndings, Ledger, RequestOutcome};
use crate::telemetry::METRICS;
use credits::money::CreditSplit;
use std::path::Path;

/// Number of endings in one commit. A replay keeps nobody waiting for single endings, and a larger
/// commit syncs, checkpoints and updates the balance of an account less often.
const BATCH: usize = 4_096;

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
        let EnteredEndings { new, withheld } = enter_endings(ledger, &endings)?;
        METRICS
            .interrupted
            .with_label_values::<&str>(&[])
            .inc_by(interrupted as u64);
        log::warn!(
            "replayed the journal of instance {}: {} ended requests, {new} of them new to the ledger, {interrupted} interrupted; {unreadable} lines are unreadable",
            orphaned.instance_id,
            endings.len(),
        );
        if !withheld.is_empty() {
            log::error!(
                "the journal of instance {} stays: {} of its requests may be in a segment that is not at hand",
                orphaned.instance_id,
                withheld.len()
            );
            continue;
        }
        orphaned.remove(unreadable)?;
    }
    Ok(())
}

pub(super) fn enter_endings(
    ledger: &Ledger,
    endings: &[Ending],
) -> Result<EnteredEndings, StoreError> {
    let mut entered = EnteredEndings::default();
    for (number, batch) in endings.chunks(BATCH).enumerate() {
        let batch: Vec<_> = batch
            .iter()
            .map(|ending| (ending, CreditSplit::ZERO))
            .collect();
        let EnteredEndings { new, withheld } = ledger.enter_or_withhold(&batch, "")?;
        entered.new += new;
        let first = number * BATCH;
        entered
            .withheld
            .extend(withheld.iter().map(|index| first + index));
    }
    Ok(entered)
}
