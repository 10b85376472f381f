//! Finds the output item to which an event or an item of the final response belongs. Some servers
//! omit `output_index` in events. The item is then identified by its id, by the id of its call, or,
//! if ids were rewritten on the way, by its kind.
//!
//! This file must not emit an event. Read next: `responses/read_stream/items.rs`.

use super::items::MAX_ITEMS;
use crate::ir::event::{ReadResult, UpstreamError};
use crate::json::JsonValue;
use std::borrow::Cow;

/// Maximum length of an id that is stored, in bytes.
const MAX_ID_BYTES: usize = 256;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ResponsesItemKind {
    Text,
    Reasoning,
    Call,
    Other,
}

#[derive(Debug)]
struct ResponsesIndexedItem {
    /// Id of the item and id of its call. Each is empty if absent.
    ids: [String; 2],
    content: ResponsesItemKind,
    index: u64,
    is_done: bool,
    /// True if the item was matched to an item of the final response.
    is_matched: bool,
}

/// The items whose index is known, because the vendor stated it or the gateway assigned it.
#[derive(Debug, Default)]
pub(super) struct ResponsesItemIndex {
    places: Vec<ResponsesIndexedItem>,
}

impl ResponsesItemIndex {
    /// Returns the index of the item to which an event with this name (without `response.`)
    /// belongs, or `None` if the event belongs to no item.
    ///
    /// # Errors
    /// Returns an error if the answer has too many items.
    pub fn index_of_event(&mut self, kind: &str, event: JsonValue<'_>) -> ReadResult<Option<u64>> {
        let reported_index = event.get("output_index").and_then(JsonValue::count);
        let content = match kind {
            "output_item.added" | "output_item.done" => {
                let Some(item) = event.get("item") else {
                    return Ok(reported_index);
                };
                return self
                    .index_of_item(item, reported_index, kind == "output_item.done")
                    .map(Some);
            }
            "output_text.delta" | "output_text.done" | "refusal.delta" | "refusal.done" => {
                ResponsesItemKind::Text
            }
            "output_text.annotation.added" => ResponsesItemKind::Text,
            "reasoning_summary_text.delta" | "reasoning_text.delta" => ResponsesItemKind::Reasoning,
            "function_call_arguments.delta"
            | "function_call_arguments.done"
            | "custom_tool_call_input.delta"
            | "custom_tool_call_input.done" => ResponsesItemKind::Call,
            _ => return Ok(reported_index),
        };
        let id = event.string_of("item_id").unwrap_or_default();
        if let Some(index) = reported_index {
            if !self.places.iter().any(|item| item.index == index) {
                self.add([id.as_ref(), ""], content, reported_index)?;
            }
            return Ok(reported_index);
        }
        let named = self.find_by_id([&id, ""], content).map(|item| item.index);
        let open = || {
            self.places
                .iter()
                .rfind(|item| item.content == content && !item.is_done)
        };
        match named.or_else(|| open().map(|item| item.index)) {
            Some(index) => Ok(Some(index)),
            None => self.add([id.as_ref(), ""], content, None).map(Some),
        }
    }

    fn index_of_item(
        &mut self,
        item: JsonValue<'_>,
        reported_index: Option<u64>,
        is_done: bool,
    ) -> ReadResult<u64> {
        let (ids, content) = (ids(item), item_kind(item));
        let ids = [ids[0].as_ref(), ids[1].as_ref()];
        let at = self.places.iter().rposition(|item| match reported_index {
            Some(index) => item.index == index,
            None => item.content == content && item.has_id(ids),
        });
        let open = || {
            self.places
                .iter()
                .rposition(|item| item.content == content && !item.is_done)
        };
        // If two items end at the same time, only their order distinguishes them.
        let at = at.or_else(|| {
            if reported_index.is_none() && is_done {
                open()
            } else {
                None
            }
        });
        let index = match at.and_then(|at| self.places.get(at)) {
            Some(item) => item.index,
            None => self.add(ids, content, reported_index)?,
        };
        if let Some(item) = self.places.iter_mut().rfind(|item| item.index == index) {
            item.is_done |= is_done;
        }
        Ok(index)
    }

    /// Returns the index that an item of the final response had in the events before. Each index is
    /// returned once. An index in an event is not always the item's place in the final response:
    /// some servers count from 1, or leave out items.
    ///
    /// # Errors
    /// Returns an error if the answer has too many items.
    pub fn index_of_final_item(&mut self, item: JsonValue<'_>, place: u64) -> ReadResult<u64> {
        let (ids, content) = (ids(item), item_kind(item));
        let ids = [ids[0].as_ref(), ids[1].as_ref()];
        let is_free = |item: &ResponsesIndexedItem| item.content == content && !item.is_matched;
        let named = self
            .places
            .iter()
            .position(|item| is_free(item) && item.has_id(ids));
        let at_place = || {
            let mut items = self.places.iter();
            items.position(|item| is_free(item) && item.index == place)
        };
        let at = named
            .or_else(at_place)
            .or_else(|| self.places.iter().position(is_free));
        if at.is_none() {
            self.add(ids, content, None)?;
        }
        let last = self.places.len().saturating_sub(1);
        let item = self
            .places
            .get_mut(at.unwrap_or(last))
            .ok_or(UpstreamError::TooLarge)?;
        item.is_matched = true;
        Ok(item.index)
    }

    fn find_by_id(
        &self,
        ids: [&str; 2],
        content: ResponsesItemKind,
    ) -> Option<&ResponsesIndexedItem> {
        self.places
            .iter()
            .rfind(|item| item.content == content && item.has_id(ids))
    }

    fn add(
        &mut self,
        ids: [&str; 2],
        content: ResponsesItemKind,
        reported_index: Option<u64>,
    ) -> ReadResult<u64> {
        if self.places.len() >= MAX_ITEMS {
            return Err(UpstreamError::TooLarge);
        }
        let next = self
            .places
            .iter()
            .map(|item| item.index.saturating_add(1))
            .max()
            .unwrap_or(0);
        let index = reported_index.unwrap_or(next);
        let ids = ids.map(|id| {
            if id.len() <= MAX_ID_BYTES {
                id.to_owned()
            } else {
                String::new()
            }
        });
        self.places.push(ResponsesIndexedItem {
            ids,
            content,
            index,
            is_done: false,
            is_matched: false,
        });
        Ok(index)
    }
}

impl ResponsesIndexedItem {
    fn has_id(&self, ids: [&str; 2]) -> bool {
        ids.iter()
            .any(|id| !id.is_empty() && self.ids.iter().any(|own| own == id))
    }
}

fn ids(item: JsonValue<'_>) -> [Cow<'_, str>; 2] {
    ["id", "call_id"].map(|name| item.string_of(name).unwrap_or_default())
}

fn item_kind(item: JsonValue<'_>) -> ResponsesItemKind {
    let kind = item.string_of("type");
    match kind.as_deref() {
        None | Some("message") => ResponsesItemKind::Text,
        Some("reasoning") => ResponsesItemKind::Reasoning,
        Some("function_call" | "custom_tool_call") => ResponsesItemKind::Call,
        Some(_) => ResponsesItemKind::Other,
    }
}
