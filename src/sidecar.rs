//! The sidecar: sign-up, dashboard and catalog, as pages that work without JavaScript.
//!
//! This file lists the routes and the middleware in front of them. The sidecar listens on a private
//! address; the edge forwards every request to it that is not below `/v1`. Must not know Pingora,
//! SQL or argon2. Next: `sidecar/session.rs` (the signed-in user), `sidecar/security_headers.rs`
//! (middleware for every request and response), `sidecar/page.rs` (parts common to all pages), then
//! one file per page.

mod account;
mod activity;
mod browser;
mod catalog;
mod conversations;
mod export;
mod guard;
mod keys;
mod listener;
mod live;
mod operator;
mod overview;
pub mod own;
mod page;
mod patience;
mod problem;
mod profile;
mod role;
mod session;
mod spending;
#[cfg(test)]
mod tests;
mod throttle;

use crate::account::Accounts;
use crate::billing::Billing;
use crate::config::Settings;
use crate::local_link::LocalAcceptor;
use crate::telemetry::private;
use crate::telemetry::refusals::RefusalReason;
use crate::upstreams::Fleet;
use arc_swap::ArcSwap;
use axum::Router;
use axum::extract::{ConnectInfo, DefaultBodyLimit, Request};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::Response;
use axum::routing::{get, post};
use listener::{PageListener, PeerAddress};
use std::future::Future;
use std::sync::Arc;
use tokio::sync::watch;

/// Maximum size of a form's body.
const FORM_BYTES_MAX: usize = 65_536;

/// Dependencies of the sidecar.
#[derive(Clone)]
pub struct Sidecar {
    pub accounts: Accounts,
    pub billing: Billing,
    pub settings: Arc<ArcSwap<Settings>>,
    /// The vendors' endpoints, if this process calls them.
    pub fleet: Option<Arc<Fleet>>,
}

/// Shared state of the pages while the sidecar runs.
struct App {
    accounts: Accounts,
    billing: Billing,
    settings: Arc<ArcSwap<Settings>>,
    fleet: Option<Arc<Fleet>>,
    throttle: throttle::Throttle,
    patience: patience::Patience,
    hashing: account::Hashing,
    audits: operator::service::Audits,
    streams: Arc<live::Streams>,
    /// True once the sidecar shuts down; event streams then end.
    closing: watch::Receiver<bool>,
}

impl Sidecar {
    pub fn new(accounts: Accounts, billing: Billing, settings: Arc<ArcSwap<Settings>>) -> Self {
        Self {
            accounts,
            billing,
            settings,
            fleet: None,
        }
    }

    /// Adds the endpoint registry, in a process that calls the vendors.
    #[must_use]
    pub fn beside(self, fleet: Arc<Fleet>) -> Self {
        Self {
            fleet: Some(fleet),
            ..self
        }
    }
}

/// Builds the router of all pages, for a server that the caller provides.
pub fn router(state: Sidecar) -> Router {
    // Without a sender, the receiver keeps its initial value: this router never sees a shutdown.
    let (_, closing) = watch::channel(false);
    routes(state, closing)
}

fn routes(state: Sidecar, closing: watch::Receiver<bool>) -> Router {
    let app = Arc::new(App {
        accounts: state.accounts,
        billing: state.billing,
        settings: state.settings,
        fleet: state.fleet,
        throttle: throttle::Throttle::default(),
        patience: patience::Patience::default(),
        hashing: account::Hashing::default(),
        audits: operator::service::Audits::default(),
        streams: Arc::default(),
        closing,
    });
    Router::new()
        // Public routes.
        .route("/", get(page::front_door))
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
            post(operator::invites::withdraw),
        )
        .route("/dashboard/operator/log", get(operator::log::show))
        .route("/dashboard/activity.csv", get(activity::download))
        .route("/dashboard/conversations", get(conversations::list))
        .route("/dashboard/conversations/{id}", get(conversations::one))
        .fallback(problem::not_found)
        .method_not_allowed_fallback(problem::method_not_allowed)
        // Middleware in front of the routes, the last one outermost.
        .layer(DefaultBodyLimit::max(FORM_BYTES_MAX))
        .layer(from_fn_with_state(
            Arc::clone(&app),
            guard::same_origin_only,
        ))
        .layer(from_fn_with_state(Arc::clone(&app), guard::hardened))
        .with_state(app)
}

/// Serves the pages, on `listener` and to the edge of this process, until `shutdown`. Then it ends
/// the live streams and finishes running requests.
///
/// # Errors
/// Returns an error if the listener fails.
pub async fn serve(
    listener: tokio::net::TcpListener,
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
    listener: tokio::net::TcpListener,
    state: Sidecar,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let more = own::router(state.clone());
    serve_with(PageListener::new(listener, None), state, more, shutdown).await
}

/// Records what is refused to whoever comes past the edge of this process.
async fn observe_strangers(request: Request, next: Next) -> Response {
    match request.extensions().get::<ConnectInfo<PeerAddress>>() {
        Some(peer) if !peer.0.is_own_edge() => {
            let client = Some(peer.0.0.ip());
            private::observe(RefusalReason::SidecarListener, client, request, next).await
        }
        _ => next.run(request).await,
    }
}

async fn serve_with(
    listener: PageListener,
    state: Sidecar,
    more: Router,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let (close, closing) = watch::channel(false);
    let mut router = more.merge(routes(state, closing));
    if listener.has_own_edge() {
        router = router.layer(from_fn(observe_strangers));
    }
    let service = router.into_make_service_with_connect_info::<PeerAddress>();
    axum::serve(listener, service)
        .with_graceful_shutdown(async move {
            shutdown.await;
            close.send_replace(true);
        })
        .await
}
