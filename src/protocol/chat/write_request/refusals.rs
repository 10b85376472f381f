//! Refuses content of a messages request that no chat vendor supports and that cannot be dropped.
//! This check runs before anything is written.
//!
//! It must refuse all such content, because no later step refuses a part of the conversation.
//!
//! Read next: `chat/write_request/text_fallback.rs`, for content that has a text form.

use super::refused;
use crate::protocol::Protocol;
use crate::protocol::failure::{Failure, Kind};
use crate::protocol::form::{
    Action, Block, BlockKind, File, FileContent, Opaque, OutcomeContent, Refused, Request, Side,
    Thinking, Warnings,
};
use crate::protocol::messages::read_request::fields;
use crate::protocol::rules::Outcome;
use std::borrow::Cow;

/// Checks the top-level members that only the messages protocol has.
pub(in crate::protocol) fn members(
    request: &Request<'_>,
    warnings: &mut Warnings,
) -> Result<(), Refused> {
    let own = || {
        request
            .extra
            .iter()
            .filter(|opaque| opaque.origin == Protocol::Messages)
    };
    // Check this first: the client then sends the whole conversation, which may be acceptable.
    if own().any(|opaque| opaque.name.is("thread")) {
        return Err(Box::new(Failure::of(Kind::ThreadUnsupported)));
    }
    for Opaque { name, value, .. } in own() {
        let name = name.value();
        let says_nothing = match name.as_ref() {
            "speed" => value.is("standard"),
            _ => value.is_array() && value.items().next().is_none(),
        };
        if says_nothing {
            continue;
        }
        match fields::outcome("", &name) {
            Some(Outcome::Map | Outcome::Drop) => {}
            Some(Outcome::Warn) | None => warnings.add(Action::Dropped, &name),
            Some(Outcome::Refuse) => {
                let message = match name.as_ref() {
                    "inference_geo" => "cannot be guaranteed for this model",
                    _ => "not available for this model",
                };
                return Err(refused(request.surface, &name, message));
            }
        }
    }
    Ok(())
}

/// Where a block is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Turn(Side),
    Result,
    Document,
}

/// The client API, whose wording the errors use, and whether the vendor fetches documents by URL.
#[derive(Clone, Copy)]
struct Judge {
    surface: Protocol,
    fetches: bool,
}

/// Checks the conversation before calls and results are paired, because a missing partner would
/// only be a consequence. `fetches`: the vendor accepts the URL of a document.
pub(in crate::protocol) fn blocks(request: &Request<'_>, fetches: bool) -> Result<(), Refused> {
    let judge = Judge {
        surface: request.surface,
        fetches,
    };
    for turn in &request.turns {
        each(&turn.blocks, Place::Turn(turn.side), judge)?;
    }
    Ok(())
}

fn each(blocks: &[Block<'_>], place: Place, judge: Judge) -> Result<(), Refused> {
    blocks.iter().try_for_each(|block| one(block, place, judge))
}

fn no_address(surface: Protocol, block: &Block<'_>) -> Refused {
    let (path, message) = match surface {
        Protocol::Messages => (
            ".document.source",
            "only base64 and text documents are available for this model",
        ),
        Protocol::Chat | Protocol::Responses => (
            ".file_url",
            "file_url is not available for this model; send file_data instead.",
        ),
    };
    let failure = Failure::invalid(surface, &format!("{}{path}", block.at), message);
    Box::new(if surface == Protocol::Messages {
        failure
    } else {
        failure.with_code("unsupported_value")
    })
}

fn one(block: &Block<'_>, place: Place, judge: Judge) -> Result<(), Refused> {
    let surface = judge.surface;
    let is_told = match &block.kind {
        BlockKind::Text(_) => true,
        BlockKind::Refusal(_)
        | BlockKind::Thinking(_)
        | BlockKind::Call(_)
        | BlockKind::Result(_) => place != Place::Turn(Side::System),
        BlockKind::Image(_) => takes_media(place),
        BlockKind::File(file) => match &file.content {
            FileContent::Text(_) => place != Place::Turn(Side::System),
            FileContent::Url(_) if !judge.fetches => return Err(no_address(surface, block)),
            FileContent::Pdf(_) | FileContent::Url(_) | FileContent::Blocks(_) => {
                takes_media(place)
            }
        },
        BlockKind::Opaque(Opaque { name, value, .. }) => {
            let (path, message) = match name.value().as_ref() {
                "image" => (".image.source", "file ids are not available for this model"),
                "document" => (
                    ".document.source",
                    "only base64 and text documents are available for this model",
                ),
                "tool_use" => (
                    ".tool_use.toolset_name",
                    "toolset calls are not available for this model",
                ),
                _ => ("", ""),
            };
            if !path.is_empty() && value.is_object() {
                return Err(refused(surface, &format!("{}{path}", block.at), message));
            }
            opaque_is_told(&name.value(), place)
        }
    };
    if !is_told {
        let message = format!("Input tag '{}' is not supported for this model", tag(block));
        return Err(refused(surface, &block.at.to_string(), &message));
    }
    match &block.kind {
        BlockKind::Result(result) => match &result.content {
            OutcomeContent::Blocks(blocks) => each(blocks, Place::Result, judge),
            OutcomeContent::Nothing | OutcomeContent::Text(_) => Ok(()),
        },
        BlockKind::File(File {
            content: FileContent::Blocks(blocks),
            ..
        }) => each(blocks, Place::Document, judge),
        _ => Ok(()),
    }
}

/// A chat vendor accepts images and files only from users; the gateway moves those in tool results
/// to a user message.
fn takes_media(place: Place) -> bool {
    match place {
        Place::Turn(side) => side == Side::User,
        Place::Result | Place::Document => true,
    }
}

fn opaque_is_told(kind: &str, place: Place) -> bool {
    match (kind, place) {
        (_, Place::Document | Place::Turn(Side::System)) => false,
        ("search_result", _) => true,
        ("tool_reference" | "browser_state", place) => place == Place::Result,
        (_, Place::Result) => false,
        ("compaction", _) => true,
        (kind, _) => matches!(
            fields::block_outcome(kind),
            Some(Outcome::Warn | Outcome::Drop)
        ),
    }
}

/// Returns the block's `type`.
fn tag<'t>(block: &'t Block<'_>) -> Cow<'t, str> {
    Cow::Borrowed(match &block.kind {
        BlockKind::Opaque(opaque) => return opaque.name.value(),
        BlockKind::Text(_) | BlockKind::Refusal(_) => "text",
        BlockKind::Image(_) => "image",
        BlockKind::File(_) => "document",
        BlockKind::Thinking(Thinking::Shown { .. }) => "thinking",
        BlockKind::Thinking(Thinking::Hidden { .. }) => "redacted_thinking",
        BlockKind::Call(_) => "tool_use",
        BlockKind::Result(_) => "tool_result",
    })
}
