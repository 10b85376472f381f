//! Writes the edge's append-only journal of requests that may not be in the ledger yet.
//!
//! A record is one `write(2)` of one line, `<crc32> <number> <record>`. The record survives a crash
//! of the process at once, and an operator can read it with a pager. The gateway writes a request's
//! `open` before it calls the vendor, and its `end` before the client gets the last byte. So a
//! client with a complete response has been debited, and a client that was cut off has not. Each
//! process owns a directory under `journal/`, named after its instance id and locked while the
//! process lives; the next process replays the journal of a dead one.
//!
//! The lines of each file are numbered, and each file begins with a line that records the number of
//! lines in the file before it. So `journal/read.rs` detects a missing line or file, except for the
//! last lines of the last file.
//!
//! On a full disk, running requests can still end: a preallocated reserve file accepts `end`
//! records and nothing else. No request begins until the reserve is restored. This module must not
//! know prices or balances. Read next: `journal/record.rs` (the records), `journal/line.rs` (a
//! line), `journal/record_text.rs` (the text of a record), `journal/segment.rs` (a file),
//! `journal/instance_dir.rs` (the directory and its lock), `journal/writer.rs` (the thread that
//! writes).

pub mod holds_mirror;
mod instance_dir;
mod line;
mod orphaned;
mod read;
mod record;
mod record_text;
mod repair;
pub mod replay;
mod segment;
#[cfg(test)]
mod tests;
pub mod writer;

use crate::StoreError;
use crate::sqlite;
use base::failpoint::{self, Point};
use base::file_owner;
use base::regular_file::read_regular;
use base::telemetry::METRICS;
pub use instance_dir::{InstanceDir, instance_ids, live_instance_ids};
use instance_dir::{
    LOCK_FILE, NUMBERED_MARK, RESERVE_FILE, clear_numbered_mark, instance_dirs, open_lock,
};
pub use line::EncodedRecord;
use line::{encode_unnumbered, set_number};
pub use orphaned::{OrphanedJournal, claim_journal, claim_orphaned};
use read::journal_files;
pub use read::{JournalledRequest, find_damaged, read_requests};
pub use record::JournalRecord;
pub use segment::Segment;
use segment::{file_name, is_full};
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Number of bytes that must be free before new requests are admitted after the disk was full.
const MIN_FREE_BYTES: u64 = 65_536;

/// Duration of a write, in ms, above which the disk counts as blocked.
const MAX_WRITE_MS: u64 = 1_000;

pub struct Journal {
    directory: InstanceDir,
    segment_bytes: u64,
    reserve_bytes: u64,
    /// True if `end` records are synced to disk before those who wait for them learn that they are
    /// written.
    is_synced: bool,
    files: Mutex<Files>,
    /// True if a write failed or the reserve is not complete.
    short: AtomicBool,
    began: Instant,
    /// Start of the current write or sync, in ms since `began`; 0 if none runs.
    writing_since_ms: AtomicU64,
}

/// A write or a sync that runs.
struct Writing<'a>(&'a AtomicU64);

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
    }
}

/// A running process's files. Only one record is written at a time, so a torn record can be undone.
struct Files {
    active: Arc<Segment>,
    number: u64,
    /// Full files with records that the ledger may lack.
    sealed: Vec<Arc<Segment>>,
    /// File that accepts `end` records when the active file is full and the disk too.
    reserve: Arc<Segment>,
}

impl Journal {
    /// Creates a journal in `data_dir` for this process. If the disk has no room for the reserve,
    /// no request is admitted until it has.
    ///
    /// # Errors
    /// Returns an error if the directory or a file cannot be created.
    pub fn create(
        data_dir: &Path,
        segment_bytes: u64,
        reserve_bytes: u64,
    ) -> Result<Self, StoreError> {
        let failed = |source| StoreError::io("create the journal", source);
        let directory = InstanceDir::create(data_dir)?;
        let active = directory.create_first_segment().map_err(failed)?;
        let reserve = Segment::create(directory.dir.join(RESERVE_FILE)).map_err(failed)?;
        let set_aside = reserve.preallocate(reserve_bytes).inspect_err(|error| {
            METRICS.ledger_error("journal_reserve");
            log::error!("cannot allocate the journal's reserve of {reserve_bytes} bytes: {error}; the gateway admits no requests");
        });
        let files = Files {
            active: Arc::new(active),
            number: 1,
            sealed: Vec::new(),
            reserve: Arc::new(reserve),
        };
        Ok(Self {
            directory,
            segment_bytes,
            reserve_bytes,
            is_synced: false,
            files: Mutex::new(files),
            short: AtomicBool::new(set_aside.is_err()),
            began: Instant::now(),
            writing_since_ms: AtomicU64::new(0),
        })
    }

    /// Sets whether `end` records are synced to disk before they count as written.
    #[must_use]
    pub fn with_sync(self, is_synced: bool) -> Self {
        Self { is_synced, ..self }
    }

    pub fn instance_id(&self) -> &str {
        &self.directory.instance_id
    }

    /// Appends `record`, which survives a crash of the process once this function returns. The file
    /// is kept while the returned handle is held; drop the handle once the ledger has the record.
    /// A thread that serves requests must use a [`JournalWriter`] instead.
    ///
    /// # Errors
    /// Returns an error if the record is not completely in the file.
    pub fn write(&self, record: &JournalRecord) -> io::Result<Arc<Segment>> {
        let mut record = EncodedRecord::new(record)?;
        let segment = self.append_encoded(&mut record)?;
        if record.is_end() {
            self.sync_if_configured(&segment);
        }
        Ok(segment)
    }

    /// Syncs a file with an `end` record, unless the settings say that no record is synced.
    fn sync_if_configured(&self, segment: &Segment) {
        if self.is_synced {
            self.sync(segment);
        }
    }

    /// Syncs the file. If the sync fails, no more requests are admitted. The record counts all the
    /// same, because it survives a crash of the process.
    fn sync(&self, segment: &Segment) {
        failpoint::hit(Point::BeforeJournalSync);
        let synced = {
            let _writing = self.begin_writing();
            segment.sync()
        };
        if let Err(error) = synced {
            METRICS.ledger_error("journal_sync");
            if !self.short.swap(true, Ordering::AcqRel) {
                log::error!(
                    "cannot sync the journal: {error}; the gateway admits no requests until it can"
                );
            }
        }
    }

    fn append_encoded(&self, record: &mut EncodedRecord) -> io::Result<Arc<Segment>> {
        let mut files = self.lock_files();
        let _writing = self.begin_writing();
        let is_end = record.is_end();
        self.append_line(&mut files, is_end, record.line())
    }

    /// Appends records in this order, in one call as far as the disk takes them. Returns for each
    /// the file that has it.
    fn append_all(&self, records: &mut [EncodedRecord]) -> Vec<io::Result<Arc<Segment>>> {
        let mut files = self.lock_files();
        let _writing = self.begin_writing();
        files.roll(&self.directory.dir, self.segment_bytes);
        let together = records.len() > 1 && !failpoint::is_armed(Point::TornJournalEnd);
        let appended = match together {
            true => files
                .active
                .append_all(records.iter_mut().map(EncodedRecord::line)),
            false => 0,
        };
        let (_, left) = records.split_at_mut(appended);
        let mut written: Vec<_> = (0..appended)
            .map(|_| Ok(Arc::clone(&files.active)))
            .collect();
        written.extend(left.iter_mut().map(|record| {
            let is_end = record.is_end();
            self.append_line(&mut files, is_end, record.line())
        }));
        written
    }

    /// Marks the disk as used until the result is dropped.
    fn begin_writing(&self) -> Writing<'_> {
        self.writing_since_ms
            .store(self.now_ms(), Ordering::Release);
        Writing(&self.writing_since_ms)
    }

    fn append_line(
        &self,
        files: &mut Files,
        is_end: bool,
        line: &mut [u8],
    ) -> io::Result<Arc<Segment>> {
        files.roll(&self.directory.dir, self.segment_bytes);
        if is_end && failpoint::is_due(Point::TornJournalEnd) {
            set_number(line, files.active.next.load(Ordering::Relaxed));
            let _ = (&files.active.file).write(line.get(..line.len() / 2).unwrap_or_default());
            failpoint::kill_self();
        }
        let Err(error) = files.active.append(line) else {
            return Ok(Arc::clone(&files.active));
        };
        if !self.short.swap(true, Ordering::AcqRel) {
            log::error!(
                "cannot write the journal: {error}; running requests use its reserve, and the gateway admits no new ones"
            );
        }
        if !is_end {
            return Err(error);
        }
        files.reserve.append(line)?;
        Ok(Arc::clone(&files.reserve))
    }

    fn lock_files(&self) -> MutexGuard<'_, Files> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of milliseconds since the journal was created, at least 1.
    fn now_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX) + 1
    }

    /// Returns whether a write failed, a write is blocked, or the reserve is incomplete. No request
    /// may begin in that state.
    pub fn is_degraded(&self) -> bool {
        let since_ms = self.writing_since_ms.load(Ordering::Acquire);
        let is_stuck = since_ms != 0 && self.now_ms().saturating_sub(since_ms) > MAX_WRITE_MS;
        is_stuck || self.short.load(Ordering::Acquire)
    }

    /// Restores the reserve after a failed write, once the ledger has its records and the disk has
    /// room. A used reserve is given back only once the disk has room for another one, because
    /// another process could take its room in between.
    pub fn restore_reserve(&self) {
        if !self.short.load(Ordering::Acquire) {
            return;
        }
        let mut files = self.lock_files();
        if !files.reserve.is_covered() {
            return;
        }
        let has_room = files.active.preallocate(MIN_FREE_BYTES);
        let renewed = has_room.and_then(|()| files.reserve.renewed(self.reserve_bytes));
        let named = |reserve: Segment| reserve.rename(RESERVE_FILE);
        match renewed.and_then(|reserve| reserve.map(named).transpose()) {
            Ok(renewed) => {
                if let Some(reserve) = renewed {
                    files.reserve = Arc::new(reserve);
                }
                self.short.store(false, Ordering::Release);
                log::info!("the journal has room again, and its reserve is complete");
            }
            Err(error) => log::debug!("cannot restore the journal's reserve: {error}"),
        }
    }

    /// Removes full files whose records are all in the ledger.
    pub fn remove_covered(&self) {
        // Remove the files without the lock, because requests wait for it.
        let covered: Vec<_> = self
            .lock_files()
            .sealed
            .extract_if(.., |segment| segment.is_covered())
            .collect();
        for segment in covered {
            failpoint::hit(Point::BeforeReap);
            if std::fs::remove_file(&segment.path).is_err() {
                self.lock_files().sealed.push(segment);
            }
        }
    }

    /// Removes the journal at shutdown, if the ledger has all its records.
    pub fn close(&self) {
        let files = self.lock_files();
        if files
            .sealed
            .iter()
            .chain([&files.active, &files.reserve])
            .all(Segment::is_covered)
        {
            failpoint::hit(Point::BeforeReap);
            let _ = clear_numbered_mark(&self.directory.dir)
                .and_then(|()| std::fs::remove_dir_all(&self.directory.dir));
        }
    }
}

impl InstanceDir {
    /// Creates the first file. On a full disk the file is empty, and the lock file then does not
    /// state that every file has a line.
    fn create_first_segment(&self) -> io::Result<Segment> {
        match Segment::create_numbered(&self.dir, 1, 0) {
            Err(error) if is_full(&error) => {
                let active = Segment::create(self.dir.join(file_name(1)))?;
                active.next.store(0, Ordering::Relaxed);
                Ok(active)
            }
            Err(error) => Err(error),
            Ok(active) => {
                let mut lock = OpenOptions::new()
                    .write(true)
                    .open(self.dir.join(LOCK_FILE))?;
                match lock.write_all(NUMBERED_MARK) {
                    Err(error) if !is_full(&error) => Err(error),
                    _ => Ok(active),
                }
            }
        }
    }
}

impl Files {
    /// Starts the next file when the active one is full. If that fails, a later call retries,
    /// because a file that is too long is harmless.
    fn roll(&mut self, dir: &Path, segment_bytes: u64) {
        if self.active.bytes.load(Ordering::Relaxed) < segment_bytes {
            return;
        }
        let number = self.number.saturating_add(1);
        match Segment::create_numbered(dir, number, self.active.next.load(Ordering::Relaxed)) {
            Ok(next) => {
                self.number = number;
                // If this call fails, a missing file may go undetected.
                let _ = encode_unnumbered(&JournalRecord::Sealed)
                    .and_then(|mut line| self.active.append(&mut line));
                self.sealed
                    .push(std::mem::replace(&mut self.active, Arc::new(next)));
            }
            Err(error) => log::debug!("cannot create file {number} of the journal: {error}"),
        }
    }
}

/// Copies all journals in `from` to `to`, including those of living processes. Returns the number
/// of files.
///
/// # Errors
/// Returns an error if a file cannot be read or written.
pub fn copy_journals(from: &Path, to: &Path) -> Result<usize, StoreError> {
    let failed = |source| StoreError::io("copy the journal", source);
    let mut copied = 0;
    for (instance_id, dir) in instance_dirs(from)? {
        let target = to.join("journal").join(instance_id);
        sqlite::create_dir(&target)?;
        open_lock(&target).map_err(failed)?;
        // Copy in the order of writing, so that a record's file is never older than those of
        // earlier records.
        for file in journal_files(&dir).map_err(failed)? {
            let bytes = match read_regular(&file) {
                Ok(bytes) => bytes,
                // The file was removed after the directory was listed. The ledger, which is copied
                // later, has all its records.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(failed(error)),
            };
            let target = target.join(file.file_name().unwrap_or_default());
            let mut options = OpenOptions::new();
            let options = options.create_new(true).write(true).mode(0o600);
            let mut copy = file_owner::open(options, &target).map_err(failed)?;
            copy.write_all(&bytes)
                .and_then(|()| copy.sync_all())
                .map_err(failed)?;
            copied += 1;
        }
        sqlite::sync_dir(&target).map_err(failed)?;
    }
    Ok(copied)
}
