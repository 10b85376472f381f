//! Shows operators the responses, receipts, spending and conversations of any account, on the same
//! pages as its holder's.
//!
//! The audit log records one line a day for each operator, page and account, however often a page
//! is loaded. This file must not change anything else.

use super::super::activity::{ActivityQuery, show_download, show_list, show_receipt};
use super::super::authz::Operator;
use super::super::blocking::run_blocking;
use super::super::conversations::show_conversation;
use super::super::error::PageError;
use super::super::spending::{SpendingQuery, show_spending};
use super::super::state::SidecarState;
use super::super::viewed_account::ViewedAccount;
use super::account::find;
use accounts::Actor;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::response::Response;
use base::clock::now_ms;
use ledger::StoreError;
use serde_json::{Value, json};
use std::sync::Arc;

type SubmittedQuery<T> = Result<Query<T>, QueryRejection>;

/// Finds the account to read, and records that `by` reads it.
async fn open(
    app: &Arc<SidecarState>,
    by: Actor,
    account: &str,
    what: Value,
) -> Result<ViewedAccount, PageError> {
    let viewed = ViewedAccount::for_operator(&find(app, account)?);
    let (accounts, id) = (app.accounts.clone(), viewed.id.clone());
    run_blocking(move || {
        accounts
            .with_actor(&by, now_ms())
            .record_daily("account.read", &id, &what)
    })
    .await??;
    Ok(viewed)
}

pub async fn receipt(
    State(app): State<Arc<SidecarState>>,
    Operator { user, by }: Operator,
    Path(request_id): Path<String>,
) -> Result<Response, PageError> {
    let (state, id) = (Arc::clone(&app), request_id.clone());
    let account = run_blocking(move || account_of_request(&state, &id))
        .await??
        .ok_or(PageError::NotFound)?;
    let what = json!({"receipt": request_id});
    let viewed = open(&app, by, &account, what).await?;
    show_receipt(&app, &user, &viewed, &request_id)
}

/// The account that sent a request which has ended, was refused or is free, by the request's id or
/// an id of its vendor.
pub fn account_of_request(
    app: &SidecarState,
    request_id: &str,
) -> Result<Option<String>, StoreError> {
    if let Some(charge) = app.billing.ledger().rows().request_charge(request_id)? {
        return Ok(Some(charge.account));
    }
    let Some(refused) = &app.refused else {
        return Ok(None);
    };
    if let Some(refused) = refused.find(None, request_id)? {
        return Ok(Some(refused.account.to_string()));
    }
    let note = refused.find_note(None, request_id)?;
    Ok(note.map(|note| note.account.to_string()))
}

pub async fn activity(
    State(app): State<Arc<SidecarState>>,
    Operator { user, by }: Operator,
    Path(account): Path<String>,
    query: SubmittedQuery<ActivityQuery>,
) -> Result<Response, PageError> {
    let Query(query) = query.map_err(|_| PageError::NotFound)?;
    let viewed = open(&app, by, &account, json!({"page": "activity"})).await?;
    show_list(&app, &user, viewed, query)
}

pub async fn download(
    State(app): State<Arc<SidecarState>>,
    Operator { user, by }: Operator,
    Path(account): Path<String>,
    query: SubmittedQuery<ActivityQuery>,
) -> Result<Response, PageError> {
    let Query(query) = query.map_err(|_| PageError::NotFound)?;
    let viewed = open(&app, by, &account, json!({"page": "activity.csv"})).await?;
    show_download(&app, &user, viewed.id, &query)
}

pub async fn spending(
    State(app): State<Arc<SidecarState>>,
    Operator { user, by }: Operator,
    Path(account): Path<String>,
    query: SubmittedQuery<SpendingQuery>,
) -> Result<Response, PageError> {
    let Query(query) = query.map_err(|_| PageError::NotFound)?;
    let viewed = open(&app, by, &account, json!({"page": "spending"})).await?;
    show_spending(&app, &user, viewed, query)
}

pub async fn conversation(
    State(app): State<Arc<SidecarState>>,
    Operator { user, by }: Operator,
    Path((account, id)): Path<(String, String)>,
) -> Result<Response, PageError> {
    let what = json!({"conversation": id});
    let viewed = open(&app, by, &account, what).await?;
    show_conversation(&app, &user, &viewed, id)
}
