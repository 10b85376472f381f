//! Tests that a profile refuses in its vendor's words, and answers in its vendor's places.

use serde_json::{Value, json};

use super::wire::{Answer, Simulator};
use crate::SimulatorOptions;

/// Asks as `/as/NAME/`, with these members beside the model.
async fn ask(name: &str, body: Value) -> Answer {
    let messages = json!([{"role": "user", "content": "hello"}]);
    let whole = json!({"model": "m", "messages": messages});
    ask_at(name, "v1/chat/completions", whole, body).await
}

async fn ask_at(name: &str, path: &str, mut whole: Value, members: Value) -> Answer {
    let simulator = Simulator::start(SimulatorOptions::default()).await;
    for (member, value) in members.as_object().unwrap() {
        whole[member] = value.clone();
    }
    let head = "authorization: Bearer sk-1\r\nx-api-key: sk-1\r\n";
    let path = format!("/as/{name}/{path}");
    simulator.call(&path, head, &whole.to_string()).await
}

fn call(id: &str) -> Value {
    json!({"id": id, "type": "function", "function": {"name": "f", "arguments": "{}"}})
}

#[tokio::test]
async fn each_vendor_refuses_in_its_own_shape() {
    let late = json!([
        {"role": "user", "content": "a"}, {"role": "system", "content": "b"}, {"role": "user", "content": "c"}
    ]);
    let mut message =
        json!({"role": "assistant", "content": null, "tool_calls": [call("abcdefghi")]});
    let mut turn = |members: Value| {
        for (name, value) in members.as_object().unwrap() {
            message[name] = value.clone();
        }
        let result = json!({"role": "tool", "tool_call_id": "abcdefghi", "content": "r"});
        json!({"messages": [{"role": "user", "content": "a"}, message, result]})
    };
    let with_calls = turn(json!({}));
    let with_reasoning = turn(json!({"reasoning_content": ""}));
    for (name, body, status, words) in [
        (
            "mistral",
            json!({"stream": true, "stream_options": {}}),
            422,
            "extra_forbidden",
        ),
        (
            "mistral",
            json!({"messages": late}),
            400,
            "invalid_request_message_order",
        ),
        ("mistral", with_calls.clone(), 200, ""),
        (
            "groq",
            json!({"store": true, "safety_identifier": "a"}),
            400,
            "property 'safety_identifier' is unsupported",
        ),
        (
            "groq",
            json!({"service_tier": "priority"}),
            400,
            "must be one of",
        ),
        (
            "gemini",
            json!({"safety_identifier": "a"}),
            400,
            "Unknown name",
        ),
        (
            "gemini",
            with_calls.clone(),
            400,
            "missing a thought_signature",
        ),
        (
            "deepseek",
            json!({"messages": [{"role": "developer", "content": "a"}]}),
            400,
            "unknown variant `developer`",
        ),
        ("deepseek", with_calls.clone(), 400, "must be passed back"),
        ("deepseek", with_reasoning.clone(), 200, ""),
        (
            "moonshot",
            with_calls.clone(),
            400,
            "reasoning_content is missing",
        ),
        (
            "vllm",
            json!({"messages": late}),
            400,
            "System message must be at the beginning",
        ),
        (
            "cohere",
            json!({"stream": true, "stream_options": {}}),
            422,
            "parameter 'stream_options' is not a valid field",
        ),
        ("zhipu", with_calls, 200, ""),
        (
            "zhipu",
            json!({"messages": [{"role": "user", "content": "a"},
                {"role": "assistant", "content": null, "tool_calls": [call("call_1_own")]},
                {"role": "tool", "tool_call_id": "call_1_own", "content": "r"}]}),
            400,
            "must be returned with the results",
        ),
        ("nobody", json!({}), 404, "no such profile: nobody"),
    ] {
        let answer = ask(name, body.clone()).await;
        assert_eq!(answer.status, status, "{name} {body}: {}", answer.text());
        assert!(
            answer.text().contains(words),
            "{name} {body}: {}",
            answer.text()
        );
    }
    let list = ask("gemini", json!({"safety_identifier": "a"}))
        .await
        .json();
    assert_eq!(list[0]["error"]["code"], 400, "{list}");
}

#[tokio::test]
async fn a_vendor_of_another_protocol_refuses_members_and_what_the_protocol_refuses() {
    let messages = json!([{"role": "user", "content": "hello"}]);
    let whole = json!({"model": "m", "messages": messages, "max_tokens": 9});
    for (body, status, words) in [
        (json!({}), 200, "I think about it."),
        (json!({"thinking": {"type": "disabled"}}), 200, "end_turn"),
        (
            json!({"top_k": 3}),
            400,
            "unknown field top_k: top_k (2013)",
        ),
        (
            json!({"messages": [{"role": "system", "content": "a"}]}),
            400,
            "invalid message role: system",
        ),
        (json!({"temperature": 7}), 400, "temperature: range: 0..1"),
    ] {
        let answer = ask_at("minimax", "v1/messages", whole.clone(), body.clone()).await;
        assert_eq!(answer.status, status, "{body}: {}", answer.text());
        assert!(answer.text().contains(words), "{body}: {}", answer.text());
    }
    let text = "[[sim input=10 cache_read=4 output=2]]";
    let whole = json!({"model": "m", "input": text});
    for (body, status, words) in [
        (json!({}), 200, "\"cache_read_input_tokens\":4"),
        (
            json!({"stream": true}),
            200,
            "\"cache_read_input_tokens\":4",
        ),
        (json!({"include": []}), 400, "unknown field include"),
        (
            json!({"input": [{"type": "reasoning", "id": "rs_1", "summary": []}]}),
            400,
            "unknown field input: reasoning",
        ),
    ] {
        let answer = ask_at("perplexity", "v1/responses", whole.clone(), body.clone()).await;
        assert_eq!(answer.status, status, "{body}: {}", answer.text());
        assert!(answer.text().contains(words), "{body}: {}", answer.text());
        assert!(!answer.text().contains("\"cached_tokens\""), "{body}");
    }
}

#[tokio::test]
async fn messages_vendors_that_sign_nothing_refuse_calls_without_thinking() {
    let body = |first: Value| {
        let mut calls = vec![json!({"type": "tool_use", "id": "t1", "name": "f", "input": {}})];
        calls.splice(0..0, first.as_array().unwrap().clone());
        json!({"model": "m", "max_tokens": 2000,
        "tools": [{"name": "f", "input_schema": {"type": "object"}}],
        "messages": [
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": calls},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1"}]},
            {"role": "assistant", "content": "done"},
            {"role": "user", "content": "[[sim thinking=hm text=a]]"},
        ]})
    };
    let thought = json!([{"type": "thinking", "thinking": "hm", "signature": ""}]);
    for (vendor, words, signature) in [
        ("deepseek-messages", "must be passed back", json!("")),
        ("moonshot-messages", "message at index 1", Value::Null),
    ] {
        let ask =
            |first: &Value, more: Value| ask_at(vendor, "v1/messages", body(first.clone()), more);
        let refused = ask(&json!([]), json!({})).await;
        assert_eq!(refused.status, 400, "{vendor}: {}", refused.text());
        assert!(
            refused.text().contains(words),
            "{vendor}: {}",
            refused.text()
        );
        let off = ask(&json!([]), json!({"thinking": {"type": "disabled"}})).await;
        assert_eq!(off.status, 200, "{vendor}: {}", off.text());
        let found = ask(&thought, json!({})).await.json();
        assert_eq!(found["content"][0]["thinking"], "hm", "{vendor}: {found}");
        assert_eq!(
            found["content"][0]["signature"], signature,
            "{vendor}: {found}"
        );
        let events = ask(&thought, json!({"stream": true})).await.events();
        let signed = |event: &Value| {
            !event["delta"]["signature"]
                .as_str()
                .unwrap_or_default()
                .is_empty()
        };
        assert!(!events.iter().any(signed), "{vendor}: {events:?}");
    }
}

#[tokio::test]
async fn each_vendor_answers_in_its_own_places() {
    let asked =
        |text: &str| json!({"messages": [{"role": "user", "content": format!("[[sim {text}]]")}]});
    let usage = asked("input=10 cache_read=4 output=2");
    let found = ask("deepseek", usage.clone()).await.json();
    assert_eq!(found["usage"]["prompt_cache_hit_tokens"], 4, "{found}");
    assert!(
        found["choices"][0]["message"]["reasoning_content"].is_string(),
        "{found}"
    );
    let found = ask("moonshot", usage.clone()).await.json();
    assert_eq!(found["usage"]["cached_tokens"], 4, "{found}");
    let mut streamed = usage;
    streamed["stream"] = json!(true);
    let events = ask("groq", streamed.clone()).await.events();
    assert!(
        events
            .iter()
            .any(|event| event["x_groq"]["usage"].is_object()),
        "{events:?}"
    );
    let events = ask("moonshot", streamed).await.events();
    assert!(
        events
            .iter()
            .any(|event| event["choices"][0]["usage"].is_object()),
        "{events:?}"
    );
    let mut thinking = asked("text=hi");
    thinking["reasoning_effort"] = json!("high");
    let found = ask("mistral", thinking).await.json();
    assert_eq!(
        found["choices"][0]["message"]["content"][0]["type"], "thinking",
        "{found}"
    );
    let found = ask("mistral", asked("tool=f")).await.json();
    let id = found["choices"][0]["message"]["tool_calls"][0]["id"].clone();
    assert_eq!(id.as_str().unwrap().len(), 9, "{found}");
    let found = ask("gemini", asked("tool=f tools=2")).await.json();
    let calls = &found["choices"][0]["message"]["tool_calls"];
    assert!(
        calls[0]["extra_content"]["google"]["thought_signature"].is_string(),
        "{found}"
    );
    assert!(calls[1]["extra_content"].is_null(), "{found}");
}
