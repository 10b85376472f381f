//! Arranges the caller's messages as turns that a messages vendor accepts: user and assistant
//! alternate, the user begins, no text is empty. Instructions between turns stay there if the model
//! supports that, and become reminders otherwise.
//!
//! It must not change the inside of a block, except the white space at the very end of a prefill.
//!
//! Read next: `write_request/block_writer.rs`.

use super::markers::{self, Place};
use super::scribe::Scribe;
use crate::protocol::Protocol;
use crate::protocol::carrier;
use crate::protocol::failure::Failure;
use crate::protocol::form::{
    Action, At, Block, BlockKind, Cache, Opaque, OutcomeContent, Refused, Request, Side, Thinking,
    Turn, Warnings,
};
use crate::protocol::rules::MessagesModel;
use crate::protocol::text::Text;

pub(in crate::protocol) const GO_ON: &str = "Continue.";
const NOTHING: &str = "(empty message)";
pub(in crate::protocol) const REMINDER: [&str; 2] = ["<system-reminder>\n", "\n</system-reminder>"];

/// A turn as it is sent.
#[derive(Debug)]
pub(super) struct Arranged<'r, 'a> {
    side: Side,
    pub pieces: Vec<Piece<'r, 'a>>,
}

#[derive(Debug)]
pub(super) enum Piece<'r, 'a> {
    Block(&'r Block<'a>),
    /// Instructions in a position that the model does not support.
    Reminder(&'r [Block<'a>]),
    /// Last text of a prefill, without the white space at its end.
    Trimmed(Text<'a>, Option<Cache>),
    /// Text that the gateway inserts.
    Words(&'static str),
}

impl<'r, 'a> Piece<'r, 'a> {
    pub fn block(&self) -> Option<&'r Block<'a>> {
        match self {
            Piece::Block(block) => Some(block),
            Piece::Reminder(_) | Piece::Trimmed(..) | Piece::Words(_) => None,
        }
    }

    pub fn markers(&self) -> usize {
        match self {
            Piece::Block(block) => markers::count(block),
            Piece::Reminder(blocks) => usize::from(last_marker(blocks).is_some()),
            Piece::Trimmed(_, cache) => usize::from(cache.is_some()),
            Piece::Words(_) => 0,
        }
    }
}

fn last_marker(blocks: &[Block<'_>]) -> Option<Cache> {
    blocks.iter().rev().find_map(|block| block.cache)
}

/// Removes what the vendor does not accept: blank texts, reasoning that it did not sign, and
/// messages that are then empty. Returns the position of the last user message if it was empty.
pub(super) fn tidy(
    request: &mut Request<'_>,
    without_thinking: bool,
    warnings: &mut Warnings,
) -> Result<Option<At>, Refused> {
    // Instructions alone are not a conversation, so the last of them becomes a user message.
    if request.turns.is_empty()
        && let Some(last) = request.system.last().map(|block| block.at.message())
    {
        let before = request
            .system
            .partition_point(|block| block.at.message() < last);
        let blocks = request.system.split_off(before);
        let at = At::turn(request.surface, last);
        request.turns.push(Turn {
            side: Side::User,
            blocks,
            at,
        });
    }
    let mut tidying = Tidying {
        surface: request.surface,
        without_thinking,
        warnings,
    };
    request.system = tidying.blocks(std::mem::take(&mut request.system))?;
    let mut emptied = None;
    for turn in &mut request.turns {
        turn.blocks = tidying.blocks(std::mem::take(&mut turn.blocks))?;
        if turn.side == Side::Assistant {
            // The vendor refuses a turn that ends in reasoning.
            while turn
                .blocks
                .pop_if(|last| matches!(last.kind, BlockKind::Thinking(_)))
                .is_some()
            {}
        }
        if !turn.blocks.is_empty() {
            emptied = None;
        } else if turn.side == Side::User {
            emptied = Some(turn.at);
        }
    }
    request.turns.retain(|turn| !turn.blocks.is_empty());
    Ok(emptied)
}

struct Tidying<'w> {
    surface: Protocol,
    without_thinking: bool,
    warnings: &'w mut Warnings,
}

impl Tidying<'_> {
    fn blocks<'a>(&mut self, mut blocks: Vec<Block<'a>>) -> Result<Vec<Block<'a>>, Refused> {
        let mut kept = 0;
        for at in 0..blocks.len() {
            let Some(block) = blocks.get_mut(at) else {
                break;
            };
            if self.keeps(block)? {
                blocks.swap(kept, at);
                kept += 1;
                continue;
            }
            // A marker covers everything before it, so it is valid on the previous block too.
            let (message, cache) = (block.at.message(), block.cache);
            let before = kept
                .checked_sub(1)
                .and_then(|before| blocks.get_mut(before));
            let before = before.filter(|before| before.at.message() == message);
            if let Some(before) =
                before.filter(|before| !matches!(before.kind, BlockKind::Thinking(_)))
            {
                before.cache = before.cache.or(cache);
            }
        }
        blocks.truncate(kept);
        Ok(blocks)
    }

    fn keeps(&mut self, block: &mut Block<'_>) -> Result<bool, Refused> {
        match &mut block.kind {
            BlockKind::Text(text) | BlockKind::Refusal(text) => Ok(!text.is_blank()),
            BlockKind::Thinking(thinking) => Ok(!self.without_thinking && is_signed(thinking)),
            BlockKind::Result(outcome) => {
                if let OutcomeContent::Blocks(blocks) = &mut outcome.content {
                    *blocks = self.blocks(std::mem::take(blocks))?;
                }
                Ok(true)
            }
            BlockKind::Opaque(opaque) => match opaque.origin {
                Protocol::Messages => Ok(true),
                Protocol::Chat | Protocol::Responses => {
                    self.of_chat(opaque, block.at).map(|()| false)
                }
            },
            BlockKind::Image(_) | BlockKind::File(_) | BlockKind::Call(_) => Ok(true),
        }
    }

    /// Handles content of a message that only chat has.
    fn of_chat(&mut self, opaque: &Opaque<'_>, at: At) -> Result<(), Refused> {
        let name = opaque.name.value();
        let message = match name.as_ref() {
            "file" => "file_id is not available for this model; send file_data instead.",
            "input_audio" => "Audio input is not supported by this model.",
            _ => {
                self.warnings
                    .add(Action::Dropped, format_args!("{at}.{name}"));
                return Ok(());
            }
        };
        Err(Box::new(
            Failure::invalid(self.surface, &format!("{at}.{name}"), message)
                .with_code("unsupported_value"),
        ))
    }
}

/// Returns whether the vendor signed the thinking. A signature that the gateway made marks another
/// vendor's reasoning.
fn is_signed(thinking: &Thinking<'_>) -> bool {
    match thinking {
        Thinking::Shown {
            signature: Some(signature),
            ..
        } => carrier::is_vendors(&signature.value()),
        Thinking::Shown {
            signature: None, ..
        } => false,
        Thinking::Hidden { data } => !data.is_empty(),
    }
}

/// Returns the turns in order, with consecutive turns of one side merged.
pub(super) fn arrange<'r, 'a>(
    request: &'r Request<'a>,
    model: &MessagesModel,
    warnings: &mut Warnings,
) -> Vec<Arranged<'r, 'a>> {
    let mut arranged: Vec<Arranged<'r, 'a>> = Vec::with_capacity(request.turns.len());
    // The pairing step moved results to the front, so a message that contained nothing else is now
    // empty.
    let mut turns = request
        .turns
        .iter()
        .filter(|turn| !turn.blocks.is_empty())
        .peekable();
    while let Some(turn) = turns.next() {
        if turn.side != Side::System {
            add(
                &mut arranged,
                turn.side,
                turn.blocks.iter().map(Piece::Block),
            );
            continue;
        }
        let mut run = vec![turn];
        run.extend(std::iter::from_fn(|| {
            turns.next_if(|next| next.side == Side::System)
        }));
        let is_behind_user = arranged.last().is_some_and(|last| last.side == Side::User);
        let is_before_assistant = turns.peek().is_none_or(|next| next.side == Side::Assistant);
        if model.mid_system && is_behind_user && is_before_assistant {
            add(
                &mut arranged,
                Side::System,
                run.into_iter()
                    .flat_map(|turn| &turn.blocks)
                    .map(Piece::Block),
            );
            continue;
        }
        for turn in run {
            warnings.add(Action::Rewritten, turn.at);
            add(&mut arranged, Side::User, [Piece::Reminder(&turn.blocks)]);
        }
    }
    arranged
}

fn add<'r, 'a>(
    arranged: &mut Vec<Arranged<'r, 'a>>,
    side: Side,
    pieces: impl IntoIterator<Item = Piece<'r, 'a>>,
) {
    match arranged.last_mut().filter(|last| last.side == side) {
        Some(last) => last.pieces.extend(pieces),
        None => arranged.push(Arranged {
            side,
            pieces: pieces.into_iter().collect(),
        }),
    }
}

/// Returns whether the last user turn answers calls that were made without signed reasoning. A
/// model with a thinking budget refuses to continue thinking there.
pub(super) fn breaks_off(arranged: &[Arranged<'_, '_>]) -> bool {
    let Some(last) = arranged.iter().rposition(|turn| turn.side == Side::User) else {
        return false;
    };
    let holds = |turn: Option<&Arranged<'_, '_>>, wanted: fn(&BlockKind<'_>) -> bool| {
        let pieces = turn.into_iter().flat_map(|turn| &turn.pieces);
        pieces
            .filter_map(Piece::block)
            .any(|block| wanted(&block.kind))
    };
    let before = last.checked_sub(1).and_then(|before| arranged.get(before));
    holds(arranged.get(last), |kind| {
        matches!(kind, BlockKind::Result(_))
    }) && !holds(before, |kind| matches!(kind, BlockKind::Thinking(_)))
}

pub(super) fn have_thinking(arranged: &[Arranged<'_, '_>]) -> bool {
    let blocks = arranged
        .iter()
        .flat_map(|turn| &turn.pieces)
        .filter_map(Piece::block);
    blocks
        .into_iter()
        .any(|block| matches!(block.kind, BlockKind::Thinking(_)))
}

/// Inserts the turns that the vendor requires at the beginning and the end. `emptied` comes from
/// [`remove_unsendable_blocks`]. `prefill`: the model can continue an assistant's text.
pub(super) fn finish<'a>(
    arranged: &mut Vec<Arranged<'_, 'a>>,
    request: &Request<'a>,
    emptied: Option<At>,
    prefill: bool,
    warnings: &mut Warnings,
) {
    let user = |words| Arranged {
        side: Side::User,
        pieces: vec![Piece::Words(words)],
    };
    let is_behind_assistant = arranged
        .last()
        .is_none_or(|last| last.side == Side::Assistant);
    if let Some(at) = emptied.filter(|_| is_behind_assistant) {
        warnings.add(Action::Inserted, at);
        arranged.push(user(NOTHING));
    }
    if arranged
        .first()
        .is_none_or(|first| first.side == Side::Assistant)
    {
        warnings.add(Action::Inserted, At::turn(request.surface, 0));
        arranged.insert(0, user(GO_ON));
    }
    let Some(last) = arranged
        .last_mut()
        .filter(|last| last.side == Side::Assistant)
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
        *piece = Piece::Trimmed(text.trimmed_end(), *cache);
    }
    if !prefill {
        let messages = request.turns.last().map_or(0, |turn| turn.at.message() + 1);
        warnings.add(Action::Inserted, At::turn(request.surface, messages));
        arranged.push(user(GO_ON));
    }
}

/// Writes the member `messages`.
pub(super) fn write(scribe: &mut Scribe<'_>, arranged: &[Arranged<'_, '_>]) -> Result<(), Refused> {
    scribe.json.key("messages").open_array();
    for turn in arranged {
        let role = match turn.side {
            Side::User => "user",
            Side::Assistant => "assistant",
            Side::System => "system",
        };
        scribe
            .json
            .open_object()
            .key("role")
            .str(role)
            .key("content")
            .open_array();
        for piece in &turn.pieces {
            match piece {
                Piece::Block(block) => scribe.block(block, Place::Messages)?,
                Piece::Reminder(blocks) => reminder(scribe, blocks),
                Piece::Trimmed(text, cache) => scribe.joined([text], *cache),
                Piece::Words(words) => scribe.words(words),
            }
        }
        scribe.json.close_array().close_object();
    }
    scribe.json.close_array();
    Ok(())
}

fn reminder(scribe: &mut Scribe<'_>, blocks: &[Block<'_>]) {
    let [before, behind] = REMINDER.map(Text::made);
    let texts = blocks.iter().filter_map(|block| match &block.kind {
        BlockKind::Text(text) | BlockKind::Refusal(text) => Some(text),
        BlockKind::Image(_)
        | BlockKind::File(_)
        | BlockKind::Thinking(_)
        | BlockKind::Call(_)
        | BlockKind::Result(_)
        | BlockKind::Opaque(_) => None,
    });
    scribe.joined(
        [&before].into_iter().chain(texts).chain([&behind]),
        last_marker(blocks),
    );
}
