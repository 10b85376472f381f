//! Represents a message before encoding: its answer, its blocks and the events of its stream.
//!
//! This file must not encode a message (`blocks.rs` and `messages.rs` do).

use std::ops::Range;

use crate::answer::SimulatedAnswer;
use crate::behaviour::Behaviour;
use crate::part::SimPart;
use crate::turn::SimTurn;

#[derive(Debug)]
pub struct SimMessagesResponse {
    pub(super) turn: SimTurn,
    pub(super) behaviour: Behaviour,
    pub(super) answer: SimulatedAnswer,
    /// Unique part of every id.
    pub(super) serial: String,
    pub(super) blocks: Vec<SimBlock>,
    pub(super) steps: Vec<SimMessagesEvent>,
}

/// A block by the index of its part. A search has two blocks.
#[derive(Clone, Copy, Debug)]
pub(super) enum SimBlock {
    Part(usize),
    Result(usize),
}

/// One event of a stream before encoding. It is small because streams can be long.
#[derive(Debug)]
pub(super) enum SimMessagesEvent {
    Start,
    Unknown,
    Ping,
    BlockStart(usize),
    Delta(usize, Range<usize>),
    Signature(usize),
    /// A citation by the index of its block, and its index within the block.
    Citation(usize, usize),
    /// A delta of an unknown block.
    Odd(usize),
    BlockStop(usize),
    /// A usage report in the middle of the answer.
    Report,
    Finish,
    Stop,
}

impl SimMessagesResponse {
    /// Returns the part of the answer that the block at `index` shows.
    pub(super) fn part(&self, index: usize) -> &SimPart {
        let (SimBlock::Part(part) | SimBlock::Result(part)) = self.blocks[index];
        &self.answer.parts[part]
    }
}
