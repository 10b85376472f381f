//! Idempotency keys in a file of this process. The ledger decides what became of a request that a
//! dead process left.
//!
//! Must not decide the result of a request. Must not know HTTP.

use super::key_completion::{IdempotencyCompletion, log_lost_response};
use crate::account::Accounts;
use crate::billing::Billing;
use crate::store::idempotency::{IdempotencyDb, RetentionLimits};
use crate::store::idempotency_entry::{IdempotencyLookup, IdempotencyRequest, StoredResponse};
use base::clock;
use config::Limits;
use ledger::StoreError;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

/// Interval at which the responses of deleted accounts are removed.
const DELETED_ACCOUNTS_INTERVAL_MS: i64 = 3_600_000;
/// Age from which on a deleted account has no responses: the longest time that one is kept, and a
/// day.
const DELETED_ACCOUNTS_AGE_MS: i64 = 8 * 86_400_000;

/// The idempotency file, used by one process at a time.
pub struct EmbeddedIdempotency {
    pub db: IdempotencyDb,
    billing: Billing,
    /// Whether something was written since the last checkpoint.
    touched: AtomicBool,
    /// When the responses of deleted accounts are removed next.
    deleted_accounts_due_ms: AtomicI64,
}

impl EmbeddedIdempotency {
    pub fn open(data_dir: &Path, billing: Billing) -> Result<Self, StoreError> {
        Ok(Self {
            db: IdempotencyDb::open(data_dir)?,
            billing,
            touched: AtomicBool::new(true),
            deleted_accounts_due_ms: AtomicI64::new(0),
        })
    }

    pub fn claim(
        &self,
        request: &IdempotencyRequest<'_>,
        now_ms: i64,
    ) -> Result<IdempotencyLookup, StoreError> {
        self.touched.store(true, Ordering::Relaxed);
        self.db.claim(request, now_ms)
    }

    /// Writes a completion. A full disk may still have space for the small record that prevents a
    /// second debit, so a completion that fails is written again without its response.
    pub fn complete_or_drop_response(
        &self,
        completion: &IdempotencyCompletion,
    ) -> Result<(), StoreError> {
        let outcome = self.complete(completion, completion.response.as_ref());
        if outcome.is_err() && completion.response.is_some() {
            return self.complete(completion, None);
        }
        outcome
    }

    fn complete(
        &self,
        completion: &IdempotencyCompletion,
        response: Option<&StoredResponse>,
    ) -> Result<(), StoreError> {
        self.touched.store(true, Ordering::Relaxed);
        let request_id = &completion.entry.request_id;
        match completion.spent {
            Some(retention) => {
                let expires_at_ms = retention.expires_at_ms(clock::steady_now_ms());
                self.db.complete(request_id, response, expires_at_ms)
            }
            None => self.db.release(request_id),
        }
    }

    pub fn resolve_orphaned(&self, expires_at_ms: i64) -> Result<(), StoreError> {
        for (account, request_id) in self
            .db
            .orphaned_requests(&self.billing.unreplayed_instance_ids()?)?
        {
            self.touched.store(true, Ordering::Relaxed);
            if self.billing.was_debited(&account, &request_id)? {
                log_lost_response(&request_id);
                self.db.complete(&request_id, None, expires_at_ms)?;
            } else {
                self.db.release(&request_id)?;
            }
        }
        Ok(())
    }

    /// Removes what is stored for deleted accounts; `accounts` says which these are.
    pub fn remove_deleted_accounts(
        &self,
        accounts: &Accounts,
        now_ms: i64,
    ) -> Result<(), StoreError> {
        for account in accounts.deleted_since(now_ms - DELETED_ACCOUNTS_AGE_MS)? {
            self.db.remove_account(&account)?;
        }
        Ok(())
    }

    pub fn clean(
        &self,
        limits: &Limits,
        accounts: &Accounts,
        now_ms: i64,
    ) -> Result<(), StoreError> {
        let retained = RetentionLimits {
            entries: limits.idempotency_entries,
            bytes: limits.idempotency_store_bytes,
        };
        self.touched.store(true, Ordering::Relaxed);
        if now_ms >= self.deleted_accounts_due_ms.load(Ordering::Relaxed) {
            self.remove_deleted_accounts(accounts, now_ms)?;
            let due_ms = now_ms + DELETED_ACCOUNTS_INTERVAL_MS;
            self.deleted_accounts_due_ms
                .store(due_ms, Ordering::Relaxed);
        }
        self.db.clean(now_ms, retained)
    }

    /// Makes recent writes durable.
    pub fn checkpoint(&self) -> Result<(), StoreError> {
        if self.touched.swap(false, Ordering::Relaxed) {
            self.db.checkpoint()
        } else {
            Ok(())
        }
    }
}
