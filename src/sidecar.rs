//! Serves the sidecar's pages for sign-up, dashboard and catalog, which work without JavaScript.
//!
//! This file lists the areas, whose files list their routes, and the middleware in front of them.
//! The sidecar listens on a private address; the edge forwards every request to it that is not
//! below `/v1`. This module must not depend on Pingora, SQL or argon2. Next: `sidecar/state.rs`
//! (what the pages share), `sidecar/session.rs` (the signed-in user), `sidecar/security_headers.rs`
//! (middleware for every request and response), `sidecar/page.rs` (the frame of all pages),
//! `sidecar/display.rs` (numbers, times and amounts), then one file per area.

mod account;
mod activity;
mod alerts;
mod assets;
mod authz;
mod auto_topup;
mod banners;
mod blocking;
mod brand;
mod browser;
mod buying;
mod catalog;
mod confirm;
mod conversations;
mod csv;
mod device;
mod display;
pub mod edge_api;
mod error;
mod error_page;
mod export;
mod form;
mod handler_rules;
mod hash_limiter;
mod key_list;
mod key_names;
mod keys;
mod known_networks;
mod ledger_audit;
mod links;
mod listener;
mod live;
mod login_backoff;
mod menu;
mod new_keys;
mod operator;
mod organisation;
mod overview;
mod page;
mod page_cursor;
mod playground;
mod profile;
mod provider_buttons;
mod providers;
mod return_path;
mod security_headers;
mod session;
mod setup;
mod spending;
mod state;
mod statement;
mod stream_slots;
#[cfg(test)]
mod tests;
mod throttle;
mod verification;
mod viewed_account;

use crate::handler_threads::run_apart;
use crate::local_link::LocalAcceptor;
use crate::optional_parts::hides_path;
use crate::private_refusals;
use accounts::MemberAction;
use axum::extract::{ConnectInfo, DefaultBodyLimit, Request, State};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::Response;
use axum::{Extension, Router};
use base::telemetry::refusals::RefusalReason;
use handler_rules::{edge_rules, page_rules};
use listener::{PageListener, PeerAddress, TcpSource};
pub use state::Sidecar;
use state::SidecarState;
use std::future::Future;
use std::sync::Arc;
use tokio::sync::watch;

/// Maximum size of a form's body.
const MAX_FORM_BYTES: usize = 65_536;

/// Routes of an area, and what a member of an organisation must be allowed to do there. `None`: the
/// area is not about the account that is shown, or its handlers require it themselves.
type Area = (fn() -> Router<Arc<SidecarState>>, Option<MemberAction>);

/// Lists the areas of the sidecar: groups of pages that belong together. A new area needs a line
/// here, a file with its routes, a line in `menu.rs` if the menu shows it, and a file in
/// `tests/matrix/` with the status of each of its routes for every role.
const AREAS: &[Area] = &[
    (account::routes, None),
    (activity::routes, None),
    (alerts::routes, Some(MemberAction::SeeUsage)),
    (assets::routes, None),
    (brand::routes, None),
    (buying::routes, Some(MemberAction::ManageMoney)),
    (catalog::routes, None),
    (conversations::routes, Some(MemberAction::SeeUsage)),
    (device::routes, None),
    (keys::routes, Some(MemberAction::UseKeys)),
    (links::routes, None),
    (operator::routes, None),
    (organisation::routes, None),
    (overview::routes, None),
    (playground::routes, Some(MemberAction::UseKeys)),
    (profile::routes, None),
    (providers::routes, None),
    (setup::routes, Some(MemberAction::UseKeys)),
    (spending::routes, Some(MemberAction::SeeUsage)),
    (statement::routes, Some(MemberAction::ManageMoney)),
];

/// Builds the router of all pages, for a server that the caller provides.
pub fn router(state: Sidecar) -> Router {
    // Without a sender, the receiver keeps its initial value: this router never sees a shutdown.
    let (_, closing) = watch::channel(false);
    routes(state, closing)
}

fn routes(state: Sidecar, closing: watch::Receiver<bool>) -> Router {
    let app = Arc::new(SidecarState::new(state, closing));
    AREAS
        .iter()
        .fold(Router::new(), |router, (area, action)| {
            router.merge(match action {
                Some(action) => area().route_layer(Extension(*action)),
                None => area(),
            })
        })
        .fallback(error_page::not_found)
        .method_not_allowed_fallback(error_page::method_not_allowed)
        // The middleware in front of the routes follows; the last layer is the outermost.
        .layer(from_fn_with_state(
            Arc::clone(&app),
            hide_parts_that_are_off,
        ))
        .layer(from_fn_with_state(
            Arc::clone(&app),
            error_page::frame_forbidden,
        ))
        .layer(DefaultBodyLimit::max(MAX_FORM_BYTES))
        .layer(from_fn_with_state(
            Arc::clone(&app),
            security_headers::require_same_origin,
        ))
        .layer(from_fn_with_state(
            Arc::clone(&app),
            security_headers::add_security_headers,
        ))
        .layer(from_fn_with_state(Arc::clone(&app), page::set_context))
        .with_state(app)
}

/// Answers as if the pages of a part that the config leaves out did not exist.
async fn hide_parts_that_are_off(
    State(app): State<Arc<SidecarState>>,
    request: Request,
    next: Next,
) -> Response {
    if !hides_path(&app.settings.load(), request.uri().path()) {
        return next.run(request).await;
    }
    let (head, _) = request.into_parts();
    error_page::not_found(State(app), head.method, head.uri, head.headers).await
}

/// Serves the pages on `listener`, and to the edge of this process, until `shutdown`. Afterwards,
/// live streams are ended and running requests are finished.
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
    let more = run_apart(edge_api::router(state.clone()), "edge-api", edge_rules())?;
    serve_with(PageListener::new(listener, None), state, more, shutdown).await
}

/// Records the refusals of all peers except the edge of this process, which records its own.
async fn observe_other_peers(request: Request, next: Next) -> Response {
    match request.extensions().get::<ConnectInfo<PeerAddress>>() {
        Some(peer) if !peer.0.is_own_edge() => {
            let client = Some(peer.0.0.ip());
            private_refusals::observe(RefusalReason::SidecarListener, client, request, next).await
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
    let rules = page_rules(Arc::clone(&state.settings));
    let pages = run_apart(routes(state, closing), "page-handlers", rules)?;
    let mut router = more.merge(pages);
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
