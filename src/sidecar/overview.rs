//! The first page of the dashboard: the live balance, the trial, the spending, and the latest
//! responses.

use super::activity::{ActivityRow, latest};
use super::error::PageError;
use super::live::{BalanceView, FirstSteps, SpendingSnapshot, live};
use super::page::{Frame, html};
use super::session::CurrentUser;
use super::spending::{self, MonthlySpending};
use super::state::SidecarState;
use super::viewed_account::ViewedAccount;
use askama::Template;
use axum::Router;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{Redirect, Response};
use axum::routing::get;
use base::clock::now_ms;
use serde::Deserialize;
use std::sync::Arc;

pub fn routes() -> Router<Arc<SidecarState>> {
    Router::new()
        .route("/", get(redirect_to_overview))
        .route("/dashboard", get(overview))
        .route("/dashboard/live", get(live))
}

async fn redirect_to_overview() -> Redirect {
    Redirect::to("/dashboard")
}

#[derive(Template)]
#[template(path = "overview.html")]
struct OverviewPage {
    frame: Frame,
    shown: BalanceView,
    /// Why no more requests are possible, if so.
    over: Option<&'static str>,
    steps: FirstSteps,
    rows: Vec<ActivityRow>,
    month: MonthlySpending,
    base_url: String,
    /// The user has just signed up with a mailbox that already had its trial.
    had_trial: bool,
    /// The e-mail to confirm before the trial's credits come.
    unverified: Option<String>,
}

#[derive(Deserialize)]
struct OverviewQuery {
    trial: Option<String>,
}

async fn overview(
    State(app): State<Arc<SidecarState>>,
    user: CurrentUser,
    query: Result<Query<OverviewQuery>, QueryRejection>,
) -> Result<Response, PageError> {
    // The page shows a fixed text, never text from the URL, and only if it is true: not to an
    // account that has a trial.
    let had_trial = query
        .ok()
        .and_then(|Query(query)| query.trial)
        .is_some_and(|word| word == "had");
    let account = &user.account.id;
    let now_ms = now_ms();
    let snapshot = SpendingSnapshot::load(&app, account, now_ms)?;
    let settings = app.settings.load();
    let order = spending::model_order(&settings);
    let balance = app.billing.balance(account, now_ms)?;
    let waits = app.accounts.one_time_links().has_waiting_trial(account)?;
    let over = match &balance.trial {
        _ if waits || balance.balance.is_positive() => None,
        Some(trial) if !trial.active => Some("Your trial has ended and you have no credits left."),
        _ => Some("You have no credits left."),
    };
    let page = OverviewPage {
        frame: Frame::new("Overview", &user)
            .with_charts()
            .with_index_lag(app.billing.pages().index_lag()),
        shown: snapshot.to_view(&balance, now_ms),
        over,
        steps: FirstSteps::load(&app, account)?,
        rows: latest(&app, &ViewedAccount::own(&user.account.id))?,
        month: spending::monthly_spending(
            &app.billing
                .reports()
                .hourly_spend(account, spending::first_hour_of_month(now_ms))?,
            &order,
            now_ms,
        ),
        unverified: waits.then(|| user.account.email.clone()),
        had_trial: had_trial && balance.trial.is_none(),
        base_url: settings.base_url.clone(),
    };
    Ok(html(StatusCode::OK, &page))
}
