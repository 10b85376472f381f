//! `index.db`, in which pages, usage reports, statements and alerts look up entries and sums.
//!
//! All rows of the index are derived from the ledger's entries. A batch is one transaction: it
//! reads the watermark and the entries after it, and writes their rows and the new watermark. So
//! any process may write a batch at any time, and a crash loses no data. A batch is large and
//! sorted, so that it writes each page once. Readers keep newer entries in memory. A file that is
//! damaged or belongs to another ledger is rebuilt. This module must not decide about money:
//! balances, limits and uniqueness are in `ledger.db`. Read next: `indexing.rs` (the ledger and its
//! index), `index/batch.rs` and `index/write.rs` (the rows of an entry), `index/tail.rs` (the
//! newest entries), `index/fingerprint.rs` (compares the index), `index/rebuild.rs` (builds a new
//! one).

mod batch;
pub(crate) mod compare;
mod fingerprint;
mod limits;
mod names;
mod rebuild;
mod tables;
mod tail;
#[cfg(test)]
mod tests;
mod write;

use crate::StoreError;
use crate::entry::chain::ChainHead;
use crate::sqlite;
use crate::sqlite::Readers;
use crate::sqlite::damage;
use base::failpoint::{self, Point};
use base::telemetry::METRICS;
pub(crate) use batch::kind_name;
use batch::{ReadEntries, read_batch};
pub use fingerprint::{FingerprintKeys, IndexFault, IndexFingerprint, StoredFingerprint};
pub use limits::MAX_INDEX_BATCH;
use limits::{MIGRATIONS, PAGE_BYTES, READER_TIMEOUT, WRITER_CACHE_KIB};
use names::NameTables;
pub(crate) use rebuild::IndexRebuild;
use rusqlite::{Connection, ErrorCode};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};
pub(crate) use tables::IndexTables;
use tail::{IndexTail, TailLimits};
use write::{clear, watermark};

/// Maximum time that a rebuilt index waits for other processes to finish their batches.
const SWAP_TIMEOUT: Duration = Duration::from_secs(5);

/// Interval at which a reader retries to lock the writer's connection of its own process.
const LOCK_INTERVAL: Duration = Duration::from_millis(1);

/// Number of pages in the log after which it is written back; 128 MiB. Consecutive batches change
/// the same pages, so the log collects about three batches of a thousand accounts before their
/// pages are written back once.
const CHECKPOINT_PAGES: u32 = 32_768;

const MAX_READERS: usize = 8;

pub(crate) struct LedgerIndex {
    dir: PathBuf,
    /// `None` while the file cannot be opened. Each use tries again.
    connections: Mutex<Option<Arc<IndexConnections>>>,
    /// True if the last batch failed, so that a failure is logged once.
    is_failing: AtomicBool,
    /// True if the last read failed to build the tail, so that a failure is logged once.
    is_tail_failing: AtomicBool,
    tail_limits: TailLimits,
    /// The reason why the file was set aside, until it is reported.
    damage: Mutex<Option<String>>,
}

struct IndexConnections {
    path: PathBuf,
    /// Device and inode number of the file, which another process may set aside and create anew.
    file: (u64, u64),
    writer: Mutex<IndexWriter>,
    readers: Readers,
    /// The newest entries. The first read of them opens the tail.
    tail: Mutex<Option<IndexTail>>,
}

/// The only connection of this process that writes.
struct IndexWriter {
    connection: Connection,
    names: NameTables,
    /// The watermark that this connection wrote last. If another process has moved the watermark,
    /// the cached names may be wrong.
    written: Option<ChainHead>,
}

impl LedgerIndex {
    /// Opens `index.db` in `dir`, or creates it. If the file cannot be opened, later uses try
    /// again, because the ledger works without the index.
    pub(crate) fn open(dir: &Path) -> Self {
        let index = Self {
            dir: dir.to_owned(),
            connections: Mutex::default(),
            is_failing: AtomicBool::new(false),
            is_tail_failing: AtomicBool::new(false),
            tail_limits: TailLimits::DEFAULT,
            damage: Mutex::default(),
        };
        if let Err(error) = index.connections() {
            index.report(&error);
        }
        index
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    fn path(&self) -> PathBuf {
        self.dir.join("index.db")
    }

    fn connections(&self) -> Result<Arc<IndexConnections>, StoreError> {
        let mut connections = lock(&self.connections);
        if let Some(open) = &*connections {
            return Ok(Arc::clone(open));
        }
        let path = self.path();
        let open = match open_connections(&path) {
            Err(error) if is_unusable(&error) => {
                self.set_aside(&error)?;
                open_connections(&path)
            }
            outcome => outcome,
        };
        let open = Arc::new(open?);
        *connections = Some(Arc::clone(&open));
        Ok(open)
    }

    fn set_aside(&self, error: &StoreError) -> Result<(), StoreError> {
        *lock(&self.damage) = Some(error.to_string());
        damage::set_aside(&self.path(), error)
    }

    /// Returns the reason if the file was set aside since the last call.
    pub(crate) fn take_damage(&self) -> Option<String> {
        lock(&self.damage).take()
    }

    /// Runs `read` on a connection that reads the file alone, without the newest entries. A file
    /// that turns out to be damaged is set aside, and the new one is read.
    pub(crate) fn read<T>(
        &self,
        operation: &'static str,
        mut read: impl FnMut(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        self.attempt(|connections| {
            connections
                .readers
                .with(&mut read)
                .map_err(|source| StoreError::sqlite(operation, source))
        })
    }

    /// Runs `read` on the index and its tail, which has the entries up to the ledger's last one,
    /// `last`. Without a tail, `read` gets the file alone.
    pub(crate) fn read_newest<T>(
        &self,
        operation: &'static str,
        last: &ChainHead,
        entries: &ReadEntries<'_>,
        mut read: impl FnMut(IndexTables<'_>) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        let sql = |source| StoreError::sqlite(operation, source);
        for _ in 0..2 {
            let found = self.attempt(|connections| {
                connections.read_tail(self.tail_limits, last, entries, &mut read)
            });
            match found {
                Ok(Some(found)) => {
                    self.is_tail_failing.store(false, Ordering::Relaxed);
                    return found.map_err(sql);
                }
                // The file belongs to another ledger. The new batch starts at once and does not
                // wait for the indexer.
                Ok(None) => {
                    self.write_batch(MAX_INDEX_BATCH, Some(READER_TIMEOUT), entries)?;
                }
                Err(error) => {
                    if !self.is_tail_failing.swap(true, Ordering::Relaxed) {
                        log::error!("{error}; pages lack the entries that are not in index.db");
                    }
                    break;
                }
            }
        }
        self.read(operation, |connection| {
            let snapshot = connection.unchecked_transaction()?;
            read(IndexTables::new(&snapshot))
        })
    }

    /// Runs `attempt` on the file with the current name. If the file turns out to be damaged, it is
    /// set aside, and `attempt` runs on the new one.
    fn attempt<T>(
        &self,
        mut attempt: impl FnMut(&IndexConnections) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let connections = self.current_connections()?;
        match attempt(&connections) {
            Err(error) if damage::is_damage(&error) => {
                self.renew(&connections, &error)?;
                attempt(&*self.connections()?)
            }
            outcome => outcome,
        }
    }

    /// Opens the file again after damage. The file is set aside first if it is still the file of
    /// `broken`; another process may have replaced it already.
    fn renew(&self, broken: &Arc<IndexConnections>, error: &StoreError) -> Result<(), StoreError> {
        let mut connections = lock(&self.connections);
        if connections
            .as_ref()
            .is_some_and(|open| !Arc::ptr_eq(open, broken))
        {
            return Ok(());
        }
        *connections = None;
        if file_id(&self.path()) == Some(broken.file) {
            self.set_aside(error)?;
        }
        Ok(())
    }

    /// Returns connections to the file with the current name.
    fn current_connections(&self) -> Result<Arc<IndexConnections>, StoreError> {
        let open = self.connections()?;
        if file_id(&self.path()) == Some(open.file) {
            if std::fs::metadata(self.path()).is_ok_and(|file| file.len() > 0) {
                return Ok(open);
            }
            self.renew(&open, &damage::damage_error("somebody emptied it".into()))?;
            return self.connections();
        }
        *lock(&self.connections) = None;
        self.connections()
    }

    /// Indexes at most `limit` of the next entries in one transaction. Waits at most `timeout` for
    /// another thread that writes, and returns `None` after that.
    pub(crate) fn write_batch(
        &self,
        limit: u32,
        timeout: Option<Duration>,
        read: &ReadEntries<'_>,
    ) -> Result<Option<usize>, StoreError> {
        let connections = self.current_connections()?;
        let mut writer = match timeout {
            None => lock(&connections.writer),
            Some(timeout) => match lock_within(&connections.writer, timeout) {
                Some(writer) => writer,
                None => return Ok(None),
            },
        };
        let outcome = writer.write_batch(limit.min(MAX_INDEX_BATCH), read);
        match &outcome {
            Ok(_) => self.report_recovery(),
            Err(error) => {
                writer.forget_names();
                if !is_busy(error) {
                    self.report(error);
                }
                if damage::is_damage(error) {
                    self.renew(&connections, error)?;
                }
            }
        }
        outcome.map(Some)
    }

    /// Replaces the stored index with the content of `rebuilt` in one transaction. Entries that
    /// another process has indexed meanwhile are indexed again.
    pub(crate) fn replace(&self, rebuilt: &Connection) -> Result<(), StoreError> {
        let operation = "replace the ledger's index";
        let sql = |source| StoreError::sqlite(operation, source);
        let connections = self.current_connections()?;
        let mut writer = lock(&connections.writer);
        writer.forget_names();
        failpoint::hit(Point::BeforeReindexSwap);
        let connection = &mut writer.connection;
        connection.busy_timeout(SWAP_TIMEOUT).map_err(sql)?;
        let outcome = sqlite::replace_content(rebuilt, connection, operation)
            .and_then(|()| sqlite::checkpoint(connection));
        connection.busy_timeout(READER_TIMEOUT).map_err(sql)?;
        outcome
    }

    /// Logs a failure once until the index works again.
    fn report(&self, error: &StoreError) {
        METRICS.ledger_error("index");
        if !self.is_failing.swap(true, Ordering::Relaxed) {
            log::error!("{error}; index.db cannot be written");
        }
    }

    fn report_recovery(&self) {
        if self.is_failing.swap(false, Ordering::Relaxed) {
            log::info!("the ledger's index is written again");
        }
    }

    /// Returns the last entry that is indexed.
    pub(crate) fn position(&self) -> Result<ChainHead, StoreError> {
        self.read("read how far the ledger is indexed", |connection| {
            Ok(watermark(connection)?.position)
        })
    }
}

impl IndexWriter {
    fn forget_names(&mut self) {
        self.names = NameTables::new();
        self.written = None;
    }

    /// Writes one batch, or empties the index if it belongs to another ledger.
    fn write_batch(&mut self, limit: u32, read: &ReadEntries<'_>) -> Result<usize, StoreError> {
        let sql = |source| StoreError::sqlite("index the ledger's entries", source);
        let transaction = sqlite::begin_write(&mut self.connection).map_err(sql)?;
        let mut from = watermark(&transaction).map_err(sql)?;
        if self.written.as_ref() != Some(&from.position) {
            self.names = NameTables::new();
        }
        let tables = IndexTables::new(&transaction);
        let batch = match read_batch(tables, &from.position, limit, &mut self.names, read)? {
            Some(batch) => batch,
            None => {
                log::warn!(
                    "the index is not of this ledger, which has no such entry {}: it is built anew",
                    from.position.seq
                );
                clear(&transaction).map_err(sql)?;
                self.names = NameTables::new();
                from = watermark(&transaction).map_err(sql)?;
                read_batch(tables, &from.position, limit, &mut self.names, read)?
                    .unwrap_or_default()
            }
        };
        let count = batch.len();
        let written = batch.write(tables, from).map_err(sql)?;
        failpoint::hit(Point::MidIndex);
        transaction.commit().map_err(sql)?;
        self.written = Some(written.position);
        Ok(count)
    }
}

impl IndexConnections {
    /// Reads the tail and the file below it. Returns `None` if the file belongs to another ledger.
    /// The outer error concerns the tail, and the inner one `read`, except for damage.
    fn read_tail<T>(
        &self,
        limits: TailLimits,
        last: &ChainHead,
        entries: &ReadEntries<'_>,
        read: &mut impl FnMut(IndexTables<'_>) -> rusqlite::Result<T>,
    ) -> Result<Option<rusqlite::Result<T>>, StoreError> {
        let mut tail = lock(&self.tail);
        let open = match &mut *tail {
            Some(open) => open,
            none => none.insert(IndexTail::open(&self.path, limits)?),
        };
        let found = match open.read(last, entries, read) {
            Ok(Some(Err(source))) if damage::is_sqlite_damage(&source) => {
                Err(StoreError::sqlite("read the ledger's index", source))
            }
            outcome => outcome,
        };
        if found.is_err() {
            *tail = None;
        }
        found
    }
}

fn open_connections(path: &Path) -> Result<IndexConnections, StoreError> {
    let operation = "open the ledger's index";
    let sql = |source| StoreError::sqlite(operation, source);
    let mut connection = sqlite::open_with_page_size(path, PAGE_BYTES, operation)?;
    sqlite::migrate(&mut connection, MIGRATIONS, "migrate the ledger's index")?;
    configure_writer(&connection).map_err(sql)?;
    // A file without its tables cannot be used.
    watermark(&connection).map_err(|source| match source {
        rusqlite::Error::QueryReturnedNoRows => damage::damage_error("it has no watermark".into()),
        source if source.sqlite_error_code() == Some(ErrorCode::Unknown) => {
            damage::damage_error(source.to_string())
        }
        source => sql(source),
    })?;
    let readers = Readers::open(path, MAX_READERS, operation)?;
    let writer = Mutex::new(IndexWriter {
        connection,
        names: NameTables::new(),
        written: None,
    });
    Ok(IndexConnections {
        path: path.to_owned(),
        file: file_id(path).unwrap_or_default(),
        writer,
        readers,
        tail: Mutex::default(),
    })
}

/// Creates an empty index in `dir`, as the program does.
#[cfg(test)]
pub(crate) fn create_for_test(dir: &Path) -> Connection {
    drop(open_connections(&dir.join("index.db")));
    sqlite::open(&dir.join("index.db"), "open an index").unwrap()
}

/// Returns an empty tail of the index in `dir`.
#[cfg(test)]
pub(crate) fn create_tail_for_test(dir: &Path) -> Connection {
    tail::connect(&dir.join("index.db")).unwrap()
}

fn configure_writer(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute_batch(&format!(
        "PRAGMA synchronous = NORMAL; PRAGMA cache_size = -{WRITER_CACHE_KIB};
         PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES};"
    ))?;
    connection.busy_timeout(READER_TIMEOUT)?;
    connection.set_prepared_statement_cache_capacity(64);
    Ok(())
}

/// Returns whether the file cannot be used, because it is damaged or a newer program wrote it.
fn is_unusable(error: &StoreError) -> bool {
    let is_newer = matches!(error, StoreError::Io { source, .. }
        if source.kind() == std::io::ErrorKind::Unsupported);
    is_newer || damage::is_damage(error)
}

/// Returns the device and inode number of the file at `path`, if it exists.
fn file_id(path: &Path) -> Option<(u64, u64)> {
    let metadata = std::fs::metadata(path).ok()?;
    Some((metadata.dev(), metadata.ino()))
}

/// Returns whether the error means that another process is writing the index.
pub(crate) fn is_busy(error: &StoreError) -> bool {
    matches!(error, StoreError::Sqlite { source, .. }
        if source.sqlite_error_code() == Some(ErrorCode::DatabaseBusy))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks `mutex`. Returns `None` after `timeout`.
fn lock_within<T>(mutex: &Mutex<T>, timeout: Duration) -> Option<MutexGuard<'_, T>> {
    let began = Instant::now();
    loop {
        match mutex.try_lock() {
            Ok(guard) => return Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) if began.elapsed() < timeout => {
                std::thread::sleep(LOCK_INTERVAL);
            }
            Err(TryLockError::WouldBlock) => return None,
        }
    }
}
