//! Ends a request: settles or releases the hold if the response did not, and writes the access
//! record.
//!
//! This file must not write to the client. Next: `edge/settlement.rs`, `finish/spans.rs`.

mod spans;

use super::admit::REPLAYED;
use super::intake;
use super::recorders::Recorders;
use super::settlement::settle_or_release;
use super::state::admitted::AdmittedRequest;
use super::state::{RequestContext, Stage};
use super::upstream;
use crate::refused_requests::{NoteKind, RefusedRequest, RequestNote, VendorFault};
use base::clock;
use base::telemetry::METRICS;
use base::telemetry::access::{AccessRecord, CallRecord};
use ledger::RequestOutcome;
use llm_protocol::failure::{Failure, Kind};
use pingora::proxy::Session;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Runs once per request, regardless of its outcome.
pub async fn finish_request(
    recorders: &Recorders,
    session: &mut Session,
    ctx: &mut RequestContext,
) {
    if let Stage::Admitted(call) = &mut ctx.stage {
        // A client that left or was given up must not get the end of the framing, which would make
        // the response look complete. Its connection closes with the wrapper, without waiting for a
        // write.
        if !call.exchange.progress().has_client_left() {
            intake::restore_session(session, &call.exchange).await;
        }
        settle_or_release(call);
        if !call.exchange.wait_for_ending().await {
            call.billed = None;
            call.failure
                .get_or_insert_with(|| Failure::from_kind(Kind::LedgerUnavailable));
        }
        // A draining process waits for this request, and so also for the outcome of its idempotency
        // key.
        call.exchange.wait_for_decision().await;
        upstream::finish_attempt(call, &ctx.record.request_id);
    }
    record_request(recorders, ctx);
}

/// Counts, traces and logs the request.
pub fn record_request(recorders: &Recorders, ctx: &mut RequestContext) {
    let took = ctx.record.arrived.elapsed();
    count_request(ctx, took);
    record_refusal(recorders, ctx);
    record_note(recorders, ctx);
    if ctx.record.trace.is_some() {
        let status = status(ctx);
        recorders
            .traces
            .export(spans::build_spans(ctx, status, took));
    }
    if recorders.access.is_on() {
        recorders.access.write(access_record(ctx, took));
    }
}

/// Records a request that the gateway refused after it had recognised the key. An admitted request
/// has a receipt instead.
fn record_refusal(recorders: &Recorders, ctx: &mut RequestContext) {
    let Some(failure) = ctx.record.failure.take() else {
        return;
    };
    if matches!(ctx.stage, Stage::Admitted(_) | Stage::Sidecar(_)) {
        return;
    }
    let authenticated = ctx.stage.authenticated();
    let key = ctx.record.refused_key.take().map(|key| *key);
    let Some(key) = key.or_else(|| authenticated.map(|known| known.principal.identity())) else {
        return;
    };
    let (code, message) = *failure;
    recorders.refused.record(RefusedRequest {
        request_id: ctx.record.request_id.clone(),
        account: key.account_id,
        at_ms: clock::now_ms(),
        status: ctx.record.status,
        code,
        message,
        surface: ctx.record.surface.as_str(),
        model: ctx
            .record
            .model
            .get()
            .map(|model| model.id.clone())
            .or_else(|| ctx.record.asked_model.get().cloned())
            .unwrap_or_default(),
        key_id: key.key_id,
        key_shown: key.key_shown,
    });
}

/// Notes what nothing else keeps of a request with a valid key: a free one has no receipt, and a
/// receipt has neither the vendor's ids nor its words.
fn record_note(recorders: &Recorders, ctx: &mut RequestContext) {
    let (status, asked_for) = (status(ctx), ctx.record.asked_for);
    let (mut header_id, mut answer_id, mut fault) = (None, None, None);
    match &mut ctx.stage {
        Stage::Admitted(call) => {
            fault = take_fault(call);
            header_id = call.response.header_id.take();
            answer_id = call.response.answer_id.take();
        }
        // The id is that of the request whose answer was sent again.
        Stage::Answered { handler, .. } if *handler == REPLAYED => return,
        // A request for a model that was refused.
        Stage::Answered { .. } if ctx.record.asks_model && status >= 400 => return,
        Stage::Answered { .. } | Stage::Sidecar(_) => {}
        Stage::Received | Stage::Authenticated(_) => return,
    }
    let has_ids = header_id.is_some() || answer_id.is_some();
    let kind = match (&fault, asked_for) {
        (Some(_), _) => NoteKind::Failed,
        (None, "") if has_ids => NoteKind::Answered,
        (None, "") => return,
        (None, _) => NoteKind::Free,
    };
    let Some(known) = ctx.stage.authenticated() else {
        return;
    };
    recorders.refused.note(RequestNote {
        request_id: ctx.record.request_id.clone(),
        account: Arc::clone(&known.principal.account_id),
        at_ms: clock::now_ms(),
        kind,
        status,
        asked_for: asked_for.to_owned(),
        header_id,
        answer_id,
        fault,
    });
}

/// How the vendor failed the request; `None` if it did not.
fn take_fault(call: &mut AdmittedRequest) -> Option<VendorFault> {
    let fault = call.vendor_fault.take().map(|fault| *fault);
    let has_failed = match call.billed {
        Some((outcome, _)) => matches!(
            outcome,
            RequestOutcome::VendorError | RequestOutcome::VendorCut
        ),
        // A free one.
        None => call.failure.is_some(),
    };
    let of_failure = || {
        Some(VendorFault {
            vendor: call.model.vendor.name.clone(),
            status: None,
            cause: call.failure.as_ref()?.message.clone(),
            words: String::new(),
            is_private: false,
        })
    };
    has_failed.then(|| fault.or_else(of_failure)).flatten()
}

/// Status to record if the client had disconnected before it got one.
const CLIENT_CLOSED_REQUEST: u16 = 499;

fn status(ctx: &RequestContext) -> u16 {
    if ctx.record.status == 0 {
        CLIENT_CLOSED_REQUEST
    } else {
        ctx.record.status
    }
}

fn count_request(ctx: &RequestContext, took: Duration) {
    let (route, surface) = (
        ctx.record.route.as_str(),
        ctx.record.route.surface(ctx.record.surface),
    );
    let model = match &ctx.stage {
        Stage::Admitted(call) => METRICS.models.label(&call.model.id),
        // One that was refused after its model was known.
        _ => (ctx.record.model.get()).map_or("", |model| METRICS.models.label(&model.id)),
    };
    METRICS
        .requests
        .with_label_values(&[route, surface, model, &status(ctx).to_string()])
        .inc();
    let Stage::Admitted(call) = &ctx.stage else {
        return;
    };
    let phases = call.phases(ctx.record.arrived);
    METRICS
        .request_seconds
        .with_label_values(&[surface, model])
        .observe(took.as_secs_f64());
    // A token count is not billed and does not count as a generation.
    if call.attempts.count() > 0 && call.billed.is_some() {
        let failed = (status(ctx) >= 400).then(|| status(ctx).to_string());
        let left = call
            .exchange
            .progress()
            .has_client_left()
            .then_some("client_left");
        METRICS.gen_ai.observe_operation(
            &call.model.id,
            call.admitted.elapsed(),
            ctx.record.reason.or(left).or(failed.as_deref()),
        );
    }
    // The time excludes the wait for the client's body, which the gateway does not cause.
    METRICS
        .overhead_seconds
        .observe((phases.auth + phases.admit).as_secs_f64());
    if let Some(first) = call.exchange.progress().first_byte {
        METRICS
            .time_to_first_byte_seconds
            .observe(first.duration_since(ctx.record.arrived).as_secs_f64());
    }
}

/// Builds the access log record. The function takes the request's id out of `ctx`, because nothing
/// needs it afterwards.
fn access_record(ctx: &mut RequestContext, took: Duration) -> AccessRecord {
    let (handler, call) = match &ctx.stage {
        Stage::Admitted(call) => ("call", Some(call_record(call, ctx.record.arrived))),
        Stage::Answered { handler, .. } => (*handler, None),
        Stage::Sidecar(_) => ("sidecar", None),
        Stage::Received | Stage::Authenticated(_) => ("new", None),
    };
    let authenticated = ctx.stage.authenticated();
    let (method, path) = ctx
        .record
        .target
        .take()
        .map(|target| *target)
        .unwrap_or_default();
    AccessRecord {
        at_ms: clock::now_ms().saturating_sub(i64::try_from(took.as_millis()).unwrap_or(i64::MAX)),
        client: ctx.record.caller.map(|caller| caller.address),
        method,
        path,
        route: ctx.record.route.as_str(),
        handler,
        surface: ctx.record.route.surface(ctx.record.surface),
        status: status(ctx),
        reason: ctx.record.reason,
        account: authenticated.map(|known| Arc::clone(&known.principal.account_id)),
        key_id: authenticated.map(|known| Arc::clone(&known.principal.key_id)),
        auth_us: authenticated.map(|known| micros(known.at.duration_since(ctx.record.arrived))),
        call,
        total_us: micros(took),
        request_id: std::mem::take(&mut ctx.record.request_id),
    }
}

fn call_record(call: &AdmittedRequest, arrived: Instant) -> CallRecord {
    let phases = call.phases(arrived);
    CallRecord {
        model: call.model.id.clone(),
        stream: call.wants_stream,
        vendor: call.model.vendor.name.clone(),
        endpoint: call
            .last_endpoint()
            .map(|endpoint| endpoint.authority.clone())
            .unwrap_or_default(),
        attempts: call.attempts.count(),
        body_bytes: call.body_bytes,
        outcome: call.billed.map(|(outcome, _)| outcome.as_str()),
        credits: call.billed.map(|(_, credits)| credits),
        body_us: micros(phases.body),
        admit_us: micros(phases.admit),
        vendor_us: phases.vendor.map(micros),
        first_byte_us: call
            .exchange
            .progress()
            .first_byte
            .map(|at| micros(at.duration_since(arrived))),
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
