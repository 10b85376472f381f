//! Shows the statement of an account, on a page, on paper and as a CSV file. It contains the
//! balance and the changes by month, and each change as a line.
//!
//! All times are UTC, and the pages say so. Amounts are exact, because rounded ones would not add
//! up on paper. This module must not add up entries.

mod query;

use super::csv::{CsvFile, write_quoted};
use super::display::{Credits, Timestamp, group_digits};
use super::error::PageError;
use super::form::{self, FormFault};
use super::page::{Frame, html};
use super::page_cursor::format_cursor;
use super::session::CurrentUser;
use super::state::SidecarState;
use super::stream_slots::StreamSlot;
use crate::billing::activity::ActivityCursor;
use crate::billing::statement::{StatementLine, StatementMonth, StatementSource};
use askama::Template;
use axum::Router;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::get;
use base::clock::{now_ms, rfc3339};
use query::{StatementPeriod, StatementQuery, day_text, month_text};
use std::fmt::Write;
use std::sync::Arc;

const LINES_PER_PAGE: u32 = 200;

/// Number of lines that a download reads at a time.
const LINES_PER_READ: u32 = 1_000;

const CSV_HEADER: &str = "time,kind,reference,reason,request_id,change,balance_after\r\n";

pub fn routes() -> Router<Arc<SidecarState>> {
    Router::new()
        .route("/dashboard/statement", get(statement))
        .route("/dashboard/statement.csv", get(download))
}

#[derive(Template)]
#[template(path = "statement.html")]
struct StatementPage {
    frame: Frame,
    query: StatementQuery,
    fault: Option<FormFault>,
    /// First month in the form. The last month follows.
    from: String,
    to: String,
    months: Vec<StatementMonth>,
    /// True if the changes do not add up to the balance.
    is_wrong: bool,
    lines: Vec<StatementRow>,
    /// Cursor of the next page.
    older: Option<String>,
    email: String,
    base_url: String,
    made: Timestamp,
}

/// A line of the statement, formatted for the page.
struct StatementRow {
    /// Time of the change; `None` for the sum of a day's responses.
    at: Option<Timestamp>,
    day: String,
    kind: &'static str,
    reference: String,
    reason: String,
    /// Address and text of the line's link: a receipt, or the responses of a day.
    link: Option<(String, String)>,
    change: Credits,
    balance_after: Option<Credits>,
}

async fn statement(
    State(app): State<Arc<SidecarState>>,
    user: CurrentUser,
    query: Result<Query<StatementQuery>, QueryRejection>,
) -> Result<Response, PageError> {
    let Query(query) = query.map_err(|_| PageError::NotFound)?;
    let before = query.cursor()?;
    let account = &user.account.id;
    let now_ms = now_ms();
    let period = match query.read(now_ms) {
        Ok(period) => period,
        Err(fault) => return Ok(refuse_period(&app, &user, query, fault, now_ms)),
    };
    let mut page = empty_page(&app, &user, query, now_ms);
    let statement = app.billing.receipts().statement(account)?;
    let (from_day, to_day) = period.days();
    // One more line than the page shows is read, to know whether another page follows.
    let limit = LINES_PER_PAGE + 1;
    let lines = app
        .billing
        .receipts()
        .statement_lines(account, from_day, to_day, before, limit)?;
    let shown = lines
        .get(..lines.len().min(LINES_PER_PAGE as usize))
        .unwrap_or_default();
    page.older = shown
        .last()
        .filter(|_| lines.len() > shown.len())
        .map(|last| format_cursor(last.cursor));
    page.lines = shown.iter().map(row).collect();
    page.is_wrong = !statement.adds_up();
    page.frame.index_lag = app.billing.pages().index_lag();
    let months = statement.months_between(period.from, period.to);
    page.months = months.into_iter().rev().collect();
    (page.from, page.to) = (month_text(period.from), month_text(period.to));
    Ok(html(StatusCode::OK, &page))
}

fn empty_page(
    app: &SidecarState,
    user: &CurrentUser,
    query: StatementQuery,
    now_ms: i64,
) -> StatementPage {
    StatementPage {
        frame: Frame::new("Statement", user),
        fault: None,
        from: query.from.clone(),
        to: query.to.clone(),
        query,
        months: Vec::new(),
        is_wrong: false,
        lines: Vec::new(),
        older: None,
        email: user.account.label().to_owned(),
        base_url: app.settings.load().base_url.clone(),
        made: Timestamp(now_ms),
    }
}

/// Shows the form again with its fault, for the page and for a file that cannot be created.
fn refuse_period(
    app: &SidecarState,
    user: &CurrentUser,
    query: StatementQuery,
    fault: FormFault,
    now_ms: i64,
) -> Response {
    let page = StatementPage {
        fault: Some(fault),
        ..empty_page(app, user, query, now_ms)
    };
    html(StatusCode::UNPROCESSABLE_ENTITY, &page)
}

async fn download(
    State(app): State<Arc<SidecarState>>,
    user: CurrentUser,
    query: Result<Query<StatementQuery>, QueryRejection>,
) -> Result<Response, PageError> {
    let Query(query) = query.map_err(|_| PageError::NotFound)?;
    let now_ms = now_ms();
    let period = match query.read(now_ms) {
        Ok(period) => period,
        Err(fault) => return Ok(refuse_period(&app, &user, query, fault, now_ms)),
    };
    let slot = StreamSlot::try_acquire(&app.streams, &user.person.id, &app.settings.load().limits)
        .ok_or(PageError::Busy)?;
    let account = user.account.id;
    let (from_day, to_day) = period.days();
    let billing = app.billing.clone();
    let start: Option<ActivityCursor> = None;
    let file = CsvFile::new(slot, CSV_HEADER, start, move |before| {
        let lines = billing.receipts().statement_lines(
            &account,
            from_day,
            to_day,
            before,
            LINES_PER_READ,
        )?;
        let mut text = String::new();
        lines.iter().for_each(|line| write_line(&mut text, line));
        let is_last = lines.len() < LINES_PER_READ as usize;
        let next = lines.last().filter(|_| !is_last);
        Ok((text, next.map(|last| Some(last.cursor))))
    });
    Ok(file.into_response(&file_name(&period)))
}

fn file_name(period: &StatementPeriod) -> String {
    let (from, to) = (month_text(period.from), month_text(period.to));
    if from == to {
        format!("statement-{from}.csv")
    } else {
        format!("statement-{from}-to-{to}.csv")
    }
}

fn kind_label(kind: &str) -> &'static str {
    match kind {
        "trial" => "Trial",
        "grant" => "Grant",
        "topup" => "Top-up",
        "refund" => "Refund",
        "adjust" => "Correction",
        "bonus" => "Bonus",
        "payment_refund" => "Payment refunded",
        "dispute" => "Payment disputed",
        "code" => "Code redeemed",
        "lapse" => "Trial ended: unused credits removed",
        _ => "Other",
    }
}

/// Returns the reference of an entry, if a person chose it.
fn shown_reference<'a>(kind: &str, reference: &'a str) -> &'a str {
    match kind {
        "trial" | "lapse" => "",
        _ => reference,
    }
}

fn row(line: &StatementLine) -> StatementRow {
    let change = Credits(line.change);
    match &line.source {
        StatementSource::Responses { day, count } => {
            let text = day_text(*day);
            let url = format!("/dashboard/activity?from={text}&to={text}");
            StatementRow {
                at: None,
                day: text,
                kind: "Responses",
                reference: String::new(),
                reason: String::new(),
                link: Some((url, responses(*count))),
                change,
                balance_after: None,
            }
        }
        StatementSource::Posting {
            kind,
            reference,
            reason,
            request_id,
            balance_after,
        } => StatementRow {
            at: Some(Timestamp(line.cursor.at_ms)),
            day: String::new(),
            kind: kind_label(kind),
            reference: shown_reference(kind, reference).to_owned(),
            reason: reason.clone().unwrap_or_default(),
            link: request_id
                .as_ref()
                .map(|id| (format!("/dashboard/activity/{id}"), "Receipt".to_owned())),
            change,
            balance_after: Some(Credits(*balance_after)),
        },
    }
}

fn responses(count: u64) -> String {
    match count {
        1 => "1 response".to_owned(),
        count => format!("{} responses", group_digits(count)),
    }
}

/// Writes a line of the file. Amounts are exact; the line of a day's responses has the day's date
/// and no balance.
fn write_line(text: &mut String, line: &StatementLine) {
    let (time, kind, reference, reason, request_id, balance) = match &line.source {
        StatementSource::Responses { day, count } => {
            let count = if *count == 1 {
                "1 response".to_owned()
            } else {
                format!("{count} responses")
            };
            (day_text(*day), "Responses", count, "", "", None)
        }
        StatementSource::Posting {
            kind,
            reference,
            reason,
            request_id,
            balance_after,
        } => (
            rfc3339(line.cursor.at_ms),
            kind_label(kind),
            shown_reference(kind, reference).to_owned(),
            reason.as_deref().unwrap_or_default(),
            request_id.as_deref().unwrap_or_default(),
            Some(balance_after),
        ),
    };
    for word in [&time, kind, &reference, reason, request_id] {
        write_quoted(text, word);
        text.push(',');
    }
    let _ = write!(text, "{},", line.change);
    if let Some(balance) = balance {
        let _ = write!(text, "{balance}");
    }
    text.push_str("\r\n");
}
