//! The account page: account data, sessions, password change, export and account deletion.
//!
//! An action that cannot be undone, or that would lock the account holder out, requires the
//! password. Must not know how it is stored.

use super::App;
use super::account::{Unconfirmed, confirm};
use super::browser;
use super::page::{Frame, html, when};
use super::problem::Problem;
use super::session::{CallerAddress, SignedForm, Visitor, blocking, session_cookie};
use crate::account::{
    AccountError, By, Closed, Origin, OwnSession, PASSWORD_LEAST_CHARS, PASSWORD_MOST_CHARS,
    Status, session_id,
};
use crate::clock::now_ms;
use askama::Template;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use serde::Deserialize;
use std::sync::Arc;

#[derive(Template)]
#[template(path = "account.html")]
struct AccountPage {
    frame: Frame,
    csrf: String,
    id: String,
    email: String,
    status: &'static str,
    created: String,
    sessions: Vec<Row>,
    has_others: bool,
    done: Option<&'static str>,
    /// The form with a fault, and the fault.
    fault: Option<(Form, String)>,
    least: usize,
    most: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Password,
    Delete,
}

impl AccountPage {
    fn password_fault(&self) -> Option<&str> {
        self.fault_of(Form::Password)
    }

    fn delete_fault(&self) -> Option<&str> {
        self.fault_of(Form::Delete)
    }

    fn fault_of(&self, form: Form) -> Option<&str> {
        self.fault
            .as_ref()
            .filter(|(of, _)| *of == form)
            .map(|(_, text)| text.as_str())
    }
}

struct Row {
    id: String,
    created: String,
    used: String,
    address: String,
    browser: String,
    is_this: bool,
}

#[derive(Template)]
#[template(path = "farewell.html")]
struct FarewellPage {
    frame: Frame,
}

#[derive(Deserialize)]
pub struct Said {
    done: Option<String>,
}

/// Maps a known value from the URL to a message. Text from the URL is never shown.
fn done(said: Option<&str>) -> Option<&'static str> {
    match said? {
        "password" => Some("Your password is changed. Every other session has ended."),
        "session" => Some("The session has ended."),
        "others" => Some("Every other session has ended."),
        _ => None,
    }
}

fn row(session: OwnSession, this: &str) -> Row {
    let shown = |text: String| {
        if text.is_empty() {
            "unknown".to_owned()
        } else {
            text
        }
    };
    Row {
        is_this: session.id == this,
        id: session.id,
        created: when(session.created_at_ms),
        used: when(session.used_at_ms),
        address: shown(session.address),
        browser: shown(session.browser),
    }
}

fn page(app: &App, visitor: &Visitor) -> Result<AccountPage, Problem> {
    let this = session_id(&visitor.token);
    let account = &visitor.account;
    let sessions: Vec<_> = app
        .accounts
        .sessions(&account.id, now_ms())?
        .into_iter()
        .map(|session| row(session, &this))
        .collect();
    Ok(AccountPage {
        frame: Frame::of("Account", visitor),
        csrf: visitor.csrf.clone(),
        id: account.id.clone(),
        email: account.email.clone(),
        status: account.status.name(),
        created: when(account.created_at_ms),
        has_others: sessions.len() > 1,
        sessions,
        done: None,
        fault: None,
        least: PASSWORD_LEAST_CHARS,
        most: PASSWORD_MOST_CHARS,
    })
}

pub async fn show(
    State(app): State<Arc<App>>,
    visitor: Visitor,
    said: Result<Query<Said>, QueryRejection>,
) -> Result<Response, Problem> {
    let done = said.ok().and_then(|Query(said)| done(said.done.as_deref()));
    Ok(html(
        StatusCode::OK,
        &AccountPage {
            done,
            ..page(&app, &visitor)?
        },
    ))
}

pub async fn end_session(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    form: SignedForm,
) -> Result<Response, Problem> {
    let (accounts, account) = (app.accounts.clone(), form.visitor.account.id);
    let ended = blocking(move || accounts.end_own_session(&account, &id)).await??;
    if ended {
        Ok(Redirect::to("/dashboard/account?done=session").into_response())
    } else {
        Err(Problem::NotFound)
    }
}

pub async fn end_others(
    State(app): State<Arc<App>>,
    form: SignedForm,
) -> Result<Response, Problem> {
    let (accounts, Visitor { account, token, .. }) = (app.accounts.clone(), form.visitor);
    blocking(move || accounts.end_other_sessions(&account.id, &token)).await??;
    Ok(Redirect::to("/dashboard/account?done=others").into_response())
}

fn faulty(
    app: &App,
    visitor: &Visitor,
    form: Form,
    status: StatusCode,
    fault: &str,
) -> Result<Response, Problem> {
    Ok(html(
        status,
        &AccountPage {
            fault: Some((form, fault.to_owned())),
            ..page(app, visitor)?
        },
    ))
}

/// Ends all sessions and starts a new one, so that anyone who knows the old password or has a
/// stolen cookie is signed out.
pub async fn change_password(
    State(app): State<Arc<App>>,
    CallerAddress(address): CallerAddress,
    headers: HeaderMap,
    form: SignedForm,
) -> Result<Response, Problem> {
    let (old, new) = (
        form.field("password").to_owned(),
        form.field("new_password").to_owned(),
    );
    let visitor = form.visitor;
    if let Err(Unconfirmed { status, fault }) = confirm(&app, &visitor, &old, address).await? {
        return faulty(&app, &visitor, Form::Password, status, fault);
    }
    let (accounts, account) = (app.accounts.clone(), visitor.account.id.clone());
    match app
        .hashing
        .run(move || accounts.replace_password(&account, &new))
        .await?
    {
        Ok(()) => {}
        Err(AccountError::BadPassword) => {
            let fault = format!(
                "A password has {PASSWORD_LEAST_CHARS} to {PASSWORD_MOST_CHARS} characters, and is none that everybody uses."
            );
            return faulty(
                &app,
                &visitor,
                Form::Password,
                StatusCode::UNPROCESSABLE_ENTITY,
                &fault,
            );
        }
        Err(other) => return Err(other.into()),
    }
    let (accounts, account, site) = (app.accounts.clone(), visitor.account.id, visitor.site);
    let (address, browser) = (address.to_canonical().to_string(), browser::name(&headers));
    let origin = move || {
        accounts.create_session_from(
            &account,
            Origin {
                address: &address,
                browser: &browser,
            },
            now_ms(),
        )
    };
    let cookie = session_cookie(&blocking(origin).await??.token, &site)?;
    Ok((
        [(header::SET_COOKIE, cookie)],
        Redirect::to("/dashboard/account?done=password"),
    )
        .into_response())
}

/// Requires the password and the typed e-mail, so that nobody deletes an account by accident.
pub async fn delete(
    State(app): State<Arc<App>>,
    CallerAddress(address): CallerAddress,
    form: SignedForm,
) -> Result<Response, Problem> {
    let visitor = &form.visitor;
    if !form
        .field("confirmation")
        .trim()
        .eq_ignore_ascii_case(&visitor.account.email)
    {
        let fault = "Type your e-mail as it stands above.";
        return faulty(
            &app,
            visitor,
            Form::Delete,
            StatusCode::UNPROCESSABLE_ENTITY,
            fault,
        );
    }
    if let Err(Unconfirmed { status, fault }) =
        confirm(&app, visitor, form.field("password"), address).await?
    {
        return faulty(&app, visitor, Form::Delete, status, fault);
    }
    if visitor.account.status == Status::Suspended {
        let fault = "A suspended account cannot be deleted: it could come back with another trial.";
        return faulty(&app, visitor, Form::Delete, StatusCode::CONFLICT, fault);
    }
    let by = By {
        actor: visitor.account.id.clone(),
        address: address.to_canonical().to_string(),
    };
    let accounts = app.accounts.clone();
    match blocking(move || accounts.delete(&by, now_ms())).await?? {
        Closed::Done => {}
        Closed::NoAccount => return Err(Problem::NotFound),
        Closed::LastAdministrator => {
            let fault = "You are the only administrator who can sign in: nobody could run this gateway's accounts without \
                         you. Make another one first, with `model-gateway account create --admin`.";
            return faulty(&app, visitor, Form::Delete, StatusCode::CONFLICT, fault);
        }
    }
    let cookie = session_cookie("", &visitor.site)?;
    let page = html(
        StatusCode::OK,
        &FarewellPage {
            frame: Frame::public("Account deleted"),
        },
    );
    Ok(([(header::SET_COOKIE, cookie)], page).into_response())
}
