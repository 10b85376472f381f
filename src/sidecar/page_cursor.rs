//! Formats and parses the position in the ledger at which the next page of a table begins. The text
//! in links is `AT.SEQ`.
//!
//! This file must not read the ledger.

use super::error::PageError;
use crate::billing::activity::ActivityCursor;

/// Formats a position for a link.
pub fn format_cursor(ActivityCursor { at_ms, seq }: ActivityCursor) -> String {
    format!("{at_ms}.{seq}")
}

/// Parses the text of a position. The empty text is the first page.
///
/// # Errors
/// Returns "not found" for malformed text.
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
