//! Serves the operator pages: the spending of all accounts, and reading and changing accounts in
//! the name of an administrator.
//!
//! `operator/overview.rs` adds up all accounts, `operator/search.rs` finds what has an id,
//! `operator/list.rs` lists accounts, `operator/new_account.rs` opens one, `operator/account.rs`
//! shows and changes one, with `status.rs`, `people.rs`, `refund.rs` and `keys.rs`;
//! `operator/reading.rs` shows its activity, receipts and spending. `operator/service.rs` shows the
//! state of the gateway, `operator/models.rs` and `operator/prices.rs` prices,
//! `operator/payments.rs` and `operator/codes.rs` the shop, `operator/invites.rs` manages
//! invitations, `operator/audit.rs` shows the audit log. Every handler takes an `Operator` or an
//! `OperatorForm` (`authz.rs`), so all other users get a 404.

mod account;
mod audit;
mod codes;
mod domains;
mod invites;
mod keys;
mod list;
mod models;
mod new_account;
mod overview;
mod payments;
mod people;
mod prices;
mod rates;
mod reading;
mod refund;
mod role_text;
mod search;
mod sentences;
mod service;
mod status;
mod trial;
mod verify;

use super::state::SidecarState;
use accounts::AccountStatus;
use axum::Router;
use axum::response::Redirect;
use axum::routing::{get, post};
use keys::KeyStatusChange;
use status::set_status;
use std::sync::Arc;

/// Lists the routes. Each handler takes an `Operator` or an `OperatorForm`.
#[allow(clippy::too_many_lines, reason = "a list, one line or entry a route")]
pub fn routes() -> Router<Arc<SidecarState>> {
    Router::new()
        .route("/dashboard/operator", get(overview::show))
        .route("/dashboard/operator/accounts", get(list::show))
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
        .route("/dashboard/operator/accounts/{id}/rates", post(rates::set))
        .route(
            "/dashboard/operator/accounts/{id}/trial",
            post(trial::extend),
        )
        .route("/dashboard/operator/accounts/{id}/keys", post(keys::create))
        .route(
            "/dashboard/operator/accounts/{id}/domains",
            post(domains::set_domain),
        )
        .route(
            "/dashboard/operator/accounts/{id}/role",
            post(people::set_role),
        )
        .route(
            "/dashboard/operator/accounts/{id}/delete",
            post(people::delete),
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
            "/dashboard/operator/accounts/{id}/keys/{key}/move",
            post(keys::move_to),
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
        .route("/dashboard/operator/payments", get(payments::show))
        .route("/dashboard/operator/payments/{id}", get(payments::payment))
        .route(
            "/dashboard/operator/payments/{id}/refund",
            post(payments::refund),
        )
        .route(
            "/dashboard/operator/codes",
            get(codes::show).post(codes::create),
        )
        .route("/dashboard/operator/codes/{id}/void", post(codes::void))
        .route("/dashboard/operator/models", get(models::show))
        .route("/dashboard/operator/prices/{version}", get(prices::show))
        .route("/dashboard/operator/search", get(search::show))
        .route("/dashboard/operator/audit", get(audit::show))
        // The audit log had this address in earlier versions.
        .route("/dashboard/operator/log", get(redirect_to_audit))
        .route(
            "/dashboard/operator/activity/{request_id}",
            get(reading::receipt),
        )
        .route(
            "/dashboard/operator/accounts/{id}/activity",
            get(reading::activity),
        )
        .route(
            "/dashboard/operator/accounts/{id}/activity.csv",
            get(reading::download),
        )
        .route(
            "/dashboard/operator/accounts/{id}/spending",
            get(reading::spending),
        )
        .route(
            "/dashboard/operator/accounts/{id}/conversations/{conversation}",
            get(reading::conversation),
        )
}

async fn redirect_to_audit(_: super::authz::Operator) -> Redirect {
    Redirect::to("/dashboard/operator/audit")
}
