//! Decides by the first bytes of a successful response whether it is a stream of events or one JSON
//! document. The content type cannot decide it: proxies change it, and some servers send the other
//! form than the gateway requested. The client gets the form that it requested.
//!
//! This file must not read more than the opening of a body.

use super::whole::max_buffered_bytes;
use crate::edge::state::admitted::AdmittedRequest;
use crate::edge::state::record::RequestRecord;
use crate::edge::state::responding::{OpenStreamGuard, ResponseMode};
use base::clock;
use bytes::Bytes;
use llm_protocol::capabilities::CompletionsApi;
use llm_protocol::failure::Failure;
use llm_protocol::ir::event::ResponseContext;
use llm_protocol::keepalive;
use llm_protocol::metered::MeteredAnswer;
use llm_protocol::passthrough::StreamPassthrough;
use llm_protocol::sse;
use llm_protocol::translate::StreamTranslation;

/// Decides how the body is processed, as soon as its first bytes allow that. Returns the bytes to
/// process, or `None` if more are needed.
pub(super) fn decide_mode(
    record: &RequestRecord,
    call: &mut AdmittedRequest,
    piece: Bytes,
    end: bool,
) -> Option<Bytes> {
    let ResponseMode::Undecided {
        is_named_events,
        opening,
    } = &mut call.response.mode
    else {
        return Some(piece);
    };
    if let Some(terms) = call.metered {
        call.response.mode = ResponseMode::Metered {
            answer: Box::new(MeteredAnswer::new(
                terms,
                call.response.answer_form,
                &call.model.id,
                max_buffered_bytes(&call.settings.limits),
            )),
            held: Vec::new(),
        };
        return Some(piece);
    }
    let is_named_events = *is_named_events;
    // The opening is a part of a field's name, or blank lines. A vendor may send many blank lines
    // while it computes.
    let mut opening = std::mem::take(opening);
    let piece = if opening.is_empty() {
        piece
    } else {
        opening.extend_from_slice(&piece);
        opening.into()
    };
    match sse::begins_with_event(&piece, is_named_events) {
        None if !end => {
            call.response.mode = ResponseMode::Undecided {
                is_named_events,
                opening: piece.trim_ascii_start().to_vec(),
            };
            None
        }
        told => {
            call.response.mode = select_mode(record, call, told.unwrap_or(is_named_events));
            if call.response.client_gets_stream {
                set_terminal_error(record, call);
            }
            Some(match call.response.mode {
                ResponseMode::Whole { .. } => piece.slice_ref(sse::without_byte_order_mark(&piece)),
                _ => piece,
            })
        }
    }
}

fn select_mode(record: &RequestRecord, call: &AdmittedRequest, is_events: bool) -> ResponseMode {
    let surface = record.surface;
    let event_bytes = usize::try_from(call.settings.limits.event_bytes).unwrap_or(usize::MAX);
    let translated = call.response.translation.clone();
    let completions = call.response.completions;
    // Nothing converts completions: an answer in the other form is read as the requested one, and
    // fails.
    let is_events = match completions {
        Some(_) => call.wants_stream,
        None => is_events,
    };
    // An answer in the other form must be converted even if it is in the client's protocol.
    let context =
        translated.or_else(|| (is_events != call.wants_stream).then(|| form_context(record, call)));
    if !is_events {
        return ResponseMode::Whole {
            kept: Vec::new(),
            context: context.map(Box::new),
        };
    }
    let Some(context) = context else {
        let pass = StreamPassthrough::new(
            surface,
            &call.model.id,
            call.response.hide_usage,
            event_bytes,
        )
        .with_request(call.metering_terms(), call.response.choices)
        .with_call_repair(call.call_seed())
        .with_text_form(completions == Some(CompletionsApi::Text));
        return ResponseMode::Stream(Box::new(pass), OpenStreamGuard::new());
    };
    let context = ResponseContext {
        usage_bounds: call.usage_bounds,
        ..context
    };
    let vendor = call.model.protocol();
    let stream = StreamTranslation::new(vendor, surface, context, call.wants_stream, event_bytes);
    if call.wants_stream {
        ResponseMode::Stream(Box::new(stream), OpenStreamGuard::new())
    } else {
        ResponseMode::Fold {
            stream: Box::new(stream),
            bytes: 0,
        }
    }
}

/// Returns the context for turning a stream into a whole answer, or the reverse, where client and
/// vendor speak the same protocol.
fn form_context(record: &RequestRecord, call: &AdmittedRequest) -> ResponseContext {
    ResponseContext {
        public_model: call.model.id.clone(),
        created: clock::now_ms().unsigned_abs() / 1_000,
        seed: record.request_id.clone(),
        include_usage: !call.response.hide_usage,
        report_tier: true,
        show_thinking: true,
        estimator: call.turn.estimator(),
        usage_paths: call.model.vendor.profile.usage.clone(),
        ..ResponseContext::default()
    }
}

/// Prepares the failure that ends the stream if the vendor breaks off.
fn set_terminal_error(record: &RequestRecord, call: &AdmittedRequest) {
    let surface = record.surface;
    let sequencer = call.response.sequencer().cloned();
    let request_id = record.request_id.clone();
    call.exchange.set_terminal_error(move |kind| {
        keepalive::encode_terminal_error(
            surface,
            sequencer.as_ref(),
            &Failure::from_kind(kind),
            &request_id,
        )
    });
}
