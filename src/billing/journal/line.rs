//! One line of a journal: `<crc32> <number> <json>`, of which the checksum covers all but itself.
//!
//! A line of a version before lines were numbered is `<crc32> <json>`, and is read as well. Must
//! not do I/O.

use super::Record;
use std::io;

/// A line end, the checksum in digits, and a space.
const NUMBER_AT: usize = 10;
/// The number has ten digits, and a space behind it.
const JSON_AT: usize = 21;
const DIGITS: usize = JSON_AT - NUMBER_AT - 1;

/// What a line says. `number` is `None` in one of a version before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Line {
    pub number: Option<u64>,
    pub record: Record,
}

/// The line of `record`, which still lacks its number and its checksum.
pub(super) fn unnumbered(record: &Record) -> io::Result<Vec<u8>> {
    let mut line = Vec::with_capacity(640);
    // The leading line end closes whatever a torn write before this one has left.
    line.extend_from_slice(b"\n00000000 0000000000 ");
    serde_json::to_writer(&mut line, record)?;
    line.push(b'\n');
    Ok(line)
}

/// Gives a line its number.
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

/// The whole line of `record`.
pub(super) fn encode(record: &Record, its: u64) -> io::Result<Vec<u8>> {
    let mut line = unnumbered(record)?;
    number(&mut line, its);
    Ok(line)
}

/// What stands between two line ends, if it is as it was written.
pub(super) fn decode(line: &[u8]) -> Option<Line> {
    let (head, rest) = line.split_at_checked(NUMBER_AT - 1)?;
    // As it was written, to the letter: a changed checksum that means the same is a changed line
    // too.
    if head != format!("{:08x} ", crc32fast::hash(rest)).as_bytes() {
        return None;
    }
    parse(rest)
}

/// What follows the checksum.
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
