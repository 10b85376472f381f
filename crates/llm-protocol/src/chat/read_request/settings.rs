//! Reads the settings of a chat request other than messages and tools: limits, sampling, stop
//! strings, response format, reasoning.
//!
//! This file must check the settings against the client API only, not against a target.
//!
//! Read next: `read_request/tools.rs`.

use crate::ir::{
    Effort, OutputFormat, ReasoningSettings, RequestResult, RequestedOutputLimit, Warnings,
};
use crate::json::{JsonStr, JsonValue};
use crate::openai::check::{
    invalid, member_path, optional_bool, optional_object, optional_text, parse_effort, refuse,
    refuse_type, refuse_value, required_object, required_text, warn_unknown_members, wrong_type,
};

/// Maximum number of stop strings that the chat completions API accepts.
const MAX_STOPS: usize = 4;

/// Reads the output limit. `max_completion_tokens` wins over the older `max_tokens`.
pub(super) fn limit(body: JsonValue<'_>) -> RequestResult<Option<RequestedOutputLimit>> {
    for field in ["max_completion_tokens", "max_tokens"] {
        if let Some(value) = body.get(field) {
            let tokens = value.count().filter(|tokens| *tokens > 0).ok_or_else(|| {
                invalid(
                    field,
                    format!(
                        "Invalid '{field}': integer below minimum value. Expected a value >= 1."
                    ),
                )
            })?;
            return Ok(Some(RequestedOutputLimit { field, tokens }));
        }
    }
    Ok(None)
}

pub(super) fn stop<'a>(body: JsonValue<'a>) -> RequestResult<Vec<JsonStr<'a>>> {
    let Some(stop) = body.get("stop") else {
        return Ok(Vec::new());
    };
    if let Some(text) = stop.text() {
        return Ok(if text.is_empty() {
            Vec::new()
        } else {
            vec![text]
        });
    }
    if !stop.is_array() {
        return refuse_type("stop", "one of a string or array of strings", stop);
    }
    let mut texts = Vec::new();
    for (index, item) in stop.items().enumerate() {
        if index >= MAX_STOPS {
            let message =
                "Invalid 'stop': array too long. Expected an array with maximum length 4.";
            return refuse("stop", message);
        }
        texts.push(
            item.text()
                .ok_or_else(|| wrong_type(format_args!("stop[{index}]"), "a string", item))?,
        );
    }
    Ok(texts)
}

/// Reads `include_usage` from `stream_options`. The other options have no visible effect here.
pub(super) fn include_usage(
    body: JsonValue<'_>,
    stream: bool,
    warnings: &mut Warnings,
) -> RequestResult<bool> {
    let Some(options) = optional_object(body, "stream_options", "")? else {
        return Ok(false);
    };
    if !stream {
        let message = "The 'stream_options' parameter is only allowed when 'stream' is enabled.";
        return refuse("stream_options", message);
    }
    warn_unknown_members(
        options,
        &["include_usage", "include_obfuscation"],
        "stream_options",
        warnings,
    );
    let include_usage = optional_bool(options, "include_usage", "stream_options")?;
    Ok(include_usage.unwrap_or(false))
}

pub(super) fn format<'a>(
    body: JsonValue<'a>,
    warnings: &mut Warnings,
) -> RequestResult<OutputFormat<'a>> {
    let Some(format) = optional_object(body, "response_format", "")? else {
        return Ok(OutputFormat::Free);
    };
    let kind = required_text(format, "type", "response_format")?;
    warn_unknown_members(
        format,
        &["type", "json_schema"],
        "response_format",
        warnings,
    );
    if kind.is("text") {
        return Ok(OutputFormat::Free);
    }
    if kind.is("json_object") {
        return Ok(OutputFormat::Json);
    }
    if !kind.is("json_schema") {
        let supported = "'json_object', 'json_schema', and 'text'";
        return refuse_value("response_format.type", &kind, supported);
    }
    let wrapper = required_object(format, "json_schema", "response_format")?;
    let known = ["name", "description", "schema", "strict"];
    warn_unknown_members(wrapper, &known, "response_format.json_schema", warnings);
    let schema = required_object(wrapper, "schema", "response_format.json_schema")?;
    let description = optional_text(wrapper, "description", "response_format.json_schema")?;
    let description = description.filter(|text| !text.is_empty());
    let name = wrapper.text_of("name").filter(|name| !name.is_empty());
    Ok(OutputFormat::Schema {
        schema,
        description,
        name,
        strict: wrapper.get("strict").and_then(JsonValue::bool),
    })
}

/// Reads the reasoning settings from the first of these that is present: the members of the
/// messages protocol, the extension `reasoning`, and `reasoning_effort`.
pub(super) fn reasoning<'a>(
    body: JsonValue<'a>,
    warnings: &mut Warnings,
) -> RequestResult<ReasoningSettings<'a>> {
    let mut reasoning = ReasoningSettings::default();
    if let Some(thinking) = optional_object(body, "thinking", "")? {
        reasoning.thinking = Some(thinking);
        reasoning.is_verbatim = true;
    }
    // The reader of extra members keeps the other members of `output_config`.
    reasoning.is_verbatim |= body
        .get("output_config")
        .is_some_and(|config| config.get("effort").is_some());
    if reasoning.is_verbatim {
        return Ok(reasoning);
    }
    if let Some(extension) = optional_object(body, "reasoning", "")? {
        read_reasoning_extension(extension, &mut reasoning, warnings)?;
    }
    if reasoning.effort.is_none() && reasoning.budget_tokens.is_none() {
        reasoning.effort = effort(body, "reasoning_effort", "")?;
        reasoning.effort_field = "reasoning_effort";
    }
    Ok(reasoning)
}

/// Reads `{effort, max_tokens, exclude, enabled}`, an extension that aggregators define.
fn read_reasoning_extension(
    extension: JsonValue<'_>,
    reasoning: &mut ReasoningSettings<'_>,
    warnings: &mut Warnings,
) -> RequestResult {
    warn_unknown_members(
        extension,
        &["effort", "max_tokens", "exclude", "enabled"],
        "reasoning",
        warnings,
    );
    reasoning.hide = optional_bool(extension, "exclude", "reasoning")?.unwrap_or(false);
    let enabled = optional_bool(extension, "enabled", "reasoning")?;
    let level = effort(extension, "effort", "reasoning")?;
    let budget = match extension.get("max_tokens") {
        None => None,
        Some(value) => Some(
            value
                .count()
                .ok_or_else(|| wrong_type("reasoning.max_tokens", "an integer", value))?,
        ),
    };
    let (effort, field) = match (enabled, level, budget) {
        (Some(false), ..) => (Some(Effort::None), "reasoning.enabled"),
        (_, Some(level), _) => (Some(level), "reasoning.effort"),
        (_, None, Some(0)) => (Some(Effort::None), "reasoning.max_tokens"),
        (_, None, Some(_)) => (None, "reasoning.max_tokens"),
        // The client enabled reasoning without an effort or a budget.
        (Some(true), None, None) => (Some(Effort::Medium), "reasoning.enabled"),
        (None, None, None) => (None, ""),
    };
    reasoning.effort = effort;
    reasoning.effort_field = field;
    reasoning.budget_tokens = budget.filter(|_| effort.is_none());
    Ok(())
}

fn effort(of: JsonValue<'_>, name: &str, within: &str) -> RequestResult<Option<Effort>> {
    let Some(word) = optional_text(of, name, within)? else {
        return Ok(None);
    };
    parse_effort(&word, member_path(within, name)).map(Some)
}
