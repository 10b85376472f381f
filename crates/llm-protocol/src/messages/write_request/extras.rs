//! Copies, drops or refuses top-level members that the IR cannot represent.
//!
//! The table `fields/chat.rs` decides the outcome. This file handles the cases in which the value
//! of a member changes its outcome.
//!
//! Read next: `write_request/turns.rs`.

use crate::Protocol;
use crate::capabilities::{FieldMapping, MessagesModel};
use crate::failure::Failure;
use crate::fields::chat as chat_fields;
use crate::ir::{CacheBreakpoint, Opaque, OutputFormat, Request, RequestResult, Warnings};
use crate::json::JsonValue;
use crate::openai::default_values::is_default_value;
use crate::openai::tool_names::WEB_SEARCH_MEMBER;

/// Members to send although the IR does not represent them.
#[derive(Debug, Default)]
pub(super) struct MessagesExtras<'a> {
    /// The vendor's own members, which are copied.
    pub copied: Vec<(String, JsonValue<'a>)>,
    pub output_config: Option<JsonValue<'a>>,
    pub cache: Option<CacheBreakpoint>,
    /// The value of chat's `web_search_options`, or the search tool of responses. Set if the model
    /// may search.
    pub web_search: Option<JsonValue<'a>>,
}

/// Decides the outcome of every member that the IR cannot represent.
pub(super) fn check_extras<'a>(
    request: &Request<'a>,
    model: &MessagesModel,
    warnings: &mut Warnings,
) -> RequestResult<MessagesExtras<'a>> {
    let mut extras = MessagesExtras::default();
    for Opaque {
        origin,
        name,
        value,
    } in &request.extra
    {
        let name = name.value();
        match (origin, name.as_ref()) {
            (Protocol::Messages, "cache_control") => {
                extras.cache = Some(CacheBreakpoint::from_marker(*value))
            }
            (Protocol::Messages, "output_config") => {
                if value.get("format").is_some() && !matches!(request.format, OutputFormat::Free) {
                    warnings.dropped("output_config.format");
                }
                extras.output_config = Some(*value);
            }
            (Protocol::Messages, name) => extras.copied.push((name.to_owned(), *value)),
            (Protocol::Chat, "web_search_options") if model.may_search() => {
                if value.get("search_context_size").is_some() {
                    warnings.dropped("web_search_options.search_context_size");
                }
                extras.web_search = Some(*value);
            }
            // The request reader has checked that the model may search.
            (Protocol::Responses, WEB_SEARCH_MEMBER) => extras.web_search = Some(*value),
            (Protocol::Chat | Protocol::Responses, name) => {
                check_chat_member(request.surface, name, *value, warnings)?
            }
        }
    }
    Ok(extras)
}

fn check_chat_member(
    surface: Protocol,
    name: &str,
    value: JsonValue<'_>,
    warnings: &mut Warnings,
) -> RequestResult {
    match chat_fields::outcome(name).unwrap_or(FieldMapping::Warn) {
        // Mapped members are in the IR and never reach this function.
        FieldMapping::Map | FieldMapping::Drop => Ok(()),
        FieldMapping::Warn | FieldMapping::Refuse if is_default_value(name, value) => Ok(()),
        FieldMapping::Warn => {
            let is_ours = surface == Protocol::Responses && name == "verbosity";
            warnings.dropped(if is_ours { "text.verbosity" } else { name });
            Ok(())
        }
        FieldMapping::Refuse => {
            let failure = Failure::invalid_param(surface, name, unsupported_message(name, value));
            Err(failure.with_code("unsupported_value").into())
        }
    }
}

fn unsupported_message(name: &str, value: JsonValue<'_>) -> String {
    let message = match name {
        "n" => "This model supports only n = 1.",
        "modalities" if value.items().any(|modality| modality.is("audio")) => {
            "Audio output is not supported by this model."
        }
        "web_search_options" | "moderation" => {
            return format!("{name} is not supported for this model.");
        }
        _ => return format!("{name} is not supported by this model."),
    };
    message.to_owned()
}
