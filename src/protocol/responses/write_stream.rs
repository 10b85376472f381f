//! An answer as a responses stream, or as one body.
//!
//! There is no such surface yet: nothing is written, and every answer counts as more than can be.
use crate::protocol::form::answer::{Event, Recall, Sink};

/// What a silent stream is kept open with.
pub const KEEP_ALIVE: &[u8] = b": ping\n\n";

/// The writer of a stream.
#[derive(Debug)]
pub struct Stream;

/// The writer of a body.
#[derive(Debug)]
pub struct Whole;

impl Stream {
    pub fn new(_recall: Recall) -> Self {
        Stream
    }

    pub fn take(&mut self, _out: &mut Vec<u8>) {}

    pub fn overflowed(&self) -> bool {
        true
    }
}

impl Whole {
    pub fn new(_recall: Recall) -> Self {
        Whole
    }

    pub fn body(&mut self) -> Vec<u8> {
        Vec::new()
    }

    pub fn overflowed(&self) -> bool {
        true
    }
}

impl Sink for Stream {
    fn event(&mut self, _event: Event<'_>) {}
}

impl Sink for Whole {
    fn event(&mut self, _event: Event<'_>) {}
}
