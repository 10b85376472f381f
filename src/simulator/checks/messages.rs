//! The messages vendor's checks of a whole request: its fields, limits and sampling.
//!
//! It must not examine turns (`turns.rs`) or tools (`messages_tools.rs`).

use serde_json::Value;

use super::models::MessagesModel;
use super::{Call, cache, given, list, messages_tools, structured, thinking, turns, unknown};
use crate::simulator::errors::Problem;

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

pub fn check(call: &Call<'_>) -> Result<(), Problem> {
    let extra = call
        .body
        .as_object()
        .into_iter()
        .flat_map(|body| body.keys());
    let extra = extra
        .map(String::as_str)
        .find(|name| !FIELDS.contains(name) && !call.spares(name));
    if let Some(name) = extra {
        return Err(extra_input(name));
    }
    let model = MessagesModel::of(call.model);
    limit(call)?;
    sampling(call, model)?;
    stops(call)?;
    small_fields(call)?;
    thinking::check(call, model)?;
    output(call, model)?;
    messages_tools::check(call)?;
    system(call)?;
    turns::check(call, model)?;
    cache::check(call)
}

pub fn refused(message: impl Into<String>) -> Problem {
    Problem::new(400, message)
}

pub fn extra_input(path: &str) -> Problem {
    refused(format!("{path}: Extra inputs are not permitted"))
}

/// Rejects members of `value` that are not in the list of known ones.
pub fn only(path: &str, value: &Value, known: &[&str]) -> Result<(), Problem> {
    match unknown(value, known) {
        Some(name) => Err(extra_input(&format!("{path}.{name}"))),
        None => Ok(()),
    }
}

fn limit(call: &Call<'_>) -> Result<(), Problem> {
    let (Some(asked), Some(max)) = (call.body["max_tokens"].as_u64(), call.output_max()) else {
        return Ok(());
    };
    if asked <= max {
        return Ok(());
    }
    Err(refused(format!(
        "max_tokens: {asked} > {max}, which is the maximum allowed number of output tokens for {}",
        call.model
    )))
}

fn sampling(call: &Call<'_>, model: MessagesModel) -> Result<(), Problem> {
    for name in ["temperature", "top_p"] {
        let Some(value) = call.given(name) else {
            continue;
        };
        let is_in_range = value
            .as_f64()
            .is_some_and(|number| (0.0..=1.0).contains(&number));
        if !is_in_range {
            return Err(refused(format!("{name}: range: 0..1")));
        }
    }
    if call
        .given("top_k")
        .is_some_and(|value| value.as_u64().is_none())
    {
        return Err(refused("top_k: Input should be a valid integer"));
    }
    let both = call.given("temperature").is_some() && call.given("top_p").is_some();
    if model.samples_by_one() && both {
        return Err(refused(
            "`temperature` and `top_p` cannot both be specified for this model. Please use only one.",
        ));
    }
    match ["temperature", "top_p", "top_k"]
        .iter()
        .find(|name| call.given(name).is_some())
    {
        Some(name) if model.has_fixed_sampling() => {
            Err(refused(format!("`{name}` is deprecated for this model.")))
        }
        _ => Ok(()),
    }
}

fn stops(call: &Call<'_>) -> Result<(), Problem> {
    let Some(stops) = call.given("stop_sequences") else {
        return Ok(());
    };
    let Some(stops) = stops.as_array() else {
        return Err(refused("stop_sequences: Input should be a valid list"));
    };
    for (index, stop) in stops.iter().enumerate() {
        match stop.as_str() {
            None => {
                return Err(refused(format!(
                    "stop_sequences.{index}: Input should be a valid string"
                )));
            }
            Some(stop) if stop.trim().is_empty() => {
                return Err(refused(
                    "stop_sequences: each stop sequence must contain non-whitespace",
                ));
            }
            Some(_) => {}
        }
    }
    Ok(())
}

fn small_fields(call: &Call<'_>) -> Result<(), Problem> {
    if let Some(metadata) = call.given("metadata") {
        only("metadata", metadata, &["user_id"])?;
        if given(metadata, "user_id").is_some_and(|id| !id.is_string()) {
            return Err(refused("metadata.user_id: Input should be a valid string"));
        }
    }
    if call
        .given("stream")
        .is_some_and(|stream| !stream.is_boolean())
    {
        return Err(refused("stream: Input should be a valid boolean"));
    }
    match call.given("service_tier").map(Value::as_str) {
        None | Some(Some("auto" | "standard_only")) => Ok(()),
        Some(_) => Err(refused(
            "service_tier: Input should be 'auto' or 'standard_only'",
        )),
    }
}

fn output(call: &Call<'_>, model: MessagesModel) -> Result<(), Problem> {
    let old = call.given("output_format");
    let Some(config) = call.given("output_config") else {
        return old.map_or(Ok(()), |format| output_format("output_format", format));
    };
    only(
        "output_config",
        config,
        &["effort", "format", "task_budget"],
    )?;
    if let Some(effort) = given(config, "effort") {
        check_effort(effort, model)?;
    }
    match (given(config, "format"), old) {
        (Some(_), Some(_)) => Err(refused(
            "output_format and output_config.format cannot both be set.",
        )),
        (Some(format), None) => output_format("output_config.format", format),
        (None, Some(format)) => output_format("output_format", format),
        (None, None) => Ok(()),
    }
}

fn check_effort(effort: &Value, model: MessagesModel) -> Result<(), Problem> {
    let known = ["low", "medium", "high", "xhigh", "max"];
    let Some(effort) = effort.as_str().filter(|effort| known.contains(effort)) else {
        return Err(refused(
            "output_config.effort: Input should be 'low', 'medium', 'high', 'xhigh' or 'max'",
        ));
    };
    match model.efforts() {
        Some([]) => Err(refused("This model does not support the effort parameter.")),
        Some(efforts) if !efforts.contains(&effort) => Err(refused(format!(
            "This model does not support effort level '{effort}'. Supported levels: {}.",
            efforts.join(", ")
        ))),
        _ => Ok(()),
    }
}

fn output_format(path: &str, format: &Value) -> Result<(), Problem> {
    if format["type"] != "json_schema" {
        return Err(refused(format!(
            "{path}.type: Input should be 'json_schema'"
        )));
    }
    only(path, format, &["type", "schema"])?;
    match format.get("schema") {
        Some(schema) => structured::check(&format!("{path}.schema"), schema),
        None => Err(refused(format!("{path}.schema: Field required"))),
    }
}

fn system(call: &Call<'_>) -> Result<(), Problem> {
    let Some(system) = call.given("system").filter(|system| !system.is_string()) else {
        return Ok(());
    };
    if !system.is_array() {
        return Err(refused("system: Input should be a valid list"));
    }
    for (index, block) in list(system).iter().enumerate() {
        if block["type"] != "text" {
            return Err(refused(format!(
                "system.{index}.type: Input should be 'text'"
            )));
        }
        only(
            &format!("system.{index}"),
            block,
            &["type", "text", "cache_control", "citations"],
        )?;
        turns::check_text("system", block)?;
    }
    Ok(())
}
