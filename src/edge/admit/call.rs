//! Turns a body into an [`AdmittedRequest`]: the operation, the model, and a hold for the largest
//! possible cost.
//!
//! This file must not encode the request itself. Next: `admit/reserve.rs` (the hold),
//! `edge/outbound.rs` (the request in a model's protocol, and its price),
//! `edge/outbound/fallback.rs` (fallback models), `intake.rs` (how the body reaches the vendor).

use super::header::HeaderAdmission;
use super::idempotency_key::{self, IdempotencyOutcome};
use super::operation::{ApiOperation, version_header};
use super::pacing;
use super::reserve::ReservedRequest;
use crate::edge::cpu_pool::{self, CpuSlot, CpuWorker};
use crate::edge::gateway::Gateway;
use crate::edge::intake::{self, BodyLimits, BodyShare, Deadlines};
use crate::edge::model_lookup::find_model;
use crate::edge::outbound::{self, OutboundRequest};
use crate::edge::shutdown::Shutdown;
use crate::edge::state::admitted::AdmittedRequest;
use crate::edge::state::attempt::{AttemptHistory, VendorCall};
use crate::edge::state::authenticated::Authenticated;
use crate::edge::state::record::RequestRecord;
use crate::edge::state::responding::Responding;
use crate::edge::turn::MeteredTurn;
use crate::edge::upstream;
use crate::idempotency::{self, BodyHash, ReplayedResponse};
use bytes::Bytes;
use config::Settings;
use config::catalog::CatalogModel;
use llm_protocol::Protocol;
use llm_protocol::failure::{Failure, Kind};
use llm_protocol::request::{self, ConversationKey, RequestSummary};
use llm_protocol::translate;
use pingora::http::RequestHeader;
use pingora::proxy::Session;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub enum PreparedRequest {
    Call(Box<AdmittedRequest>),
    Count(u64),
    /// The gateway stored a response to an earlier request with this idempotency key.
    Replay(ReplayedResponse),
}

/// A request whose header has passed.
pub struct AdmissionRequest<'a> {
    pub gateway: &'a Gateway,
    pub settings: &'a Arc<Settings>,
    pub record: &'a RequestRecord,
    pub authenticated: Authenticated,
    pub operation: ApiOperation,
    pub authorized: HeaderAdmission,
}

/// Reads the body, finds the model and reserves credit.
///
/// # Errors
/// Returns an error if the body is not a valid request, names no model, requests an unavailable
/// feature, or costs more than the account can pay.
#[expect(
    clippy::too_many_lines,
    reason = "the steps of admission, in their order"
)]
pub async fn prepare(
    session: &mut Session,
    request: AdmissionRequest<'_>,
) -> Result<PreparedRequest, Failure> {
    let AdmissionRequest {
        gateway,
        settings,
        record,
        authenticated,
        operation,
        authorized,
    } = request;
    let principal = &authenticated.principal;
    let surface = operation.surface;
    let HeaderAdmission {
        mut share,
        arrival,
        has_credit,
    } = authorized;
    let cpu = gateway.cpu.worker(&principal.account_id, &settings.limits);
    let (body, body_read, slot) =
        receive_body(gateway, settings, session, &mut share, &cpu).await?;
    let values_max = settings.limits.body_values;
    let short_values = slot.values_max().filter(|short| *short < values_max);
    let account_id = &principal.account_id;
    let mut parse = |slot: CpuSlot, header: &RequestHeader, values_max| {
        let body = body.clone();
        slot.run(|| parse_request(&operation, values_max, account_id, header, body, &mut share))
    };
    let mut parsed = parse(
        slot,
        session.req_header(),
        short_values.unwrap_or(values_max),
    );
    if parsed.is_err() && short_values.is_some() {
        // The body may have too many values for a short job.
        let slot = Box::pin(before_cutoff(gateway, cpu.slot(usize::MAX, session))).await?;
        parsed = parse(slot, session.req_header(), values_max);
    }
    // Destructure at once: a variable for the whole would stay in the future beside its parts.
    let ParsedRequest {
        body,
        body_hash,
        summary,
        conversation,
        count,
    } = parsed?;
    let model = find_model(settings, principal, &summary.model)
        .inspect_err(|_| record.note_unknown_model(&summary.model))?;
    let model = model.select_variant(surface, &summary);
    // Record the model before any check can refuse the request, so that the account holder sees it.
    let _ = record.model.set(Arc::clone(model));
    operation.check_model(model)?;
    let is_translated = !model.passes_through(surface);
    let is_local = !has_credit || is_counted_locally(model, &operation);
    if is_local && let Some(count) = count {
        return count.map(PreparedRequest::Count);
    }
    let idempotency = match idempotency_key::claim_key(
        gateway,
        settings,
        session,
        &operation,
        principal,
        body_hash,
        &record.request_id,
    )
    .await?
    {
        IdempotencyOutcome::Proceed(idempotency) => idempotency,
        IdempotencyOutcome::Replay(response) => return Ok(PreparedRequest::Replay(response)),
    };
    let flags = preview_flags(session, surface);
    let outbound_request = OutboundRequest {
        turn: MeteredTurn::new(
            &gateway.turns,
            &principal.account_id,
            conversation,
            summary.features.content,
            model,
        )
        .with_drafts(summary.drafts(), summary.choices),
        settings,
        surface,
        model,
        strict: session
            .req_header()
            .headers
            .get("x-gateway-strict")
            .is_some_and(|value| value.as_bytes() == b"true"),
        body,
        summary: &summary,
        request_id: &record.request_id,
        account_id: Arc::clone(&principal.account_id),
        is_interleaved: outbound::is_interleaved(&flags),
    };
    let version = version_header(session, settings);
    let (previews, dropped) = outbound_request.filter_preview_flags(&flags);
    outbound_request.reject_if_strict(dropped.as_slice())?;
    outbound_request.reject_if_strict(&summary.rewritten)?;
    if !operation.free {
        pacing::wait_for_ledger(gateway, session, &principal.account_id).await?;
    }
    let encoding_work = outbound_request.encoding_work();
    let slot = before_cutoff(gateway, cpu.slot(encoding_work, session)).await?;
    // The hold counts the request from this line on.
    drop(arrival);
    let ReservedRequest {
        hold,
        encoded,
        fallbacks,
        usage_bounds,
    } = match operation.free {
        true => ReservedRequest::without_hold(slot.run(|| {
            share.run_with_extra(outbound_request.tree_bytes(), || {
                outbound_request.encode(None, None)
            })
        })?),
        false => {
            outbound_request
                .reserve_and_clamp(gateway, principal, &mut share, (&cpu, slot))
                .await?
        }
    };
    let fallbacks = fallbacks.map(|fallbacks| fallbacks.with_headers(version.clone(), flags));
    let reasoning_retry = outbound_request.retry_without_reasoning(&encoded, false);
    share.grow_to(outbound_request.retained_bytes(
        &encoded,
        reasoning_retry.is_some(),
        fallbacks.as_deref(),
    ))?;
    let endpoints = gateway
        .endpoint_registry
        .pool_for(&outbound_request.model.vendor);
    let (body, left_out) = match outbound_request.is_fixed() {
        true => (encoded.body.clone(), Vec::new()),
        false => upstream::leave_out_refused(&endpoints, model, &cpu, encoded.body.clone()),
    };
    let sequencer = encoded.sequencer(idempotency.is_some());
    let (path, version) = if is_translated {
        (translate::vendor_path(model.protocol()), None)
    } else {
        (operation.path, version)
    };
    let vendor_call = VendorCall {
        content_type: None,
        path,
        version,
        previews,
        asks_for_stream: encoded.asks_for_stream,
        endpoints,
        affinity_key: outbound_request.affinity_key(operation.free),
    };
    let (model, sent_bytes, is_drained) = (
        Arc::clone(model),
        body.len(),
        summary.stream && idempotency.is_none(),
    );
    // With an idempotency key, the gateway reads the whole response even if the client has
    // disconnected.
    let exchange = intake::wrap_session(
        session,
        body,
        share,
        deadlines(
            settings,
            record.arrived,
            is_drained,
            Arc::clone(&gateway.shutdown),
        ),
    );
    exchange.set_idempotency(idempotency);
    exchange.set_response_expectations(
        model.hides_reasoning() || outbound_request.turn.is_estimate_uncertain(),
        outbound_request.keep_alive(sequencer),
    );
    Ok(PreparedRequest::Call(Box::new(AdmittedRequest {
        authenticated,
        settings: Arc::clone(settings),
        model,
        vendor_call,
        attempts: AttemptHistory::default(),
        attempt: None,
        hold,
        body_bytes: outbound_request.body.len() as u64,
        turn: outbound_request.turn.clone(),
        usage_bounds,
        sent_bytes,
        wants_stream: summary.stream,
        is_strict: outbound_request.is_fixed(),
        warnings: [encoded.warnings, dropped.into_iter().collect(), left_out].concat(),
        response: Responding::new(
            outbound_request.request_id,
            outbound_request.summary,
            encoded.translation,
            count.and_then(Result::ok),
        ),
        exchange,
        reasoning_retry,
        fallbacks,
        failure: None,
        vendor_fault: None,
        body_read,
        admitted: Instant::now(),
        billed: None,
        cpu,
        metered: None,
    })))
}

/// Waits, but not beyond the cutoff of a shutdown.
///
/// # Errors
/// Returns 503 at the cutoff.
pub(super) async fn before_cutoff<T>(
    gateway: &Gateway,
    waiting: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    tokio::select! {
        biased;
        outcome = waiting => outcome,
        () = gateway.shutdown.wait_for_cutoff() => {
            gateway.shutdown.count_cut();
            Err(Failure::from_kind(Kind::Draining))
        }
    }
}

/// Returns the body, the time it arrived, and a CPU slot to parse it in.
pub(super) async fn receive_body(
    gateway: &Gateway,
    settings: &Settings,
    session: &mut Session,
    share: &mut BodyShare,
    cpu: &CpuWorker,
) -> Result<(Bytes, Instant, CpuSlot), Failure> {
    let limits = BodyLimits::from_limits(&settings.limits);
    let receive = async {
        let received = intake::read_body(session, share, &limits).await?;
        let body_read = Instant::now();
        let body = match received.coding {
            None => received.bytes,
            Some(coding) => {
                let coded = (coding, &*received.bytes);
                let decoded = intake::decode_body(coded, session, cpu, &limits, share);
                // The future is boxed because few bodies have a coding.
                Box::pin(decoded).await?
            }
        };
        let slot = cpu.slot(cpu_pool::work_of(&body), session).await?;
        Ok((body, body_read, slot))
    };
    before_cutoff(gateway, receive).await
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

pub(super) fn deadlines(
    settings: &Settings,
    arrived: Instant,
    may_drain: bool,
    shutdown: Arc<Shutdown>,
) -> Deadlines {
    let limits = &settings.limits;
    let seconds = Duration::from_secs;
    Deadlines {
        total: arrived + seconds(limits.total_seconds),
        first_byte: seconds(limits.first_byte_seconds),
        idle: seconds(limits.idle_seconds),
        client_write: seconds(limits.client_write_seconds),
        drain: seconds(limits.drain_after_client_seconds),
        drain_reasoning: seconds(limits.drain_reasoning_seconds),
        may_drain,
        keep_alive: seconds(limits.stream_keep_alive_seconds),
        shutdown,
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
