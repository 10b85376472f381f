//! `Idempotency-Key`: the gateway answers one request per key once, and replays its response for a
//! day.
//!
//! The order of steps makes this correct: commit the key as `running`; reserve the hold; journal
//! the debit; commit `done` with the response; send the last byte. A key is spent exactly if its
//! request was debited, and free again otherwise. After a crash the ledger decides, once the
//! journal is replayed into it (an edge with a shared store asks its own journal): a debit whose
//! response was not stored leaves a key that is done and has no response to replay. Read
//! `idempotency/backend.rs` next, then `store/idempotency.rs` and `store/redis/idempotency.rs` for
//! what survives which failure. Must not know HTTP; its caller is `edge/admit/idempotency_key.rs`.

mod backend;

use crate::billing::BillingBackend;
use crate::clock;
use crate::config::{Limits, Settings};
use crate::store::StoreError;
use crate::store::idempotency::{IdempotencyLookup, IdempotencyRequest, StoredResponse};
use crate::store::redis::IdempotencyEntry;
use arc_swap::ArcSwap;
use backend::{IdempotencyCompletion, IdempotencyStore, Retention};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::runtime::{Handle, Runtime};
use tokio::sync::watch;

const MAX_KEY_BYTES: usize = 255;
/// Interval of the housekeeping that checkpoints the write-ahead log, and number of intervals
/// between removals of expired keys. The gateway never replays an expired response, so correctness
/// does not depend on the interval.
const HOUSEKEEPING_INTERVAL: Duration = Duration::from_secs(1);
const CLEANUP_TICKS: u32 = 30;
/// Maximum number of completions that wait for a retry because the store did not accept them. Only
/// a request that began before the store went away adds one.
const MAX_UNWRITTEN: usize = 65_536;
/// How long a last byte waits for its key to be committed. This is longer than one write attempt.
const COMMIT_TIMEOUT: Duration = Duration::from_millis(500);

/// The idempotency service; cheap to clone.
#[derive(Clone)]
pub struct Idempotency(Arc<IdempotencyInner>);

struct IdempotencyInner {
    book: IdempotencyStore,
    boot: String,
    /// Completions being written to the shared store, by request id.
    under_way: Mutex<HashMap<String, watch::Receiver<()>>>,
    unwritten: Mutex<Vec<IdempotencyCompletion>>,
}

/// Result of looking up the key of a request.
pub enum KeyLookupOutcome {
    /// The key is new: answer the request.
    New(Box<IdempotencyGuard>),
    /// The same request is still being answered.
    Running,
    /// The key was used with a different body.
    OtherBody,
    /// The request was answered with this response.
    Done(ReplayedResponse),
    /// The request was answered, but its response is not stored.
    Unavailable,
}

/// A stored response.
#[derive(Debug)]
pub struct ReplayedResponse {
    pub request_id: String,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

/// A request with a key while the gateway answers it. Dropping the guard without completing it
/// frees the key.
pub struct IdempotencyGuard {
    of: Idempotency,
    entry: IdempotencyEntry,
    keeping: Retention,
    headers: Vec<(String, String)>,
    /// Response body so far; `None` once it exceeds the size that is stored.
    body: Option<Vec<u8>>,
    body_most: usize,
    ended: bool,
}

/// Waits until a request's key is committed as spent or free.
#[derive(Clone)]
pub struct KeyCommit {
    of: Idempotency,
    request_id: String,
}

/// A key is 1 to 255 visible ASCII characters.
pub fn is_valid_key(value: &[u8]) -> bool {
    (1..=MAX_KEY_BYTES).contains(&value.len()) && value.iter().all(u8::is_ascii_graphic)
}

/// Hash that distinguishes the bodies of requests with the same key.
pub type BodyHash = [u8; 32];

/// Hashes a request body. CPU time is proportional to its length.
pub fn hash_body(body: &[u8]) -> BodyHash {
    Sha256::digest(body).into()
}

impl Idempotency {
    /// Starts the service for the gateway, after `till` has read the journals of dead processes:
    /// resolves the keys of their requests, and starts the housekeeping thread.
    ///
    /// # Errors
    /// Returns an error if the database cannot be opened or the ledger cannot be read. If a shared
    /// store fails, the service retries later.
    pub fn start(
        data_dir: &Path,
        till: &BillingBackend,
        settings: Arc<ArcSwap<Settings>>,
        now_ms: i64,
    ) -> Result<Self, StoreError> {
        let failed = |source| StoreError::io("start the idempotency thread", source);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(failed)?;
        let service = Self::open(data_dir, till)?;
        let resolved = runtime.block_on(
            service
                .0
                .book
                .resolve_orphaned(Retention::from_limits(&settings.load().limits), now_ms),
        );
        match (resolved, &service.0.book) {
            (Err(error), IdempotencyStore::Shared(_)) => log::warn!("{error}; retrying"),
            (outcome, _) => outcome?,
        }
        let tidied = service.clone();
        std::thread::Builder::new()
            .name("idempotency".into())
            .spawn(move || tidied.run_housekeeping(&runtime, &settings))
            .map_err(failed)?;
        Ok(service)
    }

    fn open(data_dir: &Path, till: &BillingBackend) -> Result<Self, StoreError> {
        let (book, boot) = (
            IdempotencyStore::open(data_dir, till)?,
            till.instance_id().to_owned(),
        );
        Ok(Self(Arc::new(IdempotencyInner {
            book,
            boot,
            under_way: Mutex::default(),
            unwritten: Mutex::default(),
        })))
    }

    /// # Errors
    /// Returns an error if the store cannot be queried; the gateway must not answer a request with
    /// a key then.
    pub async fn claim(
        &self,
        (account, path, key): (&str, &str, &str),
        hash: &BodyHash,
        request_id: &str,
        limits: &Limits,
        now_ms: i64,
    ) -> Result<KeyLookupOutcome, StoreError> {
        let ask = IdempotencyRequest {
            account,
            path,
            key,
            hash,
            request_id,
            boot: &self.0.boot,
        };
        let (entry, keeping) = (store_entry(&ask), Retention::from_limits(limits));
        let found = match self.0.book.claim(&ask, &entry, keeping, now_ms).await {
            Ok(found) => found,
            Err(error) => {
                // The store may have entered the request although it reported an error.
                if matches!(self.0.book, IdempotencyStore::Shared(_)) {
                    self.queue_retry(
                        &error,
                        IdempotencyCompletion {
                            entry,
                            spent: None,
                            kept: None,
                        },
                    );
                }
                return Err(error);
            }
        };
        Ok(match found {
            IdempotencyLookup::Nothing => KeyLookupOutcome::New(Box::new(IdempotencyGuard {
                of: self.clone(),
                entry,
                keeping,
                headers: Vec::new(),
                body: Some(Vec::new()),
                body_most: usize::try_from(limits.idempotency_body_bytes).unwrap_or(usize::MAX),
                ended: false,
            })),
            IdempotencyLookup::Running => KeyLookupOutcome::Running,
            IdempotencyLookup::OtherBody => KeyLookupOutcome::OtherBody,
            IdempotencyLookup::Done {
                request_id,
                kept: Some(StoredResponse { headers, body }),
            } => KeyLookupOutcome::Done(ReplayedResponse {
                request_id,
                headers,
                body,
            }),
            IdempotencyLookup::Done { kept: None, .. } => KeyLookupOutcome::Unavailable,
        })
    }

    /// Whether a key is known, with any body.
    ///
    /// # Errors
    /// Returns an error if the store cannot be queried.
    pub async fn is_known(
        &self,
        (account, path, key): (&str, &str, &str),
        now_ms: i64,
    ) -> Result<bool, StoreError> {
        let ask = IdempotencyRequest {
            account,
            path,
            key,
            hash: &[0; 32],
            request_id: "",
            boot: &self.0.boot,
        };
        self.0.book.is_known(&ask, &store_entry(&ask), now_ms).await
    }

    /// Returns once the pending write for this request has reached the store, or after a timeout.
    pub async fn wait_until_committed(&self, request_id: &str) {
        let under_way = lock(&self.0.under_way).get(request_id).cloned();
        if let Some(mut under_way) = under_way {
            // An error means that the sender was dropped, which is the event to wait for.
            let _ = tokio::time::timeout(COMMIT_TIMEOUT, under_way.changed()).await;
        }
    }

    fn run_housekeeping(&self, runtime: &Runtime, settings: &ArcSwap<Settings>) {
        let (mut tick, book) = (0_u32, &self.0.book);
        loop {
            std::thread::sleep(HOUSEKEEPING_INTERVAL);
            tick = tick.wrapping_add(1);
            let limits = &settings.load().limits;
            let outcome = runtime.block_on(async {
                // A predecessor may have died after it handed over.
                let left = book.resolve_orphaned(Retention::from_limits(limits), clock::now_ms());
                let mut outcome = self.retry_unwritten().await.and(left.await);
                if tick.is_multiple_of(CLEANUP_TICKS) {
                    outcome = outcome.and(book.clean(limits, clock::now_ms()).await);
                }
                outcome.and(book.checkpoint())
            });
            if let Err(error) = outcome {
                log::warn!("{error}");
            }
        }
    }

    /// Retries the completions that the store did not accept.
    async fn retry_unwritten(&self) -> Result<(), StoreError> {
        let waiting = std::mem::take(&mut *lock(&self.0.unwritten));
        let mut waiting = waiting.into_iter();
        while let Some(end) = waiting.next() {
            let outcome = self.0.book.complete(&end).await;
            if outcome.is_err() {
                lock(&self.0.unwritten).extend([end].into_iter().chain(waiting));
                return outcome;
            }
        }
        Ok(())
    }

    fn queue_retry(&self, error: &StoreError, end: IdempotencyCompletion) {
        let (mut unwritten, request_id) = (lock(&self.0.unwritten), &end.entry.request_id);
        if unwritten.len() < MAX_UNWRITTEN {
            log::error!("{error}; request {request_id} counts as running until a retry succeeds");
            unwritten.push(end);
        } else {
            log::error!("{error}; request {request_id} counts as running until the next start");
        }
    }

    /// Writes the result of a request, at once or in a task: [`Idempotency::wait_until_committed`]
    /// waits for it.
    fn complete(&self, mut end: IdempotencyCompletion) {
        match &self.0.book {
            IdempotencyStore::Here(here) => {
                let mut outcome = here.complete(&end);
                if outcome.is_err() && end.kept.take().is_some() {
                    // A full disk may still have space for the small record that prevents a second
                    // debit.
                    outcome = here.complete(&end);
                }
                if let Err(error) = outcome {
                    self.queue_retry(&error, end);
                }
            }
            IdempotencyStore::Shared(_) => self.send(end),
        }
    }

    fn send(&self, mut end: IdempotencyCompletion) {
        let Ok(runtime) = Handle::try_current() else {
            end.kept = None;
            let error = StoreError::Unusable(
                "cannot complete an idempotency key: this thread has no runtime".into(),
            );
            return self.queue_retry(&error, end);
        };
        let (arrived, under_way) = watch::channel(());
        let request_id = end.entry.request_id.clone();
        lock(&self.0.under_way).insert(request_id.clone(), under_way);
        let of = self.clone();
        runtime.spawn(async move {
            let IdempotencyStore::Shared(shared) = &of.0.book else {
                return;
            };
            if let Err(error) = shared.complete(&end).await {
                // The client still gets its response, but a later request with the key learns that
                // it is lost.
                of.queue_retry(&error, IdempotencyCompletion { kept: None, ..end });
            }
            lock(&of.0.under_way).remove(&request_id);
            drop(arrived);
        });
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The entry for a shared store. Hashes the client's key, which must not become a name there.
fn store_entry(ask: &IdempotencyRequest<'_>) -> IdempotencyEntry {
    let hex = |bytes: &[u8]| {
        bytes
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect::<String>()
    };
    let name = Sha256::new()
        .chain_update(ask.path)
        .chain_update(" ")
        .chain_update(ask.key)
        .finalize();
    IdempotencyEntry {
        account: ask.account.to_owned(),
        name: hex(&name),
        hash: hex(ask.hash),
        request_id: ask.request_id.to_owned(),
        boot: ask.boot.to_owned(),
    }
}

impl KeyCommit {
    pub async fn wait(&self) {
        self.of.wait_until_committed(&self.request_id).await;
    }
}

impl IdempotencyGuard {
    /// Sets the response headers, and discards those of an earlier attempt.
    pub fn set_headers(&mut self, headers: Vec<(String, String)>) {
        self.headers = headers;
    }

    pub fn add_header(&mut self, name: &str, value: String) {
        self.headers.push((name.to_owned(), value));
    }

    /// Appends bytes that the client is about to receive.
    pub fn push_body(&mut self, piece: &[u8]) {
        let Some(body) = &mut self.body else { return };
        if body.len().saturating_add(piece.len()) > self.body_most {
            self.body = None;
        } else {
            body.extend_from_slice(piece);
        }
    }

    /// Returns a handle that waits for the key to be committed, once this request has ended.
    pub fn key_commit(&self) -> KeyCommit {
        KeyCommit {
            of: self.of.clone(),
            request_id: self.entry.request_id.clone(),
        }
    }

    /// Stores the complete, debited response. Once this is committed, a retry gets the response or
    /// learns that it is not stored, so the last byte may be sent.
    pub fn complete(mut self) {
        let headers = std::mem::take(&mut self.headers);
        let kept = self
            .body
            .take()
            .map(|body| StoredResponse { headers, body });
        self.finish(Some(self.keeping), kept);
    }

    /// Marks the key as spent: the request was debited, but there is no complete response to
    /// replay.
    pub fn mark_spent(mut self) {
        self.finish(Some(self.keeping), None);
    }

    fn finish(&mut self, spent: Option<Retention>, kept: Option<StoredResponse>) {
        if !std::mem::replace(&mut self.ended, true) {
            self.of.complete(IdempotencyCompletion {
                entry: self.entry.clone(),
                spent,
                kept,
            });
        }
    }
}

impl Drop for IdempotencyGuard {
    fn drop(&mut self) {
        self.finish(None, None);
    }
}

#[cfg(test)]
mod tests;
