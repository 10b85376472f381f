//! Implements the responses vendor's checks of tools and of `tool_choice`.
//!
//! This file must not examine calls and results (`responses_pairing.rs`).

use serde_json::Value;

use super::chat_errors::{check_members, check_name, invalid, missing};
use super::chat_schema;
use super::members::{list, non_null};
use super::request_check::SimRequestCheck;
use crate::errors::SimulatedError;

/// Types of tools that are accepted unchecked: the vendor or the client runs them by a special
/// type.
const UNCHECKED_TOOL_TYPES: [&str; 12] = [
    "web_search",
    "web_search_preview",
    "web_search_2025_08_26",
    "file_search",
    "code_interpreter",
    "image_generation",
    "mcp",
    "computer_use_preview",
    "local_shell",
    "shell",
    "apply_patch",
    "tool_search",
];
const FUNCTION_FIELDS: [&str; 9] = [
    "type",
    "name",
    "description",
    "parameters",
    "strict",
    "defer_loading",
    "allowed_callers",
    "output_schema",
    "async",
];

pub fn check(call: &SimRequestCheck<'_>) -> Result<(), SimulatedError> {
    for (index, tool) in list(&call.body["tools"]).iter().enumerate() {
        check_tool(&format!("tools[{index}]"), tool)?;
    }
    for (index, item) in list(&call.body["input"]).iter().enumerate() {
        for (number, tool) in list(&item["tools"]).iter().enumerate() {
            check_tool(&format!("input[{index}].tools[{number}]"), tool)?;
        }
    }
    check_choice(call)
}

fn check_tool(path: &str, tool: &Value) -> Result<(), SimulatedError> {
    match tool["type"].as_str() {
        Some("function") => check_function(path, tool),
        Some("custom") => {
            check_members(
                path,
                tool,
                &[
                    "type",
                    "name",
                    "description",
                    "format",
                    "defer_loading",
                    "allowed_callers",
                ],
            )?;
            check_name(&format!("{path}.name"), &tool["name"])?;
            match tool["format"]["type"].as_str() {
                None | Some("text") => Ok(()),
                Some("grammar") => check_members(
                    &format!("{path}.format"),
                    &tool["format"],
                    &["type", "syntax", "definition"],
                ),
                Some(kind) => Err(invalid(
                    &format!("{path}.format.type"),
                    format!("Invalid value: '{kind}'."),
                )),
            }
        }
        Some("namespace") => {
            check_name(&format!("{path}.name"), &tool["name"])?;
            let mut members = list(&tool["tools"]).iter().enumerate();
            members.try_for_each(|(index, member)| {
                check_tool(&format!("{path}.tools[{index}]"), member)
            })
        }
        Some(kind) if UNCHECKED_TOOL_TYPES.contains(&kind) => Ok(()),
        None => Err(missing(&format!("{path}.type"))),
        Some(kind) => {
            let text = format!(
                "Invalid value: '{kind}'. Supported values are: 'function', 'custom', 'namespace', and the hosted tools."
            );
            Err(invalid(&format!("{path}.type"), text))
        }
    }
}

fn check_function(path: &str, tool: &Value) -> Result<(), SimulatedError> {
    // A missing name reveals the chat form of a tool, which is one level deeper.
    check_name(&format!("{path}.name"), &tool["name"])?;
    check_members(path, tool, &FUNCTION_FIELDS)?;
    let Some(schema) = non_null(tool, "parameters") else {
        return Ok(());
    };
    let (of, param) = (
        format!("function '{}'", tool["name"].as_str().unwrap_or_default()),
        format!("{path}.parameters"),
    );
    match tool["strict"] == false {
        true => chat_schema::check(&of, &param, schema),
        false => chat_schema::check_strict(&of, &param, schema),
    }
}

fn check_choice(call: &SimRequestCheck<'_>) -> Result<(), SimulatedError> {
    let Some(choice) = call.non_null("tool_choice") else {
        return Ok(());
    };
    let name = match (choice.as_str(), choice["type"].as_str()) {
        (Some("none" | "auto"), _) => return Ok(()),
        (Some("required"), _) if !list(&call.body["tools"]).is_empty() => return Ok(()),
        (None, Some("allowed_tools")) => {
            return check_members("tool_choice", choice, &["type", "mode", "tools"]);
        }
        (None, Some("function" | "custom")) => {
            check_members("tool_choice", choice, &["type", "name"])?;
            choice["name"].as_str()
        }
        (None, Some(kind)) if UNCHECKED_TOOL_TYPES.contains(&kind) => return Ok(()),
        _ => {
            let text = "Invalid value: 'tool_choice'. Supported values are: 'none', 'auto', and 'required'.";
            return Err(invalid("tool_choice", text));
        }
    };
    let Some(name) = name else {
        return Err(missing("tool_choice.name"));
    };
    let tools = list(&call.body["tools"]).iter();
    let mut offered = tools.flat_map(|tool| std::iter::once(tool).chain(list(&tool["tools"])));
    match offered.any(|tool| tool["name"] == name && tool["type"] == choice["type"]) {
        true => Ok(()),
        false => {
            let text = format!("Tool choice '{name}' not found in 'tools' parameter.");
            Err(SimulatedError::from_param(text, "tool_choice", None))
        }
    }
}
