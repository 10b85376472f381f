//! The sidecar: sign-up, dashboard and catalog, as pages that work without JavaScript.
//!
//! This file lists the routes and the middleware in front of them. The sidecar listens on a private
//! address; the edge forwards every request to it that is not below `/v1`. Must not know Pingora,
//! SQL or argon2. Next: `sidecar/state.rs` (what the pages share), `sidecar/session.rs` (the
//! signed-in user), `sidecar/security_headers.rs` (middleware for every request and response),
//! `sidecar/page.rs` (parts common to all pages), then one file per page.

mod account;
mod activity;
mod authz;
mod blocking;
mod browser;
mod catalog;
mod conversations;
pub mod edge_api;
mod error;
mod error_page;
mod export;
mod hash_limiter;
mod keys;
mod ledger_audit;
mod listener;
mod live;
mod login_backoff;
mod operator;
mod overview;
mod page;
mod profile;
mod security_headers;
mod session;
mod spending;
mod state;
mod stream_slots;
#[cfg(test)]
mod tests;
mod throttle;

use crate::local_link::LocalAcceptor;
use crate::telemetry::private;
use crate::telemetry::refusals::RefusalReason;
use axum::Router;
use axum::extract::{ConnectInfo, DefaultBodyLimit, Request};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::Response;
use axum::routing::{get, post};
use listener::{PageListener, PeerAddress, TcpSource};
pub use state::Sidecar;
use state::SidecarState;
use std::future::Future;
use std::sync::Arc;
use tokio::sync::watch;

/// Maximum size of a form's body.
const MAX_FORM_BYTES: usize = 65_536;

/// Builds the router of all pages, for a server that the caller provides.
pub fn router(state: Sidecar) -> Router {
    // Without a sender, the receiver keeps its initial value: this router never sees a shutdown.
    let (_, closing) = watch::channel(false);
    routes(state, closing)
}

/// Pages of the operator.
fn operator_routes() -> Router<Arc<SidecarState>> {
    Router::new()
        .route("/dashboard/operator", get(operator::accounts))
        .route(
            "/dashboard/operator/accounts/{id}",
            get(operator::account::show),
        )
        .route(
            "/dashboard/operator/accounts/{id}/post",
            post(operator::account::post),
        )
        .route(
            "/dashboard/operator/accounts/{id}/suspend",
            post(operator::account::suspend),
        )
        .route(
            "/dashboard/operator/accounts/{id}/resume",
            post(operator::account::resume),
        )
        .route("/dashboard/operator/service", get(operator::service::show))
        .route(
            "/dashboard/operator/verify",
            post(operator::service::verify),
        )
        .route(
            "/dashboard/operator/invites",
            get(operator::invites::show).post(operator::invites::create),
        )
        .route(
            "/dashboard/operator/invites/{id}/withdraw",
            post(operator::invites::revoke),
        )
        .route("/dashboard/operator/log", get(operator::log::show))
}

fn routes(state: Sidecar, closing: watch::Receiver<bool>) -> Router {
    let app = Arc::new(SidecarState::new(state, closing));
    Router::new()
        // Public routes.
        .route("/", get(page::redirect_to_dashboard))
        .route("/docs", get(catalog::docs))
        .route("/docs/models.json", get(catalog::models_json))
        .route("/dashboard/static/{file}", get(page::asset))
        .route(
            "/dashboard/sign-up",
            get(account::sign_up_page).post(account::sign_up),
        )
        .route(
            "/dashboard/sign-in",
            get(account::sign_in_page).post(account::sign_in),
        )
        // Routes that need a session: each handler takes a `CurrentUser` or, if it changes
        // something, a `SignedForm`.
        .route("/dashboard/sign-out", post(account::sign_out))
        .route("/dashboard", get(overview::overview))
        .route("/dashboard/live", get(live::live))
        .route("/dashboard/keys", get(keys::list).post(keys::create))
        .route("/dashboard/keys/{id}", get(keys::show))
        .route("/dashboard/keys/{id}/settings", post(keys::change))
        .route("/dashboard/keys/{id}/enable", post(keys::enable))
        .route("/dashboard/keys/{id}/disable", post(keys::disable))
        .route("/dashboard/keys/{id}/rotate", post(keys::rotate))
        .route(
            "/dashboard/keys/{id}/revoke",
            get(keys::confirm_revoke).post(keys::revoke),
        )
        .route("/dashboard/activity", get(activity::list))
        .route("/dashboard/activity/{request_id}", get(activity::receipt))
        .route("/dashboard/account", get(profile::show))
        .route("/dashboard/account/export", get(export::export))
        .route(
            "/dashboard/account/password",
            post(profile::change_password),
        )
        .route(
            "/dashboard/account/sessions/{id}/end",
            post(profile::end_session),
        )
        .route(
            "/dashboard/account/end-other-sessions",
            post(profile::end_others),
        )
        .route("/dashboard/account/delete", post(profile::delete))
        // Routes for operators: each handler takes an `Operator` or an `OperatorForm`.
        .merge(operator_routes())
        .route("/dashboard/activity.csv", get(activity::download))
        .route("/dashboard/conversations", get(conversations::list))
        .route("/dashboard/conversations/{id}", get(conversations::show))
        .fallback(error_page::not_found)
        .method_not_allowed_fallback(error_page::method_not_allowed)
        // Middleware in front of the routes, the last one outermost.
        .layer(DefaultBodyLimit::max(MAX_FORM_BYTES))
        .layer(from_fn_with_state(
            Arc::clone(&app),
            security_headers::require_same_origin,
        ))
        .layer(from_fn_with_state(
            Arc::clone(&app),
            security_headers::add_security_headers,
        ))
        .with_state(app)
}

/// Serves the pages, on `listener` and to the edge of this process, until `shutdown`. Then it ends
/// the live streams and finishes running requests.
///
/// # Errors
/// Returns an error if the listener fails.
pub async fn serve(
    listener: impl TcpSource,
    edge: Option<LocalAcceptor>,
    state: Sidecar,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    serve_with(
        PageListener::new(listener, edge),
        state,
        Router::new(),
        shutdown,
    )
    .await
}

/// Serves the pages in a process of its own, like [`serve`], and also the API that edges call.
///
/// # Errors
/// Returns an error if the listener fails.
pub async fn serve_edges(
    listener: impl TcpSource,
    state: Sidecar,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let more = edge_api::router(state.clone());
    serve_with(PageListener::new(listener, None), state, more, shutdown).await
}

/// Records the refusals of peers other than the edge of this process.
async fn observe_other_peers(request: Request, next: Next) -> Response {
    match request.extensions().get::<ConnectInfo<PeerAddress>>() {
        Some(peer) if !peer.0.is_own_edge() => {
            let client = Some(peer.0.0.ip());
            private::observe(RefusalReason::SidecarListener, client, request, next).await
        }
        _ => next.run(request).await,
    }
}

async fn serve_with(
    listener: PageListener<impl TcpSource>,
    state: Sidecar,
    more: Router,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let (close, closing) = watch::channel(false);
    let mut router = more.merge(routes(state, closing));
    if listener.has_own_edge() {
        router = router.layer(from_fn(observe_other_peers));
    }
    let service = router.into_make_service_with_connect_info::<PeerAddress>();
    axum::serve(listener, service)
        .with_graceful_shutdown(async move {
            shutdown.await;
            close.send_replace(true);
        })
        .await
}
