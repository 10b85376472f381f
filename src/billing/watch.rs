//! Monitors the shared store for an edge: whether its settings are fit, and whether it answers.
//!
//! One thread sends one probe at a time: rarely while requests hear from the store anyway, often
//! while it fails. The edge admits nothing until the server was reached and checked. Must not delay
//! running requests or their endings: the outbox relay contacts the store itself.

use crate::store::StoreError;
use crate::store::redis::breaker::Breaker;
use crate::store::redis::{Address, PARTITIONS, SharedStore};
use crate::telemetry::METRICS;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Timeout of a probe.
const PATIENCE: Duration = Duration::from_millis(200);
/// How long the start waits for the store's fitness check.
const JUDGE_WITHIN: Duration = Duration::from_secs(2);
/// How long an idle edge goes without a reply before it probes.
const IDLE: Duration = Duration::from_millis(500);
/// Interval between probes while they fail.
const PROBE_EVERY: Duration = Duration::from_millis(100);
/// Maximum silence of a store that counts as answering.
const SILENT_MOST: Duration = Duration::from_secs(2);

/// Probes the store until dropped.
pub struct StoreWatch(Arc<State>);

struct State {
    breaker: Arc<Breaker>,
    may_forget: bool,
    judgement: Mutex<Judgement>,
}

#[derive(Clone, PartialEq, Eq)]
enum Judgement {
    /// The server has not been reached yet.
    Pending,
    Fit,
    /// The server is unfit; holds the reason.
    Unfit(String),
}

impl StoreWatch {
    /// Checks the store if it can be reached, and starts the thread. Closes `breaker` once the
    /// store is fit.
    ///
    /// # Errors
    /// Returns an error if the store could lose data (unless `may_forget`), or if the thread cannot
    /// start.
    pub fn start(
        address: &Address,
        breaker: Arc<Breaker>,
        may_forget: bool,
    ) -> Result<Self, StoreError> {
        let failed = |source| StoreError::io("start the store watch", source);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(failed)?;
        let state = Arc::new(State {
            breaker,
            may_forget,
            judgement: Mutex::new(Judgement::Pending),
        });
        let patient = SharedStore::new(address.clone(), JUDGE_WITHIN);
        if let Err(error) = runtime.block_on(state.judge(&patient)) {
            if matches!(error, StoreError::Refused(_)) {
                return Err(error);
            }
            METRICS.ledger_error(error.reason());
            log::error!(
                "{error}; nothing is admitted until the shared store is reached and judged"
            );
        }
        let store = SharedStore::new(address.clone(), PATIENCE);
        let watched = Arc::downgrade(&state);
        let watch = move || runtime.block_on(watch(&watched, &store));
        std::thread::Builder::new()
            .name("store-watch".into())
            .spawn(watch)
            .map_err(failed)?;
        Ok(Self(state))
    }

    /// Why nothing is admitted; `None` if the edge admits requests.
    pub fn trouble(&self) -> Option<String> {
        let breaker = &self.0.breaker;
        match self.0.judged() {
            Judgement::Unfit(why) => Some(why),
            Judgement::Pending => Some(format!(
                "the shared store was not reached yet: {}",
                breaker.why()
            )),
            Judgement::Fit if breaker.is_open() => Some(format!(
                "the shared store does not answer: {}",
                breaker.why()
            )),
            Judgement::Fit => {
                let silent = breaker
                    .silence(Instant::now())
                    .is_none_or(|silence| silence > SILENT_MOST);
                silent.then(|| format!("the shared store is silent: {}", breaker.why()))
            }
        }
    }
}

impl State {
    fn judged(&self) -> Judgement {
        self.judgement
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn set(&self, judgement: Judgement) {
        *self
            .judgement
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = judgement;
    }

    async fn judge(&self, store: &SharedStore) -> Result<(), StoreError> {
        let outcome = store.judge(self.may_forget).await;
        match &outcome {
            Ok(()) => {
                self.set(Judgement::Fit);
                self.breaker.worked(Instant::now());
            }
            Err(StoreError::Refused(why)) => self.set(Judgement::Unfit(why.clone())),
            Err(error) => self.breaker.failed(Instant::now(), error),
        }
        METRICS.store_up.set(i64::from(outcome.is_ok()));
        outcome
    }

    /// Checks a server that was unreachable or unfit before. An operator can correct an unfit
    /// server while it runs.
    async fn meet(&self, store: &SharedStore) {
        let before = self.judged();
        let Err(error) = self.judge(store).await else {
            return log::info!("the shared store is reached, and fit to admit by");
        };
        METRICS.ledger_error(error.reason());
        if before != self.judged() {
            log::error!("{error}; nothing is admitted until that is set right");
        }
    }

    async fn probe(&self, store: &SharedStore, partition: u32) {
        let was_open = self.breaker.is_open();
        match store.probe(partition).await {
            Ok(()) => self.breaker.worked(Instant::now()),
            Err(error) => {
                METRICS.ledger_error(error.reason());
                self.breaker.failed(Instant::now(), &error);
            }
        }
        match (was_open, self.breaker.is_open()) {
            (false, true) => log::error!(
                "{}; nothing is admitted until it answers",
                self.breaker.why()
            ),
            (true, false) => log::info!("the shared store answers again"),
            _ => {}
        }
        METRICS.store_up.set(i64::from(!self.breaker.is_open()));
    }
}

async fn watch(state: &Weak<State>, store: &SharedStore) {
    let mut partition = 0;
    loop {
        tokio::time::sleep(PROBE_EVERY).await;
        let Some(state) = state.upgrade() else { return };
        let breaker = &state.breaker;
        if state.judged() != Judgement::Fit {
            state.meet(store).await;
        } else if breaker.is_failing()
            || breaker
                .silence(Instant::now())
                .is_none_or(|silence| silence >= IDLE)
        {
            state.probe(store, partition).await;
            partition = (partition + 1) % PARTITIONS;
        }
    }
}
