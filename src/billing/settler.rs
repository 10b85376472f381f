//! The thread that carries endings from the journal's side into the ledger, many to a commit.
//!
//! Also its quiet duties: mirroring the holds, lapsing trials, removing journal files that the
//! ledger covers, restoring the journal's reserve. An ending that it has been given is in the
//! journal already, so nothing here can lose one: a failing ledger is tried again until it works,
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

/// Endings in one commit, at most.
const BATCH: usize = 512;
/// How long a commit waits for company: one sync then serves many. The journal already outlives the
/// process; this is the window that a power cut may take.
const GATHER: Duration = Duration::from_millis(10);
const MIRROR_EVERY: Duration = Duration::from_millis(20);
const HOUSEKEEPING_EVERY: Duration = Duration::from_secs(1);
/// How often the ledger's anchor says that it is in use.
const ANCHOR_EVERY: Duration = Duration::from_secs(60);
const RETRY_LEAST: Duration = Duration::from_millis(20);
const RETRY_MOST: Duration = Duration::from_secs(2);

/// An ending on its way, and the journal files that stay until it has arrived.
pub struct Settlement {
    pub ending: Ending,
    /// What a guest claims no longer, once the ledger has it.
    pub freed: Parts,
    pub journalled_in: [Arc<Segment>; 2],
}

/// The way to the settler.
pub struct Settler {
    queue: Mutex<Option<Sender<Settlement>>>,
    /// A thread does the work, or whoever calls [`Settler::turn`].
    thread: Mutex<Option<JoinHandle<()>>>,
    by_hand: Option<Mutex<Run>>,
    pub state: Arc<State>,
}

/// What the settler works on.
pub struct Work {
    pub ledger: Arc<Ledger>,
    pub holds: Arc<Holds>,
    pub journal: Arc<Journal>,
    pub mirror: HeldMirror,
    pub data_dir: PathBuf,
}

/// What the settler tells of itself.
#[derive(Default)]
pub struct State {
    /// Endings journalled but not in the ledger.
    pub pending: AtomicUsize,
    /// When the oldest of them was given, ms since 1970; 0 = none.
    pub oldest_ms: AtomicI64,
    /// The ledger refuses to be written.
    pub failing: AtomicBool,
    /// The process is ending.
    pub closing: AtomicBool,
}

impl Settler {
    /// Starts the thread. `capacity` bounds its queue.
    ///
    /// # Errors
    /// The thread cannot be started.
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

    /// One that works only when it is told to: for simulations, in which every step is chosen.
    ///
    /// # Errors
    /// None; it has the form of [`Settler::start`].
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

    /// One turn by hand: a commit of what waits, up to a batch, and the quiet duties. False where
    /// nothing waited.
    ///
    /// # Errors
    /// The ledger refuses; the journal has what was to be entered.
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

    /// Gives an ending to the ledger. The queue is as long as requests and backlog together can be,
    /// so it is never full; should it be all the same, the journal still has the ending and the
    /// next start replays it.
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

    /// Ends the thread once everything given is in the ledger, or left to the next start where that
    /// refuses.
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
    /// A guest has taken back what it told as the one that admits.
    told_nothing: bool,
    /// None where whoever calls says what time it is.
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
            // Now what it held of the journal may go.
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

    /// Asleep, so that no request has to wake this thread while it waits for company.
    fn gather(&self, batch: &mut Vec<Settlement>) {
        // Nobody comes any more where the process is ending.
        if !self.state.closing.load(Ordering::Acquire) {
            std::thread::sleep(GATHER);
        }
        batch.extend(self.receiver.try_iter().take(BATCH - 1));
    }

    /// Enters the batch, trying until it works.
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

    /// Enters the batch, or nothing of it.
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

    /// Tells what is held, and answers who asked. The question is read first: whoever had claimed
    /// before asking is seen by every hold that is not told by then.
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
            // What was claimed before the question counts at every hold that is taken after what is
            // told here.
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

    /// Enters what guests left that died: their journals, then the end of their claims.
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

    /// Posts the lapse of what is left of trials that are over, where no open request may still
    /// spend it.
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
