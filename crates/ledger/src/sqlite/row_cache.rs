//! Caches rows until the next write to the database.
//!
//! Admission runs the same few queries for every request: which account a key belongs to, and the
//! account's balance. A read costs SQLite two locks of the operating system and, after each commit,
//! a reload of its pages, for which it may wait for the disk; [`RowCache::peek`] costs one map
//! look-up and never waits. A write of this process clears the cache before the write returns,
//! unless [`RowCache::keep_rows`] says that it leaves the rows right.
//!
//! The header of SQLite's log ([`LogIndex`]) shows a write of another process. A thread of its own
//! reads it for [`RowCache::peek`], at most once per [`ROW_CACHE_CHECK_INTERVAL`] and only while
//! callers use rows. A row can be stale for [`ROW_CACHE_MAX_AGE`]: if no check that has ended is
//! newer, because nobody used a row or because the file system does not answer, the caller must
//! read it like one that was never cached. A caller that cannot accept a stale row must read the
//! database, or clear the cache first. This file must not depend on a table.

use super::log_index::{LogHeader, LogIndex};
use crate::StoreError;
use crate::sqlite;
use crate::sqlite::writer::last_write;
use base::queue::{QueueSender, bounded_queue};
use rusqlite::Connection;
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Age of the last check for writes of other processes at which the next one is due.
pub const ROW_CACHE_CHECK_INTERVAL: Duration = Duration::from_millis(1);
/// Maximum time for which a write of another process can go unnoticed. It must be much longer than
/// a thread that read a row waits for a processor, or the row is too old when it is used.
pub const ROW_CACHE_MAX_AGE: Duration = Duration::from_millis(50);
/// Maximum number of cached rows. One more clears the cache.
const MAX_ROWS: usize = 16_384;

/// Waits until other processes have seen what this process has written: until no cache can have a
/// row of before that. Takes at most [`ROW_CACHE_MAX_AGE`], and no time if nothing was written.
pub fn wait_until_others_see_writes() {
    if let Some(written_at) = last_write() {
        std::thread::sleep(ROW_CACHE_MAX_AGE.saturating_sub(written_at.elapsed()));
    }
}

pub struct RowCache<V> {
    checked: Arc<CheckedRows<V>>,
    /// Asks the thread for a check. The thread starts with the first one.
    checks: OnceLock<QueueSender<()>>,
    /// SQLite deletes the log and its index when the last connection is closed.
    _connection: Mutex<Connection>,
}

struct CheckedRows<V> {
    log: LogIndex,
    /// No thread holds this lock while it reads a file.
    cached: Mutex<CachedRows<V>>,
}

struct CachedRows<V> {
    rows: HashMap<Vec<u8>, V>,
    /// Number of times that the cache was cleared. A row that was read before a clear is not
    /// inserted after it.
    turn: u64,
    /// Header of the log at the last check.
    seen: Option<LogHeader>,
    /// Time at which the newest check that has ended began.
    checked_at: Instant,
}

impl<V: Clone + Send + 'static> RowCache<V> {
    /// Opens a cache of rows of the database at `path`, which must exist.
    ///
    /// # Errors
    /// Returns an error if the database cannot be opened.
    pub fn open(path: &Path, operation: &'static str) -> Result<Self, StoreError> {
        let connection = sqlite::open_reader(path, operation)?;
        // SQLite creates the index with the first read.
        sqlite::warm_up(&connection, operation)?;
        let log = LogIndex::open(path).map_err(|source| StoreError::io(operation, source))?;
        Ok(Self {
            checked: Arc::new(CheckedRows {
                log,
                cached: Mutex::new(CachedRows {
                    rows: HashMap::new(),
                    turn: 0,
                    seen: None,
                    checked_at: Instant::now(),
                }),
            }),
            checks: OnceLock::new(),
            _connection: Mutex::new(connection),
        })
    }

    /// Returns the row of `key` if it is in the cache and was checked less than
    /// [`ROW_CACHE_MAX_AGE`] ago. Never waits for the disk.
    pub fn peek(&self, key: &[u8]) -> Option<V> {
        let (row, age) = {
            let cached = self.checked.lock();
            let age = cached.age().filter(|age| *age < ROW_CACHE_MAX_AGE)?;
            (cached.rows.get(key)?.clone(), age)
        };
        if age >= ROW_CACHE_CHECK_INTERVAL {
            // The queue is full while the next check has not begun.
            let _ = self.checks.get_or_init(|| self.start_checks()).try_send(());
        }
        Some(row)
    }

    /// Returns the row of `key` from the cache or by `read`. A missing row is not cached. May wait
    /// for the disk.
    ///
    /// # Errors
    /// Returns the error of `read`.
    pub fn get(
        &self,
        key: &[u8],
        read: impl FnOnce() -> Result<Option<V>, StoreError>,
    ) -> Result<Option<V>, StoreError> {
        self.checked.check_if_due();
        let turn = {
            let cached = self.checked.lock();
            if let Some(row) = cached.rows.get(key) {
                return Ok(Some(row.clone()));
            }
            cached.turn
        };
        let row = read()?;
        if let Some(row) = &row {
            self.checked.lock().insert(turn, key, row);
        }
        Ok(row)
    }

    /// Clears the cache, so that the next look-up reads the database.
    pub fn clear(&self) {
        self.checked.lock().clear();
    }

    /// Returns the number of commits before one that leaves all cached rows right. The caller has
    /// begun the transaction, so no other process can commit.
    pub fn count_commits(&self) -> Option<u32> {
        self.checked.check().map(LogHeader::commits)
    }

    /// Keeps the rows beyond the one commit that followed [`RowCache::count_commits`]. They are
    /// cleared by the next check if there was another commit.
    pub fn keep_rows(&self, before: Option<u32>) {
        let now = self.checked.log.header();
        let mut cached = self.checked.lock();
        let seen = cached.seen.map(LogHeader::commits);
        let next = before.map(|before| before.wrapping_add(1));
        if seen.is_some() && seen == before && now.map(LogHeader::commits) == next {
            cached.seen = now;
        }
    }

    /// Stops the check for other processes' writes for one minute.
    #[cfg(any(test, feature = "fixtures"))]
    pub fn pause_checks(&self) {
        self.checked.check();
        self.checked.lock().checked_at = Instant::now() + Duration::from_secs(60);
    }

    fn start_checks(&self) -> QueueSender<()> {
        let (sender, receiver) = bounded_queue(1);
        let checked = Arc::clone(&self.checked);
        let started = std::thread::Builder::new()
            .name("row-checks".into())
            .spawn(move || {
                while receiver.recv().is_ok() {
                    checked.check_if_due();
                }
            });
        if let Err(error) = started {
            log::error!("cannot start the thread that checks for writes of others: {error}");
        }
        sender
    }
}

impl<V> CheckedRows<V> {
    fn lock(&self) -> MutexGuard<'_, CachedRows<V>> {
        self.cached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check_if_due(&self) {
        let age = self.lock().age();
        if age.is_none_or(|age| age >= ROW_CACHE_CHECK_INTERVAL) {
            self.check();
        }
    }

    /// Reads the header of the log, and clears the rows if it changed. May wait for the disk. Of
    /// two checks at once, the older one may end last: then it clears the rows too.
    fn check(&self) -> Option<LogHeader> {
        let began = Instant::now();
        let header = self.log.header();
        let mut cached = self.lock();
        // If the header cannot be read, assume that the database has changed.
        if header.is_none() || header != cached.seen {
            cached.clear();
        }
        cached.seen = header;
        cached.checked_at = cached.checked_at.max(began);
        header
    }
}

impl<V> CachedRows<V> {
    /// Returns the time since the last check; `None` if it could not read the header.
    fn age(&self) -> Option<Duration> {
        self.seen.map(|_| self.checked_at.elapsed())
    }

    fn insert(&mut self, turn: u64, key: &[u8], row: &V)
    where
        V: Clone,
    {
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
    use crate::sqlite::writer::WriteConnection;
    use std::cell::Cell;

    struct World {
        folder: tempfile::TempDir,
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
                folder,
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

        fn set_age(&self, age: Duration) {
            self.cache.checked.lock().checked_at = Instant::now() - age;
        }

        fn make_check_due(&self) {
            self.set_age(ROW_CACHE_CHECK_INTERVAL);
        }
    }

    #[test]
    fn who_wrote_can_wait_until_no_cache_has_a_row_of_before() {
        let world = World::new();
        world.set("a", 1);
        let folder = world.folder.path();
        let writer = sqlite::open(&folder.join("x.db"), "open x").unwrap();
        let writer = WriteConnection::new(writer);
        world.get("a");
        writer.lock().execute("UPDATE t SET v = 2", []).unwrap();
        wait_until_others_see_writes();
        assert_eq!(world.cache.peek(b"a"), None, "it must be read");
        assert_eq!(world.get("a"), Some(2));
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
        world.make_check_due();
        assert_eq!(
            (world.get("a"), world.reads.get()),
            (Some(2), 2),
            "and after it, it may not"
        );
    }

    #[test]
    fn a_row_is_not_in_memory_once_its_check_is_too_old() {
        let world = World::new();
        world.set("a", 1);
        world.get("a");
        world.cache.pause_checks();
        assert_eq!(world.cache.peek(b"a"), Some(1));
        world.set_age(ROW_CACHE_MAX_AGE);
        assert_eq!(world.cache.peek(b"a"), None);
        assert_eq!((world.get("a"), world.reads.get()), (Some(1), 1), "checked");
    }

    #[test]
    fn a_row_in_use_is_checked_by_a_thread_of_its_own() {
        let world = World::new();
        world.set("a", 1);
        world.get("a");
        world.set("a", 2);
        let began = Instant::now();
        // Only a check clears the rows: one that is too old stays.
        while !world.cache.checked.lock().rows.is_empty() {
            assert!(began.elapsed() < Duration::from_secs(60), "never checked");
            world.make_check_due();
            world.cache.peek(b"a");
        }
        assert_eq!(world.get("a"), Some(2));
    }

    #[test]
    fn nothing_is_read_anew_where_nobody_wrote() {
        let world = World::new();
        world.set("a", 1);
        for _ in 0..3 {
            world.make_check_due();
            assert_eq!(world.get("a"), Some(1));
        }
        // The first check has no counter to compare with; the later ones do.
        assert_eq!(world.reads.get(), 1);
        world.cache.checked.lock().seen.take();
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
        assert_eq!(world.get("a"), Some(1));
        let before = world.cache.count_commits();
        world.set("b", 1);
        world.cache.keep_rows(before);
        world.cache.pause_checks();
        assert_eq!(world.cache.peek(b"a"), Some(1), "nothing but b has changed");
        let before = world.cache.count_commits();
        world.set("b", 2);
        world.set("a", 2);
        world.cache.keep_rows(before);
        world.cache.pause_checks();
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
            world.cache.checked.lock().rows.len(),
            1,
            "one more than there is room for empties it"
        );
    }
}
