//! What the service needs of the store of idempotency keys.
//!
//! This file must not contain behaviour: `idempotency/embedded.rs` keeps keys in a file of this
//! process, `shared_credit/idempotency.rs` in the store that edges share.

use super::entry::{IdempotencyEntry, IdempotencyLookup, IdempotencyRequest};
use super::key_completion::{IdempotencyCompletion, KeyWrite, Retention};
use async_trait::async_trait;
use config::Limits;
use ledger::StoreError;

/// A store of idempotency keys.
#[async_trait]
pub trait IdempotencyKeys: Send + Sync {
    /// The instance id of this process, which names it in a running request.
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

    /// Returns whether a key is known, with any body. Enters nothing.
    ///
    /// # Errors
    /// Returns an error if the store cannot be queried.
    async fn is_known(
        &self,
        request: &IdempotencyRequest<'_>,
        entry: &IdempotencyEntry,
        now_ms: i64,
    ) -> Result<bool, StoreError>;

    /// Writes how a request ended, if the store is in this process.
    ///
    /// # Errors
    /// Returns an error if not even the completion without its response can be written.
    fn complete(&self, completion: &IdempotencyCompletion) -> Result<KeyWrite, StoreError>;

    /// Writes a completion after [`KeyWrite::MustBeSent`], on the path of a request, whose last
    /// byte waits for it.
    ///
    /// # Errors
    /// Returns an error if the store cannot be written.
    async fn send_completion(&self, completion: &IdempotencyCompletion) -> Result<(), StoreError>;

    /// Writes a completion outside the path of requests, on the housekeeping thread.
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

    /// Removes expired keys, and the oldest above the limits.
    ///
    /// # Errors
    /// Returns an error if the store cannot be written; entries already removed stay removed.
    async fn clean(&self, limits: &Limits, now_ms: i64) -> Result<(), StoreError>;

    /// Makes recent writes durable, if they are in a file of this process.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    fn checkpoint(&self) -> Result<(), StoreError>;

    /// Removes what must not stay if the process is not started again.
    fn shut_down(&self) {}
}

/// Why a key was not claimed.
#[derive(Debug)]
pub struct ClaimError {
    pub source: StoreError,
    /// Whether the store may have entered the request anyway.
    pub may_be_entered: bool,
}
