//! Encodes a block of a segment. A block has some hundred consecutive entries, stored by columns
//! and compressed.
//!
//! A block has neither the hashes of its entries nor their `prev`: a reader gets the hash before
//! the first entry from the segment's directory, recomputes the chain, and must arrive at the hash
//! with which the next block begins. docs/segments.md describes the bytes. This file must not read
//! or write a file.

use super::detail::{TextTable, read_details, read_named, read_table, write_details};
use super::varint::{BlockBytes, put, put_signed, put_text};
use crate::LedgerEntry;
use crate::entry::chain::entry_hash;
use credits::money::Micro;
use std::collections::HashMap;

/// Maximum number of entries in a block. Reading one entry decodes its block.
pub(crate) const MAX_BLOCK_ENTRIES: usize = 512;
/// Number of bytes of text after which a block ends.
pub(crate) const BLOCK_TEXT_BYTES: usize = 512 << 10;
/// Maximum number of bytes of text in one entry of a segment.
pub(crate) const MAX_ENTRY_TEXT_BYTES: usize = 1 << 20;
/// Maximum number of bytes in a block before compression. The details in it have the same limit.
pub(crate) const MAX_BLOCK_BYTES: usize = 4 << 20;
/// Compression level of zstd. With 1 000 accounts, level 9 saves 2 % and takes twice the time.
const COMPRESSION_LEVEL: i32 = 3;

/// The kinds of entries, beginning with the ends of requests. Blocks and the index store the index
/// of a kind in this list, so a new kind must be appended.
pub(crate) const ENTRY_KINDS: [&str; 12] = [
    "debit",
    "void",
    "trial",
    "grant",
    "topup",
    "refund",
    "adjust",
    "lapse",
    "bonus",
    "payment_refund",
    "dispute",
    "code",
];

/// Number of bytes of a request id that do not contain its time (80 bits).
const ID_TAIL_BYTES: usize = 10;
const ID_PREFIX: &str = "req_";

pub(crate) fn text_bytes(entry: &LedgerEntry) -> usize {
    entry.reference.len() + entry.account.len() + entry.detail.len()
}

/// Encodes and compresses consecutive entries.
///
/// # Errors
/// Returns an error if an entry has an unknown kind, or if zstd fails.
pub(crate) fn encode(entries: &[LedgerEntry]) -> std::io::Result<Vec<u8>> {
    let mut out = Vec::with_capacity(128 * entries.len());
    put(&mut out, entries.len() as u64);
    for entry in entries {
        let kind = ENTRY_KINDS.iter().position(|kind| *kind == entry.kind);
        let kind = kind.ok_or_else(|| {
            std::io::Error::other(format!("entry {} has the kind {}", entry.seq, entry.kind))
        })?;
        put(&mut out, kind as u64);
    }
    write_references(&mut out, entries);
    let mut accounts = TextTable::default();
    let numbers: Vec<_> = entries
        .iter()
        .map(|entry| accounts.number(&entry.account))
        .collect();
    accounts.write(&mut out);
    numbers.iter().for_each(|number| put(&mut out, *number));
    let mut before = 0_i64;
    for entry in entries {
        put_signed(&mut out, entry.at_ms.wrapping_sub(before));
        before = entry.at_ms;
    }
    for column in [
        |entry: &LedgerEntry| entry.d_paid,
        |entry: &LedgerEntry| entry.d_trial,
        |entry: &LedgerEntry| entry.writeoff,
    ] {
        entries
            .iter()
            .for_each(|entry| put_signed(&mut out, column(entry).get()));
    }
    // A balance is stored as the difference from the expected one, which follows from the account's
    // previous entry in this block and the change. The difference is mostly 0.
    let mut known: HashMap<&str, (i64, i64)> = HashMap::new();
    for entry in entries {
        let (paid, trial) = known.entry(&entry.account).or_default();
        let expected = (
            paid.wrapping_add(entry.d_paid.get()),
            trial.wrapping_add(entry.d_trial.get()),
        );
        put_signed(&mut out, entry.bal_paid.get().wrapping_sub(expected.0));
        put_signed(&mut out, entry.bal_trial.get().wrapping_sub(expected.1));
        (*paid, *trial) = (entry.bal_paid.get(), entry.bal_trial.get());
    }
    write_details(&mut out, entries.iter().map(|entry| entry.detail.as_str()));
    zstd::bulk::compress(&out, COMPRESSION_LEVEL)
}

/// Decodes a block whose first entry is `first`, and recomputes the hashes from `prev` on. Returns
/// `None` if the bytes are damaged.
pub(crate) fn decode(compressed: &[u8], first: i64, prev: &[u8; 32]) -> Option<Vec<LedgerEntry>> {
    let plain = zstd::bulk::decompress(compressed, MAX_BLOCK_BYTES).ok()?;
    let mut bytes = BlockBytes(&plain);
    let count = bytes.count().filter(|count| *count <= MAX_BLOCK_ENTRIES)?;
    let kinds: Vec<&str> = read_named(&mut bytes, &ENTRY_KINDS, count)?;
    let references = read_references(&mut bytes, count)?;
    let accounts = read_table(&mut bytes)?;
    let accounts = read_named(&mut bytes, &accounts, count)?;
    let mut at_ms = 0_i64;
    let times: Vec<i64> = (0..count)
        .map(|_| {
            at_ms = at_ms.wrapping_add(bytes.signed()?);
            Some(at_ms)
        })
        .collect::<Option<_>>()?;
    let mut amounts = || -> Option<Vec<i64>> { (0..count).map(|_| bytes.signed()).collect() };
    let (d_paid, d_trial, writeoff) = (amounts()?, amounts()?, amounts()?);
    let mut corrections = Vec::with_capacity(count);
    for _ in 0..count {
        corrections.push((bytes.signed()?, bytes.signed()?));
    }
    let details = read_details(&mut bytes, count, MAX_BLOCK_BYTES)?;
    if !bytes.0.is_empty() {
        return None;
    }
    let mut known: HashMap<&str, (i64, i64)> = HashMap::new();
    let mut prev = prev.to_vec();
    let mut entries = Vec::with_capacity(count);
    let columns = kinds
        .into_iter()
        .zip(references)
        .zip(accounts.into_iter().zip(times))
        .zip(d_paid.into_iter().zip(d_trial).zip(writeoff))
        .zip(corrections.into_iter().zip(details));
    for (index, row) in columns.enumerate() {
        let ((((kind, id), (account, at_ms)), ((paid, trial), writeoff)), (correction, detail)) =
            row;
        let balance = known.entry(account).or_default();
        balance.0 = balance.0.wrapping_add(paid).wrapping_add(correction.0);
        balance.1 = balance.1.wrapping_add(trial).wrapping_add(correction.1);
        let mut entry = LedgerEntry {
            seq: first.checked_add(i64::try_from(index).ok()?)?,
            kind: kind.to_owned(),
            reference: id.into_text(at_ms),
            account: account.to_owned(),
            at_ms,
            d_paid: Micro::new(paid),
            d_trial: Micro::new(trial),
            bal_paid: Micro::new(balance.0),
            bal_trial: Micro::new(balance.1),
            writeoff: Micro::new(writeoff),
            detail,
            prev,
            hash: Vec::new(),
        };
        entry.hash = entry_hash(&entry);
        prev = entry.hash.clone();
        entries.push(entry);
    }
    Some(entries)
}

enum BlockReference<'a> {
    /// The id of a request: the time from the id's creation to the entry, and the last 80 bits.
    RequestId {
        age_ms: i64,
        tail: &'a [u8],
    },
    Text(&'a str),
}

/// Writes for each entry whether its reference is a request id (1) or a text (0), and then all ids
/// and all texts.
fn write_references(out: &mut Vec<u8>, entries: &[LedgerEntry]) {
    let ids: Vec<_> = entries
        .iter()
        .map(|entry| parse_request_id(&entry.reference))
        .collect();
    ids.iter().for_each(|id| out.push(u8::from(id.is_some())));
    for (entry, id) in entries.iter().zip(&ids) {
        if let Some((ms, _)) = id {
            put_signed(out, entry.at_ms.wrapping_sub(*ms));
        }
    }
    for (_, tail) in ids.iter().flatten() {
        out.extend_from_slice(tail);
    }
    for (entry, _) in entries.iter().zip(&ids).filter(|(_, id)| id.is_none()) {
        put_text(out, &entry.reference);
    }
}

fn read_references<'a>(
    bytes: &mut BlockBytes<'a>,
    count: usize,
) -> Option<Vec<BlockReference<'a>>> {
    let forms = bytes.bytes(count)?;
    let ids = forms.iter().filter(|form| **form == 1).count();
    let ages: Vec<i64> = (0..ids).map(|_| bytes.signed()).collect::<Option<_>>()?;
    let tails = bytes.bytes(ids * ID_TAIL_BYTES)?;
    let mut ids = ages.into_iter().zip(tails.chunks_exact(ID_TAIL_BYTES));
    forms
        .iter()
        .map(|form| match form {
            1 => ids
                .next()
                .map(|(age_ms, tail)| BlockReference::RequestId { age_ms, tail }),
            0 => bytes.text().map(BlockReference::Text),
            _ => None,
        })
        .collect()
}

impl BlockReference<'_> {
    fn into_text(self, at_ms: i64) -> String {
        match self {
            Self::Text(text) => text.to_owned(),
            Self::RequestId { age_ms, tail } => {
                let ms = at_ms.wrapping_sub(age_ms).to_be_bytes();
                let mut text = String::with_capacity(ID_PREFIX.len() + 32);
                text.push_str(ID_PREFIX);
                ms.iter().skip(2).chain(tail).for_each(|byte| {
                    for half in [byte >> 4, byte & 15] {
                        text.push(char::from_digit(half.into(), 16).unwrap_or_default());
                    }
                });
                text
            }
        }
    }
}

/// Returns the time and the other 80 bits of a request id, which is `req_` and a UUID of version 7
/// in 32 digits. Returns `None` for any other text.
fn parse_request_id(reference: &str) -> Option<(i64, [u8; ID_TAIL_BYTES])> {
    let digits = reference.strip_prefix(ID_PREFIX)?;
    let is_id = digits.len() == 32
        && digits
            .bytes()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    if !is_id {
        return None;
    }
    let ms = i64::from_str_radix(digits.get(..12)?, 16).ok()?;
    let mut tail = [0; ID_TAIL_BYTES];
    for (place, pair) in tail.iter_mut().zip((12..).step_by(2)) {
        *place = u8::from_str_radix(digits.get(pair..pair + 2)?, 16).ok()?;
    }
    Some((ms, tail))
}

/// Returns the time at which a request with this id began, in ms since 1970. Returns `None` if the
/// id has no time, so that the request may be of any age.
pub fn request_time_ms(reference: &str) -> Option<i64> {
    let is_version_7 = reference.as_bytes().get(ID_PREFIX.len() + 12) == Some(&b'7');
    let (ms, _) = parse_request_id(reference).filter(|_| is_version_7)?;
    Some(ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_800_000_000_000;

    fn entry(seq: i64, kind: &str, reference: &str, account: &str, detail: &str) -> LedgerEntry {
        LedgerEntry {
            seq,
            kind: kind.into(),
            reference: reference.into(),
            account: account.into(),
            at_ms: NOW + seq * 3,
            d_paid: Micro::new(-seq * 7),
            d_trial: Micro::ZERO,
            bal_paid: Micro::new(1_000_000 - seq),
            bal_trial: Micro::new(5),
            writeoff: Micro::new(seq % 2),
            detail: detail.into(),
            prev: Vec::new(),
            hash: Vec::new(),
        }
    }

    fn chain(mut entries: Vec<LedgerEntry>) -> Vec<LedgerEntry> {
        let mut prev = vec![0; 32];
        for entry in &mut entries {
            entry.prev = prev;
            entry.hash = entry_hash(entry);
            prev = entry.hash.clone();
        }
        entries
    }

    #[test]
    fn a_block_gives_its_entries_back_with_their_hashes() {
        let id = "req_019a0f6b2c3d7abc8def0123456789ab";
        let entries = chain(vec![
            entry(9, "debit", id, "acct_a", r#"{"model":"m","n":5}"#),
            entry(10, "grant", "invoice \"1\"", "acct_b", ""),
            entry(11, "void", "req_short", "acct_a", r#"{"model":"k","n":6}"#),
            entry(12, "debit", &id.to_uppercase(), "acct_a", "not JSON"),
        ]);
        let block = encode(&entries).unwrap();
        let read = decode(&block, 9, &[0; 32]).unwrap();
        for (read, written) in read.iter().zip(&entries) {
            assert_eq!(format!("{read:?}"), format!("{written:?}"));
        }
        assert_eq!(read.len(), entries.len());
        let other = decode(&block, 9, &[1; 32]).unwrap();
        assert_ne!(other[3].hash, entries[3].hash, "the chain shows it");
    }

    #[test]
    fn a_damaged_block_gives_no_other_entries_under_the_same_hash() {
        let entries = (1..40).map(|seq| entry(seq, "debit", &format!("r{seq}"), "a", ""));
        let entries = chain(entries.collect());
        let block = encode(&entries).unwrap();
        let mut noticed = 0;
        for at in 0..block.len() {
            let mut damaged = block.clone();
            damaged[at] ^= 0x10;
            match decode(&damaged, 1, &[0; 32]) {
                Some(read)
                    if read.last().map(|last| &last.hash)
                        == entries.last().map(|last| &last.hash) =>
                {
                    // zstd ignores a bit of its header.
                    assert_eq!(format!("{read:?}"), format!("{entries:?}"), "byte {at}");
                }
                _ => noticed += 1,
            }
        }
        assert!(noticed >= block.len() - 1, "{noticed} of {}", block.len());
    }

    #[test]
    fn the_time_of_a_request_is_in_its_id() {
        let ms = 0x019a_0f6b_2c3d;
        assert_eq!(
            request_time_ms("req_019a0f6b2c3d7abc8def0123456789ab"),
            Some(ms)
        );
        for other in ["req_019a0f6b2c3d4abc8def0123456789ab", "req_1", "", "inv_1"] {
            assert_eq!(request_time_ms(other), None, "{other}");
        }
    }
}
