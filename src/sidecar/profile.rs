//! Serves the account page with account data, sessions, password change, export and account
//! deletion.
//!
//! An action that cannot be undone, or that would lock the account holder out, requires the
//! password. This file must not depend on the storage of accounts.

use super::account::require_password;
use super::blocking::run_blocking;
use super::browser;
use super::confirm::{self, Confirmation};
use super::display::Timestamp;
use super::error::PageError;
use super::export::export;
use super::form::{self, FormFault, FormStop};
use super::hash_limiter::HashTrust;
use super::page::{Frame, html};
use super::session::{CurrentUser, SignedForm, session_cookie};
use super::state::SidecarState;
use accounts::{
    AccountError, AccountStatus, Actor, CloseAccountOutcome, PASSWORD_LEAST_CHARS,
    PASSWORD_MOST_CHARS, SessionOrigin, SessionSummary, UnlinkOutcome, session_id,
};
use askama::Template;
use axum::Router;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use base::clock::now_ms;
use serde::Deserialize;
use std::sync::Arc;

pub fn routes() -> Router<Arc<SidecarState>> {
    Router::new()
        .route("/dashboard/account", get(show))
        .route("/dashboard/account/export", get(export))
        .route("/dashboard/account/password", post(change_password))
        .route("/dashboard/account/sessions/{id}/end", post(end_session))
        .route("/dashboard/account/end-other-sessions", post(end_others))
        .route("/dashboard/account/identities/{id}/unlink", post(unlink))
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
    /// Time at which the e-mail was verified. The next field is true if the holder can request a
    /// verification mail.
    verified: Option<Timestamp>,
    may_verify: bool,
    sessions: Vec<ProfileSessionRow>,
    has_others: bool,
    identities: Vec<LinkedIdentityView>,
    has_password: bool,
    done: Option<&'static str>,
    /// The submitted form and its fault, if the form was refused.
    fault: Option<(ProfileForm, FormFault)>,
    min_chars: usize,
    max_chars: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ProfileForm {
    Password,
    Identity,
    Delete,
}

impl ProfilePage {
    fn password_fault(&self) -> Option<&FormFault> {
        self.fault_of(ProfileForm::Password)
    }

    fn identity_fault(&self) -> Option<&FormFault> {
        self.fault_of(ProfileForm::Identity)
    }

    fn delete_fault(&self) -> Option<&FormFault> {
        self.fault_of(ProfileForm::Delete)
    }

    fn fault_of(&self, form: ProfileForm) -> Option<&FormFault> {
        self.fault
            .as_ref()
            .filter(|(of, _)| *of == form)
            .map(|(_, fault)| fault)
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

/// A provider by which the holder signs in.
struct LinkedIdentityView {
    id: String,
    name: String,
    email: String,
    linked: Timestamp,
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

/// Maps a known value from the URL to a message, so that text from the URL is never shown.
fn done_message(done: Option<&str>) -> Option<&'static str> {
    match done? {
        "password" => Some("Your password was changed. All your other sessions have ended."),
        "session" => Some("The session has ended."),
        "mail" => Some("A mail with a link that confirms your e-mail is on its way."),
        "mail-limit" => Some(
            "You have asked for several mails in the last hour. Look for them, or try again later.",
        ),
        "unlinked" => Some("The provider is unlinked: you cannot sign in with it any more."),
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
    let account = &user.person;
    let verified = app
        .accounts
        .one_time_links()
        .email_verified_at(&account.id)?;
    let sessions: Vec<_> = app
        .accounts
        .logins()
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
        identities: linked_identities(app, &account.id)?,
        has_password: user.has_password,
        sessions,
        done: None,
        fault: None,
        min_chars: PASSWORD_LEAST_CHARS,
        max_chars: PASSWORD_MOST_CHARS,
    })
}

fn linked_identities(
    app: &SidecarState,
    account: &str,
) -> Result<Vec<LinkedIdentityView>, PageError> {
    let settings = app.settings.load();
    let identities = app.accounts.identities().list(account)?.into_iter();
    let views = identities.map(|identity| LinkedIdentityView {
        id: identity.id,
        name: (settings.sign_in.provider(&identity.provider))
            .map_or(identity.provider, |provider| provider.name.clone()),
        email: identity.email,
        linked: Timestamp(identity.linked_at_ms),
    });
    Ok(views.collect())
}

async fn unlink(
    State(app): State<Arc<SidecarState>>,
    Path(id): Path<String>,
    form: SignedForm,
) -> Result<Response, PageError> {
    if !form.is_confirmed() {
        let mut own = linked_identities(&app, &form.user.person.id)?.into_iter();
        let identity = own.find(|identity| identity.id == id);
        let name = identity.ok_or(PageError::NotFound)?.name;
        let question = Confirmation {
            title: "Unlink this provider?",
            consequence: format!("You cannot sign in with {name} any more."),
            button: "Unlink",
            back: "/dashboard/account",
        };
        return Ok(confirm::page("Account", &form, question));
    }
    form::respond(unlink_identity(&app, &form, &id).await, |fault| {
        page_with_fault(&app, &form.user, ProfileForm::Identity, fault)
    })
}

async fn unlink_identity(
    app: &SidecarState,
    form: &SignedForm,
    id: &str,
) -> Result<Response, FormStop> {
    let by = Actor {
        actor: form.user.person.id.clone(),
        address: form.address.to_canonical().to_string(),
    };
    let (accounts, id) = (app.accounts.clone(), id.to_owned());
    let password_counts = app.settings.load().sign_in.password;
    let unlink = move || {
        let identities = accounts.identities();
        identities.unlink(&by, &id, password_counts, now_ms())
    };
    match run_blocking(unlink).await?? {
        UnlinkOutcome::Done => Ok(Redirect::to("/dashboard/account?done=unlinked").into_response()),
        UnlinkOutcome::NotFound => Err(PageError::NotFound.into()),
        UnlinkOutcome::LastWayIn => Err(FormStop::conflict(
            "This is your only way to sign in, so it stays linked. Ask the operator of this \
             gateway for a link that sets a password first.",
        )),
    }
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
    let own = app
        .accounts
        .logins()
        .sessions(&form.user.person.id, now_ms())?;
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
    let (accounts, account) = (app.accounts.clone(), form.user.person.id);
    let ended = run_blocking(move || accounts.logins().end_own_session(&account, &id)).await??;
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
    let (accounts, CurrentUser { person, token, .. }) = (app.accounts.clone(), form.user);
    run_blocking(move || accounts.logins().end_other_sessions(&person.id, &token)).await??;
    Ok(Redirect::to("/dashboard/account?done=others").into_response())
}

fn page_with_fault(
    app: &SidecarState,
    user: &CurrentUser,
    form: ProfileForm,
    fault: FormFault,
) -> Result<ProfilePage, PageError> {
    Ok(ProfilePage {
        fault: Some((form, fault)),
        ..page(app, user)?
    })
}

async fn change_password(
    State(app): State<Arc<SidecarState>>,
    headers: HeaderMap,
    form: SignedForm,
) -> Result<Response, PageError> {
    form::respond(replace_password(&app, &headers, &form).await, |fault| {
        page_with_fault(&app, &form.user, ProfileForm::Password, fault)
    })
}

/// Ends all sessions and starts a new one, so that anyone with the old password or a stolen cookie
/// is signed out.
async fn replace_password(
    app: &SidecarState,
    headers: &HeaderMap,
    form: &SignedForm,
) -> Result<Response, FormStop> {
    if !form.user.has_password {
        let fault = "This account has no password to change.";
        return Err(FormStop::Fault(StatusCode::FORBIDDEN, fault.into()));
    }
    require_password(app, form).await?;
    let (accounts, account) = (app.accounts.clone(), form.user.person.id.clone());
    let new = form.field("new_password").to_owned();
    let replace = move || accounts.logins().replace_password(&account, &new);
    let replaced = app.hashing.run(form.address, HashTrust::Known, replace);
    replaced.await?.map_err(|error| match error {
        AccountError::BadPassword => FormStop::invalid(FormFault::at(
            "new_password",
            format!(
                "A password must have {PASSWORD_LEAST_CHARS} to {PASSWORD_MOST_CHARS} characters \
                 and must not be a common password or your e-mail."
            ),
        )),
        other => other.into(),
    })?;
    let (accounts, account) = (app.accounts.clone(), form.user.person.id.clone());
    let address = form.address.to_canonical().to_string();
    let browser = browser::describe(headers);
    let create = move || {
        let origin = SessionOrigin {
            address: &address,
            browser: &browser,
        };
        accounts
            .logins()
            .create_session_from(&account, origin, now_ms())
    };
    let cookie = session_cookie(&run_blocking(create).await??.token, &form.user.site)?;
    let to = Redirect::to("/dashboard/account?done=password");
    Ok(([(header::SET_COOKIE, cookie)], to).into_response())
}

async fn delete(
    State(app): State<Arc<SidecarState>>,
    form: SignedForm,
) -> Result<Response, PageError> {
    form::respond(delete_account(&app, &form).await, |fault| {
        page_with_fault(&app, &form.user, ProfileForm::Delete, fault)
    })
}

/// Requires the password and the typed e-mail, so that nobody deletes an account by accident.
async fn delete_account(app: &SidecarState, form: &SignedForm) -> Result<Response, FormStop> {
    let account = &form.user.person;
    let typed = form.field("confirmation").trim();
    if !typed.eq_ignore_ascii_case(&account.email) {
        let fault = "This is not your e-mail. Type it exactly as shown above.";
        return Err(FormStop::invalid(FormFault::at("confirmation", fault)));
    }
    require_password(app, form).await?;
    if account.status == AccountStatus::Suspended {
        let fault = "A suspended account cannot be deleted. Ask the operator of this gateway.";
        return Err(FormStop::conflict(fault));
    }
    let by = Actor {
        actor: account.id.clone(),
        address: form.address.to_canonical().to_string(),
    };
    let accounts = app.accounts.clone();
    match run_blocking(move || accounts.delete(&by, now_ms())).await?? {
        CloseAccountOutcome::Done => {}
        CloseAccountOutcome::NoAccount => return Err(PageError::NotFound.into()),
        CloseAccountOutcome::LastOwner => {
            return Err(FormStop::conflict(
                "You are the only owner of an organisation. Make another member of it an owner \
                 first, or ask the operator of this gateway to delete it.",
            ));
        }
        CloseAccountOutcome::LastAdministrator => {
            return Err(FormStop::conflict(
                "You are the only administrator who can sign in: without you, nobody could manage \
                 the accounts of this gateway. Create another administrator first, with \
                 `model-gateway account create --admin`.",
            ));
        }
    }
    let cookie = session_cookie("", &form.user.site)?;
    let farewell = FarewellPage {
        frame: Frame::public("Account deleted"),
    };
    let page = html(StatusCode::OK, &farewell);
    Ok(([(header::SET_COOKIE, cookie)], page).into_response())
}
