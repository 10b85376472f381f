//! Replays dead processes' journals into the ledger.
//!
//! A second replay has no effect, because a request ends only once. This file must not touch the
//! journal of a process that lives.

use crate::StoreError;
use crate::journal;
use crate::{AppendOutcome, Ending, Ledger, LedgerBatch, LedgerChange, RequestOutcome};
use base::telemetry::METRICS;
use credits::money::CreditSplit;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Number of endings in one commit. No request waits for a replay, and a larger commit syncs,
/// checkpoints and updates the balance of an account less often.
const BATCH: usize = 4_096;
/// Time between two log lines of a long replay.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);

/// The cost of an ended request that the ledger cannot enter yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WithheldCost {
    pub account: Arc<str>,
    /// The ids of the key and of its member.
    pub spenders: Vec<Arc<str>>,
    pub cost: CreditSplit,
}

impl From<&Ending> for WithheldCost {
    fn from(ending: &Ending) -> Self {
        Self {
            account: ending.account.as_str().into(),
            spenders: ending.detail.spenders().map(Arc::from).collect(),
            cost: CreditSplit {
                paid: ending.paid,
                trial: ending.trial,
            },
        }
    }
}

/// Holds these costs, and releases the costs that it held before.
pub type HoldCosts<'a> = dyn FnMut(&[WithheldCost]) + 'a;

/// Enters the journals of dead processes into the ledger, and then deletes the claims of the
/// processes in `known` that have ended. Returns the costs of the endings that remain in their
/// journals.
///
/// A process that admits requests passes `hold`, which holds these costs from then on: the claims
/// of their processes are deleted too, so that none is held twice.
pub fn recover_dead_instances(
    ledger: &Ledger,
    data_dir: &Path,
    known: &[String],
    hold: Option<&mut HoldCosts<'_>>,
) -> Result<Vec<WithheldCost>, StoreError> {
    let (withheld, mut ended) = replay_orphaned_journals(ledger, data_dir)?;
    match hold {
        Some(hold) => hold(&withheld),
        None => ended.clear(),
    }
    // An instance that has a journal is alive or not yet replayed. Read this list after `known`.
    let with_journal = journal::instance_ids(data_dir)?;
    let gone = known
        .iter()
        .filter(|instance_id| !with_journal.contains(instance_id));
    ended.extend(gone.cloned());
    if !ended.is_empty() {
        ledger.rows().forget_instances(&ended)?;
    }
    Ok(withheld)
}

/// Enters the journals of dead processes into the ledger. Returns the costs of the endings that
/// remain in their journals, and the instances of these journals.
fn replay_orphaned_journals(
    ledger: &Ledger,
    data_dir: &Path,
) -> Result<(Vec<WithheldCost>, Vec<String>), StoreError> {
    let (mut all_withheld, mut instance_ids) = (Vec::new(), Vec::new());
    for orphaned in journal::claim_orphaned(data_dir)? {
        orphaned.remove_reserve();
        let (endings, unreadable) = orphaned.endings()?;
        let interrupted = endings
            .iter()
            .filter(|ending| ending.detail.outcome == RequestOutcome::Interrupted)
            .count();
        let ReplayedEndings { new, withheld } = enter_endings(ledger, &endings)?;
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
            all_withheld.extend(withheld);
            instance_ids.push(orphaned.instance_id.clone());
            continue;
        }
        // Count the damage once, because a remaining journal is read again.
        METRICS
            .interrupted
            .with_label_values::<&str>(&[])
            .inc_by(interrupted as u64);
        orphaned.remove(unreadable)?;
    }
    Ok((all_withheld, instance_ids))
}

/// The result of replaying a journal's endings.
#[derive(Debug, Default)]
pub struct ReplayedEndings {
    /// Number of endings that the ledger did not have.
    pub new: usize,
    /// Costs of the endings that were not entered because a segment is missing that may contain
    /// them.
    pub withheld: Vec<WithheldCost>,
}

pub fn enter_endings(ledger: &Ledger, endings: &[Ending]) -> Result<ReplayedEndings, StoreError> {
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
        let outcomes = ledger.changes().append(&LedgerBatch {
            instance_id: "",
            changes: &changes,
        })?;
        for (ending, outcome) in batch.iter().zip(outcomes) {
            match outcome {
                AppendOutcome::Ended => replayed.new += 1,
                AppendOutcome::Withheld => replayed.withheld.push(ending.into()),
                _ => {}
            }
        }
    }
    Ok(replayed)
}
