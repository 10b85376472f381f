//! Holds the state that the handlers of the admin API share, and the limit on concurrent writes.
//!
//! This file must not depend on a route.

use super::error::AdminError;
use crate::billing::Billing;
use crate::handler_threads;
use crate::payments::Payments;
use crate::refused_requests::RefusedRequests;
use accounts::{Account, Accounts};
use arc_swap::ArcSwap;
use config::Settings;
use std::sync::Arc;
use tokio::sync::Semaphore;

/// Prefix of every route's path.
pub(super) const PREFIX: &str = "/admin/v1";

/// Maximum number of concurrent writes, including those that wait for another commit. Further
/// writes get a 503.
const MAX_CONCURRENT_WRITES: usize = 64;

/// Shared state of the handlers.
pub(super) struct AdminState {
    pub(super) accounts: Accounts,
    pub(super) billing: Billing,
    pub(super) settings: Arc<ArcSwap<Settings>>,
    pub(super) refused: RefusedRequests,
    pub(super) payments: Payments,
    writes: Arc<Semaphore>,
}

impl AdminState {
    pub(super) fn new(
        accounts: Accounts,
        billing: Billing,
        settings: Arc<ArcSwap<Settings>>,
        refused: RefusedRequests,
    ) -> Self {
        let payments = Payments::new(accounts.clone(), billing.clone(), Arc::clone(&settings));
        Self {
            accounts,
            billing,
            settings,
            refused,
            payments,
            writes: Arc::new(Semaphore::new(MAX_CONCURRENT_WRITES)),
        }
    }

    /// Returns the account with this id or e-mail.
    pub(super) fn find_account(&self, name: &str) -> Result<Account, AdminError> {
        let found = self.accounts.find(name)?;
        found.ok_or_else(|| {
            AdminError::NotFound(format!("no account has the id or e-mail {name:?}"))
        })
    }

    /// Runs a write, which may wait for a commit, on a blocking thread. The permit moves with the
    /// work, so a client that disconnects does not make room for another write.
    pub(super) async fn run_write<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Self) -> Result<T, AdminError> + Send + 'static,
    ) -> Result<T, AdminError> {
        let permit = Arc::clone(&self.writes)
            .try_acquire_owned()
            .map_err(|_| AdminError::Busy)?;
        let app = Arc::clone(self);
        let work = move || {
            let outcome = work(&app);
            drop(permit);
            outcome
        };
        tokio::task::spawn_blocking(handler_threads::bound_work(handler_threads::TIMEOUT, work))
            .await
            .map_err(|error| AdminError::Internal(error.to_string()))?
    }
}
