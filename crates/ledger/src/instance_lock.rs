//! Locks a data directory. One process at a time admits requests on a directory, and the lock ends
//! with its process.
//!
//! This file must not depend on balances.

use crate::StoreError;
use base::file_owner;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

const LOCK_FILE: &str = "serving.lock";
const SUCCESSOR_LOCK_FILE: &str = "successor.lock";
/// Time for which to retry while other processes probe a lock. A probe holds the lock only briefly.
const PROBE_LOCK_TIMEOUT: Duration = Duration::from_millis(200);
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Time that a starting process waits for one that is shutting down.
const START_TIMEOUT: Duration = Duration::from_secs(2);
/// Time that a successor waits for the handover.
const UPGRADE_TIMEOUT: Duration = Duration::from_secs(60);

/// The right to admit requests. Dropping the value releases the lock.
pub struct InstanceLock(#[expect(dead_code, reason = "the lock is what it is for")] File);

/// Acquires the lock as the successor of the process that holds it, once that process hands over.
///
/// # Errors
/// Returns the errors of [`acquire_within`], and an error if another successor waits.
pub fn acquire_as_successor(data_dir: &Path) -> Result<InstanceLock, StoreError> {
    let announced = announce_successor(data_dir)?;
    // Log only after the announcement. The operator sends the signal on reading this line, and the
    // running gateway refuses a handover without an announced successor.
    log::info!("waiting for the running gateway to hand over; send SIGQUIT to it");
    let owner = acquire_within(data_dir, UPGRADE_TIMEOUT);
    drop(announced);
    owner
}

/// Acquires the lock if no process holds it. Waits briefly for a process that is shutting down.
///
/// # Errors
/// Returns the errors of [`acquire_within`].
pub fn acquire(data_dir: &Path) -> Result<InstanceLock, StoreError> {
    acquire_within(data_dir, START_TIMEOUT)
}

/// Acquires the lock, and waits for a process that holds it.
///
/// # Errors
/// Returns an error if another process keeps the lock longer than `timeout`, or if the file cannot
/// be opened.
fn acquire_within(data_dir: &Path, timeout: Duration) -> Result<InstanceLock, StoreError> {
    let failed = |source| StoreError::io("lock the data folder", source);
    let began = Instant::now();
    let mut file = open_lock_file(data_dir, LOCK_FILE).map_err(failed)?;
    loop {
        match file.try_lock() {
            Ok(()) => break,
            Err(TryLockError::Error(error)) => return Err(failed(error)),
            Err(TryLockError::WouldBlock) if began.elapsed() >= timeout => {
                let mut pid = String::new();
                let _ = file.read_to_string(&mut pid);
                return Err(StoreError::Unusable(format!(
                    "{} is served by process {}: stop that process first, or start with --upgrade and send SIGQUIT to it",
                    data_dir.display(),
                    pid.trim(),
                )));
            }
            Err(TryLockError::WouldBlock) => std::thread::sleep(POLL_INTERVAL),
        }
    }
    file.set_len(0)
        .and_then(|()| file.rewind())
        .and_then(|()| writeln!(file, "{}", std::process::id()))
        .map_err(failed)?;
    Ok(InstanceLock(file))
}

/// Returns the PID of the process that holds the lock, if any.
///
/// # Errors
/// Returns an error if the lock file cannot be opened or read.
pub fn serving_pid(data_dir: &Path) -> Result<Option<i32>, StoreError> {
    if !is_held(data_dir)? {
        return Ok(None);
    }
    let failed = |source| StoreError::io("check which process serves the data folder", source);
    let pid = std::fs::read_to_string(data_dir.join(LOCK_FILE)).map_err(failed)?;
    Ok(pid.trim().parse().ok())
}

/// Returns whether some process holds the lock. Several processes may probe at once;
/// [`acquire_within`] waits for them.
///
/// # Errors
/// Returns an error if the lock file cannot be opened.
pub fn is_held(data_dir: &Path) -> Result<bool, StoreError> {
    is_locked(data_dir, LOCK_FILE)
}

/// Announces a successor for as long as the returned file is open.
///
/// # Errors
/// Returns an error if another successor is announced or the file cannot be opened.
fn announce_successor(data_dir: &Path) -> Result<File, StoreError> {
    let failed = |source| StoreError::io("announce a successor", source);
    let file = open_lock_file(data_dir, SUCCESSOR_LOCK_FILE).map_err(failed)?;
    let began = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::Error(error)) => return Err(failed(error)),
            Err(TryLockError::WouldBlock) if began.elapsed() > PROBE_LOCK_TIMEOUT => {
                return Err(StoreError::Unusable(format!(
                    "another process already waits to take over {}",
                    data_dir.display()
                )));
            }
            Err(TryLockError::WouldBlock) => std::thread::sleep(POLL_INTERVAL),
        }
    }
}

/// Checks that a successor waits.
///
/// # Errors
/// Returns an error if no successor waits or the lock file cannot be opened.
pub fn check_successor(data_dir: &Path) -> Result<(), StoreError> {
    if is_locked(data_dir, SUCCESSOR_LOCK_FILE)? {
        return Ok(());
    }
    let message = "no successor waits: start one with --upgrade before you send SIGQUIT";
    Err(StoreError::Refused(message.into()))
}

fn is_locked(data_dir: &Path, name: &str) -> Result<bool, StoreError> {
    let failed = |source| StoreError::io("check which process serves the data folder", source);
    match open_lock_file(data_dir, name)
        .map_err(failed)?
        .try_lock_shared()
    {
        Ok(()) => Ok(false),
        Err(TryLockError::WouldBlock) => Ok(true),
        Err(TryLockError::Error(error)) => Err(failed(error)),
    }
}

fn open_lock_file(data_dir: &Path, name: &str) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).create(true).truncate(false);
    file_owner::open(options.mode(0o600), &data_dir.join(name))
}
