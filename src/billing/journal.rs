//! The edge's append-only file of requests that are not yet known to be in the ledger.
//!
//! A record is one `write(2)` of one line, `<crc32> <json>`: it survives the death of the process at once, and can be
//! read at night with a pager. A request's `open` is written before the vendor is called, its `end` before the client
//! gets the last byte; so whoever has a whole answer has been debited, and whoever was cut off has not.
//! A process owns a folder under `journal/`, named after its boot and locked while it lives; the next process replays
//! what a dead one left. Must not know prices or balances.

use crate::store::StoreError;
use crate::store::ledger::Ending;
use crate::store::sqlite;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

const LOCK: &str = "lock";

/// One line of the journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Record {
    /// A hold was taken: should nothing follow, the request ended like this.
    Open(Ending),
    /// The request ended.
    End(Ending),
}

/// A running process's journal.
pub struct Journal {
    place: Place,
    segment_bytes: u64,
    active: Mutex<Arc<Segment>>,
    sealed: Mutex<Vec<Arc<Segment>>>,
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
        Ok(Self { dir, boot, _lock: lock })
    }

    /// Leaves, with nothing left behind.
    pub fn leave(self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// One file of the journal.
pub struct Segment {
    number: u64,
    path: PathBuf,
    file: File,
    bytes: AtomicU64,
    /// Holds something that only a replay will bring to the ledger.
    kept: AtomicBool,
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
    /// Begins a journal in `data_dir` for this process.
    ///
    /// # Errors
    /// The folder or the first file cannot be made.
    pub fn begin(data_dir: &Path, segment_bytes: u64) -> Result<Self, StoreError> {
        let failed = |source| StoreError::io("begin the journal", source);
        let place = Place::begin(data_dir)?;
        let first = Segment::create(&place.dir, 1).map_err(failed)?;
        Ok(Self { place, segment_bytes, active: Mutex::new(Arc::new(first)), sealed: Mutex::default() })
    }

    pub fn boot(&self) -> &str {
        &self.place.boot
    }

    /// Appends `record`; once this returns, it outlives the process. The file stays for as long as the returned handle
    /// is held: let it go once the ledger covers the record.
    ///
    /// # Errors
    /// The record is not (wholly) in the file.
    pub fn write(&self, record: &Record) -> io::Result<Arc<Segment>> {
        let line = encode(record)?;
        let segment = self.segment()?;
        segment.bytes.fetch_add(line.len() as u64, Ordering::Relaxed);
        // One call: O_APPEND makes it whole among other threads' lines.
        let written = (&segment.file).write(&line);
        match written {
            Ok(count) if count == line.len() => Ok(segment),
            outcome => outcome.and(Err(io::ErrorKind::WriteZero.into())),
        }
    }

    fn segment(&self) -> io::Result<Arc<Segment>> {
        let mut active = lock(&self.active);
        if active.bytes.load(Ordering::Relaxed) >= self.segment_bytes {
            let next = Arc::new(Segment::create(&self.place.dir, active.number.saturating_add(1))?);
            lock(&self.sealed).push(std::mem::replace(&mut *active, next));
        }
        Ok(Arc::clone(&active))
    }

    /// Removes full files that the ledger covers whole.
    pub fn reap(&self) {
        lock(&self.sealed).retain(|segment| {
            let covered = segment.is_covered();
            !(covered && std::fs::remove_file(&segment.path).is_ok())
        });
    }

    /// Removes the journal of a process that ends with everything covered.
    pub fn close(&self) {
        if lock(&self.sealed).iter().all(|segment| segment.is_covered()) && lock(&self.active).is_covered() {
            let _ = std::fs::remove_dir_all(&self.place.dir);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn open_lock(dir: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(dir.join(LOCK))
}

impl Segment {
    fn create(dir: &Path, number: u64) -> io::Result<Self> {
        let path = dir.join(format!("{number:06}.log"));
        let file = OpenOptions::new().create_new(true).append(true).mode(0o600).open(&path)?;
        Ok(Self { number, path, file, bytes: AtomicU64::new(0), kept: AtomicBool::new(false) })
    }

    /// Nobody holds a record of this file that the ledger lacks.
    fn is_covered(self: &Arc<Self>) -> bool {
        Arc::strong_count(self) == 1 && !self.kept.load(Ordering::Acquire)
    }
}

fn encode(record: &Record) -> io::Result<Vec<u8>> {
    let mut line = Vec::with_capacity(640);
    // The leading line end closes whatever a torn write before this one has left.
    line.extend_from_slice(b"\n00000000 ");
    serde_json::to_writer(&mut line, record)?;
    let (head, json) = line.split_at_mut(10);
    let crc = format!("{:08x}", crc32fast::hash(json));
    for (place, digit) in head.iter_mut().skip(1).zip(crc.bytes()) {
        *place = digit;
    }
    line.push(b'\n');
    Ok(line)
}

fn decode(line: &[u8]) -> Option<Record> {
    let (crc, json) = (line.get(..8)?, line.get(9..)?);
    let crc = u32::from_str_radix(std::str::from_utf8(crc).ok()?, 16).ok()?;
    if crc != crc32fast::hash(json) {
        return None;
    }
    serde_json::from_slice(json).ok()
}

/// Boots that have a journal: their processes live, or what they left is not replayed.
pub fn boots(data_dir: &Path) -> Vec<String> {
    folders(data_dir).into_iter().map(|(boot, _)| boot).collect()
}

/// Boots whose processes live, told by their locks.
pub fn live_boots(data_dir: &Path) -> Vec<String> {
    folders(data_dir).into_iter().filter(|(_, dir)| matches!(claim(dir), Ok(None))).map(|(boot, _)| boot).collect()
}

/// Claims the journals of dead processes, the oldest first. They stay claimed until dropped.
///
/// # Errors
/// A folder cannot be read or locked.
pub fn left_behind(data_dir: &Path) -> Result<Vec<Left>, StoreError> {
    let mut left = Vec::new();
    for (boot, dir) in folders(data_dir) {
        let mut claimed = None;
        // A command that looks for living processes holds a lock for a moment: one refusal is no proof of life.
        for _ in 0..3 {
            claimed = claim(&dir).map_err(|source| StoreError::io("claim a journal left behind", source))?;
            if claimed.is_some() {
                break;
            }
            std::thread::sleep(Duration::from_millis(3));
        }
        left.extend(claimed.map(|lock| Left { dir, boot, lock }));
    }
    Ok(left)
}

fn folders(data_dir: &Path) -> Vec<(String, PathBuf)> {
    let entries = std::fs::read_dir(data_dir.join("journal")).into_iter().flatten().flatten();
    let mut folders: Vec<_> = entries
        .filter(|entry| !entry.file_name().as_encoded_bytes().starts_with(b"."))
        .filter(|entry| entry.path().join(LOCK).exists())
        .filter_map(|entry| Some((entry.file_name().into_string().ok()?, entry.path())))
        .collect();
    folders.sort();
    folders
}

/// The folder's lock, or `None` where a living process holds it.
fn claim(dir: &Path) -> io::Result<Option<File>> {
    let file = open_lock(dir)?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

impl Left {
    /// How every request in it ended, and how many lines could not be read (a torn last line is none: its request's
    /// client never got the end).
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn endings(&self) -> Result<(Vec<Ending>, usize), StoreError> {
        read_endings(&self.dir)
    }

    /// Removes it: the ledger covers it whole. Where lines could not be read it is set aside instead.
    ///
    /// # Errors
    /// The folder cannot be removed.
    pub fn remove(self, unreadable: usize) -> Result<(), StoreError> {
        let failed = |source| StoreError::io("remove a replayed journal", source);
        if unreadable > 0 {
            let aside = self.dir.with_extension("damaged");
            std::fs::remove_file(self.dir.join(LOCK)).map_err(failed)?;
            return std::fs::rename(&self.dir, aside).map_err(failed);
        }
        std::fs::remove_dir_all(&self.dir).map_err(failed)?;
        drop(self.lock);
        Ok(())
    }
}

/// Claims one folder that was left behind.
///
/// # Errors
/// A running process owns it, or it cannot be locked.
pub fn claim_left(dir: &Path) -> Result<Left, StoreError> {
    let failed = |source| StoreError::io("claim a journal", source);
    if !dir.join(LOCK).exists() {
        return Err(StoreError::Unusable(format!("{} is not a journal folder", dir.display())));
    }
    let lock = claim(dir).map_err(failed)?;
    let lock = lock.ok_or_else(|| StoreError::Unusable(format!("{} is in use by a running gateway", dir.display())))?;
    let boot = dir.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    Ok(Left { dir: dir.to_owned(), boot, lock })
}

/// Copies what all journals of `from` hold, the living ones' too, to `to`. Returns the number of files.
///
/// # Errors
/// A file cannot be read or written.
pub fn copy(from: &Path, to: &Path) -> Result<usize, StoreError> {
    let failed = |source| StoreError::io("copy the journal", source);
    let mut copied = 0;
    for (boot, dir) in folders(from) {
        let target = to.join("journal").join(boot);
        sqlite::create_dir(&target)?;
        open_lock(&target).map_err(failed)?;
        // In the order of their writing: a record's file is never older than that of the records before it.
        for file in log_files(&dir).map_err(failed)? {
            let bytes = match std::fs::read(&file) {
                Ok(bytes) => bytes,
                // Removed since the folder was listed: the ledger, which is copied after this, has it all.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(failed(error)),
            };
            let target = target.join(file.file_name().unwrap_or_default());
            let mut copy = OpenOptions::new().create_new(true).write(true).mode(0o600).open(&target).map_err(failed)?;
            copy.write_all(&bytes).and_then(|()| copy.sync_all()).map_err(failed)?;
            copied += 1;
        }
        sqlite::sync_dir(&target).map_err(failed)?;
    }
    Ok(copied)
}

/// A folder's files in the order of their writing; none where the folder was just removed.
fn log_files(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match std::fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut files: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "log"));
    files.sort();
    Ok(files)
}

/// One record of a journal, for the audit: whose folder, whether its request ended.
pub struct Kept {
    pub boot: String,
    pub is_living: bool,
    pub ended: bool,
    pub ending: Ending,
}

/// Every request of every journal, also of those set aside as damaged, as it last stood.
///
/// # Errors
/// A file cannot be read.
pub fn kept(data_dir: &Path) -> Result<Vec<Kept>, StoreError> {
    let live = live_boots(data_dir);
    let mut all = Vec::new();
    for entry in std::fs::read_dir(data_dir.join("journal")).into_iter().flatten().flatten() {
        if !entry.path().is_dir() {
            continue;
        }
        let boot = entry.file_name().to_string_lossy().into_owned();
        let is_living = live.contains(&boot);
        let read = read_journal(&entry.path())?;
        let ended = read.ended.into_iter().map(|ending| (true, ending));
        let open = read.open.into_values().map(|ending| (false, ending));
        all.extend(ended.chain(open).map(|(ended, ending)| Kept { boot: boot.clone(), is_living, ended, ending }));
    }
    Ok(all)
}

/// How every request in the journal folder `dir` ended, and the number of unreadable lines.
///
/// # Errors
/// A file cannot be read.
fn read_endings(dir: &Path) -> Result<(Vec<Ending>, usize), StoreError> {
    let Read { mut ended, open, unreadable } = read_journal(dir)?;
    ended.extend(open.into_values());
    Ok((ended, unreadable))
}

/// What a folder's files say.
#[derive(Default)]
struct Read {
    ended: Vec<Ending>,
    open: std::collections::BTreeMap<String, Ending>,
    unreadable: usize,
}

fn read_journal(dir: &Path) -> Result<Read, StoreError> {
    let failed = |source| StoreError::io("read a journal", source);
    let mut read = Read::default();
    for file in log_files(dir).map_err(failed)? {
        let bytes = match std::fs::read(&file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            bytes => bytes.map_err(failed)?,
        };
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        for line in bytes.get(..whole).unwrap_or_default().split(|byte| *byte == b'\n').filter(|line| !line.is_empty())
        {
            match decode(line) {
                Some(Record::Open(ending)) => {
                    read.open.insert(ending.request_id.clone(), ending);
                }
                Some(Record::End(ending)) => {
                    read.open.remove(&ending.request_id);
                    read.ended.push(ending);
                }
                None => read.unreadable += 1,
            }
        }
    }
    Ok(read)
}
