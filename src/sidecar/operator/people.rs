//! Changes the role of an account, and deletes an account. Both actions ask for a confirmation.
//!
//! This file must not take the rights of the last administrator who can sign in, and must not
//! delete the account of the acting administrator, for which the account page exists.

use super::super::account::require_recent_password;
use super::super::authz::OperatorForm;
use super::super::blocking::run_blocking;
use super::super::error::PageError;
use super::super::form::{self, FormFault, FormStop};
use super::super::session::SignedForm;
use super::super::state::SidecarState;
use super::account::{ask, find, page, role_choices};
use accounts::{Account, Actor, CloseAccountOutcome, Role};
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Redirect, Response};
use base::clock::now_ms;
use std::sync::Arc;

const LAST_ADMINISTRATOR: &str = "This is the only administrator who can sign in. Make another \
                                  account an administrator first.";

pub async fn set_role(
    State(app): State<Arc<SidecarState>>,
    Path(id): Path<String>,
    OperatorForm { mut form, by }: OperatorForm,
) -> Result<Response, PageError> {
    let account = find(&app, &id)?;
    let outcome = change_role(&app, &account, &mut form, by).await;
    form::respond(outcome, |fault| {
        let mut page = page(&app, &form.user, account)?;
        page.role_fault = Some(fault);
        if let Some(role) = Role::parse(form.field("role")) {
            page.roles = role_choices(role);
        }
        Ok(page)
    })
}

async fn change_role(
    app: &Arc<SidecarState>,
    account: &Account,
    form: &mut SignedForm,
    by: Actor,
) -> Result<Response, FormStop> {
    let role = Role::parse(form.field("role"))
        .ok_or_else(|| FormStop::invalid(FormFault::at("role", "Choose a role of the list.")))?;
    let path = format!("/dashboard/operator/accounts/{}", account.id);
    if role == account.role {
        return Ok(Redirect::to(&path).into_response());
    }
    require_recent_password(app, form).await?;
    if !form.is_confirmed() {
        let email = &account.email;
        let rights = match role {
            Role::Member => "loses access to the operator pages",
            Role::Viewer => {
                "can read all operator pages, with the receipts of every account, and change nothing"
            }
            Role::Admin => {
                "can change every account, its credits and its role, also yours, and use the admin API"
            }
        };
        let consequence = if account.id == by.actor {
            format!(
                "This is your own account, {email}. It {rights}, from your next page on. Only \
                 another administrator can undo this."
            )
        } else {
            format!("{email} {rights}, from the next page on.")
        };
        let (title, button) = ("Change this role?", "Change role");
        return Ok(ask(form, &account.id, title, consequence, button));
    }
    let (accounts, id) = (app.accounts.clone(), account.id.clone());
    let changed = run_blocking(move || accounts.with_actor(&by, now_ms()).set_role(&id, role));
    match changed.await?? {
        CloseAccountOutcome::Done => Ok(Redirect::to(&path).into_response()),
        CloseAccountOutcome::NoAccount => Err(PageError::NotFound.into()),
        CloseAccountOutcome::LastAdministrator | CloseAccountOutcome::LastOwner => Err(
            FormStop::conflict(FormFault::at("role", LAST_ADMINISTRATOR)),
        ),
    }
}

pub async fn delete(
    State(app): State<Arc<SidecarState>>,
    Path(id): Path<String>,
    OperatorForm { mut form, by }: OperatorForm,
) -> Result<Response, PageError> {
    let account = find(&app, &id)?;
    let outcome = delete_account(&app, &account, &mut form, by).await;
    form::respond(outcome, |fault| {
        let mut page = page(&app, &form.user, account)?;
        page.delete_fault = Some(fault);
        page.confirmation = form.field("confirmation").to_owned();
        Ok(page)
    })
}

/// Deletes an account. The form must repeat its e-mail or, for an organisation, its name.
async fn delete_account(
    app: &Arc<SidecarState>,
    account: &Account,
    form: &mut SignedForm,
    by: Actor,
) -> Result<Response, FormStop> {
    if account.id == by.actor {
        return Err(FormStop::conflict(
            "This is your own account. Delete it on your account page.",
        ));
    }
    let typed = form.field("confirmation").trim();
    if !typed.eq_ignore_ascii_case(account.label()) {
        let name = match account.organisation {
            Some(_) => "name of the organisation",
            None => "e-mail of the account",
        };
        let fault = format!("This is not the {name}. Type it exactly as shown above.");
        return Err(FormStop::invalid(FormFault::at("confirmation", fault)));
    }
    require_recent_password(app, form).await?;
    if !form.is_confirmed() {
        let balance = app.billing.balance(&account.id, now_ms())?.balance;
        let ends = match account.organisation {
            Some(_) => "and its members cannot use it any more",
            None => "its sessions end, and its e-mail is forgotten",
        };
        let consequence = format!(
            "All keys of {} are refused from the next request on, {ends}. The ledger keeps its \
             entries; its balance of {balance} credits cannot be spent any more. Running requests end \
             normally and are billed. This cannot be undone.",
            account.label()
        );
        let (title, button) = ("Delete this account?", "Delete account");
        return Ok(ask(form, &account.id, title, consequence, button));
    }
    let (accounts, id) = (app.accounts.clone(), account.id.clone());
    let deleted = run_blocking(move || accounts.with_actor(&by, now_ms()).delete_account(&id));
    match deleted.await?? {
        CloseAccountOutcome::Done => {
            let path = format!("/dashboard/operator/accounts/{}", account.id);
            Ok(Redirect::to(&path).into_response())
        }
        CloseAccountOutcome::NoAccount => Err(PageError::NotFound.into()),
        CloseAccountOutcome::LastAdministrator => Err(FormStop::conflict(LAST_ADMINISTRATOR)),
        CloseAccountOutcome::LastOwner => Err(FormStop::conflict(
            "This person is the only owner of an organisation. Another member must become an owner \
             first: `model-gateway org member set`.",
        )),
    }
}
