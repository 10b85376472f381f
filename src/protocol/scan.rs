//! A skipping reader of JSON: one pass that checks the grammar, bounds the depth and hands out keys
//! and spans.
//!
//! It must not build a tree, copy a value or accept anything that `serde_json` would refuse
//! (`tests/properties.rs` holds the two against each other through `request::read` and
//! `same::whole`). Why not `serde_json` itself: skipping with `IgnoredAny` neither bounds depth nor
//! tells where a value stood, and the features of a request must be found by structure in the same
//! pass.
//!
//! Read next: `scan/plain.rs`, then `protocol/request.rs` and `protocol/same.rs`, its two callers.

use plain::Ends;
use std::borrow::Cow;

pub(crate) mod plain;

/// Where a token stands in the text: `start..end` in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Span {
    pub start: usize,
    pub end: usize,
}

/// Why a text is not JSON that we read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Broken {
    /// The grammar is broken at this byte.
    Syntax { at: usize },
    /// More than the allowed number of arrays and objects are open at once.
    TooDeep,
    /// An object has more than [`MEMBERS_MAX`] members.
    TooMany,
    /// The text has more values than the reader allows.
    TooManyValues,
}

/// What the next value is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
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
pub(crate) struct Text<'a> {
    /// What stands between the quotes.
    pub raw: &'a str,
    /// By how many bytes the value is shorter than that, in UTF-8: each escape saves at least one.
    saved: usize,
    /// With the quotes.
    pub span: Span,
}

impl<'a> Text<'a> {
    /// It holds escapes.
    pub fn is_escaped(&self) -> bool {
        self.saved > 0
    }

    /// The string's value; `None` if it holds half a surrogate pair, which no `str` can.
    pub fn value(&self) -> Option<Cow<'a, str>> {
        if !self.is_escaped() {
            return Some(Cow::Borrowed(self.raw));
        }
        serde_json::from_str::<String>(&format!("\"{}\"", self.raw))
            .ok()
            .map(Cow::Owned)
    }

    /// As [`Text::value`]; a string that has no value stays raw, and so equals no name that we look
    /// for.
    pub fn name(&self) -> Cow<'a, str> {
        self.value().unwrap_or(Cow::Borrowed(self.raw))
    }

    /// Bytes of the value in UTF-8: what the client sees of it. Half a surrogate pair counts as
    /// U+FFFD.
    pub fn decoded_bytes(&self) -> u64 {
        u64::try_from(self.raw.len().saturating_sub(self.saved)).unwrap_or(u64::MAX)
    }
}

/// The reader. Each method consumes exactly one value, whatever it is asked for; callbacks must do
/// the same.
pub(crate) struct Scan<'a> {
    text: &'a str,
    ends: Ends<'a>,
    at: usize,
    depth: u32,
    depth_max: u32,
    escape_bytes: usize,
    values: u64,
    values_max: u64,
}

impl<'a> Scan<'a> {
    pub fn new(text: &'a str, depth_max: u32) -> Self {
        Scan {
            text,
            ends: Ends::of(text.as_bytes()),
            at: 0,
            depth: 0,
            depth_max,
            escape_bytes: 0,
            values: 0,
            values_max: u64::MAX,
        }
    }

    /// The same reader, which refuses a text of more than `values_max` values: members of objects
    /// and items of arrays.
    pub fn with_values_max(self, values_max: u64) -> Self {
        Scan { values_max, ..self }
    }

    /// What the next value is, by its first byte.
    pub fn kind(&mut self) -> Result<Kind, Broken> {
        match self.peek() {
            Some(b'{') => Ok(Kind::Object),
            Some(b'[') => Ok(Kind::Array),
            Some(b'"') => Ok(Kind::String),
            Some(b'-' | b'0'..=b'9') => Ok(Kind::Number),
            Some(b't') => Ok(Kind::True),
            Some(b'f') => Ok(Kind::False),
            Some(b'n') => Ok(Kind::Null),
            _ => Err(self.broken()),
        }
    }

    /// Reads an object; `member` is called with each key and must consume its value.
    pub fn object<E: From<Broken>>(
        &mut self,
        mut member: impl FnMut(&mut Self, Text<'a>) -> Result<(), E>,
    ) -> Result<Span, E> {
        let start = self.open(b'{')?;
        if self.peek() == Some(b'}') {
            return Ok(self.close(start));
        }
        let mut members = 0_u32;
        loop {
            members += 1;
            if members > MEMBERS_MAX {
                return Err(Broken::TooMany.into());
            }
            let key = self.string()?;
            self.expect(b':')?;
            self.count_value()?;
            member(self, key)?;
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b'}') => return Ok(self.close(start)),
                _ => return Err(self.broken().into()),
            }
        }
    }

    /// Reads an array; `item` must consume each value.
    pub fn array<E: From<Broken>>(
        &mut self,
        mut item: impl FnMut(&mut Self) -> Result<(), E>,
    ) -> Result<Span, E> {
        let start = self.open(b'[')?;
        if self.peek() == Some(b']') {
            return Ok(self.close(start));
        }
        loop {
            self.count_value()?;
            item(self)?;
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b']') => return Ok(self.close(start)),
                _ => return Err(self.broken().into()),
            }
        }
    }

    pub fn string(&mut self) -> Result<Text<'a>, Broken> {
        self.expect(b'"')?;
        let (bytes, start) = (self.text.as_bytes(), self.at);
        let (mut at, mut saved, mut before) = (start, 0_usize, Half::default());
        // Of every string of a body each byte comes by here. Nothing overflows: it counts what
        // stands in memory.
        loop {
            at = self.ends.after(at);
            let letter = match bytes.get(at) {
                Some(b'"') => break,
                Some(b'\\') => bytes.get(at.wrapping_add(1)).copied().unwrap_or_default(),
                _ => 0,
            };
            let length = usize::from(
                ESCAPE_BYTES
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
                saved = saved.wrapping_add(before.saved(unit, at));
            } else {
                self.at = at;
                return Err(self.broken());
            }
            at = at.wrapping_add(length);
        }
        let raw = self.text.get(start..at).ok_or(self.broken())?;
        self.at = at + 1;
        self.escape_bytes = self.escape_bytes.wrapping_add(saved);
        Ok(Text {
            raw,
            saved,
            span: Span {
                start: start.saturating_sub(1),
                end: self.at,
            },
        })
    }

    /// Skips one value of any kind.
    pub fn skip(&mut self) -> Result<Span, Broken> {
        match self.kind()? {
            Kind::Object => self.object(|scan, _| scan.skip().map(drop)),
            Kind::Array => self.array(|scan| scan.skip().map(drop)),
            Kind::String => self.string().map(|text| text.span),
            Kind::Number => self.number(),
            Kind::True => self.word("true"),
            Kind::False => self.word("false"),
            Kind::Null => self.word("null"),
        }
    }

    /// The string, if the next value is one.
    pub fn text_or_skip(&mut self) -> Result<Option<Text<'a>>, Broken> {
        if self.kind()? == Kind::String {
            return self.string().map(Some);
        }
        self.skip().map(|_| None)
    }

    /// A count: plain digits, at most 2^53. Anything else (negative, fractional, a string, null) is
    /// no count.
    pub fn count_or_skip(&mut self) -> Result<Option<u64>, Broken> {
        let span = self.skip()?;
        Ok(self.count(span))
    }

    /// The count that stands at `span`, by the rule of [`Scan::count_or_skip`].
    pub fn count(&self, span: Span) -> Option<u64> {
        let digits = self.text.get(span.start..span.end)?;
        if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        digits.parse().ok().filter(|count| *count <= COUNT_MAX)
    }

    /// The text at `span`.
    pub fn raw(&self, span: Span) -> Option<&'a str> {
        self.text.get(span.start..span.end)
    }

    /// Reads the members if the next value is an object (`true`), else skips it.
    pub fn object_or_skip<E: From<Broken>>(
        &mut self,
        member: impl FnMut(&mut Self, Text<'a>) -> Result<(), E>,
    ) -> Result<bool, E> {
        if self.kind()? == Kind::Object {
            return self.object(member).map(|_| true);
        }
        self.skip()?;
        Ok(false)
    }

    /// Reads the items if the next value is an array (`true`), else skips it.
    pub fn array_or_skip<E: From<Broken>>(
        &mut self,
        item: impl FnMut(&mut Self) -> Result<(), E>,
    ) -> Result<bool, E> {
        if self.kind()? == Kind::Array {
            return self.array(item).map(|_| true);
        }
        self.skip()?;
        Ok(false)
    }

    /// Where the last token ended.
    pub fn at(&self) -> usize {
        self.at
    }

    /// By how many bytes the strings that were read are shorter in UTF-8 than their JSON.
    pub fn escape_bytes(&self) -> usize {
        self.escape_bytes
    }

    /// Members of objects and items of arrays that were read so far.
    pub fn values(&self) -> u64 {
        self.values
    }

    fn count_value(&mut self) -> Result<(), Broken> {
        self.values = self.values.wrapping_add(1);
        if self.values > self.values_max {
            Err(Broken::TooManyValues)
        } else {
            Ok(())
        }
    }

    /// Where the next value begins.
    pub fn at_value(&mut self) -> Result<usize, Broken> {
        self.kind().map(|_| self.at)
    }

    /// Only white space may be left.
    pub fn end(&mut self) -> Result<(), Broken> {
        match self.peek() {
            None => Ok(()),
            Some(_) => Err(self.broken()),
        }
    }

    fn byte(&self, at: usize) -> Option<u8> {
        self.text.as_bytes().get(at).copied()
    }

    /// The next byte that is not white space, not consumed.
    fn peek(&mut self) -> Option<u8> {
        loop {
            match self.byte(self.at) {
                Some(b' ' | b'\n' | b'\t' | b'\r') => self.at += 1,
                other => return other,
            }
        }
    }

    fn expect(&mut self, wanted: u8) -> Result<(), Broken> {
        if self.peek() != Some(wanted) {
            return Err(self.broken());
        }
        self.at += 1;
        Ok(())
    }

    fn open(&mut self, wanted: u8) -> Result<usize, Broken> {
        self.expect(wanted)?;
        self.depth += 1;
        if self.depth > self.depth_max {
            return Err(Broken::TooDeep);
        }
        Ok(self.at.saturating_sub(1))
    }

    fn close(&mut self, start: usize) -> Span {
        self.at += 1;
        self.depth = self.depth.saturating_sub(1);
        Span {
            start,
            end: self.at,
        }
    }

    fn number(&mut self) -> Result<Span, Broken> {
        let start = self.at;
        if self.byte(self.at) == Some(b'-') {
            self.at += 1;
        }
        match self.byte(self.at) {
            Some(b'0') => self.at += 1,
            Some(b'1'..=b'9') => self.digits()?,
            _ => return Err(self.broken()),
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
        let end = self.at;
        Ok(Span { start, end })
    }

    /// One digit or more.
    fn digits(&mut self) -> Result<(), Broken> {
        let start = self.at;
        while self.byte(self.at).is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
        if self.at == start {
            return Err(self.broken());
        }
        Ok(())
    }

    fn word(&mut self, word: &str) -> Result<Span, Broken> {
        let (start, end) = (self.at, self.at + word.len());
        if self.text.as_bytes().get(start..end) != Some(word.as_bytes()) {
            return Err(self.broken());
        }
        self.at = end;
        Ok(Span { start, end })
    }

    fn broken(&self) -> Broken {
        Broken::Syntax { at: self.at }
    }
}

/// Bytes of `\uXXXX`.
const ESCAPED_UNIT: u8 = 6;

/// By the letter behind a backslash, how long the escape is; 0 where it is none.
const ESCAPE_BYTES: [u8; 256] = {
    let mut lengths = [0; 256];
    let mut letters: &[u8] = br#""\/bfnrt"#;
    while let [letter, rest @ ..] = letters {
        lengths[*letter as usize] = 2;
        letters = rest;
    }
    lengths[b'u' as usize] = ESCAPED_UNIT;
    lengths
};

/// The number that four hexadecimal digits say.
fn code_unit(digits: &[u8; 4]) -> Option<u32> {
    digits.iter().try_fold(0, |unit, digit| {
        Some(unit << 4 | char::from(*digit).to_digit(16)?)
    })
}

/// Where the first half of a surrogate pair ended last; 0 where there was none.
#[derive(Clone, Copy, Default)]
struct Half(usize);

impl Half {
    /// By how many bytes the letter that the escape at `at` makes is shorter than that.
    fn saved(&mut self, unit: u32, at: usize) -> usize {
        let first = std::mem::take(&mut self.0);
        if let 0xd800..=0xdbff = unit {
            self.0 = at.saturating_add(ESCAPED_UNIT.into());
        }
        match unit {
            0..0x80 => 5,
            0x80..0x800 => 4,
            // Of a pair, which takes four bytes in all; the first half was counted as if it were
            // alone.
            0xdc00..=0xdfff if first == at => 5,
            _ => 3,
        }
    }
}

/// The most members of one object: whoever looks a name up among them does so one by one.
pub(crate) const MEMBERS_MAX: u32 = 10_000;

/// The largest count taken for real: beyond it a JSON number is no longer exact in most programs.
pub(crate) const COUNT_MAX: u64 = 1 << 53;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn string(text: &str) -> Result<Text<'_>, Broken> {
        Scan::new(text, 1).string()
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
            // The last escape of a text can take its closing quote: then the end of the text is
            // what is wrong.
            let at = if inside == r"\" {
                text.len()
            } else {
                3 + inside.rfind('\\').unwrap_or(0)
            };
            assert_eq!(string(&text).err(), Some(Broken::Syntax { at }), "{text}");
        }
        assert_eq!(string("\"ab").err(), Some(Broken::Syntax { at: 3 }));
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
            let value = crate::protocol::text::Text::token(&raw, true).letters().collect::<String>();
            prop_assert_eq!(found.raw, &raw);
            prop_assert_eq!(found.decoded_bytes(), value.len() as u64);
            prop_assert_eq!(found.is_escaped(), raw.contains('\\'));
        }
    }
}
