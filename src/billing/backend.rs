//! The billing backend of an edge: this process's own ledger, or the store that several edges
//! share.
//!
//! Must not decide how a request ends, which is the same for both: see `billing/hold.rs`. It
//! reserves in `billing/reserve.rs`. Must not know HTTP.

use super::balance::Balance;
use super::holds::{Payer, PendingRequests, ReserveError};
use super::journal::Journal;
use super::receipt::Receipt;
use super::service::Billing;
use super::shared::SharedBilling;
use crate::config::Settings;
use crate::store::StoreError;
use credits::money::Micro;
use std::sync::atomic::AtomicI64;

/// Where an edge reserves and settles credits; cheap to clone.
#[derive(Clone)]
pub enum BillingBackend {
    Here(Billing),
    Shared(SharedBilling),
}

impl BillingBackend {
    /// Checks whether an account may be served at all: see [`Billing::authorize`].
    ///
    /// # Errors
    /// Returns the reason as [`ReserveError`].
    pub async fn authorize(
        &self,
        asker: &Payer<'_>,
        arriving: PendingRequests,
        least: &(dyn Fn() -> Micro + Sync),
        now_ms: i64,
    ) -> Result<(), ReserveError> {
        match self {
            Self::Here(billing) => billing.authorize(asker, arriving, least, now_ms),
            Self::Shared(shared) => shared.authorize(asker, least()).await,
        }
    }

    /// # Errors
    /// Returns an error if the store cannot be read or does not know the account.
    pub async fn balance(&self, account: &str, now_ms: i64) -> Result<Balance, StoreError> {
        match self {
            Self::Here(billing) => billing.balance(account, now_ms),
            Self::Shared(shared) => shared.balance(account, now_ms).await,
        }
    }

    /// Returns how a request was billed, if this process has the ledger; `None` otherwise, or if
    /// the request has not ended or belongs to another account.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn receipt(&self, account: &str, request_id: &str) -> Result<Option<Receipt>, StoreError> {
        match self {
            Self::Here(billing) => billing.receipt(account, request_id),
            Self::Shared(_) => Ok(None),
        }
    }

    /// Whether the sidecar serves the receipts, because it has the ledger.
    pub fn has_receipts_in_sidecar(&self) -> bool {
        matches!(self, Self::Shared(_))
    }

    /// Stores the prices of new settings durably, before the first request that uses them, and
    /// applies their limits.
    ///
    /// # Errors
    /// Returns an error if the prices cannot be written; nothing is applied then.
    pub fn apply_settings(&self, new: &Settings, now_ms: i64) -> Result<(), StoreError> {
        match self {
            Self::Here(billing) => {
                billing.store_prices(new.catalog.models(), now_ms)?;
                billing.apply_limits(&new.limits);
            }
            // The sidecar has the ledger; every ending carries its price there.
            Self::Shared(shared) => shared.apply_limits(&new.limits),
        }
        Ok(())
    }

    /// Hands the right to admit over to a successor. An edge with a shared store hands over its
    /// data directory only: each edge admits on its own.
    ///
    /// # Errors
    /// Returns an error if the hand-over fails; this process then continues as before.
    pub fn hand_over(&self) -> Result<(), StoreError> {
        match self {
            Self::Here(billing) => billing.hand_over(),
            Self::Shared(shared) => shared.hand_over(),
        }
    }

    /// Whether a successor has taken over, or is about to.
    pub fn has_handed_over(&self) -> bool {
        match self {
            Self::Here(billing) => billing.has_handed_over(),
            Self::Shared(shared) => shared.has_handed_over(),
        }
    }

    /// The instance id, which names this process's journal.
    pub fn instance_id(&self) -> &str {
        match self {
            Self::Here(billing) => billing.instance_id(),
            Self::Shared(shared) => shared.instance_id(),
        }
    }

    /// Updates the gauges that are computed on demand.
    pub fn update_gauges(&self, now_ms: i64) {
        match self {
            Self::Here(billing) => billing.update_gauges(now_ms),
            Self::Shared(shared) => shared.update_gauges(now_ms),
        }
    }

    /// Whether settled requests reach the ledger or the shared store.
    pub fn is_healthy(&self) -> bool {
        match self {
            Self::Here(billing) => billing.is_healthy(),
            Self::Shared(shared) => shared.is_healthy(),
        }
    }

    /// Sends everything settled to the ledger or the shared store, then stops.
    pub fn shut_down(&self) {
        match self {
            Self::Here(billing) => billing.shut_down(),
            Self::Shared(shared) => shared.shut_down(),
        }
    }

    /// The journal and the number of open requests, if this process serves.
    pub(super) fn journal_and_open_count(&self) -> Option<(&Journal, &AtomicI64)> {
        match self {
            Self::Here(billing) => billing
                .0
                .serving
                .as_ref()
                .map(|serving| (&*serving.journal, &serving.open)),
            Self::Shared(shared) => Some(shared.journal_and_open_count()),
        }
    }
}
