//! Measures the work of passing through and of translating, without a network.
//! `scripts/bench-translation` runs each case under an instruction counter and prints the table.
//!
//! `translation CASE REPETITIONS` does that work the given number of times. `translation list`
//! prints the cases, one a line: name, the case to compare with, unit, units per repetition.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout
)]

use bytes::Bytes;
use llm_protocol::Protocol;
use llm_protocol::capabilities::repair_rules::{KnownCapabilities, RepairRules};
use llm_protocol::capabilities::{
    ChatModel, MessagesModel, ModelCapabilities, ResponsesModel, SamplingSupport, ThinkingType,
    TranslationTarget,
};
use llm_protocol::ir::event::ResponseContext;
use llm_protocol::passthrough::StreamPassthrough;
use llm_protocol::profile::VendorProfile;
use llm_protocol::request::{self, PassthroughContext, RequestEdits};
use llm_protocol::translate::{self, StreamTranslation, TranslationRequest};
use llm_protocol::usage::{MeteringTerms, UsageEstimator};
use llm_protocol::vendor_response::{self, ResponseForm, ResponseStream};
use serde_json::{Value, json};
use std::fmt::Write;
use std::hint::black_box;

// As in the gateway.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const EVENTS: usize = 10_000;
const EVENT_BYTES_MAX: usize = 8 << 20;
const PIECE_BYTES: usize = 16 << 10;

const REQUEST_SIZES: [(&str, usize); 3] = [("1K", 1 << 10), ("64K", 64 << 10), ("1M", 1 << 20)];
const ANSWER_SIZES: [(&str, usize); 2] = [("1K", 1 << 10), ("64K", 64 << 10)];

const PROTOCOLS: [Protocol; 3] = [Protocol::Chat, Protocol::Messages, Protocol::Responses];

/// The kind of work. `from` and `to` of a case are the same if the work is passed through.
#[derive(Clone, Copy)]
enum Work {
    /// From client to vendor.
    Request {
        bytes: usize,
    },
    /// From vendor to client.
    Answer {
        bytes: usize,
    },
    Stream {
        delta: Delta,
        feed: Feed,
    },
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Delta {
    Text,
    Arguments,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Feed {
    /// Each push has one event.
    Events,
    /// Each push has a piece of the size that a busy connection delivers.
    Pieces,
}

struct Case {
    name: String,
    baseline: String,
    work: Work,
    from: Protocol,
    to: Protocol,
}

fn cases() -> Vec<Case> {
    let mut works = Vec::new();
    works.extend(
        REQUEST_SIZES.map(|(size, bytes)| (format!("request-{size}"), Work::Request { bytes })),
    );
    works.extend(
        ANSWER_SIZES.map(|(size, bytes)| (format!("answer-{size}"), Work::Answer { bytes })),
    );
    for (delta, name) in [(Delta::Text, "text"), (Delta::Arguments, "arguments")] {
        for (feed, pieces) in [(Feed::Events, "event"), (Feed::Pieces, "16K")] {
            works.push((
                format!("stream-{name}-{pieces}"),
                Work::Stream { delta, feed },
            ));
        }
    }
    let mut cases = Vec::new();
    for (name, work) in works {
        for from in PROTOCOLS {
            let baseline = format!("{name}-{from}-passed");
            // The pass-through case comes first, as the baseline.
            for to in std::iter::once(from).chain(PROTOCOLS.into_iter().filter(|to| *to != from)) {
                let name = if from == to {
                    baseline.clone()
                } else {
                    format!("{name}-{from}-to-{to}")
                };
                cases.push(Case {
                    name,
                    baseline: baseline.clone(),
                    work,
                    from,
                    to,
                });
            }
        }
    }
    cases
}

fn main() {
    // `cargo bench` adds flags of its own.
    let arguments: Vec<_> = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with("--"))
        .collect();
    match arguments.as_slice() {
        [name, repetitions] => {
            let case = cases()
                .into_iter()
                .find(|case| case.name == *name)
                .expect("a case's name");
            case.run(repetitions.parse().expect("a number of repetitions"));
        }
        _ => {
            for case in cases() {
                let (unit, count) = case.units();
                println!("{} {} {unit} {count}", case.name, case.baseline);
            }
        }
    }
}

impl Case {
    fn units(&self) -> (&'static str, usize) {
        match self.work {
            Work::Request { bytes } => ("byte", agent_request(self.from, bytes).len()),
            Work::Answer { bytes } => ("byte", agent_answer(self.from, bytes).len()),
            Work::Stream { .. } => ("event", EVENTS),
        }
    }

    fn run(&self, repetitions: usize) {
        let models = Models::new();
        match self.work {
            Work::Request { bytes } => {
                let body = agent_request(self.from, bytes);
                for _ in 0..repetitions {
                    black_box(self.request(&models, black_box(&body)));
                }
            }
            Work::Answer { bytes } => {
                let body = agent_answer(self.from, bytes);
                let recall = self.recall(&models);
                for _ in 0..repetitions {
                    let (recall, body) = (recall.clone(), black_box(body.clone()));
                    black_box(
                        vendor_response::convert_response(
                            self.from,
                            self.to,
                            "public-model",
                            recall,
                            ResponseForm {
                                streamed: false,
                                call_seed: None,
                            },
                            body,
                            &MeteringTerms::default(),
                        )
                        .unwrap(),
                    );
                }
            }
            Work::Stream { delta, feed } => {
                let events = stream(self.from, delta);
                let joined = events.concat();
                let recall = self.recall(&models);
                for _ in 0..repetitions {
                    match feed {
                        Feed::Events => {
                            self.stream(recall.clone(), events.iter().map(String::as_bytes))
                        }
                        Feed::Pieces => {
                            self.stream(recall.clone(), joined.as_bytes().chunks(PIECE_BYTES))
                        }
                    }
                }
            }
        }
    }

    /// Does the same as admission: reads the summary, writes the body for the vendor, and reads the
    /// summary of a translated body.
    fn request(&self, models: &Models, body: &Bytes) -> Bytes {
        let outline = request::read_summary(self.from, body).unwrap();
        if self.from != self.to {
            let translated =
                translate::translate_request(&models.asked(self.from, self.to, body), false)
                    .unwrap();
            black_box(request::read_summary(self.to, &translated.body).unwrap());
            return translated.body;
        }
        let edits = RequestEdits {
            model: "upstream-model",
            output_limit: None,
            output_limit_field: match self.to {
                Protocol::Chat => "max_completion_tokens",
                Protocol::Messages => "max_tokens",
                Protocol::Responses => "max_output_tokens",
            },
            thinking_budget: None,
            include_usage: self.from == Protocol::Chat && outline.stream,
        };
        let repair = RepairRules {
            accepts: models.of(self.to),
            known: KnownCapabilities::ALL,
            max_output_tokens: 64_000,
            output_limit: None,
            thinking_budget: None,
            is_interleaved: false,
        };
        let sender = PassthroughContext {
            account_id: "acct_1",
            profile: VendorProfile::official(Protocol::Responses),
            sold: Default::default(),
            without_reasoning: false,
            model: "public-model",
            repair,
        };
        let stripped = match self.from {
            Protocol::Responses => {
                request::clean_responses_request(body, &outline, &sender)
                    .unwrap()
                    .0
            }
            from => request::clean_request(
                from,
                VendorProfile::official(from),
                body,
                &outline,
                Some(&repair),
            ),
        };
        request::rewrite_cleaned(body, &outline, &edits, stripped)
    }

    /// The context of a response. A stream and an answer go from the vendor (`from`) to the client
    /// (`to`), so the request was translated the other way.
    fn recall(&self, models: &Models) -> Option<ResponseContext> {
        (self.from != self.to).then(|| {
            let body = agent_request(self.to, 1 << 10);
            translate::translate_request(&models.asked(self.to, self.from, &body), false)
                .unwrap()
                .response_context
        })
    }

    fn stream<'a>(&self, recall: Option<ResponseContext>, pieces: impl Iterator<Item = &'a [u8]>) {
        let (from, to, max) = (self.from, self.to, EVENT_BYTES_MAX);
        let mut stream: Box<dyn ResponseStream> = match recall {
            None => Box::new(StreamPassthrough::new(from, "public-model", false, max)),
            Some(recall) => Box::new(StreamTranslation::new(from, to, recall, true, max)),
        };
        for piece in pieces {
            // Each piece is sent on as a buffer of its own.
            let mut out = Vec::with_capacity(piece.len() + 64);
            stream.push(black_box(piece), &mut out).unwrap();
            black_box(Bytes::from(out));
        }
        assert!(
            stream.is_complete(),
            "{}: the stream was not completed",
            self.name
        );
        black_box(stream.usage());
    }
}

struct Models {
    chat: ModelCapabilities,
    messages: ModelCapabilities,
    responses: ModelCapabilities,
}

impl Models {
    fn new() -> Self {
        Models {
            chat: ModelCapabilities::Chat(ChatModel::default()),
            messages: ModelCapabilities::Messages(MessagesModel {
                sampling: SamplingSupport::OneOf,
                thinking_types: vec![ThinkingType::Enabled, ThinkingType::Disabled],
                thinks_by_default: false,
                effort_levels: Vec::new(),
                prefill: true,
                mid_system: false,
                structured: true,
                server_tools: Vec::new(),
                min_cache_tokens: None,
            }),
            responses: ModelCapabilities::Responses(ResponsesModel {
                sampling: true,
                ..ResponsesModel::default()
            }),
        }
    }

    fn of(&self, protocol: Protocol) -> &ModelCapabilities {
        match protocol {
            Protocol::Chat => &self.chat,
            Protocol::Messages => &self.messages,
            Protocol::Responses => &self.responses,
        }
    }

    fn asked<'a>(
        &'a self,
        surface: Protocol,
        vendor: Protocol,
        body: &'a [u8],
    ) -> TranslationRequest<'a> {
        TranslationRequest {
            surface,
            body,
            target: TranslationTarget {
                upstream_model: "upstream-model",
                public_model: "public-model",
                max_output_tokens: 64_000,
                profile: VendorProfile::official(vendor),
                accepts: match vendor {
                    Protocol::Chat => &self.chat,
                    Protocol::Messages => &self.messages,
                    Protocol::Responses => &self.responses,
                },
            },
            account_id: "acct_1",
            output_limit: None,
            strict: false,
            clock: || 1_700_000_000,
            request_id: "req_0",
            estimator: UsageEstimator::default(),
        }
    }
}

/// An agent's conversation about code, at most `bytes` long: system prompt, tools, and turns of a
/// tool call and its result.
fn agent_request(surface: Protocol, bytes: usize) -> Bytes {
    // A small body is a first question; a large one has an agent's usual prompt and tools.
    let (prose_bytes, tools) = if bytes < 4 << 10 {
        (60, 1)
    } else {
        ((bytes / 12).min(12 << 10), 16)
    };
    let mut conversation = Conversation::new(surface, prose_bytes, tools);
    let mut left = bytes.saturating_sub(conversation.bytes());
    for turn in 0.. {
        // Mostly reads, sometimes an edit; a few large files among many small ones.
        let code_bytes = [600, 2_400, 5_000, 900][turn % 4].min(left / 4);
        let mut messages = Vec::new();
        conversation.turn(turn, code_bytes, &mut messages);
        let turn_bytes: usize = messages
            .iter()
            .map(|message| message.to_string().len() + 1)
            .sum();
        if turn_bytes > left && turn > 0 {
            break;
        }
        left = left.saturating_sub(turn_bytes);
        conversation.messages.extend(messages);
    }
    conversation.into_body()
}

struct Conversation {
    surface: Protocol,
    system: String,
    tools: Vec<Value>,
    messages: Vec<Value>,
}

impl Conversation {
    fn new(surface: Protocol, prose_bytes: usize, tools: usize) -> Self {
        let tools = (0..tools)
            .map(|index| tool(surface, index, prose_bytes.min(700)))
            .collect();
        let question = json!({"role": "user", "content": prose(prose_bytes.min(400), 1)});
        Conversation {
            surface,
            system: prose(prose_bytes, 0),
            tools,
            messages: vec![question],
        }
    }

    fn turn(&self, turn: usize, code_bytes: usize, messages: &mut Vec<Value>) {
        let said = prose((code_bytes / 8).min(160), turn);
        let result = code(code_bytes, turn);
        let path = format!("src/module_{}/part_{turn}.rs", turn % 17);
        let input = if turn % 4 == 3 {
            json!({"path": path, "old_text": code(code_bytes / 2, turn + 1), "new_text": code(code_bytes / 2, turn + 2)})
        } else {
            json!({"path": path, "offset": turn * 10, "limit": 200})
        };
        let name = if turn % 4 == 3 { "tool_1" } else { "tool_0" };
        let id = format!("{turn:024}");
        match self.surface {
            Protocol::Chat => messages.extend([
                json!({"role": "assistant", "content": said, "tool_calls": [{"id": format!("call_{id}"),
                    "type": "function", "function": {"name": name, "arguments": input.to_string()}}]}),
                json!({"role": "tool", "tool_call_id": format!("call_{id}"), "content": result}),
            ]),
            Protocol::Messages => messages.extend([
                json!({"role": "assistant", "content": [{"type": "text", "text": said},
                    {"type": "tool_use", "id": format!("toolu_{id}"), "name": name, "input": input}]}),
                json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": format!("toolu_{id}"),
                    "content": [{"type": "text", "text": result}]}]}),
            ]),
            Protocol::Responses => messages.extend([
                json!({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": said}]}),
                json!({"type": "function_call", "call_id": format!("call_{id}"), "name": name,
                    "arguments": input.to_string()}),
                json!({"type": "function_call_output", "call_id": format!("call_{id}"), "output": result}),
            ]),
        }
    }

    fn body(&self) -> Value {
        let Conversation {
            surface,
            system,
            tools,
            messages,
        } = self;
        match surface {
            Protocol::Chat => {
                let mut all = vec![json!({"role": "system", "content": system})];
                all.extend_from_slice(messages);
                json!({"model": "public-model", "messages": all, "tools": tools, "stream": true,
                    "stream_options": {"include_usage": true}, "max_completion_tokens": 8000, "temperature": 0.2})
            }
            Protocol::Messages => {
                json!({"model": "public-model", "max_tokens": 8000, "stream": true, "temperature": 0.2,
                    "system": [{"type": "text", "text": system, "cache_control": {"type": "ephemeral"}}],
                    "tools": tools, "messages": messages})
            }
            // In the form in which agents of this protocol send it.
            Protocol::Responses => {
                json!({"model": "public-model", "max_output_tokens": 8000, "stream": true, "store": false,
                    "temperature": 0.2, "include": ["reasoning.encrypted_content"], "prompt_cache_key": "thread-1",
                    "instructions": system, "tools": tools, "input": messages})
            }
        }
    }

    fn bytes(&self) -> usize {
        self.body().to_string().len()
    }

    fn into_body(self) -> Bytes {
        self.body().to_string().into()
    }
}

fn tool(surface: Protocol, index: usize, prose_bytes: usize) -> Value {
    let member = |kind: &str| json!({"type": kind, "description": prose(prose_bytes / 6, index)});
    let mut schema =
        json!({"type": "object", "properties": {"path": member("string")}, "required": ["path"]});
    if prose_bytes > 100 {
        for (name, kind) in [
            ("offset", "integer"),
            ("limit", "integer"),
            ("old_text", "string"),
        ] {
            schema["properties"][name] = member(kind);
        }
        schema["additionalProperties"] = json!(false);
    }
    let (name, description) = (format!("tool_{index}"), prose(prose_bytes, index));
    match surface {
        Protocol::Chat => {
            let function = json!({"name": name, "description": description, "parameters": schema});
            json!({"type": "function", "function": function})
        }
        Protocol::Messages => {
            json!({"name": name, "description": description, "input_schema": schema})
        }
        Protocol::Responses => {
            json!({"type": "function", "name": name, "description": description, "parameters": schema, "strict": false})
        }
    }
}

/// Sentences with a line break every few of them.
fn prose(bytes: usize, seed: usize) -> String {
    const SENTENCES: [&str; 6] = [
        "Read a file before you edit it, and keep the style that stands there.",
        " Never guess what a function returns — look it up.",
        " The user may say \"stop\" at any time; then nothing more is changed.\n\n",
        "- Prefer small steps: one change, one run of the tests.\n",
        "- A path is relative to the project's root, e.g. `src/main.rs`.\n",
        "When all is done, say in one sentence what was changed and why.\n",
    ];
    fill(bytes, seed, &SENTENCES)
}

fn code(bytes: usize, seed: usize) -> String {
    const LINES: [&str; 9] = [
        "fn parse_header(line: &str) -> Result<Header, Error> {\n",
        "    let (name, value) = line.split_once(':').ok_or(Error::NoColon)?;\n",
        "    if name.is_empty() {\n",
        "        return Err(Error::Empty(\"name\"));\n",
        "    }\n",
        "    log::debug!(\"header {name}: {}\", value.trim());\n",
        "    Ok(Header { name: name.to_owned(), value: value.trim().to_owned() })\n",
        "}\n",
        "\n",
    ];
    fill(bytes, seed, &LINES)
}

/// The pieces in turn, cut off at `bytes`.
fn fill(bytes: usize, seed: usize, pieces: &[&str]) -> String {
    let mut text = String::new();
    for piece in pieces.iter().cycle().skip(seed % pieces.len()) {
        let left = bytes.saturating_sub(text.len());
        let end = (0..=left.min(piece.len()))
            .rev()
            .find(|end| piece.is_char_boundary(*end))
            .unwrap_or(0);
        text.push_str(piece.get(..end).unwrap_or_default());
        if text.len() == bytes || end < piece.len() {
            return text;
        }
    }
    text
}

/// A whole answer of about `bytes`, with a text and a tool call.
fn agent_answer(vendor: Protocol, bytes: usize) -> Bytes {
    let said = bytes.saturating_sub(500) * 9 / 10;
    let text = code(said * 2 / 3, 0) + &prose(said / 4, 1);
    let input = json!({"path": "src/main.rs", "old_text": code(said / 20, 2)});
    let body = match vendor {
        Protocol::Chat => {
            json!({"id": "chatcmpl-1", "object": "chat.completion", "created": 1_700_000_000,
            "model": "upstream-model", "choices": [{"index": 0, "message": {"role": "assistant", "content": text,
                "refusal": null, "tool_calls": [{"id": "call_000000000000000000000001", "type": "function",
                    "function": {"name": "tool_0", "arguments": input.to_string()}}]},
                "logprobs": null, "finish_reason": "tool_calls"}],
            "usage": {"prompt_tokens": 500, "completion_tokens": 300, "total_tokens": 800}})
        }
        Protocol::Messages => {
            json!({"id": "msg_1", "type": "message", "role": "assistant", "model": "upstream-model",
            "content": [{"type": "text", "text": text}, {"type": "tool_use", "id": "toolu_000000000000000000000001",
                "name": "tool_0", "input": input}], "stop_reason": "tool_use", "stop_sequence": null,
            "usage": {"input_tokens": 500, "output_tokens": 300}})
        }
        Protocol::Responses => {
            let part =
                json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []});
            let said = json!({"id": "msg_1", "type": "message", "status": "completed", "role": "assistant", "content": [part]});
            let call = responses_call("completed", &input.to_string());
            responses_envelope(
                "completed",
                &json!([said, call]),
                &json!({"input_tokens": 500, "output_tokens": 300}),
            )
        }
    };
    body.to_string().into()
}

/// The events of a stream, [`EVENTS`] of them deltas of about 20 bytes. Written by hand, with the
/// members in the vendors' order.
fn stream(vendor: Protocol, delta: Delta) -> Vec<String> {
    match vendor {
        Protocol::Chat => chat_stream(delta),
        Protocol::Messages => messages_stream(delta),
        Protocol::Responses => responses_stream(delta),
    }
}

/// A delta of about 20 bytes; one in eight has an escape. The argument deltas together form an
/// object with one JSON string.
fn delta_text(delta: Delta, index: usize) -> String {
    if delta == Delta::Arguments && index == 0 {
        return "{\"path\":\"".to_owned();
    }
    if delta == Delta::Arguments && index + 1 == EVENTS {
        return "\"}".to_owned();
    }
    match (index % 8, delta) {
        (7, Delta::Text) => format!("\n- item {:05} \"is\" ", index),
        (7, Delta::Arguments) => format!("\\n  item {:05} \\\"is\\\" ", index),
        _ => format!(" some words in {:05}", index),
    }
}

fn chat_stream(delta: Delta) -> Vec<String> {
    let chunk = |delta: &str, finish: &str, usage: &str| {
        format!(
            "data: {{\"id\":\"chatcmpl-AbCdEfGhIjKlMnOpQrStUvWxYz012\",\"object\":\"chat.completion.chunk\",\
             \"created\":1700000000,\"model\":\"upstream-model\",\"service_tier\":\"default\",\
             \"system_fingerprint\":\"fp_0123456789\",\"choices\":[{{\"index\":0,\"delta\":{delta},\
             \"logprobs\":null,\"finish_reason\":{finish}}}],\"usage\":{usage}}}\n\n"
        )
    };
    let mut events = vec![chunk(
        "{\"role\":\"assistant\",\"content\":\"\",\"refusal\":null}",
        "null",
        "null",
    )];
    if delta == Delta::Arguments {
        let call = "{\"tool_calls\":[{\"index\":0,\"id\":\"call_000000000000000000000001\",\"type\":\"function\",\
                    \"function\":{\"name\":\"tool_0\",\"arguments\":\"\"}}]}";
        events.push(chunk(call, "null", "null"));
    }
    for index in 0..EVENTS {
        let text = Value::String(delta_text(delta, index));
        let delta = match delta {
            Delta::Text => format!("{{\"content\":{text}}}"),
            Delta::Arguments => {
                format!(
                    "{{\"tool_calls\":[{{\"index\":0,\"function\":{{\"arguments\":{text}}}}}]}}"
                )
            }
        };
        events.push(chunk(&delta, "null", "null"));
    }
    let finish = if delta == Delta::Text {
        "\"stop\""
    } else {
        "\"tool_calls\""
    };
    events.push(chunk("{}", finish, "null"));
    let mut last = String::from(
        "data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,",
    );
    let usage = "{\"prompt_tokens\":500,\"completion_tokens\":50000,\"total_tokens\":50500}";
    write!(
        last,
        "\"model\":\"upstream-model\",\"choices\":[],\"usage\":{usage}}}\n\n"
    )
    .unwrap();
    events.extend([last, "data: [DONE]\n\n".to_owned()]);
    events
}

fn messages_stream(delta: Delta) -> Vec<String> {
    let event = |name: &str, data: &str| format!("event: {name}\ndata: {data}\n\n");
    let start = "{\"type\":\"message_start\",\"message\":{\"id\":\"msg_0123456789\",\"type\":\"message\",\
                 \"role\":\"assistant\",\"model\":\"upstream-model\",\"content\":[],\"stop_reason\":null,\
                 \"stop_sequence\":null,\"usage\":{\"input_tokens\":500,\"output_tokens\":1}}}";
    let block = match delta {
        Delta::Text => "{\"type\":\"text\",\"text\":\"\"}",
        Delta::Arguments => {
            "{\"type\":\"tool_use\",\"id\":\"toolu_000000000000000000000001\",\"name\":\"tool_0\",\"input\":{}}"
        }
    };
    let block =
        format!("{{\"type\":\"content_block_start\",\"index\":0,\"content_block\":{block}}}");
    let mut events = vec![
        event("message_start", start),
        event("content_block_start", &block),
    ];
    for index in 0..EVENTS {
        let text = Value::String(delta_text(delta, index));
        let delta = match delta {
            Delta::Text => format!("{{\"type\":\"text_delta\",\"text\":{text}}}"),
            Delta::Arguments => {
                format!("{{\"type\":\"input_json_delta\",\"partial_json\":{text}}}")
            }
        };
        let data = format!("{{\"type\":\"content_block_delta\",\"index\":0,\"delta\":{delta}}}");
        events.push(event("content_block_delta", &data));
    }
    let reason = if delta == Delta::Text {
        "end_turn"
    } else {
        "tool_use"
    };
    let end = format!(
        "{{\"type\":\"message_delta\",\"delta\":{{\"stop_reason\":\"{reason}\",\"stop_sequence\":null}},\
         \"usage\":{{\"output_tokens\":50000}}}}"
    );
    events.push(event(
        "content_block_stop",
        "{\"type\":\"content_block_stop\",\"index\":0}",
    ));
    events.push(event("message_delta", &end));
    events.push(event("message_stop", "{\"type\":\"message_stop\"}"));
    events
}

fn responses_call(status: &str, arguments: &str) -> Value {
    json!({"id": "fc_1", "type": "function_call", "status": status, "call_id": "call_000000000000000000000001",
        "name": "tool_0", "arguments": arguments})
}

fn responses_envelope(status: &str, output: &Value, usage: &Value) -> Value {
    json!({"id": "resp_0123456789abcdef0123456789abcdef", "object": "response", "created_at": 1_700_000_000,
        "status": status, "error": null, "incomplete_details": null, "model": "upstream-model", "output": output,
        "parallel_tool_calls": true, "reasoning": {"effort": null, "summary": null}, "service_tier": "default",
        "store": false, "text": {"format": {"type": "text"}}, "tool_choice": "auto", "tools": [], "usage": usage})
}

fn responses_stream(delta: Delta) -> Vec<String> {
    let mut events = Vec::new();
    let mut event = |kind: &str, members: &str| {
        let number = events.len();
        events.push(format!(
            "event: response.{kind}\ndata: {{\"type\":\"response.{kind}\",\"sequence_number\":{number},{members}}}\n\n"
        ));
    };
    let begun = responses_envelope("in_progress", &json!([]), &Value::Null);
    event("created", &format!("\"response\":{begun}"));
    event("in_progress", &format!("\"response\":{begun}"));
    let all: String = (0..EVENTS).map(|index| delta_text(delta, index)).collect();
    let part = |text: &str| json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []});
    let item = |status: &str, text: &str| match delta {
        Delta::Text => {
            let content = if text.is_empty() {
                json!([])
            } else {
                json!([part(text)])
            };
            json!({"id": "msg_1", "type": "message", "status": status, "role": "assistant", "content": content})
        }
        Delta::Arguments => responses_call(status, text),
    };
    event(
        "output_item.added",
        &format!("\"output_index\":0,\"item\":{}", item("in_progress", "")),
    );
    let (id, kind, place) = match delta {
        Delta::Text => ("msg_1", "output_text", ",\"content_index\":0"),
        Delta::Arguments => ("fc_1", "function_call_arguments", ""),
    };
    let at = format!("\"item_id\":\"{id}\",\"output_index\":0{place}");
    if delta == Delta::Text {
        event("content_part.added", &format!("{at},\"part\":{}", part("")));
    }
    for index in 0..EVENTS {
        let text = Value::String(delta_text(delta, index));
        // The real vendor sends padding.
        event(
            &format!("{kind}.delta"),
            &format!("{at},\"delta\":{text},\"logprobs\":[],\"obfuscation\":\"aK3xQ9mZ7t\""),
        );
    }
    let member = if delta == Delta::Text {
        "text"
    } else {
        "arguments"
    };
    event(
        &format!("{kind}.done"),
        &format!("{at},\"{member}\":{}", Value::String(all.clone())),
    );
    if delta == Delta::Text {
        event(
            "content_part.done",
            &format!("{at},\"part\":{}", part(&all)),
        );
    }
    let done = item("completed", &all);
    event(
        "output_item.done",
        &format!("\"output_index\":0,\"item\":{done}"),
    );
    let usage = json!({"input_tokens": 500, "output_tokens": 50_000, "total_tokens": 50_500});
    event(
        "completed",
        &format!(
            "\"response\":{}",
            responses_envelope("completed", &json!([done]), &usage)
        ),
    );
    events
}
