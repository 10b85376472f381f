//! Properties that single cases cannot show: no order of chunks produces a stream on which clients
//! crash, and the queue is bounded.

use super::{KEEP_ALIVE, MessagesBodyWriter, MessagesStreamWriter};
use crate::chat::read_stream::ChatStreamReader;
use crate::ir::event::{
    AnswerReader as _, AnswerWriter as _, Event, EventSink, OutputPart, ResponseContext,
    ResponseStart,
};
use crate::json::{JsonStr, NodeBuffer};
use crate::usage::UsageEstimator;
use proptest::prelude::*;
use serde_json::{Value, json};

fn response_context(show_thinking: bool) -> ResponseContext {
    let estimator = UsageEstimator::from_input_tokens(31);
    ResponseContext {
        show_thinking,
        input_estimate: 25,
        estimator,
        seed: "req_0".to_owned(),
        ..ResponseContext::default()
    }
}

/// Returns the data of each event, and checks that its name has the same type.
fn frames(stream: &[u8]) -> Vec<Value> {
    let mut frames = Vec::new();
    for frame in std::str::from_utf8(stream)
        .unwrap()
        .split_terminator("\n\n")
    {
        let (name, data) = frame
            .strip_prefix("event: ")
            .unwrap()
            .split_once("\ndata: ")
            .unwrap();
        let data: Value = serde_json::from_str(data).unwrap();
        assert_eq!(data["type"], name);
        frames.push(data);
    }
    frames
}

/// Returns the type of each block and the text of its deltas, and checks that the stream keeps
/// every rule.
fn blocks(frames: &[Value]) -> Vec<(String, String)> {
    let types: Vec<_> = frames
        .iter()
        .map(|frame| frame["type"].as_str().unwrap())
        .collect();
    assert_eq!(types[..2], ["message_start", "ping"]);
    assert_eq!(types[types.len() - 2..], ["message_delta", "message_stop"]);
    assert!(frames[frames.len() - 2]["usage"]["output_tokens"].is_u64());
    let (mut blocks, mut is_open) = (Vec::<(String, String)>::new(), false);
    for frame in &frames[2..frames.len() - 2] {
        let index = usize::try_from(frame["index"].as_u64().unwrap()).unwrap();
        match frame["type"].as_str().unwrap() {
            "content_block_start" => {
                assert!(!is_open && index == blocks.len());
                is_open = true;
                blocks.push((
                    frame["content_block"]["type"].as_str().unwrap().to_owned(),
                    String::new(),
                ));
            }
            "content_block_delta" => {
                assert!(is_open && index + 1 == blocks.len());
                let delta = &frame["delta"];
                let (kind, content) = blocks.last_mut().unwrap();
                let member = match (kind.as_str(), delta["type"].as_str().unwrap()) {
                    ("text", "text_delta") => "text",
                    ("thinking", "thinking_delta") => "thinking",
                    ("tool_use", "input_json_delta") => "partial_json",
                    ("thinking", "signature_delta") => {
                        assert!(delta["signature"].as_str().unwrap().starts_with("gw1."));
                        continue;
                    }
                    other => panic!("{other:?}"),
                };
                content.push_str(delta[member].as_str().unwrap());
            }
            "content_block_stop" => {
                assert!(is_open && index + 1 == blocks.len());
                is_open = false;
            }
            other => panic!("{other}"),
        }
    }
    assert!(!is_open);
    blocks
}

fn delta() -> impl Strategy<Value = Value> {
    let words = prop::sample::select(vec!["a", " b", "\n", " ", "c\"d", "é", ""]);
    let arguments = prop::sample::select(vec![
        "", "{", "{}", "{\"k\":", "[1", "]", "\"}\"", "}", "x", "null", " ",
    ]);
    let index = prop::sample::select(vec![json!(0), json!(1), json!(2), Value::Null]);
    let id = prop::sample::select(vec![
        Value::Null,
        json!("call_a"),
        json!("call_b"),
        json!(""),
    ]);
    let name = prop::sample::select(vec![Value::Null, json!("f"), json!("g")]);
    let details = prop::sample::select(vec![
        Value::Null,
        json!([{"type": "reasoning.encrypted", "data": "gAAA"}]),
    ]);
    prop_oneof![
        words.clone().prop_map(|text| json!({"content": text})),
        words.clone().prop_map(|text| json!({"refusal": text})),
        (words, details).prop_map(|(text, details)| json!({"reasoning": text, "reasoning_details": details})),
        (index, id, name, arguments).prop_map(|(index, id, name, arguments)| {
            json!({"tool_calls": [{"index": index, "id": id, "function": {"name": name, "arguments": arguments}}]})
        }),
    ]
}

fn feed(deltas: &[Value], finish: &str, to: &mut dyn EventSink) {
    let mut reader = ChatStreamReader::default();
    let end = json!({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]});
    let chunks = deltas
        .iter()
        .map(|delta| json!({"choices": [{"index": 0, "delta": delta}]}))
        .chain([end]);
    for chunk in chunks {
        reader
            .event(b"", chunk.to_string().as_bytes(), NodeBuffer::new(), to)
            .1
            .unwrap();
    }
    reader
        .event(b"", b"[DONE]", NodeBuffer::new(), to)
        .1
        .unwrap();
}

fn without_space(text: &str) -> String {
    text.split_whitespace().collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_order_of_chunks_breaks_a_rule(
        deltas in prop::collection::vec(delta(), 0..24),
        show_thinking in any::<bool>(),
        finish in prop::sample::select(vec!["stop", "length", "tool_calls"]),
    ) {
        let mut stream = MessagesStreamWriter::new(response_context(show_thinking));
        feed(&deltas, finish, &mut stream);
        let mut out = Vec::new();
        stream.take(&mut out);
        let blocks = blocks(&frames(&out));
        let mut whole = MessagesBodyWriter::new(response_context(show_thinking));
        feed(&deltas, finish, &mut whole);
        let mut body = Vec::new();
        whole.take(&mut body);
        let body: Value = serde_json::from_slice(&body).unwrap();

        let content: String =
            deltas.iter().filter_map(|delta| delta["content"].as_str().or(delta["refusal"].as_str())).collect();
        let visible: String = blocks.iter().filter(|(kind, _)| kind == "text").map(|(_, text)| text.as_str()).collect();
        prop_assert_eq!(without_space(&visible), without_space(&content));
        for (kind, content) in &blocks {
            match kind.as_str() {
                "text" => prop_assert!(!content.trim().is_empty()),
                "tool_use" => prop_assert!(matches!(content.trim_start().as_bytes(), [] | [b'{', ..]), "{}", content),
                "thinking" => prop_assert!(show_thinking),
                other => prop_assert!(false, "{}", other),
            }
        }
        let calls = |blocks: &[(String, String)]| blocks.iter().filter(|(kind, _)| kind == "tool_use").count();
        let content = body["content"].as_array().unwrap();
        prop_assert_eq!(calls(&blocks), content.iter().filter(|block| block["type"] == "tool_use").count());
    }
}

/// A stream with a call whose arguments never end, and `bytes` of content queued after it.
fn waiting(bytes: usize) -> MessagesStreamWriter {
    let mut stream = MessagesStreamWriter::new(response_context(true));
    stream.event(Event::Start(ResponseStart::default()));
    let piece = OutputPart::Call {
        id: None,
        name: JsonStr::from_value("f"),
        is_custom: false,
    };
    stream.event(Event::Open { slot: 0, piece });
    stream.event(Event::Delta {
        slot: 0,
        text: JsonStr::from_value("{"),
    });
    stream.event(Event::Open {
        slot: 1,
        piece: OutputPart::Text,
    });
    for _ in 0..bytes.div_ceil(1024) {
        stream.event(Event::Delta {
            slot: 1,
            text: JsonStr::from_value("x".repeat(1024)),
        });
    }
    stream
}

#[test]
fn what_waits_is_bounded() {
    assert!(!waiting(8_000_000).overflowed());
    let mut stream = waiting(9_000_000);
    assert!(stream.overflowed());
    let mut out = Vec::new();
    stream.take(&mut out);
    stream.event(Event::End);
    stream.take(&mut out);
    assert!(!out.windows(12).any(|window| window == b"message_stop"));
}

#[test]
fn white_space_that_is_held_is_bounded() {
    let mut stream = MessagesStreamWriter::new(response_context(true));
    stream.event(Event::Open {
        slot: 0,
        piece: OutputPart::Text,
    });
    for _ in 0..9_000 {
        stream.event(Event::Delta {
            slot: 0,
            text: JsonStr::from_value(" ".repeat(1024)),
        });
    }
    assert!(stream.overflowed());
}

#[test]
fn what_went_out_no_longer_counts_as_waiting() {
    let mut stream = MessagesStreamWriter::new(response_context(true));
    stream.event(Event::Start(ResponseStart::default()));
    for slot in 0..64 {
        let piece = OutputPart::Call {
            id: None,
            name: JsonStr::from_value("f"),
            is_custom: true,
        };
        stream.event(Event::Open { slot, piece });
        stream.event(Event::Delta {
            slot,
            text: JsonStr::from_value("x".repeat(1_000_000)),
        });
        stream.event(Event::Close { slot });
        let mut out = Vec::new();
        stream.take(&mut out);
        assert!(out.len() > 1_000_000);
    }
    assert!(!stream.overflowed());
    assert_eq!(stream.waiting_bytes, 0);
}

#[test]
fn a_number_stands_where_the_vendor_told_none() {
    let mut stream = MessagesStreamWriter::new(response_context(true));
    feed(&[json!({"content": "Hello"})], "stop", &mut stream);
    let mut out = Vec::new();
    stream.take(&mut out);
    let frames = frames(&out);
    assert_eq!(frames[0]["message"]["usage"]["input_tokens"], 25);
    let usage = &frames[frames.len() - 2]["usage"];
    assert_eq!(
        (&usage["input_tokens"], &usage["output_tokens"]),
        (&json!(31), &json!(2))
    );
    assert_eq!(usage["output_tokens_details"]["thinking_tokens"], 0);
}

#[test]
fn a_keep_alive_is_an_event() {
    assert_eq!(frames(KEEP_ALIVE), [json!({"type": "ping"})]);
}
