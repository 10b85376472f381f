//! Implements the chat vendor's checks of messages: fields, parts, and results that follow calls.
//!
//! This file must not examine the rest of the request (`chat.rs`).

use serde_json::Value;

use super::chat_errors::{check_members, check_name, empty_array, invalid, missing, too_long};
use super::members::{list, non_null};
use super::request_check::SimRequestCheck;
use crate::errors::SimulatedError;
use crate::signature::decode;

const MAX_ID_CHARS: usize = 40;
/// Fields of an assistant message. SDKs and agents return the last two with the vendor's own
/// answer.
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

pub fn check(call: &SimRequestCheck<'_>) -> Result<(), SimulatedError> {
    let messages = list(&call.body["messages"]);
    // Calls without a result so far. The next variable is the message that made them.
    let mut open: Vec<&str> = Vec::new();
    let mut caller = None;
    for (index, message) in messages.iter().enumerate() {
        let path = format!("messages[{index}]");
        check_message(&path, message)?;
        if message["role"] == "tool" {
            let id = message["tool_call_id"].as_str().unwrap_or_default();
            check_answer(index, id, caller, &mut open)?;
            continue;
        }
        check_unanswered(index, &open)?;
        let calls = list(&message["tool_calls"]);
        open = calls
            .iter()
            .filter_map(|call| call["id"].as_str())
            .collect();
        caller = (!calls.is_empty()).then_some(calls);
    }
    check_unanswered(messages.len(), &open)
}

fn check_answer(
    index: usize,
    id: &str,
    caller: Option<&[Value]>,
    open: &mut Vec<&str>,
) -> Result<(), SimulatedError> {
    let param = format!("messages.[{index}].role");
    let Some(calls) = caller else {
        let text = "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with \
            'tool_calls'.";
        return Err(SimulatedError::from_param(text, &param, None));
    };
    if !calls.iter().any(|call| call["id"] == id) {
        let text = format!(
            "Invalid parameter: 'tool_call_id' of '{id}' not found in 'tool_calls' of previous message."
        );
        return Err(SimulatedError::from_param(
            text,
            &format!("messages.[{index}].tool_call_id"),
            None,
        ));
    }
    open.retain(|waiting| *waiting != id);
    Ok(())
}

/// Rejects the message at `index` if calls still need their results there.
fn check_unanswered(index: usize, open: &[&str]) -> Result<(), SimulatedError> {
    if open.is_empty() {
        return Ok(());
    }
    let text = format!(
        "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. \
         The following tool_call_ids did not have response messages: {}",
        open.join(", ")
    );
    Err(SimulatedError::from_param(
        text,
        &format!("messages.[{index}].role"),
        None,
    ))
}

fn check_message(path: &str, message: &Value) -> Result<(), SimulatedError> {
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
    check_members(path, message, fields)?;
    check_content(path, message)?;
    if message["role"] == "tool" {
        let id = format!("{path}.tool_call_id");
        check_id(&id, &message["tool_call_id"])?;
    }
    if non_null(message, "tool_calls").map(list) == Some(&[]) {
        return Err(empty_array(&format!("{path}.tool_calls")));
    }
    for (index, call) in list(&message["tool_calls"]).iter().enumerate() {
        check_call(&format!("{path}.tool_calls[{index}]"), call)?;
    }
    Ok(())
}

fn check_id(path: &str, id: &Value) -> Result<(), SimulatedError> {
    match id.as_str() {
        Some(id) if id.chars().count() > MAX_ID_CHARS => {
            Err(too_long(path, MAX_ID_CHARS, id.chars().count()))
        }
        Some(_) => Ok(()),
        None => Err(missing(path)),
    }
}

fn check_call(path: &str, call: &Value) -> Result<(), SimulatedError> {
    check_members(path, call, &["id", "type", "function", "custom", "index"])?;
    check_id(&format!("{path}.id"), &call["id"])?;
    match call["type"].as_str() {
        Some("function") => {
            let function = &call["function"];
            check_members(
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
                    Err(SimulatedError::from_param(
                        text,
                        &path,
                        Some("invalid_type"),
                    ))
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

fn check_content(path: &str, message: &Value) -> Result<(), SimulatedError> {
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
            let alternatives = ["tool_calls", "function_call", "refusal", "audio"];
            let has_alternative = role == "assistant"
                && alternatives
                    .iter()
                    .any(|name| non_null(message, name).is_some());
            let text = "Invalid value for 'content': expected a string, got null.";
            if has_alternative {
                Ok(())
            } else {
                Err(SimulatedError::from_param(
                    text,
                    &format!("{path}.content"),
                    None,
                ))
            }
        }
        _ => {
            let text = format!(
                "Invalid type for '{path}.content': expected one of a string or array of objects."
            );
            Err(SimulatedError::from_param(
                text,
                &format!("{path}.content"),
                Some("invalid_type"),
            ))
        }
    }
}

fn check_part(path: &str, part: &Value, role: &str) -> Result<(), SimulatedError> {
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
    check_members(path, part, &["type", kind])?;
    match kind {
        "text" | "refusal" if !part[kind].is_string() => Err(missing(&format!("{path}.{kind}"))),
        "image_url" => check_image(&format!("{path}.image_url"), &part["image_url"]),
        "file" => check_file(&format!("{path}.file"), &part["file"]),
        _ => Ok(()),
    }
}

fn check_image(path: &str, image: &Value) -> Result<(), SimulatedError> {
    check_members(path, image, &["url", "detail"])?;
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
            Err(SimulatedError::from_param(
                text,
                &url_path,
                Some("invalid_image_format"),
            ))
        }
        Some((_, data)) if decode(data).is_none_or(|bytes| bytes.is_empty()) => {
            Err(SimulatedError::from_param(
                "Invalid base64 image_url.",
                &url_path,
                Some("invalid_base64"),
            ))
        }
        Some(_) => Ok(()),
    }
}

fn check_file(path: &str, file: &Value) -> Result<(), SimulatedError> {
    check_members(path, file, &["file_id", "filename", "file_data"])?;
    let data = file["file_data"].as_str();
    match (data, non_null(file, "file_id")) {
        (None, Some(_)) => Ok(()),
        (None, None) => Err(missing(&format!("{path}.file_id"))),
        (Some(_), _) if non_null(file, "filename").is_none() => {
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
