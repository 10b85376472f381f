//! Serves the pages of conversations. A client resends the whole history with every turn, so the
//! pages show the cost of that and the savings through caching.
//!
//! A conversation's id reveals nothing about its content.

use super::display::{self, Credits, Timestamp, group_digits};
use super::error::PageError;
use super::page::{Frame, html};
use super::session::CurrentUser;
use super::state::SidecarState;
use super::viewed_account::ViewedAccount;
use crate::billing::Receipt;
use crate::billing::activity::{ActivityFilter, Conversation, RequestOutcome};
use askama::Template;
use axum::Router;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::get;
use credits::money::Micro;
use serde::Deserialize;
use std::sync::Arc;

const ROWS_PER_PAGE: u32 = 50;

/// Maximum number of turns that a page shows; the latest ones are shown.
const MAX_TURNS: u32 = 200;

pub fn routes() -> Router<Arc<SidecarState>> {
    Router::new()
        .route("/dashboard/conversations", get(list))
        .route("/dashboard/conversations/{id}", get(show))
}

#[derive(Template)]
#[template(path = "conversations.html")]
struct ConversationsPage {
    frame: Frame,
    rows: Vec<Conversation>,
    first: bool,
    older: Option<String>,
}

/// One turn: numbers for the chart, and their texts for the table.
struct TurnRow {
    number: u64,
    request_id: String,
    at: Timestamp,
    model: String,
    sent: u64,
    sent_text: String,
    cached: u64,
    cached_text: String,
    fresh: u64,
    fresh_text: String,
    tokens_out: String,
    credits: Credits,
    saved: Credits,
}

#[derive(Template)]
#[template(path = "conversation.html")]
struct ConversationPage<'v> {
    frame: Frame,
    viewed: &'v ViewedAccount,
    row: Conversation,
    turns: Vec<TurnRow>,
    /// True if older turns are not shown.
    is_cut: bool,
    /// Ratio of the tokens sent by the last turn shown to those sent by the first, in tenths.
    growth: Option<String>,
    saved: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct ConversationListQuery {
    /// Cursor: time of the latest turn in the last row of the previous page, and that row's id.
    before: String,
}

async fn list(
    State(app): State<Arc<SidecarState>>,
    user: CurrentUser,
    query: Result<Query<ConversationListQuery>, QueryRejection>,
) -> Result<Response, PageError> {
    let Query(ConversationListQuery { before }) = query.map_err(|_| PageError::NotFound)?;
    let cursor = match before.as_str() {
        "" => None,
        text => {
            let (last_ms, id) = text.split_once('.').ok_or(PageError::NotFound)?;
            Some((last_ms.parse().map_err(|_| PageError::NotFound)?, id))
        }
    };
    let found =
        app.billing
            .ledger()
            .pages()
            .conversations(&user.account.id, cursor, ROWS_PER_PAGE + 1)?;
    let page_rows = usize::try_from(ROWS_PER_PAGE).unwrap_or(usize::MAX);
    let shown = found.get(..page_rows.min(found.len())).unwrap_or_default();
    let last = shown.last().filter(|_| found.len() > page_rows);
    let page = ConversationsPage {
        frame: Frame::new("Conversations", &user).with_index_lag(app.billing.pages().index_lag()),
        rows: shown.to_vec(),
        first: cursor.is_none(),
        older: last.map(|last| format!("{}.{}", last.last_ms, last.id)),
    };
    Ok(html(StatusCode::OK, &page))
}

async fn show(
    State(app): State<Arc<SidecarState>>,
    user: CurrentUser,
    Path(id): Path<String>,
) -> Result<Response, PageError> {
    show_conversation(&app, &user, &ViewedAccount::own(&user.account.id), id)
}

/// Shows a conversation of `viewed`, for its holder or an operator.
pub fn show_conversation(
    app: &SidecarState,
    user: &CurrentUser,
    viewed: &ViewedAccount,
    id: String,
) -> Result<Response, PageError> {
    let account = &viewed.id;
    let conversation = app
        .billing
        .ledger()
        .pages()
        .conversation(account, &id)?
        .ok_or(PageError::NotFound)?;
    let filter = ActivityFilter {
        conversation: Some(id),
        ..ActivityFilter::default()
    };
    let mut receipts = app
        .billing
        .pages()
        .activity(account, &filter, None, MAX_TURNS)?;
    // Failed requests do not count as turns.
    receipts.retain(|receipt| {
        !matches!(
            receipt.detail.outcome,
            RequestOutcome::VendorError | RequestOutcome::VendorCut | RequestOutcome::Interrupted
        )
    });
    receipts.reverse();
    let frame = Frame::new("Conversations", user).with_charts();
    Ok(html(
        StatusCode::OK,
        &conversation_page(frame, viewed, conversation, &receipts),
    ))
}

fn conversation_page<'v>(
    frame: Frame,
    viewed: &'v ViewedAccount,
    conversation: Conversation,
    receipts: &[Receipt],
) -> ConversationPage<'v> {
    let shown = u64::try_from(receipts.len()).unwrap_or(u64::MAX);
    let before = conversation.sum.responses.saturating_sub(shown);
    let turns: Vec<_> = receipts
        .iter()
        .zip(before + 1..)
        .map(|(receipt, number)| turn(number, receipt))
        .collect();
    let saved = receipts.iter().fold(Micro::ZERO, |sum, receipt| {
        sum.plus(receipt.cache_savings())
    });
    let growth = match (turns.first(), turns.last()) {
        (Some(first), Some(last))
            if turns.len() > 1 && first.sent > 0 && last.sent > first.sent =>
        {
            let tenths = u128::from(last.sent) * 10 / u128::from(first.sent);
            Some(format!("{}.{}", tenths / 10, tenths % 10))
        }
        _ => None,
    };
    ConversationPage {
        frame,
        viewed,
        row: conversation,
        is_cut: before > 0,
        turns,
        growth,
        saved: saved.to_string(),
    }
}

fn turn(number: u64, receipt: &Receipt) -> TurnRow {
    let usage = &receipt.detail.usage;
    let sent = usage.input_total();
    TurnRow {
        number,
        request_id: receipt.request_id.clone(),
        at: Timestamp(receipt.at_ms),
        model: receipt.detail.model.clone(),
        sent,
        sent_text: group_digits(sent),
        cached: usage.cache_read,
        cached_text: group_digits(usage.cache_read),
        fresh: sent.saturating_sub(usage.cache_read),
        fresh_text: group_digits(sent.saturating_sub(usage.cache_read)),
        tokens_out: group_digits(usage.output_total()),
        credits: Credits(receipt.credits),
        saved: Credits(receipt.cache_savings()),
    }
}
