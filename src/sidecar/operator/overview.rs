//! Serves the first page of operators. It shows the spending of all accounts by model, vendor or
//! account, the outcomes of requests in this process, and the search for an id.
//!
//! All sums come from the ledger's daily totals. This file must not change data or read entries.

use super::super::authz::Operator;
use super::super::blocking::run_blocking;
use super::super::display::{BalanceAmount, Credits, group_digits, percent};
use super::super::error::PageError;
use super::super::page::{Frame, html};
use super::super::spending::{
    SpendingChoice, SpendingGroup, SpendingPeriod, SpendingReport, encode, model_order,
};
use super::super::state::SidecarState;
use accounts::AccountStatus;
use askama::Template;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use base::clock::now_ms;
use base::telemetry::model_requests::{ModelRequests, model_requests};
use config::Settings;
use credits::money::Micro;
use ledger::{DailyTotal, SpendTotals, StoreError, UsageInterval, UsageQuery, UsageRow, UsageSpan};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

const DAY_MS: i64 = 86_400_000;

/// Number of days of write-offs in the sum, including today. Days are UTC.
const WRITEOFF_DAYS: i64 = 30;

/// Number of accounts in the list of top spenders, which the chart by account shows too.
const TOP_ACCOUNTS: u32 = 7;

/// Time ranges of the page: value in the URL, text, and number of days.
const RANGES: [(&str, &str, i64); 3] = [
    ("7d", "7 days", 7),
    ("30d", "30 days", 30),
    ("90d", "90 days", 90),
];

/// Groupings of the page: value in the URL, and text.
const GROUPS: [(&str, &str, SpendingGroup); 3] = [
    ("model", "By model", SpendingGroup::Model),
    ("vendor", "By vendor", SpendingGroup::Vendor),
    ("account", "By account", SpendingGroup::Account),
];

/// The page's query. An unknown value means the default.
#[derive(Deserialize, Default)]
#[serde(default)]
pub struct OperatorOverviewQuery {
    range: String,
    by: String,
}

struct Totals {
    active: String,
    suspended: String,
    deleted: String,
    balances: BalanceAmount,
    spent_today: Credits,
    writeoffs: Credits,
}

struct GroupRow {
    name: String,
    url: Option<String>,
    colour: usize,
    percent: u64,
    credits: Credits,
    responses: String,
    tokens_in: String,
    tokens_out: String,
}

struct TopAccount {
    id: String,
    email: String,
    credits: Credits,
    responses: String,
}

#[derive(Template)]
#[template(path = "operator.html")]
struct OperatorOverviewPage {
    frame: Frame,
    totals: Totals,
    ranges: Vec<SpendingChoice>,
    groups: Vec<SpendingChoice>,
    report: SpendingReport,
    rows: Vec<GroupRow>,
    top: Vec<TopAccount>,
    /// Outcomes of requests since this process started; `None` if the process serves no requests.
    requests: Option<Vec<RequestsRow>>,
    range_text: &'static str,
    is_by_vendor: bool,
    is_by_account: bool,
}

/// Outcomes of one model's requests since this process started.
struct RequestsRow {
    model: String,
    requests: String,
    failed: String,
    failed_percent: u64,
    has_failed: bool,
    refused: String,
    /// Median of the durations, as text.
    median: String,
    p95: String,
}

/// Data that the page reads from the ledger and from `app.db`.
struct Loaded {
    totals: Totals,
    rows: Vec<UsageRow>,
    top: Vec<TopAccount>,
    emails: BTreeMap<String, String>,
}

pub async fn show(
    State(app): State<Arc<SidecarState>>,
    Operator { user, .. }: Operator,
    query: Result<Query<OperatorOverviewQuery>, QueryRejection>,
) -> Result<Response, PageError> {
    let Query(query) = query.map_err(|_| PageError::NotFound)?;
    let (range, range_text, days) = *RANGES
        .iter()
        .find(|(value, ..)| *value == query.range)
        .unwrap_or(&RANGES[1]);
    let (by, _, group) = *GROUPS
        .iter()
        .find(|(value, ..)| *value == query.by)
        .unwrap_or(&GROUPS[0]);
    let now_ms = now_ms();
    let period = SpendingPeriod::from_last_days(days, now_ms);
    let work = Arc::clone(&app);
    let loaded = run_blocking(move || load(&work, days, group, now_ms)).await??;
    let settings = app.settings.load();
    let order = model_order(&settings);
    let mut report = SpendingReport::new(&period, group, &loaded.rows, &order);
    let name = |id: &str| loaded.emails.get(id).cloned();
    for (series, row) in report.series.iter_mut().zip(&report.groups) {
        if let Some(name) = row.id.as_deref().and_then(name) {
            series.name = name;
        }
    }
    let rows = report.groups.iter().map(|row| GroupRow {
        name: row
            .id
            .as_deref()
            .and_then(name)
            .unwrap_or_else(|| row.name.clone()),
        url: row.id.as_deref().and_then(|id| match group {
            SpendingGroup::Account => Some(format!("/dashboard/operator/accounts/{id}")),
            SpendingGroup::Model => Some("/dashboard/operator/models".to_owned()),
            _ => None,
        }),
        colour: row.colour,
        percent: row.sum.percent,
        credits: row.sum.credits,
        responses: row.sum.responses.clone(),
        tokens_in: row.sum.tokens_in.clone(),
        tokens_out: row.sum.tokens_out.clone(),
    });
    let rows = rows.collect();
    let page = OperatorOverviewPage {
        frame: Frame::new("Overview", &user)
            .with_charts()
            .with_index_lag(app.billing.pages().index_lag()),
        totals: loaded.totals,
        ranges: choices(
            RANGES.map(|(value, text, _)| (value, text)),
            "range",
            range,
            ("by", by),
        ),
        groups: choices(
            GROUPS.map(|(value, text, _)| (value, text)),
            "by",
            by,
            ("range", range),
        ),
        report,
        rows,
        top: loaded.top,
        requests: app
            .endpoint_registry
            .is_some()
            .then(|| model_requests().into_iter().map(requests_row).collect()),
        range_text,
        is_by_vendor: group == SpendingGroup::Vendor,
        is_by_account: group == SpendingGroup::Account,
    };
    Ok(html(StatusCode::OK, &page))
}

fn choices<const N: usize>(
    all: [(&'static str, &'static str); N],
    field: &str,
    chosen: &str,
    kept: (&str, &str),
) -> Vec<SpendingChoice> {
    let choice = |(value, text)| SpendingChoice {
        text,
        url: format!("?{}", encode(&[(field, value), kept])),
        chosen: value == chosen,
    };
    all.into_iter().map(choice).collect()
}

fn load(
    app: &SidecarState,
    days: i64,
    group: SpendingGroup,
    now_ms: i64,
) -> Result<Loaded, StoreError> {
    let today = now_ms.div_euclid(DAY_MS);
    let pages = app.billing.ledger().pages();
    let first = today - days.max(WRITEOFF_DAYS) + 1;
    // A request that ends while this page is built can count on the next day.
    let totals = pages.daily_totals(first, today + 2)?;
    let spenders = pages.spend_by_account(today - days + 1, today + 2, TOP_ACCOUNTS)?;
    let mut emails = BTreeMap::new();
    for (id, _) in &spenders {
        if let Some(account) = app.accounts.find(id)? {
            emails.insert(id.clone(), account.label().to_owned());
        }
    }
    let of_period = totals.iter().filter(|day| day.day > today - days);
    let rows = match group {
        SpendingGroup::Account => account_rows(app, &spenders, today - days + 1, today + 1)?,
        SpendingGroup::Vendor => vendor_rows(app, of_period),
        _ => of_period
            .map(|day| usage_row(day.day, day.model.clone(), day.sum))
            .collect(),
    };
    let top = spenders.iter().map(|(id, sum)| TopAccount {
        id: id.clone(),
        email: emails.get(id).unwrap_or(id).clone(),
        credits: Credits(sum.credits),
        responses: group_digits(sum.responses),
    });
    let sum_of = |first_day, amount: fn(&DailyTotal) -> Micro| {
        let days = totals.iter().filter(|day| day.day >= first_day);
        Credits(days.fold(Micro::ZERO, |sum, day| sum.plus(amount(day))))
    };
    let counts = app.accounts.directory().count()?;
    // Nobody can spend the credits of a deleted account.
    let deleted: Vec<_> = (app.accounts.directory().page(None, u32::MAX)?.into_iter())
        .filter(|account| account.status == AccountStatus::Deleted)
        .map(|account| account.id)
        .collect();
    let ledger = app.billing.ledger().rows();
    let of_deleted = ledger.balances(&deleted, now_ms)?;
    let balances = (of_deleted.into_values())
        .fold(ledger.balance_total(now_ms)?, |sum, balance| {
            sum.minus(balance)
        });
    Ok(Loaded {
        totals: Totals {
            active: group_digits(counts.active),
            suspended: group_digits(counts.suspended),
            deleted: group_digits(counts.deleted),
            balances: BalanceAmount(balances),
            spent_today: sum_of(today, |day| day.sum.credits),
            writeoffs: sum_of(today - WRITEOFF_DAYS + 1, |day| day.writeoff),
        },
        rows,
        top: top.collect(),
        emails,
    })
}

/// Returns a row of usage by day; `name` is what the chart groups by.
fn usage_row(day: i64, name: String, sum: SpendTotals) -> UsageRow {
    UsageRow {
        time: day,
        model: name,
        key_id: String::new(),
        member: String::new(),
        sum,
    }
}

fn vendor_rows<'d>(
    app: &SidecarState,
    totals: impl Iterator<Item = &'d DailyTotal>,
) -> Vec<UsageRow> {
    let vendors = vendors_of_models(&app.settings.load());
    totals
        .map(|day| {
            let vendor = vendors.get(&day.model).cloned();
            let vendor = vendor.unwrap_or_else(|| "not in the config file".to_owned());
            usage_row(day.day, vendor, day.sum)
        })
        .collect()
}

fn account_rows(
    app: &SidecarState,
    accounts: &[(String, SpendTotals)],
    from_day: i64,
    to_day: i64,
) -> Result<Vec<UsageRow>, StoreError> {
    let query = UsageQuery {
        interval: Some(UsageInterval::Unit),
        ..UsageQuery::new(UsageSpan::Days(from_day, to_day))
    };
    let mut rows = Vec::new();
    for (id, _) in accounts {
        let usage = (app.billing.ledger().pages()).usage(id, &query, None, u32::MAX)?;
        rows.extend((usage.into_iter()).map(|it| usage_row(it.time, id.clone(), it.sum)));
    }
    Ok(rows)
}

fn requests_row(sum: ModelRequests) -> RequestsRow {
    let within = |percent| match sum.seconds_within(percent) {
        Some(seconds) if seconds < 1.0 => {
            format!("{} ms", Duration::from_secs_f64(seconds).as_millis())
        }
        Some(seconds) => format!("{seconds} s"),
        None => "–".to_owned(),
    };
    RequestsRow {
        median: within(50),
        p95: within(95),
        requests: group_digits(sum.requests),
        failed: group_digits(sum.failed),
        failed_percent: percent(sum.failed, sum.requests),
        has_failed: sum.failed > 0,
        refused: group_digits(sum.refused),
        model: sum.model,
    }
}

/// Returns the vendor of each model according to the current config file.
fn vendors_of_models(settings: &Settings) -> BTreeMap<String, String> {
    let models = settings.catalog.models().iter();
    models
        .map(|model| (model.id.clone(), model.vendor.name.clone()))
        .collect()
}
