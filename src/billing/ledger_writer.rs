//! The ledger writer: the thread that enters journalled endings into the ledger, many per commit.
//!
//! It also does background work: it mirrors the holds, lapses trials, removes journal files that
//! the ledger covers, and restores the journal's reserve. Every queued ending is already in the
//! journal, so this thread cannot lose one: if the ledger fails, it retries until the ledger works,
//! and admission stops meanwhile. Must not decide amounts.

use super::holds::HoldRegistry;
use super::journal::{Journal, Segment};
use super::lapse_clock::LapseClock;
use super::replay::recover_dead_instances;
use crate::clock;
use crate::failpoint::{self, Point};
use crate::queue::{QueueReceiver, QueueSender, bounded_queue};
use crate::store::StoreError;
use crate::store::holds::HoldsMirror;
use crate::store::ledger::{Ending, Ledger, Posting};
use crate::telemetry::METRICS;
use credits::money::{CreditSplit, Micro};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, TrySendError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Maximum number of endings in one commit.
const MAX_BATCH: usize = 512;
/// How long to collect endings before a commit, so that one sync serves many. The journal has
/// already made them survive the process; only a power failure can lose this window.
const GROUP_COMMIT_DELAY: Duration = Duration::from_millis(10);
const MIRROR_INTERVAL: Duration = Duration::from_millis(20);
const HOUSEKEEPING_INTERVAL: Duration = Duration::from_secs(1);
/// Interval at which the ledger's anchor records that the ledger is in use.
const ANCHOR_INTERVAL: Duration = Duration::from_secs(60);
const MIN_RETRY_DELAY: Duration = Duration::from_millis(20);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(2);

/// A queued ending, with the journal files that must stay until the ledger has it.
pub struct Settlement {
    pub ending: Ending,
    /// Claim to release once the ledger has the ending, if this process has handed over.
    pub freed: CreditSplit,
    pub journalled_in: [Arc<Segment>; 2],
}

/// Handle of the ledger writer.
pub struct LedgerWriter {
    queue: Mutex<Option<QueueSender<Settlement>>>,
    /// `None` in a stepwise writer, which works when [`LedgerWriter::step`] is called.
    thread: Mutex<Option<JoinHandle<()>>>,
    stepwise_worker: Option<Mutex<LedgerWriterWorker>>,
    pub state: Arc<LedgerWriterState>,
}

/// Dependencies of the ledger writer.
pub struct LedgerWriterDeps {
    pub ledger: Arc<Ledger>,
    pub holds: Arc<HoldRegistry>,
    pub journal: Arc<Journal>,
    pub mirror: HoldsMirror,
    pub data_dir: PathBuf,
}

/// State that the ledger writer publishes.
#[derive(Default)]
pub struct LedgerWriterState {
    /// Number of endings journalled but not in the ledger.
    pub pending: AtomicUsize,
    /// When the oldest of them was queued, in ms since 1970; 0 if there is none.
    pub oldest_ms: AtomicI64,
    /// Whether the last commit failed.
    pub failing: AtomicBool,
    /// Whether the process is shutting down.
    pub closing: AtomicBool,
}

impl LedgerWriter {
    /// Starts the thread. `capacity` bounds its queue.
    ///
    /// # Errors
    /// Returns an error if the thread cannot start.
    pub fn start(deps: LedgerWriterDeps, capacity: usize) -> Result<Self, StoreError> {
        let (mut writer, mut worker) = Self::new(deps, capacity);
        let last_known_ms = worker.ledger.last_known_ms()?;
        worker.lapse_clock = Some(LapseClock::new(
            last_known_ms,
            clock::now_ms(),
            Instant::now(),
        ));
        let thread = std::thread::Builder::new()
            .name("settler".into())
            .spawn(move || worker.run())
            .map_err(|source| StoreError::io("start the ledger writer", source))?;
        writer.thread = Mutex::new(Some(thread));
        Ok(writer)
    }

    /// Creates a writer without a thread, which works only when stepped: for simulations, which
    /// choose every step.
    ///
    /// # Errors
    /// Never fails; it has the signature of [`LedgerWriter::start`].
    pub fn new_stepwise(deps: LedgerWriterDeps, capacity: usize) -> Result<Self, StoreError> {
        let (mut writer, worker) = Self::new(deps, capacity);
        writer.stepwise_worker = Some(Mutex::new(worker));
        Ok(writer)
    }

    fn new(deps: LedgerWriterDeps, capacity: usize) -> (Self, LedgerWriterWorker) {
        let (sender, receiver) = bounded_queue(capacity);
        let state = Arc::new(LedgerWriterState::default());
        let writer = Self {
            queue: Mutex::new(Some(sender)),
            thread: Mutex::default(),
            stepwise_worker: None,
            state: Arc::clone(&state),
        };
        let LedgerWriterDeps {
            ledger,
            holds,
            journal,
            mirror,
            data_dir,
        } = deps;
        let (has_cleared_mirror, lapse_clock, anchored) = (false, None, Instant::now());
        let worker = LedgerWriterWorker {
            ledger,
            holds,
            journal,
            mirror,
            data_dir,
            has_cleared_mirror,
            lapse_clock,
            anchored,
            state,
            receiver,
        };
        (writer, worker)
    }

    /// Commits one batch of queued endings, then does the background work. Returns false if nothing
    /// was queued. Works in a stepwise writer only.
    ///
    /// # Errors
    /// Returns an error if the ledger rejects the batch; its endings stay in the journal.
    pub fn step(&self, now_ms: i64) -> Result<bool, StoreError> {
        let Some(worker) = &self.stepwise_worker else {
            return Ok(false);
        };
        let mut worker = worker.lock().unwrap_or_else(PoisonError::into_inner);
        let batch: Vec<_> = worker.receiver.try_iter().take(MAX_BATCH).collect();
        worker.try_commit(&batch)?;
        worker.publish_holds();
        let worked = !batch.is_empty();
        drop(batch);
        worker.housekeep(now_ms);
        Ok(worked)
    }

    /// Queues an ending for the ledger. The queue has room for all open requests plus the backlog,
    /// so it is never full. If it were, the journal still has the ending, and the next start
    /// replays it.
    pub fn enqueue(&self, settlement: Settlement) {
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
                .for_each(|segment| segment.keep_for_replay());
            METRICS.ledger_error("settler_queue");
            log::error!(
                "cannot queue an ended request for the ledger: the queue is closed or full; the journal keeps it"
            );
        }
    }

    /// Stops the thread once every queued ending is in the ledger. If the ledger fails, the rest
    /// stays in the journal for the next start.
    pub fn shut_down(&self) {
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
        while matches!(self.step(clock::now_ms()), Ok(true)) {}
    }
}

struct LedgerWriterWorker {
    ledger: Arc<Ledger>,
    holds: Arc<HoldRegistry>,
    journal: Arc<Journal>,
    mirror: HoldsMirror,
    data_dir: PathBuf,
    /// Whether this process has withdrawn its mirrored holds after the hand-over.
    has_cleared_mirror: bool,
    /// `None` in a stepwise writer, where the caller supplies the time.
    lapse_clock: Option<LapseClock>,
    anchored: Instant,
    state: Arc<LedgerWriterState>,
    receiver: QueueReceiver<Settlement>,
}

impl LedgerWriterWorker {
    fn run(mut self) {
        let mut housekeeping = Instant::now();
        loop {
            let mut batch = Vec::new();
            let ended = match self.receiver.recv_timeout(MIRROR_INTERVAL) {
                Ok(first) => {
                    batch.push(first);
                    self.fill_batch(&mut batch);
                    false
                }
                Err(RecvTimeoutError::Timeout) => false,
                Err(RecvTimeoutError::Disconnected) => true,
            };
            self.commit(&batch);
            // Dropping the batch releases its journal files.
            drop(batch);
            self.publish_holds();
            if housekeeping.elapsed() >= HOUSEKEEPING_INTERVAL || ended {
                housekeeping = Instant::now();
                self.housekeep(clock::now_ms());
            }
            if ended {
                return;
            }
        }
    }

    fn housekeep(&mut self, now_ms: i64) {
        if !self.ledger.has_handed_over() {
            self.release_dead_claims();
            if self
                .lapse_clock
                .as_mut()
                .is_none_or(|clock| clock.accepts(now_ms, Instant::now()))
            {
                self.lapse_trials(now_ms);
                self.renew_anchor();
            }
        }
        self.journal.remove_covered();
        self.journal.restore_reserve();
    }

    /// Sleeps instead of waiting on the queue, so that requests need not wake this thread while it
    /// collects.
    fn fill_batch(&self, batch: &mut Vec<Settlement>) {
        // While the process shuts down, no more endings will come.
        if !self.state.closing.load(Ordering::Acquire) {
            std::thread::sleep(GROUP_COMMIT_DELAY);
        }
        batch.extend(self.receiver.try_iter().take(MAX_BATCH - 1));
    }

    /// Enters the batch, retrying until it succeeds.
    fn commit(&self, batch: &[Settlement]) {
        if batch.is_empty() {
            return;
        }
        failpoint::delay_if_armed(Point::LastByteSent);
        let mut pause = MIN_RETRY_DELAY;
        while let Err(error) = self.try_commit(batch) {
            self.state.failing.store(true, Ordering::Relaxed);
            METRICS.ledger_error("commit");
            if self.state.closing.load(Ordering::Acquire) && pause >= MAX_RETRY_DELAY {
                log::error!(
                    "cannot enter {} debits in the ledger: {error}; the next start replays them",
                    batch.len()
                );
                batch
                    .iter()
                    .flat_map(|settlement| &settlement.journalled_in)
                    .for_each(|segment| segment.keep_for_replay());
                return;
            }
            log::error!(
                "cannot enter {} debits in the ledger: {error}; retrying in {} ms",
                batch.len(),
                pause.as_millis()
            );
            std::thread::sleep(pause);
            pause = (pause * 2).min(MAX_RETRY_DELAY);
        }
        self.state.failing.store(false, Ordering::Relaxed);
    }

    /// Enters the whole batch, or nothing.
    fn try_commit(&self, batch: &[Settlement]) -> Result<(), StoreError> {
        let endings: Vec<_> = batch
            .iter()
            .map(|settlement| (&settlement.ending, settlement.freed))
            .collect();
        self.ledger
            .enter_endings(&endings, self.journal.instance_id())?;
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
    fn publish_holds(&mut self) {
        if let Err(error) = self.write_mirror() {
            METRICS.ledger_error("mirror");
            log::warn!("{error}");
        }
    }

    fn write_mirror(&mut self) -> Result<(), StoreError> {
        if self.ledger.has_handed_over() {
            if !std::mem::replace(&mut self.has_cleared_mirror, true) {
                self.mirror.remove_instance(self.journal.instance_id())?;
            }
            return Ok(());
        }
        let (answered, requested) = self.mirror.refresh_state()?;
        if requested > answered {
            // A claim made before the request must count in every hold that is taken after this
            // publication.
            self.ledger.clear_account_cache();
        }
        let changed = self.holds.take_changed();
        if !changed.is_empty() {
            self.mirror
                .put(&changed)
                .inspect_err(|_| self.holds.mark_changed(&changed))?;
        }
        if requested > answered {
            self.mirror.complete_refresh(requested)?;
        }
        Ok(())
    }

    /// Cleans up after processes that handed over and died: enters their journals, then deletes
    /// their claims.
    fn release_dead_claims(&self) {
        let outcome = self
            .ledger
            .claimants()
            .and_then(|claimants| match claimants.is_empty() {
                true => Ok(()),
                false => recover_dead_instances(&self.ledger, &self.data_dir, &claimants),
            });
        if let Err(error) = outcome {
            METRICS.ledger_error("dead_guests");
            log::warn!("cannot remove the claims of ended processes: {error}");
        }
    }

    fn renew_anchor(&mut self) {
        if self.anchored.elapsed() >= ANCHOR_INTERVAL {
            self.anchored = Instant::now();
            if let Err(error) = self.ledger.renew_anchor() {
                log::warn!("{error}");
            }
        }
    }

    /// Posts the lapse of expired trials, unless an open request may still spend the rest.
    fn lapse_trials(&self, now_ms: i64) {
        let lapse = |(account, _): (String, Micro)| -> Result<(), StoreError> {
            if !self.holds.is_idle(&self.ledger, &account)? {
                return Ok(());
            }
            let Some(row) = self.ledger.account(&account, "")? else {
                return Ok(());
            };
            self.ledger.post(&Posting {
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
            .expired_trials(now_ms)
            .and_then(|accounts| accounts.into_iter().try_for_each(lapse));
        if let Err(error) = outcome {
            METRICS.ledger_error("lapse");
            log::warn!("cannot expire a trial: {error}");
        }
    }
}
