//! Searches for an id that a client, an account holder or a log line mentions. The search redirects
//! to the page that shows the object. If nothing is found, the answer names the kind of object that
//! the text would identify.
//!
//! This file must not change anything.

use super::super::authz::Operator;
use super::super::blocking::run_blocking;
use super::super::display::Timestamp;
use super::super::error::PageError;
use super::super::page::{Frame, html};
use super::super::state::SidecarState;
use super::super::viewed_account::encode_segment;
use super::list::MAX_TERM_CHARS;
use super::reading::account_of_request;
use accounts::{parse_key, shown_key_text};
use askama::Template;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use ledger::StoreError;
use serde::Deserialize;
use std::sync::Arc;

#[derive(Deserialize)]
pub struct SearchQuery {
    #[serde(default)]
    q: String,
}

#[derive(Template)]
#[template(path = "operator_found.html")]
struct SearchPage {
    frame: Frame,
    q: String,
    /// Kind of object that the text identifies or would identify, and its state.
    answer: String,
    /// Start of the request, if the answer is a running request.
    since: Option<Timestamp>,
    link: Option<(String, String)>,
}

enum SearchResult {
    /// Path of the page that shows the object.
    Page(String),
    /// The object is a running request.
    Running { account: String, at_ms: i64 },
    /// Nothing was found; the text names the kind of object.
    Nothing(&'static str),
}

/// Kinds of ids by their first characters, with advice for an id that nothing has.
const KINDS: [(&str, &str); 12] = [
    (
        "req_",
        "This would be the id of a request: its receipt, its reservation and its refund have the same \
         id. No request with it has ended or runs on this machine. The id must be whole. Refused and \
         free requests are kept for 30 days. Requests without a valid key, which got 401, have no \
         account and are only in the log: search for the id in the access log (log.access), such as \
         with grep.",
    ),
    ("chatcmpl-", ANSWER_ID),
    ("resp_", ANSWER_ID),
    ("gen-", ANSWER_ID),
    (
        "acct_",
        "This would be the id of an account. No account has it. Deleted accounts keep their id.",
    ),
    ("key_", "This would be the id of a key. No key has it."),
    (
        "pay_",
        "This would be the id of a payment. No order of credits has it.",
    ),
    (
        "pv_",
        "This would be the id of a price list. No request was billed with it, and it is not in force.",
    ),
    (
        "inv_",
        "This would be the id of an invitation: see the page of invitations.",
    ),
    (
        "msg_",
        "This would be the id of an answer, or of a webhook's message. The ids of answers are kept for \
         30 days, and of the newest 10 000 of an account; no request has this one. The account holder \
         sees messages on the page of alerts.",
    ),
    (
        "mail_",
        "This would be the id of a mail in the queue. The service page shows the state of the queue.",
    ),
    (
        "gw-sk-",
        "This would be a key, or the part of one that pages show. No key looks like it. If you have a \
         whole key in hand, its holder should replace it.",
    ),
];

/// What the ids of answers are.
const ANSWER_ID: &str = "This would be the id of an answer. They are kept for 30 days, and of the newest \
                         10 000 of an account. No request has this one.";

pub async fn show(
    State(app): State<Arc<SidecarState>>,
    Operator { user, .. }: Operator,
    query: Result<Query<SearchQuery>, QueryRejection>,
) -> Result<Response, PageError> {
    let Query(SearchQuery { q }) = query.map_err(|_| PageError::NotFound)?;
    let q = q.trim().to_owned();
    let is_too_long = q.chars().count() > MAX_TERM_CHARS;
    let (work, term) = (Arc::clone(&app), q.clone());
    let found = match is_too_long || q.is_empty() {
        true => SearchResult::Nothing("Search for 1 to 254 characters."),
        false => run_blocking(move || find(&work, &term)).await??,
    };
    let (answer, since, link) = match found {
        SearchResult::Page(path) => return Ok(Redirect::to(&path).into_response()),
        SearchResult::Running { account, at_ms } => {
            let found = app.accounts.find(&account)?;
            let label = found.map(|it| it.label().to_owned());
            let path = format!("/dashboard/operator/accounts/{account}");
            let text = "This request runs now, or its end is not in the ledger yet. Its receipt will \
                        have the same id.";
            (
                text,
                Some(Timestamp(at_ms)),
                Some((path, label.unwrap_or(account))),
            )
        }
        SearchResult::Nothing(text) => (text, None, None),
    };
    let status = match is_too_long {
        true => StatusCode::UNPROCESSABLE_ENTITY,
        false => StatusCode::OK,
    };
    let page = SearchPage {
        frame: Frame::new("Search", &user).with_index_lag(app.billing.pages().index_lag()),
        q: q.chars().take(MAX_TERM_CHARS).collect(),
        answer: answer.to_owned(),
        since,
        link,
    };
    Ok(html(status, &page))
}

fn find(app: &SidecarState, term: &str) -> Result<SearchResult, StoreError> {
    let account_page = |id: &str| SearchResult::Page(format!("/dashboard/operator/accounts/{id}"));
    let nothing = KINDS
        .iter()
        .find(|(prefix, _)| term.starts_with(prefix))
        .map(|(_, text)| *text);
    // A whole key is replaced by its shortened text, because the answer's URL must not contain it.
    let shown = parse_key(term).then(|| shown_key_text(term));
    let term = shown.as_deref().unwrap_or(term);
    if account_of_request(app, term)?.is_some() {
        return Ok(SearchResult::Page(format!(
            "/dashboard/operator/activity/{}",
            encode_segment(term)
        )));
    }
    if let Some(running) = app.billing.pages().running_request(term)? {
        return Ok(SearchResult::Running {
            account: running.account,
            at_ms: running.at_ms,
        });
    }
    if let Some(account) = app.accounts.find(term)? {
        return Ok(account_page(&account.id));
    }
    if let Some((account, key)) = app.accounts.api_keys().key(None, term)? {
        return Ok(SearchResult::Page(format!(
            "/dashboard/operator/accounts/{account}?key_q={0}#{0}",
            key.id
        )));
    }
    let is_sold = app.payments.settings().is_some();
    if is_sold && app.accounts.database().payments().order(term)?.is_some() {
        return Ok(SearchResult::Page(format!(
            "/dashboard/operator/payments/{}",
            encode_segment(term)
        )));
    }
    if app.billing.pages().price_list(term)?.is_some() {
        return Ok(SearchResult::Page(format!(
            "/dashboard/operator/prices/{}",
            encode_segment(term)
        )));
    }
    if let Some(entry) = app.billing.receipts().find_entry(term)? {
        return Ok(match entry.is_ending() {
            true => SearchResult::Page(format!(
                "/dashboard/operator/activity/{}",
                encode_segment(&entry.reference)
            )),
            false => SearchResult::Page(format!(
                "/dashboard/operator/accounts/{}?entry={}#entries",
                entry.account, entry.seq
            )),
        });
    }
    if let Some(account) = app.billing.ledger().pages().account_of_conversation(term)? {
        return Ok(SearchResult::Page(format!(
            "/dashboard/operator/accounts/{account}/conversations/{}",
            encode_segment(term)
        )));
    }
    let matching = app.accounts.directory().search(term, None, 2)?;
    Ok(match matching.as_slice() {
        [] => SearchResult::Nothing(nothing.unwrap_or(
            "No account, key, request, ledger entry or price list has this in its name. The number of a \
             ledger entry and the reference of a posting must be whole; of an e-mail, an id or a key, a \
             part is enough.",
        )),
        [one] => account_page(&one.id),
        _ => SearchResult::Page(format!(
            "/dashboard/operator/accounts?q={}",
            encode_segment(term)
        )),
    })
}
