//! An answer on its way from vendor to client, for every pair of protocols: the edge's only entry
//! point for answers.
//!
//! It must not inspect bytes: `passthrough.rs` handles the same protocol on both sides,
//! `translate.rs` the rest.
//!
//! Read next: `protocol/passthrough.rs`, then `protocol/translate.rs`.

use super::Protocol;
use super::form::answer::Recall;
use super::same::{self, StreamPass};
use super::translate::{self, StreamTranslation};
use crate::usage::{MeteredUsage, MeteringTerms, Usage};
use bytes::Bytes;
pub use completion::{Completion, StopReason};
pub use fault::Fault;

mod completion;
mod fault;

/// A whole answer that the gateway may send to the client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Whole {
    pub body: Bytes,
    /// Billed usage; `None`: the vendor did not report final counts.
    pub usage: Option<MeteredUsage>,
    /// The usage as far as the vendor reported it.
    pub learned: Option<Usage>,
    /// UTF-8 bytes of text, reasoning, refusal and tool arguments, for estimates.
    pub generated_bytes: u64,
    /// Whether a messages vendor refused before any output. The vendor documents this as free.
    pub refused_free: bool,
}

/// Reads a vendor's whole answer. `recall`: the context for translation; `None`: passthrough.
/// `streamed`: the caller wants a stream although the vendor sent a whole answer.
///
/// # Errors
/// Returns an [`UpstreamError`] if the body is not a complete answer.
pub fn whole(
    vendor: Protocol,
    surface: Protocol,
    public_model: &str,
    recall: Option<Recall>,
    streamed: bool,
    body: Bytes,
    terms: &MeteringTerms,
) -> Result<Whole, Fault> {
    match recall {
        None => same::whole(vendor, public_model, body, terms),
        Some(recall) => {
            let MeteringTerms {
                estimator,
                bounds: usage_bounds,
            } = *terms;
            translate::whole(
                vendor,
                surface,
                Recall {
                    estimator,
                    usage_bounds,
                    ..recall
                },
                streamed,
                &body,
            )
        }
    }
}

/// A streamed answer.
#[derive(Debug)]
pub enum AnswerStream {
    Same(Box<StreamPass>),
    Translated(Box<StreamTranslation>),
}

impl AnswerStream {
    /// Reads the vendor's `bytes` and appends to `out` what the gateway may send on. The bytes of
    /// the terminal event are in `out` when [`StreamConverter::is_complete`] turns true within this
    /// call: the caller must write its journal before it releases `out`. After an error or the
    /// terminal event, further bytes are dropped.
    ///
    /// # Errors
    /// Returns an [`UpstreamError`] if the stream cannot continue.
    pub fn push(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), Fault> {
        match self {
            AnswerStream::Same(stream) => stream.push(bytes, out),
            AnswerStream::Translated(stream) => stream.push(bytes, out),
        }
    }

    /// Handles the end of the vendor's body. Appends to `out` what a complete answer still lacks at
    /// its end.
    ///
    /// # Errors
    /// Returns an [`UpstreamError`] if the answer is not complete.
    pub fn finish(&mut self, out: &mut Vec<u8>) -> Result<(), Fault> {
        match self {
            AnswerStream::Same(stream) => stream.finish(out),
            AnswerStream::Translated(stream) => stream.finish(out),
        }
    }

    /// Returns whether the answer is complete and its last byte was written to `out`.
    pub fn completed(&self) -> bool {
        match self {
            AnswerStream::Same(stream) => stream.completed(),
            AnswerStream::Translated(stream) => stream.completed(),
        }
    }

    /// Returns whether the stream has sent more than its opening: content that a client waits for.
    /// Until then another vendor's answer may replace this one.
    pub fn has_content(&self) -> bool {
        match self {
            AnswerStream::Same(stream) => stream.has_content(),
            AnswerStream::Translated(stream) => stream.has_content(),
        }
    }

    /// Returns whether the stop reason has come and the last event has not: the answer is complete
    /// even if nothing follows.
    pub fn is_finishing(&self) -> bool {
        match self {
            AnswerStream::Same(stream) => stream.is_finishing(),
            AnswerStream::Translated(stream) => stream.is_finishing(),
        }
    }

    /// Returns whether any event of the answer has come.
    pub fn started(&self) -> bool {
        match self {
            AnswerStream::Same(stream) => stream.started(),
            AnswerStream::Translated(stream) => stream.started(),
        }
    }

    /// Ends the answer here, at the output limit. `usage` is the usage reported to the client.
    pub fn end_at_limit(&mut self, usage: &Usage, out: &mut Vec<u8>) {
        match self {
            AnswerStream::Same(stream) => stream.end_at_limit(usage, out),
            AnswerStream::Translated(stream) => stream.end_at_limit(usage, out),
        }
    }

    /// Returns the usage once the vendor has reported final counts.
    pub fn usage(&self) -> Option<MeteredUsage> {
        match self {
            AnswerStream::Same(stream) => stream.usage(),
            AnswerStream::Translated(stream) => stream.usage(),
        }
    }

    /// Returns the output as the vendor counts it so far. It may exceed the request's upper bound.
    pub fn counted_output(&self) -> u64 {
        match self {
            AnswerStream::Same(stream) => stream.counted_output(),
            AnswerStream::Translated(stream) => stream.counted_output(),
        }
    }

    /// Returns the usage so far, if the vendor reports it before the end.
    pub fn input_learned(&self) -> Option<Usage> {
        match self {
            AnswerStream::Same(stream) => stream.input_learned(),
            AnswerStream::Translated(stream) => stream.input_learned(),
        }
    }

    /// Returns whether any thinking was seen, if only its signature.
    pub fn shows_thinking(&self) -> bool {
        match self {
            AnswerStream::Same(stream) => stream.shows_thinking(),
            AnswerStream::Translated(stream) => stream.shows_thinking(),
        }
    }

    /// UTF-8 bytes of text, reasoning, refusal and tool arguments, for estimates.
    pub fn generated_bytes(&self) -> u64 {
        match self {
            AnswerStream::Same(stream) => stream.generated_bytes(),
            AnswerStream::Translated(stream) => stream.generated_bytes(),
        }
    }

    /// Returns whether a messages vendor refused before any output. The vendor documents this as
    /// free.
    pub fn refused_free(&self) -> bool {
        match self {
            AnswerStream::Same(stream) => stream.refused_free(),
            AnswerStream::Translated(stream) => stream.refused_free(),
        }
    }
}
