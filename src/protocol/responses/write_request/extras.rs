//! Content of a chat request that the IR cannot represent: sent, dropped or refused.
//!
//! The content that only the messages API has is checked by the same code as for a chat vendor
//! (`chat/write_request/unsupported.rs`), because neither vendor knows it. The chat protocol has
//! more members than this one. If such a member changes only how an answer is sampled, the gateway
//! drops it with a warning; if it changes the kind of answer, the gateway refuses the request.
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

/// Members that the IR does not represent and that are sent nevertheless.
#[derive(Debug, Default)]
pub(super) struct Extras<'a> {
    /// Members copied unchanged.
    pub copied: Vec<(&'static str, Value<'a>)>,
    pub verbosity: Option<Text<'a>>,
    /// Effort from the messages protocol's member `output_config`, which the chat API accepts too.
    pub effort: Option<Effort>,
}

/// Members that both protocols of this vendor have.
const SHARED: [&str; 2] = ["prompt_cache_options", "prompt_cache_retention"];

/// Gives an outcome to every member that the IR cannot represent.
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
            // The vendor decides by itself what to cache.
            (Protocol::Messages, "cache_control") => {}
            (Protocol::Messages, "inference_geo") => {
                return Err(unsupported(request.surface, &name));
            }
            (Protocol::Messages, _) => warnings.add(Action::Dropped, &name),
            // Sent as a hash, next to the end user.
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

/// Refuses or drops the content of messages that only chat has, before the other checks.
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
