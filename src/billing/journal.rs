//! The edge's append-only file of requests that are not yet known to be in the ledger.
//!
//! A record is one `write(2)` of one line, `<crc32> <number> <json>`: it survives the death of the
//! process at once, and can be read at night with a pager. A request's `open` is written before the
//! vendor is called, its `end` before the client gets the last byte; so whoever has a whole answer
//! has been debited, and whoever was cut off has not. A process owns a folder under `journal/`,
//! named after its boot and locked while it lives; the next process replays what a dead one left.
//!
//! Lines are numbered in each file, and a file begins with a line that says how many the one before
//! it had: so a line or a file that is gone is missed (`journal/read.rs`), but for the last lines
//! of the last file.
//!
//! On a full disk whatever runs may still end: a reserve, set aside while there was room, takes
//! ends and nothing else. Nothing begins until it is whole again. Must not know prices or balances.

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
use line::{encode, number, unnumbered};
pub use read::{Kept, damaged, kept};
use read::{log_files, read_endings};
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

const LOCK: &str = "lock";
const RESERVE: &str = "reserve";
/// Where the lock of a folder that was set aside is kept.
const OLD_LOCK: &str = "lock.replayed";
/// What the lock of a folder says whose files are never without a line.
const NUMBERED: &[u8] = b"numbered\n";
/// Room for what begins after a disk was full, in bytes: without so much it is full still.
const ROOM: u64 = 65_536;

/// One line of the journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Record {
    /// A hold was taken: should nothing follow, the request ended like this.
    Open(Ending),
    /// The request ended.
    End(Ending),
    /// Nothing was set aside for it: there is nothing to end. By its id.
    Forgotten(String),
    /// The first line of a file: its number, and how many lines the file before it had then.
    Begun { file: u64, lines_before: u64 },
    /// The last line of a file: there is a next one.
    Sealed,
}

/// A running process's journal.
pub struct Journal {
    place: Place,
    segment_bytes: u64,
    reserve_bytes: u64,
    /// An end is on disk before it counts as written.
    is_synced: bool,
    files: Mutex<Files>,
    /// A write failed, or the reserve is not whole.
    short: AtomicBool,
}

/// A process's own folder, and the sign that it lives.
pub struct Place {
    dir: PathBuf,
    pub boot: String,
    /// Held for as long as the process lives: tells others that this folder is in use.
    _lock: File,
}

impl Place {
    /// Takes a place among the living.
    ///
    /// # Errors
    /// The folder cannot be made or locked.
    pub fn begin(data_dir: &Path) -> Result<Self, StoreError> {
        let failed = |source| StoreError::io("take a place among the journals", source);
        let boot = uuid::Uuid::now_v7().simple().to_string();
        let journals = data_dir.join("journal");
        // It gets its name once it is locked: nobody ever finds it and takes it for a dead one's.
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

    /// Makes the first file. On a full disk it is empty, and the folder does not say that its files
    /// never are.
    fn begin_files(&self) -> io::Result<Segment> {
        match Segment::numbered(&self.dir, 1, 0) {
            Err(error) if is_full(&error) => {
                let active = Segment::create(self.dir.join(file_name(1)))?;
                active.next.store(0, Ordering::Relaxed);
                Ok(active)
            }
            Err(error) => Err(error),
            Ok(active) => {
                let mut lock = OpenOptions::new().write(true).open(self.dir.join(LOCK))?;
                match lock.write_all(NUMBERED) {
                    Err(error) if !is_full(&error) => Err(error),
                    _ => Ok(active),
                }
            }
        }
    }

    /// Leaves, with nothing left behind.
    pub fn leave(self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// A running process's files. One record is written at a time: so a torn one can be taken back.
struct Files {
    active: Arc<Segment>,
    number: u64,
    /// Full ones, until the ledger covers them.
    sealed: Vec<Arc<Segment>>,
    /// Takes ends where the active one takes nothing more.
    reserve: Arc<Segment>,
}

/// One file of the journal.
pub struct Segment {
    path: PathBuf,
    file: File,
    /// Its length.
    bytes: AtomicU64,
    /// The number of its next line.
    next: AtomicU64,
    /// Holds something that only a replay will bring to the ledger.
    kept: AtomicBool,
    /// Its name is on disk.
    named: AtomicBool,
}

impl Segment {
    /// Leaves the file to the next start's replay.
    pub fn keep(&self) {
        self.kept.store(true, Ordering::Release);
    }
}

/// What a dead process left.
pub struct Left {
    pub dir: PathBuf,
    pub boot: String,
    lock: File,
}

impl Journal {
    /// Begins a journal in `data_dir` for this process. Where the reserve finds no room, nothing is
    /// admitted yet.
    ///
    /// # Errors
    /// The folder or a file cannot be made.
    pub fn begin(
        data_dir: &Path,
        segment_bytes: u64,
        reserve_bytes: u64,
    ) -> Result<Self, StoreError> {
        let failed = |source| StoreError::io("begin the journal", source);
        let place = Place::begin(data_dir)?;
        let active = place.begin_files().map_err(failed)?;
        let reserve = Segment::create(place.dir.join(RESERVE)).map_err(failed)?;
        let set_aside = reserve.set_aside(reserve_bytes).inspect_err(|error| {
            METRICS.ledger_error("journal_reserve");
            log::error!("set the journal's reserve of {reserve_bytes} bytes aside: {error}; no request is admitted");
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

    /// The same, of which each end is on disk before [`Journal::write`] returns, where `is_synced`.
    #[must_use]
    pub fn synced(self, is_synced: bool) -> Self {
        Self { is_synced, ..self }
    }

    pub fn boot(&self) -> &str {
        &self.place.boot
    }

    /// Appends `record`; once this returns, it outlives the process. The file stays for as long as
    /// the returned handle is held: let it go once the ledger covers the record.
    ///
    /// # Errors
    /// The record is not (wholly) in the file.
    pub fn write(&self, record: &Record) -> io::Result<Arc<Segment>> {
        let segment = self.append(record)?;
        // Without the lock: requests that end at one time share a sync.
        if self.is_synced && matches!(record, Record::End(_)) {
            self.sync(&segment);
        }
        Ok(segment)
    }

    /// A disk that does not sync admits nothing more. The record outlives the process all the same,
    /// so it counts.
    fn sync(&self, segment: &Segment) {
        failpoint::pass(Point::BeforeJournalSync);
        if let Err(error) = segment.sync() {
            METRICS.ledger_error("journal_sync");
            if !self.short.swap(true, Ordering::AcqRel) {
                log::error!("sync the journal: {error}; nothing is admitted until it works");
            }
        }
    }

    fn append(&self, record: &Record) -> io::Result<Arc<Segment>> {
        let mut line = unnumbered(record)?;
        let mut files = self.files();
        files.roll(&self.place.dir, self.segment_bytes);
        if matches!(record, Record::End(_)) && failpoint::is_due(Point::TornJournalEnd) {
            number(&mut line, files.active.next.load(Ordering::Relaxed));
            let _ = (&files.active.file).write(line.get(..line.len() / 2).unwrap_or_default());
            failpoint::die();
        }
        let Err(error) = files.active.append(&mut line) else {
            return Ok(Arc::clone(&files.active));
        };
        if !self.short.swap(true, Ordering::AcqRel) {
            log::error!(
                "write the journal: {error}; what runs may end in its reserve, and nothing is admitted"
            );
        }
        match record {
            Record::End(_) => files
                .reserve
                .append(&mut line)
                .map(|()| Arc::clone(&files.reserve)),
            _ => Err(error),
        }
    }

    fn files(&self) -> MutexGuard<'_, Files> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A write failed, or the reserve is not whole: nothing may begin.
    pub fn is_short(&self) -> bool {
        self.short.load(Ordering::Acquire)
    }

    /// After a write that failed: makes the reserve whole again, once the ledger covers what it
    /// took and there is room.
    pub fn recover(&self) {
        if !self.is_short() {
            return;
        }
        let files = self.files();
        if !files.reserve.is_covered() {
            return;
        }
        let recovered = files
            .reserve
            .empty()
            .and_then(|()| files.reserve.set_aside(self.reserve_bytes));
        match recovered.and_then(|()| files.active.set_aside(ROOM)) {
            Ok(()) => {
                self.short.store(false, Ordering::Release);
                log::info!("the journal has room again, and its reserve is whole");
            }
            Err(error) => log::debug!("restore the journal's reserve: {error}"),
        }
    }

    /// Removes full files that the ledger covers whole.
    pub fn reap(&self) {
        // Removed without the lock, for which requests wait.
        let covered: Vec<_> = self
            .files()
            .sealed
            .extract_if(.., |segment| segment.is_covered())
            .collect();
        for segment in covered {
            failpoint::pass(Point::BeforeReap);
            if std::fs::remove_file(&segment.path).is_err() {
                self.files().sealed.push(segment);
            }
        }
    }

    /// Removes the journal of a process that ends with everything covered.
    pub fn close(&self) {
        let files = self.files();
        if files
            .sealed
            .iter()
            .chain([&files.active, &files.reserve])
            .all(Segment::is_covered)
        {
            failpoint::pass(Point::BeforeReap);
            let _ =
                miss_none(&self.place.dir).and_then(|()| std::fs::remove_dir_all(&self.place.dir));
        }
    }
}

impl Files {
    /// Begins the next file where the active one is full. One that cannot be made is made later: a
    /// file too long does no harm.
    fn roll(&mut self, dir: &Path, segment_bytes: u64) {
        if self.active.bytes.load(Ordering::Relaxed) < segment_bytes {
            return;
        }
        let number = self.number.saturating_add(1);
        match Segment::numbered(dir, number, self.active.next.load(Ordering::Relaxed)) {
            Ok(next) => {
                self.number = number;
                // Where that fails, the file is only less well guarded.
                let _ =
                    unnumbered(&Record::Sealed).and_then(|mut line| self.active.append(&mut line));
                self.sealed
                    .push(std::mem::replace(&mut self.active, Arc::new(next)));
            }
            Err(error) => log::debug!("begin file {number} of the journal: {error}"),
        }
    }
}

/// Before a folder is removed, which may end half way: none of its files is missed from now on.
fn miss_none(dir: &Path) -> io::Result<()> {
    match OpenOptions::new().write(true).open(dir.join(LOCK)) {
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
        .open(dir.join(LOCK))
}

impl Segment {
    /// File `file` of a journal. It gets its name once it has its first line: it is never found
    /// empty.
    fn numbered(dir: &Path, file: u64, lines_before: u64) -> io::Result<Self> {
        let unnamed = dir.join(format!("{file:06}.new"));
        let segment = Self::create(unnamed.clone()).and_then(|segment| {
            segment.append_numbered(
                encode(&Record::Begun { file, lines_before }, 0)?.as_slice(),
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

    /// Appends `line`, under the next number, or nothing of it. One caller at a time.
    fn append(&self, line: &mut [u8]) -> io::Result<()> {
        let next = self.next.load(Ordering::Relaxed);
        number(line, next);
        self.append_numbered(line, next.saturating_add(1))
    }

    fn append_numbered(&self, line: &[u8], next: u64) -> io::Result<()> {
        let before = self.bytes.load(Ordering::Relaxed);
        // One call: a process that dies has written the record, or not.
        let (count, outcome) = match (&self.file).write(line) {
            Ok(count) if count == line.len() => (count, Ok(())),
            // A full disk takes what the last page has room for.
            Ok(count) => (count, Err(io::ErrorKind::StorageFull.into())),
            Err(error) => (0, Err(error)),
        };
        // What cannot be taken back is closed by the next record's line end.
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

    /// Has what was appended on disk, and the names of the file and its folders.
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

    /// Sets `bytes` aside behind the file's end: that much can be appended however full the disk
    /// becomes.
    fn set_aside(&self, bytes: u64) -> io::Result<()> {
        let end = self.bytes.load(Ordering::Relaxed);
        match rustix::fs::fallocate(&self.file, FallocateFlags::KEEP_SIZE, end, bytes) {
            Err(Errno::OPNOTSUPP) => {
                log::warn!(
                    "this file system sets no room aside: the journal has no reserve should it become full"
                );
                Ok(())
            }
            outcome => Ok(outcome?),
        }
    }

    /// Takes everything out of it.
    fn empty(&self) -> io::Result<()> {
        self.file.set_len(0)?;
        self.bytes.store(0, Ordering::Relaxed);
        self.next.store(1, Ordering::Relaxed);
        Ok(())
    }

    /// Nobody holds a record of this file that the ledger lacks.
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

/// Boots that have a journal: their processes live, or what they left is not replayed.
///
/// # Errors
/// It cannot be told.
pub fn boots(data_dir: &Path) -> Result<Vec<String>, StoreError> {
    Ok(folders(data_dir)?
        .into_iter()
        .map(|(boot, _)| boot)
        .collect())
}

/// Boots whose processes live, told by their locks.
///
/// # Errors
/// It cannot be told: nobody is to be taken for dead then.
pub fn live_boots(data_dir: &Path) -> Result<Vec<String>, StoreError> {
    let mut live = Vec::new();
    for (boot, dir) in folders(data_dir)? {
        if matches!(try_claim(&dir)?, Claimed::Living) {
            live.push(boot);
        }
    }
    Ok(live)
}

/// Claims the journals of dead processes, the oldest first. They stay claimed until dropped.
///
/// # Errors
/// A folder cannot be read or locked.
pub fn left_behind(data_dir: &Path) -> Result<Vec<Left>, StoreError> {
    let mut left = Vec::new();
    for (boot, dir) in folders(data_dir)? {
        // A command that looks for living processes holds a lock for a moment: one refusal is no
        // proof of life.
        for _ in 0..3 {
            match try_claim(&dir)? {
                Claimed::Living => std::thread::sleep(Duration::from_millis(3)),
                Claimed::Gone => break,
                Claimed::Left(lock) => {
                    left.push(Left { dir, boot, lock });
                    break;
                }
            }
        }
    }
    Ok(left)
}

fn folders(data_dir: &Path) -> Result<Vec<(String, PathBuf)>, StoreError> {
    let failed = |source| StoreError::io("look for journals", source);
    let entries = match std::fs::read_dir(data_dir.join("journal")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed)?,
    };
    let mut folders = Vec::new();
    for entry in entries {
        let entry = entry.map_err(failed)?;
        let is_named = !entry.file_name().as_encoded_bytes().starts_with(b".");
        if is_named && entry.path().join(LOCK).exists() {
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

/// What a look at a folder's lock finds.
enum Claimed {
    /// A process holds it, or another one looks at this moment.
    Living,
    /// Its process is gone: nobody else has it while this is held.
    Left(File),
    /// The folder was just removed.
    Gone,
}

fn try_claim(dir: &Path) -> Result<Claimed, StoreError> {
    let failed = |source| StoreError::io("look at a journal's lock", source);
    // Never created here: a folder that is being removed must stay empty.
    let file = match OpenOptions::new().write(true).open(dir.join(LOCK)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Claimed::Gone),
        file => file.map_err(failed)?,
    };
    match file.try_lock() {
        Ok(()) => Ok(Claimed::Left(file)),
        Err(TryLockError::WouldBlock) => Ok(Claimed::Living),
        Err(TryLockError::Error(error)) => Err(failed(error)),
    }
}

impl Left {
    /// How every request in it ended, and how many lines and files were damaged or are missing (a
    /// torn last line is none: its request's client never got the end).
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn endings(&self) -> Result<(Vec<Ending>, usize), StoreError> {
        read_endings(&self.dir)
    }

    /// Removes a reserve that was not needed: what is left may have to be entered on a disk that is
    /// full.
    pub fn give_up_reserve(&self) {
        let reserve = self.dir.join(RESERVE);
        if std::fs::metadata(&reserve).is_ok_and(|reserve| reserve.len() == 0)
            && let Err(error) = std::fs::remove_file(&reserve)
        {
            log::debug!(
                "remove the reserve of the journal of boot {}: {error}",
                self.boot
            );
        }
    }

    /// Removes it: the ledger covers it whole. Where something was damaged it is set aside instead.
    ///
    /// # Errors
    /// The folder cannot be removed.
    pub fn remove(self, damaged: usize) -> Result<(), StoreError> {
        let failed = |source| StoreError::io("remove a replayed journal", source);
        if damaged > 0 {
            let aside = self.dir.with_extension("damaged");
            std::fs::rename(self.dir.join(LOCK), self.dir.join(OLD_LOCK)).map_err(failed)?;
            return std::fs::rename(&self.dir, aside).map_err(failed);
        }
        miss_none(&self.dir)
            .and_then(|()| std::fs::remove_dir_all(&self.dir))
            .map_err(failed)?;
        drop(self.lock);
        Ok(())
    }
}

/// Claims one folder that was left behind.
///
/// # Errors
/// A running process owns it, or it cannot be locked.
pub fn claim_left(dir: &Path) -> Result<Left, StoreError> {
    let unusable = |what: &str| Err(StoreError::Unusable(format!("{} is {what}", dir.display())));
    let lock = match try_claim(dir)? {
        Claimed::Left(lock) => lock,
        Claimed::Living => return unusable("in use by a running gateway"),
        Claimed::Gone => return unusable("not a journal folder"),
    };
    let boot = dir
        .file_name()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default();
    Ok(Left {
        dir: dir.to_owned(),
        boot,
        lock,
    })
}

/// Copies what all journals of `from` hold, the living ones' too, to `to`. Returns the number of
/// files.
///
/// # Errors
/// A file cannot be read or written.
pub fn copy(from: &Path, to: &Path) -> Result<usize, StoreError> {
    let failed = |source| StoreError::io("copy the journal", source);
    let mut copied = 0;
    for (boot, dir) in folders(from)? {
        let target = to.join("journal").join(boot);
        sqlite::create_dir(&target)?;
        open_lock(&target).map_err(failed)?;
        // In the order of their writing: a record's file is never older than that of the records
        // before it.
        for file in log_files(&dir).map_err(failed)? {
            let bytes = match std::fs::read(&file) {
                Ok(bytes) => bytes,
                // Removed since the folder was listed: the ledger, which is copied after this, has
                // it all.
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
