//! Stores idempotency keys in a file of this process. The ledger decides about the requests that a
//! dead process left running.
//!
//! This file must not decide the result of a request, and must not depend on HTTP.

use super::db::{IdempotencyDb, RetentionLimits};
use super::entry::{IdempotencyEntry, IdempotencyLookup, IdempotencyRequest, StoredResponse};
use super::key_completion::{IdempotencyCompletion, Retention, log_lost_response};
use super::keys::{ClaimError, IdempotencyKeys};
use crate::billing::CreditService;
use accounts::Accounts;
use async_trait::async_trait;
use base::clock;
use base::disk_pool::{DiskError, DiskPool};
use config::Limits;
use ledger::StoreError;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

/// Time that the result of a request may take to be written. A stored response may be large.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// Threads for the calls of requests. Writers of the file wait for each other.
static DISK: DiskPool = DiskPool::new("keys", 2);

/// Interval at which the responses of deleted accounts are removed.
const DELETED_ACCOUNTS_INTERVAL_MS: i64 = 3_600_000;
/// Age in ms after which a deleted account has no responses. It is the longest time for which a
/// response is kept, plus a day.
const DELETED_ACCOUNTS_AGE_MS: i64 = 8 * 86_400_000;

/// The idempotency file, which one process uses at a time.
pub struct EmbeddedIdempotency {
    pub(super) db: Arc<IdempotencyDb>,
    accounts: Accounts,
    credit: CreditService,
    /// True if the file was written since the last checkpoint.
    touched: AtomicBool,
    /// Time in ms since 1970 at which the responses of deleted accounts are removed next.
    deleted_accounts_due_ms: AtomicI64,
}

impl EmbeddedIdempotency {
    /// Opens the file in `data_dir`.
    ///
    /// # Errors
    /// Returns an error if the file cannot be opened.
    pub fn open(
        data_dir: &Path,
        accounts: Accounts,
        credit: CreditService,
    ) -> Result<Self, StoreError> {
        Ok(Self {
            db: Arc::new(IdempotencyDb::open(data_dir)?),
            accounts,
            credit,
            touched: AtomicBool::new(true),
            deleted_accounts_due_ms: AtomicI64::new(0),
        })
    }

    fn remove_deleted_accounts(&self, now_ms: i64) -> Result<(), StoreError> {
        for account in self
            .accounts
            .directory()
            .deleted_since(now_ms - DELETED_ACCOUNTS_AGE_MS)?
        {
            self.db.remove_account(&account)?;
        }
        Ok(())
    }
}

/// Writes a completion. A full disk may still have space for the small record that prevents a
/// second debit, so after a failure the completion is written again without its response.
fn complete_or_drop_response(
    db: &IdempotencyDb,
    completion: &IdempotencyCompletion,
) -> Result<(), StoreError> {
    let outcome = write_completion(db, completion, completion.response.as_ref());
    if outcome.is_err() && completion.response.is_some() {
        return write_completion(db, completion, None);
    }
    outcome
}

fn write_completion(
    db: &IdempotencyDb,
    completion: &IdempotencyCompletion,
    response: Option<&StoredResponse>,
) -> Result<(), StoreError> {
    let request_id = &completion.entry.request_id;
    match completion.spent {
        Some(retention) => {
            let expires_at_ms = retention.expires_at_ms(clock::steady_now_ms());
            db.complete(request_id, response, expires_at_ms)
        }
        None => db.release(request_id),
    }
}

fn disk_error(operation: &'static str) -> impl FnOnce(DiskError) -> StoreError {
    move |error| StoreError::io(operation, error.into())
}

#[async_trait]
impl IdempotencyKeys for EmbeddedIdempotency {
    fn instance_id(&self) -> &str {
        self.credit.instance_id()
    }

    async fn claim(
        &self,
        request: &IdempotencyRequest<'_>,
        _: &IdempotencyEntry,
        _: Retention,
        now_ms: i64,
    ) -> Result<IdempotencyLookup, ClaimError> {
        self.touched.store(true, Ordering::Relaxed);
        let (db, request) = (Arc::clone(&self.db), request.to_owned_request());
        match DISK
            .run(move || db.claim(&request.as_request(), now_ms))
            .await
        {
            Ok(found) => found.map_err(|source| ClaimError {
                source,
                may_be_entered: false,
            }),
            Err(error) => Err(ClaimError {
                source: disk_error("record an idempotency key")(error),
                may_be_entered: error.may_run(),
            }),
        }
    }

    async fn is_known(
        &self,
        request: &IdempotencyRequest<'_>,
        _: &IdempotencyEntry,
        now_ms: i64,
    ) -> Result<bool, StoreError> {
        let (db, request) = (Arc::clone(&self.db), request.to_owned_request());
        DISK.run(move || db.is_known(&request.as_request(), now_ms))
            .await
            .map_err(disk_error("look an idempotency key up"))?
    }

    fn commit_timeout(&self) -> Duration {
        WRITE_TIMEOUT
    }

    async fn send_completion(
        &self,
        completion: &Arc<IdempotencyCompletion>,
    ) -> Result<(), StoreError> {
        self.touched.store(true, Ordering::Relaxed);
        let (db, completion) = (Arc::clone(&self.db), Arc::clone(completion));
        DISK.run_within(WRITE_TIMEOUT, move || {
            complete_or_drop_response(&db, &completion)
        })
        .await
        .map_err(disk_error("store the result of an idempotency key"))?
    }

    async fn retry_completion(&self, completion: &IdempotencyCompletion) -> Result<(), StoreError> {
        self.touched.store(true, Ordering::Relaxed);
        complete_or_drop_response(&self.db, completion)
    }

    async fn resolve_orphaned(&self, retention: Retention, now_ms: i64) -> Result<(), StoreError> {
        let expires_at_ms = retention.expires_at_ms(now_ms);
        for (account, request_id) in self
            .db
            .orphaned_requests(&self.credit.unreplayed_instance_ids()?)?
        {
            self.touched.store(true, Ordering::Relaxed);
            if self
                .credit
                .billing()
                .receipts()
                .was_debited(&account, &request_id)?
            {
                log_lost_response(&request_id);
                self.db.complete(&request_id, None, expires_at_ms)?;
            } else {
                self.db.release(&request_id)?;
            }
        }
        Ok(())
    }

    async fn clean(&self, limits: &Limits, now_ms: i64) -> Result<(), StoreError> {
        let retained = RetentionLimits {
            entries: limits.idempotency_entries,
            bytes: limits.idempotency_store_bytes,
        };
        self.touched.store(true, Ordering::Relaxed);
        if now_ms >= self.deleted_accounts_due_ms.load(Ordering::Relaxed) {
            self.remove_deleted_accounts(now_ms)?;
            let due_ms = now_ms + DELETED_ACCOUNTS_INTERVAL_MS;
            self.deleted_accounts_due_ms
                .store(due_ms, Ordering::Relaxed);
        }
        self.db.clean(now_ms, retained)
    }

    fn checkpoint(&self) -> Result<(), StoreError> {
        if self.touched.swap(false, Ordering::Relaxed) {
            self.db.checkpoint()
        } else {
            Ok(())
        }
    }

    fn shut_down(&self) {
        if let Err(error) = self.remove_deleted_accounts(clock::now_ms()) {
            log::warn!("{error}; the next start tries again");
        }
    }
}
