//! The items of an answer: which of them were begun, what was told of each, and what is still to be
//! told.
//!
//! It must not tell anything twice: a text comes in pieces, whole, in its item and once more in the
//! response.
//!
//! Read next: `protocol/carrier.rs`, how reasoning travels on.

use crate::protocol::carrier::{self, Item as Sealed};
use crate::protocol::form::answer::{Event, Fault, Piece, Sink};
use crate::protocol::responses::write_request::PART_GAP;
use crate::protocol::text::Text;
use crate::protocol::tree::Value;
use std::borrow::Cow;

/// The most items of one answer.
pub(super) const ITEMS_MAX: usize = 1024;

/// The items heard of, in the order they came.
#[derive(Debug, Default)]
pub(super) struct Items {
    items: Vec<Item>,
    slots: u32,
    has_calls: bool,
    has_cut_call: bool,
}

/// One item, known by its place in the output.
#[derive(Debug, Default)]
struct Item {
    index: u64,
    is_done: bool,
    /// Of a text, of thinking, or of a call.
    slot: Option<u32>,
    /// A refusal has a slot of its own: a message may hold both.
    refusal: Option<u32>,
    /// Something of it was told.
    is_told: bool,
    /// The part of a thought that was told last, and whether it is of the content and not of the
    /// summary.
    part: Option<(bool, u64)>,
}

impl Items {
    pub fn have_calls(&self) -> bool {
        self.has_calls
    }

    /// The vendor says that a call is incomplete.
    pub fn have_cut_call(&self) -> bool {
        self.has_cut_call
    }

    pub fn is_done(&self, index: u64) -> bool {
        self.find(index).is_some_and(|item| item.is_done)
    }

    pub fn told_refusal(&self, index: u64) -> bool {
        self.find(index).is_some_and(|item| item.refusal.is_some())
    }

    fn find(&self, index: u64) -> Option<&Item> {
        self.items.iter().rfind(|item| item.index == index)
    }

    fn slot(&mut self) -> u32 {
        let slot = self.slots;
        self.slots = slot.saturating_add(1);
        slot
    }

    /// The item at this place, known or not.
    fn item(&mut self, index: u64) -> Result<&mut Item, Fault> {
        let at = match self.items.iter().rposition(|item| item.index == index) {
            Some(at) => at,
            None if self.items.len() >= ITEMS_MAX => return Err(Fault::TooLarge),
            None => {
                self.items.push(Item {
                    index,
                    ..Item::default()
                });
                self.items.len().saturating_sub(1)
            }
        };
        self.items.get_mut(at).ok_or(Fault::TooLarge)
    }

    /// The slot of an item, opened if it is not.
    fn open(&mut self, index: u64, piece: Piece<'_>, to: &mut impl Sink) -> Result<u32, Fault> {
        let free = self.slot();
        self.has_calls |= matches!(piece, Piece::Call { .. });
        let is_refusal = matches!(piece, Piece::Refusal);
        let item = self.item(index)?;
        let slot = if is_refusal {
            &mut item.refusal
        } else {
            &mut item.slot
        };
        if let Some(slot) = *slot {
            return Ok(slot);
        }
        *slot = Some(free);
        to.event(Event::Open { slot: free, piece });
        Ok(free)
    }

    /// An item begins. A call is told as soon as its name is known; all else with its first words.
    pub fn added(
        &mut self,
        index: u64,
        item: Option<Value<'_>>,
        to: &mut impl Sink,
    ) -> Result<(), Fault> {
        self.item(index)?;
        match item {
            Some(item) => self.begin_call(index, item, to),
            None => Ok(()),
        }
    }

    fn begin_call(&mut self, index: u64, item: Value<'_>, to: &mut impl Sink) -> Result<(), Fault> {
        let Some(is_custom) = call(item) else {
            return Ok(());
        };
        let text = |name| {
            item.get(name)
                .and_then(Value::text)
                .filter(|text| !text.is_empty())
        };
        let Some(name) = text("name") else {
            return Ok(());
        };
        self.open(
            index,
            Piece::Call {
                id: text("call_id").or(text("id")),
                name,
                is_custom,
            },
            to,
        )
        .map(drop)
    }

    pub fn text(
        &mut self,
        index: u64,
        text: Option<Text<'_>>,
        to: &mut impl Sink,
    ) -> Result<(), Fault> {
        let Some(text) = text else { return Ok(()) };
        let slot = self.open(index, Piece::Text, to)?;
        self.item(index)?.is_told = true;
        to.event(Event::Delta { slot, text });
        Ok(())
    }

    /// All of a text, which is told if nothing of it was.
    pub fn whole_text(
        &mut self,
        index: u64,
        text: Option<Text<'_>>,
        to: &mut impl Sink,
    ) -> Result<(), Fault> {
        if self.item(index)?.is_told {
            Ok(())
        } else {
            self.text(index, text, to)
        }
    }

    pub fn refusal(
        &mut self,
        index: u64,
        text: Option<Text<'_>>,
        to: &mut impl Sink,
    ) -> Result<(), Fault> {
        let Some(text) = text else { return Ok(()) };
        let slot = self.open(index, Piece::Refusal, to)?;
        to.event(Event::Delta { slot, text });
        Ok(())
    }

    /// More of a thought. `part`: of the content or of the summary, and its number; the first kind
    /// that comes counts.
    pub fn thought(
        &mut self,
        index: u64,
        part: (bool, u64),
        text: Option<Text<'_>>,
        to: &mut impl Sink,
    ) -> Result<(), Fault> {
        let Some(text) = text else { return Ok(()) };
        let before = self.item(index)?.part;
        if before.is_some_and(|(is_content, _)| is_content != part.0) {
            return Ok(());
        }
        let slot = self.open(index, Piece::Thinking, to)?;
        // An empty part between two others has no words, but its place.
        let gaps = part
            .1
            .saturating_sub(before.map_or(0, |(_, number)| number))
            .min(PARTS_MAX);
        for _ in 0..gaps {
            to.event(Event::Delta {
                slot,
                text: Text::made(PART_GAP),
            });
        }
        let item = self.item(index)?;
        (item.part, item.is_told) = (Some(part), true);
        to.event(Event::Delta { slot, text });
        Ok(())
    }

    pub fn arguments(&mut self, index: u64, text: Option<Text<'_>>, to: &mut impl Sink) {
        if let Some(item) = self.items.iter_mut().rfind(|item| item.index == index)
            && let (Some(slot), Some(text)) = (item.slot, text)
        {
            item.is_told = true;
            to.event(Event::Delta { slot, text });
        }
    }

    pub fn whole_arguments(&mut self, index: u64, text: Option<Text<'_>>, to: &mut impl Sink) {
        if self.find(index).is_some_and(|item| !item.is_told) {
            self.arguments(index, text, to);
        }
    }

    pub fn source(&mut self, index: u64, note: Option<Value<'_>>, to: &mut impl Sink) {
        let slot = self.find(index).and_then(|item| item.slot);
        let url = note.and_then(|note| note.get("url")).and_then(Value::text);
        if let (Some(slot), Some(url)) = (slot, url) {
            let title = note
                .and_then(|note| note.get("title"))
                .and_then(Value::text);
            to.event(Event::Citation { slot, title, url });
        }
    }

    /// Nothing more comes of an item: what was not told of it is told now. It is whole, unless it
    /// is a call that is incomplete.
    pub fn done(&mut self, index: u64, item: Value<'_>, to: &mut impl Sink) -> Result<(), Fault> {
        if std::mem::replace(&mut self.item(index)?.is_done, true) {
            return Ok(());
        }
        let kind = item
            .get("type")
            .and_then(Value::string)
            .unwrap_or(Cow::Borrowed("message"));
        match kind.as_ref() {
            "message" => self.message(index, item, to)?,
            "reasoning" => self.reasoning(index, item, to)?,
            "function_call" | "custom_tool_call" => {
                self.begin_call(index, item, to)?;
                let member = if kind == "function_call" {
                    "arguments"
                } else {
                    "input"
                };
                let whole = item
                    .get(member)
                    .and_then(Value::text)
                    .filter(|text| !text.is_empty());
                self.whole_arguments(index, whole, to);
                if item
                    .get("status")
                    .is_some_and(|status| status.is("incomplete"))
                {
                    self.has_cut_call = true;
                    return Ok(());
                }
            }
            _ => drop(self.open(
                index,
                Piece::Foreign {
                    kind: Text::made(kind.as_ref()),
                },
                to,
            )?),
        }
        let item = self.item(index)?;
        for slot in [item.slot, item.refusal].into_iter().flatten() {
            to.event(Event::Close { slot });
        }
        Ok(())
    }

    fn message(&mut self, index: u64, item: Value<'_>, to: &mut impl Sink) -> Result<(), Fault> {
        let (was_told, was_refused) = (self.item(index)?.is_told, self.told_refusal(index));
        for part in item.get("content").into_iter().flat_map(Value::items) {
            let text = |name| {
                part.get(name)
                    .and_then(Value::text)
                    .filter(|text| !text.is_empty())
            };
            if let Some(text) = text("text").filter(|_| !was_told) {
                self.text(index, Some(text), to)?;
                for note in part.get("annotations").into_iter().flat_map(Value::items) {
                    self.source(index, Some(note), to);
                }
            }
            if let Some(text) = text("refusal").filter(|_| !was_refused) {
                self.refusal(index, Some(text), to)?;
            }
        }
        Ok(())
    }

    fn reasoning(&mut self, index: u64, item: Value<'_>, to: &mut impl Sink) -> Result<(), Fault> {
        let parts = |name: &str| item.get(name).into_iter().flat_map(Value::items);
        let words = |part: Value<'_>| {
            part.get("text")
                .and_then(Value::text)
                .map_or(0, |text| text.code_points())
        };
        let lengths: Vec<u64> = parts("summary").map(words).collect();
        if !self.item(index)?.is_told {
            let name = if lengths.is_empty() {
                "content"
            } else {
                "summary"
            };
            for (number, part) in (0_u64..).zip(parts(name)) {
                let text = part
                    .get("text")
                    .and_then(Value::text)
                    .filter(|text| !text.is_empty());
                self.thought(index, (lengths.is_empty(), number), text, to)?;
            }
        }
        // The last parts may say nothing; they belong to the whole all the same.
        if let Some((false, last)) = self.item(index)?.part
            && let Some(slot) = self.item(index)?.slot
        {
            let all = u64::try_from(lengths.len()).unwrap_or(u64::MAX);
            for _ in last.saturating_add(1)..all.min(PARTS_MAX) {
                to.event(Event::Delta {
                    slot,
                    text: Text::made(PART_GAP),
                });
            }
        }
        let text = |name| item.get(name).and_then(Value::string).map(Cow::into_owned);
        let Some(encrypted) = text("encrypted_content").filter(|encrypted| !encrypted.is_empty())
        else {
            return Ok(());
        };
        let content = item
            .get("content")
            .filter(|content| content.items().next().is_some());
        let sealed = Sealed {
            id: text("id").unwrap_or_default(),
            encrypted,
            lengths,
            content: content.map(|content| content.raw().to_owned()),
        };
        if let Some(carrier) = carrier::pack_item(&sealed) {
            let slot = self.open(index, Piece::Thinking, to)?;
            to.event(Event::Signature {
                slot,
                signature: Text::made(carrier),
            });
        }
        Ok(())
    }
}

/// The most parts of one thought that are told apart.
const PARTS_MAX: u64 = 1024;

/// It is a call; of a custom tool.
fn call(item: Value<'_>) -> Option<bool> {
    let kind = item.get("type")?;
    if kind.is("function_call") {
        Some(false)
    } else {
        kind.is("custom_tool_call").then_some(true)
    }
}
