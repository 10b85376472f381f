//! Implements the messages vendor's checks of cache breakpoints: their number and their contents.
//!
//! This file must not decide which blocks may have a breakpoint (`blocks.rs` does).

use serde_json::Value;

use super::members::{list, non_null};
use super::messages_errors::{check_members, invalid_request};
use super::request_check::SimRequestCheck;
use crate::errors::SimulatedError;

const MAX_BREAKPOINTS: usize = 4;

pub fn check(call: &SimRequestCheck<'_>) -> Result<(), SimulatedError> {
    let mut marks = Vec::new();
    let mut collect = |path: String, object: &'_ Value| {
        if let Some(mark) = non_null(object, "cache_control") {
            marks.push((path, mark.clone()));
        }
    };
    collect(String::new(), call.body);
    for (index, tool) in list(&call.body["tools"]).iter().enumerate() {
        collect(format!("tools.{index}."), tool);
    }
    for (index, block) in list(&call.body["system"]).iter().enumerate() {
        collect(format!("system.{index}."), block);
    }
    for (turn, message) in list(&call.body["messages"]).iter().enumerate() {
        for (index, block) in list(&message["content"]).iter().enumerate() {
            let path = format!("messages.{turn}.content.{index}.");
            collect(path.clone(), block);
            for (inner, block) in list(&block["content"]).iter().enumerate() {
                collect(format!("{path}content.{inner}."), block);
            }
        }
    }
    let count = marks.len();
    for (path, mark) in marks {
        check_mark(call, &format!("{path}cache_control"), &mark)?;
    }
    if count > MAX_BREAKPOINTS {
        return Err(invalid_request(format!(
            "A maximum of {MAX_BREAKPOINTS} blocks with cache_control may be provided. Found {count}."
        )));
    }
    Ok(())
}

fn check_mark(call: &SimRequestCheck<'_>, path: &str, mark: &Value) -> Result<(), SimulatedError> {
    if mark["type"] != "ephemeral" {
        return Err(invalid_request(format!(
            "{path}.type: Input should be 'ephemeral'"
        )));
    }
    let path = format!("{path}.ephemeral");
    let fields: &[&str] = if call.has_preview("prompt-caching-scope") {
        &["type", "ttl", "scope"]
    } else {
        &["type", "ttl"]
    };
    check_members(&path, mark, fields)?;
    match mark.get("ttl").map(Value::as_str) {
        None | Some(Some("5m" | "1h")) => Ok(()),
        Some(_) => Err(invalid_request(format!(
            "{path}.ttl: Input should be '5m' or '1h'"
        ))),
    }
}
