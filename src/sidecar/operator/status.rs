//! Suspends and resumes an account. Suspending stops a client, so it asks for a confirmation.
//!
//! This file must not suspend the acting administrator, or the last one.

use super::super::account::require_recent_password;
use super::super::authz::OperatorForm;
use super::super::blocking::run_blocking;
use super::super::error::PageError;
use super::super::form;
use super::super::state::SidecarState;
use super::account::{ask, find, page};
use accounts::{AccountStatus, CloseAccountOutcome};
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Redirect, Response};
use base::clock::now_ms;
use std::sync::Arc;

pub async fn set_status(
    State(app): State<Arc<SidecarState>>,
    Path(id): Path<String>,
    OperatorForm { mut form, by }: OperatorForm,
    status: AccountStatus,
) -> Result<Response, PageError> {
    let found = find(&app, &id)?;
    if status == AccountStatus::Suspended && found.id == by.actor {
        return Err(PageError::OwnAccount);
    }
    if let Err(stop) = require_recent_password(&app, &mut form).await {
        return form::respond(Err(stop), |fault| {
            let mut page = page(&app, &form.user, found)?;
            page.status_fault = Some(fault);
            Ok(page)
        });
    }
    if status == AccountStatus::Suspended && !form.is_confirmed() {
        let consequence = format!(
            "The gateway refuses all keys of {} from the next request on, until you resume the \
             account. Running requests end normally.",
            found.label()
        );
        let (title, button) = ("Suspend this account?", "Suspend account");
        return Ok(ask(&form, &id, title, consequence, button));
    }
    let account = found.id;
    let (accounts, of) = (app.accounts.clone(), account.clone());
    match run_blocking(move || {
        accounts
            .with_actor(&by, now_ms())
            .set_status_remotely(&of, status)
    })
    .await??
    {
        CloseAccountOutcome::Done => {}
        CloseAccountOutcome::NoAccount => return Err(PageError::NotFound),
        CloseAccountOutcome::LastAdministrator | CloseAccountOutcome::LastOwner => {
            return Err(PageError::OwnAccount);
        }
    }
    Ok(Redirect::to(&format!("/dashboard/operator/accounts/{account}")).into_response())
}
