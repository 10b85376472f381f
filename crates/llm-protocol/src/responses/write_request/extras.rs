//! Sends, drops or refuses content of a chat request that the IR cannot represent.
//!
//! Content that only the messages API has is checked by the same code as for a chat vendor
//! (`openai/unsupported.rs`). The chat protocol has more members than this one. If such a member
//! changes only how an answer is sampled, the gateway drops it with a warning; if it changes the
//! kind of answer, the gateway refuses the request.
//!
//! Read next: `responses/write_request/items.rs`.

use crate::Protocol;
use crate::capabilities::ResponsesModel;
use crate::failure::Failure;
use crate::ir::{
    BlockKind, BoxedFailure, Effort, Opaque, Request, RequestResult, Warnings, refuse,
};
use crate::json::{JsonStr, JsonValue};
use crate::openai::default_values::is_default_value;
use crate::profile::VendorProfile;

/// Members to send although the IR does not represent them.
#[derive(Debug, Default)]
pub(super) struct ResponsesExtras<'a> {
    /// Members copied unchanged.
    pub copied: Vec<(&'static str, JsonValue<'a>)>,
    pub verbosity: Option<JsonStr<'a>>,
    /// Effort from the messages protocol's member `output_config`, which the chat API accepts too.
    pub effort: Option<Effort>,
}

/// Members that both protocols of this vendor have.
const COMMON_MEMBERS: [&str; 2] = ["prompt_cache_options", "prompt_cache_retention"];

/// Decides the outcome of every member that the IR cannot represent.
pub(super) fn check_extras<'a>(
    request: &Request<'a>,
    model: &ResponsesModel,
    profile: &VendorProfile,
    warnings: &mut Warnings,
) -> RequestResult<ResponsesExtras<'a>> {
    let mut extras = ResponsesExtras::default();
    for Opaque {
        origin,
        name,
        value,
    } in &request.extra
    {
        let name = name.value();
        match (origin, name.as_ref()) {
            (Protocol::Messages, "output_config") => {
                let level = value.string_of("effort");
                extras.effort = level.and_then(|level| Effort::parse(&level));
            }
            // The vendor chooses by itself what to cache.
            (Protocol::Messages, "cache_control") => {}
            (Protocol::Messages, "inference_geo") => {
                return Err(unsupported(request.surface, &name));
            }
            (Protocol::Messages, _) => warnings.dropped(&name),
            // The key is sent as a hash, next to the end user.
            (_, "prompt_cache_key") => {}
            (_, "verbosity") if model.verbosity => extras.verbosity = value.text(),
            (_, name) if is_default_value(name, *value) => {}
            (_, "metadata" | "audio") => {}
            (_, "n" | "modalities" | "web_search_options" | "moderation") => {
                return Err(unsupported(request.surface, &name));
            }
            (_, name) => match COMMON_MEMBERS.iter().find(|shared| **shared == name) {
                Some(shared) if profile.takes(shared) => extras.copied.push((shared, *value)),
                Some(_) => {}
                None => warnings.dropped(name),
            },
        }
    }
    Ok(extras)
}

/// Refuses or drops the content of messages that only chat has, before the other checks.
pub(super) fn remove_chat_blocks(
    request: &mut Request<'_>,
    warnings: &mut Warnings,
) -> RequestResult {
    let surface = request.surface;
    for turn in &mut request.turns {
        let mut outcome = Ok(());
        turn.blocks.retain(|block| match &block.kind {
            BlockKind::Opaque(opaque) if opaque.origin != Protocol::Messages => {
                let path = format!("{}.{}", block.at, opaque.name.value());
                if opaque.name.is("file") {
                    let message =
                        "file_id is not available for this model; send file_data instead.";
                    outcome = refuse(surface, path, message);
                } else if opaque.name.is("input_audio") {
                    let message = "Audio input is not supported by this model.";
                    outcome = refuse(surface, path, message);
                } else {
                    warnings.dropped(&path);
                }
                false
            }
            _ => true,
        });
        outcome?;
    }
    Ok(())
}

fn unsupported(surface: Protocol, name: &str) -> BoxedFailure {
    let message = format_args!("{name} is not supported for this model.");
    Failure::invalid_param(surface, name, message)
        .with_code("unsupported_value")
        .into()
}
