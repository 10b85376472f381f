//! Shows the audit log as a page of sentences, newest first: actions of administrators and changes
//! of the config file.
//!
//! This file must not change anything.

use super::super::authz::Operator;
use super::super::blocking::run_blocking;
use super::super::display::Timestamp;
use super::super::error::PageError;
use super::super::form::{self, FormFault};
use super::super::page::{Frame, html};
use super::super::spending::encode;
use super::super::state::SidecarState;
use super::sentences::{ACTS, AuditNames, OUTCOMES, sentence};
use crate::optional_parts::hides_act;
use accounts::Accounts;
use accounts::db::audit::{AuditFilter, AuditRow, OutcomeKind};
use askama::Template;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use base::clock::day_start_ms;
use ledger::StoreError;
use serde::Deserialize;
use std::sync::Arc;

const DAY_MS: i64 = 86_400_000;

const ROWS_PER_PAGE: u32 = 50;

/// The filters of the page. An empty value means no filter.
#[derive(Deserialize, Default)]
#[serde(default)]
pub struct AuditLogQuery {
    /// E-mail or id of the actor, or another actor's name on the page.
    by: String,
    /// E-mail or id of the account that was changed.
    account: String,
    /// Name of an action in [`ACTS`].
    act: String,
    outcome: String,
    /// Day in UTC, as `2026-11-21`.
    day: String,
    before: Option<i64>,
}

struct AuditLine {
    seq: i64,
    at: Timestamp,
    who: String,
    what: String,
    /// The outcome, unless the action succeeded.
    badge: Option<OutcomeBadge>,
    address: String,
    /// Address of the page of the account that was changed.
    account_url: Option<String>,
}

struct OutcomeBadge {
    outcome: &'static str,
    text: &'static str,
    style: &'static str,
}

impl OutcomeBadge {
    fn new(row: &AuditRow) -> Option<Self> {
        let kind = row.outcome.kind;
        let (_, text) = OUTCOMES.into_iter().find(|(it, _)| *it == kind)?;
        let style = match kind {
            OutcomeKind::Done => return None,
            OutcomeKind::Repeated => "",
            OutcomeKind::Refused | OutcomeKind::Unknown => " warn",
            OutcomeKind::Failed => " bad",
        };
        Some(Self {
            outcome: kind.name(),
            text,
            style,
        })
    }
}

struct FilterChoice {
    value: &'static str,
    text: &'static str,
    chosen: bool,
}

#[derive(Template)]
#[template(path = "operator_audit.html")]
struct AuditLogPage {
    frame: Frame,
    query: AuditLogQuery,
    acts: Vec<FilterChoice>,
    outcomes: Vec<FilterChoice>,
    rows: Vec<AuditLine>,
    fault: Option<FormFault>,
    is_filtered: bool,
    older: Option<String>,
    newest: Option<String>,
}

impl AuditLogQuery {
    fn is_filtered(&self) -> bool {
        [&self.by, &self.account, &self.act, &self.outcome, &self.day]
            .iter()
            .any(|text| !text.is_empty())
    }

    /// Parses the filter. The inner error is a text for the user.
    fn filter(&self, accounts: &Accounts) -> Result<Result<AuditFilter, FormFault>, StoreError> {
        let person = |text: &str| -> Result<Option<String>, StoreError> {
            let text = text.trim();
            if text.is_empty() {
                return Ok(None);
            }
            let found = accounts.find(text)?;
            Ok(Some(found.map_or_else(|| text.to_owned(), |it| it.id)))
        };
        let times_ms = match self.day.as_str() {
            "" => None,
            day => match day_start_ms(day) {
                Some(start_ms) => Some((start_ms, start_ms + DAY_MS)),
                None => return Ok(Err(FormFault::at("day", "Write a day as 2026-11-21."))),
            },
        };
        let act = (!self.act.is_empty()).then(|| self.act.clone());
        if let Some(act) = &act
            && !ACTS.iter().any(|(name, _)| name == act)
        {
            return Ok(Err(FormFault::at("act", "Choose a kind of the list.")));
        }
        let outcome = OutcomeKind::parse(&self.outcome);
        if outcome.is_none() && !self.outcome.is_empty() {
            return Ok(Err(FormFault::at(
                "outcome",
                "Choose an outcome of the list.",
            )));
        }
        Ok(Ok(AuditFilter {
            actor: person(&self.by)?,
            account: person(&self.account)?,
            act,
            outcome,
            times_ms,
        }))
    }

    fn url(&self, before: Option<i64>) -> String {
        let before = before.map(|seq| seq.to_string());
        let mut fields = vec![
            ("by", self.by.as_str()),
            ("account", &self.account),
            ("act", &self.act),
            ("outcome", &self.outcome),
            ("day", &self.day),
        ];
        fields.extend(before.as_deref().map(|seq| ("before", seq)));
        fields.retain(|(_, value)| !value.is_empty());
        format!("/dashboard/operator/audit?{}", encode(&fields))
    }
}

pub async fn show(
    State(app): State<Arc<SidecarState>>,
    Operator { user, .. }: Operator,
    query: Result<Query<AuditLogQuery>, QueryRejection>,
) -> Result<Response, PageError> {
    let Query(query) = query.map_err(|_| PageError::NotFound)?;
    let accounts = app.accounts.clone();
    let settings = app.settings.load_full();
    let loaded = run_blocking(move || {
        let lines = match query.filter(&accounts)? {
            Ok(filter) => Ok(load(&accounts, &filter, query.before)?),
            Err(fault) => Err(fault),
        };
        Ok::<_, StoreError>((query, lines))
    });
    let (query, lines) = loaded.await??;
    let (status, rows, fault) = match lines {
        Ok(rows) => (StatusCode::OK, rows, None),
        Err(fault) => (StatusCode::UNPROCESSABLE_ENTITY, Vec::new(), Some(fault)),
    };
    let is_full = rows.len() >= usize::try_from(ROWS_PER_PAGE).unwrap_or(usize::MAX);
    let page = AuditLogPage {
        frame: Frame::new("Audit log", &user),
        acts: ACTS
            .iter()
            .map(|(value, text)| FilterChoice {
                value,
                text,
                chosen: *value == query.act,
            })
            // Lines of a part that was on once are found by its name in the address.
            .filter(|choice| choice.chosen || !hides_act(&settings, choice.value))
            .collect(),
        outcomes: OUTCOMES
            .map(|(kind, text)| FilterChoice {
                value: kind.name(),
                text,
                chosen: kind.name() == query.outcome,
            })
            .into(),
        fault,
        is_filtered: query.is_filtered(),
        older: rows
            .last()
            .filter(|_| is_full)
            .map(|last| query.url(Some(last.seq))),
        newest: query.before.map(|_| query.url(None)),
        rows,
        query,
    };
    Ok(html(status, &page))
}

fn load(
    accounts: &Accounts,
    filter: &AuditFilter,
    before: Option<i64>,
) -> Result<Vec<AuditLine>, StoreError> {
    let rows = accounts
        .audit_log()
        .find_rows(filter, before, ROWS_PER_PAGE)?;
    let names = AuditNames::load(accounts, &rows)?;
    let line = |row: &AuditRow| AuditLine {
        seq: row.seq,
        at: Timestamp(row.at_ms),
        who: names.person(&row.actor),
        what: sentence(row, &names),
        badge: OutcomeBadge::new(row),
        address: row.address.clone(),
        account_url: names
            .account(row)
            .map(|id| format!("/dashboard/operator/accounts/{id}")),
    };
    Ok(rows.iter().map(line).collect())
}
