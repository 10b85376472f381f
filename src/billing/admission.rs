//! Defines the interface by which an edge admits a request. It authenticates the caller, and checks
//! whether the account can pay.
//!
//! This file must not contain behaviour: the implementations are `billing/embedded.rs` (the files
//! of this process) and `shared_credit/admission.rs` (the store that edges share). `app.rs` chooses
//! one when a process starts, and no other code depends on the choice. A hold ends by itself,
//! through the
//! store that reserved it (`billing/hold.rs`).

use crate::billing::backlog::LedgerBacklog;
use crate::billing::holds::Payer;
use crate::billing::usage_report::UsageReportQuery;
use crate::billing::{Balance, Hold, HoldRequest, PendingRequests, Receipt, ReserveError};
use accounts::{AuthError, Principal};
use async_trait::async_trait;
use config::Settings;
use credits::money::Micro;
use credits::pricing::Quote;
use ledger::StoreError;
use ledger::sqlite::writer::WriteCount;
use serde_json::Value;

/// Admits requests by the files of this process, or by the store that edges share.
#[async_trait]
pub trait Admission: Send + Sync {
    /// Authenticates a key. Every request calls this method.
    ///
    /// # Errors
    /// Returns the reason why the key is refused.
    async fn authenticate(&self, key: &str, now_ms: i64) -> Result<Principal, AuthError>;

    /// Checks whether an account may be served at all, before the gateway reads the request's body:
    /// its limits, and whether it can pay `min_cost`, the cost of the cheapest request. No credits
    /// are reserved. If the request `reserves_soon`, a store in another process lets it pass,
    /// because the reservation decides.
    ///
    /// # Errors
    /// Returns the reason as [`ReserveError`].
    async fn authorize(
        &self,
        payer: &Payer<'_>,
        arriving: PendingRequests,
        min_cost: &(dyn Fn() -> Micro + Sync),
        reserves_soon: bool,
        now_ms: i64,
    ) -> Result<(), ReserveError>;

    /// Returns the backlog of ended requests that may not be in the ledger yet, or `None` in a
    /// process that does not serve.
    fn backlog(&self) -> Option<&LedgerBacklog>;

    /// Reserves credits for the worst case of a request. Lowers the output limit to what the
    /// account can pay, unless `exact`. Returns the hold and the output limit that it covers.
    ///
    /// # Errors
    /// Returns the reason as [`ReserveError`]; no credits are held then.
    async fn reserve(
        &self,
        request: HoldRequest,
        quote: &Quote,
        exact: bool,
        now_ms: i64,
    ) -> Result<(Hold, u64), ReserveError>;

    /// Returns the account's balance.
    ///
    /// # Errors
    /// Returns an error if the store cannot be read or does not know the account.
    async fn balance(&self, account: &str, now_ms: i64) -> Result<Balance, StoreError>;

    /// Stores the prices of new settings durably, before the first request that uses them, and
    /// applies their limits.
    ///
    /// # Errors
    /// Returns an error if the prices cannot be written; the new settings are not applied then.
    fn apply_settings(&self, new: &Settings, now_ms: i64) -> Result<(), StoreError>;

    /// Hands the right to admit over to a successor. An edge with a shared store hands over only
    /// its data directory, because each edge admits independently.
    ///
    /// # Errors
    /// Returns an error if the hand-over fails; this process then continues as before.
    fn hand_over(&self) -> Result<(), StoreError>;

    /// Returns whether a successor has taken over, or is about to.
    fn has_handed_over(&self) -> bool;

    /// Returns the instance id, which names this process's journal.
    fn instance_id(&self) -> &str;

    /// Returns whether settled requests reach the ledger or the shared store.
    fn is_healthy(&self) -> bool;

    /// Reads what the admission of every request reads, anew. The health of a shared store is
    /// checked elsewhere.
    ///
    /// # Errors
    /// Returns an error if a file fails or does not answer in time.
    async fn check_reads(&self) -> Result<(), StoreError>;

    /// Returns the counts of writes to the databases of this process, with the file of each.
    fn write_counts(&self) -> Vec<(&'static str, WriteCount)> {
        Vec::new()
    }

    /// Updates the gauges that are computed on demand.
    fn update_gauges(&self, now_ms: i64);

    /// Sends all settled requests to the ledger or the shared store, and then stops.
    fn shut_down(&self);
}

/// The part of the ledger that callers of the API may read. In a process without the ledger, its
/// sidecar answers instead.
pub trait LedgerLookup: Send + Sync {
    /// Returns the receipt of a request, or `None` if the request has not ended or belongs to
    /// another account.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    fn receipt(&self, account: &str, request_id: &str) -> Result<Option<Receipt>, StoreError>;

    /// Returns the usage that a key (by id) of an account may see.
    ///
    /// # Errors
    /// Returns an error if the ledger or the accounts cannot be read.
    fn usage_report(
        &self,
        account: &str,
        key: &str,
        query: &UsageReportQuery,
    ) -> Result<Value, StoreError>;
}
