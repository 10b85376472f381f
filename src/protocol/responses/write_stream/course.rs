//! Decides the outcome of each IR event of an answer.
//!
//! It must not number events by itself: the event sequencer does, because other code writes events
//! of the same response.
//!
//! Read next: `write_stream/item.rs`, `write_stream/call.rs`.

use super::call::{Call, Said};
use super::ending::{DECLINED, Heard};
use super::item::{self, Source};
use crate::protocol::carrier::{self, Carried};
use crate::protocol::form::answer::{CallKind, Event, OwnTool, Piece, Recall, Sink};
use crate::protocol::responses::voice::{Spoken, Status, Voice};
use crate::protocol::rules::{ReasoningReplay, names};
use crate::protocol::text::{Gathered, Json, Text};

/// Bytes counted for each item in addition to its text, in memory and in the output.
const ITEM_BYTES: usize = 512;

/// Number of copies of a text in memory and pending output: one is kept, one is repeated at the
/// end.
const COPIES: usize = 2;

#[derive(Debug)]
pub(super) struct Course {
    recall: Recall,
    voice: Voice,
    /// Events of a stream, or the body of a whole answer.
    pub out: Vec<u8>,
    is_stream: bool,
    heard: Heard,
    /// The one text or reasoning item that is open.
    talk: Option<Talk>,
    /// A text that was opened and has only white space so far.
    announced: Option<(u32, Gathered)>,
    /// Slot of the refusal, and its text.
    refusing: Option<u32>,
    refusal: Gathered,
    /// Open calls in the order in which they began.
    calls: Vec<Call>,
    has_message: bool,
    ids_made: u64,
    kept_bytes: usize,
    bytes_max: usize,
    is_over: bool,
}

#[derive(Debug)]
enum Talk {
    Message(Message),
    Reasoning(Reasoning),
}

#[derive(Debug)]
struct Message {
    slot: u32,
    index: usize,
    id: String,
    text: Gathered,
    /// Number of code points so far, and number before the current slot.
    points: u64,
    start: u64,
    sources: Vec<Source>,
}

#[derive(Debug)]
struct Reasoning {
    slot: u32,
    index: usize,
    id: String,
    text: Gathered,
    signature: Option<String>,
}

impl Sink for Course {
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
                self.voice.begin(start.id.as_ref(), out);
            }
            Event::Open { slot, piece } => self.open(slot, piece),
            Event::Delta { slot, text } => {
                self.heard.generated(&text);
                self.delta(slot, &text);
            }
            Event::Signature { slot, signature } => self.sign(slot, &signature),
            Event::Citation { slot, title, url } => self.cite(slot, title.as_ref(), &url),
            Event::Close { slot } => self.close(slot),
            Event::Stop(stop) => {
                self.heard.stop(stop);
                if !self.heard.breaks_off() {
                    self.close_whole_calls();
                }
            }
            Event::Counters { .. } => {}
            Event::Usage { usage, is_final } => self.heard.used(usage, is_final),
            Event::End => self.end(),
        }
    }
}

impl Course {
    /// `bytes_max`: maximum number of bytes to keep.
    pub fn new(recall: Recall, is_stream: bool, bytes_max: usize) -> Self {
        let voice = recall.voice.clone().unwrap_or_default();
        voice.begin_attempt();
        Course {
            recall,
            voice,
            out: Vec::new(),
            is_stream,
            heard: Heard::default(),
            talk: None,
            announced: None,
            refusing: None,
            refusal: Gathered::default(),
            calls: Vec::new(),
            has_message: false,
            ids_made: 0,
            kept_bytes: 0,
            bytes_max,
            is_over: false,
        }
    }

    pub fn overflowed(&self) -> bool {
        self.kept_bytes > self.bytes_max
    }

    fn keep(&mut self, bytes: usize) {
        self.kept_bytes = self.kept_bytes.saturating_add(bytes);
    }

    fn keep_text(&mut self, text: &Text<'_>) {
        let bytes = match text {
            Text::Token { raw, .. } => raw.len(),
            Text::Made(text) => text.len(),
        };
        self.keep(bytes.saturating_mul(COPIES));
    }

    fn tell(&mut self, kind: &str, write: impl FnOnce(&mut Json, &Spoken)) {
        if self.is_stream {
            self.voice.spoken().event(kind, &mut self.out, write);
        }
    }

    /// Assigns the next item index, and returns it with the id of the item.
    fn place(&mut self, prefix: &str) -> (usize, String) {
        self.keep(ITEM_BYTES);
        let mut spoken = self.voice.spoken();
        let index = spoken.items.len();
        spoken.items.push(None);
        (index, spoken.item_id(prefix, index))
    }

    /// Writes the event that adds an item. `write` writes the item without its later content.
    fn added(&mut self, index: usize, write: impl FnOnce(&mut Json)) {
        self.tell("response.output_item.added", |json, _| {
            json.key("output_index").number(number(index)).key("item");
            write(json);
        });
    }

    /// Completes an item. `is_told`: write the event, after which the client may act on the item.
    fn done(&mut self, index: usize, is_told: bool, write: impl FnOnce(&mut Json)) {
        let mut json = Json::default();
        write(&mut json);
        let item = json.into_bytes();
        if is_told {
            self.tell("response.output_item.done", |json, _| {
                json.key("output_index").number(number(index)).key("item");
                json.raw(std::str::from_utf8(&item).unwrap_or("null"));
            });
        }
        if let Some(place) = self.voice.spoken().items.get_mut(index) {
            *place = Some(item);
        }
    }

    /// Writes an event about an item.
    fn about(&mut self, kind: &str, (index, id): (usize, &str), write: impl FnOnce(&mut Json)) {
        self.tell(kind, |json, _| {
            json.key("item_id")
                .str(id)
                .key("output_index")
                .number(number(index));
            write(json);
        });
    }

    fn open(&mut self, slot: u32, piece: Piece<'_>) {
        match piece {
            Piece::Text => {
                if let Some(Talk::Message(message)) = &mut self.talk {
                    message.slot = slot;
                    message.start = message.points;
                    return;
                }
                let held = self
                    .announced
                    .take()
                    .map_or_else(Gathered::default, |(_, held)| held);
                self.announced = Some((slot, held));
                return;
            }
            Piece::Refusal => {
                self.refusing = Some(slot);
                return;
            }
            Piece::Thinking
            | Piece::Hidden { .. }
            | Piece::Call { .. }
            | Piece::Search { .. }
            | Piece::Foreign { .. } => {}
        }
        self.close_talk("completed");
        self.announced = None;
        match piece {
            Piece::Thinking => {
                let (index, id) = self.place("rs");
                self.added(index, |json| item::write_reasoning(&id, None, None, json));
                let reasoning = Reasoning {
                    slot,
                    index,
                    id,
                    text: Gathered::default(),
                    signature: None,
                };
                self.talk = Some(Talk::Reasoning(reasoning));
            }
            Piece::Hidden { data } => {
                self.keep_text(&data);
                let (index, id) = self.place("rs");
                let carrier = carrier::pack_hidden(&data);
                self.added(index, |json| item::write_reasoning(&id, None, None, json));
                self.done(index, true, |json| {
                    item::write_reasoning(&id, None, carrier.as_deref(), json)
                });
            }
            Piece::Call {
                id,
                name,
                is_custom,
            } => self.call(slot, id, &name, is_custom),
            Piece::Search { query } => self.search(&query),
            Piece::Text | Piece::Refusal | Piece::Foreign { .. } => {}
        }
    }

    /// Writes a search that the vendor ran, from its beginning to its end.
    fn search(&mut self, query: &Text<'_>) {
        self.keep_text(query);
        let (index, id) = self.place("ws");
        self.added(index, |json| {
            item::write_search((&id, "in_progress"), query, json)
        });
        for kind in ["in_progress", "searching", "completed"] {
            self.about(
                &format!("response.web_search_call.{kind}"),
                (index, &id),
                |_| (),
            );
        }
        self.done(index, true, |json| {
            item::write_search((&id, "completed"), query, json)
        });
    }

    fn call(&mut self, slot: u32, id: Option<Text<'_>>, name: &Text<'_>, is_custom: bool) {
        let name = name.value();
        let name = self.recall.own_name(&name);
        let tool = self
            .recall
            .own_tools
            .get(name)
            .cloned()
            .unwrap_or_else(|| OwnTool {
                namespace: None,
                name: name.to_owned(),
                kind: if is_custom {
                    CallKind::Custom
                } else {
                    CallKind::Function
                },
            });
        let call_id = match id.filter(|id| !id.is_empty()) {
            Some(id) => id.into_value().into_owned(),
            None => {
                self.ids_made += 1;
                names::made_id("call_", &self.recall.seed, self.ids_made)
            }
        };
        self.keep(ITEM_BYTES + call_id.len() + tool.name.len());
        let is_plain = is_custom && tool.kind == CallKind::Custom;
        let mut call = Call {
            slot,
            tool,
            call_id,
            place: None,
            is_plain,
            given: Gathered::default(),
        };
        if call.is_added_early() {
            self.add(&mut call);
        }
        self.calls.push(call);
    }

    /// Assigns an index to a call, and writes the event that adds it.
    fn add(&mut self, call: &mut Call) {
        let (index, id) = self.place(item::words(call.tool.kind).1);
        self.added(index, |json| {
            item::write_call(
                (&id, &call.call_id, "in_progress"),
                &call.tool,
                &Text::made(""),
                json,
            );
        });
        call.place = Some((index, id));
    }

    fn delta(&mut self, slot: u32, text: &Text<'_>) {
        self.keep_text(text);
        match &mut self.talk {
            Some(Talk::Message(message)) if message.slot == slot => return self.said(text),
            Some(Talk::Reasoning(reasoning)) if reasoning.slot == slot => {
                return self.thought(text);
            }
            _ => {}
        }
        if let Some((_, mut held)) = self.announced.take_if(|(announced, _)| *announced == slot) {
            held.push(text);
            if text.is_blank() {
                self.announced = Some((slot, held));
                return;
            }
            self.close_talk("completed");
            self.begin_message(slot);
            self.said(&held.text());
        } else if self.refusing == Some(slot) {
            self.refusal.push(text);
        } else if let Some(at) = self.calls.iter().rposition(|call| call.slot == slot) {
            self.called(at, text);
        }
    }

    fn begin_message(&mut self, slot: u32) {
        let (index, id) = self.place("msg");
        self.added(index, |json| {
            item::write_message(&id, "in_progress", None, json)
        });
        self.about("response.content_part.added", (index, &id), |json| {
            json.key("content_index").number(0).key("part");
            item::write_text_part(&Text::made(""), &[], json);
        });
        let (text, sources) = (Gathered::default(), Vec::new());
        self.talk = Some(Talk::Message(Message {
            slot,
            index,
            id,
            text,
            points: 0,
            start: 0,
            sources,
        }));
        self.has_message = true;
    }

    fn said(&mut self, text: &Text<'_>) {
        let Some(Talk::Message(mut message)) = self.talk.take() else {
            return;
        };
        message.text.push(text);
        message.points = message.points.saturating_add(text.code_points());
        self.about(
            "response.output_text.delta",
            (message.index, &message.id),
            |json| {
                json.key("content_index").number(0).key("delta").text(text);
                json.key("logprobs").open_array().close_array();
            },
        );
        self.talk = Some(Talk::Message(message));
    }

    fn thought(&mut self, text: &Text<'_>) {
        let Some(Talk::Reasoning(mut reasoning)) = self.talk.take() else {
            return;
        };
        if self.recall.show_thinking {
            let item = (reasoning.index, reasoning.id.as_str());
            if reasoning.text.is_empty() {
                self.about("response.reasoning_summary_part.added", item, |json| {
                    json.key("summary_index").number(0).key("part");
                    write_summary(&Text::made(""), json);
                });
            }
            self.about("response.reasoning_summary_text.delta", item, |json| {
                json.key("summary_index").number(0).key("delta").text(text);
            });
        }
        reasoning.text.push(text);
        self.talk = Some(Talk::Reasoning(reasoning));
    }

    fn called(&mut self, at: usize, text: &Text<'_>) {
        let Some(call) = self.calls.get_mut(at) else {
            return;
        };
        call.more(text);
        if !call.is_told_early() {
            return;
        }
        let is_custom = call.tool.kind == CallKind::Custom;
        let Some((index, id)) = call.place.clone() else {
            return;
        };
        self.about(input_events(is_custom).0, (index, &id), |json| {
            json.key("delta").text(text);
        });
    }

    fn sign(&mut self, slot: u32, given: &Text<'_>) {
        self.keep_text(given);
        if let Some(Talk::Reasoning(reasoning)) = &mut self.talk
            && reasoning.slot == slot
        {
            reasoning.signature = Some(given.value().into_owned());
        }
    }

    fn cite(&mut self, slot: u32, title: Option<&Text<'_>>, url: &Text<'_>) {
        self.keep_text(url);
        let Some(Talk::Message(mut message)) =
            self.talk.take_if(|talk| matches!(talk, Talk::Message(_)))
        else {
            return;
        };
        if message.slot == slot {
            let title = title
                .map(|title| title.value().into_owned())
                .unwrap_or_default();
            self.keep(ITEM_BYTES + title.len());
            let source = Source {
                start: message.start,
                end: message.points,
                title,
                url: url.value().into_owned(),
            };
            let number_of = number(message.sources.len());
            self.about(
                "response.output_text.annotation.added",
                (message.index, &message.id),
                |json| {
                    json.key("content_index")
                        .number(0)
                        .key("annotation_index")
                        .number(number_of)
                        .key("annotation");
                    source.write(json);
                },
            );
            message.sources.push(source);
        }
        self.talk = Some(Talk::Message(message));
    }

    fn close(&mut self, slot: u32) {
        if matches!(&self.talk, Some(Talk::Reasoning(reasoning)) if reasoning.slot == slot) {
            self.close_talk("completed");
        }
        let Some(at) = self.calls.iter().rposition(|call| call.slot == slot) else {
            return;
        };
        let Some(call) = self.calls.get(at) else {
            return;
        };
        // Incomplete input may have been cut off, even before its first character. Only the end of
        // the answer shows that.
        if call.is_whole() {
            let call = self.calls.remove(at);
            self.finish_call(call);
        }
    }

    fn close_whole_calls(&mut self) {
        for call in std::mem::take(&mut self.calls) {
            if call.is_whole() || call.has_nothing() {
                self.finish_call(call)
            } else {
                self.calls.push(call)
            }
        }
    }

    /// Ends the open text or reasoning item. `status` is that of a message.
    fn close_talk(&mut self, status: &str) {
        match self.talk.take() {
            None => {}
            Some(Talk::Message(message)) => self.close_message(&message, status),
            Some(Talk::Reasoning(reasoning)) => self.close_reasoning(&reasoning),
        }
    }

    fn close_message(&mut self, message: &Message, status: &str) {
        let Message {
            index,
            id,
            text,
            sources,
            ..
        } = message;
        let (at, text) = ((*index, id.as_str()), text.text());
        self.about("response.output_text.done", at, |json| {
            json.key("content_index").number(0).key("text").text(&text);
            json.key("logprobs").open_array().close_array();
        });
        self.about("response.content_part.done", at, |json| {
            json.key("content_index").number(0).key("part");
            item::write_text_part(&text, sources, json);
        });
        let part = |json: &mut Json| item::write_text_part(&text, sources, json);
        self.done(*index, true, |json| {
            item::write_message(id, status, Some(&part), json)
        });
    }

    fn close_reasoning(&mut self, reasoning: &Reasoning) {
        let Reasoning {
            index,
            id,
            text,
            signature,
            ..
        } = reasoning;
        let (at, text) = ((*index, id.as_str()), text.text());
        let shown = Some(&text).filter(|text| self.recall.show_thinking && !text.is_empty());
        if let Some(text) = shown {
            self.about("response.reasoning_summary_text.done", at, |json| {
                json.key("summary_index").number(0).key("text").text(text);
            });
            self.about("response.reasoning_summary_part.done", at, |json| {
                json.key("summary_index").number(0).key("part");
                write_summary(text, json);
            });
        }
        let carrier = self.carrier(&text, signature.as_deref());
        self.keep(carrier.as_ref().map_or(0, String::len));
        self.done(*index, true, |json| {
            item::write_reasoning(id, shown, carrier.as_deref(), json)
        });
    }

    /// Returns the reasoning packed in the form that the vendor that produced it wants back.
    fn carrier(&self, text: &Text<'_>, signature: Option<&str>) -> Option<String> {
        match (signature, self.recall.reasoning_replay) {
            (Some(signature), _) if carrier::is_vendors(signature) => {
                carrier::pack_thinking(text, &Text::made(signature))
            }
            // A responses vendor's item, which is already packed.
            (Some(signature), _)
                if matches!(carrier::unpack(signature), Some(Carried::Item(_))) =>
            {
                Some(signature.to_owned())
            }
            (Some(signature), ReasoningReplay::ReasoningDetails) => {
                carrier::pack_chat_details(&carrier::decode(signature)?)
            }
            (_, ReasoningReplay::ReasoningContent | ReasoningReplay::ReasoningContentInTurn)
                if !text.is_empty() =>
            {
                carrier::pack_chat_text(text)
            }
            _ => None,
        }
    }

    /// Writes the rest of a call that is complete.
    fn finish_call(&mut self, mut call: Call) {
        if call.has_nothing() && call.tool.kind != CallKind::Custom {
            // Agents cannot parse empty arguments.
            let empty = Text::made("{}");
            call.more(&empty);
            if let (Some((index, id)), CallKind::Function) = (call.place.clone(), call.tool.kind) {
                self.about(input_events(false).0, (index, &id), |json| {
                    json.key("delta").text(&empty);
                });
            }
        }
        let said = call.settle();
        let kept = match &said {
            Said::Given => call.given.text(),
            Said::Kept(text) => Text::made(text.as_str()),
        };
        if call.place.is_none() && call.tool.kind != CallKind::Function {
            // The client runs this tool itself and displays nothing before, so the whole item is
            // written at once.
            let (index, id) = self.place(item::words(call.tool.kind).1);
            let write = |status: &str, json: &mut Json| {
                item::write_call((&id, &call.call_id, status), &call.tool, &kept, json);
            };
            self.added(index, |json| write("completed", json));
            self.done(index, true, |json| write("completed", json));
            return;
        }
        let was_added = call.place.is_some();
        if !was_added {
            let (index, id) = self.place(item::words(call.tool.kind).1);
            self.added(index, |json| {
                item::write_call(
                    (&id, &call.call_id, "in_progress"),
                    &call.tool,
                    &Text::made(""),
                    json,
                );
            });
            call.place = Some((index, id));
        }
        let Some((index, id)) = call.place.clone() else {
            return;
        };
        let is_custom = call.tool.kind == CallKind::Custom;
        let (delta, done) = input_events(is_custom);
        if (!was_added || matches!(said, Said::Kept(_))) && !kept.is_empty() {
            self.about(delta, (index, &id), |json| {
                json.key("delta").text(&kept);
            });
        }
        self.about(done, (index, &id), |json| {
            if !is_custom {
                json.key("name").str(&call.tool.name);
            }
            json.key(if is_custom { "input" } else { "arguments" })
                .text(&kept);
        });
        self.done(index, true, |json| {
            item::write_call((&id, &call.call_id, "completed"), &call.tool, &kept, json);
        });
    }

    /// Writes a call that was cut off. Only the last event contains it.
    fn cut_call(&mut self, mut call: Call) {
        if !call.is_added_early() {
            // An incomplete input is nothing that the client could run.
            call.tool.kind = CallKind::Function;
        }
        let (index, id) = match call.place.take() {
            Some(place) => place,
            None => self.place(item::words(call.tool.kind).1),
        };
        let given = call.given.text();
        self.done(index, false, |json| {
            item::write_call((&id, &call.call_id, "incomplete"), &call.tool, &given, json);
        });
    }

    fn end(&mut self) {
        let (is_cut, breaks_off) = (self.heard.is_cut(), self.heard.breaks_off());
        self.close_talk(if is_cut { "incomplete" } else { "completed" });
        let calls = std::mem::take(&mut self.calls);
        let last = calls.len().saturating_sub(1);
        for (at, call) in calls.into_iter().enumerate() {
            // Plain text and empty input do not show that they were cut off. The last call is the
            // one that the model was writing.
            let may_be_cut = if call.is_plain || call.has_nothing() {
                at == last
            } else {
                !call.is_whole()
            };
            if breaks_off && may_be_cut {
                self.cut_call(call)
            } else {
                self.finish_call(call)
            }
        }
        self.refuse();
        self.is_over = true;
        let status = if is_cut {
            Status::Incomplete("max_output_tokens")
        } else {
            Status::Completed
        };
        let kind = if is_cut {
            "response.incomplete"
        } else {
            "response.completed"
        };
        let Course {
            voice,
            heard,
            recall,
            out,
            is_stream,
            ..
        } = self;
        let mut spoken = voice.spoken();
        let usage = |json: &mut Json| heard.write_usage(recall, json);
        if *is_stream {
            spoken.event(kind, out, |json, spoken| {
                json.key("response");
                voice.write(spoken, &status, usage, json);
            });
        } else {
            let mut json = Json::default();
            voice.write(&spoken, &status, usage, &mut json);
            *out = json.into_bytes();
        }
        // The last event contained them, and nothing needs them again.
        spoken.items = Vec::new();
    }

    /// Writes a refusal twice: as text, because agents discard a message with a `refusal` part, and
    /// as a refusal.
    fn refuse(&mut self) {
        let declined = self.heard.take_declined();
        let said = std::mem::take(&mut self.refusal);
        let words = match (said.text().is_blank(), declined) {
            (true, None) => return,
            (false, _) => said.text().into_value().into_owned(),
            (true, Some(words)) => words,
        };
        let words = if words.is_empty() {
            DECLINED.to_owned()
        } else {
            words
        };
        let words = Text::made(words);
        if !self.has_message {
            self.begin_message(u32::MAX);
            self.said(&words);
            self.close_talk("completed");
        }
        let (index, id) = self.place("msg");
        let at = (index, id.as_str());
        self.added(index, |json| {
            item::write_message(&id, "in_progress", None, json)
        });
        self.about("response.content_part.added", at, |json| {
            json.key("content_index").number(0).key("part");
            item::write_refusal_part(&Text::made(""), json);
        });
        self.about("response.refusal.delta", at, |json| {
            json.key("content_index")
                .number(0)
                .key("delta")
                .text(&words);
        });
        self.about("response.refusal.done", at, |json| {
            json.key("content_index")
                .number(0)
                .key("refusal")
                .text(&words);
        });
        self.about("response.content_part.done", at, |json| {
            json.key("content_index").number(0).key("part");
            item::write_refusal_part(&words, json);
        });
        let part = |json: &mut Json| item::write_refusal_part(&words, json);
        self.done(index, true, |json| {
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

fn write_summary(text: &Text<'_>, json: &mut Json) {
    json.open_object()
        .key("type")
        .str("summary_text")
        .key("text")
        .text(text)
        .close_object();
}

fn number(index: usize) -> u64 {
    u64::try_from(index).unwrap_or(u64::MAX)
}
