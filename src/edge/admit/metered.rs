//! Turns a body for a metered endpoint into an `AdmittedRequest`: its model, with its largest
//! possible cost reserved. The body passes unchanged except for the model's name, and only this
//! model answers it.
//!
//! This file must not know what differs between the endpoints:
//! `crates/llm-protocol/src/metered/table.rs` does. Next: `billing/quote_metered.rs`.

use super::header::refusal_failure;
use super::idempotency_key::IdempotencyOutcome;
use super::received::{AdmissionRequest, AdmittedParts, PreparedRequest};
use crate::billing::{HoldRequest, quote_metered};
use crate::edge::gateway::Gateway;
use crate::edge::model_lookup::find_model;
use crate::edge::rate_limits;
use crate::edge::state::attempt::VendorCall;
use crate::edge::state::responding::Responding;
use crate::edge::turn::MeteredTurn;
use crate::idempotency::{self, BodyHash};
use accounts::Principal;
use base::clock;
use config::Settings;
use config::catalog::CatalogModel;
use http::{HeaderMap, HeaderValue, Version, header};
use llm_protocol::Protocol;
use llm_protocol::failure::Failure;
use llm_protocol::metered::{MeteredEndpoint, MeteredRequest, MeteredTerms};
use llm_protocol::request::{ContentSize, RequestSummary};
use pingora::proxy::Session;
use std::sync::Arc;

/// Reads the body, finds the model and reserves credit.
///
/// # Errors
/// Returns an error if the body is not a valid request, names no model of the endpoint's kind, or
/// cannot be paid.
pub async fn prepare(
    session: &mut Session,
    mut request: AdmissionRequest<'_>,
    endpoint: &'static MeteredEndpoint,
) -> Result<PreparedRequest, Failure> {
    let (body, body_read, slot) = request.receive(session).await?;
    let (gateway, settings, record) = (request.gateway, request.settings, request.record);
    let headers = &session.req_header().headers;
    let content_type = form_type(endpoint, headers);
    let (parsed, body_hash) = slot.run(|| read_body(endpoint, headers, &body, settings))?;
    let principal = &request.authenticated.principal;
    let model = choose_model(settings, principal, endpoint, &parsed).inspect_err(|_| {
        record.note_unknown_model(parsed.model.as_deref().unwrap_or_default());
    })?;
    request.check_model(model)?;
    let idempotency = match request.claim_key(session, body_hash).await? {
        IdempotencyOutcome::Proceed(idempotency) => idempotency,
        IdempotencyOutcome::Replay(response) => return Ok(PreparedRequest::Replay(response)),
    };
    request.wait_for_ledger(session).await?;
    request.end_arrival();
    let unit = model.billed_unit();
    let terms = MeteredTerms::new(endpoint, unit, &parsed.content, &model.metered_limits());
    let quote = quote_metered::quote(model, &terms);
    let (principal, surface) = (&request.authenticated.principal, request.operation.surface);
    let hold_request = HoldRequest {
        request_id: record.request_id.clone(),
        account: Arc::clone(&principal.account_id),
        key_id: Arc::clone(&principal.key_id),
        key_shown: Arc::clone(&principal.key_shown),
        member: principal.member_id().cloned(),
        model: Arc::clone(model),
        surface,
        bounds: rate_limits::bounds(settings, principal, || parsed.content.estimated_tokens()),
        conversation: None,
    };
    let sent = parsed.with_model(&body, &model.upstream_model);
    request.authorized.share.grow_to(sent.len() as u64)?;
    let (hold, _) = gateway
        .admission
        .reserve(hold_request, &quote, true, clock::now_ms())
        .await
        .map_err(|refused| refusal_failure(surface, &refused, settings, Some((&quote, true))))?;
    let summary = RequestSummary::default();
    let account = &request.authenticated.principal.account_id;
    let mut response = Responding::new(&record.request_id, &summary, None, None);
    response.needs_length = session.req_header().version < Version::HTTP_11;
    let parts = AdmittedParts {
        model: Arc::clone(model),
        vendor_call: vendor_call(gateway, endpoint, model, content_type),
        hold: Some(hold),
        turn: unremembered_turn(gateway, account, &summary, model),
        response,
        idempotency,
        body: (body_read, body.len()),
        sent: sent.into(),
        wants_stream: false,
        // Nothing of the request may be left out.
        is_strict: true,
    };
    let mut call = request.admit(session, parts);
    call.metered = Some(terms);
    Ok(PreparedRequest::Call(call))
}

/// Returns the turn of a request without a conversation, which the settlement does not remember.
fn unremembered_turn(
    gateway: &Gateway,
    account: &Arc<str>,
    summary: &RequestSummary,
    model: &Arc<CatalogModel>,
) -> MeteredTurn {
    let conversation = summary.conversation_key(account, |_| None, b"");
    let content = ContentSize::default();
    MeteredTurn::new(&gateway.turns, account, conversation, content, model)
}

/// The content type of a form, which has its boundary; `None` for JSON.
fn form_type(endpoint: &MeteredEndpoint, headers: &HeaderMap) -> Option<HeaderValue> {
    let content_type = headers.get(header::CONTENT_TYPE);
    content_type.filter(|_| endpoint.is_form).cloned()
}

/// Reads a body, and hashes it if the request has an idempotency key.
fn read_body(
    endpoint: &MeteredEndpoint,
    headers: &HeaderMap,
    body: &[u8],
    settings: &Settings,
) -> Result<(MeteredRequest, BodyHash), Failure> {
    let content_type = headers.get(header::CONTENT_TYPE);
    let content_type = content_type.and_then(|kind| kind.to_str().ok());
    let values_max = settings.limits.body_values;
    let request = MeteredRequest::read(endpoint, content_type, body, values_max)?;
    let has_key = headers.contains_key("idempotency-key");
    let hash = has_key.then(|| match request.parts_of_form(body) {
        Some(parts) => idempotency::hash_body(&parts),
        None => idempotency::hash_body(body),
    });
    Ok((request, hash.unwrap_or_default()))
}

/// Returns the named model, or the first one of the endpoint's kind that the key may use.
fn choose_model<'s>(
    settings: &'s Settings,
    principal: &Principal,
    endpoint: &MeteredEndpoint,
    request: &MeteredRequest,
) -> Result<&'s Arc<CatalogModel>, Failure> {
    if let Some(name) = &request.model {
        return find_model(settings, principal, name);
    }
    let mut models = settings.catalog.models_of(endpoint.kind);
    let found = models.find(|model| principal.allows(&model.id));
    found.ok_or_else(|| {
        let message = format!("This key may use no {} model.", endpoint.kind.as_str());
        Failure::invalid_param(Protocol::Chat, "model", message)
    })
}

fn vendor_call(
    gateway: &Gateway,
    endpoint: &MeteredEndpoint,
    model: &CatalogModel,
    content_type: Option<HeaderValue>,
) -> VendorCall {
    VendorCall {
        content_type,
        path: endpoint.path,
        version: None,
        previews: None,
        asks_for_stream: false,
        endpoints: gateway.endpoint_registry.pool_for(&model.vendor),
        affinity_key: None,
    }
}
