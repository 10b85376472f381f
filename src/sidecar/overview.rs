//! The first page of the dashboard: the balance as it falls, the trial, and the latest responses.

use super::App;
use super::activity::{Row, rows};
use super::live::Shown;
use super::page::{Frame, html};
use super::problem::Problem;
use super::session::Visitor;
use crate::account::KeyStatus;
use crate::clock::now_ms;
use askama::Template;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use std::sync::Arc;

/// Responses that the overview shows.
const LATEST: u32 = 5;

#[derive(Template)]
#[template(path = "overview.html")]
struct OverviewPage {
    frame: Frame,
    shown: Shown,
    has_key: bool,
    latest: Vec<Row>,
    base_url: String,
}

pub async fn overview(State(app): State<Arc<App>>, visitor: Visitor) -> Result<Response, Problem> {
    let account = &visitor.account.id;
    let keys = app.accounts.keys(account)?;
    let page = OverviewPage {
        frame: Frame::of("Overview", &visitor),
        shown: Shown::of(&app.billing.balance(account, now_ms())?),
        has_key: keys.iter().any(|key| key.status == KeyStatus::Active),
        latest: rows(&app.billing.receipts(account, None, LATEST)?),
        base_url: app.settings.load().base_url.clone(),
    };
    Ok(html(StatusCode::OK, &page))
}
