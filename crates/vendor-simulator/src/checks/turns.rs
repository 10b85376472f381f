//! Implements the messages vendor's checks of turns: roles, order, and the end of the last turn.
//!
//! This file must not examine blocks (`blocks.rs`) or match calls with results (`pairing.rs`).

use serde_json::Value;

use super::generations::SimMessagesModel;
use super::members::list;
use super::messages_errors::{check_members, invalid_request};
use super::request_check::SimRequestCheck;
use super::{blocks, pairing, thinking};
use crate::errors::SimulatedError;

const EXPECTED_THINKING: &str = "When `thinking` is enabled, a final `assistant` message must start with a thinking \
    block (preceeding the lastmost set of `tool_use` and `tool_result` blocks). We recommend you include thinking \
    blocks from previous turns. To avoid this requirement, disable `thinking`.";

pub fn check(call: &SimRequestCheck<'_>, model: SimMessagesModel) -> Result<(), SimulatedError> {
    let messages = list(&call.body["messages"]);
    for (index, message) in messages.iter().enumerate() {
        check_turn(index, message, messages.len(), model)?;
    }
    if messages
        .first()
        .is_some_and(|first| first["role"] != "user")
    {
        return Err(invalid_request(
            "messages: first message must use the \"user\" role",
        ));
    }
    pairing::check(call, messages)?;
    if thinking::is_manual(call) {
        check_manual(messages)?;
    }
    messages
        .last()
        .map_or(Ok(()), |last| check_last(last, model))
}

fn check_turn(
    index: usize,
    message: &Value,
    count: usize,
    model: SimMessagesModel,
) -> Result<(), SimulatedError> {
    let path = format!("messages.{index}");
    let role = message["role"].as_str().unwrap_or_default();
    let fields: &[&str] = match role {
        "user" | "assistant" => &["role", "content"],
        "system" if model.refuses_system_turns() => {
            return Err(invalid_request(
                "messages: Unexpected role \"system\". The Messages API accepts a top-level `system` parameter, not \
                 \"system\" as an input message role.",
            ));
        }
        "system" => &["role", "content", "clear_at", "output_config"],
        _ => {
            return Err(invalid_request(format!(
                "{path}.role: Input should be 'user' or 'assistant'"
            )));
        }
    };
    check_members(&path, message, fields)?;
    let is_final_answer = index + 1 == count && role == "assistant";
    match &message["content"] {
        Value::String(text) if text.is_empty() && !is_final_answer => Err(empty_content(&path)),
        Value::String(text) if text.trim().is_empty() && !text.is_empty() => {
            Err(blocks::blank_text("messages"))
        }
        Value::String(_) => Ok(()),
        Value::Array(content) if content.is_empty() && !is_final_answer => {
            Err(empty_content(&path))
        }
        Value::Array(content) => {
            for (number, block) in content.iter().enumerate() {
                blocks::check(&format!("{path}.content.{number}"), block, role)?;
            }
            let ends_with_thinking = content.last().is_some_and(is_thinking);
            match role == "assistant" && ends_with_thinking {
                true => Err(invalid_request(format!(
                    "{path}: The final block in an assistant message cannot be `thinking`."
                ))),
                false => Ok(()),
            }
        }
        Value::Null => Err(invalid_request(format!("{path}.content: Field required"))),
        _ => Err(invalid_request(format!(
            "{path}.content: Input should be a valid list"
        ))),
    }
}

fn empty_content(path: &str) -> SimulatedError {
    invalid_request(format!(
        "{path}: all messages must have non-empty content except for the optional final assistant message"
    ))
}

fn is_thinking(block: &Value) -> bool {
    block["type"] == "thinking" || block["type"] == "redacted_thinking"
}

/// Rejects a request with manual thinking if the continued turn does not start with its thinking.
fn check_manual(messages: &[Value]) -> Result<(), SimulatedError> {
    let is_result = |message: &Value| {
        list(&message["content"])
            .iter()
            .any(|block| block["type"] == "tool_result")
    };
    let last = messages.len().saturating_sub(1);
    let index = match messages.last() {
        Some(message) if message["role"] == "assistant" => last,
        Some(message) if is_result(message) && last > 0 => last - 1,
        _ => return Ok(()),
    };
    let found = match &messages[index]["content"] {
        Value::Array(content) if content.first().is_some_and(is_thinking) => return Ok(()),
        Value::Array(content) => content
            .first()
            .and_then(|block| block["type"].as_str())
            .unwrap_or("text"),
        _ => "text",
    };
    Err(invalid_request(format!(
        "messages.{index}.content.0.type: Expected `thinking` or `redacted_thinking`, but found `{found}`. \
         {EXPECTED_THINKING}"
    )))
}

fn check_last(last: &Value, model: SimMessagesModel) -> Result<(), SimulatedError> {
    if last["role"] != "assistant" {
        return Ok(());
    }
    if model.refuses_prefill() {
        return Err(invalid_request(
            "This model does not support assistant message prefill. The conversation must end with a user message.",
        ));
    }
    let text = match &last["content"] {
        Value::String(text) => Some(text.as_str()),
        content => list(content)
            .last()
            .filter(|block| block["type"] == "text")
            .and_then(|block| block["text"].as_str()),
    };
    match text.is_some_and(|text| text.ends_with(char::is_whitespace)) {
        true => Err(invalid_request(
            "messages: final assistant content cannot end with trailing whitespace",
        )),
        false => Ok(()),
    }
}
