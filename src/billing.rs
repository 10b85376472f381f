//! The billing service: quote → hold → settle or release; balances, receipts, grants; journal
//! replay at start.
//!
//! Three steps in this order make a bill correct. The gateway reserves credits before it calls the
//! vendor. It journals the ending before the client receives the last byte. The ledger has the
//! ending within milliseconds. Read `crates/credits/src/pricing.rs` (what a request costs),
//! `billing/quote.rs` (the worst case of a request), `billing/holds.rs` (whether the account may
//! spend it), `billing/journal.rs` and `billing/ledger_writer.rs` (each request counts once,
//! whichever process dies); for many edges with one shared store, `billing/shared.rs`. Must not
//! know HTTP.

pub mod activity;
mod backend;
mod backup;
pub mod corrections;
pub mod estimate;
mod funds;
mod handover;
mod hold;
pub mod holds;
pub mod instance_lock;
pub mod journal;
pub mod json;
mod lapse_clock;
pub mod ledger_ingest;
mod ledger_writer;
mod open_holds;
pub mod outbox;
pub mod quote;
pub mod reported_turns;
mod shared;
mod shared_store_admin;
pub mod store_health;
#[cfg(test)]
mod tests;
mod verify;

use crate::catalog::CatalogModel;
use crate::config::Limits;
use crate::store::StoreError;
use crate::store::holds::HoldsMirror;
use crate::store::ledger::{
    Ending, EndingDetail, EntrySelection, KeySpend, Ledger, LedgerEntry, Posting, RequestOutcome,
};
use crate::store::redis::RedisAddress;
use crate::store::sqlite;
use crate::telemetry::METRICS;
pub use backend::BillingBackend;
use credits::limits::Period;
use credits::money::{CreditSplit, Micro};
use credits::price_list::PriceList;
use credits::pricing::Quote;
use credits::trial::Trial;
use funds::size_hold;
pub use hold::{Hold, HoldRequest};
use holds::{CreditSnapshot, HoldRegistry};
pub use holds::{PendingRequests, ReserveError};
use instance_lock::InstanceLock;
use journal::Journal;
use ledger_writer::{LedgerWriter, LedgerWriterDeps};
pub use open_holds::OpenHolds;
pub use shared::SharedBilling;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
pub use verify::{Finding, LedgerAuditReport, verify_accounts, verify_missing_ledger};

/// This build is for benchmarks: it bills nothing, and `app.rs` lets it listen on loopback
/// addresses only.
pub const UNBILLED: bool = cfg!(feature = "unbilled");

/// The billing service; cheap to clone.
#[derive(Clone)]
pub struct Billing(Arc<BillingInner>);

struct BillingInner {
    ledger: Arc<Ledger>,
    data_dir: PathBuf,
    serving: Option<ServingState>,
    /// Address of the store that several edges share, if that store decides who may spend what.
    shared: Option<RedisAddress>,
}

/// The part of the service that only a process that serves requests has.
struct ServingState {
    /// Lock on the data directory; `None` after the hand-over.
    owner: Mutex<Option<InstanceLock>>,
    holds: Arc<HoldRegistry>,
    journal: Arc<Journal>,
    settler: LedgerWriter,
    open: AtomicI64,
    most_open: i64,
    most_open_per_account: AtomicU64,
    most_pending: usize,
}

/// An account's credits at one moment.
#[derive(Debug, Clone)]
pub struct Balance {
    pub balance: Micro,
    pub held: Micro,
    pub available: Micro,
    pub trial: Option<TrialState>,
}

#[derive(Debug, Clone)]
pub struct TrialState {
    pub ends_at_ms: i64,
    pub credits_left: Micro,
    pub active: bool,
}

/// How one response was billed: a ledger entry with its price.
#[derive(Debug, Clone)]
pub struct Receipt {
    /// Position in the ledger, and the cursor for paging.
    pub seq: i64,
    pub request_id: String,
    pub at_ms: i64,
    pub detail: EndingDetail,
    pub price: PriceList,
    /// Credits debited.
    pub credits: Micro,
    pub writeoff: Micro,
    pub balance_after: Micro,
}

impl Billing {
    /// Opens the service for commands, which read and post while a gateway may be serving from the
    /// same directory.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be opened.
    pub fn open(data_dir: &Path) -> Result<Self, StoreError> {
        Self::open_with_store(data_dir, None)
    }

    /// Like [`Billing::open`], and with the address of the shared store if one decides who may
    /// spend what.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be opened.
    pub fn open_with_store(
        data_dir: &Path,
        shared: Option<RedisAddress>,
    ) -> Result<Self, StoreError> {
        let ledger = Arc::new(Ledger::open(data_dir)?);
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
        shared: Option<RedisAddress>,
    ) -> Result<Self, StoreError> {
        let ledger = Arc::new(Ledger::open_for_audit(data_dir)?);
        Ok(Self(Arc::new(BillingInner {
            ledger,
            data_dir: data_dir.to_owned(),
            serving: None,
            shared,
        })))
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
    ///
    /// # Errors
    /// Returns an error if the ledger or the journal cannot be opened, if a replayed ending cannot
    /// be entered, or if another process serves from `data_dir`.
    pub fn serve(data_dir: &Path, limits: &Limits) -> Result<Self, StoreError> {
        sqlite::create_dir(data_dir)?;
        Self::serve_with(
            data_dir,
            limits,
            LedgerWriter::start,
            instance_lock::acquire(data_dir)?,
        )
    }

    /// Like [`Billing::serve`], for the successor of a process that serves: waits until that
    /// process hands over.
    ///
    /// # Errors
    /// Returns the errors of [`Billing::serve`], and an error if the predecessor does not hand
    /// over.
    pub fn serve_as_successor(data_dir: &Path, limits: &Limits) -> Result<Self, StoreError> {
        sqlite::create_dir(data_dir)?;
        Self::serve_with(
            data_dir,
            limits,
            LedgerWriter::start,
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
            data_dir,
            limits,
            LedgerWriter::new_stepwise,
            instance_lock::acquire(data_dir)?,
        )
    }

    /// Runs one step of a ledger writer without a thread. Returns false if no ending was queued.
    ///
    /// # Errors
    /// Returns an error if the ledger rejects the batch.
    pub fn step(&self, now_ms: i64) -> Result<bool, StoreError> {
        self.0
            .serving
            .as_ref()
            .map_or(Ok(false), |serving| serving.settler.step(now_ms))
    }

    fn serve_with(
        data_dir: &Path,
        limits: &Limits,
        start: fn(LedgerWriterDeps, usize) -> Result<LedgerWriter, StoreError>,
        owner: InstanceLock,
    ) -> Result<Self, StoreError> {
        let ledger = Arc::new(Ledger::open(data_dir)?);
        recover_dead_instances(&ledger, data_dir, &ledger.instance_ids()?)?;
        let journal = Journal::create(
            data_dir,
            limits.journal_segment_bytes,
            limits.journal_reserve_bytes,
        )?;
        let journal = Arc::new(journal.with_sync(limits.journal_sync));
        let mut mirror = HoldsMirror::open_or_renew(data_dir)?;
        mirror.retain_instances(&journal::live_instance_ids(data_dir)?)?;
        let holds = Arc::new(HoldRegistry::new(journal.instance_id()));
        let count = |limit: u64| usize::try_from(limit).unwrap_or(usize::MAX);
        // Every open request ends once, and admission stops at `journal_pending`; so this queue is
        // never full.
        let capacity = count(limits.open_requests.saturating_add(limits.journal_pending));
        let work = LedgerWriterDeps {
            ledger: Arc::clone(&ledger),
            holds: Arc::clone(&holds),
            journal: Arc::clone(&journal),
            mirror,
            data_dir: data_dir.to_owned(),
        };
        let settler = start(work, capacity)?;
        log::info!("opened the ledger in {}", data_dir.display());
        let serving = ServingState {
            owner: Mutex::new(Some(owner)),
            holds,
            journal,
            settler,
            open: AtomicI64::new(0),
            most_open: i64::try_from(limits.open_requests).unwrap_or(i64::MAX),
            most_open_per_account: AtomicU64::new(limits.open_requests_per_account),
            most_pending: count(limits.journal_pending),
        };
        Ok(Self(Arc::new(BillingInner {
            ledger,
            data_dir: data_dir.to_owned(),
            serving: Some(serving),
            shared: None,
        })))
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
            .try_for_each(|model| self.0.ledger.store_price(&model.price, now_ms))
    }

    /// Reserves credits for the worst case of a request. Lowers the output limit to what the
    /// account can pay, unless `exact`. Returns the hold and the output limit that it covers.
    ///
    /// # Errors
    /// Returns the reason as [`ReserveError`]; nothing is held then.
    pub fn reserve(
        &self,
        opening: HoldRequest,
        quote: &Quote,
        exact: bool,
        now_ms: i64,
    ) -> Result<(Hold, u64), ReserveError> {
        let Some(serving) = &self.0.serving else {
            return Err(ReserveError::Unavailable(
                "this process does not admit requests".into(),
            ));
        };
        if UNBILLED {
            return Ok((
                Hold::new_unbilled(BillingBackend::Here(self.clone()), opening),
                quote.output_limit,
            ));
        }
        if serving.settler.state.closing.load(Ordering::Acquire) {
            return Err(ReserveError::Unavailable(
                "the gateway is shutting down".into(),
            ));
        }
        if serving.settler.state.failing.load(Ordering::Relaxed)
            || serving.settler.state.pending.load(Ordering::Relaxed) >= serving.most_pending
        {
            return Err(ReserveError::Unavailable("the ledger lags behind".into()));
        }
        if serving.journal.is_degraded() {
            return Err(ReserveError::Unavailable(
                "the journal's disk is full".into(),
            ));
        }
        if serving.open.load(Ordering::Relaxed) >= serving.most_open {
            return Err(ReserveError::Busy);
        }
        let most_open = serving.most_open_per_account.load(Ordering::Relaxed);
        let decide =
            |standing: &CreditSnapshot| size_hold(standing, quote, exact, most_open, now_ms);
        let Some((parts, limit, meters)) =
            serving
                .holds
                .reserve(&self.0.ledger, &opening.payer(), now_ms, decide)?
        else {
            return self.reserve_by_claim(serving, opening, quote, exact, now_ms);
        };
        let hold = Hold::open(
            BillingBackend::Here(self.clone()),
            opening,
            quote.service,
            parts,
            now_ms,
        )
        .map_err(|error| ReserveError::Unavailable(format!("cannot write the journal: {error}")))?;
        Ok((hold.with_rate_limits(meters), limit))
    }

    /// Applies the part of new limits that a serving process can change: the rest sized its queues
    /// and files at start.
    pub fn apply_limits(&self, limits: &Limits) {
        if let Some(serving) = &self.0.serving {
            serving
                .most_open_per_account
                .store(limits.open_requests_per_account, Ordering::Relaxed);
        }
    }

    /// Returns the credits that a key has spent in the period that contains `now_ms` and in total,
    /// and when it was last used. The figures come from the ledger, which lags by a few
    /// milliseconds.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn key_spend(
        &self,
        key_id: &str,
        period: Period,
        now_ms: i64,
    ) -> Result<KeySpend, StoreError> {
        self.0
            .ledger
            .key_spend(key_id, period.first_day(now_ms), "")
    }

    /// Opens the ledger account with its sign-up grant. The grant has the reference
    /// `trial:<account>`, so a second call changes nothing.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be written.
    pub fn open_account(
        &self,
        account: &str,
        trial: Option<Trial>,
        now_ms: i64,
    ) -> Result<(), StoreError> {
        self.0
            .ledger
            .open_account(account, trial.map(|trial| trial.ends_at_ms), now_ms)?;
        if let Some(trial) = trial {
            self.0.ledger.post(&Posting {
                kind: "trial",
                reference: &format!("trial:{account}"),
                account,
                d_paid: Micro::ZERO,
                d_trial: trial.credits,
                at_ms: now_ms,
            })?;
        }
        Ok(())
    }

    /// # Errors
    /// Returns an error if the store cannot be read or the account is not open.
    pub fn balance(&self, account: &str, now_ms: i64) -> Result<Balance, StoreError> {
        let standing = match self.0.serving.as_ref().filter(|_| !self.has_handed_over()) {
            Some(serving) => serving.holds.snapshot(&self.0.ledger, account, now_ms)?,
            None => {
                let told = self.claims_of_others(account)?;
                let held = told
                    .iter()
                    .fold(CreditSplit::default(), |held, claim| held.plus(claim.held));
                let row = self.0.ledger.account(account, "")?;
                row.map(|row| {
                    CreditSnapshot::from_row(row, held, CreditSplit::default(), 0, now_ms)
                })
            }
        };
        let standing = standing.ok_or_else(|| {
            StoreError::Unusable(format!("account {account} is not in the ledger"))
        })?;
        Ok(standing.balance_at(now_ms))
    }

    /// Returns how a request was billed; `None` if it has not ended or belongs to another account.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn receipt(&self, account: &str, request_id: &str) -> Result<Option<Receipt>, StoreError> {
        self.0
            .ledger
            .ending(account, request_id)?
            .map(|entry| self.receipt_from_entry(entry))
            .transpose()
    }

    /// Whether the request ended with a debit: the client received the response, or a part of it
    /// before it disconnected.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn was_debited(&self, account: &str, request_id: &str) -> Result<bool, StoreError> {
        Ok(self
            .0
            .ledger
            .ending(account, request_id)?
            .is_some_and(|entry| entry.kind == "debit"))
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

    /// Lists receipts, newest first. `before` is the `seq` of the last receipt of the previous
    /// page.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn receipts(
        &self,
        account: &str,
        before: Option<i64>,
        limit: u32,
    ) -> Result<Vec<Receipt>, StoreError> {
        let entries = self.0.ledger.entries(account, true, before, limit)?;
        entries
            .into_iter()
            .map(|entry| self.receipt_from_entry(entry))
            .collect()
    }

    /// Lists the account's entries of every kind, paged like [`Billing::receipts`].
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn entries(
        &self,
        account: &str,
        before: Option<i64>,
        limit: u32,
    ) -> Result<Vec<LedgerEntry>, StoreError> {
        self.0.ledger.entries(account, false, before, limit)
    }

    /// Calls `each` with the selected entries in order, one at a time.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read or `each` fails.
    pub fn for_each_entry(
        &self,
        selection: &EntrySelection,
        each: &mut dyn FnMut(LedgerEntry) -> std::io::Result<()>,
    ) -> Result<(), StoreError> {
        self.0.ledger.for_each_selected(selection, each)
    }

    fn receipt_from_entry(&self, entry: LedgerEntry) -> Result<Receipt, StoreError> {
        let detail: EndingDetail = serde_json::from_str(&entry.detail).map_err(|error| {
            StoreError::Unusable(format!("cannot read ledger entry {}: {error}", entry.seq))
        })?;
        let price = self.0.ledger.price(&detail.price_version)?;
        Ok(Receipt {
            seq: entry.seq,
            request_id: entry.reference,
            at_ms: entry.at_ms,
            price: price.ok_or_else(|| {
                StoreError::Unusable(format!(
                    "the price version of ledger entry {} is missing",
                    entry.seq
                ))
            })?,
            detail,
            credits: Micro::ZERO.minus(entry.d_paid).minus(entry.d_trial),
            writeoff: entry.writeoff,
            balance_after: entry.bal_paid.plus(entry.bal_trial),
        })
    }

    /// Recomputes every debit and checks every invariant.
    ///
    /// # Errors
    /// Returns an error if the ledger or the shared store cannot be read. A violated invariant is a
    /// finding, not an error.
    pub fn verify(&self, now_ms: i64) -> Result<LedgerAuditReport, StoreError> {
        let mut verdict = verify::verify(&self.0.ledger, &self.0.data_dir, now_ms)?;
        if let Some(address) = &self.0.shared {
            shared_store_admin::compare_balances(&self.0.ledger, address, &mut verdict)?;
        }
        Ok(verdict)
    }

    /// Rebuilds from the entries the aggregates that pages and limits read; entries and balances do
    /// not change. Returns the number of wrong aggregates, up to a maximum.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be written; nothing changes then.
    pub fn rebuild_aggregates(&self) -> Result<usize, StoreError> {
        Ok(self
            .0
            .ledger
            .rebuild_aggregates(verify::MAX_AGGREGATES_CHECKED)?
            .len())
    }

    /// Enters the endings of a dead process's journal directory. Returns (number of new endings,
    /// number of unreadable lines).
    ///
    /// # Errors
    /// Returns an error if the directory cannot be read or the ledger cannot be written.
    pub fn replay_journal(&self, dir: &Path) -> Result<(usize, usize), StoreError> {
        // Keep the claim until everything is entered: in a running process's journal, an open
        // request has not ended.
        let left = journal::claim_journal(dir)?;
        let (endings, unreadable) = left.endings()?;
        Ok((enter_endings(&self.0.ledger, &endings)?, unreadable))
    }

    /// Updates the gauges that are computed on demand.
    pub fn update_gauges(&self, now_ms: i64) {
        let Some(serving) = &self.0.serving else {
            return;
        };
        let state = &serving.settler.state;
        let oldest = state.oldest_ms.load(Ordering::Relaxed);
        METRICS
            .journal_pending
            .set(i64::try_from(state.pending.load(Ordering::Relaxed)).unwrap_or(i64::MAX));
        METRICS.journal_oldest_seconds.set(if oldest == 0 {
            0
        } else {
            now_ms.saturating_sub(oldest) / 1_000
        });
    }

    /// Whether the ledger accepts endings and the journal accepts new requests.
    pub fn is_healthy(&self) -> bool {
        self.0.serving.as_ref().is_some_and(|serving| {
            !serving.settler.state.failing.load(Ordering::Relaxed) && !serving.journal.is_degraded()
        })
    }

    /// Deletes what the ledger stores as applied for this process, which is useless once its
    /// journal is gone. If a journal remains, its replay deletes it later.
    fn forget_own_instance(&self, serving: &ServingState) -> Result<(), StoreError> {
        let boot = serving.journal.instance_id().to_owned();
        if journal::instance_ids(&self.0.data_dir)?.contains(&boot) {
            return Ok(());
        }
        self.0.ledger.forget_instances(&[boot])
    }

    /// Enters everything settled into the ledger, then stops the ledger writer.
    pub fn shut_down(&self) {
        if let Some(serving) = &self.0.serving {
            serving.settler.shut_down();
            serving.journal.close();
            if let Err(error) = self
                .forget_own_instance(serving)
                .and_then(|()| self.0.ledger.checkpoint())
            {
                log::warn!("{error}; nothing is lost, the write-ahead log has every entry");
            }
        }
    }
}

/// Enters the journals of dead processes into the ledger, then deletes the claims of those in
/// `known` that are gone.
fn recover_dead_instances(
    ledger: &Ledger,
    data_dir: &Path,
    known: &[String],
) -> Result<(), StoreError> {
    replay_orphaned_journals(ledger, data_dir)?;
    // An instance that has a journal is alive or not yet replayed. Read this list after `known`.
    let with_journal = journal::instance_ids(data_dir)?;
    let gone: Vec<_> = known
        .iter()
        .filter(|boot| !with_journal.contains(boot))
        .cloned()
        .collect();
    if gone.is_empty() {
        Ok(())
    } else {
        ledger.forget_instances(&gone)
    }
}

/// Enters the journals of dead processes into the ledger.
fn replay_orphaned_journals(ledger: &Ledger, data_dir: &Path) -> Result<(), StoreError> {
    for left in journal::claim_orphaned(data_dir)? {
        left.remove_reserve();
        let (endings, unreadable) = left.endings()?;
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
            left.boot,
            endings.len(),
        );
        left.remove(unreadable)?;
    }
    Ok(())
}

fn enter_endings(ledger: &Ledger, endings: &[Ending]) -> Result<usize, StoreError> {
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
