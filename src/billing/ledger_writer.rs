//! Runs the ledger writer, the thread that enters journalled endings into the ledger, many per
//! commit.
//!
//! The thread also does background work: it mirrors the holds, lapses trials, removes journal files
//! that the ledger covers, and restores the journal's reserve. Every queued ending is already in
//! the journal, so this thread cannot lose one: if the ledger fails, it retries until the ledger
//! works, and admission stops meanwhile. This file must not decide amounts.

use super::backlog::{CommitRate, LedgerBacklog};
use super::holds::HoldRegistry;
use super::lapse_clock::LapseClock;
use base::clock;
use base::failpoint::{self, Point};
use base::queue::{QueueReceiver, QueueSender, bounded_queue};
use base::telemetry::METRICS;
use credits::money::{CreditSplit, Micro};
use ledger::StoreError;
use ledger::journal::holds_mirror::HoldsMirror;
use ledger::journal::replay::{WithheldCost, recover_dead_instances};
use ledger::journal::{Journal, Segment};
use ledger::{AppendOutcome, Ending, Ledger, LedgerBatch, LedgerChange, Posting};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, TrySendError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Maximum number of endings in one commit. A commit writes the page of each account and key once.
const MAX_BATCH: usize = 4_096;
/// Minimum number of endings in a commit from which the rate is measured. A smaller commit does not
/// show how fast the ledger can be.
const MIN_MEASURED_BATCH: usize = 32;
/// Minimum time to collect endings before a commit, so that one sync and one write of a page serve
/// many endings. The journal protects the endings against a crash of the process; only a power
/// failure can lose this window. See [`CommitPace`].
const MIN_COMMIT_DELAY: Duration = Duration::from_millis(10);
const MAX_COMMIT_DELAY: Duration = Duration::from_millis(250);
const MIRROR_INTERVAL: Duration = Duration::from_millis(20);
const HOUSEKEEPING_INTERVAL: Duration = Duration::from_secs(1);
/// Interval at which the ledger's anchor records that the ledger is in use.
const ANCHOR_INTERVAL: Duration = Duration::from_secs(60);
/// Interval of attempts to enter endings that wait for a missing segment.
const WITHHELD_INTERVAL: Duration = Duration::from_secs(60);
const MIN_RETRY_DELAY: Duration = Duration::from_millis(20);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(2);

/// A queued ending, with the journal files that must be kept until the ledger has the ending.
pub struct Settlement {
    pub ending: Ending,
    /// Claim to release once the ledger has the ending. It is zero unless this process has handed
    /// over by then.
    pub freed: CreditSplit,
    pub journalled_in: [Option<Arc<Segment>>; 2],
}

pub struct LedgerWriter {
    queue: Mutex<Option<QueueSender<Settlement>>>,
    /// `None` in a stepwise writer, which works only when [`LedgerWriter::step`] is called.
    thread: Mutex<Option<JoinHandle<()>>>,
    stepwise_worker: Option<Mutex<LedgerWriterWorker>>,
    pub state: Arc<LedgerWriterState>,
}

pub struct LedgerWriterDeps {
    pub ledger: Arc<Ledger>,
    pub holds: Arc<HoldRegistry>,
    pub journal: Arc<Journal>,
    pub mirror: HoldsMirror,
    pub data_dir: PathBuf,
}

pub struct LedgerWriterState {
    /// The endings that are journalled but not in the ledger yet.
    pub backlog: LedgerBacklog,
    /// End of the oldest of these requests, in ms since 1970; 0 if the backlog is empty.
    pub oldest_ms: AtomicI64,
    /// True if the last commit failed.
    pub failing: AtomicBool,
    /// True if the process is shutting down.
    pub closing: AtomicBool,
}

impl LedgerWriter {
    /// Starts the thread. `capacity` is the maximum length of its queue, and `backlog` limits
    /// admission.
    ///
    /// # Errors
    /// Returns an error if the thread cannot start.
    pub fn start(
        deps: LedgerWriterDeps,
        capacity: usize,
        backlog: LedgerBacklog,
    ) -> Result<Self, StoreError> {
        let (mut writer, mut worker) = Self::new(deps, capacity, backlog);
        let last_known_ms = worker.ledger.last_known_ms()?;
        worker.lapse_clock = Some(LapseClock::new(
            last_known_ms,
            clock::now_ms(),
            Instant::now(),
        ));
        let thread = std::thread::Builder::new()
            .name("ledger-writer".into())
            .spawn(move || worker.run())
            .map_err(|source| StoreError::io("start the ledger writer", source))?;
        writer.thread = Mutex::new(Some(thread));
        Ok(writer)
    }

    /// Creates a writer without a thread for simulations, which choose every step.
    ///
    /// # Errors
    /// Never returns an error. The signature is that of [`LedgerWriter::start`].
    pub fn new_stepwise(
        deps: LedgerWriterDeps,
        capacity: usize,
        backlog: LedgerBacklog,
    ) -> Result<Self, StoreError> {
        let (mut writer, worker) = Self::new(deps, capacity, backlog);
        writer.stepwise_worker = Some(Mutex::new(worker));
        Ok(writer)
    }

    fn new(
        deps: LedgerWriterDeps,
        capacity: usize,
        backlog: LedgerBacklog,
    ) -> (Self, LedgerWriterWorker) {
        let (sender, receiver) = bounded_queue(capacity);
        let state = Arc::new(LedgerWriterState {
            backlog,
            oldest_ms: AtomicI64::new(0),
            failing: AtomicBool::new(false),
            closing: AtomicBool::new(false),
        });
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
        let recovered = anchored;
        let worker = LedgerWriterWorker {
            pace: CommitPace::new(Instant::now()),
            ledger,
            holds,
            journal,
            mirror,
            data_dir,
            has_cleared_mirror,
            lapse_clock,
            anchored,
            recovered,
            rate: CommitRate::default(),
            withheld: Vec::new(),
            state,
            receiver,
        };
        (writer, worker)
    }

    /// Commits one batch of queued endings, and then does the background work. Returns false if the
    /// queue was empty. Only a stepwise writer supports this method.
    ///
    /// # Errors
    /// Returns an error if the ledger rejects the batch; its endings remain in the journal.
    pub fn step(&self, now_ms: i64) -> Result<bool, StoreError> {
        let Some(worker) = &self.stepwise_worker else {
            return Ok(false);
        };
        let mut worker = worker.lock().unwrap_or_else(PoisonError::into_inner);
        let batch: Vec<_> = worker.receiver.try_iter().take(MAX_BATCH).collect();
        let outcomes = worker.try_commit(&batch)?;
        let worked = !batch.is_empty();
        worker.keep_withheld(batch, outcomes);
        worker.publish_holds();
        worker.housekeep(now_ms);
        Ok(worked)
    }

    /// Queues an ending for the ledger. The queue has room for all open requests plus the backlog,
    /// so it is never full. Even if it were, the journal has the ending, and the next start would
    /// replay it.
    pub fn enqueue(&self, settlement: Settlement) {
        let now_ms = settlement.ending.at_ms;
        let _ =
            self.state
                .oldest_ms
                .compare_exchange(0, now_ms, Ordering::Relaxed, Ordering::Relaxed);
        self.state.backlog.add(&settlement.ending.account);
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
                .flatten()
                .for_each(|segment| segment.keep_for_replay());
            self.state.backlog.accept(1);
            self.state.backlog.remove([&*settlement.ending.account]);
            METRICS.ledger_error("settler_queue");
            log::error!(
                "cannot queue an ended request for the ledger: the queue is closed or full; the journal keeps it"
            );
        }
    }

    /// Stops the thread once every queued ending is in the ledger. If the ledger fails, the
    /// remaining endings are in the journal for the next start.
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
        if let Some(worker) = &self.stepwise_worker {
            let worker = worker.lock().unwrap_or_else(PoisonError::into_inner);
            worker.leave_withheld();
        }
    }
}

/// Chooses how long the writer collects endings. A busy ledger writes each page for many endings,
/// and a quiet one enters each debit at once.
struct CommitPace {
    per_second: u64,
    /// Number of endings since `counted_from`.
    count: u64,
    counted_from: Instant,
}

impl CommitPace {
    /// Number of endings per second above which the maximum delay applies.
    const BUSY_PER_SECOND: u64 = 20;
    const INTERVAL: Duration = Duration::from_secs(1);

    fn new(now: Instant) -> Self {
        Self {
            per_second: 0,
            count: 0,
            counted_from: now,
        }
    }

    fn delay(&self) -> Duration {
        if self.per_second < Self::BUSY_PER_SECOND {
            MIN_COMMIT_DELAY
        } else {
            MAX_COMMIT_DELAY
        }
    }

    /// Counts the endings of a batch that was collected by `now`.
    fn record(&mut self, endings: usize, now: Instant) {
        self.count = self.count.saturating_add(endings as u64);
        let elapsed = now.saturating_duration_since(self.counted_from);
        if elapsed >= Self::INTERVAL {
            let millis = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
            self.per_second = self.count.saturating_mul(1_000) / millis.max(1);
            (self.count, self.counted_from) = (0, now);
        }
    }
}

struct LedgerWriterWorker {
    pace: CommitPace,
    ledger: Arc<Ledger>,
    holds: Arc<HoldRegistry>,
    journal: Arc<Journal>,
    mirror: HoldsMirror,
    data_dir: PathBuf,
    /// True if this process has removed its mirrored holds after the handover.
    has_cleared_mirror: bool,
    /// `None` in a stepwise writer, where the caller supplies the time.
    lapse_clock: Option<LapseClock>,
    anchored: Instant,
    /// Time of the last search for journals of dead processes.
    recovered: Instant,
    rate: CommitRate,
    /// Endings that wait for a missing segment. There are at most as many as requests were open
    /// when it was sealed.
    withheld: Vec<Settlement>,
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
            let began = Instant::now();
            let outcomes = self.commit(&batch);
            self.measure(batch.len(), began);
            self.keep_withheld(batch, outcomes);
            self.publish_holds();
            if housekeeping.elapsed() >= HOUSEKEEPING_INTERVAL || ended {
                housekeeping = Instant::now();
                self.housekeep(clock::now_ms());
            }
            if ended {
                self.leave_withheld();
                return;
            }
        }
    }

    fn housekeep(&mut self, now_ms: i64) {
        let retries_withheld = self.retries_withheld();
        if retries_withheld {
            self.retry_withheld();
        }
        if !self.ledger.changes().has_handed_over() {
            self.recover_dead(retries_withheld);
            if self
                .lapse_clock
                .as_mut()
                .is_none_or(|clock| clock.accepts(now_ms, Instant::now()))
            {
                self.lapse_trials(now_ms);
                self.renew_anchor();
            }
        }
        let withheld = self.withheld.len() + self.holds.withheld();
        METRICS
            .withheld_endings
            .set(i64::try_from(withheld).unwrap_or(i64::MAX));
        self.journal.remove_covered();
        self.journal.restore_reserve();
    }

    /// Collects endings until the delay is over or the batch is full. The thread sleeps instead of
    /// waiting on the queue, so that requests need not wake it.
    fn fill_batch(&mut self, batch: &mut Vec<Settlement>) {
        let (began, delay) = (Instant::now(), self.pace.delay());
        loop {
            batch.extend(self.receiver.try_iter().take(MAX_BATCH - batch.len()));
            // No more endings arrive while the process shuts down.
            let is_closing = self.state.closing.load(Ordering::Acquire);
            if is_closing || batch.len() == MAX_BATCH || began.elapsed() >= delay {
                break;
            }
            std::thread::sleep(MIN_COMMIT_DELAY);
        }
        self.pace.record(batch.len(), Instant::now());
    }

    /// Measures the rate of commits, without the time in which their endings were collected. Small
    /// batches are measured too, because until the first measurement the rate is assumed to be low
    /// and would slow a single busy account down.
    fn measure(&mut self, committed: usize, began: Instant) {
        if committed >= MIN_MEASURED_BATCH {
            let rate = self.rate.record(committed, began.elapsed());
            self.state.backlog.set_rate(rate);
        }
    }

    /// Returns whether to try again to enter endings that wait for a segment. A stepwise writer
    /// tries at each step.
    fn retries_withheld(&mut self) -> bool {
        let is_due = self.lapse_clock.is_none()
            || self.state.closing.load(Ordering::Acquire)
            || self.recovered.elapsed() >= WITHHELD_INTERVAL;
        if is_due {
            self.recovered = Instant::now();
        }
        is_due
    }

    /// Tries to enter the endings that wait for a segment.
    fn retry_withheld(&mut self) {
        if self.withheld.is_empty() {
            return;
        }
        match self.append(&self.withheld) {
            Ok(outcomes) => {
                let batch = std::mem::take(&mut self.withheld);
                self.keep_withheld(batch, outcomes);
            }
            Err(error) => {
                METRICS.ledger_error("commit");
                log::error!("cannot enter endings that waited for a segment: {error}");
            }
        }
    }

    /// Keeps the endings that the ledger withholds, with their journal files. The files of all
    /// other endings are released.
    fn keep_withheld(&mut self, batch: Vec<Settlement>, outcomes: Vec<AppendOutcome>) {
        let withheld = batch
            .into_iter()
            .zip(outcomes)
            .filter(|(_, outcome)| *outcome == AppendOutcome::Withheld);
        self.withheld
            .extend(withheld.map(|(settlement, _)| settlement));
    }

    /// Leaves the endings that still wait to the process that replays this journal.
    fn leave_withheld(&self) {
        self.withheld
            .iter()
            .flat_map(|settlement| settlement.journalled_in.iter().flatten())
            .for_each(|segment| segment.keep_for_replay());
    }

    /// Enters the batch, and retries until it succeeds. Returns the outcomes of its endings, or
    /// none if they remain in the journal.
    fn commit(&self, batch: &[Settlement]) -> Vec<AppendOutcome> {
        let Some(oldest) = batch.first() else {
            return Vec::new();
        };
        self.state
            .oldest_ms
            .store(oldest.ending.at_ms, Ordering::Relaxed);
        failpoint::delay_if_armed(Point::LastByteSent);
        failpoint::slow_down(Point::LedgerEntry, batch.len());
        let mut pause = MIN_RETRY_DELAY;
        loop {
            let error = match self.try_commit(batch) {
                Ok(outcomes) => {
                    self.state.failing.store(false, Ordering::Relaxed);
                    return outcomes;
                }
                Err(error) => error,
            };
            self.state.failing.store(true, Ordering::Relaxed);
            METRICS.ledger_error("commit");
            if self.state.closing.load(Ordering::Acquire) && pause >= MAX_RETRY_DELAY {
                log::error!(
                    "cannot enter {} debits in the ledger: {error}; the next start replays them",
                    batch.len()
                );
                batch
                    .iter()
                    .flat_map(|settlement| settlement.journalled_in.iter().flatten())
                    .for_each(|segment| segment.keep_for_replay());
                return Vec::new();
            }
            log::error!(
                "cannot enter {} debits in the ledger: {error}; retrying in {} ms",
                batch.len(),
                pause.as_millis()
            );
            std::thread::sleep(pause);
            pause = (pause * 2).min(MAX_RETRY_DELAY);
        }
    }

    /// Enters the whole batch, or no ending.
    fn append(&self, batch: &[Settlement]) -> Result<Vec<AppendOutcome>, StoreError> {
        let changes: Vec<_> = batch
            .iter()
            .map(|settlement| LedgerChange::Ending {
                ending: &settlement.ending,
                freed: settlement.freed,
            })
            .collect();
        self.ledger.changes().append(&LedgerBatch {
            instance_id: self.journal.instance_id(),
            changes: &changes,
        })
    }

    /// Enters the whole batch, or no ending, and removes it from the backlog.
    fn try_commit(&self, batch: &[Settlement]) -> Result<Vec<AppendOutcome>, StoreError> {
        let outcomes = self.append(batch)?;
        let backlog = &self.state.backlog;
        backlog.accept(batch.len());
        let accounts = batch.iter().map(|settlement| &*settlement.ending.account);
        backlog.remove(accounts);
        // The next ending ended later than the last one of this batch. The next commit corrects the
        // time.
        let oldest = match batch.last() {
            Some(last) if backlog.kept() > 0 => last.ending.at_ms,
            _ => 0,
        };
        self.state.oldest_ms.store(oldest, Ordering::Relaxed);
        Ok(outcomes)
    }

    /// Publishes the holds, and answers requests for a refresh. The number of the request is read
    /// first: a process that claims credits before its request is seen by every hold that this
    /// publication does not include.
    fn publish_holds(&mut self) {
        if let Err(error) = self.write_mirror() {
            METRICS.ledger_error("mirror");
            log::warn!("{error}");
        }
    }

    fn write_mirror(&mut self) -> Result<(), StoreError> {
        if self.ledger.changes().has_handed_over() {
            if !std::mem::replace(&mut self.has_cleared_mirror, true) {
                self.mirror.remove_instance(self.journal.instance_id())?;
            }
            return Ok(());
        }
        let (answered, requested) = self.mirror.refresh_state()?;
        if requested > answered {
            // A claim that preceded the request must count in every hold that follows this
            // publication.
            self.ledger.rows().in_memory().clear();
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

    /// Cleans up after processes that died. The journals of processes that had handed over are
    /// entered, and endings that waited for a missing segment; then the claims of the dead
    /// processes are deleted.
    fn recover_dead(&self, retries_withheld: bool) {
        let holds_withheld = self.holds.withheld() > 0;
        if holds_withheld && !retries_withheld {
            return;
        }
        let mut hold = |withheld: &[WithheldCost]| self.holds.set_withheld(withheld);
        let outcome = if holds_withheld {
            self.ledger.rows().instance_ids()
        } else {
            self.ledger.changes().claimants()
        };
        let outcome = outcome.and_then(|known| {
            if holds_withheld || !known.is_empty() {
                recover_dead_instances(&self.ledger, &self.data_dir, &known, Some(&mut hold))?;
            }
            Ok(())
        });
        if let Err(error) = outcome {
            METRICS.ledger_error("dead_guests");
            log::warn!("cannot enter the journals of ended processes: {error}");
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

    /// Posts the lapse of expired trials, unless an open request may still spend the remaining
    /// credits.
    fn lapse_trials(&self, now_ms: i64) {
        let lapse = |(account, _): (String, Micro)| -> Result<(), StoreError> {
            if !self.holds.is_idle(&self.ledger, &account)? {
                return Ok(());
            }
            let Some(row) = self.ledger.rows().account(&account, "")? else {
                return Ok(());
            };
            self.ledger.changes().post(&Posting {
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
            .rows()
            .expired_trials(now_ms)
            .and_then(|accounts| accounts.into_iter().try_for_each(lapse));
        if let Err(error) = outcome {
            METRICS.ledger_error("lapse");
            log::warn!("cannot expire a trial: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quiet_ledger_commits_at_once_and_a_busy_one_collects() {
        let begin = Instant::now();
        let at = |millis| begin + Duration::from_millis(millis);
        let mut pace = CommitPace::new(begin);
        assert_eq!(pace.delay(), MIN_COMMIT_DELAY);
        pace.record(1_000, at(999));
        assert_eq!(pace.delay(), MIN_COMMIT_DELAY, "the second is not over");
        pace.record(1, at(1_000));
        assert_eq!(pace.delay(), MAX_COMMIT_DELAY);
        // One below the limit, in two seconds.
        pace.record(39, at(3_000));
        assert_eq!(pace.delay(), MIN_COMMIT_DELAY);
        pace.record(40, at(5_000));
        assert_eq!(pace.delay(), MAX_COMMIT_DELAY);
        // Nothing for a long time, then one.
        pace.record(1, at(60_000));
        assert_eq!(pace.delay(), MIN_COMMIT_DELAY);
    }
}
