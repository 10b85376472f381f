//! A skipping reader of JSON: one pass that checks the grammar, bounds the depth and hands out keys and spans.
//!
//! It must not build a tree, copy a value or accept anything that `serde_json` would refuse
//! (`tests/properties.rs` holds the two against each other through `request::read` and `same::whole`).
//! Why not `serde_json` itself: skipping with `IgnoredAny` neither bounds depth nor tells where a value stood,
//! and the features of a request must be found by structure in the same pass.
//!
//! Read next: `protocol/request.rs` and `protocol/same.rs`, its two callers.

use std::borrow::Cow;

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
    escaped: bool,
    /// With the quotes.
    pub span: Span,
}

impl<'a> Text<'a> {
    /// It holds escapes.
    pub fn is_escaped(&self) -> bool {
        self.escaped
    }

    /// The string's value; `None` if it holds half a surrogate pair, which no `str` can.
    pub fn value(&self) -> Option<Cow<'a, str>> {
        if !self.escaped {
            return Some(Cow::Borrowed(self.raw));
        }
        serde_json::from_str::<String>(&format!("\"{}\"", self.raw)).ok().map(Cow::Owned)
    }

    /// As [`Text::value`]; a string that has no value stays raw, and so equals no name that we look for.
    pub fn name(&self) -> Cow<'a, str> {
        self.value().unwrap_or(Cow::Borrowed(self.raw))
    }

    /// Bytes of the value in UTF-8: what the client sees of it.
    pub fn decoded_bytes(&self) -> u64 {
        let length = if self.escaped {
            // Half surrogate pairs count as written: an estimate needs no more.
            self.value().map_or(self.raw.len(), |value| value.as_ref().len())
        } else {
            self.raw.len()
        };
        u64::try_from(length).unwrap_or(u64::MAX)
    }
}

/// The reader. Each method consumes exactly one value, whatever it is asked for; callbacks must do the same.
pub(crate) struct Scan<'a> {
    text: &'a str,
    at: usize,
    depth: u32,
    depth_max: u32,
}

impl<'a> Scan<'a> {
    pub fn new(text: &'a str, depth_max: u32) -> Self {
        Scan { text, at: 0, depth: 0, depth_max }
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
            member(self, key)?;
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b'}') => return Ok(self.close(start)),
                _ => return Err(self.broken().into()),
            }
        }
    }

    /// Reads an array; `item` must consume each value.
    pub fn array<E: From<Broken>>(&mut self, mut item: impl FnMut(&mut Self) -> Result<(), E>) -> Result<Span, E> {
        let start = self.open(b'[')?;
        if self.peek() == Some(b']') {
            return Ok(self.close(start));
        }
        loop {
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
        let start = self.at;
        let mut escaped = false;
        loop {
            self.at = plain_end(self.text.as_bytes(), self.at);
            match self.byte(self.at) {
                Some(b'"') => break,
                Some(b'\\') => {
                    escaped = true;
                    self.escape()?;
                }
                _ => return Err(self.broken()),
            }
        }
        let raw = self.text.get(start..self.at).ok_or(self.broken())?;
        self.at += 1;
        Ok(Text { raw, escaped, span: Span { start: start.saturating_sub(1), end: self.at } })
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

    /// A count: plain digits, at most 2^53. Anything else (negative, fractional, a string, null) is no count.
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
    pub fn array_or_skip<E: From<Broken>>(&mut self, item: impl FnMut(&mut Self) -> Result<(), E>) -> Result<bool, E> {
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
        Span { start, end: self.at }
    }

    /// At a backslash: steps over the whole escape.
    fn escape(&mut self) -> Result<(), Broken> {
        let length = match self.byte(self.at + 1) {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => 2,
            Some(b'u') => {
                let digits = self.text.as_bytes().get(self.at + 2..self.at + 6);
                if !digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit)) {
                    return Err(self.broken());
                }
                6
            }
            _ => return Err(self.broken()),
        };
        self.at += length;
        Ok(())
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

/// The most members of one object: whoever looks a name up among them does so one by one.
pub(crate) const MEMBERS_MAX: u32 = 10_000;

/// The largest count taken for real: beyond it a JSON number is no longer exact in most programs.
pub(crate) const COUNT_MAX: u64 = 1 << 53;

const ONES: u64 = 0x0101_0101_0101_0101;

/// Bytes of a long run that are judged at one time.
const BLOCK: usize = 64;

/// The first byte at or after `at` that ends a plain run inside a string: a quote, a backslash or a control
/// character. Most strings are short, and most of a request is long strings: eight bytes first, then blocks of 64 that
/// hold no end, then eight bytes again.
fn plain_end(bytes: &[u8], mut at: usize) -> usize {
    match word_end(bytes, at) {
        Some(0) => at += 8,
        Some(hits) => return at + (hits.trailing_zeros() / 8) as usize,
        None => {}
    }
    while bytes.get(at..).and_then(|rest| rest.first_chunk()).is_some_and(is_plain) {
        at += BLOCK;
    }
    while let Some(hits) = word_end(bytes, at) {
        if hits != 0 {
            return at + (hits.trailing_zeros() / 8) as usize;
        }
        at += 8;
    }
    while let Some(byte) = bytes.get(at) {
        if ends_plain(*byte) {
            break;
        }
        at += 1;
    }
    at
}

fn ends_plain(byte: u8) -> bool {
    byte == b'"' || byte == b'\\' || byte < 0x20
}

/// No branch in it: so the compiler judges sixteen bytes or more with one instruction.
fn is_plain(block: &[u8; BLOCK]) -> bool {
    let hits = block
        .iter()
        .fold(0, |hits, &byte| hits | u8::from(byte == b'"') | u8::from(byte == b'\\') | u8::from(byte < 0x20));
    hits == 0
}

/// Of the eight bytes at `at`, those that end a plain run: the lowest bit that is set is the high bit of the first. `None`
/// where there are not so many.
fn word_end(bytes: &[u8], at: usize) -> Option<u64> {
    let word = u64::from_le_bytes(*bytes.get(at..)?.first_chunk::<8>()?);
    let quote = word ^ (ONES * 0x22);
    let backslash = word ^ (ONES * 0x5c);
    // The high bit of a byte is set where the byte is below 0x20, a quote or a backslash. A borrow can set bits above a
    // true hit only, and the lowest hit is the one taken.
    let hits = (word.wrapping_sub(ONES * 0x20) & !word)
        | (quote.wrapping_sub(ONES) & !quote)
        | (backslash.wrapping_sub(ONES) & !backslash);
    Some(hits & (ONES << 7))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_run_ends_where_byte_by_byte_reading_says() {
        for length in 0..200 {
            for start in [0, 3, 8] {
                // Nothing but plain bytes, the highest and lowest of them among those.
                let plain: Vec<u8> = (0..length).map(|index| [b' ', b'a', 0x7f, 0x80, 0xff, b'!'][index % 6]).collect();
                assert_eq!(plain_end(&plain, start), start.max(length), "{length} from {start}");
                for end in [b'"', b'\\', 0, 0x1f, b'\n'] {
                    for place in 0..length {
                        let mut bytes = plain.clone();
                        bytes[place] = end;
                        let expected = (start..length).find(|at| ends_plain(bytes[*at])).unwrap_or(start.max(length));
                        assert_eq!(plain_end(&bytes, start), expected, "{end} at {place} of {length} from {start}");
                    }
                }
            }
        }
    }
}
