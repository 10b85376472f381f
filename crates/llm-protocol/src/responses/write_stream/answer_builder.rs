//! Decides the outcome of each IR event of an answer.
//!
//! This file must not number events by itself: the event sequencer does, because other code writes
//! events of the same response.
//!
//! Read next: `write_stream/item.rs`, `write_stream/call.rs`.

use super::call::{CallInput, ResponsesOpenCall};
use super::completion::{DEFAULT_REFUSAL_TEXT, ResponsesCompletion};
use super::item::{self, ResponsesCitation};
use crate::capabilities::{ReasoningReplay, response_ids};
use crate::ir::event::{
    AnswerWriter, ClientTool, Event, EventSink, OutputPart, ResponseContext, ToolCallKind,
    take_output,
};
use crate::json::{JsonStr, JsonStrBuf, JsonWriter, RawJson};
use crate::reasoning_token::{self, ReasoningPayload};
use crate::responses::event_sequencer::{EventSequencer, ResponsesStatus, SequencerState};

/// Number of bytes counted for each item in addition to its text, both in memory and in the output.
const ITEM_OVERHEAD_BYTES: usize = 512;

/// Number of copies of a text in memory and pending output: one that is kept, and one that the end
/// repeats.
const BUFFERED_COPIES: usize = 2;

/// Maximum number of bytes kept for a stream.
pub(super) const MAX_STREAM_BYTES: usize = 8 << 20;

/// Maximum number of bytes kept for one body.
const MAX_BODY_BYTES: usize = 64 << 20;

#[derive(Debug, Default)]
pub struct ResponsesAnswerBuilder {
    response_context: ResponseContext,
    sequencer: EventSequencer,
    /// Events of a stream, or the body of a whole answer.
    out: Vec<u8>,
    is_stream: bool,
    completion: ResponsesCompletion,
    /// The text or reasoning item that is open. At most one is open at a time.
    talk: Option<ResponsesOpenItem>,
    /// A text that was opened and has consisted of white space so far.
    announced: Option<(u32, JsonStrBuf)>,
    /// Slot of the refusal that is open.
    refusing: Option<u32>,
    refusal: JsonStrBuf,
    /// Open calls in the order in which they began.
    calls: Vec<ResponsesOpenCall>,
    has_message: bool,
    ids_made: u64,
    kept_bytes: usize,
    bytes_max: usize,
    is_over: bool,
}

#[derive(Debug)]
enum ResponsesOpenItem {
    Message(ResponsesOpenMessage),
    Reasoning(ResponsesOpenReasoning),
}

#[derive(Debug, Default)]
struct ResponsesOpenMessage {
    slot: u32,
    index: usize,
    id: String,
    text: JsonStrBuf,
    /// Number of code points so far, and their number before the current slot.
    points: u64,
    start: u64,
    sources: Vec<ResponsesCitation>,
}

#[derive(Debug)]
struct ResponsesOpenReasoning {
    slot: u32,
    index: usize,
    id: String,
    text: JsonStrBuf,
    signature: Option<String>,
}

impl AnswerWriter for ResponsesAnswerBuilder {
    fn take(&mut self, out: &mut Vec<u8>) {
        take_output(&mut self.out, out);
    }

    fn overflowed(&self) -> bool {
        self.kept_bytes > self.bytes_max
    }
}

impl EventSink for ResponsesAnswerBuilder {
    fn event(&mut self, event: Event<'_>) {
        if self.is_over || self.overflowed() {
            return;
        }
        match event {
            Event::Start(start) => {
                let mut unheard = Vec::new();
                let out = if self.is_stream {
                    &mut self.out
                } else {
                    &mut unheard
                };
                self.sequencer.begin(start.id.as_ref(), out);
            }
            Event::Open { slot, piece } => self.open(slot, piece),
            Event::Delta { slot, text } => {
                self.completion.count_generated(&text);
                self.delta(slot, &text);
            }
            Event::Signature { slot, signature } => self.set_signature(slot, &signature),
            Event::Citation { slot, title, url } => self.add_citation(slot, title.as_ref(), &url),
            Event::Close { slot } => self.close(slot),
            Event::Stop(stop) => {
                self.completion.set_stop(stop);
                if !self.completion.is_cut_short() {
                    self.close_complete_calls();
                }
            }
            Event::Counters { .. } | Event::Warning(_) => {}
            Event::Usage { usage, is_final } => self.completion.set_usage(usage, is_final),
            Event::End => self.end(),
        }
    }
}

impl ResponsesAnswerBuilder {
    /// Creates the builder. `is_stream` says whether to write events or one body.
    pub fn new(response_context: ResponseContext, is_stream: bool) -> Self {
        let sequencer = response_context.sequencer.clone().unwrap_or_default();
        sequencer.begin_attempt();
        ResponsesAnswerBuilder {
            response_context,
            sequencer,
            is_stream,
            bytes_max: match is_stream {
                true => MAX_STREAM_BYTES,
                false => MAX_BODY_BYTES,
            },
            ..ResponsesAnswerBuilder::default()
        }
    }

    fn count_bytes(&mut self, bytes: usize) {
        self.kept_bytes = self.kept_bytes.saturating_add(bytes);
    }

    fn count_text(&mut self, text: &JsonStr<'_>) {
        self.count_bytes(text.written().len().saturating_mul(BUFFERED_COPIES));
    }

    fn emit(&mut self, kind: &str, write: impl FnOnce(&mut JsonWriter, &SequencerState)) {
        if self.is_stream {
            self.sequencer
                .state()
                .write_event(kind, &mut self.out, write);
        }
    }

    /// Assigns the next item index, and returns it with the id of the item.
    fn allocate_item(&mut self, prefix: &str) -> (usize, String) {
        self.count_bytes(ITEM_OVERHEAD_BYTES);
        let mut state = self.sequencer.state();
        let index = state.items.len();
        state.items.push(None);
        (index, state.item_id(prefix, index))
    }

    /// Writes the event that adds an item. `write` writes the item without its later
    /// content.
    fn emit_item_added(&mut self, index: usize, write: impl FnOnce(&mut JsonWriter)) {
        self.emit("response.output_item.added", |json, _| {
            json.member("output_index", to_u64(index)).key("item");
            write(json);
        });
    }

    /// Completes an item. `is_announced` says whether to write the event, after which the client
    /// may act on the item.
    fn finish_item(
        &mut self,
        index: usize,
        is_announced: bool,
        write: impl FnOnce(&mut JsonWriter),
    ) {
        let mut json = JsonWriter::default();
        write(&mut json);
        let item = json.into_bytes();
        if is_announced {
            self.emit("response.output_item.done", |json, _| {
                json.member("output_index", to_u64(index)).key("item");
                json.value(RawJson(std::str::from_utf8(&item).unwrap_or("null")));
            });
        }
        if let Some(position) = self.sequencer.state().items.get_mut(index) {
            *position = Some(item);
        }
    }

    fn emit_item_event(
        &mut self,
        kind: &str,
        (index, id): (usize, &str),
        write: impl FnOnce(&mut JsonWriter),
    ) {
        self.emit(kind, |json, _| {
            json.member("item_id", id)
                .member("output_index", to_u64(index));
            write(json);
        });
    }

    /// Writes the event that adds or ends the one part of a message.
    fn emit_content_part(
        &mut self,
        stage: &str,
        item: (usize, &str),
        write: impl FnOnce(&mut JsonWriter),
    ) {
        self.emit_item_event(&format!("response.content_part.{stage}"), item, |json| {
            json.member("content_index", 0).key("part");
            write(json);
        });
    }

    fn open(&mut self, slot: u32, piece: OutputPart<'_>) {
        match piece {
            OutputPart::Text => {
                if let Some(ResponsesOpenItem::Message(message)) = &mut self.talk {
                    message.slot = slot;
                    message.start = message.points;
                    return;
                }
                let (_, held) = self.announced.take().unwrap_or_default();
                self.announced = Some((slot, held));
                return;
            }
            OutputPart::Refusal => {
                self.refusing = Some(slot);
                return;
            }
            OutputPart::Thinking
            | OutputPart::Hidden { .. }
            | OutputPart::State { .. }
            | OutputPart::Call { .. }
            | OutputPart::Search { .. }
            | OutputPart::Foreign { .. } => {}
        }
        self.close_open_item("completed");
        self.announced = None;
        match piece {
            OutputPart::Thinking => {
                let (index, id) = self.allocate_item("rs");
                self.emit_item_added(index, |json| item::write_reasoning(&id, None, None, json));
                let reasoning = ResponsesOpenReasoning {
                    slot,
                    index,
                    id,
                    text: JsonStrBuf::default(),
                    signature: None,
                };
                self.talk = Some(ResponsesOpenItem::Reasoning(reasoning));
            }
            OutputPart::Hidden { data } => {
                self.count_text(&data);
                let carrier = reasoning_token::pack_hidden(&data);
                self.sealed_reasoning(carrier.as_deref());
            }
            OutputPart::State { token } => self.sealed_reasoning(Some(&token.value())),
            OutputPart::Call {
                id,
                name,
                is_custom,
            } => self.call(slot, id, &name, is_custom),
            OutputPart::Search { query } => self.search(&query),
            OutputPart::Text | OutputPart::Refusal | OutputPart::Foreign { .. } => {}
        }
    }

    /// Writes a reasoning item that has no text.
    fn sealed_reasoning(&mut self, encrypted: Option<&str>) {
        let (index, id) = self.allocate_item("rs");
        self.emit_item_added(index, |json| item::write_reasoning(&id, None, None, json));
        self.finish_item(index, true, |json| {
            item::write_reasoning(&id, None, encrypted, json)
        });
    }

    /// Writes a search that the vendor ran, from its beginning to its end.
    fn search(&mut self, query: &JsonStr<'_>) {
        self.count_text(query);
        let (index, id) = self.allocate_item("ws");
        self.emit_item_added(index, |json| {
            item::write_search((&id, "in_progress"), query, json)
        });
        for kind in ["in_progress", "searching", "completed"] {
            self.emit_item_event(
                &format!("response.web_search_call.{kind}"),
                (index, &id),
                |_| (),
            );
        }
        self.finish_item(index, true, |json| {
            item::write_search((&id, "completed"), query, json)
        });
    }

    fn call(&mut self, slot: u32, id: Option<JsonStr<'_>>, name: &JsonStr<'_>, is_custom: bool) {
        let name = name.value();
        let name = self.response_context.client_tool_name(&name);
        let tool = self
            .response_context
            .own_tools
            .get(name)
            .cloned()
            .unwrap_or_else(|| ClientTool {
                namespace: None,
                name: name.to_owned(),
                kind: if is_custom {
                    ToolCallKind::Custom
                } else {
                    ToolCallKind::Function
                },
            });
        let call_id = match id.filter(|id| !id.is_empty()) {
            Some(id) => id.into_value().into_owned(),
            None => {
                self.ids_made += 1;
                response_ids::generate_id("call_", &self.response_context.seed, self.ids_made)
            }
        };
        self.count_bytes(ITEM_OVERHEAD_BYTES + call_id.len() + tool.name.len());
        let is_plain = is_custom && tool.kind == ToolCallKind::Custom;
        let mut call = ResponsesOpenCall {
            slot,
            tool,
            call_id,
            position: None,
            is_plain,
            input: JsonStrBuf::default(),
        };
        if call.is_added_early() {
            call.position = Some(self.add_call(&call));
        }
        self.calls.push(call);
    }

    /// Assigns an index to a call, and writes the event that adds it.
    fn add_call(&mut self, call: &ResponsesOpenCall) -> (usize, String) {
        let (index, id) = self.allocate_item(item::type_and_prefix(call.tool.kind).1);
        self.emit_item_added(index, |json| {
            item::write_call(
                (&id, &call.call_id, "in_progress"),
                &call.tool,
                &JsonStr::from_value(""),
                json,
            );
        });
        (index, id)
    }

    fn delta(&mut self, slot: u32, text: &JsonStr<'_>) {
        self.count_text(text);
        match &mut self.talk {
            Some(ResponsesOpenItem::Message(message)) if message.slot == slot => {
                return self.append_text(text);
            }
            Some(ResponsesOpenItem::Reasoning(reasoning)) if reasoning.slot == slot => {
                return self.append_reasoning(text);
            }
            _ => {}
        }
        if let Some((_, mut held)) = self.announced.take_if(|(announced, _)| *announced == slot) {
            held.push(text);
            if text.is_blank() {
                self.announced = Some((slot, held));
                return;
            }
            self.close_open_item("completed");
            self.begin_message(slot);
            self.append_text(&held.text());
        } else if self.refusing == Some(slot) {
            self.refusal.push(text);
        } else if let Some(at) = self.calls.iter().rposition(|call| call.slot == slot) {
            self.append_call_input(at, text);
        }
    }

    fn begin_message(&mut self, slot: u32) {
        let (index, id) = self.allocate_item("msg");
        self.emit_item_added(index, |json| {
            item::write_message(&id, "in_progress", None, json)
        });
        self.emit_content_part("added", (index, &id), |json| {
            item::write_text_part(&JsonStr::from_value(""), &[], json);
        });
        self.talk = Some(ResponsesOpenItem::Message(ResponsesOpenMessage {
            slot,
            index,
            id,
            ..ResponsesOpenMessage::default()
        }));
        self.has_message = true;
    }

    fn append_text(&mut self, text: &JsonStr<'_>) {
        let Some(ResponsesOpenItem::Message(mut message)) = self.talk.take() else {
            return;
        };
        message.text.push(text);
        message.points = message.points.saturating_add(text.code_points());
        self.emit_item_event(
            "response.output_text.delta",
            (message.index, &message.id),
            |json| {
                json.member("content_index", 0).member("delta", text);
                json.member_array("logprobs").close_array();
            },
        );
        self.talk = Some(ResponsesOpenItem::Message(message));
    }

    fn append_reasoning(&mut self, text: &JsonStr<'_>) {
        let Some(ResponsesOpenItem::Reasoning(mut reasoning)) = self.talk.take() else {
            return;
        };
        if self.response_context.show_thinking {
            let item = (reasoning.index, reasoning.id.as_str());
            if reasoning.text.is_empty() {
                self.emit_item_event("response.reasoning_summary_part.added", item, |json| {
                    json.member("summary_index", 0).key("part");
                    write_summary(&JsonStr::from_value(""), json);
                });
            }
            self.emit_item_event("response.reasoning_summary_text.delta", item, |json| {
                json.member("summary_index", 0).member("delta", text);
            });
        }
        reasoning.text.push(text);
        self.talk = Some(ResponsesOpenItem::Reasoning(reasoning));
    }

    fn append_call_input(&mut self, at: usize, text: &JsonStr<'_>) {
        let Some(call) = self.calls.get_mut(at) else {
            return;
        };
        call.append(text);
        if !call.is_streamed() {
            return;
        }
        let is_custom = call.tool.kind == ToolCallKind::Custom;
        let Some((index, id)) = call.position.clone() else {
            return;
        };
        self.emit_item_event(input_events(is_custom).0, (index, &id), |json| {
            json.member("delta", text);
        });
    }

    fn set_signature(&mut self, slot: u32, new_signature: &JsonStr<'_>) {
        self.count_text(new_signature);
        if let Some(ResponsesOpenItem::Reasoning(reasoning)) = &mut self.talk
            && reasoning.slot == slot
        {
            reasoning.signature = Some(new_signature.value().into_owned());
        }
    }

    fn add_citation(&mut self, slot: u32, title: Option<&JsonStr<'_>>, url: &JsonStr<'_>) {
        self.count_text(url);
        let Some(ResponsesOpenItem::Message(mut message)) = self
            .talk
            .take_if(|talk| matches!(talk, ResponsesOpenItem::Message(_)))
        else {
            return;
        };
        if message.slot == slot {
            let title = title
                .map(|title| title.value().into_owned())
                .unwrap_or_default();
            self.count_bytes(ITEM_OVERHEAD_BYTES + title.len());
            let source = ResponsesCitation {
                start: message.start,
                end: message.points,
                title,
                url: url.value().into_owned(),
            };
            let number_of = to_u64(message.sources.len());
            self.emit_item_event(
                "response.output_text.annotation.added",
                (message.index, &message.id),
                |json| {
                    json.member("content_index", 0)
                        .member("annotation_index", number_of)
                        .key("annotation");
                    source.write(json);
                },
            );
            message.sources.push(source);
        }
        self.talk = Some(ResponsesOpenItem::Message(message));
    }

    fn close(&mut self, slot: u32) {
        if matches!(&self.talk, Some(ResponsesOpenItem::Reasoning(reasoning)) if reasoning.slot == slot)
        {
            self.close_open_item("completed");
        }
        let Some(at) = self.calls.iter().rposition(|call| call.slot == slot) else {
            return;
        };
        let Some(call) = self.calls.get(at) else {
            return;
        };
        // Incomplete input may have been cut off, even before its first character. Only the end of
        // the answer shows that.
        if call.is_complete() {
            let call = self.calls.remove(at);
            self.finish_call(call);
        }
    }

    fn close_complete_calls(&mut self) {
        for call in std::mem::take(&mut self.calls) {
            if call.is_complete() || call.is_blank() {
                self.finish_call(call)
            } else {
                self.calls.push(call)
            }
        }
    }

    /// Ends the open text or reasoning item. `status` is that of a message.
    fn close_open_item(&mut self, status: &str) {
        match self.talk.take() {
            None => {}
            Some(ResponsesOpenItem::Message(message)) => self.close_message(&message, status),
            Some(ResponsesOpenItem::Reasoning(reasoning)) => self.close_reasoning(&reasoning),
        }
    }

    fn close_message(&mut self, message: &ResponsesOpenMessage, status: &str) {
        let ResponsesOpenMessage {
            index,
            id,
            text,
            sources,
            ..
        } = message;
        let (at, text) = ((*index, id.as_str()), text.text());
        self.emit_item_event("response.output_text.done", at, |json| {
            json.member("content_index", 0).member("text", &text);
            json.member_array("logprobs").close_array();
        });
        let part = |json: &mut JsonWriter| item::write_text_part(&text, sources, json);
        self.emit_content_part("done", at, part);
        self.finish_item(*index, true, |json| {
            item::write_message(id, status, Some(&part), json)
        });
    }

    fn close_reasoning(&mut self, reasoning: &ResponsesOpenReasoning) {
        let ResponsesOpenReasoning {
            index,
            id,
            text,
            signature,
            ..
        } = reasoning;
        let (at, text) = ((*index, id.as_str()), text.text());
        let shown =
            Some(&text).filter(|text| self.response_context.show_thinking && !text.is_empty());
        if let Some(text) = shown {
            self.emit_item_event("response.reasoning_summary_text.done", at, |json| {
                json.member("summary_index", 0).member("text", text);
            });
            self.emit_item_event("response.reasoning_summary_part.done", at, |json| {
                json.member("summary_index", 0).key("part");
                write_summary(text, json);
            });
        }
        let carrier = self.carrier(&text, signature.as_deref());
        self.count_bytes(carrier.as_ref().map_or(0, String::len));
        self.finish_item(*index, true, |json| {
            item::write_reasoning(id, shown, carrier.as_deref(), json)
        });
    }

    /// Returns the reasoning packed in the form that the vendor wants back.
    fn carrier(&self, text: &JsonStr<'_>, signature: Option<&str>) -> Option<String> {
        match (signature, self.response_context.reasoning_replay) {
            (Some(signature), _)
                if reasoning_token::is_vendor_signature(signature)
                    || reasoning_token::is_maker_signature(signature) =>
            {
                reasoning_token::pack_thinking(text, &JsonStr::from_value(signature))
            }
            // The signature is a responses vendor's item, which is packed already.
            (Some(signature), _)
                if matches!(
                    reasoning_token::unpack(signature),
                    Some(ReasoningPayload::Item(_))
                ) =>
            {
                Some(signature.to_owned())
            }
            (Some(signature), ReasoningReplay::ReasoningDetails) => {
                reasoning_token::pack_chat_details(&reasoning_token::decode_details(signature)?)
            }
            (None, ReasoningReplay::ReasoningDetails)
            | (
                _,
                ReasoningReplay::Reasoning
                | ReasoningReplay::ReasoningContent
                | ReasoningReplay::ReasoningContentInTurn,
            ) if !text.is_empty() => reasoning_token::pack_chat_text(text),
            _ => None,
        }
    }

    /// Writes the rest of a complete call.
    fn finish_call(&mut self, mut call: ResponsesOpenCall) {
        if call.is_blank() && call.tool.kind != ToolCallKind::Custom {
            // Agents cannot parse empty arguments.
            let empty = JsonStr::from_value("{}");
            call.append(&empty);
            if let (Some((index, id)), ToolCallKind::Function) =
                (call.position.clone(), call.tool.kind)
            {
                self.emit_item_event(input_events(false).0, (index, &id), |json| {
                    json.member("delta", &empty);
                });
            }
        }
        let final_input = call.finalize();
        let kept = match &final_input {
            CallInput::Unchanged => call.input.text(),
            CallInput::Kept(text) => JsonStr::from_value(text.as_str()),
        };
        if call.position.is_none() && call.tool.kind != ToolCallKind::Function {
            // The client runs this tool itself and displays nothing before, so the whole item is
            // written at once.
            let (index, id) = self.allocate_item(item::type_and_prefix(call.tool.kind).1);
            let write = |status: &str, json: &mut JsonWriter| {
                item::write_call((&id, &call.call_id, status), &call.tool, &kept, json);
            };
            self.emit_item_added(index, |json| write("completed", json));
            self.finish_item(index, true, |json| write("completed", json));
            return;
        }
        let was_added = call.position.is_some();
        if !was_added {
            call.position = Some(self.add_call(&call));
        }
        let Some((index, id)) = call.position.clone() else {
            return;
        };
        let is_custom = call.tool.kind == ToolCallKind::Custom;
        let (delta, done) = input_events(is_custom);
        if (!was_added || matches!(final_input, CallInput::Kept(_))) && !kept.is_empty() {
            self.emit_item_event(delta, (index, &id), |json| {
                json.member("delta", &kept);
            });
        }
        self.emit_item_event(done, (index, &id), |json| {
            if !is_custom {
                json.member("name", &call.tool.name);
            }
            json.member(if is_custom { "input" } else { "arguments" }, &kept);
        });
        self.finish_item(index, true, |json| {
            item::write_call((&id, &call.call_id, "completed"), &call.tool, &kept, json);
        });
    }

    /// Writes a call that was cut off. Only the last event contains it.
    fn finish_incomplete_call(&mut self, mut call: ResponsesOpenCall) {
        if !call.is_added_early() {
            // An incomplete input is nothing that the client could run.
            call.tool.kind = ToolCallKind::Function;
        }
        let (index, id) = match call.position.take() {
            Some(position) => position,
            None => self.allocate_item(item::type_and_prefix(call.tool.kind).1),
        };
        let input = call.input.text();
        self.finish_item(index, false, |json| {
            item::write_call((&id, &call.call_id, "incomplete"), &call.tool, &input, json);
        });
    }

    fn end(&mut self) {
        let (is_cut, breaks_off) = (self.completion.is_cut(), self.completion.is_cut_short());
        self.close_open_item(if is_cut { "incomplete" } else { "completed" });
        let calls = std::mem::take(&mut self.calls);
        let last = calls.len().saturating_sub(1);
        for (at, call) in calls.into_iter().enumerate() {
            // Plain text and empty input do not show that they were cut off. The last call is the
            // one that the model was writing.
            let may_be_cut = if call.is_plain || call.is_blank() {
                at == last
            } else {
                !call.is_complete()
            };
            if breaks_off && may_be_cut {
                self.finish_incomplete_call(call)
            } else {
                self.finish_call(call)
            }
        }
        self.finish_refusal();
        self.is_over = true;
        let (kind, status) = match is_cut {
            true => {
                let status = ResponsesStatus::Incomplete("max_output_tokens");
                ("response.incomplete", status)
            }
            false => ("response.completed", ResponsesStatus::Completed),
        };
        let ResponsesAnswerBuilder {
            sequencer,
            completion,
            response_context,
            out,
            is_stream,
            ..
        } = self;
        let mut state = sequencer.state();
        let usage = |json: &mut JsonWriter| completion.write_usage(response_context, json);
        if *is_stream {
            state.write_event(kind, out, |json, state| {
                json.key("response");
                sequencer.write_response(state, &status, usage, json);
            });
        } else {
            let mut json = JsonWriter::default();
            sequencer.write_response(&state, &status, usage, &mut json);
            *out = json.into_bytes();
        }
        // The last event contained them, and nothing needs them again.
        state.items = Vec::new();
    }

    /// Writes a refusal twice: as text, because agents discard a message with a `refusal` part, and
    /// as a refusal.
    fn finish_refusal(&mut self) {
        let declined = self.completion.take_refusal();
        let refusal = std::mem::take(&mut self.refusal);
        let words = match (refusal.text().is_blank(), declined) {
            (true, None) => return,
            (false, _) => refusal.text().into_value().into_owned(),
            (true, Some(words)) => words,
        };
        let words = match words.is_empty() {
            true => JsonStr::from_value(DEFAULT_REFUSAL_TEXT),
            false => JsonStr::from_value(words),
        };
        if !self.has_message {
            self.begin_message(u32::MAX);
            self.append_text(&words);
            self.close_open_item("completed");
        }
        let (index, id) = self.allocate_item("msg");
        let at = (index, id.as_str());
        self.emit_item_added(index, |json| {
            item::write_message(&id, "in_progress", None, json)
        });
        self.emit_content_part("added", at, |json| {
            item::write_refusal_part(&JsonStr::from_value(""), json)
        });
        self.emit_item_event("response.refusal.delta", at, |json| {
            json.member("content_index", 0).member("delta", &words);
        });
        self.emit_item_event("response.refusal.done", at, |json| {
            json.member("content_index", 0).member("refusal", &words);
        });
        let part = |json: &mut JsonWriter| item::write_refusal_part(&words, json);
        self.emit_content_part("done", at, part);
        self.finish_item(index, true, |json| {
            item::write_message(&id, "completed", Some(&part), json)
        });
    }
}

/// Returns the names of the events for a delta of a call's input, and for its complete input.
fn input_events(is_custom: bool) -> (&'static str, &'static str) {
    match is_custom {
        true => (
            "response.custom_tool_call_input.delta",
            "response.custom_tool_call_input.done",
        ),
        false => (
            "response.function_call_arguments.delta",
            "response.function_call_arguments.done",
        ),
    }
}

fn write_summary(text: &JsonStr<'_>, json: &mut JsonWriter) {
    json.open_typed("summary_text")
        .member("text", text)
        .close_object();
}

fn to_u64(index: usize) -> u64 {
    u64::try_from(index).unwrap_or(u64::MAX)
}
