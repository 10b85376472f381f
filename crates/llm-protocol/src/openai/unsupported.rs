//! Refuses content of a messages request that no chat vendor supports and that cannot be dropped.
//! The check runs before the writer starts.
//!
//! The check must find all such content, because no later step refuses a part of the conversation.
//!
//! Read next: `openai/text_fallback.rs`, for content that has a text form.

use crate::Protocol;
use crate::capabilities::FieldMapping;
use crate::failure::{Failure, Kind};
use crate::fields::messages as messages_fields;
use crate::ir::{
    Block, BlockKind, BoxedFailure, File, FileContent, Opaque, Request, RequestResult, Thinking,
    ToolResultContent, TurnRole, Warnings, refuse,
};
use std::borrow::Cow;

/// Checks the top-level members that only the messages protocol has.
pub(crate) fn check_members(request: &Request<'_>, warnings: &mut Warnings) -> RequestResult {
    let own = || {
        request
            .extra
            .iter()
            .filter(|opaque| opaque.origin == Protocol::Messages)
    };
    // Check this first: the client then sends the whole conversation, which may be acceptable.
    if own().any(|opaque| opaque.name.is("thread")) {
        return Err(Failure::from_kind(Kind::ThreadUnsupported).into());
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
        match messages_fields::outcome("", &name) {
            Some(FieldMapping::Map | FieldMapping::Drop) => {}
            Some(FieldMapping::Warn) | None => warnings.dropped(&name),
            Some(FieldMapping::Refuse) => {
                let message = match name.as_ref() {
                    "inference_geo" => "cannot be guaranteed for this model",
                    _ => "not available for this model",
                };
                return refuse(request.surface, &name, message);
            }
        }
    }
    Ok(())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum BlockContainer {
    Turn(TurnRole),
    Result,
    Document,
}

/// The client API, whose wording the errors use, and whether the vendor fetches documents by URL.
#[derive(Clone, Copy)]
struct BlockCheckContext {
    surface: Protocol,
    fetches: bool,
}

/// Checks the conversation before calls and results are paired, because a missing partner would
/// only be a consequence of unsupported content. `fetches` says whether the vendor accepts the URL
/// of a document.
pub(crate) fn check_blocks(request: &Request<'_>, fetches: bool) -> RequestResult {
    let context = BlockCheckContext {
        surface: request.surface,
        fetches,
    };
    for turn in &request.turns {
        check_each(&turn.blocks, BlockContainer::Turn(turn.side), context)?;
    }
    Ok(())
}

fn check_each(
    blocks: &[Block<'_>],
    container: BlockContainer,
    context: BlockCheckContext,
) -> RequestResult {
    blocks
        .iter()
        .try_for_each(|block| check_block(block, container, context))
}

fn unsupported_document_url(surface: Protocol, block: &Block<'_>) -> BoxedFailure {
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
    let failure = Failure::invalid_param(surface, format_args!("{}{path}", block.at), message);
    if surface == Protocol::Messages {
        return failure.into();
    }
    failure.with_code("unsupported_value").into()
}

fn check_block(
    block: &Block<'_>,
    container: BlockContainer,
    context: BlockCheckContext,
) -> RequestResult {
    let surface = context.surface;
    let is_supported = match &block.kind {
        BlockKind::Text(_) => true,
        BlockKind::Refusal(_)
        | BlockKind::Thinking(_)
        | BlockKind::Call(_)
        | BlockKind::Result(_) => container != BlockContainer::Turn(TurnRole::System),
        BlockKind::Image(_) => accepts_media(container),
        BlockKind::File(file) => match &file.content {
            FileContent::Text(_) => container != BlockContainer::Turn(TurnRole::System),
            FileContent::Url(_) if !context.fetches => {
                return Err(unsupported_document_url(surface, block));
            }
            FileContent::Pdf(_) | FileContent::Url(_) | FileContent::Blocks(_) => {
                accepts_media(container)
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
                let path = format_args!("{}{path}", block.at);
                return refuse(surface, path, message);
            }
            is_opaque_supported(&name.value(), container)
        }
    };
    if !is_supported {
        let message = format!(
            "Input tag '{}' is not supported for this model",
            block_type(block)
        );
        return refuse(surface, block.at, message);
    }
    match &block.kind {
        BlockKind::Result(result) => match &result.content {
            ToolResultContent::Blocks(blocks) => {
                check_each(blocks, BlockContainer::Result, context)
            }
            ToolResultContent::Nothing | ToolResultContent::Text(_) => Ok(()),
        },
        BlockKind::File(File {
            content: FileContent::Blocks(blocks),
            ..
        }) => check_each(blocks, BlockContainer::Document, context),
        _ => Ok(()),
    }
}

/// Returns whether images and files are allowed at this position. A chat vendor accepts them only
/// from users, and the gateway moves those in tool results to a user message.
fn accepts_media(container: BlockContainer) -> bool {
    match container {
        BlockContainer::Turn(side) => side == TurnRole::User,
        BlockContainer::Result | BlockContainer::Document => true,
    }
}

fn is_opaque_supported(kind: &str, container: BlockContainer) -> bool {
    match (kind, container) {
        (_, BlockContainer::Document | BlockContainer::Turn(TurnRole::System)) => false,
        ("search_result", _) => true,
        ("tool_reference" | "browser_state", container) => container == BlockContainer::Result,
        (_, BlockContainer::Result) => false,
        ("compaction", _) => true,
        (kind, _) => matches!(
            messages_fields::block_outcome(kind),
            Some(FieldMapping::Warn | FieldMapping::Drop)
        ),
    }
}

fn block_type<'t>(block: &'t Block<'_>) -> Cow<'t, str> {
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
