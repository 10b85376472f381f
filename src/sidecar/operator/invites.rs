//! Creates invitation codes, which are shown once, and lists the state of existing ones.

use super::super::authz::{Operator, OperatorForm, may_administer};
use super::super::blocking::run_blocking;
use super::super::confirm::{self, Confirmation};
use super::super::display::Timestamp;
use super::super::error::PageError;
use super::super::form::{self, FormFault, FormStop, sentence};
use super::super::page::{Frame, html};
use super::super::session::{CurrentUser, SignedForm};
use super::super::state::SidecarState;
use accounts::{AccountError, Actor, Invite, InviteState, MAX_INVITE_MS, MAX_INVITES_PER_BATCH};
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
    fault: Option<FormFault>,
    /// The form as it was sent.
    count: String,
    days: String,
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
        count: "1".to_owned(),
        days: "7".to_owned(),
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
    let outcome = create_invites(&app, &form, by).await;
    form::respond(outcome, |fault| {
        Ok(InvitesPage {
            fault: Some(fault),
            count: form.field("count").to_owned(),
            days: form.field("days").to_owned(),
            ..page(&app, &form.user, None)?
        })
    })
}

async fn create_invites(
    app: &SidecarState,
    form: &SignedForm,
    by: Actor,
) -> Result<Response, FormStop> {
    let number = |name: &'static str, max: i64| {
        form::parse_whole(name, form.field(name), 1..=max).map_err(FormStop::invalid)
    };
    let count = number("count", MAX_INVITES_PER_BATCH.into())?;
    let count = u32::try_from(count).unwrap_or(MAX_INVITES_PER_BATCH);
    let good_for_ms = number("days", MAX_INVITE_MS / DAY_MS)? * DAY_MS;
    let accounts = app.accounts.clone();
    let created = run_blocking(move || {
        let acting = accounts.with_actor(&by, now_ms());
        acting.create_invites(count, good_for_ms)
    });
    let codes = created.await?.map_err(|error| match error {
        AccountError::TooManyInvites => FormStop::conflict(sentence(&error.to_string())),
        other => other.into(),
    })?;
    let page = InvitesPage {
        codes,
        ..page(app, &form.user, None)?
    };
    Ok(html(StatusCode::CREATED, &page))
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
