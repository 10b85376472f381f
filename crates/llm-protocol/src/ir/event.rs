//! An answer as a list of events: readers convert every vendor's answer, streamed or whole, to it,
//! and writers build every surface's answer from it. A whole answer is a fold over the events.
//!
//! Events must not hold anything longer than the call: a reader lends its data, and a writer writes
//! it at once or keeps its own copy.
//!
//! Read next: `messages/read_stream.rs` and `chat/write_stream.rs`, or `chat/read_stream.rs` and
//! `messages/write_stream.rs`.

pub use super::client_tool::{ClientTool, ToolCallKind};
pub use super::response_context::ResponseContext;
pub use super::upstream_error::{ReadResult, UpstreamError};
use crate::Protocol;
use crate::json::{JsonDocument, JsonStr, JsonValue, MAX_RESPONSE_DEPTH, NodeBuffer};
use crate::usage::{Usage, VendorCounters};
use std::fmt::Debug;

/// One event of an answer. The reader numbers slots, one for each output part, and never reuses a
/// number.
///
/// A reader emits `ResponseStart` first and once, then any number of parts, and `End` last and
/// once, only if the answer was complete. Parts may overlap (chat's parallel calls do). A writer
/// whose protocol does not allow that buffers the later parts. Text or thinking that continues
/// after another part began gets a new slot. A slot need not be closed.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "an event is handed on and never kept"
)]
pub enum Event<'e> {
    Start(ResponseStart<'e>),
    /// An output part begins.
    Open {
        slot: u32,
        piece: OutputPart<'e>,
    },
    /// A non-empty fragment of a text, of thinking or of a call's arguments.
    Delta {
        slot: u32,
        text: JsonStr<'e>,
    },
    /// The signature of the thinking in `slot`; the last one applies.
    Signature {
        slot: u32,
        signature: JsonStr<'e>,
    },
    /// A web source for the text in `slot`.
    Citation {
        slot: u32,
        title: Option<JsonStr<'e>>,
        url: JsonStr<'e>,
    },
    /// The output part is complete.
    Close {
        slot: u32,
    },
    /// The stop reason. It comes before `End` and may be repeated: the last one applies.
    Stop(StopReason<'e>),
    /// The vendor's counters so far, from a reader; the last ones apply. `is_final`: the output
    /// count is the vendor's final figure, not a placeholder.
    Counters {
        counters: &'e VendorCounters,
        is_final: bool,
    },
    /// The usage that is billed, derived from the counters, for a writer. The last one applies.
    Usage {
        usage: Usage,
        is_final: bool,
    },
    /// A change of the answer that its client must learn of, as `x-gateway-warnings` names it. It
    /// comes before `End`.
    Warning(&'static str),
    /// The answer is complete.
    End,
}

/// Consumer of the events that a reader emits: a writer, or an observer that counts.
pub trait EventSink {
    fn event(&mut self, event: Event<'_>);
}

/// Reader of a vendor's stream, event by event.
pub trait AnswerReader: Debug + Send + Sync {
    fn protocol(&self) -> Protocol;

    fn read_event(
        &mut self,
        name: &[u8],
        event: JsonValue<'_>,
        to: &mut dyn EventSink,
    ) -> ReadResult;

    /// Handles `[DONE]`, the end marker of the chat protocol, which some compatible servers of the
    /// other protocols send too. Returns `None` if it is no marker here.
    fn read_end_marker(&mut self, to: &mut dyn EventSink) -> Option<ReadResult>;

    /// Handles the end of the body, before [`AnswerReader::finish`].
    fn end_of_body(&mut self, _to: &mut dyn EventSink) {}

    /// Ends an answer that is complete although its last event is missing.
    fn finish(&mut self, to: &mut dyn EventSink);

    /// Reads one event of the vendor's stream. `nodes` is reusable memory that the call returns.
    fn event(
        &mut self,
        name: &[u8],
        data: &[u8],
        nodes: NodeBuffer,
        to: &mut dyn EventSink,
    ) -> (NodeBuffer, ReadResult) {
        if data == b"[DONE]"
            && let Some(outcome) = self.read_end_marker(to)
        {
            return (nodes, outcome);
        }
        let text = std::str::from_utf8(data).unwrap_or_default();
        match JsonDocument::parse(text, MAX_RESPONSE_DEPTH, nodes) {
            Ok(tree) if tree.root().is_object() => {
                let outcome = self.read_event(name, tree.root(), to);
                (tree.into_nodes(), outcome)
            }
            _ => (
                NodeBuffer::new(),
                UpstreamError::check_unreadable(self.protocol(), name, data),
            ),
        }
    }
}

/// Writer of an answer in the protocol of its client, as a stream or as one body.
pub trait AnswerWriter: EventSink + Debug + Send + Sync {
    /// Moves the output to `out`: what a stream has written so far, or a body that is complete.
    fn take(&mut self, out: &mut Vec<u8>);

    /// Returns whether the writer had to hold more than its limit. The answer cannot continue then.
    fn overflowed(&self) -> bool;
}

/// Maximum capacity that an output buffer keeps while it is empty.
const MAX_IDLE_BUFFER_BYTES: usize = 16 * 1024;

/// Moves the bytes of an output buffer to `out`.
pub(crate) fn take_output(buffer: &mut Vec<u8>, out: &mut Vec<u8>) {
    out.append(buffer);
    if buffer.capacity() > MAX_IDLE_BUFFER_BYTES {
        *buffer = Vec::new();
    }
}

#[derive(Debug, Default)]
pub struct ResponseStart<'e> {
    pub id: Option<JsonStr<'e>>,
    /// The service tier, as the vendor names it.
    pub tier: Option<JsonStr<'e>>,
}

/// Content of a slot.
#[derive(Debug)]
pub enum OutputPart<'e> {
    Text,
    /// The model's refusal. Its deltas are text.
    Refusal,
    Thinking,
    /// Encrypted reasoning. `data` is complete.
    Hidden {
        data: JsonStr<'e>,
    },
    /// What the vendor wants back with the next part, in a reasoning token. The client gets it
    /// whether or not it asked for reasoning.
    State {
        token: JsonStr<'e>,
    },
    /// A tool call. Its deltas are fragments of the arguments: of JSON, or of a custom tool's plain
    /// text. The arguments are empty if there is no delta.
    Call {
        id: Option<JsonStr<'e>>,
        name: JsonStr<'e>,
        is_custom: bool,
    },
    /// A completed web search that the vendor ran.
    Search {
        query: JsonStr<'e>,
    },
    /// A part that the surface cannot express, named by its type: a vendor's own search, a summary.
    /// Its deltas are omitted.
    Foreign {
        kind: JsonStr<'e>,
    },
}

/// Why an answer ended, in the terms of the strictest protocol.
#[derive(Clone, Debug, Default)]
pub enum StopReason<'e> {
    #[default]
    EndTurn,
    StopSequence,
    ToolUse,
    MaxTokens,
    ContextFull,
    /// `explanation`: the vendor's text. `is_billed`: whether the vendor bills the input although
    /// it generated nothing.
    Refusal {
        is_billed: bool,
        explanation: Option<JsonStr<'e>>,
    },
}
