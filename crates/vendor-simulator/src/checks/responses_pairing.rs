//! Implements the responses vendor's checks that items match: calls with outputs, and reasoning
//! with the following items.
//!
//! This file must not examine the contents of items (`responses_items.rs`).

use serde_json::Value;

use crate::errors::SimulatedError;

pub fn check(items: &[Value]) -> Result<(), SimulatedError> {
    check_outputs(items)?;
    for (index, item) in items.iter().enumerate() {
        if item["type"] == "reasoning" {
            check_reasoning_followed(item, items.get(index + 1..).unwrap_or_default())?;
        } else {
            check_reasoning_kept(item, items.get(..index).unwrap_or_default())?;
        }
    }
    Ok(())
}

fn invalid_input(text: String) -> SimulatedError {
    SimulatedError::from_param(text, "input", None)
}

fn kind(item: &Value) -> &str {
    item["type"].as_str().unwrap_or("message")
}

fn is_call(item: &Value) -> bool {
    matches!(kind(item), "function_call" | "custom_tool_call")
}

fn check_outputs(items: &[Value]) -> Result<(), SimulatedError> {
    let mut open: Vec<&str> = Vec::new();
    for item in items {
        let id = item["call_id"].as_str().unwrap_or_default();
        match kind(item) {
            "function_call" | "custom_tool_call" => open.push(id),
            "function_call_output" | "custom_tool_call_output" => {
                let Some(at) = open.iter().position(|call| *call == id) else {
                    return Err(invalid_input(format!(
                        "No tool call found for function call output with call_id {id}."
                    )));
                };
                open.remove(at);
            }
            _ => {}
        }
    }
    match open.first() {
        Some(id) => Err(invalid_input(format!(
            "No tool output found for function call {id}."
        ))),
        None => Ok(()),
    }
}

/// Checks that reasoning is followed by the item to which it led.
fn check_reasoning_followed(reasoning: &Value, rest: &[Value]) -> Result<(), SimulatedError> {
    let next = rest.iter().find(|item| item["type"] != "reasoning");
    let leads = next.is_some_and(|item| {
        is_call(item) || item["role"] == "assistant" || kind(item).ends_with("_call")
    });
    if leads {
        return Ok(());
    }
    let id = reasoning["id"].as_str().unwrap_or_default();
    Err(invalid_input(format!(
        "Item '{id}' of type 'reasoning' was provided without its required following item."
    )))
}

/// Checks that an item with the vendor's id comes with its reasoning, if reasoning preceded it.
fn check_reasoning_kept(item: &Value, before: &[Value]) -> Result<(), SimulatedError> {
    let Some(id) = item["id"].as_str().filter(|id| id.ends_with('r')) else {
        return Ok(());
    };
    let serial = id
        .split_once('_')
        .and_then(|(_, rest)| rest.get(..rest.len().saturating_sub(3)));
    let Some(serial) = serial else { return Ok(()) };
    let is_same_turn = |item: &&Value| {
        item["type"] == "reasoning" && item["id"].as_str().is_some_and(|id| id.contains(serial))
    };
    match before.iter().find(is_same_turn) {
        Some(_) => Ok(()),
        None => Err(invalid_input(format!(
            "Item '{id}' of type '{}' was provided without its required 'reasoning' item: 'rs_{serial}'.",
            kind(item)
        ))),
    }
}
