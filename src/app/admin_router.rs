//! Builds the router of the admin API on `listen.admin`, for a process with a ledger.
//!
//! This file must not handle its requests: `admin.rs` does.

use crate::admin;
use crate::billing::Billing;
use crate::refused_requests::RefusedRequests;
use accounts::Accounts;
use arc_swap::ArcSwap;
use config::Settings;
use std::sync::Arc;

/// Builds the router. Logs a warning if the address is not a loopback address.
pub(super) fn admin_router(
    settings: &Arc<ArcSwap<Settings>>,
    accounts: &Accounts,
    billing: &Billing,
    refused: &RefusedRequests,
) -> axum::Router {
    let current = settings.load();
    if !current.admin.ip().is_loopback() {
        log::warn!(
            "listen.admin {} is not a loopback address: anyone who reaches it with an administrator's key can change balances",
            current.admin
        );
    }
    admin::router(
        accounts.clone(),
        billing.clone(),
        Arc::clone(settings),
        refused.clone(),
    )
}
