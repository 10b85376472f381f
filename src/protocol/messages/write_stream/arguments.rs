//! Scans a call's arguments as they arrive: whether they are complete, and in which form to send
//! them.
//!
//! A fragment that has been sent cannot be recalled, and clients fail on text that does not begin a
//! JSON object. Therefore a block opens early only for arguments that begin with an object. Other
//! arguments are buffered until the end of the call and then wrapped. If the arguments arrive
//! complete before anything was sent, they are checked first.
//!
//! Read next: `capabilities/arguments.rs`.

use crate::protocol::rules::arguments::{write_cut_input, write_input};
use crate::protocol::text::{Gathered, Json, Text};

/// State of the JSON scanner after the arguments so far.
#[derive(Debug)]
pub(super) struct Arguments {
    /// Plain text of a custom tool, sent as a whole.
    is_custom: bool,
    state: State,
    depth: u32,
    in_string: bool,
    /// Inside a string, after a backslash of the arguments' JSON (not of the token that carries
    /// it).
    is_escaped: bool,
    /// There is something between the outermost braces.
    has_members: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Only white space so far.
    Blank,
    /// Inside the object.
    Inside,
    /// After the end of the object.
    Whole,
    /// Not a JSON object.
    Odd,
}

impl Arguments {
    pub(super) fn new(is_custom: bool) -> Self {
        Arguments {
            is_custom,
            state: State::Blank,
            depth: 0,
            in_string: false,
            is_escaped: false,
            has_members: false,
        }
    }

    /// Buffers more arguments of a call of which nothing has been sent.
    pub(super) fn keep(&mut self, text: &Text<'_>, kept: &mut Gathered) {
        // Some vendors begin with an empty object and send the arguments after it.
        if self.state == State::Whole && !self.has_members && begins_object(text) {
            *self = Arguments::new(self.is_custom);
            kept.clear();
        }
        self.read(text);
        kept.push(text);
    }

    /// Scans more arguments of an open call, and returns the part to send. After the end of the
    /// object that part is empty.
    pub(super) fn more<'t>(&mut self, text: &'t Text<'_>) -> Text<'t> {
        if self.state == State::Whole {
            return Text::made("");
        }
        let end = self.read(text);
        match text {
            Text::Token { raw, escaped, .. } => {
                Text::token(raw.get(..end).unwrap_or_default(), *escaped)
            }
            Text::Made(text) => Text::made(text.get(..end).unwrap_or_default()),
        }
    }

    /// Returns whether part of the arguments may be sent before their end is known.
    pub(super) fn may_be_opened(&self) -> bool {
        let begins = match self.state {
            State::Inside => true,
            State::Whole => self.has_members,
            State::Blank | State::Odd => false,
        };
        begins && !self.is_custom
    }

    /// Returns whether the object is complete.
    pub(super) fn are_whole(&self) -> bool {
        self.state == State::Whole && !self.is_custom
    }

    /// Returns the text to send when the block opens. `is_done`: `kept` holds all of the arguments;
    /// `was_cut`: the answer was cut off inside them.
    pub(super) fn opening<'k>(&self, kept: &'k Gathered, is_done: bool, was_cut: bool) -> Text<'k> {
        let text = kept.text();
        if !self.is_custom && !is_done && self.state == State::Inside {
            return text;
        }
        let mut json = Json::with_capacity(kept.len() + 32);
        if was_cut && (self.is_custom || self.state != State::Whole) {
            write_cut_input(&text, &mut json);
        } else if self.is_custom {
            json.open_object().key("input").text(&text).close_object();
        } else if text.is_blank() {
            return Text::made("");
        } else if !write_input(&text, &mut json) && self.state == State::Whole {
            // In the vendor's own spelling.
            return text;
        }
        Text::made(String::from_utf8(json.into_bytes()).unwrap_or_default())
    }

    /// Scans the text. Returns the position where the object ends (in bytes of the text as it is
    /// held), or the length of the text.
    fn read(&mut self, text: &Text<'_>) -> usize {
        match text {
            Text::Made(text) => self.read_plain(text.as_bytes()),
            Text::Token {
                raw,
                escaped: false,
                ..
            } => self.read_plain(raw.as_bytes()),
            Text::Token {
                raw, escaped: true, ..
            } => self.read_escaped(raw.as_bytes()),
        }
    }

    fn read_plain(&mut self, bytes: &[u8]) -> usize {
        for (at, byte) in bytes.iter().enumerate() {
            if self.byte(*byte) {
                return at + 1;
            }
        }
        bytes.len()
    }

    /// Scans the inside of a JSON string token. No escape is split between tokens.
    fn read_escaped(&mut self, bytes: &[u8]) -> usize {
        let mut at = 0;
        while let Some(byte) = bytes.get(at) {
            let (byte, length) = match (byte, bytes.get(at + 1)) {
                (b'\\', Some(b'n' | b't' | b'r')) => (b' ', 2),
                (b'\\', Some(b'u')) => (ascii(bytes.get(at + 2..at + 6)), 6),
                (b'\\', Some(escaped)) => (*escaped, 2),
                (byte, _) => (*byte, 1),
            };
            at += length;
            if self.byte(byte) {
                return at;
            }
        }
        bytes.len()
    }

    /// Scans one byte of the JSON. Returns true if it ends the object.
    fn byte(&mut self, byte: u8) -> bool {
        let is_space = matches!(byte, b' ' | b'\n' | b'\r' | b'\t');
        match self.state {
            State::Blank if byte == b'{' => (self.state, self.depth) = (State::Inside, 1),
            State::Blank if !is_space => self.state = State::Odd,
            State::Inside => return self.byte_inside(byte, is_space),
            // Something follows the end, so arguments that have not been sent yet are broken.
            State::Whole if !is_space => self.state = State::Odd,
            State::Blank | State::Whole | State::Odd => {}
        }
        false
    }

    fn byte_inside(&mut self, byte: u8, is_space: bool) -> bool {
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
                    self.state = State::Whole;
                    return true;
                }
            }
            _ => {}
        }
        self.has_members |= !is_space;
        false
    }
}

/// Decodes four hexadecimal digits to a character, as far as the JSON grammar needs it.
fn ascii(digits: Option<&[u8]>) -> u8 {
    let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
    let unit = digits.and_then(|digits| u16::from_str_radix(digits, 16).ok());
    // Other characters than ASCII occur only in strings.
    unit.and_then(|unit| u8::try_from(unit).ok())
        .filter(u8::is_ascii)
        .unwrap_or(b'x')
}

fn begins_object(text: &Text<'_>) -> bool {
    let shown = match text {
        Text::Token { raw, .. } => *raw,
        Text::Made(text) => text.as_ref(),
    };
    shown.trim_ascii_start().starts_with('{')
}
