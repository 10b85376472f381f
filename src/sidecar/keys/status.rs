//! Disables, enables and revokes keys. Disabling and revoking stop clients, so they ask first.
//!
//! This file must not show a key.

use super::super::blocking::run_blocking;
use super::super::confirm::{self, Confirmation};
use super::super::error::PageError;
use super::super::page::{Frame, html};
use super::super::session::{CurrentUser, SignedForm};
use super::super::state::SidecarState;
use super::row::{KeyListRow, find_live_key, row};
use crate::shared_credit::wait_until_published;
use askama::Template;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use base::clock::now_ms;
use ledger::StoreError;
use std::sync::Arc;

#[derive(Template)]
#[template(path = "revoke.html")]
struct RevokePage {
    frame: Frame,
    csrf: String,
    key: KeyListRow,
}

pub async fn enable(
    app: State<Arc<SidecarState>>,
    id: Path<String>,
    form: SignedForm,
) -> Result<Response, PageError> {
    set_enabled(app, id, form, true).await
}

pub async fn disable(
    State(app): State<Arc<SidecarState>>,
    Path(id): Path<String>,
    form: SignedForm,
) -> Result<Response, PageError> {
    if form.is_confirmed() {
        return set_enabled(State(app), Path(id), form, false).await;
    }
    let key = find_live_key(&app, &form.user, &id)?;
    let question = Confirmation {
        title: "Disable this key?",
        consequence: format!(
            "The gateway refuses {} from the next request on, until you enable the key again. \
             Running requests end normally.",
            key.shown
        ),
        button: "Disable key",
        back: "/dashboard/keys",
    };
    Ok(confirm::page("Keys", &form, question))
}

async fn set_enabled(
    State(app): State<Arc<SidecarState>>,
    Path(id): Path<String>,
    form: SignedForm,
    enabled: bool,
) -> Result<Response, PageError> {
    find_live_key(&app, &form.user, &id)?;
    let (accounts, account, key) = (app.accounts.clone(), form.user.account.id, id.clone());
    let set = move || {
        let is_set = accounts
            .api_keys()
            .set_own_key_enabled(&account, &key, enabled)?;
        wait_until_published(&accounts, &key);
        Ok::<_, StoreError>(is_set)
    };
    if run_blocking(set).await?? {
        Ok(Redirect::to(&format!("/dashboard/keys/{id}")).into_response())
    } else {
        Err(PageError::NotFound)
    }
}

pub async fn confirm_revoke(
    State(app): State<Arc<SidecarState>>,
    user: CurrentUser,
    Path(id): Path<String>,
) -> Result<Response, PageError> {
    revoke_page(&app, &user, &id)
}

fn revoke_page(app: &SidecarState, user: &CurrentUser, id: &str) -> Result<Response, PageError> {
    let key = row(app, user, find_live_key(app, user, id)?)?;
    let page = RevokePage {
        frame: Frame::new("Keys", user),
        csrf: user.csrf.clone(),
        key,
    };
    Ok(html(StatusCode::OK, &page))
}

pub async fn revoke(
    State(app): State<Arc<SidecarState>>,
    Path(id): Path<String>,
    form: SignedForm,
) -> Result<Response, PageError> {
    if !form.is_confirmed() {
        return revoke_page(&app, &form.user, &id);
    }
    find_live_key(&app, &form.user, &id)?;
    let (accounts, account, key) = (app.accounts.clone(), form.user.account.id, id.clone());
    let revoke = move || {
        let is_revoked = accounts
            .api_keys()
            .revoke_key(Some(&account), &key, now_ms())?;
        wait_until_published(&accounts, &key);
        Ok::<_, StoreError>(is_revoked)
    };
    if run_blocking(revoke).await?? {
        // The list of keys omits revoked ones; a search for this key shows what became of it.
        Ok(Redirect::to(&format!("/dashboard/keys?key_q={id}#keys")).into_response())
    } else {
        Err(PageError::NotFound)
    }
}
