//! Applies a few edits to bytes and copies the rest unchanged.
//!
//! This file must not inspect the bytes that it copies. It ignores edits that overlap or lie
//! outside the text.
//!
//! Read next: `passthrough.rs`.

use crate::json::scanner::Span;
use crate::sse::SseEvent;
use std::borrow::Cow;

/// Replacement of the bytes at `span` with `text`.
#[derive(Clone, Debug)]
pub(crate) struct JsonEdit<'a> {
    pub span: Span,
    pub text: Cow<'a, str>,
}

impl<'a> JsonEdit<'a> {
    pub fn new(span: Span, text: impl Into<Cow<'a, str>>) -> Self {
        JsonEdit {
            span,
            text: text.into(),
        }
    }
}

/// Returns `text` as a JSON string, with its quotes.
pub(crate) fn json_string(text: &str) -> String {
    serde_json::Value::String(text.to_owned()).to_string()
}

/// Returns the span of `piece`, a slice of `text`.
pub(crate) fn span_of(text: &str, piece: &str) -> Span {
    let start = piece.as_ptr().addr().saturating_sub(text.as_ptr().addr());
    Span {
        start,
        end: start.saturating_add(piece.len()),
    }
}

/// Applies `edits` to `source` and appends the result to `out`. The function sorts `edits`.
pub(crate) fn apply_edits(source: &[u8], edits: &mut [JsonEdit<'_>], out: &mut Vec<u8>) {
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

/// Appends the event to `out` with the edits applied to its data. `more` has the edits beyond two:
/// few events need them, and without them nothing is allocated.
pub(crate) fn write_edited_event<'e>(
    event: &SseEvent<'_>,
    edits: [Option<JsonEdit<'e>>; 2],
    mut more: Vec<JsonEdit<'e>>,
    out: &mut Vec<u8>,
) {
    if !more.is_empty() {
        more.splice(0..0, edits.into_iter().flatten());
        return write_event_with_edits(event, &mut more, out);
    }
    match edits {
        [None, None] => write_event_with_edits(event, &mut [], out),
        [Some(first), Some(second)] => write_event_with_edits(event, &mut [first, second], out),
        [Some(only), None] | [None, Some(only)] => write_event_with_edits(event, &mut [only], out),
    }
}

fn write_event_with_edits(event: &SseEvent<'_>, edits: &mut [JsonEdit<'_>], out: &mut Vec<u8>) {
    let Some(data) = event.data.filter(|_| !edits.is_empty()) else {
        out.extend_from_slice(event.raw);
        return;
    };
    let Some(at) = event.data_at else {
        return write_joined_event(event, data, edits, out);
    };
    out.extend_from_slice(event.raw.get(..at).unwrap_or_default());
    apply_edits(data, edits, out);
    out.extend_from_slice(
        event
            .raw
            .get(at.saturating_add(data.len())..)
            .unwrap_or_default(),
    );
}

/// Appends an event whose data came in several lines. The edits' spans refer to the joined text, so
/// the data is written as one line. Inside JSON a line end is always white space between tokens.
fn write_joined_event(
    event: &SseEvent<'_>,
    data: &[u8],
    edits: &mut [JsonEdit<'_>],
    out: &mut Vec<u8>,
) {
    if !event.name.is_empty() {
        out.extend_from_slice(b"event: ");
        out.extend_from_slice(event.name);
        out.push(b'\n');
    }
    out.extend_from_slice(b"data: ");
    let start = out.len();
    apply_edits(data, edits, out);
    for byte in out.iter_mut().skip(start) {
        if matches!(*byte, b'\n' | b'\r') {
            *byte = b' ';
        }
    }
    out.extend_from_slice(b"\n\n");
}
