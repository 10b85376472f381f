//! Encodes the details of a block's entries by columns.
//!
//! A detail is a JSON text. Its *shape* is the text with a hole in place of each value after a
//! colon: byte 1 for a string, byte 2 for a whole number. Most entries share a few shapes, and the
//! values of one hole resemble each other, so they compress well together. Filling the holes
//! returns every text byte for byte. This file must not depend on the meaning of a detail.

use super::varint::{BlockBytes, put, put_text};
use std::collections::HashMap;

const STRING_HOLE: u8 = 1;
const NUMBER_HOLE: u8 = 2;
/// Maximum number of digits in a number that becomes a hole. It fits into 64 bits.
const MAX_DIGITS: usize = 18;

/// A detail, split into its shape and the values of its holes.
struct SplitDetail<'a> {
    shape: String,
    values: Vec<HoleValue<'a>>,
}

enum HoleValue<'a> {
    /// The text between the quotes, with its escapes.
    Text(&'a str),
    Number(u64),
}

/// Splits a text. `None` for a text that contains the bytes of holes, because it has no shape.
fn split(text: &str) -> Option<SplitDetail<'_>> {
    if text
        .bytes()
        .any(|byte| byte == STRING_HOLE || byte == NUMBER_HOLE)
    {
        return None;
    }
    let (mut shape, mut values) = (String::with_capacity(text.len()), Vec::new());
    let mut rest = text;
    while let Some(colon) = rest.find(':') {
        let (before, after) = rest.split_at(colon + 1);
        shape.push_str(before);
        rest = after;
        if let Some((value, length)) = string_value(after) {
            values.push(HoleValue::Text(value));
            shape.push_str("\"\u{1}\"");
            rest = after.get(length..).unwrap_or_default();
        } else if let Some((value, length)) = number_value(after) {
            values.push(HoleValue::Number(value));
            shape.push('\u{2}');
            rest = after.get(length..).unwrap_or_default();
        }
    }
    shape.push_str(rest);
    Some(SplitDetail { shape, values })
}

/// Returns the content of the string at the start of `text`, and its length with both quotes.
fn string_value(text: &str) -> Option<(&str, usize)> {
    let inner = text.strip_prefix('"')?;
    let mut is_escaped = false;
    for (at, byte) in inner.bytes().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'"' => return Some((inner.get(..at)?, at + 2)),
            _ => {}
        }
    }
    None
}

/// Returns the whole number at the start of `text` and its length. The digits must be those that
/// the number prints.
fn number_value(text: &str) -> Option<(u64, usize)> {
    let length = text.bytes().take_while(u8::is_ascii_digit).count();
    let digits = text.get(..length)?;
    let is_plain = (1..=MAX_DIGITS).contains(&length) && (length == 1 || !digits.starts_with('0'));
    let value = digits.parse().ok().filter(|_| is_plain)?;
    Some((value, length))
}

/// Collects texts. Each one is stored once and identified by its number.
#[derive(Default)]
pub(crate) struct TextTable<'a> {
    texts: Vec<&'a str>,
    numbers: HashMap<&'a str, u64>,
}

impl<'a> TextTable<'a> {
    pub(crate) fn number(&mut self, text: &'a str) -> u64 {
        *self.numbers.entry(text).or_insert_with(|| {
            self.texts.push(text);
            self.texts.len() as u64 - 1
        })
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        put(out, self.texts.len() as u64);
        self.texts.iter().for_each(|text| put_text(out, text));
    }
}

/// Reads the texts of a [`TextTable`].
pub(crate) fn read_table<'a>(bytes: &mut BlockBytes<'a>) -> Option<Vec<&'a str>> {
    let count = bytes.count()?;
    (0..count).map(|_| bytes.text()).collect()
}

/// Reads one number for each of `count` entries, and returns the table's texts with these numbers.
pub(crate) fn read_named<'a>(
    bytes: &mut BlockBytes<'_>,
    table: &[&'a str],
    count: usize,
) -> Option<Vec<&'a str>> {
    (0..count)
        .map(|_| {
            let number = usize::try_from(bytes.unsigned()?).ok()?;
            table.get(number).copied()
        })
        .collect()
}

/// Writes the details. The output has the shapes; the number of its shape plus 1, or 0, for each
/// entry; the texts without a shape; and the values by shape and hole.
pub(crate) fn write_details<'a>(out: &mut Vec<u8>, details: impl Iterator<Item = &'a str>) {
    let split: Vec<_> = details.map(|text| (text, split(text))).collect();
    let mut shapes = TextTable::default();
    let numbers: Vec<_> = split
        .iter()
        .map(|(_, split)| {
            split
                .as_ref()
                .map_or(0, |split| shapes.number(&split.shape) + 1)
        })
        .collect();
    shapes.write(out);
    numbers.iter().for_each(|number| put(out, *number));
    for (text, _) in split.iter().filter(|(_, split)| split.is_none()) {
        put_text(out, text);
    }
    for shape in 1..=shapes.texts.len() as u64 {
        let of_shape: Vec<_> = split
            .iter()
            .zip(&numbers)
            .filter(|(_, number)| **number == shape)
            .filter_map(|((_, split), _)| split.as_ref())
            .collect();
        let holes = of_shape.first().map_or(0, |split| split.values.len());
        for hole in 0..holes {
            write_hole(
                out,
                of_shape.iter().filter_map(|split| split.values.get(hole)),
            );
        }
    }
}

fn write_hole<'a>(out: &mut Vec<u8>, values: impl Iterator<Item = &'a HoleValue<'a>>) {
    let (mut table, mut column) = (TextTable::default(), Vec::new());
    for value in values {
        match value {
            HoleValue::Text(text) => put(&mut column, table.number(text)),
            HoleValue::Number(number) => put(&mut column, *number),
        }
    }
    if !table.texts.is_empty() {
        table.write(out);
    }
    out.extend_from_slice(&column);
}

/// Values of one hole, in the order of the entries.
enum HoleColumn<'a> {
    Texts(Vec<&'a str>),
    Numbers(Vec<u64>),
}

/// Reads the details of `count` entries. Returns `None` if they are damaged, or longer than
/// `max_bytes` together.
pub(crate) fn read_details(
    bytes: &mut BlockBytes<'_>,
    count: usize,
    max_bytes: usize,
) -> Option<Vec<String>> {
    let shapes = read_table(bytes)?;
    let numbers: Vec<usize> = (0..count)
        .map(|_| usize::try_from(bytes.unsigned()?).ok())
        .collect::<Option<_>>()?;
    let unshaped = numbers.iter().filter(|number| **number == 0).count();
    let unshaped: Vec<_> = (0..unshaped).map(|_| bytes.text()).collect::<Option<_>>()?;
    let mut columns = Vec::with_capacity(shapes.len());
    for (index, shape) in shapes.iter().enumerate() {
        let entries = numbers
            .iter()
            .filter(|number| **number == index + 1)
            .count();
        columns.push(read_holes(bytes, shape, entries)?);
    }
    let mut unshaped = unshaped.into_iter();
    let mut rows = vec![0_usize; shapes.len()];
    let (mut details, mut written) = (Vec::with_capacity(count), 0);
    for number in numbers {
        let Some(index) = number.checked_sub(1) else {
            details.push(unshaped.next()?.to_owned());
            continue;
        };
        let row = rows.get_mut(index)?;
        let text = fill(shapes.get(index)?, columns.get(index)?, *row)?;
        *row += 1;
        written += text.len();
        if written > max_bytes {
            return None;
        }
        details.push(text);
    }
    Some(details)
}

fn read_holes<'a>(
    bytes: &mut BlockBytes<'a>,
    shape: &str,
    entries: usize,
) -> Option<Vec<HoleColumn<'a>>> {
    shape
        .bytes()
        .filter(|byte| *byte == STRING_HOLE || *byte == NUMBER_HOLE)
        .map(|hole| {
            if hole == STRING_HOLE {
                let table = read_table(bytes)?;
                return read_named(bytes, &table, entries).map(HoleColumn::Texts);
            }
            let numbers = (0..entries).map(|_| bytes.unsigned());
            numbers.collect::<Option<_>>().map(HoleColumn::Numbers)
        })
        .collect()
}

/// Fills the holes of a shape with the values in this row of the columns.
fn fill(shape: &str, columns: &[HoleColumn<'_>], row: usize) -> Option<String> {
    let mut text = String::with_capacity(shape.len() * 2);
    let mut columns = columns.iter();
    let mut rest = shape;
    while let Some(hole) = rest.find(['\u{1}', '\u{2}']) {
        text.push_str(rest.get(..hole)?);
        rest = rest.get(hole + 1..)?;
        match columns.next()? {
            HoleColumn::Texts(texts) => text.push_str(texts.get(row)?),
            HoleColumn::Numbers(numbers) => push_number(&mut text, *numbers.get(row)?),
        }
    }
    text.push_str(rest);
    Some(text)
}

/// Appends a number without the cost of a formatter, because an entry has about ten numbers.
fn push_number(text: &mut String, mut number: u64) {
    let mut digits = [0_u8; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        let digit = (number % 10).to_le_bytes()[0];
        if let Some(place) = digits.get_mut(at) {
            *place = b'0' + digit;
        }
        number /= 10;
        if number == 0 {
            break;
        }
    }
    let shown = digits.get(at..).unwrap_or_default();
    text.push_str(std::str::from_utf8(shown).unwrap_or_default());
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn round_trip(details: &[&str]) -> Option<Vec<String>> {
        let mut out = Vec::new();
        write_details(&mut out, details.iter().copied());
        let mut bytes = BlockBytes(&out);
        let read = read_details(&mut bytes, details.len(), 1 << 20);
        assert!(bytes.0.is_empty(), "everything was read");
        read
    }

    #[test]
    fn every_text_comes_back_byte_for_byte() {
        let details = [
            "",
            r#"{"model":"m","usage":{"input":10,"output":0},"estimated":false}"#,
            r#"{"model":"n","usage":{"input":7,"output":12345},"estimated":true}"#,
            r#"{"reason":"a \"quoted\" text with \\ and : 5","actor":""}"#,
            r#"{"n":007,"m":-3,"f":1.5,"e":1e9,"big":123456789012345678901}"#,
            "no JSON: \"open",
            "holes \u{1}\u{2}",
            "a:\"b",
            ":",
            ":0",
        ];
        assert_eq!(round_trip(&details).unwrap(), details);
    }

    #[test]
    fn values_of_one_shape_share_it() {
        let split = split(r#"{"a":"x","b":12}"#).unwrap();
        assert_eq!(split.shape, "{\"a\":\"\u{1}\",\"b\":\u{2}}");
        assert_eq!(split.values.len(), 2);
    }

    proptest! {
        #[test]
        fn any_texts_come_back(texts in proptest::collection::vec("[\u{1}\u{2}\\\\\":{}a0-9é-]{0,24}", 0..8)) {
            let texts: Vec<_> = texts.iter().map(String::as_str).collect();
            prop_assert_eq!(round_trip(&texts).unwrap(), texts);
        }

        #[test]
        fn any_bytes_end_the_reader(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = read_details(&mut BlockBytes(&bytes), 3, 1 << 10);
        }
    }
}
