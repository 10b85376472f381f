//! Reads the reasoning in an assistant message and puts it back where it was between the texts and
//! calls.
//!
//! It must not change a block: the vendor verifies the text that it signed character by character.
//! It keeps unsigned reasoning only if there is no signed reasoning, for targets that accept it.
//!
//! Read next: `read_request/messages.rs`.

use crate::protocol::carrier::{self, Item};
use crate::protocol::chat::write_stream::ITEM_FORMAT;
use crate::protocol::form::{At, Block, BlockKind, Thinking};
use crate::protocol::responses::write_request::PART_GAP;
use crate::protocol::text::Text;
use crate::protocol::tree::Value;

/// `format` value for the reasoning of a messages vendor. An entry without a format counts as this
/// one.
const FORMAT: &str = "anthropic-claude-v1";

/// A reasoning block and its position in the message.
pub(super) struct Piece<'a> {
    thinking: Thinking<'a>,
    anchor: Option<Anchor>,
}

/// Number of code points of text, and number of calls, before the block.
#[derive(Clone, Copy)]
struct Anchor {
    letters: u64,
    calls: u64,
}

/// Reads the reasoning of a message from the first member that has any.
pub(super) fn pieces<'a>(message: Value<'a>) -> Vec<Piece<'a>> {
    let some = |name| {
        message
            .get(name)
            .filter(|value| value.items().next().is_some())
    };
    let signed: Vec<Piece<'a>> = if let Some(details) = some("reasoning_details") {
        details
            .items()
            .filter_map(detail)
            .chain(items(details))
            .collect()
    } else if let Some(blocks) = some("thinking_blocks") {
        blocks.items().filter_map(block).collect()
    } else {
        let content = message.get("content").into_iter().flat_map(Value::items);
        content.filter_map(block).collect()
    };
    if !signed.is_empty() {
        return signed;
    }
    let bare = message
        .get("reasoning_content")
        .and_then(Value::text)
        .filter(|text| !text.is_empty());
    let bare = bare.map(|text| Piece {
        thinking: Thinking::Shown {
            text,
            signature: None,
        },
        anchor: None,
    });
    bare.into_iter().collect()
}

/// Reads an entry of `reasoning_details`.
fn detail<'a>(value: Value<'a>) -> Option<Piece<'a>> {
    if value.get("format").is_some_and(|format| !format.is(FORMAT)) {
        return None;
    }
    let thinking = match value.get("type")?.text()?.value().as_ref() {
        "reasoning.text" => shown(value.get("text"), value.get("signature"))?,
        "reasoning.encrypted" => hidden(value.get("data"))?,
        _ => return None,
    };
    Some(Piece {
        thinking,
        anchor: anchor(value),
    })
}

/// Rebuilds the reasoning items of a responses vendor from the entries that share an id: the texts
/// of the summary and the encrypted content. Without encrypted content there is no item.
fn items(details: Value<'_>) -> Vec<Piece<'_>> {
    let mut items: Vec<(Item, String, Option<Anchor>)> = Vec::new();
    for entry in details.items().filter(|entry| {
        entry
            .get("format")
            .is_some_and(|format| format.is(ITEM_FORMAT))
    }) {
        let text = |name| entry.get(name).and_then(Value::string);
        let id = text("id").unwrap_or_default();
        let at = items
            .iter()
            .rposition(|(item, ..)| item.id == id && item.encrypted.is_empty());
        let at = at.unwrap_or_else(|| {
            items.push((
                Item {
                    id: id.into_owned(),
                    ..Item::default()
                },
                String::new(),
                anchor(entry),
            ));
            items.len() - 1
        });
        let Some((item, told, _)) = items.get_mut(at) else {
            continue;
        };
        if let Some(summary) = text("summary") {
            if !item.lengths.is_empty() {
                told.push_str(PART_GAP);
            }
            told.push_str(&summary);
            item.lengths
                .push(u64::try_from(summary.chars().count()).unwrap_or(u64::MAX));
        }
        if let Some(data) = text("data") {
            item.encrypted = data.into_owned();
        }
    }
    let piece = |(item, told, anchor): (Item, String, Option<Anchor>)| {
        let carrier = (!item.encrypted.is_empty()).then(|| carrier::pack_item(&item))??;
        let thinking = Thinking::Shown {
            text: Text::made(told),
            signature: Some(Text::made(carrier)),
        };
        Some(Piece { thinking, anchor })
    };
    items.into_iter().filter_map(piece).collect()
}

fn anchor(entry: Value<'_>) -> Option<Anchor> {
    let anchor = entry.get("anchor").and_then(Value::string)?;
    let (letters, calls) = anchor.split_once(':')?;
    Some(Anchor {
        letters: letters.parse().ok()?,
        calls: calls.parse().ok()?,
    })
}

/// Reads a reasoning block in the form of the messages protocol.
fn block<'a>(value: Value<'a>) -> Option<Piece<'a>> {
    let thinking = match value.get("type")?.text()?.value().as_ref() {
        "thinking" => shown(value.get("thinking"), value.get("signature"))?,
        "redacted_thinking" => hidden(value.get("data"))?,
        _ => return None,
    };
    Some(Piece {
        thinking,
        anchor: None,
    })
}

/// Reads a signed thinking block. The text may be empty: vendors omit it and sign the text that
/// they keep.
fn shown<'a>(text: Option<Value<'a>>, signature: Option<Value<'a>>) -> Option<Thinking<'a>> {
    let signature = signature?.text()?;
    if !carrier::is_vendors(&signature.value()) {
        return None;
    }
    let text = text.and_then(Value::text).unwrap_or(Text::made(""));
    Some(Thinking::Shown {
        text,
        signature: Some(signature),
    })
}

fn hidden(data: Option<Value<'_>>) -> Option<Thinking<'_>> {
    let data = data?.text()?;
    if data.is_empty() {
        None
    } else {
        Some(Thinking::Hidden { data })
    }
}

/// Returns the blocks of an assistant message in order. `texts` is its content, including refusals.
pub(super) fn placed<'a>(
    pieces: Vec<Piece<'a>>,
    texts: Vec<Block<'a>>,
    calls: Vec<Block<'a>>,
    message: usize,
) -> Vec<Block<'a>> {
    let mut blocks = Vec::with_capacity(pieces.len() + texts.len() + calls.len());
    let block = |piece: Piece<'a>| Block {
        at: At::Message(message),
        cache: None,
        kind: BlockKind::Thinking(piece.thinking),
    };
    if pieces.is_empty() || !are_placed(&pieces, &texts, calls.len()) {
        blocks.extend(pieces.into_iter().map(block));
        blocks.extend(texts);
        blocks.extend(calls);
        return blocks;
    }
    let mut pieces = pieces.into_iter().peekable();
    let is_before = |piece: &Piece<'_>, letters: u64, calls: u64| {
        piece.anchor.is_some_and(|anchor| {
            anchor.calls <= calls && (anchor.letters <= letters || anchor.calls > 0)
        })
    };
    let mut begin = 0;
    for text in texts {
        let end = begin + letters(&text);
        let last = end.saturating_sub(1);
        let inside: Vec<Piece<'a>> =
            std::iter::from_fn(|| pieces.next_if(|piece| is_before(piece, last, 0))).collect();
        let places: Vec<u64> = inside
            .iter()
            .filter_map(|piece| piece.anchor)
            .map(|anchor| anchor.letters)
            .collect();
        let splits = splits(&text, begin, &places);
        let mut rest = Some(text);
        for (piece, split) in inside.into_iter().zip(splits) {
            match split {
                Split::Before => {}
                Split::Behind => blocks.extend(rest.take()),
                Split::At(letters) => {
                    let (before, after) = rest
                        .take()
                        .map_or((None, None), |whole| cut(whole, letters));
                    blocks.extend(before);
                    rest = after;
                }
            }
            blocks.push(block(piece));
        }
        blocks.extend(rest);
        begin = end;
    }
    while let Some(piece) = pieces.next_if(|piece| is_before(piece, begin, 0)) {
        blocks.push(block(piece));
    }
    for (index, call) in (1_u64..).zip(calls) {
        blocks.push(call);
        while let Some(piece) = pieces.next_if(|piece| is_before(piece, begin, index)) {
            blocks.push(block(piece));
        }
    }
    blocks.extend(pieces.map(block));
    blocks
}

/// Checks that every block has an anchor, that the anchors are in order, and that they lie within
/// the message.
fn are_placed(pieces: &[Piece<'_>], texts: &[Block<'_>], calls: usize) -> bool {
    if pieces.iter().any(|piece| piece.anchor.is_none()) {
        return false;
    }
    let all = texts.iter().map(letters).fold(0, u64::saturating_add);
    let calls = u64::try_from(calls).unwrap_or(u64::MAX);
    let mut last = Anchor {
        letters: 0,
        calls: 0,
    };
    pieces
        .iter()
        .filter_map(|piece| piece.anchor)
        .all(|anchor| {
            let is_later = anchor.letters >= last.letters && anchor.calls >= last.calls;
            last = anchor;
            is_later && anchor.letters <= all && anchor.calls <= calls
        })
}

/// Number of code points that anchors count: those of the content, not those of a refusal.
fn letters(block: &Block<'_>) -> u64 {
    match &block.kind {
        BlockKind::Text(text) => text.code_points(),
        _ => 0,
    }
}

/// Position of a reasoning block relative to a text that contained it.
enum Split {
    /// Before the rest of the text.
    Before,
    /// After this number of code points of the rest of the text.
    At(u64),
    /// After the whole text.
    Behind,
}

/// Computes where each reasoning block at `places` splits the text, which begins at code point
/// `begin`. A split that would leave a blank part, which no vendor accepts, moves to the end of
/// that part. Takes one pass, regardless of the number of blocks.
fn splits(text: &Block<'_>, begin: u64, places: &[u64]) -> Vec<Split> {
    let BlockKind::Text(text) = &text.kind else {
        return places.iter().map(|_| Split::Before).collect();
    };
    if places.is_empty() {
        return Vec::new();
    }
    let mut splits = Vec::with_capacity(places.len());
    let mut places = places
        .iter()
        .map(|place| place.saturating_sub(begin))
        .peekable();
    // State of the rest of the text: where it begins, and whether it has a character other than
    // white space so far.
    let (mut from, mut has_words, mut behind_words) = (0, false, 0);
    for (at, letter) in (0_u64..).zip(text.letters()) {
        while places.next_if(|place| *place <= at).is_some() {
            behind_words += 1;
            splits.push(if has_words {
                Split::At(at.saturating_sub(from))
            } else {
                Split::Before
            });
            if has_words {
                (from, has_words) = (at, false);
            }
        }
        if !letter.is_whitespace() {
            (has_words, behind_words) = (true, 0);
        }
    }
    splits.extend(places.map(|_| Split::Before));
    let first_behind = splits.len().saturating_sub(behind_words);
    splits
        .iter_mut()
        .skip(first_behind)
        .for_each(|split| *split = Split::Behind);
    splits
}

fn cut<'a>(block: Block<'a>, letters: u64) -> (Option<Block<'a>>, Option<Block<'a>>) {
    let Block { at, cache, kind } = block;
    match kind {
        BlockKind::Text(text) => {
            let (before, after) = text.cut(letters);
            let before = Block {
                at,
                cache: None,
                kind: BlockKind::Text(before),
            };
            (
                Some(before),
                Some(Block {
                    at,
                    cache,
                    kind: BlockKind::Text(after),
                }),
            )
        }
        kind => (Some(Block { at, cache, kind }), None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::form::{Arguments, Cache, Call};

    fn told(content: &[&'static str], calls: usize, anchors: &[&str]) -> Vec<String> {
        let text = |text: &&'static str| Block {
            at: At::Message(1),
            cache: Some(Cache::Usual),
            kind: BlockKind::Text(Text::token(text, text.contains('\\'))),
        };
        let call = |_| {
            let arguments = Arguments::Text(Text::made("{}"));
            let call = Call {
                id: None,
                name: Text::made("look"),
                arguments,
                is_custom: false,
            };
            Block {
                at: At::Call(1, 0),
                cache: None,
                kind: BlockKind::Call(call),
            }
        };
        let piece = |(index, anchor): (usize, &&str)| Piece {
            thinking: Thinking::Hidden {
                data: Text::made(index.to_string()),
            },
            anchor: anchor.split_once(':').map(|(letters, calls)| Anchor {
                letters: letters.parse().unwrap(),
                calls: calls.parse().unwrap(),
            }),
        };
        let pieces = anchors.iter().enumerate().map(piece).collect();
        let blocks = placed(
            pieces,
            content.iter().map(text).collect(),
            (0..calls).map(call).collect(),
            1,
        );
        let told = |block: &Block<'_>| match &block.kind {
            BlockKind::Text(Text::Token { raw, .. }) if block.cache.is_some() => format!("{raw}!"),
            BlockKind::Text(Text::Token { raw, .. }) => (*raw).to_owned(),
            BlockKind::Thinking(Thinking::Hidden { data }) => format!("<{}>", data.value()),
            BlockKind::Call(_) => "call".to_owned(),
            _ => "?".to_owned(),
        };
        blocks.iter().map(told).collect()
    }

    #[test]
    fn reasoning_goes_back_to_where_it_stood() {
        assert_eq!(
            told(&["abcd"], 1, &["0:0", "2:0", "2:0", "4:0", "4:1"]),
            ["<0>", "ab", "<1>", "<2>", "cd!", "<3>", "call", "<4>"]
        );
        assert_eq!(
            told(&["ab", "cd"], 0, &["2:0", "3:0"]),
            ["ab!", "<0>", "c", "<1>", "d!"]
        );
        assert_eq!(
            told(&["a\\n\\ud83d\\ude00b"], 0, &["3:0"]),
            ["a\\n\\ud83d\\ude00", "<0>", "b!"]
        );
        assert_eq!(
            told(&["", "ab"], 0, &["0:0", "0:0", "1:0"]),
            ["<0>", "<1>", "!", "a", "<2>", "b!"]
        );
        assert_eq!(
            told(&[], 2, &["0:0", "0:1", "0:2"]),
            ["<0>", "call", "<1>", "call", "<2>"]
        );
    }

    #[test]
    fn a_cut_never_leaves_a_blank_text() {
        assert_eq!(told(&["  ab"], 0, &["1:0", "2:0"]), ["<0>", "<1>", "  ab!"]);
        assert_eq!(
            told(&["ab\\n "], 0, &["2:0", "3:0"]),
            ["ab\\n !", "<0>", "<1>"]
        );
        assert_eq!(
            told(&["a   b"], 0, &["1:0", "2:0", "4:0"]),
            ["a", "<0>", "<1>", "<2>", "   b!"]
        );
    }

    #[test]
    fn without_places_that_make_sense_reasoning_comes_first() {
        for anchors in [["1:0", ""], ["2:0", "1:0"], ["1:0", "5:0"], ["1:0", "1:2"]] {
            assert_eq!(
                told(&["abcd"], 1, &anchors),
                ["<0>", "<1>", "abcd!", "call"],
                "{anchors:?}"
            );
        }
    }

    #[test]
    fn many_pieces_in_one_blank_are_placed_in_one_pass() {
        let spaces: &'static str = format!("a{}b", " ".repeat(200_000)).leak();
        let anchors: Vec<String> = (0..2_000)
            .map(|index| format!("{}:0", 50 + index * 90))
            .collect();
        let anchors: Vec<&str> = anchors.iter().map(String::as_str).collect();
        assert_eq!(told(&[spaces], 0, &anchors).len(), 2_002);
    }
}
