//! Represents a call in progress. It is streamed if the client displays it as it arrives, and
//! otherwise buffered until it is complete.
//!
//! This file must not report a call as done that was cut off.

use super::item;
use crate::ir::event::{ClientTool, ToolCallKind};
use crate::json::{JsonStr, JsonStrBuf};

#[derive(Debug)]
pub(super) struct ResponsesOpenCall {
    pub slot: u32,
    pub tool: ClientTool,
    pub call_id: String,
    /// Index and id of the call's item. Set once the item was added.
    pub position: Option<(usize, String)>,
    /// True if the vendor sent the input of a custom tool as plain text.
    pub is_plain: bool,
    pub input: JsonStrBuf,
}

/// Input of a call that is still to be written.
pub(super) enum CallInput {
    /// The input is the received text, unchanged.
    Unchanged,
    /// The input was buffered, and this is all of it.
    Kept(String),
}

impl ResponsesOpenCall {
    /// Returns whether the item is added as soon as the call is known.
    pub fn is_added_early(&self) -> bool {
        matches!(
            self.tool.kind,
            ToolCallKind::Function | ToolCallKind::Custom
        )
    }

    /// Returns whether the deltas are written as they arrive.
    pub fn is_streamed(&self) -> bool {
        match self.tool.kind {
            ToolCallKind::Function => true,
            ToolCallKind::Custom => self.is_plain,
            ToolCallKind::ToolSearch
            | ToolCallKind::LocalShell
            | ToolCallKind::Shell
            | ToolCallKind::ApplyPatch => false,
        }
    }

    /// Returns whether the input is certainly complete.
    pub fn is_complete(&self) -> bool {
        !self.is_plain && item::is_json(&self.input.text().value())
    }

    pub fn is_blank(&self) -> bool {
        self.input.text().is_blank()
    }

    /// Returns the input to send once all of it has arrived. If the tool cannot run the input, the
    /// call becomes a plain function call, which shows the error to the client.
    pub fn finalize(&mut self) -> CallInput {
        match self.tool.kind {
            ToolCallKind::Function => CallInput::Unchanged,
            ToolCallKind::Custom if self.is_plain => CallInput::Unchanged,
            ToolCallKind::Custom => CallInput::Kept(item::unwrap_custom_input(&self.input.text())),
            kind => {
                if !item::is_runnable(kind, &self.input.text().value()) {
                    self.tool.kind = ToolCallKind::Function;
                }
                CallInput::Unchanged
            }
        }
    }

    pub fn append(&mut self, text: &JsonStr<'_>) {
        self.input.push(text);
    }
}
