//! Translation with arbitrary input: the output is legal for its reader, and does not depend on
//! where the bytes are cut.
//!
//! The corpus is every vector's payload, changed at random: values swapped inside the JSON, bytes
//! changed outside it. Read next: `properties/legal.rs`, which defines what a strict reader
//! accepts.

use crate::legal;
use crate::streams::cut;
use llm_protocol::Protocol;
use llm_protocol::capabilities::{
    ChatModel, MessagesModel, ModelCapabilities, ReasoningReplay, SamplingSupport, ThinkingType,
    ToolsWithReasoning, TranslationTarget,
};
use llm_protocol::failure::Failure;
use llm_protocol::ir::Effort;
use llm_protocol::profile::VendorProfile;
use llm_protocol::sse::SseDecoder;
use llm_protocol::translate::{self, StreamTranslation, TranslatedRequest, TranslationRequest};
use llm_protocol::usage::Usage;
use llm_protocol::vendor_response::ResponseStream as _;
use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::LazyLock;

pub const EVENT_BYTES_MAX: usize = 1 << 16;

/// The real payloads of one kind: the files with these names in the folders of `pair`.
pub fn payloads(pair: &str, names: &[&str]) -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/vectors")
        .join(pair);
    let mut folders: Vec<_> = std::fs::read_dir(root)
        .unwrap()
        .flatten()
        .map(|entry| entry.path())
        .collect();
    folders.sort();
    let files = folders
        .iter()
        .flat_map(|folder| names.iter().map(|name| folder.join(name)));
    files
        .filter_map(|file| std::fs::read_to_string(file).ok())
        .collect()
}

struct Corpus {
    requests: Vec<String>,
    streams: Vec<String>,
    wholes: Vec<String>,
}

static CHAT_TO_MESSAGES: LazyLock<Corpus> = LazyLock::new(|| corpus("chat-to-messages"));
static MESSAGES_TO_CHAT: LazyLock<Corpus> = LazyLock::new(|| corpus("messages-to-chat"));

fn corpus(pair: &str) -> Corpus {
    let corpus = Corpus {
        requests: payloads(pair, &["client_request.json"]),
        streams: payloads(pair, &["vendor_response.sse"]),
        wholes: payloads(pair, &["vendor_response.json"]),
    };
    assert!(
        corpus.requests.len() > 10 && corpus.streams.len() > 5 && corpus.wholes.len() > 5,
        "{pair}"
    );
    corpus
}

/// The streams and whole answers of a vendor.
pub fn answers_of(vendor: Protocol) -> (&'static [String], &'static [String]) {
    let corpus = corpus_of(other(vendor));
    (&corpus.streams, &corpus.wholes)
}

fn corpus_of(surface: Protocol) -> &'static Corpus {
    match surface {
        Protocol::Chat => &CHAT_TO_MESSAGES,
        _ => &MESSAGES_TO_CHAT,
    }
}

pub fn other(protocol: Protocol) -> Protocol {
    match protocol {
        Protocol::Chat => Protocol::Messages,
        _ => Protocol::Chat,
    }
}

/// A model of the other protocol. `kind` selects one of three.
pub fn model(surface: Protocol, kind: u8) -> ModelCapabilities {
    let efforts = vec![Effort::Low, Effort::Medium, Effort::High];
    match (surface, kind % 3) {
        (Protocol::Chat, 0) => ModelCapabilities::Messages(MessagesModel::default()),
        (Protocol::Chat, 1) => ModelCapabilities::Messages(MessagesModel {
            sampling: SamplingSupport::OneOf,
            thinking_types: vec![ThinkingType::Enabled, ThinkingType::Disabled],
            prefill: true,
            structured: true,
            ..MessagesModel::default()
        }),
        (Protocol::Chat, _) => ModelCapabilities::Messages(MessagesModel {
            thinking_types: vec![ThinkingType::Adaptive, ThinkingType::BetweenTools],
            thinks_by_default: true,
            effort_levels: efforts,
            mid_system: true,
            structured: true,
            ..MessagesModel::default()
        }),
        (_, 0) => ModelCapabilities::Chat(ChatModel::default()),
        (_, 1) => ModelCapabilities::Chat(ChatModel {
            reasoning: true,
            effort_values: efforts,
            tools_with_reasoning: ToolsWithReasoning::EffortNone,
            sampling: false,
            stop: false,
            cache_breakpoints: true,
            system_role: "developer",
            ..ChatModel::default()
        }),
        _ => ModelCapabilities::Chat(ChatModel {
            reasoning_replay: ReasoningReplay::ReasoningDetails,
            ..ChatModel::default()
        }),
    }
}

pub fn ask(
    surface: Protocol,
    body: &[u8],
    accepts: &ModelCapabilities,
) -> Result<TranslatedRequest, Failure> {
    let target = TranslationTarget {
        upstream_model: "upstream-model",
        public_model: "public-model",
        max_output_tokens: 32_000,
        profile: VendorProfile::official(accepts.protocol()),
        accepts,
    };
    let asked = TranslationRequest {
        surface,
        body,
        target,
        account_id: "acct_1",
        output_limit: None,
        strict: false,
        clock: || 1_700_000_000,
        request_id: "req_0",
        estimator: llm_protocol::usage::UsageEstimator::default(),
    };
    translate::translate_request(&asked, false)
}

/// Small values that replace others.
pub fn odd_value() -> impl Strategy<Value = Value> {
    prop::sample::select(vec![
        json!(null),
        json!(""),
        json!(" \n"),
        json!("x"),
        json!([]),
        json!({}),
        json!(0),
        json!(-1),
        json!(1.5),
        json!(true),
        json!([null]),
        json!({"type": "text", "text": "t"}),
        json!({"type": "tool_use", "id": "a b", "name": "n.n", "input": []}),
        json!({"role": "tool", "tool_call_id": "call_1", "content": "r"}),
        json!({"role": "assistant", "content": "  "}),
        json!({"type": "text"}),
        json!("{\"a\":"),
        json!("\u{1f600}\u{0}\u{2028}"),
    ])
}

/// Replaces the `at`-th value of the tree, counted depth first, with `value`, or removes it.
fn change(tree: &mut Value, at: &mut usize, value: &Value, remove: bool) {
    if *at == 0 {
        *tree = value.clone();
    }
    *at = at.wrapping_sub(1);
    match tree {
        Value::Array(items) => {
            if remove && *at < items.len() {
                items.remove(*at);
                *at = usize::MAX;
                return;
            }
            items
                .iter_mut()
                .for_each(|item| change(item, at, value, remove));
        }
        Value::Object(members) => {
            if remove && *at < members.len() {
                let key = members.keys().nth(*at).cloned().unwrap();
                members.remove(&key);
                *at = usize::MAX;
                return;
            }
            members
                .iter_mut()
                .for_each(|(_, member)| change(member, at, value, remove));
        }
        _ => {}
    }
}

fn size(tree: &Value) -> usize {
    1 + match tree {
        Value::Array(items) => items.iter().map(size).sum(),
        Value::Object(members) => members.values().map(size).sum(),
        _ => 0,
    }
}

/// Changes some values. The model stays, because there is no request without it.
pub fn changed(text: &str, changes: &[(Index, Value, bool)]) -> String {
    let Ok(mut tree) = serde_json::from_str::<Value>(text) else {
        return text.to_owned();
    };
    for (index, value, remove) in changes {
        let mut at = index.index(size(&tree)).max(1);
        change(&mut tree, &mut at, value, *remove);
    }
    if let Some(members) = tree.as_object_mut() {
        members.insert("model".to_owned(), json!("public-model"));
    }
    tree.to_string()
}

/// The result of a translated stream.
#[derive(PartialEq, Debug)]
pub struct Told {
    out: String,
    failed: bool,
    completed: bool,
    usage: Option<Usage>,
}

fn tell(surface: Protocol, request: &str, pieces: &[&[u8]], event_bytes_max: usize) -> Told {
    let recall = ask(surface, request.as_bytes(), &model(surface, 1))
        .unwrap()
        .response_context;
    let mut stream = StreamTranslation::new(other(surface), surface, recall, true, event_bytes_max);
    let mut out = Vec::new();
    let mut failed = false;
    for piece in pieces {
        failed = failed || stream.push(piece, &mut out).is_err();
    }
    failed = failed || stream.finish(&mut out).is_err();
    // Bytes after the end produce no output.
    let length = out.len();
    let _ = stream.push(b"data: {}\n\n", &mut out);
    assert_eq!(out.len(), length);
    Told {
        out: String::from_utf8(out).unwrap(),
        failed,
        completed: stream.is_complete(),
        usage: stream.usage().map(|metered| metered.usage),
    }
}

fn usual(surface: Protocol) -> &'static str {
    match surface {
        Protocol::Chat => {
            r#"{"model":"public-model","stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"Hi"}]}"#
        }
        _ => {
            r#"{"model":"public-model","max_tokens":4000,"stream":true,"thinking":{"type":"adaptive"},"messages":[{"role":"user","content":"Hi"}]}"#
        }
    }
}

/// The name and the data of each event.
pub fn events(stream: &str) -> Vec<(String, String)> {
    let mut decoder = SseDecoder::new(1 << 24);
    decoder.feed(stream.as_bytes());
    let mut events = Vec::new();
    while let Some(event) = decoder.next_event().unwrap() {
        if let Some(data) = event.data {
            let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
            events.push((text(event.name), text(data)));
        }
    }
    events
}

fn surface() -> impl Strategy<Value = Protocol> {
    prop_oneof![Just(Protocol::Chat), Just(Protocol::Messages)]
}

pub fn changes() -> impl Strategy<Value = Vec<(Index, Value, bool)>> {
    prop::collection::vec(
        (any::<Index>(), odd_value(), prop::bool::weighted(0.3)),
        0..4,
    )
}

/// A stream of the corpus with whole events left out, doubled or swapped, and with values and bytes
/// changed.
fn changed_stream(
    surface: Protocol,
    pick: Index,
    changes: &[(Index, u8, Value)],
    bytes: &[(Index, u8)],
) -> Vec<u8> {
    let streams = &corpus_of(surface).streams;
    let stream: &String = pick.get(streams.as_slice());
    changed_events(stream, changes, bytes)
}

pub fn changed_events(
    stream: &str,
    changes: &[(Index, u8, Value)],
    bytes: &[(Index, u8)],
) -> Vec<u8> {
    let mut events: Vec<String> = stream.split_inclusive("\n\n").map(str::to_owned).collect();
    for (index, how, value) in changes {
        let at = index.index(events.len().max(1));
        if at >= events.len() {
            continue;
        }
        match how % 4 {
            0 => drop(events.remove(at)),
            1 => events.insert(at, events[at].clone()),
            2 => {
                let other = events.len() - 1 - at;
                events.swap(at, other);
            }
            _ => {
                let Some((before, data)) = events[at].split_once("data: ") else {
                    continue;
                };
                let Ok(mut tree) = serde_json::from_str::<Value>(data.trim()) else {
                    continue;
                };
                let mut place = index.index(size(&tree)).max(1);
                change(&mut tree, &mut place, value, false);
                events[at] = format!("{before}data: {tree}\n\n");
            }
        }
    }
    let mut stream = events.concat().into_bytes();
    let halves = half_pairs(&stream);
    for (index, byte) in bytes {
        if stream.is_empty() {
            break;
        }
        let at = index.index(stream.len());
        let before = std::mem::replace(&mut stream[at], *byte);
        // A half in the middle of a text is written as it was read, which the parser of these tests
        // refuses.
        if half_pairs(&stream) > halves {
            stream[at] = before;
        }
    }
    stream
}

/// Number of escapes that are one half of a surrogate pair, without the other.
fn half_pairs(stream: &[u8]) -> usize {
    let unit = |at: usize| {
        let digits = stream.get(at..at + 6)?.strip_prefix(b"\\u")?;
        u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
    };
    let (mut count, mut at) = (0, 0);
    while at < stream.len() {
        at += match (unit(at), unit(at + 6)) {
            (Some(0xd800..=0xdbff), Some(0xdc00..=0xdfff)) => 12,
            (Some(0xd800..=0xdfff), _) => {
                count += 1;
                6
            }
            _ if stream[at] == b'\\' => 2,
            _ => 1,
        };
    }
    count
}

#[test]
fn halves_of_pairs_are_counted_and_whole_pairs_are_not() {
    for (text, halves) in [
        (r"\ud83d\ude00", 0),
        (r"#ud83d\ude00", 1),
        (r"\ud83d#ude00", 1),
        (r"\ud83d\ud83d\ude00", 1),
        (r"\\ud83d", 0),
        (r"\u00e4", 0),
    ] {
        assert_eq!(half_pairs(text.as_bytes()), halves, "{text}");
    }
}

proptest! {
    #![proptest_config(crate::cases(2000))]

    #[test]
    fn a_request_that_is_not_refused_is_one_that_its_vendor_takes(
        surface in surface(), pick: Index, changes in changes(), kind: u8,
    ) {
        let request: &String = pick.get(corpus_of(surface).requests.as_slice());
        let request = changed(request, &changes);
        let accepts = model(surface, kind);
        if let Ok(translated) = ask(surface, request.as_bytes(), &accepts) {
            let body: Value = serde_json::from_slice(&translated.body)
                .map_err(|error| TestCaseError::fail(format!("{error}: {request}")))?;
            prop_assert_eq!(&body["model"], &json!("upstream-model"));
            let fault = legal::request(other(surface), &body, &accepts);
            prop_assert!(fault.is_ok(), "{}\n{}\n{}", fault.unwrap_err(), request, body);
            let mut sorted = translated.warnings.clone();
            sorted.sort();
            sorted.dedup();
            prop_assert_eq!(sorted, translated.warnings);
        }
        let _ = translate::count_tokens(surface, request.as_bytes());
    }

    #[test]
    fn a_stream_is_legal_however_its_vendor_garbles_it_and_however_it_is_cut(
        surface in surface(),
        pick: Index,
        changes in prop::collection::vec((any::<Index>(), any::<u8>(), odd_value()), 0..4),
        bytes in prop::collection::vec((any::<Index>(), any::<u8>()), 0..2),
        cuts in prop::collection::vec(any::<Index>(), 0..12),
        event_bytes_max in prop_oneof![4 => Just(EVENT_BYTES_MAX), 1 => 1..900_usize],
    ) {
        let stream = changed_stream(surface, pick, &changes, &bytes);
        let whole = tell(surface, usual(surface), &[&stream], event_bytes_max);
        let pieces = tell(surface, usual(surface), &cut(&stream, &cuts), event_bytes_max);
        prop_assert_eq!(&whole, &pieces);
        prop_assert_eq!(whole.completed, !whole.failed);
        let fault = legal::stream(surface, &events(&whole.out), whole.completed);
        prop_assert!(fault.is_ok(), "{}\n{}\n{}", fault.unwrap_err(), String::from_utf8_lossy(&stream), whole.out);
    }

    #[test]
    fn a_whole_answer_is_legal_however_its_vendor_garbles_it(surface in surface(), pick: Index, changes in changes()) {
        let answer: &String = pick.get(corpus_of(surface).wholes.as_slice());
        let answer = changed(answer, &changes);
        let recall = ask(surface, usual(surface).as_bytes(), &model(surface, 1)).unwrap().response_context;
        if let Ok(whole) = translate::translate_response(other(surface), surface, recall, false, answer.as_bytes()) {
            let body: Value = serde_json::from_slice(&whole.body)
                .map_err(|error| TestCaseError::fail(format!("{error}: {answer}")))?;
            let fault = legal::answer(surface, &body);
            prop_assert!(fault.is_ok(), "{}\n{}\n{}", fault.unwrap_err(), answer, body);
        }
    }

    #[test]
    fn no_bytes_panic(surface in surface(), bytes in prop::collection::vec(any::<u8>(), 0..300), kind: u8) {
        let accepts = model(surface, kind);
        let _ = ask(surface, &bytes, &accepts);
        let data = [b"data: ".as_slice(), &bytes, b"\n\n"].concat();
        tell(surface, usual(surface), &[&bytes, &data], EVENT_BYTES_MAX);
        let recall = ask(surface, usual(surface).as_bytes(), &accepts).unwrap().response_context;
        let _ = translate::translate_response(other(surface), surface, recall, true, &bytes);
    }

    #[test]
    fn no_change_of_a_byte_panics(surface in surface(), pick: Index, bytes in prop::collection::vec((any::<Index>(), any::<u8>()), 1..4)) {
        let mut request: Vec<u8> = pick.get(corpus_of(surface).requests.as_slice()).clone().into_bytes();
        for (index, byte) in bytes {
            let at = index.index(request.len());
            request[at] = byte;
        }
        let _ = ask(surface, &request, &model(surface, 1));
    }
}

/// Conversations that both protocols can express: texts, and calls with their results.
fn conversation() -> impl Strategy<Value = Vec<Value>> {
    let text = "[a-zA-Zäß世\"\\\\\n ]{0,8}[a-zA-Z\"]";
    let exchange = (
        text,
        prop::collection::vec(("[a-z_]{1,12}", text, text), 0..3),
        text,
    );
    prop::collection::vec(exchange, 1..5).prop_map(|exchanges| {
        let mut messages = Vec::new();
        for (number, (question, calls, answer)) in exchanges.into_iter().enumerate() {
            messages.push(json!({"role": "user", "content": question}));
            if !calls.is_empty() {
                let made = calls.iter().enumerate().map(|(index, (name, argument, _))| {
                    let arguments = json!({"q": argument, "n": [1, null, {"x": 1.50}]}).to_string();
                    json!({"id": format!("call_{number}_{index}"), "type": "function",
                           "function": {"name": name, "arguments": arguments}})
                });
                messages.push(json!({"role": "assistant", "content": null, "tool_calls": made.collect::<Vec<_>>()}));
                for (index, (_, _, result)) in calls.iter().enumerate() {
                    let id = format!("call_{number}_{index}");
                    messages.push(json!({"role": "tool", "tool_call_id": id, "content": result}));
                }
            }
            messages.push(json!({"role": "assistant", "content": answer}));
        }
        messages.push(json!({"role": "user", "content": "and now?"}));
        messages
    })
}

proptest! {
    #![proptest_config(crate::cases(500))]

    #[test]
    fn what_both_can_say_comes_back_as_it_was(messages in conversation()) {
        let calls = messages.iter().filter_map(|message| message["tool_calls"].as_array()).flatten();
        let names: BTreeSet<_> = calls.map(|call| call["function"]["name"].as_str().unwrap()).collect();
        let schema = json!({"type": "object", "properties": {}});
        let tool = |name| json!({"type": "function", "function": {"name": name, "parameters": schema}});
        let tools: Vec<Value> = names.into_iter().map(tool).collect();
        let request = json!({"model": "public-model", "max_completion_tokens": 100, "messages": messages, "tools": tools});
        let there = ask(Protocol::Chat, request.to_string().as_bytes(), &model(Protocol::Chat, 1)).unwrap();
        prop_assert_eq!(there.warnings, Vec::<String>::new());
        let back = ask(Protocol::Messages, &there.body, &model(Protocol::Messages, 0)).unwrap();
        let back: Value = serde_json::from_slice(&back.body).unwrap();
        prop_assert_eq!(&back["messages"], &request["messages"]);
    }
}
