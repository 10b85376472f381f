//! Where an edge's requests are paid: in this process's own books, or in the store that many edges
//! share.
//!
//! How a request ends is the same for both, and stands in `billing/hold.rs`. Must not know HTTP.

use super::holds::Asker;
use super::journal::Journal;
use super::pricing::Quote;
use super::{Arriving, Balance, Billing, Hold, Opening, Receipt, Refused, SharedBilling};
use crate::config::Settings;
use crate::money::Micro;
use crate::store::StoreError;
use std::sync::atomic::AtomicI64;

/// Cheap to clone.
#[derive(Clone)]
pub enum Till {
    Here(Billing),
    Shared(SharedBilling),
}

impl Till {
    /// Sets aside the worst case of a request, lowering its output limit to what the account can
    /// pay unless `exact`. Returns the hold and the output limit it pays for.
    ///
    /// # Errors
    /// [`Refused`]; nothing is held then.
    pub async fn reserve(
        &self,
        opening: Opening,
        quote: &Quote,
        exact: bool,
        now_ms: i64,
    ) -> Result<(Hold, u64), Refused> {
        match self {
            // It may have to wait for another process: not on a thread that serves.
            Self::Here(billing) if billing.is_guest() => {
                tokio::task::block_in_place(|| billing.reserve(opening, quote, exact, now_ms))
            }
            Self::Here(billing) => billing.reserve(opening, quote, exact, now_ms),
            Self::Shared(shared) => shared.reserve(opening, quote, exact, now_ms).await,
        }
    }

    /// As [`Billing::check`].
    ///
    /// # Errors
    /// [`Refused`].
    pub async fn check(
        &self,
        asker: &Asker<'_>,
        arriving: Arriving,
        least: &(dyn Fn() -> Micro + Sync),
        now_ms: i64,
    ) -> Result<(), Refused> {
        match self {
            Self::Here(billing) => billing.check(asker, arriving, least, now_ms),
            Self::Shared(shared) => shared.check(asker, least()).await,
        }
    }

    /// # Errors
    /// The store cannot be read, or the account is not known.
    pub async fn balance(&self, account: &str, now_ms: i64) -> Result<Balance, StoreError> {
        match self {
            Self::Here(billing) => billing.balance(account, now_ms),
            Self::Shared(shared) => shared.balance(account, now_ms).await,
        }
    }

    /// How a request was billed, where this process has the ledger; `None` also where it has not
    /// ended, or is another account's.
    ///
    /// # Errors
    /// The ledger cannot be read.
    pub fn receipt(&self, account: &str, request_id: &str) -> Result<Option<Receipt>, StoreError> {
        match self {
            Self::Here(billing) => billing.receipt(account, request_id),
            Self::Shared(_) => Ok(None),
        }
    }

    /// Receipts are the sidecar's to give: it has the ledger.
    pub fn asks_sidecar(&self) -> bool {
        matches!(self, Self::Shared(_))
    }

    /// Makes the prices of new settings durable, before the first request under them, and takes
    /// their limits.
    ///
    /// # Errors
    /// The prices cannot be written; nothing is taken then.
    pub fn take_settings(&self, new: &Settings, now_ms: i64) -> Result<(), StoreError> {
        match self {
            Self::Here(billing) => {
                billing.keep_prices(new.catalog.models(), now_ms)?;
                billing.take_limits(&new.limits);
            }
            // The ledger is the sidecar's: every ending takes its price along.
            Self::Shared(shared) => shared.take_limits(&new.limits),
        }
        Ok(())
    }

    /// Gives up the right to admit to a successor; among many edges each has its own.
    ///
    /// # Errors
    /// This process goes on as it was.
    pub fn hand_over(&self) -> Result<(), StoreError> {
        match self {
            Self::Here(billing) => billing.hand_over(),
            Self::Shared(shared) => shared.hand_over(),
        }
    }

    /// A successor has taken over, or is about to.
    pub fn is_guest(&self) -> bool {
        match self {
            Self::Here(billing) => billing.is_guest(),
            Self::Shared(shared) => shared.has_handed_over(),
        }
    }

    /// The name of this process's journal.
    pub fn boot(&self) -> &str {
        match self {
            Self::Here(billing) => billing.boot(),
            Self::Shared(shared) => shared.boot(),
        }
    }

    /// Refreshes the gauges that are read rather than kept.
    pub fn observe(&self, now_ms: i64) {
        match self {
            Self::Here(billing) => billing.observe(now_ms),
            Self::Shared(shared) => shared.observe(now_ms),
        }
    }

    /// What is settled arrives.
    pub fn is_healthy(&self) -> bool {
        match self {
            Self::Here(billing) => billing.is_healthy(),
            Self::Shared(shared) => shared.is_healthy(),
        }
    }

    /// Brings everything settled to where it belongs, and ends.
    pub fn finish(&self) {
        match self {
            Self::Here(billing) => billing.finish(),
            Self::Shared(shared) => shared.finish(),
        }
    }

    /// The journal and the count of open requests, where this process serves.
    pub(super) fn counted(&self) -> Option<(&Journal, &AtomicI64)> {
        match self {
            Self::Here(billing) => billing
                .0
                .serving
                .as_ref()
                .map(|serving| (&*serving.journal, &serving.open)),
            Self::Shared(shared) => Some(shared.counted()),
        }
    }
}
