//! Implements the responses vendor's checks of a whole request: fields, limits, and parameters that
//! reasoning models refuse.
//!
//! This file must not examine items (`responses_items.rs`) or tools (`responses_tools.rs`).

use serde_json::Value;

use super::chat_errors::{
    check_members, check_name, invalid, missing, too_long, unknown_parameter,
};
use super::generations::SimChatModel;
use super::members::{list, non_null};
use super::request_check::SimRequestCheck;
use super::{chat_schema, responses_items, responses_pairing, responses_tools};
use crate::errors::{FixedError, SimulatedError};

const FIELDS: [&str; 35] = [
    "model",
    "input",
    "access_programs",
    "background",
    "background_options",
    "client_metadata",
    "context_management",
    "conversation",
    "include",
    "instructions",
    "max_output_tokens",
    "max_tool_calls",
    "metadata",
    "moderation",
    "parallel_tool_calls",
    "previous_response_id",
    "prompt",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "reasoning",
    "safety_identifier",
    "service_tier",
    "store",
    "stream",
    "stream_options",
    "temperature",
    "text",
    "tool_choice",
    "tools",
    "top_logprobs",
    "top_p",
    "truncation",
    "user",
    "image",
];
const INCLUDES: [&str; 8] = [
    "reasoning.encrypted_content",
    "message.output_text.logprobs",
    "message.input_image.image_url",
    "web_search_call.action.sources",
    "web_search_call.results",
    "file_search_call.results",
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
];
const MAX_LABEL_CHARS: usize = 64;
const MIN_OUTPUT_TOKENS: u64 = 16;

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
    if call.non_null("input").is_none()
        && call.non_null("instructions").is_none()
        && call.non_null("prompt").is_none()
    {
        return Err(missing("input"));
    }
    if let Some(id) = call.body["previous_response_id"].as_str() {
        let text = format!("Previous response with id '{id}' not found.");
        return Err(SimulatedError::from_param(
            text,
            "previous_response_id",
            Some("previous_response_not_found"),
        ));
    }
    let model = SimChatModel::from_name(call.model);
    check_limits(call)?;
    check_labels(call)?;
    check_includes(call, model)?;
    check_sampling(call, model)?;
    check_reasoning(call, model)?;
    check_text(call)?;
    responses_tools::check(call)?;
    match call.non_null("input") {
        Some(Value::Array(items)) => {
            responses_items::check(items)?;
            responses_pairing::check(items)
        }
        Some(Value::String(_)) | None => Ok(()),
        Some(_) => Err(SimulatedError::from_param(
            "Invalid type for 'input': expected one of a string or an array of input items.",
            "input",
            Some("invalid_type"),
        )),
    }
}

fn check_limits(call: &SimRequestCheck<'_>) -> Result<(), SimulatedError> {
    let name = "max_output_tokens";
    let Some(requested) = call.non_null(name) else {
        return Ok(());
    };
    let Some(requested) = requested
        .as_u64()
        .filter(|requested| *requested >= MIN_OUTPUT_TOKENS)
    else {
        let text = format!(
            "Invalid '{name}': integer below minimum value. Expected a value >= {MIN_OUTPUT_TOKENS}, but got {requested} \
             instead."
        );
        return Err(SimulatedError::from_param(
            text,
            name,
            Some("integer_below_min_value"),
        ));
    };
    match call.output_max().filter(|max| requested > *max) {
        Some(max) => {
            let text = format!(
                "{name} is too large: {requested}. This model supports at most {max} completion tokens, whereas you \
                 provided {requested}."
            );
            Err(invalid(name, text))
        }
        None => Ok(()),
    }
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
    if call.non_null("stream_options").is_some() && call.body["stream"] != true {
        return Err(FixedError::ChatStreamOptions.into());
    }
    check_members(
        "stream_options",
        &call.body["stream_options"],
        &["include_obfuscation"],
    )
}

fn check_includes(call: &SimRequestCheck<'_>, model: SimChatModel) -> Result<(), SimulatedError> {
    for word in list(&call.body["include"]) {
        let word = word.as_str().unwrap_or_default();
        if !INCLUDES.contains(&word) {
            return Err(invalid(
                "include[0]",
                format!(
                    "Invalid value: '{word}'. Supported values are: 'file_search_call.results', 'web_search_call.results', 'message.input_image.image_url', 'computer_call_output.output.image_url', 'code_interpreter_call.outputs', 'reasoning.encrypted_content', and 'message.output_text.logprobs'."
                ),
            ));
        }
        if word == "reasoning.encrypted_content" && model.never_reasons() {
            let text = "Encrypted content is not supported with this model.";
            return Err(SimulatedError::from_param(text, "include", None));
        }
    }
    Ok(())
}

fn check_sampling(call: &SimRequestCheck<'_>, model: SimChatModel) -> Result<(), SimulatedError> {
    for name in ["temperature", "top_p"] {
        if model.reasons() && call.non_null(name).is_some() {
            return Err(unsupported(name));
        }
    }
    let wants_logprobs = call.body["top_logprobs"]
        .as_u64()
        .is_some_and(|count| count > 0);
    if model.reasons() && wants_logprobs {
        Err(unsupported("top_logprobs"))
    } else {
        Ok(())
    }
}

fn unsupported(name: &str) -> SimulatedError {
    let text = format!("Unsupported parameter: '{name}' is not supported with this model.");
    SimulatedError::from_param(text, name, Some("unsupported_parameter"))
}

fn check_reasoning(call: &SimRequestCheck<'_>, model: SimChatModel) -> Result<(), SimulatedError> {
    let Some(reasoning) = call.non_null("reasoning") else {
        return Ok(());
    };
    check_members(
        "reasoning",
        reasoning,
        &["effort", "summary", "generate_summary", "context", "mode"],
    )?;
    if let Some(effort) = non_null(reasoning, "effort") {
        let effort = effort.as_str().unwrap_or_default();
        if model.never_reasons() {
            return Err(unsupported("reasoning.effort"));
        }
        if model.refuses_effort(effort) {
            let text = format!(
                "Unsupported value: '{effort}' is not supported with the '{}' model. Supported values are: 'none', \
                 'low', 'medium', 'high', and 'xhigh'.",
                call.model
            );
            return Err(SimulatedError::from_param(
                text,
                "reasoning.effort",
                Some("unsupported_value"),
            ));
        }
    }
    match non_null(reasoning, "summary").map(|summary| summary.as_str()) {
        None => Ok(()),
        Some(Some("auto" | "concise" | "detailed")) if !model.never_reasons() => Ok(()),
        Some(Some("auto" | "concise" | "detailed")) => Err(unsupported("reasoning.summary")),
        Some(_) => Err(invalid(
            "reasoning.summary",
            "Invalid value: 'reasoning.summary'. Supported values are: 'concise', 'detailed', and 'auto'.",
        )),
    }
}

fn check_text(call: &SimRequestCheck<'_>) -> Result<(), SimulatedError> {
    let Some(text) = call.non_null("text") else {
        return Ok(());
    };
    check_members("text", text, &["format", "verbosity"])?;
    if !matches!(
        text["verbosity"].as_str(),
        None | Some("low" | "medium" | "high")
    ) {
        let words =
            "Invalid value: 'text.verbosity'. Supported values are: 'low', 'medium', and 'high'.";
        return Err(invalid("text.verbosity", words));
    }
    let Some(format) = non_null(text, "format") else {
        return Ok(());
    };
    match format["type"].as_str() {
        Some("text" | "json_object") => check_members("text.format", format, &["type"]),
        Some("json_schema") => {
            check_members(
                "text.format",
                format,
                &["type", "name", "description", "schema", "strict"],
            )?;
            check_name("text.format.name", &format["name"])?;
            let Some(schema) = non_null(format, "schema") else {
                return Err(missing("text.format.schema"));
            };
            let of = format!(
                "response_format '{}'",
                format["name"].as_str().unwrap_or_default()
            );
            match format["strict"] == false {
                true => chat_schema::check(&of, "text.format.schema", schema),
                false => chat_schema::check_strict(&of, "text.format.schema", schema),
            }
        }
        _ => Err(invalid(
            "text.format.type",
            "Invalid value: 'text.format.type'. Supported values are: 'json_object', 'json_schema', and 'text'.",
        )),
    }
}
