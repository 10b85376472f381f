//! The page on which a person answers the request of a program: the code, who asks, and which of
//! the person's accounts pays.
//!
//! A wrong code counts, by person and by address. This file must not give out a token.

use super::super::blocking::run_blocking;
use super::super::display::Timestamp;
use super::super::error::PageError;
use super::super::form::{self, FormFault, FormStop};
use super::super::page::{Frame, html};
use super::super::return_path;
use super::super::session::{CurrentUser, OptionalUser, SignedForm};
use super::super::state::SidecarState;
use super::super::throttle::{AttemptLimit, ThrottleKey};
use accounts::db::device_logins::DeviceRequest;
use accounts::{AccountError, AccountStatus, Actor, KeyHolder, MemberAction};
use askama::Template;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::Response;
use base::clock::now_ms;
use config::address::client_prefix;
use serde::Deserialize;
use std::sync::Arc;

/// Limit of wrong codes that a person, and an address, may enter.
const WRONG_CODES: AttemptLimit = AttemptLimit {
    count: 10,
    window_ms: 600_000,
};

const TAKEN: &str = "This code is not valid: it is wrong, it was answered, or it has expired. \
                     Compare it with the one in your terminal, or begin again there.";

#[derive(Template)]
#[template(path = "device.html")]
struct DevicePage {
    frame: Frame,
    csrf: String,
    is_signed_in: bool,
    /// The code that the form has at first.
    code: String,
    /// The request to answer; `None`: the page asks for its code.
    request: Option<RequestView>,
    /// What the person answered.
    answer: Option<&'static str>,
    fault: Option<FormFault>,
}

struct RequestView {
    client: String,
    address: String,
    asked: Timestamp,
    accounts: Vec<PayingAccount>,
}

/// An account that can pay for the program.
struct PayingAccount {
    id: String,
    name: String,
    is_chosen: bool,
}

#[derive(Deserialize, Default)]
pub struct CodeQuery {
    #[serde(default)]
    user_code: String,
}

fn page(user: Option<&CurrentUser>, code: &str) -> DevicePage {
    DevicePage {
        frame: Frame::for_anyone("Sign in a program", user),
        csrf: user.map_or_else(String::new, |user| user.csrf.clone()),
        is_signed_in: user.is_some(),
        code: code.chars().take(16).collect(),
        request: None,
        answer: None,
        fault: None,
    }
}

/// Shows the form of the code, filled in by the link from the terminal. It looks nothing up. Who is
/// signed out comes back here after the sign-in.
pub async fn show(
    State(app): State<Arc<SidecarState>>,
    OptionalUser(user): OptionalUser,
    headers: HeaderMap,
    uri: Uri,
    query: Result<Query<CodeQuery>, QueryRejection>,
) -> Result<Response, PageError> {
    let Query(query) = query.unwrap_or_default();
    let page = page(user.as_ref(), &query.user_code);
    let response = html(StatusCode::OK, &page);
    match page.is_signed_in {
        true => Ok(response),
        false => return_path::remember(&app, &headers, &uri, response),
    }
}

pub async fn answer(
    State(app): State<Arc<SidecarState>>,
    form: SignedForm,
) -> Result<Response, PageError> {
    let outcome = answer_request(&app, &form).await;
    form::respond(outcome, |fault| {
        Ok(DevicePage {
            fault: Some(fault),
            ..page(Some(&form.user), form.field("user_code"))
        })
    })
}

async fn answer_request(app: &SidecarState, form: &SignedForm) -> Result<Response, FormStop> {
    let (user, code) = (&form.user, form.field("user_code"));
    let request = find_request(app, form, code)?;
    let page = page(Some(user), &request.user_code);
    let page = match form.field("answer") {
        "approve" => {
            approve(app, form, &request).await?;
            let answer = Some("The program is signed in. Go back to your terminal.");
            DevicePage { answer, ..page }
        }
        "refuse" => {
            let (accounts, by) = (app.accounts.clone(), actor(form));
            let refuse = move || {
                let acting = accounts.with_actor(&by, now_ms());
                acting.refuse_login(&request.user_code)
            };
            check_answered(run_blocking(refuse).await??)?;
            let answer = Some("The program was refused.");
            DevicePage { answer, ..page }
        }
        _ => DevicePage {
            request: Some(RequestView {
                accounts: paying_accounts(app, user)?,
                client: request.client,
                address: request.address,
                asked: Timestamp(request.created_at_ms),
            }),
            ..page
        },
    };
    Ok(html(StatusCode::OK, &page))
}

/// Finds the request that a typed code is of. A code that is not found counts as a guess.
fn find_request(
    app: &SidecarState,
    form: &SignedForm,
    code: &str,
) -> Result<DeviceRequest, FormStop> {
    let now_ms = now_ms();
    let keys = [
        ThrottleKey::PersonGuessingLogins(form.user.person.id.clone()),
        ThrottleKey::AddressGuessingLogins(client_prefix(form.address)),
    ];
    for key in &keys {
        if let Err(seconds) = app.throttle.try_acquire(key, WRONG_CODES, now_ms) {
            let fault = format!("Too many wrong codes. Try again in {seconds} s.");
            return Err(FormStop::Fault(StatusCode::TOO_MANY_REQUESTS, fault.into()));
        }
    }
    let found = app.accounts.device_logins().open_request(code, now_ms)?;
    let request = found.ok_or_else(|| FormStop::invalid(FormFault::at("user_code", TAKEN)))?;
    for key in &keys {
        app.throttle.release(key, WRONG_CODES);
    }
    Ok(request)
}

async fn approve(
    app: &SidecarState,
    form: &SignedForm,
    request: &DeviceRequest,
) -> Result<(), FormStop> {
    let user = &form.user;
    let chosen = form.field("account");
    let offered = paying_accounts(app, user)?;
    let account = offered.into_iter().find(|account| account.id == chosen);
    let account = account.ok_or_else(|| FormStop::invalid("Choose an account from the list."))?;
    let is_active = app
        .accounts
        .find(&account.id)?
        .is_some_and(|found| found.status == AccountStatus::Active);
    if !is_active {
        let fault = "This account is suspended: its programs do not work.";
        return Err(FormStop::conflict(fault));
    }
    let (accounts, by, code) = (app.accounts.clone(), actor(form), request.user_code.clone());
    let person = user.person.id.clone();
    let approve = move || {
        let holder = KeyHolder {
            account: &account.id,
            member: (account.id != person).then_some(&person),
        };
        accounts
            .with_actor(&by, now_ms())
            .approve_login(&code, holder)
    };
    let approved = run_blocking(approve).await?;
    check_answered(approved.map_err(|error| match error {
        AccountError::TooManyKeys => FormStop::conflict(format!("{error}.")),
        other => other.into(),
    })?)
}

fn check_answered(is_answered: bool) -> Result<(), FormStop> {
    is_answered
        .then_some(())
        .ok_or_else(|| FormStop::conflict(FormFault::at("user_code", TAKEN)))
}

/// Returns the accounts that the person can make keys of, the one that the pages show first chosen.
fn paying_accounts(
    app: &SidecarState,
    user: &CurrentUser,
) -> Result<Vec<PayingAccount>, PageError> {
    let mut accounts = vec![PayingAccount {
        id: user.person.id.clone(),
        name: format!("My account ({})", user.person.email),
        is_chosen: user.account.id == user.person.id,
    }];
    if user.has_organisations {
        let memberships = app.accounts.organisations().memberships(&user.person.id)?;
        let memberships = memberships.into_iter();
        let may_use = memberships.filter(|of| of.role.may(MemberAction::UseKeys));
        accounts.extend(may_use.map(|of| PayingAccount {
            is_chosen: of.account == user.account.id,
            id: of.account,
            name: of.name,
        }));
    }
    Ok(accounts)
}

fn actor(form: &SignedForm) -> Actor {
    Actor {
        actor: form.user.person.id.clone(),
        address: form.address.to_canonical().to_string(),
    }
}
