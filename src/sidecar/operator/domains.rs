//! Enters the domains that an organisation claims. A person who proves a mailbox in such a domain
//! becomes a member.
//!
//! This file must not decide whether a mailbox is proven.

use super::super::account::require_recent_password;
use super::super::authz::OperatorForm;
use super::super::blocking::run_blocking;
use super::super::error::PageError;
use super::super::form::{self, FormFault, FormStop};
use super::super::session::SignedForm;
use super::super::state::SidecarState;
use super::account::{find, page};
use accounts::{Account, AccountError, Actor};
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Redirect, Response};
use base::clock::now_ms;
use std::sync::Arc;

pub async fn set_domain(
    State(app): State<Arc<SidecarState>>,
    Path(id): Path<String>,
    OperatorForm { mut form, by }: OperatorForm,
) -> Result<Response, PageError> {
    let account = find(&app, &id)?;
    if account.organisation.is_none() {
        return Err(PageError::NotFound);
    }
    let outcome = change(&app, &account, &mut form, by).await;
    form::respond(outcome, |fault| {
        let mut page = page(&app, &form.user, account)?;
        page.domain_fault = Some(fault);
        page.domain = form.field("domain").to_owned();
        Ok(page)
    })
}

async fn change(
    app: &Arc<SidecarState>,
    account: &Account,
    form: &mut SignedForm,
    by: Actor,
) -> Result<Response, FormStop> {
    require_recent_password(app, form).await?;
    let (accounts, id) = (app.accounts.clone(), account.id.clone());
    let (domain, is_claimed) = (
        form.field("domain").to_owned(),
        form.field("act") != "release",
    );
    let set = move || {
        accounts
            .with_actor(&by, now_ms())
            .set_domain(&id, &domain, is_claimed)
    };
    match run_blocking(set).await? {
        Ok(()) => {
            let path = format!("/dashboard/operator/accounts/{}", account.id);
            Ok(Redirect::to(&path).into_response())
        }
        Err(AccountError::BadDomain) => Err(FormStop::invalid(FormFault::at(
            "domain",
            "This is not a domain. Write what follows the @ of an address, such as example.com.",
        ))),
        Err(AccountError::DomainTaken) => Err(FormStop::conflict(FormFault::at(
            "domain",
            "An organisation has claimed this domain already.",
        ))),
        Err(error @ AccountError::TooManyClaims) => Err(FormStop::conflict(error.to_string())),
        Err(AccountError::NoMember) => Err(PageError::NotFound.into()),
        Err(error) => Err(error.into()),
    }
}
