//! Runs the indexer, the thread that writes the ledger's index (`index.db`), and removes from the
//! ledger what the index replaces.
//!
//! The thread runs rarely, in the background: a batch writes each page once, so a large batch
//! writes little for each entry. Readers have the newest entries in memory (`index/tail.rs`), so no
//! page waits for this thread. This module must not add entries to the ledger.

mod aggregates;
pub(crate) mod retired;

use crate::StoreError;
use crate::journal;
use crate::{Ledger, MAX_INDEX_BATCH};
use base::telemetry::METRICS;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Interval at which the thread looks for new entries, which any process may have added.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Number of new entries at which a batch begins, unless `MAX_DELAY` has passed for the first of
/// them. With a thousand accounts, such a batch has some tens of entries for each page that it
/// writes, takes tenths of a second, and needs about 20 MB of memory.
const MIN_BATCH: u64 = MAX_INDEX_BATCH as u64;
/// Maximum time until a new entry is indexed. At 100 entries a second, this time and `MIN_BATCH`
/// are reached at about the same time. The first read after a start indexes entries of up to this
/// time in memory.
const MAX_DELAY: Duration = Duration::from_secs(600);

/// Number of unindexed entries above which the thread rests only half as long as it works. Such a
/// backlog means that the index of an older ledger is built for the first time.
const LARGE_LAG: u64 = 4 * MIN_BATCH;

/// Delay after a failure.
const RETRY_DELAY: Duration = Duration::from_secs(2);

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
    /// Time since which some entries are not indexed.
    behind_since: Option<Instant>,
    /// True if all data that the index replaces was removed from the ledger.
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

    /// Stops the thread. The next start indexes the remaining entries.
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

    /// Waits. Returns false at once if the process shuts down.
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
                // The index logs its own failures.
                Err(_) => RETRY_DELAY,
            };
        }
    }

    /// Indexes a batch if there are enough new entries, or if they have waited long enough. Returns
    /// the delay before the next step.
    fn step(&mut self) -> Result<Duration, StoreError> {
        let backlog = self.ledger.index().index_backlog()?;
        METRICS
            .index_lag_entries
            .set(i64::try_from(backlog).unwrap_or(i64::MAX));
        if backlog < MIN_BATCH {
            self.remove_retired();
            if backlog == 0 {
                self.behind_since = None;
                return Ok(POLL_INTERVAL);
            }
            let behind_since = self.behind_since.get_or_insert_with(Instant::now);
            if behind_since.elapsed() < MAX_DELAY {
                return Ok(POLL_INTERVAL);
            }
        }
        let began = Instant::now();
        let indexed = self.ledger.index().catch_up_index(MAX_INDEX_BATCH)?;
        let took = began.elapsed();
        let left = backlog.saturating_sub(indexed as u64);
        if left < MIN_BATCH {
            self.behind_since = None;
            return Ok(POLL_INTERVAL.max(took));
        }
        Ok(if left > LARGE_LAG { took / 2 } else { took })
    }

    /// Removes the next part of the tables and indexes that older versions used for pages, once no
    /// process runs that could have an older version.
    fn remove_retired(&mut self) {
        if self.has_removed_retired {
            return;
        }
        let others = journal::live_instance_ids(&self.data_dir);
        if others.is_ok_and(|living| living.len() > 1) {
            return;
        }
        match self.ledger.index().remove_retired() {
            Ok(is_left) => self.has_removed_retired = !is_left,
            Err(error) => log::debug!("{error}; the indexer tries again"),
        }
    }
}
