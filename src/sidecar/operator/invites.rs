//! Invitations: creates codes, which are shown once, and lists the state of existing ones.

use super::super::App;
use super::super::page::{Frame, html, when};
use super::super::problem::Problem;
use super::super::role::{Operator, OperatorForm, may_act};
use super::super::session::{Visitor, blocking};
use crate::account::{AccountError, INVITE_MS_MAX, INVITES_AT_ONCE_MAX, Invite, InviteState};
use crate::clock::now_ms;
use crate::config::SignupMode;
use askama::Template;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use serde::Deserialize;
use std::sync::Arc;

const DAY_MS: i64 = 86_400_000;

/// Invitations per page.
const ROWS: u32 = 50;

#[derive(Deserialize)]
pub struct Asked {
    /// Id of the last invitation on the previous page.
    before: Option<String>,
}

struct Row {
    id: String,
    created: String,
    expires: String,
    by: String,
    state: String,
    is_open: bool,
}

#[derive(Template)]
#[template(path = "operator_invites.html")]
struct InvitesPage {
    frame: Frame,
    here: &'static str,
    csrf: String,
    /// The user is an administrator and may make changes.
    acts: bool,
    /// Sign-up requires a code.
    in_force: bool,
    rows: Vec<Row>,
    older: Option<String>,
    first: bool,
    codes: Vec<String>,
    fault: Option<String>,
    at_once_max: u32,
    days_max: i64,
}

fn row(invite: Invite, now_ms: i64) -> Row {
    let state = invite.state(now_ms);
    Row {
        is_open: state == InviteState::Open,
        id: invite.id,
        created: when(invite.created_at_ms),
        expires: when(invite.expires_at_ms),
        by: invite.created_by,
        state: invite.used_by.map_or_else(
            || state.name().to_owned(),
            |account| format!("used by {account}"),
        ),
    }
}

fn page(app: &App, visitor: &Visitor, before: Option<&str>) -> Result<InvitesPage, Problem> {
    let now_ms = now_ms();
    let page_rows = usize::try_from(ROWS).unwrap_or(usize::MAX);
    let invites = app.accounts.invites(before, ROWS + 1)?;
    let is_last = invites.len() <= page_rows;
    let rows: Vec<_> = invites
        .into_iter()
        .take(page_rows)
        .map(|invite| row(invite, now_ms))
        .collect();
    Ok(InvitesPage {
        frame: Frame::of("Operator", visitor),
        here: "invites",
        csrf: visitor.csrf.clone(),
        acts: may_act(&visitor.account),
        in_force: app.settings.load().signup.mode == SignupMode::Invite,
        older: rows.last().filter(|_| !is_last).map(|last| last.id.clone()),
        rows,
        first: before.is_none(),
        codes: Vec::new(),
        fault: None,
        at_once_max: INVITES_AT_ONCE_MAX,
        days_max: INVITE_MS_MAX / DAY_MS,
    })
}

pub async fn show(
    State(app): State<Arc<App>>,
    Operator(visitor): Operator,
    asked: Result<Query<Asked>, QueryRejection>,
) -> Result<Response, Problem> {
    let Query(Asked { before }) = asked.map_err(|_| Problem::NotFound)?;
    Ok(html(
        StatusCode::OK,
        &page(&app, &visitor, before.as_deref())?,
    ))
}

/// Responds with the page itself instead of a redirect: the codes cannot be read again later.
pub async fn create(
    State(app): State<Arc<App>>,
    OperatorForm { form, by }: OperatorForm,
) -> Result<Response, Problem> {
    // A value that is not a number becomes 0, which is out of range.
    let count = form.field("count").trim().parse().unwrap_or(0);
    let days = form.field("days").trim().parse::<i64>().unwrap_or(0);
    let accounts = app.accounts.clone();
    let made = blocking(move || {
        accounts
            .acting(&by, now_ms())
            .invite(count, days.saturating_mul(DAY_MS))
    })
    .await?;
    let (status, codes, fault) = match made {
        Ok(codes) => (StatusCode::CREATED, codes, None),
        Err(error @ AccountError::BadInvite) => {
            (StatusCode::UNPROCESSABLE_ENTITY, Vec::new(), Some(error))
        }
        Err(error @ AccountError::TooManyInvites) => {
            (StatusCode::CONFLICT, Vec::new(), Some(error))
        }
        Err(other) => return Err(other.into()),
    };
    let fault = fault.map(|error| format!("Not done: {error}."));
    Ok(html(
        status,
        &InvitesPage {
            codes,
            fault,
            ..page(&app, &form.visitor, None)?
        },
    ))
}

pub async fn withdraw(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    OperatorForm { by, .. }: OperatorForm,
) -> Result<Response, Problem> {
    let accounts = app.accounts.clone();
    let is_done = blocking(move || accounts.acting(&by, now_ms()).withdraw_invite(&id)).await??;
    if is_done {
        Ok(Redirect::to("/dashboard/operator/invites").into_response())
    } else {
        Err(Problem::NotFound)
    }
}
