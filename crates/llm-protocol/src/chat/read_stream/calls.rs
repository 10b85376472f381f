//! Assigns the fragments of `tool_calls` to calls, and decides when a call can be emitted.
//!
//! This file must not join arguments once a call has a name: it passes fragments through. Vendors
//! differ in the index of a fragment (present, absent, or always 0), in its id (once, always, or
//! changing), and in its name (whole or in pieces). The following rule applies to an entry that has
//! the index of a call, or that has no index and follows the call:
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
//! Gemini sends names in pieces (continuedev/continue#5849), and MiniMax repeats the name with
//! every fragment (NousResearch/hermes-agent#8259). So the reader emits a call once its arguments,
//! or another part, begin.
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

#[derive(Debug, Default)]
pub(crate) struct ChatToolCallDelta<'v> {
    index: Option<u64>,
    pub(crate) id: Option<JsonStr<'v>>,
    pub(crate) name: Option<JsonStr<'v>>,
    arguments: Option<JsonStr<'v>>,
    /// The entry itself, which contains the state that the vendor wants back with the call.
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
                // Some vendors send the arguments as an object instead of a string with its JSON.
                "arguments" | "input" if value.is_object() => {
                    self.arguments = Some(JsonStr::from_value(value.raw()))
                }
                "arguments" | "input" => self.arguments = non_empty_text(value),
                _ => {}
            }
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct ChatCallTracker {
    calls: Vec<ChatCallState>,
    held_bytes: usize,
    opened: u64,
    has_listed: bool,
    /// Positions of the calls to which entries of the current chunk belong.
    in_chunk: Vec<usize>,
    /// Position of the call that has a name but is not emitted yet, because the name may continue.
    pending: Option<usize>,
}

#[derive(Debug, Default)]
struct ChatCallState {
    index: Option<u64>,
    id: Option<String>,
    /// The part of the name that has arrived when the call is emitted.
    name: String,
    /// `None` until the call is emitted, which requires its name.
    slot: Option<u32>,
    /// Number of calls that were emitted before this one.
    number: u64,
    arguments: ArgumentsEnd,
    /// Arguments that arrived before the name.
    early: JsonStrBuf,
    is_custom: bool,
    /// State that the vendor wants back with the call and that no token contains yet.
    state: OpaqueState,
}

impl ChatCallState {
    /// Adds a name, which may be the first one, a repetition, a longer version, or the next piece.
    fn add_name(&mut self, name: &str) {
        if name.starts_with(&self.name) {
            name.clone_into(&mut self.name);
        } else {
            self.name.push_str(name);
        }
    }

    /// Emits the call. `opened` is the number of calls emitted before.
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

/// Finds the end of arguments, which are a JSON object.
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
    pub(crate) fn is_only_legacy(&self) -> bool {
        !self.has_listed
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// Returns the position of the last entry's call, and the call's name so far.
    pub(crate) fn last_call(&self) -> Option<(usize, &str)> {
        let at = *self.in_chunk.last()?;
        Some((at, self.calls.get(at)?.name.as_str()))
    }

    /// Forgets the entries of the last chunk, because another chunk begins.
    pub(crate) fn begin_chunk(&mut self) {
        self.in_chunk.clear();
    }

    pub(crate) fn is_new_call(&self, entry: &ChatToolCallDelta<'_>, is_whole: bool) -> bool {
        let known = self.find(entry, is_whole).and_then(|at| self.calls.get(at));
        entry.name.is_some() && known.is_none_or(|call| call.slot.is_none() && call.name.is_empty())
    }

    /// Emits the call whose name is complete because another part begins.
    pub(crate) fn open_pending(&mut self, slots: &mut SlotAllocator, to: &mut dyn EventSink) {
        let pending = self.pending.take().and_then(|at| self.calls.get_mut(at));
        if let Some(call) = pending {
            call.open(&mut self.opened, slots, to);
        }
    }

    /// Emits the state of calls that arrived after the calls were emitted.
    pub(super) fn emit_late_state(&mut self, slots: &mut SlotAllocator, to: &mut dyn EventSink) {
        for call in self.calls.iter_mut().filter(|call| call.slot.is_some()) {
            call.emit_state(slots, to);
        }
    }

    /// Applies one entry. In a whole answer, each entry is a separate call.
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
                    // Some vendors begin with an empty object and send the arguments after that.
                    && call.arguments.has_members;
                let is_in_chunk = entry.id.is_none() && self.in_chunk.contains(&at);
                let is_another = entry.name.is_some() && (is_in_chunk || is_complete);
                return Some(at).filter(|_| !is_another);
            }
        }
        // The last call with that index has another id, but an earlier call may match: fragments of
        // calls may alternate.
        let of_id = self.calls.iter().rposition(|call| {
            let is_same_index = entry.index.is_none() || call.index == entry.index;
            let own = call.id.as_deref().zip(entry.id.as_ref());
            is_same_index && own.is_some_and(|(own, id)| id.is(own))
        });
        // A call without a name cannot be emitted, so the entry must continue it.
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
