//! Writes JSON values, and the compact form of a value that was read.
//!
//! This file must not normalise a string: a token is written as it was read.

use super::document::JsonValue;
use super::scanner::string_scanner::StringScanner;
use super::string::{JsonStr, escape};
use std::borrow::Cow;

/// Writes one JSON value in compact form. The writer inserts the commas; the caller closes the
/// objects and arrays that it opens.
#[derive(Debug, Default)]
pub struct JsonWriter {
    out: Vec<u8>,
}

/// A value that [`JsonWriter`] can write: a text, a number, a boolean, a value that was read (in
/// its sender's spelling), or an option, which is null if empty.
pub trait WriteJson {
    fn write_json(&self, json: &mut JsonWriter);
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct JsonNull;

/// A value that is already JSON.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawJson<'a>(pub &'a str);

/// A value that is already JSON on one line, without the white space between its tokens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CompactJson<'a>(pub &'a str);

/// One string that joins several texts without decoding them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JoinedText<I>(pub I);

impl JsonWriter {
    pub fn with_capacity(bytes: usize) -> Self {
        JsonWriter {
            out: Vec::with_capacity(bytes),
        }
    }

    /// Appends the output of `write` to `out`. The function inserts no comma after `{`, `[` or `:`.
    pub fn append_to(out: &mut Vec<u8>, write: impl FnOnce(&mut JsonWriter)) {
        let mut json = JsonWriter {
            out: std::mem::take(out),
        };
        write(&mut json);
        *out = json.out;
    }

    pub fn into_bytes(self) -> Vec<u8> {
        self.out
    }

    pub fn into_string(self) -> String {
        // All parts of the output are UTF-8, so the conversion cannot fail.
        String::from_utf8(self.out).unwrap_or_default()
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
        self.value(name);
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

    pub fn value(&mut self, value: impl WriteJson) -> &mut Self {
        value.write_json(self);
        self
    }

    pub fn member(&mut self, name: &str, value: impl WriteJson) -> &mut Self {
        self.key(name).value(value)
    }

    pub fn member_if_some(&mut self, name: &str, value: Option<impl WriteJson>) -> &mut Self {
        match value {
            Some(value) => self.member(name, value),
            None => self,
        }
    }

    /// Writes members of a value that was read, without the white space between their tokens.
    pub fn copy_members<'a>(
        &mut self,
        members: impl IntoIterator<Item = (JsonStr<'a>, JsonValue<'a>)>,
    ) {
        for (name, value) in members {
            self.key_text(&name).value(CompactJson(value.raw()));
        }
    }

    /// Begins a member that is an object.
    pub fn member_object(&mut self, name: &str) -> &mut Self {
        self.key(name).open_object()
    }

    /// Begins a member that is an array.
    pub fn member_array(&mut self, name: &str) -> &mut Self {
        self.key(name).open_array()
    }

    /// Writes an array of these values.
    pub fn member_list<T: WriteJson>(
        &mut self,
        name: &str,
        values: impl IntoIterator<Item = T>,
    ) -> &mut Self {
        self.member_array(name);
        for value in values {
            self.value(value);
        }
        self.close_array()
    }

    /// Begins an object whose first member is its type.
    pub fn open_typed(&mut self, kind: &str) -> &mut Self {
        self.open_object().member("type", kind)
    }

    /// Begins a member that is an object whose first member is its type.
    pub fn member_typed(&mut self, name: &str, kind: &str) -> &mut Self {
        self.key(name).open_typed(kind)
    }
}

impl<T: WriteJson + ?Sized> WriteJson for &T {
    fn write_json(&self, json: &mut JsonWriter) {
        (**self).write_json(json);
    }
}

impl<T: WriteJson> WriteJson for Option<T> {
    fn write_json(&self, json: &mut JsonWriter) {
        match self {
            Some(value) => value.write_json(json),
            None => JsonNull.write_json(json),
        }
    }
}

impl WriteJson for str {
    fn write_json(&self, json: &mut JsonWriter) {
        json.comma();
        json.out.push(b'"');
        escape(self, &mut json.out);
        json.out.push(b'"');
    }
}

impl WriteJson for String {
    fn write_json(&self, json: &mut JsonWriter) {
        self.as_str().write_json(json);
    }
}

impl WriteJson for Cow<'_, str> {
    fn write_json(&self, json: &mut JsonWriter) {
        self.as_ref().write_json(json);
    }
}

impl WriteJson for JsonStr<'_> {
    fn write_json(&self, json: &mut JsonWriter) {
        json.comma();
        self.write(&mut json.out);
    }
}

impl WriteJson for JsonValue<'_> {
    fn write_json(&self, json: &mut JsonWriter) {
        RawJson(self.raw()).write_json(json);
    }
}

impl WriteJson for u64 {
    fn write_json(&self, json: &mut JsonWriter) {
        RawJson(&self.to_string()).write_json(json);
    }
}

impl WriteJson for bool {
    fn write_json(&self, json: &mut JsonWriter) {
        RawJson(if *self { "true" } else { "false" }).write_json(json);
    }
}

impl WriteJson for JsonNull {
    fn write_json(&self, json: &mut JsonWriter) {
        RawJson("null").write_json(json);
    }
}

impl WriteJson for RawJson<'_> {
    fn write_json(&self, json: &mut JsonWriter) {
        json.comma();
        json.out.extend_from_slice(self.0.as_bytes());
    }
}

impl WriteJson for CompactJson<'_> {
    fn write_json(&self, json: &mut JsonWriter) {
        json.comma();
        compact(self.0, &mut json.out);
    }
}

impl<'t, 'a: 't, I> WriteJson for JoinedText<I>
where
    I: IntoIterator<Item = &'t JsonStr<'a>> + Clone,
{
    fn write_json(&self, json: &mut JsonWriter) {
        json.comma();
        json.out.push(b'"');
        for text in self.0.clone() {
            text.write_unquoted(&mut json.out);
        }
        json.out.push(b'"');
    }
}

/// Writes an object with one member.
impl<T: WriteJson> WriteJson for (&str, T) {
    fn write_json(&self, json: &mut JsonWriter) {
        json.open_object().member(self.0, &self.1).close_object();
    }
}

/// Returns valid JSON without the white space between its tokens.
pub(crate) fn compacted(json: &str) -> String {
    let mut out = Vec::with_capacity(json.len());
    compact(json, &mut out);
    String::from_utf8(out).unwrap_or_default()
}

/// Appends valid JSON without the white space between its tokens.
fn compact(json: &str, out: &mut Vec<u8>) {
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

/// Returns the position after the closing quote of the string whose content begins at `at`.
fn skip_string(ends: &mut StringScanner<'_>, bytes: &[u8], mut at: usize) -> usize {
    loop {
        at = ends.next_special(at);
        match bytes.get(at) {
            Some(b'\\') => at += 2,
            _ => return at + 1,
        }
    }
}
