//! The indexer: the thread that keeps the ledger's index (`index.db`) up to date, and removes from
//! the ledger what the index replaces.
//!
//! It works in the background: it waits until a batch is worth its writes, and rests after each
//! one, so that the ledger writer and requests come first. A reader indexes the last few entries
//! itself (`store/ledger/indexing.rs`), so no page waits for this thread. Must not enter anything.

use super::journal;
use crate::store::StoreError;
use crate::store::ledger::{Ledger, MAX_INDEX_BATCH};
use crate::telemetry::METRICS;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Interval at which the thread looks for new entries. Any process can enter some.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// A batch begins with this number of new entries, or when the first of them has waited for
/// `MAX_DELAY`. A batch writes each page that it touches once, so a larger one writes less.
const MIN_BATCH: u64 = 1_024;
const MAX_DELAY: Duration = Duration::from_secs(10);

/// Number of entries from which on the thread rests only half as long as it works: the index of an
/// older ledger is made for the first time.
const LARGE_LAG: u64 = 100_000;

/// Delay after a failure.
const RETRY_DELAY: Duration = Duration::from_secs(2);

/// Longest work at a shutdown. The next start continues.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);

/// Handle of the indexer.
pub struct Indexer {
    state: Arc<IndexerState>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct IndexerState {
    is_closing: Mutex<bool>,
    closing: Condvar,
}

struct IndexerWorker {
    ledger: Arc<Ledger>,
    data_dir: PathBuf,
    state: Arc<IndexerState>,
    /// Since when there are entries that are not indexed.
    behind_since: Option<Instant>,
    /// Whether nothing that the index replaces is left in the ledger.
    has_removed_retired: bool,
}

impl Indexer {
    /// Starts the thread for the ledger in `data_dir`.
    ///
    /// # Errors
    /// Returns an error if the thread cannot start.
    pub fn start(ledger: &Arc<Ledger>, data_dir: &Path) -> Result<Self, StoreError> {
        let state = Arc::new(IndexerState::default());
        let worker = IndexerWorker {
            ledger: Arc::clone(ledger),
            data_dir: data_dir.to_owned(),
            state: Arc::clone(&state),
            behind_since: None,
            has_removed_retired: false,
        };
        let thread = std::thread::Builder::new()
            .name("indexer".into())
            .spawn(move || worker.run())
            .map_err(|source| StoreError::io("start the indexer", source))?;
        Ok(Self {
            state,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Indexes what is missing, for at most a second, and stops the thread.
    pub fn shut_down(&self) {
        *self.state.lock() = true;
        self.state.closing.notify_all();
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = thread.take() {
            let _ = thread.join();
        }
    }
}

impl IndexerState {
    fn lock(&self) -> MutexGuard<'_, bool> {
        self.is_closing
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits; returns false at once when the process shuts down.
    fn wait(&self, pause: Duration) -> bool {
        let waited = self
            .closing
            .wait_timeout_while(self.lock(), pause, |is_closing| !*is_closing);
        let (is_closing, _) = waited.unwrap_or_else(PoisonError::into_inner);
        !*is_closing
    }
}

impl IndexerWorker {
    fn run(mut self) {
        let mut pause = POLL_INTERVAL;
        while self.state.wait(pause) {
            pause = match self.step() {
                Ok(pause) => pause,
                // The index logs its failures.
                Err(_) => RETRY_DELAY,
            };
        }
        let began = Instant::now();
        while began.elapsed() < SHUTDOWN_TIMEOUT
            && matches!(self.ledger.catch_up_index(MAX_INDEX_BATCH), Ok(1..))
        {}
    }

    /// Does the next piece of work. Returns how long to rest then.
    fn step(&mut self) -> Result<Duration, StoreError> {
        let lag = self.ledger.index_lag();
        METRICS
            .index_lag_entries
            .set(i64::try_from(lag).unwrap_or(i64::MAX));
        if lag == 0 {
            self.behind_since = None;
            self.remove_retired();
            return Ok(POLL_INTERVAL);
        }
        let behind_since = *self.behind_since.get_or_insert_with(Instant::now);
        if lag < MIN_BATCH && behind_since.elapsed() < MAX_DELAY {
            return Ok(POLL_INTERVAL);
        }
        let began = Instant::now();
        let indexed = self.ledger.catch_up_index(MAX_INDEX_BATCH)?;
        let took = began.elapsed();
        let left = lag.saturating_sub(indexed as u64);
        if left < MIN_BATCH {
            self.behind_since = None;
            return Ok(POLL_INTERVAL.max(took));
        }
        Ok(if left > LARGE_LAG { took / 2 } else { took })
    }

    /// Removes the next part of what older versions read pages from, once no other process runs
    /// that could be of an older version.
    fn remove_retired(&mut self) {
        if self.has_removed_retired {
            return;
        }
        let others = journal::live_instance_ids(&self.data_dir);
        if others.is_ok_and(|living| living.len() > 1) {
            return;
        }
        match self.ledger.remove_retired() {
            Ok(is_left) => self.has_removed_retired = !is_left,
            Err(error) => log::debug!("{error}; the indexer tries again"),
        }
    }
}
