//! Moves sealed segments to another folder, and lists them with their states.
//!
//! A segment is copied, read back by its hash, synced and renamed. Then the ledger records the new
//! folder, and only then is the file in the data directory removed. If the folder is missing, full
//! or read-only, all files remain in place. This file must not delete the only copy.

use crate::StoreError;
use crate::entry::hex::encode_hex;
use crate::sealed::files::{
    SEGMENT_DIR, SegmentRecord, check_record, open_recorded, segments_after,
};
use crate::sealing::{BackgroundPace, PARTIAL};
use crate::segment::{SegmentFault, SegmentReader};
use crate::sqlite;
use crate::views::Segments;
use base::failpoint::{self, Point};
use base::file_owner;
use base::regular_file::open_regular;
use rusqlite::params;
use serde::Serialize;
use sha2::{Digest, Sha256};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Number of bytes that are copied in one step.
const COPY_BYTES: usize = 1 << 20;

#[derive(Debug, Clone, Serialize)]
pub struct SegmentStatus {
    #[serde(flatten)]
    pub segment: SegmentRecord,
    pub state: SegmentState,
    /// The reason why the segment cannot be read, and the remedy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SegmentState {
    /// The file is in the data directory.
    Here,
    /// The file is in the folder to which it was archived.
    Archived,
    Missing,
    /// The file is unreadable, changed, or from another installation.
    Damaged,
}

impl SegmentState {
    pub const ALL: [Self; 4] = [Self::Here, Self::Archived, Self::Missing, Self::Damaged];

    pub fn name(self) -> &'static str {
        match self {
            Self::Here => "here",
            Self::Archived => "archived",
            Self::Missing => "missing",
            Self::Damaged => "damaged",
        }
    }
}

impl Segments<'_> {
    /// Returns the recorded segments, oldest first.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn segment_records(&self) -> Result<Vec<SegmentRecord>, StoreError> {
        self.0.read("list the ledger's segments", |connection| {
            segments_after(connection, 0)
        })
    }

    /// Sets the folder of the archive, in which later calls look for segments too. An archive can
    /// move, and a restored ledger does not know which segments were archived after its backup.
    pub fn set_archive(&self, archive: Option<&Path>) {
        self.0.segments.set_archive(archive);
    }

    /// Returns the segments with their states. Each file is opened, which checks its signature.
    /// With `reads_all`, all its content is checked too.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn segment_statuses(&self, reads_all: bool) -> Result<Vec<SegmentStatus>, StoreError> {
        let key = self.public_key()?;
        let mut statuses = Vec::new();
        for mut segment in self.segment_records()? {
            let check = |segment: &SegmentRecord| {
                let reader = self.0.segments.open_new(segment)?;
                reader.verify_signature(key.as_deref().unwrap_or_default())?;
                check_record(segment, reader.manifest())?;
                match reads_all {
                    true if reader.verify()? != segment.sha256 => {
                        Err(SegmentFault::Damaged("it is not what was sealed".into()))
                    }
                    _ => Ok(()),
                }
            };
            let mut opened = check(&segment);
            if opened.is_err() {
                // The segment may just have been archived.
                segment = self.recorded_segment(segment.first)?;
                opened = check(&segment);
            }
            let is_here = self.0.segments.dir().join(&segment.file).exists();
            let (state, fault) = match opened {
                Ok(()) if is_here => (SegmentState::Here, None),
                Ok(()) => (SegmentState::Archived, None),
                Err(fault) => {
                    let state = match fault {
                        SegmentFault::Missing => SegmentState::Missing,
                        _ => SegmentState::Damaged,
                    };
                    (
                        state,
                        Some(self.0.segments.unavailable(&segment, &fault).to_string()),
                    )
                }
            };
            statuses.push(SegmentStatus {
                segment,
                state,
                fault,
            });
        }
        Ok(statuses)
    }

    /// Copies the segments in the data directory to another one, `to`. Segments that were archived
    /// since `since_ms` are copied too, because the copied ledger may expect them in the data
    /// directory. Returns the faults of segments that are in neither place.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read or written.
    pub fn copy_segments(&self, to: &Path, since_ms: i64) -> Result<Vec<String>, StoreError> {
        let failed = |source| StoreError::io("back up a segment", source);
        let (records, mut faults) = (self.segment_records()?, Vec::new());
        if records.is_empty() {
            return Ok(faults);
        }
        let folder = to.join(SEGMENT_DIR);
        sqlite::create_dir(&folder)?;
        for segment in records {
            let from = self.0.segments.dir().join(&segment.file);
            let copy = folder.join(&segment.file);
            match copy_file(&from, &copy) {
                Err(error) if error.kind() == io::ErrorKind::NotFound && !from.exists() => {
                    let Some(archived) = self.archived_since(&segment, since_ms)? else {
                        faults.extend(
                            self.open_segment(&segment)
                                .err()
                                .map(|error| error.to_string()),
                        );
                        continue;
                    };
                    copy_file(&archived, &copy).map_err(failed)?
                }
                copied => copied.map_err(failed)?,
            }
        }
        sqlite::sync_dir(&folder).map_err(failed)?;
        Ok(faults)
    }

    /// Returns the path of a segment's file if it was archived since `since_ms`.
    fn archived_since(
        &self,
        segment: &SegmentRecord,
        since_ms: i64,
    ) -> Result<Option<PathBuf>, StoreError> {
        // The segment may have been archived just now.
        let segment = self.recorded_segment(segment.first)?;
        let folder = segment.archived_to.filter(|_| {
            segment
                .archived_at_ms
                .is_some_and(|at_ms| at_ms >= since_ms)
        });
        Ok(folder.map(|folder| Path::new(&folder).join(&segment.file)))
    }

    /// Opens a recorded segment for a reader of all its entries.
    ///
    /// # Errors
    /// Returns an error with the remedy if the file is missing.
    pub fn open_segment(&self, segment: &SegmentRecord) -> Result<SegmentReader, StoreError> {
        if let Ok(reader) = self.0.segments.open_new(segment) {
            return Ok(reader);
        }
        // The segment may just have been archived.
        let current = self.recorded_segment(segment.first)?;
        self.0
            .segments
            .open_new(&current)
            .map_err(|fault| self.0.segments.unavailable(&current, &fault))
    }

    /// Returns the public key of the installation's segments in hexadecimal digits, or `None`
    /// before the first segment.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn public_key(&self) -> Result<Option<String>, StoreError> {
        let has_key = self.0.read("read the installation's key", |connection| {
            connection
                .prepare_cached("SELECT 1 FROM installation")?
                .exists([])
        })?;
        if !has_key {
            return Ok(None);
        }
        Ok(Some(self.installation_key()?.public_key()))
    }

    /// Moves the segments whose last entry is before `before_ms` to `to`. Returns the moved
    /// segments.
    ///
    /// # Errors
    /// Returns an error if another process seals or archives, or if a segment cannot be moved; it
    /// and the later ones then stay where they are.
    pub fn archive_segments(
        &self,
        before_ms: i64,
        to: &Path,
        pace: BackgroundPace<'_>,
    ) -> Result<Vec<SegmentRecord>, StoreError> {
        let lock = self.lock_segments()?;
        self.resume_sealing(pace)?;
        let to = self.archive_folder(to)?;
        let mut moved = Vec::new();
        for segment in self.segment_records()? {
            if segment.archived_to.is_some() || segment.to_ms >= before_ms {
                continue;
            }
            self.archive_segment(&segment, &to, pace).map_err(|error| {
                StoreError::Unusable(format!(
                    "cannot archive the segment {} to {}: {error}; it stays in the data directory",
                    segment.file,
                    to.display()
                ))
            })?;
            moved.push(self.recorded_segment(segment.first)?);
        }
        drop(lock);
        Ok(moved)
    }

    /// Checks the folder of an archive. The folder is not created, because it would be on another
    /// disk if the archive's disk is not mounted.
    fn archive_folder(&self, to: &Path) -> Result<PathBuf, StoreError> {
        let refuse =
            |why: String| StoreError::Refused(format!("cannot archive to {}: {why}", to.display()));
        let to = to.canonicalize().map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => refuse("the folder does not exist; create it".into()),
            _ => refuse(error.to_string()),
        })?;
        if !to.is_dir() {
            return Err(refuse("it is not a folder".into()));
        }
        if self.shows_local_files(&to)? {
            return Err(refuse("it is the folder that the segments are in".into()));
        }
        let Some(name) = to.to_str() else {
            return Err(refuse("its name is not UTF-8".into()));
        };
        // If a disk is not mounted, its folder exists but is empty.
        let records = self.segment_records()?;
        let mut archived = records.iter().filter(|segment| {
            segment.archived_to.as_deref() == Some(name)
                && !self.0.segments.dir().join(&segment.file).exists()
        });
        match archived.clone().next() {
            Some(first) if !archived.any(|segment| to.join(&segment.file).exists()) => {
                Err(refuse(format!(
                    "it has none of the segments that were archived to it, as {}; mount its disk, or put them back",
                    first.file
                )))
            }
            _ => Ok(to),
        }
    }

    fn archive_segment(
        &self,
        segment: &SegmentRecord,
        to: &Path,
        pace: BackgroundPace<'_>,
    ) -> Result<(), StoreError> {
        let from = self.0.segments.dir().join(&segment.file);
        let target = to.join(&segment.file);
        let found = hash_file(&target, pace)?;
        if found
            .as_ref()
            .is_some_and(|sha256| *sha256 != segment.sha256)
        {
            return Err(StoreError::Refused(
                "the folder has another file of this name; each gateway needs a folder of its own, \
                 else move that file away"
                    .into(),
            ));
        }
        if found.is_none() {
            let partial = to.join(format!("{}.{PARTIAL}", segment.file));
            let copied = copy_checked(&from, &partial, &segment.sha256, pace);
            if let Err(error) = copied {
                // Remove the partial file, so that a full disk gets its space back.
                let _ = std::fs::remove_file(&partial);
                return Err(error);
            }
            let failed = |source| StoreError::io("finish the copy", source);
            file_owner::rename(&partial, &target).map_err(failed)?;
            sqlite::sync_dir(to).map_err(failed)?;
        }
        failpoint::hit(Point::BeforeArchiveRecord);
        let folder = to.to_str().unwrap_or_default();
        self.0
            .writer()
            .execute(
                "UPDATE segment SET archived_to = ?2, archived_at = ?3 WHERE first = ?1",
                params![segment.first, folder, base::clock::now_ms()],
            )
            .map_err(|source| StoreError::sqlite("record an archived segment", source))?;
        failpoint::hit(Point::AfterArchiveRecord);
        self.remove_local(segment, &target, pace)
    }

    /// Returns whether a folder shows the files of the data directory under another name, over a
    /// mount, or through another file system. Such a folder contains no copies.
    fn shows_local_files(&self, folder: &Path) -> Result<bool, StoreError> {
        let failed =
            |source| StoreError::io("try whether the archive is a folder of its own", source);
        let mut random = [0_u8; 8];
        getrandom::fill(&mut random).map_err(|error| failed(error.into()))?;
        // Use a new name, which no cache of a file system has. A remaining probe is removed as a
        // partial file.
        let name = format!("probe-{}.{PARTIAL}", encode_hex(&random));
        let probe = self.0.segments.dir().join(&name);
        File::create_new(&probe).map_err(failed)?;
        let is_shown = folder.join(&name).symlink_metadata().is_ok();
        std::fs::remove_file(&probe).map_err(failed)?;
        Ok(is_shown)
    }

    /// Removes the local file of a segment whose complete copy is at `archived`. A different file
    /// with its name is set aside.
    pub(super) fn remove_local(
        &self,
        segment: &SegmentRecord,
        archived: &Path,
        pace: BackgroundPace<'_>,
    ) -> Result<(), StoreError> {
        let failed = |source| StoreError::io("remove an archived segment", source);
        let local = self.0.segments.dir().join(&segment.file);
        if is_only_name(&local, archived).map_err(failed)? {
            return Err(StoreError::Refused(
                "the archive is the folder that the segments are in".into(),
            ));
        }
        let is_copy = match std::fs::metadata(&local) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            found if found.as_ref().is_ok_and(|found| !found.is_file()) => Some(false),
            _ => hash_file(&local, pace)?.map(|sha256| sha256 == segment.sha256),
        };
        match is_copy {
            None => {}
            Some(true) => std::fs::remove_file(&local).map_err(failed)?,
            Some(false) => {
                let why = "it has the name of an archived segment, and is another";
                set_aside(&local, why).map_err(failed)?;
            }
        }
        self.0.segments.close(segment.first);
        sqlite::sync_dir(self.0.segments.dir()).map_err(failed)
    }

    /// Removes the local files of segments that the archive has.
    pub(super) fn remove_archived(
        &self,
        records: &[SegmentRecord],
        pace: BackgroundPace<'_>,
    ) -> Result<(), StoreError> {
        for segment in records {
            let Some(folder) = &segment.archived_to else {
                continue;
            };
            let folder = Path::new(folder);
            let archived = folder.join(&segment.file);
            // A file that was put back because the archive's copy is gone must remain.
            if self.0.segments.dir().join(&segment.file).exists()
                && open_recorded(&archived, segment).is_ok()
                && hash_file(&archived, pace)? == Some(segment.sha256.clone())
                && !self.shows_local_files(folder)?
            {
                self.remove_local(segment, &archived, pace)?;
            }
        }
        Ok(())
    }
}

/// Renames a file in the folder of segments that is not a segment, and logs the reason.
pub(crate) fn set_aside(path: &Path, why: &str) -> io::Result<()> {
    let mut aside = path.as_os_str().to_owned();
    aside.push(".unknown");
    log::error!(
        "{}: {why}; renamed to {}",
        path.display(),
        Path::new(&aside).display()
    );
    file_owner::rename(path, aside)
}

/// Returns whether two paths lead to one file that has no other name, so that removing one removes
/// the file.
fn is_only_name(one: &Path, other: &Path) -> io::Result<bool> {
    let one = match std::fs::metadata(one) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        one => one?,
    };
    let other = std::fs::metadata(other)?;
    Ok(one.nlink() == 1 && (one.dev(), one.ino()) == (other.dev(), other.ino()))
}

/// Copies a file, and syncs the copy.
fn copy_file(from: &Path, to: &Path) -> io::Result<()> {
    let mut source = open_regular(from)?;
    let mut options = OpenOptions::new();
    let options = options.write(true).create(true).truncate(true);
    let mut copy = file_owner::open(options.mode(0o600), to)?;
    io::copy(&mut source, &mut copy)?;
    copy.sync_all()
}

/// Copies a file, syncs the copy, and reads it back. The original must have the expected hash too.
fn copy_checked(
    from: &Path,
    to: &Path,
    sha256: &[u8],
    pace: BackgroundPace<'_>,
) -> Result<(), StoreError> {
    let failed = |source| StoreError::io("copy the file", source);
    match std::fs::remove_file(to) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    let mut source = open_regular(from).map_err(failed)?;
    let mut options = OpenOptions::new();
    let options = options.write(true).create_new(true).mode(0o600);
    let mut copy = file_owner::open(options, to).map_err(failed)?;
    let mut piece = vec![0; COPY_BYTES];
    loop {
        let began = Instant::now();
        let read = source.read(&mut piece).map_err(failed)?;
        if read == 0 {
            break;
        }
        copy.write_all(piece.get(..read).unwrap_or_default())
            .map_err(failed)?;
        failpoint::hit(Point::MidArchiveCopy);
        pace.rest(began)?;
    }
    copy.sync_all().map_err(failed)?;
    if hash_file(to, pace)?.as_deref() != Some(sha256) {
        return Err(StoreError::Unusable(
            "the copy is not what was sealed: the file is damaged, or the disk is".into(),
        ));
    }
    Ok(())
}

/// Returns the SHA-256 of a file, or `None` if it does not exist.
fn hash_file(path: &Path, pace: BackgroundPace<'_>) -> Result<Option<Vec<u8>>, StoreError> {
    let failed = |source| StoreError::io("read a segment", source);
    let mut file = match open_regular(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file.map_err(failed)?,
    };
    let (mut hash, mut piece) = (Sha256::new(), vec![0; COPY_BYTES]);
    loop {
        let began = Instant::now();
        let read = file.read(&mut piece).map_err(failed)?;
        if read == 0 {
            return Ok(Some(hash.finalize().to_vec()));
        }
        hash.update(piece.get(..read).unwrap_or_default());
        pace.rest(began)?;
    }
}
