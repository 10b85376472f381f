//! Arranges the client's messages as turns that a messages vendor accepts: user and assistant
//! alternate, the user begins, no text is empty. Instructions between turns keep their position if
//! the model supports that, and become reminders otherwise.
//!
//! This file must not change the content of a block, except the white space at the end of a
//! prefill.
//!
//! Read next: `write_request/block_writer.rs`.

use super::block_writer::BlockWriter;
use super::markers::{self, MarkerSection};
use crate::Protocol;
use crate::capabilities::{MessagesModel, TurnSummary};
use crate::failure::Failure;
use crate::ir::write_context::WriteContext;
use crate::ir::{
    Block, BlockKind, CacheBreakpoint, JsonPath, Opaque, Request, RequestResult, Thinking,
    ToolResultContent, Turn, TurnRole, Warnings,
};
use crate::json::JsonStr;
use crate::reasoning_token;

pub(crate) const CONTINUE_PROMPT: &str = "Continue.";
const EMPTY_MESSAGE_TEXT: &str = "(empty message)";
pub(crate) const REMINDER_TAGS: [&str; 2] = ["<system-reminder>\n", "\n</system-reminder>"];

/// A turn in the form that the vendor receives.
#[derive(Debug)]
pub(super) struct MessagesTurn<'r, 'a> {
    side: TurnRole,
    pub pieces: Vec<MessagesTurnPart<'r, 'a>>,
}

#[derive(Debug)]
pub(super) enum MessagesTurnPart<'r, 'a> {
    Block(&'r Block<'a>),
    /// Instructions in a position that the model does not support.
    Reminder(&'r [Block<'a>]),
    /// The last text of a prefill, without the white space at its end.
    Trimmed(JsonStr<'a>, Option<CacheBreakpoint>),
    /// Text that the gateway inserts.
    Words(&'static str),
}

impl<'r, 'a> MessagesTurnPart<'r, 'a> {
    pub fn block(&self) -> Option<&'r Block<'a>> {
        match self {
            MessagesTurnPart::Block(block) => Some(block),
            MessagesTurnPart::Reminder(_)
            | MessagesTurnPart::Trimmed(..)
            | MessagesTurnPart::Words(_) => None,
        }
    }

    pub fn marker_count(&self) -> usize {
        match self {
            MessagesTurnPart::Block(block) => markers::count_markers(block),
            MessagesTurnPart::Reminder(blocks) => usize::from(last_marker(blocks).is_some()),
            MessagesTurnPart::Trimmed(_, cache) => usize::from(cache.is_some()),
            MessagesTurnPart::Words(_) => 0,
        }
    }
}

fn last_marker(blocks: &[Block<'_>]) -> Option<CacheBreakpoint> {
    blocks.iter().rev().find_map(|block| block.cache)
}

/// Removes content that the vendor does not accept: blank texts, reasoning of other vendors, and
/// messages that are then empty. Returns the position of the last user message if that was
/// empty.
pub(super) fn remove_unsendable_blocks(
    request: &mut Request<'_>,
    model: &MessagesModel,
    write_context: &WriteContext<'_>,
    warnings: &mut Warnings,
) -> RequestResult<Option<JsonPath>> {
    // Instructions alone are not a conversation, so the last one becomes a user message.
    if request.turns.is_empty()
        && let Some(last) = request
            .system
            .last()
            .map(|block| block.at.container_index())
    {
        let before = request
            .system
            .partition_point(|block| block.at.container_index() < last);
        let blocks = request.system.split_off(before);
        let at = JsonPath::from_turn(request.surface, last);
        request.turns.push(Turn {
            side: TurnRole::User,
            blocks,
            at,
        });
    }
    let mut tidying = BlockFilter {
        surface: request.surface,
        without_thinking: write_context.without_thinking,
        maker_signature: write_context.target.profile.maker_signature(),
        requires_thinking: model.requires_thinking_with_calls(),
        warnings,
    };
    request.system = tidying.filter_blocks(std::mem::take(&mut request.system))?;
    let mut emptied = None;
    for turn in &mut request.turns {
        turn.blocks = tidying.filter_blocks(std::mem::take(&mut turn.blocks))?;
        if turn.side == TurnRole::Assistant {
            // The vendor refuses a turn that ends in reasoning.
            while turn
                .blocks
                .pop_if(|last| matches!(last.kind, BlockKind::Thinking(_)))
                .is_some()
            {}
        }
        if !turn.blocks.is_empty() {
            emptied = None;
        } else if turn.side == TurnRole::User {
            emptied = Some(turn.at);
        }
    }
    request.turns.retain(|turn| !turn.blocks.is_empty());
    Ok(emptied)
}

struct BlockFilter<'w> {
    surface: Protocol,
    without_thinking: bool,
    /// The signature of the vendor's thinking, if the vendor signs none itself.
    maker_signature: Option<String>,
    /// True if the vendor refuses calls without thinking.
    requires_thinking: bool,
    warnings: &'w mut Warnings,
}

impl BlockFilter<'_> {
    fn filter_blocks<'a>(&mut self, mut blocks: Vec<Block<'a>>) -> RequestResult<Vec<Block<'a>>> {
        let mut kept = 0;
        for at in 0..blocks.len() {
            let Some(block) = blocks.get_mut(at) else {
                break;
            };
            if self.retain_block(block)? {
                blocks.swap(kept, at);
                kept += 1;
                continue;
            }
            // A marker covers everything before its block, so it is also valid on the previous
            // block.
            let (message, cache) = (block.at.container_index(), block.cache);
            let before = kept
                .checked_sub(1)
                .and_then(|before| blocks.get_mut(before));
            let before = before.filter(|before| before.at.container_index() == message);
            if let Some(before) =
                before.filter(|before| !matches!(before.kind, BlockKind::Thinking(_)))
            {
                before.cache = before.cache.or(cache);
            }
        }
        blocks.truncate(kept);
        Ok(blocks)
    }

    fn retain_block(&mut self, block: &mut Block<'_>) -> RequestResult<bool> {
        match &mut block.kind {
            BlockKind::Text(text) | BlockKind::Refusal(text) => Ok(!text.is_blank()),
            BlockKind::Thinking(thinking) => Ok(self.retain_thinking(thinking, block.at)),
            BlockKind::Result(outcome) => {
                if let ToolResultContent::Blocks(blocks) = &mut outcome.content {
                    *blocks = self.filter_blocks(std::mem::take(blocks))?;
                }
                Ok(true)
            }
            BlockKind::Opaque(opaque) => match opaque.origin {
                Protocol::Messages => Ok(true),
                Protocol::Chat | Protocol::Responses => {
                    self.check_chat_block(opaque, block.at).map(|()| false)
                }
            },
            BlockKind::Image(_) | BlockKind::File(_) | BlockKind::Call(_) => Ok(true),
        }
    }

    /// Returns whether the vendor takes the thinking back. A signature of the gateway marks another
    /// vendor's reasoning; `reasoning_content` does not say who made it.
    fn retain_thinking(&mut self, thinking: &Thinking<'_>, at: JsonPath) -> bool {
        if self.without_thinking {
            return false;
        }
        let is_signed = |text: &JsonStr<'_>| reasoning_token::is_vendor_signature(&text.value());
        match thinking {
            Thinking::Hidden { data } => is_signed(data),
            Thinking::Shown {
                signature: Some(signature),
                ..
            } => {
                is_signed(signature) || self.maker_signature.as_deref() == Some(&*signature.value())
            }
            // Only another vendor's reasoning has no signature in the responses protocol.
            Thinking::Shown {
                signature: None, ..
            } if self.maker_signature.is_none() || self.surface != Protocol::Chat => false,
            Thinking::Shown {
                signature: None, ..
            } => {
                if !self.requires_thinking {
                    self.warnings
                        .dropped(format_args!("{at}.reasoning_content"));
                }
                self.requires_thinking
            }
        }
    }

    /// Decides the outcome of content that only chat messages have.
    fn check_chat_block(&mut self, opaque: &Opaque<'_>, at: JsonPath) -> RequestResult {
        let name = opaque.name.value();
        let message = match name.as_ref() {
            "file" => "file_id is not available for this model; send file_data instead.",
            "input_audio" => "Audio input is not supported by this model.",
            _ => {
                self.warnings.dropped(format_args!("{at}.{name}"));
                return Ok(());
            }
        };
        let failure = Failure::invalid_param(self.surface, format_args!("{at}.{name}"), message);
        Err(failure.with_code("unsupported_value").into())
    }
}

/// Returns the turns in order, with consecutive turns of one side merged.
pub(super) fn merge_turns<'r, 'a>(
    request: &'r Request<'a>,
    model: &MessagesModel,
    warnings: &mut Warnings,
) -> Vec<MessagesTurn<'r, 'a>> {
    let mut arranged: Vec<MessagesTurn<'r, 'a>> = Vec::with_capacity(request.turns.len());
    // The pairing step moved results to the front, so a message that contained nothing else is now
    // empty.
    let mut turns = request
        .turns
        .iter()
        .filter(|turn| !turn.blocks.is_empty())
        .peekable();
    while let Some(turn) = turns.next() {
        if turn.side != TurnRole::System {
            append_parts(
                &mut arranged,
                turn.side,
                turn.blocks.iter().map(MessagesTurnPart::Block),
            );
            continue;
        }
        let mut run = vec![turn];
        run.extend(std::iter::from_fn(|| {
            turns.next_if(|next| next.side == TurnRole::System)
        }));
        let is_behind_user = arranged
            .last()
            .is_some_and(|last| last.side == TurnRole::User);
        let is_before_assistant = turns
            .peek()
            .is_none_or(|next| next.side == TurnRole::Assistant);
        if model.mid_system && is_behind_user && is_before_assistant {
            append_parts(
                &mut arranged,
                TurnRole::System,
                run.into_iter()
                    .flat_map(|turn| &turn.blocks)
                    .map(MessagesTurnPart::Block),
            );
            continue;
        }
        for turn in run {
            warnings.rewritten(turn.at);
            append_parts(
                &mut arranged,
                TurnRole::User,
                [MessagesTurnPart::Reminder(&turn.blocks)],
            );
        }
    }
    arranged
}

fn append_parts<'r, 'a>(
    arranged: &mut Vec<MessagesTurn<'r, 'a>>,
    side: TurnRole,
    pieces: impl IntoIterator<Item = MessagesTurnPart<'r, 'a>>,
) {
    match arranged.last_mut().filter(|last| last.side == side) {
        Some(last) => last.pieces.extend(pieces),
        None => arranged.push(MessagesTurn {
            side,
            pieces: pieces.into_iter().collect(),
        }),
    }
}

/// Returns whether the model refuses to think in this conversation.
pub(super) fn breaks_thinking_off(
    arranged: &[MessagesTurn<'_, '_>],
    model: &MessagesModel,
) -> bool {
    let is_thinking = |kind: &BlockKind<'_>| matches!(kind, BlockKind::Thinking(_));
    let summaries = arranged.iter().map(|turn| {
        let blocks = || turn.pieces.iter().map(MessagesTurnPart::block);
        let has = |predicate: fn(&BlockKind<'_>) -> bool| {
            blocks().flatten().any(|block| predicate(&block.kind))
        };
        TurnSummary {
            is_assistant: turn.side == TurnRole::Assistant,
            has_calls: has(|kind| matches!(kind, BlockKind::Call(_))),
            has_results: has(|kind| matches!(kind, BlockKind::Result(_))),
            has_thinking: has(is_thinking),
            begins_with_thinking: blocks()
                .next()
                .flatten()
                .is_some_and(|block| is_thinking(&block.kind)),
        }
    });
    model.breaks_thinking_off(&summaries.collect::<Vec<_>>())
}

pub(super) fn has_thinking(arranged: &[MessagesTurn<'_, '_>]) -> bool {
    let blocks = arranged
        .iter()
        .flat_map(|turn| &turn.pieces)
        .filter_map(MessagesTurnPart::block);
    blocks
        .into_iter()
        .any(|block| matches!(block.kind, BlockKind::Thinking(_)))
}

/// Inserts the turns that the vendor requires at the beginning and the end. `emptied` comes from
/// [`remove_unsendable_blocks`]. `prefill` says whether the model can continue an assistant's text.
pub(super) fn pad_turns<'a>(
    arranged: &mut Vec<MessagesTurn<'_, 'a>>,
    request: &Request<'a>,
    emptied: Option<JsonPath>,
    prefill: bool,
    warnings: &mut Warnings,
) {
    let user = |words| MessagesTurn {
        side: TurnRole::User,
        pieces: vec![MessagesTurnPart::Words(words)],
    };
    let is_behind_assistant = arranged
        .last()
        .is_none_or(|last| last.side == TurnRole::Assistant);
    if let Some(at) = emptied.filter(|_| is_behind_assistant) {
        warnings.inserted(at);
        arranged.push(user(EMPTY_MESSAGE_TEXT));
    }
    if arranged
        .first()
        .is_none_or(|first| first.side == TurnRole::Assistant)
    {
        warnings.inserted(JsonPath::from_turn(request.surface, 0));
        arranged.insert(0, user(CONTINUE_PROMPT));
    }
    let Some(last) = arranged
        .last_mut()
        .filter(|last| last.side == TurnRole::Assistant)
    else {
        return;
    };
    if let Some(piece) = last.pieces.last_mut()
        && let Some(Block {
            cache,
            kind: BlockKind::Text(text) | BlockKind::Refusal(text),
            ..
        }) = piece.block()
    {
        *piece = MessagesTurnPart::Trimmed(text.trim_end(), *cache);
    }
    if !prefill {
        let messages = request
            .turns
            .last()
            .map_or(0, |turn| turn.at.container_index() + 1);
        warnings.inserted(JsonPath::from_turn(request.surface, messages));
        arranged.push(user(CONTINUE_PROMPT));
    }
}

pub(super) fn write_messages(
    writer: &mut BlockWriter<'_>,
    arranged: &[MessagesTurn<'_, '_>],
) -> RequestResult {
    writer.json.member_array("messages");
    for turn in arranged {
        let role = match turn.side {
            TurnRole::User => "user",
            TurnRole::Assistant => "assistant",
            TurnRole::System => "system",
        };
        writer
            .json
            .open_object()
            .member("role", role)
            .member_array("content");
        for piece in &turn.pieces {
            match piece {
                MessagesTurnPart::Block(block) => writer.block(block, MarkerSection::Messages)?,
                MessagesTurnPart::Reminder(blocks) => write_reminder(writer, blocks),
                MessagesTurnPart::Trimmed(text, cache) => writer.joined_text_block([text], *cache),
                MessagesTurnPart::Words(words) => writer.text_block(words),
            }
        }
        writer.json.close_array().close_object();
    }
    writer.json.close_array();
    Ok(())
}

fn write_reminder(writer: &mut BlockWriter<'_>, blocks: &[Block<'_>]) {
    let [before, behind] = REMINDER_TAGS.map(JsonStr::from_value);
    let texts = blocks.iter().filter_map(|block| match &block.kind {
        BlockKind::Text(text) | BlockKind::Refusal(text) => Some(text),
        BlockKind::Image(_)
        | BlockKind::File(_)
        | BlockKind::Thinking(_)
        | BlockKind::Call(_)
        | BlockKind::Result(_)
        | BlockKind::Opaque(_) => None,
    });
    writer.joined_text_block(
        [&before].into_iter().chain(texts).chain([&behind]),
        last_marker(blocks),
    );
}
