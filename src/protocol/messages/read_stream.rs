//! Reads a messages vendor's answer, streamed or as one body, into IR events.
//!
//! It must not know who consumes the events, and must be tolerant: it skips unknown members and
//! events, and treats members of a wrong type as absent. Invalid JSON ends the answer.
//!
//! Read next: `ir/answer.rs` (the events); `passthrough/messages.rs`, which reads the same streams
//! but only counts.

use crate::protocol::Protocol;
use crate::protocol::answer::Fault;
use crate::protocol::counters;
use crate::protocol::form::answer::{Event, Piece, Sink, Start, Stop};
use crate::protocol::rules::arguments;
use crate::protocol::scan::Scan;
use crate::protocol::text::{Json, Text};
use crate::protocol::translate::ANSWER_DEPTH_MAX;
use crate::protocol::tree::{Nodes, Tree, Value};
use crate::usage::{MessagesCounters, MessagesUsage, PerTool, ServerTool};

/// Maximum length of a search call's arguments, in bytes: a query is a few words.
const SEARCH_BYTES_MAX: usize = 16 * 1024;

/// Maximum number of open blocks. The protocol has one open at a time; this limit protects the
/// memory from a vendor that closes none.
const OPEN_BLOCKS_MAX: usize = 64;

/// Reader of a stream, event by event.
#[derive(Debug, Default)]
pub struct Reader {
    started: bool,
    stopped: bool,
    slots: u32,
    /// Blocks that are still open, in order.
    open: Vec<Open>,
    usage: MessagesUsage,
}

#[derive(Debug)]
struct Open {
    /// The vendor's index of the block.
    index: u64,
    slot: u32,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Text,
    Thinking,
    /// `input`: the arguments that came with the start of the call, as a JSON string. They count if
    /// no others follow.
    Call {
        input: Vec<u8>,
    },
    /// A search that the vendor runs. `input`: its arguments as JSON; `streamed`: fragments of the
    /// arguments have arrived.
    Search {
        input: Vec<u8>,
        streamed: bool,
    },
    /// Block whose deltas are ignored.
    Skipped,
}

impl Reader {
    /// Reads one event of the vendor's stream. `nodes` is reusable memory that the call returns.
    pub fn event(
        &mut self,
        name: &[u8],
        data: &[u8],
        nodes: Nodes,
        to: &mut impl Sink,
    ) -> (Nodes, Result<(), Fault>) {
        // The end marker of the chat protocol, which some compatible servers send. It is an end if
        // the vendor has given a stop reason.
        if data == b"[DONE]" && self.stopped {
            self.end(to);
            return (nodes, Ok(()));
        }
        let text = std::str::from_utf8(data).unwrap_or_default();
        let tree = match Tree::read(text, ANSWER_DEPTH_MAX, nodes) {
            Ok(tree) if tree.root().is_object() => tree,
            _ => {
                return (
                    Nodes::new(),
                    Fault::of_unreadable(Protocol::Messages, name, data),
                );
            }
        };
        let outcome = self.object(name, tree.root(), to);
        (tree.into_nodes(), outcome)
    }

    /// Ends an answer that is complete although its last event is missing.
    pub fn finish(&mut self, to: &mut impl Sink) {
        self.end(to);
    }

    fn object(&mut self, name: &[u8], event: Value<'_>, to: &mut impl Sink) -> Result<(), Fault> {
        // The newest clients use the type in the JSON, all others the name of the event. Accept
        // either.
        let kind = event.get("type").and_then(Value::text);
        let is =
            |word: &str| kind.as_ref().is_some_and(|kind| kind.is(word)) || name == word.as_bytes();
        if is("error") || (kind.is_none() && event.get("error").is_some_and(Value::is_object)) {
            return Err(Fault::told(event.raw().as_bytes()));
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
            self.learn(message, MessagesUsage::start, to);
        }
        if is("message_delta") {
            self.start(None, to);
            self.learn(Some(event), MessagesUsage::settle, to);
            self.stop(event.get("delta"), to);
        }
        if is("message_stop") {
            if !self.started {
                return Err(Fault::Cut);
            }
            self.end(to);
        }
        Ok(())
    }

    /// Emits the start event once. Some vendors omit `message_start`.
    fn start(&mut self, message: Option<Value<'_>>, to: &mut impl Sink) {
        if !self.started {
            self.started = true;
            let tier = member(member(message, "usage"), "service_tier");
            to.event(Event::Start(Start {
                id: text(message, "id"),
                tier: tier.and_then(Value::text),
            }));
        }
    }

    /// Merges the counters of the member `usage`.
    fn learn(
        &mut self,
        from: Option<Value<'_>>,
        merge: fn(&mut MessagesUsage, &MessagesCounters),
        to: &mut impl Sink,
    ) {
        let usage = member(from, "usage");
        let read = |usage: Value<'_>| {
            counters::messages(&mut Scan::new(usage.raw(), ANSWER_DEPTH_MAX))
                .ok()
                .flatten()
        };
        let Some(counters) = usage.and_then(read) else {
            return;
        };
        merge(&mut self.usage, &counters);
        self.send_counters(to);
    }

    fn send_counters(&self, to: &mut impl Sink) {
        let total = self.usage.total();
        if let Some(counters) = &total.or_else(|| self.usage.so_far()) {
            to.event(Event::Counters {
                counters,
                is_final: total.is_some(),
            });
        }
    }

    fn stop(&mut self, from: Option<Value<'_>>, to: &mut impl Sink) {
        let Some(reason) = text(from, "stop_reason") else {
            return;
        };
        self.stopped = true;
        to.event(Event::Stop(match reason.value().as_ref() {
            // With a pause, the vendor offers to continue if the client asks again. Here the answer
            // ends.
            "end_turn" | "pause_turn" | "compaction" => Stop::EndTurn,
            "stop_sequence" => Stop::StopSequence,
            "tool_use" => Stop::ToolUse,
            "max_tokens" => Stop::MaxTokens,
            "model_context_window_exceeded" => Stop::ContextFull,
            "refusal" => Stop::Refusal {
                explanation: text(member(from, "stop_details"), "explanation"),
            },
            _ => Stop::Unknown,
        }));
    }

    fn open_block(&mut self, index: u64, block: Option<Value<'_>>, to: &mut impl Sink) {
        // An index that is used again means a new block.
        self.close_block(index, to);
        if self.open.len() >= OPEN_BLOCKS_MAX {
            close(self.open.remove(0), to);
        }
        let word = text(block, "type").unwrap_or_else(|| Text::made(""));
        let (piece, kind) = match word.value().as_ref() {
            "text" => (Piece::Text, Kind::Text),
            "thinking" => (Piece::Thinking, Kind::Thinking),
            "redacted_thinking" => match text(block, "data") {
                Some(data) => (Piece::Hidden { data }, Kind::Skipped),
                None => (Piece::Foreign { kind: word.clone() }, Kind::Skipped),
            },
            "tool_use" => {
                let name = text(block, "name").unwrap_or_else(|| Text::made(""));
                let input = member(block, "input").map(input).unwrap_or_default();
                (
                    Piece::Call {
                        id: text(block, "id"),
                        name,
                        is_custom: false,
                    },
                    Kind::Call { input },
                )
            }
            "server_tool_use"
                if member(block, "name").is_some_and(|name| name.is("web_search")) =>
            {
                let input = member(block, "input")
                    .map(|input| input.raw().as_bytes().to_owned())
                    .unwrap_or_default();
                (
                    Piece::Foreign { kind: word.clone() },
                    Kind::Search {
                        input,
                        streamed: false,
                    },
                )
            }
            _ => (Piece::Foreign { kind: word.clone() }, Kind::Skipped),
        };
        let slot = self.next_slot();
        if let Some(tool) = ServerTool::of_result_block(&word.value()) {
            self.tool_used(tool, to);
        }
        // A search is emitted when it is complete.
        if !matches!(kind, Kind::Search { .. }) {
            to.event(Event::Open { slot, piece });
        }
        self.open.push(Open { index, slot, kind });
        match self.open.last().map(|open| &open.kind) {
            Some(Kind::Text) => {
                self.more(index, text(block, "text"), to);
                let citations = member(block, "citations").map(Value::items);
                citations
                    .into_iter()
                    .flatten()
                    .for_each(|source| citation(slot, Some(source), to));
            }
            Some(Kind::Thinking) => {
                self.more(index, text(block, "thinking"), to);
                signature(slot, text(block, "signature"), to);
            }
            Some(Kind::Call { .. } | Kind::Search { .. } | Kind::Skipped) | None => {}
        }
    }

    fn delta(&mut self, index: u64, delta: Option<Value<'_>>, to: &mut impl Sink) {
        let Some(open) = self.open.iter_mut().rfind(|open| open.index == index) else {
            return;
        };
        let kind = text(delta, "type").unwrap_or_else(|| Text::made(""));
        match &mut open.kind {
            Kind::Search { input, streamed } if kind.is("input_json_delta") => {
                if !std::mem::replace(streamed, true) {
                    input.clear();
                }
                let piece = text(delta, "partial_json")
                    .map(Text::into_value)
                    .unwrap_or_default();
                if input.len().saturating_add(piece.len()) <= SEARCH_BYTES_MAX {
                    input.extend_from_slice(piece.as_bytes());
                }
            }
            Kind::Text if kind.is("text_delta") => self.more(index, text(delta, "text"), to),
            Kind::Text if kind.is("citations_delta") => {
                citation(open.slot, member(delta, "citation"), to)
            }
            Kind::Thinking if kind.is("thinking_delta") => {
                self.more(index, text(delta, "thinking"), to)
            }
            Kind::Thinking if kind.is("signature_delta") => {
                signature(open.slot, text(delta, "signature"), to)
            }
            Kind::Call { .. } if kind.is("input_json_delta") => {
                self.more(index, text(delta, "partial_json"), to)
            }
            Kind::Text
            | Kind::Thinking
            | Kind::Call { .. }
            | Kind::Search { .. }
            | Kind::Skipped => {}
        }
    }

    /// Continues an open block.
    fn more(&mut self, index: u64, text: Option<Text<'_>>, to: &mut impl Sink) {
        let latest = self.slots;
        let Some(open) = self.open.iter_mut().rfind(|open| open.index == index) else {
            return;
        };
        let Some(text) = text else {
            return;
        };
        match &mut open.kind {
            Kind::Call { input } => input.clear(),
            // Text and thinking that continue after something else began become a new block.
            Kind::Text | Kind::Thinking if open.slot < latest => {
                let piece = if matches!(open.kind, Kind::Text) {
                    Piece::Text
                } else {
                    Piece::Thinking
                };
                self.slots = latest.saturating_add(1);
                open.slot = self.slots;
                to.event(Event::Open {
                    slot: open.slot,
                    piece,
                });
            }
            Kind::Text | Kind::Thinking | Kind::Search { .. } | Kind::Skipped => {}
        }
        to.event(Event::Delta {
            slot: open.slot,
            text,
        });
    }

    /// Counts a result of a server tool.
    fn tool_used(&mut self, tool: ServerTool, to: &mut impl Sink) {
        let mut uses = PerTool::default();
        uses.add(tool);
        self.usage.tools_used(&uses);
        self.send_counters(to);
    }

    fn close_block(&mut self, index: u64, to: &mut impl Sink) {
        if let Some(at) = self.open.iter().rposition(|open| open.index == index) {
            close(self.open.remove(at), to);
        }
    }

    fn end(&mut self, to: &mut impl Sink) {
        self.open.drain(..).for_each(|open| close(open, to));
        to.event(Event::End);
    }

    fn next_slot(&mut self) -> u32 {
        self.slots = self.slots.saturating_add(1);
        self.slots
    }
}

/// Reads a whole answer into the same events as a stream.
pub fn whole(body: Value<'_>, to: &mut impl Sink) -> Result<(), Fault> {
    if !body.is_object() {
        return Err(Fault::NotJson);
    }
    let is_error = body.get("type").is_some_and(|kind| kind.is("error"));
    if is_error || body.get("error").is_some_and(Value::is_object) {
        return Err(Fault::told(body.raw().as_bytes()));
    }
    let content = body.get("content").filter(|content| content.is_array());
    if content.is_none() && body.get("stop_reason").is_none() {
        return Err(Fault::Empty);
    }
    let mut reader = Reader::default();
    reader.start(Some(body), to);
    reader.learn(Some(body), MessagesUsage::settle, to);
    for block in content.map(Value::items).into_iter().flatten() {
        reader.open_block(0, Some(block), to);
        reader.close_block(0, to);
    }
    reader.stop(Some(body), to);
    reader.end(to);
    Ok(())
}

fn close(open: Open, to: &mut impl Sink) {
    let Open { slot, kind, .. } = open;
    if let Kind::Search { input, .. } = &kind {
        let input = std::str::from_utf8(input).unwrap_or_default();
        let tree = Tree::read(input, ANSWER_DEPTH_MAX, Nodes::new());
        let query = tree
            .as_ref()
            .ok()
            .and_then(|tree| text(Some(tree.root()), "query"));
        let piece = match query {
            Some(query) => Piece::Search { query },
            None => Piece::Foreign {
                kind: Text::made("server_tool_use"),
            },
        };
        to.event(Event::Open { slot, piece });
    }
    if let Kind::Call { input } = kind {
        let quoted = std::str::from_utf8(&input).unwrap_or_default();
        let inside = quoted
            .strip_prefix('"')
            .and_then(|rest| rest.strip_suffix('"'))
            .unwrap_or_default();
        if !inside.is_empty() {
            to.event(Event::Delta {
                slot,
                text: Text::token(inside, true),
            });
        }
    }
    to.event(Event::Close { slot });
}

/// Encodes arguments as a JSON string. An empty object yields nothing: every streamed call begins
/// with one.
fn input(value: Value<'_>) -> Vec<u8> {
    if value.is_object() && value.members().next().is_none() {
        return Vec::new();
    }
    let mut json = Json::default();
    arguments::write_arguments(value, &mut json);
    json.into_bytes()
}

/// Emits a citation of a web search result. Other citations have no URL.
fn citation(slot: u32, source: Option<Value<'_>>, to: &mut impl Sink) {
    if let (Some(kind), Some(url)) = (text(source, "type"), text(source, "url"))
        && kind.is("web_search_result_location")
    {
        to.event(Event::Citation {
            slot,
            title: text(source, "title"),
            url,
        });
    }
}

fn signature(slot: u32, signature: Option<Text<'_>>, to: &mut impl Sink) {
    if let Some(signature) = signature {
        to.event(Event::Signature { slot, signature });
    }
}

fn member<'v>(value: Option<Value<'v>>, name: &str) -> Option<Value<'v>> {
    value.and_then(|value| value.get(name))
}

/// Returns the string member unless it is empty.
fn text<'v>(value: Option<Value<'v>>, name: &str) -> Option<Text<'v>> {
    member(value, name)
        .and_then(Value::text)
        .filter(|text| !text.is_empty())
}

fn index(event: Value<'_>) -> u64 {
    event.get("index").and_then(Value::count).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::usage::VendorCounters;

    /// Collects the events, one word each.
    #[derive(Default)]
    struct Told(Vec<String>);

    impl Sink for Told {
        fn event(&mut self, event: Event<'_>) {
            self.0.push(match event {
                Event::Start(_) => "start".to_owned(),
                Event::Open {
                    slot,
                    piece: Piece::Call { name, .. },
                } => format!("{slot} call {}", name.value()),
                Event::Open {
                    slot,
                    piece: Piece::Foreign { kind },
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
                Event::Counters { .. } | Event::Usage { .. } => return,
                Event::End => "end".to_owned(),
            });
        }
    }

    fn read(events: &[&str]) -> (Vec<String>, Result<(), Fault>) {
        let (mut reader, mut told) = (Reader::default(), Told::default());
        for event in events {
            if let (_, Err(fault)) = reader.event(b"", event.as_bytes(), Nodes::new(), &mut told) {
                return (told.0, Err(fault));
            }
        }
        if told.0.last().is_none_or(|last| last != "end") {
            reader.finish(&mut told);
        }
        (told.0, Ok(()))
    }

    #[test]
    fn text_that_goes_on_after_something_else_began_is_another_piece() {
        let (told, outcome) = read(&[
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
            (told.as_slice(), outcome),
            (expected.map(str::to_owned).as_slice(), Ok(()))
        );
    }

    #[test]
    fn a_block_is_closed_by_another_of_its_number_and_by_the_end() {
        let call = concat!(
            r#"{"type":"content_block_start","index":0,"content_block":"#,
            r#"{"type":"tool_use","id":"t","name":"f","input":{"a": 1}}}"#
        );
        let (told, _) = read(&[call, call, r#"{"type":"message_stop"}"#]);
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
        assert_eq!(told, expected);
    }

    #[test]
    fn blocks_that_are_never_closed_do_not_pile_up() {
        let (mut reader, mut told) = (Reader::default(), Told::default());
        for index in 0..1000 {
            let begin = format!(
                r#"{{"type":"content_block_start","index":{index},"content_block":{{"type":"text"}}}}"#
            );
            let _ = reader.event(b"", begin.as_bytes(), Nodes::new(), &mut told);
        }
        assert_eq!(reader.open.len(), OPEN_BLOCKS_MAX);
        assert_eq!(
            told.0
                .iter()
                .filter(|word| word.ends_with("closed"))
                .count(),
            1000 - OPEN_BLOCKS_MAX
        );
    }

    #[test]
    fn usage_is_final_once_the_output_was_counted_behind_the_start() {
        let (told, outcome) = read(&[
            r#"{"type":"message_start","message":{"usage":{"input_tokens":9,"output_tokens":1}}}"#,
            r#"{"type":"message_delta","delta":{"stop_reason":null},"usage":{"cache_read_input_tokens":4}}"#,
            r#"{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":12}}"#,
        ]);
        assert_eq!(
            told,
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
        assert_eq!(read(&[r#"{"type":"message_stop"}"#]).1, Err(Fault::Cut));
        assert_eq!(
            read(&[r#"{"type":"ping"}"#]),
            (vec!["end".to_owned()], Ok(()))
        );
        assert_eq!(read(&["[]"]).1, Err(Fault::NotJson));
        assert!(matches!(
            read(&[r#"{"error":{"message":"no"}}"#]).1,
            Err(Fault::Vendor(_))
        ));
    }
}
