//! Databases that hold nothing the ledger does not know: one that is damaged is set aside and made anew, so that the
//! gateway starts. Must not be used for `ledger.db` and `app.db`.

use super::StoreError;
use super::sqlite;
use crate::clock;
use crate::telemetry::METRICS;
use rusqlite::ErrorCode;
use std::io;
use std::path::{Path, PathBuf};

/// A file up to this size is read through at the start, in bytes: some tenths of a second.
const READ_THROUGH_MAX: u64 = 268_435_456;

/// Opens the database at `path` by `open`. A damaged one is renamed to `<name>.damaged-<time>` with its log first.
/// Called once a process, before anything else opens the file. Of a file above 256 MiB only `table` is read through.
///
/// # Errors
/// What `open` fails with, but for damage; or a damaged file cannot be renamed.
pub fn open_or_renew<T>(path: &Path, table: &str, open: impl Fn() -> Result<T, StoreError>) -> Result<T, StoreError> {
    let error = match check(path, table).and_then(|()| open()) {
        Err(error) if is_damage(&error) => error,
        outcome => return outcome,
    };
    let aside = set_aside(path).map_err(|source| StoreError::io("set a damaged database aside", source))?;
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    METRICS.damaged_files.with_label_values(&[&name]).inc();
    log::error!("{}: {error}; set aside as {} and made anew", path.display(), aside.display());
    open()
}

/// # Errors
/// The file is damaged, or cannot be read.
fn check(path: &Path, table: &str) -> Result<(), StoreError> {
    let operation = "check a database";
    let Ok(metadata) = std::fs::metadata(path) else { return Ok(()) };
    if metadata.len() == 0 {
        return Ok(());
    }
    let question = match metadata.len() <= READ_THROUGH_MAX {
        true => "PRAGMA quick_check(1)".to_owned(),
        false => format!("PRAGMA quick_check({table})"),
    };
    let verdict: String = sqlite::open(path, operation)?
        .query_row(&question, [], |row| row.get(0))
        .map_err(|source| StoreError::sqlite(operation, source))?;
    match verdict.as_str() {
        "ok" => Ok(()),
        _ => Err(StoreError::io(operation, io::Error::new(io::ErrorKind::InvalidData, verdict))),
    }
}

fn is_damage(error: &StoreError) -> bool {
    match error {
        StoreError::Sqlite { source, .. } => {
            matches!(source.sqlite_error_code(), Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase))
        }
        StoreError::Io { source, .. } => source.kind() == io::ErrorKind::InvalidData,
        _ => false,
    }
}

/// The log goes first: a new database must never be opened beside an old log, which would be carried into it.
fn set_aside(path: &Path) -> io::Result<PathBuf> {
    let time: String = clock::rfc3339(clock::now_ms()).chars().filter(char::is_ascii_alphanumeric).collect();
    let with = |suffix: &str| {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        PathBuf::from(name)
    };
    let aside = with(&format!(".damaged-{time}"));
    for log in ["-wal", "-shm"] {
        let mut name = aside.as_os_str().to_owned();
        name.push(log);
        match std::fs::rename(with(log), name) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    std::fs::rename(path, &aside)?;
    Ok(aside)
}

#[cfg(test)]
mod tests {
    use crate::store::holds::HeldMirror;
    use crate::store::idempotency::IdempotencyDb;
    use std::fs;
    use std::path::Path;

    /// The files in `dir` that were set aside of `name`.
    fn aside(dir: &Path, name: &str) -> usize {
        let files = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        files.filter(|file| file.starts_with(&format!("{name}.damaged-")) && !file.ends_with("-wal")).count()
    }

    /// Opens each, as a start does.
    fn open(dir: &Path) {
        HeldMirror::begin(dir).unwrap();
        IdempotencyDb::open(dir).unwrap();
    }

    #[test]
    fn a_damaged_mirror_and_idempotency_store_are_set_aside_and_made_anew() {
        let bad_page = |bytes: &mut Vec<u8>, page: usize| {
            let size = usize::from(u16::from_be_bytes([bytes[16], bytes[17]]));
            bytes[page * size..(page + 1) * size].fill(0xa5);
        };
        type Damage<'a> = &'a dyn Fn(&mut Vec<u8>);
        let damages: [Damage<'_>; 5] = [
            &|bytes| bytes.fill(b'x'),
            &|bytes| bytes.truncate(bytes.len() / 2),
            &|bytes| bytes[..16].fill(0),
            &|bytes| bad_page(bytes, 1),
            &|bytes| bad_page(bytes, 2),
        ];
        for (number, damage) in damages.iter().enumerate() {
            for name in ["holds.db", "idempotency.db"] {
                let dir = tempfile::tempdir().unwrap();
                open(dir.path());
                assert_eq!(aside(dir.path(), name), 0, "what is sound stays");
                let path = dir.path().join(name);
                let mut bytes = fs::read(&path).unwrap();
                damage(&mut bytes);
                fs::write(&path, bytes).unwrap();
                open(dir.path());
                assert_eq!(aside(dir.path(), name), 1, "damage {number} of {name}");
                open(dir.path());
                assert_eq!(aside(dir.path(), name), 1, "once");
            }
        }
    }
}
