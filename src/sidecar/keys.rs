//! API keys: creating a key (shown once, with ready-to-paste configuration), the list of keys with
//! spend and limits, and the page of one key: settings, pause, rotation, revocation.
//!
//! A plaintext key is only in the responses to `create` and `rotate`, which caches must not store.
//! A key of an administrator can post credits, so creating it requires the password. Must not
//! decide what a setting means.

mod settings;

use super::account::{ConfirmationError, confirm_password_unless_recent};
use super::authz::may_administer;
use super::blocking::run_blocking;
use super::display::{Credits, Timestamp};
use super::error::PageError;
use super::page::{Frame, html};
use super::session::{ClientIp, CurrentUser, SignedForm};
use super::setup::{ClientGroup, NewKeySetup, client_groups};
use super::state::SidecarState;
use crate::account::{AccountError, ApiKey, ApiKeyStatus, KeySettings, MAX_KEY_NAME_CHARS, NewKey};
use crate::clock::now_ms;
use askama::Template;
use axum::Router;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use credits::limits::Period;
use serde::Deserialize;
use settings::{KeyFormOptions, KeySettingsForm};
use std::sync::Arc;

pub fn routes() -> Router<Arc<SidecarState>> {
    Router::new()
        .route("/dashboard/keys", get(list).post(create))
        .route("/dashboard/keys/{id}", get(show))
        .route("/dashboard/keys/{id}/settings", post(change))
        .route("/dashboard/keys/{id}/enable", post(enable))
        .route("/dashboard/keys/{id}/disable", post(disable))
        .route("/dashboard/keys/{id}/rotate", post(rotate))
        .route(
            "/dashboard/keys/{id}/revoke",
            get(confirm_revoke).post(revoke),
        )
}

#[derive(Template)]
#[template(path = "keys.html")]
struct KeysPage {
    frame: Frame,
    csrf: String,
    keys: Vec<KeyListRow>,
    created: Option<CreatedKey>,
    fault: Option<String>,
    name: String,
    name_chars_max: usize,
    choices: KeyFormOptions,
    /// Clients whose set-up the page of the new key can show.
    clients: Vec<ClientGroup>,
    /// Id of the chosen client; empty if none is.
    client: String,
    /// Creating a key requires the password again.
    asks_password: bool,
}

struct KeyListRow {
    id: String,
    name: String,
    shown: String,
    status: &'static str,
    live: bool,
    /// The key holder has disabled the key.
    disabled: bool,
    created: Timestamp,
    revoked: Option<Timestamp>,
    used: Option<Timestamp>,
    spent: Credits,
    /// Description of the key's settings.
    limits: Vec<String>,
}

/// A key that was just created.
struct CreatedKey {
    id: String,
    name: String,
    key: String,
    setup: Option<NewKeySetup>,
    /// Time until which the replaced key works.
    old_until: Option<Timestamp>,
}

#[derive(Template)]
#[template(path = "key.html")]
struct KeyPage {
    frame: Frame,
    csrf: String,
    key: KeyListRow,
    choices: KeyFormOptions,
    overlaps: [(&'static str, &'static str); 4],
    asks_password: bool,
    done: Option<&'static str>,
    fault: Option<String>,
}

#[derive(Template)]
#[template(path = "revoke.html")]
struct RevokePage {
    frame: Frame,
    csrf: String,
    key: KeyListRow,
}

/// Options for the time that a key works after its rotation.
const ROTATION_OVERLAPS: [(&str, &str); 4] = [
    ("0", "no time (refused at once)"),
    ("1", "1 hour"),
    ("24", "24 hours"),
    ("168", "7 days"),
];

const HOUR_MS: i64 = 3_600_000;

fn row(app: &SidecarState, key: ApiKey) -> Result<KeyListRow, PageError> {
    let now_ms = now_ms();
    let limit = key.settings.spend_limit;
    let spend = app.billing.key_spend(
        &key.id,
        limit.map_or(Period::Total, |limit| limit.period),
        now_ms,
    )?;
    let live = key.status != ApiKeyStatus::Revoked;
    let expired = live && key.settings.has_expired(now_ms);
    Ok(KeyListRow {
        limits: settings::describe_settings(&key.settings, limit.map(|_| spend.spent)),
        status: if expired {
            "expired"
        } else {
            key.status.name()
        },
        live,
        disabled: key.status == ApiKeyStatus::Disabled,
        created: Timestamp(key.created_at_ms),
        revoked: key.revoked_at_ms.map(Timestamp),
        used: spend.used_at_ms.map(Timestamp),
        spent: Credits(spend.total),
        id: key.id,
        name: key.name,
        shown: key.shown,
    })
}

fn rows(app: &SidecarState, user: &CurrentUser) -> Result<Vec<KeyListRow>, PageError> {
    app.accounts
        .keys(&user.account.id)?
        .into_iter()
        .map(|key| row(app, key))
        .collect()
}

fn needs_password(user: &CurrentUser) -> bool {
    may_administer(&user.account) && !user.confirmed
}

fn page(app: &SidecarState, user: &CurrentUser) -> Result<KeysPage, PageError> {
    Ok(KeysPage {
        frame: Frame::new("Keys", user),
        csrf: user.csrf.clone(),
        keys: rows(app, user)?,
        created: None,
        fault: None,
        name: String::new(),
        name_chars_max: MAX_KEY_NAME_CHARS,
        choices: KeyFormOptions::new(app, &KeySettingsForm::default()),
        clients: client_groups(),
        client: String::new(),
        asks_password: needs_password(user),
    })
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct KeysQuery {
    /// Client that the form selects at first.
    client: String,
}

async fn list(
    State(app): State<Arc<SidecarState>>,
    user: CurrentUser,
    query: Result<Query<KeysQuery>, QueryRejection>,
) -> Result<Response, PageError> {
    let Query(query) = query.unwrap_or_default();
    let page = KeysPage {
        client: query.client,
        ..page(&app, &user)?
    };
    Ok(html(StatusCode::OK, &page))
}

/// Responds with the page itself instead of a redirect: the key cannot be read again later.
async fn create(
    State(app): State<Arc<SidecarState>>,
    ClientIp(address): ClientIp,
    form: SignedForm,
) -> Result<Response, PageError> {
    let name = form.field("name").to_owned();
    let client = form.field("client").to_owned();
    let typed = KeySettingsForm::from_form(&form);
    let refuse = |status, fault: String, name: String, user: &CurrentUser| {
        let choices = KeyFormOptions::new(&app, &typed);
        Ok(html(
            status,
            &KeysPage {
                fault: Some(fault),
                name,
                choices,
                client: client.clone(),
                ..page(&app, user)?
            },
        ))
    };
    let set = match typed.parse(&app, &[], now_ms()) {
        Ok(set) => set,
        Err(fault) => return refuse(StatusCode::UNPROCESSABLE_ENTITY, fault, name, &form.user),
    };
    if may_administer(&form.user.account)
        && let Err(ConfirmationError { status, fault }) =
            confirm_password_unless_recent(&app, &form, address).await?
    {
        return refuse(status, fault.to_owned(), name, &form.user);
    }
    let user = CurrentUser {
        confirmed: true,
        ..form.user
    };
    let (accounts, account, key_name) =
        (app.accounts.clone(), user.account.id.clone(), name.clone());
    match run_blocking(move || accounts.create_key_with(&account, &key_name, &set, now_ms()))
        .await?
    {
        Ok(new) => render_created_key(&app, &user, new, None, &client),
        Err(error) => {
            let (status, fault) = describe_key_error(error)?;
            refuse(status, fault, name, &user)
        }
    }
}

fn render_created_key(
    app: &SidecarState,
    user: &CurrentUser,
    new: NewKey,
    old_until: Option<Timestamp>,
    client: &str,
) -> Result<Response, PageError> {
    let key = find_own_key(app, user, &new.key_id)?;
    let setup = NewKeySetup::new(&app.settings.load(), &key, &new.key, client);
    let created = Some(CreatedKey {
        id: new.key_id,
        name: new.name,
        key: new.key,
        setup,
        old_until,
    });
    Ok(html(
        StatusCode::CREATED,
        &KeysPage {
            created,
            ..page(app, user)?
        },
    ))
}

/// Describes an error for the key holder. Internal errors become a page error.
fn describe_key_error(error: AccountError) -> Result<(StatusCode, String), PageError> {
    Ok(match error {
        AccountError::BadKeyName => (
            StatusCode::UNPROCESSABLE_ENTITY,
            format!("A key's name must have 1 to {MAX_KEY_NAME_CHARS} characters."),
        ),
        error @ (AccountError::BadModels | AccountError::BadRate) => (
            StatusCode::UNPROCESSABLE_ENTITY,
            format!("Cannot save the limits: {error}."),
        ),
        AccountError::TooManyKeys => (
            StatusCode::CONFLICT,
            format!("{}.", AccountError::TooManyKeys),
        ),
        AccountError::NoKey => return Err(PageError::NotFound),
        other => return Err(other.into()),
    })
}

/// Finds a live key of the current user.
fn find_own_key(app: &SidecarState, user: &CurrentUser, id: &str) -> Result<ApiKey, PageError> {
    let found = app
        .accounts
        .key(Some(&user.account.id), id)?
        .map(|(_, key)| key);
    found
        .filter(|key| key.status != ApiKeyStatus::Revoked)
        .ok_or(PageError::NotFound)
}

fn key_page(app: &SidecarState, user: &CurrentUser, id: &str) -> Result<KeyPage, PageError> {
    let key = find_own_key(app, user, id)?;
    Ok(KeyPage {
        frame: Frame::new("Keys", user),
        csrf: user.csrf.clone(),
        choices: KeyFormOptions::new(app, &KeySettingsForm::from_settings(&key.settings)),
        key: row(app, key)?,
        overlaps: ROTATION_OVERLAPS,
        asks_password: needs_password(user),
        done: None,
        fault: None,
    })
}

async fn show(
    State(app): State<Arc<SidecarState>>,
    user: CurrentUser,
    Path(id): Path<String>,
) -> Result<Response, PageError> {
    Ok(html(StatusCode::OK, &key_page(&app, &user, &id)?))
}

/// Applies the settings in the form; settings without a field stay unchanged.
async fn change(
    State(app): State<Arc<SidecarState>>,
    Path(id): Path<String>,
    form: SignedForm,
) -> Result<Response, PageError> {
    let before = find_own_key(&app, &form.user, &id)?;
    let typed = KeySettingsForm::from_form(&form);
    let refuse = |status, fault: String| {
        let choices = KeyFormOptions::new(&app, &typed);
        Ok(html(
            status,
            &KeyPage {
                fault: Some(fault),
                choices,
                ..key_page(&app, &form.user, &id)?
            },
        ))
    };
    let set = match typed.parse(&app, &before.settings.allowed_models, now_ms()) {
        Ok(set) => set,
        Err(fault) => return refuse(StatusCode::UNPROCESSABLE_ENTITY, fault),
    };
    let (accounts, account, key) = (
        app.accounts.clone(),
        form.user.account.id.clone(),
        id.clone(),
    );
    let keeps_expiry = typed.keeps_expiry();
    let work = move || {
        accounts.change_key(Some(&account), &key, |settings| {
            let KeySettings {
                expires_at_ms,
                spend_limit,
                allowed_models,
                ..
            } = set;
            if !keeps_expiry {
                settings.expires_at_ms = expires_at_ms;
            }
            settings.spend_limit = spend_limit;
            settings.allowed_models = allowed_models;
        })
    };
    if let Err(error) = run_blocking(work).await? {
        let (status, fault) = describe_key_error(error)?;
        return refuse(status, fault);
    }
    Ok(html(
        StatusCode::OK,
        &KeyPage {
            done: Some("Saved."),
            ..key_page(&app, &form.user, &id)?
        },
    ))
}

async fn enable(
    app: State<Arc<SidecarState>>,
    id: Path<String>,
    form: SignedForm,
) -> Result<Response, PageError> {
    set_enabled(app, id, form, true).await
}

async fn disable(
    app: State<Arc<SidecarState>>,
    id: Path<String>,
    form: SignedForm,
) -> Result<Response, PageError> {
    set_enabled(app, id, form, false).await
}

async fn set_enabled(
    State(app): State<Arc<SidecarState>>,
    Path(id): Path<String>,
    form: SignedForm,
    enabled: bool,
) -> Result<Response, PageError> {
    let (accounts, account, key) = (app.accounts.clone(), form.user.account.id, id.clone());
    let is_set =
        run_blocking(move || accounts.set_own_key_enabled(&account, &key, enabled)).await??;
    if is_set {
        Ok(Redirect::to(&format!("/dashboard/keys/{id}")).into_response())
    } else {
        Err(PageError::NotFound)
    }
}

/// Creates a new key with the same name and settings. The old key works for the overlap, so that no
/// client is cut off.
async fn rotate(
    State(app): State<Arc<SidecarState>>,
    Path(id): Path<String>,
    ClientIp(address): ClientIp,
    form: SignedForm,
) -> Result<Response, PageError> {
    find_own_key(&app, &form.user, &id)?;
    let refuse = |status, fault: String, user: &CurrentUser| {
        Ok(html(
            status,
            &KeyPage {
                fault: Some(fault),
                ..key_page(&app, user, &id)?
            },
        ))
    };
    let chosen = ROTATION_OVERLAPS
        .iter()
        .find(|(hours, _)| *hours == form.field("overlap_hours"));
    let Some(hours) = chosen.and_then(|(hours, _)| hours.parse::<i64>().ok()) else {
        return refuse(
            StatusCode::UNPROCESSABLE_ENTITY,
            "Choose how long the old key keeps working.".into(),
            &form.user,
        );
    };
    if may_administer(&form.user.account)
        && let Err(ConfirmationError { status, fault }) =
            confirm_password_unless_recent(&app, &form, address).await?
    {
        return refuse(status, fault.to_owned(), &form.user);
    }
    let user = CurrentUser {
        confirmed: true,
        ..form.user
    };
    let (accounts, account, key) = (app.accounts.clone(), user.account.id.clone(), id.clone());
    let now_ms = now_ms();
    match run_blocking(move || accounts.rotate_key(Some(&account), &key, hours * HOUR_MS, now_ms))
        .await?
    {
        Ok(new) => {
            let old = app.accounts.key(Some(&user.account.id), &id)?;
            let until = old
                .and_then(|(_, old)| old.settings.expires_at_ms)
                .map(Timestamp);
            render_created_key(&app, &user, new, until, "")
        }
        Err(error) => {
            let (status, fault) = describe_key_error(error)?;
            refuse(status, fault, &user)
        }
    }
}

async fn confirm_revoke(
    State(app): State<Arc<SidecarState>>,
    user: CurrentUser,
    Path(id): Path<String>,
) -> Result<Response, PageError> {
    let key = row(&app, find_own_key(&app, &user, &id)?)?;
    let page = RevokePage {
        frame: Frame::new("Keys", &user),
        csrf: user.csrf.clone(),
        key,
    };
    Ok(html(StatusCode::OK, &page))
}

async fn revoke(
    State(app): State<Arc<SidecarState>>,
    Path(id): Path<String>,
    form: SignedForm,
) -> Result<Response, PageError> {
    let (accounts, account) = (app.accounts.clone(), form.user.account.id);
    let revoked =
        run_blocking(move || accounts.revoke_key(Some(&account), &id, now_ms())).await??;
    if revoked {
        Ok(Redirect::to("/dashboard/keys").into_response())
    } else {
        Err(PageError::NotFound)
    }
}
