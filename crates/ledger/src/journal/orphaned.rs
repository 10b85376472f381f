//! Handles the journal of a dead process: claims it, reads it, and then removes it or sets it
//! aside.
//!
//! This file must not touch the journal of a process that lives.

use super::instance_dir::{
    LOCK_FILE, LockState, RESERVE_FILE, RETIRED_LOCK_FILE, clear_numbered_mark, instance_dirs,
    try_claim,
};
use super::read::read_endings;
use crate::Ending;
use crate::StoreError;
use base::file_owner;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub struct OrphanedJournal {
    pub dir: PathBuf,
    pub instance_id: String,
    lock: File,
}

/// Claims the journals of dead processes, oldest first. They remain claimed until they are dropped.
///
/// # Errors
/// Returns an error if a directory cannot be read or locked.
pub fn claim_orphaned(data_dir: &Path) -> Result<Vec<OrphanedJournal>, StoreError> {
    let mut orphaned = Vec::new();
    for (instance_id, dir) in instance_dirs(data_dir)? {
        // A command that checks for living processes holds each lock briefly, so one failed attempt
        // does not prove that the process lives.
        for _ in 0..3 {
            match try_claim(&dir)? {
                LockState::Living => std::thread::sleep(Duration::from_millis(3)),
                LockState::Gone => break,
                LockState::Left(lock) => {
                    orphaned.push(OrphanedJournal {
                        dir,
                        instance_id,
                        lock,
                    });
                    break;
                }
            }
        }
    }
    Ok(orphaned)
}

impl OrphanedJournal {
    /// Returns the ending of every request in the journal, and the number of damaged or missing
    /// lines and files. A torn last line does not count, because the client of that request never
    /// got the end of its response.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read.
    pub fn endings(&self) -> Result<(Vec<Ending>, usize), StoreError> {
        read_endings(&self.dir)
    }

    /// Removes an unused reserve, because the replay may have to write to a full disk.
    pub fn remove_reserve(&self) {
        let reserve = self.dir.join(RESERVE_FILE);
        if std::fs::metadata(&reserve).is_ok_and(|reserve| reserve.len() == 0)
            && let Err(error) = std::fs::remove_file(&reserve)
        {
            log::debug!(
                "cannot remove the reserve of the journal of instance {}: {error}",
                self.instance_id
            );
        }
    }

    /// Removes the journal once the ledger has all its records. A damaged one is set aside instead.
    ///
    /// # Errors
    /// Returns an error if the directory cannot be removed or renamed.
    pub fn remove(self, damaged: usize) -> Result<(), StoreError> {
        let failed = |source| StoreError::io("remove a replayed journal", source);
        if damaged > 0 {
            let aside = self.dir.with_extension("damaged");
            file_owner::rename(self.dir.join(LOCK_FILE), self.dir.join(RETIRED_LOCK_FILE))
                .map_err(failed)?;
            return file_owner::rename(&self.dir, aside).map_err(failed);
        }
        clear_numbered_mark(&self.dir)
            .and_then(|()| std::fs::remove_dir_all(&self.dir))
            .map_err(failed)?;
        drop(self.lock);
        Ok(())
    }
}

/// Claims the journal directory of one dead process.
///
/// # Errors
/// Returns an error if a running process owns the directory or it cannot be locked.
pub fn claim_journal(dir: &Path) -> Result<OrphanedJournal, StoreError> {
    let unusable = |what: &str| Err(StoreError::Unusable(format!("{} is {what}", dir.display())));
    let lock = match try_claim(dir)? {
        LockState::Left(lock) => lock,
        LockState::Living => return unusable("in use by a running gateway"),
        LockState::Gone => return unusable("not a journal folder"),
    };
    let instance_id = dir
        .file_name()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default();
    Ok(OrphanedJournal {
        dir: dir.to_owned(),
        instance_id,
        lock,
    })
}
