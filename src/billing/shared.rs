//! The billing backend of an edge with a shared store: it reserves credits in the store, and
//! reports usage to it.
//!
//! The order is the one of a single process: reserve a hold before calling the vendor; journal the
//! ending in this edge's journal before the client gets the last byte. `billing/outbox.rs` then
//! sends the ending to the shared store, and keeps it in the journal until the ledger is known to
//! have it. Without the store the edge admits nothing new and finishes its running requests. Must
//! not know HTTP.

use super::courier::{Courier, Parcel};
use super::holds::{Asker, Refused, Standing};
use super::journal::{Journal, Record, Segment};
use super::owner::{self, Owner};
use super::pricing::Quote;
use super::rates::{Limited, Wait};
use super::{Balance, Hold, Opening, Till};
use crate::catalog::{Model, Price};
use crate::config::Limits;
use crate::failpoint::{self, Point};
use crate::money::{Micro, Parts};
use crate::store::StoreError;
use crate::store::ledger::{Account, Ending, Outcome};
use crate::store::redis::{Reserve, Reserved, Shared, SharedStore};
use crate::store::sqlite;
use crate::telemetry::METRICS;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// How long an admission may wait for the store, including connecting and seeding.
const ADMIT_WITHIN: Duration = Duration::from_millis(250);
/// How often to check whether an account unknown to the store has been seeded.
const SEED_LOOK: Duration = Duration::from_millis(10);
/// Maximum number of retries when the store reports too many concurrent requests while endings are
/// still on their way to it.
const ENDED_LOOKS: u32 = 5;
/// Time added to a request's maximum duration for its lease.
const LEASE_SPARE: Duration = Duration::from_secs(60);

/// Billing against a shared store; cheap to clone.
#[derive(Clone)]
pub struct SharedBilling(Arc<Inner>);

struct Inner {
    store: SharedStore,
    journal: Arc<Journal>,
    courier: Courier,
    data_dir: PathBuf,
    open: AtomicI64,
    most_open: i64,
    most_open_per_account: AtomicU64,
    most_pending: usize,
    /// Maximum duration of a request, in seconds.
    total_seconds: AtomicU64,
    /// Lock on the data directory; `None` after the hand-over.
    owner: Mutex<Option<Owner>>,
    handed_over: AtomicBool,
}

impl SharedBilling {
    /// Starts this edge's journal in `data_dir`, and relays the journals of dead processes.
    /// `stores` are the connections for admissions and for the outbox relay. `models` supply the
    /// prices that those processes probably billed at.
    ///
    /// # Errors
    /// Returns an error if a journal cannot be read or created.
    pub fn serve(
        data_dir: &Path,
        stores: (SharedStore, SharedStore),
        models: &[Arc<Model>],
        limits: &Limits,
    ) -> Result<Self, StoreError> {
        sqlite::create_dir(data_dir)?;
        Self::serve_with(data_dir, stores, models, limits, owner::begin(data_dir)?)
    }

    /// Like [`SharedBilling::serve`], for the successor of an edge that serves from this directory:
    /// waits until that edge hands over.
    ///
    /// # Errors
    /// Returns the errors of [`SharedBilling::serve`], and an error if the predecessor does not
    /// hand over.
    pub fn succeed(
        data_dir: &Path,
        stores: (SharedStore, SharedStore),
        models: &[Arc<Model>],
        limits: &Limits,
    ) -> Result<Self, StoreError> {
        sqlite::create_dir(data_dir)?;
        Self::serve_with(data_dir, stores, models, limits, owner::succeed(data_dir)?)
    }

    fn serve_with(
        data_dir: &Path,
        stores: (SharedStore, SharedStore),
        models: &[Arc<Model>],
        limits: &Limits,
        owner: Owner,
    ) -> Result<Self, StoreError> {
        let (store, courier_store) = stores;
        let journal = Journal::begin(
            data_dir,
            limits.journal_segment_bytes,
            limits.journal_reserve_bytes,
        )?;
        let journal = Arc::new(journal.synced(limits.journal_sync));
        let count = |limit: u64| usize::try_from(limit).unwrap_or(usize::MAX);
        let most_pending = count(limits.journal_pending);
        let capacity = count(limits.open_requests).saturating_add(most_pending);
        let (here, bounds) = (Arc::clone(&journal), (capacity, most_pending));
        let courier = Courier::start(courier_store, here, data_dir, models, bounds)?;
        Ok(Self(Arc::new(Inner {
            store,
            journal,
            courier,
            data_dir: data_dir.to_owned(),
            open: AtomicI64::new(0),
            most_open: i64::try_from(limits.open_requests).unwrap_or(i64::MAX),
            most_open_per_account: AtomicU64::new(limits.open_requests_per_account),
            most_pending,
            total_seconds: AtomicU64::new(limits.total_seconds),
            owner: Mutex::new(Some(owner)),
            handed_over: AtomicBool::new(false),
        })))
    }

    /// See [`super::Billing::apply_limits`].
    pub(super) fn take_limits(&self, limits: &Limits) {
        self.0
            .most_open_per_account
            .store(limits.open_requests_per_account, Ordering::Relaxed);
        self.0
            .total_seconds
            .store(limits.total_seconds, Ordering::Relaxed);
    }

    /// See [`BillingBackend::reserve`].
    pub(super) async fn reserve(
        &self,
        opening: Opening,
        quote: &Quote,
        exact: bool,
        now_ms: i64,
    ) -> Result<(Hold, u64), Refused> {
        let inner = &self.0;
        if inner.journal.is_short() {
            return Err(Refused::Unavailable("the journal has no room".into()));
        }
        // Check this before journalling: without a request to the store, there is nothing to
        // release later.
        if inner.store.is_away() {
            return Err(Refused::Unavailable(
                "the shared store does not answer".into(),
            ));
        }
        if inner.courier.pending() >= inner.most_pending {
            return Err(Refused::Unavailable("the shared store lags behind".into()));
        }
        if inner.open.load(Ordering::Relaxed) >= inner.most_open {
            return Err(Refused::Busy);
        }
        let full = quote.cost(quote.output_limit);
        let most_open = inner.most_open_per_account.load(Ordering::Relaxed);
        let floor = if exact {
            full
        } else {
            quote.cost(quote.output_floor.min(quote.output_limit))
        };
        let asked = Reserve {
            request_id: &opening.request_id,
            account: &opening.account,
            full,
            floor,
            lease: Duration::from_secs(inner.total_seconds.load(Ordering::Relaxed))
                .saturating_add(LEASE_SPARE),
            most_open,
            within: (!opening.bounds.is_unbounded()).then_some((&*opening.key_id, &opening.bounds)),
        };
        // Journal before the store reserves anything. So this edge knows of every hold in the
        // store, even if it is killed meanwhile.
        let hold = Hold::open(
            Till::Shared(self.clone()),
            opening.clone(),
            quote.service,
            Parts::ZERO,
            now_ms,
        )
        .map_err(|error| Refused::Unavailable(format!("write the journal: {error}")))?;
        let fitted = |parts: Parts| quote.fit(parts.total()).unwrap_or(quote.output_floor);
        let refusal = match self.held(&asked).await {
            Ok(Reserved::Held(parts)) => return Ok((hold.of(parts), fitted(parts))),
            Ok(Reserved::HeldWithin(parts, meters)) => {
                return Ok((hold.of(parts).metered(meters), fitted(parts)));
            }
            Ok(other) => refused(other, floor, most_open),
            // The store may have reserved the credits anyway. An ending without cost releases them
            // as soon as the store is reachable.
            Err(why) => {
                hold.release(Outcome::Interrupted, now_ms);
                return Err(Refused::Unavailable(why));
            }
        };
        hold.forget();
        Err(refusal)
    }

    /// See [`super::Billing::authorize`]. Other edges and the store do not know the account's
    /// requests that arrive here.
    pub(super) async fn check(&self, asker: &Asker<'_>, least: Micro) -> Result<(), Refused> {
        let inner = &self.0;
        if inner.store.is_away() {
            return Err(Refused::Unavailable(
                "the shared store does not answer".into(),
            ));
        }
        let most_open = inner.most_open_per_account.load(Ordering::Relaxed);
        let asked = Reserve {
            request_id: "",
            account: asker.account,
            full: least,
            floor: least,
            lease: Duration::ZERO,
            most_open,
            within: (!asker.bounds.is_unbounded()).then_some((&**asker.key, asker.bounds)),
        };
        match self.held(&asked).await.map_err(Refused::Unavailable)? {
            Reserved::Held(_) | Reserved::HeldWithin(..) => Ok(()),
            other => Err(refused(other, least, most_open)),
        }
    }

    /// Retries until the store knows the account, within the admission timeout. Also retries if the
    /// concurrency limit may be reached only because the ending of the client's last request is
    /// still on its way to the store.
    async fn held(&self, asked: &Reserve<'_>) -> Result<Reserved, String> {
        let store = &self.0.store;
        let until = Instant::now() + ADMIT_WITHIN;
        let (mut wanted, mut looks) = (false, 0);
        loop {
            let answer = tokio::time::timeout_at(until, store.reserve(asked)).await;
            let answer =
                answer.map_err(|_| "the shared store does not answer in time".to_owned())?;
            failpoint::pass(Point::HeldThere);
            match answer.map_err(counted)? {
                Reserved::Unknown => {}
                Reserved::Limited(Wait {
                    limited: Limited::Concurrent,
                    ..
                }) if looks < ENDED_LOOKS && self.0.courier.is_telling() => {
                    looks += 1;
                    tokio::time::sleep(SEED_LOOK).await;
                    continue;
                }
                known => return Ok(known),
            }
            if !std::mem::replace(&mut wanted, true) {
                let asked = tokio::time::timeout_at(until, store.want(asked.account)).await;
                asked
                    .map_err(|_| "the shared store does not answer in time")?
                    .map_err(counted)?;
            }
            if Instant::now() + SEED_LOOK >= until {
                return Ok(Reserved::Unknown);
            }
            tokio::time::sleep(SEED_LOOK).await;
        }
    }

    /// See [`BillingBackend::balance`].
    pub(super) async fn balance(&self, account: &str, now_ms: i64) -> Result<Balance, StoreError> {
        let store = &self.0.store;
        let until = Instant::now() + ADMIT_WITHIN;
        let late = |_| {
            StoreError::Unusable("read a balance: the shared store does not answer in time".into())
        };
        let mut wanted = false;
        loop {
            if let Some(shared) = tokio::time::timeout_at(until, store.account(account))
                .await
                .map_err(late)??
            {
                return Ok(stands(&shared, now_ms));
            }
            if !std::mem::replace(&mut wanted, true) {
                tokio::time::timeout_at(until, store.want(account))
                    .await
                    .map_err(late)??;
            }
            tokio::time::timeout_at(until, tokio::time::sleep(SEED_LOOK))
                .await
                .map_err(late)?;
        }
    }

    /// Journals an ending and queues it for the store. Returns the ending once it survives the
    /// process.
    pub(super) fn end(
        &self,
        ending: Ending,
        price: &Price,
        opened_in: Arc<Segment>,
    ) -> io::Result<Ending> {
        let record = Record::End(ending);
        let written = self.0.journal.write(&record);
        let Record::End(ending) = record else {
            return Err(io::Error::other("an end without an ending"));
        };
        match written {
            Ok(ended_in) => {
                self.0.courier.send(Parcel::new(
                    ending.clone(),
                    Some(price),
                    vec![opened_in, ended_in],
                ));
                Ok(ending)
            }
            Err(error) => {
                opened_in.keep();
                // A client that does not get the last byte pays nothing.
                let nothing = Ending {
                    paid: crate::money::Micro::ZERO,
                    trial: crate::money::Micro::ZERO,
                    writeoff: crate::money::Micro::ZERO,
                    detail: crate::store::ledger::Detail {
                        outcome: Outcome::Interrupted,
                        ..ending.detail
                    },
                    ..ending
                };
                self.end_unjournalled(nothing, price);
                Err(error)
            }
        }
    }

    /// Releases a hold that is in no journal.
    pub(super) fn end_unjournalled(&self, ending: Ending, price: &Price) {
        self.0
            .courier
            .send(Parcel::new(ending, Some(price), Vec::new()));
    }

    pub(super) fn closed(&self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn counted(&self) -> (&Journal, &AtomicI64) {
        (&self.0.journal, &self.0.open)
    }

    /// The connection for requests, with the timeout of an admission.
    pub fn serving_store(&self) -> SharedStore {
        self.0.store.clone()
    }

    /// Opens another connection to the same store, for another runtime or timeout.
    pub fn store(&self, patience: Duration) -> SharedStore {
        self.0.store.another(patience)
    }

    /// Dead processes whose journals this one has read so far.
    pub fn taken_over(&self) -> Vec<String> {
        self.0.courier.taken_over()
    }

    /// Whether a request of an adopted instance was debited; `None` if the journals no longer
    /// contain it.
    pub fn was_debited(&self, request_id: &str) -> Option<bool> {
        self.0.courier.was_debited_before(request_id)
    }

    /// Hands this data directory over to a successor. Each edge with a shared store admits on its
    /// own, before and after.
    pub(super) fn hand_over(&self) -> Result<(), StoreError> {
        if self.has_handed_over() {
            return Ok(());
        }
        owner::expect_successor(&self.0.data_dir)?;
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

    pub(super) fn has_handed_over(&self) -> bool {
        self.0.handed_over.load(Ordering::Acquire)
    }

    pub(super) fn boot(&self) -> &str {
        self.0.journal.boot()
    }

    pub(super) fn observe(&self, now_ms: i64) {
        self.0.courier.observe(now_ms);
    }

    pub(super) fn is_healthy(&self) -> bool {
        !self.0.courier.is_failing() && !self.0.journal.is_short()
    }

    pub(super) fn finish(&self) {
        self.0.courier.finish();
        self.0.journal.close();
    }
}

/// Converts a refusal of the store.
fn refused(said: Reserved, needed: Micro, most_open: u64) -> Refused {
    match said {
        Reserved::Insufficient { available } => Refused::Insufficient { available, needed },
        Reserved::TrialExpired => Refused::TrialExpired,
        Reserved::KeySpendLimit { free } => Refused::KeySpendLimit { free },
        Reserved::Limited(wait) => Refused::Limited(wait),
        Reserved::TooManyOpen => Refused::TooManyOpen { limit: most_open },
        other => Refused::Unavailable(format!("the shared store says {other:?}")),
    }
}

fn counted(error: StoreError) -> String {
    METRICS.ledger_error(error.reason());
    error.to_string()
}

fn stands(shared: &Shared, now_ms: i64) -> Balance {
    let has = shared.has.covered();
    let row = Account {
        paid: has.paid,
        trial: has.trial,
        trial_ends_at_ms: shared.trial_ends_at_ms,
        credited: shared.credited,
        ..Account::default()
    };
    Standing::of(row, shared.held, Parts::ZERO, 0, now_ms).shown(now_ms)
}
