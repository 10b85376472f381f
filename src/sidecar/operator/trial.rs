//! Extends a running trial.
//!
//! This file must not restart a trial, because its credits have expired.

use super::super::account::require_recent_password;
use super::super::authz::OperatorForm;
use super::super::blocking::run_blocking;
use super::super::display::format_time;
use super::super::error::PageError;
use super::super::form::{self, FormStop, sentence};
use super::super::page::html;
use super::super::session::SignedForm;
use super::super::state::SidecarState;
use super::account::{MAX_EXTENSION_DAYS, find, page};
use accounts::{Account, Actor};
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use base::clock::now_ms;
use ledger::{StoreError, TrialExtension};
use serde_json::json;
use std::sync::Arc;

const DAY_MS: i64 = 86_400_000;

pub async fn extend(
    State(app): State<Arc<SidecarState>>,
    Path(id): Path<String>,
    OperatorForm { mut form, by }: OperatorForm,
) -> Result<Response, PageError> {
    let account = find(&app, &id)?;
    let outcome = extend_trial(&app, &account, &mut form, by).await;
    form::respond(outcome, |fault| {
        let mut page = page(&app, &form.user, account)?;
        page.trial_fault = Some(fault);
        page.trial_days = form.field("days").to_owned();
        Ok(page)
    })
}

async fn extend_trial(
    app: &Arc<SidecarState>,
    account: &Account,
    form: &mut SignedForm,
    by: Actor,
) -> Result<Response, FormStop> {
    let days = form::parse_whole("days", form.field("days"), 1..=MAX_EXTENSION_DAYS);
    let days = days.map_err(FormStop::invalid)?;
    require_recent_password(app, form).await?;
    let at_ms = now_ms();
    let trial = app.billing.balance(&account.id, at_ms)?.trial;
    let Some(trial) = trial.filter(|trial| trial.active) else {
        let fault = "This account has no running trial. Grant credits instead.";
        return Err(FormStop::conflict(fault));
    };
    let ends_at_ms = trial.ends_at_ms.saturating_add(days * DAY_MS);
    let (work, id) = (Arc::clone(app), account.id.clone());
    let extended = run_blocking(move || {
        let extension = TrialExtension {
            account: &id,
            ends_at_ms,
            actor: Some(&by.actor),
            at_ms,
        };
        let ends = |ends_at_ms: i64| json!({"trial_ends_at_ms": ends_at_ms});
        let changes = (&ends(trial.ends_at_ms), &ends(ends_at_ms));
        let acting = work.accounts.with_actor(&by, at_ms);
        acting.record_setting_then_run("account.extend-trial", &id, changes, || {
            work.billing.corrections().extend_trial(&extension)
        })
    });
    extended.await?.map_err(|error| match error {
        StoreError::Refused(why) => FormStop::conflict(sentence(&why)),
        error => error.into(),
    })?;
    let mut page = page(app, &form.user, account.clone())?;
    page.done = Some(format!("The trial ends {}.", format_time(ends_at_ms)));
    Ok(html(StatusCode::OK, &page))
}
