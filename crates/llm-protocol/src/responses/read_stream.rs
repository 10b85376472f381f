//! Reads a responses vendor's answer, streamed or as one body, into events.
//!
//! This module must not hold back text: it emits the content of an event at once, and borrows it
//! from the event. The reader identifies items by their index in the output, because intermediate
//! servers rewrite ids; without an index it uses other properties. It does not emit text again that
//! arrived in deltas and is repeated whole. Text that never arrived in deltas is emitted when it
//! arrives whole, at the latest with the final response. Unknown events and items are skipped, and
//! members of a wrong type count as absent.
//!
//! Read next: `responses/read_stream/items.rs` (the content of items), then
//! `messages/write_stream.rs`.

use crate::Protocol;
use crate::counters;
use crate::ir::event::{
    AnswerReader, Event, EventSink, ReadResult, ResponseStart, StopReason, UpstreamError,
};
use crate::json::{JsonScanner, JsonStr, JsonStrBuf, JsonValue, MAX_RESPONSE_DEPTH};
use crate::usage::{ChatCounters, PerTool, ServerTool, ServiceTier, VendorCounters};

mod item_index;
mod items;

use item_index::ResponsesItemIndex;
use items::ResponsesItemTracker;

/// Maximum number of bytes of a refusal's text that the stop reason repeats.
const MAX_REFUSAL_BYTES: usize = 64 * 1024;

/// State of the answer after the events read so far.
#[derive(Debug, Default)]
pub struct ResponsesStreamReader {
    started: bool,
    items: ResponsesItemTracker,
    places: ResponsesItemIndex,
    refusal: JsonStrBuf,
}

impl AnswerReader for ResponsesStreamReader {
    fn protocol(&self) -> Protocol {
        Protocol::Responses
    }

    fn read_event(
        &mut self,
        name: &[u8],
        event: JsonValue<'_>,
        to: &mut dyn EventSink,
    ) -> ReadResult {
        let kind = event.string_of("type");
        let kind = kind
            .as_deref()
            .or(std::str::from_utf8(name).ok())
            .unwrap_or_default();
        if kind == "error" || name == b"error" {
            return Err(UpstreamError::from_error_body(event.raw().as_bytes()));
        }
        let Some(kind) = kind.strip_prefix("response.") else {
            return Ok(());
        };
        match kind {
            "created" | "queued" | "in_progress" => self.start(event.get("response"), to),
            "completed" | "incomplete" | "failed" => {
                let response = event
                    .get("response")
                    .filter(|response| response.is_object());
                if kind == "failed" || response.is_some_and(has_error) {
                    return Err(UpstreamError::from_error_body(
                        response.unwrap_or(event).raw().as_bytes(),
                    ));
                }
                // An event without a response is itself the end of the answer.
                return self.end(response, kind, to);
            }
            _ => self.read_item_event(kind, event, to)?,
        }
        Ok(())
    }

    /// Ignores the marker, which some servers always send.
    fn read_end_marker(&mut self, _to: &mut dyn EventSink) -> Option<ReadResult> {
        Some(Ok(()))
    }

    /// Does nothing, because the event with the stop reason is the last event.
    fn finish(&mut self, _to: &mut dyn EventSink) {}
}

impl ResponsesStreamReader {
    fn start(&mut self, response: Option<JsonValue<'_>>, to: &mut dyn EventSink) {
        if self.started {
            return;
        }
        self.started = true;
        let text = |name| {
            response
                .and_then(|response| response.get(name))
                .and_then(JsonValue::text)
        };
        let tier = text("service_tier").filter(|tier| !tier.is("auto"));
        to.event(Event::Start(ResponseStart {
            id: text("id"),
            tier,
        }));
    }

    fn read_item_event(
        &mut self,
        kind: &str,
        event: JsonValue<'_>,
        to: &mut dyn EventSink,
    ) -> ReadResult {
        let text = |name| event.filled_text(name);
        let Some(index) = self.places.index_of_event(kind, event)? else {
            return Ok(());
        };
        let part = event
            .get("summary_index")
            .or(event.get("content_index"))
            .and_then(JsonValue::count)
            .unwrap_or(0);
        self.start(None, to);
        match kind {
            "output_item.added" => self.items.begin_item(index, event.get("item"), to)?,
            "output_item.done" => {
                let item = event.get("item").unwrap_or(event);
                self.record_item_refusal(self.items.has_refusal(index), item);
                self.items.finish_item(index, item, to)?;
            }
            "output_text.delta" => self.items.text(index, text("delta"), to)?,
            "output_text.done" => self.items.complete_text(index, text("text"), to)?,
            "refusal.delta" => {
                self.record_refusal(text("delta"));
                self.items.refusal(index, text("delta"), to)?;
            }
            "refusal.done" if !self.items.has_refusal(index) => {
                self.record_refusal(text("refusal"));
                self.items.refusal(index, text("refusal"), to)?;
            }
            "reasoning_summary_text.delta" | "reasoning_text.delta" => {
                self.items.thinking_delta(
                    index,
                    (kind == "reasoning_text.delta", part),
                    text("delta"),
                    to,
                )?;
            }
            "function_call_arguments.delta" | "custom_tool_call_input.delta" => {
                self.items.arguments(index, text("delta"), to);
            }
            "function_call_arguments.done" => {
                self.items.complete_arguments(index, text("arguments"), to)
            }
            "custom_tool_call_input.done" => {
                self.items.complete_arguments(index, text("input"), to)
            }
            "output_text.annotation.added" => {
                self.items.citation(index, event.get("annotation"), to)
            }
            _ => {}
        }
        Ok(())
    }

    /// Buffers the text of a refusal, which the stop event repeats as the reason.
    fn record_refusal(&mut self, text: Option<JsonStr<'_>>) {
        if self.refusal.len() <= MAX_REFUSAL_BYTES {
            text.iter().for_each(|text| self.refusal.push(text));
        }
    }

    fn record_item_refusal(&mut self, was_emitted: bool, item: JsonValue<'_>) {
        let parts = item.items_of("content").filter(|_| !was_emitted);
        for part in parts.filter(|part| part.member_is("type", "refusal")) {
            self.record_refusal(part.text_of("refusal"));
        }
    }

    /// Reads the final response of a stream, or a whole answer. `kind` is the suffix of the event's
    /// name, which equals the status of the response.
    fn end(
        &mut self,
        response: Option<JsonValue<'_>>,
        kind: &str,
        to: &mut dyn EventSink,
    ) -> ReadResult {
        self.start(response, to);
        let member = |name| response.and_then(|response| response.get(name));
        for (place, item) in (0_u64..).zip(member("output").into_iter().flat_map(JsonValue::items))
        {
            let index = self.places.index_of_final_item(item, place)?;
            if !self.items.is_done(index) {
                self.record_item_refusal(self.items.has_refusal(index), item);
                self.items.finish_item(index, item, to)?;
            }
        }
        if let Some(counters) = response.and_then(read_usage).filter(ChatCounters::is_usage) {
            to.event(Event::Counters {
                counters: &VendorCounters::Chat(counters),
                is_final: true,
            });
        }
        let reason = member("incomplete_details").and_then(|details| details.get("reason"));
        let reason = reason
            .and_then(JsonValue::string)
            .filter(|_| kind == "incomplete");
        let stop = match reason.as_deref() {
            Some("max_output_tokens") => StopReason::MaxTokens,
            _ if !self.refusal.is_empty() => StopReason::Refusal {
                is_billed: true,
                explanation: Some(self.refusal.text()),
            },
            Some("content_filter") => StopReason::Refusal {
                is_billed: true,
                explanation: None,
            },
            // The response is incomplete for another reason, or stopped inside a call.
            _ if kind == "incomplete" || self.items.have_cut_call() => StopReason::MaxTokens,
            None if self.items.have_calls() => StopReason::ToolUse,
            _ => StopReason::EndTurn,
        };
        to.event(Event::Stop(stop));
        to.event(Event::End);
        Ok(())
    }
}

/// Reads a whole answer into the same events as a stream.
///
/// # Errors
/// Returns an error if the body is not a response, or if it reports a failure.
pub fn read_body(body: JsonValue<'_>, to: &mut dyn EventSink) -> ReadResult {
    if !body.is_object() {
        return Err(UpstreamError::NotJson);
    }
    let status = body.string_of("status");
    let output = body.get("output").filter(|output| output.is_array());
    match (status.as_deref(), output) {
        _ if has_error(body) => Err(UpstreamError::from_error_body(body.raw().as_bytes())),
        (Some("failed" | "cancelled"), _) | (_, None) if body.get("error").is_some() => {
            Err(UpstreamError::from_error_body(body.raw().as_bytes()))
        }
        (Some(status @ ("completed" | "incomplete")), Some(_)) => {
            ResponsesStreamReader::default().end(Some(body), status, to)
        }
        // The output is missing, or the response is not finished or has no status.
        _ => Err(UpstreamError::Empty),
    }
}

/// Returns whether the response has an error object, which makes it a failure regardless of its
/// status.
fn has_error(response: JsonValue<'_>) -> bool {
    response.get("error").is_some_and(|error| !error.is_null())
}

/// Reads the usage of the response, its service tier, and the number of searches that the vendor
/// ran.
fn read_usage(response: JsonValue<'_>) -> Option<ChatCounters> {
    let usage = response.get("usage")?;
    let counters =
        counters::read_responses_usage(&mut JsonScanner::new(usage.raw(), MAX_RESPONSE_DEPTH))
            .ok()??;
    let searches = response.find(["tool_usage", "web_search"]);
    let reported = searches
        .and_then(|search| search.get("num_requests"))
        .and_then(JsonValue::count);
    let reported = PerTool {
        web_search: reported,
        ..PerTool::default()
    };
    let mut calls = PerTool::default();
    for item in response.items_of("output") {
        let tool = item
            .string_of("type")
            .and_then(|kind| ServerTool::from_call_item(&kind));
        let action = item.find(["action", "type"]);
        // A search that only opened a page, or searched within one, is not billed.
        let is_billed =
            tool != Some(ServerTool::WebSearch) || action.is_none_or(|action| action.is("search"));
        if let Some(tool) = tool.filter(|_| is_billed) {
            calls.add(tool);
        }
    }
    let tier = response.string_of("service_tier");
    let service_tier = tier
        .filter(|tier| tier != "auto")
        .map(|tier| ServiceTier::from_wire(&tier));
    Some(ChatCounters {
        tool_uses: reported.or(&calls),
        service_tier,
        ..counters
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::event::OutputPart;
    use crate::json::{JsonDocument, NodeBuffer};
    use serde_json::{Value as Any, json};

    /// Records the emitted events in short form.
    #[derive(Default)]
    struct EventLog(Vec<String>);

    impl EventSink for EventLog {
        fn event(&mut self, event: Event<'_>) {
            self.0.push(match event {
                Event::Open {
                    slot,
                    piece: OutputPart::Call { name, .. },
                } => format!("{slot} call {}", name.value()),
                Event::Open {
                    slot,
                    piece: OutputPart::Foreign { kind },
                } => format!("{slot} {}", kind.value()),
                Event::Open {
                    slot,
                    piece: OutputPart::Thinking,
                } => format!("{slot} thinking"),
                Event::Open { slot, .. } => format!("{slot} text"),
                Event::Delta { slot, text } => format!("{slot} +{}", text.value()),
                Event::Signature { slot, .. } => format!("{slot} signed"),
                Event::Close { slot } => format!("{slot} closed"),
                Event::Stop(stop) => format!("{stop:?}"),
                Event::Counters {
                    counters: VendorCounters::Chat(counters),
                    ..
                } => {
                    format!(
                        "{}/{}",
                        counters.prompt.unwrap(),
                        counters.completion.unwrap()
                    )
                }
                Event::Counters { .. } | Event::Usage { .. } => return,
                Event::Start(_) | Event::Citation { .. } | Event::Warning(_) | Event::End => return,
            });
        }
    }

    fn read(events: &[Any]) -> (Vec<String>, Result<(), UpstreamError>) {
        let (mut reader, mut log) = (ResponsesStreamReader::default(), EventLog::default());
        for event in events {
            let (_, outcome) = reader.event(
                b"",
                event.to_string().as_bytes(),
                NodeBuffer::new(),
                &mut log,
            );
            if outcome.is_err() {
                return (log.0, outcome);
            }
        }
        (log.0, Ok(()))
    }

    fn delta(kind: &str, index: u64, part: u64, text: &str) -> Any {
        json!({"type": format!("response.{kind}.delta"), "output_index": index, "summary_index": part, "delta": text})
    }

    #[test]
    fn parts_of_a_thought_are_told_with_what_was_between_them() {
        let done = json!({"type": "response.output_item.done", "output_index": 0, "item": {
            "type": "reasoning", "id": "rs_1", "encrypted_content": "gAAAA",
            "summary": [{"text": ""}, {"text": "a"}, {"text": ""}, {"text": "b"}, {"text": ""}]
        }});
        let kind = "reasoning_summary_text";
        let gaps = [
            "0 thinking",
            "0 +\n\n",
            "0 +a",
            "0 +\n\n",
            "0 +\n\n",
            "0 +b",
            "0 +\n\n",
            "0 signed",
            "0 closed",
        ];
        let (log, _) = read(&[
            delta(kind, 0, 1, "a"),
            delta(kind, 0, 3, "b"),
            done.clone(),
            done.clone(),
        ]);
        assert_eq!(log, gaps);
        assert_eq!(read(&[done]).0, gaps, "the same without pieces");
        let (log, _) = read(&[
            delta(kind, 0, 0, "a"),
            delta("reasoning_text", 0, 0, "the same again"),
        ]);
        assert_eq!(log, ["0 thinking", "0 +a"]);
    }

    #[test]
    fn items_are_known_by_their_place_and_told_once() {
        let call = |arguments: &str| json!({"type": "function_call", "call_id": "c", "name": "f", "arguments": arguments});
        let at = |kind: &str, item: Any| json!({"type": format!("response.output_item.{kind}"), "output_index": 3, "item": item});
        let end = json!({"type": "response.completed", "response": {
            "output": [{"type": "message", "content": [{"type": "output_text", "text": "x"}]}],
            "usage": {"input_tokens": 5, "output_tokens": 7}
        }});
        let (log, _) = read(&[
            at("added", call("")),
            delta("function_call_arguments", 3, 0, "{}"),
            json!({"type": "response.function_call_arguments.done", "output_index": 3, "arguments": "{}"}),
            at("done", call("{}")),
            json!({"type": "response.web_search_call.searching", "output_index": 4}),
            json!({"type": "response.something_new", "output_index": 5, "delta": "?"}),
            json!({"type": "keepalive"}),
            end,
        ]);
        assert_eq!(
            log,
            [
                "0 call f", "0 +{}", "0 closed", "2 text", "2 +x", "2 closed", "5/7", "ToolUse"
            ]
        );
    }

    fn item_event(kind: &str, item: &Any) -> Any {
        json!({"type": format!("response.output_item.{kind}"), "item": item})
    }

    fn placeless_delta(kind: &str, id: &str, text: &str) -> Any {
        json!({"type": format!("response.{kind}.delta"), "item_id": id, "delta": text})
    }

    fn message(text: &str) -> Any {
        let content = if text.is_empty() {
            json!([])
        } else {
            json!([{"type": "output_text", "text": text}])
        };
        json!({"type": "message", "id": "msg_1", "content": content})
    }

    fn call(id: &str, arguments: &str) -> Any {
        json!({"type": "function_call", "call_id": id, "name": id, "arguments": arguments})
    }

    fn thought() -> Any {
        json!({"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]})
    }

    fn end_of_all() -> Any {
        let output = [thought(), message("ab"), call("c1", "{}"), call("c2", "{}")];
        let usage = json!({"input_tokens": 5, "output_tokens": 7});
        json!({"type": "response.completed", "response": {"output": output, "usage": usage}})
    }

    /// Renumbers the slots from 0.
    fn numbered(log: &[String]) -> Vec<String> {
        let mut slots = Vec::new();
        let mut lines = Vec::new();
        for line in log {
            let Some((slot, rest)) = line.split_once(' ') else {
                lines.push(line.clone());
                continue;
            };
            if !slots.contains(&slot) {
                slots.push(slot);
            }
            let number = slots.iter().position(|known| *known == slot).unwrap();
            lines.push(format!("{number} {rest}"));
        }
        lines
    }

    // A server that omits `output_index` from every event.

    #[test]
    fn items_without_a_place_are_known_by_their_ids() {
        let arguments = "function_call_arguments";
        let (log, _) = read(&[
            placeless_delta("reasoning_text", "rs_1", "hm"),
            item_event("done", &thought()),
            item_event("added", &message("")),
            placeless_delta("output_text", "msg_1", "a"),
            placeless_delta("output_text", "msg_1", "b"),
            item_event("done", &message("ab")),
            item_event("added", &call("c1", "")),
            item_event("added", &call("c2", "")),
            placeless_delta(arguments, "c2", "{}"),
            placeless_delta(arguments, "c1", "{}"),
            item_event("done", &call("c1", "{}")),
            item_event("done", &call("c2", "{}")),
            end_of_all(),
        ]);
        let expected = "0 thinking|0 +hm|0 closed|1 text|1 +a|1 +b|1 closed|2 call c1|3 call c2|3 +{}|2 +{}|2 closed|\
                      3 closed|5/7|ToolUse";
        assert_eq!(numbered(&log).join("|"), expected);
    }

    #[test]
    fn items_without_a_place_whose_ids_were_rewritten_are_known_by_their_kind() {
        let (log, _) = read(&[
            placeless_delta("output_text", "x1", "a"),
            placeless_delta("output_text", "x2", "b"),
            end_of_all(),
        ]);
        let expected = "0 text|0 +a|0 +b|1 thinking|1 +hm|1 closed|0 closed|2 call c1|2 +{}|2 closed|3 call c2|3 +{}|\
                      3 closed|5/7|ToolUse";
        assert_eq!(numbered(&log).join("|"), expected);
        let (log, _) = read(&[item_event("done", &call("c", "{}"))]);
        assert_eq!(log, ["0 call c", "0 +{}", "0 closed"]);
        let many: Vec<_> = (0..1025)
            .map(|index| item_event("done", &call(&format!("c{index}"), "{}")))
            .collect();
        assert_eq!(read(&many).1, Err(UpstreamError::TooLarge));
    }

    #[test]
    fn as_many_items_are_held_as_may_be_and_not_one_more() {
        let text = |index: u64| delta("output_text", index, 0, "x");
        let max_items: Vec<Any> = (0..1024).map(text).collect();
        assert_eq!(read(&max_items).1, Ok(()));
        assert_eq!(
            read(&[max_items, vec![text(1024)]].concat()).1,
            Err(UpstreamError::TooLarge)
        );
    }

    #[test]
    fn an_answer_ends_by_its_status_and_a_failed_one_is_none() {
        let whole = |body: Any| {
            let mut log = EventLog::default();
            let text = body.to_string();
            let tree = JsonDocument::parse(&text, MAX_RESPONSE_DEPTH, NodeBuffer::new()).unwrap();
            super::read_body(tree.root(), &mut log)
                .map(|()| log.0.last().cloned().unwrap_or_default())
        };
        let refusal =
            json!([{"type": "message", "content": [{"type": "refusal", "refusal": "No."}]}]);
        let cut = json!({"type": "function_call", "name": "f", "arguments": "{\"a", "status": "incomplete"});
        for (body, expected) in [
            (json!({"status": "completed", "output": []}), "EndTurn"),
            (
                json!({"status": "completed", "output": [{"type": "custom_tool_call", "name": "f"}]}),
                "ToolUse",
            ),
            (
                json!({"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}, "output": []}),
                "MaxTokens",
            ),
            (
                json!({"status": "incomplete", "incomplete_details": {"reason": "new"}, "output": []}),
                "MaxTokens",
            ),
            (
                json!({"status": "incomplete", "incomplete_details": null, "output": [cut]}),
                "MaxTokens",
            ),
            (json!({"status": "completed", "output": [cut]}), "MaxTokens"),
        ] {
            assert_eq!(whole(body.clone()), Ok(expected.to_owned()), "{body}");
        }
        assert!(
            whole(json!({"status": "completed", "output": refusal}))
                .unwrap()
                .starts_with("Refusal")
        );
        assert!(matches!(
            whole(json!({"status": "failed", "error": {"code": "x", "message": "y"}})),
            Err(UpstreamError::Vendor(_))
        ));
        assert!(matches!(
            whole(json!({"error": {"message": "y"}})),
            Err(UpstreamError::Vendor(_))
        ));
        assert_eq!(
            whole(json!({"status": "queued", "output": []})),
            Err(UpstreamError::Empty)
        );
        assert_eq!(whole(json!({"output": []})), Err(UpstreamError::Empty));
        assert_eq!(
            whole(json!({"status": "completed"})),
            Err(UpstreamError::Empty)
        );
        assert_eq!(whole(json!({})), Err(UpstreamError::Empty));
        assert_eq!(whole(json!([])), Err(UpstreamError::NotJson));
        let ended = json!({"type": "response.failed", "response": {"error": {"code": "slow_down", "message": "y"}}});
        let (_, outcome) = read(&[ended]);
        let Err(fault) = outcome else {
            panic!("it failed")
        };
        assert_eq!(
            fault
                .to_failure(crate::profile::VendorProfile::compatible(), "up", "public")
                .reason(),
            "rate_limited"
        );
    }
}
