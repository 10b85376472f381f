//! Holds the state that all steps of writing a chat request share.
//!
//! This file must not write JSON: the steps do.

use crate::Protocol;
use crate::capabilities::{ChatModel, ToolCallIds, identifiers};
use crate::ir::write_context::WriteContext;
use crate::json::{JsonStr, JsonWriter};
use crate::openai::text_fallback::TextFallback;
use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};

pub(super) struct ChatRequestWriter<'w> {
    pub surface: Protocol,
    pub model: &'w ChatModel,
    pub write_context: &'w WriteContext<'w>,
    pub fallback: TextFallback<'w>,
    pub json: JsonWriter,
    pub carries_thinking: bool,
    /// True if the model may call tools.
    pub has_tools: bool,
    /// True if the current turn's reasoning is sent back.
    pub replays: bool,
    /// True if the last message is a tool's result.
    pub is_behind_result: bool,
    /// Number of calls that requested each id.
    pub ids: HashMap<String, u64>,
    /// Ids of calls whose results come next, in order.
    pub open: VecDeque<String>,
}

impl ChatRequestWriter<'_> {
    /// Returns the id of the next call. If two calls have the same id, the later one gets a new id.
    pub fn call_id(&mut self, id: Option<&JsonStr<'_>>) -> String {
        let fitting = |id| match self.model.tool_call_ids {
            ToolCallIds::Any => identifiers::chat_call_id(id),
            ToolCallIds::Nine => identifiers::nine_char_call_id(id),
        };
        let base_id = fitting(id.map(JsonStr::value).unwrap_or_default()).into_owned();
        let count = self.ids.entry(base_id.clone()).or_default();
        *count = count.saturating_add(1);
        let id = match *count {
            1 => base_id,
            count => fitting(Cow::Owned(format!("{base_id}__{count}"))).into_owned(),
        };
        self.open.push_back(id.clone());
        id
    }
}
