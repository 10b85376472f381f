//! Answers that no recording has: characters whose escapes are split, calls that the output limit
//! cut off, and bodies that are not answers.

use serde_json::{Value, json};

/// Bodies of a 200 that are not an answer in any vendor protocol.
pub const NO_ANSWERS: [&str; 12] = [
    "{}",
    "null",
    "[]",
    r#"{"id":"x","model":"m","usage":{"prompt_tokens":9,"completion_tokens":9,"input_tokens":9,"output_tokens":9}}"#,
    r#"{"choices":[],"content":[],"output":[]}"#,
    r#"{"choices":[{"index":0,"message":{"role":"assistant","content":"Hel"}}]}"#,
    r#"{"choices":[{"index":0,"message":{"role":"assistant","content":"Hel"},"finish_reason":""}]}"#,
    r#"{"type":"message","role":"assistant","content":[{"type":"text","text":"Hel"}],"stop_reason":null}"#,
    r#"{"choices":[{"index":0,"message":{"role":"assistant","content":"Hel"},"finish_reason":"stop"}],"error":{"message":"boom"}}"#,
    r#"{"type":"message","role":"assistant","content":[{"type":"text","text":"Hel"}],"stop_reason":"end_turn","error":{"message":"boom"}}"#,
    r#"{"object":"response","status":"completed","error":{"code":"server_error","message":"boom"},"output":[{"type":"message","content":[{"type":"output_text","text":"Hel"}]}]}"#,
    r#"{"object":"response","status":"in_progress","output":[{"type":"message","content":[{"type":"output_text","text":"Hel"}]}]}"#,
];

/// The text of the answers of [`escapes`].
pub const LETTERS: &str = "a😀b";

fn sse(events: &[String]) -> String {
    events
        .iter()
        .map(|event| format!("data: {event}\n\n"))
        .collect()
}

/// The halves of a text, and of a call's arguments. Their only character beyond the basic
/// multilingual plane is written as two escapes, one in each half.
const TEXT: [&str; 2] = [r"a\ud83d", r"\ude00b"];
const ARGUMENTS: [&str; 2] = [r#"{\"k\":\"a\ud83d"#, r#"\ude00b\"}"#];

/// A text and a call's arguments with one character whose escapes are in different events.
pub fn escapes(protocol: &str, is_stream: bool) -> String {
    if !is_stream {
        return whole_with(protocol, &TEXT.concat(), &ARGUMENTS.concat(), false);
    }
    sse(&match protocol {
        "chat" => chat_escapes(),
        "messages" => messages_escapes(),
        _ => responses_escapes(),
    })
}

fn chat_escapes() -> Vec<String> {
    let chunk = |delta: &str| {
        format!(r#"{{"choices":[{{"index":0,"delta":{delta},"finish_reason":null}}]}}"#)
    };
    let text = |text: &str| chunk(&format!(r#"{{"content":"{text}"}}"#));
    let call = |start: &str, arguments: &str| {
        let call =
            format!(r#"{{"index":0,{start}"function":{{"name":"f","arguments":"{arguments}"}}}}"#);
        chunk(&format!(r#"{{"tool_calls":[{call}]}}"#))
    };
    let usage = r#""usage":{"prompt_tokens":5,"completion_tokens":2,"total_tokens":7}"#;
    vec![
        text(TEXT[0]),
        text(TEXT[1]),
        call(r#""id":"call_1","type":"function","#, ARGUMENTS[0]),
        call("", ARGUMENTS[1]),
        r#"{"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}"#.to_owned(),
        format!(r#"{{"choices":[],{usage}}}"#),
        "[DONE]".to_owned(),
    ]
}

fn messages_escapes() -> Vec<String> {
    let delta = |index: u64, kind: &str, member: &str, text: &str| {
        let delta = format!(r#"{{"type":"{kind}","{member}":"{text}"}}"#);
        format!(r#"{{"type":"content_block_delta","index":{index},"delta":{delta}}}"#)
    };
    let open = |index: u64, block: Value| {
        json!({"type": "content_block_start", "index": index, "content_block": block}).to_string()
    };
    let close = |index: u64| json!({"type": "content_block_stop", "index": index}).to_string();
    let start = json!({"id": "msg_1", "type": "message", "role": "assistant", "model": "up", "content": [],
                "stop_reason": null, "usage": {"input_tokens": 5, "output_tokens": 1}});
    vec![
        json!({"type": "message_start", "message": start}).to_string(),
        open(0, json!({"type": "text", "text": ""})),
        delta(0, "text_delta", "text", TEXT[0]),
        delta(0, "text_delta", "text", TEXT[1]),
        close(0),
        open(1, json!({"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}})),
        delta(1, "input_json_delta", "partial_json", ARGUMENTS[0]),
        delta(1, "input_json_delta", "partial_json", ARGUMENTS[1]),
        close(1),
        json!({"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 2}})
            .to_string(),
        json!({"type": "message_stop"}).to_string(),
    ]
}

fn responses_escapes() -> Vec<String> {
    let delta = |number: u64, kind: &str, index: u64, text: &str| {
        let place = format!(r#""item_id":"i_{index}","output_index":{index},"content_index":0"#);
        format!(
            r#"{{"type":"response.{kind}.delta","sequence_number":{number},{place},"delta":"{text}"}}"#
        )
    };
    let item = |number: u64, kind: &str, index: u64, item: &str| {
        let kind = format!("response.output_item.{kind}");
        format!(
            r#"{{"type":"{kind}","sequence_number":{number},"output_index":{index},"item":{item}}}"#
        )
    };
    let message = |content: &str| {
        let head = r#""type":"message","id":"msg_1","role":"assistant","status":"completed""#;
        format!(r#"{{{head},"content":[{content}]}}"#)
    };
    let part = format!(
        r#"{{"type":"output_text","text":"{}","annotations":[]}}"#,
        TEXT.concat()
    );
    let call = |arguments: &str| {
        let head = r#""type":"function_call","id":"fc_1","call_id":"call_1","name":"f","status":"completed""#;
        format!(r#"{{{head},"arguments":"{arguments}"}}"#)
    };
    let (message_done, call_done) = (message(&part), call(&ARGUMENTS.concat()));
    let usage = r#""usage":{"input_tokens":5,"output_tokens":2,"total_tokens":7}"#;
    let response = |status: &str, output: &str| {
        let head = r#""id":"resp_1","object":"response","created_at":1,"model":"up""#;
        format!(r#"{{{head},"status":"{status}","output":[{output}],{usage}}}"#)
    };
    let end = response("completed", &format!("{message_done},{call_done}"));
    vec![
        format!(
            r#"{{"type":"response.created","sequence_number":0,"response":{}}}"#,
            response("in_progress", "")
        ),
        item(1, "added", 0, &message("")),
        delta(2, "output_text", 0, TEXT[0]),
        delta(3, "output_text", 0, TEXT[1]),
        item(4, "done", 0, &message_done),
        item(5, "added", 1, &call("")),
        delta(6, "function_call_arguments", 1, ARGUMENTS[0]),
        delta(7, "function_call_arguments", 1, ARGUMENTS[1]),
        item(8, "done", 1, &call_done),
        format!(r#"{{"type":"response.completed","sequence_number":9,"response":{end}}}"#),
    ]
}

/// An answer that the output limit cut off within a call's arguments.
pub fn call(protocol: &str, is_stream: bool, arguments: &str) -> String {
    if !is_stream {
        let spelled = json!(arguments).to_string();
        return whole_with(protocol, "Ok.", &spelled[1..spelled.len() - 1], true);
    }
    let events = match protocol {
        "chat" => chat_call(arguments),
        "messages" => messages_call(arguments),
        _ => responses_call(arguments),
    };
    let mut events: Vec<String> = events.iter().map(Value::to_string).collect();
    if protocol == "chat" {
        events.push("[DONE]".to_owned());
    }
    sse(&events)
}

fn chat_call(arguments: &str) -> Vec<Value> {
    let chunk = |delta: Value, finish: Value| json!({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]});
    let call = json!({"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": ""}});
    let mut events = vec![
        chunk(json!({"role": "assistant", "content": "Ok."}), Value::Null),
        chunk(json!({"tool_calls": [call]}), Value::Null),
    ];
    if !arguments.is_empty() {
        let more = json!({"index": 0, "function": {"arguments": arguments}});
        events.push(chunk(json!({"tool_calls": [more]}), Value::Null));
    }
    let usage = json!({"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7});
    events.extend([
        chunk(json!({}), json!("length")),
        json!({"choices": [], "usage": usage}),
    ]);
    events
}

fn messages_call(arguments: &str) -> Vec<Value> {
    let start = json!({"id": "msg_1", "type": "message", "role": "assistant", "model": "up", "content": [],
                "stop_reason": null, "usage": {"input_tokens": 5, "output_tokens": 1}});
    let open = |index: u64, block: Value| json!({"type": "content_block_start", "index": index, "content_block": block});
    let delta = |index: u64, delta: Value| json!({"type": "content_block_delta", "index": index, "delta": delta});
    let mut events = vec![
        json!({"type": "message_start", "message": start}),
        open(0, json!({"type": "text", "text": ""})),
        delta(0, json!({"type": "text_delta", "text": "Ok."})),
        json!({"type": "content_block_stop", "index": 0}),
        open(
            1,
            json!({"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}),
        ),
    ];
    if !arguments.is_empty() {
        events.push(delta(
            1,
            json!({"type": "input_json_delta", "partial_json": arguments}),
        ));
    }
    events.extend([
        json!({"type": "content_block_stop", "index": 1}),
        json!({"type": "message_delta", "delta": {"stop_reason": "max_tokens"}, "usage": {"output_tokens": 2}}),
        json!({"type": "message_stop"}),
    ]);
    events
}

fn responses_call(arguments: &str) -> Vec<Value> {
    let call = |arguments: &str, status: &str| {
        json!({"type": "function_call", "id": "fc_1", "call_id": "call_1",
                "name": "f", "arguments": arguments, "status": status})
    };
    let message = json!({"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
                "content": [{"type": "output_text", "text": "Ok.", "annotations": []}]});
    let response = |status: &str, output: Value| {
        json!({"id": "resp_1", "object": "response", "created_at": 1,
                "model": "up", "status": status, "output": output,
                "usage": {"input_tokens": 5, "output_tokens": 2, "total_tokens": 7}})
    };
    let mut events = vec![
        json!({"type": "response.created", "response": response("in_progress", json!([]))}),
        json!({"type": "response.output_item.added", "output_index": 0, "item": message}),
        json!({"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": "Ok."}),
        json!({"type": "response.output_item.done", "output_index": 0, "item": message}),
        json!({"type": "response.output_item.added", "output_index": 1, "item": call("", "in_progress")}),
    ];
    if !arguments.is_empty() {
        events.push(json!({"type": "response.function_call_arguments.delta", "output_index": 1, "delta": arguments}));
    }
    // There is no reason for the incomplete answer: some servers give none.
    let end = response(
        "incomplete",
        json!([message, call(arguments, "incomplete")]),
    );
    events.push(json!({"type": "response.incomplete", "response": end}));
    for (number, event) in events.iter_mut().enumerate() {
        event["sequence_number"] = number.into();
    }
    events
}

/// A whole answer with a text and a call. `text` and `arguments` are the contents of JSON strings,
/// in their escaped form.
fn whole_with(protocol: &str, text: &str, arguments: &str, is_cut: bool) -> String {
    match protocol {
        "chat" => {
            let call = format!(
                r#"{{"id":"call_1","type":"function","function":{{"name":"f","arguments":"{arguments}"}}}}"#
            );
            let message =
                format!(r#"{{"role":"assistant","content":"{text}","tool_calls":[{call}]}}"#);
            let reason = if is_cut { "length" } else { "tool_calls" };
            let choice = format!(r#"{{"index":0,"message":{message},"finish_reason":"{reason}"}}"#);
            let usage = r#"{"prompt_tokens":5,"completion_tokens":2,"total_tokens":7}"#;
            format!(
                r#"{{"id":"c","object":"chat.completion","created":1,"model":"up","choices":[{choice}],"usage":{usage}}}"#
            )
        }
        "messages" => {
            let (input, reason) = match is_cut {
                // A vendor of this protocol cannot represent a part of an object.
                true => ("{}".to_owned(), "max_tokens"),
                false => (r#"{"k":"a\ud83d\ude00b"}"#.to_owned(), "tool_use"),
            };
            let call =
                format!(r#"{{"type":"tool_use","id":"toolu_1","name":"f","input":{input}}}"#);
            let content = format!(r#"[{{"type":"text","text":"{text}"}},{call}]"#);
            let head = r#""id":"msg_1","type":"message","role":"assistant","model":"up""#;
            let usage = r#"{"input_tokens":5,"output_tokens":2}"#;
            format!(
                r#"{{{head},"content":{content},"stop_reason":"{reason}","stop_sequence":null,"usage":{usage}}}"#
            )
        }
        _ => {
            let status = if is_cut { "incomplete" } else { "completed" };
            let message = format!(
                r#"{{"type":"message","id":"msg_1","role":"assistant","status":"completed","content":[{{"type":"output_text","text":"{text}","annotations":[]}}]}}"#
            );
            let call = format!(
                r#"{{"type":"function_call","id":"fc_1","call_id":"call_1","name":"f","arguments":"{arguments}","status":"{status}"}}"#
            );
            let usage = r#"{"input_tokens":5,"output_tokens":2,"total_tokens":7}"#;
            let head = r#""id":"resp_1","object":"response","created_at":1,"model":"up""#;
            format!(r#"{{{head},"status":"{status}","output":[{message},{call}],"usage":{usage}}}"#)
        }
    }
}
