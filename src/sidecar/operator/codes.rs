//! Codes that account holders redeem for credits: create, list and void them.
//!
//! The texts of codes are on the page that answers their creation alone.

use super::super::account::require_recent_password;
use super::super::authz::{Operator, OperatorForm, may_administer};
use super::super::blocking::run_blocking;
use super::super::confirm::{self, Confirmation};
use super::super::display::{BalanceAmount, Timestamp};
use super::super::error::PageError;
use super::super::form::{self, FormFault, FormStop};
use super::super::page::{Frame, html};
use super::super::session::{CurrentUser, SignedForm};
use super::super::state::SidecarState;
use accounts::db::codes::CodeBatch;
use accounts::{Actor, CreatedCodes, MAX_CODE_CREDITS, MAX_CODE_MS, MAX_CODES_PER_BATCH, NewCodes};
use askama::Template;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use base::clock::now_ms;
use credits::money::Micro;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::Arc;

const DAY_MS: i64 = 86_400_000;
/// Batches per page.
const ROWS_PER_PAGE: u32 = 50;

#[derive(Deserialize)]
pub struct CodeBatchQuery {
    #[serde(default)]
    before: String,
}

#[derive(Template)]
#[template(path = "operator_codes.html")]
struct CodesPage {
    frame: Frame,
    csrf: String,
    may_act: bool,
    asks_password: bool,
    fault: Option<FormFault>,
    /// The codes that were just created, as lines of a CSV file.
    created: Option<String>,
    /// The form as it was sent.
    credits: String,
    count: String,
    days: String,
    per_account: String,
    max_count: u32,
    max_days: i64,
    rows: Vec<CodeBatch>,
    emails: BTreeMap<String, String>,
    now_ms: i64,
    is_first: bool,
    older: Option<String>,
}

impl CodesPage {
    /// The e-mail of an account; for another actor, its name.
    fn person<'p>(&'p self, id: &'p str) -> &'p str {
        self.emails.get(id).map_or(id, String::as_str)
    }

    /// Whether codes of the batch can still be redeemed.
    fn is_open(&self, batch: &CodeBatch) -> bool {
        batch.redeemed + batch.voided < batch.count && batch.expires_at_ms > self.now_ms
    }
}

fn page(app: &SidecarState, user: &CurrentUser, before: &str) -> Result<CodesPage, PageError> {
    let rows = app.accounts.codes().batches(before, ROWS_PER_PAGE)?;
    let is_full = rows.len() >= usize::try_from(ROWS_PER_PAGE).unwrap_or(usize::MAX);
    let mut emails = BTreeMap::new();
    for row in &rows {
        if let Some(account) = app.accounts.find(&row.created_by)? {
            emails.insert(row.created_by.clone(), account.email);
        }
    }
    Ok(CodesPage {
        frame: Frame::new("Codes", user),
        csrf: user.csrf.clone(),
        may_act: may_administer(&user.person),
        asks_password: !user.confirmed,
        fault: None,
        created: None,
        credits: String::new(),
        count: "1".to_owned(),
        days: "365".to_owned(),
        per_account: "1".to_owned(),
        max_count: MAX_CODES_PER_BATCH,
        max_days: MAX_CODE_MS / DAY_MS,
        older: rows.last().filter(|_| is_full).map(|last| last.id.clone()),
        rows,
        emails,
        now_ms: now_ms(),
        is_first: before.is_empty(),
    })
}

pub async fn show(
    State(app): State<Arc<SidecarState>>,
    Operator { user, .. }: Operator,
    query: Result<Query<CodeBatchQuery>, QueryRejection>,
) -> Result<Response, PageError> {
    let Query(query) = query.map_err(|_| PageError::NotFound)?;
    Ok(html(StatusCode::OK, &page(&app, &user, &query.before)?))
}

/// Responds with the page itself instead of a redirect: the codes cannot be read again later.
pub async fn create(
    State(app): State<Arc<SidecarState>>,
    OperatorForm { mut form, by }: OperatorForm,
) -> Result<Response, PageError> {
    let outcome = create_codes(&app, &mut form, by).await;
    form::respond(outcome, |fault| {
        let text = |name: &str| form.field(name).chars().take(30).collect::<String>();
        Ok(CodesPage {
            fault: Some(fault),
            credits: text("credits"),
            count: text("count"),
            days: text("days"),
            per_account: text("per_account"),
            ..page(&app, &form.user, "")?
        })
    })
}

async fn create_codes(
    app: &Arc<SidecarState>,
    form: &mut SignedForm,
    by: Actor,
) -> Result<Response, FormStop> {
    let credits = form.field("credits").trim().parse();
    let credits = credits.map_err(|error| {
        FormStop::invalid(FormFault::at("credits", format!("Credits: {error}.")))
    })?;
    if !(Micro::new(1)..=MAX_CODE_CREDITS).contains(&credits) {
        let fault = format!("Credits must be above 0 and at most {MAX_CODE_CREDITS}.");
        return Err(FormStop::invalid(FormFault::at("credits", fault)));
    }
    let number = |name: &'static str, max: i64| {
        form::parse_whole(name, form.field(name), 1..=max).map_err(FormStop::invalid)
    };
    let count = |name| {
        let count = number(name, MAX_CODES_PER_BATCH.into())?;
        Ok::<_, FormStop>(u32::try_from(count).unwrap_or(MAX_CODES_PER_BATCH))
    };
    let now_ms = now_ms();
    let new = NewCodes {
        credits,
        count: count("count")?,
        expires_at_ms: now_ms.saturating_add(number("days", MAX_CODE_MS / DAY_MS)? * DAY_MS),
        per_account: count("per_account")?,
    };
    require_recent_password(app, form).await?;
    let accounts = app.accounts.clone();
    let created = run_blocking(move || accounts.with_actor(&by, now_ms).create_codes(&new));
    let CreatedCodes { codes, .. } = created.await??;
    let page = CodesPage {
        created: Some(codes.join("\n")),
        ..page(app, &form.user, "")?
    };
    Ok(html(StatusCode::CREATED, &page))
}

pub async fn void(
    State(app): State<Arc<SidecarState>>,
    Path(batch): Path<String>,
    OperatorForm { form, by }: OperatorForm,
) -> Result<Response, PageError> {
    if !form.is_confirmed() {
        let codes = app.accounts.codes().codes_of(&batch)?;
        let open = codes
            .iter()
            .filter(|code| code.redeemed_by.is_none())
            .count();
        if codes.is_empty() {
            return Err(PageError::NotFound);
        }
        let question = Confirmation {
            title: "Void these codes?",
            consequence: format!(
                "The {open} codes of {batch} that nobody has redeemed become void, for good."
            ),
            button: "Void codes",
            back: "/dashboard/operator/codes",
        };
        return Ok(confirm::page("Codes", &form, question));
    }
    let accounts = app.accounts.clone();
    let voided =
        run_blocking(move || accounts.with_actor(&by, now_ms()).void_codes(&batch)).await??;
    match voided {
        Some(_) => Ok(Redirect::to("/dashboard/operator/codes").into_response()),
        None => Err(PageError::NotFound),
    }
}
