//! Implements the index of a segment, which maps an entry's reference to the block of the entry.
//!
//! Each entry has a record of 8 bytes: 40 bits of the SHA-256 of the reference, and 24 bits with
//! the number of the block. The records are sorted, in pages of 512. A list of pages in memory has
//! the first record and the CRC-32 of each page, so that a look-up reads one page and detects
//! damage. A record is a hint, which the block confirms or not. This file must not read a file.

use sha2::{Digest, Sha256};

pub(crate) const RECORD_BYTES: usize = 8;
pub(crate) const PAGE_RECORDS: usize = 512;
pub(crate) const PAGE_BYTES: usize = RECORD_BYTES * PAGE_RECORDS;
/// Size of a row in the list of pages, in bytes: the first record of the page, and its checksum.
pub(crate) const PAGE_LIST_BYTES: usize = RECORD_BYTES + 4;
pub(crate) const MAX_BLOCKS: usize = 1 << 24;

/// Returns the record for a reference and the block of its entry.
pub(crate) fn record(reference: &str, block: u64) -> u64 {
    fingerprint(reference) | (block & 0xff_ffff)
}

/// Returns the bits of a record that depend on its reference.
pub(crate) fn fingerprint(reference: &str) -> u64 {
    let hash = Sha256::digest(reference.as_bytes());
    let bits = hash
        .iter()
        .take(5)
        .fold(0_u64, |bits, byte| (bits << 8) | u64::from(*byte));
    bits << 24
}

/// Sorts the records. Returns the concatenated pages, and the list of pages.
pub(crate) fn encode(mut records: Vec<u64>) -> (Vec<u8>, Vec<u8>) {
    records.sort_unstable();
    let mut pages = Vec::with_capacity(records.len() * RECORD_BYTES);
    let mut list = Vec::new();
    for page in records.chunks(PAGE_RECORDS) {
        let start = pages.len();
        page.iter()
            .for_each(|record| pages.extend_from_slice(&record.to_be_bytes()));
        let first = page.first().copied().unwrap_or_default();
        list.extend_from_slice(&first.to_be_bytes());
        let crc = crc32fast::hash(pages.get(start..).unwrap_or_default());
        list.extend_from_slice(&crc.to_be_bytes());
    }
    (pages, list)
}

/// A row of the list of pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct IndexPage {
    pub first: u64,
    pub crc: u32,
}

pub(crate) fn parse_list(bytes: &[u8]) -> Vec<IndexPage> {
    let parse = |bytes: &[u8]| {
        let (first, crc) = bytes.split_at_checked(RECORD_BYTES)?;
        let first = u64::from_be_bytes(first.try_into().ok()?);
        let crc = u32::from_be_bytes(crc.try_into().ok()?);
        Some(IndexPage { first, crc })
    };
    let chunks = bytes.chunks_exact(PAGE_LIST_BYTES);
    chunks.filter_map(parse).collect()
}

/// Returns the numbers of the pages that may have records of this fingerprint.
pub(crate) fn pages_of(list: &[IndexPage], fingerprint: u64) -> std::ops::Range<usize> {
    let last = fingerprint | 0xff_ffff;
    let from = list.partition_point(|page| page.first < fingerprint);
    let to = list.partition_point(|page| page.first <= last);
    // The previous page may end with such records.
    from.saturating_sub(1)..to
}

/// Returns the blocks that the records of a page name for this fingerprint. Returns `None` if the
/// checksum of the page is wrong.
pub(crate) fn blocks_in(page: &[u8], expected: IndexPage, fingerprint: u64) -> Option<Vec<usize>> {
    if crc32fast::hash(page) != expected.crc {
        return None;
    }
    let records = page.chunks_exact(RECORD_BYTES).filter_map(|bytes| {
        let record = u64::from_be_bytes(bytes.try_into().ok()?);
        (record & !0xff_ffff == fingerprint).then_some(record & 0xff_ffff)
    });
    records.map(|block| usize::try_from(block).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reference_is_found_in_its_block_across_pages() {
        let name = |number: u64| format!("req_{number}");
        let records = (0..3_000)
            .map(|number| record(&name(number), number / 7))
            .collect();
        let (pages, list) = encode(records);
        let list = parse_list(&list);
        assert_eq!(list.len(), 6, "3 000 records in pages of 512");
        let find = |reference: &str| -> Vec<usize> {
            let print = fingerprint(reference);
            pages_of(&list, print)
                .flat_map(|page| {
                    let bytes = pages.chunks(PAGE_BYTES).nth(page).unwrap();
                    blocks_in(bytes, list[page], print).unwrap()
                })
                .collect()
        };
        for number in 0..3_000 {
            assert_eq!(find(&name(number)), [usize::try_from(number / 7).unwrap()]);
        }
        assert_eq!(find("req_3000"), Vec::<usize>::new());
    }

    #[test]
    fn records_of_one_fingerprint_may_fill_more_than_a_page() {
        let print = fingerprint("x");
        let (_, list) = encode((0..1_100).map(|block| print | block).collect());
        assert_eq!(pages_of(&parse_list(&list), print), 0..3);
    }

    #[test]
    fn a_damaged_page_is_noticed() {
        let (mut page, list) = encode(vec![record("x", 1)]);
        let list = parse_list(&list);
        page[7] ^= 1;
        assert_eq!(blocks_in(&page, list[0], fingerprint("x")), None);
    }
}
