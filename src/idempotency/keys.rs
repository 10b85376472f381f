//! Defines the interface between the service and a store of idempotency keys.
//!
//! This file must not contain behaviour: `idempotency/embedded.rs` keeps keys in a file of this
//! process, `shared_credit/idempotency.rs` in the store that edges share.

use super::entry::{IdempotencyEntry, IdempotencyLookup, IdempotencyRequest};
use super::key_completion::{IdempotencyCompletion, Retention};
use async_trait::async_trait;
use config::Limits;
use ledger::StoreError;
use std::sync::Arc;
use std::time::Duration;

#[async_trait]
pub trait IdempotencyKeys: Send + Sync {
    /// Returns the instance id of this process, which running requests contain.
    fn instance_id(&self) -> &str;

    /// Looks up a key, and enters the request as running if the key is new.
    ///
    /// # Errors
    /// Returns an error if the store cannot be queried.
    async fn claim(
        &self,
        request: &IdempotencyRequest<'_>,
        entry: &IdempotencyEntry,
        retention: Retention,
        now_ms: i64,
    ) -> Result<IdempotencyLookup, ClaimError>;

    /// Returns whether a key is known, with any body. The request is not entered.
    ///
    /// # Errors
    /// Returns an error if the store cannot be queried.
    async fn is_known(
        &self,
        request: &IdempotencyRequest<'_>,
        entry: &IdempotencyEntry,
        now_ms: i64,
    ) -> Result<bool, StoreError>;

    /// Returns the time that a last byte waits for its key to be committed. It is longer than one
    /// write attempt.
    fn commit_timeout(&self) -> Duration;

    /// Writes the result of a request, for which the request's last byte waits.
    ///
    /// # Errors
    /// Returns an error if the store cannot be written.
    async fn send_completion(
        &self,
        completion: &Arc<IdempotencyCompletion>,
    ) -> Result<(), StoreError>;

    /// Writes a completion on the housekeeping thread, for which no request waits.
    ///
    /// # Errors
    /// Returns an error if the store cannot be written.
    async fn retry_completion(&self, completion: &IdempotencyCompletion) -> Result<(), StoreError>;

    /// Resolves each request that a dead process was answering: if it was debited, the key is done
    /// without a response; otherwise it is free. Requests of processes whose journals are not read
    /// yet do not change.
    ///
    /// # Errors
    /// Returns an error if the store or the ledger cannot be queried.
    async fn resolve_orphaned(&self, retention: Retention, now_ms: i64) -> Result<(), StoreError>;

    /// Removes expired keys, and the oldest keys above the limits.
    ///
    /// # Errors
    /// Returns an error if the store cannot be written; removed entries are not restored.
    async fn clean(&self, limits: &Limits, now_ms: i64) -> Result<(), StoreError>;

    /// Makes recent writes durable, if they are in a file of this process.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    fn checkpoint(&self) -> Result<(), StoreError>;

    /// Removes data that must not remain if the process is not started again.
    fn shut_down(&self) {}
}

#[derive(Debug)]
pub struct ClaimError {
    pub source: StoreError,
    /// True if the store may have entered the request anyway.
    pub may_be_entered: bool,
}
