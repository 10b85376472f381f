//! The account page: account data, sessions, password change, export and account deletion.
//!
//! An action that cannot be undone, or that would lock the account holder out, requires the
//! password. Must not know how it is stored.

use super::account::{ConfirmationError, confirm_password};
use super::blocking::run_blocking;
use super::browser;
use super::confirm::{self, Confirmation};
use super::display::Timestamp;
use super::error::PageError;
use super::export::export;
use super::hash_limiter::HashTrust;
use super::page::{Frame, html};
use super::session::{ClientIp, CurrentUser, SignedForm, session_cookie};
use super::state::SidecarState;
use crate::account::{
    AccountError, AccountStatus, Actor, CloseAccountOutcome, PASSWORD_LEAST_CHARS,
    PASSWORD_MOST_CHARS, SessionOrigin, SessionSummary, session_id,
};
use crate::clock::now_ms;
use askama::Template;
use axum::Router;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use serde::Deserialize;
use std::sync::Arc;

pub fn routes() -> Router<Arc<SidecarState>> {
    Router::new()
        .route("/dashboard/account", get(show))
        .route("/dashboard/account/export", get(export))
        .route("/dashboard/account/password", post(change_password))
        .route("/dashboard/account/sessions/{id}/end", post(end_session))
        .route("/dashboard/account/end-other-sessions", post(end_others))
        .route("/dashboard/account/delete", post(delete))
}

#[derive(Template)]
#[template(path = "account.html")]
struct ProfilePage {
    frame: Frame,
    csrf: String,
    id: String,
    email: String,
    status: &'static str,
    created: Timestamp,
    /// When the e-mail was verified, and whether the holder can ask for a mail that does it.
    verified: Option<Timestamp>,
    may_verify: bool,
    sessions: Vec<ProfileSessionRow>,
    has_others: bool,
    done: Option<&'static str>,
    /// The form with a fault, and the fault.
    fault: Option<(ProfileForm, String)>,
    min_chars: usize,
    max_chars: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ProfileForm {
    Password,
    Delete,
}

impl ProfilePage {
    fn password_fault(&self) -> Option<&str> {
        self.fault_of(ProfileForm::Password)
    }

    fn delete_fault(&self) -> Option<&str> {
        self.fault_of(ProfileForm::Delete)
    }

    fn fault_of(&self, form: ProfileForm) -> Option<&str> {
        self.fault
            .as_ref()
            .filter(|(of, _)| *of == form)
            .map(|(_, text)| text.as_str())
    }
}

struct ProfileSessionRow {
    id: String,
    created: Timestamp,
    used: Timestamp,
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
struct ProfileQuery {
    done: Option<String>,
}

/// Maps a known value from the URL to a message. Text from the URL is never shown.
fn done_message(done: Option<&str>) -> Option<&'static str> {
    match done? {
        "password" => Some("Your password was changed. All your other sessions have ended."),
        "session" => Some("The session has ended."),
        "mail" => Some("A mail with a link that confirms your e-mail is on its way."),
        "mail-limit" => Some(
            "You have asked for several mails in the last hour. Look for them, or try again later.",
        ),
        "others" => Some("All your other sessions have ended."),
        _ => None,
    }
}

fn row(session: SessionSummary, this: &str) -> ProfileSessionRow {
    let shown = |text: String| {
        if text.is_empty() {
            "unknown".to_owned()
        } else {
            text
        }
    };
    ProfileSessionRow {
        is_this: session.id == this,
        id: session.id,
        created: Timestamp(session.created_at_ms),
        used: Timestamp(session.used_at_ms),
        address: shown(session.address),
        browser: shown(session.browser),
    }
}

fn page(app: &SidecarState, user: &CurrentUser) -> Result<ProfilePage, PageError> {
    let this = session_id(&user.token);
    let account = &user.account;
    let verified = app.accounts.email_verified_at(&account.id)?;
    let sessions: Vec<_> = app
        .accounts
        .sessions(&account.id, now_ms())?
        .into_iter()
        .map(|session| row(session, &this))
        .collect();
    Ok(ProfilePage {
        frame: Frame::new("Account", user),
        csrf: user.csrf.clone(),
        id: account.id.clone(),
        email: account.email.clone(),
        status: account.status.name(),
        created: Timestamp(account.created_at_ms),
        verified: verified.map(Timestamp),
        may_verify: verified.is_none() && app.settings.load().mail.is_some(),
        has_others: sessions.len() > 1,
        sessions,
        done: None,
        fault: None,
        min_chars: PASSWORD_LEAST_CHARS,
        max_chars: PASSWORD_MOST_CHARS,
    })
}

async fn show(
    State(app): State<Arc<SidecarState>>,
    user: CurrentUser,
    query: Result<Query<ProfileQuery>, QueryRejection>,
) -> Result<Response, PageError> {
    let done = query
        .ok()
        .and_then(|Query(query)| done_message(query.done.as_deref()));
    Ok(html(
        StatusCode::OK,
        &ProfilePage {
            done,
            ..page(&app, &user)?
        },
    ))
}

async fn end_session(
    State(app): State<Arc<SidecarState>>,
    Path(id): Path<String>,
    form: SignedForm,
) -> Result<Response, PageError> {
    let own = app.accounts.sessions(&form.user.account.id, now_ms())?;
    let session = own.into_iter().find(|session| session.id == id);
    let session = row(session.ok_or(PageError::NotFound)?, "");
    if !form.is_confirmed() {
        let question = Confirmation {
            title: "End this session?",
            consequence: format!(
                "{} at {}, last seen {}, is signed out at once. To use the dashboard there again, \
                 somebody must sign in with the password.",
                session.browser,
                session.address,
                session.used.text()
            ),
            button: "End session",
            back: "/dashboard/account",
        };
        return Ok(confirm::page("Account", &form, question));
    }
    let (accounts, account) = (app.accounts.clone(), form.user.account.id);
    let ended = run_blocking(move || accounts.end_own_session(&account, &id)).await??;
    if ended {
        Ok(Redirect::to("/dashboard/account?done=session").into_response())
    } else {
        Err(PageError::NotFound)
    }
}

async fn end_others(
    State(app): State<Arc<SidecarState>>,
    form: SignedForm,
) -> Result<Response, PageError> {
    if !form.is_confirmed() {
        let question = Confirmation {
            title: "End all other sessions?",
            consequence:
                "Every browser but this one is signed out at once. To use the dashboard there \
                          again, somebody must sign in with the password."
                    .to_owned(),
            button: "End all other sessions",
            back: "/dashboard/account",
        };
        return Ok(confirm::page("Account", &form, question));
    }
    let (accounts, CurrentUser { account, token, .. }) = (app.accounts.clone(), form.user);
    run_blocking(move || accounts.end_other_sessions(&account.id, &token)).await??;
    Ok(Redirect::to("/dashboard/account?done=others").into_response())
}

fn render_with_fault(
    app: &SidecarState,
    user: &CurrentUser,
    form: ProfileForm,
    status: StatusCode,
    fault: &str,
) -> Result<Response, PageError> {
    Ok(html(
        status,
        &ProfilePage {
            fault: Some((form, fault.to_owned())),
            ..page(app, user)?
        },
    ))
}

/// Ends all sessions and starts a new one, so that anyone who knows the old password or has a
/// stolen cookie is signed out.
async fn change_password(
    State(app): State<Arc<SidecarState>>,
    ClientIp(address): ClientIp,
    headers: HeaderMap,
    form: SignedForm,
) -> Result<Response, PageError> {
    let (old, new) = (
        form.field("password").to_owned(),
        form.field("new_password").to_owned(),
    );
    let user = form.user;
    if let Err(ConfirmationError { status, fault }) =
        confirm_password(&app, &user, &old, address).await?
    {
        return render_with_fault(&app, &user, ProfileForm::Password, status, fault);
    }
    let (accounts, account) = (app.accounts.clone(), user.account.id.clone());
    match app
        .hashing
        .run(address, HashTrust::Known, move || {
            accounts.replace_password(&account, &new)
        })
        .await?
    {
        Ok(()) => {}
        Err(AccountError::BadPassword) => {
            let fault = format!(
                "A password must have {PASSWORD_LEAST_CHARS} to {PASSWORD_MOST_CHARS} characters and must not be a common password or your e-mail."
            );
            return render_with_fault(
                &app,
                &user,
                ProfileForm::Password,
                StatusCode::UNPROCESSABLE_ENTITY,
                &fault,
            );
        }
        Err(other) => return Err(other.into()),
    }
    let (accounts, account, site) = (app.accounts.clone(), user.account.id, user.site);
    let (address, browser) = (
        address.to_canonical().to_string(),
        browser::describe(&headers),
    );
    let origin = move || {
        accounts.create_session_from(
            &account,
            SessionOrigin {
                address: &address,
                browser: &browser,
            },
            now_ms(),
        )
    };
    let cookie = session_cookie(&run_blocking(origin).await??.token, &site)?;
    Ok((
        [(header::SET_COOKIE, cookie)],
        Redirect::to("/dashboard/account?done=password"),
    )
        .into_response())
}

/// Requires the password and the typed e-mail, so that nobody deletes an account by accident.
async fn delete(
    State(app): State<Arc<SidecarState>>,
    ClientIp(address): ClientIp,
    form: SignedForm,
) -> Result<Response, PageError> {
    let user = &form.user;
    if !form
        .field("confirmation")
        .trim()
        .eq_ignore_ascii_case(&user.account.email)
    {
        let fault = "This is not your e-mail. Type it exactly as shown above.";
        return render_with_fault(
            &app,
            user,
            ProfileForm::Delete,
            StatusCode::UNPROCESSABLE_ENTITY,
            fault,
        );
    }
    if let Err(ConfirmationError { status, fault }) =
        confirm_password(&app, user, form.field("password"), address).await?
    {
        return render_with_fault(&app, user, ProfileForm::Delete, status, fault);
    }
    if user.account.status == AccountStatus::Suspended {
        let fault = "A suspended account cannot be deleted. Ask the operator of this gateway.";
        return render_with_fault(&app, user, ProfileForm::Delete, StatusCode::CONFLICT, fault);
    }
    let by = Actor {
        actor: user.account.id.clone(),
        address: address.to_canonical().to_string(),
    };
    let accounts = app.accounts.clone();
    match run_blocking(move || accounts.delete(&by, now_ms())).await?? {
        CloseAccountOutcome::Done => {}
        CloseAccountOutcome::NoAccount => return Err(PageError::NotFound),
        CloseAccountOutcome::LastAdministrator => {
            let fault = "You are the only administrator who can sign in: without you, nobody could manage the accounts of this gateway. \
                         Create another administrator first, with `model-gateway account create --admin`.";
            return render_with_fault(&app, user, ProfileForm::Delete, StatusCode::CONFLICT, fault);
        }
    }
    let cookie = session_cookie("", &user.site)?;
    let page = html(
        StatusCode::OK,
        &FarewellPage {
            frame: Frame::public("Account deleted"),
        },
    );
    Ok(([(header::SET_COOKIE, cookie)], page).into_response())
}
