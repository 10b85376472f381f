//! The replay of dead processes' journals into the ledger.
//!
//! Replaying twice is harmless: a request ends once. Must not touch the journal of a process that
//! lives.

use super::journal;
use crate::store::StoreError;
use crate::store::ledger::{
    AppendOutcome, Ending, Ledger, LedgerBatch, LedgerChange, LedgerStore, RequestOutcome,
};
use crate::telemetry::METRICS;
use credits::money::CreditSplit;
use std::path::Path;
use std::time::{Duration, Instant};

/// Number of endings in one commit. A replay keeps nobody waiting for single endings, and a larger
/// commit syncs, checkpoints and updates the balance of an account less often.
const BATCH: usize = 4_096;
/// Time between two log lines of a long replay.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);

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
        let ReplayedEndings { new, withheld } = enter_endings(ledger, &endings)?;
        METRICS
            .interrupted
            .with_label_values::<&str>(&[])
            .inc_by(interrupted as u64);
        log::warn!(
            "replayed the journal of instance {}: {} ended requests, {new} of them new to the ledger, {interrupted} interrupted; {unreadable} lines are unreadable",
            orphaned.instance_id,
            endings.len(),
        );
        if withheld > 0 {
            log::error!(
                "the journal of instance {} stays: {withheld} of its requests may be in a segment that is not at hand",
                orphaned.instance_id
            );
            continue;
        }
        orphaned.remove(unreadable)?;
    }
    Ok(())
}

/// What became of the endings of a journal.
#[derive(Debug, Default)]
pub(super) struct ReplayedEndings {
    /// Number of endings that the ledger did not have.
    pub new: usize,
    /// Number of endings that were not entered, because a segment that may have them is not at
    /// hand.
    pub withheld: usize,
}

pub(super) fn enter_endings(
    ledger: &dyn LedgerStore,
    endings: &[Ending],
) -> Result<ReplayedEndings, StoreError> {
    let mut replayed = ReplayedEndings::default();
    let mut logged_at = Instant::now();
    for (index, batch) in endings.chunks(BATCH).enumerate() {
        if logged_at.elapsed() >= PROGRESS_INTERVAL {
            logged_at = Instant::now();
            log::info!(
                "replaying a journal: {} of {} ended requests",
                index * BATCH,
                endings.len()
            );
        }
        let change = |ending| LedgerChange::Ending {
            ending,
            freed: CreditSplit::ZERO,
        };
        let changes: Vec<_> = batch.iter().map(change).collect();
        let outcomes = ledger.append(&LedgerBatch {
            instance_id: "",
            changes: &changes,
        })?;
        let count = |wanted| outcomes.iter().filter(|one| **one == wanted).count();
        replayed.new += count(AppendOutcome::Ended);
        replayed.withheld += count(AppendOutcome::Withheld);
    }
    Ok(replayed)
}
