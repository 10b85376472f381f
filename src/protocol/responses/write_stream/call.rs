//! A call in progress. It is streamed if the client displays it as it arrives, and otherwise
//! buffered until it is complete.
//!
//! It must not report a call as done that was cut off.

use super::item;
use crate::protocol::form::answer::{CallKind, OwnTool};
use crate::protocol::text::{Gathered, Text};

#[derive(Debug)]
pub(super) struct Call {
    pub slot: u32,
    pub tool: OwnTool,
    pub call_id: String,
    /// Index and id of its item, once the item was added.
    pub place: Option<(usize, String)>,
    /// The vendor sent the input of a custom tool as plain text.
    pub is_plain: bool,
    pub given: Gathered,
}

/// Input of a call that is still to be written.
pub(super) enum Said {
    /// The received input, unchanged.
    Given,
    /// All of the input, which was buffered until now.
    Kept(String),
}

impl Call {
    /// Returns whether the item is added as soon as the call is known.
    pub fn is_added_early(&self) -> bool {
        matches!(self.tool.kind, CallKind::Function | CallKind::Custom)
    }

    /// Returns whether the deltas are written as they arrive.
    pub fn is_told_early(&self) -> bool {
        match self.tool.kind {
            CallKind::Function => true,
            CallKind::Custom => self.is_plain,
            CallKind::ToolSearch
            | CallKind::LocalShell
            | CallKind::Shell
            | CallKind::ApplyPatch => false,
        }
    }

    /// Returns whether the input is certainly complete.
    pub fn is_whole(&self) -> bool {
        !self.is_plain && item::is_json(&self.given.text().value())
    }

    pub fn has_nothing(&self) -> bool {
        self.given.text().is_blank()
    }

    /// Returns the input to send once no more arrives. If the tool cannot run the input, the call
    /// becomes a plain function call, which shows the error to the client.
    pub fn settle(&mut self) -> Said {
        match self.tool.kind {
            CallKind::Function => Said::Given,
            CallKind::Custom if self.is_plain => Said::Given,
            CallKind::Custom => Said::Kept(item::unwrapped(&self.given.text())),
            kind => {
                if !item::fits(kind, &self.given.text().value()) {
                    self.tool.kind = CallKind::Function;
                }
                Said::Given
            }
        }
    }

    pub fn more(&mut self, text: &Text<'_>) {
        self.given.push(text);
    }
}
