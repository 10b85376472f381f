//! Reads the header of the index of a database's log (`-shm`), which every commit changes.
//!
//! SQLite reads the same bytes to learn whether others have written; their format is documented
//! (<https://sqlite.org/walformat.html>). The file is memory that processes share, so a read rarely
//! waits for a disk; it does where the file system does not answer. This file must not write.

use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

const HEADER_BYTES: usize = 48;
/// First member of the header.
const VERSION: u32 = 3_007_000;

/// Every index that this process has opened, by device and number. None is ever closed: this would
/// drop the locks that SQLite's connections of this process have on the file.
static OPENED: Mutex<BTreeMap<(u64, u64), &'static OwnedFd>> = Mutex::new(BTreeMap::new());

pub(super) struct LogIndex(&'static OwnedFd);

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct LogHeader([u8; HEADER_BYTES]);

/// A value of a database that callers read far more often than somebody commits.
pub(crate) struct ValueSinceCommit<T> {
    log: LogIndex,
    /// The header of the log before the last read, and what that read returned.
    read: Option<(LogHeader, T)>,
}

impl<T: Copy> ValueSinceCommit<T> {
    /// Opens the index of the log like [`LogIndex::open`].
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let log = LogIndex::open(path)?;
        Ok(Self { log, read: None })
    }

    /// Returns the value of the last `read`, which is repeated if anybody has committed since.
    ///
    /// # Errors
    /// Returns the error of `read`.
    pub(crate) fn get<E>(&mut self, read: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let header = self.log.header();
        if let Some((before, value)) = self.read
            && header == Some(before)
        {
            return Ok(value);
        }
        let value = read()?;
        self.read = header.map(|header| (header, value));
        Ok(value)
    }
}

impl LogIndex {
    /// Opens the index of the database at `path`, which an open connection of this process has
    /// read.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let mut index = path.as_os_str().to_owned();
        index.push("-shm");
        let status = rustix::fs::stat(&index)?;
        let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
        let id = (status.st_dev, status.st_ino);
        if let Some(known) = opened.get(&id) {
            return Ok(Self(known));
        }
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        // To note the time of a read, the file system may wait for its disk. Only the owner of a
        // file may do without.
        let file = rustix::fs::open(&index, flags | OFlags::NOATIME, Mode::empty())
            .or_else(|_| rustix::fs::open(&index, flags, Mode::empty()))?;
        let file: &'static OwnedFd = Box::leak(Box::new(file));
        opened.insert(id, file);
        Ok(Self(file))
    }

    /// Returns the header, or `None` if the file has none. May wait for the file system.
    pub(super) fn header(&self) -> Option<LogHeader> {
        let mut header = [0; HEADER_BYTES];
        let read = rustix::io::pread(self.0, &mut header, 0).ok()?;
        let has_header = read == HEADER_BYTES && header.starts_with(&VERSION.to_ne_bytes());
        has_header.then_some(LogHeader(header))
    }
}

impl LogHeader {
    /// Returns the number of commits so far, which may wrap around.
    pub(super) fn commits(self) -> u32 {
        let [_, _, _, _, _, _, _, _, first, second, third, fourth, ..] = self.0;
        u32::from_ne_bytes([first, second, third, fourth])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlite;

    #[test]
    fn a_value_is_read_again_after_a_commit_of_anybody_and_not_before() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.db");
        let (own, other) = (
            sqlite::open(&path, "open x").unwrap(),
            sqlite::open(&path, "open x").unwrap(),
        );
        own.execute_batch("CREATE TABLE t (v INTEGER) STRICT; INSERT INTO t VALUES (0)")
            .unwrap();
        let mut value = ValueSinceCommit::open(&path).unwrap();
        let mut reads = 0;
        let mut get = || {
            let read = || {
                reads += 1;
                own.query_row("SELECT v FROM t", [], |row| row.get::<_, i64>(0))
            };
            (value.get(read).unwrap(), reads)
        };
        assert_eq!((get(), get()), ((0, 1), (0, 1)));
        for writer in [&other, &own] {
            let (before, reads) = get();
            writer.execute("UPDATE t SET v = v + 1", []).unwrap();
            assert_eq!(get(), (before + 1, reads + 1));
            assert_eq!(get(), (before + 1, reads + 1));
        }
        other
            .execute_batch("PRAGMA wal_checkpoint(TRUNCATE); UPDATE t SET v = 7")
            .unwrap();
        assert_eq!(get().0, 7);
    }
}
