//! Assigns the fragments of `tool_calls` to calls, and decides when a call can be emitted.
//!
//! It must not join arguments once a call has a name: it passes fragments through. Vendors differ
//! in what they send with a fragment: an index or none, 0 for every call, the id once or every
//! time. The rule: the index identifies the call, unless an id shows that it is another call, or
//! two entries of one chunk have a name and no id.
//!
//! Read next: `messages/write_stream/arguments.rs`, which queues overlapping calls.

use super::delta::non_empty_text;
use super::slots::SlotAllocator;
use crate::ir::event::{Event, EventSink, OutputPart, UpstreamError};
use crate::json::document::JsonValue;
use crate::json::string::{JsonStr, JsonStrBuf};

/// Maximum number of calls in one answer, and maximum number of bytes buffered for their ids and
/// for arguments that arrive before a name.
const MAX_CALLS: usize = 1024;
const MAX_BUFFERED_BYTES: usize = 4 * 1024 * 1024;

/// One entry of `tool_calls`.
#[derive(Debug, Default)]
pub(super) struct ChatToolCallDelta<'v> {
    index: Option<u64>,
    id: Option<JsonStr<'v>>,
    name: Option<JsonStr<'v>>,
    arguments: Option<JsonStr<'v>>,
    /// A member that the vendor wants back with the call: Gemini's thought signature.
    pub(super) state: Option<(&'static str, JsonValue<'v>)>,
    is_custom: bool,
    is_legacy: bool,
}

/// Members of a call that go back to its vendor as they came.
const STATE_MEMBERS: [&str; 1] = ["extra_content"];

impl<'v> ChatToolCallDelta<'v> {
    pub(super) fn parse(entry: JsonValue<'v>) -> Self {
        let mut read = ChatToolCallDelta::default();
        for (key, value) in entry.members() {
            match key.value().as_ref() {
                "index" => read.index = value.count(),
                "id" => read.id = non_empty_text(value),
                "type" => read.is_custom |= value.is("custom"),
                name if STATE_MEMBERS.contains(&name) && value.is_object() => {
                    read.state = STATE_MEMBERS
                        .iter()
                        .find(|member| **member == name)
                        .map(|member| (*member, value));
                }
                "function" => read.read_callee(value),
                "custom" if value.is_object() => {
                    read.is_custom = true;
                    read.read_callee(value);
                }
                _ => {}
            }
        }
        read
    }

    /// Reads `function_call`, which is one call without an id.
    pub(super) fn from_function_call(function: JsonValue<'v>) -> Self {
        let mut read = ChatToolCallDelta {
            index: Some(0),
            is_legacy: true,
            ..ChatToolCallDelta::default()
        };
        read.read_callee(function);
        read
    }

    fn read_callee(&mut self, callee: JsonValue<'v>) {
        for (key, value) in callee.members() {
            match key.value().as_ref() {
                "name" => self.name = non_empty_text(value),
                // Some vendors send the object itself instead of a string with its JSON.
                "arguments" | "input" if value.is_object() => {
                    self.arguments = Some(JsonStr::from_value(value.raw()))
                }
                "arguments" | "input" => self.arguments = non_empty_text(value),
                _ => {}
            }
        }
    }
}

/// Calls seen so far, in order of arrival.
#[derive(Debug, Default)]
pub(super) struct ChatCallTracker {
    calls: Vec<ChatCallState>,
    held_bytes: usize,
    has_listed: bool,
    /// Positions of the calls that the current chunk began or continued.
    in_chunk: Vec<usize>,
}

#[derive(Debug)]
struct ChatCallState {
    index: Option<u64>,
    id: Option<String>,
    /// `None` until the call is emitted, which needs its name.
    slot: Option<u32>,
    /// Arguments that arrived before the name.
    early: JsonStrBuf,
    is_custom: bool,
}

impl ChatCallTracker {
    /// Returns whether no entry of `tool_calls` has arrived.
    pub(super) fn is_only_legacy(&self) -> bool {
        !self.has_listed
    }

    pub(super) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// Begins the entries of another chunk.
    pub(super) fn begin_chunk(&mut self) {
        self.in_chunk.clear();
    }

    /// Returns whether this entry names a call that has not been emitted yet.
    pub(super) fn is_new_call(&self, entry: &ChatToolCallDelta<'_>, is_whole: bool) -> bool {
        let known = self.find(entry, is_whole).and_then(|at| self.calls.get(at));
        entry.name.is_some() && known.is_none_or(|call| call.slot.is_none())
    }

    /// Reads one entry. In a whole answer, each entry is a separate call.
    pub(super) fn apply_delta(
        &mut self,
        entry: &ChatToolCallDelta<'_>,
        is_whole: bool,
        slots: &mut SlotAllocator,
        to: &mut impl EventSink,
    ) -> Result<(), UpstreamError> {
        self.has_listed |= !entry.is_legacy;
        let at = match self.find(entry, is_whole) {
            Some(at) => at,
            None => self.add(entry)?,
        };
        self.in_chunk.push(at);
        let Some(call) = self.calls.get_mut(at) else {
            return Ok(());
        };
        call.is_custom |= entry.is_custom;
        if let (None, Some(id)) = (&call.id, &entry.id) {
            let id = id.value().into_owned();
            self.held_bytes = self.held_bytes.saturating_add(id.len());
            call.id = Some(id);
        }
        if let (None, Some(name)) = (call.slot, &entry.name) {
            let slot = slots.allocate();
            let id = call.id.as_deref().map(JsonStr::from_value);
            to.event(Event::Open {
                slot,
                piece: OutputPart::Call {
                    id,
                    name: name.reborrow(),
                    is_custom: call.is_custom,
                },
            });
            call.slot = Some(slot);
            if !call.early.is_empty() {
                to.event(Event::Delta {
                    slot,
                    text: call.early.text(),
                });
                self.held_bytes = self.held_bytes.saturating_sub(call.early.len());
                call.early = JsonStrBuf::default();
            }
        }
        match (call.slot, &entry.arguments) {
            (Some(slot), Some(arguments)) => to.event(Event::Delta {
                slot,
                text: arguments.reborrow(),
            }),
            (None, Some(arguments)) => {
                let before = call.early.len();
                call.early.push(arguments);
                self.held_bytes = self.held_bytes.saturating_add(call.early.len() - before);
            }
            (_, None) => {}
        }
        if self.held_bytes > MAX_BUFFERED_BYTES {
            Err(UpstreamError::TooLarge)
        } else {
            Ok(())
        }
    }

    /// Finds the call that an entry continues. Returns `None` if the entry begins a new call.
    fn find(&self, entry: &ChatToolCallDelta<'_>, is_whole: bool) -> Option<usize> {
        if is_whole {
            return None;
        }
        let at = match entry.index {
            Some(index) => self
                .calls
                .iter()
                .rposition(|call| call.index == Some(index))?,
            None => self.calls.len().checked_sub(1)?,
        };
        let Some(id) = &entry.id else {
            // Complete calls in one chunk, although all have the same index or none.
            let is_another = entry.name.is_some() && self.in_chunk.contains(&at);
            return Some(at).filter(|_| !is_another);
        };
        match self.calls.get(at)?.id.as_deref() {
            Some(own) if id.is(own) => Some(at),
            None if entry.index.is_some() => Some(at),
            // Not the last call with that index, but perhaps an earlier one: fragments of calls may
            // alternate.
            _ => self.calls.iter().rposition(|call| {
                let is_same_index = entry.index.is_none() || call.index == entry.index;
                is_same_index && call.id.as_deref().is_some_and(|own| id.is(own))
            }),
        }
    }

    fn add(&mut self, entry: &ChatToolCallDelta<'_>) -> Result<usize, UpstreamError> {
        if self.calls.len() >= MAX_CALLS {
            return Err(UpstreamError::TooLarge);
        }
        let call = ChatCallState {
            index: entry.index,
            id: None,
            slot: None,
            early: JsonStrBuf::default(),
            is_custom: false,
        };
        self.calls.push(call);
        Ok(self.calls.len() - 1)
    }
}
