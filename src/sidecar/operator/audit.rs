//! The audit log as a page: the administrators' actions, newest first.

use super::super::authz::Operator;
use super::super::blocking::run_blocking;
use super::super::display::Timestamp;
use super::super::error::PageError;
use super::super::page::{Frame, html};
use super::super::state::SidecarState;
use accounts::db::audit::AuditRow;
use askama::Template;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde::Deserialize;
use std::sync::Arc;

/// Lines per page.
const ROWS_PER_PAGE: u32 = 50;

#[derive(Deserialize)]
pub struct AuditLogQuery {
    before: Option<i64>,
}

#[derive(Template)]
#[template(path = "operator_audit.html")]
struct AuditLogPage {
    frame: Frame,
    rows: Vec<AuditRow>,
    older: Option<i64>,
    first: bool,
}

pub async fn show(
    State(app): State<Arc<SidecarState>>,
    Operator { user, .. }: Operator,
    page: Result<Query<AuditLogQuery>, QueryRejection>,
) -> Result<Response, PageError> {
    let Query(AuditLogQuery { before }) = page.map_err(|_| PageError::NotFound)?;
    let accounts = app.accounts.clone();
    let lines = run_blocking(move || accounts.audit_log().rows(before, ROWS_PER_PAGE)).await??;
    let full = lines.len() >= usize::try_from(ROWS_PER_PAGE).unwrap_or(usize::MAX);
    let older = lines.last().filter(|_| full).map(|last| last.seq);
    let page = AuditLogPage {
        frame: Frame::new("Operator", &user),
        rows: lines,
        older,
        first: before.is_none(),
    };
    Ok(html(StatusCode::OK, &page))
}
