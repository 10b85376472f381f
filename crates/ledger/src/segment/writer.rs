//! Writes a segment: the entries in order, the balances after the last one, and the indexes.
//!
//! The writer recomputes the chain, so that a ledger with a broken chain is not sealed. It keeps
//! one block and 8 bytes for each entry in memory. This file must not rename a file or touch the
//! ledger.

use super::block::{self, BLOCK_TEXT_BYTES, MAX_BLOCK_ENTRIES, MAX_ENTRY_TEXT_BYTES, text_bytes};
use super::identity::InstallationKey;
use super::manifest::{
    END_MAGIC, FORMAT, MAGIC, SIGNED_PREFIX, SealedBalance, SegmentManifest, SegmentPart,
};
use super::reference_index::{self, MAX_BLOCKS};
use crate::LedgerEntry;
use crate::entry::chain::entry_hash;
use crate::entry::hex::encode_hex;
use base::file_owner;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Compression level of zstd for the balances.
const BALANCE_COMPRESSION: i32 = 3;

/// The position and the predecessor of a segment.
#[derive(Debug, Clone)]
pub struct SegmentStart {
    pub first: i64,
    /// Hash of the entry before the segment.
    pub previous_hash: Vec<u8>,
    pub sealed_at_ms: i64,
}

pub struct SegmentWriter {
    out: HashingWriter,
    start: SegmentStart,
    pending: Vec<LedgerEntry>,
    pending_bytes: usize,
    /// Position and hash of the last entry.
    head: (i64, Vec<u8>),
    directory: Vec<u8>,
    blocks: usize,
    records: Vec<u64>,
    kinds: BTreeMap<String, u64>,
    times: Option<(i64, i64)>,
}

impl SegmentWriter {
    /// Creates the file, which must not exist, with mode 0600.
    ///
    /// # Errors
    /// Returns an error if the file cannot be created.
    pub fn create(path: &Path, start: SegmentStart) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        let file = file_owner::open(options.write(true).create_new(true).mode(0o600), path)?;
        let mut out = HashingWriter {
            file: BufWriter::with_capacity(1 << 18, file),
            offset: 0,
            part: Sha256::new(),
            whole: Sha256::new(),
            part_offset: 0,
        };
        out.put(MAGIC)?;
        out.begin_part();
        let head = (start.first - 1, start.previous_hash.clone());
        Ok(Self {
            out,
            start,
            pending: Vec::with_capacity(MAX_BLOCK_ENTRIES),
            pending_bytes: 0,
            head,
            directory: Vec::new(),
            blocks: 0,
            records: Vec::new(),
            kinds: BTreeMap::new(),
            times: None,
        })
    }

    /// Adds the next entry.
    ///
    /// # Errors
    /// Returns an error if the entry does not follow the last one, if its hash is wrong, if it is
    /// larger than an entry can be, or if the file cannot be written.
    pub fn push(&mut self, entry: LedgerEntry) -> io::Result<()> {
        let seq = entry.seq;
        if seq != self.head.0 + 1 || entry.prev != self.head.1 || entry_hash(&entry) != entry.hash {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("entry {seq} breaks the chain of hashes: run `ledger verify`"),
            ));
        }
        let bytes = text_bytes(&entry);
        if bytes > MAX_ENTRY_TEXT_BYTES {
            let message = format!(
                "entry {seq} has {bytes} bytes; at most {MAX_ENTRY_TEXT_BYTES} can be sealed"
            );
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        if self.pending.len() == MAX_BLOCK_ENTRIES || self.pending_bytes + bytes > BLOCK_TEXT_BYTES
        {
            self.write_block()?;
        }
        self.pending_bytes += bytes;
        *self.kinds.entry(entry.kind.clone()).or_default() += 1;
        let (from, to) = self.times.unwrap_or((entry.at_ms, entry.at_ms));
        self.times = Some((from.min(entry.at_ms), to.max(entry.at_ms)));
        self.records.push(reference_index::record(
            &entry.reference,
            self.blocks as u64,
        ));
        self.head = (seq, entry.hash.clone());
        self.pending.push(entry);
        Ok(())
    }

    fn write_block(&mut self) -> io::Result<()> {
        let Some(first) = self.pending.first() else {
            return Ok(());
        };
        if self.blocks == MAX_BLOCKS {
            return Err(io::Error::other("a segment has too many blocks"));
        }
        let bytes = block::encode(&self.pending)?;
        self.directory
            .extend_from_slice(&first.seq.cast_unsigned().to_le_bytes());
        self.directory
            .extend_from_slice(&self.out.offset.to_le_bytes());
        self.directory.extend_from_slice(&first.prev);
        self.out.put(&bytes)?;
        self.blocks += 1;
        self.pending.clear();
        self.pending_bytes = 0;
        Ok(())
    }

    /// Writes the rest of the file and syncs it. `balances` has every account with an entry up to
    /// the end of the segment, sorted. Returns the manifest, and the SHA-256 of the file.
    ///
    /// # Errors
    /// Returns an error if the segment has no entry, if `balances` fails, or if the file cannot be
    /// written.
    pub fn finish(
        mut self,
        balances: impl Iterator<Item = io::Result<SealedBalance>>,
        key: &InstallationKey,
    ) -> io::Result<(SegmentManifest, Vec<u8>)> {
        let (from_ms, to_ms) = self
            .times
            .ok_or_else(|| io::Error::other("a segment must have an entry"))?;
        self.write_block()?;
        let blocks = self.out.end_part();
        let accounts = self.write_balances(balances)?;
        let balances = self.out.end_part();
        self.out.put(&std::mem::take(&mut self.directory))?;
        let directory = self.out.end_part();
        let (pages, list) = reference_index::encode(std::mem::take(&mut self.records));
        self.out.put(&pages)?;
        let index = self.out.end_part();
        self.out.put(&list)?;
        let index_pages = self.out.end_part();
        let manifest = SegmentManifest {
            format: FORMAT,
            installation: key.id.clone(),
            public_key: key.public_key(),
            first: self.start.first,
            last: self.head.0,
            previous_hash: encode_hex(&self.start.previous_hash),
            last_hash: encode_hex(&self.head.1),
            kinds: std::mem::take(&mut self.kinds),
            from_ms,
            to_ms,
            accounts,
            sealed_at_ms: self.start.sealed_at_ms,
            program: env!("CARGO_PKG_VERSION").into(),
            blocks,
            balances,
            directory,
            index,
            index_pages,
        };
        let sha256 = self.write_manifest(&manifest, key)?;
        Ok((manifest, sha256))
    }

    fn write_balances(
        &mut self,
        balances: impl Iterator<Item = io::Result<SealedBalance>>,
    ) -> io::Result<u64> {
        let mut count = 0;
        let mut lines = zstd::stream::write::Encoder::new(&mut self.out, BALANCE_COMPRESSION)?;
        for balance in balances {
            let SealedBalance {
                account,
                paid,
                trial,
                credited,
            } = balance?;
            let amounts = [paid, trial, credited].map(credits::money::Micro::get);
            let line = serde_json::to_string(&(account, amounts))?;
            lines.write_all(line.as_bytes())?;
            lines.write_all(b"\n")?;
            count += 1;
        }
        lines.finish()?;
        Ok(count)
    }

    fn write_manifest(
        &mut self,
        manifest: &SegmentManifest,
        key: &InstallationKey,
    ) -> io::Result<Vec<u8>> {
        let text = serde_json::to_vec(manifest)?;
        self.out.put(&text)?;
        let length = u32::try_from(text.len()).map_err(io::Error::other)?;
        self.out.put(&length.to_le_bytes())?;
        let signature = key.sign(&[SIGNED_PREFIX, &text].concat());
        self.out.put(&signature)?;
        self.out.put(END_MAGIC)?;
        self.out.file.flush()?;
        self.out.file.get_ref().sync_all()?;
        Ok(self.out.whole.clone().finalize().to_vec())
    }
}

/// A file that computes the hash of the current part, and the hash of the whole file.
struct HashingWriter {
    file: BufWriter<File>,
    offset: u64,
    part_offset: u64,
    part: Sha256,
    whole: Sha256,
}

impl HashingWriter {
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.part.update(bytes);
        self.whole.update(bytes);
        self.offset += bytes.len() as u64;
        Ok(())
    }

    fn begin_part(&mut self) {
        self.part = Sha256::new();
        self.part_offset = self.offset;
    }

    fn end_part(&mut self) -> SegmentPart {
        let part = SegmentPart {
            offset: self.part_offset,
            bytes: self.offset - self.part_offset,
            sha256: encode_hex(&self.part.clone().finalize()),
        };
        self.begin_part();
        part
    }
}

impl Write for HashingWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.put(bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
