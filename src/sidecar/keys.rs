//! Serves the pages of API keys: creating a key (with ready-to-paste configuration), the list of
//! keys with spend and limits, and the page of one key: settings, pause, rotation, revocation.
//!
//! Only the page to which creation and rotation redirect (`keys/created.rs`) shows a key in plain
//! text, and caches must not store that page. A key of an administrator can post credits, so
//! creating one requires the password. This module must not decide the effect of a setting.

mod created;
mod row;
pub(super) mod settings;
mod status;

use super::account::require_recent_password;
use super::authz::may_administer;
use super::blocking::run_blocking;
use super::confirm::{self, Confirmation};
use super::display::Timestamp;
use super::error::PageError;
use super::form::{self, FormFault, FormStop};
use super::key_list::{KeyList, KeyListQuery};
use super::new_keys::{KEY_SHOWN_MS, TicketedKey, is_own_ticket};
use super::page::{Frame, html};
use super::session::{CurrentUser, SignedForm};
use super::setup::{ClientGroup, NewKeySetup, client_groups};
use super::state::SidecarState;
use crate::shared_credit::wait_until_published;
use accounts::{AccountError, KeyHolder, KeyScope, KeySettings, MAX_KEY_NAME_CHARS};
use askama::Template;
use axum::Router;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::{get, post};
use base::clock::now_ms;
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
    list: KeyList,
    created: Option<CreatedKey>,
    /// True if the page of a new key no longer shows the key.
    is_gone: bool,
    fault: Option<FormFault>,
    /// Nonce of the form. The same form sent again creates no second key.
    once: String,
    name: String,
    name_chars_max: usize,
    choices: KeyFormOptions,
    /// Clients whose set-up the page of the new key can show.
    clients: Vec<ClientGroup>,
    /// Id of the chosen client; empty if none is.
    client: String,
    /// True if creating a key requires the password again; keys for inference alone do not.
    asks_password: bool,
    /// For an administrator, true if the new key is for inference alone.
    inference_only: Option<bool>,
}

struct CreatedKey {
    id: String,
    name: String,
    key: String,
    setup: Option<NewKeySetup>,
    /// Time until which the replaced key works.
    old_until: Option<Timestamp>,
    /// True if edges accept the key already.
    in_store: bool,
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
    /// Nonce of the rotation's form. The same form sent again creates no second key.
    once: String,
    overlaps: [(&'static str, &'static str); 4],
    asks_password: bool,
    done: Option<&'static str>,
    fault: Option<FormFault>,
}

/// Options for the time for which a key works after its rotation.
const ROTATION_OVERLAPS: [(&str, &str); 4] = [
    ("0", "no time (refused at once)"),
    ("1", "1 hour"),
    ("24", "24 hours"),
    ("168", "7 days"),
];

const MINUTE_MS: i64 = 60_000;
const HOUR_MS: i64 = 60 * MINUTE_MS;

fn needs_password(user: &CurrentUser) -> bool {
    may_administer(&user.account) && user.asks_password()
}

fn page(app: &SidecarState, user: &CurrentUser) -> Result<KeysPage, PageError> {
    page_of(app, user, &KeyListQuery::default())
}

fn page_of(
    app: &SidecarState,
    user: &CurrentUser,
    query: &KeyListQuery,
) -> Result<KeysPage, PageError> {
    let mut list = KeyList::load(
        app,
        &user.account.id,
        user.only_member(),
        "/dashboard/keys",
        query,
    )?;
    let keys = std::mem::take(&mut list.keys).into_iter();
    let keys = keys
        .map(|key| row(app, user, key))
        .collect::<Result<_, _>>()?;
    Ok(KeysPage {
        frame: Frame::new("Keys", user),
        csrf: user.csrf.clone(),
        keys,
        list,
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
    /// Id of the client that the form selects at first.
    client: String,
    key_q: String,
    keys: String,
    after: String,
}

async fn list(
    State(app): State<Arc<SidecarState>>,
    user: CurrentUser,
    query: Result<Query<KeysQuery>, QueryRejection>,
) -> Result<Response, PageError> {
    let Query(query) = query.unwrap_or_default();
    let list = KeyListQuery {
        term: query.key_q,
        which: query.keys,
        after: query.after,
    };
    let page = KeysPage {
        client: query.client,
        ..page_of(&app, &user, &list)?
    };
    Ok(html(StatusCode::OK, &page))
}

async fn create(
    State(app): State<Arc<SidecarState>>,
    mut form: SignedForm,
) -> Result<Response, PageError> {
    let name = form.field("name").to_owned();
    let client = form.field("client").to_owned();
    let typed = KeySettingsForm::from_form(&form);
    let inference_only = form.field("inference_only") == "yes";
    let is_admin = may_administer(&form.user.account);
    let request = key_request(&form)?;
    let outcome = async {
        let set = typed.parse(&app, &[], now_ms());
        let set = KeySettings {
            scope: inference_only.then_some(KeyScope::Inference),
            ..set.map_err(FormStop::invalid)?
        };
        // A key for inference alone has no more rights than a key of an account holder.
        if is_admin && !inference_only {
            require_recent_password(&app, &mut form).await?;
        }
        let (accounts, account) = (app.accounts.clone(), form.user.account.id.clone());
        let member = form.user.key_holder().member.map(ToOwned::to_owned);
        let (name, client) = (name.clone(), client.clone());
        let create = move || {
            let holder = KeyHolder {
                account: &account,
                member: member.as_deref(),
            };
            let new = accounts
                .api_keys()
                .create_key_of(holder, &name, &set, now_ms())?;
            Ok(TicketedKey {
                new,
                old_until: None,
                client,
            })
        };
        create_once(&app, request, create).await?.map_err(key_stop)
    };
    form::respond(outcome.await, |fault| {
        Ok(KeysPage {
            fault: Some(fault),
            name,
            choices: KeyFormOptions::new(&app, &typed),
            inference_only: is_admin.then_some(inference_only),
            client,
            ..page(&app, &form.user)?
        })
    })
}

async fn show_created(
    State(app): State<Arc<SidecarState>>,
    user: CurrentUser,
    Path(ticket): Path<String>,
) -> Result<Response, PageError> {
    if !is_own_ticket(&user.token, &ticket) {
        return Err(PageError::NotFound);
    }
    let shown = app.new_keys.key(&ticket, now_ms());
    // A key that was revoked in the meantime is not shown.
    let is_live = |key: &TicketedKey| find_own_key(&app, &user, &key.new.key_id).is_ok();
    match shown.filter(|key| is_live(key)) {
        Some(key) => {
            let (accounts, key_id) = (app.accounts.clone(), key.new.key_id.clone());
            let in_store = run_blocking(move || wait_until_published(&accounts, &key_id)).await?;
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

/// Describes an error for the key holder. An internal error becomes an error page.
fn key_stop(error: AccountError) -> FormStop {
    match error {
        AccountError::BadKeyName => FormStop::invalid(FormFault::at(
            "name",
            format!("A key's name must have 1 to {MAX_KEY_NAME_CHARS} characters."),
        )),
        AccountError::HiddenCharInKeyName => FormStop::invalid(FormFault::at(
            "name",
            "A key's name must be one line without invisible characters, such as tabs and zero-width spaces.",
        )),
        AccountError::BadModels | AccountError::BadRate => {
            FormStop::invalid(format!("Cannot save the limits: {error}."))
        }
        AccountError::TooManyKeys | AccountError::IsLogin => {
            FormStop::conflict(format!("{error}."))
        }
        AccountError::NoKey => PageError::NotFound.into(),
        other => other.into(),
    }
}

fn key_page(app: &SidecarState, user: &CurrentUser, id: &str) -> Result<KeyPage, PageError> {
    let key = find_own_key(app, user, id)?;
    Ok(KeyPage {
        frame: Frame::new("Keys", user),
        csrf: user.csrf.clone(),
        choices: KeyFormOptions::new(app, &KeySettingsForm::from_settings(&key.settings)),
        rates: settings::rates_in_force(app, &user.account.id, &key.settings.rates)?,
        once: new_nonce()?,
        key: row(app, user, key)?,
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

/// Returns the settings `typed` in the form. A setting without a field keeps that of `before`.
fn typed_over(typed: KeySettings, before: &KeySettings, keeps_expiry: bool) -> KeySettings {
    // The pattern has no `..`, so that a new setting must be named here. Otherwise, the form would
    // silently drop the new setting.
    let KeySettings {
        expires_at_ms,
        spend_limit,
        allowed_models,
        rates,
        scope: _,
        playground_session: _,
    } = typed;
    KeySettings {
        expires_at_ms: if keeps_expiry {
            before.expires_at_ms
        } else {
            expires_at_ms
        },
        spend_limit,
        allowed_models,
        rates,
        scope: before.scope,
        playground_session: before.playground_session.clone(),
    }
}

/// Applies the settings of the form. A setting without a field stays unchanged.
async fn change(
    State(app): State<Arc<SidecarState>>,
    Path(id): Path<String>,
    form: SignedForm,
) -> Result<Response, PageError> {
    let before = find_own_key(&app, &form.user, &id)?;
    let typed = KeySettingsForm::from_form(&form);
    let outcome = async {
        let bound_to = &before.settings.allowed_models;
        let set = typed.parse(&app, bound_to, now_ms());
        let set = set.map_err(FormStop::invalid)?;
        let keeps_expiry = typed.keeps_expiry();
        let (accounts, account) = (app.accounts.clone(), form.user.account.id.clone());
        let key = id.clone();
        let work = move || {
            accounts
                .api_keys()
                .change_key(Some(&account), &key, |settings| {
                    *settings = typed_over(set, settings, keeps_expiry);
                })
        };
        run_blocking(work).await?.map_err(key_stop)?;
        let page = KeyPage {
            done: Some("Saved."),
            ..key_page(&app, &form.user, &id)?
        };
        Ok(html(StatusCode::OK, &page))
    };
    form::respond(outcome.await, |fault| {
        Ok(KeyPage {
            fault: Some(fault),
            choices: KeyFormOptions::new(&app, &typed),
            ..key_page(&app, &form.user, &id)?
        })
    })
}

/// Creates a new key with the same name and settings. The old key works for the overlap, so that no
/// client is cut off.
async fn rotate(
    State(app): State<Arc<SidecarState>>,
    Path(id): Path<String>,
    mut form: SignedForm,
) -> Result<Response, PageError> {
    let old = find_own_key(&app, &form.user, &id)?;
    let request = key_request(&form)?;
    let outcome = async {
        let chosen = ROTATION_OVERLAPS
            .iter()
            .find(|(hours, _)| *hours == form.field("overlap_hours"));
        let hours = chosen
            .and_then(|(hours, _)| hours.parse::<i64>().ok())
            .ok_or_else(|| FormStop::invalid("Choose how long the old key keeps working."))?;
        if may_administer(&form.user.account) {
            require_recent_password(&app, &mut form).await?;
        }
        if hours == 0 && !form.is_confirmed() {
            let question = Confirmation {
                title: "Rotate this key at once?",
                consequence: format!(
                    "The gateway refuses {} from the next request on. Every client that uses it \
                     fails until it has the new key.",
                    old.shown
                ),
                button: "Rotate key",
                back: "/dashboard/keys",
            };
            return Ok(confirm::page("Keys", &form, question));
        }
        let (accounts, account) = (app.accounts.clone(), form.user.account.id.clone());
        let key = id.clone();
        let create = move || {
            let new =
                accounts
                    .api_keys()
                    .rotate_key(Some(&account), &key, hours * HOUR_MS, now_ms())?;
            // If the old key cannot be read, the new key must still be shown.
            let old = accounts.api_keys().key(Some(&account), &key).ok().flatten();
            let expires_at_ms = old.and_then(|(_, old)| old.settings.expires_at_ms);
            Ok(TicketedKey {
                new,
                old_until: expires_at_ms.map(Timestamp),
                client: String::new(),
            })
        };
        create_once(&app, request, create).await?.map_err(key_stop)
    };
    form::respond(outcome.await, |fault| {
        Ok(KeyPage {
            fault: Some(fault),
            ..key_page(&app, &form.user, &id)?
        })
    })
}
