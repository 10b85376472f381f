//! Processes the vendor's response: its status and header, and then its bytes up to the last one.
//!
//! This module enforces the rule that makes the bill correct: the journal has the usage before the
//! gateway releases the terminal event, or the whole JSON body, to the client. No other module
//! touches response bytes. This module must not await, because Pingora's body filters are
//! synchronous. Next: `response/header.rs`, `response/mode.rs`, `response/stream.rs`,
//! `response/whole.rs`, `response/metered.rs`, `response/error.rs` (the kinds of responses),
//! `response/debit.rs` (the debit), `state/responding.rs` (their state).

mod answer_id;
mod debit;
mod error;
mod fault;
mod header;
mod metered;
mod mode;
mod output_limit;
mod stream;
mod whole;

pub use whole::inspect_broken_response;

use super::settlement;
use super::state::admitted::AdmittedRequest;
use super::state::record::RequestRecord;
use super::state::responding::ResponseMode;
use answer_id::find_answer_id;
use bytes::Bytes;
use error::{collect_error, process_error};
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH};
use llm_protocol::Protocol;
use llm_protocol::failure::{Failure, Kind};
use llm_protocol::keepalive;
use llm_protocol::vendor_response::ResponseStream as _;
use metered::process_metered;
use mode::decide_mode;
use pingora::http::ResponseHeader;
use pingora::{Error, ErrorType, Result};
use stream::{fold_stream, process_stream};
use whole::{append_bounded, process_whole};

const CODED: &str = "The vendor compressed its answer, although it was asked not to.";

/// Checks the vendor's header and replaces it with the gateway's. If it says that a metered answer
/// has no bytes, which are the words of silence, the answer ends here: Pingora calls no filter for
/// its body.
///
/// # Errors
/// Returns an error if the header is too large, if the status permits another attempt, or if a
/// metered answer is compressed or cannot end yet.
pub fn filter_header(
    record: &mut RequestRecord,
    call: &mut AdmittedRequest,
    header: &mut ResponseHeader,
) -> Result<()> {
    let length = header.headers.get(CONTENT_LENGTH);
    let is_empty = header.status.is_success() && length.is_some_and(|length| length == "0");
    let coding = header.headers.get(CONTENT_ENCODING);
    let is_coded = header.status.is_success() && coding.is_some_and(|it| it != "identity");
    header::filter_header(record, call, header)?;
    match call.metered {
        Some(_) if is_coded => {
            call.exchange.mark_vendor_failed();
            call.failure = Some(Failure::new(Kind::UpstreamFailed, CODED));
            Error::e_explain(ErrorType::InvalidHTTPHeader, CODED)
                .map_err(|error: Box<Error>| error.into_up())
        }
        Some(_) if is_empty => filter_body(record, call, &mut None, true),
        _ => Ok(()),
    }
}

/// Passes a piece of the vendor's body on, or keeps it until the body is complete.
///
/// # Errors
/// Returns an error if the response cannot continue. `call.failure` holds the reason.
pub fn filter_body(
    record: &mut RequestRecord,
    call: &mut AdmittedRequest,
    body: &mut Option<Bytes>,
    end: bool,
) -> Result<()> {
    let surface = record.surface;
    let piece = body.take().unwrap_or_default();
    let Some(piece) = decide_mode(record, call, piece, end) else {
        return Ok(());
    };
    let mut status = None;
    let outcome = match &mut call.response.mode {
        ResponseMode::Stream(..) => process_stream(call, &piece, end),
        ResponseMode::Fold { .. } => fold_stream(call, &piece, end),
        ResponseMode::Whole { kept, .. } => {
            match append_bounded(kept, &piece, &call.settings.limits) {
                Ok(()) if end => process_whole(call, surface),
                Ok(()) => Ok(None),
                Err(failure) => Err(failure),
            }
        }
        ResponseMode::Metered { .. } => process_metered(call, &piece, end),
        ResponseMode::Error { body: kept, .. } => {
            collect_error(kept, &piece);
            if end {
                let response = process_error(call, surface, &record.request_id)?;
                status = Some(
                    call.failure
                        .as_ref()
                        .map_or(200, |failure| failure.status(surface)),
                );
                Ok(Some(response))
            } else {
                Ok(None)
            }
        }
        ResponseMode::Waiting | ResponseMode::Undecided { .. } | ResponseMode::Over => Ok(None),
    };
    if outcome
        .as_ref()
        .is_err_and(|failure| !failure.kind.is_of_gateway())
    {
        call.exchange.mark_vendor_failed();
    }
    match outcome {
        Ok(bytes) => {
            if let (Some(bytes), None) = (&bytes, &call.response.answer_id) {
                call.response.answer_id = find_answer_id(bytes).map(ToOwned::to_owned);
            }
            *body = bytes;
            record.status = status.unwrap_or(record.status);
            Ok(())
        }
        Err(failure) if call.response.is_open_stream() && call.exchange.progress().has_begun() => {
            *body = Some(end_stream_with_failure(
                call,
                &failure,
                surface,
                &record.request_id,
            ));
            Ok(())
        }
        Err(failure) => {
            call.failure = Some(failure);
            Error::e_explain(
                ErrorType::InvalidHTTPHeader,
                "cannot use the vendor's answer",
            )
            .map_err(|error: Box<Error>| error.into_up())
        }
    }
}

/// Ends a complete response whose vendor has broken off or is silent. Returns `None` if the
/// response is not complete.
pub fn finish_complete_response(call: &mut AdmittedRequest, surface: Protocol) -> Option<Bytes> {
    let outcome = match &call.response.mode {
        ResponseMode::Stream(pass, _) if pass.is_finishing() => process_stream(call, b"", true),
        ResponseMode::Fold { stream, .. } if stream.is_finishing() => fold_stream(call, b"", true),
        ResponseMode::Whole { .. } if call.exchange.progress().is_finishing() => {
            process_whole(call, surface)
        }
        _ => return None,
    };
    outcome.ok().flatten()
}

/// Ends a stream that has begun with a failure that the client can read. The connection survives.
fn end_stream_with_failure(
    call: &mut AdmittedRequest,
    failure: &Failure,
    surface: Protocol,
    request_id: &str,
) -> Bytes {
    let mut last = [
        call.exchange.take_opening(),
        std::mem::take(&mut call.response.unsent),
    ]
    .concat();
    last.extend_from_slice(&keepalive::encode_terminal_error(
        surface,
        call.response.sequencer(),
        failure,
        request_id,
    ));
    call.failure = Some(failure.clone());
    settlement::settle_or_release(call);
    call.exchange.set_completed();
    call.response.mode = ResponseMode::Over;
    last.into()
}
