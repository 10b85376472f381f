//! Removes the billing line that one client puts before its instructions.
//!
//! This file must not change the rest of the instructions.

use crate::ir::{BlockKind, Request};
use crate::json::JsonStr;

/// Prefix of a line that one client puts before its instructions. The line differs in each request,
/// so it would defeat the prompt cache of every vendor that does not skip it.
const BILLING_HEADER_PREFIX: &str = "x-anthropic-billing-header:";

/// Maximum number of bytes before the billing line. They are the members of a text block.
const MAX_BLOCK_START: usize = 200;

/// Removes the billing header line from the instructions.
pub(crate) fn strip_billing_header(request: &mut Request<'_>) {
    for block in &mut request.system {
        if let BlockKind::Text(text) = &mut block.kind
            && let Some(rest) = text.token().and_then(without_header)
        {
            *text = JsonStr::from_token(rest, text.is_escaped());
        }
    }
}

/// Returns the content of a JSON string without the billing line, or `None` if it has no such line.
pub(crate) fn without_header(raw: &str) -> Option<&str> {
    raw.starts_with(BILLING_HEADER_PREFIX)
        .then(|| after_first_line(raw))
}

/// Returns a JSON string, with its quotes, without the billing line. Returns `None` if it has no
/// such line.
pub(crate) fn without_header_json(json: &str) -> Option<String> {
    let inside = json.strip_prefix('"')?.strip_suffix('"')?;
    Some(format!("\"{}\"", without_header(inside)?))
}

/// Returns whether instructions, a JSON string or a list of blocks, begin with the billing line.
pub(crate) fn begins_with_header(json: &str) -> bool {
    let end = json.floor_char_boundary(MAX_BLOCK_START + BILLING_HEADER_PREFIX.len());
    json.get(..end)
        .is_some_and(|start| start.contains(BILLING_HEADER_PREFIX))
}

/// Returns the part after the first line in the content of a JSON string.
fn after_first_line(raw: &str) -> &str {
    let mut letters = raw.char_indices();
    while let Some((_, letter)) = letters.next() {
        if letter == '\\'
            && let Some((at, 'n')) = letters.next()
        {
            return raw.get(at + 1..).unwrap_or_default();
        }
    }
    ""
}
