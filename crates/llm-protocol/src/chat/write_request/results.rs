//! Writes tool results: a `tool` message for each, then one user message with the images and
//! documents that a `tool` message cannot hold.
//!
//! This file must not put anything between the results: they must directly follow their calls.
//!
//! Read next: `capabilities/pairing.rs`, which moves the results here.

use super::writer::ChatRequestWriter;
use crate::ir::{Block, BlockKind, ToolResult, ToolResultContent};
use crate::json::{JoinedText, JsonStr};
use crate::openai::parts::{ContentPart, PartContent};
use crate::openai::text_fallback::starts_with_error;

impl ChatRequestWriter<'_> {
    /// Writes the results at the front of a user turn. Returns true if there were any.
    pub(super) fn write_results<'t>(&mut self, blocks: &'t [Block<'t>]) -> bool {
        let mut shown = Vec::new();
        let mut is_any = false;
        for block in blocks {
            let BlockKind::Result(result) = &block.kind else {
                continue;
            };
            is_any = true;
            // The pairing step puts results directly after their calls, in the same order.
            let id = self.open.pop_front().unwrap_or_default();
            let media = self.write_result(&id, result);
            if !media.is_empty() {
                let heading = format!("Content returned by tool call {id}:");
                shown.push(ContentPart::text(JsonStr::from_value(heading)));
                shown.extend(media);
            }
        }
        self.is_behind_result |= is_any;
        self.user_parts(shown);
        is_any
    }

    /// Writes one `tool` message. Returns the parts that it cannot hold.
    fn write_result<'t>(&mut self, id: &str, result: &'t ToolResult<'t>) -> Vec<ContentPart<'t>> {
        let mut lines: Vec<JsonStr<'t>> = Vec::new();
        let mut media = Vec::new();
        match &result.content {
            ToolResultContent::Nothing => {}
            ToolResultContent::Text(text) => lines.push(text.reborrow()),
            ToolResultContent::Blocks(blocks) => {
                for block in blocks {
                    if !lines.is_empty() {
                        lines.push(JsonStr::from_value("\n"));
                    }
                    self.push_result_block(block, &mut lines, &mut media);
                }
            }
        }
        if result.is_error && !lines.first().is_some_and(starts_with_error) {
            lines.insert(0, JsonStr::from_value("Error: "));
        }
        self.json
            .open_object()
            .member("role", "tool")
            .member("tool_call_id", id);
        self.json
            .member("content", JoinedText(&lines))
            .close_object();
        media
    }

    fn push_result_block<'t>(
        &mut self,
        block: &'t Block<'t>,
        lines: &mut Vec<JsonStr<'t>>,
        media: &mut Vec<ContentPart<'t>>,
    ) {
        match &block.kind {
            BlockKind::Text(text) | BlockKind::Refusal(text) => lines.push(text.reborrow()),
            BlockKind::Image(image) => {
                lines.push(JsonStr::from_value("[image]"));
                media.push(ContentPart::new(PartContent::Image(image)));
            }
            BlockKind::File(file) => {
                lines.push(JsonStr::from_value("[document]"));
                self.fallback.push_file(block, file, media);
            }
            BlockKind::Opaque(opaque) => lines.extend(self.fallback.result_block(block.at, opaque)),
            // The reader refuses these blocks inside a result.
            BlockKind::Thinking(_) | BlockKind::Call(_) | BlockKind::Result(_) => {}
        }
    }
}
