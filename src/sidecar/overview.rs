//! Serves the first page of the dashboard, with live balance, trial, spending and latest responses.

use super::activity::{ActivityRow, latest};
use super::authz::may_view;
use super::error::PageError;
use super::live::{BalanceView, FirstSteps, SpendingSnapshot, live};
use super::menu;
use super::page::{Frame, html};
use super::session::{CurrentUser, OptionalUser};
use super::spending::{self, MonthlySpending};
use super::state::SidecarState;
use super::viewed_account::ViewedAccount;
use accounts::MemberAction;
use askama::Template;
use axum::Router;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;
use base::clock::now_ms;
use config::SignupMode;
use serde::Deserialize;
use std::sync::Arc;

pub fn routes() -> Router<Arc<SidecarState>> {
    Router::new()
        .route("/", get(redirect_to_first_page))
        .route("/dashboard", get(overview))
        .route("/dashboard/live", get(live))
}

/// Redirects users to their first page, and visitors to sign-up if it is open.
async fn redirect_to_first_page(
    State(app): State<Arc<SidecarState>>,
    OptionalUser(user): OptionalUser,
) -> Redirect {
    let may_sign_up = app.settings.load().signup.mode == SignupMode::Open;
    Redirect::to(match user {
        Some(user) => menu::first_path(may_view(&user.person)),
        None if may_sign_up => "/dashboard/sign-up",
        None => "/dashboard",
    })
}

#[derive(Template)]
#[template(path = "overview.html")]
struct OverviewPage {
    frame: Frame,
    shown: BalanceView,
    steps: FirstSteps,
    rows: Vec<ActivityRow>,
    month: MonthlySpending,
    base_url: String,
    /// True if the user has just signed up with a mailbox that already had its trial.
    had_trial: bool,
    /// E-mail that must be confirmed before the trial's credits are granted.
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
    // The page shows a fixed text instead of text from the URL, and only if the account has no
    // trial.
    let had_trial = query
        .ok()
        .and_then(|Query(query)| query.trial)
        .is_some_and(|word| word == "had");
    // Of a member who sees only their own usage, the keys are the first page.
    if !user.role.may(MemberAction::SeeUsage) {
        return Ok(Redirect::to("/dashboard/keys").into_response());
    }
    let account = &user.account.id;
    let now_ms = now_ms();
    let snapshot = SpendingSnapshot::load(&app, account, None, now_ms)?;
    let settings = app.settings.load();
    let order = spending::model_order(&settings);
    let balance = app.billing.balance(account, now_ms)?;
    let waits = app.accounts.one_time_links().has_waiting_trial(account)?;
    let page = OverviewPage {
        frame: Frame::new("Overview", &user)
            .with_charts()
            .with_index_lag(app.billing.pages().index_lag()),
        shown: snapshot.to_view(&balance, now_ms),
        steps: FirstSteps::load(&app, account)?,
        rows: latest(&app, &ViewedAccount::own(&user.account.id))?,
        month: spending::monthly_spending(
            &app.billing
                .ledger()
                .pages()
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
