//! The administrators' HTTP interface: accounts, keys and postings, on the private admin listener.
//!
//! This file is the list of routes and of what stands in front of them. A request is let in by
//! `admin/door.rs`, and answered by `admin/money.rs` (what posts to the ledger) or
//! `admin/accounts.rs` (the rest); what fails becomes an answer in `admin/problem.rs`. The command
//! line shows the same documents (`admin/document.rs`). Must not decide what the ledger's rules
//! allow, and must never be reachable through the edge.

mod accounts;
pub mod document;
mod door;
mod money;
mod problem;
#[cfg(test)]
mod tests;

use crate::account::Accounts;
use crate::billing::Billing;
use axum::Router;
use axum::extract::{DefaultBodyLimit, Request};
use axum::http::{HeaderValue, header};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use problem::Problem;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;

/// A posting is a few members.
const BODY_BYTES_MAX: usize = 65_536;

/// From a request's header to its answer: above the five seconds for which a commit waits for
/// another process.
const REQUEST_SECONDS_MAX: u64 = 20;

/// Writes at one time, those that wait for another's commit among them; past it, 503.
const WRITES_MAX: usize = 64;

/// What the handlers work with.
struct App {
    accounts: Accounts,
    billing: Billing,
    writes: Arc<Semaphore>,
}

/// All routes, below `/admin/v1`.
pub fn router(accounts: Accounts, billing: Billing) -> Router {
    let app = Arc::new(App {
        accounts,
        billing,
        writes: Arc::new(Semaphore::new(WRITES_MAX)),
    });
    let routes = Router::new()
        .route("/accounts", get(accounts::list))
        .route("/accounts/{account}", get(accounts::show))
        .route("/accounts/{account}/entries", get(accounts::entries))
        .route("/accounts/{account}/suspend", post(accounts::suspend))
        .route("/accounts/{account}/resume", post(accounts::resume))
        .route("/keys/{key_id}/disable", post(accounts::disable_key))
        .route("/keys/{key_id}/enable", post(accounts::enable_key))
        .route("/accounts/{account}/grants", post(money::grant))
        .route("/accounts/{account}/topups", post(money::top_up))
        .route("/accounts/{account}/adjustments", post(money::adjust))
        .route("/requests/{request_id}/refunds", post(money::refund))
        .fallback(|| async { Problem::NotFound("there is no such path".into()) })
        .method_not_allowed_fallback(|| async { Problem::WrongMethod })
        // In front of them, the last one outermost.
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .layer(from_fn_with_state(
            Arc::clone(&app),
            door::administrators_only,
        ))
        .layer(from_fn(bounded))
        .with_state(app);
    Router::new().nest("/admin/v1", routes)
}

/// Ends what takes too long, and keeps every answer out of caches.
async fn bounded(request: Request, next: Next) -> Response {
    let limit = Duration::from_secs(REQUEST_SECONDS_MAX);
    let answered = tokio::time::timeout(limit, next.run(request)).await;
    let mut response = answered.unwrap_or_else(|_| Problem::TimedOut.into_response());
    response
        .headers_mut()
        .insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

impl App {
    /// Runs what may wait for a commit on a thread where nobody else waits with it. The permit goes
    /// with the work: a client that leaves makes no room for another write.
    async fn write<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Self) -> Result<T, Problem> + Send + 'static,
    ) -> Result<T, Problem> {
        let permit = Arc::clone(&self.writes)
            .try_acquire_owned()
            .map_err(|_| Problem::Busy)?;
        let app = Arc::clone(self);
        let work = move || {
            let outcome = work(&app);
            drop(permit);
            outcome
        };
        tokio::task::spawn_blocking(work)
            .await
            .map_err(|error| Problem::Inside(error.to_string()))?
    }
}
