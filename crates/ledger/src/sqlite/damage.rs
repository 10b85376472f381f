//! Recovers the databases whose data the ledger has too. A damaged one is moved aside and created
//! again, so the gateway starts. This file must not be used for `ledger.db` and `app.db`.

use crate::StoreError;
use crate::sqlite;
use base::clock;
use base::file_owner;
use base::telemetry::METRICS;
use rusqlite::{Connection, ErrorCode};
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

/// Maximum size in bytes of a file that is checked completely at the start. The check takes some
/// tenths of a second.
const MAX_CHECKED_BYTES: u64 = 268_435_456;

/// The expected tables of a sound database.
pub struct DatabaseSpec {
    /// The only table that is checked in a file above 256 MiB.
    pub table: &'static str,
    pub migrations: &'static [&'static str],
}

/// Opens the database at `path` with `open`. Renames a damaged one, its log first, to
/// `<name>.damaged-<time>` and creates a new one. Called once per process, before anything else
/// opens the file.
///
/// # Errors
/// Returns the error of `open` unless it is damage, or an error if a damaged file cannot be
/// renamed.
pub fn open_or_renew<T>(
    path: &Path,
    shape: &DatabaseSpec,
    open: impl Fn() -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    // The connection of the check must outlive the opening. The last connection that closes a
    // database writes its log back and syncs both, for which the start would wait.
    let opened = check(path, shape).and_then(|_checked| open());
    let error = match opened {
        Err(error) if is_damage(&error) => error,
        outcome => return outcome,
    };
    set_aside(path, &error)?;
    open()
}

/// Renames the database at `path`, its log first, and logs `error`, because of which it cannot be
/// used. A file that is already gone is no error.
///
/// # Errors
/// Returns an error if the file cannot be renamed.
pub fn set_aside(path: &Path, error: &StoreError) -> Result<(), StoreError> {
    let aside = match move_aside(path) {
        Err(source) if source.kind() == io::ErrorKind::NotFound => return Ok(()),
        outcome => {
            outcome.map_err(|source| StoreError::io("set a damaged database aside", source))?
        }
    };
    let name = path
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    METRICS.damaged_files.with_label_values(&[&name]).inc();
    log::error!(
        "{} is damaged: {error}; it was set aside as {}, and a new one was created",
        path.display(),
        aside.display()
    );
    Ok(())
}

/// Describes the damage of the database at `path`, if any.
///
/// # Errors
/// Returns an error if the file cannot be read for another reason.
pub fn find_damage(path: &Path, shape: &DatabaseSpec) -> Result<Option<String>, StoreError> {
    match check(path, shape) {
        Err(error) if is_damage(&error) => Ok(Some(error.to_string())),
        outcome => outcome.map(|_| None),
    }
}

/// Checks the file. Returns the connection that read it, or `None` for an empty or missing file.
///
/// # Errors
/// Returns an error if the file is damaged, or cannot be read.
fn check(path: &Path, shape: &DatabaseSpec) -> Result<Option<Connection>, StoreError> {
    let operation = "check the database";
    let Ok(metadata) = std::fs::metadata(path) else {
        return Ok(None);
    };
    if metadata.len() == 0 {
        return Ok(None);
    }
    let query = match metadata.len() <= MAX_CHECKED_BYTES {
        true => "PRAGMA quick_check(1)".to_owned(),
        false => format!("PRAGMA quick_check({})", shape.table),
    };
    let connection = sqlite::open(path, operation)?;
    let verdict: String = connection
        .query_row(&query, [], |row| row.get(0))
        .map_err(|source| StoreError::sqlite(operation, source))?;
    match verdict.as_str() {
        "ok" => check_schema(&connection, shape.migrations).map(|()| Some(connection)),
        _ => Err(damage_error(verdict)),
    }
}

/// Returns the error for a damaged database. `what` describes the damage.
pub fn damage_error(what: String) -> StoreError {
    StoreError::io(
        "check the database",
        io::Error::new(io::ErrorKind::InvalidData, what),
    )
}

/// Checks that the file has the tables and columns of its applied `migrations`. A file of a newer
/// version is not checked, because opening it fails.
fn check_schema(connection: &Connection, migrations: &[&str]) -> Result<(), StoreError> {
    let operation = "check the database";
    let sql = |source| StoreError::sqlite(operation, source);
    let version: i64 = connection
        .pragma_query_value(None, "user_version", |row| row.get(0))
        .map_err(sql)?;
    let Some(applied) = usize::try_from(version)
        .ok()
        .and_then(|version| migrations.get(..version))
    else {
        return Ok(());
    };
    let mut fresh = Connection::open_in_memory().map_err(sql)?;
    sqlite::migrate(&mut fresh, applied, operation)?;
    let expected = columns(&fresh).map_err(sql)?;
    let found = columns(connection).map_err(sql)?;
    if let Some((table, column)) = expected.difference(&found).next() {
        return Err(damage_error(format!("{table} has no {column}")));
    }
    match found.first() {
        Some((table, _)) if applied.is_empty() => {
            Err(damage_error(format!("{table} is in a file of version 0")))
        }
        _ => Ok(()),
    }
}

/// Returns the name of the table and of the column for each column.
fn columns(connection: &Connection) -> rusqlite::Result<BTreeSet<(String, String)>> {
    let sql = "SELECT m.name, c.name FROM sqlite_schema AS m, pragma_table_info(m.name) AS c WHERE m.type = 'table'
      AND m.name NOT LIKE 'sqlite\\_%' ESCAPE '\\'";
    connection
        .prepare(sql)?
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect()
}

/// Returns whether an error means that a database is damaged.
pub fn is_damage(error: &StoreError) -> bool {
    match error {
        StoreError::Sqlite { source, .. } => is_sqlite_damage(source),
        StoreError::Io { source, .. } => source.kind() == io::ErrorKind::InvalidData,
        _ => false,
    }
}

/// Returns whether an error of SQLite means that a database is damaged.
pub fn is_sqlite_damage(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase)
    )
}

/// Moves a database aside, its log first: a new database must never have an old log beside it,
/// which SQLite would write into it.
fn move_aside(path: &Path) -> io::Result<PathBuf> {
    let time: String = clock::rfc3339(clock::now_ms())
        .chars()
        .filter(char::is_ascii_alphanumeric)
        .collect();
    let with = |suffix: &str| {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        PathBuf::from(name)
    };
    let aside = with(&format!(".damaged-{time}"));
    for log in ["-wal", "-shm"] {
        let mut name = aside.as_os_str().to_owned();
        name.push(log);
        match file_owner::rename(with(log), name) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    file_owner::rename(path, &aside)?;
    Ok(aside)
}
