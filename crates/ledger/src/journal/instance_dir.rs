//! Manages the directory of a process's journal, whose lock shows whether the process lives.
//!
//! This file must not read or write a record.

use crate::StoreError;
use crate::sqlite;
use base::file_owner;
use base::regular_file::open_regular_with;
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

pub(crate) const LOCK_FILE: &str = "lock";
pub(crate) const RESERVE_FILE: &str = "reserve";
/// Name of the lock file in a directory that was set aside after its replay.
pub(crate) const RETIRED_LOCK_FILE: &str = "lock.replayed";
/// Content of the lock file if every file in the directory has at least one line.
pub(crate) const NUMBERED_MARK: &[u8] = b"numbered\n";

pub struct InstanceDir {
    pub(crate) dir: PathBuf,
    pub instance_id: String,
    /// Lock that is held while the process lives, and shows that the directory is in use.
    _lock: File,
}

impl InstanceDir {
    /// Creates and locks a directory for this process.
    ///
    /// # Errors
    /// Returns an error if the directory cannot be created or locked.
    pub fn create(data_dir: &Path) -> Result<Self, StoreError> {
        let failed = |source| StoreError::io("create a journal folder", source);
        let instance_id = uuid::Uuid::now_v7().simple().to_string();
        let journals = data_dir.join("journal");
        // Rename the directory after locking, so that no other process takes it for a dead
        // process's directory.
        let unnamed = journals.join(format!(".{instance_id}"));
        sqlite::create_dir(&unnamed)?;
        let lock = open_lock(&unnamed).map_err(failed)?;
        lock.lock().map_err(failed)?;
        let dir = journals.join(&instance_id);
        file_owner::rename(&unnamed, &dir).map_err(failed)?;
        Ok(Self {
            dir,
            instance_id,
            _lock: lock,
        })
    }

    pub fn remove(self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// Lists the instances that have a journal, because they live or their journals were not replayed.
///
/// # Errors
/// Returns an error if the directory cannot be read.
pub fn instance_ids(data_dir: &Path) -> Result<Vec<String>, StoreError> {
    Ok(instance_dirs(data_dir)?
        .into_iter()
        .map(|(instance_id, _)| instance_id)
        .collect())
}

/// Lists the instances whose processes live, according to their locks.
///
/// # Errors
/// Returns an error if a directory or lock cannot be read; the caller must not treat any process as
/// dead in that case.
pub fn live_instance_ids(data_dir: &Path) -> Result<Vec<String>, StoreError> {
    let mut live = Vec::new();
    for (instance_id, dir) in instance_dirs(data_dir)? {
        if matches!(try_claim(&dir)?, LockState::Living) {
            live.push(instance_id);
        }
    }
    Ok(live)
}

pub(crate) fn instance_dirs(data_dir: &Path) -> Result<Vec<(String, PathBuf)>, StoreError> {
    let failed = |source| StoreError::io("list the journals", source);
    let entries = match file_owner::read_dir(&data_dir.join("journal")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed)?,
    };
    let mut folders = Vec::new();
    for entry in entries {
        let entry = entry.map_err(failed)?;
        let is_named = !entry.file_name().as_encoded_bytes().starts_with(b".");
        if is_named && entry.path().join(LOCK_FILE).exists() {
            folders.extend(
                entry
                    .file_name()
                    .into_string()
                    .ok()
                    .map(|instance_id| (instance_id, entry.path())),
            );
        }
    }
    folders.sort();
    Ok(folders)
}

pub(crate) enum LockState {
    /// A process holds the lock, or another process is checking it right now.
    Living,
    /// The owner is dead. This handle holds the lock exclusively.
    Left(File),
    /// The directory was just removed.
    Gone,
}

pub(crate) fn try_claim(dir: &Path) -> Result<LockState, StoreError> {
    let failed = |source| StoreError::io("check a journal's lock", source);
    // Never create the file here, because a directory that is being removed must stay empty.
    let file = match open_regular_with(OpenOptions::new().write(true), &dir.join(LOCK_FILE)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(LockState::Gone),
        file => file.map_err(failed)?,
    };
    match file.try_lock() {
        Ok(()) => Ok(LockState::Left(file)),
        Err(TryLockError::WouldBlock) => Ok(LockState::Living),
        Err(TryLockError::Error(error)) => Err(failed(error)),
    }
}

pub(crate) fn open_lock(dir: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let options = options.create(true).truncate(false).write(true).mode(0o600);
    open_regular_with(options, &dir.join(LOCK_FILE))
}

/// Clears the mark that every file has a line. It must be cleared before a directory is removed, so
/// that an interrupted removal does not look like missing files.
pub(crate) fn clear_numbered_mark(dir: &Path) -> io::Result<()> {
    match open_regular_with(OpenOptions::new().write(true), &dir.join(LOCK_FILE)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        lock => lock?.set_len(0),
    }
}
