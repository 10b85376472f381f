//! Repairs damaged lines of a journal. The line's checksum locates a single flipped bit, so that
//! the debit in the line is not lost.
//!
//! A CRC-32 is linear: the difference between the stored and the computed checksum determines which
//! bit was flipped, in time proportional to the line's length. With more damage, the line is lost
//! and counted. This file must not write.

use super::line::{JournalLine, decode, parse_body};
use std::io::{self, BufRead};

/// The polynomial of CRC-32, lowest bit first.
const POLYNOMIAL: u32 = 0xedb8_8320;
/// Number of bytes of the checksum in hexadecimal digits and a space.
const HEAD_BYTES: usize = 9;

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LineDamage {
    pub repaired: usize,
    pub lost: usize,
}

/// Reads the lines of a file in order, and calls `each` with every whole or repaired one. A last
/// line without its end is left out. The function keeps two lines in memory.
///
/// # Errors
/// Returns an error if the file cannot be read.
pub(crate) fn read_lines(
    mut file: impl BufRead,
    each: &mut dyn FnMut(JournalLine),
) -> io::Result<LineDamage> {
    let mut damage = LineDamage::default();
    // The lost line directly before the current one, if any.
    let mut before: Option<Vec<u8>> = None;
    let mut line = Vec::new();
    loop {
        line.clear();
        file.read_until(b'\n', &mut line)?;
        if line.pop() != Some(b'\n') {
            return Ok(damage);
        }
        if line.is_empty() {
            before = None;
        } else if let Some(record) = decode(&line) {
            each(record);
            before = None;
        } else if let Some(record) = repair(&line) {
            each(record);
            damage.repaired += 1;
            before = None;
        } else if let Some(record) = before
            .as_deref()
            .and_then(|before| join_split_line(before, &line))
        {
            each(record);
            damage.repaired += 1;
            damage.lost -= 1;
            before = None;
        } else {
            damage.lost += 1;
            before = Some(line.clone());
        }
    }
}

/// Repairs a line with one flipped bit, in the line itself or in an adjacent line end.
fn repair(line: &[u8]) -> Option<JournalLine> {
    let (first, last) = (line.first()?, line.last()?);
    let is_line_end = |byte: &u8| (byte ^ b'\n').is_power_of_two();
    if is_line_end(first)
        && let Some(record) = line.get(1..).and_then(decode)
    {
        return Some(record);
    }
    if is_line_end(last)
        && let Some(record) = line.get(..line.len() - 1).and_then(decode)
    {
        return Some(record);
    }
    let (head, rest) = line.split_at_checked(HEAD_BYTES)?;
    let actual = crc32fast::hash(rest);
    let flipped: u32 = head
        .iter()
        .zip(format!("{actual:08x} ").bytes())
        .map(|(a, b)| (a ^ b).count_ones())
        .sum();
    if flipped == 1 {
        return parse_body(rest);
    }
    let recorded =
        u32::from_str_radix(std::str::from_utf8(head.get(..HEAD_BYTES - 1)?).ok()?, 16).ok()?;
    let (index, bit) = find_flipped_bit(actual ^ recorded, rest.len())?;
    let mut copy = line.to_vec();
    *copy.get_mut(HEAD_BYTES + index)? ^= 1 << bit;
    decode(&copy)
}

/// Returns the byte and the bit whose flip changes the checksum of `length` bytes by `difference`.
fn find_flipped_bit(difference: u32, length: usize) -> Option<(usize, u8)> {
    (0..8).find_map(|bit| {
        let mut change = shift_by_byte(1 << bit);
        (0..length).rev().find_map(|index| {
            let found = (change == difference).then_some((index, bit));
            change = shift_by_byte(change);
            found
        })
    })
}

/// Returns the checksum's difference after one more byte.
fn shift_by_byte(change: u32) -> u32 {
    let [low, ..] = change.to_le_bytes();
    change >> 8
        ^ SHIFT_TABLE
            .get(usize::from(low))
            .copied()
            .unwrap_or_default()
}

/// Results of [`shift_by_byte`] for the lowest byte of the difference.
const SHIFT_TABLE: [u32; 256] = build_shift_table();

#[expect(clippy::indexing_slicing, reason = "at compile time")]
const fn build_shift_table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let (mut change, mut bit) = (byte as u32, 0);
        while bit < 8 {
            change = if change & 1 == 1 {
                change >> 1 ^ POLYNOMIAL
            } else {
                change >> 1
            };
            bit += 1;
        }
        table[byte] = change;
        byte += 1;
    }
    table
}

/// Restores a line that a flipped bit has split in two.
fn join_split_line(first: &[u8], second: &[u8]) -> Option<JournalLine> {
    (0..8).find_map(|bit| decode(&[first, &[b'\n' ^ (1 << bit)], second].concat()))
}

#[cfg(test)]
mod tests {
    use super::super::line::encode;
    use super::super::record::JournalRecord;
    use super::*;
    use crate::{Ending, RequestOutcome};
    use std::io::Read as _;

    fn records(count: u64) -> Vec<JournalLine> {
        let record = |number| {
            let request_id = format!("req_{number}");
            let outcome = RequestOutcome::Completed;
            JournalRecord::End(Ending::in_test(&request_id, "acct_1", 7, outcome))
        };
        (0..count)
            .map(|number| JournalLine {
                number: Some(number),
                record: record(number),
            })
            .collect()
    }

    fn written(records: &[JournalLine]) -> Vec<u8> {
        records
            .iter()
            .flat_map(|line| encode(&line.record, line.number.unwrap()).unwrap())
            .collect()
    }

    /// Splits `bytes` into lines. The last line may lack its end.
    fn lines_of(bytes: &[u8]) -> (Vec<JournalLine>, LineDamage) {
        let mut lines = Vec::new();
        let damage = read_lines(bytes.chain(&b"\n"[..]), &mut |line| lines.push(line)).unwrap();
        (lines, damage)
    }

    #[test]
    fn every_flipped_bit_is_found_and_every_record_stays() {
        let records = records(3);
        let bytes = written(&records);
        for index in 0..bytes.len() {
            for bit in 0..8 {
                let mut damaged = bytes.clone();
                damaged[index] ^= 1 << bit;
                let (found, LineDamage { repaired, lost }) = lines_of(&damaged);
                assert_eq!((&found, lost), (&records, 0), "bit {bit} of byte {index}");
                // The neighbour of another line end is redundant, so damage to it needs no repair.
                assert!(
                    repaired == 1 || bytes[index] == b'\n',
                    "bit {bit} of byte {index}"
                );
            }
        }
    }

    #[test]
    fn a_flipped_bit_in_each_of_two_lines_is_found_in_both() {
        let records = records(3);
        let mut bytes = written(&records);
        let line = bytes.len() / 3;
        bytes[line / 2] ^= 1;
        bytes[line + line / 2] ^= 8;
        let (found, LineDamage { repaired, lost }) = lines_of(&bytes);
        assert_eq!((found, repaired, lost), (records, 2, 0));
    }

    #[test]
    fn what_more_than_a_bit_has_changed_is_lost_and_nothing_else() {
        let records = records(3);
        let mut bytes = written(&records);
        let middle = bytes.len() / 2;
        bytes[middle..middle + 4].fill(b'#');
        let (found, LineDamage { repaired, lost }) = lines_of(&bytes);
        assert_eq!((found.len(), repaired, lost), (2, 0, 1));
        let garbage = b"garbage\n".repeat(10_000);
        let (found, LineDamage { lost, .. }) = lines_of(&garbage);
        assert_eq!((found.len(), lost), (0, 10_000));
    }
}
