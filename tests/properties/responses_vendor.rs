//! Vendors that speak the responses protocol, with arbitrary requests and arbitrary answers. The
//! gateway sends only requests that such a vendor accepts. Its output does not depend on where the
//! bytes of the answer are cut.
//!
//! The corpus is the vectors, changed at random. Read next: `properties/responses.rs`, which tests
//! the responses surface in this way.

use crate::legal;
use crate::streams::cut;
use crate::translation::{
    EVENT_BYTES_MAX, ask, changed, changed_events, changes, events, odd_value, payloads,
};
use bytes::Bytes;
use llm_protocol::Protocol;
use llm_protocol::capabilities::repair_rules::{KnownCapabilities, RepairRules};
use llm_protocol::capabilities::{ModelCapabilities, ResponsesModel};
use llm_protocol::ir::Effort;
use llm_protocol::passthrough::StreamPassthrough;
use llm_protocol::profile::VendorProfile;
use llm_protocol::request::{self, PassthroughContext, RequestEdits};
use llm_protocol::translate::{self, StreamTranslation};
use llm_protocol::vendor_response::ResponseStream as _;
use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::Value;
use std::sync::LazyLock;

struct Corpus {
    chat: Vec<String>,
    messages: Vec<String>,
    responses: Vec<String>,
    streams: Vec<String>,
    wholes: Vec<String>,
}

static CORPUS: LazyLock<Corpus> = LazyLock::new(|| {
    let pairs = [
        "chat-to-responses",
        "messages-to-responses",
        "responses-to-responses",
    ];
    let of = |pairs: &[&str], name: &str| {
        pairs
            .iter()
            .flat_map(|pair| payloads(pair, &[name]))
            .collect::<Vec<_>>()
    };
    let requests = "client_request.json";
    let corpus = Corpus {
        chat: of(&["chat-to-responses", "chat-to-messages"], requests),
        messages: of(&["messages-to-responses", "messages-to-chat"], requests),
        responses: of(
            &[
                "responses-to-responses",
                "responses-to-messages",
                "responses-to-chat",
            ],
            requests,
        ),
        streams: of(&pairs, "vendor_response.sse"),
        wholes: of(&pairs, "vendor_response.json"),
    };
    assert!(corpus.chat.len() > 30 && corpus.messages.len() > 30 && corpus.responses.len() > 30);
    assert!(corpus.streams.len() > 10 && corpus.wholes.len() > 5);
    corpus
});

fn accepts(reasoning: bool) -> ModelCapabilities {
    ModelCapabilities::Responses(ResponsesModel {
        reasoning,
        effort_values: vec![Effort::None, Effort::Low, Effort::High],
        summaries: reasoning,
        sampling: !reasoning,
        cache_breakpoints: true,
        verbosity: true,
        functions_only: false,
    })
}

const USUAL: [(Protocol, &str); 2] = [
    (
        Protocol::Chat,
        r#"{"model":"public-model","stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"Hi"}]}"#,
    ),
    (
        Protocol::Messages,
        r#"{"model":"public-model","max_tokens":4000,"stream":true,"thinking":{"type":"adaptive"},"messages":[{"role":"user","content":"Hi"}]}"#,
    ),
];

/// The event without the `output_index` of its item.
fn without_place(event: &str) -> String {
    let line = |line: &str| {
        let bare = line.strip_prefix("data: ").and_then(|data| {
            let mut data: Value = serde_json::from_str(data).ok()?;
            data.as_object_mut()?.remove("output_index");
            Some(format!("data: {data}"))
        });
        bare.unwrap_or_else(|| line.to_owned())
    };
    event.split('\n').map(line).collect::<Vec<_>>().join("\n")
}

fn tell(usual: usize, pieces: &[&[u8]], event_bytes_max: usize) -> (String, bool, bool) {
    let (surface, request) = USUAL[usual];
    let recall = ask(surface, request.as_bytes(), &accepts(true))
        .unwrap()
        .response_context;
    let mut stream =
        StreamTranslation::new(Protocol::Responses, surface, recall, true, event_bytes_max);
    let (mut out, mut failed) = (Vec::new(), false);
    for piece in pieces {
        failed = failed || stream.push(piece, &mut out).is_err();
    }
    failed = failed || stream.finish(&mut out).is_err();
    (
        String::from_utf8(out).unwrap(),
        failed,
        stream.is_complete(),
    )
}

fn pass(pieces: &[&[u8]], event_bytes_max: usize) -> (String, bool, bool) {
    let mut pass =
        StreamPassthrough::new(Protocol::Responses, "public-model", false, event_bytes_max);
    let (mut out, mut failed) = (Vec::new(), false);
    for piece in pieces {
        failed = failed || pass.push(piece, &mut out).is_err();
    }
    failed = failed || pass.finish(&mut out).is_err();
    (
        String::from_utf8_lossy(&out).into_owned(),
        failed,
        pass.is_complete(),
    )
}

/// Returns the first thing in a conversation that the vendor always refuses.
fn conversation(body: &Value) -> Result<(), String> {
    let items = body["input"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    let mut open = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let id = item["call_id"].as_str().unwrap_or_default();
        match item["type"].as_str().unwrap_or_default() {
            "reasoning" => {
                let sealed = item["encrypted_content"].as_str().unwrap_or_default();
                if sealed.is_empty() || sealed.starts_with("gw1.") {
                    return Err(format!("input[{index}]: not its own reasoning"));
                }
                let next = items[index + 1..]
                    .iter()
                    .find(|next| next["type"] != "reasoning");
                let is_led = |next: &Value| {
                    next["role"] == "assistant"
                        || next["type"].as_str().unwrap_or_default().ends_with("_call")
                };
                if !next.is_some_and(is_led) {
                    return Err(format!("input[{index}]: reasoning that led to nothing"));
                }
            }
            "function_call" | "custom_tool_call" if id.is_empty() || id.chars().count() > 64 => {
                return Err(format!("input[{index}]: call id {id:?}"));
            }
            "function_call" | "custom_tool_call" => open.push(id),
            "function_call_output" | "custom_tool_call_output" => {
                match open.iter().position(|call| *call == id) {
                    Some(at) => drop(open.remove(at)),
                    None => return Err(format!("input[{index}]: an output without a call")),
                }
            }
            "message" => {}
            other => return Err(format!("input[{index}]: {other:?}")),
        }
        if item["type"] != "reasoning" && item.get("id").is_some() {
            return Err(format!("input[{index}]: an id"));
        }
    }
    let is_explicit = |tool: &Value| tool["type"] != "function" || tool["strict"].is_boolean();
    if !body["tools"]
        .as_array()
        .is_none_or(|tools| !tools.is_empty() && tools.iter().all(is_explicit))
    {
        return Err("a tool that does not say whether it is strict".to_owned());
    }
    let limit = body.get("max_output_tokens").and_then(Value::as_u64);
    if limit.is_some_and(|limit| limit < 16) || body["store"] != false || !open.is_empty() {
        return Err("limit, store or open calls".to_owned());
    }
    Ok(())
}

proptest! {
    #![proptest_config(crate::cases(1500))]

    #[test]
    fn a_request_that_is_not_refused_is_one_that_its_vendor_takes(
        of_chat: bool, pick: Index, reasoning: bool, changes in changes(),
    ) {
        let (surface, requests) =
            if of_chat { (Protocol::Chat, &CORPUS.chat) } else { (Protocol::Messages, &CORPUS.messages) };
        let request = changed(pick.get::<String>(requests.as_slice()), &changes);
        if let Ok(translated) = ask(surface, request.as_bytes(), &accepts(reasoning)) {
            let body: Value = serde_json::from_slice(&translated.body)
                .map_err(|error| TestCaseError::fail(format!("{error}: {request}")))?;
            let fault = conversation(&body);
            prop_assert!(fault.is_ok(), "{}\n{}\n{}", fault.unwrap_err(), request, body);
        }
    }

    #[test]
    fn a_request_that_is_passed_on_names_nothing_that_is_kept(
        pick: Index,
        without: bool,
        is_repaired: bool,
        changes in changes(),
    ) {
        let request = changed(pick.get::<String>(CORPUS.responses.as_slice()), &changes);
        let accepts = ModelCapabilities::Responses(ResponsesModel::default());
        let repair = RepairRules {
            accepts: &accepts,
            known: if is_repaired { KnownCapabilities::ALL } else { KnownCapabilities::NONE },
            max_output_tokens: 64_000,
            output_limit: None,
            thinking_budget: None,
            is_interleaved: false,
        };
        let sender = PassthroughContext {
            account_id: "acct_1", profile: VendorProfile::official(Protocol::Responses), sold: Default::default(), without_reasoning: without, model: "public-model",
            repair,
        };
        let edits = RequestEdits {
            model: "upstream-model", output_limit: Some(40), output_limit_field: "max_output_tokens",
            thinking_budget: None, include_usage: false,
        };
        let body = Bytes::from(request.clone());
        let Ok(outline) = request::read_summary(Protocol::Responses, &body) else { return Ok(()) };
        if let Ok((stripped, carries)) = request::clean_responses_request(&body, &outline, &sender) {
            let sent = request::rewrite_cleaned(&body, &outline, &edits, stripped);
            let told: Value = serde_json::from_slice(&sent)
                .map_err(|error| TestCaseError::fail(format!("{error}: {request}")))?;
            prop_assert_eq!(&told["store"], false, "{}", request);
            prop_assert!(told.get("client_metadata").is_none() && told.get("user").is_none());
            let items = told["input"].as_array().map(Vec::as_slice).unwrap_or_default();
            let thoughts: Vec<_> = items.iter().filter(|item| item["type"] == "reasoning").collect();
            // If the request names an answer by its id, the vendor may miss the reasoning of that
            // answer.
            let is_answer = |item: &Value| item["role"] == "assistant" || item["type"].as_str().is_some_and(|kind| kind.ends_with("_call"));
            let is_named = items.iter().any(|item| is_answer(item) && item["id"].is_string());
            prop_assert_eq!(!thoughts.is_empty() || is_named, carries, "{}", told);
            prop_assert!(!(without && carries));
            let is_foreign = |item: &&Value| item["encrypted_content"].as_str().is_some_and(|sealed| sealed.starts_with("gw1."));
            prop_assert!(!thoughts.iter().any(is_foreign), "{}", told);
        }
    }

    #[test]
    fn a_stream_is_legal_however_its_vendor_garbles_it_and_however_it_is_cut(
        usual in 0..2_usize,
        pick: Index,
        changes in prop::collection::vec((any::<Index>(), any::<u8>(), odd_value()), 0..4),
        bytes in prop::collection::vec((any::<Index>(), any::<u8>()), 0..2),
        cuts in prop::collection::vec(any::<Index>(), 0..12),
        event_bytes_max in prop_oneof![4 => Just(EVENT_BYTES_MAX), 1 => 1..900_usize],
    ) {
        let stream = changed_events(pick.get::<String>(CORPUS.streams.as_slice()), &changes, &bytes);
        let whole = tell(usual, &[&stream], event_bytes_max);
        prop_assert_eq!(&whole, &tell(usual, &cut(&stream, &cuts), event_bytes_max));
        let (out, failed, completed) = whole;
        prop_assert_eq!(completed, !failed);
        let fault = legal::stream(USUAL[usual].0, &events(&out), completed);
        prop_assert!(fault.is_ok(), "{}\n{}\n{}", fault.unwrap_err(), String::from_utf8_lossy(&stream), out);
        let passed = pass(&[&stream], event_bytes_max);
        prop_assert_eq!(&passed, &pass(&cut(&stream, &cuts), event_bytes_max));
        prop_assert_eq!(passed.2, !passed.1);
    }

    /// Some servers omit `output_index`. At every moment of such a stream, the client has received
    /// as much as of a stream with `output_index`.
    #[test]
    fn a_stream_without_places_is_told_like_one_with_them(usual in 0..2_usize, pick: Index, end: Index) {
        let stream = pick.get::<String>(CORPUS.streams.as_slice());
        let all: Vec<&str> = stream.split_inclusive("\n\n").collect();
        let told = &all[..=end.index(all.len())];
        let bare: String = told.iter().map(|event| without_place(event)).collect();
        let with = tell(usual, &[told.concat().as_bytes()], EVENT_BYTES_MAX);
        prop_assert_eq!(tell(usual, &[bare.as_bytes()], EVENT_BYTES_MAX), with, "{}", bare);
    }

    #[test]
    fn a_whole_answer_is_legal_however_its_vendor_garbles_it(usual in 0..2_usize, pick: Index, changes in changes()) {
        let answer = changed(pick.get::<String>(CORPUS.wholes.as_slice()), &changes);
        let (surface, request) = USUAL[usual];
        let recall = ask(surface, request.as_bytes(), &accepts(true)).unwrap().response_context;
        if let Ok(whole) = translate::translate_response(Protocol::Responses, surface, recall, false, answer.as_bytes()) {
            let body: Value = serde_json::from_slice(&whole.body)
                .map_err(|error| TestCaseError::fail(format!("{error}: {answer}")))?;
            let fault = legal::answer(surface, &body);
            prop_assert!(fault.is_ok(), "{}\n{}\n{}", fault.unwrap_err(), answer, body);
        }
    }
}
