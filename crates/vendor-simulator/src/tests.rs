//! Tests the simulator over real sockets: raw bytes in, raw bytes out.
//!
//! It must not use an HTTP client library, because it tests the bytes.

// A test stops at the first failure.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod chat_forms;
mod dialects;
mod http2;
mod messages_forms;
mod responses_forms;
mod wire;

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::io::AsyncWriteExt as _;

use self::wire::{MESSAGES_HEAD, Simulator, post, read_answer};
use super::stats::hex;
use super::{SimulatedFault, SimulatorOptions, parse_fault};

#[tokio::test]
async fn chat_answers_whole_with_the_vendors_headers() {
    let simulator = Simulator::start(SimulatorOptions::default()).await;
    let answer = simulator.chat(false, "hello").await;
    assert_eq!(answer.status, 200);
    assert!(
        answer.head.contains("\r\nx-request-id: req_"),
        "{}",
        answer.head
    );
    assert!(answer.head.contains("\r\nopenai-organization: "));
    let body = answer.json();
    assert_eq!(body["choices"][0]["message"]["content"], "You said: hello");
    assert_eq!(body["choices"][0]["finish_reason"], "stop");
    // 59 bytes of body and 15 of reply.
    assert_eq!(body["usage"]["prompt_tokens"], 15);
    assert_eq!(body["usage"]["completion_tokens"], 5);
    assert!(answer.text().starts_with("{\n  \"id\": \"chatcmpl-Sim"));
}

#[tokio::test]
async fn chat_streams_role_text_finish_usage_and_done() {
    let simulator = Simulator::start(SimulatorOptions::default()).await;
    let answer = simulator
        .chat(true, "[[sim events=7 text=\"0123456789\" output=3]]")
        .await;
    assert!(answer.ended);
    assert_eq!(answer.data().last().unwrap(), "[DONE]");
    let events = answer.events();
    assert_eq!(events.len(), 1 + 7 + 2);
    assert_eq!(answer.chunks, events.len() + 1);
    assert_eq!(events[0]["choices"][0]["delta"]["role"], "assistant");
    let text: String = events[1..8]
        .iter()
        .map(|event| event["choices"][0]["delta"]["content"].as_str().unwrap())
        .collect();
    assert_eq!(text, "0123456789");
    assert_eq!(events[8]["choices"][0]["finish_reason"], "stop");
    assert_eq!(events[8]["usage"], Value::Null);
    assert_eq!(events[9]["choices"], json!([]));
    assert_eq!(events[9]["usage"]["completion_tokens"], 3);
}

#[tokio::test]
async fn messages_answers_whole_and_counts_the_cache_apart() {
    let simulator = Simulator::start(SimulatorOptions::default()).await;
    let answer = simulator
        .messages(false, "[[sim text=hi input=5 cache_read=6 write_1h=7]]")
        .await;
    assert!(answer.head.contains("\r\nrequest-id: req_"));
    let body = answer.json();
    assert_eq!(body["content"], json!([{"type": "text", "text": "hi"}]));
    assert_eq!(body["stop_reason"], "end_turn");
    let usage = &body["usage"];
    assert_eq!(usage["input_tokens"], 5);
    assert_eq!(usage["cache_read_input_tokens"], 6);
    assert_eq!(usage["cache_creation_input_tokens"], 7);
    assert_eq!(usage["cache_creation"]["ephemeral_1h_input_tokens"], 7);
    let chat = simulator
        .chat(false, "[[sim text=hi input=5 cache_read=6 write_1h=7]]")
        .await
        .json();
    assert_eq!(chat["usage"]["prompt_tokens"], 18);
}

#[tokio::test]
async fn messages_streams_thinking_text_and_calls_as_named_events() {
    let simulator = Simulator::start(SimulatorOptions::default()).await;
    let marker = r#"[[sim thinking="well" text="so" events=1 tool=get args={"a":1} split=9]]"#;
    let answer = simulator.messages(true, marker).await;
    assert!(answer.ended);
    let text = answer.text();
    let names: Vec<_> = text
        .lines()
        .filter_map(|line| line.strip_prefix("event: "))
        .collect();
    let events = answer.events();
    let kinds: Vec<_> = events
        .iter()
        .map(|event| event["type"].as_str().unwrap())
        .collect();
    assert_eq!(names, kinds);
    assert_eq!(kinds[..3], ["message_start", "content_block_start", "ping"]);
    assert_eq!(kinds[kinds.len() - 2..], ["message_delta", "message_stop"]);
    let json: String = events
        .iter()
        .filter_map(|event| event["delta"]["partial_json"].as_str())
        .collect();
    assert_eq!(json, r#"{"a":1}"#);
    let stop = &events[events.len() - 2]["delta"]["stop_reason"];
    assert_eq!(stop, "tool_use");
    assert!(
        events
            .iter()
            .any(|event| event["delta"]["type"] == "signature_delta")
    );
}

#[tokio::test]
async fn a_connection_takes_pipelined_and_chunked_requests() {
    let simulator = Simulator::start(SimulatorOptions::default()).await;
    let mut stream = simulator.connect().await;
    let body = r#"{"model":"m","messages":[{"role":"user","content":"a"}]}"#;
    let head = "authorization: Bearer sk-1\r\n";
    let mut bytes = post("/v1/chat/completions", head, body);
    let (left, right) = body.split_at(20);
    bytes.push_str(&format!(
        "POST /v1/chat/completions HTTP/1.1\r\n{head}transfer-encoding: chunked\r\n\r\n14\r\n{left}\r\n{:x};x=y\r\n{right}\r\n0\r\n\r\n",
        right.len()
    ));
    stream.write_all(bytes.as_bytes()).await.unwrap();
    for _ in 0..2 {
        let answer = read_answer(&mut stream).await;
        assert_eq!(
            answer.json()["choices"][0]["message"]["content"],
            "You said: a"
        );
    }
    let stats = simulator.get("/_sim/stats").await;
    assert_eq!(stats["requests"], 2);
    assert_eq!(stats["models"]["m"], 2);
    assert_eq!(stats["completed"], 2);
}

#[tokio::test]
async fn a_large_body_is_known_by_its_sha_and_a_small_one_in_full() {
    let simulator = Simulator::start(SimulatorOptions::default()).await;
    let text = "x".repeat(5 * 1024 * 1024);
    let body = json!({"model": "m", "messages": [{"role": "user", "content": text}]}).to_string();
    let head = "authorization: Bearer sk-1\r\nX-Mixed: Case\r\n";
    assert_eq!(
        simulator
            .call("/v1/chat/completions", head, &body)
            .await
            .status,
        200
    );
    simulator.messages(false, "small").await;
    let requests = simulator.get("/_sim/requests?last=2").await;
    assert_eq!(requests[0]["body_length"], body.len());
    assert_eq!(requests[0]["body_sha256"], hex(&Sha256::digest(&body)));
    assert_eq!(requests[0]["body"], Value::Null);
    assert!(
        requests[0]["headers"]
            .as_array()
            .unwrap()
            .contains(&json!(["x-mixed", "Case"]))
    );
    assert!(requests[1]["body"].as_str().unwrap().contains("small"));
}

#[tokio::test]
async fn a_cut_stops_without_the_terminator_and_a_clean_end_with_it() {
    let simulator = Simulator::start(SimulatorOptions::default()).await;
    for (marker, ended) in [
        ("cut=3", false),
        ("cut=3 reset=1", false),
        ("cut=3 end=clean", true),
    ] {
        let answer = simulator
            .chat(true, &format!("[[sim events=9 {marker}]]"))
            .await;
        assert_eq!((answer.data().len(), answer.ended), (3, ended), "{marker}");
    }
    let answer = simulator.messages(false, "[[sim cut=1]]").await;
    assert!(!answer.ended && !answer.body.is_empty());
    assert_eq!(simulator.chat(false, "[[sim cut=headers]]").await.status, 0);
}

#[tokio::test]
async fn an_error_event_ends_the_stream_in_each_vendors_form() {
    let simulator = Simulator::start(SimulatorOptions::default()).await;
    let chat = simulator.chat(true, "[[sim error_event=2]]").await;
    assert_eq!(chat.events()[2]["error"]["type"], "server_error");
    assert_eq!(chat.data().len(), 3);
    let messages = simulator
        .messages(true, "[[sim error_event=0 status=429]]")
        .await;
    assert!(
        messages
            .text()
            .starts_with("event: error\ndata: {\"type\":\"error\"")
    );
    assert_eq!(messages.events()[0]["error"]["type"], "rate_limit_error");
}

#[tokio::test]
async fn faults_of_the_caller_get_the_vendors_own_errors() {
    let simulator = Simulator::start(SimulatorOptions::default()).await;
    let chat = simulator.chat(false, "[[sim txet=1]]").await;
    assert_eq!(chat.status, 400);
    assert!(
        chat.json()["error"]["message"]
            .as_str()
            .unwrap()
            .contains("'txet'")
    );
    let messages = simulator.messages(false, "[[sim txet=1]]").await.json();
    assert_eq!(messages["error"]["type"], "invalid_request_error");
    let gateway_key = "authorization: Bearer gw-sk-1\r\n";
    let refused = simulator
        .call("/v1/chat/completions", gateway_key, "{}")
        .await;
    assert_eq!(
        (refused.status, refused.json()["error"]["code"].as_str()),
        (401, Some("invalid_api_key"))
    );
    let no_version = simulator
        .call("/v1/messages", "x-api-key: k\r\n", "{}")
        .await;
    assert_eq!(no_version.status, 400);
    let missing = simulator
        .call(
            "/v1/messages",
            MESSAGES_HEAD,
            r#"{"model":"m","messages":[1]}"#,
        )
        .await;
    assert_eq!(
        missing.json()["error"]["message"],
        "max_tokens: Field required"
    );
    let limited = simulator
        .messages(false, "[[sim status=429 retry_after=9]]")
        .await;
    assert!(limited.status == 429 && limited.head.contains("\r\nretry-after: 9\r\n"));
}

#[tokio::test]
async fn a_client_that_leaves_is_noticed_between_events_and_in_silence() {
    let simulator = Simulator::start(SimulatorOptions::default()).await;
    for (gone, marker) in [(1, "gap_ms=600000"), (2, "hang=1"), (3, "delay_ms=600000")] {
        let mut stream = simulator.connect().await;
        let body = json!({"model": "m", "stream": true, "messages": [{"role": "user", "content": format!("[[sim {marker}]]")}]});
        let bytes = post(
            "/v1/chat/completions",
            "authorization: Bearer sk-1\r\n",
            &body.to_string(),
        );
        stream.write_all(bytes.as_bytes()).await.unwrap();
        while simulator.get("/_sim/stats").await["in_flight"] != 1 {}
        drop(stream);
        while simulator.get("/_sim/stats").await["client_gone"] != gone {}
    }
    assert_eq!(simulator.get("/_sim/stats").await["in_flight"], 0);
}

#[tokio::test]
async fn an_answer_that_is_held_goes_on_once_it_is_released() {
    let simulator = Simulator::start(SimulatorOptions::default()).await;
    for (stream, marker, events) in [
        (true, "[[sim hold=2 events=5]]", 2),
        (true, "[[sim hold=headers]]", 0),
        (false, "[[sim hold=1]]", 0),
    ] {
        let release = async {
            while simulator.get("/_sim/stats").await["in_flight"] != 1 {}
            let answer = async || {
                simulator.get("/_sim/requests?last=1").await[0]["answer"]["events"].clone()
            };
            while answer().await != events {}
            assert_eq!(answer().await, events, "{marker}");
            simulator.call("/_sim/release", "", "").await;
        };
        let (answer, ()) = tokio::join!(simulator.chat(stream, marker), release);
        assert_eq!(answer.status, 200, "{marker}");
    }
    assert_eq!(simulator.get("/_sim/stats").await["completed"], 3);
}

#[tokio::test]
async fn a_broken_endpoint_breaks_every_call() {
    let fault = parse_fault("status=503").unwrap();
    let simulator = Simulator::start(SimulatorOptions {
        fault: Some(fault),
        ..SimulatorOptions::default()
    })
    .await;
    assert_eq!(
        simulator.messages(true, "hi").await.json()["error"]["type"],
        "overloaded_error"
    );
    let fault = Some(SimulatedFault::CloseAfterRequest);
    let simulator = Simulator::start(SimulatorOptions {
        fault,
        ..SimulatorOptions::default()
    })
    .await;
    assert_eq!(simulator.chat(true, "hi").await.status, 0);
    assert_eq!(simulator.get("/_sim/stats").await["requests"], 1);
    assert!(parse_fault("status=20").is_err());
}

#[tokio::test]
async fn an_overrun_passes_the_limit_and_what_was_shown_is_on_record() {
    let simulator = Simulator::start(SimulatorOptions::default()).await;
    for (marker, shown) in [("overrun=1 bytes=9000", 9_000), ("bytes=9000", 4_000)] {
        let answer = simulator
            .messages(true, &format!("[[sim {marker} input=5 output=7]]"))
            .await;
        assert!(answer.ended, "{}", answer.text());
        let record = simulator.get("/_sim/requests?last=1").await[0]["answer"].clone();
        assert_eq!(
            (&record["shown_bytes"], &record["end"]),
            (&shown.into(), &"sent".into()),
            "{record}"
        );
        assert_eq!(
            (&record["usage"]["input"], &record["usage"]["output"]),
            (&5.into(), &7.into()),
            "{record}"
        );
    }
}

#[tokio::test]
async fn vendors_are_strict_unless_the_simulator_or_the_marker_says_otherwise() {
    let body = |marker: &str| {
        let text = format!("[[sim {marker} text=hi]]");
        json!({"model": "gpt-5.2", "max_tokens": 9, "messages": [{"role": "user", "content": text}]}).to_string()
    };
    let key = "authorization: Bearer sk-1\r\n";
    for (lenient, marker, status) in [
        (false, "", 400),
        (false, "lenient=1", 200),
        (true, "", 200),
        (true, "lenient=0", 400),
    ] {
        let simulator = Simulator::start(SimulatorOptions {
            lenient,
            ..SimulatorOptions::default()
        })
        .await;
        let answer = simulator
            .call("/v1/chat/completions", key, &body(marker))
            .await;
        assert_eq!(
            answer.status,
            status,
            "{lenient} {marker}: {}",
            answer.text()
        );
    }
}
