//! Damaged lines of a journal: one flipped bit is found by the line's checksum, so the answer that it ended is paid.
//!
//! A CRC-32 tells every line that one bit makes valid from all others of this length. Where more is damaged, the line is
//! lost, and counted. Must not write.

use super::{Record, decode};
use std::ops::Range;

/// Damaged lines are repaired up to this length together, in bytes: each bit is tried, so time grows with its square.
const STRETCH_MAX: usize = 4_096;
/// Attempts for one file, at most: a file that is garbage is not searched through.
const ATTEMPTS_MAX: usize = 32;

/// What a file's bytes say.
#[derive(Default)]
pub(super) struct Lines {
    pub records: Vec<Record>,
    pub repaired: usize,
    pub lost: usize,
}

/// The records of `bytes` in their order.
pub(super) fn lines(bytes: &[u8]) -> Lines {
    let mut lines = Lines::default();
    let (mut attempts, mut damaged) = (ATTEMPTS_MAX, Vec::new());
    let mut at = 0;
    for line in bytes.split(|byte| *byte == b'\n') {
        let from = at;
        at = from + line.len() + 1;
        if line.is_empty() {
            continue;
        }
        match decode(line) {
            None => damaged.push(from..from + line.len()),
            Some(record) => {
                lines.add_damaged(bytes, &std::mem::take(&mut damaged), &mut attempts);
                lines.records.push(record);
            }
        }
    }
    lines.add_damaged(bytes, &damaged, &mut attempts);
    lines
}

impl Lines {
    /// Adds what can be repaired of damaged lines that follow one another: each by itself, or all together as one that the
    /// flipped bit has split.
    fn add_damaged(&mut self, bytes: &[u8], damaged: &[Range<usize>], attempts: &mut usize) {
        let (Some(first), Some(last)) = (damaged.first(), damaged.last()) else { return };
        let mut attempt = |range: Range<usize>| {
            *attempts = attempts.checked_sub(1)?;
            bytes.get(range).filter(|stretch| stretch.len() <= STRETCH_MAX).and_then(repair)
        };
        let alone: Vec<_> = damaged.iter().filter_map(|line| attempt(line.clone())).flatten().collect();
        let together = if alone.is_empty() && damaged.len() > 1 { attempt(first.start..last.end) } else { None };
        self.lost += if together.is_some() { 0 } else { damaged.len().saturating_sub(alone.len()) };
        let records = together.unwrap_or(alone);
        self.repaired += records.len();
        self.records.extend(records);
    }
}

/// The records of `stretch` with one bit flipped back, where that makes all of it valid.
fn repair(stretch: &[u8]) -> Option<Vec<Record>> {
    let mut copy = stretch.to_vec();
    for index in 0..copy.len() {
        for bit in 0..8 {
            flip(&mut copy, index, bit);
            if let Some(records) = all(&copy) {
                return Some(records);
            }
            flip(&mut copy, index, bit);
        }
    }
    None
}

fn flip(bytes: &mut [u8], index: usize, bit: u8) {
    if let Some(byte) = bytes.get_mut(index) {
        *byte ^= 1 << bit;
    }
}

/// The records, where every line is one.
fn all(bytes: &[u8]) -> Option<Vec<Record>> {
    let records: Option<Vec<_>> =
        bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).map(decode).collect();
    records.filter(|records| !records.is_empty())
}

#[cfg(test)]
mod tests {
    use super::super::{Record, encode};
    use super::*;

    fn records(count: usize) -> Vec<Record> {
        (0..count).map(|number| Record::Forgotten(format!("req_{number}"))).collect()
    }

    fn written(records: &[Record]) -> Vec<u8> {
        records.iter().flat_map(|record| encode(record).unwrap()).collect()
    }

    #[test]
    fn every_flipped_bit_is_found_and_every_record_stays() {
        let records = records(3);
        let bytes = written(&records);
        for index in 0..bytes.len() {
            for bit in 0..8 {
                let mut damaged = bytes.clone();
                flip(&mut damaged, index, bit);
                let Lines { records: found, repaired, lost } = lines(&damaged);
                assert_eq!((&found, lost), (&records, 0), "bit {bit} of byte {index}");
                // A line end that is another line end's neighbour ends nothing.
                assert!(repaired == 1 || bytes[index] == b'\n', "bit {bit} of byte {index}");
            }
        }
    }

    #[test]
    fn a_flipped_bit_in_each_of_two_lines_is_found_in_both() {
        let records = records(3);
        let mut bytes = written(&records);
        let line = bytes.len() / 3;
        flip(&mut bytes, line / 2, 0);
        flip(&mut bytes, line + line / 2, 3);
        let Lines { records: found, repaired, lost } = lines(&bytes);
        assert_eq!((found, repaired, lost), (records, 2, 0));
    }

    #[test]
    fn what_more_than_a_bit_has_changed_is_lost_and_nothing_else() {
        let records = records(3);
        let mut bytes = written(&records);
        let middle = bytes.len() / 2;
        bytes[middle..middle + 4].fill(b'#');
        let Lines { records: found, repaired, lost } = lines(&bytes);
        assert_eq!((found.len(), repaired, lost), (2, 0, 1));
        let garbage = b"garbage\n".repeat(10_000);
        let Lines { records: found, lost, .. } = lines(&garbage);
        assert_eq!((found.len(), lost), (0, 10_000), "and not searched through");
    }
}
