//! A call's arguments as they come in: how much of them there is, and in which form they go out.
//!
//! Fragments that are sent cannot be called back, and a client's reader breaks on what is no
//! beginning of a JSON object. So a block is opened for arguments that begin like one; all others
//! are kept to the end of the call, and then wrapped. Arguments that came whole before anything was
//! sent are looked through first.
//!
//! Read next: `rules/arguments.rs`.

use crate::protocol::rules::arguments::{write_cut_input, write_input};
use crate::protocol::text::{Gathered, Json, Text};

/// Where the JSON of the arguments stands after what came so far.
#[derive(Debug)]
pub(super) struct Arguments {
    /// Plain text of a custom tool: sent as a whole.
    is_custom: bool,
    state: State,
    depth: u32,
    in_string: bool,
    /// In a string, behind a backslash (of the JSON, not of the token that carries it).
    is_escaped: bool,
    /// There is something between the outermost braces.
    has_members: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Nothing but white space.
    Blank,
    /// Inside an object.
    Inside,
    /// The object is closed.
    Whole,
    /// No object.
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

    /// More of arguments of which nothing was sent yet.
    pub(super) fn keep(&mut self, text: &Text<'_>, kept: &mut Gathered) {
        // Some vendors open with an empty object and send the arguments behind it.
        if self.state == State::Whole && !self.has_members && begins_object(text) {
            *self = Arguments::new(self.is_custom);
            kept.clear();
        }
        self.read(text);
        kept.push(text);
    }

    /// More of arguments that are being sent: what may be sent of it. Behind the object's end that
    /// is nothing.
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

    /// Something of it may be sent before its end is known.
    pub(super) fn may_be_opened(&self) -> bool {
        let begins = match self.state {
            State::Inside => true,
            State::Whole => self.has_members,
            State::Blank | State::Odd => false,
        };
        begins && !self.is_custom
    }

    /// The object is closed.
    pub(super) fn are_whole(&self) -> bool {
        self.state == State::Whole && !self.is_custom
    }

    /// What is sent when the block is opened. `is_done`: `kept` is all there is; `was_cut`: and the
    /// answer broke off in it.
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

    /// Reads on; gives where in the text (in bytes as it is held) the object ends, or its length.
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

    /// The inside of a JSON string token, whose escapes are whole.
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

    /// One byte of the JSON; true where it ends the object.
    fn byte(&mut self, byte: u8) -> bool {
        let is_space = matches!(byte, b' ' | b'\n' | b'\r' | b'\t');
        match self.state {
            State::Blank if byte == b'{' => (self.state, self.depth) = (State::Inside, 1),
            State::Blank if !is_space => self.state = State::Odd,
            State::Inside => return self.byte_inside(byte, is_space),
            // Something behind the end: what was not sent yet is broken.
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

/// The character that four hexadecimal digits stand for, as far as the grammar of JSON cares.
fn ascii(digits: Option<&[u8]>) -> u8 {
    let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
    let unit = digits.and_then(|digits| u16::from_str_radix(digits, 16).ok());
    // Whatever is no ASCII stands in strings only.
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
