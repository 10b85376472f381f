//! Assigns the fragments of `tool_calls` to calls, and decides when a call can be emitted.
//!
//! This file must not join arguments once a call has a name: it passes fragments through. Vendors
//! differ in what they send with a fragment: an index or none, 0 for every call, the id once or
//! every time or another one each time, the name whole or in pieces. The rule for an entry that has
//! the index of a call, or no index and comes after it:
//!
//! | id                     | name | the call so far                | the entry              |
//! |------------------------|------|--------------------------------|------------------------|
//! | of another call        | any  | any                            | continues that one     |
//! | unknown                | yes  | any                            | begins another call    |
//! | unknown                | no   | its arguments are not complete | continues it           |
//! | unknown                | no   | its arguments are complete     | begins another call    |
//! | none                   | yes  | is of the same chunk           | begins another call    |
//! | none, or the call's id | yes  | its arguments are complete     | begins another call, if it has arguments |
//! | none, or the call's id | any  | else                           | continues it           |
//!
//! Names in pieces: Gemini (continuedev/continue#5849). The name with every fragment: MiniMax
//! (NousResearch/hermes-agent#8259). So a call is emitted once its arguments begin, or something
//! else does.
//!
//! Read next: `messages/write_stream/arguments.rs`, which queues overlapping calls.

use super::delta::non_empty_text;
use super::slots::SlotAllocator;
use super::state::emit_state;
use crate::chat::opaque_state::OpaqueState;
use crate::ir::event::{Event, EventSink, OutputPart, ReadResult, UpstreamError};
use crate::json::{JsonStr, JsonStrBuf, JsonValue};
use crate::reasoning_token::StatePlace;

/// Maximum number of calls in one answer, and maximum number of bytes buffered for their ids and
/// for arguments that arrive before a name.
const MAX_CALLS: usize = 1024;
const MAX_BUFFERED_BYTES: usize = 4 * 1024 * 1024;

/// One entry of `tool_calls`.
#[derive(Debug, Default)]
pub(crate) struct ChatToolCallDelta<'v> {
    index: Option<u64>,
    pub(crate) id: Option<JsonStr<'v>>,
    pub(crate) name: Option<JsonStr<'v>>,
    arguments: Option<JsonStr<'v>>,
    /// The entry itself, for the state that the vendor wants back with the call.
    whole: Option<JsonValue<'v>>,
    is_custom: bool,
    is_legacy: bool,
}

impl<'v> ChatToolCallDelta<'v> {
    pub(crate) fn parse(entry: JsonValue<'v>) -> Self {
        let mut read = ChatToolCallDelta {
            whole: Some(entry),
            ..ChatToolCallDelta::default()
        };
        for (key, value) in entry.members() {
            match key.value().as_ref() {
                "index" => read.index = value.count(),
                "id" => read.id = non_empty_text(value),
                "type" => read.is_custom |= value.is("custom"),
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
    pub(crate) fn from_function_call(function: JsonValue<'v>) -> Self {
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
pub(crate) struct ChatCallTracker {
    calls: Vec<ChatCallState>,
    held_bytes: usize,
    /// Number of calls emitted.
    opened: u64,
    has_listed: bool,
    /// Positions of the calls that the current chunk began or continued.
    in_chunk: Vec<usize>,
    /// Position of the call that has a name and is not emitted yet: the name may go on.
    pending: Option<usize>,
}

#[derive(Debug, Default)]
struct ChatCallState {
    index: Option<u64>,
    id: Option<String>,
    /// As far as it is known when the call is emitted.
    name: String,
    /// `None` until the call is emitted, which needs its name.
    slot: Option<u32>,
    /// Number of calls emitted before it.
    number: u64,
    arguments: ArgumentsEnd,
    /// Arguments that arrived before the name.
    early: JsonStrBuf,
    is_custom: bool,
    /// What the vendor wants back with the call, and no token has yet.
    state: OpaqueState,
}

impl ChatCallState {
    /// Adds a name: the first one, a repetition, one that has grown, or the next piece.
    fn add_name(&mut self, name: &str) {
        if name.starts_with(&self.name) {
            name.clone_into(&mut self.name);
        } else {
            self.name.push_str(name);
        }
    }

    /// `opened`: number of calls emitted before.
    fn open(&mut self, opened: &mut u64, slots: &mut SlotAllocator, to: &mut dyn EventSink) {
        self.number = *opened;
        *opened += 1;
        self.emit_state(slots, to);
        let slot = slots.allocate();
        to.event(Event::Open {
            slot,
            piece: OutputPart::Call {
                id: self.id.as_deref().map(JsonStr::from_value),
                name: JsonStr::from_value(&self.name),
                is_custom: self.is_custom,
            },
        });
        self.slot = Some(slot);
        if !self.early.is_empty() {
            to.event(Event::Delta {
                slot,
                text: self.early.text(),
            });
            self.early = JsonStrBuf::default();
        }
    }

    fn emit_state(&mut self, slots: &mut SlotAllocator, to: &mut dyn EventSink) {
        emit_state(&mut self.state, StatePlace::Call(self.number), slots, to);
    }
}

/// Finds the end of arguments that are a JSON object.
#[derive(Debug, Default)]
struct ArgumentsEnd {
    depth: u32,
    in_string: bool,
    is_escaped: bool,
    has_members: bool,
    is_complete: bool,
}

impl ArgumentsEnd {
    fn push(&mut self, arguments: &JsonStr<'_>) {
        for letter in arguments.chars() {
            if self.in_string {
                self.in_string = self.is_escaped || letter != '"';
                self.is_escaped = !self.is_escaped && letter == '\\';
                continue;
            }
            match letter {
                '{' | '[' => {
                    self.has_members |= self.depth > 0;
                    self.depth = self.depth.saturating_add(1);
                    self.is_complete = false;
                }
                '}' | ']' => {
                    self.depth = self.depth.saturating_sub(1);
                    self.is_complete = self.depth == 0;
                }
                '"' => self.in_string = true,
                _ => {}
            }
            self.has_members |= self.in_string;
        }
    }
}

impl ChatCallTracker {
    /// Returns whether no entry of `tool_calls` has arrived.
    pub(crate) fn is_only_legacy(&self) -> bool {
        !self.has_listed
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// Returns the call of the last entry: its position, and its name so far.
    pub(crate) fn last_call(&self) -> Option<(usize, &str)> {
        let at = *self.in_chunk.last()?;
        Some((at, self.calls.get(at)?.name.as_str()))
    }

    /// Begins the entries of another chunk.
    pub(crate) fn begin_chunk(&mut self) {
        self.in_chunk.clear();
    }

    /// Returns whether this entry names a call that has not been emitted yet.
    pub(crate) fn is_new_call(&self, entry: &ChatToolCallDelta<'_>, is_whole: bool) -> bool {
        let known = self.find(entry, is_whole).and_then(|at| self.calls.get(at));
        entry.name.is_some() && known.is_none_or(|call| call.slot.is_none() && call.name.is_empty())
    }

    /// Emits the call whose name is complete because something else begins.
    pub(crate) fn open_pending(&mut self, slots: &mut SlotAllocator, to: &mut dyn EventSink) {
        let pending = self.pending.take().and_then(|at| self.calls.get_mut(at));
        if let Some(call) = pending {
            call.open(&mut self.opened, slots, to);
        }
    }

    /// Emits the state that came after its call was emitted.
    pub(super) fn emit_late_state(&mut self, slots: &mut SlotAllocator, to: &mut dyn EventSink) {
        for call in self.calls.iter_mut().filter(|call| call.slot.is_some()) {
            call.emit_state(slots, to);
        }
    }

    /// Reads one entry. In a whole answer, each entry is a separate call.
    pub(crate) fn apply_delta(
        &mut self,
        entry: &ChatToolCallDelta<'_>,
        is_whole: bool,
        state_paths: &[String],
        slots: &mut SlotAllocator,
        to: &mut dyn EventSink,
    ) -> ReadResult {
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
        if let Some(whole) = entry.whole {
            let added = call.state.add(whole, state_paths);
            self.held_bytes = self.held_bytes.saturating_add(added);
        }
        if let (None, Some(id)) = (&call.id, &entry.id) {
            let id = id.value().into_owned();
            self.held_bytes = self.held_bytes.saturating_add(id.len());
            call.id = Some(id);
        }
        if let (None, Some(name)) = (call.slot, &entry.name) {
            call.add_name(&name.value());
            self.held_bytes = self.held_bytes.saturating_add(call.name.len());
            self.pending = Some(at);
        }
        if let Some(arguments) = &entry.arguments {
            call.arguments.push(arguments);
        }
        let has_arguments = entry.arguments.is_some() || !call.early.is_empty();
        if self.pending == Some(at) && (is_whole || has_arguments) {
            self.pending = None;
            self.held_bytes = self.held_bytes.saturating_sub(call.early.len());
            call.open(&mut self.opened, slots, to);
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
        let call = self.calls.get(at)?;
        match (&entry.id, call.id.as_deref()) {
            (Some(id), Some(own)) if !id.is(own) => {}
            (Some(_), None) if entry.index.is_none() => {}
            _ => {
                let is_complete = call.arguments.is_complete
                    && entry.arguments.is_some()
                    // Some vendors begin with an empty object and send the arguments after it.
                    && call.arguments.has_members;
                let is_in_chunk = entry.id.is_none() && self.in_chunk.contains(&at);
                let is_another = entry.name.is_some() && (is_in_chunk || is_complete);
                return Some(at).filter(|_| !is_another);
            }
        }
        // Not the last call with that index, but perhaps an earlier one: fragments of calls may
        // alternate.
        let of_id = self.calls.iter().rposition(|call| {
            let is_same_index = entry.index.is_none() || call.index == entry.index;
            let own = call.id.as_deref().zip(entry.id.as_ref());
            is_same_index && own.is_some_and(|(own, id)| id.is(own))
        });
        // A call without a name cannot be emitted.
        let continues =
            entry.name.is_none() && !call.name.is_empty() && !call.arguments.is_complete;
        of_id.or(Some(at).filter(|_| continues))
    }

    fn add(&mut self, entry: &ChatToolCallDelta<'_>) -> ReadResult<usize> {
        if self.calls.len() >= MAX_CALLS {
            return Err(UpstreamError::TooLarge);
        }
        let call = ChatCallState {
            index: entry.index,
            ..ChatCallState::default()
        };
        self.calls.push(call);
        Ok(self.calls.len() - 1)
    }
}
