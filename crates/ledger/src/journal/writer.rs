//! Writes records on a thread of its own, in the order in which they were submitted. A disk that
//! does not answer holds up this thread alone; the tasks that submitted records wait for it.
//!
//! The thread takes every queued record each time it wakes, so that one wake-up, one write and one
//! sync serve many requests. This file must not know what a record means.

use super::line::EncodedRecord;
use super::{Journal, Segment};
use crate::StoreError;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

/// Maximum number of queued records above which no request begins. The ends of open requests are
/// queued regardless, so `limits.open_requests` bounds them.
pub(super) const MAX_QUEUED_BEFORE_OPEN: usize = 4_096;
/// Maximum number of records that are written at once.
const MAX_BATCH: usize = 256;
/// Number of records that came together from which on the thread collects the next ones, because
/// more are about to come. Waking the thread for each record costs more than writing it.
const MIN_COLLECTED: usize = 2;
/// Time for which the thread collects records.
const COLLECT_TIME: Duration = Duration::from_micros(500);

/// Called once with the outcome, before those who wait for the record learn it.
type WriteCallback = Box<dyn FnOnce(io::Result<Arc<Segment>>) + Send>;

/// Queues records for a journal. Dropping it writes the queued records and ends the thread.
pub struct JournalWriter {
    journal: Arc<Journal>,
    queue: Arc<WriteQueue>,
    /// `None` if records are written by the threads that submit them.
    thread: Mutex<Option<JoinHandle<()>>>,
    is_threaded: bool,
}

/// A submitted record. Clones refer to the same record.
#[derive(Clone)]
pub struct JournalWrite(Arc<WriteCell>);

struct WriteCell {
    queue: Arc<WriteQueue>,
    state: Mutex<WriteState>,
}

enum WriteState {
    /// Holds the task that waits.
    Waiting(Option<Waker>),
    Written(Arc<Segment>),
    Failed(io::ErrorKind, String),
}

#[derive(Default)]
struct WriteQueue {
    state: Mutex<WriteQueueState>,
    /// Wakes the thread.
    arrived: Condvar,
    /// Wakes those who wait for the end of the thread.
    ended: Condvar,
}

#[derive(Default)]
struct WriteQueueState {
    records: VecDeque<QueuedRecord>,
    /// True while the thread waits for a record.
    is_idle: bool,
    is_closing: bool,
    has_ended: bool,
}

struct QueuedRecord {
    record: EncodedRecord,
    pending: PendingWrite,
}

/// What the outcome of a record is for.
struct PendingWrite {
    write: JournalWrite,
    /// `None` once it has run.
    completion: Option<WriteCallback>,
}

impl JournalWriter {
    /// Starts the thread.
    ///
    /// # Errors
    /// Returns an error if the thread cannot start.
    pub fn start(journal: Arc<Journal>) -> Result<Self, StoreError> {
        let writer = Self::new(journal, true);
        let worker = Worker {
            journal: Arc::clone(&writer.journal),
            queue: Arc::clone(&writer.queue),
        };
        let thread = thread::Builder::new()
            .name("journal".into())
            .spawn(move || worker.run())
            .map_err(|source| StoreError::io("start the journal's thread", source))?;
        *lock(&writer.thread) = Some(thread);
        Ok(writer)
    }

    /// Creates a writer without a thread, for simulations: the thread that submits a record writes
    /// it.
    pub fn new_inline(journal: Arc<Journal>) -> Self {
        Self::new(journal, false)
    }

    fn new(journal: Arc<Journal>, is_threaded: bool) -> Self {
        Self {
            journal,
            queue: Arc::default(),
            thread: Mutex::default(),
            is_threaded,
        }
    }

    pub fn journal(&self) -> &Arc<Journal> {
        &self.journal
    }

    /// Queues a record. `completion` runs on the journal's thread once the record is written or
    /// has failed, or on the thread of the caller if that is clear at once.
    pub fn submit(
        &self,
        record: io::Result<EncodedRecord>,
        completion: impl FnOnce(io::Result<Arc<Segment>>) + Send + 'static,
    ) -> JournalWrite {
        let write = JournalWrite(Arc::new(WriteCell {
            queue: Arc::clone(&self.queue),
            state: Mutex::new(WriteState::Waiting(None)),
        }));
        let pending = PendingWrite {
            write: write.clone(),
            completion: Some(Box::new(completion)),
        };
        match record {
            Err(error) => drop(pending.complete(Err(error))),
            Ok(record) if !self.is_threaded => {
                QueuedRecord { record, pending }.write_to(&self.journal);
            }
            Ok(record) => {
                if let Err((refused, why)) = self.queue.push(QueuedRecord { record, pending }) {
                    refused.pending.fail(io::ErrorKind::WouldBlock, why);
                }
            }
        }
        write
    }

    /// Writes the queued records and ends the thread. Returns whether it has ended within
    /// `timeout`; a disk that does not answer keeps it.
    pub fn close(&self, timeout: Duration) -> bool {
        if !self.is_threaded {
            return true;
        }
        let until = Instant::now() + timeout;
        let mut state = self.queue.lock();
        state.is_closing = true;
        self.queue.arrived.notify_all();
        while !state.has_ended {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            state = self
                .queue
                .ended
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        true
    }
}

impl Drop for JournalWriter {
    fn drop(&mut self) {
        self.queue.lock().is_closing = true;
        self.queue.arrived.notify_all();
        // A completion may drop the last owner of this writer on the journal's own thread.
        if let Some(thread) = lock(&self.thread).take()
            && thread.thread().id() != thread::current().id()
        {
            let _ = thread.join();
        }
    }
}

impl JournalWrite {
    /// Waits until the record survives a crash of the process. Returns the file that has it. Only
    /// one task may wait at a time.
    ///
    /// # Errors
    /// Returns an error if the record is not in the journal.
    pub async fn wait(&self) -> io::Result<Arc<Segment>> {
        poll_fn(|context| self.poll(context)).await
    }

    /// Waits like [`JournalWrite::wait`], on a thread that may block.
    ///
    /// # Errors
    /// Returns an error if the record is not in the journal.
    pub fn wait_on_thread(&self) -> io::Result<Arc<Segment>> {
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        loop {
            match self.poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(written) => return written,
                Poll::Pending => thread::park(),
            }
        }
    }

    /// Returns the file that has the record, or `None` if the record is not written.
    pub fn segment(&self) -> Option<Arc<Segment>> {
        match &*lock(&self.0.state) {
            WriteState::Written(segment) => Some(Arc::clone(segment)),
            _ => None,
        }
    }

    pub fn has_failed(&self) -> bool {
        matches!(*lock(&self.0.state), WriteState::Failed(..))
    }

    /// Takes the record back, unless the thread has begun to write it. Returns whether it was
    /// taken back; it then counts as failed.
    pub fn withdraw(&self) -> bool {
        let withdrawn = {
            let mut state = self.0.queue.lock();
            let same = |queued: &QueuedRecord| Arc::ptr_eq(&queued.pending.write.0, &self.0);
            let place = state.records.iter().position(same);
            place.and_then(|place| state.records.remove(place))
        };
        let why = "the disk does not answer";
        let fail = |withdrawn: QueuedRecord| withdrawn.pending.fail(io::ErrorKind::TimedOut, why);
        withdrawn.map(fail).is_some()
    }

    fn poll(&self, context: &mut Context<'_>) -> Poll<io::Result<Arc<Segment>>> {
        match &mut *lock(&self.0.state) {
            WriteState::Written(segment) => Poll::Ready(Ok(Arc::clone(segment))),
            WriteState::Failed(kind, why) => Poll::Ready(Err(io::Error::new(*kind, why.clone()))),
            WriteState::Waiting(waker) => {
                if !waker
                    .as_ref()
                    .is_some_and(|known| known.will_wake(context.waker()))
                {
                    *waker = Some(context.waker().clone());
                }
                Poll::Pending
            }
        }
    }
}

impl WriteQueue {
    fn lock(&self) -> MutexGuard<'_, WriteQueueState> {
        lock(&self.state)
    }

    /// Queues a record, or returns it with the reason.
    fn push(&self, queued: QueuedRecord) -> Result<(), (QueuedRecord, &'static str)> {
        let mut state = self.lock();
        if state.has_ended {
            return Err((queued, "the journal is closed"));
        }
        let is_full = state.records.len() >= MAX_QUEUED_BEFORE_OPEN;
        if is_full && queued.record.is_open() {
            return Err((queued, "too many records wait for the disk"));
        }
        state.records.push_back(queued);
        let wakes = std::mem::take(&mut state.is_idle);
        drop(state);
        if wakes {
            self.arrived.notify_one();
        }
        Ok(())
    }

    /// Waits for records and takes them. If it `collects`, it first lets some come together.
    /// Returns `None` once the queue is closed and empty.
    fn take(&self, collects: bool) -> Option<Vec<QueuedRecord>> {
        if collects {
            thread::sleep(COLLECT_TIME);
        }
        let mut state = self.lock();
        loop {
            if !state.records.is_empty() {
                let count = state.records.len().min(MAX_BATCH);
                return Some(state.records.drain(..count).collect());
            }
            if state.is_closing {
                return None;
            }
            state.is_idle = true;
            state = self
                .arrived
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl QueuedRecord {
    fn write_to(mut self, journal: &Journal) {
        let written = journal.append_encoded(&mut self.record);
        if let Ok(segment) = &written
            && self.record.is_end()
        {
            journal.sync_if_configured(segment);
        }
        self.pending
            .complete(written)
            .into_iter()
            .for_each(Waker::wake);
    }
}

impl PendingWrite {
    /// Runs the completion, and returns the task that waits for it.
    fn complete(mut self, outcome: io::Result<Arc<Segment>>) -> Option<Waker> {
        self.conclude(outcome)
    }

    fn fail(self, kind: io::ErrorKind, why: &'static str) {
        let waiting = self.complete(Err(io::Error::new(kind, why)));
        waiting.into_iter().for_each(Waker::wake);
    }

    fn conclude(&mut self, outcome: io::Result<Arc<Segment>>) -> Option<Waker> {
        let completion = self.completion.take()?;
        let state = match &outcome {
            Ok(segment) => WriteState::Written(Arc::clone(segment)),
            Err(error) => WriteState::Failed(error.kind(), error.to_string()),
        };
        // Whoever waits must learn the outcome even if the completion panics.
        let completed = catch_unwind(AssertUnwindSafe(|| completion(outcome)));
        if completed.is_err() {
            log::error!("a panic followed the writing of a record; the record is not affected");
        }
        match std::mem::replace(&mut *lock(&self.write.0.state), state) {
            WriteState::Waiting(waker) => waker,
            WriteState::Written(_) | WriteState::Failed(..) => None,
        }
    }
}

/// A record that nobody writes any more has failed.
impl Drop for PendingWrite {
    fn drop(&mut self) {
        let lost = io::Error::other("the journal's thread has ended");
        self.conclude(Err(lost)).into_iter().for_each(Waker::wake);
    }
}

/// The thread that writes.
struct Worker {
    journal: Arc<Journal>,
    queue: Arc<WriteQueue>,
}

impl Worker {
    fn run(&self) {
        let mut collects = false;
        while let Some(batch) = self.queue.take(collects) {
            collects = batch.len() >= MIN_COLLECTED;
            self.write(batch);
        }
    }

    /// Writes the records, syncs their files once, and then wakes all who wait.
    fn write(&self, batch: Vec<QueuedRecord>) {
        let (mut records, pending): (Vec<_>, Vec<_>) = batch
            .into_iter()
            .map(|queued| (queued.record, queued.pending))
            .unzip();
        let written = self.journal.append_all(&mut records);
        let mut synced: Option<&Arc<Segment>> = None;
        for (record, segment) in records.iter().zip(&written) {
            if let Ok(segment) = segment
                && record.is_end()
                && synced.is_none_or(|synced| !Arc::ptr_eq(synced, segment))
            {
                self.journal.sync_if_configured(segment);
                synced = Some(segment);
            }
        }
        let outcomes = pending.into_iter().zip(written);
        let waiting: Vec<_> = outcomes
            .filter_map(|(pending, written)| pending.complete(written))
            .collect();
        waiting.into_iter().for_each(Waker::wake);
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let mut state = self.queue.lock();
        state.has_ended = true;
        let left = std::mem::take(&mut state.records);
        drop(state);
        self.queue.ended.notify_all();
        drop(left);
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
