//! Writes tool results: a `tool` message for each, then one user message with the images and
//! documents that a `tool` message cannot hold.
//!
//! It must not put anything between the results: they must directly follow their calls.
//!
//! Read next: `capabilities/pairing.rs`, which moves the results here.

use super::Writer;
use super::parts::{Part, Said};
use crate::protocol::form::{Block, BlockKind, Outcome, OutcomeContent};
use crate::protocol::text::Text;

impl Writer<'_> {
    /// Writes the results at the front of a user turn. Returns true if there were any.
    pub(super) fn results<'t>(&mut self, blocks: &'t [Block<'t>]) -> bool {
        let mut shown = Vec::new();
        let mut is_any = false;
        for block in blocks {
            let BlockKind::Result(result) = &block.kind else {
                continue;
            };
            is_any = true;
            // The pairing step puts results directly after their calls, in the same order.
            let id = self.open.pop_front().unwrap_or_default();
            let media = self.result(&id, result);
            if !media.is_empty() {
                shown.push(Part::of(Said::Text(Text::made(format!(
                    "Content returned by tool call {id}:"
                )))));
                shown.extend(media);
            }
        }
        if !shown.is_empty() {
            self.json
                .open_object()
                .key("role")
                .str("user")
                .key("content");
            self.content(&shown);
            self.json.close_object();
        }
        is_any
    }

    /// Writes one `tool` message. Returns the parts that it cannot hold.
    fn result<'t>(&mut self, id: &str, result: &'t Outcome<'t>) -> Vec<Part<'t>> {
        let mut lines: Vec<Text<'t>> = Vec::new();
        let mut media = Vec::new();
        match &result.content {
            OutcomeContent::Nothing => {}
            OutcomeContent::Text(text) => lines.push(text.borrowed()),
            OutcomeContent::Blocks(blocks) => {
                for block in blocks {
                    if !lines.is_empty() {
                        lines.push(Text::made("\n"));
                    }
                    self.line(block, &mut lines, &mut media);
                }
            }
        }
        if result.is_error && !lines.first().is_some_and(says_error) {
            lines.insert(0, Text::made("Error: "));
        }
        self.json
            .open_object()
            .key("role")
            .str("tool")
            .key("tool_call_id")
            .str(id);
        self.json.key("content").joined(&lines).close_object();
        media
    }

    fn line<'t>(
        &mut self,
        block: &'t Block<'t>,
        lines: &mut Vec<Text<'t>>,
        media: &mut Vec<Part<'t>>,
    ) {
        match &block.kind {
            BlockKind::Text(text) | BlockKind::Refusal(text) => lines.push(text.borrowed()),
            BlockKind::Image(image) => {
                lines.push(Text::made("[image]"));
                media.push(Part::of(Said::Image(image)));
            }
            BlockKind::File(file) => {
                lines.push(Text::made("[document]"));
                self.words.file(block, file, media);
            }
            BlockKind::Opaque(opaque) => lines.extend(self.words.given_back(block.at, opaque)),
            // The reader refuses them inside a result.
            BlockKind::Thinking(_) | BlockKind::Call(_) | BlockKind::Result(_) => {}
        }
    }
}

/// Returns whether the tool's own text already reports a failure.
pub(in crate::protocol) fn says_error(text: &Text<'_>) -> bool {
    let shown = match text {
        Text::Token { raw, .. } => raw,
        Text::Made(made) => made.as_ref(),
    };
    shown
        .get(..5)
        .is_some_and(|start| start.eq_ignore_ascii_case("error"))
}
