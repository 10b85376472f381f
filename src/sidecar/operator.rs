//! The operator pages: accounts to view and to change, in the name of an administrator.
//!
//! This file searches accounts. `operator/account.rs` shows and changes one account,
//! `operator/service.rs` shows the state of the gateway, `operator/invites.rs` manages invitations,
//! `operator/log.rs` shows the audit log. Every handler takes an `Operator` or an `OperatorForm`
//! (`authz.rs`); for all other users these pages do not exist (404).

mod account;
mod account_row;
mod invites;
mod log;
mod service;

use super::authz::Operator;
use super::error::PageError;
use super::page::{Frame, html};
use super::state::SidecarState;
use account_row::AccountListRow;
use askama::Template;
use axum::Router;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::{get, post};
use serde::Deserialize;
use std::sync::Arc;

/// Each handler takes an `Operator` or an `OperatorForm`.
pub fn routes() -> Router<Arc<SidecarState>> {
    Router::new()
        .route("/dashboard/operator", get(accounts))
        .route("/dashboard/operator/accounts/{id}", get(account::show))
        .route(
            "/dashboard/operator/accounts/{id}/post",
            post(account::post),
        )
        .route(
            "/dashboard/operator/accounts/{id}/suspend",
            post(account::suspend),
        )
        .route(
            "/dashboard/operator/accounts/{id}/resume",
            post(account::resume),
        )
        .route(
            "/dashboard/operator/accounts/{id}/link",
            post(account::create_link),
        )
        .route("/dashboard/operator/service", get(service::show))
        .route("/dashboard/operator/test-mail", post(service::test_mail))
        .route("/dashboard/operator/verify", post(service::verify))
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

/// Accounts per page.
const ROWS_PER_PAGE: u32 = 50;

/// Maximum length of a search term; an e-mail has at most 254 characters.
const MAX_PREFIX_CHARS: usize = 254;

#[derive(Deserialize)]
struct AccountSearchQuery {
    /// Prefix of an id or an e-mail.
    #[serde(default)]
    q: String,
    /// Id of the last account on the previous page.
    after: Option<String>,
}

#[derive(Template)]
#[template(path = "operator.html")]
struct AccountsPage {
    frame: Frame,
    tab: &'static str,
    q: String,
    rows: Vec<AccountListRow>,
    next: Option<String>,
    first: bool,
}

async fn accounts(
    State(app): State<Arc<SidecarState>>,
    Operator(user): Operator,
    search: Result<Query<AccountSearchQuery>, QueryRejection>,
) -> Result<Response, PageError> {
    let Query(AccountSearchQuery { q, after }) = search.map_err(|_| PageError::NotFound)?;
    let q: String = q.trim().chars().take(MAX_PREFIX_CHARS).collect();
    let found = if q.is_empty() {
        app.accounts.page(after.as_deref(), ROWS_PER_PAGE)?
    } else {
        app.accounts.search(&q, after.as_deref(), ROWS_PER_PAGE)?
    };
    let full = found.len() >= usize::try_from(ROWS_PER_PAGE).unwrap_or(usize::MAX);
    let page = AccountsPage {
        frame: Frame::new("Operator", &user),
        tab: "accounts",
        next: found.last().filter(|_| full).map(|last| last.id.clone()),
        rows: found.into_iter().map(AccountListRow::from).collect(),
        q,
        first: after.is_none(),
    };
    Ok(html(StatusCode::OK, &page))
}
