//! Turns a vendor's error response into another attempt, a substitute response, or an error in the
//! gateway's own form.
//!
//! This file must not decide whether another attempt is possible: `edge/upstream.rs` does.

use super::fault::{after_own_changes, log_unknown_form};
use crate::edge::intake::{
    BodyHolders, BodyLimits, BodyShare, DecodeAttempt, DeferredHead, decode,
};
use crate::edge::state::admitted::AdmittedRequest;
use crate::edge::state::responding::ResponseMode;
use crate::edge::{local_api, upstream};
use bytes::Bytes;
use http::HeaderValue;
use llm_protocol::Protocol;
use llm_protocol::failure::{self, Failure, Kind};
use llm_protocol::translate;
use pingora::{Error, ErrorType, Result};

/// Maximum size of a vendor's error body, in bytes. The gateway ignores the rest.
const MAX_ERROR_BODY_BYTES: usize = 262_144;

/// Keeps the start of an error body and ignores everything above the limit.
pub(super) fn collect_error(kept: &mut Vec<u8>, piece: &[u8]) {
    let free = MAX_ERROR_BODY_BYTES
        .saturating_sub(kept.len())
        .min(piece.len());
    kept.extend_from_slice(piece.get(..free).unwrap_or_default());
}

/// Removes the content coding of an error body, which some proxies apply unasked. A body whose
/// decoded form is too large stays coded.
fn decode_error(call: &mut AdmittedRequest) {
    let ResponseMode::Error { coding, body, .. } = &mut call.response.mode else {
        return;
    };
    let limits = BodyLimits {
        body_bytes: MAX_ERROR_BODY_BYTES as u64,
        ..BodyLimits::from_limits(&call.settings.limits)
    };
    let mut share = BodyShare::new(BodyHolders::default(), &limits);
    let decoded = coding
        .take()
        .map(|coding| decode(coding, body, DecodeAttempt::Short, &limits, &mut share));
    if let Some(Ok(Some(plain))) = decoded {
        *body = plain.into();
    }
}

/// Renders a vendor's error in the gateway's own form.
///
/// # Errors
/// Returns an error if another attempt follows. If that attempt turns out to be impossible, the
/// client gets `call.failure`.
pub(super) fn process_error(
    call: &mut AdmittedRequest,
    surface: Protocol,
    request_id: &str,
) -> Result<Bytes> {
    let retry = Error::explain(
        ErrorType::InvalidHTTPHeader,
        "the vendor refused the reasoning",
    );
    decode_error(call);
    if retry_if_reasoning_refused(call) || retry_if_member_refused(call) {
        call.failure = Some(Failure::from_kind(Kind::UpstreamFailed));
        return Err(retry.into_up());
    }
    let ResponseMode::Error {
        status,
        retry_after,
        body,
        ..
    } = std::mem::replace(&mut call.response.mode, ResponseMode::Over)
    else {
        return Err(retry.into_up());
    };
    if let Some(substitute) = substitute_for_error(call, surface, status, &body) {
        drop(call.exchange.take_idempotency());
        return Ok(substitute);
    }
    if !body.is_empty() {
        log_unknown_form(call, status, &body);
    }
    let model = &call.model;
    let failure = failure::from_vendor_response(
        &model.vendor.profile,
        status,
        retry_after.as_deref(),
        &body,
        &model.upstream_model,
        &model.id,
    )
    .redact_secret(model.vendor.api_key.reveal());
    let failure = after_own_changes(call, failure);
    upstream::note_error_body(call, &body);
    let refuses_key = failure::refuses_key(status, &body);
    if upstream::handle_refusal((call, request_id), status, &failure, refuses_key) {
        return Err(Error::explain(
            ErrorType::HTTPStatus(status),
            "the vendor answered with an error",
        )
        .into_up());
    }
    // A client that reads the end of the error must find its idempotency key free.
    drop(call.exchange.take_idempotency());
    let rendered = failure.render(surface, request_id);
    let headers = rendered.headers.into_iter();
    let headers = headers
        .filter_map(|(name, value)| Some((name, HeaderValue::from_str(&value).ok()?)))
        .collect();
    call.exchange.set_deferred_head(DeferredHead {
        status: Some(rendered.status),
        content_length: Some(rendered.body.len()),
        headers,
    });
    call.exchange.set_completed();
    call.failure = Some(failure);
    Ok(rendered.body.into())
}

/// Returns whether the vendor refused the reasoning in the request and the gateway retries without
/// it. If so, prepares the retry.
fn retry_if_reasoning_refused(call: &mut AdmittedRequest) -> bool {
    let ResponseMode::Error {
        status: 400, body, ..
    } = &call.response.mode
    else {
        return false;
    };
    if call.reasoning_retry.is_none() || !translate::refuses_thinking(body) {
        return false;
    }
    upstream::retry_without_reasoning(call)
}

/// Returns whether the vendor refused a member that the request can do without. If so, prepares the
/// retry.
fn retry_if_member_refused(call: &mut AdmittedRequest) -> bool {
    let ResponseMode::Error { status, body, .. } = &call.response.mode else {
        return false;
    };
    match failure::refused_member(*status, body) {
        Some(member) => upstream::retry_without_member(call, member),
        None => false,
    }
}

/// Returns a response that replaces a vendor's error, if the client of this surface should not get
/// an error. Examples are a token count that the vendor does not offer, and an output limit too
/// small for the model to generate anything.
fn substitute_for_error(
    call: &mut AdmittedRequest,
    surface: Protocol,
    status: u16,
    body: &[u8],
) -> Option<Bytes> {
    let mut headers = Vec::new();
    let substitute = if let Some(tokens) = call
        .response
        .estimated_count
        .filter(|_| matches!(status, 404 | 405 | 501))
    {
        headers.push((
            local_api::ESTIMATED_HEADER,
            HeaderValue::from_static("true"),
        ));
        local_api::count_body(surface, tokens)
    } else {
        let translation = call
            .response
            .translation
            .as_ref()
            .filter(|_| status == 400 && translate::is_limit_reached_error(body))?;
        if call.wants_stream {
            headers.push((
                "content-type",
                HeaderValue::from_static("text/event-stream; charset=utf-8"),
            ));
        }
        translate::empty_response_at_limit(surface, translation.clone(), call.wants_stream).into()
    };
    call.exchange.set_deferred_head(DeferredHead {
        status: Some(200),
        content_length: Some(substitute.len()),
        headers,
    });
    call.exchange.set_completed();
    Some(substitute)
}
