//! The edge's append-only journal of requests that the ledger is not yet known to have.
//!
//! A record is one `write(2)` of one line, `<crc32> <number> <json>`. It survives the death of the
//! process at once, and an operator can read it with a pager. The gateway writes a request's `open`
//! before it calls the vendor, and its `end` before the client gets the last byte. So a client with
//! a complete response has been debited, and a client that was cut off has not. Each process owns a
//! directory under `journal/`, named after its instance id and locked while the process lives; the
//! next process replays the journal of a dead one.
//!
//! The lines of each file are numbered, and each file begins with a line that records the number of
//! lines in the file before it. So `journal/read.rs` detects a missing line or file, except for the
//! last lines of the last file.
//!
//! On a full disk, running requests can still end: a preallocated reserve file accepts `end`
//! records and nothing else. No request begins until the reserve is restored. Must not know prices
//! or balances.

mod line;
mod read;
mod repair;
#[cfg(test)]
mod tests;

use crate::failpoint::{self, Point};
use crate::store::StoreError;
use crate::store::ledger::Ending;
use crate::store::sqlite;
use crate::telemetry::METRICS;
use line::{encode, encode_unnumbered, set_number};
pub use read::{JournalledRequest, find_damaged, read_requests};
use read::{journal_files, read_endings};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

const LOCK_FILE: &str = "lock";
const RESERVE_FILE: &str = "reserve";
/// Name of the lock file in a directory that was set aside.
const RETIRED_LOCK_FILE: &str = "lock.replayed";
/// Content of the lock file if every file in the directory has at least one line.
const NUMBERED_MARK: &[u8] = b"numbered\n";
/// Bytes that must be free for new requests after the disk was full.
const MIN_FREE_BYTES: u64 = 65_536;

/// One line of the journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JournalRecord {
    /// A hold was reserved. If no other record follows, the request ended like this.
    Open(Ending),
    /// The request ended.
    End(Ending),
    /// Nothing was reserved for the request with this id, so there is nothing to end.
    Forgotten(String),
    /// The first line of a file: the file's number, and the number of lines that the previous file
    /// had then.
    Begun { file: u64, lines_before: u64 },
    /// The last line of a file: another file follows.
    Sealed,
}

/// A running process's journal.
pub struct Journal {
    place: InstanceDir,
    segment_bytes: u64,
    reserve_bytes: u64,
    /// Whether an `end` record is synced to disk before [`Journal::write`] returns.
    is_synced: bool,
    files: Mutex<Files>,
    /// Whether a write failed or the reserve is not complete.
    short: AtomicBool,
}

/// A process's own journal directory, whose lock shows that the process lives.
pub struct InstanceDir {
    dir: PathBuf,
    pub boot: String,
    /// Held while the process lives: shows other processes that this directory is in use.
    _lock: File,
}

impl InstanceDir {
    /// Creates and locks a directory for this process.
    ///
    /// # Errors
    /// Returns an error if the directory cannot be created or locked.
    pub fn create(data_dir: &Path) -> Result<Self, StoreError> {
        let failed = |source| StoreError::io("create a journal folder", source);
        let boot = uuid::Uuid::now_v7().simple().to_string();
        let journals = data_dir.join("journal");
        // Rename it after locking, so that nobody takes it for a dead process's directory.
        let unnamed = journals.join(format!(".{boot}"));
        sqlite::create_dir(&unnamed)?;
        let lock = open_lock(&unnamed).map_err(failed)?;
        lock.lock().map_err(failed)?;
        let dir = journals.join(&boot);
        std::fs::rename(&unnamed, &dir).map_err(failed)?;
        Ok(Self {
            dir,
            boot,
            _lock: lock,
        })
    }

    /// Creates the first file. On a full disk it is empty, and the lock file does not state that
    /// every file has a line.
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

    /// Removes the directory.
    pub fn remove(self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// A running process's files. One record is written at a time, so a torn record can be undone.
struct Files {
    active: Arc<Segment>,
    number: u64,
    /// Full files that the ledger does not cover yet.
    sealed: Vec<Arc<Segment>>,
    /// File that accepts `end` records when the active file accepts nothing more.
    reserve: Arc<Segment>,
}

/// One file of the journal.
pub struct Segment {
    path: PathBuf,
    file: File,
    /// Length in bytes.
    bytes: AtomicU64,
    /// Number of the next line.
    next: AtomicU64,
    /// Whether it holds a record that only a replay will bring to the ledger.
    kept: AtomicBool,
    /// Whether its directory entry is synced to disk.
    named: AtomicBool,
}

impl Segment {
    /// Keeps the file for a replay at the next start.
    pub fn keep_for_replay(&self) {
        self.kept.store(true, Ordering::Release);
    }
}

/// The journal of a dead process.
pub struct OrphanedJournal {
    pub dir: PathBuf,
    pub boot: String,
    lock: File,
}

impl Journal {
    /// Creates a journal in `data_dir` for this process. If the disk has no room for the reserve,
    /// nothing is admitted yet.
    ///
    /// # Errors
    /// Returns an error if the directory or a file cannot be created.
    pub fn create(
        data_dir: &Path,
        segment_bytes: u64,
        reserve_bytes: u64,
    ) -> Result<Self, StoreError> {
        let failed = |source| StoreError::io("create the journal", source);
        let place = InstanceDir::create(data_dir)?;
        let active = place.create_first_segment().map_err(failed)?;
        let reserve = Segment::create(place.dir.join(RESERVE_FILE)).map_err(failed)?;
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
            place,
            segment_bytes,
            reserve_bytes,
            is_synced: false,
            files: Mutex::new(files),
            short: AtomicBool::new(set_aside.is_err()),
        })
    }

    /// If `is_synced`, syncs each `end` record to disk before [`Journal::write`] returns.
    #[must_use]
    pub fn with_sync(self, is_synced: bool) -> Self {
        Self { is_synced, ..self }
    }

    pub fn instance_id(&self) -> &str {
        &self.place.boot
    }

    /// Appends `record`, which survives the process once this returns. The file stays while the
    /// returned handle is held: drop the handle once the ledger covers the record.
    ///
    /// # Errors
    /// Returns an error if the record is not completely in the file.
    pub fn write(&self, record: &JournalRecord) -> io::Result<Arc<Segment>> {
        let segment = self.append(record)?;
        // Sync without the lock, so that requests that end at the same time share a sync.
        if self.is_synced && matches!(record, JournalRecord::End(_)) {
            self.sync(&segment);
        }
        Ok(segment)
    }

    /// Syncs the file. If that fails, nothing more is admitted. The record still survives the
    /// process, so it counts.
    fn sync(&self, segment: &Segment) {
        failpoint::hit(Point::BeforeJournalSync);
        if let Err(error) = segment.sync() {
            METRICS.ledger_error("journal_sync");
            if !self.short.swap(true, Ordering::AcqRel) {
                log::error!(
                    "cannot sync the journal: {error}; the gateway admits no requests until it can"
                );
            }
        }
    }

    fn append(&self, record: &JournalRecord) -> io::Result<Arc<Segment>> {
        let mut line = encode_unnumbered(record)?;
        let mut files = self.lock_files();
        files.roll(&self.place.dir, self.segment_bytes);
        if matches!(record, JournalRecord::End(_)) && failpoint::is_due(Point::TornJournalEnd) {
            set_number(&mut line, files.active.next.load(Ordering::Relaxed));
            let _ = (&files.active.file).write(line.get(..line.len() / 2).unwrap_or_default());
            failpoint::kill_self();
        }
        let Err(error) = files.active.append(&mut line) else {
            return Ok(Arc::clone(&files.active));
        };
        if !self.short.swap(true, Ordering::AcqRel) {
            log::error!(
                "cannot write the journal: {error}; running requests use its reserve, and the gateway admits no new ones"
            );
        }
        match record {
            JournalRecord::End(_) => files
                .reserve
                .append(&mut line)
                .map(|()| Arc::clone(&files.reserve)),
            _ => Err(error),
        }
    }

    fn lock_files(&self) -> MutexGuard<'_, Files> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a write failed or the reserve is not complete; no request may begin then.
    pub fn is_degraded(&self) -> bool {
        self.short.load(Ordering::Acquire)
    }

    /// Restores the reserve after a failed write, once the ledger covers its records and the disk
    /// has room.
    pub fn restore_reserve(&self) {
        if !self.is_degraded() {
            return;
        }
        let files = self.lock_files();
        if !files.reserve.is_covered() {
            return;
        }
        let recovered = files
            .reserve
            .truncate()
            .and_then(|()| files.reserve.preallocate(self.reserve_bytes));
        match recovered.and_then(|()| files.active.preallocate(MIN_FREE_BYTES)) {
            Ok(()) => {
                self.short.store(false, Ordering::Release);
                log::info!("the journal has room again, and its reserve is complete");
            }
            Err(error) => log::debug!("cannot restore the journal's reserve: {error}"),
        }
    }

    /// Removes full files that the ledger covers completely.
    pub fn remove_covered(&self) {
        // Remove the files without the lock, for which requests wait.
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

    /// Removes the journal of a process that ends with everything covered.
    pub fn close(&self) {
        let files = self.lock_files();
        if files
            .sealed
            .iter()
            .chain([&files.active, &files.reserve])
            .all(Segment::is_covered)
        {
            failpoint::hit(Point::BeforeReap);
            let _ = clear_numbered_mark(&self.place.dir)
                .and_then(|()| std::fs::remove_dir_all(&self.place.dir));
        }
    }
}

impl Files {
    /// Starts the next file when the active one is full. If that fails, a later call retries; a
    /// file that is too long does no harm.
    fn roll(&mut self, dir: &Path, segment_bytes: u64) {
        if self.active.bytes.load(Ordering::Relaxed) < segment_bytes {
            return;
        }
        let number = self.number.saturating_add(1);
        match Segment::create_numbered(dir, number, self.active.next.load(Ordering::Relaxed)) {
            Ok(next) => {
                self.number = number;
                // If this fails, only the detection of missing files suffers.
                let _ = encode_unnumbered(&JournalRecord::Sealed)
                    .and_then(|mut line| self.active.append(&mut line));
                self.sealed
                    .push(std::mem::replace(&mut self.active, Arc::new(next)));
            }
            Err(error) => log::debug!("cannot create file {number} of the journal: {error}"),
        }
    }
}

/// Clears the mark that every file has a line. Called before a directory is removed: an interrupted
/// removal must not look like missing files.
fn clear_numbered_mark(dir: &Path) -> io::Result<()> {
    match OpenOptions::new().write(true).open(dir.join(LOCK_FILE)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        lock => lock?.set_len(0),
    }
}

fn open_lock(dir: &Path) -> io::Result<File> {
    OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(dir.join(LOCK_FILE))
}

impl Segment {
    /// Creates file number `file` of a journal. Its first line is written before it gets its name,
    /// so it is never found empty.
    fn create_numbered(dir: &Path, file: u64, lines_before: u64) -> io::Result<Self> {
        let unnamed = dir.join(format!("{file:06}.new"));
        let segment = Self::create(unnamed.clone()).and_then(|segment| {
            segment.append_numbered(
                encode(&JournalRecord::Begun { file, lines_before }, 0)?.as_slice(),
                1,
            )?;
            let path = dir.join(file_name(file));
            std::fs::rename(&segment.path, &path)?;
            Ok(Self { path, ..segment })
        });
        segment.inspect_err(|_| drop(std::fs::remove_file(unnamed)))
    }

    fn create(path: PathBuf) -> io::Result<Self> {
        let file = OpenOptions::new()
            .create_new(true)
            .append(true)
            .mode(0o600)
            .open(&path)?;
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

    /// Appends the complete `line` under the next number, or nothing. One caller at a time.
    fn append(&self, line: &mut [u8]) -> io::Result<()> {
        let next = self.next.load(Ordering::Relaxed);
        set_number(line, next);
        self.append_numbered(line, next.saturating_add(1))
    }

    fn append_numbered(&self, line: &[u8], next: u64) -> io::Result<()> {
        let before = self.bytes.load(Ordering::Relaxed);
        // A single call: if the process dies, the record is either written or not.
        let (count, outcome) = match (&self.file).write(line) {
            Ok(count) if count == line.len() => (count, Ok(())),
            // A full disk accepts as much as fits into the last page.
            Ok(count) => (count, Err(io::ErrorKind::StorageFull.into())),
            Err(error) => (0, Err(error)),
        };
        // If the partial line cannot be undone, the next record's leading line end terminates it.
        let is_torn = outcome.is_err() && count > 0 && self.file.set_len(before).is_err();
        if outcome.is_ok() || is_torn {
            self.bytes
                .store(before.saturating_add(count as u64), Ordering::Relaxed);
        }
        if outcome.is_ok() {
            self.next.store(next, Ordering::Relaxed);
        }
        outcome
    }

    /// Syncs the appended records, and the names of the file and its directories.
    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()?;
        if !self.named.load(Ordering::Acquire) {
            for folder in self.path.ancestors().skip(1).take(2) {
                sqlite::sync_dir(folder)?;
            }
            self.named.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Preallocates `bytes` after the end of the file, so that they can be appended even on a full
    /// disk.
    fn preallocate(&self, bytes: u64) -> io::Result<()> {
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

    /// Empties the file.
    fn truncate(&self) -> io::Result<()> {
        self.file.set_len(0)?;
        self.bytes.store(0, Ordering::Relaxed);
        self.next.store(1, Ordering::Relaxed);
        Ok(())
    }

    /// Whether the ledger has every record in this file.
    fn is_covered(self: &Arc<Self>) -> bool {
        Arc::strong_count(self) == 1 && !self.kept.load(Ordering::Acquire)
    }
}

fn file_name(file: u64) -> String {
    format!("{file:06}.log")
}

fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
    )
}

/// Lists the instances that have a journal: they live, or their journals are not replayed.
///
/// # Errors
/// Returns an error if the directory cannot be read.
pub fn instance_ids(data_dir: &Path) -> Result<Vec<String>, StoreError> {
    Ok(instance_dirs(data_dir)?
        .into_iter()
        .map(|(boot, _)| boot)
        .collect())
}

/// Lists the instances whose processes live, judged by their locks.
///
/// # Errors
/// Returns an error if a directory or lock cannot be read; the caller must not presume any process
/// dead then.
pub fn live_instance_ids(data_dir: &Path) -> Result<Vec<String>, StoreError> {
    let mut live = Vec::new();
    for (boot, dir) in instance_dirs(data_dir)? {
        if matches!(try_claim(&dir)?, LockState::Living) {
            live.push(boot);
        }
    }
    Ok(live)
}

/// Claims the journals of dead processes, oldest first. They stay claimed until dropped.
///
/// # Errors
/// Returns an error if a directory cannot be read or locked.
pub fn claim_orphaned(data_dir: &Path) -> Result<Vec<OrphanedJournal>, StoreError> {
    let mut left = Vec::new();
    for (boot, dir) in instance_dirs(data_dir)? {
        // A command that checks for living processes holds each lock briefly, so one failed attempt
        // does not prove that the process lives.
        for _ in 0..3 {
            match try_claim(&dir)? {
                LockState::Living => std::thread::sleep(Duration::from_millis(3)),
                LockState::Gone => break,
                LockState::Left(lock) => {
                    left.push(OrphanedJournal { dir, boot, lock });
                    break;
                }
            }
        }
    }
    Ok(left)
}

fn instance_dirs(data_dir: &Path) -> Result<Vec<(String, PathBuf)>, StoreError> {
    let failed = |source| StoreError::io("list the journals", source);
    let entries = match std::fs::read_dir(data_dir.join("journal")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed)?,
    };
    let mut folders = Vec::new();
    for entry in entries {
        let entry = entry.map_err(failed)?;
        let is_named = !entry.file_name().as_encoded_bytes().starts_with(b".");
        if is_named && entry.path().join(LOCK_FILE).exists() {
            folders.extend(
                entry
                    .file_name()
                    .into_string()
                    .ok()
                    .map(|boot| (boot, entry.path())),
            );
        }
    }
    folders.sort();
    Ok(folders)
}

/// State of a directory's lock.
enum LockState {
    /// A process holds the lock, or another process is checking it right now.
    Living,
    /// The owner is dead; this handle holds the lock exclusively.
    Left(File),
    /// The directory was just removed.
    Gone,
}

fn try_claim(dir: &Path) -> Result<LockState, StoreError> {
    let failed = |source| StoreError::io("check a journal's lock", source);
    // Never create the file here: a directory that is being removed must stay empty.
    let file = match OpenOptions::new().write(true).open(dir.join(LOCK_FILE)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(LockState::Gone),
        file => file.map_err(failed)?,
    };
    match file.try_lock() {
        Ok(()) => Ok(LockState::Left(file)),
        Err(TryLockError::WouldBlock) => Ok(LockState::Living),
        Err(TryLockError::Error(error)) => Err(failed(error)),
    }
}

impl OrphanedJournal {
    /// Returns the ending of every request in the journal, and the number of damaged or missing
    /// lines and files. A torn last line does not count: the client of that request never got the
    /// end of its response.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read.
    pub fn endings(&self) -> Result<(Vec<Ending>, usize), StoreError> {
        read_endings(&self.dir)
    }

    /// Removes an unused reserve, because the replay may have to write to a full disk.
    pub fn remove_reserve(&self) {
        let reserve = self.dir.join(RESERVE_FILE);
        if std::fs::metadata(&reserve).is_ok_and(|reserve| reserve.len() == 0)
            && let Err(error) = std::fs::remove_file(&reserve)
        {
            log::debug!(
                "cannot remove the reserve of the journal of instance {}: {error}",
                self.boot
            );
        }
    }

    /// Removes the journal once the ledger covers it completely. If something was damaged, sets it
    /// aside instead.
    ///
    /// # Errors
    /// Returns an error if the directory cannot be removed or renamed.
    pub fn remove(self, damaged: usize) -> Result<(), StoreError> {
        let failed = |source| StoreError::io("remove a replayed journal", source);
        if damaged > 0 {
            let aside = self.dir.with_extension("damaged");
            std::fs::rename(self.dir.join(LOCK_FILE), self.dir.join(RETIRED_LOCK_FILE))
                .map_err(failed)?;
            return std::fs::rename(&self.dir, aside).map_err(failed);
        }
        clear_numbered_mark(&self.dir)
            .and_then(|()| std::fs::remove_dir_all(&self.dir))
            .map_err(failed)?;
        drop(self.lock);
        Ok(())
    }
}

/// Claims the journal directory of one dead process.
///
/// # Errors
/// Returns an error if a running process owns the directory or it cannot be locked.
pub fn claim_journal(dir: &Path) -> Result<OrphanedJournal, StoreError> {
    let unusable = |what: &str| Err(StoreError::Unusable(format!("{} is {what}", dir.display())));
    let lock = match try_claim(dir)? {
        LockState::Left(lock) => lock,
        LockState::Living => return unusable("in use by a running gateway"),
        LockState::Gone => return unusable("not a journal folder"),
    };
    let boot = dir
        .file_name()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default();
    Ok(OrphanedJournal {
        dir: dir.to_owned(),
        boot,
        lock,
    })
}

/// Copies all journals in `from` to `to`, including those of living processes. Returns the number
/// of files.
///
/// # Errors
/// Returns an error if a file cannot be read or written.
pub fn copy_journals(from: &Path, to: &Path) -> Result<usize, StoreError> {
    let failed = |source| StoreError::io("copy the journal", source);
    let mut copied = 0;
    for (boot, dir) in instance_dirs(from)? {
        let target = to.join("journal").join(boot);
        sqlite::create_dir(&target)?;
        open_lock(&target).map_err(failed)?;
        // Copy in write order: a record's file is then never older than those of earlier records.
        for file in journal_files(&dir).map_err(failed)? {
            let bytes = match std::fs::read(&file) {
                Ok(bytes) => bytes,
                // The file was removed after the directory was listed: the ledger, which is copied
                // later, has all its records.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(failed(error)),
            };
            let target = target.join(file.file_name().unwrap_or_default());
            let mut copy = OpenOptions::new()
                .create_new(true)
                .write(true)
                .mode(0o600)
                .open(&target)
                .map_err(failed)?;
            copy.write_all(&bytes)
                .and_then(|()| copy.sync_all())
                .map_err(failed)?;
            copied += 1;
        }
        sqlite::sync_dir(&target).map_err(failed)?;
    }
    Ok(copied)
}
