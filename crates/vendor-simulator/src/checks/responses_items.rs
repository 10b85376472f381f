//! Implements the responses vendor's checks of single input items: their fields and parts.
//!
//! This file must not examine the neighbouring items (`responses_pairing.rs`).

use serde_json::Value;

use super::chat_errors::{check_members, check_name, invalid, missing, too_long};
use super::members::{list, non_null};
use crate::errors::SimulatedError;
use crate::signature::{SignatureKind, decode, is_ours};

const MAX_CALL_ID_CHARS: usize = 64;
const IMAGE_TYPES: [&str; 4] = ["image/png", "image/jpeg", "image/gif", "image/webp"];
const INPUT_PART_TYPES: [&str; 3] = ["input_text", "input_image", "input_file"];
/// Types of items that are accepted unchecked, because the vendor itself or its own client created
/// them.
const UNCHECKED_ITEM_TYPES: [&str; 16] = [
    "additional_tools",
    "agent_message",
    "apply_patch_call",
    "apply_patch_call_output",
    "code_interpreter_call",
    "compaction",
    "computer_call",
    "computer_call_output",
    "file_search_call",
    "image_generation_call",
    "local_shell_call",
    "local_shell_call_output",
    "mcp_call",
    "tool_search_call",
    "tool_search_output",
    "web_search_call",
];

pub fn check(items: &[Value]) -> Result<(), SimulatedError> {
    for (index, item) in items.iter().enumerate() {
        check_item(&format!("input[{index}]"), item)?;
    }
    Ok(())
}

fn check_item(path: &str, item: &Value) -> Result<(), SimulatedError> {
    match item["type"].as_str() {
        None | Some("message") => check_message(path, item),
        Some("reasoning") => check_reasoning(path, item),
        Some("function_call") => {
            check_call(path, item, "arguments", "fc")?;
            check_members(
                path,
                item,
                &[
                    "type",
                    "id",
                    "call_id",
                    "name",
                    "namespace",
                    "arguments",
                    "status",
                    "caller",
                ],
            )
        }
        Some("custom_tool_call") => {
            check_call(path, item, "input", "ctc")?;
            check_members(
                path,
                item,
                &[
                    "type",
                    "id",
                    "call_id",
                    "name",
                    "namespace",
                    "input",
                    "status",
                    "caller",
                ],
            )
        }
        Some("function_call_output" | "custom_tool_call_output") => {
            check_members(
                path,
                item,
                &[
                    "type", "id", "call_id", "output", "status", "name", "caller",
                ],
            )?;
            check_call_id(path, item)?;
            check_output(&format!("{path}.output"), &item["output"])
        }
        Some("item_reference") => Err(not_found(path, item["id"].as_str().unwrap_or_default())),
        Some(kind) if UNCHECKED_ITEM_TYPES.contains(&kind) => Ok(()),
        Some(kind) => Err(invalid(
            path,
            format!(
                "Invalid value: '{kind}'. Supported values are: 'message', 'reasoning', 'function_call', 'function_call_output', 'custom_tool_call', 'custom_tool_call_output', and others."
            ),
        )),
    }
}

fn not_found(path: &str, id: &str) -> SimulatedError {
    let text = format!(
        "Item with id '{id}' not found. Items are not persisted when `store` is set to false. Try again with `store` \
         set to true, or remove this item from your input."
    );
    SimulatedError::from_param(text, path, None)
}

fn check_message(path: &str, item: &Value) -> Result<(), SimulatedError> {
    let allowed: &[&str] = match item["role"].as_str() {
        Some("user" | "system" | "developer") => &INPUT_PART_TYPES,
        Some("assistant") => &["output_text", "refusal"],
        Some(role) => {
            let text = format!(
                "Invalid value: '{role}'. Supported values are: 'assistant', 'system', 'developer', and 'user'."
            );
            return Err(invalid(&format!("{path}.role"), text));
        }
        None => return Err(missing(&format!("{path}.role"))),
    };
    check_members(
        path,
        item,
        &["type", "id", "role", "content", "status", "phase"],
    )?;
    check_vendor_id(path, item, "msg")?;
    if !matches!(
        item["phase"].as_str(),
        None | Some("commentary" | "final_answer")
    ) {
        let text = "Invalid value: 'phase'. Supported values are: 'commentary' and 'final_answer'.";
        return Err(invalid(&format!("{path}.phase"), text));
    }
    match &item["content"] {
        Value::String(_) => Ok(()),
        Value::Array(content) => check_parts(&format!("{path}.content"), content, allowed),
        Value::Null => Err(missing(&format!("{path}.content"))),
        _ => Err(SimulatedError::from_param(
            format!(
                "Invalid type for '{path}.content': expected one of an array of objects or string."
            ),
            &format!("{path}.content"),
            Some("invalid_type"),
        )),
    }
}

fn check_parts(path: &str, content: &[Value], allowed: &[&str]) -> Result<(), SimulatedError> {
    for (index, part) in content.iter().enumerate() {
        let path = format!("{path}[{index}]");
        let kind = part["type"].as_str().unwrap_or_default();
        if !allowed.contains(&kind) {
            let listed: Vec<String> = allowed.iter().map(|kind| format!("'{kind}'")).collect();
            let text = format!(
                "Invalid value: '{kind}'. Supported values are: {}.",
                listed.join(", ")
            );
            return Err(invalid(&path, text));
        }
        match kind {
            "input_text" => {
                check_members(&path, part, &["type", "text", "prompt_cache_breakpoint"])?;
                check_string(&format!("{path}.text"), &part["text"])?;
            }
            "output_text" => {
                check_members(&path, part, &["type", "text", "annotations", "logprobs"])?;
                check_string(&format!("{path}.text"), &part["text"])?;
            }
            "refusal" => check_string(&format!("{path}.refusal"), &part["refusal"])?,
            "input_image" => check_image(&path, part)?,
            _ => check_file(&path, part)?,
        }
    }
    Ok(())
}

fn check_string(path: &str, value: &Value) -> Result<(), SimulatedError> {
    match value {
        Value::String(_) => Ok(()),
        Value::Null => Err(missing(path)),
        _ => Err(SimulatedError::from_param(
            format!("Invalid type for '{path}': expected a string."),
            path,
            Some("invalid_type"),
        )),
    }
}

fn check_image(path: &str, part: &Value) -> Result<(), SimulatedError> {
    check_members(
        path,
        part,
        &[
            "type",
            "image_url",
            "file_id",
            "detail",
            "prompt_cache_breakpoint",
        ],
    )?;
    if !matches!(
        part["detail"].as_str(),
        None | Some("auto" | "low" | "high" | "original")
    ) {
        return Err(invalid(
            &format!("{path}.detail"),
            "Invalid value: 'detail'.",
        ));
    }
    let path = format!("{path}.image_url");
    let Some(url) = part["image_url"].as_str() else {
        return Err(missing(&path));
    };
    if url.starts_with("https://") || url.starts_with("http://") {
        return Ok(());
    }
    let data = url
        .strip_prefix("data:")
        .and_then(|rest| rest.split_once(";base64,"));
    match data {
        Some((kind, data)) if IMAGE_TYPES.contains(&kind) => {
            match decode(data).is_none_or(|bytes| bytes.is_empty()) {
                true => Err(SimulatedError::from_param(
                    "Invalid base64 image_url.",
                    &path,
                    Some("invalid_base64"),
                )),
                false => Ok(()),
            }
        }
        _ => Err(invalid(
            &path,
            format!(
                "Invalid '{path}'. Expected a valid URL, but got a value with an invalid format."
            ),
        )),
    }
}

fn check_file(path: &str, part: &Value) -> Result<(), SimulatedError> {
    check_members(
        path,
        part,
        &[
            "type",
            "file_id",
            "filename",
            "file_data",
            "file_url",
            "detail",
        ],
    )?;
    if non_null(part, "file_url").is_some() {
        return Ok(());
    }
    let Some(data) = part["file_data"].as_str() else {
        return Err(missing(&format!("{path}.file_data")));
    };
    if non_null(part, "filename").is_none() {
        return Err(missing(&format!("{path}.filename")));
    }
    match data
        .strip_prefix("data:application/pdf;base64,")
        .and_then(decode)
    {
        Some(_) => Ok(()),
        None => Err(invalid(
            &format!("{path}.file_data"),
            "Invalid file data: expected a base64-encoded data URL with an application/pdf MIME type.",
        )),
    }
}

fn check_call(path: &str, item: &Value, field: &str, prefix: &str) -> Result<(), SimulatedError> {
    check_vendor_id(path, item, prefix)?;
    check_call_id(path, item)?;
    check_name(&format!("{path}.name"), &item["name"])?;
    check_string(&format!("{path}.{field}"), &item[field])
}

fn check_call_id(path: &str, item: &Value) -> Result<(), SimulatedError> {
    let path = format!("{path}.call_id");
    match item["call_id"].as_str() {
        Some(id) if id.chars().count() > MAX_CALL_ID_CHARS => {
            Err(too_long(&path, MAX_CALL_ID_CHARS, id.chars().count()))
        }
        Some(id) if !id.is_empty() => Ok(()),
        _ => Err(missing(&path)),
    }
}

/// Rejects an id that this vendor cannot have assigned.
fn check_vendor_id(path: &str, item: &Value, prefix: &str) -> Result<(), SimulatedError> {
    match item["id"].as_str() {
        Some(id) if !id.starts_with(prefix) => {
            let text =
                format!("Invalid '{path}.id': '{id}'. Expected an ID that begins with '{prefix}'.");
            Err(invalid(&format!("{path}.id"), text))
        }
        _ => Ok(()),
    }
}

fn check_output(path: &str, output: &Value) -> Result<(), SimulatedError> {
    match output {
        Value::String(_) => Ok(()),
        Value::Array(content) => check_parts(path, content, &INPUT_PART_TYPES),
        _ => Err(missing(path)),
    }
}

fn check_reasoning(path: &str, item: &Value) -> Result<(), SimulatedError> {
    check_members(
        path,
        item,
        &[
            "type",
            "id",
            "summary",
            "content",
            "encrypted_content",
            "status",
        ],
    )?;
    check_vendor_id(path, item, "rs")?;
    if !item["summary"].is_array() {
        return Err(missing(&format!("{path}.summary")));
    }
    for (index, part) in list(&item["summary"]).iter().enumerate() {
        if part["type"] != "summary_text" || !part["text"].is_string() {
            return Err(missing(&format!("{path}.summary[{index}].text")));
        }
    }
    match (item["encrypted_content"].as_str(), item["id"].as_str()) {
        (Some(sealed), _) if is_ours(SignatureKind::Reasoning, "", sealed) => Ok(()),
        (Some(sealed), _) => {
            let shown: String = sealed.chars().take(12).collect();
            let text = format!(
                "The encrypted content {shown}... could not be verified. Reason: Encrypted content could not be decrypted or parsed."
            );
            Err(SimulatedError::from_param(
                text,
                path,
                Some("invalid_encrypted_content"),
            ))
        }
        (None, Some(id)) => Err(not_found(path, id)),
        (None, None) => Ok(()),
    }
}
