//! Reads the settings of a responses request other than items and tools.
//!
//! This file must check the settings against the client API only, not against a target.
//!
//! Read next: `read_request/items.rs`.

use crate::Protocol;
use crate::capabilities::FieldMapping;
use crate::failure::Failure;
use crate::fields::responses as responses_fields;
use crate::ir::{
    Effort, Opaque, OutputFormat, ReasoningSettings, Request, RequestResult, RequestedOutputLimit,
    Warnings,
};
use crate::json::{JsonStr, JsonValue};
use crate::openai::check::{
    MemberType, check_type, invalid, optional_object, optional_text, parse_effort, refuse,
    refuse_value, required_object, required_text, warn_unknown_members, wrong_type,
};
use std::fmt::Display;

/// Refuses a member with a specific code.
pub(super) fn refuse_with_code<T>(
    path: &str,
    message: impl Display,
    code: &str,
) -> RequestResult<T> {
    let failure = Failure::invalid_param(Protocol::Responses, path, message);
    Err(failure.with_code(code).into())
}

/// Refuses members that refer to data stored between requests.
pub(super) fn reject_stateful(body: JsonValue<'_>) -> RequestResult {
    if let Some(id) = body.get("previous_response_id") {
        let id = id.string().unwrap_or_default();
        let id: String = id.chars().take(64).collect();
        let message = format!(
            "Previous response with id '{id}' not found. This endpoint keeps no responses: send the whole conversation in \
             'input' with store=false."
        );
        // This is the vendor's own error code. Clients that recognise the code send the whole
        // conversation again.
        return refuse_with_code(
            "previous_response_id",
            message,
            "previous_response_not_found",
        );
    }
    let message = match () {
        () if body.get("conversation").is_some() => (
            "conversation",
            "Conversations are not available on this endpoint; send the whole conversation in 'input'.",
        ),
        () if body.get("prompt").is_some() => (
            "prompt",
            "Prompt templates are not available on this endpoint.",
        ),
        () if body
            .get("background")
            .is_some_and(|background| background.bool() != Some(false)) =>
        {
            (
                "background",
                "background is not supported on this endpoint.",
            )
        }
        () => return Ok(()),
    };
    refuse_with_code(message.0, message.1, "unsupported_value")
}

pub(super) fn limit(body: JsonValue<'_>) -> RequestResult<Option<RequestedOutputLimit>> {
    let field = "max_output_tokens";
    let Some(value) = body.get(field) else {
        return Ok(None);
    };
    let tokens = value.count().filter(|tokens| *tokens > 0).ok_or_else(|| {
        invalid(
            field,
            format!("Invalid '{field}': integer below minimum value. Expected a value >= 1."),
        )
    })?;
    Ok(Some(RequestedOutputLimit { field, tokens }))
}

pub(super) fn check_stream_options(
    body: JsonValue<'_>,
    stream: bool,
    warnings: &mut Warnings,
) -> RequestResult {
    let Some(options) = optional_object(body, "stream_options", "")? else {
        return Ok(());
    };
    if !stream {
        let message = "The 'stream_options' parameter is only allowed when 'stream' is enabled.";
        return refuse("stream_options", message);
    }
    warn_unknown_members(
        options,
        &["include_obfuscation"],
        "stream_options",
        warnings,
    );
    Ok(())
}

/// Reads the response format. `updated` is an item that changes it.
pub(super) fn format<'a>(
    body: JsonValue<'a>,
    updated: Option<JsonValue<'a>>,
    warnings: &mut Warnings,
) -> RequestResult<OutputFormat<'a>> {
    let Some(text) = updated
        .and_then(|item| item.get("text"))
        .or_else(|| body.get("text"))
    else {
        return Ok(OutputFormat::Free);
    };
    check_type(text, MemberType::Object, "text")?;
    warn_unknown_members(text, &["format", "verbosity"], "text", warnings);
    let Some(format) = optional_object(text, "format", "text")? else {
        return Ok(OutputFormat::Free);
    };
    let kind = required_text(format, "type", "text.format")?;
    match kind.value().as_ref() {
        "text" => Ok(OutputFormat::Free),
        "json_object" => Ok(OutputFormat::Json),
        "json_schema" => {
            warn_unknown_members(
                format,
                &["type", "name", "schema", "strict", "description"],
                "text.format",
                warnings,
            );
            let schema = required_object(format, "schema", "text.format")?;
            let description = optional_text(format, "description", "text.format")?;
            Ok(OutputFormat::Schema {
                schema,
                description: description.filter(|text| !text.is_empty()),
                name: optional_text(format, "name", "text.format")?.filter(|name| !name.is_empty()),
                strict: format.get("strict").and_then(JsonValue::bool),
            })
        }
        _ => refuse_value(
            "text.format.type",
            &kind,
            "'json_object', 'json_schema', and 'text'",
        ),
    }
}

/// Reads the reasoning settings. `updated` is an item that changes the effort.
pub(super) fn reasoning<'a>(
    body: JsonValue<'a>,
    updated: Option<JsonValue<'a>>,
    warnings: &mut Warnings,
) -> RequestResult<ReasoningSettings<'a>> {
    let mut reasoning = ReasoningSettings {
        effort_field: "reasoning.effort",
        hide: true,
        ..ReasoningSettings::default()
    };
    let reasoning_value = body.get("reasoning");
    if let Some(reasoning_value) = reasoning_value {
        check_type(reasoning_value, MemberType::Object, "reasoning")?;
        warn_unknown_members(
            reasoning_value,
            &["effort", "summary", "generate_summary", "context", "mode"],
            "reasoning",
            warnings,
        );
        let summary = reasoning_value
            .get("summary")
            .or_else(|| reasoning_value.get("generate_summary"));
        reasoning.hide = summary.is_none_or(|summary| summary.is("none"));
        if reasoning_value
            .get("mode")
            .is_some_and(|mode| !mode.is("standard"))
        {
            warnings.dropped("reasoning.mode");
        }
    }
    if let Some(thinking) = optional_object(body, "thinking", "")? {
        reasoning.thinking = Some(thinking);
        reasoning.is_verbatim = true;
    }
    reasoning.is_verbatim |= body
        .get("output_config")
        .is_some_and(|config| config.get("effort").is_some());
    let holder = updated
        .and_then(|item| item.get("reasoning"))
        .filter(|it| it.get("effort").is_some())
        .or(reasoning_value);
    let Some(word) = holder
        .map(|holder| optional_text(holder, "effort", "reasoning"))
        .transpose()?
        .flatten()
    else {
        return Ok(reasoning);
    };
    // Agents send `ultra` although the official types do not have it yet.
    if word.is("ultra") {
        warnings.downgraded("reasoning.effort");
        reasoning.effort = Some(Effort::Max);
        return Ok(reasoning);
    }
    reasoning.effort = Some(parse_effort(&word, "reasoning.effort")?);
    Ok(reasoning)
}

/// Checks `include`, which lists additional data that the client wants in the answer. The IR cannot
/// represent the log probabilities of tokens.
pub(super) fn check_include(body: JsonValue<'_>, warnings: &mut Warnings) -> RequestResult {
    let no_probabilities = |path: &str| {
        refuse_with_code(
            path,
            "top_logprobs is not supported by this model.",
            "unsupported_value",
        )
    };
    if let Some(value) = body.get("top_logprobs") {
        let count = value
            .count()
            .ok_or_else(|| wrong_type("top_logprobs", "an integer", value))?;
        if count > 0 {
            return no_probabilities("top_logprobs");
        }
    }
    let Some(include) = body.get("include") else {
        return Ok(());
    };
    check_type(include, MemberType::Array, "include")?;
    for (index, value) in include.items().enumerate() {
        let word = value
            .text()
            .ok_or_else(|| wrong_type(format_args!("include[{index}]"), "a string", value))?;
        match word.value().as_ref() {
            // The answer always contains encrypted reasoning, and never the results of hosted
            // tools.
            "reasoning.encrypted_content"
            | "web_search_call.action.sources"
            | "web_search_call.results"
            | "file_search_call.results"
            | "code_interpreter_call.outputs"
            | "computer_call_output.output.image_url"
            | "message.input_image.image_url" => {}
            "message.output_text.logprobs" => return no_probabilities("include"),
            _ => warnings.dropped(format_args!("include[{index}]")),
        }
    }
    Ok(())
}

/// Checks a top-level member that no other function reads.
pub(super) fn check_member<'a>(
    name: &str,
    value: JsonValue<'a>,
    request: &mut Request<'a>,
    warnings: &mut Warnings,
) -> RequestResult {
    match responses_fields::outcome(name) {
        Some(FieldMapping::Map | FieldMapping::Drop) => {}
        Some(FieldMapping::Warn | FieldMapping::Refuse) if is_default_value(name, value) => {}
        Some(FieldMapping::Warn) | None => warnings.dropped(name),
        Some(FieldMapping::Refuse) => {
            let message = match name {
                "access_programs" => "access_programs is not available for this model.".to_owned(),
                _ => format!("{name} is not supported for this model."),
            };
            return refuse_with_code(name, message, "unsupported_value");
        }
    }
    match name {
        "prompt_cache_key" | "prompt_cache_options" | "prompt_cache_retention" => {
            request.extra.push(Opaque {
                origin: Protocol::Chat,
                name: JsonStr::from_value(name.to_owned()),
                value,
            });
        }
        _ => {}
    }
    match name {
        "text" => {
            let verbosity = value
                .get("verbosity")
                .filter(|verbosity| !verbosity.is("medium"));
            if let Some(value) = verbosity {
                check_type(value, MemberType::String, "text.verbosity")?;
                request.extra.push(Opaque {
                    origin: Protocol::Chat,
                    name: JsonStr::from_value("verbosity"),
                    value,
                });
            }
        }
        "prompt_cache_options" if value.get("prewarm").and_then(JsonValue::bool) == Some(true) => {
            return refuse_with_code(
                "prompt_cache_options.prewarm",
                "prewarm is not supported on this endpoint.",
                "unsupported_value",
            );
        }
        _ => {}
    }
    Ok(())
}

fn is_default_value(name: &str, value: JsonValue<'_>) -> bool {
    match name {
        "store" | "background" => value.bool() == Some(false),
        "top_logprobs" => value.count() == Some(0),
        "truncation" => value.is("disabled"),
        "access_programs" => {
            value.is("standard")
                || value.items().all(|program| program.is("standard")) && value.is_array()
        }
        "context_management" => value.is_array() && value.items().next().is_none(),
        _ => false,
    }
}
