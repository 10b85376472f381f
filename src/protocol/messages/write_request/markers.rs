//! Cache markers: a messages vendor accepts four, including the one at the top level.
//!
//! It must not add a marker: a caller who sets markers does so deliberately.
//!
//! Read next: `write_request/block_writer.rs`.

use super::tools::Tools;
use super::turns::Arranged;
use crate::protocol::form::{Action, Block, BlockKind, OutcomeContent, Request, Warnings};

const MARKERS_MAX: usize = 4;

/// Number of markers of each section to omit, earliest first.
#[derive(Debug, Default)]
pub(super) struct Markers {
    messages: usize,
    tools: usize,
    system: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    Messages,
    Tools,
    System,
}

impl Markers {
    /// Counts the markers to be written. If there are too many, plans to omit first those that the
    /// next turn would not read again.
    pub fn new(
        request: &Request<'_>,
        tools: &Tools<'_, '_>,
        arranged: &[Arranged<'_, '_>],
        at_top: bool,
        warnings: &mut Warnings,
    ) -> Self {
        let in_messages: usize = arranged
            .iter()
            .flat_map(|turn| &turn.pieces)
            .map(|piece| piece.markers())
            .sum();
        let (in_tools, in_system) = (
            tools.markers(),
            request.system.iter().map(count).sum::<usize>(),
        );
        let all = in_messages + in_tools + in_system + usize::from(at_top);
        let mut over = all.saturating_sub(MARKERS_MAX);
        if over > 0 {
            warnings.add(Action::Dropped, "cache_control");
        }
        let mut leave_out = |held: usize| {
            let out = held.min(over);
            over -= out;
            out
        };
        Markers {
            messages: leave_out(in_messages),
            tools: leave_out(in_tools),
            system: leave_out(in_system),
        }
    }

    /// Returns whether the next marker of this section may be written.
    pub fn allow(&mut self, place: Place) -> bool {
        let left = match place {
            Place::Messages => &mut self.messages,
            Place::Tools => &mut self.tools,
            Place::System => &mut self.system,
        };
        let allowed = *left == 0;
        *left = left.saturating_sub(1);
        allowed
    }
}

/// Counts the markers on the block and inside it.
pub(super) fn count(block: &Block<'_>) -> usize {
    let nested = match &block.kind {
        BlockKind::Result(outcome) => match &outcome.content {
            OutcomeContent::Blocks(blocks) => blocks.iter().map(count).sum(),
            OutcomeContent::Nothing | OutcomeContent::Text(_) => 0,
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
