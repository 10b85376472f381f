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

/// Starts the thread that empties logs every hour.
///
/// # Errors
/// Returns an error if the thread cannot be started.
pub fn start(data_dir: &Path) -> io::Result<()> {
    let data_dir = data_dir.to_owned();
    let run = move || loop {
        std::thread::sleep(INTERVAL);
        if let Err(error) = sqlite::truncate_logs(&data_dir, &ERASED_FILES) {
            log::warn!("{error}; retrying in an hour");
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
