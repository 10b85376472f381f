//! Implements the messages vendor's checks of tools and of `tool_choice`.
//!
//! This file must not examine calls and results (`pairing.rs`).

use std::collections::HashSet;

use serde_json::Value;

use super::members::{is_word, list, non_null};
use super::messages_errors::{check_members, invalid_request};
use super::request_check::SimRequestCheck;
use super::structured;
use crate::errors::SimulatedError;

const TOOL_FIELDS: [&str; 10] = [
    "name",
    "description",
    "input_schema",
    "type",
    "cache_control",
    "strict",
    "eager_input_streaming",
    "defer_loading",
    "allowed_callers",
    "input_examples",
];
const MAX_NAME_BYTES: usize = 128;

pub fn check(call: &SimRequestCheck<'_>) -> Result<(), SimulatedError> {
    let tools = match call.non_null("tools") {
        Some(Value::Array(tools)) => tools.as_slice(),
        Some(_) => return Err(invalid_request("tools: Input should be a valid list")),
        None => &[],
    };
    let mut names = HashSet::new();
    for (index, tool) in tools.iter().enumerate() {
        check_tool(index, tool)?;
        if tool["name"]
            .as_str()
            .is_some_and(|name| !names.insert(name))
        {
            return Err(invalid_request("tools: Tool names must be unique."));
        }
    }
    if tools.is_empty() && has_calls(call) && call.non_null("thread").is_none() {
        return Err(invalid_request(
            "Requests which include `tool_use` or `tool_result` blocks must define tools",
        ));
    }
    check_choice(call, &names)
}

fn check_tool(index: usize, tool: &Value) -> Result<(), SimulatedError> {
    let path = format!("tools.{index}");
    match non_null(tool, "type").map(Value::as_str) {
        None | Some(Some("custom")) => check_custom(&format!("{path}.custom"), tool),
        Some(Some(kind)) if is_vendors_own(kind) => Ok(()),
        Some(kind) => Err(invalid_request(format!(
            "{path}: Input tag '{}' found using 'type' does not match any of the expected tags: 'bash_20250124', \
             'custom', 'text_editor_20250728', 'web_search_20250305'",
            kind.unwrap_or_default()
        ))),
    }
}

/// Returns whether the type is one of the vendor's own tools, such as `web_search_20250305`.
fn is_vendors_own(kind: &str) -> bool {
    let is_dated = kind.rsplit_once('_').is_some_and(|(name, date)| {
        !name.is_empty() && date.len() == 8 && date.bytes().all(|byte| byte.is_ascii_digit())
    });
    is_dated || kind == "mcp_toolset"
}

fn check_custom(path: &str, tool: &Value) -> Result<(), SimulatedError> {
    check_members(path, tool, &TOOL_FIELDS)?;
    match tool["name"].as_str() {
        None => return Err(invalid_request(format!("{path}.name: Field required"))),
        Some(name) if !is_word(name, MAX_NAME_BYTES) => {
            return Err(invalid_request(format!(
                "{path}.name: String should match pattern '^[a-zA-Z0-9_-]{{1,{MAX_NAME_BYTES}}}$'"
            )));
        }
        Some(_) => {}
    }
    if tool
        .get("description")
        .is_some_and(|description| !description.is_string())
    {
        return Err(invalid_request(format!(
            "{path}.description: Input should be a valid string"
        )));
    }
    let Some(schema) = tool.get("input_schema") else {
        return Err(invalid_request(format!(
            "{path}.input_schema: Field required"
        )));
    };
    let path = format!("{path}.input_schema");
    check_schema(&path, schema)?;
    if tool["strict"] == true {
        structured::check(&path, schema)
    } else {
        Ok(())
    }
}

fn check_schema(path: &str, schema: &Value) -> Result<(), SimulatedError> {
    if !schema.is_object() {
        return Err(invalid_request(format!(
            "{path}: Input should be a valid dictionary"
        )));
    }
    match schema.get("type") {
        None => return Err(invalid_request(format!("{path}.type: Field required"))),
        Some(kind) if kind != "object" => {
            return Err(invalid_request(format!(
                "{path}.type: Input should be 'object'"
            )));
        }
        Some(_) => {}
    }
    if ["oneOf", "allOf", "anyOf"]
        .iter()
        .any(|name| schema.get(name).is_some())
    {
        return Err(invalid_request(format!(
            "{path}: input_schema does not support oneOf, allOf, or anyOf at the top level"
        )));
    }
    match is_schema(schema) {
        true => Ok(()),
        false => Err(invalid_request(format!(
            "{path}: JSON schema is invalid. It must match JSON Schema draft 2020-12 \
             (https://json-schema.org/draft/2020-12). Learn more about tool use at \
             https://docs.claude.com/en/docs/tool-use."
        ))),
    }
}

/// Returns whether the keywords that translators often get wrong have values of the right type.
fn is_schema(schema: &Value) -> bool {
    let Some(schema) = schema.as_object() else {
        return schema.is_boolean();
    };
    schema.iter().all(|(name, value)| match name.as_str() {
        "required" | "enum" => value.is_array(),
        "description" | "title" | "format" | "pattern" | "$ref" | "$schema" => value.is_string(),
        "type" => value.is_string() || value.is_array(),
        "properties" | "$defs" => value
            .as_object()
            .is_some_and(|members| members.values().all(is_schema)),
        "items" | "additionalProperties" | "not" => is_schema(value),
        "anyOf" | "oneOf" | "allOf" => !list(value).is_empty() && list(value).iter().all(is_schema),
        _ => true,
    })
}

fn has_calls(call: &SimRequestCheck<'_>) -> bool {
    let blocks = list(&call.body["messages"])
        .iter()
        .flat_map(|message| list(&message["content"]));
    blocks
        .into_iter()
        .any(|block| block["type"] == "tool_use" || block["type"] == "tool_result")
}

fn check_choice(call: &SimRequestCheck<'_>, names: &HashSet<&str>) -> Result<(), SimulatedError> {
    let Some(choice) = call.non_null("tool_choice") else {
        return Ok(());
    };
    let kind = choice["type"].as_str().unwrap_or_default();
    let fields: &[&str] = match kind {
        "auto" | "any" => &["type", "disable_parallel_tool_use"],
        "tool" => &["type", "name", "disable_parallel_tool_use"],
        "none" => &["type"],
        other => {
            return Err(invalid_request(format!(
                "tool_choice: Input tag '{other}' found using 'type' does not match any of the expected tags: \
                 'any', 'auto', 'none', 'tool'"
            )));
        }
    };
    check_members(&format!("tool_choice.{kind}"), choice, fields)?;
    if call.non_null("tools").is_none() {
        return Err(invalid_request(
            "tool_choice: tool_choice may only be specified while providing tools",
        ));
    }
    let name = choice["name"].as_str();
    match (kind, name) {
        ("tool", None) => Err(invalid_request("tool_choice.tool.name: Field required")),
        ("tool", Some(name)) if !names.contains(name) => Err(invalid_request(format!(
            "Tool '{name}' not found in provided tools"
        ))),
        _ => Ok(()),
    }
}
