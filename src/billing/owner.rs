//! Which process admits requests on a data folder: one at a time, told by a lock that dies with it.
//!
//! Must not know balances.

use crate::store::StoreError;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

const FILE: &str = "serving.lock";
const LOOK: Duration = Duration::from_millis(5);

/// The right to admit; given up when dropped.
pub struct Owner(#[expect(dead_code, reason = "the lock is what it is for")] File);

/// Takes the right, waiting for whoever has it.
///
/// # Errors
/// Another process keeps it for longer than `patience`, or the file cannot be opened.
pub fn take(data_dir: &Path, patience: Duration) -> Result<Owner, StoreError> {
    let failed = |source| StoreError::io("take the right to serve", source);
    let began = Instant::now();
    let mut file = open(data_dir).map_err(failed)?;
    loop {
        match file.try_lock() {
            Ok(()) => break,
            Err(TryLockError::Error(error)) => return Err(failed(error)),
            Err(TryLockError::WouldBlock) if began.elapsed() >= patience => {
                let mut pid = String::new();
                let _ = file.read_to_string(&mut pid);
                return Err(StoreError::Unusable(format!(
                    "{} is served by process {}: stop it first, or begin with --upgrade and tell that one SIGQUIT",
                    data_dir.display(),
                    pid.trim(),
                )));
            }
            Err(TryLockError::WouldBlock) => std::thread::sleep(LOOK),
        }
    }
    file.set_len(0)
        .and_then(|()| file.rewind())
        .and_then(|()| writeln!(file, "{}", std::process::id()))
        .map_err(failed)?;
    Ok(Owner(file))
}

/// Some process has the right. One that only looks, as this does, has the lock for a moment: that may be mistaken for it.
pub fn is_taken(data_dir: &Path) -> bool {
    open(data_dir).is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
}

fn open(data_dir: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(data_dir.join(FILE))
}
