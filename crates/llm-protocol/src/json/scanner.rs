//! Scans a JSON text in one pass, which checks the grammar, bounds the depth and yields keys and
//! spans.
//!
//! This module must not build a tree, copy a value or accept anything that `serde_json` would
//! refuse. `tests/properties/main.rs` compares the two through `request::read_summary` and
//! `passthrough::rewrite_response`.
//!
//! `serde_json` is no replacement: its `IgnoredAny` neither bounds the depth nor reports the
//! position of a value or a duplicate member. The features of a request must be found in the same
//! pass.
//!
//! Read next: `string_scanner.rs` in this folder, then its two callers `request.rs` and
//! `passthrough.rs`.

use std::borrow::Cow;
use string_scanner::StringScanner;

pub(crate) mod string_scanner;

/// Position of a token in the text: `start..end` in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Span {
    pub start: usize,
    pub end: usize,
}

impl Span {
    /// Returns the empty span at this position.
    pub fn at(position: usize) -> Self {
        Span {
            start: position,
            end: position,
        }
    }

    /// Returns this part of the text, or an empty text if the span lies outside.
    pub fn slice(self, text: &str) -> &str {
        text.get(self.start..self.end).unwrap_or_default()
    }
}

/// The reason why the scanner refuses a text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum JsonError {
    /// The text has a syntax error at this byte.
    Syntax { at: usize },
    /// More arrays and objects are open at once than allowed.
    TooDeep,
    /// An object has more members than [`MAX_MEMBERS`].
    TooMany,
    /// The text has more values than allowed.
    TooManyValues,
}

pub(crate) type ScanResult<T = ()> = Result<T, JsonError>;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum JsonKind {
    Object,
    Array,
    String,
    Number,
    True,
    False,
    Null,
}

/// A string token, still in its escaped form.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StringToken<'a> {
    /// The text between the quotes, still escaped.
    pub raw: &'a str,
    /// Length of `raw` minus the length of the value in UTF-8 bytes. Each escape saves at least one
    /// byte.
    saved: usize,
    /// Span including the quotes.
    pub span: Span,
}

impl<'a> StringToken<'a> {
    pub fn is_escaped(&self) -> bool {
        self.saved > 0
    }

    /// Returns the string's value, or `None` if the string contains half a surrogate pair, which a
    /// `str` cannot hold.
    pub fn value(&self) -> Option<Cow<'a, str>> {
        if !self.is_escaped() {
            return Some(Cow::Borrowed(self.raw));
        }
        serde_json::from_str::<String>(&format!("\"{}\"", self.raw))
            .ok()
            .map(Cow::Owned)
    }

    /// Returns the string's value, or the raw text if it has no value. Such a raw text equals no
    /// name that the gateway looks for.
    pub fn name(&self) -> Cow<'a, str> {
        self.value().unwrap_or(Cow::Borrowed(self.raw))
    }

    /// Returns the length of the value in UTF-8 bytes, as the client sees it. Half a surrogate pair
    /// counts as U+FFFD.
    pub fn decoded_bytes(&self) -> u64 {
        u64::try_from(self.raw.len().saturating_sub(self.saved)).unwrap_or(u64::MAX)
    }
}

/// Scans a text. Each method consumes exactly one value of any type, and callbacks must do the
/// same.
pub(crate) struct JsonScanner<'a> {
    text: &'a str,
    ends: StringScanner<'a>,
    at: usize,
    depth: u32,
    depth_max: u32,
    escape_bytes: usize,
    values: u64,
    values_max: u64,
}

impl<'a> JsonScanner<'a> {
    pub fn new(text: &'a str, depth_max: u32) -> Self {
        JsonScanner {
            text,
            ends: StringScanner::new(text.as_bytes()),
            at: 0,
            depth: 0,
            depth_max,
            escape_bytes: 0,
            values: 0,
            values_max: u64::MAX,
        }
    }

    /// Limits the scanner to texts of at most `values_max` values: members of objects and items of
    /// arrays.
    pub fn with_values_max(self, values_max: u64) -> Self {
        JsonScanner { values_max, ..self }
    }

    /// Returns the type of the next value, which its first byte determines.
    pub fn kind(&mut self) -> ScanResult<JsonKind> {
        match self.peek() {
            Some(b'{') => Ok(JsonKind::Object),
            Some(b'[') => Ok(JsonKind::Array),
            Some(b'"') => Ok(JsonKind::String),
            Some(b'-' | b'0'..=b'9') => Ok(JsonKind::Number),
            Some(b't') => Ok(JsonKind::True),
            Some(b'f') => Ok(JsonKind::False),
            Some(b'n') => Ok(JsonKind::Null),
            _ => Err(self.syntax_error()),
        }
    }

    /// Scans an object and calls `member` with each key. `member` must consume the value.
    pub fn object<E: From<JsonError>>(
        &mut self,
        mut member: impl FnMut(&mut Self, StringToken<'a>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.open(b'{')?;
        if self.peek() == Some(b'}') {
            self.close();
            return Ok(());
        }
        let mut members = 0_u32;
        loop {
            members += 1;
            if members > MAX_MEMBERS {
                return Err(JsonError::TooMany.into());
            }
            let key = self.string()?;
            self.expect(b':')?;
            self.count_value()?;
            member(self, key)?;
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b'}') => break,
                _ => return Err(self.syntax_error().into()),
            }
        }
        self.close();
        Ok(())
    }

    /// Scans an array and calls `item` for each value. `item` must consume the value.
    pub fn array<E: From<JsonError>>(
        &mut self,
        mut item: impl FnMut(&mut Self) -> Result<(), E>,
    ) -> Result<(), E> {
        self.open(b'[')?;
        if self.peek() == Some(b']') {
            self.close();
            return Ok(());
        }
        loop {
            self.count_value()?;
            item(self)?;
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b']') => break,
                _ => return Err(self.syntax_error().into()),
            }
        }
        self.close();
        Ok(())
    }

    pub fn string(&mut self) -> ScanResult<StringToken<'a>> {
        self.expect(b'"')?;
        let (bytes, start) = (self.text.as_bytes(), self.at);
        let (mut at, mut saved, mut before) = (start, 0_usize, SurrogateTracker::default());
        // Every byte of every string of a body passes through this loop. The arithmetic cannot
        // overflow, because it counts bytes in memory.
        loop {
            at = self.ends.next_special(at);
            let letter = match bytes.get(at) {
                Some(b'"') => break,
                Some(b'\\') => bytes.get(at.wrapping_add(1)).copied().unwrap_or_default(),
                _ => 0,
            };
            let length = usize::from(
                ESCAPE_LENGTHS
                    .get(usize::from(letter))
                    .copied()
                    .unwrap_or_default(),
            );
            if length == 2 {
                saved = saved.wrapping_add(1);
            } else if length > 2
                && let Some(unit) = bytes
                    .get(at.wrapping_add(2)..)
                    .and_then(<[u8]>::first_chunk)
                    .and_then(code_unit)
            {
                saved = saved.wrapping_add(before.saved_bytes(unit, at));
            } else {
                self.at = at;
                return Err(self.syntax_error());
            }
            at = at.wrapping_add(length);
        }
        let raw = self.text.get(start..at).ok_or(self.syntax_error())?;
        self.at = at + 1;
        self.escape_bytes = self.escape_bytes.wrapping_add(saved);
        Ok(StringToken {
            raw,
            saved,
            span: Span {
                start: start.saturating_sub(1),
                end: self.at,
            },
        })
    }

    /// Skips one value of any type.
    pub fn skip(&mut self) -> ScanResult {
        match self.kind()? {
            JsonKind::Object => self.object(|scan, _| scan.skip()),
            JsonKind::Array => self.array(Self::skip),
            JsonKind::String => self.string().map(drop),
            JsonKind::Number => self.number(),
            JsonKind::True => self.literal("true"),
            JsonKind::False => self.literal("false"),
            JsonKind::Null => self.literal("null"),
        }
    }

    pub fn skip_span(&mut self) -> ScanResult<Span> {
        let start = self.value_start()?;
        self.skip()?;
        Ok(self.span_from(start))
    }

    /// Returns the string if the next value is one, else skips it.
    pub fn string_or_skip(&mut self) -> ScanResult<Option<StringToken<'a>>> {
        if self.kind()? == JsonKind::String {
            return self.string().map(Some);
        }
        self.skip().map(|_| None)
    }

    /// Returns the next value as a count: digits only, at most 2^53. Any other value (negative,
    /// fractional, a string, null) is not a count.
    pub fn count_or_skip(&mut self) -> ScanResult<Option<u64>> {
        let span = self.skip_span()?;
        Ok(self.count(span))
    }

    /// Returns the count at `span`, by the rule of [`JsonScanner::count_or_skip`].
    pub fn count(&self, span: Span) -> Option<u64> {
        let digits = self.text.get(span.start..span.end)?;
        if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        digits.parse().ok().filter(|count| *count <= MAX_COUNT)
    }

    /// Scans the members if the next value is an object; otherwise skips it.
    pub fn object_or_skip<E: From<JsonError>>(
        &mut self,
        member: impl FnMut(&mut Self, StringToken<'a>) -> Result<(), E>,
    ) -> Result<(), E> {
        if self.kind()? == JsonKind::Object {
            return self.object(member);
        }
        Ok(self.skip()?)
    }

    /// Scans the items if the next value is an array; otherwise skips it.
    pub fn array_or_skip<E: From<JsonError>>(
        &mut self,
        item: impl FnMut(&mut Self) -> Result<(), E>,
    ) -> Result<(), E> {
        if self.kind()? == JsonKind::Array {
            return self.array(item);
        }
        Ok(self.skip()?)
    }

    /// Returns the position after the last token.
    pub fn position(&self) -> usize {
        self.at
    }

    /// Returns the span from `start` to this position.
    pub fn span_from(&self, start: usize) -> Span {
        Span {
            start,
            end: self.at,
        }
    }

    /// Returns the text from this position to the last token.
    pub fn text_from(&self, start: usize) -> &'a str {
        self.text.get(start..self.at).unwrap_or_default()
    }

    /// Returns the number of bytes that unescaping saves, summed over all strings read so far.
    pub fn escape_bytes(&self) -> usize {
        self.escape_bytes
    }

    /// Returns the number of object members and array items read so far.
    pub fn values(&self) -> u64 {
        self.values
    }

    fn count_value(&mut self) -> ScanResult {
        self.values = self.values.wrapping_add(1);
        if self.values > self.values_max {
            Err(JsonError::TooManyValues)
        } else {
            Ok(())
        }
    }

    /// Returns the position of the next value.
    pub fn value_start(&mut self) -> ScanResult<usize> {
        self.kind().map(|_| self.at)
    }

    /// Checks that only white space is left.
    pub fn end(&mut self) -> ScanResult {
        match self.peek() {
            None => Ok(()),
            Some(_) => Err(self.syntax_error()),
        }
    }

    fn byte(&self, at: usize) -> Option<u8> {
        self.text.as_bytes().get(at).copied()
    }

    /// Returns the next byte that is not white space, without consuming it.
    fn peek(&mut self) -> Option<u8> {
        loop {
            match self.byte(self.at) {
                Some(b' ' | b'\n' | b'\t' | b'\r') => self.at += 1,
                other => return other,
            }
        }
    }

    fn expect(&mut self, expected: u8) -> ScanResult {
        if self.peek() != Some(expected) {
            return Err(self.syntax_error());
        }
        self.at += 1;
        Ok(())
    }

    fn open(&mut self, expected: u8) -> ScanResult {
        self.expect(expected)?;
        self.depth += 1;
        if self.depth > self.depth_max {
            return Err(JsonError::TooDeep);
        }
        Ok(())
    }

    fn close(&mut self) {
        self.at += 1;
        self.depth = self.depth.saturating_sub(1);
    }

    fn number(&mut self) -> ScanResult {
        if self.byte(self.at) == Some(b'-') {
            self.at += 1;
        }
        match self.byte(self.at) {
            Some(b'0') => self.at += 1,
            Some(b'1'..=b'9') => self.digits()?,
            _ => return Err(self.syntax_error()),
        }
        if self.byte(self.at) == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.byte(self.at), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.byte(self.at), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits()?;
        }
        Ok(())
    }

    fn digits(&mut self) -> ScanResult {
        let start = self.at;
        while self.byte(self.at).is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
        if self.at == start {
            return Err(self.syntax_error());
        }
        Ok(())
    }

    fn literal(&mut self, word: &str) -> ScanResult {
        let end = self.at + word.len();
        if self.text.as_bytes().get(self.at..end) != Some(word.as_bytes()) {
            return Err(self.syntax_error());
        }
        self.at = end;
        Ok(())
    }

    fn syntax_error(&self) -> JsonError {
        JsonError::Syntax { at: self.at }
    }
}

const UNICODE_ESCAPE_BYTES: u8 = 6;

/// Length of an escape in bytes, by the character after the backslash; 0 if the character begins no
/// escape.
const ESCAPE_LENGTHS: [u8; 256] = {
    let mut lengths = [0; 256];
    let mut letters: &[u8] = br#""\/bfnrt"#;
    while let [letter, rest @ ..] = letters {
        lengths[*letter as usize] = 2;
        letters = rest;
    }
    lengths[b'u' as usize] = UNICODE_ESCAPE_BYTES;
    lengths
};

/// Parses four hexadecimal digits.
fn code_unit(digits: &[u8; 4]) -> Option<u32> {
    digits.iter().try_fold(0, |unit, digit| {
        Some(unit << 4 | char::from(*digit).to_digit(16)?)
    })
}

/// Position after the last high surrogate escape; 0 without one.
#[derive(Clone, Copy, Default)]
struct SurrogateTracker(usize);

impl SurrogateTracker {
    /// Returns the number of bytes that decoding saves for the escape at `at`.
    fn saved_bytes(&mut self, unit: u32, at: usize) -> usize {
        let first = std::mem::take(&mut self.0);
        if let 0xd800..=0xdbff = unit {
            self.0 = at.saturating_add(UNICODE_ESCAPE_BYTES.into());
        }
        match unit {
            0..0x80 => 5,
            0x80..0x800 => 4,
            // This is the second half of a pair, which takes four bytes in all. The first half was
            // counted as if it stood alone.
            0xdc00..=0xdfff if first == at => 5,
            _ => 3,
        }
    }
}

/// Maximum number of members of one object. Name lookups are linear, so a larger object would be
/// slow.
pub(crate) const MAX_MEMBERS: u32 = 10_000;

/// Maximum count. Most programs cannot represent a larger JSON number exactly.
pub(crate) const MAX_COUNT: u64 = 1 << 53;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn string(text: &str) -> Result<StringToken<'_>, JsonError> {
        JsonScanner::new(text, 1).string()
    }

    #[test]
    fn what_is_no_escape_is_refused_where_it_begins() {
        for inside in [
            r"\x",
            r"\",
            r"\u12",
            r"\u12g4",
            r"\U0041",
            r"\ud83d\ude0",
            "\n",
            "\u{1f}",
        ] {
            let text = format!("\"ab{inside}\"");
            // A backslash at the end of the text escapes the closing quote. The error is then at
            // the end of the text.
            let at = if inside == r"\" {
                text.len()
            } else {
                3 + inside.rfind('\\').unwrap_or(0)
            };
            assert_eq!(
                string(&text).err(),
                Some(JsonError::Syntax { at }),
                "{text}"
            );
        }
        assert_eq!(string("\"ab").err(), Some(JsonError::Syntax { at: 3 }));
    }

    proptest! {
        #[test]
        fn a_value_is_as_long_as_its_letters(
            pieces in prop::collection::vec(
                prop::sample::select(vec![
                    "x", "größe", "😀", r"\n", r"\\", r#"\""#, r"\/", r"\u0041", r"\u00e4", r"\u20AC", r"\ud83d", r"\ude00",
                    r"\ud83d\ude00", "a run of letters that is longer than one block, so that the next one begins in it",
                ]),
                0..40,
            ),
        ) {
            let raw = pieces.concat();
            let text = format!("\"{raw}\"");
            let found = string(&text).unwrap();
            let value = crate::json::string::JsonStr::from_token(&raw, true).chars().collect::<String>();
            prop_assert_eq!(found.raw, &raw);
            prop_assert_eq!(found.decoded_bytes(), value.len() as u64);
            prop_assert_eq!(found.is_escaped(), raw.contains('\\'));
        }
    }
}
