//! Counts the cache markers on blocks, and decides which of them may be written.
//!
//! This file must not decide how many are omitted: `write_request/marker_budget.rs` does.
//!
//! Read next: `write_request/block_writer.rs`.

use crate::ir::{Block, BlockKind, ToolResultContent};

/// Number of markers to omit in each section, earliest first.
#[derive(Debug, Default)]
pub(super) struct CacheMarkerBudget {
    pub messages: usize,
    pub tools: usize,
    pub system: usize,
    /// True if the request has any marker.
    pub is_marked: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum MarkerSection {
    Messages,
    Tools,
    System,
}

impl CacheMarkerBudget {
    /// Returns whether the next marker of this section may be written.
    pub fn allow(&mut self, section: MarkerSection) -> bool {
        let left = match section {
            MarkerSection::Messages => &mut self.messages,
            MarkerSection::Tools => &mut self.tools,
            MarkerSection::System => &mut self.system,
        };
        let allowed = *left == 0;
        *left = left.saturating_sub(1);
        allowed
    }
}

pub(super) fn count_markers(block: &Block<'_>) -> usize {
    let nested = match &block.kind {
        BlockKind::Result(outcome) => match &outcome.content {
            ToolResultContent::Blocks(blocks) => blocks.iter().map(count_markers).sum(),
            ToolResultContent::Nothing | ToolResultContent::Text(_) => 0,
        },
        // Reasoning cannot have a marker.
        BlockKind::Thinking(_) => return 0,
        BlockKind::Text(_)
        | BlockKind::Refusal(_)
        | BlockKind::Image(_)
        | BlockKind::File(_)
        | BlockKind::Call(_)
        | BlockKind::Opaque(_) => 0,
    };
    nested + usize::from(block.cache.is_some())
}
