//! Writes JSON: values one after the other, and the compact form of a value that was read.
//!
//! It must not normalise a string: a token is written as it was read.

use super::scanner::string_scanner::StringScanner;
use super::string::{JsonStr, escape};

/// Writes one JSON value, compact. It inserts the commas; the caller closes what it opens.
#[derive(Debug, Default)]
pub struct JsonWriter {
    out: Vec<u8>,
}

impl JsonWriter {
    pub fn with_capacity(bytes: usize) -> Self {
        JsonWriter {
            out: Vec::with_capacity(bytes),
        }
    }

    /// Appends to existing bytes. It inserts no comma after `{`, `[` or `:`.
    pub fn with_buffer(out: Vec<u8>) -> Self {
        JsonWriter { out }
    }

    pub fn into_bytes(self) -> Vec<u8> {
        self.out
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.out
    }

    fn comma(&mut self) {
        if !matches!(
            self.out.last(),
            None | Some(b'{' | b'[' | b':' | b' ' | b'\n')
        ) {
            self.out.push(b',');
        }
    }

    /// Writes a member's name; its value must follow. `name` must not need escaping.
    pub fn key(&mut self, name: &str) -> &mut Self {
        self.comma();
        self.out.push(b'"');
        self.out.extend_from_slice(name.as_bytes());
        self.out.extend_from_slice(b"\":");
        self
    }

    /// Writes a member's name that may need escaping.
    pub fn key_text(&mut self, name: &JsonStr<'_>) -> &mut Self {
        self.comma();
        name.write(&mut self.out);
        self.out.push(b':');
        self
    }

    pub fn open_object(&mut self) -> &mut Self {
        self.comma();
        self.out.push(b'{');
        self
    }

    pub fn close_object(&mut self) -> &mut Self {
        self.out.push(b'}');
        self
    }

    pub fn open_array(&mut self) -> &mut Self {
        self.comma();
        self.out.push(b'[');
        self
    }

    pub fn close_array(&mut self) -> &mut Self {
        self.out.push(b']');
        self
    }

    /// Writes a value that is already JSON.
    pub fn raw(&mut self, json: &str) -> &mut Self {
        self.comma();
        self.out.extend_from_slice(json.as_bytes());
        self
    }

    /// Writes a value that is already JSON on one line, without the white space between its tokens.
    pub fn compact(&mut self, json: &str) -> &mut Self {
        self.comma();
        compact(json, &mut self.out);
        self
    }

    pub fn text(&mut self, text: &JsonStr<'_>) -> &mut Self {
        self.comma();
        text.write(&mut self.out);
        self
    }

    pub fn str(&mut self, text: &str) -> &mut Self {
        self.comma();
        self.out.push(b'"');
        escape(text, &mut self.out);
        self.out.push(b'"');
        self
    }

    pub fn number(&mut self, number: u64) -> &mut Self {
        self.comma();
        self.out.extend_from_slice(number.to_string().as_bytes());
        self
    }

    pub fn bool(&mut self, value: bool) -> &mut Self {
        self.raw(if value { "true" } else { "false" })
    }

    pub fn null(&mut self) -> &mut Self {
        self.raw("null")
    }

    /// Writes one string that joins several texts without decoding them.
    pub fn concat<'t, 'a: 't>(
        &mut self,
        texts: impl IntoIterator<Item = &'t JsonStr<'a>>,
    ) -> &mut Self {
        self.comma();
        self.out.push(b'"');
        for text in texts {
            text.write_unquoted(&mut self.out);
        }
        self.out.push(b'"');
        self
    }
}

/// Appends valid JSON without the white space between its tokens.
pub(crate) fn compact(json: &str, out: &mut Vec<u8>) {
    let bytes = json.as_bytes();
    let (mut ends, mut at, mut copied) = (StringScanner::new(bytes), 0, 0);
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' => at = skip_string(&mut ends, bytes, at + 1),
            b' ' | b'\n' | b'\r' | b'\t' => {
                out.extend_from_slice(bytes.get(copied..at).unwrap_or_default());
                at += 1;
                copied = at;
            }
            _ => at += 1,
        }
    }
    out.extend_from_slice(bytes.get(copied..).unwrap_or_default());
}

/// Returns the position after the closing quote of the string whose inside begins at `at`.
fn skip_string(ends: &mut StringScanner<'_>, bytes: &[u8], mut at: usize) -> usize {
    loop {
        at = ends.next_special(at);
        match bytes.get(at) {
            Some(b'\\') => at += 2,
            _ => return at + 1,
        }
    }
}
