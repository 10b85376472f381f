//! Billed responses: a filtered table, its CSV download, and the receipt of each response. An
//! account never sees another account's responses.

mod download;
mod receipt;

use super::SidecarState;
use super::error::PageError;
use super::page::{Frame, format_time, group_digits, html};
use super::session::CurrentUser;
use crate::billing::activity::{ActivityCursor, ActivityFilter, RequestOutcome};
use crate::billing::{Billing, Receipt};
use crate::clock::day_start_ms;
use crate::store::StoreError;
use askama::Template;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::Response;
pub use download::download;
pub use receipt::receipt;
use serde::Deserialize;
use std::sync::Arc;

/// Rows per page.
const ROWS_PER_PAGE: u32 = 50;

/// Number of responses that the overview shows.
const LATEST_ROWS: u32 = 5;

const DAY_MS: i64 = 86_400_000;

/// A response in a table.
pub struct ActivityRow {
    pub request_id: String,
    pub at: String,
    pub model: String,
    pub surface: &'static str,
    pub key: String,
    pub outcome: &'static str,
    /// The response was delivered incompletely or not at all.
    pub is_odd: bool,
    pub tokens_in: String,
    pub cached: String,
    pub tokens_out: String,
    pub credits: String,
    pub estimated: bool,
}

/// Filters from the URL's query. An empty value means no filter.
#[derive(Deserialize, Default)]
#[serde(default)]
pub struct ActivityQuery {
    key: String,
    model: String,
    outcome: String,
    from: String,
    to: String,
    /// Position of the last row of the previous page.
    before: String,
}

/// An option of a filter.
struct FilterOption {
    value: String,
    name: String,
    chosen: bool,
}

#[derive(Template)]
#[template(path = "activity.html")]
struct ActivityPage {
    frame: Frame,
    keys: Vec<FilterOption>,
    models: Vec<FilterOption>,
    outcomes: Vec<FilterOption>,
    asked: ActivityQuery,
    is_filtered: bool,
    fault: Option<&'static str>,
    rows: Vec<ActivityRow>,
    older: Option<String>,
    rows_most: String,
}

impl ActivityQuery {
    /// # Errors
    /// Returns what is wrong with the filter, as a text for the user.
    fn filter(&self) -> Result<ActivityFilter, &'static str> {
        let given = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let day = |text: &str| match text {
            "" => Ok(None),
            text => day_start_ms(text)
                .map(Some)
                .ok_or("Write a day as 2026-11-21."),
        };
        let outcome = match self.outcome.as_str() {
            "" => None,
            name => Some(
                *RequestOutcome::ALL
                    .iter()
                    .find(|outcome| outcome.as_str() == name)
                    .ok_or("Unknown outcome. Choose one from the list.")?,
            ),
        };
        let (from_ms, to_ms) = (
            day(&self.from)?,
            day(&self.to)?.map(|start_ms| start_ms.saturating_add(DAY_MS)),
        );
        if from_ms.zip(to_ms).is_some_and(|(from, to)| from >= to) {
            return Err("The first day must not be after the last day.");
        }
        Ok(ActivityFilter {
            model: given(&self.model),
            key_id: given(&self.key),
            outcome,
            conversation: None,
            from_ms,
            to_ms,
        })
    }

    fn cursor(&self) -> Result<Option<ActivityCursor>, PageError> {
        if self.before.is_empty() {
            return Ok(None);
        }
        let place = || {
            let (at_ms, seq) = self.before.split_once('.')?;
            Some(ActivityCursor {
                at_ms: at_ms.parse().ok()?,
                seq: seq.parse().ok()?,
            })
        };
        place().map(Some).ok_or(PageError::NotFound)
    }

    fn is_filtered(&self) -> bool {
        [&self.key, &self.model, &self.outcome, &self.from, &self.to]
            .iter()
            .any(|text| !text.is_empty())
    }
}

pub fn rows(receipts: &[Receipt]) -> Vec<ActivityRow> {
    receipts.iter().map(row).collect()
}

/// The latest responses.
pub fn latest(billing: &Billing, account: &str) -> Result<Vec<ActivityRow>, StoreError> {
    Ok(rows(&billing.activity(
        account,
        &ActivityFilter::default(),
        None,
        LATEST_ROWS,
    )?))
}

fn row(receipt: &Receipt) -> ActivityRow {
    let detail = &receipt.detail;
    let usage = &detail.usage;
    ActivityRow {
        request_id: receipt.request_id.clone(),
        at: format_time(receipt.at_ms),
        model: detail.model.clone(),
        surface: detail.surface.as_str(),
        key: detail.key_shown.clone(),
        outcome: outcome_label(detail.outcome),
        is_odd: detail.outcome != RequestOutcome::Completed,
        tokens_in: group_digits(usage.input_total()),
        cached: group_digits(usage.cache_read),
        tokens_out: group_digits(usage.output_total()),
        credits: receipt.credits.to_string(),
        estimated: detail.estimated,
    }
}

fn outcome_label(outcome: RequestOutcome) -> &'static str {
    match outcome {
        RequestOutcome::Completed => "completed",
        RequestOutcome::ClientLeft => "client disconnected",
        RequestOutcome::GatewayEnded => "stopped by the gateway",
        RequestOutcome::RefusedFree => "refused, free",
        RequestOutcome::VendorError => "vendor error",
        RequestOutcome::VendorCut => "cut off by the vendor",
        RequestOutcome::Interrupted => "interrupted",
    }
}

pub async fn list(
    State(app): State<Arc<SidecarState>>,
    visitor: CurrentUser,
    asked: Result<Query<ActivityQuery>, QueryRejection>,
) -> Result<Response, PageError> {
    let Query(asked) = asked.map_err(|_| PageError::NotFound)?;
    let before = asked.cursor()?;
    let account = &visitor.account.id;
    let (status, receipts, fault) = match asked.filter() {
        // One more row than is shown, to know whether there is another page.
        Ok(filter) => (
            StatusCode::OK,
            app.billing
                .activity(account, &filter, before, ROWS_PER_PAGE + 1)?,
            None,
        ),
        Err(fault) => (StatusCode::UNPROCESSABLE_ENTITY, Vec::new(), Some(fault)),
    };
    let page_rows = usize::try_from(ROWS_PER_PAGE).unwrap_or(usize::MAX);
    let shown = receipts
        .get(..page_rows.min(receipts.len()))
        .unwrap_or_default();
    let older = shown
        .last()
        .filter(|_| receipts.len() > page_rows)
        .map(|last| {
            let ActivityCursor { at_ms, seq } = last.cursor();
            format!("{at_ms}.{seq}")
        });
    let page = ActivityPage {
        frame: Frame::new("Activity", &visitor),
        keys: key_choices(&app, account, &asked.key)?,
        models: model_choices(&app, &asked.model),
        outcomes: outcome_choices(&asked.outcome),
        is_filtered: asked.is_filtered(),
        fault,
        rows: rows(shown),
        older,
        rows_most: group_digits(download::MAX_ROWS.into()),
        asked,
    };
    Ok(html(status, &page))
}

fn key_choices(
    app: &SidecarState,
    account: &str,
    chosen: &str,
) -> Result<Vec<FilterOption>, PageError> {
    let keys = app.accounts.keys(account)?;
    let choice = |key: crate::account::ApiKey| FilterOption {
        chosen: key.id == chosen,
        name: format!("{} ({})", key.name, key.shown),
        value: key.id,
    };
    Ok(keys.into_iter().map(choice).collect())
}

/// Models of the catalog, and the chosen one: a model that was removed from the catalog may still
/// have billed responses.
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
    RequestOutcome::ALL.into_iter().map(choice).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(change: impl FnOnce(&mut ActivityQuery)) -> ActivityQuery {
        let mut asked = ActivityQuery::default();
        change(&mut asked);
        asked
    }

    #[test]
    fn the_last_day_of_a_filter_is_in_it() {
        let filter = asked(|asked| {
            asked.from = "1970-01-02".into();
            asked.to = "1970-01-02".into();
            asked.outcome = "vendor_cut".into();
        });
        let expected = ActivityFilter {
            outcome: Some(RequestOutcome::VendorCut),
            from_ms: Some(DAY_MS),
            to_ms: Some(2 * DAY_MS),
            ..ActivityFilter::default()
        };
        assert_eq!(filter.filter(), Ok(expected));
        assert_eq!(asked(|_| ()).filter(), Ok(ActivityFilter::default()));
        for wrong in [
            asked(|asked| asked.from = "yesterday".into()),
            asked(|asked| asked.to = "2026-02-30".into()),
            asked(|asked| asked.outcome = "lost".into()),
            asked(|asked| {
                asked.from = "1970-01-03".into();
                asked.to = "1970-01-02".into();
            }),
        ] {
            assert!(wrong.filter().is_err());
        }
    }

    #[test]
    fn a_page_begins_at_a_place_or_nowhere() {
        let place = |text: &str| asked(|asked| asked.before = text.into()).cursor();
        assert!(matches!(
            place("17.-3"),
            Ok(Some(ActivityCursor { at_ms: 17, seq: -3 }))
        ));
        assert!(matches!(place(""), Ok(None)));
        for bad in ["17", "17.", "x.1", "17.1.1", "99999999999999999999.1"] {
            assert!(matches!(place(bad), Err(PageError::NotFound)), "{bad}");
        }
    }
}
