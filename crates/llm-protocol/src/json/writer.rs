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

    /// Begins a member that is an object.
    pub fn member_object(&mut self, name: &str) -> &mut Self {
        self.key(name).open_object()
    }

    /// Begins a member that is an array.
    pub fn member_array(&mut self, name: &str) -> &mut Self {
        self.key(name).open_array()
    }

    /// Begins an object whose first member is its type.
    pub fn open_typed(&mut self, kind: &str) -> &mut Self {
        self.open_object().member_str("type", kind)
    }

    /// Begins a member that is an object whose first member is its type.
    pub fn member_typed(&mut self, name: &str, kind: &str) -> &mut Self {
        self.key(name).open_typed(kind)
    }

    pub fn member_str(&mut self, name: &str, text: &str) -> &mut Self {
        self.key(name).str(text)
    }

    pub fn member_text(&mut self, name: &str, text: &JsonStr<'_>) -> &mut Self {
        self.key(name).text(text)
    }

    pub fn member_number(&mut self, name: &str, number: u64) -> &mut Self {
        self.key(name).number(number)
    }

    pub fn member_bool(&mut self, name: &str, value: bool) -> &mut Self {
        self.key(name).bool(value)
    }

    pub fn member_null(&mut self, name: &str) -> &mut Self {
        self.key(name).null()
    }

    pub fn member_raw(&mut self, name: &str, json: &str) -> &mut Self {
        self.key(name).raw(json)
    }

    pub fn member_compact(&mut self, name: &str, json: &str) -> &mut Self {
        self.key(name).compact(json)
    }

    pub fn member_concat<'t, 'a: 't>(
        &mut self,
        name: &str,
        texts: impl IntoIterator<Item = &'t JsonStr<'a>>,
    ) -> &mut Self {
        self.key(name).concat(texts)
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
