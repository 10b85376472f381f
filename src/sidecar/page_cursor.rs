//! The place in the ledger where the next page of a table begins, as its link has it: `AT.SEQ`.
//!
//! Must not read the ledger.

use super::error::PageError;
use crate::billing::activity::ActivityCursor;

/// Returns the text of a place, for a link.
pub fn format_cursor(ActivityCursor { at_ms, seq }: ActivityCursor) -> String {
    format!("{at_ms}.{seq}")
}

/// Parses the text of a place. The empty text is the first page.
///
/// # Errors
/// Returns "not found" for a text that no link has.
pub fn parse_cursor(text: &str) -> Result<Option<ActivityCursor>, PageError> {
    if text.is_empty() {
        return Ok(None);
    }
    let parse = || {
        let (at_ms, seq) = text.split_once('.')?;
        Some(ActivityCursor {
            at_ms: at_ms.parse().ok()?,
            seq: seq.parse().ok()?,
        })
    };
    parse().map(Some).ok_or(PageError::NotFound)
}
