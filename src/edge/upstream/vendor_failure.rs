//! Counts the failed attempts that the vendor or the operator must fix, with the cause that the log
//! and the service page show.
//!
//! A request that the vendor rightly refuses is not counted. This file must not change the client's
//! response or a circuit breaker.

use crate::edge::intake::AbortReason;
use crate::edge::state::admitted::AdmittedRequest;
use crate::refused_requests::{self, VendorFault};
use crate::upstreams::{MAX_WORDS_CHARS, VendorFailure, VendorFailureCause};
use base::clock;
use llm_protocol::failure::{self, Failure, Kind, VendorError};
use pingora::{Error, ErrorType};
use std::time::Instant;

/// Status of an attempt without a response.
pub(super) const NO_RESPONSE: u16 = 0;

/// Counts a failure of the running attempt. `words` is the message of the vendor or the operating
/// system.
pub(super) fn count(
    call: &mut AdmittedRequest,
    request_id: &str,
    (cause, status): (VendorFailureCause, Option<u16>),
    words: &str,
) {
    note_fault(call, Some(cause), status, words);
    let Some(attempt) = &mut call.attempt else {
        return;
    };
    let failure = VendorFailure {
        cause,
        status,
        words: shorten(words),
        model: &call.model.id,
        request_id,
    };
    let counted = attempt
        .lease
        .count_failure(&failure, clock::now_ms(), Instant::now());
    call.attempts.failed.push(counted);
}

/// Keeps how the attempt failed, for the page of the request. `cause` is `None` if the vendor
/// refused the request for what it is.
fn note_fault(
    call: &mut AdmittedRequest,
    cause: Option<VendorFailureCause>,
    status: Option<u16>,
    words: &str,
) {
    call.vendor_fault = Some(Box::new(VendorFault {
        vendor: call.model.vendor.name.clone(),
        status,
        cause: match cause {
            Some(cause) => cause.describe(&call.settings.limits),
            None => "it refused the request".to_owned(),
        },
        words: failure::shorten_words(words, refused_requests::MAX_WORDS_CHARS),
        is_private: cause.is_some_and(VendorFailureCause::is_private),
    }));
}

/// Counts a response with an error status, if the vendor or the operator must fix the cause, and
/// keeps what it says.
pub(super) fn count_refusal(
    call: &mut AdmittedRequest,
    request_id: &str,
    status: u16,
    failure: &Failure,
) {
    let words = take_words(call);
    match cause_of_failure(failure.kind, status) {
        Some(cause) => count(call, request_id, (cause, Some(status)), &words),
        None => note_fault(call, None, Some(status), &words),
    }
}

/// Counts an attempt that broke off or was given up, unless the request itself caused the failure.
pub(super) fn count_break(call: &mut AdmittedRequest, request_id: &str) {
    let status = match call.response.error_status() {
        Some(status) => status,
        None if call.response.answered_at.is_some() => 200,
        None => NO_RESPONSE,
    };
    let of_silence = match call.exchange.progress().ended {
        Some(AbortReason::FirstByte) => Some(VendorFailureCause::FirstByteTimeout),
        Some(AbortReason::Idle) => Some(VendorFailureCause::Silence),
        _ => None,
    };
    let has_words = call
        .attempt
        .as_ref()
        .is_some_and(|attempt| !attempt.words.is_empty());
    let cause = match (&call.failure, of_silence) {
        (_, Some(silence)) => Some(silence),
        (None, None) => Some(VendorFailureCause::Broken),
        // The vendor sent an error inside a 200, or an unreadable answer.
        (Some(failure), None) if failure.kind == Kind::UpstreamFailed && status < 400 => {
            Some(match has_words {
                true => VendorFailureCause::ServerError,
                false => VendorFailureCause::Unreadable,
            })
        }
        (Some(failure), None) => cause_of_failure(failure.kind, status),
    };
    if let Some(cause) = cause {
        let words = take_words(call);
        let status = (status != NO_RESPONSE).then_some(status);
        count(call, request_id, (cause, status), &words);
    }
}

/// Counts a connection that could not be opened.
pub(super) fn count_connect_failure(call: &mut AdmittedRequest, request_id: &str, error: &Error) {
    let cause = match error.etype() {
        ErrorType::ConnectTimedout => VendorFailureCause::ConnectTimeout,
        ErrorType::TLSHandshakeTimedout
        | ErrorType::TLSHandshakeFailure
        | ErrorType::InvalidCert
        | ErrorType::HandshakeError => VendorFailureCause::Tls,
        _ => VendorFailureCause::Connect,
    };
    let root = error.root_cause();
    // Pingora's own error texts add nothing to the cause.
    let words = match root.is::<Error>() {
        true => String::new(),
        false => root.to_string(),
    };
    count(call, request_id, (cause, None), &words);
}

/// Stores the message of a vendor's error response until the failure is counted.
pub fn note_error_body(call: &mut AdmittedRequest, body: &[u8]) {
    note_words(call, &VendorError::parse_any(body), "");
}

/// Stores the message of an error inside a vendor's answer until the failure is counted.
pub fn note_error_event(call: &mut AdmittedRequest, error: &VendorError) {
    note_words(call, error, "an error without words");
}

fn note_words(call: &mut AdmittedRequest, error: &VendorError, if_none: &str) {
    let model = &call.model;
    let words = error.words_for_log(
        &model.upstream_model,
        &model.id,
        model.vendor.api_key.reveal(),
    );
    let words = if words.is_empty() { if_none } else { &words };
    if let Some(attempt) = &mut call.attempt {
        words.clone_into(&mut attempt.words);
    }
}

/// Records that an attempt has begun to answer after others failed.
pub(super) fn count_answered(call: &mut AdmittedRequest) {
    for failed in call.attempts.failed.drain(..) {
        failed.count_answered();
    }
}

fn take_words(call: &mut AdmittedRequest) -> String {
    let attempt = call.attempt.as_mut();
    attempt.map_or_else(String::new, |attempt| std::mem::take(&mut attempt.words))
}

fn shorten(words: &str) -> String {
    failure::shorten_words(words, MAX_WORDS_CHARS)
}

/// Returns the cause of a failure of this kind, or `None` if the request or the gateway's own
/// limits caused it.
fn cause_of_failure(kind: Kind, status: u16) -> Option<VendorFailureCause> {
    Some(match kind {
        Kind::RateLimited => VendorFailureCause::RateLimited,
        Kind::Overloaded => VendorFailureCause::Overloaded,
        Kind::VendorRequestTimeout => VendorFailureCause::RequestTimeout,
        Kind::VendorRefusedUs => VendorFailureCause::KeyRefused,
        Kind::VendorQuota => VendorFailureCause::NoCredit,
        Kind::VendorModelMissing => VendorFailureCause::ModelMissing,
        Kind::UpstreamFailed if (400..500).contains(&status) => VendorFailureCause::PathRefused,
        Kind::UpstreamFailed | Kind::UpstreamTimeout => VendorFailureCause::ServerError,
        Kind::UpstreamClosed | Kind::UpstreamUnreachable => VendorFailureCause::Broken,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_another_vendor_may_answer_is_a_failure_of_this_one() {
        for kind in Kind::ALL {
            assert_eq!(
                cause_of_failure(*kind, 500).is_some(),
                kind.is_retryable_elsewhere(),
                "{kind:?}"
            );
        }
    }
}
