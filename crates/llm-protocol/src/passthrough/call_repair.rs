//! Repairs the calls in an answer that one chat vendor wrote and another chat client reads.
//!
//! Clients identify a call by its id, join its fragments by the call's index, and concatenate the
//! texts. Some vendors break these rules. The reader of calls assigns a fragment to a call, and
//! this module edits fragments that a client would assign to another one. The following members
//! change; all others are left alone:
//!
//! | member                  | becomes                                                      |
//! |-------------------------|--------------------------------------------------------------|
//! | `index`                 | the call's position (streams)                                |
//! | `id`                    | unique, with the call's first fragment; then empty           |
//! | `name`                  | the piece that the earlier fragments lack                    |
//! | `arguments`, `input`    | the JSON of an object as a string                            |
//! | `function_call`         | the entry of `tool_calls` that it stands for                 |
//! | `finish_reason`         | `tool_calls`, where the vendor ended a turn that has calls   |
//!
//! This file must not join, hold back or reorder fragments.
//!
//! Read next: `chat/read_stream/calls.rs`.

use super::chat::ChatChunk;
use crate::capabilities::identifiers::CallIdAllocator;
use crate::capabilities::response_ids::generate_id;
use crate::chat::read_stream::{
    ChatCallTracker, ChatFinishReason, ChatToolCallDelta, SlotAllocator,
};
use crate::ir::event::{Event, EventSink, ReadResult};
use crate::json::{
    JsonDocument, JsonStr, JsonValue, MAX_RESPONSE_DEPTH, NodeBuffer, Span, edit::JsonEdit,
    edit::json_string, edit::span_of,
};
use std::collections::BTreeMap;

const REWRITTEN_CALLS: &str = "rewritten:tool_calls";
const REWRITTEN_FINISH_REASON: &str = "rewritten:finish_reason";

/// The finish reason of an answer with calls.
const TOOL_CALLS: &str = r#""tool_calls""#;

/// The repair state of an answer's calls.
#[derive(Debug, Default)]
pub(super) struct CallRepair {
    seed: String,
    /// The calls of each choice, by the choice's index.
    choices: BTreeMap<u64, ChoiceCalls>,
    nodes: NodeBuffer,
    has_warned: bool,
}

/// The edits of a chunk or of an answer, and the warnings that belong to them.
#[derive(Debug, Default)]
pub(super) struct RepairEdits {
    pub edits: Vec<JsonEdit<'static>>,
    pub warnings: Vec<&'static str>,
}

#[derive(Debug, Default)]
struct ChoiceCalls {
    tracker: ChatCallTracker,
    slots: SlotAllocator,
    ids: CallIdAllocator,
    /// Number of bytes of each call's name that the client has received.
    name_bytes: Vec<usize>,
}

#[derive(Clone, Copy)]
pub(super) struct AnswerForm {
    /// True if this is the whole answer rather than a chunk of a stream.
    pub is_whole: bool,
    /// True if a chunk has `message` in place of `delta`.
    pub is_misnamed: bool,
}

struct IgnoredEvents;

impl EventSink for IgnoredEvents {
    fn event(&mut self, _: Event<'_>) {}
}

impl CallRepair {
    pub fn new(seed: &str) -> Self {
        CallRepair {
            seed: seed.to_owned(),
            ..CallRepair::default()
        }
    }

    /// Returns the edits of a chunk, or of a whole answer.
    ///
    /// # Errors
    /// Returns an error if the number of calls exceeds the gateway's limit.
    pub fn repair(
        &mut self,
        chunk: &ChatChunk,
        text: &str,
        form: AnswerForm,
    ) -> ReadResult<RepairEdits> {
        let mut repair = RepairEdits::default();
        if chunk.has_calls() {
            repair.edits = self.call_edits(text, form)?;
            if !repair.edits.is_empty() && !std::mem::replace(&mut self.has_warned, true) {
                repair.warnings.push(REWRITTEN_CALLS);
            }
        }
        for (index, at) in chunk.finish_reasons() {
            let calls = self.choices.get(&index.min(127));
            let reason = at.slice(text);
            let ends_turn = matches!(
                ChatFinishReason::parse(reason.trim_matches('"')),
                Some(ChatFinishReason::Stop | ChatFinishReason::Calls)
            );
            let has_calls = calls.is_some_and(|calls| !calls.tracker.is_empty());
            if ends_turn && has_calls && reason != TOOL_CALLS {
                repair.edits.push(JsonEdit::new(at, TOOL_CALLS.to_owned()));
                repair.warnings.push(REWRITTEN_FINISH_REASON);
            }
        }
        Ok(repair)
    }

    fn call_edits(&mut self, text: &str, form: AnswerForm) -> ReadResult<Vec<JsonEdit<'static>>> {
        let mut edits = CallEdits {
            text,
            form,
            edits: Vec::new(),
        };
        let nodes = std::mem::take(&mut self.nodes);
        let Ok(tree) = JsonDocument::parse(text, MAX_RESPONSE_DEPTH, nodes) else {
            return Ok(edits.edits);
        };
        let content = match form.is_whole || form.is_misnamed {
            true => "message",
            false => "delta",
        };
        for choice in tree.root().items_of("choices") {
            let index = choice.get("index").and_then(JsonValue::count).unwrap_or(0);
            if let Some(message) = choice.get(content) {
                let calls = self.choices.entry(index.min(127)).or_default();
                let seed = format!("{}:{index}", self.seed);
                edits.edit_message(message, &seed, calls)?;
            }
        }
        self.nodes = tree.into_nodes();
        Ok(edits.edits)
    }
}

struct CallEdits<'a> {
    text: &'a str,
    form: AnswerForm,
    edits: Vec<JsonEdit<'static>>,
}

impl CallEdits<'_> {
    fn edit_message(
        &mut self,
        message: JsonValue<'_>,
        seed: &str,
        calls: &mut ChoiceCalls,
    ) -> ReadResult {
        let listed = || message.items_of("tool_calls");
        if listed().next().is_some() {
            calls.tracker.begin_chunk();
            for entry in listed() {
                let read = ChatToolCallDelta::parse(entry);
                let call = calls.record(&read, self.form.is_whole, seed)?;
                if !self.form.is_whole {
                    let is_right = entry.get("index").and_then(JsonValue::count) == Some(call.at);
                    self.set_member(entry, "index", is_right, &call.at.to_string());
                }
                let has_id = |id: &str| match &read.id {
                    Some(written) => written.is(id),
                    None => id.is_empty(),
                };
                self.set_member(entry, "id", has_id(&call.id), &json_string(&call.id));
                for callee in ["function", "custom"] {
                    if let Some(callee) = entry.get(callee) {
                        self.edit_callee(callee, &read, &call);
                    }
                }
            }
        } else if calls.tracker.is_only_legacy()
            && let Some((key, function)) = legacy_call(message)
        {
            let read = ChatToolCallDelta::from_function_call(function);
            let call = calls.record(&read, false, seed)?;
            self.edit_callee(function, &read, &call);
            let mut before = String::from("[{");
            if !self.form.is_whole {
                before.push_str(&format!(r#""index":{},"#, call.at));
            }
            if !call.id.is_empty() {
                let id = json_string(&call.id);
                before.push_str(&format!(r#""id":{id},"type":"function","#));
            }
            before.push_str(r#""function":"#);
            let Span { start, end } = span_of(self.text, function.raw());
            let key = span_of(self.text, key.written());
            self.edits.push(JsonEdit::new(key, "tool_calls".to_owned()));
            self.edits.push(JsonEdit::new(Span::at(start), before));
            self.edits
                .push(JsonEdit::new(Span::at(end), "}]".to_owned()));
        }
        Ok(())
    }

    /// Edits the object that holds the name and the arguments.
    fn edit_callee(
        &mut self,
        callee: JsonValue<'_>,
        read: &ChatToolCallDelta<'_>,
        call: &RecordedCall,
    ) {
        if let Some(name) = &read.name {
            let is_right = name.is(&call.name);
            self.set_member(callee, "name", is_right, &json_string(&call.name));
        }
        for name in ["arguments", "input"] {
            if let Some(arguments) = callee.get(name).filter(|value| value.is_object()) {
                let span = span_of(self.text, arguments.raw());
                self.edits
                    .push(JsonEdit::new(span, json_string(arguments.raw())));
            }
        }
    }

    /// Sets a member, unless it has the right value already.
    fn set_member(&mut self, object: JsonValue<'_>, name: &str, is_right: bool, json: &str) {
        if is_right {
            return;
        }
        let written = object
            .members()
            .filter(|(key, _)| key.is(name))
            .map(|(_, value)| value)
            .last();
        match written {
            Some(value) => {
                let span = span_of(self.text, value.raw());
                self.edits.push(JsonEdit::new(span, json.to_owned()));
            }
            None => {
                let start = span_of(self.text, object.raw()).start.saturating_add(1);
                let comma = match object.members().next() {
                    Some(_) => ",",
                    None => "",
                };
                let member = format!("{}:{json}{comma}", json_string(name));
                self.edits.push(JsonEdit::new(Span::at(start), member));
            }
        }
    }
}

/// The members of a call's fragment that the client receives.
struct RecordedCall {
    at: u64,
    /// The id in the first fragment, empty in all later ones.
    id: String,
    /// The next piece of the name.
    name: String,
}

impl ChoiceCalls {
    fn record(
        &mut self,
        read: &ChatToolCallDelta<'_>,
        is_whole: bool,
        seed: &str,
    ) -> ReadResult<RecordedCall> {
        if self.tracker.is_new_call(read, is_whole) {
            self.tracker
                .open_pending(&mut self.slots, &mut IgnoredEvents);
        }
        self.tracker
            .apply_delta(read, is_whole, &[], &mut self.slots, &mut IgnoredEvents)?;
        let (at, name) = self.tracker.last_call().unwrap_or_default();
        let mut id = String::new();
        if at >= self.name_bytes.len() {
            self.name_bytes.push(0);
            let candidate = match &read.id {
                Some(id) => id.value().into_owned(),
                None => {
                    let number = u64::try_from(at).unwrap_or(u64::MAX);
                    generate_id("call_", seed, number)
                }
            };
            id = self.ids.make_unique(candidate);
        }
        let mut more = "";
        if let Some(known) = self.name_bytes.get_mut(at) {
            more = name.get(*known..).unwrap_or_default();
            *known = name.len();
        }
        Ok(RecordedCall {
            at: u64::try_from(at).unwrap_or(u64::MAX),
            id,
            name: more.to_owned(),
        })
    }
}

fn legacy_call<'v>(message: JsonValue<'v>) -> Option<(JsonStr<'v>, JsonValue<'v>)> {
    message
        .members()
        .find(|(key, value)| key.is("function_call") && value.is_object())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use crate::Protocol;
    use crate::passthrough::StreamPassthrough;
    use crate::vendor_response::ResponseStream as _;
    use serde_json::{Value, json};

    /// Passes chunks with these choices on. Returns the client's choices, or `None` if nothing was
    /// changed.
    fn passed(chunks: &[Value]) -> Option<Vec<Value>> {
        let chunk = |choices: &Value| json!({"id": "c", "choices": choices});
        let stream: String = chunks
            .iter()
            .map(|choices| format!("data: {}\n\n", chunk(choices)))
            .collect();
        let mut pass = StreamPassthrough::new(Protocol::Chat, "m", false, 1 << 20)
            .with_call_repair(Some("req_0"));
        let mut out = Vec::new();
        pass.push(stream.as_bytes(), &mut out).unwrap();
        let out = String::from_utf8(out).unwrap();
        let data = out.lines().filter_map(|line| line.strip_prefix("data: "));
        let choices = data.map(|data| {
            let chunk: Value = serde_json::from_str(data).unwrap();
            chunk["choices"].clone()
        });
        (out != stream).then(|| choices.collect())
    }

    fn calls(index: u64, calls: &Value) -> Value {
        json!({"index": index, "delta": {"tool_calls": calls}})
    }

    #[test]
    fn what_a_client_reads_as_the_vendor_meant_it_is_passed_on_byte_for_byte() {
        let call = |index: u64, id: &str| {
            json!({"index": index, "id": id, "type": "function",
                "function": {"name": "f", "arguments": ""}})
        };
        let more =
            |index: u64, text: &str| json!({"index": index, "function": {"arguments": text}});
        let chunks = [
            json!([{"index": 0, "delta": {"role": "assistant", "content": "Hi", "tool_calls": null}}]),
            json!([
                calls(0, &json!([call(0, "a")])),
                calls(1, &json!([call(0, "a")]))
            ]),
            json!([calls(0, &json!([more(0, "{\"q\":"), call(1, "b")]))]),
            // A name in pieces, and an empty id.
            json!([calls(
                1,
                &json!([{"index": 0, "id": "", "function": {"name": "g"}}])
            )]),
            json!([calls(0, &json!([more(1, "{}")]))]),
            json!([calls(0, &json!([more(0, "1}")]))]),
            json!([{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]),
            json!([{"index": 1, "delta": {}, "finish_reason": "length"}]),
            json!([{"index": 2, "delta": {"content": "Hi"}, "finish_reason": "stop"}]),
        ];
        assert_eq!(passed(&chunks), None);
    }

    #[test]
    fn each_choice_has_its_own_calls() {
        let call = |q: u64| json!([{"index": 0, "function": {"name": "f", "arguments": {"q": q}}}]);
        let choices = passed(&[
            json!([calls(0, &call(1)), calls(1, &call(2))]),
            json!([calls(1, &call(3))]),
            json!([{"index": 0, "delta": {}, "finish_reason": "stop"}]),
            json!([{"index": 2, "delta": {"content": "Hi"}, "finish_reason": "stop"}]),
        ])
        .unwrap();
        let call = |choice: &Value| {
            let call = &choice["delta"]["tool_calls"][0];
            let arguments = call["function"]["arguments"].as_str().unwrap().to_owned();
            (call["index"].clone(), arguments, call["id"].clone())
        };
        let [first, second, third] = [
            call(&choices[0][0]),
            call(&choices[0][1]),
            call(&choices[1][0]),
        ];
        assert_eq!((&first.0, first.1.as_str()), (&json!(0), r#"{"q":1}"#));
        assert_eq!((&second.0, second.1.as_str()), (&json!(0), r#"{"q":2}"#));
        assert_eq!((&third.0, third.1.as_str()), (&json!(1), r#"{"q":3}"#));
        let ids = [&first.2, &second.2, &third.2];
        assert!(
            ids.iter()
                .all(|id| id.as_str().unwrap().starts_with("call_"))
        );
        assert!(first.2 != second.2 && second.2 != third.2);
        assert_eq!(choices[2][0]["finish_reason"], "tool_calls");
        assert_eq!(choices[3][0]["finish_reason"], "stop");
    }

    #[test]
    fn a_name_that_is_repeated_or_grows_is_joined_to_itself() {
        let name = |name: &str| {
            json!([calls(
                0,
                &json!([{"index": 0, "id": "a", "function": {"name": name}}])
            )])
        };
        let choices = passed(&[name("get"), name("get"), name("get_weather")]).unwrap();
        let joined: String = choices
            .iter()
            .map(|chunk| {
                chunk[0]["delta"]["tool_calls"][0]["function"]["name"]
                    .as_str()
                    .unwrap()
            })
            .collect();
        assert_eq!(joined, "get_weather");
        let ids: String = choices
            .iter()
            .map(|chunk| chunk[0]["delta"]["tool_calls"][0]["id"].as_str().unwrap())
            .collect();
        assert_eq!(ids, "a");
    }
}
