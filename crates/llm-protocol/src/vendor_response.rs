//! Converts an answer on its way from vendor to client, for every pair of protocols. The edge uses
//! this module for all answers.
//!
//! This module must not inspect bytes: `passthrough.rs` handles the same protocol on both sides,
//! `translate.rs` the rest.
//!
//! Read next: `passthrough.rs`, then `translate.rs`.

use super::Protocol;
pub use super::ir::event::UpstreamError;
use super::ir::event::{ReadResult, ResponseContext};
use super::passthrough;
use super::translate;
use crate::usage::MeteringTerms;
use bytes::Bytes;
pub use complete_response::CompleteResponse;
pub use completion::{Completion, StopReasonStatus, UsagePlace};
pub use response_stream::ResponseStream;

mod complete_response;
mod completion;
mod response_stream;

/// The form in which the client reads an answer.
#[derive(Clone, Copy, Debug)]
pub struct ResponseForm<'a> {
    /// True if the client wants a stream although the vendor sent a whole answer.
    pub streamed: bool,
    /// The seed of [`passthrough::StreamPassthrough::with_call_repair`].
    pub call_seed: Option<&'a str>,
}

/// Reads a vendor's whole answer. `response_context` is the context for translation, or `None` for
/// passthrough.
///
/// # Errors
/// Returns an [`UpstreamError`] if the body is not a complete answer.
pub fn convert_response(
    vendor: Protocol,
    surface: Protocol,
    public_model: &str,
    response_context: Option<ResponseContext>,
    form: ResponseForm<'_>,
    body: Bytes,
    terms: &MeteringTerms,
) -> ReadResult<CompleteResponse> {
    match response_context {
        None => passthrough::rewrite_response(vendor, public_model, body, terms, form.call_seed),
        Some(response_context) => {
            let MeteringTerms {
                estimator,
                bounds: usage_bounds,
                ..
            } = *terms;
            translate::translate_response(
                vendor,
                surface,
                ResponseContext {
                    estimator,
                    usage_bounds,
                    ..response_context
                },
                form.streamed,
                &body,
            )
        }
    }
}
