//! Lists and finds accounts, their entries and their usage; suspends accounts.
//!
//! This file must not post to the ledger.

use super::body::{JsonResult, PathParam, QueryResult};
use super::error::AdminError;
use super::state::AdminState;
use crate::billing::usage_report::UsageReportQuery;
use crate::document;
use accounts::{AccountStatus, Actor, CloseAccountOutcome};
use axum::extract::{Path, Query, RawQuery, State};
use axum::{Extension, Json};
use base::clock::now_ms;
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;

const MAX_ROWS_PER_PAGE: u32 = 100;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AccountListQuery {
    /// A part of the e-mail or the id, or of the id or the visible text of a key.
    q: Option<String>,
    cursor: Option<String>,
    limit: Option<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EntryListQuery {
    before: Option<i64>,
    limit: Option<u32>,
}

pub(super) fn parse_limit(limit: Option<u32>) -> Result<u32, AdminError> {
    let limit = limit.unwrap_or(MAX_ROWS_PER_PAGE);
    let is_right = (1..=MAX_ROWS_PER_PAGE).contains(&limit);
    is_right
        .then_some(limit)
        .ok_or_else(|| AdminError::Invalid(format!("limit must be 1 to {MAX_ROWS_PER_PAGE}")))
}

/// Returns the cursor of the next page, which begins after the last row, or `None` if this page is
/// not full.
pub(super) fn next_cursor<T>(
    rows: &[T],
    limit: u32,
    cursor: impl Fn(&T) -> Value,
) -> Option<Value> {
    rows.last()
        .filter(|_| rows.len() as u64 >= u64::from(limit))
        .map(cursor)
}

pub async fn list(
    State(app): State<Arc<AdminState>>,
    page: QueryResult<AccountListQuery>,
) -> JsonResult {
    let Query(AccountListQuery { q, cursor, limit }) = page?;
    let limit = parse_limit(limit)?;
    let accounts = match q.as_deref().filter(|part| !part.is_empty()) {
        Some(part) => app
            .accounts
            .directory()
            .search(part, cursor.as_deref(), limit)?,
        None => app.accounts.directory().page(cursor.as_deref(), limit)?,
    };
    let next = next_cursor(&accounts, limit, |account| json!(account.id));
    let accounts: Vec<_> = accounts.iter().map(document::account).collect();
    Ok(Json(json!({"accounts": accounts, "next": next})))
}

pub async fn show(State(app): State<Arc<AdminState>>, name: PathParam) -> JsonResult {
    let account = app.find_account(&name?)?;
    let balance = app.billing.balance(&account.id, now_ms())?;
    Ok(Json(document::account_with_balance(&account, &balance)))
}

pub async fn entries(
    State(app): State<Arc<AdminState>>,
    name: PathParam,
    page: QueryResult<EntryListQuery>,
) -> JsonResult {
    let Query(EntryListQuery { before, limit }) = page?;
    let limit = parse_limit(limit)?;
    let account = app.find_account(&name?)?;
    let entries = app.billing.receipts().entries(&account.id, before, limit)?;
    let next = next_cursor(&entries, limit, |entry| json!(entry.seq));
    let shown = entries
        .iter()
        .map(document::entry)
        .collect::<Result<Vec<_>, _>>()?;
    Ok(Json(json!({"entries": shown, "next": next})))
}

/// Returns the report that the account's holder gets from `GET /v1/usage`.
pub async fn usage(
    State(app): State<Arc<AdminState>>,
    name: PathParam,
    RawQuery(query): RawQuery,
) -> JsonResult {
    let query = UsageReportQuery::parse(&query.unwrap_or_default(), now_ms())
        .map_err(|error| AdminError::Invalid(format!("{}: {}", error.param, error.message)))?;
    let account = app.find_account(&name?)?;
    // The report for a long range has many rows, so compute it on a thread that serves no requests.
    let report = tokio::task::spawn_blocking(move || {
        app.billing
            .reports()
            .account_usage(&app.accounts, &account.id, None, &query)
    });
    let report = report
        .await
        .map_err(|error| AdminError::Internal(error.to_string()))?;
    Ok(Json(report?))
}

pub async fn suspend(
    app: State<Arc<AdminState>>,
    by: Extension<Actor>,
    name: PathParam,
) -> JsonResult {
    set_status(app, by, name, AccountStatus::Suspended).await
}

pub async fn resume(
    app: State<Arc<AdminState>>,
    by: Extension<Actor>,
    name: PathParam,
) -> JsonResult {
    set_status(app, by, name, AccountStatus::Active).await
}

async fn set_status(
    State(app): State<Arc<AdminState>>,
    Extension(by): Extension<Actor>,
    name: PathParam,
    status: AccountStatus,
) -> JsonResult {
    let Path(name) = name?;
    let actor = by.actor.clone();
    let account = app
        .run_write(move |app| {
            let account = app.find_account(&name)?;
            if by.actor == account.id {
                return Err(AdminError::Refused(
                    "cannot suspend or resume your own account: ask another administrator".to_owned(),
                ));
            }
            match app
                .accounts
                .with_actor(&by, now_ms())
                .set_status_remotely(&account.id, status)?
            {
                CloseAccountOutcome::Done => Ok(account),
                CloseAccountOutcome::NoAccount => Err(AdminError::NotFound(format!(
                    "account {} is deleted",
                    account.id
                ))),
                CloseAccountOutcome::LastAdministrator | CloseAccountOutcome::LastOwner => {
                    let what =
                        "cannot suspend the last administrator who can sign in: create another one first";
                    Err(AdminError::Refused(what.to_owned()))
                }
            }
        })
        .await?;
    log::info!(
        "administrator {actor} set account {} to {}",
        account.id,
        status.name()
    );
    Ok(Json(document::status(&account, status)))
}
