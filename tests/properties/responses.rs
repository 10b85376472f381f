//! The responses surface over vendors of both other protocols, with arbitrary requests and answers:
//! the output is legal for its reader, and does not depend on where the bytes are cut.
//!
//! The corpus is the surface's vectors, and the answers of the other surfaces' vectors, changed at
//! random. Read next: `properties/translation.rs`, which tests the other two surfaces in this way.

use crate::legal;
use crate::streams::cut;
use crate::translation::{
    EVENT_BYTES_MAX, answers_of, ask, changed, changed_events, changes, events, model, odd_value,
    payloads,
};
use llm_protocol::Protocol;
use llm_protocol::capabilities::ModelCapabilities;
use llm_protocol::translate::{self, StreamTranslation};
use llm_protocol::vendor_response::ResponseStream as _;
use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::{Value, json};
use std::sync::LazyLock;

static REQUESTS: LazyLock<Vec<String>> = LazyLock::new(|| {
    let of = |pair| payloads(pair, &["client_request.json"]);
    let requests = [of("responses-to-messages"), of("responses-to-chat")].concat();
    assert!(requests.len() > 30);
    requests
});

const USUAL: &str = r#"{"model":"public-model","stream":true,"input":"Hi","reasoning":{"summary":"auto"},"tools":[
    {"type":"custom","name":"apply_patch"},{"type":"namespace","name":"ns","tools":[{"type":"function","name":"f"}]},
    {"type":"local_shell"},{"type":"tool_search","execution":"client"}]}"#;

/// A model of this vendor's protocol: one of those that serve the requests of the other surface.
fn model_of(vendor: Protocol, kind: u8) -> ModelCapabilities {
    model(
        if vendor == Protocol::Messages {
            Protocol::Chat
        } else {
            Protocol::Messages
        },
        kind,
    )
}

fn vendor() -> impl Strategy<Value = Protocol> {
    prop_oneof![Just(Protocol::Messages), Just(Protocol::Chat)]
}

#[derive(PartialEq, Debug)]
struct Told {
    out: String,
    failed: bool,
    completed: bool,
}

fn tell(vendor: Protocol, kind: u8, pieces: &[&[u8]], event_bytes_max: usize) -> Told {
    let recall = ask(
        Protocol::Responses,
        USUAL.as_bytes(),
        &model_of(vendor, kind),
    )
    .unwrap()
    .response_context;
    let mut stream =
        StreamTranslation::new(vendor, Protocol::Responses, recall, true, event_bytes_max);
    let mut out = Vec::new();
    let mut failed = false;
    for piece in pieces {
        failed = failed || stream.push(piece, &mut out).is_err();
    }
    failed = failed || stream.finish(&mut out).is_err();
    Told {
        out: String::from_utf8(out).unwrap(),
        failed,
        completed: stream.is_complete(),
    }
}

/// Small items that replace others.
fn odd_item() -> impl Strategy<Value = Value> {
    prop_oneof![
        odd_value(),
        prop::sample::select(vec![
            json!({"type": "function_call", "call_id": "c", "name": "n n", "namespace": "x__", "arguments": "{"}),
            json!({"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": ""}]}),
            json!({"type": "custom_tool_call", "call_id": "c", "name": "p", "input": "\u{0}\""}),
            json!({"type": "reasoning", "encrypted_content": "gw1.m.eyJkIjoieCJ9", "summary": []}),
            json!({"type": "message", "role": "assistant", "content": " "}),
            json!({"role": "developer", "content": [{"type": "input_text", "text": "d"}]}),
            json!({"type": "compaction", "encrypted_content": "x"}),
            json!({"type": "web_search"}),
            json!({"type": "custom", "name": "a.b", "format": {"type": "grammar"}}),
        ]),
    ]
}

proptest! {
    #![proptest_config(crate::cases(1500))]

    #[test]
    fn a_request_that_is_not_refused_is_one_that_its_vendor_takes(
        vendor in vendor(), pick: Index, kind: u8,
        changes in prop::collection::vec((any::<Index>(), odd_item(), prop::bool::weighted(0.3)), 0..4),
    ) {
        let request: &String = pick.get(REQUESTS.as_slice());
        let request = changed(request, &changes);
        let accepts = model_of(vendor, kind);
        if let Ok(translated) = ask(Protocol::Responses, request.as_bytes(), &accepts) {
            let body: Value = serde_json::from_slice(&translated.body)
                .map_err(|error| TestCaseError::fail(format!("{error}: {request}")))?;
            let fault = legal::request(vendor, &body, &accepts);
            prop_assert!(fault.is_ok(), "{}\n{}\n{}", fault.unwrap_err(), request, body);
        }
        let _ = translate::count_tokens(Protocol::Responses, request.as_bytes());
    }

    #[test]
    fn a_stream_is_legal_however_its_vendor_garbles_it_and_however_it_is_cut(
        vendor in vendor(),
        pick: Index,
        kind: u8,
        changes in prop::collection::vec((any::<Index>(), any::<u8>(), odd_value()), 0..4),
        bytes in prop::collection::vec((any::<Index>(), any::<u8>()), 0..2),
        cuts in prop::collection::vec(any::<Index>(), 0..12),
        event_bytes_max in prop_oneof![4 => Just(EVENT_BYTES_MAX), 1 => 1..900_usize],
    ) {
        let stream: &String = pick.get(answers_of(vendor).0);
        let stream = changed_events(stream, &changes, &bytes);
        let whole = tell(vendor, kind, &[&stream], event_bytes_max);
        let pieces = tell(vendor, kind, &cut(&stream, &cuts), event_bytes_max);
        prop_assert_eq!(&whole, &pieces);
        prop_assert_eq!(whole.completed, !whole.failed);
        let fault = legal::stream(Protocol::Responses, &events(&whole.out), whole.completed);
        prop_assert!(fault.is_ok(), "{}\n{}\n{}", fault.unwrap_err(), String::from_utf8_lossy(&stream), whole.out);
    }

    #[test]
    fn a_whole_answer_is_legal_however_its_vendor_garbles_it(
        vendor in vendor(), pick: Index, kind: u8, changes in changes(),
    ) {
        let answer: &String = pick.get(answers_of(vendor).1);
        let answer = changed(answer, &changes);
        let recall = ask(Protocol::Responses, USUAL.as_bytes(), &model_of(vendor, kind)).unwrap().response_context;
        if let Ok(whole) = translate::translate_response(vendor, Protocol::Responses, recall, false, answer.as_bytes()) {
            let body: Value = serde_json::from_slice(&whole.body)
                .map_err(|error| TestCaseError::fail(format!("{error}: {answer}")))?;
            let fault = legal::answer(Protocol::Responses, &body);
            prop_assert!(fault.is_ok(), "{}\n{}\n{}", fault.unwrap_err(), answer, body);
        }
    }

    #[test]
    fn a_custom_tools_text_goes_there_and_back_letter_by_letter(text in any::<String>(), vendor in vendor()) {
        let request = json!({
            "model": "public-model", "tools": [{"type": "custom", "name": "apply_patch"}],
            "input": [
                {"role": "user", "content": "Go."},
                {"type": "custom_tool_call", "call_id": "c1", "name": "apply_patch", "input": text},
                {"type": "custom_tool_call_output", "call_id": "c1", "output": "ok"},
            ],
        });
        let translated = ask(Protocol::Responses, request.to_string().as_bytes(), &model_of(vendor, 0)).unwrap();
        let sent: Value = serde_json::from_slice(&translated.body).unwrap();
        let usage = json!({"input_tokens": 1, "output_tokens": 1, "prompt_tokens": 1, "completion_tokens": 1});
        let answer = match vendor {
            Protocol::Messages => {
                let call = &sent["messages"][1]["content"][0];
                json!({"id": "msg_1", "type": "message", "role": "assistant", "content": [call], "stop_reason": "tool_use",
                       "usage": usage})
            }
            _ => {
                let message = &sent["messages"][1];
                json!({"id": "chatcmpl-1", "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}],
                       "usage": usage})
            }
        };
        let told = translate::translate_response(vendor, Protocol::Responses, translated.response_context, false, answer.to_string().as_bytes());
        let told: Value = serde_json::from_slice(&told.unwrap().body).unwrap();
        prop_assert_eq!(&told["output"][0]["type"], "custom_tool_call");
        prop_assert_eq!(told["output"][0]["input"].as_str(), Some(text.as_str()));
    }
}
