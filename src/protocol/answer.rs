//! An answer on its way from vendor to client, whichever protocols meet: the edge's one door for
//! answers.
//!
//! It must not look into bytes: same protocol on both sides is `same.rs`, the rest `translate.rs`.
//!
//! Read next: `protocol/same.rs`, then `protocol/translate.rs`.

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

/// A whole answer that may be sent on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Whole {
    pub body: Bytes,
    /// `None`: the vendor did not count to the end.
    pub usage: Option<MeteredUsage>,
    /// As far as the vendor told it.
    pub learned: Option<Usage>,
    /// Bytes of text, reasoning, refusal and tool arguments, as UTF-8: for estimates.
    pub generated_bytes: u64,
    /// A messages vendor refused before any output, which it documents as free.
    pub refused_free: bool,
}

/// Reads a vendor's whole answer. `recall`: where it must be translated. `streamed`: the caller
/// wants a stream all the same.
///
/// # Errors
/// It is none.
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

/// A stream on its way.
#[derive(Debug)]
pub enum AnswerStream {
    Same(Box<StreamPass>),
    Translated(Box<StreamTranslation>),
}

impl AnswerStream {
    /// Appends to `out` what may be sent on of the vendor's `bytes`. The terminal event's bytes are
    /// in `out` when [`AnswerStream::completed`] turns true within this call: the caller journals
    /// before it releases `out`. After a fault or the terminal event, bytes are dropped.
    ///
    /// # Errors
    /// The stream cannot go on.
    pub fn push(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), Fault> {
        match self {
            AnswerStream::Same(stream) => stream.push(bytes, out),
            AnswerStream::Translated(stream) => stream.push(bytes, out),
        }
    }

    /// The vendor's body ended. What is missing of a complete answer's end is added.
    ///
    /// # Errors
    /// The answer is not complete.
    pub fn finish(&mut self, out: &mut Vec<u8>) -> Result<(), Fault> {
        match self {
            AnswerStream::Same(stream) => stream.finish(out),
            AnswerStream::Translated(stream) => stream.finish(out),
        }
    }

    /// The answer is whole, and its last byte was given out.
    pub fn completed(&self) -> bool {
        match self {
            AnswerStream::Same(stream) => stream.completed(),
            AnswerStream::Translated(stream) => stream.completed(),
        }
    }

    /// More than the opening was given out: something that a client waits for. Until then the
    /// answer may be another's.
    pub fn has_content(&self) -> bool {
        match self {
            AnswerStream::Same(stream) => stream.has_content(),
            AnswerStream::Translated(stream) => stream.has_content(),
        }
    }

    /// The stop reason has come, and the last event has not: the answer is complete even if nothing
    /// follows.
    pub fn is_finishing(&self) -> bool {
        match self {
            AnswerStream::Same(stream) => stream.is_finishing(),
            AnswerStream::Translated(stream) => stream.is_finishing(),
        }
    }

    /// Any event of the answer came.
    pub fn started(&self) -> bool {
        match self {
            AnswerStream::Same(stream) => stream.started(),
            AnswerStream::Translated(stream) => stream.started(),
        }
    }

    /// Ends the answer here, at the output limit. `usage` is what the caller is told of it.
    pub fn end_at_limit(&mut self, usage: &Usage, out: &mut Vec<u8>) {
        match self {
            AnswerStream::Same(stream) => stream.end_at_limit(usage, out),
            AnswerStream::Translated(stream) => stream.end_at_limit(usage, out),
        }
    }

    /// What the answer used, once the vendor has counted to the end.
    pub fn usage(&self) -> Option<MeteredUsage> {
        match self {
            AnswerStream::Same(stream) => stream.usage(),
            AnswerStream::Translated(stream) => stream.usage(),
        }
    }

    /// Output as the vendor counts it so far, which may be more than the request can use.
    pub fn counted_output(&self) -> u64 {
        match self {
            AnswerStream::Same(stream) => stream.counted_output(),
            AnswerStream::Translated(stream) => stream.counted_output(),
        }
    }

    /// The usage so far, as a vendor tells it before its end.
    pub fn input_learned(&self) -> Option<Usage> {
        match self {
            AnswerStream::Same(stream) => stream.input_learned(),
            AnswerStream::Translated(stream) => stream.input_learned(),
        }
    }

    /// Any thinking was seen, be it by its signature alone.
    pub fn shows_thinking(&self) -> bool {
        match self {
            AnswerStream::Same(stream) => stream.shows_thinking(),
            AnswerStream::Translated(stream) => stream.shows_thinking(),
        }
    }

    /// Bytes of text, reasoning, refusal and tool arguments, as UTF-8: for estimates.
    pub fn generated_bytes(&self) -> u64 {
        match self {
            AnswerStream::Same(stream) => stream.generated_bytes(),
            AnswerStream::Translated(stream) => stream.generated_bytes(),
        }
    }

    /// A messages vendor refused before any output, which it documents as free.
    pub fn refused_free(&self) -> bool {
        match self {
            AnswerStream::Same(stream) => stream.refused_free(),
            AnswerStream::Translated(stream) => stream.refused_free(),
        }
    }
}
