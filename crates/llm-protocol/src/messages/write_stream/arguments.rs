//! Scans a call's arguments as they arrive, to find out whether they are complete and how to send
//! them.
//!
//! A fragment that has been sent cannot be recalled, and clients fail on text that does not begin a
//! JSON object. Therefore a block opens early only for arguments that begin with an object. Other
//! arguments are buffered until the end of the call and then wrapped. Arguments that are complete
//! before any part was sent are checked first.
//!
//! Read next: `capabilities/arguments.rs`.

use crate::capabilities::arguments::{write_input, write_truncated_input};
use crate::json::{JsonStr, JsonStrBuf, JsonWriter};

#[derive(Debug)]
pub(super) struct ArgumentScanner {
    /// True if the arguments are the plain text of a custom tool, which is sent whole.
    is_custom: bool,
    state: ArgumentScanState,
    depth: u32,
    in_string: bool,
    /// True if the scanner is inside a string, after a backslash of the arguments' JSON (not of the
    /// token around it).
    is_escaped: bool,
    /// True if any member stands between the outermost braces.
    has_members: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ArgumentScanState {
    /// Only white space has arrived.
    Blank,
    /// The object has begun and not ended.
    InObject,
    /// The object has ended.
    Whole,
    /// The arguments are not a JSON object.
    Odd,
}

impl ArgumentScanner {
    pub(super) fn new(is_custom: bool) -> Self {
        ArgumentScanner {
            is_custom,
            state: ArgumentScanState::Blank,
            depth: 0,
            in_string: false,
            is_escaped: false,
            has_members: false,
        }
    }

    /// Buffers more arguments of a call of which no part has been sent.
    pub(super) fn buffer(&mut self, text: &JsonStr<'_>, kept: &mut JsonStrBuf) {
        // Some vendors begin with an empty object and send the arguments after it.
        if self.state == ArgumentScanState::Whole && !self.has_members && begins_object(text) {
            *self = ArgumentScanner::new(self.is_custom);
            kept.clear();
        }
        self.scan(text);
        kept.push(text);
    }

    /// Scans more arguments of an open call, and returns the part to send. The part is empty after
    /// the end of the object.
    pub(super) fn forward<'t>(&mut self, text: &'t JsonStr<'_>) -> JsonStr<'t> {
        if self.state == ArgumentScanState::Whole {
            return JsonStr::from_value("");
        }
        let end = self.scan(text);
        text.reborrow().part(..end)
    }

    /// Returns whether a part of the arguments may be sent before their end is known.
    pub(super) fn may_open(&self) -> bool {
        let begins = match self.state {
            ArgumentScanState::InObject => true,
            ArgumentScanState::Whole => self.has_members,
            ArgumentScanState::Blank | ArgumentScanState::Odd => false,
        };
        begins && !self.is_custom
    }

    pub(super) fn is_complete(&self) -> bool {
        self.state == ArgumentScanState::Whole && !self.is_custom
    }

    /// Returns the text to send when the block opens. `is_done` says that `kept` holds all
    /// arguments, and `was_cut` that the answer was cut off inside them.
    pub(super) fn initial_text<'k>(
        &self,
        kept: &'k JsonStrBuf,
        is_done: bool,
        was_cut: bool,
    ) -> JsonStr<'k> {
        let text = kept.text();
        if !self.is_custom && !is_done && self.state == ArgumentScanState::InObject {
            return text;
        }
        let mut json = JsonWriter::with_capacity(kept.len() + 32);
        if was_cut && (self.is_custom || self.state != ArgumentScanState::Whole) {
            write_truncated_input(&text, &mut json);
        } else if self.is_custom {
            json.open_object().member("input", &text).close_object();
        } else if text.is_blank() {
            return JsonStr::from_value("");
        } else if !write_input(&text, &mut json) && self.state == ArgumentScanState::Whole {
            // The text keeps the vendor's own spelling.
            return text;
        }
        JsonStr::from_value(json.into_string())
    }

    /// Scans the text. Returns the position at which the object ends, in bytes of the stored form,
    /// or the length of the text.
    fn scan(&mut self, text: &JsonStr<'_>) -> usize {
        let bytes = text.written().as_bytes();
        match text.is_escaped() {
            true => self.scan_escaped(bytes),
            false => self.scan_plain(bytes),
        }
    }

    fn scan_plain(&mut self, bytes: &[u8]) -> usize {
        for (at, byte) in bytes.iter().enumerate() {
            if self.scan_byte(*byte) {
                return at + 1;
            }
        }
        bytes.len()
    }

    /// Scans the content of a JSON string token. No escape is split between tokens.
    fn scan_escaped(&mut self, bytes: &[u8]) -> usize {
        let mut at = 0;
        while let Some(byte) = bytes.get(at) {
            let (byte, length) = match (byte, bytes.get(at + 1)) {
                (b'\\', Some(b'n' | b't' | b'r')) => (b' ', 2),
                (b'\\', Some(b'u')) => (decode_ascii(bytes.get(at + 2..at + 6)), 6),
                (b'\\', Some(escaped)) => (*escaped, 2),
                (byte, _) => (*byte, 1),
            };
            at += length;
            if self.scan_byte(byte) {
                return at;
            }
        }
        bytes.len()
    }

    /// Scans one byte of the JSON. Returns true if it ends the object.
    fn scan_byte(&mut self, byte: u8) -> bool {
        let is_space = matches!(byte, b' ' | b'\n' | b'\r' | b'\t');
        match self.state {
            ArgumentScanState::Blank if byte == b'{' => {
                (self.state, self.depth) = (ArgumentScanState::InObject, 1)
            }
            ArgumentScanState::Blank if !is_space => self.state = ArgumentScanState::Odd,
            ArgumentScanState::InObject => return self.scan_object_byte(byte, is_space),
            // A character follows the end of the object, so arguments that have not been sent yet
            // are malformed.
            ArgumentScanState::Whole if !is_space => self.state = ArgumentScanState::Odd,
            ArgumentScanState::Blank | ArgumentScanState::Whole | ArgumentScanState::Odd => {}
        }
        false
    }

    fn scan_object_byte(&mut self, byte: u8, is_space: bool) -> bool {
        if self.in_string {
            match byte {
                _ if self.is_escaped => self.is_escaped = false,
                b'\\' => self.is_escaped = true,
                b'"' => self.in_string = false,
                _ => {}
            }
            return false;
        }
        match byte {
            b'"' => self.in_string = true,
            b'{' | b'[' => self.depth = self.depth.saturating_add(1),
            b'}' | b']' => {
                self.depth = self.depth.saturating_sub(1);
                if self.depth == 0 {
                    self.state = ArgumentScanState::Whole;
                    return true;
                }
            }
            _ => {}
        }
        self.has_members |= !is_space;
        false
    }
}

/// Decodes four hexadecimal digits to an ASCII character, which suffices for the JSON grammar.
fn decode_ascii(digits: Option<&[u8]>) -> u8 {
    let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
    let unit = digits.and_then(|digits| u16::from_str_radix(digits, 16).ok());
    // Characters beyond ASCII occur only in strings.
    unit.and_then(|unit| u8::try_from(unit).ok())
        .filter(u8::is_ascii)
        .unwrap_or(b'x')
}

fn begins_object(text: &JsonStr<'_>) -> bool {
    text.written().trim_ascii_start().starts_with('{')
}
