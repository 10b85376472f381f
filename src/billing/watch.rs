//! What an edge knows of the shared store without being asked: whether it is fit to admit by, and
//! whether it answers.
//!
//! One thread, one probe at a time: seldom while requests hear from the store anyway, often while
//! it fails. Nothing is admitted before the server was judged, whenever it is first met. Must not
//! hold up what runs, nor what has ended: the courier asks by itself.

use crate::store::StoreError;
use crate::store::redis::breaker::Breaker;
use crate::store::redis::{Address, PARTITIONS, SharedStore};
use crate::telemetry::METRICS;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

/// How long a probe waits.
const PATIENCE: Duration = Duration::from_millis(200);
/// How long the start waits for a store to judge.
const JUDGE_WITHIN: Duration = Duration::from_secs(2);
/// After how long without an answer an idle edge probes.
const IDLE: Duration = Duration::from_millis(500);
/// How soon a probe that failed is followed by another.
const PROBE_EVERY: Duration = Duration::from_millis(100);
/// How long the store may have been silent where it is said to answer.
const SILENT_MOST: Duration = Duration::from_secs(2);

/// Probes until it is dropped.
pub struct StoreWatch(Arc<State>);

struct State {
    breaker: Arc<Breaker>,
    may_forget: bool,
    judgement: Mutex<Judgement>,
}

#[derive(Clone, PartialEq, Eq)]
enum Judgement {
    /// It was not met yet.
    Pending,
    Fit,
    /// Why not.
    Unfit(String),
}

impl StoreWatch {
    /// Judges the store, where it can be reached, and starts. `breaker` is closed once it is fit.
    ///
    /// # Errors
    /// It would lose money (unless `may_forget`), or the thread cannot be started.
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

    /// Why nothing is admitted; `None` where that is not so.
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

    /// Judges one that was met late. What is unfit is judged again: it can be set right while it
    /// runs.
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
