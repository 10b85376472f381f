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
const SUCCESSOR: &str = "successor.lock";
/// Whoever only looks holds a lock for a moment.
const LOOKS_ARE_OVER: Duration = Duration::from_millis(200);
const LOOK: Duration = Duration::from_millis(5);
/// How long a start waits for a process that is just ending.
const START_PATIENCE: Duration = Duration::from_secs(2);
/// How long a successor waits until it is handed the right to serve.
const UPGRADE_PATIENCE: Duration = Duration::from_secs(60);

/// The right to admit; given up when dropped.
pub struct Owner(#[expect(dead_code, reason = "the lock is what it is for")] File);

/// Takes the right as the successor of whoever has it: waits until that hands over.
///
/// # Errors
/// As [`take`]; or another successor waits.
pub fn succeed(data_dir: &Path) -> Result<Owner, StoreError> {
    let announced = announce(data_dir)?;
    // Not before: whoever reads it sends the signal at once, and that finds nobody who has not
    // announced itself.
    log::info!("waiting for the running gateway to hand over: send it SIGQUIT");
    let owner = take(data_dir, UPGRADE_PATIENCE);
    drop(announced);
    owner
}

/// Takes the right where nobody has it, but for a process that is just ending.
///
/// # Errors
/// As [`take`].
pub fn begin(data_dir: &Path) -> Result<Owner, StoreError> {
    take(data_dir, START_PATIENCE)
}

/// Takes the right, waiting for whoever has it.
///
/// # Errors
/// Another process keeps it for longer than `patience`, or the file cannot be opened.
fn take(data_dir: &Path, patience: Duration) -> Result<Owner, StoreError> {
    let failed = |source| StoreError::io("take the right to serve", source);
    let began = Instant::now();
    let mut file = open(data_dir, FILE).map_err(failed)?;
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

/// The process that has the right, where one has.
///
/// # Errors
/// It cannot be told.
pub fn served_by(data_dir: &Path) -> Result<Option<i32>, StoreError> {
    if !is_taken(data_dir)? {
        return Ok(None);
    }
    let failed = |source| StoreError::io("look who serves", source);
    let pid = std::fs::read_to_string(data_dir.join(FILE)).map_err(failed)?;
    Ok(pid.trim().parse().ok())
}

/// Some process has the right. Several may look at once; [`take`] waits for those who do.
///
/// # Errors
/// It cannot be told.
pub fn is_taken(data_dir: &Path) -> Result<bool, StoreError> {
    is_locked(data_dir, FILE)
}

/// Announces a successor for as long as the file is held.
///
/// # Errors
/// There is one already, or the file cannot be opened.
fn announce(data_dir: &Path) -> Result<File, StoreError> {
    let failed = |source| StoreError::io("announce a successor", source);
    let file = open(data_dir, SUCCESSOR).map_err(failed)?;
    let began = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::Error(error)) => return Err(failed(error)),
            Err(TryLockError::WouldBlock) if began.elapsed() > LOOKS_ARE_OVER => {
                return Err(StoreError::Unusable(format!(
                    "another successor waits for {}",
                    data_dir.display()
                )));
            }
            Err(TryLockError::WouldBlock) => std::thread::sleep(LOOK),
        }
    }
}

/// # Errors
/// No successor waits for the right, or it cannot be told.
pub fn expect_successor(data_dir: &Path) -> Result<(), StoreError> {
    if is_locked(data_dir, SUCCESSOR)? {
        return Ok(());
    }
    let message = "no successor waits: begin one with --upgrade before this process gets SIGQUIT";
    Err(StoreError::Refused(message.into()))
}

fn is_locked(data_dir: &Path, name: &str) -> Result<bool, StoreError> {
    let failed = |source| StoreError::io("look who serves", source);
    match open(data_dir, name).map_err(failed)?.try_lock_shared() {
        Ok(()) => Ok(false),
        Err(TryLockError::WouldBlock) => Ok(true),
        Err(TryLockError::Error(error)) => Err(failed(error)),
    }
}

fn open(data_dir: &Path, name: &str) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(data_dir.join(name))
}
