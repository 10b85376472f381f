//! Describes the conversation that the vendor received, for the marker `outline=1`. The reply then
//! contains the description, in the same words for all vendors.
//!
//! This file must not check the conversation, which tests do.

use serde_json::Value;

const MAX_TEXT_CHARS: usize = 40;

/// Describes the turns of a body with their parts, as `system[…] user[…] assistant[…]`.
pub fn describe(body: &Value) -> String {
    let mut turns = Vec::new();
    for name in ["system", "instructions"] {
        turns.extend(turn("system", &body[name]));
    }
    if let Some(text) = body["input"].as_str() {
        turns.push(format!("user[{}]", shorten(text)));
    }
    for item in items(&body["messages"]).iter().chain(items(&body["input"])) {
        let calls: Vec<String> = items(&item["tool_calls"]).iter().map(call).collect();
        match item["type"].as_str() {
            Some("function_call") => turns.push(format!("assistant[{}]", call(item))),
            Some("function_call_output") => turns.extend(turn("tool", &item["output"])),
            Some("reasoning") => turns.push("assistant[reasoning]".to_owned()),
            _ => turns.extend(turn(
                item["role"].as_str().unwrap_or("unknown"),
                &item["content"],
            )),
        }
        turns.extend((!calls.is_empty()).then(|| format!("assistant[{}]", calls.join(","))));
    }
    turns.join(" ")
}

fn call(call: &Value) -> String {
    let name = call["function"]["name"].as_str().or(call["name"].as_str());
    format!("call {}", name.unwrap_or("unknown"))
}

/// Describes a turn with its parts; `None` if it has no parts.
fn turn(role: &str, content: &Value) -> Option<String> {
    let parts: Vec<String> = match content {
        Value::String(text) => vec![shorten(text)],
        Value::Array(parts) => parts.iter().map(part).collect(),
        _ => Vec::new(),
    };
    (!parts.is_empty()).then(|| format!("{role}[{}]", parts.join(",")))
}

fn part(part: &Value) -> String {
    match part["type"].as_str() {
        Some("text" | "input_text" | "output_text") | None => {
            shorten(part["text"].as_str().unwrap_or_default())
        }
        Some("image" | "image_url" | "input_image") => "image".to_owned(),
        Some("document" | "document_url" | "file" | "input_file") => "document".to_owned(),
        Some("tool_use") => call(part),
        Some(kind) => kind.to_owned(),
    }
}

/// Returns the start of a text without the marker's brackets, because the reply must not contain a
/// marker.
fn shorten(text: &str) -> String {
    let text: String = text.chars().take(MAX_TEXT_CHARS).collect();
    text.replace(['[', ']', '\n'], " ")
}

fn items(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}
