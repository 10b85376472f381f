//! The format of a journal line: `<crc32> <number> <json>`. The checksum covers everything after
//! itself.
//!
//! Versions before lines were numbered wrote `<crc32> <json>`, which is still read. Must not do
//! I/O.

use super::Record;
use std::io;

/// Offset of the number: a line end, the checksum in hexadecimal digits, and a space.
const NUMBER_AT: usize = 10;
/// Offset of the JSON: the number has ten digits, followed by a space.
const JSON_AT: usize = 21;
const DIGITS: usize = JSON_AT - NUMBER_AT - 1;

/// A decoded line. `number` is `None` in a line of an older version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Line {
    pub number: Option<u64>,
    pub record: Record,
}

/// Encodes `record` as a line without its number and checksum.
pub(super) fn unnumbered(record: &Record) -> io::Result<Vec<u8>> {
    let mut line = Vec::with_capacity(640);
    // The leading line end terminates the remains of a torn write.
    line.extend_from_slice(b"\n00000000 0000000000 ");
    serde_json::to_writer(&mut line, record)?;
    line.push(b'\n');
    Ok(line)
}

/// Fills in a line's number and checksum.
pub(super) fn number(line: &mut [u8], number: u64) {
    if let Some(place) = line.get_mut(NUMBER_AT..NUMBER_AT + DIGITS) {
        let mut rest = number;
        for digit in place.iter_mut().rev() {
            *digit = b'0' + u8::try_from(rest % 10).unwrap_or_default();
            rest /= 10;
        }
    }
    let end = line.len().saturating_sub(1);
    let crc = format!(
        "{:08x}",
        crc32fast::hash(line.get(NUMBER_AT..end).unwrap_or_default())
    );
    for (place, digit) in line.iter_mut().skip(1).zip(crc.bytes()) {
        *place = digit;
    }
}

/// Encodes `record` as a complete line.
pub(super) fn encode(record: &Record, its: u64) -> io::Result<Vec<u8>> {
    let mut line = unnumbered(record)?;
    number(&mut line, its);
    Ok(line)
}

/// Decodes the bytes between two line ends; `None` if they differ from what was written.
pub(super) fn decode(line: &[u8]) -> Option<Line> {
    let (head, rest) = line.split_at_checked(NUMBER_AT - 1)?;
    // Compare literally: a checksum that is spelled differently but has the same value is a damaged
    // line too.
    if head != format!("{:08x} ", crc32fast::hash(rest)).as_bytes() {
        return None;
    }
    parse(rest)
}

/// Parses the part after the checksum.
pub(super) fn parse(rest: &[u8]) -> Option<Line> {
    if rest.starts_with(b"{") {
        return Some(Line {
            number: None,
            record: serde_json::from_slice(rest).ok()?,
        });
    }
    let (digits, json) = rest.split_at_checked(DIGITS)?;
    let number = std::str::from_utf8(digits).ok()?.parse().ok();
    Some(Line {
        number,
        record: serde_json::from_slice(json.strip_prefix(b" ")?).ok()?,
    })
    .filter(|_| number.is_some())
}
