//! Defines the edge's interface to a streamed answer, for translation and passthrough.
//!
//! This file must not read a stream.

use crate::ir::event::ReadResult;
use crate::responses::EventSequencer;
use crate::usage::{MeteredUsage, Usage};
use std::fmt::Debug;

pub trait ResponseStream: Debug + Send + Sync {
    /// Reads the vendor's `bytes` and appends to `out` the bytes that the gateway may send. The
    /// bytes of the terminal event are in `out` when [`ResponseStream::is_complete`] turns true
    /// within this call: the caller must write its journal before it releases `out`. After an error
    /// or the terminal event, further bytes are dropped.
    ///
    /// # Errors
    /// Returns an [`super::UpstreamError`] if the stream cannot continue.
    fn push(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> ReadResult;

    /// Handles the end of the vendor's body. Appends the missing end of a complete answer to `out`.
    ///
    /// # Errors
    /// Returns an [`super::UpstreamError`] if the answer is not complete.
    fn finish(&mut self, out: &mut Vec<u8>) -> ReadResult;

    /// Ends the answer here, at the output limit. `usage` is the usage reported to the client.
    fn end_at_limit(&mut self, usage: &Usage, out: &mut Vec<u8>);

    /// Returns whether the answer is complete, and its last byte was written to `out`.
    fn is_complete(&self) -> bool;

    /// Returns whether the stop reason has arrived and the last event has not. The answer is then
    /// complete even if no byte follows.
    fn is_finishing(&self) -> bool;

    /// Returns whether any event of the answer has arrived.
    fn has_started(&self) -> bool;

    /// Returns whether the stream has sent content for which a client waits, and not only its
    /// opening. Until then another vendor's answer may replace this one.
    fn has_content(&self) -> bool;

    /// Returns the usage once the vendor has reported final counts.
    fn usage(&self) -> Option<MeteredUsage>;

    /// Returns the usage so far, if the vendor reports it before the end.
    fn usage_so_far(&self) -> Option<Usage>;

    /// Returns the output by the vendor's count so far. It may exceed the request's upper bound.
    fn counted_output(&self) -> u64;

    /// Returns the number of UTF-8 bytes of text, reasoning, refusal and tool arguments, for
    /// estimates.
    fn generated_bytes(&self) -> u64;

    /// Returns whether the stream had thinking or the signature of hidden thinking.
    fn shows_thinking(&self) -> bool;

    /// Returns whether a messages vendor refused before any output, which the vendor documents as
    /// free.
    fn refused_free(&self) -> bool;

    /// Returns the sequencer if the stream numbers its events.
    fn sequencer(&self) -> Option<&EventSequencer> {
        None
    }
}
