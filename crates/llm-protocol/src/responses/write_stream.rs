//! Writes an answer as a responses stream or as one body: the same items, as they arrive or at the
//! end.
//!
//! This module must not break the rules whose violation crashes clients of this protocol: item
//! indexes have no gap and follow the order of addition, an item is complete when it is done and
//! identical in the last event, and exactly one event ends the stream. An agent runs a call as soon
//! as the call is done. Therefore a call that the output limit cut off is never reported as done,
//! and never repaired: a truncated shell command may be a different command.
//!
//! Several calls may be open at once, but only one text or reasoning item. The content of all items
//! is kept until the end, within a limit, because the last event repeats it.
//!
//! Read next: `responses/write_stream/answer_builder.rs`, then `responses/event_sequencer.rs`.

mod answer_builder;
mod call;
pub(crate) mod completion;
mod item;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]
mod tests;

pub use answer_builder::ResponsesAnswerBuilder;
