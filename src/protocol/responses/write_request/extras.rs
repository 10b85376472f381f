//! What a chat caller may say that the form has no place for: said, left out, or refused.
//!
//! The messages surface's own are judged where they are for a chat vendor
//! (`chat/write_request/refusals.rs`): the two vendors know as little of them. A chat vendor's
//! protocol has more members than this one: what only changes how an answer is drawn is left out
//! with a warning, what changes what it is, is refused.
//!
//! Read next: `responses/write_request/items.rs`.

use super::refused;
use crate::protocol::Protocol;
use crate::protocol::failure::Failure;
use crate::protocol::form::{Action, BlockKind, Effort, Opaque, Refused, Request, Warnings};
use crate::protocol::messages::write_request::asks_nothing;
use crate::protocol::rules::ResponsesModel;
use crate::protocol::text::Text;
use crate::protocol::tree::Value;

/// Members that were not read into the form and are said none the less.
#[derive(Debug, Default)]
pub(super) struct Extras<'a> {
    /// As they stand.
    pub copied: Vec<(&'static str, Value<'a>)>,
    pub verbosity: Option<Text<'a>>,
    /// In the messages protocol's own member, taken on the chat surface too.
    pub effort: Option<Effort>,
}

/// Members that both protocols of this vendor have.
const SHARED: [&str; 2] = ["prompt_cache_options", "prompt_cache_retention"];

/// Gives every member that the form has no place for its outcome.
pub(super) fn judge<'a>(
    request: &Request<'a>,
    model: &ResponsesModel,
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
            (Protocol::Messages, "output_config") => {
                let level = value.get("effort").and_then(Value::string);
                extras.effort = level.and_then(|level| Effort::named(&level));
            }
            // Where to cache is the vendor's to find out.
            (Protocol::Messages, "cache_control") => {}
            (Protocol::Messages, "inference_geo") => {
                return Err(unsupported(request.surface, &name));
            }
            (Protocol::Messages, _) => warnings.add(Action::Dropped, &name),
            // Said by its hash, beside the end user.
            (_, "prompt_cache_key") => {}
            (_, "verbosity") if model.verbosity => extras.verbosity = value.text(),
            (_, name) if asks_nothing(name, *value) => {}
            (_, "metadata" | "audio") => {}
            (_, "n" | "modalities" | "web_search_options" | "moderation") => {
                return Err(unsupported(request.surface, &name));
            }
            (_, name) => match SHARED.iter().find(|shared| **shared == name) {
                Some(shared) => extras.copied.push((shared, *value)),
                None => warnings.add(Action::Dropped, name),
            },
        }
    }
    Ok(extras)
}

/// What only chat can say in a message, refused or left out, before the rest is judged.
pub(super) fn blocks(request: &mut Request<'_>, warnings: &mut Warnings) -> Result<(), Refused> {
    let surface = request.surface;
    for turn in &mut request.turns {
        let mut outcome = Ok(());
        turn.blocks.retain(|block| match &block.kind {
            BlockKind::Opaque(opaque) if opaque.origin != Protocol::Messages => {
                let path = format!("{}.{}", block.at, opaque.name.value());
                if opaque.name.is("file") {
                    let message =
                        "file_id is not available for this model; send file_data instead.";
                    outcome = Err(refused(surface, &path, message));
                } else if opaque.name.is("input_audio") {
                    outcome = Err(refused(
                        surface,
                        &path,
                        "Audio input is not supported by this model.",
                    ));
                } else {
                    warnings.add(Action::Dropped, &path);
                }
                false
            }
            _ => true,
        });
        outcome?;
    }
    Ok(())
}

fn unsupported(surface: Protocol, name: &str) -> Refused {
    let failure = Failure::invalid(
        surface,
        name,
        &format!("{name} is not supported for this model."),
    );
    Box::new(failure.with_code("unsupported_value"))
}
