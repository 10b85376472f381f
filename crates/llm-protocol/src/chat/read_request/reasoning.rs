//! Reads the reasoning in an assistant message and restores its position between the texts and
//! calls.
//!
//! This file must not change a block: the vendor verifies the text that it signed character by
//! character. `reasoning_content` is kept only if no other reasoning exists, for targets that
//! accept it.
//!
//! Read next: `read_request/messages.rs`.

use crate::chat::reasoning_format::{MESSAGES_REASONING_FORMAT, RESPONSES_REASONING_FORMAT};
use crate::ir::{Block, BlockKind, JsonPath, Thinking};
use crate::json::{JsonStr, JsonValue};
use crate::openai::reasoning_summary::SUMMARY_SEPARATOR;
use crate::reasoning_token::{self, ReasoningItem};

pub(super) struct ReasoningBlock<'a> {
    thinking: Thinking<'a>,
    anchor: Option<ReasoningAnchor>,
}

/// The position of a block: the number of code points of text, and the number of calls, before the
/// block.
#[derive(Clone, Copy)]
struct ReasoningAnchor {
    letters: u64,
    calls: u64,
}

/// Reads the reasoning of a message from the first member that contains reasoning.
pub(super) fn read_reasoning<'a>(message: JsonValue<'a>) -> Vec<ReasoningBlock<'a>> {
    let some = |name| {
        message
            .get(name)
            .filter(|value| value.items().next().is_some())
    };
    let blocks: Vec<ReasoningBlock<'a>> = if let Some(details) = some("reasoning_details") {
        details
            .items()
            .filter_map(reasoning_detail)
            .chain(responses_items(details))
            .collect()
    } else if let Some(blocks) = some("thinking_blocks") {
        blocks.items().filter_map(thinking_block).collect()
    } else {
        let content = message.items_of("content");
        content.filter_map(thinking_block).collect()
    };
    if !blocks.is_empty() {
        return blocks;
    }
    let bare = message.filled_text("reasoning_content");
    let bare = bare.map(|text| ReasoningBlock {
        thinking: Thinking::Shown {
            text,
            signature: None,
        },
        anchor: None,
    });
    bare.into_iter().collect()
}

fn reasoning_detail<'a>(value: JsonValue<'a>) -> Option<ReasoningBlock<'a>> {
    if value
        .get("format")
        .is_some_and(|format| !format.is(MESSAGES_REASONING_FORMAT))
    {
        return None;
    }
    let thinking = match value.get("type")?.text()?.value().as_ref() {
        "reasoning.text" => vendor_thinking(value.get("text"), value.get("signature"))?,
        "reasoning.encrypted" => redacted_thinking(value.get("data"))?,
        _ => return None,
    };
    Some(ReasoningBlock {
        thinking,
        anchor: parse_anchor(value),
    })
}

/// Rebuilds the reasoning items of a responses vendor from the entries that share an id: the texts
/// of the summary and the encrypted content. An entry without encrypted content yields no item.
fn responses_items(details: JsonValue<'_>) -> Vec<ReasoningBlock<'_>> {
    let mut items: Vec<(ReasoningItem, String, Option<ReasoningAnchor>)> = Vec::new();
    for entry in details
        .items()
        .filter(|entry| entry.member_is("format", RESPONSES_REASONING_FORMAT))
    {
        let text = |name| entry.string_of(name);
        let id = text("id").unwrap_or_default();
        let at = items
            .iter()
            .rposition(|(item, ..)| item.id == id && item.encrypted.is_empty());
        let at = at.unwrap_or_else(|| {
            items.push((
                ReasoningItem {
                    id: id.into_owned(),
                    ..ReasoningItem::default()
                },
                String::new(),
                parse_anchor(entry),
            ));
            items.len() - 1
        });
        let Some((item, shown, _)) = items.get_mut(at) else {
            continue;
        };
        if let Some(summary) = text("summary") {
            if !item.lengths.is_empty() {
                shown.push_str(SUMMARY_SEPARATOR);
            }
            shown.push_str(&summary);
            item.lengths
                .push(u64::try_from(summary.chars().count()).unwrap_or(u64::MAX));
        }
        if let Some(data) = text("data") {
            item.encrypted = data.into_owned();
        }
    }
    let piece = |(item, shown, anchor): (ReasoningItem, String, Option<ReasoningAnchor>)| {
        let carrier = (!item.encrypted.is_empty()).then(|| reasoning_token::pack_item(&item))??;
        let thinking = Thinking::Shown {
            text: JsonStr::from_value(shown),
            signature: Some(JsonStr::from_value(carrier)),
        };
        Some(ReasoningBlock { thinking, anchor })
    };
    items.into_iter().filter_map(piece).collect()
}

fn parse_anchor(entry: JsonValue<'_>) -> Option<ReasoningAnchor> {
    let anchor = entry.string_of("anchor")?;
    let (letters, calls) = anchor.split_once(':')?;
    Some(ReasoningAnchor {
        letters: letters.parse().ok()?,
        calls: calls.parse().ok()?,
    })
}

/// Reads a reasoning block in the form of the messages protocol.
fn thinking_block<'a>(value: JsonValue<'a>) -> Option<ReasoningBlock<'a>> {
    let thinking = match value.get("type")?.text()?.value().as_ref() {
        "thinking" => vendor_thinking(value.get("thinking"), value.get("signature"))?,
        "redacted_thinking" => redacted_thinking(value.get("data"))?,
        _ => return None,
    };
    Some(ReasoningBlock {
        thinking,
        anchor: None,
    })
}

/// Reads a messages vendor's thinking block. The text may be empty if the vendor signed it: vendors
/// omit it and sign the text that they keep.
fn vendor_thinking<'a>(
    text: Option<JsonValue<'a>>,
    signature: Option<JsonValue<'a>>,
) -> Option<Thinking<'a>> {
    let signature = signature?.text()?;
    let text = text
        .and_then(JsonValue::text)
        .unwrap_or(JsonStr::from_value(""));
    let named = signature.value();
    let is_vendors = reasoning_token::is_vendor_signature(&named)
        || reasoning_token::is_maker_signature(&named) && !text.is_empty();
    is_vendors.then_some(Thinking::Shown {
        text,
        signature: Some(signature),
    })
}

fn redacted_thinking(data: Option<JsonValue<'_>>) -> Option<Thinking<'_>> {
    let data = data?.text()?;
    if data.is_empty() {
        None
    } else {
        Some(Thinking::Hidden { data })
    }
}

/// Returns the blocks of an assistant message in order. `texts` is the content of the message,
/// including refusals.
pub(super) fn interleave_reasoning<'a>(
    pieces: Vec<ReasoningBlock<'a>>,
    texts: Vec<Block<'a>>,
    calls: Vec<Block<'a>>,
    message: usize,
) -> Vec<Block<'a>> {
    let mut blocks = Vec::with_capacity(pieces.len() + texts.len() + calls.len());
    let block = |piece: ReasoningBlock<'a>| {
        Block::new(
            JsonPath::Message(message),
            BlockKind::Thinking(piece.thinking),
        )
    };
    if pieces.is_empty() || !has_valid_anchors(&pieces, &texts, calls.len()) {
        blocks.extend(pieces.into_iter().map(block));
        blocks.extend(texts);
        blocks.extend(calls);
        return blocks;
    }
    let mut pieces = pieces.into_iter().peekable();
    let is_before = |piece: &ReasoningBlock<'_>, letters: u64, calls: u64| {
        piece.anchor.is_some_and(|anchor| {
            anchor.calls <= calls && (anchor.letters <= letters || anchor.calls > 0)
        })
    };
    let mut begin = 0;
    for text in texts {
        let end = begin + content_code_points(&text);
        let last = end.saturating_sub(1);
        let inside: Vec<ReasoningBlock<'a>> =
            std::iter::from_fn(|| pieces.next_if(|piece| is_before(piece, last, 0))).collect();
        let places: Vec<u64> = inside
            .iter()
            .filter_map(|piece| piece.anchor)
            .map(|anchor| anchor.letters)
            .collect();
        let splits = split_points(&text, begin, &places);
        let mut rest = Some(text);
        for (piece, split) in inside.into_iter().zip(splits) {
            match split {
                SplitPoint::Before => {}
                SplitPoint::Behind => blocks.extend(rest.take()),
                SplitPoint::At(letters) => {
                    let (before, after) = rest
                        .take()
                        .map_or((None, None), |whole| split_text_block(whole, letters));
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

/// Returns whether every block has an anchor, the anchors are in order, and all lie within the
/// message.
fn has_valid_anchors(pieces: &[ReasoningBlock<'_>], texts: &[Block<'_>], calls: usize) -> bool {
    if pieces.iter().any(|piece| piece.anchor.is_none()) {
        return false;
    }
    let all = texts
        .iter()
        .map(content_code_points)
        .fold(0, u64::saturating_add);
    let calls = u64::try_from(calls).unwrap_or(u64::MAX);
    let mut last = ReasoningAnchor {
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

/// Returns the number of code points that anchors count: those of the content, but not those of a
/// refusal.
fn content_code_points(block: &Block<'_>) -> u64 {
    match &block.kind {
        BlockKind::Text(text) => text.code_points(),
        _ => 0,
    }
}

/// Position of a reasoning block relative to a text that contained it.
enum SplitPoint {
    /// The block precedes the rest of the text.
    Before,
    /// The block follows after this number of code points of the rest of the text.
    At(u64),
    /// The block follows the whole text.
    Behind,
}

/// Computes where each reasoning block at `places` splits the text, which begins at code point
/// `begin`. A split that would leave a blank part, which no vendor accepts, moves to the end of
/// that part. The function makes one pass over the text, regardless of the number of blocks.
fn split_points(text: &Block<'_>, begin: u64, places: &[u64]) -> Vec<SplitPoint> {
    let BlockKind::Text(text) = &text.kind else {
        return places.iter().map(|_| SplitPoint::Before).collect();
    };
    if places.is_empty() {
        return Vec::new();
    }
    let mut splits = Vec::with_capacity(places.len());
    let mut places = places
        .iter()
        .map(|position| position.saturating_sub(begin))
        .peekable();
    // State of the rest of the text: its start, and whether it has had a character other than white
    // space so far.
    let (mut from, mut has_words, mut behind_words) = (0, false, 0);
    for (at, letter) in (0_u64..).zip(text.chars()) {
        while places.next_if(|position| *position <= at).is_some() {
            behind_words += 1;
            splits.push(if has_words {
                SplitPoint::At(at.saturating_sub(from))
            } else {
                SplitPoint::Before
            });
            if has_words {
                (from, has_words) = (at, false);
            }
        }
        if !letter.is_whitespace() {
            (has_words, behind_words) = (true, 0);
        }
    }
    splits.extend(places.map(|_| SplitPoint::Before));
    let first_behind = splits.len().saturating_sub(behind_words);
    splits
        .iter_mut()
        .skip(first_behind)
        .for_each(|split| *split = SplitPoint::Behind);
    splits
}

fn split_text_block<'a>(block: Block<'a>, letters: u64) -> (Option<Block<'a>>, Option<Block<'a>>) {
    let Block { at, cache, kind } = block;
    match kind {
        BlockKind::Text(text) => {
            let (before, after) = text.split_at_code_point(letters);
            let before = Block::new(at, BlockKind::Text(before));
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
    use crate::ir::{CacheBreakpoint, ToolArguments, ToolCall};

    fn describe_blocks(content: &[&'static str], calls: usize, anchors: &[&str]) -> Vec<String> {
        let text = |text: &&'static str| Block {
            at: JsonPath::Message(1),
            cache: Some(CacheBreakpoint::Usual),
            kind: BlockKind::Text(JsonStr::from_token(text, text.contains('\\'))),
        };
        let call = |_| {
            let arguments = ToolArguments::Text(JsonStr::from_value("{}"));
            let call = ToolCall {
                id: None,
                name: JsonStr::from_value("look"),
                arguments,
                is_custom: false,
            };
            Block::new(JsonPath::Call(1, 0), BlockKind::Call(call))
        };
        let piece = |(index, anchor): (usize, &&str)| ReasoningBlock {
            thinking: Thinking::Hidden {
                data: JsonStr::from_value(index.to_string()),
            },
            anchor: anchor
                .split_once(':')
                .map(|(letters, calls)| ReasoningAnchor {
                    letters: letters.parse().unwrap(),
                    calls: calls.parse().unwrap(),
                }),
        };
        let pieces = anchors.iter().enumerate().map(piece).collect();
        let blocks = interleave_reasoning(
            pieces,
            content.iter().map(text).collect(),
            (0..calls).map(call).collect(),
            1,
        );
        let describe_blocks = |block: &Block<'_>| match &block.kind {
            BlockKind::Text(text) if block.cache.is_some() => format!("{}!", text.written()),
            BlockKind::Text(text) => text.written().to_owned(),
            BlockKind::Thinking(Thinking::Hidden { data }) => format!("<{}>", data.value()),
            BlockKind::Call(_) => "call".to_owned(),
            _ => "?".to_owned(),
        };
        blocks.iter().map(describe_blocks).collect()
    }

    #[test]
    fn reasoning_goes_back_to_where_it_stood() {
        assert_eq!(
            describe_blocks(&["abcd"], 1, &["0:0", "2:0", "2:0", "4:0", "4:1"]),
            ["<0>", "ab", "<1>", "<2>", "cd!", "<3>", "call", "<4>"]
        );
        assert_eq!(
            describe_blocks(&["ab", "cd"], 0, &["2:0", "3:0"]),
            ["ab!", "<0>", "c", "<1>", "d!"]
        );
        assert_eq!(
            describe_blocks(&["a\\n\\ud83d\\ude00b"], 0, &["3:0"]),
            ["a\\n\\ud83d\\ude00", "<0>", "b!"]
        );
        assert_eq!(
            describe_blocks(&["", "ab"], 0, &["0:0", "0:0", "1:0"]),
            ["<0>", "<1>", "!", "a", "<2>", "b!"]
        );
        assert_eq!(
            describe_blocks(&[], 2, &["0:0", "0:1", "0:2"]),
            ["<0>", "call", "<1>", "call", "<2>"]
        );
    }

    #[test]
    fn a_cut_never_leaves_a_blank_text() {
        assert_eq!(
            describe_blocks(&["  ab"], 0, &["1:0", "2:0"]),
            ["<0>", "<1>", "  ab!"]
        );
        assert_eq!(
            describe_blocks(&["ab\\n "], 0, &["2:0", "3:0"]),
            ["ab\\n !", "<0>", "<1>"]
        );
        assert_eq!(
            describe_blocks(&["a   b"], 0, &["1:0", "2:0", "4:0"]),
            ["a", "<0>", "<1>", "<2>", "   b!"]
        );
    }

    #[test]
    fn without_places_that_make_sense_reasoning_comes_first() {
        for anchors in [["1:0", ""], ["2:0", "1:0"], ["1:0", "5:0"], ["1:0", "1:2"]] {
            assert_eq!(
                describe_blocks(&["abcd"], 1, &anchors),
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
        assert_eq!(describe_blocks(&[spaces], 0, &anchors).len(), 2_002);
    }
}
