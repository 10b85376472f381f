//! Responses that need no vendor: health, the model list, credits, usage, receipts, and replays of
//! earlier responses.
//!
//! This file must not change stored data.

mod models;

use super::gateway::Gateway;
use super::intake;
use super::model_lookup::find_model;
use super::respond;
use super::route::LocalEndpoint;
use super::state::RequestContext;
use crate::billing::LEDGER_CALLS;
use crate::billing::admission::LedgerLookup;
use crate::billing::json;
use crate::billing::usage_report::UsageReportQuery;
use crate::idempotency::ReplayedResponse;
use crate::known_request::find_request;
use accounts::Principal;
use base::clock;
use base::disk_pool::DiskError;
use bytes::Bytes;
use config::Settings;
use config::catalog::CatalogModel;
use ledger::StoreError;
use llm_protocol::Protocol;
use llm_protocol::failure::{Failure, Kind};
use llm_protocol::metered::ModelKind;
use pingora::http::ResponseHeader;
use pingora::proxy::Session;
use serde_json::{Value, json};
use std::sync::Arc;

/// Label that the metrics and the access log use for health checks.
pub const HEALTH: &str = "health";

/// Answers 200 without checking anything.
pub async fn send_health(session: &mut Session, ctx: &mut RequestContext) -> pingora::Result<()> {
    ctx.record.status = 200;
    let mut head = ResponseHeader::build_no_case(200, Some(4))?;
    head.insert_header("content-type", "text/plain")?;
    respond::send_short(session, ctx, head, Bytes::from_static(b"ok\n")).await
}

/// Accepts the measurements of a program, and discards them: without an answer, the program would
/// report an error each time.
pub async fn discard_telemetry(
    session: &mut Session,
    ctx: &mut RequestContext,
) -> pingora::Result<()> {
    intake::discard_body(session).await;
    ctx.record.status = 200;
    let content_type = session.req_header().headers.get("content-type");
    let is_json = content_type.is_some_and(|it| it.as_bytes().starts_with(b"application/json"));
    // Either is a response of OTLP without content.
    let (content_type, body) = match is_json {
        true => ("application/json", "{}"),
        false => ("application/x-protobuf", ""),
    };
    let mut head = ResponseHeader::build_no_case(200, Some(4))?;
    head.insert_header("content-type", content_type)?;
    respond::send_response(session, ctx, head, Bytes::from_static(body.as_bytes())).await
}

/// Returns the response body for a token count that the gateway made itself.
pub fn count_body(surface: Protocol, tokens: u64) -> Bytes {
    let body = match surface {
        Protocol::Chat | Protocol::Messages => json!({"input_tokens": tokens}),
        Protocol::Responses => json!({"object": "response.input_tokens", "input_tokens": tokens}),
    };
    body.to_string().into()
}

/// Header that marks a token count as the gateway's own estimate.
pub const ESTIMATED_HEADER: &str = "x-gateway-estimated";

/// Answers with a token count that the gateway made itself.
pub async fn send_count(
    session: &mut Session,
    ctx: &mut RequestContext,
    tokens: u64,
) -> pingora::Result<()> {
    ctx.record.status = 200;
    let mut head = ResponseHeader::build_no_case(200, Some(5))?;
    head.insert_header("content-type", "application/json")?;
    head.insert_header(ESTIMATED_HEADER, "true")?;
    respond::send_response(session, ctx, head, count_body(ctx.record.surface, tokens)).await
}

/// Sends the response of an earlier request again, under that request's id.
pub async fn send_replay(
    session: &mut Session,
    ctx: &mut RequestContext,
    response: ReplayedResponse,
) -> pingora::Result<()> {
    ctx.record.status = 200;
    ctx.record.request_id = response.request_id;
    let mut head = ResponseHeader::build_no_case(200, Some(10))?;
    for (name, value) in response.headers {
        head.insert_header(name, value.into_bytes())?;
    }
    head.insert_header("x-gateway-replayed", "true")?;
    respond::send_response(session, ctx, head, response.body.into()).await
}

/// Answers a request to one of the gateway's own endpoints.
///
/// # Errors
/// Returns an error if the item does not exist or cannot be looked up.
pub async fn send_answer(
    gateway: &Gateway,
    settings: &Settings,
    session: &mut Session,
    ctx: &mut RequestContext,
    principal: &Principal,
    endpoint: LocalEndpoint,
) -> Result<(), Failure> {
    let value = match endpoint {
        LocalEndpoint::Models => {
            let query = session.req_header().uri.query().unwrap_or_default();
            models::list(
                &models_of(settings, principal, ctx.record.surface),
                ctx.record.surface,
                query,
            )?
        }
        LocalEndpoint::Model(id) => {
            let model = find_model(settings, principal, &id)?;
            models::describe(model, &model.id, ctx.record.surface)
        }
        LocalEndpoint::Credits => json::balance(
            &gateway
                .admission
                .balance(&principal.account_id, clock::now_ms())
                .await
                .map_err(store_failure)?,
        ),
        LocalEndpoint::Usage => {
            let query = parse_usage_query(session, ctx.record.surface)?;
            let ledger = Arc::clone(ledger(gateway)?);
            let account = Arc::clone(&principal.account_id);
            let key = Arc::clone(&principal.key_id);
            read_ledger(move || ledger.usage_report(&account, &key, &query))
                .await
                .map_err(store_failure)?
        }
        LocalEndpoint::Receipt(request_id) => {
            find_receipt(gateway, &principal.account_id, &request_id).await?
        }
    };
    ctx.record.status = 200;
    let sent = async {
        let mut head = ResponseHeader::build_no_case(200, Some(5))?;
        head.insert_header("content-type", "application/json")?;
        head.insert_header("cache-control", "no-store")?;
        respond::send_response(session, ctx, head, value.to_string().into()).await
    };
    sent.await
        .map_err(|error: Box<pingora::Error>| Failure::new(Kind::Internal, error.to_string()))
}

/// Returns the models that a key can call. Clients of the messages protocol can call chat models
/// only.
fn models_of(
    settings: &Settings,
    principal: &Principal,
    surface: Protocol,
) -> Vec<Arc<CatalogModel>> {
    let is_callable =
        |model: &CatalogModel| surface != Protocol::Messages || model.kind == ModelKind::Chat;
    let models = settings.catalog.models().iter();
    models
        .filter(|model| principal.allows(&model.id) && is_callable(model))
        .cloned()
        .collect()
}

/// Returns what is known of a request: its receipt, its refusal, or that it was free.
async fn find_receipt(
    gateway: &Gateway,
    account: &Arc<str>,
    request_id: &str,
) -> Result<Value, Failure> {
    let ledger = ledger(gateway)?;
    let lookup = || {
        let (ledger, refused) = (Arc::clone(ledger), gateway.recorders.refused.clone());
        let (account, id) = (Arc::clone(account), request_id.to_owned());
        read_ledger(move || {
            find_request(Some(&refused), Some(&account), &id, |id, _| {
                ledger.receipt(&account, id)
            })
        })
    };
    let found = json::wait_for_receipt(lookup, request_id).await;
    let none = || Failure::new(Kind::UnknownPath, json::NO_RECEIPT).with_retry_after(1);
    let found = found.map_err(store_failure)?.ok_or_else(none)?;
    Ok(found.to_json(false))
}

/// Parses the query of a request for usage.
///
/// # Errors
/// Returns the failure for the first parameter that is not valid, in the shape of the surface.
pub fn parse_usage_query(
    session: &Session,
    surface: Protocol,
) -> Result<UsageReportQuery, Failure> {
    let query = session.req_header().uri.query().unwrap_or_default();
    UsageReportQuery::parse(query, clock::now_ms()).map_err(|error| {
        Failure::invalid_param(surface, &error.param, &error.message).with_code(error.code)
    })
}

/// Reads the ledger on a thread that may wait for the disk.
async fn read_ledger<T: Send + 'static>(
    read: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    let failed = |error: DiskError| StoreError::io("read the ledger", error.into());
    LEDGER_CALLS.run(read).await.map_err(failed)?
}

/// Returns the ledger of this process. Without a ledger here, the sidecar answers such requests and
/// this function is not reached.
fn ledger(gateway: &Gateway) -> Result<&Arc<dyn LedgerLookup>, Failure> {
    let unavailable = || Failure::from_kind(Kind::LedgerUnavailable);
    gateway.ledger.as_ref().ok_or_else(unavailable)
}

fn store_failure(error: ledger::StoreError) -> Failure {
    log::error!("cannot answer a request about an account: {error}");
    if let ledger::StoreError::SegmentUnavailable(_) = error {
        return Failure::from_kind(Kind::ReceiptArchived);
    }
    Failure::from_kind(Kind::LedgerUnavailable)
}
