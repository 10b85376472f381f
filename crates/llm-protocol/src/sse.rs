//! Decodes bytes to server-sent events. The decoder is incremental and bounded, and the result does
//! not depend on how the bytes are split.
//!
//! This file must not interpret an event. Every byte belongs to exactly one event's `raw`, in
//! order. A caller that forwards all events unchanged therefore forwards the stream unchanged,
//! including comments, blank lines, byte order mark and the vendor's line ends (LF, CRLF, CR).
//!
//! The crate `eventsource-stream` is no replacement, because it returns an event's fields without
//! its bytes.
//!
//! Read next: `passthrough.rs`.

use std::ops::Range;

/// Maximum buffer that a stream keeps allocated while it waits for its next event.
const MAX_IDLE_BYTES: usize = 16 * 1024;

/// One event, or a part of the stream that is not an event (a comment or a blank line), whose
/// `data` is `None`.
#[derive(Debug)]
pub struct SseEvent<'a> {
    /// The bytes as received, with their line ends and the blank line.
    pub raw: &'a [u8],
    /// The value of the last `event:` field, or empty without one.
    pub name: &'a [u8],
    /// The `data:` lines, joined by LF, or `None` without any.
    pub data: Option<&'a [u8]>,
    /// Offset of `data` in `raw`, or `None` if several lines were joined.
    pub data_at: Option<usize>,
}

/// The error for an event that is larger than the decoder's limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EventTooLarge {
    pub limit: usize,
}

/// Returns whether a body is a stream of events by its first bytes, or `None` if there are too few
/// bytes. `named` says whether the content type announces events, and decides if the bytes do not.
pub fn begins_with_event(opening: &[u8], named: bool) -> Option<bool> {
    const FIELDS: [&[u8]; 4] = [b"data", b"event", b"id", b"retry"];
    let opening = without_byte_order_mark(opening).trim_ascii_start();
    let mut lines = opening.splitn(2, |byte| matches!(byte, b':' | b'\r' | b'\n'));
    match (lines.next(), lines.next()) {
        (None | Some([]), None) => None,
        (Some([b'{' | b'[', ..]), _) => Some(false),
        (Some(field), Some(_)) => Some(named || field.is_empty() || FIELDS.contains(&field)),
        (Some(begun), None) if FIELDS.iter().any(|field| field.starts_with(begun)) => None,
        _ => Some(named),
    }
}

/// Decodes a stream. After each `feed`, call `next_event` until it returns `None`.
#[derive(Debug, Default)]
pub struct SseDecoder {
    event_bytes_max: usize,
    buffer: Vec<u8>,
    /// Offsets in the buffer: the start of the current event, the start of its current line, and
    /// the end of the part that was searched for line ends.
    event_start: usize,
    line_start: usize,
    looked_at: usize,
    name: Range<usize>,
    data: Vec<Range<usize>>,
    joined: Vec<u8>,
    /// The line end of the current event's last line.
    line_end: LineEnd,
    /// True if the first line is still to be read, so that a byte order mark may precede it.
    is_first_line: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum LineEnd {
    #[default]
    None,
    Lf,
    Cr,
    CrLf,
}

impl SseDecoder {
    /// Creates a decoder. `event_bytes_max` is the maximum size of an event, all its lines
    /// together.
    pub fn new(event_bytes_max: usize) -> Self {
        SseDecoder {
            event_bytes_max,
            is_first_line: true,
            ..SseDecoder::default()
        }
    }

    /// Adds bytes of the stream.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.compact();
        self.buffer.extend_from_slice(bytes);
    }

    /// Ends the stream. The remaining bytes are decoded as if their last line and event were
    /// terminated.
    pub fn close(&mut self) {
        if self.event_start < self.buffer.len() {
            self.feed(b"\n\n");
        }
    }

    /// Returns the next complete event.
    // An iterator's items could not borrow from the iterator.
    #[allow(clippy::should_implement_trait)]
    pub fn next_event(&mut self) -> Result<Option<SseEvent<'_>>, EventTooLarge> {
        if self.line_start == self.event_start {
            self.data.clear();
            self.name = 0..0;
        }
        let Some(raw) = self.read_event()? else {
            return Ok(None);
        };
        if let [_, _, ..] = self.data.as_slice() {
            self.join_data();
        }
        let (data, data_at) = match self.data.as_slice() {
            [] => (None, None),
            [line] => (
                self.buffer.get(line.clone()),
                Some(line.start.saturating_sub(raw.start)),
            ),
            _ => (Some(self.joined.as_slice()), None),
        };
        Ok(Some(SseEvent {
            raw: self.buffer.get(raw).unwrap_or_default(),
            name: self.buffer.get(self.name.clone()).unwrap_or_default(),
            data,
            data_at,
        }))
    }

    /// Reads lines up to the end of an event, and returns the event's byte range.
    fn read_event(&mut self) -> Result<Option<Range<usize>>, EventTooLarge> {
        while let Some((line, next_line, line_end)) = self.next_line() {
            let is_blank = line.is_empty();
            let is_lone_comment =
                self.line_start == self.event_start && self.buffer.get(line.start) == Some(&b':');
            self.line_start = next_line;
            self.looked_at = next_line;
            self.line_end = line_end;
            // A comment before any field is returned at once, because it is a keep-alive for the
            // client.
            if is_blank || is_lone_comment {
                let raw = self.event_start..next_line;
                self.event_start = next_line;
                self.line_end = LineEnd::None;
                self.is_first_line = false;
                self.check_size(raw.len())?;
                return Ok(Some(raw));
            }
            self.read_field(line);
        }
        self.check_size(self.buffer.len().saturating_sub(self.event_start))?;
        Ok(None)
    }

    fn check_size(&self, event_bytes: usize) -> Result<(), EventTooLarge> {
        if event_bytes > self.event_bytes_max {
            return Err(EventTooLarge {
                limit: self.event_bytes_max,
            });
        }
        Ok(())
    }

    /// Returns the next complete line: its bytes, the start of the next line, and its line end.
    /// Returns `None` if more bytes are needed.
    fn next_line(&mut self) -> Option<(Range<usize>, usize, LineEnd)> {
        let from = self.looked_at.max(self.line_start);
        let Some(found) = memchr::memchr2(b'\n', b'\r', self.buffer.get(from..)?) else {
            self.looked_at = self.buffer.len();
            return None;
        };
        let at = from + found;
        let mark = if self.is_first_line && self.line_start == self.event_start {
            byte_order_mark_len(self.buffer.get(self.line_start..at)?)
        } else {
            0
        };
        let line = self.line_start + mark..at;
        if self.buffer.get(at) == Some(&b'\n') {
            return Some((line, at + 1, LineEnd::Lf));
        }
        // After a line that ended in a bare CR, another bare CR ends the event at once: the next
        // byte may take long to arrive. In all other cases an LF right after a CR belongs to the
        // same line end, so the decoder waits for the next byte.
        if line.is_empty() && self.line_end == LineEnd::Cr {
            return Some((line, at + 1, LineEnd::Cr));
        }
        match self.buffer.get(at + 1) {
            Some(b'\n') => Some((line, at + 2, LineEnd::CrLf)),
            Some(_) => Some((line, at + 1, LineEnd::Cr)),
            None => {
                self.looked_at = at;
                None
            }
        }
    }

    fn read_field(&mut self, line: Range<usize>) {
        let bytes = self.buffer.get(line.clone()).unwrap_or_default();
        let colon = memchr::memchr(b':', bytes).unwrap_or(bytes.len());
        let name = bytes.get(..colon).unwrap_or_default();
        let space = usize::from(bytes.get(colon + 1) == Some(&b' '));
        let value = (line.start + colon + 1 + space).min(line.end)..line.end;
        match name {
            b"data" => self.data.push(value),
            b"event" => self.name = value,
            _ => {}
        }
    }

    fn join_data(&mut self) {
        self.joined.clear();
        for (index, line) in self.data.iter().enumerate() {
            if index > 0 {
                self.joined.push(b'\n');
            }
            let bytes = self.buffer.get(line.clone()).unwrap_or_default();
            self.joined.extend_from_slice(bytes);
        }
    }

    fn compact(&mut self) {
        let gone = self.event_start;
        if gone == 0 {
            return;
        }
        self.buffer.drain(..gone.min(self.buffer.len()));
        if self.buffer.is_empty() && self.buffer.capacity() > MAX_IDLE_BYTES {
            self.buffer = Vec::new();
        }
        self.event_start = 0;
        self.line_start = self.line_start.saturating_sub(gone);
        self.looked_at = self.looked_at.saturating_sub(gone);
        for range in self.data.iter_mut().chain([&mut self.name]) {
            range.start = range.start.saturating_sub(gone);
            range.end = range.end.saturating_sub(gone);
        }
    }
}

/// Returns a body, or its start, without the byte order mark that some servers write before UTF-8.
/// The mark is part of no event and of no JSON (RFC 8259, section 8.1).
pub fn without_byte_order_mark(body: &[u8]) -> &[u8] {
    body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body)
}

fn byte_order_mark_len(line: &[u8]) -> usize {
    line.len() - without_byte_order_mark(line).len()
}

#[cfg(test)]
mod tests {
    use super::begins_with_event;

    #[test]
    fn the_first_bytes_tell_events_from_json() {
        for events in [
            "data: {}\n\n",
            "data:{}",
            "event: message_start\n",
            ": keep-alive\n\n",
            "\u{feff}data: {}",
            "\n\n id: 7",
            "retry\n",
        ] {
            assert_eq!(
                begins_with_event(events.as_bytes(), false),
                Some(true),
                "{events:?}"
            );
        }
        for json in ["{\"data\": 1}", "\n  {\n", "[{}]", "\u{feff}{"] {
            assert_eq!(
                begins_with_event(json.as_bytes(), true),
                Some(false),
                "{json:?}"
            );
        }
        for unknown in ["<html>", "datum: 1\n", "database", "Bad gateway"] {
            for named in [false, true] {
                let told = begins_with_event(unknown.as_bytes(), named);
                assert_eq!(told, Some(named), "{unknown:?}");
            }
        }
        for begun in ["", " \r\n", "da", "event", "\u{feff}"] {
            assert_eq!(begins_with_event(begun.as_bytes(), true), None, "{begun:?}");
        }
    }
}
