//! The ledger writer: the thread that enters journalled endings into the ledger, many per commit.
//!
//! It also does background work: it mirrors the holds, lapses trials, removes journal files that
//! the ledger covers, and restores the journal's reserve. Every queued ending is already in the
//! journal, so this thread cannot lose one: if the ledger fails, it retries until the ledger works,
//! and admission stops meanwhile. Must not decide amounts.

use super::holds::Holds;
use super::journal::{Journal, Segment};
use super::lapse_clock::LapseClock;
use crate::clock;
use crate::failpoint::{self, Point};
use crate::money::{Micro, Parts};
use crate::queue::{Receiver, Sender, queue};
use crate::store::StoreError;
use crate::store::holds::HeldMirror;
use crate::store::ledger::{Ending, Ledger, Post};
use crate::telemetry::METRICS;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, TrySendError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Maximum number of endings in one commit.
const BATCH: usize = 512;
/// How long to collect endings before a commit, so that one sync serves many. The journal has
/// already made them survive the process; only a power failure can lose this window.
const GATHER: Duration = Duration::from_millis(10);
const MIRROR_EVERY: Duration = Duration::from_millis(20);
const HOUSEKEEPING_EVERY: Duration = Duration::from_secs(1);
/// Interval at which the ledger's anchor records that the ledger is in use.
const ANCHOR_EVERY: Duration = Duration::from_secs(60);
const RETRY_LEAST: Duration = Duration::from_millis(20);
const RETRY_MOST: Duration = Duration::from_secs(2);

/// A queued ending, with the journal files that must stay until the ledger has it.
pub struct Settlement {
    pub ending: Ending,
    /// Claim to release once the ledger has the ending, if this process has handed over.
    pub freed: Parts,
    pub journalled_in: [Arc<Segment>; 2],
}

/// Handle of the ledger writer.
pub struct Settler {
    queue: Mutex<Option<Sender<Settlement>>>,
    /// `None` in a stepwise writer, which works when [`LedgerWriter::step`] is called.
    thread: Mutex<Option<JoinHandle<()>>>,
    by_hand: Option<Mutex<Run>>,
    pub state: Arc<State>,
}

/// Dependencies of the ledger writer.
pub struct Work {
    pub ledger: Arc<Ledger>,
    pub holds: Arc<Holds>,
    pub journal: Arc<Journal>,
    pub mirror: HeldMirror,
    pub data_dir: PathBuf,
}

/// State that the ledger writer publishes.
#[derive(Default)]
pub struct State {
    /// Number of endings journalled but not in the ledger.
    pub pending: AtomicUsize,
    /// When the oldest of them was queued, in ms since 1970; 0 if there is none.
    pub oldest_ms: AtomicI64,
    /// Whether the last commit failed.
    pub failing: AtomicBool,
    /// Whether the process is shutting down.
    pub closing: AtomicBool,
}

impl Settler {
    /// Starts the thread. `capacity` bounds its queue.
    ///
    /// # Errors
    /// Returns an error if the thread cannot start.
    pub fn start(work: Work, capacity: usize) -> Result<Self, StoreError> {
        let (mut settler, mut run) = Self::new(work, capacity);
        let last_known_ms = run.ledger.last_known_ms()?;
        run.lapse_clock = Some(LapseClock::new(
            last_known_ms,
            clock::now_ms(),
            Instant::now(),
        ));
        let thread = std::thread::Builder::new()
            .name("settler".into())
            .spawn(move || run.run())
            .map_err(|source| StoreError::io("start the settler", source))?;
        settler.thread = Mutex::new(Some(thread));
        Ok(settler)
    }

    /// Creates a writer without a thread, which works only when stepped: for simulations, which
    /// choose every step.
    ///
    /// # Errors
    /// Never fails; it has the signature of [`LedgerWriter::start`].
    pub fn by_hand(work: Work, capacity: usize) -> Result<Self, StoreError> {
        let (mut settler, run) = Self::new(work, capacity);
        settler.by_hand = Some(Mutex::new(run));
        Ok(settler)
    }

    fn new(work: Work, capacity: usize) -> (Self, Run) {
        let (sender, receiver) = queue(capacity);
        let state = Arc::new(State::default());
        let settler = Self {
            queue: Mutex::new(Some(sender)),
            thread: Mutex::default(),
            by_hand: None,
            state: Arc::clone(&state),
        };
        let Work {
            ledger,
            holds,
            journal,
            mirror,
            data_dir,
        } = work;
        let (told_nothing, lapse_clock, anchored) = (false, None, Instant::now());
        let run = Run {
            ledger,
            holds,
            journal,
            mirror,
            data_dir,
            told_nothing,
            lapse_clock,
            anchored,
            state,
            receiver,
        };
        (settler, run)
    }

    /// Commits one batch of queued endings, then does the background work. Returns false if nothing
    /// was queued. Works in a stepwise writer only.
    ///
    /// # Errors
    /// Returns an error if the ledger rejects the batch; its endings stay in the journal.
    pub fn turn(&self, now_ms: i64) -> Result<bool, StoreError> {
        let Some(run) = &self.by_hand else {
            return Ok(false);
        };
        let mut run = run.lock().unwrap_or_else(PoisonError::into_inner);
        let batch: Vec<_> = run.receiver.try_iter().take(BATCH).collect();
        run.enter(&batch)?;
        run.mirror();
        let worked = !batch.is_empty();
        drop(batch);
        run.housekeep(now_ms);
        Ok(worked)
    }

    /// Queues an ending for the ledger. The queue has room for all open requests plus the backlog,
    /// so it is never full. If it were, the journal still has the ending, and the next start
    /// replays it.
    pub fn give(&self, settlement: Settlement) {
        let now_ms = settlement.ending.at_ms;
        let _ =
            self.state
                .oldest_ms
                .compare_exchange(0, now_ms, Ordering::Relaxed, Ordering::Relaxed);
        self.state.pending.fetch_add(1, Ordering::Relaxed);
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let outcome = match queue.as_ref() {
            Some(queue) => queue.try_send(settlement),
            None => Err(TrySendError::Disconnected(settlement)),
        };
        if let Err(TrySendError::Full(settlement) | TrySendError::Disconnected(settlement)) =
            outcome
        {
            settlement
                .journalled_in
                .iter()
                .for_each(|segment| segment.keep());
            METRICS.ledger_error("settler_queue");
            log::error!(
                "give an ending to the settler: its queue is closed or full; the journal keeps it"
            );
        }
    }

    /// Stops the thread once every queued ending is in the ledger. If the ledger fails, the rest
    /// stays in the journal for the next start.
    pub fn finish(&self) {
        self.state.closing.store(true, Ordering::Release);
        drop(
            self.queue
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take(),
        );
        if let Some(thread) = self
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
        {
            let _ = thread.join();
        }
        while matches!(self.turn(clock::now_ms()), Ok(true)) {}
    }
}

struct Run {
    ledger: Arc<Ledger>,
    holds: Arc<Holds>,
    journal: Arc<Journal>,
    mirror: HeldMirror,
    data_dir: PathBuf,
    /// Whether this process has withdrawn its mirrored holds after the hand-over.
    told_nothing: bool,
    /// `None` in a stepwise writer, where the caller supplies the time.
    lapse_clock: Option<LapseClock>,
    anchored: Instant,
    state: Arc<State>,
    receiver: Receiver<Settlement>,
}

impl Run {
    fn run(mut self) {
        let mut housekeeping = Instant::now();
        loop {
            let mut batch = Vec::new();
            let ended = match self.receiver.recv_timeout(MIRROR_EVERY) {
                Ok(first) => {
                    batch.push(first);
                    self.gather(&mut batch);
                    false
                }
                Err(RecvTimeoutError::Timeout) => false,
                Err(RecvTimeoutError::Disconnected) => true,
            };
            self.commit(&batch);
            // Dropping the batch releases its journal files.
            drop(batch);
            self.mirror();
            if housekeeping.elapsed() >= HOUSEKEEPING_EVERY || ended {
                housekeeping = Instant::now();
                self.housekeep(clock::now_ms());
            }
            if ended {
                return;
            }
        }
    }

    fn housekeep(&mut self, now_ms: i64) {
        if !self.ledger.is_guest() {
            self.clear_dead_guests();
            if self
                .lapse_clock
                .as_mut()
                .is_none_or(|clock| clock.believes(now_ms, Instant::now()))
            {
                self.lapse(now_ms);
                self.renew_anchor();
            }
        }
        self.journal.reap();
        self.journal.recover();
    }

    /// Sleeps instead of waiting on the queue, so that requests need not wake this thread while it
    /// collects.
    fn gather(&self, batch: &mut Vec<Settlement>) {
        // While the process shuts down, no more endings will come.
        if !self.state.closing.load(Ordering::Acquire) {
            std::thread::sleep(GATHER);
        }
        batch.extend(self.receiver.try_iter().take(BATCH - 1));
    }

    /// Enters the batch, retrying until it succeeds.
    fn commit(&self, batch: &[Settlement]) {
        if batch.is_empty() {
            return;
        }
        failpoint::after(Point::LastByteSent);
        let mut pause = RETRY_LEAST;
        while let Err(error) = self.enter(batch) {
            self.state.failing.store(true, Ordering::Relaxed);
            METRICS.ledger_error("commit");
            if self.state.closing.load(Ordering::Acquire) && pause >= RETRY_MOST {
                log::error!(
                    "enter {} debits: {error}; the next start replays them",
                    batch.len()
                );
                batch
                    .iter()
                    .flat_map(|settlement| &settlement.journalled_in)
                    .for_each(|segment| segment.keep());
                return;
            }
            log::error!(
                "enter {} debits: {error}; trying again in {pause:?}",
                batch.len()
            );
            std::thread::sleep(pause);
            pause = (pause * 2).min(RETRY_MOST);
        }
        self.state.failing.store(false, Ordering::Relaxed);
    }

    /// Enters the whole batch, or nothing.
    fn enter(&self, batch: &[Settlement]) -> Result<(), StoreError> {
        let endings: Vec<_> = batch
            .iter()
            .map(|settlement| (&settlement.ending, settlement.freed))
            .collect();
        self.ledger.end_requests(&endings, self.journal.boot())?;
        let before = self.state.pending.fetch_sub(batch.len(), Ordering::Relaxed);
        let oldest = if before > batch.len() {
            clock::now_ms()
        } else {
            0
        };
        self.state.oldest_ms.store(oldest, Ordering::Relaxed);
        Ok(())
    }

    /// Publishes the holds and answers requests for them. It reads the request number first: a
    /// process that claimed before it asked is seen by every hold that this publication does not
    /// include.
    fn mirror(&mut self) {
        if let Err(error) = self.tell() {
            METRICS.ledger_error("mirror");
            log::warn!("{error}");
        }
    }

    fn tell(&mut self) -> Result<(), StoreError> {
        if self.ledger.is_guest() {
            if !std::mem::replace(&mut self.told_nothing, true) {
                self.mirror.forget(self.journal.boot())?;
            }
            return Ok(());
        }
        let (answered, asked) = self.mirror.questions()?;
        if asked > answered {
            // A claim made before the request must count in every hold that is taken after this
            // publication.
            self.ledger.forget_accounts();
        }
        let changed = self.holds.changed();
        if !changed.is_empty() {
            self.mirror
                .put(&changed)
                .inspect_err(|_| self.holds.mark_changed(&changed))?;
        }
        if asked > answered {
            self.mirror.answer(asked)?;
        }
        Ok(())
    }

    /// Cleans up after processes that handed over and died: enters their journals, then deletes
    /// their claims.
    fn clear_dead_guests(&self) {
        let outcome = self
            .ledger
            .claimants()
            .and_then(|claimants| match claimants.is_empty() {
                true => Ok(()),
                false => super::enter_left_behind(&self.ledger, &self.data_dir, &claimants),
            });
        if let Err(error) = outcome {
            METRICS.ledger_error("dead_guests");
            log::warn!("clear the claims of ended processes: {error}");
        }
    }

    fn renew_anchor(&mut self) {
        if self.anchored.elapsed() >= ANCHOR_EVERY {
            self.anchored = Instant::now();
            if let Err(error) = self.ledger.renew_anchor() {
                log::warn!("{error}");
            }
        }
    }

    /// Posts the lapse of expired trials, unless an open request may still spend the rest.
    fn lapse(&self, now_ms: i64) {
        let lapse = |(account, _): (String, Micro)| -> Result<(), StoreError> {
            if !self.holds.is_quiet(&self.ledger, &account)? {
                return Ok(());
            }
            let Some(row) = self.ledger.account(&account, "")? else {
                return Ok(());
            };
            self.ledger.post(&Post {
                kind: "lapse",
                reference: &format!("lapse:{account}"),
                account: &account,
                d_paid: Micro::ZERO,
                d_trial: Micro::ZERO.minus(row.trial),
                at_ms: now_ms,
            })?;
            Ok(())
        };
        let outcome = self
            .ledger
            .lapsing(now_ms)
            .and_then(|accounts| accounts.into_iter().try_for_each(lapse));
        if let Err(error) = outcome {
            METRICS.ledger_error("lapse");
            log::warn!("lapse a trial: {error}");
        }
    }
}
