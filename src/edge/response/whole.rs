//! Collects a whole JSON response, converts it, debits the account, and releases it in one piece.
//!
//! This file must not release a body before the debit.

use super::debit::{ResponseUsage, record_for_replay, settle};
use super::fault::{handle_fault, log_unknown_form};
use super::header::{WARNINGS_HEADER, encode_warnings};
use crate::edge::cpu_pool;
use crate::edge::intake::DeferredHead;
use crate::edge::state::admitted::AdmittedRequest;
use crate::edge::state::responding::ResponseMode;
use bytes::Bytes;
use config::Limits;
use http::HeaderValue;
use llm_protocol::Protocol;
use llm_protocol::failure::{Failure, Kind};
use llm_protocol::ir::event::ResponseContext;
use llm_protocol::passthrough;
use llm_protocol::vendor_response::{self, CompleteResponse, ResponseForm, UpstreamError};

pub(super) const RESPONSE_TOO_LARGE: &str =
    "The model's answer is larger than this gateway accepts.";

pub(super) fn append_bounded(
    kept: &mut Vec<u8>,
    piece: &[u8],
    limits: &Limits,
) -> Result<(), Failure> {
    if kept.len().saturating_add(piece.len()) > max_buffered_bytes(limits) {
        return Err(Failure::new(Kind::UpstreamFailed, RESPONSE_TOO_LARGE));
    }
    kept.extend_from_slice(piece);
    Ok(())
}

/// Returns the maximum size of a response that the gateway keeps until it is complete, in bytes.
pub(super) fn max_buffered_bytes(limits: &Limits) -> usize {
    usize::try_from(limits.response_buffer_bytes).unwrap_or(usize::MAX)
}

/// Checks whether the bytes received before an exchange broke off are a complete response.
pub fn inspect_broken_response(call: &mut AdmittedRequest, surface: Protocol) {
    let ResponseMode::Whole { kept, context } = &call.response.mode else {
        return;
    };
    // If the JSON value is closed, only the end of the framing is missing.
    if kept
        .last()
        .is_some_and(|byte| matches!(byte, b'}' | b' ' | b'\n' | b'\r' | b'\t'))
    {
        let body = Bytes::copy_from_slice(kept);
        let is_whole = call.cpu.run_admitted(cpu_pool::work_of(&body), || {
            read_whole(call, surface, context.as_deref(), body).is_ok()
        });
        call.exchange.set_finishing(is_whole, true);
    }
}

pub(super) fn process_whole(
    call: &mut AdmittedRequest,
    surface: Protocol,
) -> Result<Option<Bytes>, Failure> {
    let ResponseMode::Whole { kept, context } = &mut call.response.mode else {
        return Ok(None);
    };
    let (kept, context) = (Bytes::from(std::mem::take(kept)), context.take());
    let (outcome, unbilled_usage) = call.cpu.run_admitted(cpu_pool::work_of(&kept), || {
        let outcome = read_whole(call, surface, context.as_deref(), kept.clone());
        let unbilled_usage = outcome.as_ref().err().and_then(|_| {
            passthrough::read_usage(call.model.protocol(), &kept, &call.metering_terms())
        });
        (outcome, unbilled_usage)
    });
    let whole = match outcome {
        Ok(whole) => whole,
        Err(fault) => {
            call.response.unbilled_usage = unbilled_usage;
            if matches!(fault, UpstreamError::NotJson | UpstreamError::Empty) {
                log_unknown_form(call, 200, &kept);
            }
            return Err(handle_fault(call, &fault, true));
        }
    };
    let CompleteResponse {
        body,
        usage,
        known_usage: learned,
        generated_bytes,
        refused_free,
        warnings,
    } = whole;
    let counted = ResponseUsage {
        usage,
        reported_usage: learned,
        generated_bytes,
        refused_free,
        cut: None,
    };
    Ok(release_whole(call, body, &warnings, counted))
}

fn read_whole(
    call: &AdmittedRequest,
    surface: Protocol,
    context: Option<&ResponseContext>,
    body: Bytes,
) -> Result<CompleteResponse, UpstreamError> {
    let (vendor, model) = (call.model.protocol(), &call.model.id);
    if call.response.estimated_count.is_some() {
        let body = passthrough::rewrite_token_count(vendor, model, body)?;
        return Ok(CompleteResponse {
            body,
            usage: None,
            known_usage: None,
            generated_bytes: 0,
            refused_free: false,
            warnings: Vec::new(),
        });
    }
    vendor_response::convert_response(
        vendor,
        surface,
        model,
        context.cloned(),
        ResponseForm {
            streamed: call.response.client_gets_stream,
            call_seed: call.call_seed(),
        },
        body,
        &call.metering_terms(),
    )
}

/// Debits the account for a whole response, and returns its body.
pub(super) fn release_whole(
    call: &mut AdmittedRequest,
    body: Bytes,
    warnings: &[&'static str],
    counted: ResponseUsage,
) -> Option<Bytes> {
    call.response.mode = ResponseMode::Over;
    let mut head = DeferredHead {
        content_length: Some(body.len()),
        ..DeferredHead::default()
    };
    if let Some(credits) = settle(call, counted) {
        let value = HeaderValue::from_str(&credits.to_string());
        head.headers
            .extend(value.ok().map(|value| ("x-gateway-credits", value)));
        if let Some(mut idempotency) = call.exchange.take_idempotency() {
            idempotency.add_header("x-gateway-credits", credits.to_string());
            call.exchange.set_idempotency(Some(idempotency));
        }
    }
    if !warnings.is_empty() && !call.response.client_gets_stream {
        call.warnings
            .extend(warnings.iter().map(|&warning| warning.to_owned()));
        let value = HeaderValue::from_bytes(&encode_warnings(&mut call.warnings));
        head.headers
            .extend(value.ok().map(|value| (WARNINGS_HEADER, value)));
    }
    call.exchange.set_deferred_head(head);
    call.exchange.set_completed();
    record_for_replay(call, &body);
    Some(body)
}
