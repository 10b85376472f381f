//! Exports all data of an account as one JSON document. The document is sent while it is read, so
//! only one page of the ledger is in memory at a time.
//!
//! The document contains no passwords, session tokens or webhook secrets, and only those data of a
//! key that the account holder sees on pages.

use super::error::PageError;
use super::session::CurrentUser;
use super::state::SidecarState;
use crate::document;
use crate::notify::alerts::AlertRules;
use crate::notify::webhooks::{DeliveryLogRow, WebhookState, Webhooks};
use crate::refused_requests::{MAX_LISTED, RefusedFilter, RefusedRequest};
use accounts::{ApiKey, Membership, SessionSummary};
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use base::clock::{now_ms, rfc3339};
use futures_util::Stream;
use serde_json::{Value, json};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

const ENTRIES_PER_PAGE: u32 = 200;

pub async fn export(
    State(app): State<Arc<SidecarState>>,
    user: CurrentUser,
) -> Result<Response, PageError> {
    let now_ms = now_ms();
    let account = user.person;
    let balance = app.billing.balance(&account.id, now_ms)?;
    let webhooks = Webhooks::new(&app.accounts);
    let refused = match &app.refused {
        Some(refused) => refused.list(&account.id, &RefusedFilter::default(), None, MAX_LISTED)?,
        None => Vec::new(),
    };
    let memberships = app.accounts.organisations().memberships(&account.id)?;
    let mut head = json!({
        "exported_at": rfc3339(now_ms),
        "account": document::account_with_balance(&account, &balance),
        "email_verified_at": app.accounts.one_time_links().email_verified_at(&account.id)?.map(rfc3339),
        "keys": app.accounts.api_keys().keys(&account.id)?.iter().map(key).collect::<Vec<_>>(),
        "sessions": app.accounts.logins().sessions(&account.id, now_ms)?.iter().map(session).collect::<Vec<_>>(),
        "identities": app.accounts.identities().list(&account.id)?.iter().map(document::identity).collect::<Vec<_>>(),
        "memberships": memberships.iter().map(membership).collect::<Vec<_>>(),
        "alerts": AlertRules::load(&app.accounts, &account.id)?,
        "webhook": webhooks.find(&account.id)?.as_ref().map(webhook),
        "refused_requests": refused.iter().map(|(_, one)| refused_request(one)).collect::<Vec<_>>(),
        "webhook_messages": webhooks.log(&account.id)?.iter().map(message).collect::<Vec<_>>(),
    })
    .to_string();
    // The closing brace is removed, because the entries follow as the last member of the document.
    head.pop();
    head += ",\"entries\":[";
    let entries = AccountExport {
        app,
        account: account.id,
        part: ExportStage::Head(head),
        before: None,
        is_first: true,
    };
    let headers = [
        (header::CONTENT_TYPE, "application/json"),
        (
            header::CONTENT_DISPOSITION,
            "attachment; filename=\"model-gateway-account.json\"",
        ),
    ];
    Ok((headers, Body::from_stream(entries)).into_response())
}

fn key(key: &ApiKey) -> Value {
    json!({
        "key_id": key.id, "name": key.name, "shown": key.shown, "status": key.status.name(),
        "created_at": rfc3339(key.created_at_ms), "revoked_at": key.revoked_at_ms.map(rfc3339),
    })
}

fn membership(membership: &Membership) -> Value {
    json!({
        "account_id": membership.account, "organisation": membership.name,
        "role": membership.role.name(), "since": rfc3339(membership.since_ms),
    })
}

fn session(session: &SessionSummary) -> Value {
    json!({
        "created_at": rfc3339(session.created_at_ms), "used_at": rfc3339(session.used_at_ms),
        "address": session.address, "browser": session.browser,
    })
}

fn refused_request(refused: &RefusedRequest) -> Value {
    json!({
        "request_id": refused.request_id, "at": rfc3339(refused.at_ms), "status": refused.status,
        "code": refused.code, "message": refused.message, "model": refused.model,
        "surface": refused.surface, "key": &*refused.key_shown,
    })
}

/// Returns a webhook without its secret.
fn webhook(webhook: &WebhookState) -> Value {
    let disabled = webhook.disabled.as_ref();
    json!({
        "url": webhook.url, "set_at": rfc3339(webhook.created_at_ms),
        "disabled_at": disabled.map(|(at_ms, _)| rfc3339(*at_ms)),
        "disabled_because": disabled.map(|(_, because)| because),
    })
}

fn message(row: &DeliveryLogRow) -> Value {
    json!({
        "id": row.id, "event": row.event, "created_at": rfc3339(row.created_at_ms),
        "state": row.state, "attempts": row.attempts,
        "status": row.last_status, "error": row.last_error,
    })
}

/// Reads the document in parts.
struct AccountExport {
    app: Arc<SidecarState>,
    account: String,
    part: ExportStage,
    before: Option<i64>,
    is_first: bool,
}

enum ExportStage {
    Head(String),
    Entries,
    Over,
}

impl AccountExport {
    fn read_page(&mut self) -> Result<String, PageError> {
        let entries =
            self.app
                .billing
                .receipts()
                .entries(&self.account, self.before, ENTRIES_PER_PAGE)?;
        let mut text = String::new();
        for entry in &entries {
            if !self.is_first {
                text.push(',');
            }
            self.is_first = false;
            text += &document::entry(entry)?.to_string();
        }
        match entries.last() {
            Some(last) if entries.len() as u64 >= u64::from(ENTRIES_PER_PAGE) => {
                self.before = Some(last.seq)
            }
            _ => {
                text += "]}";
                self.part = ExportStage::Over;
            }
        }
        Ok(text)
    }
}

impl Stream for AccountExport {
    type Item = Result<Bytes, std::io::Error>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let text = match std::mem::replace(&mut self.part, ExportStage::Entries) {
            ExportStage::Head(head) => Ok(head),
            ExportStage::Entries => self.read_page(),
            ExportStage::Over => {
                self.part = ExportStage::Over;
                return Poll::Ready(None);
            }
        };
        // An incomplete document is recognizable, because the body ends without its terminator.
        let cut = |problem| {
            let why = match &problem {
                PageError::Internal(why) | PageError::Storage(why) => why,
                _ => "the request was refused",
            };
            log::error!("sidecar: cannot export account {}: {why}", self.account);
            std::io::Error::other("the export cannot be continued")
        };
        Poll::Ready(Some(text.map(Bytes::from).map_err(cut)))
    }
}
