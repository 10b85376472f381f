//! What is told at the end of an answer, whole: the reasoning that the vendor wants back, and the
//! sources.
//!
//! Why not piece by piece: of the official clients one joins every string of such a list that comes
//! again under the same index, the other keeps the last piece only. One complete list is the only
//! form that both leave alone.
//!
//! It must not hold more than it is given room for.

use crate::protocol::carrier::{self, Carried, Item};
use crate::protocol::responses::write_request::summary;
use crate::protocol::text::{Gathered, Json, Text};

/// Whose reasoning it is, in the word that clients and other gateways know.
const FORMAT: &str = "anthropic-claude-v1";

/// The same of a responses vendor's items.
pub const ITEM_FORMAT: &str = "openai-responses-v1";

/// Counted for each entry beside its texts, so that empty ones fill the room too.
const ENTRY_BYTES: usize = 128;

/// `reasoning_details`: the vendor's thinking blocks with their places in the answer.
#[derive(Debug, Default)]
pub(super) struct Details {
    entries: Vec<Entry>,
    /// There was no room. A part is worth nothing: the vendor refuses thinking that was changed.
    is_lost: bool,
}

#[derive(Debug)]
struct Entry {
    /// Code points of the content and calls before it.
    anchor: (u64, u64),
    reasoning: Reasoning,
}

#[derive(Debug)]
enum Reasoning {
    Shown { text: Gathered, signature: Gathered },
    Hidden { data: Gathered },
}

impl Details {
    /// Thinking begins; its number.
    pub fn open(&mut self, anchor: (u64, u64), budget: &mut usize) -> usize {
        self.add(
            anchor,
            Reasoning::Shown {
                text: Gathered::default(),
                signature: Gathered::default(),
            },
            budget,
        );
        self.entries.len().saturating_sub(1)
    }

    pub fn hidden(&mut self, anchor: (u64, u64), data: &Text<'_>, budget: &mut usize) {
        let mut held = Gathered::default();
        held.push(data);
        self.make_room(held.len(), budget);
        self.add(anchor, Reasoning::Hidden { data: held }, budget);
    }

    pub fn more(&mut self, entry: usize, more: &Text<'_>, budget: &mut usize) {
        if let Some(Entry {
            reasoning: Reasoning::Shown { text, .. },
            ..
        }) = self.entries.get_mut(entry)
        {
            let before = text.len();
            text.push(more);
            let added = text.len() - before;
            self.make_room(added, budget);
        }
    }

    /// The last signature counts.
    pub fn sign(&mut self, entry: usize, text: &Text<'_>, budget: &mut usize) {
        if let Some(Entry {
            reasoning: Reasoning::Shown { signature, .. },
            ..
        }) = self.entries.get_mut(entry)
        {
            signature.clear();
            signature.push(text);
            let added = signature.len();
            self.make_room(added, budget);
        }
    }

    /// Not a single entry: there was none, or no room for all.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The content was cut to `length` code points, those before `start` among what is gone.
    pub fn shift(&mut self, start: u64, length: u64) {
        for entry in &mut self.entries {
            entry.anchor.0 = entry.anchor.0.saturating_sub(start).min(length);
        }
    }

    /// All the text that was shown.
    pub fn texts(&self) -> impl Iterator<Item = Text<'_>> {
        self.entries
            .iter()
            .filter_map(|entry| match &entry.reasoning {
                Reasoning::Shown { text, .. } => Some(text.text()),
                Reasoning::Hidden { .. } => None,
            })
    }

    /// Writes the array. Each entry has its own position in it: one of the clients sorts by it.
    pub fn write(&self, json: &mut Json) {
        json.open_array();
        let mut index = 0;
        for Entry {
            anchor: (points, calls),
            reasoning,
        } in &self.entries
        {
            let anchor = format!("{points}:{calls}");
            if let Reasoning::Shown { text, signature } = reasoning
                && let Some(Carried::Item(item)) = carrier::unpack(&signature.text().value())
            {
                write_item(&item, &text.text(), &anchor, &mut index, json);
                continue;
            }
            json.open_object().key("type");
            match reasoning {
                Reasoning::Shown { text, signature } => {
                    json.str("reasoning.text").key("text").text(&text.text());
                    if !signature.is_empty() {
                        json.key("signature").text(&signature.text());
                    }
                }
                Reasoning::Hidden { data } => {
                    json.str("reasoning.encrypted")
                        .key("data")
                        .text(&data.text());
                }
            }
            json.key("format")
                .str(FORMAT)
                .key("index")
                .number(index)
                .key("anchor")
                .str(&anchor)
                .close_object();
            index += 1;
        }
        json.close_array();
    }

    fn add(&mut self, anchor: (u64, u64), reasoning: Reasoning, budget: &mut usize) {
        self.make_room(ENTRY_BYTES, budget);
        if !self.is_lost {
            self.entries.push(Entry { anchor, reasoning });
        }
    }

    fn make_room(&mut self, bytes: usize, budget: &mut usize) {
        if !take(bytes, budget) {
            self.is_lost = true;
            self.entries = Vec::new();
        }
    }
}

/// A responses vendor's item: the texts of its summary, and what only the vendor can read.
fn write_item(item: &Item, text: &Text<'_>, anchor: &str, index: &mut u64, json: &mut Json) {
    let texts = summary(text, &item.lengths).unwrap_or_default();
    let texts = texts
        .iter()
        .map(|text| ("reasoning.summary", "summary", text.borrowed()));
    let sealed = (
        "reasoning.encrypted",
        "data",
        Text::made(item.encrypted.as_str()),
    );
    for (kind, member, text) in texts.chain([sealed]) {
        json.open_object()
            .key("type")
            .str(kind)
            .key(member)
            .text(&text)
            .key("id")
            .str(&item.id);
        json.key("format")
            .str(ITEM_FORMAT)
            .key("index")
            .number(*index)
            .key("anchor")
            .str(anchor)
            .close_object();
        *index += 1;
    }
}

/// `annotations`: the web sources of the answer's texts.
#[derive(Debug, Default)]
pub(super) struct Sources(Vec<Source>);

#[derive(Debug)]
struct Source {
    slot: u32,
    /// The code points of the content that rest on it, once its text is whole.
    start: u64,
    end: u64,
    title: Gathered,
    url: Gathered,
}

impl Sources {
    pub fn add(&mut self, slot: u32, title: Option<&Text<'_>>, url: &Text<'_>, budget: &mut usize) {
        let mut source = Source {
            slot,
            start: 0,
            end: 0,
            title: Gathered::default(),
            url: Gathered::default(),
        };
        source.url.push(url);
        title.into_iter().for_each(|title| source.title.push(title));
        if take(source.title.len() + source.url.len() + ENTRY_BYTES, budget) {
            self.0.push(source);
        }
    }

    /// The text in `slot` is whole: it stands at these code points.
    pub fn place(&mut self, slot: u32, start: u64, end: u64) {
        for source in self
            .0
            .iter_mut()
            .rev()
            .take_while(|source| source.slot == slot)
        {
            (source.start, source.end) = (start, end);
        }
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// As [`Details::shift`].
    pub fn shift(&mut self, start: u64, length: u64) {
        for at in self
            .0
            .iter_mut()
            .flat_map(|source| [&mut source.start, &mut source.end])
        {
            *at = at.saturating_sub(start).min(length);
        }
    }

    /// Writes the array. `indexed`: each with its position, as the clients that gather a stream
    /// want it.
    pub fn write(&self, indexed: bool, json: &mut Json) {
        json.open_array();
        for (index, source) in (0_u64..).zip(&self.0) {
            json.open_object();
            if indexed {
                json.key("index").number(index);
            }
            json.key("type")
                .str("url_citation")
                .key("url_citation")
                .open_object();
            json.key("start_index")
                .number(source.start)
                .key("end_index")
                .number(source.end);
            json.key("title")
                .text(&source.title.text())
                .key("url")
                .text(&source.url.text());
            json.close_object().close_object();
        }
        json.close_array();
    }
}

/// Takes room for `bytes`, if there is enough.
pub(super) fn take(bytes: usize, budget: &mut usize) -> bool {
    let left = budget.checked_sub(bytes);
    *budget = left.unwrap_or(0);
    left.is_some()
}
