//! What an edge needs of its store.
//!
//! Must not contain behaviour: the implementations are `edge_store/embedded.rs` and
//! `edge_store/redis.rs`. A hold ends by itself, through the store that reserved it
//! (`billing/hold.rs`).

use super::key_completion::{IdempotencyCompletion, KeyWrite, Retention};
use crate::account::{AuthError, Principal};
use crate::billing::backlog::LedgerBacklog;
use crate::billing::holds::Payer;
use crate::billing::usage_report::UsageReportQuery;
use crate::billing::{Balance, Hold, HoldRequest, PendingRequests, Receipt, ReserveError};
use crate::store::idempotency_entry::{IdempotencyEntry, IdempotencyLookup, IdempotencyRequest};
use async_trait::async_trait;
use config::{Limits, Settings};
use credits::money::Micro;
use credits::pricing::Quote;
use ledger::StoreError;
use serde_json::Value;

/// The store of an edge: its own files, or the store that it shares with other edges.
#[async_trait]
pub trait EdgeStore: Send + Sync {
    /// Authenticates a key; every request calls this.
    ///
    /// # Errors
    /// Returns why the key is refused.
    async fn authenticate(&self, key: &str, now_ms: i64) -> Result<Principal, AuthError>;

    /// Checks whether an account may be served at all, before the gateway reads the request's body:
    /// its limits, and whether it can pay `min_cost`, the cost of the cheapest request. Reserves
    /// nothing.
    ///
    /// # Errors
    /// Returns the reason as [`ReserveError`].
    async fn authorize(
        &self,
        payer: &Payer<'_>,
        arriving: PendingRequests,
        min_cost: &(dyn Fn() -> Micro + Sync),
        now_ms: i64,
    ) -> Result<(), ReserveError>;

    /// Whether [`EdgeStore::authorize`] asks another process, so that a request that soon reserves
    /// should skip it.
    fn authorizes_remotely(&self) -> bool;

    /// The ended requests that the ledger is not known to have; `None` in a process that does not
    /// serve.
    fn backlog(&self) -> Option<&LedgerBacklog>;

    /// Reserves credits for the worst case of a request. Lowers the output limit to what the
    /// account can pay, unless `exact`. Returns the hold and the output limit that it covers.
    ///
    /// # Errors
    /// Returns the reason as [`ReserveError`]; nothing is held then.
    async fn reserve(
        &self,
        request: HoldRequest,
        quote: &Quote,
        exact: bool,
        now_ms: i64,
    ) -> Result<(Hold, u64), ReserveError>;

    /// # Errors
    /// Returns an error if the store cannot be read or does not know the account.
    async fn balance(&self, account: &str, now_ms: i64) -> Result<Balance, StoreError>;

    /// Returns how a request was billed, if this process has the ledger; `None` otherwise, or if
    /// the request has not ended or belongs to another account.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    fn receipt(&self, account: &str, request_id: &str) -> Result<Option<Receipt>, StoreError>;

    /// Returns an account's usage, if this process has the ledger; `None` otherwise.
    ///
    /// # Errors
    /// Returns an error if the ledger or the accounts cannot be read.
    fn usage_report(
        &self,
        account: &str,
        query: &UsageReportQuery,
    ) -> Result<Option<Value>, StoreError>;

    /// Whether the sidecar serves receipts and usage, because it has the ledger.
    fn has_ledger_in_sidecar(&self) -> bool;

    /// Looks up an idempotency key, and enters the request as running if the key is new.
    ///
    /// # Errors
    /// Returns an error if the store cannot be queried.
    async fn claim_key(
        &self,
        request: &IdempotencyRequest<'_>,
        entry: &IdempotencyEntry,
        retention: Retention,
        now_ms: i64,
    ) -> Result<IdempotencyLookup, ClaimError>;

    /// Whether an idempotency key is known, with any body. Enters nothing.
    ///
    /// # Errors
    /// Returns an error if the store cannot be queried.
    async fn is_known_key(
        &self,
        request: &IdempotencyRequest<'_>,
        entry: &IdempotencyEntry,
        now_ms: i64,
    ) -> Result<bool, StoreError>;

    /// Writes how a request with a key ended, if the store is in this process.
    ///
    /// # Errors
    /// Returns an error if not even the completion without its response can be written.
    fn complete_key(&self, completion: &IdempotencyCompletion) -> Result<KeyWrite, StoreError>;

    /// Writes a completion after [`KeyWrite::MustBeSent`], on the path of a request, whose last
    /// byte waits for it.
    ///
    /// # Errors
    /// Returns an error if the store cannot be written.
    async fn send_key_completion(
        &self,
        completion: &IdempotencyCompletion,
    ) -> Result<(), StoreError>;

    /// Writes a completion outside the path of requests, on the housekeeping thread.
    ///
    /// # Errors
    /// Returns an error if the store cannot be written.
    async fn retry_key_completion(
        &self,
        completion: &IdempotencyCompletion,
    ) -> Result<(), StoreError>;

    /// Resolves each request with a key that a dead process was answering: if it was debited, the
    /// key is done without a response; otherwise it is free. Requests of processes whose journals
    /// are not read yet do not change.
    ///
    /// # Errors
    /// Returns an error if the store or the ledger cannot be queried.
    async fn resolve_orphaned_keys(
        &self,
        retention: Retention,
        now_ms: i64,
    ) -> Result<(), StoreError>;

    /// Removes expired idempotency keys, and the oldest above the limits.
    ///
    /// # Errors
    /// Returns an error if the store cannot be written; entries already removed stay removed.
    async fn clean_keys(&self, limits: &Limits, now_ms: i64) -> Result<(), StoreError>;

    /// Makes recent writes of idempotency keys durable, if they are in a file of this process.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    fn checkpoint_keys(&self) -> Result<(), StoreError>;

    /// Stores the prices of new settings durably, before the first request that uses them, and
    /// applies their limits.
    ///
    /// # Errors
    /// Returns an error if the prices cannot be written; nothing is applied then.
    fn apply_settings(&self, new: &Settings, now_ms: i64) -> Result<(), StoreError>;

    /// Hands the right to admit over to a successor. An edge with a shared store hands over its
    /// data directory only: each edge admits on its own.
    ///
    /// # Errors
    /// Returns an error if the hand-over fails; this process then continues as before.
    fn hand_over(&self) -> Result<(), StoreError>;

    /// Whether a successor has taken over, or is about to.
    fn has_handed_over(&self) -> bool;

    /// The instance id, which names this process's journal.
    fn instance_id(&self) -> &str;

    /// Whether settled requests reach the ledger or the shared store.
    fn is_healthy(&self) -> bool;

    /// Updates the gauges that are computed on demand.
    fn update_gauges(&self, now_ms: i64);

    /// Sends everything settled to the ledger or the shared store, then stops.
    fn shut_down(&self);
}

/// Why an idempotency key was not claimed.
#[derive(Debug)]
pub struct ClaimError {
    pub source: StoreError,
    /// Whether the store may have entered the request anyway.
    pub may_be_entered: bool,
}
