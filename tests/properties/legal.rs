//! Checks whether a strict reader of each protocol accepts a message: a vendor a request, an SDK an
//! answer. Each check returns the first fault that it finds.
//!
//! The checks are written from the protocols, without knowledge of the translator. Read next:
//! `properties/translation.rs`.

use llm_protocol::Protocol;
use llm_protocol::capabilities::ModelCapabilities;
use serde_json::Value;
use std::collections::BTreeSet;

type Fault = Result<(), String>;

fn unless(fault: bool, words: impl FnOnce() -> String) -> Fault {
    if fault { Err(words()) } else { Ok(()) }
}

fn blank(text: &Value) -> bool {
    text.as_str().is_none_or(|text| text.trim().is_empty())
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn fits(id: &str, most: usize) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    !id.is_empty() && id.len() <= most && id.bytes().all(plain)
}

/// Checks whether a vendor of this protocol would accept the body.
pub fn request(vendor: Protocol, body: &Value, accepts: &ModelCapabilities) -> Fault {
    match (vendor, accepts) {
        (Protocol::Messages, ModelCapabilities::Messages(model)) => messages_request(body)
            .and_then(|()| messages_turns(body, model.prefill, model.mid_system)),
        (Protocol::Chat, ModelCapabilities::Chat(_)) => {
            chat_request(body).and_then(|()| chat_turns(body))
        }
        _ => Err("the model is of another vendor".to_owned()),
    }
}

fn messages_request(body: &Value) -> Fault {
    const KNOWN: [&str; 20] = [
        "model",
        "messages",
        "system",
        "max_tokens",
        "metadata",
        "stop_sequences",
        "stream",
        "temperature",
        "top_p",
        "top_k",
        "tools",
        "tool_choice",
        "thinking",
        "output_config",
        "service_tier",
        "cache_control",
        "speed",
        "inference_geo",
        "container",
        "betas",
    ];
    if let Some(name) = body
        .as_object()
        .ok_or("no object")?
        .keys()
        .find(|name| !KNOWN.contains(&name.as_str()))
    {
        return Err(format!("unknown member {name}"));
    }
    if body["max_tokens"]
        .as_u64()
        .is_none_or(|limit| limit == 0 || limit > 32_000)
    {
        return Err(format!("max_tokens {}", body["max_tokens"]));
    }
    let mut names = BTreeSet::new();
    for tool in list(&body["tools"]) {
        let Some(name) = tool["name"].as_str() else {
            continue;
        };
        if tool.get("type").is_none() {
            if !fits(name, 64) {
                return Err(format!("tool name {name:?}"));
            }
            if tool["input_schema"]["type"] != "object" {
                return Err(format!("schema of {name}: {}", tool["input_schema"]));
            }
            for word in ["anyOf", "oneOf", "allOf"] {
                if tool["input_schema"].get(word).is_some() {
                    return Err(format!("{word} at the top of {name}"));
                }
            }
        }
        if !names.insert(name) {
            return Err(format!("tool {name} twice"));
        }
    }
    if body.get("tool_choice").is_some() && list(&body["tools"]).is_empty() {
        return Err("a choice without tools".to_owned());
    }
    if markers(body) > 4 {
        return Err("more than four cache markers".to_owned());
    }
    let texts = list(&body["system"]);
    unless(texts.iter().any(|block| blank(&block["text"])), || {
        "a blank system block".to_owned()
    })
}

fn markers(value: &Value) -> usize {
    match value {
        Value::Array(items) => items.iter().map(markers).sum(),
        Value::Object(members) => members
            .iter()
            .map(|(name, member)| match name.as_str() {
                "cache_control" => usize::from(!member.is_null()),
                "input" | "input_schema" | "output_config" => 0,
                _ => markers(member),
            })
            .sum(),
        _ => 0,
    }
}

fn messages_turns(body: &Value, prefill: bool, mid_system: bool) -> Fault {
    let turns = list(&body["messages"]);
    let (mut before, mut ids) = ("", BTreeSet::new());
    let mut open: Vec<&str> = Vec::new();
    for (index, turn) in turns.iter().enumerate() {
        let role = turn["role"].as_str().ok_or("no string")?;
        let blocks = list(&turn["content"]);
        if index == 0 && role != "user" {
            return Err(format!("begins with {role}"));
        }
        if role == before
            || !matches!(role, "user" | "assistant" | "system")
            || (role == "system" && !mid_system)
        {
            return Err(format!("messages[{index}]: {role} behind {before}"));
        }
        if blocks.is_empty() {
            return Err(format!("messages[{index}] is empty"));
        }
        let results: Vec<_> = blocks
            .iter()
            .take_while(|block| block["type"] == "tool_result")
            .collect();
        if blocks
            .iter()
            .filter(|block| block["type"] == "tool_result")
            .count()
            != results.len()
        {
            return Err(format!("messages[{index}]: a result behind something else"));
        }
        let answered: Vec<_> = results
            .iter()
            .filter_map(|block| block["tool_use_id"].as_str())
            .collect();
        if answered != open {
            return Err(format!(
                "messages[{index}]: results {answered:?} for calls {open:?}"
            ));
        }
        open.clear();
        let mut called = false;
        for block in blocks {
            match block["type"].as_str().ok_or("no string")? {
                "text" if blank(&block["text"]) => {
                    return Err(format!("messages[{index}]: a blank text"));
                }
                "text" | "image" | "document" if called => {
                    return Err(format!("messages[{index}]: something behind a call"));
                }
                "tool_use" => {
                    called = true;
                    let id = block["id"].as_str().ok_or("no string")?;
                    if !fits(id, 64) || !ids.insert(id) {
                        return Err(format!("messages[{index}]: call id {id:?}"));
                    }
                    if !block["input"].is_object()
                        || !fits(block["name"].as_str().ok_or("no string")?, 64)
                    {
                        return Err(format!("messages[{index}]: call {block}"));
                    }
                    open.push(id);
                }
                "thinking" if block["signature"].as_str().is_none_or(str::is_empty) => {
                    return Err(format!("messages[{index}]: unsigned thinking"));
                }
                _ => {}
            }
        }
        before = role;
    }
    let last = turns.last().ok_or("no turns")?;
    if !open.is_empty() {
        return Err(format!("no results for {open:?}"));
    }
    if last["role"] == "assistant" {
        let text = list(&last["content"])
            .last()
            .and_then(|block| block["text"].as_str())
            .unwrap_or_default();
        if !prefill || text.ends_with(char::is_whitespace) {
            return Err("ends with the assistant".to_owned());
        }
    }
    Ok(())
}

fn chat_request(body: &Value) -> Fault {
    const KNOWN: [&str; 19] = [
        "model",
        "messages",
        "max_completion_tokens",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "stop",
        "stream",
        "stream_options",
        "temperature",
        "top_p",
        "reasoning_effort",
        "response_format",
        "safety_identifier",
        "prompt_cache_key",
        "service_tier",
        "verbosity",
        "max_tokens",
        "top_k",
    ];
    if let Some(name) = body
        .as_object()
        .ok_or("no object")?
        .keys()
        .find(|name| !KNOWN.contains(&name.as_str()))
    {
        return Err(format!("unknown member {name}"));
    }
    // The limit is optional here: only one protocol requires one.
    let limit = body.get("max_completion_tokens");
    if limit.is_some_and(|limit| {
        limit
            .as_u64()
            .is_none_or(|limit| limit == 0 || limit > 32_000)
    }) {
        return Err(format!(
            "max_completion_tokens {}",
            body["max_completion_tokens"]
        ));
    }
    let tools = body["tools"].as_array();
    if tools.is_some_and(|tools| tools.is_empty() || tools.len() > 128) {
        return Err("no or too many tools".to_owned());
    }
    if tools.is_none()
        && (body.get("tool_choice").is_some() || body.get("parallel_tool_calls").is_some())
    {
        return Err("a choice without tools".to_owned());
    }
    for tool in list(&body["tools"]) {
        if tool["type"] == "custom" {
            continue;
        }
        let function = &tool["function"];
        if !fits(function["name"].as_str().ok_or("no string")?, 64)
            || function["parameters"]["type"] != "object"
        {
            return Err(format!("tool {tool}"));
        }
    }
    let stops = list(&body["stop"]);
    unless(stops.len() > 4, || "more than four stops".to_owned())
}

fn chat_turns(body: &Value) -> Fault {
    let messages = list(&body["messages"]);
    if messages.is_empty() {
        return Err("no messages".to_owned());
    }
    let mut open: BTreeSet<&str> = BTreeSet::new();
    for (index, message) in messages.iter().enumerate() {
        let role = message["role"].as_str().ok_or("no string")?;
        if role == "tool" {
            let id = message["tool_call_id"].as_str().ok_or("no string")?;
            if !open.remove(id) {
                return Err(format!("messages[{index}]: a result of no call: {id}"));
            }
            continue;
        }
        if !open.is_empty() {
            return Err(format!("messages[{index}]: no results for {open:?}"));
        }
        for name in message.as_object().ok_or("no object")?.keys() {
            let known = [
                "role",
                "content",
                "tool_calls",
                "reasoning_content",
                "reasoning_details",
                "refusal",
                "name",
            ];
            if !known.contains(&name.as_str()) {
                return Err(format!("messages[{index}]: unknown member {name}"));
            }
        }
        let calls = list(&message["tool_calls"]);
        if role == "assistant" && message["content"].is_null() && calls.is_empty() {
            return Err(format!("messages[{index}] says nothing"));
        }
        for call in calls {
            let id = call["id"].as_str().ok_or("no string")?;
            if id.is_empty()
                || id.len() > 40
                || !fits(call["function"]["name"].as_str().ok_or("no string")?, 64)
            {
                return Err(format!("messages[{index}]: call {call}"));
            }
            if !call["function"]["arguments"].is_string() {
                return Err(format!("messages[{index}]: arguments of {call}"));
            }
            open.insert(id);
        }
    }
    unless(!open.is_empty(), || format!("no results for {open:?}"))
}

/// Checks whether an SDK of this surface would read these events to the end.
pub fn stream(surface: Protocol, events: &[(String, String)], completed: bool) -> Fault {
    match surface {
        Protocol::Chat => chat_stream(events, completed),
        Protocol::Messages => messages_stream(events, completed),
        Protocol::Responses => crate::legal_responses::stream(events, completed),
    }
}

fn chat_stream(events: &[(String, String)], completed: bool) -> Fault {
    let (mut finished, mut usages, mut done) = (false, 0, false);
    let mut calls: Vec<String> = Vec::new();
    for (number, (name, data)) in events.iter().enumerate() {
        if !name.is_empty() || done {
            return Err(format!("event {number}: {name} {data}"));
        }
        if data == "[DONE]" {
            done = true;
            continue;
        }
        let chunk: Value = serde_json::from_str(data).map_err(|error| error.to_string())?;
        if usages > 0 || (finished && !list(&chunk["choices"]).is_empty()) {
            return Err(format!("event {number} behind the end: {data}"));
        }
        if chunk["usage"].is_object() {
            usages += 1;
            if chunk["usage"]["total_tokens"].as_u64().is_none() {
                return Err(format!("event {number}: {data}"));
            }
            continue;
        }
        let choice = &chunk["choices"][0];
        let delta = &choice["delta"];
        if (number == 0) != (delta["role"] == "assistant") {
            return Err(format!("event {number}: role: {data}"));
        }
        for call in list(&delta["tool_calls"]) {
            let index = usize::try_from(call["index"].as_u64().ok_or("no count")?)
                .map_err(|error| error.to_string())?;
            if let Some(id) = call["id"].as_str() {
                if index != calls.len() || id.is_empty() {
                    return Err(format!("event {number}: call {call}"));
                }
                calls.push(id.to_owned());
            } else if index >= calls.len() {
                return Err(format!("event {number}: more of call {index}"));
            }
        }
        finished |= choice["finish_reason"].is_string();
    }
    let whole = finished && usages == 1 && done;
    unless(completed != whole, || {
        format!("completed {completed}; finish {finished}, usages {usages}, done {done}")
    })
}

fn messages_stream(events: &[(String, String)], completed: bool) -> Fault {
    let (mut next, mut open): (u64, Option<String>) = (0, None);
    let (mut delta_seen, mut stopped) = (false, false);
    for (number, (name, data)) in events.iter().enumerate() {
        let event: Value = serde_json::from_str(data).map_err(|error| error.to_string())?;
        let fault = || Err(format!("event {number}: {name} {data}"));
        if event["type"] != name.as_str() || stopped || (number == 0) != (name == "message_start") {
            return fault();
        }
        match name.as_str() {
            "message_start" => {
                if event["message"]["usage"]["input_tokens"].as_u64().is_none() {
                    return fault();
                }
            }
            "ping" => {}
            "content_block_start" => {
                if open.is_some() || event["index"] != next || delta_seen {
                    return fault();
                }
                open = Some(
                    event["content_block"]["type"]
                        .as_str()
                        .ok_or("no string")?
                        .to_owned(),
                );
                next += 1;
            }
            "content_block_delta" => {
                let kind = event["delta"]["type"].as_str().ok_or("no string")?;
                let expected = match open.as_deref().ok_or("nothing is open")? {
                    "text" => &["text_delta"][..],
                    "thinking" => &["thinking_delta", "signature_delta"],
                    "tool_use" => &["input_json_delta"],
                    _ => &[],
                };
                if !expected.contains(&kind) || event["index"] != next - 1 {
                    return fault();
                }
            }
            "content_block_stop" => {
                if open.take().is_none() || event["index"] != next - 1 {
                    return fault();
                }
            }
            "message_delta" => {
                if open.is_some()
                    || delta_seen
                    || event["usage"]["output_tokens"].as_u64().is_none()
                {
                    return fault();
                }
                delta_seen = true;
            }
            "message_stop" => {
                if !delta_seen {
                    return fault();
                }
                stopped = true;
            }
            _ => return fault(),
        }
    }
    unless(completed != stopped, || {
        format!("completed {completed}; stopped {stopped}")
    })
}

/// Checks whether an SDK of this surface would read this answer.
pub fn answer(surface: Protocol, body: &Value) -> Fault {
    match surface {
        Protocol::Responses => crate::legal_responses::answer(body),
        Protocol::Chat => {
            let message = &body["choices"][0]["message"];
            let calls = list(&message["tool_calls"]);
            // The arguments stay as the model wrote them, even if they are broken: the client's
            // tool must see that.
            let fits = calls
                .iter()
                .all(|call| call["function"]["arguments"].is_string());
            let whole = message["role"] == "assistant"
                && body["choices"][0]["finish_reason"].is_string()
                && body["usage"]["total_tokens"].is_u64()
                && body["id"]
                    .as_str()
                    .is_some_and(|id| id.starts_with("chatcmpl-"))
                && fits;
            unless(!whole, || "not a whole completion".to_owned())
        }
        Protocol::Messages => {
            let blocks = list(&body["content"]);
            let fits = blocks.iter().all(|block| match block["type"].as_str() {
                Some("text") => !blank(&block["text"]),
                Some("tool_use") => {
                    block["input"].is_object()
                        && block["id"].is_string()
                        && block["name"].is_string()
                }
                Some("thinking") => block["signature"].is_string(),
                Some("redacted_thinking") => {
                    block["data"].as_str().is_some_and(|data| !data.is_empty())
                }
                _ => false,
            });
            let whole = body["type"] == "message"
                && body["stop_reason"].is_string()
                && body["usage"]["output_tokens"].is_u64()
                && body["id"].as_str().is_some_and(|id| id.starts_with("msg_"))
                && fits;
            unless(!whole, || "not a whole message".to_owned())
        }
    }
}
