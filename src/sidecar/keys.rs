//! API keys: creating a key (with ready-to-paste configuration), the list of keys with spend and
//! limits, and the page of one key: settings, pause, rotation, revocation.
//!
//! A key in plain text is only on the page to which creation and rotation redirect
//! (`keys/created.rs`); caches must not store that page. A key of an administrator can post
//! credits, so creating it requires the password. Must not decide what a setting means.

mod created;
mod row;
mod settings;
mod status;

use super::account::{ConfirmationError, confirm_password_unless_recent};
use super::authz::may_administer;
use super::blocking::run_blocking;
use super::confirm::{self, Confirmation};
use super::display::Timestamp;
use super::error::PageError;
use super::new_keys::{KEY_SHOWN_MS, TicketedKey, is_own_ticket};
use super::page::{Frame, html};
use super::session::{ClientIp, CurrentUser, SignedForm};
use super::setup::{ClientGroup, NewKeySetup, client_groups};
use super::state::SidecarState;
use crate::account::{
    AccountError, ApiKey, ApiKeyStatus, KeyScope, KeySettings, MAX_KEY_NAME_CHARS,
};
use crate::clock::now_ms;
use askama::Template;
use axum::Router;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::{get, post};
use created::{create_once, key_request, new_nonce};
use row::{KeyListRow, find_own_key, row};
use serde::Deserialize;
use settings::{KeyFormOptions, KeySettingsForm, RateInForce};
use status::{confirm_revoke, disable, enable, revoke};
use std::sync::Arc;

pub fn routes() -> Router<Arc<SidecarState>> {
    Router::new()
        .route("/dashboard/keys", get(list).post(create))
        .route("/dashboard/keys/new/{ticket}", get(show_created))
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
    /// The page of a new key no longer shows it.
    is_gone: bool,
    fault: Option<String>,
    /// Number of the form: the same form sent again creates no second key.
    once: String,
    name: String,
    name_chars_max: usize,
    choices: KeyFormOptions,
    /// Clients whose set-up the page of the new key can show.
    clients: Vec<ClientGroup>,
    /// Id of the chosen client; empty if none is.
    client: String,
    /// Creating a key that is not for inference alone requires the password again.
    asks_password: bool,
    /// For an administrator: whether the new key is for inference alone.
    inference_only: Option<bool>,
}

/// A key that was just created.
struct CreatedKey {
    id: String,
    name: String,
    key: String,
    setup: Option<NewKeySetup>,
    /// Time until which the replaced key works.
    old_until: Option<Timestamp>,
    /// Whether edges accept the key already.
    in_store: bool,
    /// Minutes for which the page shows the key.
    minutes: i64,
}

#[derive(Template)]
#[template(path = "key.html")]
struct KeyPage {
    frame: Frame,
    csrf: String,
    key: KeyListRow,
    choices: KeyFormOptions,
    rates: Vec<RateInForce>,
    /// Number of the rotation's form: the same form sent again creates no second key.
    once: String,
    overlaps: [(&'static str, &'static str); 4],
    asks_password: bool,
    done: Option<&'static str>,
    fault: Option<String>,
}

/// Options for the time that a key works after its rotation.
const ROTATION_OVERLAPS: [(&str, &str); 4] = [
    ("0", "no time (refused at once)"),
    ("1", "1 hour"),
    ("24", "24 hours"),
    ("168", "7 days"),
];

const MINUTE_MS: i64 = 60_000;
const HOUR_MS: i64 = 60 * MINUTE_MS;

fn rows(app: &SidecarState, user: &CurrentUser) -> Result<Vec<KeyListRow>, PageError> {
    let now_ms = now_ms();
    // Playground keys come and go; only those that work are of interest.
    let is_over = |key: &ApiKey| {
        key.is_of_playground()
            && (key.status == ApiKeyStatus::Revoked || key.settings.has_expired(now_ms))
    };
    app.accounts
        .keys(&user.account.id)?
        .into_iter()
        .filter(|key| !is_over(key))
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
        is_gone: false,
        fault: None,
        once: new_nonce()?,
        name: String::new(),
        name_chars_max: MAX_KEY_NAME_CHARS,
        choices: KeyFormOptions::new(app, &KeySettingsForm::default()),
        clients: client_groups(),
        client: String::new(),
        asks_password: needs_password(user),
        inference_only: may_administer(&user.account).then_some(true),
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

async fn create(
    State(app): State<Arc<SidecarState>>,
    ClientIp(address): ClientIp,
    form: SignedForm,
) -> Result<Response, PageError> {
    let name = form.field("name").to_owned();
    let request = key_request(&form)?;
    let client = form.field("client").to_owned();
    let typed = KeySettingsForm::from_form(&form);
    let inference_only = form.field("inference_only") == "yes";
    let is_admin = may_administer(&form.user.account);
    let refuse = |status, fault: String, name: String, user: &CurrentUser| {
        let choices = KeyFormOptions::new(&app, &typed);
        Ok(html(
            status,
            &KeysPage {
                fault: Some(fault),
                name,
                choices,
                inference_only: is_admin.then_some(inference_only),
                client: client.clone(),
                ..page(&app, user)?
            },
        ))
    };
    let set = match typed.parse(&app, &[], now_ms()) {
        Ok(set) => KeySettings {
            scope: inference_only.then_some(KeyScope::Inference),
            ..set
        },
        Err(fault) => return refuse(StatusCode::UNPROCESSABLE_ENTITY, fault, name, &form.user),
    };
    // A key for inference alone can do no more than that of any account holder.
    let asks_password = is_admin && !inference_only;
    if asks_password
        && let Err(ConfirmationError { status, fault }) =
            confirm_password_unless_recent(&app, &form, address).await?
    {
        return refuse(status, fault.to_owned(), name, &form.user);
    }
    let user = CurrentUser {
        confirmed: asks_password || form.user.confirmed,
        ..form.user
    };
    let (accounts, account, key_name) =
        (app.accounts.clone(), user.account.id.clone(), name.clone());
    let chosen_client = client.clone();
    let create = move || {
        let new = accounts.create_key_with(&account, &key_name, &set, now_ms())?;
        Ok(TicketedKey {
            new,
            old_until: None,
            client: chosen_client,
        })
    };
    match create_once(&app, request, create).await? {
        Ok(to_its_page) => Ok(to_its_page),
        Err(error) => {
            let (status, fault) = describe_key_error(error)?;
            refuse(status, fault, name, &user)
        }
    }
}

/// The page of a new key.
async fn show_created(
    State(app): State<Arc<SidecarState>>,
    user: CurrentUser,
    Path(ticket): Path<String>,
) -> Result<Response, PageError> {
    if !is_own_ticket(&user.token, &ticket) {
        return Err(PageError::NotFound);
    }
    let shown = app.new_keys.key(&ticket, now_ms());
    // A key that was revoked in the meantime is of no use.
    let is_live = |key: &TicketedKey| find_own_key(&app, &user, &key.new.key_id).is_ok();
    match shown.filter(|key| is_live(key)) {
        Some(key) => {
            let (accounts, key_id) = (app.accounts.clone(), key.new.key_id.clone());
            let in_store = run_blocking(move || accounts.wait_until_published(&key_id)).await?;
            render_created_key(&app, &user, &key, in_store)
        }
        None => Ok(html(
            StatusCode::GONE,
            &KeysPage {
                is_gone: true,
                ..page(&app, &user)?
            },
        )),
    }
}

fn render_created_key(
    app: &SidecarState,
    user: &CurrentUser,
    TicketedKey {
        new,
        old_until,
        client,
    }: &TicketedKey,
    in_store: bool,
) -> Result<Response, PageError> {
    let key = find_own_key(app, user, &new.key_id)?;
    let setup = NewKeySetup::new(&app.settings.load(), &key, &new.key, client);
    let created = Some(CreatedKey {
        id: new.key_id.clone(),
        name: new.name.clone(),
        key: new.key.clone(),
        setup,
        old_until: *old_until,
        in_store,
        minutes: KEY_SHOWN_MS / MINUTE_MS,
    });
    Ok(html(
        StatusCode::OK,
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
        AccountError::ControlCharInKeyName => (
            StatusCode::UNPROCESSABLE_ENTITY,
            "A key's name must be one line without control characters, such as line breaks and tabs."
                .into(),
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

fn key_page(app: &SidecarState, user: &CurrentUser, id: &str) -> Result<KeyPage, PageError> {
    let key = find_own_key(app, user, id)?;
    Ok(KeyPage {
        frame: Frame::new("Keys", user),
        csrf: user.csrf.clone(),
        choices: KeyFormOptions::new(app, &KeySettingsForm::from_settings(&key.settings)),
        rates: settings::rates_in_force(app, &user.account.id, &key.settings.rates)?,
        once: new_nonce()?,
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
                rates,
                ..
            } = set;
            if !keeps_expiry {
                settings.expires_at_ms = expires_at_ms;
            }
            settings.spend_limit = spend_limit;
            settings.allowed_models = allowed_models;
            settings.rates = rates;
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

/// Creates a new key with the same name and settings. The old key works for the overlap, so that no
/// client is cut off.
async fn rotate(
    State(app): State<Arc<SidecarState>>,
    Path(id): Path<String>,
    ClientIp(address): ClientIp,
    form: SignedForm,
) -> Result<Response, PageError> {
    let old = find_own_key(&app, &form.user, &id)?;
    let request = key_request(&form)?;
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
    if hours == 0 && !form.is_confirmed() {
        let question = Confirmation {
            title: "Rotate this key at once?",
            consequence: format!(
                "The gateway refuses {} from the next request on. Every client that uses it fails \
                 until it has the new key.",
                old.shown
            ),
            button: "Rotate key",
            back: "/dashboard/keys",
        };
        return Ok(confirm::page("Keys", &form, question));
    }
    let user = CurrentUser {
        confirmed: true,
        ..form.user
    };
    let (accounts, account, key) = (app.accounts.clone(), user.account.id.clone(), id.clone());
    let create = move || {
        let new = accounts.rotate_key(Some(&account), &key, hours * HOUR_MS, now_ms())?;
        // The new key must not be lost because the old one cannot be read.
        let old = accounts.key(Some(&account), &key).ok().flatten();
        let expires_at_ms = old.and_then(|(_, old)| old.settings.expires_at_ms);
        Ok(TicketedKey {
            new,
            old_until: expires_at_ms.map(Timestamp),
            client: String::new(),
        })
    };
    match create_once(&app, request, create).await? {
        Ok(to_its_page) => Ok(to_its_page),
        Err(error) => {
            let (status, fault) = describe_key_error(error)?;
            refuse(status, fault, &user)
        }
    }
}
