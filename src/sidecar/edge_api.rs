//! Serves the API that edges call for account holders' requests. It returns credits, receipts and
//! usage, which only the ledger of this process has.
//!
//! The edge has authenticated the key and names the account in a header. The edge removes such a
//! header from clients' requests, and only edges can reach this address. This API must not be
//! served if edge and ledger run in one process.

use super::state::Sidecar;
use crate::billing::json;
use crate::billing::usage_report::UsageReportQuery;
use crate::known_request::find_request;
use crate::private_refusals::is_for_private_host;
use axum::extract::{Path, RawQuery, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use base::clock;
use ledger::StoreError;
use serde_json::{Value, json};

/// Name of the header in which an edge sends the account.
pub const ACCOUNT_HEADER: &str = "x-gateway-account";

/// Name of the header in which an edge sends the id of the key.
pub const KEY_HEADER: &str = "x-gateway-key-id";

pub fn router(state: Sidecar) -> Router {
    Router::new()
        .route("/v1/credits", get(credits))
        .route("/v1/receipts/{request_id}", get(receipt))
        .route("/v1/usage", get(usage))
        .route_layer(from_fn(refuse_public_names))
        .with_state(state)
}

/// Refuses a request that a browser sent to a public name. An edge sends the host `sidecar`
/// in place of the one that its client asked.
async fn refuse_public_names(request: Request, next: Next) -> Response {
    if is_for_private_host(&request, &[]) {
        return next.run(request).await;
    }
    let message = "this address answers requests of edges only";
    let body = Json(json!({"error": {"message": message}}));
    (StatusCode::MISDIRECTED_REQUEST, body).into_response()
}

async fn credits(State(state): State<Sidecar>, headers: HeaderMap) -> Response {
    let Some(account) = account(&headers) else {
        return missing_account();
    };
    match state.billing.balance(account, clock::now_ms()) {
        Ok(balance) => ok_response(&json::balance(&balance)),
        Err(error) => ledger_unavailable(&error),
    }
}

async fn receipt(
    State(state): State<Sidecar>,
    Path(request_id): Path<String>,
    headers: HeaderMap,
) -> Response {
    let Some(account) = account(&headers) else {
        return missing_account();
    };
    let lookup = || {
        let receipts = state.billing.receipts();
        std::future::ready(find_request(
            state.refused.as_ref(),
            Some(account),
            &request_id,
            |id, _| receipts.receipt(account, id),
        ))
    };
    match json::wait_for_receipt(lookup, &request_id).await {
        Ok(Some(found)) => ok_response(&found.to_json(false)),
        Ok(None) => {
            let message = Json(json!({"error": {"message": json::NO_RECEIPT}}));
            (StatusCode::NOT_FOUND, [(header::RETRY_AFTER, "1")], message).into_response()
        }
        Err(error) => ledger_unavailable(&error),
    }
}

async fn usage(
    State(state): State<Sidecar>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Response {
    let Some(account) = account(&headers).map(str::to_owned) else {
        return missing_account();
    };
    // Edges of an older version name no key.
    let key = header_text(&headers, KEY_HEADER).map(str::to_owned);
    let query = query.unwrap_or_default();
    // The edge has already checked the query. A fault can occur here only if the two processes run
    // different versions.
    let query = match UsageReportQuery::parse(&query, clock::now_ms()) {
        Ok(query) => query,
        Err(error) => {
            let message = format!("{}: {}", error.param, error.message);
            let body = json!({"error": {"code": error.code, "message": message}});
            return (StatusCode::BAD_REQUEST, Json(body)).into_response();
        }
    };
    let report = tokio::task::spawn_blocking(move || {
        state
            .billing
            .reports()
            .account_usage(&state.accounts, &account, key.as_deref(), &query)
    });
    match report.await {
        Ok(Ok(report)) => ok_response(&report),
        Ok(Err(error)) => ledger_unavailable(&error),
        Err(error) => ledger_unavailable(&StoreError::Unusable(error.to_string())),
    }
}

fn account(headers: &HeaderMap) -> Option<&str> {
    header_text(headers, ACCOUNT_HEADER)
}

fn header_text<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

fn ok_response(value: &Value) -> Response {
    ([(header::CACHE_CONTROL, "no-store")], Json(value)).into_response()
}

fn missing_account() -> Response {
    let message = format!("the header {ACCOUNT_HEADER} must name the account");
    (
        StatusCode::BAD_REQUEST,
        Json(json!({"error": {"message": message}})),
    )
        .into_response()
}

fn ledger_unavailable(error: &StoreError) -> Response {
    log::error!("cannot answer an edge's question about an account: {error}");
    let message = match error {
        StoreError::SegmentUnavailable(_) => json::ARCHIVED_RECEIPT,
        _ => "The ledger cannot be read.",
    };
    (
        StatusCode::SERVICE_UNAVAILABLE,
        [(header::RETRY_AFTER, "2")],
        Json(json!({"error": {"message": message}})),
    )
        .into_response()
}
