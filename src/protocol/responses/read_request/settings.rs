//! Reads the settings of a responses request other than items and tools.
//!
//! It must not know how a target handles them, only whether the client API accepts them.
//!
//! Read next: `read_request/items.rs`.

use super::fields;
use crate::protocol::Protocol;
use crate::protocol::chat::read_request::check::{
    Shape, invalid, optional_text, required_object, required_text, shape, unknown_members,
    unknown_word, wrong_type,
};
use crate::protocol::failure::Failure;
use crate::protocol::form::{
    Action, Block, BlockKind, Effort, Format, Limit, Opaque, OutcomeContent, Reasoning, Refused,
    Request, Warnings,
};
use crate::protocol::request::DEPTH_MAX;
use crate::protocol::rules::Outcome;
use crate::protocol::text::Text;
use crate::protocol::tree::{Nodes, Tree, Value};
use std::sync::LazyLock;

const EFFORTS: &str = "'none', 'minimal', 'low', 'medium', 'high', 'xhigh', and 'max'";

/// Builds an error with a specific code.
pub(super) fn refused(path: &str, message: impl AsRef<str>, code: &str) -> Refused {
    Box::new(Failure::invalid(Protocol::Responses, path, message.as_ref()).with_code(code))
}

/// Refuses members that refer to data stored between requests.
pub(super) fn stateless(body: Value<'_>) -> Result<(), Refused> {
    if let Some(id) = body.get("previous_response_id") {
        let id = id.string().unwrap_or_default();
        let id: String = id.chars().take(64).collect();
        let message = format!(
            "Previous response with id '{id}' not found. This endpoint keeps no responses: send the whole conversation in \
             'input' with store=false."
        );
        // The vendor's own error code: clients that know it send the whole conversation again.
        return Err(refused(
            "previous_response_id",
            message,
            "previous_response_not_found",
        ));
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
    Err(refused(message.0, message.1, "unsupported_value"))
}

pub(super) fn limit(body: Value<'_>) -> Result<Option<Limit>, Refused> {
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
    Ok(Some(Limit { field, tokens }))
}

pub(super) fn stream_options(
    body: Value<'_>,
    stream: bool,
    warnings: &mut Warnings,
) -> Result<(), Refused> {
    let Some(options) = body.get("stream_options") else {
        return Ok(());
    };
    shape(options, Shape::Object, "stream_options")?;
    if !stream {
        let message = "The 'stream_options' parameter is only allowed when 'stream' is enabled.";
        return Err(invalid("stream_options", message));
    }
    unknown_members(
        options,
        &["include_obfuscation"],
        "stream_options",
        warnings,
    );
    Ok(())
}

/// Reads the response format. `updated` is an item that changes it.
pub(super) fn format<'a>(
    body: Value<'a>,
    updated: Option<Value<'a>>,
    warnings: &mut Warnings,
) -> Result<Format<'a>, Refused> {
    let Some(text) = updated
        .and_then(|item| item.get("text"))
        .or_else(|| body.get("text"))
    else {
        return Ok(Format::Free);
    };
    shape(text, Shape::Object, "text")?;
    unknown_members(text, &["format", "verbosity"], "text", warnings);
    let Some(format) = text.get("format") else {
        return Ok(Format::Free);
    };
    shape(format, Shape::Object, "text.format")?;
    let kind = required_text(format, "type", "text.format.type")?;
    match kind.value().as_ref() {
        "text" => Ok(Format::Free),
        "json_object" => Ok(Format::Json),
        "json_schema" => {
            unknown_members(
                format,
                &["type", "name", "schema", "strict", "description"],
                "text.format",
                warnings,
            );
            let schema = required_object(format, "schema", "text.format.schema")?;
            let description = optional_text(format, "description", "text.format.description")?;
            Ok(Format::Schema {
                schema,
                description: description.filter(|text| !text.is_empty()),
                name: optional_text(format, "name", "text.format.name")?
                    .filter(|name| !name.is_empty()),
                strict: format.get("strict").and_then(Value::bool),
            })
        }
        _ => Err(unknown_word(
            "text.format.type",
            &kind,
            "'json_object', 'json_schema', and 'text'",
        )),
    }
}

/// Reads the reasoning settings. `updated` is an item that changes the effort.
pub(super) fn reasoning<'a>(
    body: Value<'a>,
    updated: Option<Value<'a>>,
    warnings: &mut Warnings,
) -> Result<Reasoning<'a>, Refused> {
    let mut reasoning = Reasoning {
        effort_field: "reasoning.effort",
        hide: true,
        ..Reasoning::default()
    };
    let given = body.get("reasoning");
    if let Some(given) = given {
        shape(given, Shape::Object, "reasoning")?;
        unknown_members(
            given,
            &["effort", "summary", "generate_summary", "context", "mode"],
            "reasoning",
            warnings,
        );
        let summary = given
            .get("summary")
            .or_else(|| given.get("generate_summary"));
        reasoning.hide = summary.is_none_or(|summary| summary.is("none"));
        if given.get("mode").is_some_and(|mode| !mode.is("standard")) {
            warnings.add(Action::Dropped, "reasoning.mode");
        }
    }
    if let Some(thinking) = body.get("thinking") {
        shape(thinking, Shape::Object, "thinking")?;
        reasoning.thinking = Some(thinking);
        reasoning.is_verbatim = true;
    }
    reasoning.is_verbatim |= body
        .get("output_config")
        .is_some_and(|config| config.get("effort").is_some());
    let holder = updated
        .and_then(|item| item.get("reasoning"))
        .filter(|it| it.get("effort").is_some())
        .or(given);
    let Some(word) = holder
        .map(|holder| optional_text(holder, "effort", "reasoning.effort"))
        .transpose()?
        .flatten()
    else {
        return Ok(reasoning);
    };
    // Agents already send `ultra`, which the official types do not have yet.
    if word.is("ultra") {
        warnings.add(Action::Downgraded, "reasoning.effort");
        reasoning.effort = Some(Effort::Max);
    } else {
        let effort = Effort::named(&word.value())
            .ok_or_else(|| unknown_word("reasoning.effort", &word, EFFORTS))?;
        reasoning.effort = Some(effort);
    }
    Ok(reasoning)
}

/// Checks `include`, the additional data that the client wants in the answer. The IR cannot
/// represent the log probabilities of tokens.
pub(super) fn include(body: Value<'_>, warnings: &mut Warnings) -> Result<(), Refused> {
    let no_probabilities = |path: &str| {
        Err(refused(
            path,
            "top_logprobs is not supported by this model.",
            "unsupported_value",
        ))
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
    shape(include, Shape::Array, "include")?;
    for (index, value) in include.items().enumerate() {
        let word = value
            .text()
            .ok_or_else(|| wrong_type(format_args!("include[{index}]"), "a string", value))?;
        match word.value().as_ref() {
            // The answer always contains the first; it never contains what hosted tools find.
            "reasoning.encrypted_content"
            | "web_search_call.action.sources"
            | "web_search_call.results"
            | "file_search_call.results"
            | "code_interpreter_call.outputs"
            | "computer_call_output.output.image_url"
            | "message.input_image.image_url" => {}
            "message.output_text.logprobs" => return no_probabilities("include"),
            _ => warnings.add(Action::Dropped, format_args!("include[{index}]")),
        }
    }
    Ok(())
}

static MARKER: LazyLock<Option<Tree<'static>>> =
    LazyLock::new(|| Tree::read(r#"{"type":"ephemeral"}"#, DEPTH_MAX, Nodes::new()).ok());

/// Checks a top-level member that no other function reads.
pub(super) fn judge<'a>(
    name: &str,
    value: Value<'a>,
    request: &mut Request<'a>,
    warnings: &mut Warnings,
) -> Result<(), Refused> {
    match fields::outcome(name) {
        Some(Outcome::Map | Outcome::Drop) => {}
        Some(Outcome::Warn | Outcome::Refuse) if asks_nothing(name, value) => {}
        Some(Outcome::Warn) | None => warnings.add(Action::Dropped, name),
        Some(Outcome::Refuse) => {
            let message = match name {
                "access_programs" => "access_programs is not available for this model.".to_owned(),
                _ => format!("{name} is not supported for this model."),
            };
            return Err(refused(name, message, "unsupported_value"));
        }
    }
    match name {
        "prompt_cache_key" | "prompt_cache_options" | "prompt_cache_retention" => {
            request.extra.push(Opaque {
                origin: Protocol::Chat,
                name: Text::made(name.to_owned()),
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
                shape(value, Shape::String, "text.verbosity")?;
                request.extra.push(Opaque {
                    origin: Protocol::Chat,
                    name: Text::made("verbosity"),
                    value,
                });
            }
        }
        "prompt_cache_options" if value.get("prewarm").and_then(Value::bool) == Some(true) => {
            return Err(refused(
                "prompt_cache_options.prewarm",
                "prewarm is not supported on this endpoint.",
                "unsupported_value",
            ));
        }
        _ => {}
    }
    Ok(())
}

/// Returns whether the value is the default.
fn asks_nothing(name: &str, value: Value<'_>) -> bool {
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

/// Adds a cache marker for a client that sends a cache key. The responses vendor caches
/// automatically, but a messages vendor caches only marked content, and without a marker an agent's
/// loop would pay for the whole prompt at every step.
pub(super) fn cache(body: Value<'_>, request: &mut Request<'_>) {
    let is_named = body.get("prompt_cache_key").is_some_and(Value::is_string);
    let options = body.get("prompt_cache_options");
    let is_explicit = options
        .and_then(|options| options.get("mode"))
        .is_some_and(|mode| mode.is("explicit"));
    let blocks = || {
        request
            .system
            .iter()
            .chain(request.turns.iter().flat_map(|turn| &turn.blocks))
    };
    let is_marked =
        blocks().any(has_marker) || request.tools.iter().any(|tool| tool.cache.is_some());
    if !is_named || is_explicit || is_marked || body.get("cache_control").is_some() {
        return;
    }
    if let Some(value) = MARKER.as_ref().map(Tree::root) {
        request.extra.push(Opaque {
            origin: Protocol::Messages,
            name: Text::made("cache_control"),
            value,
        });
    }
}

fn has_marker(block: &Block<'_>) -> bool {
    block.cache.is_some()
        || match &block.kind {
            BlockKind::Result(result) => match &result.content {
                OutcomeContent::Blocks(blocks) => blocks.iter().any(has_marker),
                OutcomeContent::Nothing | OutcomeContent::Text(_) => false,
            },
            _ => false,
        }
}
