//! Serves the administrators' HTTP API: accounts, keys and postings, on the private admin listener.
//!
//! This file lists the routes and the middleware in front of them. `admin/auth.rs` admits a
//! request. `admin/money.rs` (routes that post to the ledger), `admin/create.rs` (new accounts and
//! links), `admin/people.rs` (roles, deletion, receipts), `admin/merge.rs`, `admin/payments.rs`,
//! `admin/codes.rs`, `admin/keys.rs`, `admin/organisations.rs` or `admin/accounts.rs` handles it,
//! with the state of `admin/state.rs`. `admin/error.rs` turns failures into responses. The command
//! line prints the same documents (`document.rs`). This module must not decide what the ledger's
//! rules allow, and must never be reachable through the edge.

mod accounts;
mod auth;
mod body;
mod codes;
mod create;
mod error;
mod keys;
mod merge;
mod money;
mod openapi;
mod organisations;
mod payments;
mod people;
mod state;
#[cfg(test)]
mod tests;

use crate::billing::Billing;
use crate::optional_parts::hides_path;
use crate::refused_requests::RefusedRequests;
use ::accounts::Accounts;
use arc_swap::ArcSwap;
use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderValue, header};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, patch, post};
use config::Settings;
pub(crate) use error::AdminError;
use state::{AdminState, PREFIX};
use std::sync::Arc;
use std::time::Duration;

/// Maximum size of a request body. A posting has only a few members.
const MAX_BODY_BYTES: usize = 65_536;

/// Maximum time from a request's header to its response. It is longer than the five seconds that a
/// commit waits for another process.
const MAX_REQUEST_SECONDS: u64 = 20;

/// Builds the router for all routes below `/admin/v1`.
pub fn router(
    accounts: Accounts,
    billing: Billing,
    settings: Arc<ArcSwap<Settings>>,
    refused: RefusedRequests,
) -> Router {
    let app = Arc::new(AdminState::new(accounts, billing, settings, refused));
    let routes = Router::new()
        .route("/accounts", get(accounts::list).post(create::account))
        .route("/accounts/{account}", get(accounts::show))
        .route("/accounts/{account}/entries", get(accounts::entries))
        .route("/accounts/{account}/usage", get(accounts::usage))
        .route("/accounts/{account}/receipts", get(people::receipts))
        .route("/accounts/{account}/role", post(people::set_role))
        .route("/accounts/{account}/delete", post(people::delete))
        .route("/accounts/{account}/merge", post(merge::merge))
        .route("/accounts/{account}/links", post(create::link))
        .route(
            "/accounts/{account}/keys",
            get(keys::list).post(keys::create),
        )
        .route("/accounts/{account}/suspend", post(accounts::suspend))
        .route("/accounts/{account}/resume", post(accounts::resume))
        .route("/keys/{key_id}", get(keys::show).patch(keys::change))
        .route("/keys/{key_id}/rotate", post(keys::rotate))
        .route("/keys/{key_id}/move", post(keys::move_to))
        .route("/keys/{key_id}/disable", post(keys::disable))
        .route("/keys/{key_id}/enable", post(keys::enable))
        .route("/keys/{key_id}/revoke", post(keys::revoke))
        .route("/accounts/{account}/grants", post(money::grant))
        .route("/accounts/{account}/topups", post(money::top_up))
        .route("/accounts/{account}/adjustments", post(money::adjust))
        .route("/requests/{request_id}", get(people::receipt))
        .route("/requests/{request_id}/refunds", post(money::refund))
        .route("/payments", get(payments::list))
        .route("/payments/reconcile", post(payments::reconcile))
        .route("/payments/{payment_id}", get(payments::show))
        .route("/payments/{payment_id}/refunds", post(payments::refund))
        .route("/codes", get(codes::list).post(codes::create))
        .route("/codes/{code}", get(codes::show))
        .route("/codes/{code}/void", post(codes::void))
        .route(
            "/organisations",
            get(organisations::list).post(organisations::create),
        )
        .route("/organisations/{account}", get(organisations::show))
        .route(
            "/organisations/{account}/members",
            post(organisations::add_member),
        )
        .route(
            "/organisations/{account}/members/{person}",
            patch(organisations::set_member),
        )
        .route(
            "/organisations/{account}/members/{person}/remove",
            post(organisations::remove_member),
        )
        .route(
            "/organisations/{account}/invites/{invite_id}/revoke",
            post(organisations::revoke_invite),
        )
        .route(
            "/organisations/{account}/domains",
            post(organisations::add_domain),
        )
        .route(
            "/organisations/{account}/domains/{domain}/remove",
            post(organisations::remove_domain),
        )
        .route("/openapi.json", get(openapi::document))
        .fallback(|| async { no_such_path() })
        .method_not_allowed_fallback(|| async { AdminError::WrongMethod })
        // Middleware in front of the routes, the last one outermost.
        .layer(from_fn_with_state(
            Arc::clone(&app),
            hide_parts_that_are_off,
        ))
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .layer(from_fn_with_state(
            Arc::clone(&app),
            auth::require_administrator,
        ))
        .layer(from_fn(with_timeout))
        .with_state(app);
    Router::new().nest(PREFIX, routes)
}

fn no_such_path() -> AdminError {
    AdminError::NotFound("this path does not exist".into())
}

/// Answers as if the paths of a part that the config leaves out did not exist.
async fn hide_parts_that_are_off(
    State(app): State<Arc<AdminState>>,
    request: Request,
    next: Next,
) -> Result<Response, AdminError> {
    let path = format!("{PREFIX}{}", request.uri().path());
    match hides_path(&app.settings.load(), &path) {
        true => Err(no_such_path()),
        false => Ok(next.run(request).await),
    }
}

/// Ends requests that take too long, and forbids caching of every response.
async fn with_timeout(request: Request, next: Next) -> Response {
    let limit = Duration::from_secs(MAX_REQUEST_SECONDS);
    let answered = tokio::time::timeout(limit, next.run(request)).await;
    let mut response = answered.unwrap_or_else(|_| AdminError::TimedOut.into_response());
    response
        .headers_mut()
        .insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
