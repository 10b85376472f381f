//! Tests the forms of the messages vendor that markers select, which translators must handle.

use serde_json::{Value, json};

use super::Simulator;
use super::wire::{Answer, MESSAGES_HEAD};
use crate::SimulatorOptions;

const EVERYTHING: &str = r#"blocks=[{"thinking":"hm"},{"text":"Let me see."},{"tool":"get","args":{"b":1,"a":[2]}},{"thinking":"and","omitted":true},{"redacted":true},{"search":"rust","hits":[{"url":"https://x.test/","title":"X"}]},{"text":"So.","citations":[{"url":"https://x.test/","cited":"s"}]},{"unknown":"dream"},{"tool":"put","id":"toolu_z"}]"#;

/// Assembles the blocks from the deltas of a stream.
fn built(answer: &Answer) -> Vec<Value> {
    let mut blocks: Vec<Value> = Vec::new();
    let mut inputs: Vec<String> = Vec::new();
    for event in answer.events() {
        let index = event["index"].as_u64().unwrap_or(0) as usize;
        match event["type"].as_str().unwrap() {
            "content_block_start" => {
                assert_eq!(index, blocks.len());
                blocks.push(event["content_block"].clone());
                inputs.push(String::new());
            }
            "content_block_delta" => {
                let (block, delta) = (&mut blocks[index], &event["delta"]);
                for name in ["text", "thinking"] {
                    if let Some(piece) = delta[name].as_str() {
                        block[name] = format!("{}{piece}", block[name].as_str().unwrap()).into();
                    }
                }
                if let Some(signature) = delta.get("signature") {
                    block["signature"] = signature.clone();
                }
                if let Some(citation) = delta.get("citation") {
                    block["citations"]
                        .as_array_mut()
                        .unwrap()
                        .push(citation.clone());
                }
                inputs[index].push_str(delta["partial_json"].as_str().unwrap_or_default());
            }
            "content_block_stop" if !inputs[index].is_empty() => {
                blocks[index]["input"] = serde_json::from_str(&inputs[index]).unwrap();
            }
            _ => {}
        }
    }
    blocks
}

/// Data of the events of one type.
fn of_type(answer: &Answer, kind: &str) -> Vec<Value> {
    answer
        .events()
        .into_iter()
        .filter(|event| event["type"] == kind)
        .collect()
}

fn without_ids(mut blocks: Vec<Value>) -> Vec<Value> {
    for block in &mut blocks {
        for name in ["id", "tool_use_id", "signature", "data"] {
            if block.get(name).is_some_and(Value::is_string) {
                block[name] = "".into();
            }
        }
        for name in ["content", "citations"] {
            for inner in block
                .get_mut(name)
                .and_then(Value::as_array_mut)
                .into_iter()
                .flatten()
            {
                inner
                    .as_object_mut()
                    .unwrap()
                    .retain(|name, _| !name.starts_with("encrypted"));
            }
        }
    }
    blocks
}

#[tokio::test]
async fn every_kind_of_block_is_the_same_in_a_stream_and_in_whole() {
    let simulator = Simulator::start(SimulatorOptions::default()).await;
    let whole = simulator
        .messages(false, &format!("[[sim {EVERYTHING}]]"))
        .await
        .json();
    let stream = simulator
        .messages(true, &format!("[[sim {EVERYTHING}]]"))
        .await;
    let blocks = whole["content"].as_array().unwrap();
    let kinds: Vec<&str> = blocks
        .iter()
        .map(|block| block["type"].as_str().unwrap())
        .collect();
    let result = "web_search_tool_result";
    let expected = [
        "thinking",
        "text",
        "tool_use",
        "thinking",
        "redacted_thinking",
        "server_tool_use",
        result,
        "text",
        "dream",
        "tool_use",
    ];
    assert_eq!(kinds, expected);
    assert_eq!(without_ids(built(&stream)), without_ids(blocks.clone()));
    assert_eq!(blocks[2]["input"], json!({"a": [2], "b": 1}));
    assert_eq!(blocks[3]["thinking"], "");
    assert!(blocks[3]["signature"].as_str().unwrap().len() > 100);
    assert_eq!(blocks[5]["id"], blocks[6]["tool_use_id"]);
    assert_eq!(
        blocks[7]["citations"][0]["type"],
        "web_search_result_location"
    );
    assert_eq!(blocks[9]["id"], "toolu_z");
    assert_eq!(whole["stop_reason"], "tool_use");
    assert_eq!(whole["usage"]["server_tool_use"]["web_search_requests"], 1);
    // The arguments are unchanged.
    let whole = simulator
        .messages(false, &format!("[[sim {EVERYTHING}]]"))
        .await;
    assert!(whole.text().contains(r#""input":{"b":1,"a":[2]}"#));
}

#[tokio::test]
async fn what_it_thought_it_takes_back_and_nothing_else() {
    let simulator = Simulator::start(SimulatorOptions::default()).await;
    let question = format!("[[sim {EVERYTHING} text=done]]");
    let first = simulator.messages(false, &question).await.json();
    let mut content = first["content"].as_array().unwrap().clone();
    content.retain(|block| block["type"] != "dream");
    let calls = content.iter().filter(|block| block["type"] == "tool_use");
    let results: Vec<Value> = calls
        .map(|call| json!({"type": "tool_result", "tool_use_id": call["id"], "content": "7"}))
        .collect();
    let tools = json!([{"name": "get", "input_schema": {"type": "object"}}]);
    let mut body = json!({"model": "claude-sonnet-4-6", "max_tokens": 900, "tools": tools, "messages": [
        {"role": "user", "content": question},
        {"role": "assistant", "content": content},
        {"role": "user", "content": results},
    ]});
    let second = simulator
        .call("/v1/messages", MESSAGES_HEAD, &body.to_string())
        .await;
    assert_eq!(
        second.json()["content"],
        json!([{"type": "text", "text": "done"}])
    );
    body["messages"][1]["content"][0]["thinking"] = "hm!".into();
    let third = simulator
        .call("/v1/messages", MESSAGES_HEAD, &body.to_string())
        .await;
    assert_eq!(third.status, 400);
    assert!(
        third
            .text()
            .contains("messages.1.content.0: Invalid `signature` in `thinking` block"),
        "{}",
        third.text()
    );
    body["messages"][0]["content"] = format!("{question} [[sim lenient=1]]").into();
    assert_eq!(
        simulator
            .call("/v1/messages", MESSAGES_HEAD, &body.to_string())
            .await
            .status,
        400
    );
    body["messages"][0]["content"] = "[[sim lenient=1]]".into();
    assert_eq!(
        simulator
            .call("/v1/messages", MESSAGES_HEAD, &body.to_string())
            .await
            .status,
        200
    );
}

#[tokio::test]
async fn a_refusal_says_why_before_and_after_output() {
    let simulator = Simulator::start(SimulatorOptions::default()).await;
    for stream in [false, true] {
        let details = |answer: &Answer| match stream {
            false => answer.json(),
            true => of_type(answer, "message_delta")[0]["delta"].clone(),
        };
        let answer = simulator
            .messages(stream, "[[sim refusal=1 text=no category=cyber]]")
            .await;
        let refused = json!({"type": "refusal", "category": "cyber", "explanation": "no"});
        assert_eq!(details(&answer)["stop_details"], refused);
        assert!(of_type_or_content(&answer, stream).is_empty());
        let answer = simulator
            .messages(stream, "[[sim refusal=after text=half explanation=why]]")
            .await;
        assert_eq!(details(&answer)["stop_reason"], "refusal");
        assert_eq!(details(&answer)["stop_details"]["explanation"], "why");
        assert_eq!(of_type_or_content(&answer, stream)[0]["text"], "half");
        let answer = simulator
            .messages(stream, "[[sim stop_sequence=END text=a]]")
            .await;
        assert_eq!(details(&answer)["stop_reason"], "stop_sequence");
        assert_eq!(details(&answer)["stop_sequence"], "END");
        let answer = simulator.messages(stream, "[[sim finish=null]]").await;
        assert_eq!(details(&answer)["stop_reason"], Value::Null);
    }
}

fn of_type_or_content(answer: &Answer, stream: bool) -> Vec<Value> {
    if stream {
        built(answer)
    } else {
        answer.json()["content"].as_array().unwrap().clone()
    }
}

#[tokio::test]
async fn usage_stands_where_the_marker_wants_it() {
    let simulator = Simulator::start(SimulatorOptions::default()).await;
    let usages = async |mode: &str| {
        let marker =
            format!("[[sim input=5 cache_read=6 write_1h=7 output=9 text=abcd usage={mode}]]");
        let answer = simulator.messages(true, &marker).await;
        let start = of_type(&answer, "message_start")[0]["message"]["usage"].clone();
        let deltas: Vec<Value> = of_type(&answer, "message_delta")
            .iter()
            .map(|event| event["usage"].clone())
            .collect();
        (start, deltas)
    };
    let (start, deltas) = usages("normal").await;
    assert_eq!(
        (&start["input_tokens"], &start["output_tokens"]),
        (&json!(5), &json!(1))
    );
    assert_eq!(
        (&deltas[0]["input_tokens"], &deltas[0]["output_tokens"]),
        (&json!(5), &json!(9))
    );
    let (start, deltas) = usages("late").await;
    assert_eq!(
        (&start["input_tokens"], &start["cache_read_input_tokens"]),
        (&json!(0), &json!(0))
    );
    assert_eq!(deltas[0]["cache_read_input_tokens"], 6);
    let (_, deltas) = usages("early").await;
    assert_eq!(deltas, [json!({"output_tokens": 9})]);
    let (start, deltas) = usages("start").await;
    assert_eq!(
        (&start["output_tokens"], deltas),
        (&json!(9), vec![Value::Null])
    );
    let (_, deltas) = usages("before").await;
    assert_eq!(
        (&deltas[0]["output_tokens"], &deltas[1]),
        (&json!(9), &Value::Null)
    );
    let (start, _) = usages("nosplit").await;
    assert_eq!(
        (
            start.get("cache_creation"),
            &start["cache_creation_input_tokens"]
        ),
        (None, &json!(7))
    );
}

#[tokio::test]
async fn thinking_is_shown_as_the_request_and_the_generation_say() {
    let simulator = Simulator::start(SimulatorOptions::default()).await;
    for (model, thinking, marker, shown) in [
        ("claude-sonnet-4-6", json!({"type": "adaptive"}), "", "hm"),
        (
            "claude-sonnet-4-6",
            json!({"type": "adaptive", "display": "omitted"}),
            "",
            "",
        ),
        ("claude-opus-4-7", json!({"type": "adaptive"}), "", ""),
        (
            "claude-opus-4-7",
            json!({"type": "adaptive", "display": "summarized"}),
            "",
            "hm",
        ),
        (
            "claude-opus-4-7",
            json!({"type": "adaptive"}),
            "display=summarized",
            "hm",
        ),
    ] {
        let text = format!("[[sim thinking=hm {marker}]]");
        let body = json!({"model": model, "max_tokens": 900, "stream": true, "thinking": thinking, "messages": [{"role": "user", "content": text}]});
        let answer = simulator
            .call("/v1/messages", MESSAGES_HEAD, &body.to_string())
            .await;
        let blocks = built(&answer);
        assert_eq!(blocks[0]["thinking"], shown, "{model} {thinking} {marker}");
        assert!(!blocks[0]["signature"].as_str().unwrap().is_empty());
        assert_eq!(blocks[1]["type"], "text");
    }
}

#[tokio::test]
async fn a_stream_may_end_early_err_by_name_and_keep_alive_in_every_way() {
    let simulator = Simulator::start(SimulatorOptions::default()).await;
    let answer = simulator.messages(true, "[[sim nofinish=1]]").await;
    assert!(answer.ended && of_type(&answer, "message_delta").is_empty());
    assert_eq!(
        answer.events().last().unwrap()["type"],
        "content_block_stop"
    );
    let answer = simulator.messages(true, "[[sim nodone=1]]").await;
    assert!(answer.ended);
    assert_eq!(answer.events().last().unwrap()["type"], "message_delta");
    let answer = simulator
        .messages(true, "[[sim error_event=0 error_type=strange_error]]")
        .await;
    assert_eq!(answer.events()[0]["error"]["type"], "strange_error");
    let pings = of_type(
        &simulator
            .messages(true, "[[sim keepalive=ping events=4]]")
            .await,
        "ping",
    )
    .len();
    assert_eq!(pings, 11);
    let blank = simulator.messages(true, "[[sim keepalive=blank]]").await;
    assert!(
        blank
            .text()
            .starts_with("event: ping\ndata: \n\nevent: message_start\n"),
        "{}",
        blank.text()
    );
    let whole = simulator
        .messages(true, r#"[[sim tool=get args={"a":1} calls=whole]]"#)
        .await;
    assert_eq!(of_type(&whole, "content_block_delta"), Vec::<Value>::new());
    assert_eq!(built(&whole)[0]["input"], json!({"a": 1}));
}
