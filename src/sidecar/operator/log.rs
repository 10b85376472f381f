//! The audit log as a page: the administrators' actions, newest first.

use super::super::App;
use super::super::page::{Frame, html, when};
use super::super::problem::Problem;
use super::super::role::Operator;
use super::super::session::blocking;
use askama::Template;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde::Deserialize;
use std::sync::Arc;

/// Lines per page.
const ROWS: u32 = 50;

#[derive(Deserialize)]
pub struct Page {
    before: Option<i64>,
}

struct Row {
    seq: i64,
    at: String,
    actor: String,
    address: String,
    act: String,
    object: String,
    before: String,
    after: String,
}

#[derive(Template)]
#[template(path = "operator_log.html")]
struct LogPage {
    frame: Frame,
    here: &'static str,
    rows: Vec<Row>,
    older: Option<i64>,
    first: bool,
}

pub async fn show(
    State(app): State<Arc<App>>,
    Operator(visitor): Operator,
    page: Result<Query<Page>, QueryRejection>,
) -> Result<Response, Problem> {
    let Query(Page { before }) = page.map_err(|_| Problem::NotFound)?;
    let accounts = app.accounts.clone();
    let lines = blocking(move || accounts.audit(before, ROWS)).await??;
    let full = lines.len() >= usize::try_from(ROWS).unwrap_or(usize::MAX);
    let older = lines.last().filter(|_| full).map(|last| last.seq);
    let rows = lines.into_iter().map(|line| Row {
        seq: line.seq,
        at: when(line.at_ms),
        actor: line.actor,
        address: line.address,
        act: line.act,
        object: line.object,
        before: line.before,
        after: line.after,
    });
    let page = LogPage {
        frame: Frame::of("Operator", &visitor),
        here: "log",
        rows: rows.collect(),
        older,
        first: before.is_none(),
    };
    Ok(html(StatusCode::OK, &page))
}
