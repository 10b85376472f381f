//! Implements the messages vendor's checks of a whole request: fields, limits and sampling.
//!
//! This file must not examine turns (`turns.rs`) or tools (`messages_tools.rs`).

use serde_json::Value;

use super::generations::SimMessagesModel;
use super::members::{list, non_null};
use super::messages_errors::{check_members, extra_input, invalid_request};
use super::request_check::SimRequestCheck;
use super::{blocks, cache, messages_tools, structured, thinking, turns};
use crate::errors::SimulatedError;

const FIELDS: [&str; 29] = [
    "model",
    "messages",
    "max_tokens",
    "system",
    "tools",
    "tool_choice",
    "stop_sequences",
    "stream",
    "temperature",
    "top_p",
    "top_k",
    "thinking",
    "output_config",
    "output_format",
    "metadata",
    "service_tier",
    "speed",
    "cache_control",
    "container",
    "mcp_servers",
    "context_management",
    "compaction",
    "thread",
    "fallbacks",
    "fallback_credit_token",
    "billing_policy",
    "user_profile_id",
    "inference_geo",
    "diagnostics",
];

pub fn check(call: &SimRequestCheck<'_>) -> Result<(), SimulatedError> {
    let extra = call
        .body
        .as_object()
        .into_iter()
        .flat_map(|body| body.keys());
    let extra = extra
        .map(String::as_str)
        .find(|name| !FIELDS.contains(name) && !call.allows_extension(name));
    if let Some(name) = extra {
        return Err(extra_input(name));
    }
    let model = SimMessagesModel::from_name(call.model);
    check_limit(call)?;
    check_sampling(call, model)?;
    check_stop_sequences(call)?;
    check_small_fields(call)?;
    thinking::check(call, model)?;
    check_output_config(call, model)?;
    messages_tools::check(call)?;
    check_system(call)?;
    turns::check(call, model)?;
    cache::check(call)
}

fn check_limit(call: &SimRequestCheck<'_>) -> Result<(), SimulatedError> {
    let (Some(requested), Some(max)) = (call.body["max_tokens"].as_u64(), call.output_max()) else {
        return Ok(());
    };
    if requested <= max {
        return Ok(());
    }
    Err(invalid_request(format!(
        "max_tokens: {requested} > {max}, which is the maximum allowed number of output tokens for {}",
        call.model
    )))
}

fn check_sampling(
    call: &SimRequestCheck<'_>,
    model: SimMessagesModel,
) -> Result<(), SimulatedError> {
    for name in ["temperature", "top_p"] {
        let Some(value) = call.non_null(name) else {
            continue;
        };
        let is_in_range = value
            .as_f64()
            .is_some_and(|number| (0.0..=1.0).contains(&number));
        if !is_in_range {
            return Err(invalid_request(format!("{name}: range: 0..1")));
        }
    }
    if call
        .non_null("top_k")
        .is_some_and(|value| value.as_u64().is_none())
    {
        return Err(invalid_request("top_k: Input should be a valid integer"));
    }
    let both = call.non_null("temperature").is_some() && call.non_null("top_p").is_some();
    if model.samples_by_one() && both {
        return Err(invalid_request(
            "`temperature` and `top_p` cannot both be specified for this model. Please use only one.",
        ));
    }
    match ["temperature", "top_p", "top_k"]
        .iter()
        .find(|name| call.non_null(name).is_some())
    {
        Some(name) if model.has_fixed_sampling() => Err(invalid_request(format!(
            "`{name}` is deprecated for this model."
        ))),
        _ => Ok(()),
    }
}

fn check_stop_sequences(call: &SimRequestCheck<'_>) -> Result<(), SimulatedError> {
    let Some(stops) = call.non_null("stop_sequences") else {
        return Ok(());
    };
    let Some(stops) = stops.as_array() else {
        return Err(invalid_request(
            "stop_sequences: Input should be a valid list",
        ));
    };
    for (index, stop) in stops.iter().enumerate() {
        match stop.as_str() {
            None => {
                return Err(invalid_request(format!(
                    "stop_sequences.{index}: Input should be a valid string"
                )));
            }
            Some(stop) if stop.trim().is_empty() => {
                return Err(invalid_request(
                    "stop_sequences: each stop sequence must contain non-whitespace",
                ));
            }
            Some(_) => {}
        }
    }
    Ok(())
}

fn check_small_fields(call: &SimRequestCheck<'_>) -> Result<(), SimulatedError> {
    if let Some(metadata) = call.non_null("metadata") {
        check_members("metadata", metadata, &["user_id"])?;
        if non_null(metadata, "user_id").is_some_and(|id| !id.is_string()) {
            return Err(invalid_request(
                "metadata.user_id: Input should be a valid string",
            ));
        }
    }
    if call
        .non_null("stream")
        .is_some_and(|stream| !stream.is_boolean())
    {
        return Err(invalid_request("stream: Input should be a valid boolean"));
    }
    match call.non_null("service_tier").map(Value::as_str) {
        None | Some(Some("auto" | "standard_only")) => Ok(()),
        Some(_) => Err(invalid_request(
            "service_tier: Input should be 'auto' or 'standard_only'",
        )),
    }
}

fn check_output_config(
    call: &SimRequestCheck<'_>,
    model: SimMessagesModel,
) -> Result<(), SimulatedError> {
    let old = call.non_null("output_format");
    let Some(config) = call.non_null("output_config") else {
        return old.map_or(Ok(()), |format| {
            check_output_format("output_format", format)
        });
    };
    check_members(
        "output_config",
        config,
        &["effort", "format", "task_budget"],
    )?;
    if let Some(effort) = non_null(config, "effort") {
        check_effort(effort, model)?;
    }
    match (non_null(config, "format"), old) {
        (Some(_), Some(_)) => Err(invalid_request(
            "output_format and output_config.format cannot both be set.",
        )),
        (Some(format), None) => check_output_format("output_config.format", format),
        (None, Some(format)) => check_output_format("output_format", format),
        (None, None) => Ok(()),
    }
}

fn check_effort(effort: &Value, model: SimMessagesModel) -> Result<(), SimulatedError> {
    let known = ["low", "medium", "high", "xhigh", "max"];
    let Some(effort) = effort.as_str().filter(|effort| known.contains(effort)) else {
        return Err(invalid_request(
            "output_config.effort: Input should be 'low', 'medium', 'high', 'xhigh' or 'max'",
        ));
    };
    match model.efforts() {
        Some([]) => Err(invalid_request(
            "This model does not support the effort parameter.",
        )),
        Some(efforts) if !efforts.contains(&effort) => Err(invalid_request(format!(
            "This model does not support effort level '{effort}'. Supported levels: {}.",
            efforts.join(", ")
        ))),
        _ => Ok(()),
    }
}

fn check_output_format(path: &str, format: &Value) -> Result<(), SimulatedError> {
    if format["type"] != "json_schema" {
        return Err(invalid_request(format!(
            "{path}.type: Input should be 'json_schema'"
        )));
    }
    check_members(path, format, &["type", "schema"])?;
    match format.get("schema") {
        Some(schema) => structured::check(&format!("{path}.schema"), schema),
        None => Err(invalid_request(format!("{path}.schema: Field required"))),
    }
}

fn check_system(call: &SimRequestCheck<'_>) -> Result<(), SimulatedError> {
    let Some(system) = call.non_null("system").filter(|system| !system.is_string()) else {
        return Ok(());
    };
    if !system.is_array() {
        return Err(invalid_request("system: Input should be a valid list"));
    }
    for (index, block) in list(system).iter().enumerate() {
        if block["type"] != "text" {
            return Err(invalid_request(format!(
                "system.{index}.type: Input should be 'text'"
            )));
        }
        check_members(
            &format!("system.{index}"),
            block,
            &["type", "text", "cache_control", "citations"],
        )?;
        blocks::check_text("system", block)?;
    }
    Ok(())
}
