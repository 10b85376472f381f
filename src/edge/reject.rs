//! Answers the client when a request fails after admission: with a response, or with the end of a
//! stream that has begun. It also refuses tunnels and counts refusals of the sidecar.
//!
//! This file must not decide that something failed, or whether the gateway tries again. Next:
//! `edge/respond.rs` (writes the response).

use super::malformed::{MalformedResponse, NO_TUNNELS, record_malformed};
use super::recorders::Recorders;
use super::respond::{
    answer_malformed, build, count, has_begun, note_left, note_reset, send_failure,
    send_failure_page,
};
use super::state::admitted::AdmittedRequest;
use super::state::record::RequestRecord;
use super::state::{RequestContext, Stage};
use super::{connections, intake, response, settlement};
use base::telemetry::log_path::{loggable_method, loggable_path};
use base::telemetry::refusals::{self, RefusalReason};
use llm_protocol::failure::{Failure, Kind};
use llm_protocol::keepalive;
use pingora::protocols::http::ServerSession;
use pingora::proxy::Session;
use pingora::{Error, ErrorSource, ErrorType, Result};

/// Sends the failure to the client, as a response or inside a stream that has begun.
pub async fn send_error(
    session: &mut Session,
    error: &Error,
    ctx: &mut RequestContext,
) -> Result<()> {
    let surface = ctx.record.surface;
    if let Some(call) = ctx.call()
        && !call.exchange.progress().has_client_left()
        && let Some(end) = response::finish_complete_response(call, surface)
    {
        if call.exchange.wait_for_ending().await {
            return session.write_response_body(Some(end), true).await;
        }
        call.failure = Some(Failure::from_kind(Kind::LedgerUnavailable));
    }
    if let Some(call) = ctx.call()
        && call.exchange.has_idempotency()
    {
        // A client that reads the failure must find the outcome of its idempotency key decided.
        settlement::settle_or_release(call);
        call.exchange.wait_for_ending().await;
        call.exchange.wait_for_decision().await;
    }
    let (failure, unsent, began_stream) = match &mut ctx.stage {
        Stage::Admitted(call) => {
            let progress = call.exchange.progress();
            if progress.has_client_left() || progress.is_completed() {
                return Ok(());
            }
            let opening = call.exchange.take_opening();
            let unsent = std::mem::take(&mut call.response.unsent);
            (
                failure_of(call, error),
                [opening, unsent].concat(),
                call.response.is_stream(),
            )
        }
        Stage::Sidecar(request) => {
            let is_page = request.lookup_account().is_none();
            let has_begun = has_begun(session);
            if let Some(defect) = connections::body_defect(session.digest()) {
                let client = ctx.record.caller.map(|caller| caller.address);
                refusals::record(defect.reason, client, defect.message);
                if has_begun {
                    return Ok(());
                }
                session.set_keepalive(None);
                return answer_malformed(session, ctx, defect.reason, &defect.into()).await;
            }
            if *error.esource() == ErrorSource::Downstream {
                if !has_begun && !note_reset(session, ctx) {
                    note_left(&mut ctx.record);
                }
                return Ok(());
            }
            let failure = Failure::new(Kind::UpstreamUnreachable, "The dashboard does not answer.");
            if is_page && !has_begun {
                session.set_keepalive(None);
                return send_failure_page(session, ctx, &failure).await;
            }
            (failure, Vec::new(), false)
        }
        Stage::Received | Stage::Authenticated(_) | Stage::Answered { .. } => {
            (Failure::from_kind(Kind::Internal), Vec::new(), false)
        }
    };
    if !has_begun(session) {
        if let Some(call) = ctx.call() {
            // Only the client's own session can announce that Pingora closes the connection after
            // this response.
            intake::restore_session(session, &call.exchange).await;
        }
        session.set_keepalive(None);
        return send_failure(session, ctx, &failure).await;
    }
    if began_stream {
        return end_stream(session, ctx, &failure, &unsent).await;
    }
    Ok(())
}

/// Returns the failure of the last attempt, unless the shutdown of the process cut it off.
fn failure_of(call: &AdmittedRequest, error: &Error) -> Failure {
    let is_cut = call.exchange.progress().ended == Some(intake::AbortReason::Shutdown);
    let known = call.failure.clone().filter(|_| !is_cut);
    known.unwrap_or_else(|| classify_failure(call, error))
}

fn classify_failure(call: &AdmittedRequest, error: &Error) -> Failure {
    if call.exchange.progress().ended == Some(intake::AbortReason::Shutdown) {
        return Failure::from_kind(Kind::Draining);
    }
    let timed_out = call.exchange.progress().ended.is_some()
        || matches!(
            error.etype(),
            ErrorType::ReadTimedout | ErrorType::WriteTimedout | ErrorType::ConnectTimedout
        );
    Failure::from_kind(if timed_out {
        Kind::UpstreamTimeout
    } else if call.exchange.progress().has_begun() {
        Kind::UpstreamClosed
    } else {
        Kind::UpstreamFailed
    })
}

/// Ends a stream that has begun with a failure that the client can read; a body that just ends
/// would look like a complete response. The function sends `unsent` before the failure.
async fn end_stream(
    session: &mut Session,
    ctx: &mut RequestContext,
    failure: &Failure,
    unsent: &[u8],
) -> Result<()> {
    let bytes = [unsent, &terminal_event(ctx, failure)].concat();
    session.write_response_body(Some(bytes.into()), true).await
}

/// Returns the event that ends a stream with a failure.
pub fn terminal_event(ctx: &mut RequestContext, failure: &Failure) -> Vec<u8> {
    ctx.record.reason = Some(failure.reason());
    let sequencer = ctx
        .call()
        .and_then(|call| call.response.sequencer().cloned());
    keepalive::encode_terminal_error(
        ctx.record.surface,
        sequencer.as_ref(),
        failure,
        &ctx.record.request_id,
    )
}

/// Refuses a request to open a tunnel. Pingora would neither count nor log the request.
pub async fn refuse_connect(mut session: ServerSession, recorders: &Recorders) {
    let mut record = RequestRecord::new();
    let head = session.req_header();
    let method = loggable_method(head.method.as_str().as_bytes());
    let path = loggable_path(head.raw_path());
    let address = session
        .client_addr()
        .and_then(|address| Some(address.as_inet()?.ip()));
    let failure = Failure::new(Kind::WrongMethod, NO_TUNNELS);
    let reason = RefusalReason::RequestLine;
    refusals::record(
        reason,
        address,
        format_args!(
            "{method} {path}: {} Request {}",
            failure.message, record.request_id
        ),
    );
    let sent = async {
        let (head, body) = build(&mut record, &failure)?;
        session.write_response_header(Box::new(head)).await?;
        session.write_response_body(body, true).await?;
        session.finish_body().await
    };
    if let Err(error) = sent.await {
        log::debug!("cannot answer a CONNECT request: {error}");
    }
    let response = MalformedResponse {
        request_id: std::mem::take(&mut record.request_id),
        surface: Some(record.surface),
        status: record.status,
        bytes: Vec::new(),
    };
    let took = record.arrived.elapsed();
    record_malformed(recorders, &response, reason, address, (method, path), took);
}

/// The `reason` label in the metrics for each refusing status of the sidecar.
pub const SIDECAR_REASONS: [(u16, &str); 12] = [
    (400, "invalid_request"),
    (401, "bad_sign_in"),
    (403, "forbidden"),
    (404, "unknown_path"),
    (405, "wrong_method"),
    (408, "body_timeout"),
    (409, "conflict"),
    (413, "body_too_large"),
    (422, "invalid_request"),
    (429, "rate_limited"),
    (500, "internal"),
    (503, "overloaded"),
];

/// Records the status of a response of the sidecar. A refusal is counted like the edge's own.
pub fn note_sidecar_status(record: &mut RequestRecord, status: u16) {
    record.status = status;
    if status < 400 {
        return;
    }
    let known = SIDECAR_REASONS.iter().find(|(known, _)| *known == status);
    let reason = match known {
        Some((_, reason)) => reason,
        None if status < 500 => "invalid_request",
        None => "internal",
    };
    count(record, reason);
}
