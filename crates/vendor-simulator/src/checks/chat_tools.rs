//! Implements the chat vendor's checks of tools and of `tool_choice`.
//!
//! This file must not examine calls and results (`chat_turns.rs`).

use serde_json::Value;

use super::chat_errors::{
    array_too_long, check_members, check_name, empty_array, invalid, missing,
};
use super::chat_schema;
use super::generations::SimChatModel;
use super::members::{list, non_null};
use super::request_check::SimRequestCheck;
use crate::errors::SimulatedError;

const MAX_TOOLS: usize = 128;

pub fn check(call: &SimRequestCheck<'_>, model: SimChatModel) -> Result<(), SimulatedError> {
    for name in ["tools", "functions"] {
        match call.non_null(name).map(list) {
            Some([]) => return Err(empty_array(name)),
            Some(entries) if entries.len() > MAX_TOOLS => {
                return Err(array_too_long(name, MAX_TOOLS, entries.len()));
            }
            _ => {}
        }
    }
    for (index, tool) in list(&call.body["tools"]).iter().enumerate() {
        check_tool(&format!("tools[{index}]"), tool)?;
    }
    for (index, function) in list(&call.body["functions"]).iter().enumerate() {
        check_function(
            &format!("functions[{index}]"),
            &format!("functions[{index}]"),
            function,
        )?;
    }
    let is_function = |tool: &Value| tool["type"] == "function";
    let has_functions = list(&call.body["tools"]).iter().any(is_function);
    if has_functions && model.refuses_tools(call.body["reasoning_effort"].as_str()) {
        let text = format!(
            "Function tools with reasoning_effort are not supported for {} in /v1/chat/completions. To use function \
             tools, use /v1/responses or set reasoning_effort to 'none'.",
            call.model
        );
        return Err(SimulatedError::from_param(text, "reasoning_effort", None));
    }
    for (name, needs) in [
        ("tool_choice", "tools"),
        ("parallel_tool_calls", "tools"),
        ("function_call", "functions"),
    ] {
        if call.non_null(name).is_some() && call.non_null(needs).is_none() {
            let text = format!(
                "Invalid value for '{name}': '{name}' is only allowed when '{needs}' are specified."
            );
            return Err(SimulatedError::from_param(text, name, None));
        }
    }
    check_choice(call)
}

fn check_tool(path: &str, tool: &Value) -> Result<(), SimulatedError> {
    match tool["type"].as_str() {
        Some("function") => {
            // Some working agents repeat the name at this level, so the vendor accepts it.
            check_members(path, tool, &["type", "function", "name"])?;
            match non_null(tool, "function") {
                Some(function) => check_function(
                    &format!("{path}.function"),
                    &format!("{path}.function.parameters"),
                    function,
                ),
                None => Err(missing(&format!("{path}.function"))),
            }
        }
        Some("custom") => check_name(&format!("{path}.custom.name"), &tool["custom"]["name"]),
        None => Err(missing(&format!("{path}.type"))),
        Some(kind) => {
            let text =
                format!("Invalid value: '{kind}'. Supported values are: 'function' and 'custom'.");
            Err(invalid(&format!("{path}.type"), text))
        }
    }
}

fn check_function(path: &str, param: &str, function: &Value) -> Result<(), SimulatedError> {
    check_members(
        path,
        function,
        &["name", "description", "parameters", "strict"],
    )?;
    check_name(&format!("{path}.name"), &function["name"])?;
    if non_null(function, "description").is_some_and(|description| !description.is_string()) {
        return Err(SimulatedError::from_param(
            format!("Invalid type for '{path}.description': expected a string."),
            &format!("{path}.description"),
            Some("invalid_type"),
        ));
    }
    let Some(schema) = non_null(function, "parameters") else {
        return Ok(());
    };
    let of = format!(
        "function '{}'",
        function["name"].as_str().unwrap_or_default()
    );
    match function["strict"] == true {
        true => chat_schema::check_strict(&of, param, schema),
        false => chat_schema::check(&of, param, schema),
    }
}

fn check_choice(call: &SimRequestCheck<'_>) -> Result<(), SimulatedError> {
    let Some(choice) = call.non_null("tool_choice") else {
        return Ok(());
    };
    let name = match (choice.as_str(), choice["type"].as_str()) {
        (Some("none" | "auto" | "required"), _) | (None, Some("allowed_tools")) => return Ok(()),
        (None, Some(kind @ ("function" | "custom"))) => choice[kind]["name"].as_str(),
        _ => {
            let text = "Invalid value: 'tool_choice'. Supported values are: 'none', 'auto', and 'required'.";
            return Err(invalid("tool_choice", text));
        }
    };
    let Some(name) = name else {
        return Err(missing("tool_choice.function"));
    };
    let is_named =
        |tool: &Value| tool["function"]["name"] == name || tool["custom"]["name"] == name;
    match list(&call.body["tools"]).iter().any(is_named) {
        true => Ok(()),
        false => {
            let text = format!(
                "Invalid value for 'tool_choice': Tool choice '{name}' not found in 'tools' parameter."
            );
            Err(SimulatedError::from_param(text, "tool_choice", None))
        }
    }
}
