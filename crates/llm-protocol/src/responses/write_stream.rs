//! Writes an answer as a responses stream or as one body: the same items, as they arrive or at the
//! end.
//!
//! It must not break the rules whose violation crashes clients of this protocol: item indexes have
//! no gap and follow the order of addition, an item is complete when it is done and identical in
//! the last event, and exactly one event ends the stream. An agent runs a call as soon as the call
//! is done. Therefore a call that the output limit cut off is never reported as done, and never
//! repaired: a truncated shell command may be a different command.
//!
//! Several calls may be open at once, but only one text or reasoning item. The content of all items
//! is kept until the end, within a limit, because the last event repeats it.
//!
//! Read next: `responses/write_stream/answer_builder.rs`, then `responses/event_sequencer.rs`.

use crate::ir::event::{Event, EventSink, ResponseContext};
use answer_builder::ResponsesAnswerBuilder;

mod answer_builder;
mod call;
pub(crate) mod completion;
mod item;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]
mod tests;

/// Maximum number of bytes kept for a stream.
const MAX_STREAM_BYTES: usize = 8 << 20;

/// Maximum number of bytes kept for one body.
const MAX_BODY_BYTES: usize = 64 << 20;

/// Maximum capacity that the output buffer keeps while it is empty.
const MAX_IDLE_BUFFER_BYTES: usize = 16 << 10;

/// Writer of an answer as events.
#[derive(Debug)]
pub struct ResponsesStreamWriter(ResponsesAnswerBuilder);

impl ResponsesStreamWriter {
    pub fn new(response_context: ResponseContext) -> Self {
        ResponsesStreamWriter(ResponsesAnswerBuilder::new(
            response_context,
            true,
            MAX_STREAM_BYTES,
        ))
    }

    /// Moves the output written so far to `out`.
    pub fn take(&mut self, out: &mut Vec<u8>) {
        out.append(&mut self.0.out);
        if self.0.out.capacity() > MAX_IDLE_BUFFER_BYTES {
            self.0.out = Vec::new();
        }
    }

    /// Returns whether the content exceeded the limit. The stream cannot continue then.
    pub fn overflowed(&self) -> bool {
        self.0.overflowed()
    }
}

impl EventSink for ResponsesStreamWriter {
    fn event(&mut self, event: Event<'_>) {
        self.0.event(event);
    }
}

/// Writer of an answer as one body.
#[derive(Debug)]
pub struct ResponsesBodyWriter(ResponsesAnswerBuilder);

impl ResponsesBodyWriter {
    pub fn new(response_context: ResponseContext) -> Self {
        ResponsesBodyWriter(ResponsesAnswerBuilder::new(
            response_context,
            false,
            MAX_BODY_BYTES,
        ))
    }

    /// Returns the body once the answer is complete.
    pub fn body(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.0.out)
    }

    /// Returns whether the answer is larger than the limit.
    pub fn overflowed(&self) -> bool {
        self.0.overflowed()
    }
}

impl EventSink for ResponsesBodyWriter {
    fn event(&mut self, event: Event<'_>) {
        self.0.event(event);
    }
}
