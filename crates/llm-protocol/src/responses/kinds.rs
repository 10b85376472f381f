//! Contains the tables of outcomes in translation for everything that this protocol distinguishes
//! by its `type`: items and parts of a request, tools, items of an answer, and events of a stream.
//!
//! These tables decide nothing: the code decides, and the tests below check it against the tables.
//! A type without a row is new: the gateway drops such an item with a warning, refuses such a part
//! or tool, and skips such an item of an answer.
//!
//! Read next: `read_request/items.rs`, `read_request/tools.rs`, `read_stream.rs`.

use crate::capabilities::FieldMapping::Map;
use crate::fields::rows::{OutcomeRow, parse_rows};
use crate::table_text::count_lines;

const EVENT_ROWS: &str = include_str!("kinds/event.txt");
const INPUT_ITEM_ROWS: &str = include_str!("kinds/input_item.txt");
const OUTPUT_ITEM_ROWS: &str = include_str!("kinds/output_item.txt");
const TOOL_ROWS: &str = include_str!("kinds/tool.txt");

/// The tables, each under the name of its category.
pub const KINDS: [(&str, &[OutcomeRow]); 5] = [
    ("event", EVENTS),
    ("input_item", INPUT_ITEMS),
    ("input_part", INPUT_PARTS),
    ("output_item", OUTPUT_ITEMS),
    ("tool", TOOLS),
];

/// Outcomes of input items. Items that only a vendor can have executed become text. An item
/// reference is refused, because the gateway stores no items.
pub const INPUT_ITEMS: &[OutcomeRow] =
    &parse_rows::<{ count_lines(INPUT_ITEM_ROWS) }>(INPUT_ITEM_ROWS);

/// Outcomes of the parts of a user message.
pub const INPUT_PARTS: &[OutcomeRow] = &[
    ("input_file", Map),
    ("input_image", Map),
    ("input_text", Map),
];

/// Outcomes of tools. Tools that a client runs become functions. Tools that a vendor would run are
/// refused, except web search, which agents offer with every request.
pub const TOOLS: &[OutcomeRow] = &parse_rows::<{ count_lines(TOOL_ROWS) }>(TOOL_ROWS);

/// Outcomes of the items of a vendor's answer, for clients of the other APIs. The model never calls
/// a tool that such clients cannot offer.
pub const OUTPUT_ITEMS: &[OutcomeRow] =
    &parse_rows::<{ count_lines(OUTPUT_ITEM_ROWS) }>(OUTPUT_ITEM_ROWS);

/// Outcomes of a vendor's stream events, for clients of the other APIs. An event is mapped if it is
/// the first to carry some information.
pub const EVENTS: &[OutcomeRow] = &parse_rows::<{ count_lines(EVENT_ROWS) }>(EVENT_ROWS);

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::*;
    use crate::Protocol;
    use crate::capabilities::FieldMapping::{self, Drop, Refuse, Warn};
    use crate::capabilities::{MessagesModel, ModelCapabilities, ThinkingType};
    use crate::ir::event::{AnswerReader as _, Event, EventSink, OutputPart};
    use crate::json::{JsonStr, NodeBuffer};
    use crate::reasoning_token;
    use crate::responses::read_stream::ResponsesStreamReader;
    use crate::translate::{self, TranslationRequest};
    use serde_json::{Value, json};

    fn translate_request(
        input: &[Value],
        tools: &[Value],
    ) -> Result<(String, Vec<String>), String> {
        let accepts = ModelCapabilities::Messages(MessagesModel {
            thinking_types: vec![ThinkingType::Adaptive, ThinkingType::Disabled],
            effort_levels: crate::ir::Effort::ALL.to_vec(),
            ..MessagesModel::default()
        });
        let body = json!({"model": "public-model", "input": input, "tools": tools}).to_string();
        let input =
            TranslationRequest::in_test(Protocol::Responses, body.as_bytes(), 64_000, &accepts);
        let translated =
            translate::translate_request(&input, false).map_err(|failure| failure.message)?;
        Ok((
            String::from_utf8(translated.body.to_vec()).unwrap(),
            translated.warnings,
        ))
    }

    fn user(content: Value) -> Value {
        json!({"type": "message", "role": "user", "content": content})
    }

    /// Checks that a request with this type has the outcome of its row.
    fn holds(
        kind: &str,
        outcome: FieldMapping,
        (input, tools): (&[Value], &[Value]),
        bare: (&[Value], &[Value]),
    ) {
        let without = translate_request(bare.0, bare.1).unwrap();
        match (outcome, translate_request(input, tools)) {
            (Refuse, translated) => assert!(translated.is_err(), "{kind}: {translated:?}"),
            (Warn, translated) => assert!(!translated.unwrap().1.is_empty(), "{kind}"),
            (Drop, translated) => assert_eq!(translated.unwrap(), without, "{kind}"),
            (Map, translated) => {
                let (body, warnings) = translated.unwrap();
                assert_eq!(warnings, [""; 0], "{kind}");
                assert_ne!(body, without.0, "{kind}");
            }
        }
    }

    /// Items that together form a valid history with an item of this type.
    fn past(kind: &str) -> Vec<Value> {
        let pair = |call: Value, output: Value| vec![call, output];
        let of = kind.trim_end_matches("_output").trim_end_matches("_call");
        match of {
            "additional_tools" => {
                vec![
                    json!({"type": kind, "role": "developer", "tools": [{"type": "function", "name": "g"}]}),
                ]
            }
            "configuration_update" => vec![json!({"type": kind, "reasoning": {"effort": "low"}})],
            "message" => vec![user(json!("more"))],
            "reasoning" => {
                let sealed = reasoning_token::pack_thinking(
                    &JsonStr::from_value("Hm."),
                    &JsonStr::from_value("EqQB"),
                );
                vec![
                    json!({"type": kind, "summary": [], "encrypted_content": sealed}),
                    json!({"type": "message", "role": "assistant", "content": "So."}),
                    user(json!("And?")),
                ]
            }
            "function" => pair(
                json!({"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}),
                json!({"type": "function_call_output", "call_id": "c", "output": "x"}),
            ),
            "custom_tool" => pair(
                json!({"type": "custom_tool_call", "call_id": "c", "name": "f", "input": "x"}),
                json!({"type": "custom_tool_call_output", "call_id": "c", "output": "x"}),
            ),
            "tool_search" => pair(
                json!({"type": "tool_search_call", "execution": "client", "call_id": "c", "arguments": {}}),
                json!({"type": "tool_search_output", "execution": "client", "call_id": "c", "tools": []}),
            ),
            "apply_patch" => pair(
                json!({"type": "apply_patch_call", "call_id": "c", "operation": {"type": "delete_file", "path": "a"}}),
                json!({"type": "apply_patch_call_output", "call_id": "c", "status": "completed", "output": "x"}),
            ),
            "shell" | "local_shell" => pair(
                json!({"type": format!("{of}_call"), "call_id": "c", "action": {"commands": ["ls"], "command": ["ls"]}}),
                json!({"type": format!("{of}_call_output"), "call_id": "c", "output": "x"}),
            ),
            "item_reference" => vec![json!({"type": kind, "id": "msg_1"})],
            _ => vec![
                json!({"type": kind, "name": "n", "action": {"type": "x"}, "arguments": "{}", "output": "x"}),
            ],
        }
    }

    #[test]
    fn items_parts_and_tools_come_out_as_their_rows_say() {
        let hi = user(json!("Hi"));
        let function = json!({"type": "function", "name": "f"});
        let bare = (&[hi.clone()][..], &[function.clone()][..]);
        for (kind, outcome) in INPUT_ITEMS {
            let input = [vec![hi.clone()], past(kind)].concat();
            holds(kind, *outcome, (&input, bare.1), bare);
        }
        for (kind, outcome) in INPUT_PARTS {
            let part = json!({"type": kind, "text": "x", "image_url": "https://a/b.png", "file_url": "https://a/b.pdf"});
            holds(
                kind,
                *outcome,
                (&[hi.clone(), user(json!([part]))], bare.1),
                bare,
            );
        }
        for (kind, outcome) in TOOLS {
            let member = json!({"type": "function", "name": "g"});
            let tool = json!({"type": kind, "name": if *kind == "function" { "g" } else { "n" }, "execution": "client", "tools": [member]});
            holds(kind, *outcome, (bare.0, &[function.clone(), tool]), bare);
        }
    }

    #[derive(Default)]
    struct EventCounter(usize);

    impl EventSink for EventCounter {
        fn event(&mut self, event: Event<'_>) {
            let is_nothing = matches!(
                event,
                Event::Open {
                    piece: OutputPart::Foreign { .. },
                    ..
                } | Event::Close { .. }
            );
            self.0 += usize::from(!is_nothing);
        }
    }

    fn item(kind: &str) -> Value {
        json!({"type": kind, "id": "x_1", "status": "completed", "content": [{"type": "output_text", "text": "x"}],
            "summary": [{"type": "summary_text", "text": "x"}], "encrypted_content": "gAAAA", "name": "f", "call_id": "c",
            "arguments": "{}", "input": "x", "output": "x", "action": {"type": "x"}})
    }

    /// Returns whether this event emits anything, after other events that begin a text at index 0
    /// and a call at index 1 (unless `is_first`).
    fn says(event: &Value, is_first: bool) -> bool {
        let (mut reader, mut counter) = (ResponsesStreamReader::default(), EventCounter::default());
        let mut call = item("function_call");
        call["arguments"] = "".into();
        let before = [
            json!({"type": "response.created", "response": {"id": "resp_1"}}),
            json!({"type": "response.output_text.delta", "output_index": 0, "delta": "x"}),
            json!({"type": "response.output_item.added", "output_index": 1, "item": call}),
        ];
        for event in before.iter().filter(|_| !is_first) {
            reader
                .event(
                    b"",
                    event.to_string().as_bytes(),
                    NodeBuffer::new(),
                    &mut counter,
                )
                .1
                .unwrap();
        }
        let event_count = counter.0;
        let (_, outcome) = reader.event(
            b"",
            event.to_string().as_bytes(),
            NodeBuffer::new(),
            &mut counter,
        );
        outcome.is_err() || counter.0 > event_count
    }

    #[test]
    fn events_and_items_of_an_answer_say_something_or_nothing_as_their_rows_say() {
        for (kind, outcome) in OUTPUT_ITEMS {
            let event =
                json!({"type": "response.output_item.done", "output_index": 5, "item": item(kind)});
            assert_eq!(says(&event, false), *outcome == Map, "{kind}");
        }
        for (kind, outcome) in EVENTS {
            let is_of_call = kind.contains("function_call") || kind.contains("custom_tool");
            let index = if kind.contains("annotation") {
                0
            } else if is_of_call {
                1
            } else {
                5
            };
            let event = json!({"type": kind, "output_index": index, "summary_index": 0, "content_index": 0, "delta": "x",
                "text": "x", "refusal": "x", "arguments": "{}", "input": "x", "part": {"type": "summary_text", "text": "x"},
                "annotation": {"type": "url_citation", "url": "https://a"}, "item": item("function_call"), "code": "c",
                "message": "m", "response": {"id": "resp_1", "output": [], "error": {"code": "c", "message": "m"}}});
            let is_first = matches!(
                *kind,
                "response.created" | "response.in_progress" | "response.queued"
            );
            assert_eq!(says(&event, is_first), *outcome == Map, "{kind}");
        }
    }

    #[test]
    fn the_rows_are_sorted() {
        for (of, rows) in KINDS {
            assert!(rows.windows(2).all(|pair| pair[0].0 < pair[1].0), "{of}");
        }
    }
}
