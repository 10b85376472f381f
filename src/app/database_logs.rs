//! Writes the logs of SQLite files back into the files. This happens for all files at a clean stop,
//! so that each is complete without its log, and every hour for files from which personal data is
//! deleted.
//!
//! A log keeps deleted data until it is emptied. This file must not create a database.

use ledger::sqlite;
use std::io;
use std::path::Path;
use std::time::Duration;

/// Names of the files from which personal data is deleted.
const ERASED_FILES: [&str; 3] = ["app.db", "idempotency.db", "refused.db"];
const INTERVAL: Duration = Duration::from_secs(3_600);

/// Waits until [`start`] should empty the logs again. Returns true, because it never gives up.
pub fn wait_an_hour() -> bool {
    std::thread::sleep(INTERVAL);
    true
}

/// Starts the thread that empties logs each time that `wait` returns true. It ends with the first
/// false.
///
/// # Errors
/// Returns an error if the thread cannot be started.
pub fn start(data_dir: &Path, mut wait: impl FnMut() -> bool + Send + 'static) -> io::Result<()> {
    let data_dir = data_dir.to_owned();
    let run = move || {
        while wait() {
            if let Err(error) = sqlite::truncate_logs(&data_dir, &ERASED_FILES) {
                log::warn!("{error}; retrying in an hour");
            }
        }
    };
    std::thread::Builder::new()
        .name("database-logs".into())
        .spawn(run)
        .map(drop)
}

/// Writes all logs back at the end of the process.
pub fn write_back(data_dir: &Path) {
    if let Err(error) = sqlite::truncate_logs(data_dir, &[]) {
        log::warn!("{error}; nothing is lost, the log has what the file lacks");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    const NAMES: [&str; 3] = ["app.db", "idempotency.db", "refused.db"];

    #[test]
    fn each_turn_empties_the_logs_of_the_files_with_personal_data() {
        let dir = tempfile::tempdir().unwrap();
        let other = "ledger.db";
        let databases = NAMES.iter().chain([&other]).map(|name| {
            let database = sqlite::open(&dir.path().join(name), "open a file").unwrap();
            database.execute_batch("CREATE TABLE t(a TEXT)").unwrap();
            database
        });
        let databases: Vec<_> = databases.collect();
        let log_bytes = |name: &str| {
            let log = dir.path().join(format!("{name}-wal"));
            std::fs::metadata(log).unwrap().len()
        };
        let (turn, turns) = mpsc::sync_channel(0);
        start(dir.path(), move || turns.recv().is_ok()).unwrap();
        for _ in 0..2 {
            for database in &databases {
                database.execute_batch("INSERT INTO t VALUES('x')").unwrap();
            }
            // The second one is taken once the first one has ended.
            turn.send(()).unwrap();
            turn.send(()).unwrap();
            for name in NAMES {
                assert_eq!(log_bytes(name), 0, "{name}");
            }
            assert!(log_bytes(other) > 0);
        }
    }
}
