//! Finds references that occur more than once among any number of entries, including sealed ones,
//! which no index contains.
//!
//! The sorter writes 24 bytes for each entry, two keyed hashes and the position, to a temporary
//! file in the data directory. The first bits of a hash select a bucket, which collects a block of
//! records and appends it to the file. At the end each bucket is read and sorted, so that equal
//! references are neighbours. The memory is a block for each bucket, and one bucket: 4 MB, plus 24
//! MB for each 1 000 million entries. This file must not report a violation.

use super::references::ReferenceRow;
use crate::StoreError;
use std::fs::{File, OpenOptions};
use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;

const BUCKET_BITS: u32 = 10;
const RECORD_BYTES: usize = 24;
const BLOCK_RECORDS: usize = 170;
const BLOCK_BYTES: usize = BLOCK_RECORDS * RECORD_BYTES;

/// Two entries with the same reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RepeatedReference {
    pub first_seq: i64,
    /// Position of the later entry.
    pub seq: i64,
    /// True if both entries end a request. If not, both have the same kind.
    pub is_ending: bool,
}

pub struct ReferenceSorter {
    file: File,
    blocks: u64,
    buckets: Vec<Bucket>,
    /// Random keys of the hashes. Without them, nobody can make two references with equal hashes.
    keys: [RandomState; 2],
    count: u64,
}

/// Records whose hashes begin with the same bits.
#[derive(Default)]
struct Bucket {
    /// Numbers of the bucket's blocks in the file.
    written: Vec<u64>,
    /// Records that are not in the file yet. They are less than a block.
    pending: Vec<u8>,
}

/// An entry, represented by its hashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct ReferenceRecord {
    hashes: [u64; 2],
    /// Twice the position, plus 1 if the entry ends a request.
    place: i64,
}

impl ReferenceRecord {
    fn encode(self) -> [u8; RECORD_BYTES] {
        let [one, other] = self.hashes.map(u64::to_ne_bytes);
        let mut bytes = [0; RECORD_BYTES];
        for (to, from) in bytes
            .iter_mut()
            .zip([one, other, self.place.to_ne_bytes()].as_flattened())
        {
            *to = *from;
        }
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (one, rest) = bytes.split_first_chunk()?;
        let (other, rest) = rest.split_first_chunk()?;
        let hashes = [u64::from_ne_bytes(*one), u64::from_ne_bytes(*other)];
        let place = i64::from_ne_bytes(rest.try_into().ok()?);
        Some(Self { hashes, place })
    }

    fn seq(self) -> i64 {
        self.place >> 1
    }
}

impl ReferenceSorter {
    /// Creates an empty sorter with a temporary file in `dir`.
    ///
    /// # Errors
    /// Returns an error if the file cannot be created.
    pub fn new(dir: &Path) -> Result<Self, StoreError> {
        let buckets = (0..1_usize << BUCKET_BITS).map(|_| Bucket::default());
        Ok(Self {
            file: create_unnamed(dir).map_err(failed)?,
            blocks: 0,
            buckets: buckets.collect(),
            keys: [RandomState::new(), RandomState::new()],
            count: 0,
        })
    }

    pub fn count(&self) -> u64 {
        self.count
    }

    /// Adds the reference of an entry. The kind is empty if the entry ends a request.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    pub fn add(&mut self, row: ReferenceRow<'_>) -> Result<(), StoreError> {
        let hashes = [0, 1].map(|key: usize| {
            let key = self.keys.get(key);
            key.map_or(0, |key| key.hash_one((row.kind, row.reference)))
        });
        let place = (row.seq << 1) | i64::from(row.kind.is_empty());
        let record = ReferenceRecord { hashes, place };
        let number = usize::try_from(hashes[0] >> (u64::BITS - BUCKET_BITS)).unwrap_or(0);
        let Some(bucket) = self.buckets.get_mut(number) else {
            return Ok(());
        };
        bucket.pending.extend_from_slice(&record.encode());
        self.count += 1;
        if bucket.pending.len() >= BLOCK_BYTES {
            let offset = self.blocks * BLOCK_BYTES as u64;
            self.file
                .write_all_at(&bucket.pending, offset)
                .map_err(failed)?;
            bucket.written.push(self.blocks);
            bucket.pending.clear();
            self.blocks += 1;
        }
        Ok(())
    }

    /// Sorts the references. Calls `on_bucket` with the number of references compared, and
    /// `on_repeated` for each reference that an earlier entry has too.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read.
    pub fn find_repeated(
        self,
        on_bucket: &mut dyn FnMut(u64),
        on_repeated: &mut dyn FnMut(RepeatedReference),
    ) -> Result<(), StoreError> {
        let mut count = 0;
        for bucket in self.buckets {
            let records = read_sorted(&self.file, &bucket).map_err(failed)?;
            count += records.len() as u64;
            for equal in records.chunk_by(|one, other| one.hashes == other.hashes) {
                let Some((first, others)) = equal.split_first() else {
                    continue;
                };
                for repeated in others {
                    // The same entry may be in a segment and in the table, which is no violation.
                    if repeated.seq() != first.seq() {
                        on_repeated(RepeatedReference {
                            first_seq: first.seq(),
                            seq: repeated.seq(),
                            is_ending: repeated.place & 1 == 1,
                        });
                    }
                }
            }
            on_bucket(count);
        }
        Ok(())
    }
}

/// Creates a file without a name, which disappears when its handle is closed.
fn create_unnamed(dir: &Path) -> io::Result<File> {
    let path = dir.join(format!("references.{}.new", std::process::id()));
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(true);
    let file = options.mode(0o600).open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}

fn read_sorted(file: &File, bucket: &Bucket) -> io::Result<Vec<ReferenceRecord>> {
    let mut records = Vec::with_capacity((bucket.written.len() + 1) * BLOCK_RECORDS);
    let decode = |block: &[u8], records: &mut Vec<_>| {
        let found = block.chunks_exact(RECORD_BYTES);
        records.extend(found.filter_map(ReferenceRecord::decode));
    };
    let mut block = vec![0; BLOCK_BYTES];
    for number in &bucket.written {
        file.read_exact_at(&mut block, number * BLOCK_BYTES as u64)?;
        decode(&block, &mut records);
    }
    decode(&bucket.pending, &mut records);
    records.sort_unstable();
    Ok(records)
}

fn failed(source: io::Error) -> StoreError {
    StoreError::io("sort the references of the ledger", source)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_references_are_found_in_the_file_and_in_memory() {
        let dir = tempfile::tempdir().unwrap();
        let mut sorter = ReferenceSorter::new(dir.path()).unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "no name");
        let mut add = |kind, number: i64, seq| {
            let reference = format!("req_{number}");
            let row = ReferenceRow {
                kind,
                reference: &reference,
                seq,
            };
            sorter.add(row).unwrap();
        };
        // Some blocks of each bucket.
        let count = 400_000;
        for seq in 1..=count {
            add("", seq, seq);
        }
        // The same entry again, and the same reference of another kind.
        add("", 5, 5);
        add("grant", 5, count + 1);
        add("", 7, count + 2);
        add("grant", 5, count + 3);
        add("", 7, count + 4);
        assert!(sorter.blocks > 1 << BUCKET_BITS);
        let (mut found, mut compared) = (Vec::new(), 0);
        sorter
            .find_repeated(&mut |count| compared = count, &mut |pair| {
                found.push((pair.first_seq, pair.seq, pair.is_ending));
            })
            .unwrap();
        found.sort_unstable();
        let expected = [
            (7, count + 2, true),
            (7, count + 4, true),
            (count + 1, count + 3, false),
        ];
        assert_eq!(found, expected);
        assert_eq!(compared, count.unsigned_abs() + 5);
    }
}
