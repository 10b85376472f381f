//! Reads a chat vendor's answer, streamed or as one body, into events.
//!
//! This module must not hold back text: it emits the content of a chunk at once, and borrows it
//! from the chunk. It buffers only three things: the arguments of a call until its name is known,
//! the text of a refusal (which it emits again as the stop reason), and reasoning that the client
//! sends back later. The reader skips unknown members, and treats members of a wrong type as
//! absent.
//!
//! The order inside a chunk is reasoning, text, refusal, calls, finish reason, usage.
//!
//! Read next: `chat/read_stream/calls.rs` (assigns fragments to calls), then
//! `messages/write_stream.rs`.

use crate::Protocol;
use crate::chat::opaque_state::OpaqueState;
use crate::counters;
use crate::ir::event::{
    AnswerReader, Event, EventSink, OutputPart, ReadResult, ResponseContext, ResponseStart,
    StopReason, UpstreamError,
};
use crate::json::{JsonScanner, JsonStr, JsonStrBuf, JsonValue, MAX_RESPONSE_DEPTH};
use crate::reasoning_token::StatePlace;
use crate::usage::{ChatCounters, ServiceTier, VendorCounters};
use crate::vendor_response::UsagePlace;
use std::sync::Arc;

mod calls;
mod delta;
mod reasoning;
mod slots;
mod state;

pub(crate) use calls::{ChatCallTracker, ChatToolCallDelta};
use delta::{ChatAnswerChoice, ChatDelta};
use reasoning::ChatReasoningState;
pub(crate) use slots::SlotAllocator;
use state::emit_state;

/// Warning for an answer in which the vendor gave no finish reason.
pub(crate) const DERIVED_FINISH_REASON: &str = "derived:finish_reason";

/// Maximum number of bytes of opaque state in one message, without its calls.
const MAX_STATE_BYTES: usize = 4 * 1024 * 1024;

/// Maximum number of bytes of a refusal's text that the stop reason repeats.
const MAX_REFUSAL_BYTES: usize = 64 * 1024;

/// Places of a vendor's additions to the protocol in its answers.
#[derive(Debug, Default, Clone)]
pub struct ChatAnswerPlaces {
    /// Paths in a message or a call of the state that the vendor wants back.
    state: Vec<String>,
    /// Paths in an answer or a chunk of the usage.
    usage: Arc<[String]>,
}

impl ChatAnswerPlaces {
    pub fn new(context: &ResponseContext) -> Self {
        Self {
            state: context.state_paths.clone(),
            usage: context.usage_paths.clone(),
        }
    }
}

#[derive(Debug, Default)]
pub struct ChatStreamReader {
    has_chunk: bool,
    started: bool,
    slots: SlotAllocator,
    /// The text or thinking that continues until another part begins.
    current: Option<(ChatTextKind, u32)>,
    reasoning: ChatReasoningState,
    places: ChatAnswerPlaces,
    /// State that the vendor wants back with the message and that no token contains yet.
    state: OpaqueState,
    state_bytes: usize,
    calls: ChatCallTracker,
    refusal: JsonStrBuf,
    finish: Option<ChatFinishReason>,
    /// True if a `delta` with content has arrived.
    has_delta: bool,
    has_output: bool,
    usage_place: UsagePlace,
    counters: Option<ChatCounters>,
    tier: Option<ServiceTier>,
}

/// Kind of consecutive deltas whose end the protocol does not mark.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ChatTextKind {
    Text,
    Refusal,
    Thinking,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ChatFinishReason {
    Stop,
    Calls,
    Length,
    Filter,
}

impl ChatFinishReason {
    /// Returns whether the vendor gave a reason. Some vendors send one of these two values with
    /// every chunk of an answer that continues.
    pub(crate) fn is_given(reason: &str) -> bool {
        !matches!(reason, "" | "null")
    }

    /// Parses a reason. Returns `None` if its meaning is unknown.
    pub(crate) fn parse(reason: &str) -> Option<Self> {
        match reason {
            "stop" | "STOP" | "end_turn" | "eos" | "eos_token" | "stop_sequence" | "COMPLETE" => {
                Some(Self::Stop)
            }
            "tool_calls" | "function_call" | "tool_use" | "TOOL_CALL" => Some(Self::Calls),
            // Mistral, Cohere and others use these reasons, vLLM the last one for answers that
            // ended before they were complete.
            "length" | "model_length" | "max_tokens" | "MAX_TOKENS" | "abort" => Some(Self::Length),
            "content_filter" | "sensitive" | "SAFETY" => Some(Self::Filter),
            _ => None,
        }
    }
}

impl AnswerReader for ChatStreamReader {
    fn protocol(&self) -> Protocol {
        Protocol::Chat
    }

    fn read_event(
        &mut self,
        name: &[u8],
        event: JsonValue<'_>,
        to: &mut dyn EventSink,
    ) -> ReadResult {
        if name == b"error" {
            return Err(UpstreamError::from_error_body(event.raw().as_bytes()));
        }
        self.read_chunk(event, false, to)
    }

    /// Handles the end of the vendor's answer, with or without a finish reason.
    fn read_end_marker(&mut self, to: &mut dyn EventSink) -> Option<ReadResult> {
        if !self.started {
            return Some(Err(if self.has_chunk {
                UpstreamError::Empty
            } else {
                UpstreamError::Cut
            }));
        }
        self.derive_finish_reason(true, to);
        self.end(to);
        Some(Ok(()))
    }

    fn end_of_body(&mut self, to: &mut dyn EventSink) {
        self.derive_finish_reason(false, to);
    }

    fn finish(&mut self, to: &mut dyn EventSink) {
        self.end(to);
    }
}

impl ChatStreamReader {
    pub fn new(places: ChatAnswerPlaces) -> Self {
        Self {
            places,
            ..Self::default()
        }
    }

    /// Derives the finish reason of an answer whose vendor counted its output but gave no reason.
    fn derive_finish_reason(&mut self, is_done: bool, to: &mut dyn EventSink) {
        let has_output = self.slots.is_used() || !self.calls.is_empty();
        if self.finish.is_none() && has_output && self.usage_place.ends_answer(is_done) {
            self.calls.open_pending(&mut self.slots, to);
            self.finish = Some(if self.calls.is_empty() {
                ChatFinishReason::Stop
            } else {
                ChatFinishReason::Calls
            });
            to.event(Event::Warning(DERIVED_FINISH_REASON));
            to.event(Event::Stop(self.stop_reason()));
        }
    }

    /// Reads a chunk or a whole answer. A chunk has `delta` where an answer has `message`, and an
    /// entry of `tool_calls` may be a fragment.
    fn read_chunk(
        &mut self,
        chunk: JsonValue<'_>,
        is_whole: bool,
        to: &mut dyn EventSink,
    ) -> ReadResult {
        self.has_chunk = true;
        self.has_output = false;
        let mut start = ResponseStart::default();
        let (mut choice, mut counters, mut is_error) = (None, None, false);
        for (key, value) in chunk.members() {
            match key.value().as_ref() {
                "id" => start.id = value.text(),
                "service_tier" => start.tier = value.text(),
                "choices" => {
                    for read in value
                        .items()
                        .filter(|choice| choice.is_object())
                        .map(ChatAnswerChoice::parse)
                    {
                        is_error |= read.is_error();
                        counters = read.usage.and_then(read_usage).or(counters);
                        choice = choice.or(Some(read).filter(|read| read.index == 0));
                    }
                }
                "usage" => counters = read_usage(value).or(counters),
                "x_groq" => counters = value.get("usage").and_then(read_usage).or(counters),
                "error" => is_error |= !value.is_null(),
                _ => {}
            }
        }
        if is_error {
            return Err(UpstreamError::from_error_body(chunk.raw().as_bytes()));
        }
        self.tier = start
            .tier
            .as_ref()
            .map(|tier| ServiceTier::from_wire(&tier.value()))
            .or(self.tier);
        if let Some(choice) = choice {
            self.start(start, to);
            if let Some(message) = self.output_of(&choice, is_whole) {
                self.message(message, is_whole, to)?;
            }
            if let Some(reason) = &choice.finish_reason {
                self.read_finish_reason(reason, to);
            }
        }
        let at_own_place = || counters::find_chat_usage(chunk.raw(), &self.places.usage);
        let counters = counters.or_else(at_own_place);
        self.merge_counters(counters, to);
        Ok(())
    }

    /// Returns the output of a choice. Some vendors stream `message` in place of `delta` or beside
    /// an empty one, and some repeat the whole answer as `message` after the deltas.
    fn output_of<'v>(
        &mut self,
        choice: &ChatAnswerChoice<'v>,
        is_whole: bool,
    ) -> Option<JsonValue<'v>> {
        if is_whole {
            return choice.message;
        }
        self.has_delta |= choice.delta.is_some_and(has_content);
        let message = choice.message.filter(|_| !self.has_delta);
        message.or(choice.delta)
    }

    fn start(&mut self, start: ResponseStart<'_>, to: &mut dyn EventSink) {
        if self.started {
            return;
        }
        self.started = true;
        to.event(Event::Start(start));
        self.send_counters(to);
    }

    fn read_finish_reason(&mut self, reason: &JsonStr<'_>, to: &mut dyn EventSink) {
        let reason = reason.value();
        if !ChatFinishReason::is_given(&reason) {
            return;
        }
        let finish = match ChatFinishReason::parse(&reason) {
            Some(finish) => finish,
            // The calls are complete, but a text may have been cut off.
            None => {
                if self.finish.is_none() {
                    to.event(Event::Warning(DERIVED_FINISH_REASON));
                }
                match self.calls.is_empty() {
                    true => ChatFinishReason::Length,
                    false => ChatFinishReason::Calls,
                }
            }
        };
        if self.finish != Some(finish) {
            self.calls.open_pending(&mut self.slots, to);
            self.finish = Some(finish);
            to.event(Event::Stop(self.stop_reason()));
        }
    }

    fn merge_counters(&mut self, counters: Option<ChatCounters>, to: &mut dyn EventSink) {
        let counters = counters.filter(ChatCounters::is_usage);
        self.usage_place
            .record_chunk(counters.is_some(), self.has_output);
        let Some(counters) = counters else {
            return;
        };
        self.counters.get_or_insert_default().merge(&counters);
        if self.started {
            self.send_counters(to);
        }
    }

    fn send_counters(&self, to: &mut dyn EventSink) {
        if let Some(counters) = self.counters {
            let counters = &VendorCounters::Chat(ChatCounters {
                service_tier: self.tier,
                ..counters
            });
            to.event(Event::Counters {
                counters,
                is_final: true,
            });
        }
    }

    fn message(
        &mut self,
        message: JsonValue<'_>,
        is_whole: bool,
        to: &mut dyn EventSink,
    ) -> ReadResult {
        let delta = ChatDelta::parse(message);
        self.state_bytes += self.state.add(message, &self.places.state);
        if self.state_bytes > MAX_STATE_BYTES {
            return Err(UpstreamError::TooLarge);
        }
        self.read_reasoning(&delta, is_whole, to);
        if let Some(content) = delta.content {
            self.content(content, to);
        }
        if let Some(refusal) = &delta.refusal {
            if self.refusal.len() <= MAX_REFUSAL_BYTES {
                self.refusal.push(refusal);
            }
            self.emit_text(ChatTextKind::Refusal, refusal, to);
        }
        self.citations(delta.annotations, to);
        match delta.calls.filter(|calls| calls.items().next().is_some()) {
            Some(calls) => {
                self.calls.begin_chunk();
                for call in calls.items() {
                    self.call(&ChatToolCallDelta::parse(call), is_whole, to)?;
                }
            }
            // `function_call` is the older form and holds one call. A vendor that sends both forms
            // repeats the call.
            None if self.calls.is_only_legacy() => {
                if let Some(function) = delta.function_call {
                    self.call(&ChatToolCallDelta::from_function_call(function), false, to)?;
                }
            }
            None => {}
        }
        Ok(())
    }

    /// Reads the sources that the vendor cites for the text so far.
    fn citations(&mut self, annotations: Option<JsonValue<'_>>, to: &mut dyn EventSink) {
        let Some((ChatTextKind::Text, slot)) = self.current else {
            return;
        };
        for annotation in annotations.into_iter().flat_map(JsonValue::items) {
            let source = annotation.get("url_citation");
            let text = |name| source.and_then(|source| source.text_of(name));
            if let Some(url) = text("url") {
                to.event(Event::Citation {
                    slot,
                    title: text("title"),
                    url,
                });
            }
        }
    }

    /// Reads the content, which is a string or, at some vendors, a list of parts.
    fn content(&mut self, content: JsonValue<'_>, to: &mut dyn EventSink) {
        if let Some(text) = content.text() {
            self.emit_text(ChatTextKind::Text, &text, to);
        }
        for part in content.items() {
            // Mistral sends thinking as a list of texts.
            let thinking = part.get("thinking").into_iter();
            for text in thinking.flat_map(thinking_texts) {
                self.emit_text(ChatTextKind::Thinking, &text, to);
            }
            if let Some(text) = part.text_of("text") {
                self.emit_text(ChatTextKind::Text, &text, to);
            }
        }
    }

    fn read_reasoning(&mut self, delta: &ChatDelta<'_>, is_whole: bool, to: &mut dyn EventSink) {
        let details = delta.details.filter(|details| details.is_array());
        match self.reasoning.select_source(delta) {
            Some(reasoning::ChatReasoningSource::Content) => {
                delta
                    .reasoning_content
                    .iter()
                    .for_each(|text| self.emit_text(ChatTextKind::Thinking, text, to));
            }
            Some(reasoning::ChatReasoningSource::Plain) => {
                delta
                    .reasoning
                    .iter()
                    .for_each(|text| self.emit_text(ChatTextKind::Thinking, text, to));
            }
            Some(reasoning::ChatReasoningSource::Details) => {
                for entry in details.into_iter().flat_map(JsonValue::items) {
                    if let Some(text) = reasoning::detail_text(entry) {
                        self.emit_text(ChatTextKind::Thinking, &text, to);
                    }
                }
            }
            None => {}
        }
        for entry in details.into_iter().flat_map(JsonValue::items) {
            self.reasoning.push_detail(entry, is_whole);
        }
    }

    /// Adds text to the current run, or begins a new run if another part has begun since.
    fn emit_text(&mut self, stretch: ChatTextKind, text: &JsonStr<'_>, to: &mut dyn EventSink) {
        if text.is_empty() {
            return;
        }
        let slot = match self.current {
            Some((current, slot)) if current == stretch => slot,
            _ => self.open_text(stretch, to),
        };
        self.has_output = true;
        to.event(Event::Delta {
            slot,
            text: text.reborrow(),
        });
    }

    fn open_text(&mut self, stretch: ChatTextKind, to: &mut dyn EventSink) -> u32 {
        self.calls.open_pending(&mut self.slots, to);
        if stretch != ChatTextKind::Thinking {
            self.emit_signature(to);
            self.emit_state(to);
        }
        let slot = self.slots.allocate();
        let piece = match stretch {
            ChatTextKind::Text => OutputPart::Text,
            ChatTextKind::Refusal => OutputPart::Refusal,
            ChatTextKind::Thinking => OutputPart::Thinking,
        };
        to.event(Event::Open { slot, piece });
        self.current = Some((stretch, slot));
        slot
    }

    /// Emits reasoning that the vendor expects back: as the signature of the thinking before it, or
    /// of an empty thinking if there is none. The reader calls this function when another part
    /// begins or the answer ends.
    fn emit_signature(&mut self, to: &mut dyn EventSink) {
        let Some(signature) = self.reasoning.take_signature() else {
            return;
        };
        let slot = match self.current {
            Some((ChatTextKind::Thinking, slot)) => slot,
            _ => self.open_text(ChatTextKind::Thinking, to),
        };
        to.event(Event::Signature {
            slot,
            signature: JsonStr::from_value(signature),
        });
        // Thinking that follows is a new block.
        self.current = None;
    }

    /// Emits the part of the state that has arrived and that the vendor wants back with the
    /// message. The rest follows before another part begins, or at the end.
    fn emit_state(&mut self, to: &mut dyn EventSink) {
        emit_state(&mut self.state, StatePlace::Message, &mut self.slots, to);
    }

    fn call(
        &mut self,
        entry: &ChatToolCallDelta<'_>,
        is_whole: bool,
        to: &mut dyn EventSink,
    ) -> ReadResult {
        self.has_output = true;
        let begins = self.calls.is_new_call(entry, is_whole);
        if begins {
            self.calls.open_pending(&mut self.slots, to);
            self.emit_signature(to);
            self.emit_state(to);
            self.current = None;
        }
        self.calls
            .apply_delta(entry, is_whole, &self.places.state, &mut self.slots, to)
    }

    fn stop_reason(&self) -> StopReason<'_> {
        match self.finish {
            _ if !self.refusal.is_empty() => StopReason::Refusal {
                is_billed: true,
                explanation: Some(self.refusal.text()),
            },
            Some(ChatFinishReason::Stop) | None => StopReason::EndTurn,
            Some(ChatFinishReason::Calls) => StopReason::ToolUse,
            Some(ChatFinishReason::Length) => StopReason::MaxTokens,
            Some(ChatFinishReason::Filter) => StopReason::Refusal {
                is_billed: true,
                explanation: None,
            },
        }
    }

    fn end(&mut self, to: &mut dyn EventSink) {
        self.calls.open_pending(&mut self.slots, to);
        self.emit_signature(to);
        self.emit_state(to);
        self.calls.emit_late_state(&mut self.slots, to);
        if self.finish.is_some() {
            // Repeat the stop event, because the refusal may have continued after the finish
            // reason.
            to.event(Event::Stop(self.stop_reason()));
        }
        to.event(Event::End);
    }
}

/// Reads a whole answer into the same events as a stream.
pub fn read_body(
    body: JsonValue<'_>,
    places: ChatAnswerPlaces,
    to: &mut dyn EventSink,
) -> ReadResult {
    if !body.is_object() {
        return Err(UpstreamError::NotJson);
    }
    let mut reader = ChatStreamReader::new(places);
    reader.read_chunk(body, true, to)?;
    if !reader.started {
        return Err(UpstreamError::Empty);
    }
    reader.end(to);
    Ok(())
}

/// Returns whether a delta has more than a role and empty members.
fn has_content(delta: JsonValue<'_>) -> bool {
    let is_empty = |value: JsonValue<'_>| {
        value.is_null() || value.is("") || value.is_array() && value.items().next().is_none()
    };
    delta
        .members()
        .any(|(key, value)| !key.is("role") && !is_empty(value))
}

fn thinking_texts(thinking: JsonValue<'_>) -> impl Iterator<Item = JsonStr<'_>> {
    let listed = thinking.items().filter_map(|item| item.text_of("text"));
    thinking.text().into_iter().chain(listed)
}

fn read_usage(usage: JsonValue<'_>) -> Option<ChatCounters> {
    counters::read_chat_usage(&mut JsonScanner::new(usage.raw(), MAX_RESPONSE_DEPTH))
        .ok()
        .flatten()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::json::NodeBuffer;

    struct Nobody;

    impl EventSink for Nobody {
        fn event(&mut self, _event: Event<'_>) {}
    }

    fn read_chunk(reader: &mut ChatStreamReader, chunk: &str) -> Result<(), UpstreamError> {
        reader
            .event(b"", chunk.as_bytes(), NodeBuffer::new(), &mut Nobody)
            .1
    }

    #[test]
    fn what_is_kept_of_calls_is_bounded() {
        let mut reader = ChatStreamReader::default();
        let call = |id: usize| {
            format!(r#"{{"choices":[{{"delta":{{"tool_calls":[{{"id":"call_{id}"}}]}}}}]}}"#)
        };
        let outcome = (0..10_000).try_for_each(|id| read_chunk(&mut reader, &call(id)));
        assert_eq!(outcome, Err(UpstreamError::TooLarge));

        let mut reader = ChatStreamReader::default();
        let arguments = "x".repeat(100_000);
        let nameless = format!(
            r#"{{"choices":[{{"delta":{{"tool_calls":[{{"function":{{"arguments":"{arguments}"}}}}]}}}}]}}"#
        );
        let outcome = (0..1_000).try_for_each(|_| read_chunk(&mut reader, &nameless));
        assert_eq!(outcome, Err(UpstreamError::TooLarge));
    }
}
