//! Monitors the shared store for an edge: its settings, its availability, and its clock.
//!
//! One thread sends one probe at a time. Probes are rare while requests get answers from the store,
//! and frequent while it fails. The edge admits no requests until the server was checked and its
//! clock was read. This file must not delay running requests or their endings: the outbox relay
//! contacts the store itself.

use crate::shared_credit::redis::breaker::StoreBreaker;
use crate::shared_credit::redis::{PARTITIONS, SharedStore, StoreClock};
use arc_swap::ArcSwapOption;
use base::clock;
use base::telemetry::METRICS;
use config::redis_address::RedisAddress;
use ledger::StoreError;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Time that a start waits for the store's fitness check.
const FITNESS_CHECK_TIMEOUT: Duration = Duration::from_secs(2);
/// Time without a reply after which an idle edge sends a probe.
const IDLE_PROBE_INTERVAL: Duration = Duration::from_millis(500);
/// Interval at which the edge reads the address of the sidecar.
const SIDECAR_INTERVAL: Duration = Duration::from_secs(1);
/// Interval between probes while they fail.
const RETRY_PROBE_INTERVAL: Duration = Duration::from_millis(100);

/// Probes the store until dropped.
pub struct StoreHealthMonitor(Arc<StoreHealthState>);

struct StoreHealthState {
    breaker: Arc<StoreBreaker>,
    clock: StoreClock,
    may_forget: bool,
    /// Address of the sidecar that holds the ledger. Set if it is one of several.
    sidecar: ArcSwapOption<SocketAddr>,
    judgement: Mutex<StoreFitness>,
}

#[derive(Clone, PartialEq, Eq)]
enum StoreFitness {
    /// The server has not been reached yet.
    Pending,
    Fit,
    /// The server is not safe for balances. The text is the reason.
    Unfit(String),
}

impl StoreHealthMonitor {
    /// Checks the store if it can be reached, and starts the thread. Closes `breaker` once the
    /// store has passed the check.
    ///
    /// # Errors
    /// Returns an error if the store could lose data (unless `may_forget`), or if the thread cannot
    /// start.
    pub fn start(
        address: &RedisAddress,
        breaker: Arc<StoreBreaker>,
        may_forget: bool,
        reply_timeout: Duration,
    ) -> Result<Self, StoreError> {
        let failed = |source| StoreError::io("start the health checks of the shared store", source);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(failed)?;
        let state = Arc::new(StoreHealthState {
            breaker,
            clock: StoreClock::default(),
            may_forget,
            sidecar: ArcSwapOption::empty(),
            judgement: Mutex::new(StoreFitness::Pending),
        });
        let patient = SharedStore::new(address.clone(), FITNESS_CHECK_TIMEOUT);
        if let Err(error) = runtime.block_on(state.check_fitness(&patient)) {
            if matches!(error, StoreError::Refused(_)) {
                return Err(error);
            }
            METRICS.ledger_error(error.reason());
            log::error!(
                "{error}; the gateway admits no requests until the shared store answers and passes its checks"
            );
        }
        let store = SharedStore::new(address.clone(), reply_timeout);
        let watched = Arc::downgrade(&state);
        let watch = move || runtime.block_on(monitor(&watched, &store));
        std::thread::Builder::new()
            .name("store-watch".into())
            .spawn(watch)
            .map_err(failed)?;
        Ok(Self(state))
    }

    /// Returns the store's clock, which this monitor measures.
    pub fn clock(&self) -> StoreClock {
        self.0.clock.clone()
    }

    /// Returns the address of the sidecar that holds the ledger, or `None` if it is the address in
    /// the config.
    pub fn sidecar(&self) -> Option<SocketAddr> {
        self.0.sidecar.load().as_deref().copied()
    }

    /// Returns the reason why no requests are admitted, or `None` if the edge admits requests.
    pub fn outage_reason(&self) -> Option<String> {
        let breaker = &self.0.breaker;
        match self.0.fitness() {
            StoreFitness::Unfit(why) => Some(why),
            StoreFitness::Pending => Some(format!(
                "the shared store has not answered yet: {}",
                breaker.last_failure()
            )),
            StoreFitness::Fit if breaker.is_open() => Some(format!(
                "the shared store does not answer: {}",
                breaker.last_failure()
            )),
            StoreFitness::Fit => {
                let silent = breaker
                    .time_since_reply(Instant::now())
                    .is_none_or(|silence| silence > breaker.window());
                silent.then(|| format!("the shared store is silent: {}", breaker.last_failure()))
            }
        }
    }
}

impl StoreHealthState {
    fn fitness(&self) -> StoreFitness {
        self.judgement
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn set_fitness(&self, judgement: StoreFitness) {
        *self
            .judgement
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = judgement;
    }

    async fn check_fitness(&self, store: &SharedStore) -> Result<(), StoreError> {
        let outcome = match store.fitness().check_fitness(self.may_forget).await {
            Ok(()) => self.read_clock(store).await,
            unfit => unfit,
        };
        match &outcome {
            Ok(()) => {
                self.set_fitness(StoreFitness::Fit);
                self.breaker.record_success(Instant::now());
            }
            Err(StoreError::Refused(why)) => self.set_fitness(StoreFitness::Unfit(why.clone())),
            Err(error) => self.breaker.record_failure(Instant::now(), error),
        }
        METRICS.store_up.set(i64::from(outcome.is_ok()));
        outcome
    }

    async fn read_clock(&self, store: &SharedStore) -> Result<(), StoreError> {
        let asked_ms = clock::steady_now_ms();
        let store_ms = store.now_ms().await?;
        self.clock
            .record(asked_ms, store_ms, clock::steady_now_ms());
        METRICS.store_skew_ms.set(self.clock.skew_ms());
        Ok(())
    }

    /// Checks a server again that was unreachable or unfit. An operator can correct an unfit server
    /// while it runs.
    async fn recheck_if_unfit(&self, store: &SharedStore) {
        let before = self.fitness();
        let Err(error) = self.check_fitness(store).await else {
            return log::info!(
                "the shared store answers and passes its checks; the gateway admits requests"
            );
        };
        METRICS.ledger_error(error.reason());
        if before != self.fitness() {
            log::error!("{error}; the gateway admits no requests until this is fixed");
        }
    }

    async fn probe(&self, store: &SharedStore, partition: u32) {
        let was_open = self.breaker.is_open();
        match store.fitness().probe(partition).await {
            Ok(()) => self.breaker.record_success(Instant::now()),
            Err(error) => {
                METRICS.ledger_error(error.reason());
                self.breaker.record_failure(Instant::now(), &error);
            }
        }
        match (was_open, self.breaker.is_open()) {
            (false, true) => log::error!(
                "{}; the gateway admits no requests until the shared store answers",
                self.breaker.last_failure()
            ),
            (true, false) => log::info!("the shared store answers again"),
            _ => {}
        }
        METRICS.store_up.set(i64::from(!self.breaker.is_open()));
    }
}

async fn monitor(state: &Weak<StoreHealthState>, store: &SharedStore) {
    let mut partition = 0;
    let mut next_look = Instant::now();
    loop {
        tokio::time::sleep(RETRY_PROBE_INTERVAL).await;
        let Some(state) = state.upgrade() else { return };
        let breaker = &state.breaker;
        if state.fitness() != StoreFitness::Fit {
            state.recheck_if_unfit(store).await;
        } else if breaker.is_failing()
            || breaker
                .time_since_reply(Instant::now())
                .is_none_or(|silence| silence >= IDLE_PROBE_INTERVAL)
        {
            state.probe(store, partition).await;
            partition = (partition + 1) % PARTITIONS;
        }
        if next_look <= Instant::now() && !breaker.is_failing() {
            next_look = Instant::now() + SIDECAR_INTERVAL;
            // Without an answer, the known difference stays in use.
            let _ = state.read_clock(store).await;
            // Without an answer, the known address of the sidecar stays in use.
            if let Ok(announced) = store.ingest().announced_sidecar().await {
                let address = announced.and_then(|address| address.parse().ok());
                state.sidecar.store(address.map(Arc::new));
            }
        }
    }
}
