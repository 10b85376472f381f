//! Turns a body into an [`AdmittedRequest`]: the operation, the model, and a hold for the largest
//! possible cost.
//!
//! This file must not encode the request itself. Next: `admit/received.rs` (the steps that metered
//! endpoints take too), `admit/reserve.rs` (the hold), `edge/outbound.rs` (the request in a model's
//! protocol, and its price), `edge/outbound/fallback.rs` (fallback models), `intake.rs` (how the
//! body reaches the vendor).

use super::idempotency_key::IdempotencyOutcome;
use super::operation::{ApiOperation, version_header};
use super::received::{AdmissionRequest, AdmittedParts, PreparedRequest, before_cutoff};
use super::reserve::ReservedRequest;
use crate::edge::cpu_pool::CpuSlot;
use crate::edge::intake::BodyShare;
use crate::edge::model_lookup::find_model;
use crate::edge::outbound::{self, OutboundRequest};
use crate::edge::state::admitted::AdmittedRequest;
use crate::edge::state::attempt::VendorCall;
use crate::edge::state::responding::Responding;
use crate::edge::turn::MeteredTurn;
use crate::edge::upstream;
use crate::idempotency::{self, BodyHash, IdempotencyGuard};
use bytes::Bytes;
use config::catalog::CatalogModel;
use llm_protocol::Protocol;
use llm_protocol::failure::Failure;
use llm_protocol::request::{self, ConversationKey, RequestSummary};
use llm_protocol::translate;
use pingora::http::RequestHeader;
use pingora::proxy::Session;
use std::sync::Arc;
use std::time::Instant;

/// Reads the body, finds the model and reserves credit.
///
/// # Errors
/// Returns an error if the body is not a valid request, names no model, requests an unavailable
/// feature, or costs more than the account can pay.
pub async fn prepare(
    session: &mut Session,
    mut request: AdmissionRequest<'_>,
) -> Result<PreparedRequest, Failure> {
    let (body, body_read, slot) = request.receive(session).await?;
    let (settings, record) = (request.settings, request.record);
    // Destructure at once: a variable for the whole would stay in the future beside its parts.
    let ParsedRequest {
        body,
        body_hash,
        summary,
        conversation,
        count,
    } = request.parse(session, body, slot).await?;
    let principal = &request.authenticated.principal;
    let model = find_model(settings, principal, &summary.model)
        .inspect_err(|_| record.note_unknown_model(&summary.model))?
        .select_variant(request.operation.surface, &summary);
    request.check_model(model)?;
    let is_local = !request.authorized.has_credit || is_counted_locally(model, &request.operation);
    if is_local && let Some(count) = count {
        return count.map(PreparedRequest::Count);
    }
    let idempotency = match request.claim_key(session, body_hash).await? {
        IdempotencyOutcome::Proceed(idempotency) => idempotency,
        IdempotencyOutcome::Replay(response) => return Ok(PreparedRequest::Replay(response)),
    };
    let surface = request.operation.surface;
    let flags = preview_flags(session, surface);
    let account_id = Arc::clone(&request.authenticated.principal.account_id);
    let content = summary.features.content;
    let turns = &request.gateway.turns;
    let outbound_request = OutboundRequest {
        turn: MeteredTurn::new(turns, &account_id, conversation, content, model)
            .with_drafts(summary.drafts(), summary.choices),
        settings,
        surface,
        model,
        strict: is_strict(session),
        body,
        summary: &summary,
        request_id: &record.request_id,
        account_id,
        is_interleaved: outbound::is_interleaved(&flags),
    };
    let (previews, dropped) = outbound_request.filter_preview_flags(&flags);
    outbound_request.reject_if_strict(dropped.as_slice())?;
    outbound_request.reject_if_strict(&summary.rewritten)?;
    if !request.operation.free {
        request.wait_for_ledger(session).await?;
    }
    let slot = request.cpu.slot(outbound_request.encoding_work(), session);
    let slot = before_cutoff(request.gateway, slot).await?;
    request.end_arrival();
    let reserved = request.reserve(&outbound_request, slot).await?;
    let decided = DecidedCall {
        body_read,
        idempotency,
        version: version_header(session, settings),
        flags,
        previews,
        dropped,
        count: count.and_then(Result::ok),
    };
    let call = request.admit_reserved(session, &outbound_request, reserved, decided)?;
    Ok(PreparedRequest::Call(call))
}

/// What admission has decided about a call besides its hold.
struct DecidedCall {
    /// Time at which the client's body was complete.
    body_read: Instant,
    idempotency: Option<Box<IdempotencyGuard>>,
    version: Option<String>,
    /// The client's preview flags.
    flags: Vec<String>,
    /// The preview flags that the vendor gets.
    previews: Option<String>,
    /// Warning about the other preview flags.
    dropped: Option<String>,
    /// The gateway's own count of tokens, if the request asks for one.
    count: Option<u64>,
}

impl AdmissionRequest<'_> {
    async fn parse(
        &mut self,
        session: &mut Session,
        body: Bytes,
        slot: CpuSlot,
    ) -> Result<ParsedRequest, Failure> {
        let values_max = self.settings.limits.body_values;
        let short_values = slot.values_max().filter(|short| *short < values_max);
        let first_max = short_values.unwrap_or(values_max);
        let first = self.parse_in(slot, session.req_header(), body.clone(), first_max);
        if first.is_ok() || short_values.is_none() {
            return first;
        }
        // The body may have too many values for a short job.
        let slot = self.cpu.slot(usize::MAX, session);
        let slot = Box::pin(before_cutoff(self.gateway, slot)).await?;
        self.parse_in(slot, session.req_header(), body, values_max)
    }

    fn parse_in(
        &mut self,
        slot: CpuSlot,
        header: &RequestHeader,
        body: Bytes,
        values_max: u64,
    ) -> Result<ParsedRequest, Failure> {
        let account_id = &self.authenticated.principal.account_id;
        slot.run(|| {
            parse_request(
                &self.operation,
                values_max,
                account_id,
                header,
                body,
                &mut self.authorized.share,
            )
        })
    }

    /// Encodes the request, and reserves its largest possible cost unless it is free.
    async fn reserve(
        &mut self,
        request: &OutboundRequest<'_>,
        slot: CpuSlot,
    ) -> Result<ReservedRequest, Failure> {
        if self.operation.free {
            return Ok(ReservedRequest::without_hold(slot.run(|| {
                self.authorized
                    .share
                    .run_with_extra(request.tree_bytes(), || request.encode(None, None))
            })?));
        }
        let principal = &self.authenticated.principal;
        request
            .reserve_and_clamp(
                self.gateway,
                principal,
                &mut self.authorized.share,
                (&self.cpu, slot),
            )
            .await
    }

    /// Hands a request with its hold to its first attempt.
    fn admit_reserved(
        mut self,
        session: &mut Session,
        request: &OutboundRequest<'_>,
        reserved: ReservedRequest,
        decided: DecidedCall,
    ) -> Result<Box<AdmittedRequest>, Failure> {
        let ReservedRequest {
            encoded, fallbacks, ..
        } = reserved;
        let fallbacks = fallbacks
            .map(|fallbacks| fallbacks.with_headers(decided.version.clone(), decided.flags));
        let reasoning_retry = request.retry_without_reasoning(&encoded, false);
        let has_retry = reasoning_retry.is_some();
        let retained = request.retained_bytes(&encoded, has_retry, fallbacks.as_deref());
        self.authorized.share.grow_to(retained)?;
        let sequencer = encoded.sequencer(decided.idempotency.is_some());
        let vendor_call = VendorCall {
            previews: decided.previews,
            asks_for_stream: encoded.asks_for_stream,
            ..self.vendor_call(request, decided.version)
        };
        let (model, endpoints) = (request.model, &vendor_call.endpoints);
        let (sent, left_out) = match request.is_fixed() {
            true => (encoded.body, Vec::new()),
            false => upstream::leave_out_refused(endpoints, model, &self.cpu, encoded.body),
        };
        let summary = request.summary;
        let parts = AdmittedParts {
            model: Arc::clone(model),
            vendor_call,
            hold: reserved.hold,
            turn: request.turn.clone(),
            response: Responding::new(
                request.request_id,
                summary,
                encoded.translation,
                decided.count,
            ),
            idempotency: decided.idempotency,
            body: (decided.body_read, request.body.len()),
            sent,
            wants_stream: summary.stream,
            is_strict: request.is_fixed(),
        };
        let mut call = self.admit(session, parts);
        call.exchange.set_response_expectations(
            model.hides_reasoning() || request.turn.is_estimate_uncertain(),
            request.keep_alive(sequencer),
        );
        call.usage_bounds = reserved.usage_bounds;
        call.warnings = [encoded.warnings, Vec::from_iter(decided.dropped), left_out].concat();
        call.reasoning_retry = reasoning_retry;
        call.fallbacks = fallbacks;
        Ok(call)
    }

    /// Returns the call to the vendor of the request's model, without what depends on its encoding.
    fn vendor_call(&self, request: &OutboundRequest<'_>, version: Option<String>) -> VendorCall {
        let model = request.model;
        let (path, version) = match model.passes_through(request.surface) {
            true => (self.operation.path, version),
            false => (translate::vendor_path(model.protocol()), None),
        };
        VendorCall {
            content_type: None,
            path,
            version,
            previews: None,
            asks_for_stream: false,
            endpoints: self.gateway.endpoint_registry.pool_for(&model.vendor),
            affinity_key: request.affinity_key(self.operation.free),
        }
    }
}

/// Returns whether the client refuses a request that loses something.
fn is_strict(session: &Session) -> bool {
    let strict = session.req_header().headers.get("x-gateway-strict");
    strict.is_some_and(|value| value.as_bytes() == b"true")
}

/// Returns whether the gateway counts the tokens of such a request itself. Responses vendors expect
/// another body for counting than for generation, and endpoints with a custom path may have no
/// counter.
fn is_counted_locally(model: &CatalogModel, operation: &ApiOperation) -> bool {
    let surface = operation.surface;
    !model.passes_through(surface)
        || surface == Protocol::Responses
        || !model.vendor.serves(operation.path)
}

/// The parts of a body that do not depend on the model.
struct ParsedRequest {
    body: Bytes,
    body_hash: BodyHash,
    summary: RequestSummary,
    conversation: ConversationKey,
    /// Number of input tokens. `None` if the request does not ask for a count.
    count: Option<Result<u64, Failure>>,
}

fn parse_request(
    operation: &ApiOperation,
    values_max: u64,
    account_id: &str,
    header: &RequestHeader,
    body: Bytes,
    share: &mut BodyShare,
) -> Result<ParsedRequest, Failure> {
    let mut summary = match operation.completions() {
        Some(api) => request::read_completion(api, &body)?,
        None => request::read_summary_bounded(operation.surface, &body, values_max)?,
    };
    let header = |name: &str| {
        header
            .headers
            .get(name)
            .and_then(|value| value.to_str().ok())
    };
    let body_hash = header("idempotency-key")
        .map(|_| idempotency::hash_body(&body))
        .unwrap_or_default();
    let mut body = body;
    if summary.has_other_shape {
        let extra_bytes = translate::document_bytes(summary.values);
        let (rewritten, warnings) = share.run_with_extra(extra_bytes, || {
            translate::rewrite_as_chat(&body, &summary.model, account_id)
        })?;
        if !warnings.is_empty() {
            summary = request::read_summary_bounded(operation.surface, &rewritten, values_max)?;
            summary.rewritten = warnings;
            body = rewritten;
        }
    }
    let conversation = summary.conversation_key(account_id, header, &body);
    let count = if operation.free {
        Some(
            share.run_with_extra(translate::document_bytes(summary.values), || {
                Ok(translate::count_tokens(operation.surface, &body))
            })?,
        )
    } else {
        None
    };
    Ok(ParsedRequest {
        body,
        body_hash,
        summary,
        conversation,
        count,
    })
}

impl OutboundRequest<'_> {
    /// Returns the hash that chooses the endpoint, if the conversation should keep its endpoint. A
    /// token count has no prompt cache to reuse.
    fn affinity_key(&self, is_count: bool) -> Option<u64> {
        (self.model.vendor.sticky && !is_count).then(|| self.turn.conversation().as_u64())
    }
}

/// Returns the preview flags of the messages protocol, including unknown ones.
fn preview_flags(session: &Session, surface: Protocol) -> Vec<String> {
    if surface != Protocol::Messages {
        return Vec::new();
    }
    let values = session.req_header().headers.get_all("anthropic-beta");
    let flags = values
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim);
    flags
        .filter(|flag| !flag.is_empty())
        .map(str::to_owned)
        .collect()
}
