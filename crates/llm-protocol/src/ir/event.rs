//! Represents an answer as a list of events. Readers convert every vendor's answer, streamed or
//! whole, to events, and writers build every surface's answer from events. A whole answer is a fold
//! over them.
//!
//! Events must not outlive the call: a reader lends its data, and a writer uses the data at once or
//! copies them.
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
    /// The signature of the thinking in `slot`. A later one replaces an earlier one.
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
    /// The stop reason. It precedes `End` and may be repeated; the last one counts.
    Stop(StopReason<'e>),
    /// The vendor's counters so far. The last event counts. `is_final` says that the output count
    /// is the vendor's final figure, not a placeholder.
    Counters {
        counters: &'e VendorCounters,
        is_final: bool,
    },
    /// The usage that is billed, derived from the counters. The last event counts.
    Usage {
        usage: Usage,
        is_final: bool,
    },
    /// A change of the answer that the client must learn of, as a token of `x-gateway-warnings`. It
    /// precedes `End`.
    Warning(&'static str),
    /// The answer is complete.
    End,
}

/// Consumer of the events that a reader emits. A writer or an observer that counts implements the
/// trait.
pub trait EventSink {
    fn event(&mut self, event: Event<'_>);
}

pub trait AnswerReader: Debug + Send + Sync {
    fn protocol(&self) -> Protocol;

    fn read_event(
        &mut self,
        name: &[u8],
        event: JsonValue<'_>,
        to: &mut dyn EventSink,
    ) -> ReadResult;

    /// Handles `[DONE]`, the end marker of the chat protocol, which some compatible servers of
    /// other protocols send too. Returns `None` if the protocol does not have the marker.
    fn read_end_marker(&mut self, to: &mut dyn EventSink) -> Option<ReadResult>;

    /// Handles the end of the body. The caller then calls [`AnswerReader::finish`].
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

/// Writer of an answer in the client's protocol, as a stream or as one body.
pub trait AnswerWriter: EventSink + Debug + Send + Sync {
    /// Moves the output to `out`: the part of a stream written so far, or a complete body.
    fn take(&mut self, out: &mut Vec<u8>);

    /// Returns whether the writer had to buffer more than its limit, so the answer cannot continue.
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
    /// The model's refusal, whose deltas are text.
    Refusal,
    Thinking,
    /// Encrypted reasoning. `data` is the whole of it.
    Hidden {
        data: JsonStr<'e>,
    },
    /// State that the vendor wants back with the next part, in a reasoning token. The client gets
    /// the token even if it did not ask for reasoning.
    State {
        token: JsonStr<'e>,
    },
    /// A tool call. Its deltas are fragments of JSON arguments or of a custom tool's plain text.
    /// Without a delta the arguments are empty.
    Call {
        id: Option<JsonStr<'e>>,
        name: JsonStr<'e>,
        is_custom: bool,
    },
    /// A completed web search that the vendor ran.
    Search {
        query: JsonStr<'e>,
    },
    /// A part that the surface cannot express, such as a vendor's own search or a summary. `kind`
    /// names its type, and its deltas are omitted.
    Foreign {
        kind: JsonStr<'e>,
    },
}

/// The reason why an answer ended, in the terms of the strictest protocol.
#[derive(Clone, Debug, Default)]
pub enum StopReason<'e> {
    #[default]
    EndTurn,
    StopSequence,
    ToolUse,
    MaxTokens,
    ContextFull,
    /// The model refused. `explanation` is the vendor's text. `is_billed` says whether the vendor
    /// bills the input although it generated nothing.
    Refusal {
        is_billed: bool,
        explanation: Option<JsonStr<'e>>,
    },
}
