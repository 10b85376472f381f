//! Writes one file of a journal. Its lines are numbered, and each one is written whole or not at
//! all.
//!
//! This file must not decide to which file a record is written.

use super::line::{encode_unnumbered, set_number};
use super::record::JournalRecord;
use crate::sqlite;
use base::file_owner;
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

pub struct Segment {
    pub(crate) path: PathBuf,
    pub(crate) file: File,
    /// Length of the file in bytes.
    pub(crate) bytes: AtomicU64,
    pub(crate) next: AtomicU64,
    /// True if the file has a record that only a replay will enter into the ledger.
    kept: AtomicBool,
    /// True if the file's directory entry is synced to disk.
    named: AtomicBool,
}

impl Segment {
    /// Keeps the file for a replay at the next start.
    pub fn keep_for_replay(&self) {
        self.kept.store(true, Ordering::Release);
    }

    /// Creates file number `file` of a journal. The first line is written before the file gets its
    /// name, so that no reader finds an empty file.
    pub(crate) fn create_numbered(dir: &Path, file: u64, lines_before: u64) -> io::Result<Self> {
        let unnamed = dir.join(format!("{file:06}.new"));
        let segment = Self::create(unnamed.clone()).and_then(|segment| {
            // The lines after it count from 1.
            segment.next.store(0, Ordering::Relaxed);
            segment.append(&mut encode_unnumbered(&JournalRecord::Begun {
                file,
                lines_before,
            })?)?;
            segment.rename(&file_name(file))
        });
        segment.inspect_err(|_| drop(std::fs::remove_file(unnamed)))
    }

    pub(crate) fn create(path: PathBuf) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        let file = file_owner::open(options.create_new(true).append(true).mode(0o600), &path)?;
        let (kept, named) = (AtomicBool::new(false), AtomicBool::new(false));
        Ok(Self {
            path,
            file,
            bytes: AtomicU64::new(0),
            next: AtomicU64::new(1),
            kept,
            named,
        })
    }

    /// Appends the complete `line` under the next number, or leaves the file unchanged. Callers
    /// must not run at the same time.
    pub(crate) fn append(&self, line: &mut [u8]) -> io::Result<()> {
        let next = self.next.load(Ordering::Relaxed);
        set_number(line, next);
        self.append_numbered(line, &[line.len()]).1
    }

    /// Appends complete lines under the next numbers, in one call. Returns how many of them the
    /// file has now. Callers must not run at the same time.
    pub(crate) fn append_all<'a>(&self, lines: impl Iterator<Item = &'a mut [u8]>) -> usize {
        let (mut bytes, mut ends) = (Vec::new(), Vec::new());
        for (number, line) in (self.next.load(Ordering::Relaxed)..).zip(lines) {
            set_number(line, number);
            bytes.extend_from_slice(line);
            ends.push(bytes.len());
        }
        self.append_numbered(&bytes, &ends).0
    }

    /// Appends the lines of `bytes` that end at `ends`. Returns how many lines the file has taken
    /// whole, and the error that stopped it. A line written only in part does not count.
    fn append_numbered(&self, bytes: &[u8], ends: &[usize]) -> (usize, io::Result<()>) {
        let before = self.bytes.load(Ordering::Relaxed);
        // Use a single call, so a crash of the process leaves each record either written or not.
        let (count, outcome) = match (&self.file).write(bytes) {
            Ok(count) if count == bytes.len() => (count, Ok(())),
            // A full disk accepts only the bytes that fit into the last page.
            Ok(count) => (count, Err(io::ErrorKind::StorageFull.into())),
            Err(error) => (0, Err(error)),
        };
        let lines = ends.partition_point(|end| *end <= count);
        let whole = lines.checked_sub(1).map_or(0, |last| ends[last]);
        let end = |count: usize| before.saturating_add(count as u64);
        // If the partial line cannot be undone, the leading line end of the next record terminates
        // it.
        let is_torn = count > whole && self.file.set_len(end(whole)).is_err();
        let kept = if is_torn { count } else { whole };
        self.bytes.store(end(kept), Ordering::Relaxed);
        self.next.fetch_add(lines as u64, Ordering::Relaxed);
        (lines, outcome)
    }

    /// Syncs the appended records, and the names of the file and its directories.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.file.sync_data()?;
        if !self.named.load(Ordering::Acquire) {
            for folder in self.path.ancestors().skip(1).take(2) {
                sqlite::sync_dir(folder)?;
            }
            self.named.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Preallocates `bytes` after the end of the file, so they can be appended even on a full disk.
    pub(crate) fn preallocate(&self, bytes: u64) -> io::Result<()> {
        let end = self.bytes.load(Ordering::Relaxed);
        match rustix::fs::fallocate(&self.file, FallocateFlags::KEEP_SIZE, end, bytes) {
            Err(Errno::OPNOTSUPP) => {
                log::warn!(
                    "this file system cannot preallocate space: the journal has no reserve for a full disk"
                );
                Ok(())
            }
            outcome => Ok(outcome?),
        }
    }

    /// Returns another reserve of `bytes` under a name that no reader knows, in the place of this
    /// one. Returns `None` if this reserve has no record: then it keeps the room that it has, and
    /// gets what is missing.
    pub(crate) fn renewed(&self, bytes: u64) -> io::Result<Option<Self>> {
        if self.bytes.load(Ordering::Relaxed) == 0 {
            return self.preallocate(bytes).map(|()| None);
        }
        let path = self.path.with_extension("new");
        let renewed = Self::create(path.clone())
            .and_then(|reserve| reserve.preallocate(bytes).map(|()| reserve));
        renewed
            .map(Some)
            .inspect_err(|_| drop(std::fs::remove_file(path)))
    }

    /// Gives the file its name, in the place of a file that has it.
    pub(crate) fn rename(self, name: &str) -> io::Result<Self> {
        let path = self.path.with_file_name(name);
        file_owner::rename(&self.path, &path)
            .inspect_err(|_| drop(std::fs::remove_file(&self.path)))?;
        Ok(Self { path, ..self })
    }

    pub(crate) fn is_covered(self: &Arc<Self>) -> bool {
        Arc::strong_count(self) == 1 && !self.kept.load(Ordering::Acquire)
    }
}

pub(crate) fn file_name(file: u64) -> String {
    format!("{file:06}.log")
}

pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
    )
}
