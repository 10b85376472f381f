//! An answer on its way from vendor to client, for every pair of protocols: the edge's only entry
//! point for answers.
//!
//! It must not inspect bytes: `passthrough.rs` handles the same protocol on both sides,
//! `translate.rs` the rest.
//!
//! Read next: `passthrough.rs`, then `translate.rs`.

use super::Protocol;
use super::ir::event::ResponseContext;
pub use super::ir::event::UpstreamError;
use super::passthrough::{self, StreamPassthrough};
use super::translate::{self, StreamTranslation};
use crate::usage::{MeteredUsage, MeteringTerms, Usage};
use bytes::Bytes;
pub use complete_response::CompleteResponse;
pub use completion::{Completion, StopReasonStatus, UsagePlace};

mod complete_response;
mod completion;

/// How the caller reads an answer.
#[derive(Clone, Copy, Debug)]
pub struct ResponseForm<'a> {
    /// The caller wants a stream although the vendor sent a whole answer.
    pub streamed: bool,
    /// As of [`StreamPassthrough::with_call_repair`].
    pub call_seed: Option<&'a str>,
}

/// Reads a vendor's whole answer. `response_context`: the context for translation; `None`:
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
) -> Result<CompleteResponse, UpstreamError> {
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

/// A streamed answer.
#[derive(Debug)]
pub enum StreamConverter {
    Same(Box<StreamPassthrough>),
    Translated(Box<StreamTranslation>),
}

impl StreamConverter {
    /// Reads the vendor's `bytes` and appends to `out` what the gateway may send on. The bytes of
    /// the terminal event are in `out` when [`StreamConverter::is_complete`] turns true within this
    /// call: the caller must write its journal before it releases `out`. After an error or the
    /// terminal event, further bytes are dropped.
    ///
    /// # Errors
    /// Returns an [`UpstreamError`] if the stream cannot continue.
    pub fn push(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), UpstreamError> {
        match self {
            StreamConverter::Same(stream) => stream.push(bytes, out),
            StreamConverter::Translated(stream) => stream.push(bytes, out),
        }
    }

    /// Handles the end of the vendor's body. Appends to `out` what a complete answer still lacks at
    /// its end.
    ///
    /// # Errors
    /// Returns an [`UpstreamError`] if the answer is not complete.
    pub fn finish(&mut self, out: &mut Vec<u8>) -> Result<(), UpstreamError> {
        match self {
            StreamConverter::Same(stream) => stream.finish(out),
            StreamConverter::Translated(stream) => stream.finish(out),
        }
    }

    /// Returns whether the answer is complete and its last byte was written to `out`.
    pub fn is_complete(&self) -> bool {
        match self {
            StreamConverter::Same(stream) => stream.is_complete(),
            StreamConverter::Translated(stream) => stream.is_complete(),
        }
    }

    /// Returns whether the stream has sent more than its opening: content that a client waits for.
    /// Until then another vendor's answer may replace this one.
    pub fn has_content(&self) -> bool {
        match self {
            StreamConverter::Same(stream) => stream.has_content(),
            StreamConverter::Translated(stream) => stream.has_content(),
        }
    }

    /// Returns whether the stop reason has come and the last event has not: the answer is complete
    /// even if nothing follows.
    pub fn is_finishing(&self) -> bool {
        match self {
            StreamConverter::Same(stream) => stream.is_finishing(),
            StreamConverter::Translated(stream) => stream.is_finishing(),
        }
    }

    /// Returns whether any event of the answer has come.
    pub fn has_started(&self) -> bool {
        match self {
            StreamConverter::Same(stream) => stream.has_started(),
            StreamConverter::Translated(stream) => stream.has_started(),
        }
    }

    /// Ends the answer here, at the output limit. `usage` is the usage reported to the client.
    pub fn end_at_limit(&mut self, usage: &Usage, out: &mut Vec<u8>) {
        match self {
            StreamConverter::Same(stream) => stream.end_at_limit(usage, out),
            StreamConverter::Translated(stream) => stream.end_at_limit(usage, out),
        }
    }

    /// Returns the usage once the vendor has reported final counts.
    pub fn usage(&self) -> Option<MeteredUsage> {
        match self {
            StreamConverter::Same(stream) => stream.usage(),
            StreamConverter::Translated(stream) => stream.usage(),
        }
    }

    /// Returns the output as the vendor counts it so far. It may exceed the request's upper bound.
    pub fn counted_output(&self) -> u64 {
        match self {
            StreamConverter::Same(stream) => stream.counted_output(),
            StreamConverter::Translated(stream) => stream.counted_output(),
        }
    }

    /// Returns the usage so far, if the vendor reports it before the end.
    pub fn usage_so_far(&self) -> Option<Usage> {
        match self {
            StreamConverter::Same(stream) => stream.usage_so_far(),
            StreamConverter::Translated(stream) => stream.usage_so_far(),
        }
    }

    /// Returns whether any thinking was seen, if only its signature.
    pub fn shows_thinking(&self) -> bool {
        match self {
            StreamConverter::Same(stream) => stream.shows_thinking(),
            StreamConverter::Translated(stream) => stream.shows_thinking(),
        }
    }

    /// UTF-8 bytes of text, reasoning, refusal and tool arguments, for estimates.
    pub fn generated_bytes(&self) -> u64 {
        match self {
            StreamConverter::Same(stream) => stream.generated_bytes(),
            StreamConverter::Translated(stream) => stream.generated_bytes(),
        }
    }

    /// Returns whether a messages vendor refused before any output. The vendor documents this as
    /// free.
    pub fn refused_free(&self) -> bool {
        match self {
            StreamConverter::Same(stream) => stream.refused_free(),
            StreamConverter::Translated(stream) => stream.refused_free(),
        }
    }
}
