//! The chat vendor's checks of messages: their fields, their parts, and that results follow calls.
//!
//! It must not examine the rest of the request (`chat.rs`).

use serde_json::Value;

use super::chat::{check_name, empty_array, invalid, missing, only, too_long};
use super::{Call, given, list};
use crate::simulator::errors::Problem;
use crate::simulator::signature::decode;

const ID_MAX: usize = 40;
/// SDKs and agents that work with the vendor send the last two back with its answer.
const ANSWER_FIELDS: [&str; 10] = [
    "role",
    "content",
    "name",
    "refusal",
    "audio",
    "function_call",
    "tool_calls",
    "annotations",
    "parsed",
    "provider_specific_fields",
];
const IMAGE_TYPES: [&str; 4] = ["image/png", "image/jpeg", "image/gif", "image/webp"];

pub fn check(call: &Call<'_>) -> Result<(), Problem> {
    let messages = list(&call.body["messages"]);
    // Calls without a result so far, and the message that made them.
    let mut open: Vec<&str> = Vec::new();
    let mut caller = None;
    for (index, message) in messages.iter().enumerate() {
        let path = format!("messages[{index}]");
        check_message(&path, message)?;
        if message["role"] == "tool" {
            let id = message["tool_call_id"].as_str().unwrap_or_default();
            answer(index, id, caller, &mut open)?;
            continue;
        }
        unanswered(index, &open)?;
        let calls = list(&message["tool_calls"]);
        open = calls
            .iter()
            .filter_map(|call| call["id"].as_str())
            .collect();
        caller = (!calls.is_empty()).then_some(calls);
    }
    unanswered(messages.len(), &open)
}

fn answer(
    index: usize,
    id: &str,
    caller: Option<&[Value]>,
    open: &mut Vec<&str>,
) -> Result<(), Problem> {
    let param = format!("messages.[{index}].role");
    let Some(calls) = caller else {
        let text = "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with \
            'tool_calls'.";
        return Err(Problem::of_param(text, &param, None));
    };
    if !calls.iter().any(|call| call["id"] == id) {
        let text = format!(
            "Invalid parameter: 'tool_call_id' of '{id}' not found in 'tool_calls' of previous message."
        );
        return Err(Problem::of_param(
            text,
            &format!("messages.[{index}].tool_call_id"),
            None,
        ));
    }
    open.retain(|waiting| *waiting != id);
    Ok(())
}

/// Rejects the message at `index` if calls still need their results there.
fn unanswered(index: usize, open: &[&str]) -> Result<(), Problem> {
    if open.is_empty() {
        return Ok(());
    }
    let text = format!(
        "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. \
         The following tool_call_ids did not have response messages: {}",
        open.join(", ")
    );
    Err(Problem::of_param(
        text,
        &format!("messages.[{index}].role"),
        None,
    ))
}

fn check_message(path: &str, message: &Value) -> Result<(), Problem> {
    let fields: &[&str] = match message["role"].as_str() {
        Some("system" | "developer" | "user" | "function") => &["role", "content", "name"],
        Some("tool") => &["role", "content", "name", "tool_call_id"],
        Some("assistant") => &ANSWER_FIELDS,
        Some(role) => {
            let text = format!(
                "Invalid value: '{role}'. Supported values are: 'system', 'assistant', 'user', 'function', 'tool', \
                 and 'developer'."
            );
            return Err(invalid(&format!("{path}.role"), text));
        }
        None => return Err(missing(&format!("{path}.role"))),
    };
    only(path, message, fields)?;
    check_content(path, message)?;
    if message["role"] == "tool" {
        let id = format!("{path}.tool_call_id");
        check_id(&id, &message["tool_call_id"])?;
    }
    if given(message, "tool_calls").map(list) == Some(&[]) {
        return Err(empty_array(&format!("{path}.tool_calls")));
    }
    for (index, call) in list(&message["tool_calls"]).iter().enumerate() {
        check_call(&format!("{path}.tool_calls[{index}]"), call)?;
    }
    Ok(())
}

fn check_id(path: &str, id: &Value) -> Result<(), Problem> {
    match id.as_str() {
        Some(id) if id.chars().count() > ID_MAX => Err(too_long(path, ID_MAX, id.chars().count())),
        Some(_) => Ok(()),
        None => Err(missing(path)),
    }
}

fn check_call(path: &str, call: &Value) -> Result<(), Problem> {
    only(path, call, &["id", "type", "function", "custom", "index"])?;
    check_id(&format!("{path}.id"), &call["id"])?;
    match call["type"].as_str() {
        Some("function") => {
            let function = &call["function"];
            only(
                &format!("{path}.function"),
                function,
                &["name", "arguments", "parsed_arguments"],
            )?;
            check_name(&format!("{path}.function.name"), &function["name"])?;
            match &function["arguments"] {
                Value::String(_) => Ok(()),
                Value::Null => Err(missing(&format!("{path}.function.arguments"))),
                _ => {
                    let path = format!("{path}.function.arguments");
                    let text = format!(
                        "Invalid type for '{path}': expected a string, but got an object instead."
                    );
                    Err(Problem::of_param(text, &path, Some("invalid_type")))
                }
            }
        }
        Some("custom") => Ok(()),
        None => Err(missing(&format!("{path}.type"))),
        Some(kind) => {
            let text =
                format!("Invalid value: '{kind}'. Supported values are: 'function' and 'custom'.");
            Err(invalid(&format!("{path}.type"), text))
        }
    }
}

fn check_content(path: &str, message: &Value) -> Result<(), Problem> {
    let role = message["role"].as_str().unwrap_or_default();
    match &message["content"] {
        Value::String(_) => Ok(()),
        Value::Array(parts) if parts.is_empty() => Err(empty_array(&format!("{path}.content"))),
        Value::Array(parts) => {
            for (index, part) in parts.iter().enumerate() {
                check_part(&format!("{path}.content[{index}]"), part, role)?;
            }
            Ok(())
        }
        Value::Null => {
            let instead = ["tool_calls", "function_call", "refusal", "audio"];
            let is_elsewhere =
                role == "assistant" && instead.iter().any(|name| given(message, name).is_some());
            let text = "Invalid value for 'content': expected a string, got null.";
            if is_elsewhere {
                Ok(())
            } else {
                Err(Problem::of_param(text, &format!("{path}.content"), None))
            }
        }
        _ => {
            let text = format!(
                "Invalid type for '{path}.content': expected one of a string or array of objects."
            );
            Err(Problem::of_param(
                text,
                &format!("{path}.content"),
                Some("invalid_type"),
            ))
        }
    }
}

fn check_part(path: &str, part: &Value, role: &str) -> Result<(), Problem> {
    let kind = part["type"].as_str().unwrap_or_default();
    let allowed: &[&str] = match role {
        "user" => &["text", "image_url", "input_audio", "file"],
        "assistant" => &["text", "refusal"],
        _ => &["text"],
    };
    if kind == "image_url" && role != "user" {
        let text = format!(
            "Invalid '{path}'. Image URLs are only allowed for messages with role 'user', but this message with role \
             '{role}' contains an image URL."
        );
        return Err(invalid(path, text));
    }
    if !allowed.contains(&kind) {
        let listed: Vec<String> = allowed.iter().map(|kind| format!("'{kind}'")).collect();
        let text = format!(
            "Invalid value: '{kind}'. Supported values are: {}.",
            listed.join(", ")
        );
        return Err(invalid(&format!("{path}.type"), text));
    }
    only(path, part, &["type", kind])?;
    match kind {
        "text" | "refusal" if !part[kind].is_string() => Err(missing(&format!("{path}.{kind}"))),
        "image_url" => image(&format!("{path}.image_url"), &part["image_url"]),
        "file" => file(&format!("{path}.file"), &part["file"]),
        _ => Ok(()),
    }
}

fn image(path: &str, image: &Value) -> Result<(), Problem> {
    only(path, image, &["url", "detail"])?;
    let Some(url) = image["url"].as_str() else {
        return Err(missing(&format!("{path}.url")));
    };
    if url.starts_with("https://") || url.starts_with("http://") {
        return Ok(());
    }
    let url_path = format!("{path}.url");
    let data = url
        .strip_prefix("data:")
        .and_then(|rest| rest.split_once(";base64,"));
    match data {
        None => Err(invalid(
            &url_path,
            format!(
                "Invalid '{url_path}'. Expected a valid URL, but got a value with an invalid format."
            ),
        )),
        Some((kind, _)) if !IMAGE_TYPES.contains(&kind) => {
            let text = format!(
                "Invalid MIME type. Only image types are supported: {}.",
                IMAGE_TYPES.join(", ")
            );
            Err(Problem::of_param(
                text,
                &url_path,
                Some("invalid_image_format"),
            ))
        }
        Some((_, data)) if decode(data).is_none_or(|bytes| bytes.is_empty()) => {
            Err(Problem::of_param(
                "Invalid base64 image_url.",
                &url_path,
                Some("invalid_base64"),
            ))
        }
        Some(_) => Ok(()),
    }
}

fn file(path: &str, file: &Value) -> Result<(), Problem> {
    only(path, file, &["file_id", "filename", "file_data"])?;
    let data = file["file_data"].as_str();
    match (data, given(file, "file_id")) {
        (None, Some(_)) => Ok(()),
        (None, None) => Err(missing(&format!("{path}.file_id"))),
        (Some(_), _) if given(file, "filename").is_none() => {
            Err(missing(&format!("{path}.filename")))
        }
        (Some(data), _) => {
            let coded = data.strip_prefix("data:application/pdf;base64,");
            match coded.and_then(decode) {
                Some(_) => Ok(()),
                None => Err(invalid(
                    &format!("{path}.file_data"),
                    "Invalid file data: expected a base64-encoded data URL with an application/pdf MIME type.",
                )),
            }
        }
    }
}
