//! A call on its way: told as it comes where the client shows it, kept until it is whole where not.
//!
//! It must not tell a call as done that was cut off.

use super::item;
use crate::protocol::form::answer::{CallKind, OwnTool};
use crate::protocol::text::{Gathered, Text};

#[derive(Debug)]
pub(super) struct Call {
    pub slot: u32,
    pub tool: OwnTool,
    pub call_id: String,
    /// Where it stands among the items, once it was added.
    pub place: Option<(usize, String)>,
    /// The vendor gave the input of a custom tool as it is.
    pub is_plain: bool,
    pub given: Gathered,
}

/// What is to be told of a call.
pub(super) enum Said {
    /// As much as came, verbatim.
    Given,
    /// All of it, which was kept until now.
    Kept(String),
}

impl Call {
    /// Its item is added as soon as it is known of.
    pub fn is_added_early(&self) -> bool {
        matches!(self.tool.kind, CallKind::Function | CallKind::Custom)
    }

    /// Its pieces are told as they come.
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

    /// Nothing of it can be missing: what came is a whole.
    pub fn is_whole(&self) -> bool {
        !self.is_plain && item::is_json(&self.given.text().value())
    }

    pub fn has_nothing(&self) -> bool {
        self.given.text().is_blank()
    }

    /// What goes back, once nothing more comes. A tool that cannot run what it was given is told so
    /// by way of a plain function call.
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
