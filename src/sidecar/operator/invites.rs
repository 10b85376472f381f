//! Creates invitation codes, which are shown once, and lists the state of existing ones.

use super::super::authz::{Operator, OperatorForm, may_administer};
use super::super::blocking::run_blocking;
use super::super::confirm::{self, Confirmation};
use super::super::display::Timestamp;
use super::super::error::PageError;
use super::super::page::{Frame, html};
use super::super::session::CurrentUser;
use super::super::state::SidecarState;
use accounts::{AccountError, Invite, InviteState, MAX_INVITE_MS, MAX_INVITES_PER_BATCH};
use askama::Template;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use base::clock::now_ms;
use config::SignupMode;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::Arc;

const DAY_MS: i64 = 86_400_000;

const ROWS_PER_PAGE: u32 = 50;

#[derive(Deserialize)]
pub struct InviteListQuery {
    /// Id of the last invitation on the previous page.
    before: Option<String>,
}

#[derive(Template)]
#[template(path = "operator_invites.html")]
struct InvitesPage {
    frame: Frame,
    csrf: String,
    /// True if the user is an administrator and may make changes.
    may_act: bool,
    mode: &'static str,
    /// Effect of an invitation in the current sign-up mode.
    meaning: &'static str,
    /// True if an invitation currently allows a sign-up.
    in_force: bool,
    rows: Vec<Invite>,
    /// E-mails of the accounts in the rows, by account id.
    emails: BTreeMap<String, String>,
    now_ms: i64,
    older: Option<String>,
    first: bool,
    codes: Vec<String>,
    fault: Option<String>,
    at_once_max: u32,
    days_max: i64,
}

/// Returns the name of a sign-up mode, and the effect of an invitation in it.
fn describe_mode(mode: SignupMode) -> (&'static str, &'static str) {
    match mode {
        SignupMode::Invite => (
            "by invitation",
            "Only somebody with a code can sign up. Each code opens one account.",
        ),
        SignupMode::Open => (
            "open",
            "Anybody can sign up without a code, so an invitation does nothing now.",
        ),
        SignupMode::Closed => (
            "closed",
            "Nobody can sign up, also not with a code, so an invitation does nothing now. To let \
             somebody in, open an account for them.",
        ),
    }
}

fn describe_state(state: InviteState) -> &'static str {
    match state {
        InviteState::Withdrawn => "revoked",
        InviteState::Open => "unused",
        InviteState::Used | InviteState::Expired => state.name(),
    }
}

fn page(
    app: &SidecarState,
    user: &CurrentUser,
    before: Option<&str>,
) -> Result<InvitesPage, PageError> {
    let now_ms = now_ms();
    let page_rows = usize::try_from(ROWS_PER_PAGE).unwrap_or(usize::MAX);
    let invites = app.accounts.invitations().list(before, ROWS_PER_PAGE + 1)?;
    let is_last = invites.len() <= page_rows;
    let rows: Vec<_> = invites.into_iter().take(page_rows).collect();
    let signup = app.settings.load().signup.mode;
    let (mode, meaning) = describe_mode(signup);
    Ok(InvitesPage {
        frame: Frame::new("Invitations", user),
        csrf: user.csrf.clone(),
        may_act: may_administer(&user.person),
        mode,
        meaning,
        in_force: signup == SignupMode::Invite,
        older: rows.last().filter(|_| !is_last).map(|last| last.id.clone()),
        emails: emails(app, &rows)?,
        rows,
        now_ms,
        first: before.is_none(),
        codes: Vec::new(),
        fault: None,
        at_once_max: MAX_INVITES_PER_BATCH,
        days_max: MAX_INVITE_MS / DAY_MS,
    })
}

impl InvitesPage {
    /// Returns the e-mail of an account. Another actor is returned unchanged.
    fn person<'p>(&'p self, id: &'p str) -> &'p str {
        self.emails.get(id).map_or(id, String::as_str)
    }
}

fn emails(app: &SidecarState, rows: &[Invite]) -> Result<BTreeMap<String, String>, PageError> {
    let mut emails = BTreeMap::new();
    for id in rows
        .iter()
        .flat_map(|row| std::iter::once(&row.created_by).chain(&row.used_by))
    {
        if !emails.contains_key(id)
            && let Some(account) = app.accounts.find(id)?
        {
            emails.insert(id.clone(), account.email);
        }
    }
    Ok(emails)
}

pub async fn show(
    State(app): State<Arc<SidecarState>>,
    Operator { user, .. }: Operator,
    query: Result<Query<InviteListQuery>, QueryRejection>,
) -> Result<Response, PageError> {
    let Query(InviteListQuery { before }) = query.map_err(|_| PageError::NotFound)?;
    Ok(html(StatusCode::OK, &page(&app, &user, before.as_deref())?))
}

/// Creates invitations. The response is the page itself instead of a redirect, because the codes
/// cannot be read again later.
pub async fn create(
    State(app): State<Arc<SidecarState>>,
    OperatorForm { form, by }: OperatorForm,
) -> Result<Response, PageError> {
    // Text that is not a number becomes 0, which is out of range.
    let count = form.field("count").trim().parse().unwrap_or(0);
    let days = form.field("days").trim().parse::<i64>().unwrap_or(0);
    let accounts = app.accounts.clone();
    let created = run_blocking(move || {
        accounts
            .with_actor(&by, now_ms())
            .create_invites(count, days.saturating_mul(DAY_MS))
    })
    .await?;
    let (status, codes, fault) = match created {
        Ok(codes) => (StatusCode::CREATED, codes, None),
        Err(error @ AccountError::BadInvite) => {
            (StatusCode::UNPROCESSABLE_ENTITY, Vec::new(), Some(error))
        }
        Err(error @ AccountError::TooManyInvites) => {
            (StatusCode::CONFLICT, Vec::new(), Some(error))
        }
        Err(other) => return Err(other.into()),
    };
    let fault = fault.map(|error| format!("Cannot create invitations: {error}."));
    Ok(html(
        status,
        &InvitesPage {
            codes,
            fault,
            ..page(&app, &form.user, None)?
        },
    ))
}

pub async fn revoke(
    State(app): State<Arc<SidecarState>>,
    Path(id): Path<String>,
    OperatorForm { form, by }: OperatorForm,
) -> Result<Response, PageError> {
    let accounts = app.accounts.clone();
    if !form.is_confirmed() {
        let invite = id.clone();
        if !run_blocking(move || accounts.invitations().is_open(&invite, now_ms())).await?? {
            return Err(PageError::NotFound);
        }
        let question = Confirmation {
            title: "Revoke this invitation?",
            consequence: format!("The code of {id} opens no account any more, for good."),
            button: "Revoke invitation",
            back: "/dashboard/operator/invites",
        };
        return Ok(confirm::page("Operator", &form, question));
    }
    let is_done =
        run_blocking(move || accounts.with_actor(&by, now_ms()).revoke_invite(&id)).await??;
    if is_done {
        Ok(Redirect::to("/dashboard/operator/invites").into_response())
    } else {
        Err(PageError::NotFound)
    }
}
