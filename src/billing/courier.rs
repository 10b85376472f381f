//! The thread of an edge that carries endings from its journal to the shared store, until the ledger has them.
//!
//! An ending is told again and again, ever more seldom, until the store says that the ledger has it: so a store that
//! forgot what it had been told (a failover, a loss of all it had) is told once more, by whichever edge still has it in
//! its journal. It counts once, however often it is told. Must not decide amounts.

use super::journal::{self, Journal, Left, Segment};
use crate::catalog::{Model, Price};
use crate::clock;
use crate::store::StoreError;
use crate::store::ledger::Ending;
use crate::store::redis::{End, Ended, SharedStore};
use crate::telemetry::METRICS;
use serde::Serialize;
use std::collections::BinaryHeap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Endings on their way at one time.
const UNDER_WAY: usize = 256;
/// After how long it is asked for the first time whether the ledger has it, and how seldom at last.
const ASK_FIRST: Duration = Duration::from_millis(300);
const ASK_SELDOM: Duration = Duration::from_secs(30);
const RETRY_LEAST: Duration = Duration::from_millis(50);
const RETRY_MOST: Duration = Duration::from_secs(5);
const HOUSEKEEPING_EVERY: Duration = Duration::from_secs(1);
/// How long the way down waits for the ledger; the journal keeps what is left.
const FINISH_WITHIN: Duration = Duration::from_secs(5);

/// An ending, and what of the journal stays for its sake.
pub struct Parcel {
    ending: Ending,
    /// As the store is told it.
    text: String,
    journalled_in: Vec<Arc<Segment>>,
    /// The journal of a dead process that it came from.
    left: Option<Arc<LeftOver>>,
    /// The store has been told.
    told: bool,
    /// The ledger has it.
    arrived: bool,
    wait: Duration,
}

impl Drop for Parcel {
    /// Whatever becomes of the thread: what is not known to have arrived stays in the journal.
    fn drop(&mut self) {
        if !self.arrived {
            self.journalled_in.iter().for_each(|segment| segment.keep());
        }
    }
}

/// A dead process's journal, removed with the last of its endings that arrives.
struct LeftOver {
    left: Mutex<Option<(Left, usize)>>,
    missing: AtomicUsize,
}

/// An ending as the store is told it, for whoever keeps the ledger.
#[derive(Serialize)]
struct Told<'a> {
    #[serde(flatten)]
    ending: &'a Ending,
    /// The version in its detail, should the ledger not have it yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    price: Option<&'a Price>,
}

/// What a dead process left.
pub struct Found {
    left: Left,
    pub endings: Vec<Ending>,
    unreadable: usize,
}

/// The way to the thread.
pub struct Courier {
    door: Mutex<Option<Sender<Box<Parcel>>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    /// Endings journalled of which the ledger is not known to have them.
    pending: AtomicUsize,
    /// Endings given that the store has not been told of.
    untold: AtomicUsize,
    /// When the oldest of them was given, ms since 1970; 0 = none.
    oldest_ms: AtomicI64,
    failing: AtomicBool,
}

/// Claims what dead processes left in `data_dir`, and reads it.
///
/// # Errors
/// A journal cannot be claimed or read.
pub fn left_behind(data_dir: &Path) -> Result<Vec<Found>, StoreError> {
    let read = |left: Left| {
        let (endings, unreadable) = left.endings()?;
        Ok(Found { left, endings, unreadable })
    };
    journal::left_behind(data_dir)?.into_iter().map(read).collect()
}

impl Found {
    pub fn boot(&self) -> &str {
        &self.left.boot
    }
}

impl Parcel {
    /// `price`: what it is billed by, should the ledger not have that version yet.
    pub fn new(ending: Ending, price: Option<&Price>, journalled_in: Vec<Arc<Segment>>) -> Self {
        // It was read from JSON, or is made of what is written as such without fail.
        let text = serde_json::to_string(&Told { ending: &ending, price }).unwrap_or_default();
        Self { ending, text, journalled_in, left: None, told: false, arrived: false, wait: Duration::ZERO }
    }
}

impl Courier {
    /// Starts the thread, which begins with what was `found`; a journal names the price of an ending, which is looked
    /// for among `models`. `capacity` bounds what waits for it.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(
        store: SharedStore,
        journal: Arc<Journal>,
        found: Vec<Found>,
        models: &[Arc<Model>],
        capacity: usize,
    ) -> Result<Self, StoreError> {
        let state = Arc::new(State::default());
        let (door, parcels) = channel(capacity.clamp(1, 1 << 20));
        let mut run =
            Run { store, journal, state: Arc::clone(&state), under_way: JoinSet::new(), waiting: BinaryHeap::new() };
        found.into_iter().for_each(|found| run.take_over(found, models));
        let failed = |source| StoreError::io("start the courier", source);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let thread = std::thread::Builder::new()
            .name("courier".into())
            .spawn(move || runtime.block_on(run.run(parcels)))
            .map_err(failed)?;
        Ok(Self { door: Mutex::new(Some(door)), thread: Mutex::new(Some(thread)), state })
    }

    /// Never waits. What cannot be sent stays in the journal for the next start.
    pub fn send(&self, parcel: Parcel) {
        self.state.pending.fetch_add(1, Ordering::Relaxed);
        self.state.untold.fetch_add(1, Ordering::Relaxed);
        let _ = self.state.oldest_ms.compare_exchange(0, parcel.ending.at_ms, Ordering::Relaxed, Ordering::Relaxed);
        let door = self.door.lock().unwrap_or_else(PoisonError::into_inner);
        if door.as_ref().is_some_and(|door| door.try_send(Box::new(parcel)).is_ok()) {
            return;
        }
        METRICS.ledger_error("courier_queue");
        log::error!("give an ending to the courier: its queue is closed or full; the journal keeps it");
    }

    pub fn pending(&self) -> usize {
        self.state.pending.load(Ordering::Relaxed)
    }

    /// Something has ended here that the store does not know of yet.
    pub fn is_telling(&self) -> bool {
        self.state.untold.load(Ordering::Relaxed) > 0
    }

    pub fn is_failing(&self) -> bool {
        self.state.failing.load(Ordering::Relaxed)
    }

    pub fn observe(&self, now_ms: i64) {
        let oldest = self.state.oldest_ms.load(Ordering::Relaxed);
        METRICS.journal_pending.set(i64::try_from(self.pending()).unwrap_or(i64::MAX));
        METRICS.journal_oldest_seconds.set(if oldest == 0 { 0 } else { now_ms.saturating_sub(oldest) / 1_000 });
    }

    /// Ends the thread once everything is known to be in the ledger, or the patience for that is over.
    pub fn finish(&self) {
        drop(self.door.lock().unwrap_or_else(PoisonError::into_inner).take());
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = thread.join();
        }
    }
}

struct Run {
    store: SharedStore,
    journal: Arc<Journal>,
    state: Arc<State>,
    under_way: JoinSet<(Box<Parcel>, Result<Ended, StoreError>)>,
    waiting: BinaryHeap<Due>,
}

/// A parcel that is to be carried at its time, the earliest first.
struct Due {
    at: Instant,
    parcel: Box<Parcel>,
}

impl Run {
    fn take_over(&mut self, found: Found, models: &[Arc<Model>]) {
        let Found { left, endings, unreadable } = found;
        log::warn!("boot {} left {} endings; telling the shared store", left.boot, endings.len());
        let over =
            Arc::new(LeftOver { missing: AtomicUsize::new(endings.len()), left: Mutex::new(Some((left, unreadable))) });
        if endings.is_empty() {
            over.remove();
        }
        self.state.pending.fetch_add(endings.len(), Ordering::Relaxed);
        self.state.untold.fetch_add(endings.len(), Ordering::Relaxed);
        for ending in endings {
            let version = &ending.detail.price_version;
            let price = models.iter().map(|model| &*model.price).find(|price| price.version == *version);
            let mut parcel = Parcel::new(ending, price, Vec::new());
            parcel.left = Some(Arc::clone(&over));
            self.waiting.push(Due { at: Instant::now(), parcel: Box::new(parcel) });
        }
    }

    async fn run(mut self, mut parcels: Receiver<Box<Parcel>>) {
        let mut housekeeping = tokio::time::interval(HOUSEKEEPING_EVERY);
        let mut closing: Option<Instant> = None;
        loop {
            self.set_out();
            let next = self.waiting.peek().map_or_else(|| Instant::now() + HOUSEKEEPING_EVERY, |due| due.at);
            tokio::select! {
                parcel = parcels.recv(), if closing.is_none() => match parcel {
                    Some(parcel) => self.waiting.push(Due { at: Instant::now(), parcel }),
                    None => closing = Some(Instant::now() + FINISH_WITHIN),
                },
                Some(done) = self.under_way.join_next() => self.back(done),
                _ = tokio::time::sleep_until(next), if self.under_way.len() < UNDER_WAY => {}
                _ = housekeeping.tick() => self.housekeep(),
            }
            let is_done = self.waiting.is_empty() && self.under_way.is_empty();
            if closing.is_some_and(|until| is_done || Instant::now() >= until) {
                break;
            }
        }
        while let Some(done) = self.under_way.join_next().await {
            self.back(done);
        }
        self.waiting.clear();
        self.housekeep();
    }

    /// Carries what is due, as much as may be under way.
    fn set_out(&mut self) {
        while self.under_way.len() < UNDER_WAY && self.waiting.peek().is_some_and(|due| due.at <= Instant::now()) {
            let Some(Due { parcel, .. }) = self.waiting.pop() else { return };
            let store = self.store.clone();
            self.under_way.spawn(async move {
                let Ending { request_id, account, detail, .. } = &parcel.ending;
                let (cost, key_id) = (parcel.ending.cost(), &detail.key_id);
                let tokens = detail.usage.tokens_total();
                let end = End { request_id, account, cost, ending: &parcel.text, key_id, tokens };
                let outcome = match store.end(&end).await {
                    Ok(Ended::Unknown) => store.want(account).await.map(|()| Ended::Unknown),
                    outcome => outcome,
                };
                (parcel, outcome)
            });
        }
    }

    fn back(&mut self, done: Result<(Box<Parcel>, Result<Ended, StoreError>), tokio::task::JoinError>) {
        // A task that panicked has taken its parcel with it, which the journal keeps.
        let Ok((mut parcel, outcome)) = done else { return METRICS.ledger_error("courier_task") };
        let failing = matches!(outcome, Err(_) | Ok(Ended::Unknown));
        if failing != self.state.failing.swap(failing, Ordering::Relaxed) {
            match &outcome {
                Err(error) => log::error!("{error}; trying again"),
                Ok(Ended::Unknown) => log::error!("end a request of {}: not seeded yet", parcel.ending.account),
                Ok(_) => log::info!("the shared store takes endings again"),
            }
        }
        let again = |wait: Duration, least, most| (wait * 2).clamp(least, most);
        if !failing && !std::mem::replace(&mut parcel.told, true) {
            self.state.untold.fetch_sub(1, Ordering::Relaxed);
            parcel.wait = Duration::ZERO;
        }
        match outcome {
            Ok(Ended::Applied) => return self.arrived(parcel),
            Ok(Ended::Done { .. } | Ended::Known { .. }) => {
                parcel.wait = again(parcel.wait, ASK_FIRST, ASK_SELDOM);
            }
            Ok(Ended::Unknown) | Err(_) => {
                METRICS.ledger_error("shared_store");
                parcel.wait = again(parcel.wait, RETRY_LEAST, RETRY_MOST);
            }
        }
        self.waiting.push(Due { at: Instant::now() + parcel.wait, parcel });
    }

    fn arrived(&self, mut parcel: Box<Parcel>) {
        parcel.arrived = true;
        if let Some(over) = &parcel.left
            && over.missing.fetch_sub(1, Ordering::AcqRel) == 1
        {
            over.remove();
        }
        let before = self.state.pending.fetch_sub(1, Ordering::Relaxed);
        let oldest = if before > 1 { clock::now_ms() } else { 0 };
        self.state.oldest_ms.store(oldest, Ordering::Relaxed);
    }

    fn housekeep(&self) {
        self.journal.reap();
        self.journal.recover();
    }
}

impl LeftOver {
    fn remove(&self) {
        let left = self.left.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((left, unreadable)) = left
            && let Err(error) = left.remove(unreadable)
        {
            log::warn!("{error}");
        }
    }
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    /// The earliest is the greatest: a heap gives the greatest first.
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        other.at.cmp(&self.at)
    }
}
