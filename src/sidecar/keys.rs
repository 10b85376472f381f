//! API keys: making one (shown once, with ready-to-paste set-up), listing, revoking after a confirmation.
//!
//! A key in the clear is in the answer to `create` alone, which is never stored by a cache.

use super::App;
use super::catalog::Snippets;
use super::page::{Frame, html, when};
use super::problem::Problem;
use super::session::{SignedForm, Visitor, blocking};
use crate::account::{AccountError, KEY_NAME_CHARS_MAX, Key, KeyStatus};
use crate::clock::now_ms;
use askama::Template;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use std::sync::Arc;

#[derive(Template)]
#[template(path = "keys.html")]
struct KeysPage {
    frame: Frame,
    csrf: String,
    keys: Vec<Row>,
    made: Option<Made>,
    fault: Option<String>,
    name: String,
    name_chars_max: usize,
}

struct Row {
    id: String,
    name: String,
    shown: String,
    status: &'static str,
    live: bool,
    created: String,
    revoked: Option<String>,
}

/// A key that has just been made.
struct Made {
    name: String,
    key: String,
    snippets: Snippets,
}

#[derive(Template)]
#[template(path = "revoke.html")]
struct RevokePage {
    frame: Frame,
    csrf: String,
    key: Row,
}

impl From<Key> for Row {
    fn from(key: Key) -> Self {
        Self {
            id: key.id,
            name: key.name,
            shown: key.shown,
            status: key.status.name(),
            live: key.status != KeyStatus::Revoked,
            created: when(key.created_at_ms),
            revoked: key.revoked_at_ms.map(when),
        }
    }
}

fn rows(app: &App, visitor: &Visitor) -> Result<Vec<Row>, Problem> {
    Ok(app.accounts.keys(&visitor.account.id)?.into_iter().map(Row::from).collect())
}

fn page(app: &App, visitor: &Visitor) -> Result<KeysPage, Problem> {
    Ok(KeysPage {
        frame: Frame::of("Keys", visitor),
        csrf: visitor.csrf.clone(),
        keys: rows(app, visitor)?,
        made: None,
        fault: None,
        name: String::new(),
        name_chars_max: KEY_NAME_CHARS_MAX,
    })
}

pub async fn list(State(app): State<Arc<App>>, visitor: Visitor) -> Result<Response, Problem> {
    Ok(html(StatusCode::OK, &page(&app, &visitor)?))
}

/// Answers with the page itself, not with a redirect to it: the key is nowhere to be read from again.
pub async fn create(State(app): State<Arc<App>>, form: SignedForm) -> Result<Response, Problem> {
    let name = form.field("name").to_owned();
    let visitor = form.visitor;
    let (accounts, account, wanted) = (app.accounts.clone(), visitor.account.id.clone(), name.clone());
    let made = blocking(move || accounts.create_key(&account, &wanted, now_ms())).await?;
    let mut page = page(&app, &visitor)?;
    let status = match made {
        Ok(new) => {
            let snippets = Snippets::new(&app.settings.load(), Some(&new.key));
            page.made = Some(Made { name: new.name, key: new.key, snippets });
            StatusCode::CREATED
        }
        Err(AccountError::BadKeyName) => {
            page.fault = Some(format!("A name has 1 to {KEY_NAME_CHARS_MAX} characters."));
            page.name = name;
            StatusCode::UNPROCESSABLE_ENTITY
        }
        Err(AccountError::TooManyKeys) => {
            page.fault = Some(format!("{}.", AccountError::TooManyKeys));
            page.name = name;
            StatusCode::CONFLICT
        }
        Err(other) => return Err(other.into()),
    };
    Ok(html(status, &page))
}

pub async fn confirm_revoke(
    State(app): State<Arc<App>>,
    visitor: Visitor,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    let key = rows(&app, &visitor)?.into_iter().find(|key| key.id == id && key.live).ok_or(Problem::NotFound)?;
    let page = RevokePage { frame: Frame::of("Keys", &visitor), csrf: visitor.csrf.clone(), key };
    Ok(html(StatusCode::OK, &page))
}

pub async fn revoke(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    form: SignedForm,
) -> Result<Response, Problem> {
    let (accounts, account) = (app.accounts.clone(), form.visitor.account.id);
    let revoked = blocking(move || accounts.revoke_key(Some(&account), &id, now_ms())).await??;
    if revoked { Ok(Redirect::to("/dashboard/keys").into_response()) } else { Err(Problem::NotFound) }
}
