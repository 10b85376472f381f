//! Cache markers: a messages vendor accepts four, including the one at the top level.
//!
//! It must not add a marker: a caller who sets markers does so deliberately.
//!
//! Read next: `write_request/block_writer.rs`.

use super::tools::MessagesTools;
use super::turns::MessagesTurn;
use crate::ir::{Block, BlockKind, Request, ToolResultContent, WarningAction, Warnings};

const MAX_MARKERS: usize = 4;

/// Number of markers of each section to omit, earliest first.
#[derive(Debug, Default)]
pub(super) struct CacheMarkerBudget {
    messages: usize,
    tools: usize,
    system: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum MarkerSection {
    Messages,
    Tools,
    System,
}

impl CacheMarkerBudget {
    /// Counts the markers to be written. If there are too many, plans to omit first those that the
    /// next turn would not read again.
    pub fn new(
        request: &Request<'_>,
        tools: &MessagesTools<'_, '_>,
        arranged: &[MessagesTurn<'_, '_>],
        at_top: bool,
        warnings: &mut Warnings,
    ) -> Self {
        let in_messages: usize = arranged
            .iter()
            .flat_map(|turn| &turn.pieces)
            .map(|piece| piece.marker_count())
            .sum();
        let (in_tools, in_system) = (
            tools.marker_count(),
            request.system.iter().map(count_markers).sum::<usize>(),
        );
        let all = in_messages + in_tools + in_system + usize::from(at_top);
        let mut over = all.saturating_sub(MAX_MARKERS);
        if over > 0 {
            warnings.add(WarningAction::Dropped, "cache_control");
        }
        let mut leave_out = |held: usize| {
            let out = held.min(over);
            over -= out;
            out
        };
        CacheMarkerBudget {
            messages: leave_out(in_messages),
            tools: leave_out(in_tools),
            system: leave_out(in_system),
        }
    }

    /// Returns whether the next marker of this section may be written.
    pub fn allow(&mut self, place: MarkerSection) -> bool {
        let left = match place {
            MarkerSection::Messages => &mut self.messages,
            MarkerSection::Tools => &mut self.tools,
            MarkerSection::System => &mut self.system,
        };
        let allowed = *left == 0;
        *left = left.saturating_sub(1);
        allowed
    }
}

/// Counts the markers on the block and inside it.
pub(super) fn count_markers(block: &Block<'_>) -> usize {
    let nested = match &block.kind {
        BlockKind::Result(outcome) => match &outcome.content {
            ToolResultContent::Blocks(blocks) => blocks.iter().map(count_markers).sum(),
            ToolResultContent::Nothing | ToolResultContent::Text(_) => 0,
        },
        // Reasoning has no marker.
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
