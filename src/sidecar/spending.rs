//! Shows spending, by model, key, member or time, on a page of its own and on the overview.
//!
//! All times are UTC, and the pages say so. This module must read the ledger's sums instead of
//! entries. The exception is cache savings, for which no sums exist, so the page reads the latest
//! entries.

mod colours;
mod month;
mod query;
mod rate;
mod report;

use super::assets::SPENDING_SCRIPT;
use super::display::Credits;
use super::error::PageError;
use super::form::{self, FormFault};
use super::key_names::KeyNames;
use super::page::{Frame, html};
use super::session::CurrentUser;
use super::state::SidecarState;
use super::viewed_account::ViewedAccount;
use crate::billing::activity::ActivityFilter;
use accounts::Member;
use askama::Template;
use axum::Router;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::get;
use base::clock::now_ms;
use config::Settings;
use ledger::UsageQuery;
pub use month::{MonthlySpending, first_hour_of_month, monthly_spending};
pub use query::{SpendingChoice, SpendingGroup, SpendingPeriod, SpendingQuery, encode};
pub use rate::{SpendRate, SpendableFunds, format_time_left};
pub use report::SpendingReport;
use std::sync::Arc;

/// Maximum number of sums that one page adds up. It suffices for ten years of several hundred keys.
const MAX_USAGE_ROWS: u32 = 50_000;

/// Maximum number of responses whose cache savings a page adds up, which takes milliseconds.
const MAX_SAVINGS_RESPONSES: u16 = 1_000;

pub fn routes() -> Router<Arc<SidecarState>> {
    Router::new().route("/dashboard/spending", get(spending))
}

#[derive(Template)]
#[template(path = "spending.html")]
struct SpendingPage {
    frame: Frame,
    viewed: ViewedAccount,
    ranges: Vec<SpendingChoice>,
    groups: Vec<SpendingChoice>,
    query: SpendingQuery,
    fault: Option<FormFault>,
    report: Option<SpendingReport>,
    savings: CacheSavings,
}

/// Cache savings in the latest responses of a report's period.
#[derive(Default)]
struct CacheSavings {
    saved: Credits,
    /// True if more responses exist than were counted.
    is_cut: bool,
}

/// Returns the catalog's models, in the order that determines their colours on charts.
pub fn model_order(settings: &Settings) -> Vec<&str> {
    let models = settings.catalog.models().iter();
    models.map(|model| model.id.as_str()).collect()
}

async fn spending(
    State(app): State<Arc<SidecarState>>,
    user: CurrentUser,
    query: Result<Query<SpendingQuery>, QueryRejection>,
) -> Result<Response, PageError> {
    let Query(query) = query.map_err(|_| PageError::NotFound)?;
    show_spending(&app, &user, ViewedAccount::own(&user.account.id), query)
}

/// Shows the spending of `viewed`, for its holder or an operator.
pub fn show_spending(
    app: &SidecarState,
    user: &CurrentUser,
    viewed: ViewedAccount,
    query: SpendingQuery,
) -> Result<Response, PageError> {
    let now_ms = now_ms();
    let read = query.read(now_ms);
    let members = app.accounts.organisations().members(&viewed.id)?;
    let loaded = match read {
        Ok((period, group)) => load(app, &viewed.id, &members, &period, group)?,
        Err(fault) => Err(fault),
    };
    let (status, report, fault) = match loaded {
        Ok(report) => (StatusCode::OK, Some(report), None),
        Err(fault) => (StatusCode::UNPROCESSABLE_ENTITY, None, Some(fault)),
    };
    let savings = match &report {
        Some(report) => savings(app, &viewed.id, &report.period)?,
        None => CacheSavings::default(),
    };
    let page = SpendingPage {
        frame: Frame::new("Spending", user)
            .with_index_lag(app.billing.pages().index_lag())
            .with_charts()
            .with_script(&SPENDING_SCRIPT),
        ranges: query.range_choices(),
        groups: query.group_choices(!members.is_empty()),
        query,
        fault,
        report,
        savings,
        viewed,
    };
    Ok(html(status, &page))
}

/// Reads the sums. The inner error is a text for the user.
fn load(
    app: &SidecarState,
    account: &str,
    members: &[Member],
    period: &SpendingPeriod,
    group: SpendingGroup,
) -> Result<Result<SpendingReport, FormFault>, PageError> {
    let usage_query = UsageQuery {
        interval: Some(period.interval),
        by_model: group == SpendingGroup::Model,
        by_key: group == SpendingGroup::Key,
        by_member: group == SpendingGroup::Member,
        ..UsageQuery::new(period.span)
    };
    let rows =
        app.billing
            .ledger()
            .pages()
            .usage(account, &usage_query, None, MAX_USAGE_ROWS + 1)?;
    if rows.len() > MAX_USAGE_ROWS as usize {
        let fault = "There are too many keys and models for one page. Choose fewer days.";
        return Ok(Err(FormFault::at("from", fault)));
    }
    let settings = app.settings.load();
    let order = model_order(&settings);
    let mut report = SpendingReport::new(period, group, &rows, &order);
    if group == SpendingGroup::Key {
        let ids = report.group_ids().into_iter();
        let names = KeyNames::load(&app.accounts, account, ids)?;
        report.name_keys(&names);
    }
    if group == SpendingGroup::Member {
        report.name_members(members);
    }
    Ok(Ok(report))
}

fn savings(
    app: &SidecarState,
    account: &str,
    period: &SpendingPeriod,
) -> Result<CacheSavings, PageError> {
    let (from_ms, to_ms) = period.times_ms();
    let filter = ActivityFilter {
        from_ms: Some(from_ms),
        to_ms: Some(to_ms),
        ..ActivityFilter::default()
    };
    let (saved, is_cut) =
        app.billing
            .pages()
            .cache_savings(account, &filter, MAX_SAVINGS_RESPONSES)?;
    Ok(CacheSavings {
        saved: Credits(saved),
        is_cut,
    })
}
