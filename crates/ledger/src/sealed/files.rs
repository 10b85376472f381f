//! Finds the files of recorded segments in the folder `segments` beside `ledger.db`, or else in the
//! archive.
//!
//! Segments stay open, up to a limit, so that a receipt needs to read only one page and one block.
//! This file must not write, and must not depend on the content of a file: `segment.rs` reads it.

use crate::StoreError;
use crate::entry::hex::encode_hex;
use crate::segment::{BlockCache, SegmentFault, SegmentManifest, SegmentReader};
use arc_swap::ArcSwapOption;
use rusqlite::{Connection, OptionalExtension, Row, params};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Folder of the segments in the data directory.
pub const SEGMENT_DIR: &str = "segments";
/// Maximum number of segments that stay open.
const MAX_OPEN_SEGMENTS: usize = 64;

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SegmentRecord {
    pub first: i64,
    pub last: i64,
    #[serde(skip)]
    pub previous_hash: Vec<u8>,
    #[serde(skip)]
    pub last_hash: Vec<u8>,
    pub from_ms: i64,
    pub to_ms: i64,
    /// The latest time of an end of a request, or in the id of one. A request that began later is
    /// not in the segment.
    #[serde(skip)]
    pub ended_until_ms: i64,
    /// Number of debits and voids.
    pub endings: i64,
    pub accounts: i64,
    pub file: String,
    pub bytes: i64,
    #[serde(skip)]
    pub sha256: Vec<u8>,
    pub sealed_at_ms: i64,
    /// True if the segment's ends of requests have been removed from `entry`.
    pub is_emptied: bool,
    /// Folder to which the file was moved. `None` if the file is in the data directory.
    pub archived_to: Option<String>,
    pub archived_at_ms: Option<i64>,
}

const SEGMENT_COLUMNS: &str = "first, last, previous_hash, last_hash, from_ms, to_ms, ended_until, endings, accounts, file, bytes, \
     sha256, sealed_at, emptied_at IS NOT NULL, archived_to, archived_at";

fn segment_record(row: &Row<'_>) -> rusqlite::Result<SegmentRecord> {
    Ok(SegmentRecord {
        first: row.get(0)?,
        last: row.get(1)?,
        previous_hash: row.get(2)?,
        last_hash: row.get(3)?,
        from_ms: row.get(4)?,
        to_ms: row.get(5)?,
        ended_until_ms: row.get(6)?,
        endings: row.get(7)?,
        accounts: row.get(8)?,
        file: row.get(9)?,
        bytes: row.get(10)?,
        sha256: row.get(11)?,
        sealed_at_ms: row.get(12)?,
        is_emptied: row.get(13)?,
        archived_to: row.get(14)?,
        archived_at_ms: row.get(15)?,
    })
}

/// Returns the segments with an entry after `seq`, oldest first.
pub(crate) fn segments_after(
    connection: &Connection,
    seq: i64,
) -> rusqlite::Result<Vec<SegmentRecord>> {
    connection
        .prepare_cached(&format!(
            "SELECT {SEGMENT_COLUMNS} FROM segment WHERE last > ?1 ORDER BY first"
        ))?
        .query_map([seq], segment_record)?
        .collect()
}

/// Returns the segments that can contain the end of a request that began at `begun_ms`, oldest
/// first. If that time is unknown, returns all segments.
pub(crate) fn segments_since(
    connection: &Connection,
    begun_ms: Option<i64>,
) -> rusqlite::Result<Vec<SegmentRecord>> {
    connection
        .prepare_cached(&format!(
            "SELECT {SEGMENT_COLUMNS} FROM segment WHERE ended_until >= ?1 ORDER BY first"
        ))?
        .query_map(params![begun_ms.unwrap_or(i64::MIN)], segment_record)?
        .collect()
}

pub(crate) fn segment_of(
    connection: &Connection,
    seq: i64,
) -> rusqlite::Result<Option<SegmentRecord>> {
    let sql = format!(
        "SELECT {SEGMENT_COLUMNS} FROM segment WHERE first <= ?1 ORDER BY first DESC LIMIT 1"
    );
    let found = connection
        .prepare_cached(&sql)?
        .query_row([seq], segment_record)
        .optional()?;
    Ok(found.filter(|segment| segment.last >= seq))
}

/// Returns the position of the last sealed entry, and the time of the latest one.
pub(crate) fn sealed_end(connection: &Connection) -> rusqlite::Result<(i64, i64)> {
    let end = connection
        .prepare_cached("SELECT sealed_through, sealed_until FROM installation")?
        .query_row([], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    Ok(end.unwrap_or((0, i64::MIN)))
}

pub struct SegmentFiles {
    dir: PathBuf,
    /// The operator's archive, which is searched even if the ledger records another folder.
    archive: ArcSwapOption<PathBuf>,
    open: Mutex<BTreeMap<i64, Arc<SegmentReader>>>,
    blocks: BlockCache,
}

impl SegmentFiles {
    /// Creates the list of files for the ledger in `data_dir`, without opening any.
    pub(crate) fn new(data_dir: &Path) -> Self {
        Self {
            dir: data_dir.join(SEGMENT_DIR),
            archive: ArcSwapOption::empty(),
            open: Mutex::default(),
            blocks: BlockCache::default(),
        }
    }

    /// Returns the block that was decoded last, for readers of single entries.
    pub(crate) fn blocks(&self) -> &BlockCache {
        &self.blocks
    }

    /// Returns the folder of the segments that were not archived.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the possible paths of the file, the likeliest one first.
    fn places(&self, segment: &SegmentRecord) -> Vec<PathBuf> {
        let archive = self.archive.load();
        let archives = [
            segment.archived_to.as_deref().map(Path::new),
            archive.as_deref().map(PathBuf::as_path),
        ];
        [self.dir.as_path()]
            .into_iter()
            .chain(archives.into_iter().flatten())
            .map(|dir| dir.join(&segment.file))
            .collect()
    }

    /// Sets the folder of the archive, in which later calls look for files too.
    pub(crate) fn set_archive(&self, archive: Option<&Path>) {
        self.archive
            .store(archive.map(|dir| Arc::new(dir.to_owned())));
    }

    /// Returns the segment. Opens it unless it is open already.
    ///
    /// # Errors
    /// Returns the fault of its file.
    pub(crate) fn reader(
        &self,
        segment: &SegmentRecord,
    ) -> Result<Arc<SegmentReader>, SegmentFault> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(reader) = open.get(&segment.first) {
            return Ok(Arc::clone(reader));
        }
        let reader = Arc::new(self.open_new(segment)?);
        if open.len() >= MAX_OPEN_SEGMENTS {
            open.pop_first();
        }
        open.insert(segment.first, Arc::clone(&reader));
        Ok(reader)
    }

    /// Opens the file, and checks that it is the one that the ledger recorded.
    ///
    /// # Errors
    /// Returns the fault of the first file that was found.
    pub(crate) fn open_new(&self, segment: &SegmentRecord) -> Result<SegmentReader, SegmentFault> {
        let mut fault = SegmentFault::Missing;
        for path in self.places(segment) {
            match open_recorded(&path, segment) {
                Ok(reader) => return Ok(reader),
                Err(SegmentFault::Missing) => {}
                // An undamaged copy in another folder is equally good.
                Err(found) if matches!(fault, SegmentFault::Missing) => fault = found,
                Err(_) => {}
            }
        }
        Err(fault)
    }

    /// Closes a segment, so that the next reader looks for its file again.
    pub(crate) fn close(&self, first: i64) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.remove(&first);
    }

    /// Returns the error for a missing or damaged segment. It names the expected path of the file
    /// and the remedy.
    pub(crate) fn unavailable(&self, segment: &SegmentRecord, fault: &SegmentFault) -> StoreError {
        if let SegmentFault::OtherRecord(_) = fault {
            return StoreError::SegmentUnavailable(format!(
                "of the segment {}, {fault}: somebody changed it; restore ledger.db from a backup",
                segment.file
            ));
        }
        let state = match fault {
            SegmentFault::Missing => "which is not at hand".into(),
            fault => format!("which cannot be used ({fault})"),
        };
        StoreError::SegmentUnavailable(format!(
            "entries {} to {} are sealed in the segment {}, {state}: {}",
            segment.first,
            segment.last,
            segment.file,
            self.remedy(segment)
        ))
    }

    /// Returns the step that makes a segment available again.
    pub fn remedy(&self, segment: &SegmentRecord) -> String {
        let dir = self.dir.display();
        match &segment.archived_to {
            Some(archive) => {
                format!("it was archived to {archive}; put the file back there, or into {dir}")
            }
            None => format!("put the file into {dir}, from a backup"),
        }
    }
}

/// Checks that the ledger's record agrees with the signed manifest. Only an audit needs this check.
pub(crate) fn check_record(
    segment: &SegmentRecord,
    manifest: &SegmentManifest,
) -> Result<(), SegmentFault> {
    let times = [segment.from_ms, segment.to_ms, segment.sealed_at_ms];
    let numbers = [segment.endings, segment.accounts].map(i64::cast_unsigned);
    if times != [manifest.from_ms, manifest.to_ms, manifest.sealed_at_ms] {
        return Err(SegmentFault::OtherRecord("times"));
    }
    if numbers != [manifest.endings(), manifest.accounts] {
        return Err(SegmentFault::OtherRecord("numbers"));
    }
    Ok(())
}

/// Opens a file, and checks that it is the recorded segment.
pub(crate) fn open_recorded(
    path: &Path,
    segment: &SegmentRecord,
) -> Result<SegmentReader, SegmentFault> {
    let reader = SegmentReader::open(path)?;
    let manifest = reader.manifest();
    let hashes = [&segment.previous_hash, &segment.last_hash].map(|hash| encode_hex(hash));
    let is_same = (manifest.first, manifest.last) == (segment.first, segment.last)
        && [&manifest.previous_hash, &manifest.last_hash] == [&hashes[0], &hashes[1]];
    if !is_same {
        return Err(SegmentFault::OtherSegment {
            found: format!(
                "entries {} to {} of installation {}",
                manifest.first, manifest.last, manifest.installation
            ),
            expected: format!("entries {} to {}", segment.first, segment.last),
        });
    }
    Ok(reader)
}

/// Returns the hash of the entry at the anchor's position, if that entry is sealed. If its segment
/// is missing, the anchor is trusted, because only a ledger that had the entry can have sealed it.
pub(crate) fn sealed_hash(
    connection: &Connection,
    seq: i64,
    named: &[u8],
) -> rusqlite::Result<Option<Vec<u8>>> {
    let Some(segment) = segment_of(connection, seq)? else {
        return Ok(None);
    };
    if segment.last == seq {
        return Ok(Some(segment.last_hash));
    }
    let dir = connection.path().and_then(|path| Path::new(path).parent());
    let files = SegmentFiles::new(dir.unwrap_or(Path::new(".")));
    let found = files
        .open_new(&segment)
        .and_then(|reader| reader.entry_at(seq, files.blocks()));
    match found {
        Ok(entry) => Ok(entry.map(|entry| entry.hash)),
        Err(fault) => {
            let error = files.unavailable(&segment, &fault);
            log::warn!("cannot compare the ledger with its anchor: {error}");
            Ok(Some(named.to_vec()))
        }
    }
}
