//! Tracks the items of an answer, and the part of their content that was emitted.
//!
//! This file must not emit a text twice, although the vendor repeats it: in deltas, whole, in its
//! item, and in the final response.
//!
//! Read next: `reasoning_token.rs`, how the gateway passes reasoning on.

use crate::ir::event::{Event, EventSink, OutputPart, ReadResult, UpstreamError};
use crate::json::{JsonStr, JsonValue};
use crate::openai::reasoning_summary::SUMMARY_SEPARATOR;
use crate::reasoning_token::{self, ReasoningItem as Sealed};
use std::borrow::Cow;

/// Maximum number of items in one answer.
pub(super) const MAX_ITEMS: usize = 1024;

#[derive(Debug, Default)]
pub(super) struct ResponsesItemTracker {
    items: Vec<ResponsesItemState>,
    slots: u32,
    has_calls: bool,
    has_cut_call: bool,
}

/// State of one item, identified by its index in the output.
#[derive(Debug, Default)]
struct ResponsesItemState {
    index: u64,
    is_done: bool,
    /// Slot of a text, of thinking or of a call.
    slot: Option<u32>,
    /// Slot of a refusal. A message may contain both a text and a refusal.
    refusal: Option<u32>,
    /// True if a part of the content was emitted.
    is_emitted: bool,
    /// The last part of a reasoning item that was emitted: true for a part of the content, false
    /// for a part of the summary, and the part's index.
    part: Option<(bool, u64)>,
}

impl ResponsesItemTracker {
    pub fn have_calls(&self) -> bool {
        self.has_calls
    }

    /// Returns whether the vendor reports a call as incomplete.
    pub fn have_cut_call(&self) -> bool {
        self.has_cut_call
    }

    pub fn is_done(&self, index: u64) -> bool {
        self.find(index).is_some_and(|item| item.is_done)
    }

    pub fn has_refusal(&self, index: u64) -> bool {
        self.find(index).is_some_and(|item| item.refusal.is_some())
    }

    fn find(&self, index: u64) -> Option<&ResponsesItemState> {
        self.items.iter().rfind(|item| item.index == index)
    }

    fn next_slot(&mut self) -> u32 {
        let slot = self.slots;
        self.slots = slot.saturating_add(1);
        slot
    }

    /// Returns the item with this index, and adds it if it is new.
    fn item(&mut self, index: u64) -> ReadResult<&mut ResponsesItemState> {
        let at = match self.items.iter().rposition(|item| item.index == index) {
            Some(at) => at,
            None if self.items.len() >= MAX_ITEMS => return Err(UpstreamError::TooLarge),
            None => {
                self.items.push(ResponsesItemState {
                    index,
                    ..ResponsesItemState::default()
                });
                self.items.len().saturating_sub(1)
            }
        };
        self.items.get_mut(at).ok_or(UpstreamError::TooLarge)
    }

    /// Returns the slot of an item, and opens it if necessary.
    fn open(
        &mut self,
        index: u64,
        piece: OutputPart<'_>,
        to: &mut dyn EventSink,
    ) -> ReadResult<u32> {
        let free = self.next_slot();
        self.has_calls |= matches!(piece, OutputPart::Call { .. });
        let is_refusal = matches!(piece, OutputPart::Refusal);
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

    /// Begins an item. A call is emitted as soon as its name is known, any other item with its
    /// first text.
    pub fn begin_item(
        &mut self,
        index: u64,
        item: Option<JsonValue<'_>>,
        to: &mut dyn EventSink,
    ) -> ReadResult {
        self.item(index)?;
        match item {
            Some(item) => self.begin_call(index, item, to),
            None => Ok(()),
        }
    }

    fn begin_call(
        &mut self,
        index: u64,
        item: JsonValue<'_>,
        to: &mut dyn EventSink,
    ) -> ReadResult {
        let Some(is_custom) = call_is_custom(item) else {
            return Ok(());
        };
        let text = |name| item.filled_text(name);
        let Some(name) = text("name") else {
            return Ok(());
        };
        self.open(
            index,
            OutputPart::Call {
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
        text: Option<JsonStr<'_>>,
        to: &mut dyn EventSink,
    ) -> ReadResult {
        let Some(text) = text else { return Ok(()) };
        let slot = self.open(index, OutputPart::Text, to)?;
        self.item(index)?.is_emitted = true;
        to.event(Event::Delta { slot, text });
        Ok(())
    }

    /// Handles the whole text of an item. The text is emitted if no part of it was emitted before.
    pub fn complete_text(
        &mut self,
        index: u64,
        text: Option<JsonStr<'_>>,
        to: &mut dyn EventSink,
    ) -> ReadResult {
        if self.item(index)?.is_emitted {
            Ok(())
        } else {
            self.text(index, text, to)
        }
    }

    pub fn refusal(
        &mut self,
        index: u64,
        text: Option<JsonStr<'_>>,
        to: &mut dyn EventSink,
    ) -> ReadResult {
        let Some(text) = text else { return Ok(()) };
        let slot = self.open(index, OutputPart::Refusal, to)?;
        to.event(Event::Delta { slot, text });
        Ok(())
    }

    /// Emits more of a reasoning item. `part` says whether the text belongs to the content or to
    /// the summary, and has the index. The kind that arrives first counts.
    pub fn thinking_delta(
        &mut self,
        index: u64,
        part: (bool, u64),
        text: Option<JsonStr<'_>>,
        to: &mut dyn EventSink,
    ) -> ReadResult {
        let Some(text) = text else { return Ok(()) };
        let before = self.item(index)?.part;
        if before.is_some_and(|(is_content, _)| is_content != part.0) {
            return Ok(());
        }
        let slot = self.open(index, OutputPart::Thinking, to)?;
        // An empty part between two others has an index but no text.
        let gaps = part
            .1
            .saturating_sub(before.map_or(0, |(_, number)| number))
            .min(MAX_PARTS);
        for _ in 0..gaps {
            to.event(Event::Delta {
                slot,
                text: JsonStr::from_value(SUMMARY_SEPARATOR),
            });
        }
        let item = self.item(index)?;
        (item.part, item.is_emitted) = (Some(part), true);
        to.event(Event::Delta { slot, text });
        Ok(())
    }

    pub fn arguments(&mut self, index: u64, text: Option<JsonStr<'_>>, to: &mut dyn EventSink) {
        if let Some(item) = self.items.iter_mut().rfind(|item| item.index == index)
            && let (Some(slot), Some(text)) = (item.slot, text)
        {
            item.is_emitted = true;
            to.event(Event::Delta { slot, text });
        }
    }

    pub fn complete_arguments(
        &mut self,
        index: u64,
        text: Option<JsonStr<'_>>,
        to: &mut dyn EventSink,
    ) {
        if self.find(index).is_some_and(|item| !item.is_emitted) {
            self.arguments(index, text, to);
        }
    }

    pub fn citation(&mut self, index: u64, note: Option<JsonValue<'_>>, to: &mut dyn EventSink) {
        let slot = self.find(index).and_then(|item| item.slot);
        let url = note
            .and_then(|note| note.get("url"))
            .and_then(JsonValue::text);
        if let (Some(slot), Some(url)) = (slot, url) {
            let title = note
                .and_then(|note| note.get("title"))
                .and_then(JsonValue::text);
            to.event(Event::Citation { slot, title, url });
        }
    }

    /// Ends an item and emits the rest of its content. The item is complete, unless it is a call
    /// with the status `incomplete`.
    pub fn finish_item(
        &mut self,
        index: u64,
        item: JsonValue<'_>,
        to: &mut dyn EventSink,
    ) -> ReadResult {
        if std::mem::replace(&mut self.item(index)?.is_done, true) {
            return Ok(());
        }
        let kind = item.string_of("type").unwrap_or(Cow::Borrowed("message"));
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
                let whole = item.filled_text(member);
                self.complete_arguments(index, whole, to);
                if item.member_is("status", "incomplete") {
                    self.has_cut_call = true;
                    return Ok(());
                }
            }
            _ => drop(self.open(
                index,
                OutputPart::Foreign {
                    kind: JsonStr::from_value(kind.as_ref()),
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

    fn message(&mut self, index: u64, item: JsonValue<'_>, to: &mut dyn EventSink) -> ReadResult {
        let (was_emitted, was_refused) = (self.item(index)?.is_emitted, self.has_refusal(index));
        for part in item.items_of("content") {
            let text = |name| part.filled_text(name);
            if let Some(text) = text("text").filter(|_| !was_emitted) {
                self.text(index, Some(text), to)?;
                for note in part.items_of("annotations") {
                    self.citation(index, Some(note), to);
                }
            }
            if let Some(text) = text("refusal").filter(|_| !was_refused) {
                self.refusal(index, Some(text), to)?;
            }
        }
        Ok(())
    }

    fn reasoning(&mut self, index: u64, item: JsonValue<'_>, to: &mut dyn EventSink) -> ReadResult {
        let parts = |name: &str| item.get(name).into_iter().flat_map(JsonValue::items);
        let words = |part: JsonValue<'_>| part.text_of("text").map_or(0, |text| text.code_points());
        let lengths: Vec<u64> = parts("summary").map(words).collect();
        if !self.item(index)?.is_emitted {
            let name = if lengths.is_empty() {
                "content"
            } else {
                "summary"
            };
            for (number, part) in (0_u64..).zip(parts(name)) {
                let text = part.filled_text("text");
                self.thinking_delta(index, (lengths.is_empty(), number), text, to)?;
            }
        }
        // The last parts may be empty, but they count towards the whole.
        if let Some((false, last)) = self.item(index)?.part
            && let Some(slot) = self.item(index)?.slot
        {
            let all = u64::try_from(lengths.len()).unwrap_or(u64::MAX);
            for _ in last.saturating_add(1)..all.min(MAX_PARTS) {
                to.event(Event::Delta {
                    slot,
                    text: JsonStr::from_value(SUMMARY_SEPARATOR),
                });
            }
        }
        let text = |name| item.string_of(name).map(Cow::into_owned);
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
        if let Some(carrier) = reasoning_token::pack_item(&sealed) {
            let slot = self.open(index, OutputPart::Thinking, to)?;
            to.event(Event::Signature {
                slot,
                signature: JsonStr::from_value(carrier),
            });
        }
        Ok(())
    }
}

/// Maximum number of parts of one reasoning item that are emitted separately.
const MAX_PARTS: u64 = 1024;

/// Returns whether the item is a custom tool call, or `None` if it is not a call.
fn call_is_custom(item: JsonValue<'_>) -> Option<bool> {
    let kind = item.get("type")?;
    if kind.is("function_call") {
        Some(false)
    } else {
        kind.is("custom_tool_call").then_some(true)
    }
}
