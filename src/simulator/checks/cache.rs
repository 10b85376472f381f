//! The messages vendor's checks of cache breakpoints: their number and their contents.
//!
//! It must not decide which blocks may have one: blocks that may not have no such field
//! (`blocks.rs`).

use serde_json::Value;

use super::messages::{only, refused};
use super::{Call, given, list};
use crate::simulator::errors::Problem;

const MARKS_MAX: usize = 4;

pub fn check(call: &Call<'_>) -> Result<(), Problem> {
    let mut marks = Vec::new();
    let mut collect = |path: String, holder: &'_ Value| {
        if let Some(mark) = given(holder, "cache_control") {
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
    if count > MARKS_MAX {
        return Err(refused(format!(
            "A maximum of {MARKS_MAX} blocks with cache_control may be provided. Found {count}."
        )));
    }
    Ok(())
}

fn check_mark(call: &Call<'_>, path: &str, mark: &Value) -> Result<(), Problem> {
    if mark["type"] != "ephemeral" {
        return Err(refused(format!("{path}.type: Input should be 'ephemeral'")));
    }
    let path = format!("{path}.ephemeral");
    let fields: &[&str] = if call.has_preview("prompt-caching-scope") {
        &["type", "ttl", "scope"]
    } else {
        &["type", "ttl"]
    };
    only(&path, mark, fields)?;
    match mark.get("ttl").map(Value::as_str) {
        None | Some(Some("5m" | "1h")) => Ok(()),
        Some(_) => Err(refused(format!("{path}.ttl: Input should be '5m' or '1h'"))),
    }
}
