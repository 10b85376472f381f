//! Lists, creates, changes, rotates, moves, disables and revokes the keys of an account.
//!
//! This file must not return a key of an administrator, with which one could act in another
//! administrator's name.

use super::accounts::{next_cursor, parse_limit};
use super::body::{
    BodyResult, CreatedResult, JsonResult, PathParam, QueryResult, deserialize_setting, parse_body,
};
use super::error::AdminError;
use super::state::AdminState;
use crate::document;
use crate::shared_credit::wait_until_published;
use accounts::db::KeyFilter;
use accounts::{
    Account, Actor, ApiKey, KeyHolder, KeyScope, KeySettings, KeySettingsPatch, NewKey, Role,
};
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use base::clock::now_ms;
use credits::limits::{Period, SpendLimit};
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;

/// Time in seconds for which the old key works after a rotation, unless the request sets another.
const DEFAULT_OVERLAP_SECONDS: u64 = 86_400;
const MAX_OVERLAP_SECONDS: u64 = 30 * 86_400;

/// Maximum time in seconds until a key expires, which is ten years.
const MAX_EXPIRY_SECONDS: u64 = 3_660 * 86_400;

/// The body that creates or changes a key.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyBody {
    name: Option<String>,
    /// Id or e-mail of the member whose key it is, if the account is an organisation's.
    member: Option<String>,
    #[serde(default, deserialize_with = "deserialize_setting")]
    expires_in_seconds: Option<Option<u64>>,
    /// Spend limit in the format of the command line, such as `100/day`.
    #[serde(default, deserialize_with = "deserialize_setting")]
    spend_limit: Option<Option<String>>,
    #[serde(default, deserialize_with = "deserialize_setting")]
    models: Option<Option<Vec<String>>>,
    #[serde(default, deserialize_with = "deserialize_setting")]
    scope: Option<Option<KeyScope>>,
    #[serde(default, deserialize_with = "deserialize_setting")]
    requests_per_minute: Option<Option<u64>>,
    #[serde(default, deserialize_with = "deserialize_setting")]
    tokens_per_minute: Option<Option<u64>>,
    #[serde(default, deserialize_with = "deserialize_setting")]
    concurrent: Option<Option<u64>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RotationBody {
    overlap_seconds: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MoveBody {
    /// Id or e-mail of the account that gets the key.
    to: String,
    /// Id or e-mail of the member whose key it becomes, if that account is an organisation's.
    member: Option<String>,
}

impl KeyBody {
    fn check(self, app: &AdminState, at_ms: i64) -> Result<KeySettingsPatch, AdminError> {
        let expires_at_ms = match self.expires_in_seconds {
            Some(Some(seconds)) if !(1..=MAX_EXPIRY_SECONDS).contains(&seconds) => {
                let why = format!("expires_in_seconds must be 1 to {MAX_EXPIRY_SECONDS}, or null");
                return Err(AdminError::Invalid(why));
            }
            change => change.map(|seconds| seconds.map(|seconds| later(at_ms, seconds))),
        };
        let parse_limit = |text: String| {
            text.parse::<SpendLimit>()
                .map_err(|error| AdminError::Invalid(format!("spend_limit is {error}")))
        };
        let spend_limit = self
            .spend_limit
            .map(|limit| limit.map(parse_limit).transpose())
            .transpose()?;
        let allowed_models = self.models.map(Option::unwrap_or_default);
        check_models(app, allowed_models.as_deref().unwrap_or_default())?;
        let rates = [
            self.requests_per_minute,
            self.tokens_per_minute,
            self.concurrent,
        ];
        Ok(KeySettingsPatch {
            expires_at_ms,
            spend_limit,
            allowed_models,
            scope: self.scope,
            rates,
        })
    }
}

/// Checks the allowed models of a key or a member.
pub(super) fn check_models(app: &AdminState, models: &[String]) -> Result<(), AdminError> {
    let settings = app.settings.load();
    let is_unknown = |id: &&String| settings.catalog.by_id(id).is_none();
    match models.iter().find(is_unknown) {
        Some(unknown) => {
            let why = format!("models: the catalog has no model with the id {unknown:?}");
            Err(AdminError::Invalid(why))
        }
        None => Ok(()),
    }
}

fn later(at_ms: i64, seconds: u64) -> i64 {
    let ms = i64::try_from(seconds).unwrap_or(i64::MAX);
    at_ms.saturating_add(ms.saturating_mul(1_000))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyPageQuery {
    cursor: Option<String>,
    limit: Option<u32>,
}

pub async fn list(
    State(app): State<Arc<AdminState>>,
    name: PathParam,
    page: QueryResult<KeyPageQuery>,
) -> JsonResult {
    let Query(KeyPageQuery { cursor, limit }) = page?;
    let (account, limit) = (app.find_account(&name?)?, parse_limit(limit)?);
    let filter = KeyFilter {
        now_ms: now_ms(),
        ..KeyFilter::default()
    };
    let keys = app
        .accounts
        .api_keys()
        .page(&account.id, &filter, cursor.as_deref(), limit)?;
    let next = next_cursor(&keys, limit, |key| json!(key.id));
    let keys = keys
        .iter()
        .map(|key| key_document(&app, &account.id, key))
        .collect::<Result<Vec<_>, _>>()?;
    Ok(Json(json!({"keys": keys, "next": next})))
}

pub async fn show(State(app): State<Arc<AdminState>>, id: PathParam) -> JsonResult {
    let (account, key) = find_key(&app, &id?)?;
    Ok(Json(key_document(&app, &account, &key)?))
}

pub async fn create(
    State(app): State<Arc<AdminState>>,
    Extension(by): Extension<Actor>,
    name: PathParam,
    body: BodyResult,
) -> CreatedResult {
    let body: KeyBody = parse_body(&body?)?;
    let Path(account) = name?;
    app.run_write(move |app| {
        let at_ms = now_ms();
        let account = app.find_account(&account)?;
        refuse_administrator(&account)?;
        let name = body.name.clone();
        let name = name.ok_or_else(|| AdminError::Invalid("name is missing".into()))?;
        let member = body.member.as_deref();
        let member = member.map(|member| app.find_account(member)).transpose()?;
        let mut settings = KeySettings::default();
        settings.apply(&body.check(app, at_ms)?);
        let mut what = json!({"name": name, "settings": settings});
        if let Some(member) = &member {
            what["person"] = json!(member.id);
        }
        let holder = KeyHolder {
            account: &account.id,
            member: member.as_ref().map(|member| member.id.as_str()),
        };
        let acting = app.accounts.with_actor(&by, at_ms);
        let new = acting.record_then_run("key.create", &account.id, &what, || {
            app.accounts
                .api_keys()
                .create_key_of(holder, &name, &settings, at_ms)
        })?;
        log_act(&by, "created the key", &new.key_id);
        new_key_document(app, &new).map(|value| (StatusCode::CREATED, Json(value)))
    })
    .await
}

pub async fn change(
    State(app): State<Arc<AdminState>>,
    Extension(by): Extension<Actor>,
    id: PathParam,
    body: BodyResult,
) -> JsonResult {
    let body: KeyBody = parse_body(&body?)?;
    if body.name.is_some() || body.member.is_some() {
        let why = "name and member cannot be changed";
        return Err(AdminError::Invalid(why.into()));
    }
    let Path(id) = id?;
    app.run_write(move |app| {
        let at_ms = now_ms();
        let (account, key) = find_key(app, &id)?;
        refuse_administrator(&app.find_account(&account)?)?;
        let change = body.check(app, at_ms)?;
        let before = json!({"settings": key.settings});
        let mut settings = key.settings;
        settings.apply(&change);
        let acting = app.accounts.with_actor(&by, at_ms);
        let changes = (&before, &json!({"settings": settings}));
        acting.record_setting_then_run("key.set", &id, changes, || {
            app.accounts
                .api_keys()
                .change_key(None, &id, |settings| settings.apply(&change))
        })?;
        log_act(&by, "changed the key", &id);
        wait_until_published(&app.accounts, &id);
        let (account, key) = find_key(app, &id)?;
        Ok(Json(key_document(app, &account, &key)?))
    })
    .await
}

pub async fn rotate(
    State(app): State<Arc<AdminState>>,
    Extension(by): Extension<Actor>,
    id: PathParam,
    body: BodyResult,
) -> CreatedResult {
    let body = body?;
    let body: RotationBody = parse_body(if body.is_empty() { b"{}" } else { &body })?;
    let overlap = body.overlap_seconds.unwrap_or(DEFAULT_OVERLAP_SECONDS);
    if overlap > MAX_OVERLAP_SECONDS {
        let why = format!("overlap_seconds must be 0 to {MAX_OVERLAP_SECONDS}");
        return Err(AdminError::Invalid(why));
    }
    let Path(id) = id?;
    app.run_write(move |app| {
        let at_ms = now_ms();
        let (account, _) = find_key(app, &id)?;
        refuse_administrator(&app.find_account(&account)?)?;
        let overlap_ms = later(0, overlap);
        let acting = app.accounts.with_actor(&by, at_ms);
        let what = json!({"overlap_ms": overlap_ms});
        let new = acting.record_then_run("key.rotate", &id, &what, || {
            app.accounts
                .api_keys()
                .rotate_key(None, &id, overlap_ms, at_ms)
        })?;
        log_act(&by, "rotated the key", &id);
        new_key_document(app, &new).map(|value| (StatusCode::CREATED, Json(value)))
    })
    .await
}

pub async fn move_to(
    State(app): State<Arc<AdminState>>,
    Extension(by): Extension<Actor>,
    id: PathParam,
    body: BodyResult,
) -> JsonResult {
    let MoveBody { to, member } = parse_body(&body?)?;
    let Path(id) = id?;
    app.run_write(move |app| {
        let (account, _) = find_key(app, &id)?;
        refuse_administrator(&app.find_account(&account)?)?;
        let to = app.find_account(&to)?;
        let member = member.map(|member| app.find_account(&member)).transpose()?;
        let member = member.as_ref().map(|member| member.id.as_str());
        let acting = app.accounts.with_actor(&by, now_ms());
        let new_id = acting.move_key(&id, &to.id, member)?;
        log_act(&by, "moved the key", &id);
        let in_store = wait_until_published(&app.accounts, &new_id);
        Ok(Json(document::moved_key(&id, &new_id, &to, in_store)))
    })
    .await
}

pub async fn disable(
    app: State<Arc<AdminState>>,
    by: Extension<Actor>,
    id: PathParam,
) -> JsonResult {
    set_enabled(app, by, id, false).await
}

pub async fn enable(
    app: State<Arc<AdminState>>,
    by: Extension<Actor>,
    id: PathParam,
) -> JsonResult {
    set_enabled(app, by, id, true).await
}

async fn set_enabled(
    State(app): State<Arc<AdminState>>,
    Extension(by): Extension<Actor>,
    id: PathParam,
    enabled: bool,
) -> JsonResult {
    let Path(id) = id?;
    app.run_write(move |app| {
        let acting = app.accounts.with_actor(&by, now_ms());
        if !acting.set_key_enabled(&id, enabled)? {
            return Err(no_live_key(&id));
        }
        log_act(&by, if enabled { "enabled" } else { "disabled" }, &id);
        wait_until_published(&app.accounts, &id);
        Ok(Json(document::key_status(&id, enabled)))
    })
    .await
}

pub async fn revoke(
    State(app): State<Arc<AdminState>>,
    Extension(by): Extension<Actor>,
    id: PathParam,
) -> JsonResult {
    let Path(id) = id?;
    app.run_write(move |app| {
        if !app.accounts.with_actor(&by, now_ms()).revoke_key(&id)? {
            return Err(no_live_key(&id));
        }
        log_act(&by, "revoked the key", &id);
        wait_until_published(&app.accounts, &id);
        Ok(Json(json!({"key_id": id, "status": "revoked"})))
    })
    .await
}

fn log_act(by: &Actor, what: &str, key_id: &str) {
    log::info!("administrator {} {what} {key_id}", by.actor);
}

fn no_live_key(id: &str) -> AdminError {
    AdminError::NotFound(format!("no active key has the id {id:?}"))
}

/// Returns a key, regardless of its status, and the account to which it belongs.
fn find_key(app: &AdminState, id: &str) -> Result<(String, ApiKey), AdminError> {
    let found = app.accounts.api_keys().key(None, id)?;
    found.ok_or_else(|| AdminError::NotFound(format!("no key has the id {id:?}")))
}

/// Refuses to create or change keys and links that act in an administrator's name.
pub(super) fn refuse_administrator(account: &Account) -> Result<(), AdminError> {
    if account.role != Role::Admin {
        return Ok(());
    }
    let why =
        "this account is an administrator's: change it on the command line or in the dashboard";
    Err(AdminError::Refused(why.to_owned()))
}

fn key_document(app: &AdminState, account: &str, key: &ApiKey) -> Result<Value, AdminError> {
    let period = key.settings.spend_limit.map(|limit| limit.period);
    let period = period.unwrap_or(Period::Total);
    let now_ms = now_ms();
    let spend = app.billing.key_spend(&key.id, period, now_ms)?;
    let status = app.find_account(account)?.status;
    let mut value = document::api_key(key, status, &spend, now_ms);
    value["account_id"] = json!(account);
    Ok(value)
}

/// Returns a new key with its text, which no other response contains. Waits until edges accept the
/// key.
fn new_key_document(app: &AdminState, new: &NewKey) -> Result<Value, AdminError> {
    let in_store = wait_until_published(&app.accounts, &new.key_id);
    let (account, key) = find_key(app, &new.key_id)?;
    let mut value = key_document(app, &account, &key)?;
    value["key"] = json!(new.key);
    value["in_store"] = json!(in_store);
    Ok(value)
}
