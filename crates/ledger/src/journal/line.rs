//! Defines the format of a journal line, `<crc32> <number> <record>`. The checksum covers
//! everything after itself. `journal/record_text.rs` has the text of a record.
//!
//! Older versions wrote `<crc32> <record>`, with the record as JSON; such lines can still be read.
//! This file must not do I/O.

use super::record::JournalRecord;
use super::record_text;
use std::io;

/// Offset of the number. A line end, the checksum in hexadecimal digits, and a space precede it.
const NUMBER_OFFSET: usize = 10;
/// Offset of the record, after a number of ten digits and a space.
const RECORD_OFFSET: usize = 21;
const NUMBER_DIGITS: usize = RECORD_OFFSET - NUMBER_OFFSET - 1;

/// A decoded line. `number` is `None` in a line of an older version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct JournalLine {
    pub number: Option<u64>,
    pub record: JournalRecord,
}

/// A record as a line that may be written later, in another thread.
pub struct EncodedRecord {
    line: Vec<u8>,
    kind: RecordKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RecordKind {
    Open,
    End,
    Other,
}

impl EncodedRecord {
    /// Encodes a record.
    ///
    /// # Errors
    /// Returns an error if a field of the record does not fit into a line.
    pub fn new(record: &JournalRecord) -> io::Result<Self> {
        Ok(Self {
            line: encode_unnumbered(record)?,
            kind: match record {
                JournalRecord::Open(_) => RecordKind::Open,
                JournalRecord::End(_) => RecordKind::End,
                _ => RecordKind::Other,
            },
        })
    }

    pub(crate) fn is_open(&self) -> bool {
        self.kind == RecordKind::Open
    }

    pub(crate) fn is_end(&self) -> bool {
        self.kind == RecordKind::End
    }

    pub(crate) fn line(&mut self) -> &mut [u8] {
        &mut self.line
    }
}

/// Encodes `record` as a line without its number and checksum.
pub(crate) fn encode_unnumbered(record: &JournalRecord) -> io::Result<Vec<u8>> {
    let mut line = Vec::with_capacity(384);
    // The leading line end terminates the rest of a torn write.
    line.extend_from_slice(b"\n00000000 0000000000 ");
    record_text::write(record, &mut line)?;
    line.push(b'\n');
    Ok(line)
}

/// Writes the number and the checksum into a line.
pub(crate) fn set_number(line: &mut [u8], number: u64) {
    if let Some(digits) = line.get_mut(NUMBER_OFFSET..NUMBER_OFFSET + NUMBER_DIGITS) {
        let mut rest = number;
        for digit in digits.iter_mut().rev() {
            *digit = b'0' + u8::try_from(rest % 10).unwrap_or_default();
            rest /= 10;
        }
    }
    let end = line.len().saturating_sub(1);
    let crc = format!(
        "{:08x}",
        crc32fast::hash(line.get(NUMBER_OFFSET..end).unwrap_or_default())
    );
    for (byte, digit) in line.iter_mut().skip(1).zip(crc.bytes()) {
        *byte = digit;
    }
}

/// Encodes `record` as a complete line.
#[cfg(test)]
pub(crate) fn encode(record: &JournalRecord, number: u64) -> io::Result<Vec<u8>> {
    let mut line = encode_unnumbered(record)?;
    set_number(&mut line, number);
    Ok(line)
}

/// Decodes the bytes between two line ends. Returns `None` if they differ from the written line.
pub(crate) fn decode(line: &[u8]) -> Option<JournalLine> {
    let (head, rest) = line.split_at_checked(NUMBER_OFFSET - 1)?;
    // Compare the text: a checksum of the same value but another spelling shows a damaged line too.
    if head != format!("{:08x} ", crc32fast::hash(rest)).as_bytes() {
        return None;
    }
    parse_body(rest)
}

/// Parses the part after the checksum.
pub(crate) fn parse_body(rest: &[u8]) -> Option<JournalLine> {
    if rest.starts_with(b"{") {
        return Some(JournalLine {
            number: None,
            record: record_text::parse(rest)?,
        });
    }
    let (digits, record) = rest.split_at_checked(NUMBER_DIGITS)?;
    let number = std::str::from_utf8(digits).ok()?.parse().ok();
    Some(JournalLine {
        number,
        record: record_text::parse(record.strip_prefix(b" ")?)?,
    })
    .filter(|_| number.is_some())
}
