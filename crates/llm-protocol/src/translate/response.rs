//! Translates a vendor's whole answer, and reads the errors of a vendor that have an answer of their
//! own.
//!
//! It must not stream: `translate/stream.rs` does.

use super::observer::StreamObserver;
use crate::failure::VendorError;
use crate::ir::event::{
    Event, EventSink, ResponseContext, ResponseStart, StopReason, UpstreamError,
};
use crate::json::document::{JsonDocument, NodeBuffer};
use crate::json::nesting::MAX_RESPONSE_DEPTH;
use crate::usage::Usage;
use crate::vendor_response::CompleteResponse;
use crate::{Protocol, chat, messages, responses};

/// Reads a vendor's whole answer and writes it in the caller's protocol.
///
/// # Errors
/// Returns an [`UpstreamError`] if the body is not a complete answer.
pub fn translate_response(
    vendor: Protocol,
    surface: Protocol,
    recall: ResponseContext,
    streamed: bool,
    body: &[u8],
) -> Result<CompleteResponse, UpstreamError> {
    let text = std::str::from_utf8(body).map_err(|_| UpstreamError::NotJson)?;
    let tree = JsonDocument::parse(text, MAX_RESPONSE_DEPTH, NodeBuffer::new())
        .map_err(|_| UpstreamError::NotJson)?;
    let mut tally = StreamObserver::new(vendor, surface, recall, streamed);
    match vendor {
        Protocol::Chat => chat::read_stream::read_body(tree.root(), &mut tally)?,
        Protocol::Messages => messages::read_stream::read_body(tree.root(), &mut tally)?,
        Protocol::Responses => responses::read_stream::read_body(tree.root(), &mut tally)?,
    }
    // A whole body cannot be cut off in transit; it lacks a stop reason.
    tally.check().map_err(|fault| {
        if fault == UpstreamError::Cut {
            UpstreamError::Empty
        } else {
            fault
        }
    })?;
    let mut out = Vec::with_capacity(body.len());
    tally.take(&mut out);
    Ok(CompleteResponse {
        body: out.into(),
        usage: tally.usage(),
        learned: tally.known_usage(),
        generated_bytes: tally.generated_bytes,
        refused_free: tally.refused_free(),
    })
}

/// Returns whether the vendor refuses the reasoning that came with a request, for a reason that
/// only it can check, such as a signature.
pub fn refuses_thinking(error_body: &[u8]) -> bool {
    let error = VendorError::parse(error_body).unwrap_or_default();
    let says = |word: &str| error.message.contains(word);
    let by_messages =
        says("thinking") && (says("signature") || says("Expected") || says("cannot be modified"));
    let by_responses = error.code.as_deref() == Some("invalid_encrypted_content")
        || (says("ncrypted content") && says("could not be verified"))
        || (says("Item with id") && says("not found"))
        || says("required following item")
        || says("required 'reasoning' item");
    by_messages || by_responses
}

/// Returns whether a reasoning model of a chat vendor ran into the output limit before any output.
/// The vendor reports that as an error.
pub fn is_limit_reached_error(error_body: &[u8]) -> bool {
    let message = VendorError::parse(error_body).unwrap_or_default().message;
    message.starts_with(
        "Could not finish the message because max_tokens or model output limit was reached",
    )
}

/// Returns an answer that reached its output limit before any output.
pub fn empty_response_at_limit(
    vendor: Protocol,
    surface: Protocol,
    recall: ResponseContext,
    streamed: bool,
) -> Vec<u8> {
    let usage = Usage {
        input: recall.input_estimate,
        output: recall.output_limit,
        ..Usage::default()
    };
    let mut tally = StreamObserver::new(vendor, surface, recall, streamed);
    tally.event(Event::Start(ResponseStart::default()));
    tally.event(Event::Stop(StopReason::MaxTokens));
    tally.event(Event::Usage {
        usage,
        is_final: true,
    });
    tally.event(Event::End);
    let mut out = Vec::new();
    tally.take(&mut out);
    out
}
