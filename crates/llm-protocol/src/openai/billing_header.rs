//! Removes the line that one client puts before its instructions.
//!
//! It must not change anything else in them.

use crate::ir::{BlockKind, Request};
use crate::json::string::JsonStr;

/// Prefix of a line that one client puts before its instructions. The line differs in each request,
/// so it would defeat the prompt cache of every vendor that does not skip it.
const BILLING_HEADER_PREFIX: &str = "x-anthropic-billing-header:";

/// Removes the billing header line from the instructions.
pub(crate) fn strip_billing_header(request: &mut Request<'_>) {
    for block in &mut request.system {
        let BlockKind::Text(text) = &mut block.kind else {
            continue;
        };
        if let JsonStr::Token { raw, escaped, .. } = text
            && raw.starts_with(BILLING_HEADER_PREFIX)
        {
            *text = JsonStr::from_token(after_first_line(raw), *escaped);
        }
    }
}

/// Returns the part after the first line of the inside of a JSON string.
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
