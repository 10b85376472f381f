//! The backends that store idempotency keys: this process's own file, or the store that several
//! edges share.
//!
//! Must not decide the result of a request, which does not depend on the backend. Must not know
//! HTTP.

use crate::billing::{Billing, BillingBackend, SharedBilling};
use crate::clock;
use crate::config::Limits;
use crate::store::StoreError;
use crate::store::idempotency::{
    IdempotencyDb, IdempotencyLookup, IdempotencyRequest, RetentionLimits, StoredResponse,
};
use crate::store::redis::{IdempotencyEntry, PARTITIONS, SharedRetentionLimits, SharedStore};
use std::collections::HashSet;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// How long to wait for the shared store when a request waits for it, and when none does.
const SERVING_TIMEOUT: Duration = Duration::from_millis(250);
const HOUSEKEEPING_TIMEOUT: Duration = Duration::from_secs(2);
/// Time added to a request's maximum duration before it is presumed dead.
const LEASE_MARGIN: Duration = Duration::from_secs(60);

pub enum IdempotencyStore {
    Here(LocalIdempotency),
    Shared(SharedIdempotency),
}

/// The idempotency file, used by one process at a time.
pub struct LocalIdempotency {
    pub db: IdempotencyDb,
    billing: Billing,
    /// Whether something was written since the last checkpoint.
    touched: AtomicBool,
}

/// Entries of all edges. Each edge resolves the requests that it left running, from its own
/// journal.
pub struct SharedIdempotency {
    /// Connections for the serving threads and for the housekeeping thread: each runtime needs its
    /// own.
    serving: SharedStore,
    tidying: SharedStore,
    billing: SharedBilling,
    /// Dead instances of this edge whose entries are resolved.
    resolved: Mutex<HashSet<String>>,
}

/// How long, and within how many bytes, a key and its response are stored.
#[derive(Debug, Clone, Copy)]
pub struct Retention {
    known_for: Duration,
    runs: Duration,
    room: SharedRetentionLimits,
}

impl Retention {
    pub fn from_limits(limits: &Limits) -> Self {
        Self {
            known_for: Duration::from_secs(limits.idempotency_seconds),
            runs: Duration::from_secs(limits.total_seconds).saturating_add(LEASE_MARGIN),
            room: SharedRetentionLimits {
                of_account: limits.idempotency_shared_account_bytes,
                of_all: limits.idempotency_shared_bytes,
            },
        }
    }

    fn expires_at_ms(self, now_ms: i64) -> i64 {
        now_ms.saturating_add(i64::try_from(self.known_for.as_millis()).unwrap_or(i64::MAX))
    }
}

/// Result of a request with a key.
#[derive(Debug)]
pub struct IdempotencyCompletion {
    pub entry: IdempotencyEntry,
    /// Retention of the spent key if the request was debited; `None` frees the key.
    pub spent: Option<Retention>,
    /// Response to store, if any.
    pub kept: Option<StoredResponse>,
}

impl IdempotencyStore {
    /// # Errors
    /// Returns an error if the file cannot be opened.
    pub fn open(data_dir: &Path, till: &BillingBackend) -> Result<Self, StoreError> {
        Ok(match till {
            BillingBackend::Here(billing) => {
                let (db, billing) = (IdempotencyDb::open(data_dir)?, billing.clone());
                Self::Here(LocalIdempotency {
                    db,
                    billing,
                    touched: AtomicBool::new(true),
                })
            }
            BillingBackend::Shared(billing) => Self::Shared(SharedIdempotency {
                serving: billing.serving_store(),
                tidying: billing.new_connection(HOUSEKEEPING_TIMEOUT),
                billing: billing.clone(),
                resolved: Mutex::default(),
            }),
        })
    }

    /// Looks up a key, and enters the request as running if the key is new.
    ///
    /// # Errors
    /// Returns an error if the store cannot be queried; a shared store may have entered the request
    /// anyway.
    pub async fn claim(
        &self,
        ask: &IdempotencyRequest<'_>,
        entry: &IdempotencyEntry,
        keeping: Retention,
        now_ms: i64,
    ) -> Result<IdempotencyLookup, StoreError> {
        match self {
            Self::Here(here) => {
                here.touched.store(true, Ordering::Relaxed);
                here.db.claim(ask, now_ms)
            }
            Self::Shared(shared) => {
                let asked =
                    shared
                        .serving
                        .claim_idempotency_key(entry, keeping.runs, keeping.known_for);
                with_timeout("look up an idempotency key", SERVING_TIMEOUT, asked).await
            }
        }
    }

    /// Whether a key is known, with any body. Enters nothing.
    ///
    /// # Errors
    /// Returns an error if the store cannot be queried.
    pub async fn is_known(
        &self,
        ask: &IdempotencyRequest<'_>,
        entry: &IdempotencyEntry,
        now_ms: i64,
    ) -> Result<bool, StoreError> {
        match self {
            Self::Here(here) => here.db.is_known(ask, now_ms),
            Self::Shared(shared) => {
                with_timeout(
                    "look up an idempotency key",
                    SERVING_TIMEOUT,
                    shared.serving.has_idempotency_key(entry),
                )
                .await
            }
        }
    }

    /// Writes a completion outside the path of requests.
    ///
    /// # Errors
    /// Returns an error if the store cannot be written.
    pub async fn complete(&self, end: &IdempotencyCompletion) -> Result<(), StoreError> {
        match self {
            Self::Here(here) => here.complete(end),
            Self::Shared(shared) => send_completion(&shared.tidying, end).await,
        }
    }

    /// Resolves each request that a dead process was answering: if it was debited, the key is done
    /// without a response; otherwise it is free. Requests of processes whose journals are not read
    /// yet do not change.
    ///
    /// # Errors
    /// Returns an error if the store or the ledger cannot be queried.
    pub async fn resolve_orphaned(
        &self,
        keeping: Retention,
        now_ms: i64,
    ) -> Result<(), StoreError> {
        match self {
            Self::Here(here) => here.resolve_orphaned(keeping.expires_at_ms(now_ms)),
            Self::Shared(shared) => shared.resolve_orphaned(keeping).await,
        }
    }

    /// Removes expired entries, and the oldest entries above the limits.
    ///
    /// # Errors
    /// Returns an error if the store cannot be written; entries already removed stay removed.
    pub async fn clean(&self, limits: &Limits, now_ms: i64) -> Result<(), StoreError> {
        match self {
            Self::Here(here) => {
                let room = RetentionLimits {
                    entries: limits.idempotency_entries,
                    bytes: limits.idempotency_store_bytes,
                };
                here.touched.store(true, Ordering::Relaxed);
                here.db.clean(now_ms, room)
            }
            // A shared store expires entries itself, and recounts them with every stored response.
            // Recount here for times without responses.
            Self::Shared(shared) => {
                for partition in 0..PARTITIONS {
                    shared.tidying.remove_expired_answers(partition).await?;
                }
                Ok(())
            }
        }
    }

    /// Makes recent writes durable, if the backend is this process's own file.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    pub fn checkpoint(&self) -> Result<(), StoreError> {
        match self {
            Self::Here(here) if here.touched.swap(false, Ordering::Relaxed) => here.db.checkpoint(),
            Self::Here(_) | Self::Shared(_) => Ok(()),
        }
    }
}

impl LocalIdempotency {
    pub fn complete(&self, end: &IdempotencyCompletion) -> Result<(), StoreError> {
        self.touched.store(true, Ordering::Relaxed);
        let request_id = &end.entry.request_id;
        match end.spent {
            Some(keeping) => self.db.complete(
                request_id,
                end.kept.as_ref(),
                keeping.expires_at_ms(clock::now_ms()),
            ),
            None => self.db.release(request_id),
        }
    }

    fn resolve_orphaned(&self, expires_at_ms: i64) -> Result<(), StoreError> {
        for (account, request_id) in self
            .db
            .orphaned_requests(&self.billing.unreplayed_instance_ids()?)?
        {
            self.touched.store(true, Ordering::Relaxed);
            if self.billing.was_debited(&account, &request_id)? {
                log_lost(&request_id);
                self.db.complete(&request_id, None, expires_at_ms)?;
            } else {
                self.db.release(&request_id)?;
            }
        }
        Ok(())
    }
}

impl SharedIdempotency {
    /// Runs on the path of a request, whose last byte waits for it.
    pub async fn complete(&self, end: &IdempotencyCompletion) -> Result<(), StoreError> {
        with_timeout(
            "store the response of an idempotency key",
            SERVING_TIMEOUT,
            send_completion(&self.serving, end),
        )
        .await
    }

    async fn resolve_orphaned(&self, keeping: Retention) -> Result<(), StoreError> {
        let resolved = self
            .resolved
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        for boot in self
            .billing
            .adopted_instance_ids()
            .into_iter()
            .filter(|boot| !resolved.contains(boot))
        {
            for entry in self.tidying.orphaned_requests(&boot).await? {
                let debited = match self.billing.was_debited(&entry.request_id) {
                    Some(debited) => debited,
                    // The journal no longer has the request, so the ledger does. Whatever its
                    // result, give up the key.
                    None => {
                        self.tidying
                            .has_ended(&entry.account, &entry.request_id)
                            .await?
                    }
                };
                if debited {
                    log_lost(&entry.request_id);
                }
                send_completion(
                    &self.tidying,
                    &IdempotencyCompletion {
                        entry,
                        spent: debited.then_some(keeping),
                        kept: None,
                    },
                )
                .await?;
            }
            self.resolved
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .insert(boot);
        }
        Ok(())
    }
}

async fn send_completion(
    store: &SharedStore,
    end: &IdempotencyCompletion,
) -> Result<(), StoreError> {
    match end.spent {
        Some(keeping) => {
            store
                .complete_idempotency_key(
                    &end.entry,
                    end.kept.as_ref(),
                    keeping.known_for,
                    keeping.room,
                )
                .await
        }
        None => store.release_idempotency_key(&end.entry).await,
    }
}

async fn with_timeout<T>(
    operation: &str,
    patience: Duration,
    asked: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    let late = |_| {
        StoreError::Unusable(format!(
            "cannot {operation}: the shared store does not answer in time"
        ))
    };
    tokio::time::timeout(patience, asked).await.map_err(late)?
}

fn log_lost(request_id: &str) {
    log::warn!(
        "request {request_id} was debited, but its response is lost: its idempotency key cannot be used again"
    );
}
