//! Shows billed responses and refused requests as a filtered table, as a CSV download, and with one
//! page each. An account never sees another account's responses.

mod download;
mod list;
mod query;
mod receipt;
mod refused;
mod row;

use super::display::{Credits, group_digits};
use super::error::PageError;
use super::form::{self, FormFault};
use super::page::{Frame, html};
use super::page_cursor::format_cursor;
use super::session::CurrentUser;
use super::state::SidecarState;
use super::viewed_account::{ViewedAccount, encode_segment};
use crate::billing::activity::{ActivityFilter, RequestOutcome};
use crate::refused_requests::{KEPT_DAYS, MAX_LISTED, or_left_out};
use accounts::db::KeyFilter;
use askama::Template;
use axum::Router;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;
use base::clock::now_ms;
use credits::limits::day_number;
use download::download;
pub use download::show_download;
use ledger::{UsageQuery, UsageRow, UsageSpan};
pub use list::latest;
pub use query::ActivityQuery;
use query::{REFUSED, restrict};
use receipt::receipt;
pub use receipt::show_receipt;
pub use row::ActivityRow;
use row::outcome_label;
use std::sync::Arc;

const DAY_MS: i64 = 86_400_000;

const ROWS_PER_PAGE: u32 = 50;

pub fn routes() -> Router<Arc<SidecarState>> {
    Router::new()
        .route("/dashboard/activity", get(list))
        .route("/dashboard/activity.csv", get(download))
        .route("/dashboard/activity/{request_id}", get(receipt))
}

struct FilterOption {
    value: String,
    name: String,
    chosen: bool,
}

/// Maximum number of keys of which the filter offers the newest.
const MAX_KEY_CHOICES: u32 = 50;

#[derive(Template)]
#[template(path = "activity.html")]
struct ActivityPage {
    frame: Frame,
    viewed: ViewedAccount,
    keys: Vec<FilterOption>,
    models: Vec<FilterOption>,
    outcomes: Vec<FilterOption>,
    query: ActivityQuery,
    is_filtered: bool,
    fault: Option<FormFault>,
    /// Sum of the costs of all responses that match the filter, not only of this page.
    total: Option<ActivityTotal>,
    rows: Vec<ActivityRow>,
    older: Option<String>,
    max_rows: String,
    /// Refused requests of the last days by status and code; `None` if this gateway keeps none.
    refused: Option<RefusedSummary>,
}

struct RefusedSummary {
    total: String,
    /// Pairs of a status with its code, and the number of requests.
    counts: Vec<(String, String)>,
    days: i64,
    max_listed: String,
}

struct ActivityTotal {
    responses: String,
    tokens_in: String,
    tokens_out: String,
    credits: Credits,
}

async fn list(
    State(app): State<Arc<SidecarState>>,
    user: CurrentUser,
    query: Result<Query<ActivityQuery>, QueryRejection>,
) -> Result<Response, PageError> {
    let Query(query) = query.map_err(|_| PageError::NotFound)?;
    let viewed = ViewedAccount::from_user(&user);
    let query = restrict(&app, &viewed, query)?;
    show_list(&app, &user, viewed, query)
}

/// Says what the id of a price list is. Holders have no page of a list.
const IS_PRICE_LIST: &str = "This is the id of a price list. The receipt of each response that was billed by it shows its \
                             prices.";

/// Shows the responses of `viewed`, for its holder or an operator.
pub fn show_list(
    app: &SidecarState,
    user: &CurrentUser,
    viewed: ViewedAccount,
    query: ActivityQuery,
) -> Result<Response, PageError> {
    let before = query.cursor()?;
    let account = &viewed.id;
    let mut read = query.filter();
    if !query.q.is_empty() && read.is_ok() {
        let id = query.q.trim();
        match find(app, &viewed, id)? {
            Some(path) => return Ok(Redirect::to(&path).into_response()),
            None => {
                let fault = match app.billing.pages().price_list(id)? {
                    Some(_) => IS_PRICE_LIST,
                    None => "No response or conversation of this account has this id.",
                };
                read = Err(FormFault::at("q", fault));
            }
        }
    }
    let responses = read
        .as_ref()
        .ok()
        .and_then(|filter| filter.responses.as_ref());
    let total = match responses {
        Some(filter) => total(app, account, filter)?,
        None => None,
    };
    let (status, (rows, older), fault) = match read {
        Ok(filter) => (
            StatusCode::OK,
            list::list(app, &viewed, &filter, before, ROWS_PER_PAGE)?,
            None,
        ),
        Err(fault) => (
            StatusCode::UNPROCESSABLE_ENTITY,
            Default::default(),
            Some(fault),
        ),
    };
    let page = ActivityPage {
        frame: Frame::new("Activity", user).with_index_lag(app.billing.pages().index_lag()),
        keys: key_choices(app, &viewed, &query.key)?,
        models: model_choices(app, &query.model),
        outcomes: outcome_choices(&query.outcome),
        is_filtered: query.is_filtered(),
        fault,
        total,
        rows,
        older: older.map(format_cursor),
        refused: match viewed.member {
            Some(_) => None,
            None => refused_summary(app, account)?,
        },
        max_rows: group_digits(download::MAX_ROWS.into()),
        query,
        viewed,
    };
    Ok(html(status, &page))
}

/// Returns the page of the response or conversation with this id.
fn find(app: &SidecarState, viewed: &ViewedAccount, id: &str) -> Result<Option<String>, PageError> {
    let account = &viewed.id;
    if let Some(receipt) = app.billing.receipts().receipt(account, id)?
        && viewed.shows_key(&app.accounts, &receipt.detail.key_id)?
    {
        return Ok(Some(viewed.receipt_url(id)));
    }
    // What follows does not say whose key it was used for.
    if viewed.member.is_some() {
        return Ok(None);
    }
    if let Some(refused) = &app.refused {
        if refused.find(Some(account), id)?.is_some() {
            return Ok(Some(viewed.receipt_url(id)));
        }
        if let Some(note) = refused.find_note(Some(account), id)? {
            return Ok(Some(viewed.receipt_url(&note.request_id)));
        }
    }
    let found = app
        .billing
        .ledger()
        .pages()
        .conversation(account, id)?
        .is_some();
    let path = viewed.page_url("conversations");
    Ok(found.then(|| format!("{path}/{}", encode_segment(id))))
}

/// Counts the refused requests of the last days.
fn refused_summary(app: &SidecarState, account: &str) -> Result<Option<RefusedSummary>, PageError> {
    let Some(refused) = &app.refused else {
        return Ok(None);
    };
    let from_day = day_number(now_ms()) - KEPT_DAYS;
    let counts = or_left_out(refused.counts(account, from_day));
    let total = counts.iter().map(|count| count.requests).sum();
    Ok(Some(RefusedSummary {
        total: group_digits(total),
        counts: counts
            .into_iter()
            .map(|count| {
                let reason = format!("{} {}", count.status, count.code);
                (reason, group_digits(count.requests))
            })
            .collect(),
        days: KEPT_DAYS,
        max_listed: group_digits(MAX_LISTED.into()),
    }))
}

/// Adds up the debits that match the filter, because the ledger has no sums by outcome.
fn total(
    app: &SidecarState,
    account: &str,
    filter: &ActivityFilter,
) -> Result<Option<ActivityTotal>, PageError> {
    if filter.outcome.is_some() {
        return Ok(None);
    }
    let day = |at_ms: i64| at_ms.div_euclid(DAY_MS);
    let (from, to) = (
        filter.from_ms.map_or(i64::MIN, day),
        filter.to_ms.map_or(i64::MAX, day),
    );
    let query = UsageQuery {
        model: filter.model.clone(),
        key_id: filter.key_id.clone(),
        ..UsageQuery::new(UsageSpan::Days(from, to))
    };
    let rows = app
        .billing
        .ledger()
        .pages()
        .usage(account, &query, None, 1)?;
    Ok(rows.first().map(|UsageRow { sum, .. }| ActivityTotal {
        responses: group_digits(sum.responses),
        tokens_in: group_digits(sum.input),
        tokens_out: group_digits(sum.output),
        credits: Credits(sum.credits),
    }))
}

/// The newest keys that are not revoked, and the chosen one. The list of keys leads to the others.
fn key_choices(
    app: &SidecarState,
    viewed: &ViewedAccount,
    chosen: &str,
) -> Result<Vec<FilterOption>, PageError> {
    let account = &viewed.id;
    let keys = app.accounts.api_keys();
    let filter = KeyFilter {
        is_revoked: Some(false),
        member: viewed.member.as_deref(),
        now_ms: now_ms(),
        ..KeyFilter::default()
    };
    let mut listed = keys.page(account, &filter, None, MAX_KEY_CHOICES)?;
    if !chosen.is_empty()
        && listed.iter().all(|key| key.id != chosen)
        && let Some((_, key)) = keys.key(Some(account), chosen)?
    {
        listed.push(key);
    }
    let choice = |key: accounts::ApiKey| FilterOption {
        chosen: key.id == chosen,
        name: format!("{} ({})", key.name, key.shown),
        value: key.id,
    };
    Ok(listed.into_iter().map(choice).collect())
}

/// Returns the models of the catalog and the chosen one, since a model that was removed from the
/// catalog may still have billed responses.
fn model_choices(app: &SidecarState, chosen: &str) -> Vec<FilterOption> {
    let settings = app.settings.load();
    let mut ids: Vec<_> = settings
        .catalog
        .models()
        .iter()
        .map(|model| model.id.clone())
        .collect();
    if !chosen.is_empty() && !ids.iter().any(|id| id == chosen) {
        ids.push(chosen.to_owned());
    }
    ids.into_iter()
        .map(|id| FilterOption {
            chosen: id == chosen,
            name: id.clone(),
            value: id,
        })
        .collect()
}

fn outcome_choices(chosen: &str) -> Vec<FilterOption> {
    let choice = |outcome: RequestOutcome| FilterOption {
        value: outcome.as_str().to_owned(),
        name: outcome_label(outcome).to_owned(),
        chosen: outcome.as_str() == chosen,
    };
    let refused = FilterOption {
        value: REFUSED.to_owned(),
        name: REFUSED.to_owned(),
        chosen: chosen == REFUSED,
    };
    let responses = RequestOutcome::ALL.into_iter().map(choice);
    responses.chain([refused]).collect()
}
