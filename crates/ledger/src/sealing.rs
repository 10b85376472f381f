//! Seals the ledger's oldest entries: writes them to a segment, and then deletes their ends of
//! requests.
//!
//! The order of steps makes a crash harmless at any moment. The file is written under another name,
//! read back, synced and renamed; then one transaction records it; only then are entries deleted
//! from `entry`, which the trigger `entry_is_never_removed` refuses earlier. The next run finishes
//! or discards incomplete work. A file lock ensures that one process at a time seals or archives.
//! The process rests as long as it works, so that the ledger writer can continue. This module must
//! not decide when to seal: `billing/retention.rs` does.

pub(crate) mod archive;
mod balance_merge;
mod entries;
mod resume;

use super::entry::{ENTRY_COLUMNS, LedgerEntry, entry};
use super::index::MAX_INDEX_BATCH;
use super::segment::{
    InstallationKey, SealedBalance, SegmentFault, SegmentManifest, SegmentReader, SegmentStart,
    SegmentWriter,
};
use crate::StoreError;
use crate::entry::hex::encode_hex;
use crate::sealed::files::{SegmentRecord, sealed_end, segment_of};
use crate::sqlite;
use crate::views::Segments;
use balance_merge::{BalanceMerge, ChangedBalance};
use base::failpoint::{self, Point};
use base::file_owner;
use base::regular_file::{open_regular, open_regular_with};
use rusqlite::{OptionalExtension, params};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Maximum number of rows that one transaction deletes or writes.
pub(crate) const MAX_ROWS: i64 = 1_024;
const MIN_ROWS: i64 = 64;
/// Duration of a transaction above which the next one is made smaller, so that the ledger writer
/// does not wait.
const MAX_WRITE_TIME: Duration = Duration::from_millis(10);
/// Number of entries in one read.
const READ_ROWS: i64 = 1_024;
/// Interval at which an audit checks whether another process is still sealing.
const LOCK_INTERVAL: Duration = Duration::from_millis(50);
/// Maximum pause after a step.
const MAX_REST: Duration = Duration::from_millis(250);
const LOCK_FILE: &str = "lock";
/// Extension of a file that is being written.
pub(crate) const PARTIAL: &str = "partial";
const EXTENSION: &str = "segment";

/// SQL that deletes ends of requests. The sign before `kind` keeps SQLite from using the index of
/// kinds, in which it would read all ends of requests.
const DELETE_ENDINGS: &str =
    "DELETE FROM entry WHERE seq > ?1 AND seq <= ?2 AND +kind IN ('debit', 'void')";

/// Limits the pace of a long background job.
#[derive(Clone, Copy)]
pub struct BackgroundPace<'a> {
    /// Set by another thread once the job must end.
    pub stop: &'a AtomicBool,
}

impl BackgroundPace<'_> {
    /// Rests for as long as the last step took, which began at `began`.
    ///
    /// # Errors
    /// Returns an error if the job must end.
    pub(crate) fn rest(&self, began: Instant) -> Result<(), StoreError> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(StoreError::Refused("stopped: this process ends".into()));
        }
        std::thread::sleep(began.elapsed().min(MAX_REST));
        Ok(())
    }
}

/// The end of the range to seal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SealBoundary {
    /// All entries but the last one, to which the next entry is chained.
    Everything,
    /// Entries before this time, approximately.
    Before(i64),
    /// Entries before this time, and the oldest entries that exceed a maximum number.
    Full { before_ms: i64, entries: i64 },
}

/// The right to seal and archive. Dropping the value releases the lock.
pub struct SegmentLock(File);

/// Unlocks the file explicitly. Closing it would not be enough: a child process that another thread
/// has just forked keeps it open until it runs its own program.
impl Drop for SegmentLock {
    fn drop(&mut self) {
        let _ = self.0.unlock();
    }
}

/// Entries that are to become a segment.
struct SegmentDraft {
    path: PathBuf,
    manifest: SegmentManifest,
    sha256: Vec<u8>,
    ended_until_ms: i64,
    /// Balances of the accounts that these entries change.
    changed: Vec<SealedBalance>,
}

impl Segments<'_> {
    /// Finishes the work of an earlier run, and then seals up to `boundary`, in segments of at most
    /// `entries_per_segment`. Returns the new segments.
    ///
    /// # Errors
    /// Returns an error if another process seals, or if a file or the ledger cannot be read or
    /// written; the ledger then still has every entry that is in no segment.
    pub fn seal(
        &self,
        boundary: SealBoundary,
        entries_per_segment: i64,
        pace: BackgroundPace<'_>,
        now_ms: i64,
    ) -> Result<Vec<SegmentRecord>, StoreError> {
        let _lock = self.lock_segments()?;
        self.resume_sealing(pace)?;
        let through = self.indexed_through(self.sealable_through(boundary)?, pace)?;
        let mut sealed = Vec::new();
        loop {
            let (done, _) = self
                .0
                .read("read how far the ledger is sealed", sealed_end)?;
            if done >= through {
                return Ok(sealed);
            }
            let last = through.min(done.saturating_add(entries_per_segment.max(1)));
            sealed.push(self.seal_segment(done, last, pace, now_ms)?);
        }
    }

    /// Indexes the entries up to `through`, and returns the last indexed position. An entry that
    /// the index lacks is not sealed, because the index reads the ledger and not the segments.
    fn indexed_through(&self, through: i64, pace: BackgroundPace<'_>) -> Result<i64, StoreError> {
        loop {
            let began = Instant::now();
            let indexed = self.0.index.position()?.seq;
            if indexed >= through || self.0.index().catch_up_index(MAX_INDEX_BATCH)? == 0 {
                return Ok(through.min(indexed));
            }
            pace.rest(began)?;
        }
    }

    /// Prevents sealing and archiving for as long as the result lives, so no entry moves during a
    /// walk. Waits for a running sealing round. Returns `None` if no entry has been sealed yet.
    ///
    /// # Errors
    /// Returns an error if that takes longer than `timeout`.
    pub fn pause_sealing(&self, timeout: Duration) -> Result<Option<SegmentLock>, StoreError> {
        // Open the file for reading, because an audit works on a read-only disk.
        let Ok(file) = open_regular(&self.0.segments.dir().join(LOCK_FILE)) else {
            return Ok(None);
        };
        let began = Instant::now();
        while let Err(TryLockError::WouldBlock) = file.try_lock_shared() {
            if began.elapsed() >= timeout {
                return Err(StoreError::Refused(
                    "another process seals or archives this ledger: try again when it has ended"
                        .into(),
                ));
            }
            std::thread::sleep(LOCK_INTERVAL);
        }
        Ok(Some(SegmentLock(file)))
    }

    /// Returns whether some process seals, archives or audits the ledger.
    pub fn is_sealing_paused(&self) -> bool {
        let Ok(file) = open_regular(&self.0.segments.dir().join(LOCK_FILE)) else {
            return false;
        };
        match file.try_lock() {
            Ok(()) => {
                drop(SegmentLock(file));
                false
            }
            Err(error) => matches!(error, TryLockError::WouldBlock),
        }
    }

    fn lock_segments(&self) -> Result<SegmentLock, StoreError> {
        let failed = |source| StoreError::io("lock the folder of segments", source);
        sqlite::create_dir(self.0.segments.dir())?;
        let mut options = OpenOptions::new();
        let options = options.create(true).write(true).truncate(false).mode(0o600);
        let file =
            open_regular_with(options, &self.0.segments.dir().join(LOCK_FILE)).map_err(failed)?;
        match file.try_lock() {
            Ok(()) => Ok(SegmentLock(file)),
            Err(TryLockError::WouldBlock) => Err(StoreError::Refused(
                "another process seals, archives or audits this ledger: wait until it has ended"
                    .into(),
            )),
            Err(TryLockError::Error(source)) => Err(failed(source)),
        }
    }

    /// Returns the last entry to seal, which is never the ledger's last one.
    fn sealable_through(&self, boundary: SealBoundary) -> Result<i64, StoreError> {
        self.0.read("look for entries to seal", |connection| {
            let (done, _) = sealed_end(connection)?;
            let newest: i64 =
                connection.query_row("SELECT ifnull(max(seq), 0) FROM entry", [], |row| {
                    row.get(0)
                })?;
            let end = newest - 1;
            let (before_ms, most) = match boundary {
                SealBoundary::Everything => return Ok(end),
                SealBoundary::Before(before_ms) => (before_ms, i64::MAX),
                SealBoundary::Full { before_ms, entries } => (before_ms, entries),
            };
            let mut at = connection.prepare_cached("SELECT at FROM entry WHERE seq = ?1")?;
            // Entries are in the order of time, except for a few that were entered late.
            let (mut from, mut to) = (done + 1, end + 1);
            while from < to {
                let middle = from + (to - from) / 2;
                let is_before = at
                    .query_row([middle], |row| row.get::<_, i64>(0))
                    .optional()?
                    .is_some_and(|at_ms| at_ms < before_ms);
                if is_before {
                    from = middle + 1;
                } else {
                    to = middle;
                }
            }
            let by_time = from - 1;
            // Seal whole segments only. The rest waits until it fills a segment.
            let full = (end - done) / most.max(1) * most.max(1);
            Ok(by_time.max(done.saturating_add(full)))
        })
    }

    fn seal_segment(
        &self,
        done: i64,
        last: i64,
        pace: BackgroundPace<'_>,
        now_ms: i64,
    ) -> Result<SegmentRecord, StoreError> {
        let key = self.installation_key()?;
        let draft = self.write_segment(done, last, pace, now_ms, &key)?;
        self.check_written(&draft)?;
        for rows in draft.changed.chunks(usize::try_from(MAX_ROWS).unwrap_or(1)) {
            let began = Instant::now();
            self.store_balances(rows, last)?;
            pace.rest(began)?;
        }
        let file = format!("{:012}-{last:012}.{EXTENSION}", done + 1);
        let failed = |source| StoreError::io("finish a segment", source);
        file_owner::rename(&draft.path, self.0.segments.dir().join(&file)).map_err(failed)?;
        sqlite::sync_dir(self.0.segments.dir()).map_err(failed)?;
        failpoint::hit(Point::SegmentRenamed);
        let bytes = std::fs::metadata(self.0.segments.dir().join(&file)).map_err(failed)?;
        self.record_segment(&draft, &file, bytes.len())?;
        failpoint::hit(Point::AfterSegmentRecord);
        let segment = self.recorded_segment(done + 1)?;
        self.delete_endings(&segment, pace)?;
        self.recorded_segment(done + 1)
    }

    /// Returns the identity of the installation, and creates it before the first segment.
    fn installation_key(&self) -> Result<InstallationKey, StoreError> {
        let sql = |source| StoreError::sqlite("read the installation's key", source);
        let read =
            |connection: &rusqlite::Connection| -> rusqlite::Result<Option<(String, Vec<u8>)>> {
                connection
                    .query_row("SELECT id, signing_key FROM installation", [], |row| {
                        Ok((row.get(0)?, row.get(1)?))
                    })
                    .optional()
            };
        let mut writer = self.0.writer();
        if read(&writer).map_err(sql)?.is_none() {
            let (id, pkcs8) = InstallationKey::generate().map_err(StoreError::Unusable)?;
            let transaction = writer.begin().map_err(sql)?;
            transaction
                .execute(
                    "INSERT OR IGNORE INTO installation (only_row, id, signing_key, sealed_through, sealed_until)
                     VALUES (1, ?1, ?2, 0, ?3)",
                    params![id, pkcs8, i64::MIN],
                )
                .map_err(sql)?;
            transaction.commit().map_err(sql)?;
        }
        let (id, pkcs8) = read(&writer)
            .map_err(sql)?
            .ok_or_else(|| StoreError::Unusable("the ledger has no installation".into()))?;
        InstallationKey::from_pkcs8(id, &pkcs8).map_err(StoreError::Unusable)
    }

    fn write_segment(
        &self,
        done: i64,
        last: i64,
        pace: BackgroundPace<'_>,
        now_ms: i64,
        key: &InstallationKey,
    ) -> Result<SegmentDraft, StoreError> {
        let failed = |source| StoreError::io("write a segment", source);
        let path = self
            .0
            .segments
            .dir()
            .join(format!("{:012}-{last:012}.{PARTIAL}", done + 1));
        let previous = self
            .0
            .read("read the end of the last segment", |connection| {
                segment_of(connection, done)
            })?;
        let start = SegmentStart {
            first: done + 1,
            previous_hash: previous.map_or_else(|| vec![0; 32], |segment| segment.last_hash),
            sealed_at_ms: now_ms,
        };
        let mut writer = SegmentWriter::create(&path, start).map_err(failed)?;
        let mut changed: BTreeMap<String, ChangedBalance> = BTreeMap::new();
        let (mut after, mut ended_until_ms) = (done, i64::MIN);
        while after < last {
            let began = Instant::now();
            let entries = self.entries_between(after, last)?;
            let Some(end) = entries.last() else {
                return Err(StoreError::Unusable(format!(
                    "cannot seal: the ledger lacks entry {}; run `ledger verify`",
                    after + 1
                )));
            };
            after = end.seq;
            for entry in entries {
                let balance = changed.entry(entry.account.clone()).or_default();
                (balance.paid, balance.trial) = (entry.bal_paid, entry.bal_trial);
                balance.credited = balance.credited.plus(entry.credited());
                if entry.is_ending() {
                    ended_until_ms = ended_until_ms.max(entry.looked_up_until_ms());
                }
                writer.push(entry).map_err(failed)?;
            }
            pace.rest(began)?;
        }
        let mut balances = BalanceMerge::new(self.0, done, changed);
        let (manifest, sha256) = writer.finish(&mut balances, key).map_err(failed)?;
        Ok(SegmentDraft {
            path,
            manifest,
            sha256,
            ended_until_ms,
            changed: balances.into_changed(),
        })
    }

    fn entries_between(&self, after: i64, last: i64) -> Result<Vec<LedgerEntry>, StoreError> {
        self.0.read("read the entries to seal", |connection| {
            connection
                .prepare_cached(&format!(
                    "SELECT {ENTRY_COLUMNS} FROM entry WHERE seq > ?1 AND seq <= ?2 ORDER BY seq LIMIT ?3"
                ))?
                .query_map(params![after, last, READ_ROWS], entry)?
                .collect()
        })
    }

    /// Reads the file back, and checks all its content.
    fn check_written(&self, draft: &SegmentDraft) -> Result<(), StoreError> {
        let checked = SegmentReader::open(&draft.path).and_then(|reader| {
            let sha256 = reader.verify()?;
            match sha256 == draft.sha256 && *reader.manifest() == draft.manifest {
                true => Ok(()),
                false => Err(SegmentFault::Damaged("it is not what was written".into())),
            }
        });
        checked.map_err(|fault| {
            StoreError::Unusable(format!(
                "cannot seal: the segment {} cannot be read back ({fault}); check the disk",
                draft.path.display()
            ))
        })
    }

    fn store_balances(&self, rows: &[SealedBalance], through: i64) -> Result<(), StoreError> {
        let operation = "store the balances at the end of a segment";
        self.0.write(operation, |transaction| {
            let mut put = transaction.prepare_cached(
                "INSERT OR REPLACE INTO sealed_balance VALUES (?1, ?2, ?3, ?4, ?5)",
            )?;
            for row in rows {
                put.execute(params![
                    row.account,
                    through,
                    row.paid,
                    row.trial,
                    row.credited
                ])?;
            }
            Ok(())
        })
    }

    fn record_segment(
        &self,
        draft: &SegmentDraft,
        file: &str,
        bytes: u64,
    ) -> Result<(), StoreError> {
        let sql = |source| StoreError::sqlite("record a segment", source);
        let manifest = &draft.manifest;
        let mut writer = self.0.writer();
        let transaction = writer.begin().map_err(sql)?;
        let (done, _) = sealed_end(&transaction).map_err(sql)?;
        let heads = |seq: i64| -> rusqlite::Result<Option<Vec<u8>>> {
            transaction
                .query_row("SELECT hash FROM entry WHERE seq = ?1", [seq], |row| {
                    row.get(0)
                })
                .optional()
        };
        let last_hash = heads(manifest.last).map_err(sql)?.unwrap_or_default();
        let has_next = heads(manifest.last + 1).map_err(sql)?.is_some();
        let expected = encode_hex(&last_hash);
        if done + 1 != manifest.first || expected != manifest.last_hash || !has_next {
            return Err(StoreError::Unusable(format!(
                "cannot seal: the ledger changed beneath the segment of entries {} to {}",
                manifest.first, manifest.last
            )));
        }
        let previous: Option<Vec<u8>> = transaction
            .query_row(
                "SELECT last_hash FROM segment WHERE last = ?1",
                [done],
                |row| row.get(0),
            )
            .optional()
            .map_err(sql)?;
        transaction
            .execute(
                "INSERT INTO segment (first, last, previous_hash, last_hash, from_ms, to_ms, ended_until, endings,
                   accounts, file, bytes, sha256, sealed_at)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)",
                params![
                    manifest.first,
                    manifest.last,
                    previous.unwrap_or_else(|| vec![0; 32]),
                    last_hash,
                    manifest.from_ms,
                    manifest.to_ms,
                    draft.ended_until_ms,
                    manifest.endings().cast_signed(),
                    manifest.accounts.cast_signed(),
                    file,
                    bytes.cast_signed(),
                    draft.sha256,
                    manifest.sealed_at_ms,
                ],
            )
            .map_err(sql)?;
        transaction
            .execute(
                "UPDATE installation SET sealed_through = ?1, sealed_until = max(sealed_until, ?2)",
                [manifest.last, draft.ended_until_ms],
            )
            .map_err(sql)?;
        failpoint::hit(Point::BeforeSegmentRecord);
        transaction.commit().map_err(sql)
    }

    fn recorded_segment(&self, seq: i64) -> Result<SegmentRecord, StoreError> {
        self.0
            .read("read a segment's record", |connection| {
                segment_of(connection, seq)
            })?
            .ok_or_else(|| StoreError::Unusable(format!("no segment has entry {seq}")))
    }

    /// Deletes the ends of requests that a recorded segment has, a few at a time. Postings remain.
    /// The database reuses the freed space for new entries and does not shrink.
    fn delete_endings(
        &self,
        segment: &SegmentRecord,
        pace: BackgroundPace<'_>,
    ) -> Result<(), StoreError> {
        let operation = "delete sealed entries";
        let (mut after, mut rows) = (segment.first - 1, MIN_ROWS);
        while after < segment.last {
            let began = Instant::now();
            let to = segment.last.min(after + rows);
            self.0.write(operation, |transaction| {
                transaction
                    .prepare_cached(DELETE_ENDINGS)?
                    .execute([after, to])
            })?;
            failpoint::hit(Point::MidSegmentDelete);
            after = to;
            rows = match began.elapsed() <= MAX_WRITE_TIME {
                true => (rows * 2).min(MAX_ROWS),
                false => (rows / 2).max(MIN_ROWS),
            };
            pace.rest(began)?;
        }
        self.0
            .writer()
            .execute(
                "UPDATE segment SET emptied_at = ?2 WHERE first = ?1",
                [segment.first, segment.sealed_at_ms],
            )
            .map(drop)
            .map_err(|source| StoreError::sqlite(operation, source))
    }
}

#[cfg(test)]
mod tests;
