//! Applies a few edits to bytes and copies the rest unchanged.
//!
//! It must not inspect the bytes that it copies. It ignores edits that overlap or lie outside the
//! text; it does not guess.
//!
//! Read next: `protocol/passthrough.rs`.

use crate::protocol::scan::Span;
use crate::protocol::sse::Event;

/// Replacement of the bytes at `span` with `text`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Splice<'a> {
    span: Span,
    text: &'a str,
}

impl<'a> Splice<'a> {
    pub fn new(span: Span, text: &'a str) -> Self {
        Splice { span, text }
    }
}

/// Returns `text` as a JSON string, with its quotes.
pub(crate) fn json_string(text: &str) -> String {
    serde_json::Value::String(text.to_owned()).to_string()
}

/// Applies `edits` to `source` and appends the result to `out`. Sorts `edits`.
pub(crate) fn bytes(source: &[u8], edits: &mut [Splice<'_>], out: &mut Vec<u8>) {
    edits.sort_by_key(|edit| edit.span.start);
    let mut copied = 0;
    for edit in edits {
        if let Some(before) = source.get(copied..edit.span.start)
            && edit.span.end <= source.len()
        {
            out.extend_from_slice(before);
            out.extend_from_slice(edit.text.as_bytes());
            copied = edit.span.end;
        }
    }
    out.extend_from_slice(source.get(copied..).unwrap_or_default());
}

/// Appends the event to `out` with the edits applied to its data; unchanged if there are none.
pub(crate) fn event(event: &Event<'_>, edits: [Option<Splice<'_>>; 2], out: &mut Vec<u8>) {
    match edits {
        [None, None] => event_with(event, &mut [], out),
        [Some(first), Some(second)] => event_with(event, &mut [first, second], out),
        [Some(only), None] | [None, Some(only)] => event_with(event, &mut [only], out),
    }
}

/// Appends the event to `out` with any number of edits applied to its data.
pub(crate) fn event_with(event: &Event<'_>, edits: &mut [Splice<'_>], out: &mut Vec<u8>) {
    let Some(data) = event.data.filter(|_| !edits.is_empty()) else {
        out.extend_from_slice(event.raw);
        return;
    };
    let Some(at) = event.data_at else {
        return rewritten(event, data, edits, out);
    };
    out.extend_from_slice(event.raw.get(..at).unwrap_or_default());
    bytes(data, edits, out);
    out.extend_from_slice(
        event
            .raw
            .get(at.saturating_add(data.len())..)
            .unwrap_or_default(),
    );
}

/// Appends an event whose data came in several lines. The edits' spans refer to the joined text, so
/// the data is written as one line. Inside JSON a line end is only ever white space between tokens.
fn rewritten(event: &Event<'_>, data: &[u8], edits: &mut [Splice<'_>], out: &mut Vec<u8>) {
    if !event.name.is_empty() {
        out.extend_from_slice(b"event: ");
        out.extend_from_slice(event.name);
        out.push(b'\n');
    }
    out.extend_from_slice(b"data: ");
    let start = out.len();
    bytes(data, edits, out);
    for byte in out.iter_mut().skip(start) {
        if matches!(*byte, b'\n' | b'\r') {
            *byte = b' ';
        }
    }
    out.extend_from_slice(b"\n\n");
}
