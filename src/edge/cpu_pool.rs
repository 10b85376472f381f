//! Runs CPU work on large bodies in a pool. Decoding, parsing, counting or translating a large body
//! would block an async worker, and with it every other request that the worker serves.
//!
//! Short jobs have one lane of the pool and long jobs another, because a job is never interrupted:
//! behind a body of 30 MB, short jobs would wait for seconds. A lane has a fixed number of permits,
//! one less than there are cores. A job with a permit runs on a thread of its own with a low
//! priority, so that workers come first when cores are short. Jobs wait in one queue per account,
//! and the accounts take turns. [`CpuWorker`] is the pool for one account. Jobs on small bodies run
//! on the worker. This file must not depend on a kind of job.

#[cfg(test)]
mod tests;

use super::caught_panic;
use base::failpoint::{self, Point};
use base::telemetry::METRICS;
use config::Limits;
use llm_protocol::failure::{Failure, Kind};
use llm_protocol::request;
use pingora::proxy::Session;
use std::collections::{HashMap, VecDeque};
use std::future::pending;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::oneshot;
use tokio::task::block_in_place;
use tokio::time::timeout;

/// Maximum size, in bytes, of a body whose jobs run on the async worker, where they take less than
/// a millisecond. `benches/instructions.json` measures 8.2 million instructions for 1 MB, so this
/// size takes about two million. A job on a thread of its own costs hundreds of microseconds more
/// while the worker is busy.
pub const MAX_INLINE_BYTES: usize = 262_144;
/// Maximum work of a short job, in bytes. Translating 2 MiB takes some ten milliseconds.
pub const MAX_SHORT_WORK: usize = 2_097_152;
/// Maximum number of values that a short job reads.
const MAX_SHORT_VALUES: u64 = (MAX_SHORT_WORK / VALUE_BYTES) as u64;
/// The work of one short member of an object or item of an array, in bytes of one long text.
/// Reading such a member takes 1 µs, and translating it up to 2 µs more.
const VALUE_BYTES: usize = 64;
/// The work of one escape, in bytes of one long text. 250 KB of escapes take four times as long as
/// 250 KB of prose, and unescaping shortens them to half.
const ESCAPE_BYTES: usize = 8;
/// Nice value added to a job's thread. An async worker that needs the same core gets nine times its
/// share.
const NICENESS: i32 = 10;
/// Maximum number of jobs of admitted requests that block a runtime thread at a time. The runtime
/// has 512 such threads. Above this bound a job runs on its worker.
const MAX_BLOCKED: usize = 64;

/// Returns the work on a JSON body of `bytes`, in bytes of one long text that takes as long.
/// `values` is the number of members of objects and items of arrays; `escape_bytes` is the number
/// of bytes that unescaping removes. A small body can consist of thousands of values or escapes.
pub fn work(bytes: usize, values: usize, escape_bytes: usize) -> usize {
    bytes
        .max(values.saturating_mul(VALUE_BYTES))
        .max(escape_bytes.saturating_mul(ESCAPE_BYTES))
}

/// Returns the work on a JSON body whose values and escapes have not been counted yet.
pub fn work_of(body: &[u8]) -> usize {
    if body.len() > MAX_INLINE_BYTES {
        return body.len();
    }
    let too_many = MAX_INLINE_BYTES / VALUE_BYTES + 1;
    work(body.len(), request::estimate_values(body, too_many), 0)
}

pub struct CpuPool {
    short: Arc<Lane>,
    long: Arc<Lane>,
    blocked: AtomicUsize,
}

struct Lane(Mutex<LaneState>);

struct LaneState {
    free: usize,
    /// Waiting jobs by account. No queue is empty.
    queues: HashMap<Arc<str>, VecDeque<oneshot::Sender<CpuPermit>>>,
    /// Accounts that have a queue, the next one first.
    turns: VecDeque<Arc<str>>,
    waiting: usize,
}

/// A permit of a lane. Dropping it passes it to the next job.
struct CpuPermit(Option<Arc<Lane>>);

enum PermitOutcome {
    Granted(CpuPermit),
    Queued(QueuedJob),
}

/// A waiting job. Dropping the job removes it from its account's queue.
struct QueuedJob {
    permit: oneshot::Receiver<CpuPermit>,
    lane: Arc<Lane>,
}

impl CpuPool {
    /// Creates the pool. `threads` is the maximum number of short jobs, and of long jobs, that run
    /// at a time; 0 means one less than there are cores.
    pub fn new(threads: u64) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let permits = if threads == 0 {
            cores.saturating_sub(1).max(1)
        } else {
            to_usize(threads)
        };
        Self {
            short: Lane::new(permits),
            long: Lane::new(permits),
            blocked: AtomicUsize::new(0),
        }
    }

    /// Returns the pool for the requests of one account.
    pub fn worker(self: &Arc<Self>, account: &Arc<str>, limits: &Limits) -> CpuWorker {
        CpuWorker {
            pool: Arc::clone(self),
            account: Arc::clone(account),
            queued_max: to_usize(limits.cpu_queue),
            queued_per_account_max: to_usize(limits.cpu_queue_per_account),
            wait: Duration::from_secs(limits.cpu_queue_seconds),
        }
    }

    fn lane(&self, work: usize) -> &Arc<Lane> {
        if work <= MAX_SHORT_WORK {
            &self.short
        } else {
            &self.long
        }
    }
}

impl Lane {
    fn new(permits: usize) -> Arc<Self> {
        let state = LaneState {
            free: permits,
            queues: HashMap::new(),
            turns: VecDeque::new(),
            waiting: 0,
        };
        Arc::new(Self(Mutex::new(state)))
    }

    fn lock(&self) -> MutexGuard<'_, LaneState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes the permit to the first waiting job of the account whose turn it is.
    fn hand_over_permit(self: &Arc<Self>) {
        let mut state = self.lock();
        while let Some(next) = state.next_waiter() {
            match next.send(CpuPermit(Some(Arc::clone(self)))) {
                Ok(()) => return,
                // The request of that job has ended. Offer the permit to the next one.
                Err(mut permit) => drop(permit.0.take()),
            }
        }
        state.free = state.free.saturating_add(1);
    }
}

fn to_usize(limit: u64) -> usize {
    usize::try_from(limit).unwrap_or(usize::MAX)
}

impl LaneState {
    fn next_waiter(&mut self) -> Option<oneshot::Sender<CpuPermit>> {
        let account = self.turns.pop_front()?;
        let queue = self.queues.get_mut(&account)?;
        let next = queue.pop_front();
        if queue.is_empty() {
            self.queues.remove(&account);
        } else {
            self.turns.push_back(account);
        }
        self.set_waiting(self.waiting.saturating_sub(1));
        next
    }

    fn enqueue(&mut self, account: &Arc<str>) -> oneshot::Receiver<CpuPermit> {
        let (sender, receiver) = oneshot::channel();
        let queue = self.queues.entry(Arc::clone(account)).or_default();
        if queue.is_empty() {
            self.turns.push_back(Arc::clone(account));
        }
        queue.push_back(sender);
        self.set_waiting(self.waiting.saturating_add(1));
        receiver
    }

    /// Removes the jobs whose requests have ended.
    fn remove_abandoned(&mut self) {
        self.queues
            .values_mut()
            .for_each(|queue| queue.retain(|waiter| !waiter.is_closed()));
        self.queues.retain(|_, queue| !queue.is_empty());
        let Self { queues, turns, .. } = self;
        turns.retain(|account| queues.contains_key(account));
        self.set_waiting(self.queues.values().map(VecDeque::len).sum());
    }

    fn set_waiting(&mut self, waiting: usize) {
        let count = |jobs: usize| i64::try_from(jobs).unwrap_or(i64::MAX);
        METRICS
            .cpu_jobs_waiting
            .add(count(waiting).saturating_sub(count(self.waiting)));
        self.waiting = waiting;
    }
}

impl QueuedJob {
    /// Waits for a permit. Returns `None` if none arrived in time.
    async fn wait(&mut self, time_limit: Duration) -> Option<CpuPermit> {
        timeout(time_limit, &mut self.permit).await.ok()?.ok()
    }
}

impl Drop for QueuedJob {
    fn drop(&mut self) {
        self.permit.close();
        // A permit that arrived at the last moment is dropped here, which hands it to the next job.
        drop(self.permit.try_recv());
        self.lane.lock().remove_abandoned();
    }
}

impl Drop for CpuPermit {
    fn drop(&mut self) {
        if let Some(lane) = self.0.take() {
            lane.hand_over_permit();
        }
    }
}

#[derive(Clone)]
pub struct CpuWorker {
    pool: Arc<CpuPool>,
    account: Arc<str>,
    queued_max: usize,
    queued_per_account_max: usize,
    wait: Duration,
}

impl CpuWorker {
    /// Waits for a slot for a job with this work. If the client disconnects meanwhile, the job does
    /// not start.
    ///
    /// # Errors
    /// Returns 503 if too many jobs wait, or if this one waited for too long.
    pub async fn slot(&self, work: usize, session: &mut Session) -> Result<CpuSlot, Failure> {
        if work <= MAX_INLINE_BYTES {
            return Ok(CpuSlot(None));
        }
        let is_short = work <= MAX_SHORT_WORK;
        let slot = |permit| CpuSlot(Some((permit, is_short)));
        let mut queued = match self.request_permit(work).ok_or_else(queue_full)? {
            PermitOutcome::Granted(permit) => return Ok(slot(permit)),
            PermitOutcome::Queued(queued) => queued,
        };
        tokio::select! {
            biased;
            permit = queued.wait(self.wait) => permit.map(slot).ok_or_else(queue_full),
            () = wait_for_client_close(session) => Err(client_left()),
        }
    }

    /// Runs a job with this work for a request that holds credit. The request has waited its turn
    /// at admission and must not be refused any more, so the job waits a while for a permit and
    /// then runs without one.
    pub fn run_admitted<T: Send>(&self, work: usize, job: impl FnOnce() -> T + Send) -> T {
        if work <= MAX_INLINE_BYTES || !may_block() {
            return job();
        }
        let is_bounded = self.pool.blocked.fetch_add(1, Ordering::Relaxed) < MAX_BLOCKED;
        let _blocked = BlockedGuard(&self.pool);
        if !is_bounded {
            return job();
        }
        block_in_place(|| {
            let _permit = match self.request_permit(work) {
                Some(PermitOutcome::Granted(permit)) => Some(permit),
                Some(PermitOutcome::Queued(mut queued)) => {
                    Handle::current().block_on(queued.wait(self.wait))
                }
                None => None,
            };
            run_in_thread(job)
        })
    }

    /// Requests a permit for a job with this work. Returns `None` if too many jobs wait.
    fn request_permit(&self, work: usize) -> Option<PermitOutcome> {
        let lane = self.pool.lane(work);
        let mut state = lane.lock();
        if state.free > 0 {
            state.free = state.free.saturating_sub(1);
            return Some(PermitOutcome::Granted(CpuPermit(Some(Arc::clone(lane)))));
        }
        let queued = state.queues.get(&self.account).map_or(0, VecDeque::len);
        let is_below_limits =
            state.waiting < self.queued_max && queued < self.queued_per_account_max;
        is_below_limits.then(|| {
            PermitOutcome::Queued(QueuedJob {
                permit: state.enqueue(&self.account),
                lane: Arc::clone(lane),
            })
        })
    }
}

fn queue_full() -> Failure {
    Failure::from_kind(Kind::CpuQueueFull)
}

/// Returns the failure of a request whose client left while it waited. Nobody reads this failure.
pub(super) fn client_left() -> Failure {
    let message = "The client closed the connection while its request waited.";
    Failure::new(Kind::InvalidRequest, message)
}

/// Returns once the client has closed its connection or its stream.
pub(super) async fn wait_for_client_close(session: &mut Session) {
    if session
        .downstream_session
        .read_body_or_idle(true)
        .await
        .is_ok()
    {
        pending::<()>().await;
    }
}

/// The right to run one job, on its worker or with a permit. The flag says whether the permit is
/// for a short job.
pub struct CpuSlot(Option<(CpuPermit, bool)>);

impl CpuSlot {
    /// Returns how many values a short job may read; a body with more values is a long job. `None`
    /// means any number.
    pub fn values_max(&self) -> Option<u64> {
        let (_, is_short) = self.0.as_ref()?;
        is_short.then_some(MAX_SHORT_VALUES)
    }

    /// Runs the job, on another thread if the body is large. A panic in the job counts as a panic
    /// of the request.
    pub fn run<T: Send>(self, job: impl FnOnce() -> T + Send) -> T {
        match self.0 {
            Some(_permit) if may_block() => block_in_place(|| run_in_thread(job)),
            _ => job(),
        }
    }
}

/// Counts a job that blocks a runtime thread.
struct BlockedGuard<'a>(&'a CpuPool);

impl Drop for BlockedGuard<'_> {
    fn drop(&mut self) {
        self.0.blocked.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Returns whether this thread may block. Only a multi-threaded runtime can run the worker's other
/// tasks elsewhere.
fn may_block() -> bool {
    Handle::try_current()
        .is_ok_and(|runtime| runtime.runtime_flavor() == RuntimeFlavor::MultiThread)
}

/// Runs the job on a new thread with a low priority. The thread is not reused, because only the
/// superuser may raise its priority again.
fn run_in_thread<T: Send>(job: impl FnOnce() -> T + Send) -> T {
    let mut job = Some(job);
    let outcome = std::thread::scope(|scope| {
        let run = || {
            // If the call fails, the job still runs, but takes more CPU time from others.
            let _ = rustix::process::setpriority_process(None, NICENESS);
            job.take().map(|job| {
                caught_panic::catch_job(|| {
                    failpoint::hit(Point::CpuJob);
                    job()
                })
            })
        };
        let thread = std::thread::Builder::new()
            .name("cpu".into())
            .spawn_scoped(scope, run);
        thread.ok().and_then(|thread| thread.join().ok().flatten())
    });
    match (outcome, job) {
        (Some(outcome), _) => outcome.unwrap_or_else(|panic| panic.resume()),
        (None, Some(job)) => job(),
        (None, None) => unreachable!("a job that was begun has an outcome"),
    }
}
