//! Implements the chat vendor's checks of a whole request: fields, limits, and parameters that
//! reasoning models refuse.
//!
//! This file must not examine messages (`chat_turns.rs`) or tools (`chat_tools.rs`).

use serde_json::Value;

use super::chat_errors::{
    MAX_LABEL_CHARS, array_too_long, check_members, check_name, invalid, missing, too_long,
    unknown_parameter,
};
use super::generations::SimChatModel;
use super::members::non_null;
use super::request_check::SimRequestCheck;
use super::{chat_schema, chat_tools, chat_turns};
use crate::errors::SimulatedError;

const FIELDS: [&str; 37] = [
    "model",
    "messages",
    "audio",
    "frequency_penalty",
    "function_call",
    "functions",
    "logit_bias",
    "logprobs",
    "max_completion_tokens",
    "max_tokens",
    "metadata",
    "modalities",
    "moderation",
    "n",
    "parallel_tool_calls",
    "prediction",
    "presence_penalty",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "reasoning_effort",
    "response_format",
    "safety_identifier",
    "seed",
    "service_tier",
    "stop",
    "store",
    "stream",
    "stream_options",
    "temperature",
    "tool_choice",
    "tools",
    "top_logprobs",
    "top_p",
    "user",
    "verbosity",
    "web_search_options",
];
const MAX_STOP_SEQUENCES: usize = 4;

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
        return Err(unknown_parameter(name));
    }
    if call.is_real() {
        check_members(
            "stream_options",
            &call.body["stream_options"],
            &["include_usage", "include_obfuscation"],
        )?;
    }
    let model = SimChatModel::from_name(call.model);
    check_limits(call, model)?;
    check_labels(call)?;
    check_ranges(call)?;
    if model.reasons() {
        check_reasoning(call)?;
    }
    check_effort(call, model)?;
    chat_tools::check(call, model)?;
    check_response_format(call)?;
    chat_turns::check(call)
}

fn unsupported(name: &str, hint: &str) -> SimulatedError {
    let text = format!("Unsupported parameter: '{name}' is not supported with this model.{hint}");
    SimulatedError::from_param(text, name, Some("unsupported_parameter"))
}

fn check_limits(call: &SimRequestCheck<'_>, model: SimChatModel) -> Result<(), SimulatedError> {
    let both =
        call.non_null("max_tokens").is_some() && call.non_null("max_completion_tokens").is_some();
    if both {
        let text =
            "Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported.";
        return Err(SimulatedError::from_param(
            text,
            "max_tokens",
            Some("invalid_parameter_combination"),
        ));
    }
    if call.non_null("max_tokens").is_some() && model.reasons() {
        return Err(unsupported(
            "max_tokens",
            " Use 'max_completion_tokens' instead.",
        ));
    }
    for name in ["max_tokens", "max_completion_tokens"] {
        let Some(requested) = call.non_null(name) else {
            continue;
        };
        let Some(requested) = requested.as_u64().filter(|requested| *requested > 0) else {
            let text = format!(
                "Invalid '{name}': integer below minimum value. Expected a value >= 1, but got {requested} instead."
            );
            return Err(SimulatedError::from_param(
                text,
                name,
                Some("integer_below_min_value"),
            ));
        };
        if let Some(max) = call.output_max().filter(|max| requested > *max) {
            let text = format!(
                "{name} is too large: {requested}. This model supports at most {max} completion tokens, whereas you \
                 provided {requested}."
            );
            return Err(invalid(name, text));
        }
        if call.behaviour.min_output.is_some_and(|min| requested < min) {
            return Err(SimulatedError::new(
                400,
                "Could not finish the message because max_tokens or model output limit was reached. Please try again \
                 with higher max_tokens.",
            ));
        }
    }
    Ok(())
}

fn check_labels(call: &SimRequestCheck<'_>) -> Result<(), SimulatedError> {
    for name in ["safety_identifier", "prompt_cache_key"] {
        let length = call
            .non_null(name)
            .and_then(Value::as_str)
            .map_or(0, |label| label.chars().count());
        if length > MAX_LABEL_CHARS {
            return Err(too_long(name, MAX_LABEL_CHARS, length));
        }
    }
    let stops = call.body["stop"].as_array().map_or(0, Vec::len);
    if stops > MAX_STOP_SEQUENCES {
        Err(array_too_long("stop", MAX_STOP_SEQUENCES, stops))
    } else {
        Ok(())
    }
}

fn check_ranges(call: &SimRequestCheck<'_>) -> Result<(), SimulatedError> {
    for (name, min, max) in [
        ("temperature", 0, 2),
        ("top_p", 0, 1),
        ("presence_penalty", -2, 2),
        ("frequency_penalty", -2, 2),
    ] {
        let Some(value) = call.non_null(name) else {
            continue;
        };
        let Some(number) = value.as_f64() else {
            return Err(SimulatedError::from_param(
                format!("Invalid type for '{name}': expected a decimal."),
                name,
                Some("invalid_type"),
            ));
        };
        let (is_small, is_large) = (number < f64::from(min), number > f64::from(max));
        if is_large {
            let text = format!(
                "Invalid '{name}': decimal above maximum value. Expected a value <= {max}, but got {value} instead."
            );
            return Err(SimulatedError::from_param(
                text,
                name,
                Some("decimal_above_max_value"),
            ));
        }
        if is_small {
            let text = format!(
                "Invalid '{name}': decimal below minimum value. Expected a value >= {min}, but got {value} instead."
            );
            return Err(SimulatedError::from_param(
                text,
                name,
                Some("decimal_below_min_value"),
            ));
        }
    }
    Ok(())
}

/// Rejects parameters that reasoning models do not accept.
fn check_reasoning(call: &SimRequestCheck<'_>) -> Result<(), SimulatedError> {
    let number = |name: &str| call.non_null(name).and_then(Value::as_f64);
    if number("temperature").is_some_and(|temperature| temperature != 1.0) {
        let value = &call.body["temperature"];
        let text = format!(
            "Unsupported value: 'temperature' does not support {value} with this model. Only the default (1) value is \
             supported."
        );
        return Err(SimulatedError::from_param(
            text,
            "temperature",
            Some("unsupported_value"),
        ));
    }
    let is_set = |name: &str| match name {
        "top_p" => number(name).is_some_and(|top_p| top_p != 1.0),
        "presence_penalty" | "frequency_penalty" => {
            number(name).is_some_and(|penalty| penalty != 0.0)
        }
        "logprobs" => call.body[name] == true,
        _ => call.non_null(name).is_some(),
    };
    let refused = [
        "stop",
        "top_p",
        "presence_penalty",
        "frequency_penalty",
        "logprobs",
        "logit_bias",
    ];
    match refused.iter().find(|name| is_set(name)) {
        Some(name) => Err(unsupported(name, "")),
        None => Ok(()),
    }
}

fn check_effort(call: &SimRequestCheck<'_>, model: SimChatModel) -> Result<(), SimulatedError> {
    let Some(effort) = call.non_null("reasoning_effort") else {
        return Ok(());
    };
    let name = "reasoning_effort";
    if model.never_reasons() {
        return Err(SimulatedError::from_param(
            format!("Unrecognized request argument supplied: {name}"),
            name,
            None,
        ));
    }
    let effort = effort.as_str().unwrap_or_default();
    if model.refuses_effort(effort) {
        let text =
            format!("Unsupported value: '{name}' does not support '{effort}' with this model.");
        return Err(SimulatedError::from_param(
            text,
            name,
            Some("unsupported_value"),
        ));
    }
    Ok(())
}

fn check_response_format(call: &SimRequestCheck<'_>) -> Result<(), SimulatedError> {
    let Some(format) = call.non_null("response_format") else {
        return Ok(());
    };
    match format["type"].as_str() {
        Some("text" | "json_object") => Ok(()),
        Some("json_schema") => {
            let path = "response_format.json_schema";
            let written = &format["json_schema"];
            check_members(path, written, &["name", "description", "schema", "strict"])?;
            check_name(&format!("{path}.name"), &written["name"])?;
            let Some(schema) = non_null(written, "schema") else {
                return Err(missing(&format!("{path}.schema")));
            };
            let of = format!(
                "response_format '{}'",
                written["name"].as_str().unwrap_or_default()
            );
            match written["strict"] == true {
                true => chat_schema::check_strict(&of, "response_format", schema),
                false => chat_schema::check(&of, "response_format", schema),
            }
        }
        _ => Err(invalid(
            "response_format.type",
            "Invalid value: 'response_format.type'. Supported values are: 'json_object', 'json_schema', and 'text'.",
        )),
    }
}
