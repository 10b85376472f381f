//! Implements the messages vendor's checks that calls and results match. Each call's result must be
//! at the start of the next message, and no other result may exist.
//!
//! This file must not examine the contents of calls and results (`blocks.rs`).

use std::collections::HashSet;

use serde_json::Value;

use super::members::list;
use super::messages_errors::invalid_request;
use super::request_check::SimRequestCheck;
use crate::errors::SimulatedError;

pub fn check(call: &SimRequestCheck<'_>, messages: &[Value]) -> Result<(), SimulatedError> {
    let mut seen = HashSet::new();
    for (turn, message) in messages.iter().enumerate() {
        for (index, id) in ids(message, "tool_use", "id").enumerate() {
            if !seen.insert(id) {
                return Err(invalid_request(format!(
                    "messages.{turn}.content.{index}: `tool_use` ids must be unique"
                )));
            }
        }
    }
    let mut open: Vec<&str> = Vec::new();
    // A request that continues a thread does not repeat the stored messages.
    let continues = call.body["thread"]["type"] == "continue";
    for (turn, message) in messages.iter().enumerate() {
        let leading = list(&message["content"])
            .iter()
            .take_while(|block| block["type"] == "tool_result");
        let answered: HashSet<&str> = leading
            .filter_map(|block| block["tool_use_id"].as_str())
            .collect();
        let missing: Vec<&str> = open
            .iter()
            .filter(|id| !answered.contains(*id))
            .copied()
            .collect();
        if !missing.is_empty() {
            return Err(unanswered_calls(turn - 1, &missing));
        }
        if !(continues && turn == 0) {
            check_results(turn, message, &open)?;
        }
        open = ids(message, "tool_use", "id").collect();
    }
    match open.is_empty() {
        true => Ok(()),
        false => Err(unanswered_calls(messages.len() - 1, &open)),
    }
}

fn ids<'a>(
    message: &'a Value,
    kind: &'static str,
    field: &'static str,
) -> impl Iterator<Item = &'a str> {
    let blocks = list(&message["content"])
        .iter()
        .filter(move |block| block["type"] == kind);
    blocks.filter_map(move |block| block[field].as_str())
}

fn check_results(turn: usize, message: &Value, open: &[&str]) -> Result<(), SimulatedError> {
    let mut found = HashSet::new();
    for (index, block) in list(&message["content"]).iter().enumerate() {
        let Some(id) = block["tool_use_id"]
            .as_str()
            .filter(|_| block["type"] == "tool_result")
        else {
            continue;
        };
        if !open.contains(&id) {
            return Err(invalid_request(format!(
                "messages.{turn}.content.{index}: unexpected `tool_use_id` found in `tool_result` blocks: {id}. Each \
                 `tool_result` block must have a corresponding `tool_use` block in the previous message."
            )));
        }
        if !found.insert(id) {
            return Err(invalid_request(format!(
                "messages.{turn}.content.{index}: each tool_use must have a single result. Found multiple \
                 `tool_result` blocks with id: {id}"
            )));
        }
    }
    Ok(())
}

fn unanswered_calls(turn: usize, ids: &[&str]) -> SimulatedError {
    invalid_request(format!(
        "messages.{turn}: `tool_use` ids were found without `tool_result` blocks immediately after: {}. Each \
         `tool_use` block must have a corresponding `tool_result` block in the next message.",
        ids.join(", ")
    ))
}
