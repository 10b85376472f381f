//! Writes the results of requests with a key, and retries those that the store did not accept.
//!
//! This file must not depend on a store: see `idempotency/keys.rs`.

use super::key_completion::IdempotencyCompletion;
use super::keys::IdempotencyKeys;
use ledger::StoreError;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::runtime::Handle;
use tokio::sync::watch;

/// Maximum number of completions that wait for a retry because the store did not accept them. Only
/// requests that began before the store became unreachable add one.
const MAX_UNWRITTEN: usize = 65_536;

/// The idempotency service. Cloning it is cheap.
#[derive(Clone)]
pub struct Idempotency(Arc<IdempotencyInner>);

struct IdempotencyInner {
    store: Arc<dyn IdempotencyKeys>,
    /// Completions that are being sent to the store, by request id.
    in_flight: Mutex<HashMap<String, watch::Receiver<()>>>,
    unwritten: Mutex<Vec<IdempotencyCompletion>>,
}

impl Idempotency {
    pub fn new(store: Arc<dyn IdempotencyKeys>) -> Self {
        Self(Arc::new(IdempotencyInner {
            store,
            in_flight: Mutex::default(),
            unwritten: Mutex::default(),
        }))
    }

    pub(super) fn store(&self) -> &dyn IdempotencyKeys {
        &*self.0.store
    }

    /// Returns once the pending write for this request has reached the store, or after a timeout.
    pub async fn wait_until_committed(&self, request_id: &str) {
        let in_flight = lock(&self.0.in_flight).get(request_id).cloned();
        if let Some(mut in_flight) = in_flight {
            // An error means that the sender was dropped, which is the awaited event.
            let timeout = self.0.store.commit_timeout();
            let _ = tokio::time::timeout(timeout, in_flight.changed()).await;
        }
    }

    /// Writes the result of a request in a task, for which
    /// [`Idempotency::wait_until_committed`] waits.
    pub(super) fn complete(&self, completion: IdempotencyCompletion) {
        let Ok(runtime) = Handle::try_current() else {
            let error = StoreError::Unusable(
                "cannot complete an idempotency key: this thread has no runtime".into(),
            );
            return self.queue_retry_without_response(&error, &completion);
        };
        let (arrived, in_flight) = watch::channel(());
        let request_id = completion.entry.request_id.clone();
        lock(&self.0.in_flight).insert(request_id.clone(), in_flight);
        let (service, completion) = (self.clone(), Arc::new(completion));
        runtime.spawn(async move {
            if let Err(error) = service.0.store.send_completion(&completion).await {
                service.queue_retry_without_response(&error, &completion);
            }
            lock(&service.0.in_flight).remove(&request_id);
            drop(arrived);
        });
    }

    /// Retries the completions that the store did not accept.
    pub(super) async fn retry_unwritten(&self) -> Result<(), StoreError> {
        let unwritten = std::mem::take(&mut *lock(&self.0.unwritten));
        let mut unwritten = unwritten.into_iter();
        while let Some(completion) = unwritten.next() {
            let outcome = self.0.store.retry_completion(&completion).await;
            if outcome.is_err() {
                lock(&self.0.unwritten).extend([completion].into_iter().chain(unwritten));
                return outcome;
            }
        }
        Ok(())
    }

    /// Queues the completion without its response. The client still gets the response, but a later
    /// request with the key learns that it is lost.
    fn queue_retry_without_response(&self, error: &StoreError, completion: &IdempotencyCompletion) {
        let completion = IdempotencyCompletion {
            entry: completion.entry.clone(),
            spent: completion.spent,
            response: None,
        };
        self.queue_retry(error, completion);
    }

    /// Queues a completion that the store did not accept.
    pub(super) fn queue_retry(&self, error: &StoreError, completion: IdempotencyCompletion) {
        let mut unwritten = lock(&self.0.unwritten);
        let request_id = &completion.entry.request_id;
        if unwritten.len() < MAX_UNWRITTEN {
            log::error!("{error}; request {request_id} counts as running until a retry succeeds");
            unwritten.push(completion);
        } else {
            log::error!("{error}; request {request_id} counts as running until the next start");
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
