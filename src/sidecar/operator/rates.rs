//! Changes the rate limits of an account. They replace those of the config file for all keys of the
//! account together.
//!
//! This file must not decide the effect of a limit.

use super::super::account::require_recent_password;
use super::super::authz::OperatorForm;
use super::super::blocking::run_blocking;
use super::super::error::PageError;
use super::super::form::{self, FormFault, FormStop};
use super::super::page::html;
use super::super::session::SignedForm;
use super::super::state::SidecarState;
use super::account::{RatesForm, find, page};
use accounts::{Account, AccountError, Actor, RateSettings};
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use base::clock::now_ms;
use std::sync::Arc;

impl RatesForm {
    fn submitted(form: &SignedForm) -> Self {
        let [requests_per_minute, tokens_per_minute, concurrent] =
            RateSettings::NAMES.map(|name| form.field(name).trim().to_owned());
        Self {
            requests_per_minute,
            tokens_per_minute,
            concurrent,
        }
    }

    fn parse(&self) -> Result<RateSettings, FormStop> {
        let rate = |field: &'static str, text: &str| match text {
            "" => Ok(None),
            text => text.parse().map(Some).map_err(|_| {
                let fault = "A limit is a whole number; 0 is no limit, empty is the default.";
                FormStop::invalid(FormFault::at(field, fault))
            }),
        };
        Ok(RateSettings {
            requests_per_minute: rate("requests_per_minute", &self.requests_per_minute)?,
            tokens_per_minute: rate("tokens_per_minute", &self.tokens_per_minute)?,
            concurrent: rate("concurrent", &self.concurrent)?,
        })
    }
}

pub async fn set(
    State(app): State<Arc<SidecarState>>,
    Path(id): Path<String>,
    OperatorForm { mut form, by }: OperatorForm,
) -> Result<Response, PageError> {
    let account = find(&app, &id)?;
    let submitted = RatesForm::submitted(&form);
    let outcome = set_rates(&app, &account, &submitted, &mut form, by).await;
    form::respond(outcome, |fault| {
        let mut page = page(&app, &form.user, account)?;
        page.rates_fault = Some(fault);
        page.rates = submitted;
        Ok(page)
    })
}

async fn set_rates(
    app: &Arc<SidecarState>,
    account: &Account,
    submitted: &RatesForm,
    form: &mut SignedForm,
    by: Actor,
) -> Result<Response, FormStop> {
    let rates = submitted.parse()?;
    require_recent_password(app, form).await?;
    let (accounts, id) = (app.accounts.clone(), account.id.clone());
    let set = run_blocking(move || {
        accounts
            .with_actor(&by, now_ms())
            .set_account_rates(&id, &rates)
    });
    match set.await? {
        Ok(true) => {}
        Ok(false) => return Err(PageError::NotFound.into()),
        Err(AccountError::Store(error)) => return Err(error.into()),
        Err(error) => {
            return Err(FormStop::invalid(format!(
                "Cannot set the limits: {error}."
            )));
        }
    }
    let mut page = page(app, &form.user, account.clone())?;
    page.done = Some("The rate limits hold from the next request on.".to_owned());
    Ok(html(StatusCode::OK, &page))
}
