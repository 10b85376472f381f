//! The operator pages: accounts to view and to change, in the name of an administrator.
//!
//! `operator/list.rs` lists and finds accounts, `operator/new_account.rs` opens one,
//! `operator/account.rs` shows and changes one, with `status.rs`, `refund.rs` and `keys.rs`;
//! `operator/service.rs` shows the state of the gateway, `operator/invites.rs` manages invitations,
//! `operator/log.rs` shows the audit log. Every handler takes an `Operator` or an `OperatorForm`
//! (`authz.rs`); for all other users these pages do not exist (404).

mod account;
mod invites;
mod keys;
mod list;
mod log;
mod new_account;
mod refund;
mod service;
mod status;
mod verify;

use super::state::SidecarState;
use accounts::AccountStatus;
use axum::Router;
use axum::routing::{get, post};
use keys::KeyStatusChange;
use status::set_status;
use std::sync::Arc;

/// Each handler takes an `Operator` or an `OperatorForm`.
pub fn routes() -> Router<Arc<SidecarState>> {
    Router::new()
        .route("/dashboard/operator", get(list::show))
        .route("/dashboard/operator/accounts/{id}", get(account::show))
        .route(
            "/dashboard/operator/accounts/{id}/post",
            post(account::post),
        )
        .route(
            "/dashboard/operator/accounts/{id}/suspend",
            post(|app, id, form| set_status(app, id, form, AccountStatus::Suspended)),
        )
        .route(
            "/dashboard/operator/accounts/{id}/resume",
            post(|app, id, form| set_status(app, id, form, AccountStatus::Active)),
        )
        .route(
            "/dashboard/operator/accounts/{id}/link",
            post(account::create_link),
        )
        .route(
            "/dashboard/operator/accounts/{id}/refund",
            post(refund::post),
        )
        .route(
            "/dashboard/operator/accounts/{id}/keys/{key}/enable",
            post(|app, path, form| keys::change(app, path, form, KeyStatusChange::Enable)),
        )
        .route(
            "/dashboard/operator/accounts/{id}/keys/{key}/disable",
            post(|app, path, form| keys::change(app, path, form, KeyStatusChange::Disable)),
        )
        .route(
            "/dashboard/operator/accounts/{id}/keys/{key}/revoke",
            post(|app, path, form| keys::change(app, path, form, KeyStatusChange::Revoke)),
        )
        .route(
            "/dashboard/operator/new-account",
            get(new_account::show).post(new_account::create),
        )
        .route("/dashboard/operator/service", get(service::show))
        .route("/dashboard/operator/test-mail", post(service::test_mail))
        .route("/dashboard/operator/verify", post(verify::verify))
        .route(
            "/dashboard/operator/invites",
            get(invites::show).post(invites::create),
        )
        .route(
            "/dashboard/operator/invites/{id}/withdraw",
            post(invites::revoke),
        )
        .route("/dashboard/operator/log", get(log::show))
}
