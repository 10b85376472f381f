//! An answer as a responses stream, or as one body: the same items, told as they come or at the
//! end.
//!
//! It must not break the rules that clients of this protocol crash on: items are numbered without a
//! gap in the order in which they were added, an item is whole when it is done and the same in the
//! last event, one event ends the stream. An agent runs a call the moment it is told as done, so a
//! call that the output limit cut off never is, and it is never mended: a shell command that was
//! cut may well be another command.
//!
//! Calls may be open beside one another; of texts and reasoning one at a time. What an item holds
//! is kept until the end, because the last event tells it all again, bounded.
//!
//! Read next: `responses/write_stream/course.rs`, then `responses/voice.rs`.

use crate::protocol::form::answer::{Event, Recall, Sink};
use course::Course;

mod call;
mod course;
pub(in crate::protocol) mod ending;
mod item;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]
mod tests;

/// The most that is kept of a stream, in bytes.
const STREAM_BYTES_MAX: usize = 8 << 20;

/// The most that is kept of a whole answer, in bytes.
const WHOLE_BYTES_MAX: usize = 64 << 20;

/// The most memory that the output buffer keeps when it is empty.
const IDLE_BYTES_MAX: usize = 16 << 10;

/// Writes an answer as events.
#[derive(Debug)]
pub struct Stream(Course);

impl Stream {
    pub fn new(recall: Recall) -> Self {
        Stream(Course::new(recall, true, STREAM_BYTES_MAX))
    }

    /// Moves what was written so far.
    pub fn take(&mut self, out: &mut Vec<u8>) {
        out.append(&mut self.0.out);
        if self.0.out.capacity() > IDLE_BYTES_MAX {
            self.0.out = Vec::new();
        }
    }

    /// More than is kept: the stream cannot go on.
    pub fn overflowed(&self) -> bool {
        self.0.overflowed()
    }
}

impl Sink for Stream {
    fn event(&mut self, event: Event<'_>) {
        self.0.event(event);
    }
}

/// Folds an answer into one body.
#[derive(Debug)]
pub struct Whole(Course);

impl Whole {
    pub fn new(recall: Recall) -> Self {
        Whole(Course::new(recall, false, WHOLE_BYTES_MAX))
    }

    /// The answer, once it is complete.
    pub fn body(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.0.out)
    }

    /// The answer is larger than is kept.
    pub fn overflowed(&self) -> bool {
        self.0.overflowed()
    }
}

impl Sink for Whole {
    fn event(&mut self, event: Event<'_>) {
        self.0.event(event);
    }
}
