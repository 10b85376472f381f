//! Top-level members that the IR cannot represent: copied, dropped or refused.
//!
//! The table `chat/read_request/fields.rs` decides which. This file handles the cases in which the
//! value of a member changes its outcome.
//!
//! Read next: `write_request/turns.rs`.

use crate::protocol::Protocol;
use crate::protocol::chat::read_request::fields;
use crate::protocol::failure::Failure;
use crate::protocol::form::{Action, Cache, Format, Opaque, Refused, Request, Warnings};
use crate::protocol::responses::read_request::SEARCH_MEMBER;
use crate::protocol::rules::{MessagesModel, Outcome};
use crate::protocol::tree::Value;

/// Members that the IR does not represent and that are sent nevertheless.
#[derive(Debug, Default)]
pub(super) struct Extras<'a> {
    /// The vendor's own members, copied.
    pub copied: Vec<(String, Value<'a>)>,
    pub output_config: Option<Value<'a>>,
    pub cache: Option<Cache>,
    /// `web_search_options` of chat, or the search tool of responses, if the model may search.
    pub web_search: Option<Value<'a>>,
}

/// Gives an outcome to every member that the IR cannot represent.
pub(super) fn judge<'a>(
    request: &Request<'a>,
    model: &MessagesModel,
    warnings: &mut Warnings,
) -> Result<Extras<'a>, Refused> {
    let mut extras = Extras::default();
    for Opaque {
        origin,
        name,
        value,
    } in &request.extra
    {
        let name = name.value();
        match (origin, name.as_ref()) {
            (Protocol::Messages, "cache_control") => extras.cache = Some(lifetime(*value)),
            (Protocol::Messages, "output_config") => {
                if value.get("format").is_some() && !matches!(request.format, Format::Free) {
                    warnings.add(Action::Dropped, "output_config.format");
                }
                extras.output_config = Some(*value);
            }
            (Protocol::Messages, name) => extras.copied.push((name.to_owned(), *value)),
            (Protocol::Chat, "web_search_options") if model.may_search() => {
                if value.get("search_context_size").is_some() {
                    warnings.add(Action::Dropped, "web_search_options.search_context_size");
                }
                extras.web_search = Some(*value);
            }
            // The request reader has checked that the model may search.
            (Protocol::Responses, SEARCH_MEMBER) => extras.web_search = Some(*value),
            (Protocol::Chat | Protocol::Responses, name) => {
                of_chat(request.surface, name, *value, warnings)?
            }
        }
    }
    Ok(extras)
}

fn lifetime(marker: Value<'_>) -> Cache {
    match marker.get("ttl") {
        Some(ttl) if ttl.is("1h") => Cache::OneHour,
        Some(ttl) if ttl.is("5m") => Cache::FiveMinutes,
        _ => Cache::Usual,
    }
}

fn of_chat(
    surface: Protocol,
    name: &str,
    value: Value<'_>,
    warnings: &mut Warnings,
) -> Result<(), Refused> {
    match fields::outcome(name).unwrap_or(Outcome::Warn) {
        // Mapped members are in the IR and never reach this function.
        Outcome::Map | Outcome::Drop => Ok(()),
        Outcome::Warn | Outcome::Refuse if asks_nothing(name, value) => Ok(()),
        Outcome::Warn => {
            let is_ours = surface == Protocol::Responses && name == "verbosity";
            warnings.add(
                Action::Dropped,
                if is_ours { "text.verbosity" } else { name },
            );
            Ok(())
        }
        Outcome::Refuse => {
            let failure = Failure::invalid(surface, name, &refusal(name, value));
            Err(Box::new(failure.with_code("unsupported_value")))
        }
    }
}

/// Returns whether the value is the vendor's default.
pub(in crate::protocol) fn asks_nothing(name: &str, value: Value<'_>) -> bool {
    match name {
        "n" => value.count() == Some(1),
        "logprobs" | "store" => value.bool() == Some(false),
        "logit_bias" => value.members().next().is_none(),
        "presence_penalty" | "frequency_penalty" => value
            .number()
            .is_some_and(|penalty| penalty.abs() < f64::EPSILON),
        "verbosity" => value.is("medium"),
        "modalities" => value.items().all(|modality| modality.is("text")),
        _ => false,
    }
}

fn refusal(name: &str, value: Value<'_>) -> String {
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
