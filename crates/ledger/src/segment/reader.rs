//! Reads a segment: one entry by its reference or position, or all of them in order.
//!
//! Opening a segment checks the signature of the manifest, the directory, and the list of the
//! index's pages. The latter two stay in memory, with about 50 bytes for 512 entries. A block is
//! checked by its chain of hashes, and a page of the index by its checksum, so a reader never
//! returns damaged data. Several threads can use one reader, because it reads by position. This
//! file must not depend on the folders of files.

use super::block::{self, MAX_BLOCK_BYTES, MAX_BLOCK_ENTRIES};
use super::block_cache::BlockCache;
use super::fault::SegmentFault;
use super::manifest::{
    END_MAGIC, FOOTER_BYTES, FORMAT, MAGIC, MAX_MANIFEST_BYTES, SIGNATURE_BYTES, SealedBalance,
    SegmentManifest, SegmentPart, sha256_hex,
};
use super::reference_index::{self, IndexPage, PAGE_BYTES, PAGE_RECORDS};
use crate::LedgerEntry;
use crate::entry::hex::{decode_hex, encode_hex};
use base::regular_file::open_regular;
use credits::money::Micro;
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

/// Size of a row of the directory in bytes: position of the first entry, offset in the file, and
/// hash before the first entry.
const DIRECTORY_ROW_BYTES: usize = 8 + 8 + 32;
/// Maximum number of bytes of the directory and of the list of pages, which are read into memory.
const MAX_TABLE_BYTES: u64 = 256 << 20;
const READ_BYTES: usize = 256 << 10;
/// Maximum length of a line of the balances in bytes. It has an account id and three amounts.
const MAX_BALANCE_LINE_BYTES: u64 = 1 << 16;

struct BlockPlace {
    first: i64,
    offset: u64,
    prev: [u8; 32],
}

pub struct SegmentReader {
    file: File,
    manifest: SegmentManifest,
    blocks: Vec<BlockPlace>,
    pages: Vec<IndexPage>,
    last_hash: [u8; 32],
}

impl SegmentReader {
    /// Opens a segment and checks its manifest with the key in the manifest.
    ///
    /// # Errors
    /// Returns an error if the file is missing, not a regular file, unreadable, damaged, or of a
    /// newer format.
    pub fn open(path: &Path) -> Result<Self, SegmentFault> {
        let file = open_regular(path)?;
        let length = file.metadata()?.len();
        let (manifest, manifest_offset) = read_manifest(&file, length)?;
        manifest.check_parts(manifest_offset)?;
        let directory = read_table(&file, &manifest.directory, "directory")?;
        let pages = read_table(&file, &manifest.index_pages, "list of the index's pages")?;
        let hash = |text: &str| -> Result<[u8; 32], SegmentFault> {
            let hash = decode_hex(text).and_then(|bytes| bytes.try_into().ok());
            hash.ok_or_else(|| SegmentFault::damaged("its manifest has no valid hash"))
        };
        let blocks: Vec<_> = directory
            .chunks_exact(DIRECTORY_ROW_BYTES)
            .filter_map(parse_place)
            .collect();
        let begins = blocks.first().is_some_and(|place| {
            place.first == manifest.first && place.offset == manifest.blocks.offset
        });
        let grows = blocks.windows(2).all(|two| match two {
            [one, next] => {
                let entries = next.first.saturating_sub(one.first);
                one.offset < next.offset && (1..=MAX_BLOCK_ENTRIES as i64).contains(&entries)
            }
            _ => true,
        });
        if !begins
            || !grows
            || hash(&manifest.previous_hash)? != blocks.first().map_or([0; 32], |place| place.prev)
        {
            return Err(SegmentFault::damaged(
                "its directory does not fit its manifest",
            ));
        }
        Ok(Self {
            last_hash: hash(&manifest.last_hash)?,
            pages: reference_index::parse_list(&pages),
            file,
            manifest,
            blocks,
        })
    }

    pub fn manifest(&self) -> &SegmentManifest {
        &self.manifest
    }

    /// Checks that the installation with this public key has signed the segment.
    ///
    /// # Errors
    /// Returns an error if the signature is of another installation.
    pub fn verify_signature(&self, public_key: &str) -> Result<(), SegmentFault> {
        if self.manifest.public_key == public_key {
            return Ok(());
        }
        Err(SegmentFault::OtherSegment {
            found: format!("signed with the key {}", self.manifest.public_key),
            expected: format!("with {public_key}"),
        })
    }

    /// Reads and checks every entry, the index and the balances. Returns the SHA-256 of the file.
    ///
    /// # Errors
    /// Returns the first fault.
    pub fn verify(&self) -> Result<Vec<u8>, SegmentFault> {
        let mut records = Vec::new();
        let mut kinds = std::collections::BTreeMap::<String, u64>::new();
        for (number, _) in self.blocks.iter().enumerate() {
            for entry in self.block(number)? {
                records.push(reference_index::record(&entry.reference, number as u64));
                *kinds.entry(entry.kind).or_default() += 1;
            }
        }
        if kinds != self.manifest.kinds {
            return Err(SegmentFault::damaged("its numbers of entries are wrong"));
        }
        let (pages, _) = reference_index::encode(records);
        if sha256_hex(&pages) != self.manifest.index.sha256 {
            return Err(SegmentFault::damaged("its index does not fit its entries"));
        }
        let mut accounts = 0;
        for balance in self.balances()? {
            balance?;
            accounts += 1;
        }
        if accounts != self.manifest.accounts {
            return Err(SegmentFault::damaged("its number of balances is wrong"));
        }
        self.check_bytes()
    }

    /// Checks every part by its hash, and that the file has the hash with which it was sealed.
    ///
    /// # Errors
    /// Returns the first fault.
    pub fn check_sealed(&self, sha256: &[u8]) -> Result<(), SegmentFault> {
        match self.check_bytes()? == sha256 {
            true => Ok(()),
            false => Err(SegmentFault::damaged("it is not what was sealed")),
        }
    }

    /// Checks every part by its hash, and returns the hash of the file.
    fn check_bytes(&self) -> Result<Vec<u8>, SegmentFault> {
        let parts = [
            (&self.manifest.blocks, "entries"),
            (&self.manifest.balances, "balances"),
            (&self.manifest.index, "index"),
        ];
        for (part, name) in parts {
            let hash = self.hash_range(part.offset, part.bytes)?;
            if encode_hex(&hash) != part.sha256 {
                return Err(SegmentFault::damaged(format!(
                    "its part {name} was changed"
                )));
            }
        }
        let mut magic = [0; 8];
        self.file.read_exact_at(&mut magic, 0)?;
        if magic != *MAGIC {
            return Err(SegmentFault::damaged("its first bytes were changed"));
        }
        self.hash_range(0, self.file.metadata()?.len())
    }

    fn hash_range(&self, offset: u64, bytes: u64) -> Result<Vec<u8>, SegmentFault> {
        let mut hash = Sha256::new();
        let mut range = BufReader::with_capacity(READ_BYTES, self.range(offset, bytes));
        loop {
            let piece = range.fill_buf()?;
            if piece.is_empty() {
                return Ok(hash.finalize().to_vec());
            }
            hash.update(piece);
            let length = piece.len();
            range.consume(length);
        }
    }

    fn range(&self, offset: u64, bytes: u64) -> FileRange<'_> {
        FileRange {
            file: &self.file,
            offset,
            left: bytes,
        }
    }

    /// Returns all entries in order, block by block.
    pub fn entry_blocks(&self) -> SegmentBlocks<'_> {
        SegmentBlocks {
            reader: self,
            next: 0,
        }
    }

    /// Returns all entries in order, with one block in memory.
    pub fn entries(&self) -> SegmentEntries<'_> {
        SegmentEntries {
            blocks: self.entry_blocks(),
            pending: Vec::new().into_iter(),
        }
    }

    /// Returns the entries of the segment from `seq` on, in order.
    pub fn entries_from(&self, seq: i64) -> SegmentEntries<'_> {
        let block = self.blocks.partition_point(|place| place.first <= seq);
        SegmentEntries {
            blocks: SegmentBlocks {
                reader: self,
                next: block.saturating_sub(1),
            },
            pending: Vec::new().into_iter(),
        }
    }

    /// Returns the balances at the segment's end, sorted by account.
    ///
    /// # Errors
    /// Returns an error if the balances cannot be read.
    pub fn balances(
        &self,
    ) -> Result<impl Iterator<Item = Result<SealedBalance, SegmentFault>> + '_, SegmentFault> {
        let part = &self.manifest.balances;
        let range = BufReader::with_capacity(READ_BYTES, self.range(part.offset, part.bytes));
        let plain = zstd::stream::read::Decoder::with_buffer(range)?;
        let mut lines = BufReader::new(plain);
        Ok(std::iter::from_fn(move || {
            read_balance(&mut lines).transpose()
        }))
    }

    /// Returns the entry at a position, or `None` if the segment does not cover it.
    ///
    /// # Errors
    /// Returns an error if its block cannot be read.
    pub fn entry_at(
        &self,
        seq: i64,
        cache: &BlockCache,
    ) -> Result<Option<LedgerEntry>, SegmentFault> {
        if !(self.manifest.first..=self.manifest.last).contains(&seq) {
            return Ok(None);
        }
        let block = self.blocks.partition_point(|place| place.first <= seq);
        let entries = self.cached_block(block.saturating_sub(1), cache)?;
        Ok(entries.iter().find(|entry| entry.seq == seq).cloned())
    }

    /// Returns the end of a request, or `None` if the segment does not have it. The look-up reads
    /// one page of the index and, if the page names one, a block.
    ///
    /// # Errors
    /// Returns an error if the page or the block cannot be read.
    pub fn ending(
        &self,
        reference: &str,
        cache: &BlockCache,
    ) -> Result<Option<LedgerEntry>, SegmentFault> {
        let print = reference_index::fingerprint(reference);
        for page in reference_index::pages_of(&self.pages, print) {
            for block in self.blocks_of_page(page, print)? {
                let entries = self.cached_block(block, cache)?;
                let is_it =
                    |entry: &&LedgerEntry| entry.reference == reference && entry.is_ending();
                if let Some(entry) = entries.iter().find(is_it) {
                    return Ok(Some(entry.clone()));
                }
            }
        }
        Ok(None)
    }

    fn cached_block(
        &self,
        number: usize,
        cache: &BlockCache,
    ) -> Result<Arc<[LedgerEntry]>, SegmentFault> {
        cache.get((self.last_hash, number), || self.block(number))
    }

    fn blocks_of_page(&self, page: usize, fingerprint: u64) -> Result<Vec<usize>, SegmentFault> {
        let count = usize::try_from(self.manifest.entries()).unwrap_or(usize::MAX);
        let records = count.saturating_sub(page * PAGE_RECORDS).min(PAGE_RECORDS);
        let mut bytes = vec![0; records * reference_index::RECORD_BYTES];
        let offset = self.manifest.index.offset + (page * PAGE_BYTES) as u64;
        self.file.read_exact_at(&mut bytes, offset)?;
        let expected = self.pages.get(page).copied();
        expected
            .and_then(|expected| reference_index::blocks_in(&bytes, expected, fingerprint))
            .ok_or_else(|| SegmentFault::damaged(format!("page {page} of its index was changed")))
    }

    /// Decodes a block, and checks that its chain arrives at the hash with which the next block
    /// begins.
    fn block(&self, number: usize) -> Result<Vec<LedgerEntry>, SegmentFault> {
        let fault = || SegmentFault::damaged(format!("block {number} was changed"));
        let place = self.blocks.get(number).ok_or_else(fault)?;
        let next = self.blocks.get(number + 1);
        let part = &self.manifest.blocks;
        let end = next.map_or(part.offset + part.bytes, |next| next.offset);
        let length = usize::try_from(end.saturating_sub(place.offset)).unwrap_or(usize::MAX);
        if length > MAX_BLOCK_BYTES {
            return Err(fault());
        }
        let mut bytes = vec![0; length];
        self.file.read_exact_at(&mut bytes, place.offset)?;
        let entries = block::decode(&bytes, place.first, &place.prev).ok_or_else(fault)?;
        let last = entries.last().ok_or_else(fault)?;
        let (seq, hash) = next.map_or((self.manifest.last, &self.last_hash), |next| {
            (next.first - 1, &next.prev)
        });
        if last.seq != seq || last.hash != hash {
            return Err(fault());
        }
        Ok(entries)
    }
}

/// Iterates over the blocks of a segment's entries in order. The first fault ends the iteration.
pub struct SegmentBlocks<'a> {
    reader: &'a SegmentReader,
    next: usize,
}

impl Iterator for SegmentBlocks<'_> {
    type Item = Result<Vec<LedgerEntry>, SegmentFault>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.next >= self.reader.blocks.len() {
            return None;
        }
        let block = self.reader.block(self.next);
        self.next = match &block {
            Ok(_) => self.next + 1,
            Err(_) => usize::MAX,
        };
        Some(block)
    }
}

/// Iterates over the entries of a segment in order. The first fault ends the iteration.
pub struct SegmentEntries<'a> {
    blocks: SegmentBlocks<'a>,
    pending: std::vec::IntoIter<LedgerEntry>,
}

impl Iterator for SegmentEntries<'_> {
    type Item = Result<LedgerEntry, SegmentFault>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(entry) = self.pending.next() {
                return Some(Ok(entry));
            }
            match self.blocks.next()? {
                Ok(entries) => self.pending = entries.into_iter(),
                Err(fault) => return Some(Err(fault)),
            }
        }
    }
}

/// A part of a file, which is read from its beginning to its end.
struct FileRange<'a> {
    file: &'a File,
    offset: u64,
    left: u64,
}

impl Read for FileRange<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX);
        let length = most.min(buffer.len());
        let buffer = buffer.get_mut(..length).unwrap_or_default();
        let read = self.file.read_at(buffer, self.offset)?;
        self.offset += read as u64;
        self.left -= read as u64;
        Ok(read)
    }
}

fn read_manifest(file: &File, length: u64) -> Result<(SegmentManifest, u64), SegmentFault> {
    let footer_offset = length.checked_sub(FOOTER_BYTES as u64);
    let footer_offset = footer_offset.ok_or_else(|| SegmentFault::damaged("it is too short"))?;
    let mut footer = [0; FOOTER_BYTES];
    file.read_exact_at(&mut footer, footer_offset)?;
    let (bytes, rest) = footer.split_at(4);
    let (signature, magic) = rest.split_at(SIGNATURE_BYTES);
    if magic != END_MAGIC {
        return Err(SegmentFault::damaged("its end is missing"));
    }
    let bytes = bytes.try_into().map(u32::from_le_bytes).unwrap_or_default() as usize;
    let offset = footer_offset.checked_sub(bytes as u64);
    let offset = offset
        .filter(|_| bytes <= MAX_MANIFEST_BYTES)
        .ok_or_else(|| SegmentFault::damaged("its manifest is too long"))?;
    let mut text = vec![0; bytes];
    file.read_exact_at(&mut text, offset)?;
    /// The format member alone, which is read first because another format may have other members.
    #[derive(serde::Deserialize)]
    struct FormatOnly {
        format: u32,
    }
    let unreadable =
        |error: serde_json::Error| SegmentFault::damaged(format!("its manifest: {error}"));
    let FormatOnly { format } = serde_json::from_slice(&text).map_err(unreadable)?;
    if format > FORMAT {
        return Err(SegmentFault::NewerFormat(format));
    }
    let manifest: SegmentManifest = serde_json::from_slice(&text).map_err(unreadable)?;
    manifest.check_signature(&text, signature)?;
    Ok((manifest, offset))
}

fn read_table(file: &File, part: &SegmentPart, name: &str) -> Result<Vec<u8>, SegmentFault> {
    if part.bytes > MAX_TABLE_BYTES {
        return Err(SegmentFault::damaged(format!("its {name} is too long")));
    }
    let mut bytes = vec![0; usize::try_from(part.bytes).unwrap_or_default()];
    file.read_exact_at(&mut bytes, part.offset)?;
    if sha256_hex(&bytes) != part.sha256 {
        return Err(SegmentFault::damaged(format!("its {name} was changed")));
    }
    Ok(bytes)
}

fn parse_place(row: &[u8]) -> Option<BlockPlace> {
    let (first, rest) = row.split_at_checked(8)?;
    let (offset, prev) = rest.split_at_checked(8)?;
    Some(BlockPlace {
        first: u64::from_le_bytes(first.try_into().ok()?).cast_signed(),
        offset: u64::from_le_bytes(offset.try_into().ok()?),
        prev: prev.try_into().ok()?,
    })
}

fn read_balance(lines: &mut impl BufRead) -> Result<Option<SealedBalance>, SegmentFault> {
    let mut line = Vec::new();
    lines
        .by_ref()
        .take(MAX_BALANCE_LINE_BYTES)
        .read_until(b'\n', &mut line)
        .map_err(|error| SegmentFault::damaged(format!("its balances: {error}")))?;
    if line.is_empty() {
        return Ok(None);
    }
    let parsed: (String, [i64; 3]) = serde_json::from_slice(&line)
        .map_err(|error| SegmentFault::damaged(format!("a balance: {error}")))?;
    let (account, [paid, trial, credited]) = parsed;
    Ok(Some(SealedBalance {
        account,
        paid: Micro::new(paid),
        trial: Micro::new(trial),
        credited: Micro::new(credited),
    }))
}
