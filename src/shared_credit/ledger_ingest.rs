//! Implements the sidecar's ledger ingest for a shared store. It enters the store's events into the
//! ledger, and publishes changes from the ledger and the accounts' database to the store.
//!
//! One thread runs one task after another. A task can start over after a failure or a crash,
//! because every step can be repeated. A task that fails is retried while the others continue. This
//! module must not decide about spending: the store's scripts do. Read next:
//! `ledger_ingest/worker.rs` (the state), `ledger_ingest/consume.rs` (events into entries),
//! `ledger_ingest/failover.rs` (recovery after a server lost data), `ledger_ingest/publish.rs`
//! (ledger to store).

mod consume;
mod failover;
mod lost_partitions;
mod publish;
mod worker;

use crate::shared_credit::redis::SharedStore;
use base::clock;
use base::telemetry::METRICS;
use config::redis_address::RedisAddress;
use ledger::StoreError;
use ledger::indexer::Indexer;
use ledger::postgres::PostgresHome;
use ledger::sqlite::writer::WriteCount;
use ledger::{Ledger, encode_hex};
pub use publish::debit_operation;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
pub use worker::IngestWorker;

/// Interval at which the thread looks for due tasks.
const TICK_INTERVAL: Duration = Duration::from_millis(20);
/// Interval of reading events while there are some. It bounds the time from the end of a request
/// under load to its debit in the ledger.
const BUSY_FOLLOW_INTERVAL: Duration = Duration::from_millis(30);
/// Time limit of a reply of the store. A slower reply counts as a failure.
const STORE_TIMEOUT: Duration = Duration::from_secs(2);
const MIN_RETRY_DELAY: Duration = Duration::from_millis(50);
/// Interval of rechecks of a server that was unreachable or unfit.
const FITNESS_CHECK_INTERVAL: Duration = Duration::from_millis(200);
/// Maximum retry delay. Tasks resume within this time after an outage.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(1);
/// Maximum age of the last pass without a failure. If it is older, the ledger counts as lagging.
const MAX_LAG_MS: i64 = 5_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum IngestTask {
    Find,
    Follow,
    Push,
    Keys,
    Seed,
    Mirror,
    Lapse,
    Sweep,
    Mark,
    Announce,
}

/// Tasks in the order in which they run, each with its interval. The intervals of the tasks that
/// query the store bound its load while there are no events. Under load, they bound the number of
/// requests per call. A task queries all partitions at once if possible.
const TASKS: [(IngestTask, &str, Duration); 10] = [
    (
        IngestTask::Find,
        "find_partitions",
        Duration::from_millis(500),
    ),
    (
        IngestTask::Follow,
        "follow_events",
        Duration::from_millis(100),
    ),
    (IngestTask::Push, "push_entries", Duration::from_millis(50)),
    (IngestTask::Keys, "push_keys", Duration::ZERO),
    (
        IngestTask::Seed,
        "seed_accounts",
        Duration::from_millis(100),
    ),
    (IngestTask::Mirror, "mirror", Duration::from_millis(250)),
    (IngestTask::Lapse, "lapse", Duration::from_secs(1)),
    (IngestTask::Sweep, "sweep", Duration::from_secs(10)),
    (IngestTask::Mark, "mark", Duration::from_secs(60)),
    (IngestTask::Announce, "announce", Duration::from_secs(1)),
];

struct TaskSchedule {
    task: IngestTask,
    name: &'static str,
    every: Duration,
    due: Instant,
    /// Delay after the last failure. It is zero while the task succeeds.
    pause: Duration,
}

impl IngestWorker {
    /// Runs every task once.
    ///
    /// # Errors
    /// Returns the error of the first task that fails. The tasks after it do not run.
    pub async fn run_all(&mut self) -> Result<(), StoreError> {
        for (task, ..) in TASKS {
            self.run_task(task).await?;
        }
        Ok(())
    }

    async fn run_task(&mut self, task: IngestTask) -> Result<(), StoreError> {
        match task {
            IngestTask::Find => self.locate_partitions().await,
            IngestTask::Follow => self.consume_all().await,
            IngestTask::Push => self.publish_entries().await,
            IngestTask::Keys => self.publish_keys().await,
            IngestTask::Seed => self.seed_accounts().await,
            IngestTask::Mirror => self.mirror_holds().await,
            IngestTask::Lapse => self.lapse_trials().await,
            IngestTask::Sweep => self.sweep_holds().await,
            IngestTask::Mark => self.save_progress(),
            IngestTask::Announce => self.announce().await,
        }
    }
}

impl IngestWorker {
    /// Announces the address of this sidecar to the edges, if it can be one of several. Also
    /// reports the ledger's position to the store, and which part of the ledger the store has.
    async fn announce(&mut self) -> Result<(), StoreError> {
        if let Some(home) = self.ledger.home() {
            self.store
                .ingest()
                .announce_sidecar(&home.settings().address)
                .await?;
        }
        let last = self.ledger.rows().heads()?.last;
        if self.announced != Some(last.seq) && last.seq > 0 {
            self.store
                .ingest()
                .record_ledger_head(last.seq, &encode_hex(&last.hash))
                .await?;
            self.announced = Some(last.seq);
        }
        self.record_published().await
    }

    /// Checks that the ledger has the last entry that the store knows. An older ledger would
    /// publish older balances, and newer keys would work without an account.
    async fn check_head(&self) -> Result<(), StoreError> {
        let Some((seq, hash)) = self.store.ingest().ledger_head().await? else {
            return Ok(());
        };
        let entry = self.ledger.rows().entries_after(seq - 1, 1)?.pop();
        if entry.is_some_and(|entry| entry.seq == seq && encode_hex(&entry.hash) == hash) {
            return Ok(());
        }
        Err(StoreError::Refused(format!(
            "the shared store knows entry {seq} of the ledger, which this ledger does not have: it is older, or another one. Put the newest ledger back; after restoring a backup on purpose, empty the shared store first (FLUSHALL)"
        )))
    }
}

pub struct LedgerIngest {
    state: Arc<IngestState>,
    writes: WriteCount,
    thread: Mutex<Option<JoinHandle<()>>>,
    indexer: Indexer,
}

#[derive(Default)]
struct IngestState {
    ending: AtomicBool,
    /// Time in ms since 1970 at which all due tasks last succeeded and all events were in the
    /// ledger.
    passed_ms: AtomicI64,
    may_forget: bool,
    /// True if the server was reached and its settings are safe.
    is_checked: AtomicBool,
    last_error: Mutex<String>,
}

impl LedgerIngest {
    /// Checks the server's settings and starts the thread. If the server cannot be reached, the
    /// thread checks them once it can.
    ///
    /// # Errors
    /// Returns an error if the store could lose data (unless `may_forget`), if another process
    /// enters events into this ledger, or if a database cannot be opened.
    pub fn start(
        data_dir: &Path,
        address: &RedisAddress,
        may_forget: bool,
        home: Option<&PostgresHome>,
    ) -> Result<Self, StoreError> {
        let failed = |source| StoreError::io("start the ledger ingest", source);
        // The runtime that opened the connection must also drive it.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(failed)?;
        let store = SharedStore::new(address.clone(), STORE_TIMEOUT);
        let state = Arc::new(IngestState {
            may_forget,
            ..IngestState::default()
        });
        if let Err(error) = runtime.block_on(state.check_store(&store)) {
            if matches!(error, StoreError::Refused(_)) {
                return Err(error);
            }
            log::error!(
                "{error}; the ledger ingest waits until the shared store answers and passes its checks"
            );
        }
        let worker = IngestWorker::open(data_dir, store, home)?;
        if state.is_checked.load(Ordering::Acquire)
            && let Err(error @ StoreError::Refused(_)) = runtime.block_on(worker.check_head())
        {
            return Err(error);
        }
        let indexer = Indexer::start(&worker.ledger, data_dir)?;
        let writes = worker.ledger.write_count();
        let shared = Arc::clone(&state);
        let thread = std::thread::Builder::new()
            .name("feeder".into())
            .spawn(move || runtime.block_on(run_worker(worker, &shared)))
            .map_err(failed)?;
        Ok(Self {
            state,
            writes,
            thread: Mutex::new(Some(thread)),
            indexer,
        })
    }

    /// Returns the count of writes to `ledger.db`.
    pub fn write_count(&self) -> WriteCount {
        self.writes.clone()
    }

    /// Returns whether the store answers, and the ledger lags by at most a few seconds.
    pub fn is_healthy(&self) -> bool {
        clock::now_ms().saturating_sub(self.state.passed_ms.load(Ordering::Relaxed)) <= MAX_LAG_MS
    }

    /// Returns the last error, which may explain why the ingest is unhealthy.
    pub fn last_error(&self) -> String {
        let error = self
            .state
            .last_error
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if error.is_empty() {
            "the ledger lags behind the shared store".into()
        } else {
            error.clone()
        }
    }

    /// Runs every task once more, and then stops the thread.
    pub fn shut_down(&self) {
        self.state.ending.store(true, Ordering::Release);
        if let Some(thread) = self
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
        {
            let _ = thread.join();
        }
        self.indexer.shut_down();
    }
}

impl IngestState {
    /// Checks that the server's settings are safe for credits. An operator can correct an unfit
    /// server while it runs.
    async fn check_store(&self, store: &SharedStore) -> Result<(), StoreError> {
        let outcome = store.fitness().check_fitness(self.may_forget).await;
        match &outcome {
            Ok(()) => self.is_checked.store(true, Ordering::Release),
            Err(error) => {
                METRICS.ledger_error(error.reason());
                self.record_error(error);
            }
        }
        METRICS.store_up.set(i64::from(outcome.is_ok()));
        outcome
    }

    fn record_error(&self, error: &StoreError) {
        *self
            .last_error
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = error.to_string();
    }

    /// Waits until the server has been checked. No task runs before that.
    async fn wait_until_fit(&self, store: &SharedStore) {
        while !self.is_checked.load(Ordering::Acquire) && !self.ending.load(Ordering::Acquire) {
            tokio::time::sleep(FITNESS_CHECK_INTERVAL).await;
            let before = self
                .last_error
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone();
            match self.check_store(store).await {
                Ok(()) => log::info!(
                    "the shared store answers and passes its checks; the ledger ingest runs"
                ),
                Err(error) if before != error.to_string() => {
                    log::error!("{error}; the ledger ingest waits until this is fixed")
                }
                Err(_) => {}
            }
        }
    }
}

/// Returns false if the ledger is in PostgreSQL and the lease may have expired.
fn may_write(ledger: &Ledger) -> bool {
    ledger.home().is_none_or(PostgresHome::lease_is_valid)
}

async fn run_worker(mut worker: IngestWorker, state: &IngestState) {
    state.wait_until_fit(&worker.store).await;
    while let Err(error) = worker.check_head().await {
        state.record_error(&error);
        if state.ending.load(Ordering::Acquire) {
            break;
        }
        log::error!("{error}");
        tokio::time::sleep(MAX_RETRY_DELAY).await;
    }
    let begin = Instant::now();
    let mut schedules = TASKS.map(|(task, name, every)| TaskSchedule {
        task,
        name,
        every,
        due: begin,
        pause: Duration::ZERO,
    });
    while !state.ending.load(Ordering::Acquire) {
        for schedule in &mut schedules {
            // Another process may hold the ledger meanwhile.
            if schedule.due <= Instant::now() && may_write(&worker.ledger) {
                let outcome = worker.run_task(schedule.task).await;
                if let Err(error) = &outcome {
                    state.record_error(error);
                }
                schedule.record_outcome(outcome);
                // If a pass found events, more are likely to follow.
                if schedule.task == IngestTask::Follow
                    && schedule.pause.is_zero()
                    && worker.backlog.events > 0
                {
                    schedule.due = Instant::now() + BUSY_FOLLOW_INTERVAL;
                }
            }
        }
        // The first task queries every partition, so its result shows whether the store is up.
        METRICS.store_up.set(i64::from(
            schedules
                .first()
                .is_some_and(|schedule| schedule.pause.is_zero()),
        ));
        if !worker.backlog.is_left && schedules.iter().all(|schedule| schedule.pause.is_zero()) {
            state.passed_ms.store(clock::now_ms(), Ordering::Relaxed);
        }
        tokio::time::sleep(TICK_INTERVAL).await;
    }
    if state.is_checked.load(Ordering::Acquire)
        && may_write(&worker.ledger)
        && let Err(error) = worker.run_all().await
    {
        log::warn!(
            "the ledger ingest could not finish before the shutdown: {error}; the next start continues"
        );
    }
    if let Err(error) = worker.close() {
        log::warn!("{error}");
    }
}

impl TaskSchedule {
    fn record_outcome(&mut self, outcome: Result<(), StoreError>) {
        let worked = self.pause.is_zero();
        match outcome {
            Ok(()) => {
                if !worked {
                    log::info!("ledger ingest task {} works again", self.name);
                }
                self.pause = Duration::ZERO;
                self.due = Instant::now() + self.every;
            }
            Err(error) => {
                METRICS.ledger_error(self.name);
                if worked {
                    log::error!("ledger ingest task {} failed: {error}; retrying", self.name);
                }
                self.pause = (self.pause * 2).clamp(MIN_RETRY_DELAY, MAX_RETRY_DELAY);
                self.due = Instant::now() + self.pause;
            }
        }
    }
}
