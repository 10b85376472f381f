//! Implements the credit service of a process that serves requests. It starts and stops the holds,
//! the journal and the ledger writer.
//!
//! This file must not reserve or settle: `billing/reserve.rs` and `billing/settle.rs` do.

use super::backlog::LedgerBacklog;
use super::data_dir::Billing;
use super::holds::HoldRegistry;
use super::ledger_writer::{LedgerWriter, LedgerWriterDeps};
use base::telemetry::METRICS;
use config::Limits;
use ledger::Ledger;
use ledger::StoreError;
use ledger::indexer::Indexer;
use ledger::instance_lock;
use ledger::instance_lock::InstanceLock;
use ledger::journal;
use ledger::journal::Journal;
use ledger::journal::holds_mirror::HoldsMirror;
use ledger::journal::replay::recover_dead_instances;
use ledger::journal::writer::JournalWriter;
use ledger::sqlite;
use std::path::Path;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Reserves and settles credits from this process's own ledger. Cloning it is cheap.
#[derive(Clone)]
pub struct CreditService {
    pub(super) billing: Billing,
    pub(super) serving: Arc<ServingState>,
}

/// The state of a process that serves requests, in addition to the ledger.
pub(super) struct ServingState {
    pub ledger: Arc<Ledger>,
    /// Lock on the data directory. `None` after the handover.
    pub owner: Mutex<Option<InstanceLock>>,
    pub holds: Arc<HoldRegistry>,
    pub journal: JournalWriter,
    pub writer: LedgerWriter,
    /// `None` in a simulation, where readers alone write the index.
    pub indexer: Option<Indexer>,
    pub open: AtomicI64,
    pub max_open: i64,
    pub max_open_per_account: AtomicU64,
}

type StartIndexer = fn(&Arc<Ledger>, &Path) -> Result<Indexer, StoreError>;

/// Time that a shutdown waits for the journal. A disk that does not answer keeps its thread.
pub(crate) const JOURNAL_CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

impl CreditService {
    /// Opens the service for the gateway, after it has replayed the journals of dead processes.
    /// `archive` is the operator's folder of archived segments.
    ///
    /// # Errors
    /// Returns an error if the ledger or the journal cannot be opened, if a replayed ending cannot
    /// be entered, or if another process serves from `data_dir`.
    pub fn serve(
        data_dir: &Path,
        limits: &Limits,
        archive: Option<&Path>,
    ) -> Result<Self, StoreError> {
        sqlite::create_dir(data_dir)?;
        Self::serve_with(
            (data_dir, archive),
            limits,
            LedgerWriter::start,
            Some(Indexer::start),
            instance_lock::acquire(data_dir)?,
        )
    }

    /// Opens the service like [`CreditService::serve`] for a successor, which waits until the
    /// serving process hands over.
    ///
    /// # Errors
    /// Returns the errors of [`CreditService::serve`], and an error if the predecessor does not
    /// hand over.
    pub fn serve_as_successor(
        data_dir: &Path,
        limits: &Limits,
        archive: Option<&Path>,
    ) -> Result<Self, StoreError> {
        sqlite::create_dir(data_dir)?;
        Self::serve_with(
            (data_dir, archive),
            limits,
            LedgerWriter::start,
            Some(Indexer::start),
            instance_lock::acquire_as_successor(data_dir)?,
        )
    }

    /// Opens the service like [`CreditService::serve`] for simulations, without a ledger writer
    /// thread. The ledger advances only when the caller calls [`CreditService::step`] with the
    /// time.
    ///
    /// # Errors
    /// Returns the errors of [`CreditService::serve`].
    pub fn serve_stepwise(data_dir: &Path, limits: &Limits) -> Result<Self, StoreError> {
        sqlite::create_dir(data_dir)?;
        Self::serve_with(
            (data_dir, None),
            limits,
            LedgerWriter::new_stepwise,
            None,
            instance_lock::acquire(data_dir)?,
        )
    }

    fn serve_with(
        (data_dir, archive): (&Path, Option<&Path>),
        limits: &Limits,
        start: fn(LedgerWriterDeps, usize, LedgerBacklog) -> Result<LedgerWriter, StoreError>,
        start_indexer: Option<StartIndexer>,
        owner: InstanceLock,
    ) -> Result<Self, StoreError> {
        let ledger = Arc::new(Ledger::open(data_dir)?);
        ledger.segments().set_archive(archive);
        // No request is admitted before the costs of withheld endings are held.
        let known = ledger.rows().instance_ids()?;
        let withheld = recover_dead_instances(&ledger, data_dir, &known, Some(&mut |_| ()))?;
        let journal = Journal::create(
            data_dir,
            limits.journal_segment_bytes,
            limits.journal_reserve_bytes,
        )?;
        let journal = Arc::new(journal.with_sync(limits.journal_sync));
        let mut mirror = HoldsMirror::open_or_renew(data_dir)?;
        mirror.retain_instances(&journal::live_instance_ids(data_dir)?)?;
        let holds = Arc::new(HoldRegistry::new(journal.instance_id()));
        holds.set_withheld(&withheld);
        METRICS
            .withheld_endings
            .set(i64::try_from(withheld.len()).unwrap_or(i64::MAX));
        let count = |limit: u64| usize::try_from(limit).unwrap_or(usize::MAX);
        // Every open request ends once, and admission stops at `journal_pending`, so this queue is
        // never full.
        let capacity = count(limits.open_requests.saturating_add(limits.journal_pending));
        let deps = LedgerWriterDeps {
            ledger: Arc::clone(&ledger),
            holds: Arc::clone(&holds),
            journal: Arc::clone(&journal),
            mirror,
            data_dir: data_dir.to_owned(),
        };
        let backlog =
            LedgerBacklog::new(count(limits.journal_pending), limits.ledger_backlog_seconds);
        let writer = start(deps, capacity, backlog)?;
        // A simulation has no threads.
        let journal = match start_indexer {
            Some(_) => {
                ledger.open_readers()?;
                JournalWriter::start(journal)?
            }
            None => JournalWriter::new_inline(journal),
        };
        let indexer = start_indexer
            .map(|start| start(&ledger, data_dir))
            .transpose()?;
        log::info!("opened the ledger in {}", data_dir.display());
        let billing = Billing::new(
            Arc::clone(&ledger),
            data_dir,
            Some(Arc::clone(&holds)),
            None,
        );
        let serving = Arc::new(ServingState {
            ledger,
            owner: Mutex::new(Some(owner)),
            holds,
            journal,
            writer,
            indexer,
            open: AtomicI64::new(0),
            max_open: i64::try_from(limits.open_requests).unwrap_or(i64::MAX),
            max_open_per_account: AtomicU64::new(limits.open_requests_per_account),
        });
        Ok(Self { billing, serving })
    }

    /// Returns the ledger from which this process serves, for pages, operators and upkeep.
    pub fn billing(&self) -> &Billing {
        &self.billing
    }

    /// Runs one step of a ledger writer without a thread. Returns false if no ending was queued.
    ///
    /// # Errors
    /// Returns an error if the ledger rejects the batch.
    pub fn step(&self, now_ms: i64) -> Result<bool, StoreError> {
        self.serving.writer.step(now_ms)
    }

    /// Applies the part of new limits that a serving process can change. The other limits
    /// determined the sizes of queues and files at the start.
    pub fn apply_limits(&self, limits: &Limits) {
        self.serving
            .max_open_per_account
            .store(limits.open_requests_per_account, Ordering::Relaxed);
        self.backlog()
            .set_max_seconds(limits.ledger_backlog_seconds);
    }

    pub fn backlog(&self) -> &LedgerBacklog {
        &self.serving.writer.state.backlog
    }

    /// Returns the instance id, which names this process's journal.
    pub fn instance_id(&self) -> &str {
        self.serving.journal.journal().instance_id()
    }

    /// Lists the instances whose endings the ledger may still lack, this process included.
    ///
    /// # Errors
    /// Returns an error if the journal directory cannot be read.
    pub fn unreplayed_instance_ids(&self) -> Result<Vec<String>, StoreError> {
        journal::instance_ids(self.billing.data_dir())
    }

    /// Updates the gauges that are computed on demand.
    pub fn update_gauges(&self, now_ms: i64) {
        let state = &self.serving.writer.state;
        let oldest = state.oldest_ms.load(Ordering::Relaxed);
        state.backlog.update_gauges();
        METRICS.journal_oldest_seconds.set(if oldest == 0 {
            0
        } else {
            now_ms.saturating_sub(oldest) / 1_000
        });
    }

    /// Returns whether the ledger accepts endings and the journal accepts new requests.
    pub fn is_healthy(&self) -> bool {
        !self.serving.writer.state.failing.load(Ordering::Relaxed)
            && !self.serving.journal.journal().is_degraded()
    }

    /// Enters all settled requests into the ledger, and then stops the ledger writer.
    pub fn shut_down(&self) {
        self.serving.journal.close(JOURNAL_CLOSE_TIMEOUT);
        self.serving.writer.shut_down();
        self.serving.indexer.iter().for_each(Indexer::shut_down);
        self.serving.journal.journal().close();
        if let Err(error) = self
            .forget_own_instance()
            .and_then(|()| self.serving.ledger.checkpoint())
        {
            log::warn!("{error}; nothing is lost, the write-ahead log has every entry");
        }
    }

    /// Deletes this process's applied amounts in the ledger, which are useless once its journal is
    /// gone. If a journal remains, its replay deletes them later.
    fn forget_own_instance(&self) -> Result<(), StoreError> {
        let instance_id = self.instance_id().to_owned();
        if journal::instance_ids(self.billing.data_dir())?.contains(&instance_id) {
            return Ok(());
        }
        self.serving.ledger.rows().forget_instances(&[instance_id])
    }
}
