//! A JSON string that is copied from one body to another, kept in the sender's escaped form until
//! its value is needed; and a JSON writer.
//!
//! It must not normalise: escapes, half surrogate pairs and everything else in a token are written
//! as they were read.
//!
//! Read next: `protocol/json_document.rs`, where the tokens come from.

use super::scan::plain::Ends;
use std::borrow::Cow;

/// A string: the sender's token, or text of our own.
#[derive(Clone, Debug)]
pub enum Text<'a> {
    /// The text between the quotes. `decoded`: length of its value in UTF-8 bytes, if known.
    Token {
        raw: &'a str,
        escaped: bool,
        decoded: Option<u32>,
    },
    /// Text of our own, not yet escaped.
    Made(Cow<'a, str>),
}

impl<'a> Text<'a> {
    /// `raw`: the text between the quotes of a validated JSON string.
    pub(crate) fn token(raw: &'a str, escaped: bool) -> Self {
        Text::Token {
            raw,
            escaped,
            decoded: None,
        }
    }

    /// Creates a token whose value has a known length of `decoded` bytes.
    pub(crate) fn counted(raw: &'a str, decoded: u32) -> Self {
        Text::Token {
            raw,
            escaped: raw.len() > decoded as usize,
            decoded: Some(decoded),
        }
    }

    pub fn made(text: impl Into<Cow<'a, str>>) -> Self {
        Text::Made(text.into())
    }

    /// Returns the string's value. Half a surrogate pair, which a `str` cannot hold, becomes U+FFFD
    /// here (and only here).
    pub fn into_value(self) -> Cow<'a, str> {
        match self {
            Text::Token {
                raw,
                escaped: false,
                ..
            } => Cow::Borrowed(raw),
            Text::Token {
                raw, escaped: true, ..
            } => Cow::Owned(unescaped(raw)),
            Text::Made(text) => text,
        }
    }

    /// Returns the string's value, borrowed.
    pub fn value(&self) -> Cow<'_, str> {
        match self {
            Text::Token {
                raw,
                escaped: false,
                ..
            } => Cow::Borrowed(raw),
            Text::Token {
                raw, escaped: true, ..
            } => Cow::Owned(unescaped(raw)),
            Text::Made(text) => Cow::Borrowed(text),
        }
    }

    /// Returns the string, borrowed.
    pub fn borrowed(&self) -> Text<'_> {
        match self {
            Text::Token {
                raw,
                escaped,
                decoded,
            } => Text::Token {
                raw,
                escaped: *escaped,
                decoded: *decoded,
            },
            Text::Made(text) => Text::Made(Cow::Borrowed(text)),
        }
    }

    pub fn is(&self, wanted: &str) -> bool {
        match self {
            Text::Token {
                raw,
                escaped: false,
                ..
            } => *raw == wanted,
            _ => self.value() == wanted,
        }
    }

    pub fn is_empty(&self) -> bool {
        match self {
            Text::Token { raw, .. } => raw.is_empty(),
            Text::Made(text) => text.is_empty(),
        }
    }

    /// Returns whether the string has only white space.
    pub fn is_blank(&self) -> bool {
        let shown = match self {
            Text::Token { raw, .. } => *raw,
            Text::Made(text) => text.as_ref(),
        };
        // Usually the first character decides. Only a text that begins with an escape or white
        // space needs a scan.
        match shown.bytes().next() {
            None => true,
            Some(first) if first.is_ascii_graphic() && first != b'\\' => false,
            Some(_) => self.letters().all(char::is_whitespace),
        }
    }

    /// Splits the string after `code_points`. The second part is empty if the string is not longer.
    pub fn cut(self, code_points: u64) -> (Self, Self) {
        let mut letters = self.letters();
        let behind = letters.rest.as_str().len();
        let count = usize::try_from(code_points).unwrap_or(usize::MAX);
        letters.by_ref().take(count).for_each(drop);
        let at = behind - letters.rest.as_str().len();
        match self {
            Text::Token { raw, escaped, .. } => {
                let (first, rest) = raw.split_at_checked(at).unwrap_or((raw, ""));
                (Text::token(first, escaped), Text::token(rest, escaped))
            }
            Text::Made(text) => {
                let (first, rest) = text.split_at_checked(at).unwrap_or((&text, ""));
                (Text::made(first.to_owned()), Text::made(rest.to_owned()))
            }
        }
    }

    /// Returns the string without trailing white space.
    pub fn trimmed_end(&self) -> Self {
        let mut letters = self.letters();
        let (whole, mut end) = (letters.rest.as_str().len(), 0);
        while let Some(letter) = letters.next() {
            if !letter.is_whitespace() {
                end = whole - letters.rest.as_str().len();
            }
        }
        match self {
            Text::Token { raw, escaped, .. } => {
                Text::token(raw.get(..end).unwrap_or(raw), *escaped)
            }
            Text::Made(text) => Text::made(text.get(..end).unwrap_or(text).to_owned()),
        }
    }

    /// Appends the inside of the string, escaped, without quotes. Texts can be joined this way
    /// without decoding them.
    pub fn write_inside(&self, out: &mut Vec<u8>) {
        match self {
            Text::Token { raw, .. } => out.extend_from_slice(raw.as_bytes()),
            Text::Made(text) => escape(text, out),
        }
    }

    /// Appends the string with its quotes.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.push(b'"');
        self.write_inside(out);
        out.push(b'"');
    }

    /// Iterates over the characters of the value without allocating. Half a surrogate pair yields
    /// one U+FFFD.
    pub fn letters(&self) -> Letters<'_> {
        match self {
            Text::Token { raw, escaped, .. } => Letters {
                rest: raw.chars(),
                escaped: *escaped,
            },
            Text::Made(text) => Letters {
                rest: text.chars(),
                escaped: false,
            },
        }
    }

    /// Length of the value in UTF-8 bytes, for estimates.
    pub fn decoded_bytes(&self) -> u64 {
        let length = match self {
            Text::Token {
                decoded: Some(bytes),
                ..
            } => *bytes as usize,
            Text::Token {
                raw,
                escaped: false,
                ..
            } => raw.len(),
            Text::Token {
                raw, escaped: true, ..
            } => decoded_length(raw),
            Text::Made(text) => text.len(),
        };
        u64::try_from(length).unwrap_or(u64::MAX)
    }

    /// Number of Unicode code points of the value.
    pub fn code_points(&self) -> u64 {
        let count = match self {
            Text::Token {
                raw,
                escaped: false,
                ..
            } => raw.chars().count(),
            Text::Token {
                raw, escaped: true, ..
            } => {
                let mut count = 0;
                by_runs(raw, |run, letter| {
                    count += run.chars().count() + usize::from(letter.is_some())
                });
                count
            }
            Text::Made(text) => text.chars().count(),
        };
        u64::try_from(count).unwrap_or(u64::MAX)
    }
}

/// Iterator over the characters of a string's value.
#[derive(Clone, Debug)]
pub struct Letters<'a> {
    rest: std::str::Chars<'a>,
    escaped: bool,
}

impl Iterator for Letters<'_> {
    type Item = char;

    fn next(&mut self) -> Option<char> {
        let letter = self.rest.next()?;
        if letter != '\\' || !self.escaped {
            return Some(letter);
        }
        Some(match self.rest.next()? {
            'u' => self.coded(),
            other => named(other),
        })
    }
}

/// Returns the character that a single-letter escape stands for.
fn named(letter: char) -> char {
    match letter {
        'n' => '\n',
        'r' => '\r',
        't' => '\t',
        'b' => '\u{8}',
        'f' => '\u{c}',
        other => other,
    }
}

impl Letters<'_> {
    /// Decodes the four digits after `\u`, and the second half of a surrogate pair.
    fn coded(&mut self) -> char {
        let unit = digits(&mut self.rest);
        if let 0xd800..=0xdbff = unit {
            let mut ahead = self.rest.clone();
            let low = (ahead.next() == Some('\\') && ahead.next() == Some('u'))
                .then(|| digits(&mut ahead));
            if let Some(low @ 0xdc00..=0xdfff) = low {
                self.rest = ahead;
                return char::from_u32(0x1_0000 + ((unit - 0xd800) << 10) + (low - 0xdc00))
                    .unwrap_or('\u{fffd}');
            }
        }
        char::from_u32(unit).unwrap_or('\u{fffd}')
    }
}

/// Reads four hexadecimal digits.
fn digits(letters: &mut std::str::Chars<'_>) -> u32 {
    letters.by_ref().take(4).fold(0, |unit, digit| {
        (unit << 4) | digit.to_digit(16).unwrap_or(0)
    })
}

/// Buffer of joined texts, still escaped: for text that outlives its event.
#[derive(Clone, Debug, Default)]
pub struct Gathered {
    raw: Vec<u8>,
    escaped: bool,
}

impl Gathered {
    pub fn push(&mut self, text: &Text<'_>) {
        let before = self.raw.len();
        text.write_inside(&mut self.raw);
        self.escaped |= match text {
            Text::Token { escaped, .. } => *escaped,
            Text::Made(_) => self
                .raw
                .get(before..)
                .is_some_and(|added| added.contains(&b'\\')),
        };
    }

    pub fn text(&self) -> Text<'_> {
        // Tokens and escaped text are UTF-8, so their concatenation is too.
        Text::token(
            std::str::from_utf8(&self.raw).unwrap_or_default(),
            self.escaped,
        )
    }

    /// Number of bytes held.
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

/// Length of a token's value in bytes.
fn decoded_length(raw: &str) -> usize {
    let mut length = 0;
    by_runs(raw, |run, letter| {
        length += run.len() + letter.map_or(0, char::len_utf8)
    });
    length
}

/// Returns the value of a token with escapes.
fn unescaped(raw: &str) -> String {
    let mut value = String::with_capacity(raw.len());
    by_runs(raw, |run, letter| {
        value.push_str(run);
        value.extend(letter);
    });
    value
}

/// Splits the inside of a string token into runs without escapes. Each run comes with the character
/// of the escape that follows it.
fn by_runs<'r>(raw: &'r str, mut each: impl FnMut(&'r str, Option<char>)) {
    let (bytes, mut ends, mut at) = (raw.as_bytes(), Ends::of(raw.as_bytes()), 0);
    loop {
        let end = ends.after(at);
        let run = raw.get(at..end).unwrap_or_default();
        match bytes.get(end..) {
            Some([b'\\', letter, ..]) if letter.is_ascii() && *letter != b'u' => {
                each(run, Some(named(char::from(*letter))));
                at = end.saturating_add(2);
            }
            Some([_, ..]) => {
                let mut letters = Letters {
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

/// Appends `text` as the inside of a JSON string.
pub(crate) fn escape(text: &str, out: &mut Vec<u8>) {
    let bytes = text.as_bytes();
    let (mut ends, mut copied) = (Ends::of(bytes), 0);
    loop {
        let at = ends.after(copied);
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

/// Appends valid JSON without the white space between its tokens.
pub(crate) fn compact(json: &str, out: &mut Vec<u8>) {
    let bytes = json.as_bytes();
    let (mut ends, mut at, mut copied) = (Ends::of(bytes), 0, 0);
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' => at = string_end(&mut ends, bytes, at + 1),
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
fn string_end(ends: &mut Ends<'_>, bytes: &[u8], mut at: usize) -> usize {
    loop {
        at = ends.after(at);
        match bytes.get(at) {
            Some(b'\\') => at += 2,
            _ => return at + 1,
        }
    }
}

/// Writes one JSON value, compact. It inserts the commas; the caller closes what it opens.
#[derive(Debug, Default)]
pub struct Json {
    out: Vec<u8>,
}

impl Json {
    pub fn with_capacity(bytes: usize) -> Self {
        Json {
            out: Vec::with_capacity(bytes),
        }
    }

    /// Appends to existing bytes. It inserts no comma after `{`, `[` or `:`.
    pub fn onto(out: Vec<u8>) -> Self {
        Json { out }
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
    pub fn key_text(&mut self, name: &Text<'_>) -> &mut Self {
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

    pub fn text(&mut self, text: &Text<'_>) -> &mut Self {
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
    pub fn joined<'t, 'a: 't>(
        &mut self,
        texts: impl IntoIterator<Item = &'t Text<'a>>,
    ) -> &mut Self {
        self.comma();
        self.out.push(b'"');
        for text in texts {
            text.write_inside(&mut self.out);
        }
        self.out.push(b'"');
        self
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
            let token = Text::token(raw, raw.contains('\\'));
            let value = token.value();
            assert_eq!(token.letters().collect::<String>(), value, "{raw}");
            assert_eq!(token.code_points(), value.chars().count() as u64, "{raw}");
            assert_eq!(token.decoded_bytes(), value.len() as u64, "{raw}");
        }
        assert_eq!(Text::token(r"\ud83d\ude00", true).value(), "😀");
        assert_eq!(Text::token(r"\ud83dx", true).value(), "\u{fffd}x");
    }
}
