//! Caches rows until the next write to the database.
//!
//! Admission runs the same few queries for every request: which account a key belongs to, and the
//! account's balance. A read costs SQLite two locks of the operating system and, after each commit,
//! a reload of its pages, for which it may wait for the disk; [`RowCache::peek`] costs one map
//! look-up and never waits. A write of this process clears the cache before the write returns,
//! unless [`RowCache::keep_rows`] says that it leaves the rows right. The cache detects a write of
//! another process by the header of SQLite's log ([`LogIndex`]), which it reads at most once per
//! [`ROW_CACHE_CHECK_INTERVAL`]: a row can be stale for that time. A caller that cannot accept a
//! stale row must read the database, or clear the cache first. This file must not depend on a
//! table.

use super::log_index::{LogHeader, LogIndex};
use crate::StoreError;
use crate::sqlite;
use rusqlite::Connection;
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Maximum time for which a write of another process can go unnoticed.
pub const ROW_CACHE_CHECK_INTERVAL: Duration = Duration::from_millis(1);
/// Maximum number of cached rows. One more clears the cache.
const MAX_ROWS: usize = 16_384;

pub struct RowCache<V>(Mutex<CachedRows<V>>);

struct CachedRows<V> {
    rows: HashMap<Vec<u8>, V>,
    /// Number of times that the cache was cleared. A row that was read before a clear is not
    /// inserted after it.
    turn: u64,
    log: LogIndex,
    /// Header of the log at the last check.
    seen: Option<LogHeader>,
    checked_at: Instant,
    /// SQLite deletes the log and its index when the last connection is closed.
    _connection: Connection,
}

impl<V: Clone> RowCache<V> {
    /// Opens a cache of rows of the database at `path`, which must exist.
    ///
    /// # Errors
    /// Returns an error if the database cannot be opened.
    pub fn open(path: &Path, operation: &'static str) -> Result<Self, StoreError> {
        let connection = sqlite::open_reader(path, operation)?;
        // SQLite creates the index with the first read.
        sqlite::warm_up(&connection, operation)?;
        Ok(Self(Mutex::new(CachedRows {
            rows: HashMap::new(),
            turn: 0,
            log: LogIndex::open(path).map_err(|source| StoreError::io(operation, source))?,
            seen: None,
            checked_at: Instant::now(),
            _connection: connection,
        })))
    }

    /// Returns the row of `key` if it is in the cache. Never waits for the disk.
    pub fn peek(&self, key: &[u8]) -> Option<V> {
        let mut memory = self.lock();
        memory.check_for_writes();
        memory.rows.get(key).cloned()
    }

    /// Returns the row of `key` from the cache or by `read`. A missing row is not cached.
    ///
    /// # Errors
    /// Returns the error of `read`.
    pub fn get(
        &self,
        key: &[u8],
        read: impl FnOnce() -> Result<Option<V>, StoreError>,
    ) -> Result<Option<V>, StoreError> {
        let turn = {
            let mut memory = self.lock();
            memory.check_for_writes();
            if let Some(row) = memory.rows.get(key) {
                return Ok(Some(row.clone()));
            }
            memory.turn
        };
        let row = read()?;
        if let Some(row) = &row {
            self.lock().insert(turn, key, row);
        }
        Ok(row)
    }

    /// Clears the cache, so that the next look-up reads the database.
    pub fn clear(&self) {
        self.lock().clear();
    }

    /// Returns the number of commits before one that leaves all cached rows right. The caller has
    /// begun the transaction, so no other process can commit.
    pub fn count_commits(&self) -> Option<u32> {
        let mut memory = self.lock();
        memory.compare_log();
        memory.seen.map(LogHeader::commits)
    }

    /// Keeps the rows beyond the one commit that followed [`RowCache::count_commits`]. They are
    /// cleared by the next check if there was another commit.
    pub fn keep_rows(&self, before: Option<u32>) {
        let mut memory = self.lock();
        let (seen, now) = (memory.seen.map(LogHeader::commits), memory.log.header());
        let next = before.map(|before| before.wrapping_add(1));
        if seen.is_some() && seen == before && now.map(LogHeader::commits) == next {
            memory.seen = now;
        }
    }

    /// Stops the check for other processes' writes for one minute.
    #[cfg(any(test, feature = "fixtures"))]
    pub fn pause_checks(&self) {
        let mut memory = self.lock();
        memory.check_for_writes();
        memory.checked_at = Instant::now() + Duration::from_secs(60);
    }

    fn lock(&self) -> MutexGuard<'_, CachedRows<V>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<V: Clone> CachedRows<V> {
    fn check_for_writes(&mut self) {
        if self.seen.is_some() && self.checked_at.elapsed() < ROW_CACHE_CHECK_INTERVAL {
            return;
        }
        self.compare_log();
        self.checked_at = Instant::now();
    }

    fn compare_log(&mut self) {
        // If the header cannot be read, assume that the database has changed.
        let header = self.log.header();
        if header.is_none() || header != self.seen {
            self.clear();
        }
        self.seen = header;
    }

    fn insert(&mut self, turn: u64, key: &[u8], row: &V) {
        // The database changed during the read, so this row may be out of date.
        if turn != self.turn {
            return;
        }
        if self.rows.len() >= MAX_ROWS {
            self.rows.clear();
        }
        self.rows.insert(key.to_vec(), row.clone());
    }

    fn clear(&mut self) {
        self.turn = self.turn.wrapping_add(1);
        self.rows.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    struct World {
        _folder: tempfile::TempDir,
        other: Connection,
        cache: RowCache<i64>,
        reads: Cell<u32>,
    }

    impl World {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("x.db");
            let other = sqlite::open(&path, "open x").unwrap();
            other
                .execute_batch("CREATE TABLE t (k TEXT PRIMARY KEY, v INTEGER) STRICT")
                .unwrap();
            let cache = RowCache::open(&path, "watch x").unwrap();
            Self {
                _folder: folder,
                other,
                cache,
                reads: Cell::new(0),
            }
        }

        fn set(&self, key: &str, value: i64) {
            self.other
                .execute(
                    "INSERT INTO t VALUES (?1, ?2) ON CONFLICT DO UPDATE SET v = ?2",
                    (key, value),
                )
                .unwrap();
        }

        fn read(&self, key: &str) -> Option<i64> {
            self.reads.set(self.reads.get() + 1);
            self.other
                .query_row("SELECT v FROM t WHERE k = ?1", [key], |row| row.get(0))
                .ok()
        }

        fn get(&self, key: &str) -> Option<i64> {
            self.cache
                .get(key.as_bytes(), || Ok(self.read(key)))
                .unwrap()
        }

        fn make_check_due(&self) {
            self.cache.lock().seen.take();
        }
    }

    #[test]
    fn a_row_is_read_once_until_another_connection_commits() {
        let world = World::new();
        world.set("a", 1);
        world.cache.pause_checks();
        assert_eq!(
            (world.get("a"), world.get("a"), world.reads.get()),
            (Some(1), Some(1), 1)
        );
        world.set("a", 2);
        assert_eq!(
            (world.get("a"), world.reads.get()),
            (Some(1), 1),
            "within the time of a look it may be the old one"
        );
        world.cache.lock().checked_at = Instant::now() - ROW_CACHE_CHECK_INTERVAL;
        assert_eq!(
            (world.get("a"), world.reads.get()),
            (Some(2), 2),
            "and after it, it may not"
        );
    }

    #[test]
    fn nothing_is_read_anew_where_nobody_wrote() {
        let world = World::new();
        world.set("a", 1);
        for _ in 0..3 {
            world.cache.lock().checked_at = Instant::now() - ROW_CACHE_CHECK_INTERVAL;
            assert_eq!(world.get("a"), Some(1));
        }
        // The first check has no counter to compare with; the later ones do.
        assert_eq!(world.reads.get(), 1);
        world.make_check_due();
        assert_eq!((world.get("a"), world.reads.get()), (Some(1), 2));
    }

    #[test]
    fn what_was_forgotten_is_read_anew_at_once() {
        let world = World::new();
        world.set("a", 1);
        world.cache.pause_checks();
        world.get("a");
        world.set("a", 2);
        world.cache.clear();
        assert_eq!((world.get("a"), world.reads.get()), (Some(2), 2));
    }

    #[test]
    fn a_row_that_was_read_before_a_write_is_not_kept_after_it() {
        let world = World::new();
        world.set("a", 1);
        world.cache.pause_checks();
        let row = world.cache.get(b"a", || {
            let row = world.read("a");
            world.set("a", 2);
            world.cache.clear();
            Ok(row)
        });
        assert_eq!(row.unwrap(), Some(1), "as of when it was asked");
        assert_eq!(world.get("a"), Some(2));
    }

    #[test]
    fn rows_outlive_one_commit_that_leaves_them_right_and_no_other() {
        let world = World::new();
        world.set("a", 1);
        let make_check_due = || {
            world.cache.lock().checked_at = Instant::now() - ROW_CACHE_CHECK_INTERVAL;
        };
        assert_eq!(world.get("a"), Some(1));
        let before = world.cache.count_commits();
        world.set("b", 1);
        world.cache.keep_rows(before);
        make_check_due();
        assert_eq!(world.cache.peek(b"a"), Some(1), "nothing but b has changed");
        let before = world.cache.count_commits();
        world.set("b", 2);
        world.set("a", 2);
        world.cache.keep_rows(before);
        make_check_due();
        assert_eq!(world.cache.peek(b"a"), None, "somebody else has written");
        assert_eq!(world.get("a"), Some(2));
        // A commit before the count is seen by the count.
        world.set("a", 3);
        let before = world.cache.count_commits();
        world.set("b", 3);
        world.cache.keep_rows(before);
        assert_eq!(world.cache.peek(b"a"), None);
    }

    #[test]
    fn what_is_not_there_is_asked_for_every_time_and_rows_are_limited() {
        let world = World::new();
        world.cache.pause_checks();
        assert_eq!(
            (world.get("b"), world.get("b"), world.reads.get()),
            (None, None, 2)
        );
        for number in 0..=MAX_ROWS {
            world
                .cache
                .get(&number.to_le_bytes(), || Ok(Some(1)))
                .unwrap();
        }
        assert_eq!(
            world.cache.lock().rows.len(),
            1,
            "one more than there is room for empties it"
        );
    }
}
