//! Builds the router of the admin API on `listen.admin`, for a process with a ledger.
//!
//! This file must not handle its requests: `admin.rs` does.

use crate::admin::{self, AdminError};
use crate::billing::Billing;
use crate::handler_threads::{HandlerRules, run_apart};
use crate::refused_requests::RefusedRequests;
use accounts::Accounts;
use arc_swap::ArcSwap;
use axum::response::IntoResponse as _;
use config::Settings;
use std::io;
use std::sync::Arc;

/// Builds the router, whose handlers run on threads of their own. Logs a warning if the address is
/// not a loopback address.
pub(super) fn admin_router(
    settings: &Arc<ArcSwap<Settings>>,
    accounts: &Accounts,
    billing: &Billing,
    refused: &RefusedRequests,
) -> io::Result<axum::Router> {
    let current = settings.load();
    if !current.admin.ip().is_loopback() {
        log::warn!(
            "listen.admin {} is not a loopback address: anyone who reaches it with an administrator's key can change balances",
            current.admin
        );
    }
    let routes = admin::router(
        accounts.clone(),
        billing.clone(),
        Arc::clone(settings),
        refused.clone(),
    );
    let rules = HandlerRules {
        clients: Arc::new(|_| Some(Vec::new())),
        refuse: |_| {
            AdminError::Storage("the threads of the admin API are stuck".into()).into_response()
        },
    };
    run_apart(routes, "admin-handlers", rules)
}
