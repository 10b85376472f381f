//! Represents a JSON string that is copied from one body to another. It is kept in the sender's
//! escaped form until its value is needed.
//!
//! This file must not normalise a token: escapes and half surrogate pairs are written as they were
//! read.
//!
//! Read next: `json/document.rs`, where the tokens come from.

use super::scanner::string_scanner::StringScanner;
use std::borrow::Cow;
use std::num::NonZeroU32;
use std::slice::SliceIndex;

/// A string, which is the sender's token or the gateway's own text.
#[derive(Clone, Debug)]
pub struct JsonStr<'a> {
    /// The text between the quotes of a token, or the gateway's own text. A token is borrowed.
    written: Cow<'a, str>,
    form: TextForm,
    /// Length of the value in UTF-8 bytes, if it is known and not 0.
    decoded: Option<NonZeroU32>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum TextForm {
    /// A token without escapes.
    Plain,
    /// A token that may have escapes.
    Escaped,
    /// The gateway's own text, which is not escaped yet.
    Own,
}

impl<'a> JsonStr<'a> {
    /// Creates a token. `raw` is the text between the quotes of a validated JSON string.
    pub(crate) fn from_token(raw: &'a str, escaped: bool) -> Self {
        JsonStr {
            written: Cow::Borrowed(raw),
            form: match escaped {
                true => TextForm::Escaped,
                false => TextForm::Plain,
            },
            decoded: None,
        }
    }

    /// Creates a token whose value has a known length of `decoded` bytes.
    pub(crate) fn from_measured_token(raw: &'a str, decoded: u32) -> Self {
        JsonStr {
            decoded: NonZeroU32::new(decoded),
            ..JsonStr::from_token(raw, raw.len() > decoded as usize)
        }
    }

    pub fn from_value(text: impl Into<Cow<'a, str>>) -> Self {
        JsonStr {
            written: text.into(),
            form: TextForm::Own,
            decoded: None,
        }
    }

    /// Returns the token in its sender's spelling, without quotes. `None` for own text.
    pub(crate) fn token(&self) -> Option<&'a str> {
        match self.written {
            Cow::Borrowed(raw) if self.form != TextForm::Own => Some(raw),
            _ => None,
        }
    }

    /// Returns the stored form: the escaped token, or the gateway's plain text.
    pub(crate) fn written(&self) -> &str {
        &self.written
    }

    pub(crate) fn is_escaped(&self) -> bool {
        self.form == TextForm::Escaped
    }

    /// Returns the string's value. Half a surrogate pair, which a `str` cannot hold, becomes
    /// U+FFFD. No other function replaces it.
    #[inline]
    pub fn into_value(self) -> Cow<'a, str> {
        match self.written {
            Cow::Borrowed(token) if self.form == TextForm::Escaped => Cow::Owned(unescape(token)),
            written if self.form == TextForm::Escaped => Cow::Owned(unescape(&written)),
            written => written,
        }
    }

    /// Returns the string's value, borrowed.
    pub fn value(&self) -> Cow<'_, str> {
        self.reborrow().into_value()
    }

    pub fn reborrow(&self) -> JsonStr<'_> {
        JsonStr {
            written: Cow::Borrowed(&self.written),
            ..*self
        }
    }

    pub fn is(&self, expected: &str) -> bool {
        match self.is_escaped() {
            true => self.value() == expected,
            false => self.written == expected,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.written.is_empty()
    }

    /// Returns whether the string has only white space.
    pub fn is_blank(&self) -> bool {
        // Usually the first character decides. A scan is needed if the text begins with an escape
        // or white space.
        match self.written.bytes().next() {
            None => true,
            Some(first) if first.is_ascii_graphic() && first != b'\\' => false,
            Some(_) => self.chars().all(char::is_whitespace),
        }
    }

    /// Returns a part of the string, by byte offsets in its stored form.
    pub(crate) fn part(&self, range: impl SliceIndex<str, Output = str>) -> Self {
        let written = match &self.written {
            Cow::Borrowed(text) => Cow::Borrowed(text.get(range).unwrap_or_default()),
            Cow::Owned(text) => Cow::Owned(text.get(range).unwrap_or_default().to_owned()),
        };
        JsonStr {
            written,
            form: self.form,
            decoded: None,
        }
    }

    /// Splits the string after `code_points`. The second part is empty if the string is not longer.
    pub fn split_at_code_point(self, code_points: u64) -> (Self, Self) {
        let mut letters = self.chars();
        let count = usize::try_from(code_points).unwrap_or(usize::MAX);
        letters.by_ref().take(count).for_each(drop);
        let at = self.written.len() - letters.rest.as_str().len();
        (self.part(..at), self.part(at..))
    }

    /// Returns the string without trailing white space.
    pub fn trim_end(&self) -> Self {
        let (mut letters, mut end) = (self.chars(), 0);
        while let Some(letter) = letters.next() {
            if !letter.is_whitespace() {
                end = self.written.len() - letters.rest.as_str().len();
            }
        }
        self.part(..end)
    }

    /// Appends the content of the string, escaped, without quotes. Texts can be joined in this way
    /// without decoding them.
    pub fn write_unquoted(&self, out: &mut Vec<u8>) {
        match self.form {
            TextForm::Own => escape(&self.written, out),
            TextForm::Plain | TextForm::Escaped => out.extend_from_slice(self.written.as_bytes()),
        }
    }

    /// Appends the string with its quotes.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.push(b'"');
        self.write_unquoted(out);
        out.push(b'"');
    }

    /// Iterates over the characters of the value without allocating. Half a surrogate pair yields
    /// one U+FFFD.
    pub fn chars(&self) -> JsonChars<'_> {
        JsonChars {
            rest: self.written.chars(),
            escaped: self.is_escaped(),
        }
    }

    /// Returns the length of the value in UTF-8 bytes, for estimates.
    pub fn decoded_bytes(&self) -> u64 {
        let length = match self.decoded {
            Some(bytes) => return bytes.get().into(),
            None if self.is_escaped() => decoded_length(&self.written),
            None => self.written.len(),
        };
        u64::try_from(length).unwrap_or(u64::MAX)
    }

    pub fn code_points(&self) -> u64 {
        let mut count = 0;
        if self.is_escaped() {
            for_each_run(&self.written, |run, letter| {
                count += run.chars().count() + usize::from(letter.is_some())
            });
        } else {
            count = self.written.chars().count();
        }
        u64::try_from(count).unwrap_or(u64::MAX)
    }
}

/// Iterator over the characters of a string's value.
#[derive(Clone, Debug)]
pub struct JsonChars<'a> {
    rest: std::str::Chars<'a>,
    escaped: bool,
}

impl Iterator for JsonChars<'_> {
    type Item = char;

    fn next(&mut self) -> Option<char> {
        let letter = self.rest.next()?;
        if letter != '\\' || !self.escaped {
            return Some(letter);
        }
        Some(match self.rest.next()? {
            'u' => self.unicode_escape(),
            other => unescape_char(other),
        })
    }
}

/// Returns the character that a single-letter escape stands for.
fn unescape_char(letter: char) -> char {
    match letter {
        'n' => '\n',
        'r' => '\r',
        't' => '\t',
        'b' => '\u{8}',
        'f' => '\u{c}',
        other => other,
    }
}

impl JsonChars<'_> {
    /// Decodes the four digits after `\u`, and the second half of a surrogate pair.
    fn unicode_escape(&mut self) -> char {
        let unit = hex_digits(&mut self.rest);
        if let 0xd800..=0xdbff = unit {
            let mut ahead = self.rest.clone();
            let low = (ahead.next() == Some('\\') && ahead.next() == Some('u'))
                .then(|| hex_digits(&mut ahead));
            if let Some(low @ 0xdc00..=0xdfff) = low {
                self.rest = ahead;
                return char::from_u32(0x1_0000 + ((unit - 0xd800) << 10) + (low - 0xdc00))
                    .unwrap_or('\u{fffd}');
            }
        }
        char::from_u32(unit).unwrap_or('\u{fffd}')
    }
}

fn hex_digits(letters: &mut std::str::Chars<'_>) -> u32 {
    letters.by_ref().take(4).fold(0, |unit, digit| {
        (unit << 4) | digit.to_digit(16).unwrap_or(0)
    })
}

/// Joins texts in escaped form. The buffer can outlive the events that the texts came from.
#[derive(Clone, Debug, Default)]
pub struct JsonStrBuf {
    raw: Vec<u8>,
    escaped: bool,
}

impl JsonStrBuf {
    pub fn push(&mut self, text: &JsonStr<'_>) {
        let before = self.raw.len();
        text.write_unquoted(&mut self.raw);
        // The gateway's own text has escapes only if some characters needed escaping.
        self.escaped |= match text.token() {
            Some(_) => text.is_escaped(),
            None => self
                .raw
                .get(before..)
                .is_some_and(|added| added.contains(&b'\\')),
        };
    }

    pub fn text(&self) -> JsonStr<'_> {
        // Tokens and escaped text are UTF-8, so their concatenation is too.
        JsonStr::from_token(
            std::str::from_utf8(&self.raw).unwrap_or_default(),
            self.escaped,
        )
    }

    pub fn len(&self) -> usize {
        self.raw.len()
    }

    pub fn is_empty(&self) -> bool {
        self.raw.is_empty()
    }

    pub fn clear(&mut self) {
        self.raw.clear();
        self.escaped = false;
    }
}

/// Returns the length of a token's value in bytes.
fn decoded_length(raw: &str) -> usize {
    let mut length = 0;
    for_each_run(raw, |run, letter| {
        length += run.len() + letter.map_or(0, char::len_utf8)
    });
    length
}

/// Returns the value of a token with escapes.
fn unescape(raw: &str) -> String {
    let mut value = String::with_capacity(raw.len());
    for_each_run(raw, |run, letter| {
        value.push_str(run);
        value.extend(letter);
    });
    value
}

/// Splits the content of a string token into runs without escapes. Each run comes with the
/// character of the escape that follows it.
fn for_each_run<'r>(raw: &'r str, mut each: impl FnMut(&'r str, Option<char>)) {
    let (bytes, mut ends, mut at) = (raw.as_bytes(), StringScanner::new(raw.as_bytes()), 0);
    loop {
        let end = ends.next_special(at);
        let run = raw.get(at..end).unwrap_or_default();
        match bytes.get(end..) {
            Some([b'\\', letter, ..]) if letter.is_ascii() && *letter != b'u' => {
                each(run, Some(unescape_char(char::from(*letter))));
                at = end.saturating_add(2);
            }
            Some([_, ..]) => {
                let mut letters = JsonChars {
                    rest: raw.get(end..).unwrap_or_default().chars(),
                    escaped: true,
                };
                each(run, letters.next());
                at = raw.len().saturating_sub(letters.rest.as_str().len());
            }
            _ => return each(run, None),
        }
    }
}

/// Appends `text` as the content of a JSON string.
pub(crate) fn escape(text: &str, out: &mut Vec<u8>) {
    let bytes = text.as_bytes();
    let (mut ends, mut copied) = (StringScanner::new(bytes), 0);
    loop {
        let at = ends.next_special(copied);
        out.extend_from_slice(bytes.get(copied..at).unwrap_or_default());
        match bytes.get(at) {
            None => return,
            Some(b'"') => out.extend_from_slice(b"\\\""),
            Some(b'\\') => out.extend_from_slice(b"\\\\"),
            Some(b'\n') => out.extend_from_slice(b"\\n"),
            Some(b'\r') => out.extend_from_slice(b"\\r"),
            Some(b'\t') => out.extend_from_slice(b"\\t"),
            Some(byte) => out.extend_from_slice(format!("\\u{byte:04x}").as_bytes()),
        }
        copied = at + 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_are_those_of_the_value_whatever_its_spelling() {
        for raw in [
            r"\u00e4\ud83d\ude00\t\u0022\/x",
            r"\ud83d\u0041",
            r"\ude00",
            r"\ud83d",
            r"a\\n",
            "größe",
        ] {
            let token = JsonStr::from_token(raw, raw.contains('\\'));
            let value = token.value();
            assert_eq!(token.chars().collect::<String>(), value, "{raw}");
            assert_eq!(token.code_points(), value.chars().count() as u64, "{raw}");
            assert_eq!(token.decoded_bytes(), value.len() as u64, "{raw}");
        }
        assert_eq!(JsonStr::from_token(r"\ud83d\ude00", true).value(), "😀");
        assert_eq!(JsonStr::from_token(r"\ud83dx", true).value(), "\u{fffd}x");
    }
}
