//! Implements the billing backend of an edge with a shared store. It reserves credits in the store,
//! and reports usage to the store.
//!
//! The order of steps is the same as in a single process: reserve a hold before calling the vendor;
//! journal the ending in this edge's journal before the client gets the last byte.
//! `shared_credit/outbox.rs` then sends the ending to the shared store, and keeps it in the journal
//! until the ledger has it. Without the store the edge admits no new requests and finishes the
//! running ones. Callers pass times of this machine's clock, which are converted to the store's
//! clock. This file must not depend on HTTP. Read next: `shared_credit/reserve.rs` (admission),
//! `shared_credit/settle.rs` (the end of a request).

use super::outbox::OutboxRelay;
use crate::billing::backlog::LedgerBacklog;
use crate::billing::{Balance, CreditSnapshot, JOURNAL_CLOSE_TIMEOUT};
use crate::shared_credit::redis::{SharedStore, StoreAccount};
use config::Limits;
use config::catalog::CatalogModel;
use credits::money::CreditSplit;
use ledger::LedgerAccount;
use ledger::StoreError;
use ledger::instance_lock;
use ledger::instance_lock::InstanceLock;
use ledger::journal::Journal;
use ledger::journal::writer::JournalWriter;
use ledger::sqlite;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Interval of checks whether an account unknown to the store has been seeded.
pub(super) const SEED_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Billing against a shared store. Cloning it is cheap.
#[derive(Clone)]
pub struct SharedBilling(pub(super) Arc<SharedBillingInner>);

pub(super) struct SharedBillingInner {
    pub(super) store: SharedStore,
    pub(super) journal: JournalWriter,
    pub(super) relay: OutboxRelay,
    pub(super) data_dir: PathBuf,
    pub(super) open: AtomicI64,
    pub(super) max_open: i64,
    pub(super) max_open_per_account: AtomicU64,
    /// Maximum duration of a request, in seconds.
    pub(super) total_seconds: AtomicU64,
    /// Lock on the data directory. `None` after the handover.
    pub(super) owner: Mutex<Option<InstanceLock>>,
    pub(super) handed_over: AtomicBool,
}

impl SharedBilling {
    /// Starts this edge's journal in `data_dir`, and relays the journals of dead processes.
    /// `stores` are the connections for admissions and for the outbox relay. `models` provide the
    /// prices at which those processes probably billed.
    ///
    /// # Errors
    /// Returns an error if a journal cannot be read or created.
    pub fn serve(
        data_dir: &Path,
        stores: (SharedStore, SharedStore),
        models: &[Arc<CatalogModel>],
        limits: &Limits,
    ) -> Result<Self, StoreError> {
        sqlite::create_dir(data_dir)?;
        Self::serve_with(
            data_dir,
            stores,
            models,
            limits,
            instance_lock::acquire(data_dir)?,
        )
    }

    /// Starts like [`SharedBilling::serve`] as the successor of an edge that serves from this
    /// directory, once that edge hands over.
    ///
    /// # Errors
    /// Returns the errors of [`SharedBilling::serve`], and an error if the predecessor does not
    /// hand over.
    pub fn serve_as_successor(
        data_dir: &Path,
        stores: (SharedStore, SharedStore),
        models: &[Arc<CatalogModel>],
        limits: &Limits,
    ) -> Result<Self, StoreError> {
        sqlite::create_dir(data_dir)?;
        Self::serve_with(
            data_dir,
            stores,
            models,
            limits,
            instance_lock::acquire_as_successor(data_dir)?,
        )
    }

    fn serve_with(
        data_dir: &Path,
        stores: (SharedStore, SharedStore),
        models: &[Arc<CatalogModel>],
        limits: &Limits,
        owner: InstanceLock,
    ) -> Result<Self, StoreError> {
        let (store, relay_store) = stores;
        let journal = Journal::create(
            data_dir,
            limits.journal_segment_bytes,
            limits.journal_reserve_bytes,
        )?;
        let journal = Arc::new(journal.with_sync(limits.journal_sync));
        let count = |limit: u64| usize::try_from(limit).unwrap_or(usize::MAX);
        let max_pending = count(limits.journal_pending);
        let capacity = count(limits.open_requests).saturating_add(max_pending);
        let backlog = LedgerBacklog::new(max_pending, limits.ledger_backlog_seconds)
            .with_max_bytes(limits.journal_bytes);
        let (journal_of_relay, bounds) = (Arc::clone(&journal), (capacity, backlog));
        let relay = OutboxRelay::start(relay_store, journal_of_relay, data_dir, models, bounds)?;
        let journal = JournalWriter::start(journal)?;
        Ok(Self(Arc::new(SharedBillingInner {
            store,
            journal,
            relay,
            data_dir: data_dir.to_owned(),
            open: AtomicI64::new(0),
            max_open: i64::try_from(limits.open_requests).unwrap_or(i64::MAX),
            max_open_per_account: AtomicU64::new(limits.open_requests_per_account),
            total_seconds: AtomicU64::new(limits.total_seconds),
            owner: Mutex::new(Some(owner)),
            handed_over: AtomicBool::new(false),
        })))
    }

    /// Applies new limits. See [`crate::billing::CreditService::apply_limits`].
    pub fn apply_limits(&self, limits: &Limits) {
        self.0
            .max_open_per_account
            .store(limits.open_requests_per_account, Ordering::Relaxed);
        self.0
            .total_seconds
            .store(limits.total_seconds, Ordering::Relaxed);
        self.backlog()
            .set_max_seconds(limits.ledger_backlog_seconds);
    }

    /// Returns the backlog of ended requests that may not be in the ledger yet.
    pub fn backlog(&self) -> &LedgerBacklog {
        self.0.relay.backlog()
    }

    /// Returns the deadline of an admission that begins now. The admission may wait a quarter
    /// longer than a reply may take, which includes connecting and seeding.
    pub(super) fn admission_deadline(&self) -> Instant {
        let reply_timeout = self.0.store.reply_timeout();
        Instant::now() + reply_timeout + reply_timeout / 4
    }

    /// Reads a balance from the store, and retries until the store knows the account.
    ///
    /// # Errors
    /// Returns an error if the store cannot be read or does not know the account.
    pub async fn balance(&self, account: &str, now_ms: i64) -> Result<Balance, StoreError> {
        let store = &self.0.store;
        let until = self.admission_deadline();
        let timeout_error = |_| {
            StoreError::Unusable(
                "cannot read a balance: the shared store does not answer in time".into(),
            )
        };
        let mut has_requested_seed = false;
        loop {
            if let Some(shared) = tokio::time::timeout_at(until, store.balances().account(account))
                .await
                .map_err(timeout_error)??
            {
                return Ok(balance_of(&shared, store.clock().to_store_time(now_ms)));
            }
            if !std::mem::replace(&mut has_requested_seed, true) {
                tokio::time::timeout_at(until, store.ingest().request_seed(account))
                    .await
                    .map_err(timeout_error)??;
            }
            tokio::time::timeout_at(until, tokio::time::sleep(SEED_POLL_INTERVAL))
                .await
                .map_err(timeout_error)?;
        }
    }

    /// Returns the connection for requests, with the timeout of an admission.
    pub fn serving_store(&self) -> SharedStore {
        self.0.store.clone()
    }

    /// Opens another connection to the same store, for another runtime or timeout.
    pub fn new_connection(&self, timeout: Duration) -> SharedStore {
        self.0.store.new_connection(timeout)
    }

    /// Returns the dead processes whose journals this process has read so far.
    pub fn adopted_instance_ids(&self) -> Vec<String> {
        self.0.relay.adopted_instance_ids()
    }

    /// Returns whether a request of an adopted instance was debited, or `None` if the journals no
    /// longer contain the request.
    pub fn was_debited(&self, request_id: &str) -> Option<bool> {
        self.0.relay.was_debited_before(request_id)
    }

    /// Hands this data directory over to a successor. Each edge with a shared store admits
    /// independently, before and after the handover.
    ///
    /// # Errors
    /// Returns an error if no successor waits; this process then continues as before.
    pub fn hand_over(&self) -> Result<(), StoreError> {
        if self.has_handed_over() {
            return Ok(());
        }
        instance_lock::check_successor(&self.0.data_dir)?;
        self.0.handed_over.store(true, Ordering::Release);
        drop(
            self.0
                .owner
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take(),
        );
        Ok(())
    }

    /// Returns whether a successor has taken over, or is about to.
    pub fn has_handed_over(&self) -> bool {
        self.0.handed_over.load(Ordering::Acquire)
    }

    /// Returns the instance id, which names this process's journal.
    pub fn instance_id(&self) -> &str {
        self.0.journal.journal().instance_id()
    }

    /// Updates the gauges that are computed on demand.
    pub fn update_gauges(&self, now_ms: i64) {
        let now_ms = self.0.store.clock().to_store_time(now_ms);
        self.0.relay.update_gauges(now_ms);
    }

    /// Returns whether endings reach the store, and the journal accepts new requests.
    pub fn is_healthy(&self) -> bool {
        !self.0.relay.is_failing() && !self.0.journal.journal().is_degraded()
    }

    /// Sends every ending to the store, and then stops the outbox relay.
    pub fn shut_down(&self) {
        self.0.journal.close(JOURNAL_CLOSE_TIMEOUT);
        self.0.relay.shut_down();
        self.0.journal.journal().close();
    }
}

fn balance_of(shared: &StoreAccount, now_ms: i64) -> Balance {
    let has = shared.has.rebalance();
    let row = LedgerAccount {
        paid: has.paid,
        trial: has.trial,
        trial_ends_at_ms: shared.trial_ends_at_ms,
        credited: shared.credited,
        ..LedgerAccount::default()
    };
    CreditSnapshot::from_row(row, shared.held, CreditSplit::ZERO, 0, now_ms).balance_at(now_ms)
}
