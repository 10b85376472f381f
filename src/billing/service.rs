//! The billing service of one process: its ledger and, if it serves requests, its holds, journal
//! and ledger writer; start and shutdown.
//!
//! Must not reserve or settle: that is `billing/reserve.rs` and `billing/settle.rs`.

use super::backlog::LedgerBacklog;
use super::holds::HoldRegistry;
use super::ledger_writer::{LedgerWriter, LedgerWriterDeps};
use super::shared_balances::SharedBalances;
use crate::replica;
use base::telemetry::METRICS;
use config::Limits;
use config::catalog::CatalogModel;
use ledger::Ledger;
use ledger::StoreError;
use ledger::indexer::Indexer;
use ledger::instance_lock;
use ledger::instance_lock::InstanceLock;
use ledger::journal;
use ledger::journal::Journal;
use ledger::journal::holds_mirror::HoldsMirror;
use ledger::journal::replay::{enter_endings, recover_dead_instances};
use ledger::postgres::PostgresHome;
use ledger::sqlite;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// The billing service; cheap to clone.
#[derive(Clone)]
pub struct Billing(pub(super) Arc<BillingInner>);

pub(super) struct BillingInner {
    pub ledger: Arc<Ledger>,
    pub data_dir: PathBuf,
    pub serving: Option<Arc<ServingState>>,
    /// The store that several edges share, if that store decides who may spend what.
    pub shared: Option<Arc<dyn SharedBalances>>,
}

/// The part of the service that only a process that serves requests has.
pub(super) struct ServingState {
    pub ledger: Arc<Ledger>,
    /// Lock on the data directory; `None` after the hand-over.
    pub owner: Mutex<Option<InstanceLock>>,
    pub holds: Arc<HoldRegistry>,
    pub journal: Arc<Journal>,
    pub writer: LedgerWriter,
    /// `None` in a simulation, where readers alone write the index.
    pub indexer: Option<Indexer>,
    pub open: AtomicI64,
    pub max_open: i64,
    pub max_open_per_account: AtomicU64,
}

type StartIndexer = fn(&Arc<Ledger>, &Path) -> Result<Indexer, StoreError>;

impl Billing {
    /// Opens the service for commands, which read and post while a gateway may be serving from the
    /// same directory.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be opened.
    pub fn open(data_dir: &Path) -> Result<Self, StoreError> {
        Self::open_with_store(data_dir, None, None)
    }

    /// Like [`Billing::open`], and with the address of the shared store if one decides who may
    /// spend what. With `home`, the ledger is a copy of what is there.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be opened.
    pub fn open_with_store(
        data_dir: &Path,
        shared: Option<Arc<dyn SharedBalances>>,
        home: Option<&PostgresHome>,
    ) -> Result<Self, StoreError> {
        let ledger = Arc::new(Ledger::open_with_home(data_dir, home)?);
        Ok(Self(Arc::new(BillingInner {
            ledger,
            data_dir: data_dir.to_owned(),
            serving: None,
            shared,
        })))
    }

    /// Like [`Billing::open_with_store`], but accepts any ledger. For commands that only read.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be opened.
    pub fn open_for_audit(
        data_dir: &Path,
        shared: Option<Arc<dyn SharedBalances>>,
    ) -> Result<Self, StoreError> {
        let ledger = Arc::new(Ledger::open_for_audit(data_dir)?);
        Ok(Self(Arc::new(BillingInner {
            ledger,
            data_dir: data_dir.to_owned(),
            serving: None,
            shared,
        })))
    }

    /// The epoch in which this data directory holds the ledger in PostgreSQL; `None` if the ledger
    /// is not there.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn held_epoch(&self) -> Result<Option<i64>, StoreError> {
        let held = self
            .0
            .ledger
            .with_copy(|copy, connection| Ok(copy.held(connection)?.1));
        held.transpose()
    }

    /// Gives the lease of the ledger in PostgreSQL back, so that a standby need not wait.
    pub fn give_lease_back(&self) {
        if let Err(error) = replica::give_back(&self.0.ledger) {
            log::warn!("{error}; a standby waits until the lease runs out");
        }
    }

    /// Accepts the ledger in `data_dir` as it is, after a restore.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be opened.
    pub fn accept_ledger(data_dir: &Path) -> Result<(), StoreError> {
        sqlite::create_dir(data_dir)?;
        Ledger::accept(data_dir)
    }

    /// Opens the service for the gateway: replays the journals of dead processes, then serves.
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

    /// Like [`Billing::serve`], for the successor of a process that serves: waits until that
    /// process hands over.
    ///
    /// # Errors
    /// Returns the errors of [`Billing::serve`], and an error if the predecessor does not hand
    /// over.
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

    /// Like [`Billing::serve`], but without a ledger writer thread: the ledger advances only when
    /// the caller calls [`Billing::step`], and the caller supplies the time. For simulations.
    ///
    /// # Errors
    /// Returns the errors of [`Billing::serve`].
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
        // Nothing is admitted before they are held.
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
        // Every open request ends once, and admission stops at `journal_pending`; so this queue is
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
        let indexer = start_indexer
            .map(|start| start(&ledger, data_dir))
            .transpose()?;
        log::info!("opened the ledger in {}", data_dir.display());
        let serving = Arc::new(ServingState {
            ledger: Arc::clone(&ledger),
            owner: Mutex::new(Some(owner)),
            holds,
            journal,
            writer,
            indexer,
            open: AtomicI64::new(0),
            max_open: i64::try_from(limits.open_requests).unwrap_or(i64::MAX),
            max_open_per_account: AtomicU64::new(limits.open_requests_per_account),
        });
        Ok(Self(Arc::new(BillingInner {
            ledger,
            data_dir: data_dir.to_owned(),
            serving: Some(serving),
            shared: None,
        })))
    }

    /// Runs one step of a ledger writer without a thread. Returns false if no ending was queued.
    ///
    /// # Errors
    /// Returns an error if the ledger rejects the batch.
    pub fn step(&self, now_ms: i64) -> Result<bool, StoreError> {
        self.0
            .serving
            .as_ref()
            .map_or(Ok(false), |serving| serving.writer.step(now_ms))
    }

    /// Stores the prices of `models` durably, before the first request that uses them.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be written.
    pub fn store_prices(
        &self,
        models: &[Arc<CatalogModel>],
        now_ms: i64,
    ) -> Result<(), StoreError> {
        models
            .iter()
            .try_for_each(|model| self.0.ledger.rows().store_price(&model.price, now_ms))
    }

    /// Applies the part of new limits that a serving process can change: the rest sized its queues
    /// and files at start.
    pub fn apply_limits(&self, limits: &Limits) {
        if let Some(serving) = &self.0.serving {
            serving
                .max_open_per_account
                .store(limits.open_requests_per_account, Ordering::Relaxed);
            let backlog = &serving.writer.state.backlog;
            backlog.set_max_seconds(limits.ledger_backlog_seconds);
        }
    }

    /// The ended requests that wait for the ledger; `None` in a process that does not serve.
    pub fn backlog(&self) -> Option<&LedgerBacklog> {
        let serving = self.0.serving.as_ref()?;
        Some(&serving.writer.state.backlog)
    }

    /// The instance id, which names this process's journal; empty in a process that does not serve.
    pub fn instance_id(&self) -> &str {
        self.0
            .serving
            .as_ref()
            .map_or("", |serving| serving.journal.instance_id())
    }

    /// Lists the instances whose endings the ledger may still lack, this process included.
    ///
    /// # Errors
    /// Returns an error if the journal directory cannot be read.
    pub fn unreplayed_instance_ids(&self) -> Result<Vec<String>, StoreError> {
        journal::instance_ids(&self.0.data_dir)
    }

    /// Enters the endings of a dead process's journal directory. Returns (number of new endings,
    /// number of unreadable lines).
    ///
    /// # Errors
    /// Returns an error if the directory cannot be read or the ledger cannot be written.
    pub fn replay_journal(&self, dir: &Path) -> Result<(usize, usize), StoreError> {
        // Keep the claim until everything is entered: in a running process's journal, an open
        // request has not ended.
        let orphaned = journal::claim_journal(dir)?;
        let (endings, unreadable) = orphaned.endings()?;
        let replayed = enter_endings(&*self.0.ledger, &endings)?;
        if !replayed.withheld.is_empty() {
            return Err(StoreError::SegmentUnavailable(format!(
                "{} requests of the journal may be in a segment that is not at hand: `ledger segments` names it; put it back and repeat",
                replayed.withheld.len()
            )));
        }
        Ok((replayed.new, unreadable))
    }

    /// Updates the gauges that are computed on demand.
    pub fn update_gauges(&self, now_ms: i64) {
        let Some(serving) = &self.0.serving else {
            return;
        };
        let state = &serving.writer.state;
        let oldest = state.oldest_ms.load(Ordering::Relaxed);
        state.backlog.update_gauges();
        METRICS.journal_oldest_seconds.set(if oldest == 0 {
            0
        } else {
            now_ms.saturating_sub(oldest) / 1_000
        });
    }

    /// Whether the ledger accepts endings and the journal accepts new requests.
    pub fn is_healthy(&self) -> bool {
        self.0.serving.as_ref().is_some_and(|serving| {
            !serving.writer.state.failing.load(Ordering::Relaxed) && !serving.journal.is_degraded()
        })
    }

    /// Enters everything settled into the ledger, then stops the ledger writer.
    pub fn shut_down(&self) {
        if let Some(serving) = &self.0.serving {
            serving.writer.shut_down();
            serving.indexer.iter().for_each(Indexer::shut_down);
            serving.journal.close();
            if let Err(error) = self
                .forget_own_instance(serving)
                .and_then(|()| self.0.ledger.checkpoint())
            {
                log::warn!("{error}; nothing is lost, the write-ahead log has every entry");
            }
        }
    }

    /// Deletes what the ledger stores as applied for this process, which is useless once its
    /// journal is gone. If a journal remains, its replay deletes it later.
    fn forget_own_instance(&self, serving: &ServingState) -> Result<(), StoreError> {
        let instance_id = serving.journal.instance_id().to_owned();
        if journal::instance_ids(&self.0.data_dir)?.contains(&instance_id) {
            return Ok(());
        }
        self.0.ledger.rows().forget_instances(&[instance_id])
    }
}
