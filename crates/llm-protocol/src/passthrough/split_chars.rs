//! Joins surrogate pairs that are split over two events of a passthrough stream: the first half
//! moves from the end of one text to the beginning of the next.
//!
//! This file must parse only events that contain half a pair, and must change only the texts of
//! deltas.
//!
//! Read next: `surrogates.rs`.

use crate::Protocol;
use crate::json::{
    JsonDocument, JsonValue, MAX_RESPONSE_DEPTH, NodeBuffer, Span, edit::JsonEdit, edit::span_of,
};
use crate::surrogates::{PendingSurrogates, trailing_high_surrogate};
use memchr::memmem;

/// First halves that wait for the rest of their text, by the text's path in its event.
#[derive(Debug, Default)]
pub(super) struct SplitCharJoiner(PendingSurrogates<String>);

impl SplitCharJoiner {
    /// Returns the edits of an event whose JSON is `data`. Most events have none.
    pub fn edits(&mut self, protocol: Protocol, data: &str) -> Vec<JsonEdit<'static>> {
        let has_half = || {
            [r"\ud", r"\uD"]
                .iter()
                .any(|mark| memmem::find(data.as_bytes(), mark.as_bytes()).is_some())
        };
        if self.0.is_empty() && !has_half() {
            return Vec::new();
        }
        let Ok(tree) = JsonDocument::parse(data, MAX_RESPONSE_DEPTH, NodeBuffer::new()) else {
            return Vec::new();
        };
        let root = tree.root();
        let mut walk = SplitCharWalk {
            data,
            halves: &mut self.0,
            edits: Vec::new(),
        };
        match protocol {
            Protocol::Chat => {
                for (at, choice) in root.items_of("choices").enumerate() {
                    let index = index_or(choice, at);
                    walk.visit_value(choice.get("delta"), format!("{index}"));
                    // Of the completions API.
                    walk.visit_value(choice.get("text"), format!("{index}.text"));
                }
            }
            Protocol::Messages => {
                walk.visit_value(root.get("delta"), format!("{}", index_or(root, 0)))
            }
            Protocol::Responses => {
                let index = root
                    .get("output_index")
                    .and_then(JsonValue::count)
                    .unwrap_or(0);
                walk.visit_value(root.get("delta"), format!("{index}"));
            }
        }
        walk.edits
    }
}

/// Returns the number of a choice, a block or a call, which is its `index` or, without one, its
/// position.
fn index_or(value: JsonValue<'_>, at: usize) -> u64 {
    value
        .get("index")
        .and_then(JsonValue::count)
        .unwrap_or(at as u64)
}

struct SplitCharWalk<'w> {
    data: &'w str,
    halves: &'w mut PendingSurrogates<String>,
    edits: Vec<JsonEdit<'static>>,
}

impl SplitCharWalk<'_> {
    fn visit_value(&mut self, value: Option<JsonValue<'_>>, path: String) {
        let Some(value) = value else { return };
        if value.is_string() {
            return self.visit_text(value, path);
        }
        for (key, member) in value.members() {
            self.visit_value(Some(member), format!("{path}.{}", key.value()));
        }
        for (at, item) in value.items().enumerate() {
            self.visit_value(Some(item), format!("{path}.{}", index_or(item, at)));
        }
    }

    fn visit_text(&mut self, text: JsonValue<'_>, path: String) {
        let quoted = text.raw();
        let start = span_of(self.data, quoted).start.saturating_add(1);
        let inside = quoted
            .get(1..quoted.len().saturating_sub(1))
            .unwrap_or_default();
        if inside.is_empty() {
            // The vendor repeats this member in every chunk.
            return;
        }
        if let Some(half) = self.halves.take(&path) {
            self.edits.push(JsonEdit::new(Span::at(start), half));
        }
        if let Some(at) = trailing_high_surrogate(inside) {
            self.halves
                .insert(path, inside.get(at..).unwrap_or_default());
            let span = Span {
                start: start.saturating_add(at),
                end: start.saturating_add(inside.len()),
            };
            self.edits.push(JsonEdit::new(span, String::new()));
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::StreamPassthrough;
    use super::*;
    use crate::vendor_response::ResponseStream as _;
    use serde_json::Value as Any;

    /// Returns the texts at `pointer` of the events that a client reads. Each event must be JSON
    /// that every parser accepts.
    fn texts(protocol: Protocol, events: &[&str], pointer: &str) -> Vec<String> {
        let (mut pass, mut out) = (
            StreamPassthrough::new(protocol, "m", false, 1 << 20),
            Vec::new(),
        );
        for event in events {
            pass.push(format!("data: {event}\n\n").as_bytes(), &mut out)
                .unwrap();
        }
        let text = String::from_utf8(out).unwrap();
        let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
        let read = data.map(|data| {
            serde_json::from_str::<Any>(data).unwrap_or_else(|error| panic!("{error}: {data}"))
        });
        read.filter_map(|event| {
            event
                .pointer(pointer)
                .and_then(Any::as_str)
                .map(str::to_owned)
        })
        .collect()
    }

    #[test]
    fn a_letter_that_is_split_over_two_events_arrives_whole() {
        let chat = |text: &str| {
            format!(r#"{{"model":"v","choices":[{{"index":0,"delta":{{"content":"{text}"}}}}]}}"#)
        };
        let (first, between, second) = (chat(r"a\ud83d"), chat(""), chat(r"\ude00b"));
        let merged = texts(
            Protocol::Chat,
            &[&first, &between, &second],
            "/choices/0/delta/content",
        );
        assert_eq!(merged, ["a", "", "😀b"]);
        let call = |text: &str| {
            let call = format!(r#"{{"index":1,"function":{{"arguments":"{text}"}}}}"#);
            format!(r#"{{"choices":[{{"index":0,"delta":{{"tool_calls":[{call}]}}}}]}}"#)
        };
        let pointer = "/choices/0/delta/tool_calls/0/function/arguments";
        let merged = texts(
            Protocol::Chat,
            &[&call(r#"{\"a\":\"\uD83D"#), &call(r#"\uDE00\"}"#)],
            pointer,
        );
        assert_eq!(merged.concat(), "{\"a\":\"😀\"}");

        let block = |index: u64, text: &str| {
            let delta = format!(r#"{{"type":"text_delta","text":"{text}"}}"#);
            format!(r#"{{"type":"content_block_delta","index":{index},"delta":{delta}}}"#)
        };
        let events = [
            block(0, r"\ud83d"),
            block(1, "x"),
            block(0, r"\ude00\ud83d"),
            block(0, r"\ude01"),
        ];
        let merged = texts(
            Protocol::Messages,
            &events.each_ref().map(String::as_str),
            "/delta/text",
        );
        assert_eq!(merged, ["", "x", "😀", "😁"]);

        let item = |text: &str| {
            format!(r#"{{"type":"response.output_text.delta","output_index":2,"delta":"{text}"}}"#)
        };
        let merged = texts(
            Protocol::Responses,
            &[&item(r"\ud83d"), &item(r"\ude00")],
            "/delta",
        );
        assert_eq!(merged, ["", "😀"]);
    }

    #[test]
    fn an_event_without_half_a_letter_is_left_alone() {
        let mut letters = SplitCharJoiner::default();
        for data in [
            r#"{"choices":[{"delta":{"content":"\ud83d\ude00"}}]}"#,
            r#"{"choices":[{"delta":{"content":"\\ud83d"}}]}"#,
            r#"{"choices":[{"delta":{"content":"\u00e9 \ude00"}}]}"#,
            "no JSON \\ud83d",
        ] {
            assert!(letters.edits(Protocol::Chat, data).is_empty(), "{data}");
        }
    }
}
