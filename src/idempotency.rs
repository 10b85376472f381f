//! `Idempotency-Key`: one request under a key is answered once, and its answer given again for a day.
//!
//! The order that makes it right: `running` is committed before the hold, the debit is journalled, `done` and the
//! answer are committed, the last byte leaves. A key is spent exactly where its request was debited, and free again
//! where it was not; so after a crash the ledger, into which the journal was replayed, decides: a debit whose answer
//! was not kept leaves a key that is done and has nothing to give. Read `store/idempotency.rs` for what survives what.
//! Must not know HTTP; who asks calls `edge/admit/keyed.rs`.

use crate::billing::Till;
use crate::clock;
use crate::config::{Limits, Settings};
use crate::store::StoreError;
use crate::store::idempotency::{Ask, Found, IdempotencyDb, Kept, Room};
use arc_swap::ArcSwap;
use sha2::{Digest, Sha256};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

const KEY_BYTES_MAX: usize = 255;
/// How often the log is carried back, and how many times that until what has expired is removed. It is no longer
/// given out before, so nothing depends on it.
const TICK: Duration = Duration::from_secs(1);
const TICKS_TO_CLEAN: u32 = 30;
/// Ends that a full file could not take and that are tried again. Only a request that began before it was full adds one.
const UNWRITTEN_MAX: usize = 65_536;

/// The service; cheap to clone.
#[derive(Clone)]
pub struct Idempotency(Arc<Inner>);

struct Inner {
    db: IdempotencyDb,
    boot: String,
    /// Written since the last tick.
    touched: AtomicBool,
    unwritten: Mutex<Vec<Unwritten>>,
}

/// The end of a request under a key that the file could not take.
struct Unwritten {
    request_id: String,
    /// For how long the key is spent; `None`: it is free.
    spent_ms: Option<i64>,
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
    request_id: String,
    keep_ms: i64,
    headers: Vec<(String, String)>,
    /// What was answered so far; `None` once that is more than is kept.
    body: Option<Vec<u8>>,
    body_most: usize,
    ended: bool,
}

/// A key is 1 to 255 visible ASCII characters.
pub fn is_key(value: &[u8]) -> bool {
    (1..=KEY_BYTES_MAX).contains(&value.len()) && value.iter().all(u8::is_ascii_graphic)
}

impl Idempotency {
    /// For the gateway, once `billing` has replayed what dead processes left: settles what became of their requests,
    /// and starts the thread that removes what is over.
    ///
    /// # Errors
    /// The database cannot be opened, or the ledger not be asked.
    pub fn start(
        data_dir: &Path,
        billing: &Till,
        settings: Arc<ArcSwap<Settings>>,
        now_ms: i64,
    ) -> Result<Self, StoreError> {
        let (inner, keep_ms) = (Self::open(data_dir, billing)?, keep_ms(&settings.load().limits));
        inner.resolve_left(billing, now_ms.saturating_add(keep_ms))?;
        let (service, billing) = (inner.clone(), billing.clone());
        std::thread::Builder::new()
            .name("idempotency".into())
            .spawn(move || service.tidy(&billing, &settings))
            .map_err(|source| StoreError::io("start the idempotency thread", source))?;
        Ok(inner)
    }

    fn open(data_dir: &Path, billing: &Till) -> Result<Self, StoreError> {
        let db = IdempotencyDb::open(data_dir)?;
        let (boot, touched) = (billing.boot().to_owned(), AtomicBool::new(true));
        Ok(Self(Arc::new(Inner { db, boot, touched, unwritten: Mutex::default() })))
    }

    /// Of each request that a dead process was answering: done without an answer where it was debited, else as if it
    /// had never been asked. Requests of processes whose journal is not replayed stay as they are.
    fn resolve_left(&self, billing: &Till, expires_at_ms: i64) -> Result<(), StoreError> {
        for (account, request_id) in self.0.db.left_running(&billing.boots_not_replayed()?)? {
            if billing.was_debited(&account, &request_id)? {
                log::warn!("request {request_id} was debited, and its answer is lost: its idempotency key is spent");
                self.0.db.done(&request_id, None, expires_at_ms)?;
            } else {
                self.0.db.free(&request_id)?;
            }
        }
        Ok(())
    }

    /// # Errors
    /// The database cannot be written: nothing may be answered under a key then.
    pub fn begin(
        &self,
        (account, path, key): (&str, &str, &str),
        body: &[u8],
        request_id: &str,
        limits: &Limits,
        now_ms: i64,
    ) -> Result<Asked, StoreError> {
        let hash: [u8; 32] = Sha256::digest(body).into();
        let ask = Ask { account, path, key, hash: &hash, request_id, boot: &self.0.boot };
        let found = self.0.db.begin(&ask, now_ms)?;
        Ok(match found {
            Found::Nothing => {
                self.0.touched.store(true, Ordering::Relaxed);
                Asked::New(Box::new(Running {
                    of: self.clone(),
                    request_id: request_id.to_owned(),
                    keep_ms: keep_ms(limits),
                    headers: Vec::new(),
                    body: Some(Vec::new()),
                    body_most: usize::try_from(limits.idempotency_body_bytes).unwrap_or(usize::MAX),
                    ended: false,
                }))
            }
            Found::Running => Asked::Running,
            Found::OtherBody => Asked::OtherBody,
            Found::Done { request_id, kept: Some(Kept { headers, body }) } => {
                Asked::Done(Answer { request_id, headers, body })
            }
            Found::Done { kept: None, .. } => Asked::Unavailable,
        })
    }

    fn tidy(&self, billing: &Till, settings: &ArcSwap<Settings>) {
        let mut tick = 0_u32;
        loop {
            std::thread::sleep(TICK);
            tick = tick.wrapping_add(1);
            let expires_at_ms = clock::now_ms().saturating_add(keep_ms(&settings.load().limits));
            // A predecessor may have died after it handed over.
            let mut outcome = self.write_unwritten().and(self.resolve_left(billing, expires_at_ms));
            if tick.is_multiple_of(TICKS_TO_CLEAN) {
                let limits = &settings.load().limits;
                let room = Room { entries: limits.idempotency_entries, bytes: limits.idempotency_store_bytes };
                outcome = outcome.and(self.0.db.clean(clock::now_ms(), room));
                self.0.touched.store(true, Ordering::Relaxed);
            }
            if self.0.touched.swap(false, Ordering::Relaxed) {
                outcome = outcome.and(self.0.db.checkpoint());
            }
            if let Err(error) = outcome {
                log::warn!("{error}");
            }
        }
    }

    /// Tries what the file could not take once more.
    fn write_unwritten(&self) -> Result<(), StoreError> {
        let waiting = std::mem::take(&mut *self.0.unwritten.lock().unwrap_or_else(PoisonError::into_inner));
        let mut waiting = waiting.into_iter();
        while let Some(end) = waiting.next() {
            let outcome = match end.spent_ms {
                Some(keep_ms) => self.done(&end.request_id, None, keep_ms),
                None => self.free(&end.request_id),
            };
            if outcome.is_err() {
                self.0
                    .unwritten
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .extend([end].into_iter().chain(waiting));
                return outcome;
            }
        }
        Ok(())
    }

    fn try_again(&self, error: &StoreError, end: Unwritten) {
        let mut unwritten = self.0.unwritten.lock().unwrap_or_else(PoisonError::into_inner);
        if unwritten.len() < UNWRITTEN_MAX {
            log::error!("{error}; request {} is taken for running until that works", end.request_id);
            unwritten.push(end);
        } else {
            log::error!("{error}; request {} is taken for running until the next start", end.request_id);
        }
    }

    fn free(&self, request_id: &str) -> Result<(), StoreError> {
        self.0.touched.store(true, Ordering::Relaxed);
        self.0.db.free(request_id)
    }

    fn done(&self, request_id: &str, kept: Option<&Kept>, keep_ms: i64) -> Result<(), StoreError> {
        self.0.touched.store(true, Ordering::Relaxed);
        self.0.db.done(request_id, kept, clock::now_ms().saturating_add(keep_ms))
    }
}

fn keep_ms(limits: &Limits) -> i64 {
    i64::try_from(limits.idempotency_seconds).unwrap_or(i64::MAX).saturating_mul(1_000)
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

    /// The answer is whole and debited. Once this returns, whoever asks again gets it, or is told that it is not kept:
    /// the last byte may leave.
    pub fn complete(mut self) {
        let headers = std::mem::take(&mut self.headers);
        let kept = self.body.take().map(|body| Kept { headers, body });
        self.end(kept.as_ref());
    }

    /// The request was debited, but there is no whole answer to give again.
    pub fn spend(mut self) {
        self.end(None);
    }

    fn end(&mut self, kept: Option<&Kept>) {
        self.ended = true;
        let mut outcome = self.of.done(&self.request_id, kept, self.keep_ms);
        if outcome.is_err() && kept.is_some() {
            // A file that is full may yet take the little that says that nothing must be debited again.
            outcome = self.of.done(&self.request_id, None, self.keep_ms);
        }
        if let Err(error) = outcome {
            let spent_ms = Some(self.keep_ms);
            self.of.try_again(&error, Unwritten { request_id: std::mem::take(&mut self.request_id), spent_ms });
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        if let Err(error) = self.of.free(&self.request_id) {
            self.of.try_again(&error, Unwritten { request_id: std::mem::take(&mut self.request_id), spent_ms: None });
        }
    }
}

#[cfg(test)]
mod tests;
