//! `Idempotency-Key`: one request under a key is answered once, and its answer given again for a
//! day.
//!
//! The order that makes it right: `running` is committed before the hold, the debit is journalled,
//! `done` and the answer are committed, the last byte leaves. A key is spent exactly where its
//! request was debited, and free again where it was not; so after a crash the ledger, into which
//! the journal was replayed, decides (for one edge among many its own journal): a debit whose
//! answer was not kept leaves a key that is done and has nothing to give. Read
//! `idempotency/book.rs` next, then `store/idempotency.rs` and `store/redis/asked.rs` for what
//! survives what. Must not know HTTP; who asks calls `edge/admit/keyed.rs`.

mod book;

use crate::billing::Till;
use crate::clock;
use crate::config::{Limits, Settings};
use crate::store::StoreError;
use crate::store::idempotency::{Ask, Found, Kept};
use crate::store::redis::Entry;
use arc_swap::ArcSwap;
use book::{Book, End, Keeping};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::runtime::{Handle, Runtime};
use tokio::sync::watch;

const KEY_BYTES_MAX: usize = 255;
/// How often the log is carried back, and how many times that until what has expired is removed. It
/// is no longer given out before, so nothing depends on it.
const TICK: Duration = Duration::from_secs(1);
const TICKS_TO_CLEAN: u32 = 30;
/// Ends that the store could not take and that are tried again. Only a request that began before it
/// was gone adds one.
const UNWRITTEN_MAX: usize = 65_536;
/// How long a last byte waits for its key to be decided: longer than that is tried.
const DECIDED_WITHIN: Duration = Duration::from_millis(500);

/// The service; cheap to clone.
#[derive(Clone)]
pub struct Idempotency(Arc<Inner>);

struct Inner {
    book: Book,
    boot: String,
    /// Ends of requests that the shared store is just being told, by request.
    under_way: Mutex<HashMap<String, watch::Receiver<()>>>,
    unwritten: Mutex<Vec<End>>,
}

/// What a request under a key finds.
pub enum Asked {
    /// Nothing: it is to be answered.
    New(Box<Running>),
    /// The same is being answered.
    Running,
    /// The key was used for another body.
    OtherBody,
    /// It has been answered, like this.
    Done(Answer),
    /// It has been answered, and the answer is not kept.
    Unavailable,
}

/// An answer that was given before.
#[derive(Debug)]
pub struct Answer {
    pub request_id: String,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

/// A request under a key, while it is being answered. Dropped without an ending, it frees the key.
pub struct Running {
    of: Idempotency,
    entry: Entry,
    keeping: Keeping,
    headers: Vec<(String, String)>,
    /// What was answered so far; `None` once that is more than is kept.
    body: Option<Vec<u8>>,
    body_most: usize,
    ended: bool,
}

/// Whether it is decided what becomes of a request's key.
#[derive(Clone)]
pub struct Decision {
    of: Idempotency,
    request_id: String,
}

/// A key is 1 to 255 visible ASCII characters.
pub fn is_key(value: &[u8]) -> bool {
    (1..=KEY_BYTES_MAX).contains(&value.len()) && value.iter().all(u8::is_ascii_graphic)
}

/// Tells the bodies of requests under one key apart.
pub type BodyHash = [u8; 32];

/// The hash of a request's body: CPU work in proportion to its length.
pub fn hash(body: &[u8]) -> BodyHash {
    Sha256::digest(body).into()
}

impl Idempotency {
    /// For the gateway, once `till` has read what dead processes left: settles what became of their
    /// requests, and starts the thread that removes what is over.
    ///
    /// # Errors
    /// The database cannot be opened, or the ledger not be asked. A shared store is asked again
    /// later.
    pub fn start(
        data_dir: &Path,
        till: &Till,
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
                .resolve_left(Keeping::of(&settings.load().limits), now_ms),
        );
        match (resolved, &service.0.book) {
            (Err(error), Book::Shared(_)) => log::warn!("{error}; trying again"),
            (outcome, _) => outcome?,
        }
        let tidied = service.clone();
        std::thread::Builder::new()
            .name("idempotency".into())
            .spawn(move || tidied.tidy(&runtime, &settings))
            .map_err(failed)?;
        Ok(service)
    }

    fn open(data_dir: &Path, till: &Till) -> Result<Self, StoreError> {
        let (book, boot) = (Book::open(data_dir, till)?, till.boot().to_owned());
        Ok(Self(Arc::new(Inner {
            book,
            boot,
            under_way: Mutex::default(),
            unwritten: Mutex::default(),
        })))
    }

    /// # Errors
    /// The store cannot be asked: nothing may be answered under a key then.
    pub async fn begin(
        &self,
        (account, path, key): (&str, &str, &str),
        hash: &BodyHash,
        request_id: &str,
        limits: &Limits,
        now_ms: i64,
    ) -> Result<Asked, StoreError> {
        let ask = Ask {
            account,
            path,
            key,
            hash,
            request_id,
            boot: &self.0.boot,
        };
        let (entry, keeping) = (entry(&ask), Keeping::of(limits));
        let found = match self.0.book.begin(&ask, &entry, keeping, now_ms).await {
            Ok(found) => found,
            Err(error) => {
                // What is not known to have been entered may have been.
                if matches!(self.0.book, Book::Shared(_)) {
                    self.try_again(
                        &error,
                        End {
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
            Found::Nothing => Asked::New(Box::new(Running {
                of: self.clone(),
                entry,
                keeping,
                headers: Vec::new(),
                body: Some(Vec::new()),
                body_most: usize::try_from(limits.idempotency_body_bytes).unwrap_or(usize::MAX),
                ended: false,
            })),
            Found::Running => Asked::Running,
            Found::OtherBody => Asked::OtherBody,
            Found::Done {
                request_id,
                kept: Some(Kept { headers, body }),
            } => Asked::Done(Answer {
                request_id,
                headers,
                body,
            }),
            Found::Done { kept: None, .. } => Asked::Unavailable,
        })
    }

    /// Whether anything is known of a key, whatever body it came with.
    ///
    /// # Errors
    /// The store cannot be asked.
    pub async fn is_known(
        &self,
        (account, path, key): (&str, &str, &str),
        now_ms: i64,
    ) -> Result<bool, StoreError> {
        let ask = Ask {
            account,
            path,
            key,
            hash: &[0; 32],
            request_id: "",
            boot: &self.0.boot,
        };
        self.0.book.is_known(&ask, &entry(&ask), now_ms).await
    }

    /// Returns once whatever the store is being told of this request has arrived there, or will not
    /// soon.
    pub async fn decided(&self, request_id: &str) {
        let under_way = lock(&self.0.under_way).get(request_id).cloned();
        if let Some(mut under_way) = under_way {
            // An error is the sender's end, which is what is waited for.
            let _ = tokio::time::timeout(DECIDED_WITHIN, under_way.changed()).await;
        }
    }

    fn tidy(&self, runtime: &Runtime, settings: &ArcSwap<Settings>) {
        let (mut tick, book) = (0_u32, &self.0.book);
        loop {
            std::thread::sleep(TICK);
            tick = tick.wrapping_add(1);
            let limits = &settings.load().limits;
            let outcome = runtime.block_on(async {
                // A predecessor may have died after it handed over.
                let left = book.resolve_left(Keeping::of(limits), clock::now_ms());
                let mut outcome = self.write_unwritten().await.and(left.await);
                if tick.is_multiple_of(TICKS_TO_CLEAN) {
                    outcome = outcome.and(book.clean(limits, clock::now_ms()).await);
                }
                outcome.and(book.checkpoint())
            });
            if let Err(error) = outcome {
                log::warn!("{error}");
            }
        }
    }

    /// Tries what the store could not take once more.
    async fn write_unwritten(&self) -> Result<(), StoreError> {
        let waiting = std::mem::take(&mut *lock(&self.0.unwritten));
        let mut waiting = waiting.into_iter();
        while let Some(end) = waiting.next() {
            let outcome = self.0.book.end(&end).await;
            if outcome.is_err() {
                lock(&self.0.unwritten).extend([end].into_iter().chain(waiting));
                return outcome;
            }
        }
        Ok(())
    }

    fn try_again(&self, error: &StoreError, end: End) {
        let (mut unwritten, request_id) = (lock(&self.0.unwritten), &end.entry.request_id);
        if unwritten.len() < UNWRITTEN_MAX {
            log::error!("{error}; request {request_id} is taken for running until that works");
            unwritten.push(end);
        } else {
            log::error!("{error}; request {request_id} is taken for running until the next start");
        }
    }

    /// Writes what a request came to, at once or on its way: [`Idempotency::decided`] tells when.
    fn end(&self, mut end: End) {
        match &self.0.book {
            Book::Here(here) => {
                let mut outcome = here.end(&end);
                if outcome.is_err() && end.kept.take().is_some() {
                    // A file that is full may yet take the little that says that nothing must be
                    // debited again.
                    outcome = here.end(&end);
                }
                if let Err(error) = outcome {
                    self.try_again(&error, end);
                }
            }
            Book::Shared(_) => self.send(end),
        }
    }

    fn send(&self, mut end: End) {
        let Ok(runtime) = Handle::try_current() else {
            end.kept = None;
            let error = StoreError::Unusable(
                "end a request under an idempotency key: on no thread that serves".into(),
            );
            return self.try_again(&error, end);
        };
        let (arrived, under_way) = watch::channel(());
        let request_id = end.entry.request_id.clone();
        lock(&self.0.under_way).insert(request_id.clone(), under_way);
        let of = self.clone();
        runtime.spawn(async move {
            let Book::Shared(shared) = &of.0.book else {
                return;
            };
            if let Err(error) = shared.end(&end).await {
                // The answer leaves all the same, and is told as lost to whoever asks for it again.
                of.try_again(&error, End { kept: None, ..end });
            }
            lock(&of.0.under_way).remove(&request_id);
            drop(arrived);
        });
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// As a shared store knows it: what a client chose is not a name there.
fn entry(ask: &Ask<'_>) -> Entry {
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
    Entry {
        account: ask.account.to_owned(),
        name: hex(&name),
        hash: hex(ask.hash),
        request_id: ask.request_id.to_owned(),
        boot: ask.boot.to_owned(),
    }
}

impl Decision {
    pub async fn made(&self) {
        self.of.decided(&self.request_id).await;
    }
}

impl Running {
    /// The headers of the answer; those of an attempt before are forgotten.
    pub fn set_headers(&mut self, headers: Vec<(String, String)>) {
        self.headers = headers;
    }

    pub fn add_header(&mut self, name: &str, value: String) {
        self.headers.push((name.to_owned(), value));
    }

    /// Bytes that the client is about to get.
    pub fn push(&mut self, piece: &[u8]) {
        let Some(body) = &mut self.body else { return };
        if body.len().saturating_add(piece.len()) > self.body_most {
            self.body = None;
        } else {
            body.extend_from_slice(piece);
        }
    }

    /// Who asks it is told when the key is decided, once this has ended.
    pub fn decision(&self) -> Decision {
        Decision {
            of: self.of.clone(),
            request_id: self.entry.request_id.clone(),
        }
    }

    /// The answer is whole and debited. Once that is decided, whoever asks again gets it, or is
    /// told that it is not kept: the last byte may leave.
    pub fn complete(mut self) {
        let headers = std::mem::take(&mut self.headers);
        let kept = self.body.take().map(|body| Kept { headers, body });
        self.end(Some(self.keeping), kept);
    }

    /// The request was debited, but there is no whole answer to give again.
    pub fn spend(mut self) {
        self.end(Some(self.keeping), None);
    }

    fn end(&mut self, spent: Option<Keeping>, kept: Option<Kept>) {
        if !std::mem::replace(&mut self.ended, true) {
            self.of.end(End {
                entry: self.entry.clone(),
                spent,
                kept,
            });
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end(None, None);
    }
}

#[cfg(test)]
mod tests;
