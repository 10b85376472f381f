//! Opens SQLite files. The settings apply to all databases of this program.
//!
//! Several processes use a file at the same time (the gateway, the command line, a successor during
//! an upgrade), so every function must be safe if two processes call it at once. This module must
//! not depend on a table. Read next: `crates/accounts/src/db.rs` (accounts, keys, sessions).

pub mod damage;
pub(crate) mod log_index;
pub mod missing;
pub mod row_cache;
pub mod writer;

use crate::StoreError;
use base::file_owner;
use rusqlite::backup::{Backup, StepResult};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags, Transaction, TransactionBehavior};
use serde::Serialize;
use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// The oldest safe version is 3.51.3. In older versions, two connections that write and checkpoint
/// can corrupt a WAL file.
const MIN_SQLITE_VERSION: i32 = 3_051_003;

/// Maximum time that a statement waits for another process's lock.
const BUSY_TIMEOUT_MS: u64 = 5_000;

/// Maximum time of attempts to switch a file to WAL while another process does the same, because
/// SQLite mostly answers "busy" without waiting. A file that a process has open and that was
/// emptied stays busy.
const WAL_TIMEOUT: Duration = Duration::from_secs(5);
const WAL_INTERVAL: Duration = Duration::from_millis(50);

/// Maximum time that [`truncate_logs`] waits for the readers and the writer of one database.
const TRUNCATE_TIMEOUT: Duration = Duration::from_secs(1);

/// Maximum number of attempts to copy over a database that another process locks. The attempts are
/// 50 ms apart.
const MAX_COPY_ATTEMPTS: u32 = 100;

/// Opens `path`, or creates it with mode 0600 in a folder with mode 0700.
///
/// # Errors
/// Returns an error if the file cannot be opened, or if the SQLite library is too old to be safe.
pub fn open(path: &Path, operation: &'static str) -> Result<Connection, StoreError> {
    if rusqlite::version_number() < MIN_SQLITE_VERSION {
        let message = format!(
            "SQLite {} is too old: at least 3.51.3 is needed",
            rusqlite::version()
        );
        return Err(StoreError::Io {
            operation,
            source: io::Error::new(io::ErrorKind::Unsupported, message),
        });
    }
    create_private(path).map_err(|source| StoreError::Io { operation, source })?;
    connect(path).map_err(|source| explain(path, operation, source))
}

/// Returns the error of a database that was opened, with the path of a file that is damaged or no
/// file. If the system refused a file, the text names it and its owner.
pub(crate) fn explain(path: &Path, operation: &'static str, source: rusqlite::Error) -> StoreError {
    let of_path = |kind: io::ErrorKind, what: &str| {
        let text = format!("{} {what}", path.display());
        StoreError::io(operation, io::Error::new(kind, text))
    };
    match source.sqlite_error_code() {
        Some(ErrorCode::CannotOpen) if path.is_dir() => of_path(
            io::ErrorKind::IsADirectory,
            "is a directory, but must be a file",
        ),
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => of_path(
            io::ErrorKind::InvalidData,
            "is damaged, or is no database of SQLite",
        ),
        Some(ErrorCode::CannotOpen | ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => {
            // Some of the library's messages contain the path already.
            let message = source.to_string();
            let message = message.trim_end_matches(&format!(": {}", path.display()));
            let refused = io::Error::new(io::ErrorKind::PermissionDenied, message);
            StoreError::io(
                operation,
                file_owner::explain(&refused_file(path), &refused),
            )
        }
        _ => StoreError::Sqlite { operation, source },
    }
}

/// Returns the file that the system probably refused to open: the database, unless only its log or
/// the log's index belongs to another user.
fn refused_file(path: &Path) -> PathBuf {
    let user = rustix::process::geteuid().as_raw();
    let is_foreign = |file: &Path| std::fs::metadata(file).is_ok_and(|file| file.uid() != user);
    let with_end = |end: &str| {
        let mut name = path.as_os_str().to_owned();
        name.push(end);
        PathBuf::from(name)
    };
    let mut parts = ["", "-wal", "-shm"].map(with_end).into_iter();
    parts
        .find(|file| is_foreign(file))
        .unwrap_or_else(|| path.to_owned())
}

/// Migrates a database to the last of `migrations`. Each migration is applied once, in order, and
/// `PRAGMA user_version` counts them.
///
/// # Errors
/// Returns an error if a migration fails, or if a newer version of this program wrote the file.
pub fn migrate(
    connection: &mut Connection,
    migrations: &[&str],
    operation: &'static str,
) -> Result<(), StoreError> {
    let sqlite = |source| StoreError::Sqlite { operation, source };
    let known = migrations.len();
    if version(connection).map_err(sqlite)? == known {
        return Ok(());
    }
    let transaction = connection
        .transaction_with_behavior(TransactionBehavior::Immediate)
        .map_err(sqlite)?;
    // Read the version again under the lock, because another process may have migrated the file.
    let applied = version(&transaction).map_err(sqlite)?;
    if applied > known {
        let message = format!(
            "the file has schema version {applied}, but this program supports only {known}: start a newer version of the program"
        );
        return Err(StoreError::Io {
            operation,
            source: io::Error::new(io::ErrorKind::Unsupported, message),
        });
    }
    if (1..known).contains(&applied) {
        log::info!(
            "{operation}: from schema version {applied} to {known}; a million rows take about ten seconds"
        );
    }
    for migration in migrations.iter().skip(applied) {
        transaction.execute_batch(migration).map_err(sqlite)?;
    }
    transaction
        .pragma_update(
            None,
            "user_version",
            i64::try_from(known).unwrap_or(i64::MAX),
        )
        .map_err(sqlite)?;
    transaction.commit().map_err(sqlite)
}

/// Creates a folder (mode 0700) if it does not exist.
///
/// # Errors
/// Returns an error if the folder cannot be created.
pub fn create_dir(dir: &Path) -> Result<(), StoreError> {
    file_owner::create_dir(dir).map_err(|source| StoreError::io("create a data folder", source))
}

/// Turns off the sync of commits, for data that is only valid while its process lives.
///
/// # Errors
/// Returns an error if SQLite refuses the setting.
pub fn disable_sync(connection: &Connection) -> Result<(), StoreError> {
    connection
        .execute_batch("PRAGMA synchronous = OFF")
        .map_err(|source| StoreError::sqlite("set the durability of a database", source))
}

/// Writes the log back into the file, so that a copy of the file alone is complete.
///
/// # Errors
/// Returns an error if the file cannot be written.
pub fn checkpoint(connection: &Connection) -> Result<(), StoreError> {
    connection
        .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
        .map_err(|source| StoreError::sqlite("checkpoint a database", source))
}

/// Makes this connection overwrite deleted rows with zeros. Otherwise a page keeps them until other
/// rows take their place. The log still has them until [`truncate_logs`].
///
/// # Errors
/// Returns an error if SQLite refuses the setting.
pub fn erase_deleted(connection: &Connection) -> Result<(), StoreError> {
    connection
        .pragma_update(None, "secure_delete", true)
        .map_err(|source| StoreError::sqlite("set up the deletion of rows", source))
}

/// Writes the logs of databases in a folder back into their files, and empties them. Other
/// processes and threads may use the databases meanwhile, and a log that one of them reads stays
/// unchanged. `names` lists the databases; an empty list means all.
///
/// # Errors
/// Returns the first error, after all databases.
pub fn truncate_logs(dir: &Path, names: &[&str]) -> Result<(), StoreError> {
    let operation = "write the log of a database back";
    let listed = std::fs::read_dir(dir).map_err(|source| StoreError::io(operation, source))?;
    let mut outcome = Ok(());
    for log in listed.flatten() {
        let name = log.file_name();
        let Some(name) = name.to_str().and_then(|name| name.strip_suffix("-wal")) else {
            continue;
        };
        let is_meant = name.ends_with(".db") && (names.is_empty() || names.contains(&name));
        if !is_meant || log.metadata().is_ok_and(|log| log.len() == 0) {
            continue;
        }
        let path = dir.join(name);
        let truncate = || -> rusqlite::Result<()> {
            let connection = open_existing(&path)?;
            connection.busy_timeout(TRUNCATE_TIMEOUT)?;
            connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
        };
        let truncated = truncate().map_err(|source| explain(&path, operation, source));
        outcome = outcome.and(truncated);
    }
    outcome
}

/// Cache of the writer's connection in KiB. It keeps pages that commits change again and again.
const WRITER_CACHE_KIB: u32 = 16_384;
/// Number of pages in the log at which a commit writes them back into the file: 16 MiB with pages
/// of 2 KiB. A page that many commits changed is written back once.
const WRITER_CHECKPOINT_PAGES: u32 = 8_192;

/// Sets a connection up for many commits that change the same pages.
///
/// # Errors
/// Returns an error if SQLite refuses the setting.
pub fn set_up_writer(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute_batch(&format!(
        "PRAGMA cache_size = -{WRITER_CACHE_KIB}; PRAGMA wal_autocheckpoint = {WRITER_CHECKPOINT_PAGES};"
    ))
}

/// Copies a snapshot of a database into the new file `to`, and checks the whole copy. Other
/// processes can write to the database meanwhile.
///
/// # Errors
/// Returns an error if a file cannot be read or written, or if the copy is damaged.
pub fn copy(from: &Path, to: &Path, operation: &'static str) -> Result<(), StoreError> {
    let sql = |source| StoreError::Sqlite { operation, source };
    create_private(to).map_err(|source| StoreError::Io { operation, source })?;
    let source = open_existing(from).map_err(|source| explain(from, operation, source))?;
    // A reader that wrote the log back would make the writer wait.
    source
        .execute_batch("PRAGMA wal_autocheckpoint = 0")
        .map_err(sql)?;
    let mut copy = Connection::open(to).map_err(sql)?;
    replace_content(&source, &mut copy, operation)?;
    let verdict: String = copy
        .query_row("PRAGMA quick_check(1)", [], |row| row.get(0))
        .map_err(sql)?;
    if verdict != "ok" {
        return Err(StoreError::Io {
            operation,
            source: io::Error::new(io::ErrorKind::InvalidData, verdict),
        });
    }
    checkpoint(&copy)?;
    drop(copy);
    std::fs::File::open(to)
        .and_then(|file| file.sync_all())
        .map_err(|source| StoreError::Io { operation, source })
}

/// Makes the names in a folder durable.
///
/// # Errors
/// Returns an error if the folder cannot be opened or synced.
pub fn sync_dir(dir: &Path) -> io::Result<()> {
    std::fs::File::open(dir)
        .and_then(|dir| dir.sync_all())
        .map_err(|error| file_owner::explain(dir, &error))
}

/// Serializes a value as JSON for a column.
///
/// # Errors
/// Returns an error if the value cannot be serialized.
pub fn to_json(value: &impl Serialize) -> rusqlite::Result<String> {
    serde_json::to_string(value)
        .map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))
}

fn version(connection: &Connection) -> rusqlite::Result<usize> {
    connection
        .pragma_query_value(None, "user_version", |row| row.get::<_, i64>(0))
        .map(|version| usize::try_from(version).unwrap_or(usize::MAX))
}

/// Creates the file with a private mode. SQLite gives its `-wal` and `-shm` files the mode of the
/// database. An existing file is not opened: closing it would drop the locks of this process's
/// connections, and another process could then delete the log in use.
fn create_private(path: &Path) -> io::Result<()> {
    if let Some(folder) = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
    {
        file_owner::create_dir(folder)?;
    }
    let mut options = OpenOptions::new();
    match file_owner::open(options.write(true).create_new(true).mode(0o600), path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// Opens an existing file. Its statements wait for another process's lock.
fn open_existing(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(Duration::from_millis(BUSY_TIMEOUT_MS))?;
    Ok(connection)
}

fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let connection = open_existing(path)?;
    // Without this setting, SQLite plans a cached statement again for every newly bound value,
    // which costs more than the look-up.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    enable_wal(&connection)?;
    connection.execute_batch(
        "PRAGMA synchronous = FULL;
         PRAGMA foreign_keys = ON;
         PRAGMA trusted_schema = OFF;
         PRAGMA cell_size_check = ON;",
    )?;
    Ok(connection)
}

fn enable_wal(connection: &Connection) -> rusqlite::Result<()> {
    let began = Instant::now();
    loop {
        match connection.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(())) {
            Err(error)
                if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy)
                    && began.elapsed() < WAL_TIMEOUT =>
            {
                std::thread::sleep(WAL_INTERVAL);
            }
            other => return other,
        }
    }
}

/// Opens a database like [`open`], and gives a new one pages of `page_bytes`.
///
/// # Errors
/// Returns the errors of [`open`].
pub fn open_with_page_size(
    path: &Path,
    page_bytes: u32,
    operation: &'static str,
) -> Result<Connection, StoreError> {
    let is_new = std::fs::metadata(path).map_or(true, |metadata| metadata.len() == 0);
    if is_new {
        create_private(path).map_err(|source| StoreError::Io { operation, source })?;
        // The page size must be set before the first page is written, which the change to WAL does.
        let create = || -> rusqlite::Result<()> {
            let connection = open_existing(path)?;
            connection.pragma_update(None, "page_size", page_bytes)?;
            enable_wal(&connection)
        };
        create().map_err(|source| explain(path, operation, source))?;
    }
    open(path, operation)
}

/// Creates a database without a name. The file at `path`, which must not exist, is removed as soon
/// as it is open, so that it disappears with this process. The database has no journal, so the
/// caller must discard it after a failed statement.
///
/// # Errors
/// Returns an error if the file cannot be created.
pub fn create_unnamed(
    path: &Path,
    page_bytes: u32,
    operation: &'static str,
) -> Result<Connection, StoreError> {
    let io = |source| StoreError::Io { operation, source };
    let options = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path);
    drop(options.map_err(io)?);
    let create = || -> rusqlite::Result<Connection> {
        let connection = open_existing(path)?;
        connection.pragma_update(None, "page_size", page_bytes)?;
        connection.pragma_update_and_check(None, "journal_mode", "OFF", |_| Ok(()))?;
        connection.pragma_update_and_check(None, "locking_mode", "EXCLUSIVE", |_| Ok(()))?;
        connection.pragma_update(None, "synchronous", "OFF")?;
        Ok(connection)
    };
    let created = create().map_err(|source| explain(path, operation, source));
    std::fs::remove_file(path).map_err(io)?;
    created
}

/// Copies the whole of `from` over `to`, whose pages must have the same size, as one transaction.
///
/// # Errors
/// Returns an error if a file cannot be read or written, or if other processes lock `to` for
/// several seconds. `to` is then unchanged.
pub fn replace_content(
    from: &Connection,
    to: &mut Connection,
    operation: &'static str,
) -> Result<(), StoreError> {
    let sql = |source| StoreError::Sqlite { operation, source };
    let backup = Backup::new(from, to).map_err(sql)?;
    // Copy all pages in one step, which is one read transaction and does not disturb writers. With
    // several steps, every commit in between would restart the copy.
    let mut tries = 0;
    while backup.step(-1).map_err(sql)? != StepResult::Done {
        tries += 1;
        if tries > MAX_COPY_ATTEMPTS {
            let source = io::Error::new(
                io::ErrorKind::ResourceBusy,
                "the database is locked by another process",
            );
            return Err(StoreError::Io { operation, source });
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// Begins a transaction that can write. It takes the lock at once, so that it cannot fail later for
/// want of the lock.
///
/// # Errors
/// Returns an error if another process held the lock for longer than the busy time-out.
pub fn begin_write(connection: &mut Connection) -> rusqlite::Result<Transaction<'_>> {
    connection.transaction_with_behavior(TransactionBehavior::Immediate)
}

/// Opens a connection that only reads.
///
/// # Errors
/// Returns an error if the file, which must exist, cannot be opened.
pub fn open_reader(path: &Path, operation: &'static str) -> Result<Connection, StoreError> {
    let connection = open(path, operation)?;
    // Only the writer's connection writes the log back into the file.
    connection
        .execute_batch("PRAGMA query_only = ON; PRAGMA wal_autocheckpoint = 0;")
        .map_err(|source| StoreError::Sqlite { operation, source })?;
    Ok(connection)
}

/// Reads the version of the schema, for which SQLite opens the log and its index.
///
/// # Errors
/// Returns an error if the file cannot be read.
pub(crate) fn warm_up(connection: &Connection, operation: &'static str) -> Result<(), StoreError> {
    connection
        .query_row("PRAGMA schema_version", [], |_| Ok(()))
        .map_err(|source| StoreError::Sqlite { operation, source })
}

/// Maximum work of a read in a pool, in instructions of SQLite's machine: about half a second of
/// CPU time. Without it, a slow read of a page would hold its connection for as long as it likes.
const MAX_READ_STEPS: i32 = 50_000_000;

/// Connections for point reads of a few microseconds. The pool grows to the number of connections
/// that were ever busy at the same time, up to a limit. A read of more than [`MAX_READ_STEPS`] ends
/// with the error `OperationInterrupted`.
pub struct Readers {
    first: Mutex<Connection>,
    more: Vec<Mutex<Option<Connection>>>,
    /// Only for [`Self::with_reserved`].
    reserved: Mutex<Option<Connection>>,
    path: PathBuf,
    operation: &'static str,
}

impl Readers {
    /// Opens the first connection.
    ///
    /// # Errors
    /// Returns an error if the file, which must exist, cannot be opened.
    pub fn open(path: &Path, count: usize, operation: &'static str) -> Result<Self, StoreError> {
        let first = Mutex::new(open_pooled(path, operation)?);
        let more = (1..count).map(|_| Mutex::new(None)).collect();
        Ok(Self {
            first,
            more,
            reserved: Mutex::default(),
            path: path.to_owned(),
            operation,
        })
    }

    /// Opens every connection of the pool and the files that it reads, so that no later read opens
    /// a file.
    ///
    /// # Errors
    /// Returns an error if a connection cannot be opened.
    pub fn open_all(&self) -> Result<(), StoreError> {
        warm_up(
            &self.first.lock().unwrap_or_else(PoisonError::into_inner),
            self.operation,
        )?;
        for slot in self.more.iter().chain([&self.reserved]) {
            let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
            let opened = match slot.take() {
                Some(opened) => opened,
                None => open_pooled(&self.path, self.operation)?,
            };
            warm_up(&opened, self.operation)?;
            *slot = Some(opened);
        }
        Ok(())
    }

    /// Reads the file's first page from the file or its log, although it may be in memory.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read.
    pub fn check(&self) -> Result<(), StoreError> {
        self.with_reserved(|connection| {
            connection
                .execute_batch("PRAGMA shrink_memory")
                .map_err(|source| StoreError::sqlite(self.operation, source))?;
            warm_up(connection, self.operation)
        })
    }

    /// Opens a connection outside the pool, with a page cache of `cache_kib`, for reads of many
    /// rows, which would block point reads in the pool and evict their pages.
    ///
    /// # Errors
    /// Returns an error if the file cannot be opened.
    pub fn open_separate(
        &self,
        cache_kib: u32,
        operation: &'static str,
    ) -> Result<Connection, StoreError> {
        let connection = open_reader(&self.path, operation)?;
        connection
            .pragma_update(None, "cache_size", -i64::from(cache_kib))
            .map_err(|source| StoreError::Sqlite { operation, source })?;
        Ok(connection)
    }

    /// Runs `read` on the first free connection, or waits if all are busy. Connections are tried in
    /// order: a page cache is valid until the next commit, so using fewer connections reloads fewer
    /// pages.
    pub fn with<T>(&self, read: impl FnOnce(&Connection) -> T) -> T {
        self.with_free(read)
            .unwrap_or_else(|read| read(&self.first.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    /// Runs a read on which a request waits: see [`Self::with`]. If all connections are busy, it
    /// has one that other reads do not use, so that it does not wait for a slow page.
    pub fn with_reserved<T>(&self, read: impl FnOnce(&Connection) -> T) -> T {
        let read = match self.with_free(read) {
            Ok(value) => return value,
            Err(read) => read,
        };
        let mut reserved = self.reserved.lock().unwrap_or_else(PoisonError::into_inner);
        if reserved.is_none() {
            *reserved = open_pooled(&self.path, self.operation).ok();
        }
        match &*reserved {
            Some(connection) => read(connection),
            None => read(&self.first.lock().unwrap_or_else(PoisonError::into_inner)),
        }
    }

    /// Runs `read` on the first free connection, or returns it if all are busy.
    fn with_free<T, R: FnOnce(&Connection) -> T>(&self, read: R) -> Result<T, R> {
        match self.first.try_lock() {
            Ok(connection) => return Ok(read(&connection)),
            Err(TryLockError::Poisoned(poisoned)) => return Ok(read(&poisoned.into_inner())),
            Err(TryLockError::WouldBlock) => {}
        }
        for slot in &self.more {
            let mut slot = match slot.try_lock() {
                Ok(slot) => slot,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => continue,
            };
            if slot.is_none() {
                *slot = open_pooled(&self.path, self.operation).ok();
            }
            if let Some(connection) = &*slot {
                return Ok(read(connection));
            }
        }
        Err(read)
    }
}

/// Opens a connection of a pool, whose reads are bounded.
fn open_pooled(path: &Path, operation: &'static str) -> Result<Connection, StoreError> {
    let mut connection = open_reader(path, operation)?;
    connection
        .progress_handler(MAX_READ_STEPS, Some(|| true))
        .map_err(|source| StoreError::Sqlite { operation, source })?;
    Ok(connection)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_read_without_an_end_is_ended_and_the_next_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.db");
        open(&path, "open x").unwrap();
        let readers = Readers::open(&path, 1, "read x").unwrap();
        let count_to = |last: i64| {
            let sql =
                "WITH RECURSIVE n(i) AS (VALUES(1) UNION ALL SELECT i + 1 FROM n WHERE i < ?1)
                       SELECT count(*) FROM n";
            let counted = readers
                .with(|connection| connection.query_row(sql, [last], |row| row.get::<_, i64>(0)));
            counted.map_err(|source| StoreError::sqlite("count", source))
        };
        assert!(count_to(i64::MAX).unwrap_err().is_endless_read());
        // Each number takes about 16 steps.
        let many = i64::from(MAX_READ_STEPS / 32);
        assert_eq!(count_to(many).unwrap(), many);
    }

    #[test]
    fn readers_are_opened_when_those_there_are_busy_and_then_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.db");
        open(&path, "open x").unwrap();
        let readers = Readers::open(&path, 2, "read x").unwrap();
        let count = || {
            1 + readers
                .more
                .iter()
                .filter(|slot| slot.lock().unwrap().is_some())
                .count()
        };
        let answer = |connection: &Connection| {
            connection
                .query_row("SELECT 42", [], |row| row.get::<_, i64>(0))
                .unwrap()
        };
        assert_eq!((readers.with(answer), count()), (42, 1));
        let all = Readers::open(&path, 2, "read x").unwrap();
        all.open_all().unwrap();
        assert!(all.more[0].lock().unwrap().is_some());
        let inner = readers.with(|_| readers.with(answer));
        assert_eq!(
            (inner, count()),
            (42, 2),
            "one more, while the first is busy"
        );
        std::thread::scope(|scope| {
            let third = readers.with(|_| {
                readers.with(|_| {
                    let (begun, has_begun) = std::sync::mpsc::sync_channel(1);
                    let (done, is_done) = std::sync::mpsc::sync_channel(1);
                    let readers = &readers;
                    let third = scope.spawn(move || {
                        begun.send(()).unwrap();
                        let answer = readers.with(answer);
                        let _ = done.send(());
                        answer
                    });
                    has_begun.recv().unwrap();
                    let early = is_done.recv_timeout(Duration::from_millis(50));
                    assert!(early.is_err(), "the third has to wait");
                    let reserved = readers.with_reserved(|connection| answer(connection));
                    assert_eq!(reserved, 42, "a request does not");
                    third
                })
            });
            assert_eq!(third.join().unwrap(), 42);
        });
    }

    #[test]
    fn an_error_names_what_is_no_database() {
        let folder = tempfile::tempdir().unwrap();
        let (file, dir) = (folder.path().join("x.db"), folder.path().join("y.db"));
        std::fs::write(&file, [b'x'; 4_096]).unwrap();
        std::fs::create_dir(&dir).unwrap();
        for (path, what) in [
            (file, "is damaged, or is no database of SQLite"),
            (dir, "is a directory, but must be a file"),
        ] {
            let error = open(&path, "open it").unwrap_err();
            let expected = format!("cannot open it: {} {what}", path.display());
            assert_eq!(error.to_string(), expected);
            assert_eq!(damage::is_damage(&error), path.is_file());
        }
    }

    /// Needs root: nobody else can give a file away.
    #[test]
    fn an_error_names_the_owner_of_the_file_that_is_refused() {
        if !rustix::process::geteuid().is_root() {
            return test_world::skip("only root can create files for others");
        }
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for name in ["x.db", "x.db-wal", "x.db-shm"] {
            std::fs::write(path(name), "").unwrap();
        }
        for name in ["x.db", "x.db-shm", "x.db-wal", "x.db"] {
            let refused = rusqlite::Error::SqliteFailure(
                rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CANTOPEN),
                None,
            );
            let shown = explain(&path("x.db"), "open x", refused).to_string();
            let start = format!("cannot open x: {}: ", path(name).display());
            assert!(shown.starts_with(&start), "{name}: {shown}");
            let owner = std::fs::metadata(path(name)).unwrap().uid();
            let end = format!("it belongs to user ID {owner}, this process has user ID 0");
            assert!(shown.ends_with(&end), "{name}: {shown}");
            // The next turn finds the next one in this state, and at last the database.
            let next = match name {
                "x.db" => "x.db-shm",
                "x.db-shm" => "x.db-wal",
                _ => "x.db",
            };
            std::os::unix::fs::chown(path(next), Some(12_345), None).unwrap();
        }
    }

    #[test]
    fn what_was_deleted_is_in_no_file_once_the_log_is_truncated() {
        let folder = tempfile::tempdir().unwrap();
        let canary = "CANARY".repeat(2_000);
        let holds_canary = |name: &str| {
            let bytes = std::fs::read(folder.path().join(name)).unwrap_or_default();
            bytes.windows(6).any(|window| window == b"CANARY")
        };
        let [erased, kept] = ["erased.db", "kept.db"].map(|name| {
            let connection = open(&folder.path().join(name), "open x").unwrap();
            if name == "erased.db" {
                erase_deleted(&connection).unwrap();
            }
            connection
                .execute_batch("CREATE TABLE t(a TEXT); CREATE TABLE u(a TEXT);")
                .unwrap();
            for table in ["t", "u"] {
                let sql = format!("INSERT INTO {table} VALUES (?1), ('short CANARY')");
                connection.execute(&sql, [&canary]).unwrap();
            }
            connection
                .execute_batch("DELETE FROM t; UPDATE u SET a = 'x';")
                .unwrap();
            connection
        });
        assert!(holds_canary("erased.db-wal") && holds_canary("kept.db-wal"));
        truncate_logs(folder.path(), &["erased.db"]).unwrap();
        assert!(!holds_canary("erased.db-wal") && !holds_canary("erased.db"));
        assert!(holds_canary("kept.db-wal"), "the other one is not meant");
        truncate_logs(folder.path(), &[]).unwrap();
        assert!(!holds_canary("kept.db-wal"));
        assert!(holds_canary("kept.db"), "the setting makes the difference");
        // A log that is being read stays, and the others do not wait for it.
        let reader = open(&folder.path().join("kept.db"), "open x").unwrap();
        reader.execute_batch("BEGIN; SELECT * FROM u;").unwrap();
        for connection in [&erased, &kept] {
            connection
                .execute("INSERT INTO u VALUES ('y')", [])
                .unwrap();
        }
        truncate_logs(folder.path(), &[]).unwrap();
        let bytes = |name: &str| std::fs::metadata(folder.path().join(name)).unwrap().len();
        assert!(bytes("kept.db-wal") > 0 && bytes("erased.db-wal") == 0);
    }

    #[test]
    fn a_new_file_and_its_folder_are_private_and_many_may_open_it_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data/x.db");
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let mut connection = open(&path, "open x").unwrap();
                    migrate(
                        &mut connection,
                        &[
                            "CREATE TABLE t(a INTEGER) STRICT",
                            "INSERT INTO t VALUES(1)",
                        ],
                        "migrate x",
                    )
                    .unwrap();
                });
            }
        });
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&path), 0o600);
        assert_eq!(mode(path.parent().unwrap()), 0o700);
        let mut connection = open(&path, "open x").unwrap();
        let rows: i64 = connection
            .query_row("SELECT count(*) FROM t", [], |row| row.get(0))
            .unwrap();
        assert_eq!(rows, 1, "each migration ran once");
        let error = migrate(
            &mut connection,
            &["CREATE TABLE t(a INTEGER) STRICT"],
            "migrate x",
        )
        .unwrap_err();
        assert!(
            error.to_string().contains("this program supports only 1"),
            "{error}"
        );
    }
}
