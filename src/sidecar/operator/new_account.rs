//! Opens an account for somebody else. It has no password, so the page shows a link that sets one.
//!
//! This file must not show the link a second time. An administrator who lost the link creates a
//! reset link on the account's page.

use super::super::account::require_recent_password;
use super::super::authz::{Operator, OperatorForm, may_administer};
use super::super::blocking::run_blocking;
use super::super::display::Timestamp;
use super::super::error::PageError;
use super::super::form::{self, FormFault, FormStop, sentence};
use super::super::page::{Frame, html};
use super::super::session::CurrentUser;
use super::super::state::SidecarState;
use accounts::{
    Account, AccountError, Actor, LinkPurpose, NewAccount, NewOneTimeLink, Role, open_account_as,
};
use askama::Template;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use base::clock::now_ms;
use std::sync::Arc;

struct OpenedAccountView {
    id: String,
    email: String,
    setup_link: String,
    expires: Timestamp,
}

#[derive(Template)]
#[template(path = "operator_new_account.html")]
struct NewAccountPage {
    frame: Frame,
    csrf: String,
    asks_password: bool,
    opened: Option<OpenedAccountView>,
    fault: Option<FormFault>,
    email: String,
    role: Role,
    /// Credits of the trial; `None` if the config file defines no trial.
    trial_credits: Option<String>,
    trial: bool,
}

fn page(app: &SidecarState, user: &CurrentUser) -> NewAccountPage {
    let signup = app.settings.load().signup.clone();
    let has_trial = signup.trial_ms > 0 && signup.trial_credits.is_positive();
    NewAccountPage {
        frame: Frame::new("New account", user),
        csrf: user.csrf.clone(),
        asks_password: user.asks_password(),
        opened: None,
        fault: None,
        email: String::new(),
        role: Role::Member,
        trial_credits: has_trial.then(|| signup.trial_credits.to_string()),
        trial: true,
    }
}

pub async fn show(
    State(app): State<Arc<SidecarState>>,
    Operator { user, .. }: Operator,
) -> Result<Response, PageError> {
    if !may_administer(&user.person) {
        return Err(PageError::ViewerOnly);
    }
    Ok(html(StatusCode::OK, &page(&app, &user)))
}

pub async fn create(
    State(app): State<Arc<SidecarState>>,
    OperatorForm { mut form, by }: OperatorForm,
) -> Result<Response, PageError> {
    let email = form.field("email").trim().to_owned();
    let (role, trial) = (
        Role::parse(form.field("role")),
        form.field("trial") == "yes",
    );
    let outcome = async {
        let role = role.ok_or_else(|| {
            FormStop::invalid(FormFault::at("role", "Choose the role of the account."))
        })?;
        require_recent_password(&app, &mut form).await?;
        let (work, to) = (Arc::clone(&app), email.clone());
        let opened = run_blocking(move || open(&work, &to, role, trial, &by)).await?;
        let (account, link) = opened.map_err(|error| {
            let fault = FormFault::at("email", sentence(&error.to_string()));
            match error {
                AccountError::BadEmail => FormStop::invalid(fault),
                AccountError::EmailTaken => FormStop::conflict(fault),
                other => other.into(),
            }
        })?;
        let opened = OpenedAccountView {
            id: account.id,
            email: account.email,
            setup_link: link.url(&form.user.site),
            expires: Timestamp(link.expires_at_ms),
        };
        let page = NewAccountPage {
            opened: Some(opened),
            ..page(&app, &form.user)
        };
        Ok(html(StatusCode::CREATED, &page))
    };
    form::respond(outcome.await, |fault| {
        Ok(NewAccountPage {
            fault: Some(fault),
            email,
            role: role.unwrap_or(Role::Member),
            trial,
            ..page(&app, &form.user)
        })
    })
}

fn open(
    app: &SidecarState,
    email: &str,
    role: Role,
    trial: bool,
    by: &Actor,
) -> Result<(Account, NewOneTimeLink), AccountError> {
    let now_ms = now_ms();
    let new = NewAccount {
        role,
        ..NewAccount::new(email)
    };
    let new = if trial {
        new.with_trial(&app.settings.load().signup, now_ms)
    } else {
        new
    };
    let account = open_account_as(&app.accounts, app.billing.ledger(), &new, by, now_ms)?;
    let link = app
        .accounts
        .with_actor(by, now_ms)
        .create_one_time_link(&account.id, LinkPurpose::Setup)?;
    Ok((account, link))
}
