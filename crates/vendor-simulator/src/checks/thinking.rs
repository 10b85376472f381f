//! Implements the messages vendor's checks of the parameters for thinking.
//!
//! This file must not examine thinking in the history (`blocks.rs`, `turns.rs`).

use serde_json::Value;

use super::generations::SimMessagesModel;
use super::members::non_null;
use super::messages_errors::{check_members, invalid_request};
use super::request_check::SimRequestCheck;
use crate::errors::SimulatedError;

const MIN_MANUAL_BUDGET: u64 = 1024;
const DOCS: &str = "Please consult our documentation at \
    https://platform.claude.com/docs/en/build-with-claude/extended-thinking";

pub fn check(call: &SimRequestCheck<'_>, model: SimMessagesModel) -> Result<(), SimulatedError> {
    let Some(thinking) = call.non_null("thinking") else {
        return Ok(());
    };
    let Some(kind) = thinking["type"].as_str() else {
        return Err(invalid_request("thinking.type: Field required"));
    };
    let fields: &[&str] = match kind {
        "enabled" => &["type", "budget_tokens", "display"],
        "adaptive" | "between_tools" => &["type", "display"],
        "disabled" => &["type"],
        other => {
            return Err(invalid_request(format!(
                "thinking: Input tag '{other}' found using 'type' does not match any of the expected tags: \
                 'adaptive', 'between_tools', 'disabled', 'enabled'"
            )));
        }
    };
    check_members(&format!("thinking.{kind}"), thinking, fields)?;
    if !matches!(
        thinking["display"].as_str(),
        None | Some("summarized" | "omitted")
    ) {
        return Err(invalid_request(format!(
            "thinking.{kind}.display: Input should be 'summarized' or 'omitted'"
        )));
    }
    if model.refuses_thinking(kind) {
        return Err(invalid_request(match kind {
            "enabled" => {
                "\"thinking.type.enabled\" is not supported for this model. Use \"thinking.type.adaptive\" and \
                 \"output_config.effort\" to control thinking behavior."
                    .to_owned()
            }
            _ => format!("{kind} thinking is not supported on this model"),
        }));
    }
    match kind {
        "enabled" => {
            check_budget(call, thinking)?;
            check_sampling(call)
        }
        "adaptive" => check_sampling(call),
        _ => Ok(()),
    }
}

pub fn is_manual(call: &SimRequestCheck<'_>) -> bool {
    call.body["thinking"]["type"] == "enabled"
}

fn check_budget(call: &SimRequestCheck<'_>, thinking: &Value) -> Result<(), SimulatedError> {
    let path = "thinking.enabled.budget_tokens";
    let Some(budget) = non_null(thinking, "budget_tokens") else {
        return Err(invalid_request(format!("{path}: Field required")));
    };
    let Some(budget) = budget
        .as_u64()
        .filter(|budget| *budget >= MIN_MANUAL_BUDGET)
    else {
        return Err(invalid_request(format!(
            "{path}: Input should be greater than or equal to {MIN_MANUAL_BUDGET}"
        )));
    };
    let max_tokens = call.body["max_tokens"].as_u64();
    let is_too_large = max_tokens.is_some_and(|max| budget >= max);
    if is_too_large && !call.has_preview("interleaved-thinking") {
        return Err(invalid_request(format!(
            "`max_tokens` must be greater than `thinking.budget_tokens`. {DOCS}"
        )));
    }
    Ok(())
}

/// Rejects sampling parameters that are not allowed together with thinking.
fn check_sampling(call: &SimRequestCheck<'_>) -> Result<(), SimulatedError> {
    let number = |name: &str| call.non_null(name).and_then(Value::as_f64);
    if number("temperature").is_some_and(|temperature| temperature != 1.0) {
        return Err(invalid_request(format!(
            "`temperature` may only be set to 1 when thinking is enabled or in adaptive mode. {DOCS}"
        )));
    }
    if number("top_p").is_some_and(|top_p| top_p < 0.95) {
        return Err(invalid_request(format!(
            "`top_p` must be greater than or equal to 0.95 or unset when thinking is enabled. {DOCS}"
        )));
    }
    if call.non_null("top_k").is_some() {
        return Err(invalid_request(format!(
            "`top_k` must be unset when thinking is enabled. {DOCS}"
        )));
    }
    if matches!(
        call.body["tool_choice"]["type"].as_str(),
        Some("any" | "tool")
    ) {
        return Err(invalid_request(
            "Thinking may not be enabled when tool_choice forces tool use.",
        ));
    }
    Ok(())
}
