//! Signs terminal programs in (RFC 8628), if `sign_in.device` is on: the endpoints that programs
//! call, the page on which a person answers, and the settings that an organisation gives programs.
//!
//! Nothing happens without a press of a button on the page: a link to it only fills in the code.
//! This file has the routes alone. Next: `device/oauth.rs`, `device/page.rs`.

mod managed;
mod oauth;
mod page;

use super::state::SidecarState;
use axum::Router;
use axum::routing::{get, post};
use std::sync::Arc;

/// Lists the routes. Those of programs are public; a code or a token is what they need.
pub fn routes() -> Router<Arc<SidecarState>> {
    Router::new()
        .route(
            "/.well-known/oauth-authorization-server",
            get(oauth::metadata),
        )
        .route("/oauth/device_authorization", post(oauth::authorize))
        .route("/oauth/token", post(oauth::token))
        .route("/oauth/revoke", post(oauth::revoke))
        .route("/device", get(page::show).post(page::answer))
        .route("/managed/settings", get(managed::settings))
}
