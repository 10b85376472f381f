//! Lists accounts and entries, suspends accounts and disables keys.
//!
//! Must not post to the ledger.

use super::App;
use super::document;
use super::problem::Problem;
use crate::account::{Account, By, Closed, Status};
use crate::clock::now_ms;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::{Extension, Json};
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;

/// Maximum number of rows per page.
const PAGE_MAX: u32 = 100;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AccountPage {
    cursor: Option<String>,
    limit: Option<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EntryPage {
    before: Option<i64>,
    limit: Option<u32>,
}

type Asked<T> = Result<Query<T>, QueryRejection>;
type Named = Result<Path<String>, PathRejection>;

impl App {
    /// Finds an account by its id or its e-mail.
    pub(super) fn find(&self, name: &str) -> Result<Account, Problem> {
        let found = self.accounts.find(name)?;
        found.ok_or_else(|| Problem::NotFound(format!("no account has the id or e-mail {name:?}")))
    }
}

fn rows(limit: Option<u32>) -> Result<u32, Problem> {
    let limit = limit.unwrap_or(PAGE_MAX);
    let is_right = (1..=PAGE_MAX).contains(&limit);
    is_right
        .then_some(limit)
        .ok_or_else(|| Problem::Invalid(format!("limit: must be 1 to {PAGE_MAX}")))
}

/// The cursor of the next page, which begins after the last row. `None` if this page is not full.
fn next<T>(rows: &[T], limit: u32, cursor: impl Fn(&T) -> Value) -> Option<Value> {
    rows.last()
        .filter(|_| rows.len() as u64 >= u64::from(limit))
        .map(cursor)
}

pub async fn list(
    State(app): State<Arc<App>>,
    page: Asked<AccountPage>,
) -> Result<Json<Value>, Problem> {
    let Query(AccountPage { cursor, limit }) = page?;
    let limit = rows(limit)?;
    let accounts = app.accounts.page(cursor.as_deref(), limit)?;
    let next = next(&accounts, limit, |account| json!(account.id));
    let accounts: Vec<_> = accounts.iter().map(document::account).collect();
    Ok(Json(json!({"accounts": accounts, "next": next})))
}

pub async fn show(State(app): State<Arc<App>>, name: Named) -> Result<Json<Value>, Problem> {
    let account = app.find(&name?)?;
    let balance = app.billing.balance(&account.id, now_ms())?;
    Ok(Json(document::account_with(&account, &balance)))
}

pub async fn entries(
    State(app): State<Arc<App>>,
    name: Named,
    page: Asked<EntryPage>,
) -> Result<Json<Value>, Problem> {
    let Query(EntryPage { before, limit }) = page?;
    let limit = rows(limit)?;
    let account = app.find(&name?)?;
    let entries = app.billing.entries(&account.id, before, limit)?;
    let next = next(&entries, limit, |entry| json!(entry.seq));
    let shown = entries
        .iter()
        .map(document::entry)
        .collect::<Result<Vec<_>, _>>()?;
    Ok(Json(json!({"entries": shown, "next": next})))
}

pub async fn suspend(
    app: State<Arc<App>>,
    by: Extension<By>,
    name: Named,
) -> Result<Json<Value>, Problem> {
    set_status(app, by, name, Status::Suspended).await
}

pub async fn resume(
    app: State<Arc<App>>,
    by: Extension<By>,
    name: Named,
) -> Result<Json<Value>, Problem> {
    set_status(app, by, name, Status::Active).await
}

async fn set_status(
    State(app): State<Arc<App>>,
    Extension(by): Extension<By>,
    name: Named,
    status: Status,
) -> Result<Json<Value>, Problem> {
    let Path(name) = name?;
    let actor = by.actor.clone();
    let account = app
        .write(move |app| {
            let account = app.find(&name)?;
            if by.actor == account.id {
                return Err(Problem::Refused(
                    "suspend or resume an account: not one's own".to_owned(),
                ));
            }
            match app
                .accounts
                .acting(&by, now_ms())
                .set_status_from_afar(&account.id, status)?
            {
                Closed::Done => Ok(account),
                Closed::NoAccount => Err(Problem::NotFound(format!(
                    "account {} is deleted",
                    account.id
                ))),
                Closed::LastAdministrator => {
                    let what =
                        "suspend an account: not that of the last administrator who can sign in";
                    Err(Problem::Refused(what.to_owned()))
                }
            }
        })
        .await?;
    log::info!(
        "administrator {actor} made account {} {}",
        account.id,
        status.name()
    );
    Ok(Json(document::status(&account, status)))
}

pub async fn disable_key(
    app: State<Arc<App>>,
    by: Extension<By>,
    id: Named,
) -> Result<Json<Value>, Problem> {
    set_key(app, by, id, false).await
}

pub async fn enable_key(
    app: State<Arc<App>>,
    by: Extension<By>,
    id: Named,
) -> Result<Json<Value>, Problem> {
    set_key(app, by, id, true).await
}

async fn set_key(
    State(app): State<Arc<App>>,
    Extension(by): Extension<By>,
    id: Named,
    enabled: bool,
) -> Result<Json<Value>, Problem> {
    let Path(id) = id?;
    let (key, actor) = (id.clone(), by.actor.clone());
    if !app
        .write(move |app| {
            Ok(app
                .accounts
                .acting(&by, now_ms())
                .set_key_enabled(&key, enabled)?)
        })
        .await?
    {
        return Err(Problem::NotFound(format!("no live key has the id {id:?}")));
    }
    let value = document::key_status(&id, enabled);
    log::info!(
        "administrator {actor} made key {id} {}",
        value["status"].as_str().unwrap_or_default()
    );
    Ok(Json(value))
}
