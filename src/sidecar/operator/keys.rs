//! Creates, moves, disables, enables and revokes an account's keys, for administrators. Moving,
//! disabling and revoking change what a client may do, so they ask for a confirmation.
//!
//! This file must show no key except a new one, and must not change a key of another account.

use super::super::account::require_recent_password;
use super::super::authz::OperatorForm;
use super::super::blocking::run_blocking;
use super::super::confirm::{self, Confirmation};
use super::super::error::PageError;
use super::super::form::{self, FormFault, FormStop, sentence};
use super::super::page::html;
use super::super::session::SignedForm;
use super::super::state::SidecarState;
use super::account::{find, page};
use crate::shared_credit::wait_until_published;
use accounts::{Account, AccountError, Actor, ApiKey, ApiKeyStatus, KeySettings};
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use base::clock::now_ms;
use serde_json::json;
use std::sync::Arc;

/// Path parameters: the ids of an account and of a key.
type KeyPath = Path<(String, String)>;

#[derive(Clone, Copy)]
pub enum KeyStatusChange {
    Enable,
    Disable,
    Revoke,
}

/// Creates a key. The response is the page itself instead of a redirect, because the key cannot be
/// read again later.
pub async fn create(
    State(app): State<Arc<SidecarState>>,
    Path(id): Path<String>,
    OperatorForm { mut form, by }: OperatorForm,
) -> Result<Response, PageError> {
    let account = find(&app, &id)?;
    let name = form.field("name").trim().to_owned();
    let outcome = create_key(&app, &account, &name, &mut form, by).await;
    form::respond(outcome, |fault| {
        let mut page = page(&app, &form.user, account)?;
        page.new_key_fault = Some(fault);
        page.new_key_name = name;
        Ok(page)
    })
}

async fn create_key(
    app: &Arc<SidecarState>,
    account: &Account,
    name: &str,
    form: &mut SignedForm,
    by: Actor,
) -> Result<Response, FormStop> {
    require_recent_password(app, form).await?;
    let (accounts, id, name) = (app.accounts.clone(), account.id.clone(), name.to_owned());
    let created = run_blocking(move || {
        let at_ms = now_ms();
        let (settings, acting) = (KeySettings::default(), accounts.with_actor(&by, at_ms));
        let what = json!({"name": name, "settings": settings});
        let new = acting.record_then_run("key.create", &id, &what, || {
            let keys = accounts.api_keys();
            keys.create_key_with(&id, &name, &settings, at_ms)
        })?;
        wait_until_published(&accounts, &new.key_id);
        Ok::<_, AccountError>(new)
    });
    let new = created.await?.map_err(|error| match error {
        AccountError::Store(error) => FormStop::from(error),
        error @ AccountError::TooManyKeys => FormStop::conflict(sentence(&error.to_string())),
        error => FormStop::invalid(FormFault::at("name", sentence(&error.to_string()))),
    })?;
    let mut page = page(app, &form.user, account.clone())?;
    page.new_key = Some(new);
    Ok(html(StatusCode::CREATED, &page))
}

pub async fn change(
    State(app): State<Arc<SidecarState>>,
    Path((id, key_id)): KeyPath,
    OperatorForm { mut form, by }: OperatorForm,
    change: KeyStatusChange,
) -> Result<Response, PageError> {
    let account = find(&app, &id)?;
    let (_, key) = app
        .accounts
        .api_keys()
        .key(Some(&id), &key_id)?
        .filter(|(_, key)| key.status != ApiKeyStatus::Revoked)
        .ok_or(PageError::NotFound)?;
    if let Err(stop) = require_recent_password(&app, &mut form).await {
        return form::respond(Err(stop), |fault| {
            let mut page = page(&app, &form.user, account)?;
            page.key_fault = Some(fault);
            Ok(page)
        });
    }
    let back = format!("/dashboard/operator/accounts/{id}#keys");
    let (shown, label) = (&key.shown, account.label());
    let question = |title, consequence, button| Confirmation {
        title,
        consequence,
        button,
        back: &back,
    };
    let question = match change {
        KeyStatusChange::Enable => None,
        KeyStatusChange::Disable => Some(question(
            "Disable this key?",
            format!(
                "The gateway refuses {shown} of {label} from the next request on, until the \
                 account holder or an administrator enables it again. Running requests end normally."
            ),
            "Disable key",
        )),
        KeyStatusChange::Revoke => Some(question(
            "Revoke this key?",
            format!(
                "The gateway refuses {shown} of {label} from the next request on, for good. Running \
                 requests end normally."
            ),
            "Revoke key",
        )),
    };
    if let Some(question) = question.filter(|_| !form.is_confirmed()) {
        return Ok(confirm::page("Operator", &form, question));
    }
    let accounts = app.accounts.clone();
    let is_done = run_blocking(move || {
        let acting = accounts.with_actor(&by, now_ms());
        let is_done = match change {
            KeyStatusChange::Enable => acting.set_key_enabled(&key_id, true),
            KeyStatusChange::Disable => acting.set_key_enabled(&key_id, false),
            KeyStatusChange::Revoke => acting.revoke_key(&key_id),
        };
        wait_until_published(&accounts, &key_id);
        is_done
    });
    if is_done.await?? {
        Ok(Redirect::to(&back).into_response())
    } else {
        Err(PageError::NotFound)
    }
}

/// Moves a key to another account.
pub async fn move_to(
    State(app): State<Arc<SidecarState>>,
    Path((id, key_id)): KeyPath,
    OperatorForm { mut form, by }: OperatorForm,
) -> Result<Response, PageError> {
    let account = find(&app, &id)?;
    let (_, key) = (app.accounts.api_keys().key(Some(&id), &key_id)?).ok_or(PageError::NotFound)?;
    let outcome = move_key(&app, &account, &key, &mut form, by).await;
    form::respond(outcome, |fault| {
        let mut page = page(&app, &form.user, account)?;
        page.key_fault = Some(fault);
        page.move_to = form.field("to").to_owned();
        page.move_member = form.field("member").to_owned();
        Ok(page)
    })
}

async fn move_key(
    app: &Arc<SidecarState>,
    account: &Account,
    key: &ApiKey,
    form: &mut SignedForm,
    by: Actor,
) -> Result<Response, FormStop> {
    let named = |name: &'static str| -> Result<Option<Account>, FormStop> {
        let text = form.field(name).trim();
        if text.is_empty() {
            return Ok(None);
        }
        let found = app.accounts.find(text)?;
        let fault = || FormFault::at(name, format!("No account has the id or e-mail {text}."));
        found.map(Some).ok_or_else(|| FormStop::invalid(fault()))
    };
    let to = named("to")?.ok_or_else(|| {
        let fault = "Enter the id or e-mail of the account that gets the key.";
        FormStop::invalid(FormFault::at("to", fault))
    })?;
    let member = named("member")?;
    require_recent_password(app, form).await?;
    if !form.is_confirmed() {
        let consequence = format!(
            "Its client keeps {}. From the next request on, the balance and the rules of {} decide, \
             in place of those of {}. What the key has spent stays here, and its spend limit starts \
             anew. Running requests end normally and are billed here.",
            key.shown,
            to.label(),
            account.label()
        );
        let back = format!("/dashboard/operator/accounts/{}#keys", account.id);
        let question = Confirmation {
            title: "Move this key?",
            consequence,
            button: "Move key",
            back: &back,
        };
        return Ok(confirm::page("Operator", form, question));
    }
    let path = format!("/dashboard/operator/accounts/{}#keys", to.id);
    let (accounts, key_id) = (app.accounts.clone(), key.id.clone());
    let moved = run_blocking(move || {
        let member = member.as_ref().map(|member| member.id.as_str());
        let new_id = accounts
            .with_actor(&by, now_ms())
            .move_key(&key_id, &to.id, member)?;
        wait_until_published(&accounts, &new_id);
        Ok::<_, AccountError>(())
    });
    match moved.await? {
        Ok(()) => Ok(Redirect::to(&path).into_response()),
        Err(AccountError::Store(error)) => Err(error.into()),
        Err(error) => Err(FormStop::conflict(format!("Cannot move the key: {error}."))),
    }
}
