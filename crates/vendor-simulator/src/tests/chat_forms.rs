//! Tests the forms of the chat vendor that markers select, which translators must handle.

use serde_json::{Value, json};

use super::Simulator;
use super::wire::Answer;
use crate::SimulatorOptions;

const BLOCKS: &str = r#"blocks=[{"thinking":"hm"},{"redacted":true},{"text":"Ünd.","citations":[{"url":"https://x.test/"}]},{"tool":"get","args":{"city":"Oslo"}},{"tool":"put","args":{"b":[1,2,3]}}]"#;

fn deltas(answer: &Answer) -> Vec<Value> {
    answer
        .events()
        .iter()
        .map(|event| event["choices"][0]["delta"].clone())
        .collect()
}

/// The entries of `tool_calls` in a stream, one by one.
fn entries(answer: &Answer) -> Vec<Value> {
    let deltas = deltas(answer);
    deltas
        .iter()
        .flat_map(|delta| delta["tool_calls"].as_array().cloned().unwrap_or_default())
        .collect()
}

fn joined(values: &[Value], pointer: &str) -> String {
    values
        .iter()
        .filter_map(|value| value.pointer(pointer)?.as_str())
        .collect()
}

fn finish(answer: &Answer) -> Value {
    let finishes: Vec<Value> = answer
        .events()
        .iter()
        .filter_map(|event| event["choices"].get(0)?.get("finish_reason").cloned())
        .collect();
    finishes.last().cloned().unwrap_or_default()
}

#[tokio::test]
async fn parts_become_reasoning_text_and_calls_in_both_forms() {
    let simulator = Simulator::start(SimulatorOptions::default()).await;
    let message = simulator
        .chat(false, &format!("[[sim {BLOCKS}]]"))
        .await
        .json()["choices"][0]["message"]
        .clone();
    assert_eq!(
        (&message["reasoning_content"], &message["content"]),
        (&json!("hm"), &json!("Ünd."))
    );
    assert_eq!(
        message["tool_calls"][1]["function"]["arguments"],
        r#"{"b":[1,2,3]}"#
    );
    assert_eq!(message["annotations"][0]["url_citation"]["end_index"], 4);
    let stream = simulator.chat(true, &format!("[[sim {BLOCKS}]]")).await;
    let deltas = deltas(&stream);
    assert_eq!(joined(&deltas, "/reasoning_content"), "hm");
    assert_eq!(joined(&deltas, "/content"), "Ünd.");
    assert_eq!(
        joined(&entries(&stream), "/function/arguments"),
        r#"{"city":"Oslo"}{"b":[1,2,3]}"#
    );
    assert_eq!(finish(&stream), "tool_calls");
}

#[tokio::test]
async fn reasoning_is_spelt_in_each_of_its_ways() {
    let simulator = Simulator::start(SimulatorOptions::default()).await;
    let marker = |spelling: &str| format!("[[sim {BLOCKS} spelling={spelling}]]");
    let reasoning = deltas(&simulator.chat(true, &marker("reasoning")).await);
    assert_eq!(joined(&reasoning, "/reasoning"), "hm");
    assert_eq!(joined(&reasoning, "/reasoning_content"), "");
    for spelling in ["reasoning_details", "all"] {
        let deltas = deltas(&simulator.chat(true, &marker(spelling)).await);
        assert_eq!(joined(&deltas, "/reasoning_details/0/text"), "hm");
        assert_eq!(joined(&deltas, "/reasoning").is_empty(), spelling != "all");
        let opaque = deltas
            .iter()
            .find(|delta| delta["reasoning_details"][0]["type"] == "reasoning.encrypted");
        assert_eq!(opaque.unwrap()["reasoning_details"][0]["index"], 1);
        let whole = simulator.chat(false, &marker(spelling)).await.json();
        assert_eq!(
            whole["choices"][0]["message"]["reasoning_details"]
                .as_array()
                .unwrap()
                .len(),
            2
        );
    }
}

#[tokio::test]
async fn calls_are_written_in_each_of_their_ways() {
    let simulator = Simulator::start(SimulatorOptions::default()).await;
    let call = async |mode: &str| {
        let answer = simulator
            .chat(true, &format!("[[sim {BLOCKS} calls={mode}]]"))
            .await;
        (entries(&answer), answer)
    };
    let indexes = |entries: &[Value]| -> Vec<Value> {
        entries.iter().map(|entry| entry["index"].clone()).collect()
    };
    let (entries, _) = call("interleaved").await;
    assert_eq!(
        indexes(&entries)[..4],
        [json!(0), json!(1), json!(0), json!(1)]
    );
    let second: Vec<Value> = entries
        .into_iter()
        .filter(|entry| entry["index"] == 1)
        .collect();
    assert_eq!(joined(&second, "/function/arguments"), r#"{"b":[1,2,3]}"#);
    let (entries, _) = call("zero").await;
    assert!(indexes(&entries).iter().all(|index| *index == 0));
    assert_eq!(
        entries
            .iter()
            .filter(|entry| entry.get("id").is_some())
            .count(),
        2
    );
    let (entries, _) = call("noid").await;
    assert!(entries.iter().all(|entry| entry.get("id").is_none()));
    let (entries, _) = call("noindex").await;
    assert!(entries.iter().all(|entry| entry.get("index").is_none()));
    let (entries, _) = call("whole").await;
    assert_eq!(entries.len(), 2);
    assert_eq!(
        entries[0]["function"],
        json!({"name": "get", "arguments": r#"{"city":"Oslo"}"#})
    );
    let (entries, _) = call("repeat").await;
    assert!(entries.len() > 2 && entries.iter().all(|entry| entry["id"].is_string()));
    let (_, answer) = call("double").await;
    assert!(deltas(&answer).iter().any(|delta| {
        delta["tool_calls"]
            .as_array()
            .is_some_and(|calls| calls.len() == 2)
    }));
    let (entries, answer) = call("legacy").await;
    assert!(entries.is_empty());
    assert_eq!(joined(&deltas(&answer), "/function_call/name"), "get");
    assert_eq!(
        joined(&deltas(&answer), "/function_call/arguments"),
        r#"{"city":"Oslo"}"#
    );
    assert_eq!(finish(&answer), "function_call");
}

#[tokio::test]
async fn a_request_with_functions_is_answered_with_a_function_call() {
    let simulator = Simulator::start(SimulatorOptions::default()).await;
    let functions = json!([{"name": "get"}]);
    let text = "[[sim tool=get]]";
    let body = json!({"model": "m", "functions": functions, "messages": [{"role": "user", "content": text}]});
    let answer = simulator
        .call(
            "/v1/chat/completions",
            "authorization: Bearer sk-1\r\n",
            &body.to_string(),
        )
        .await;
    let choice = &answer.json()["choices"][0];
    assert_eq!(
        choice["message"]["function_call"],
        json!({"name": "get", "arguments": "{}"})
    );
    assert_eq!(choice["finish_reason"], "function_call");
}

#[tokio::test]
async fn refusals_finishes_and_usage_stand_where_the_marker_wants_them() {
    let simulator = Simulator::start(SimulatorOptions::default()).await;
    let after = simulator
        .chat(true, "[[sim refusal=after text=half explanation=why]]")
        .await;
    assert_eq!(joined(&deltas(&after), "/content"), "half");
    assert_eq!(joined(&deltas(&after), "/refusal"), "why");
    let instead = simulator
        .chat(false, "[[sim refusal=1 text=no]]")
        .await
        .json();
    let message = &instead["choices"][0]["message"];
    assert_eq!(
        (&message["content"], &message["refusal"]),
        (&Value::Null, &json!("no"))
    );
    assert_eq!(
        finish(&simulator.chat(true, "[[sim tool=get finish=stop]]").await),
        "stop"
    );
    assert_eq!(
        finish(&simulator.chat(true, "[[sim finish=tool_calls]]").await),
        "tool_calls"
    );
    assert_eq!(
        finish(&simulator.chat(true, "[[sim finish=null]]").await),
        Value::Null
    );
    let before = simulator
        .chat(true, "[[sim usage=before output=3]]")
        .await
        .events();
    assert_eq!(before[before.len() - 2]["usage"]["completion_tokens"], 3);
    assert_eq!(
        before[before.len() - 1]["choices"][0]["finish_reason"],
        "stop"
    );
    let cut = simulator.chat(true, "[[sim nofinish=1]]").await;
    assert!(cut.ended && finish(&cut) == Value::Null && !cut.text().contains("[DONE]"));
}

#[tokio::test]
async fn answers_of_odd_shape_and_odd_keep_alives() {
    let simulator = Simulator::start(SimulatorOptions::default()).await;
    let array = simulator
        .chat(false, "[[sim shape=array text=hi]]")
        .await
        .json();
    assert_eq!(
        array["choices"][0]["message"]["content"],
        json!([{"type": "text", "text": "hi"}])
    );
    assert_eq!(
        simulator
            .chat(false, "[[sim shape=nochoices]]")
            .await
            .json()["choices"],
        json!([])
    );
    let error = simulator
        .chat(false, "[[sim shape=error error_code=odd]]")
        .await;
    assert_eq!(
        (error.status, error.json()["error"]["code"].as_str()),
        (200, Some("odd"))
    );
    let data = simulator.chat(true, "[[sim keepalive=data]]").await.text();
    assert!(data.starts_with("data: : keepalive\n\ndata: {"), "{data}");
    assert!(
        simulator
            .chat(true, "[[sim keepalive=ping]]")
            .await
            .text()
            .starts_with(": ping\n\n")
    );
    let bad = simulator
        .chat(false, r#"[[sim blocks=[{"text":"a","tool":"b"}]]]"#)
        .await;
    assert!(
        bad.status == 400 && bad.text().contains("exactly one of"),
        "{}",
        bad.text()
    );
}
