//! Reads a messages vendor's answer, streamed or as one body, into IR events.
//!
//! This file must not depend on the consumer of the events. The reader is tolerant: it skips
//! unknown members and events, and treats members of a wrong type as absent. Invalid JSON ends the
//! answer.
//!
//! Read next: `ir/event.rs` (the events); `passthrough/messages.rs`, which reads the same streams
//! but only counts.

use crate::Protocol;
use crate::capabilities::arguments;
use crate::counters;
use crate::ir::event::{
    AnswerReader, Event, EventSink, OutputPart, ReadResult, ResponseStart, StopReason,
    UpstreamError,
};
use crate::json::{
    JsonDocument, JsonScanner, JsonStr, JsonValue, JsonWriter, MAX_RESPONSE_DEPTH, NodeBuffer,
};
use crate::usage::{MessagesCounters, MessagesUsage, PerTool, ServerTool};

/// Maximum length of a search call's arguments, in bytes. A query has a few words.
const MAX_SEARCH_BYTES: usize = 16 * 1024;

/// Maximum number of open blocks. The protocol has one open block at a time; the limit bounds the
/// memory for a vendor that closes none.
const MAX_OPEN_BLOCKS: usize = 64;

/// Reads a stream event by event.
#[derive(Debug, Default)]
pub struct MessagesStreamReader {
    started: bool,
    stopped: bool,
    has_calls: bool,
    slots: u32,
    /// Blocks that are still open, in order.
    open: Vec<MessagesOpenBlock>,
    usage: MessagesUsage,
    /// The signature of thinking that the vendor does not sign.
    maker_signature: Option<String>,
}

#[derive(Debug)]
struct MessagesOpenBlock {
    /// The vendor's index of the block.
    index: u64,
    slot: u32,
    kind: MessagesOpenBlockKind,
}

#[derive(Debug)]
enum MessagesOpenBlockKind {
    Text,
    Thinking {
        has_text: bool,
        is_signed: bool,
    },
    /// A call. `input` holds the arguments that came with its start, as a JSON string. They count
    /// if no others follow.
    Call {
        input: Vec<u8>,
    },
    /// A search that the vendor runs. `input` holds its arguments as JSON. `streamed` says whether
    /// fragments of the arguments have arrived.
    Search {
        input: Vec<u8>,
        streamed: bool,
    },
    /// Block whose deltas are ignored.
    Skipped,
}

impl AnswerReader for MessagesStreamReader {
    fn protocol(&self) -> Protocol {
        Protocol::Messages
    }

    fn read_event(
        &mut self,
        name: &[u8],
        event: JsonValue<'_>,
        to: &mut dyn EventSink,
    ) -> ReadResult {
        // The newest clients read the type in the JSON, and all others the name of the event, so
        // accept either.
        let kind = event.text_of("type");
        let is =
            |word: &str| kind.as_ref().is_some_and(|kind| kind.is(word)) || name == word.as_bytes();
        if is("error") || (kind.is_none() && event.get("error").is_some_and(JsonValue::is_object)) {
            return Err(UpstreamError::from_error_body(event.raw().as_bytes()));
        }
        if is("content_block_delta") {
            self.delta(index(event), event.get("delta"), to);
        }
        if is("content_block_start") {
            self.start(None, to);
            self.open_block(index(event), event.get("content_block"), to);
        }
        if is("content_block_stop") {
            self.close_block(index(event), to);
        }
        if is("message_start") && !self.started {
            let message = event.get("message");
            self.start(message, to);
            self.merge_usage(message, MessagesUsage::start, to);
        }
        if is("message_delta") {
            self.start(None, to);
            self.merge_usage(Some(event), MessagesUsage::finish, to);
            self.stop(event.get("delta"), to);
        }
        if is("message_stop") {
            if !self.started {
                return Err(UpstreamError::Cut);
            }
            self.end(to);
        }
        Ok(())
    }

    /// Handles the end marker, which ends the answer if the vendor has given a stop reason.
    fn read_end_marker(&mut self, to: &mut dyn EventSink) -> Option<ReadResult> {
        if !self.stopped {
            return None;
        }
        self.end(to);
        Some(Ok(()))
    }

    fn finish(&mut self, to: &mut dyn EventSink) {
        self.end(to);
    }
}

impl MessagesStreamReader {
    /// Creates the reader. `maker_signature` signs thinking that the vendor does not sign.
    pub fn new(maker_signature: Option<String>) -> Self {
        Self {
            maker_signature,
            ..Self::default()
        }
    }

    /// Emits the start event once. Some vendors omit `message_start`.
    fn start(&mut self, message: Option<JsonValue<'_>>, to: &mut dyn EventSink) {
        if !self.started {
            self.started = true;
            let tier = member(member(message, "usage"), "service_tier");
            to.event(Event::Start(ResponseStart {
                id: non_empty_text(message, "id"),
                tier: tier.and_then(JsonValue::text),
            }));
        }
    }

    /// Merges the counters of the member `usage`.
    fn merge_usage(
        &mut self,
        from: Option<JsonValue<'_>>,
        merge: fn(&mut MessagesUsage, &MessagesCounters),
        to: &mut dyn EventSink,
    ) {
        let usage = member(from, "usage");
        let read = |usage: JsonValue<'_>| {
            counters::read_messages_usage(&mut JsonScanner::new(usage.raw(), MAX_RESPONSE_DEPTH))
                .ok()
                .flatten()
        };
        let Some(counters) = usage.and_then(read) else {
            return;
        };
        merge(&mut self.usage, &counters);
        self.send_counters(to);
    }

    fn send_counters(&self, to: &mut dyn EventSink) {
        let total = self.usage.total();
        if let Some(counters) = &total.or_else(|| self.usage.so_far()) {
            to.event(Event::Counters {
                counters,
                is_final: total.is_some(),
            });
        }
    }

    fn stop(&mut self, from: Option<JsonValue<'_>>, to: &mut dyn EventSink) {
        let Some(reason) = non_empty_text(from, "stop_reason") else {
            return;
        };
        self.stopped = true;
        if reason.is("pause_turn") {
            to.event(Event::Warning("stopped:pause_turn"));
        }
        let stop = match reason.value().as_ref() {
            // After a pause, the vendor would continue if the client asked again. Other protocols
            // have no stop reason for that, so a warning says it.
            "end_turn" | "pause_turn" | "compaction" => StopReason::EndTurn,
            "stop_sequence" => StopReason::StopSequence,
            "tool_use" => StopReason::ToolUse,
            "max_tokens" => StopReason::MaxTokens,
            "model_context_window_exceeded" => StopReason::ContextFull,
            "refusal" => StopReason::Refusal {
                is_billed: {
                    let category = non_empty_text(member(from, "stop_details"), "category");
                    super::bills_refusal(category.as_ref().map(JsonStr::value).as_deref())
                },
                explanation: non_empty_text(member(from, "stop_details"), "explanation"),
            },
            // The meaning of the reason is unknown. The calls are complete, but a text may have
            // been cut off.
            _ => {
                to.event(Event::Warning("derived:stop_reason"));
                match self.has_calls {
                    true => StopReason::ToolUse,
                    false => StopReason::MaxTokens,
                }
            }
        };
        to.event(Event::Stop(stop));
    }

    fn open_block(&mut self, index: u64, block: Option<JsonValue<'_>>, to: &mut dyn EventSink) {
        // A repeated index begins a new block.
        self.close_block(index, to);
        if self.open.len() >= MAX_OPEN_BLOCKS {
            let oldest = self.open.remove(0);
            self.emit_close(oldest, to);
        }
        let word = non_empty_text(block, "type").unwrap_or_else(|| JsonStr::from_value(""));
        let (piece, kind) = match word.value().as_ref() {
            "text" => (OutputPart::Text, MessagesOpenBlockKind::Text),
            "thinking" => {
                let kind = MessagesOpenBlockKind::Thinking {
                    has_text: false,
                    is_signed: false,
                };
                (OutputPart::Thinking, kind)
            }
            "redacted_thinking" => match non_empty_text(block, "data") {
                Some(data) => (OutputPart::Hidden { data }, MessagesOpenBlockKind::Skipped),
                None => (
                    OutputPart::Foreign { kind: word.clone() },
                    MessagesOpenBlockKind::Skipped,
                ),
            },
            "tool_use" => {
                self.has_calls = true;
                let name = non_empty_text(block, "name").unwrap_or_else(|| JsonStr::from_value(""));
                let input = member(block, "input").map(encode_input).unwrap_or_default();
                (
                    OutputPart::Call {
                        id: non_empty_text(block, "id"),
                        name,
                        is_custom: false,
                    },
                    MessagesOpenBlockKind::Call { input },
                )
            }
            "server_tool_use"
                if member(block, "name").is_some_and(|name| name.is("web_search")) =>
            {
                let input = member(block, "input")
                    .map(|input| input.raw().as_bytes().to_owned())
                    .unwrap_or_default();
                (
                    OutputPart::Foreign { kind: word.clone() },
                    MessagesOpenBlockKind::Search {
                        input,
                        streamed: false,
                    },
                )
            }
            _ => (
                OutputPart::Foreign { kind: word.clone() },
                MessagesOpenBlockKind::Skipped,
            ),
        };
        let slot = self.next_slot();
        if let Some(tool) = ServerTool::from_result_block(&word.value()) {
            self.count_tool_use(tool, to);
        }
        // A search is emitted once it is complete.
        if !matches!(kind, MessagesOpenBlockKind::Search { .. }) {
            to.event(Event::Open { slot, piece });
        }
        self.open.push(MessagesOpenBlock { index, slot, kind });
        match self.open.last().map(|open| &open.kind) {
            Some(MessagesOpenBlockKind::Text) => {
                self.emit_text(index, non_empty_text(block, "text"), to);
                let citations = member(block, "citations").map(JsonValue::items);
                citations
                    .into_iter()
                    .flatten()
                    .for_each(|source| emit_citation(slot, Some(source), to));
            }
            Some(MessagesOpenBlockKind::Thinking { .. }) => {
                self.emit_text(index, non_empty_text(block, "thinking"), to);
                if let Some(open) = self.open.last_mut() {
                    emit_signature(open, non_empty_text(block, "signature"), to);
                }
            }
            Some(
                MessagesOpenBlockKind::Call { .. }
                | MessagesOpenBlockKind::Search { .. }
                | MessagesOpenBlockKind::Skipped,
            )
            | None => {}
        }
    }

    fn delta(&mut self, index: u64, delta: Option<JsonValue<'_>>, to: &mut dyn EventSink) {
        let Some(open) = self.open.iter_mut().rfind(|open| open.index == index) else {
            return;
        };
        let kind = non_empty_text(delta, "type").unwrap_or_else(|| JsonStr::from_value(""));
        match &mut open.kind {
            MessagesOpenBlockKind::Search { input, streamed } if kind.is("input_json_delta") => {
                if !std::mem::replace(streamed, true) {
                    input.clear();
                }
                let piece = non_empty_text(delta, "partial_json")
                    .map(JsonStr::into_value)
                    .unwrap_or_default();
                if input.len().saturating_add(piece.len()) <= MAX_SEARCH_BYTES {
                    input.extend_from_slice(piece.as_bytes());
                }
            }
            MessagesOpenBlockKind::Text if kind.is("text_delta") => {
                self.emit_text(index, non_empty_text(delta, "text"), to)
            }
            MessagesOpenBlockKind::Text if kind.is("citations_delta") => {
                emit_citation(open.slot, member(delta, "citation"), to)
            }
            MessagesOpenBlockKind::Thinking { .. } if kind.is("thinking_delta") => {
                self.emit_text(index, non_empty_text(delta, "thinking"), to)
            }
            MessagesOpenBlockKind::Thinking { .. } if kind.is("signature_delta") => {
                emit_signature(open, non_empty_text(delta, "signature"), to)
            }
            MessagesOpenBlockKind::Call { .. } if kind.is("input_json_delta") => {
                self.emit_text(index, non_empty_text(delta, "partial_json"), to)
            }
            MessagesOpenBlockKind::Text
            | MessagesOpenBlockKind::Thinking { .. }
            | MessagesOpenBlockKind::Call { .. }
            | MessagesOpenBlockKind::Search { .. }
            | MessagesOpenBlockKind::Skipped => {}
        }
    }

    /// Emits text of an open block.
    fn emit_text(&mut self, index: u64, text: Option<JsonStr<'_>>, to: &mut dyn EventSink) {
        let latest = self.slots;
        let Some(open) = self.open.iter_mut().rfind(|open| open.index == index) else {
            return;
        };
        let Some(text) = text else {
            return;
        };
        match &mut open.kind {
            MessagesOpenBlockKind::Call { input } => input.clear(),
            // Text and thinking that continue after another part has begun become a new block.
            MessagesOpenBlockKind::Text | MessagesOpenBlockKind::Thinking { .. }
                if open.slot < latest =>
            {
                let piece = if matches!(open.kind, MessagesOpenBlockKind::Text) {
                    OutputPart::Text
                } else {
                    OutputPart::Thinking
                };
                sign_as_maker(open, self.maker_signature.as_deref(), to);
                self.slots = latest.saturating_add(1);
                open.slot = self.slots;
                to.event(Event::Open {
                    slot: open.slot,
                    piece,
                });
            }
            MessagesOpenBlockKind::Text
            | MessagesOpenBlockKind::Thinking { .. }
            | MessagesOpenBlockKind::Search { .. }
            | MessagesOpenBlockKind::Skipped => {}
        }
        if let MessagesOpenBlockKind::Thinking { has_text, .. } = &mut open.kind {
            *has_text = true;
        }
        to.event(Event::Delta {
            slot: open.slot,
            text,
        });
    }

    fn count_tool_use(&mut self, tool: ServerTool, to: &mut dyn EventSink) {
        let mut uses = PerTool::default();
        uses.add(tool);
        self.usage.add_tool_results(&uses);
        self.send_counters(to);
    }

    fn close_block(&mut self, index: u64, to: &mut dyn EventSink) {
        if let Some(at) = self.open.iter().rposition(|open| open.index == index) {
            let open = self.open.remove(at);
            self.emit_close(open, to);
        }
    }

    fn emit_close(&self, mut open: MessagesOpenBlock, to: &mut dyn EventSink) {
        sign_as_maker(&mut open, self.maker_signature.as_deref(), to);
        emit_close(open, to);
    }

    fn end(&mut self, to: &mut dyn EventSink) {
        for open in std::mem::take(&mut self.open) {
            self.emit_close(open, to);
        }
        to.event(Event::End);
    }

    fn next_slot(&mut self) -> u32 {
        self.slots = self.slots.saturating_add(1);
        self.slots
    }
}

/// Reads a whole answer into the same events as a stream.
pub fn read_body(
    body: JsonValue<'_>,
    maker_signature: Option<String>,
    to: &mut dyn EventSink,
) -> ReadResult {
    if !body.is_object() {
        return Err(UpstreamError::NotJson);
    }
    let is_error = body.member_is("type", "error");
    if is_error || body.get("error").is_some_and(JsonValue::is_object) {
        return Err(UpstreamError::from_error_body(body.raw().as_bytes()));
    }
    let content = body.get("content").filter(|content| content.is_array());
    if content.is_none() && body.get("stop_reason").is_none() {
        return Err(UpstreamError::Empty);
    }
    let mut reader = MessagesStreamReader::new(maker_signature);
    reader.start(Some(body), to);
    reader.merge_usage(Some(body), MessagesUsage::finish, to);
    for block in content.map(JsonValue::items).into_iter().flatten() {
        reader.open_block(0, Some(block), to);
        reader.close_block(0, to);
    }
    reader.stop(Some(body), to);
    reader.end(to);
    Ok(())
}

fn emit_close(open: MessagesOpenBlock, to: &mut dyn EventSink) {
    let MessagesOpenBlock { slot, kind, .. } = open;
    if let MessagesOpenBlockKind::Search { input, .. } = &kind {
        let input = std::str::from_utf8(input).unwrap_or_default();
        let tree = JsonDocument::parse(input, MAX_RESPONSE_DEPTH, NodeBuffer::new());
        let query = tree
            .as_ref()
            .ok()
            .and_then(|tree| non_empty_text(Some(tree.root()), "query"));
        let piece = match query {
            Some(query) => OutputPart::Search { query },
            None => OutputPart::Foreign {
                kind: JsonStr::from_value("server_tool_use"),
            },
        };
        to.event(Event::Open { slot, piece });
    }
    if let MessagesOpenBlockKind::Call { input } = kind {
        let quoted = std::str::from_utf8(&input).unwrap_or_default();
        let inside = quoted
            .strip_prefix('"')
            .and_then(|rest| rest.strip_suffix('"'))
            .unwrap_or_default();
        if !inside.is_empty() {
            to.event(Event::Delta {
                slot,
                text: JsonStr::from_token(inside, true),
            });
        }
    }
    to.event(Event::Close { slot });
}

/// Encodes arguments as a JSON string. An empty object yields no string, because every streamed
/// call begins with one.
fn encode_input(value: JsonValue<'_>) -> Vec<u8> {
    if value.is_object() && value.members().next().is_none() {
        return Vec::new();
    }
    let mut json = JsonWriter::default();
    arguments::write_arguments(value, &mut json);
    json.into_bytes()
}

/// Emits a citation of a web search result. Other citations are ignored, because they have no URL.
fn emit_citation(slot: u32, source: Option<JsonValue<'_>>, to: &mut dyn EventSink) {
    if let (Some(kind), Some(url)) = (
        non_empty_text(source, "type"),
        non_empty_text(source, "url"),
    ) && kind.is("web_search_result_location")
    {
        to.event(Event::Citation {
            slot,
            title: non_empty_text(source, "title"),
            url,
        });
    }
}

fn emit_signature(
    open: &mut MessagesOpenBlock,
    signature: Option<JsonStr<'_>>,
    to: &mut dyn EventSink,
) {
    let (slot, Some(signature)) = (open.slot, signature) else {
        return;
    };
    if let MessagesOpenBlockKind::Thinking { is_signed, .. } = &mut open.kind {
        *is_signed = true;
    }
    to.event(Event::Signature { slot, signature });
}

/// Signs the thinking of a slot with its vendor's name, if the vendor did not sign it.
fn sign_as_maker(open: &mut MessagesOpenBlock, maker: Option<&str>, to: &mut dyn EventSink) {
    let slot = open.slot;
    if let MessagesOpenBlockKind::Thinking {
        has_text,
        is_signed,
    } = &mut open.kind
        && let (true, false, Some(maker)) = (
            std::mem::take(has_text),
            std::mem::take(is_signed),
            maker.map(JsonStr::from_value),
        )
    {
        to.event(Event::Signature {
            slot,
            signature: maker,
        });
    }
}

fn member<'v>(value: Option<JsonValue<'v>>, name: &str) -> Option<JsonValue<'v>> {
    value.and_then(|value| value.get(name))
}

/// Returns the string member unless it is empty.
fn non_empty_text<'v>(value: Option<JsonValue<'v>>, name: &str) -> Option<JsonStr<'v>> {
    member(value, name)
        .and_then(JsonValue::text)
        .filter(|text| !text.is_empty())
}

fn index(event: JsonValue<'_>) -> u64 {
    event.get("index").and_then(JsonValue::count).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::NodeBuffer;
    use crate::usage::VendorCounters;

    /// Collects the events, one word each.
    #[derive(Default)]
    struct EventLog(Vec<String>);

    impl EventSink for EventLog {
        fn event(&mut self, event: Event<'_>) {
            self.0.push(match event {
                Event::Start(_) => "start".to_owned(),
                Event::Open {
                    slot,
                    piece: OutputPart::Call { name, .. },
                } => format!("{slot} call {}", name.value()),
                Event::Open {
                    slot,
                    piece: OutputPart::Foreign { kind },
                } => format!("{slot} foreign {}", kind.value()),
                Event::Open { slot, piece } => {
                    format!("{slot} {}", format!("{piece:?}").to_lowercase())
                }
                Event::Delta { slot, text } => format!("{slot} + {}", text.value()),
                Event::Signature { slot, signature } => {
                    format!("{slot} signed {}", signature.value())
                }
                Event::Citation { slot, url, .. } => format!("{slot} cites {}", url.value()),
                Event::Close { slot } => format!("{slot} closed"),
                Event::Stop(stop) => format!("{stop:?}"),
                Event::Counters {
                    counters: VendorCounters::Messages(counters),
                    is_final,
                } => {
                    format!("{} of {is_final}", counters.output.unwrap_or(0))
                }
                Event::Warning(warning) => format!("warns of {warning}"),
                Event::Counters { .. } | Event::Usage { .. } => return,
                Event::End => "end".to_owned(),
            });
        }
    }

    #[test]
    fn thinking_without_a_signature_gets_that_of_its_maker_once_per_block() {
        let maker_signature = Some("maker".to_owned());
        let (mut reader, mut log) = (
            MessagesStreamReader::new(maker_signature),
            EventLog::default(),
        );
        let block = |index: u64, block: &str| {
            format!(r#"{{"type":"content_block_start","index":{index},"content_block":{block}}}"#)
        };
        let thinking = r#"{"type":"thinking","thinking":""}"#;
        let delta = |index: u64, delta: &str| {
            format!(r#"{{"type":"content_block_delta","index":{index},"delta":{delta}}}"#)
        };
        let hm = r#"{"type":"thinking_delta","thinking":"hm"}"#;
        for event in [
            block(0, thinking),
            delta(0, hm),
            // The first block goes on behind the second one.
            block(1, r#"{"type":"text","text":"a"}"#),
            delta(0, hm),
            block(2, thinking),
            delta(2, hm),
            delta(2, r#"{"type":"signature_delta","signature":"own"}"#),
            block(3, thinking),
            r#"{"type":"content_block_stop","index":0}"#.to_owned(),
            r#"{"type":"message_stop"}"#.to_owned(),
        ] {
            let (_, outcome) = reader.event(b"", event.as_bytes(), NodeBuffer::new(), &mut log);
            outcome.unwrap();
        }
        let signed = log.0.iter().filter(|event| event.contains("signed"));
        assert_eq!(
            signed.collect::<Vec<_>>(),
            ["1 signed maker", "4 signed own", "3 signed maker"],
            "{:?}",
            log.0
        );
    }

    fn read(events: &[&str]) -> (Vec<String>, Result<(), UpstreamError>) {
        let (mut reader, mut log) = (MessagesStreamReader::default(), EventLog::default());
        for event in events {
            if let (_, Err(fault)) =
                reader.event(b"", event.as_bytes(), NodeBuffer::new(), &mut log)
            {
                return (log.0, Err(fault));
            }
        }
        if log.0.last().is_none_or(|last| last != "end") {
            reader.finish(&mut log);
        }
        (log.0, Ok(()))
    }

    #[test]
    fn text_that_goes_on_after_something_else_began_is_another_piece() {
        let (log, outcome) = read(&[
            r#"{"type":"content_block_start","index":0,"content_block":{"type":"text","text":"a"}}"#,
            r#"{"type":"content_block_start","index":1,"content_block":{"type":"tool_use","id":"t","name":"f","input":{}}}"#,
            r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"b"}}"#,
            r#"{"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":"{}"}}"#,
            r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"c"}}"#,
            r#"{"type":"message_delta","delta":{"stop_reason":"tool_use"}}"#,
        ]);
        let expected = [
            "start", "1 text", "1 + a", "2 call f", "3 text", "3 + b", "2 + {}", "3 + c",
            "ToolUse", "3 closed", "2 closed", "end",
        ];
        assert_eq!(
            (log.as_slice(), outcome),
            (expected.map(str::to_owned).as_slice(), Ok(()))
        );
    }

    #[test]
    fn a_block_is_closed_by_another_of_its_number_and_by_the_end() {
        let call = concat!(
            r#"{"type":"content_block_start","index":0,"content_block":"#,
            r#"{"type":"tool_use","id":"t","name":"f","input":{"a": 1}}}"#
        );
        let (log, _) = read(&[call, call, r#"{"type":"message_stop"}"#]);
        let expected = [
            "start",
            "1 call f",
            "1 + {\"a\":1}",
            "1 closed",
            "2 call f",
            "2 + {\"a\":1}",
            "2 closed",
            "end",
        ];
        assert_eq!(log, expected);
    }

    #[test]
    fn blocks_that_are_never_closed_do_not_pile_up() {
        let (mut reader, mut log) = (MessagesStreamReader::default(), EventLog::default());
        for index in 0..1000 {
            let begin = format!(
                r#"{{"type":"content_block_start","index":{index},"content_block":{{"type":"text"}}}}"#
            );
            let _ = reader.event(b"", begin.as_bytes(), NodeBuffer::new(), &mut log);
        }
        assert_eq!(reader.open.len(), MAX_OPEN_BLOCKS);
        assert_eq!(
            log.0.iter().filter(|word| word.ends_with("closed")).count(),
            1000 - MAX_OPEN_BLOCKS
        );
    }

    #[test]
    fn usage_is_final_once_the_output_was_counted_behind_the_start() {
        let (log, outcome) = read(&[
            r#"{"type":"message_start","message":{"usage":{"input_tokens":9,"output_tokens":1}}}"#,
            r#"{"type":"message_delta","delta":{"stop_reason":null},"usage":{"cache_read_input_tokens":4}}"#,
            r#"{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":12}}"#,
        ]);
        assert_eq!(
            log,
            [
                "start",
                "1 of false",
                "1 of false",
                "12 of true",
                "EndTurn",
                "end"
            ]
        );
        assert_eq!(outcome, Ok(()));
    }

    #[test]
    fn an_end_before_anything_is_none() {
        assert_eq!(
            read(&[r#"{"type":"message_stop"}"#]).1,
            Err(UpstreamError::Cut)
        );
        assert_eq!(
            read(&[r#"{"type":"ping"}"#]),
            (vec!["end".to_owned()], Ok(()))
        );
        assert_eq!(read(&["[]"]).1, Err(UpstreamError::NotJson));
        assert!(matches!(
            read(&[r#"{"error":{"message":"no"}}"#]).1,
            Err(UpstreamError::Vendor(_))
        ));
    }
}
