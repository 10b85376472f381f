//! Plans which cache markers are omitted: a messages vendor accepts four, including the one at the
//! top level.
//!
//! This file must not add a marker to those that the client chose.
//!
//! Read next: `write_request/markers.rs`.

use super::markers::{self, CacheMarkerBudget};
use super::tools::MessagesTools;
use super::turns::MessagesTurn;
use crate::ir::{Request, Warnings};

const MAX_MARKERS: usize = 4;

impl CacheMarkerBudget {
    /// Counts the markers to write. If there are too many, plans to omit first those that the next
    /// turn would not read again.
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
            request
                .system
                .iter()
                .map(markers::count_markers)
                .sum::<usize>(),
        );
        let all = in_messages + in_tools + in_system + usize::from(at_top);
        let mut over = all.saturating_sub(MAX_MARKERS);
        if over > 0 {
            warnings.dropped("cache_control");
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
            is_marked: all > 0,
        }
    }
}
