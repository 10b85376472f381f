//! Reads the files of a journal, and reports their damaged and missing parts.
//!
//! Lines are numbered from 0 in each file, so a missing line is detected if a later one exists. A
//! file records the number of lines in its predecessor, and a full file ends with a line that
//! announces the next one. The reader cannot detect missing last lines of the last file, a missing
//! directory, or a missing full file, which may have been removed because the ledger had all its
//! records. This file must not write.

use super::instance_dir::{
    LOCK_FILE, NUMBERED_MARK, RESERVE_FILE, RETIRED_LOCK_FILE, live_instance_ids,
};
use super::line::JournalLine;
use super::record::JournalRecord;
use super::repair::{self, LineDamage};
use crate::Ending;
use crate::StoreError;
use base::file_owner;
use base::regular_file::{open_regular, read_regular};
use base::telemetry::METRICS;
use credits::money::Micro;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs::DirEntry;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Lists a directory's files in the order of writing, or none if the directory was just removed. A
/// used reserve comes last, because it has only `end` records.
pub(crate) fn journal_files(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match file_owner::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut files: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "log"));
    files.sort();
    let reserve = dir.join(RESERVE_FILE);
    if std::fs::metadata(&reserve).is_ok_and(|reserve| reserve.len() > 0) {
        files.push(reserve);
    }
    Ok(files)
}

/// The fields of a journalled request that the audit compares. The type is small because there can
/// be many.
#[derive(Debug, Clone)]
pub struct JournalledRequest {
    pub instance_id: Arc<str>,
    pub is_living: bool,
    pub ended: bool,
    pub request_id: Box<str>,
    pub account: Arc<str>,
    pub kind: &'static str,
    pub cost: Micro,
    pub at_ms: i64,
}

/// Returns the last state of every request in every journal, including journals that were set aside
/// as damaged.
///
/// # Errors
/// Returns an error if a file cannot be read.
pub fn read_requests(data_dir: &Path) -> Result<Vec<JournalledRequest>, StoreError> {
    let live = live_instance_ids(data_dir)?;
    let (mut all, mut accounts) = (Vec::new(), HashSet::<Arc<str>>::new());
    for entry in journal_dirs(data_dir) {
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_living = live.contains(&name);
        let instance_id: Arc<str> = name.into();
        let mut request = |ended, ending: Ending| {
            let account = accounts.get(&*ending.account).cloned();
            let account = account.unwrap_or_else(|| {
                let account: Arc<str> = ending.account.as_str().into();
                accounts.insert(Arc::clone(&account));
                account
            });
            JournalledRequest {
                instance_id: Arc::clone(&instance_id),
                is_living,
                ended,
                kind: ending.kind(),
                cost: ending.cost(),
                at_ms: ending.at_ms,
                request_id: ending.request_id.into(),
                account,
            }
        };
        let mut open = BTreeMap::new();
        read_records(&entry.path(), &mut |record| match record {
            JournalRecord::Open(ending) => {
                drop(open.insert(ending.request_id.clone(), request(false, ending)));
            }
            JournalRecord::End(ending) => {
                open.remove(&ending.request_id);
                all.push(request(true, ending));
            }
            JournalRecord::Forgotten(request_id) => drop(open.remove(&request_id)),
            JournalRecord::Begun { .. } | JournalRecord::Sealed => {}
        })?;
        all.extend(open.into_values());
    }
    Ok(all)
}

/// Returns the folders of all journals, including those that were set aside.
fn journal_dirs(data_dir: &Path) -> impl Iterator<Item = DirEntry> {
    let entries = std::fs::read_dir(data_dir.join("journal"));
    let entries = entries.into_iter().flatten().flatten();
    entries.filter(|entry| entry.path().is_dir())
}

pub struct DamagedJournal {
    pub folder: String,
    pub faults: DamageCount,
}

/// Number of damaged or missing lines and files in one directory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DamageCount {
    /// Number of damaged lines that the checksum could repair.
    pub repaired: usize,
    /// Number of damaged lines that could not be repaired.
    pub lost: usize,
    /// Number of lines that were written but are missing.
    pub missing_lines: usize,
    /// Number of files that were written but are missing or empty.
    pub missing_files: usize,
}

impl DamageCount {
    pub(crate) fn total(&self) -> usize {
        self.repaired + self.lost + self.missing_lines + self.missing_files
    }
}

impl std::fmt::Display for DamagedJournal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let DamageCount {
            repaired,
            lost,
            missing_lines,
            missing_files,
        } = self.faults;
        let folder = &self.folder;
        write!(
            f,
            "journal/{folder} has {lost} unreadable lines, and {repaired} that their checksums can repair"
        )?;
        match (missing_lines, missing_files) {
            (0, 0) => Ok(()),
            _ => write!(
                f,
                "; {missing_lines} lines and {missing_files} files are missing"
            ),
        }
    }
}

/// Finds the journals with damage, including those set aside.
///
/// # Errors
/// Returns an error if a file cannot be read.
pub fn find_damaged(data_dir: &Path) -> Result<Vec<DamagedJournal>, StoreError> {
    let live = live_instance_ids(data_dir)?;
    let mut all = Vec::new();
    for entry in journal_dirs(data_dir) {
        let folder = entry.file_name().to_string_lossy().into_owned();
        let mut faults = read_records(&entry.path(), &mut drop)?;
        // A living process may have created or removed a file since the directory was listed.
        if live.contains(&folder) {
            faults.missing_files = 0;
        }
        all.extend((faults.total() > 0).then_some(DamagedJournal { folder, faults }));
    }
    Ok(all)
}

/// Returns the ending of every request in the journal directory `dir`, and the number of damaged or
/// missing lines and files.
///
/// # Errors
/// Returns an error if a file cannot be read.
pub(crate) fn read_endings(dir: &Path) -> Result<(Vec<Ending>, usize), StoreError> {
    let JournalContents {
        mut ended,
        open,
        faults,
    } = read_journal(dir)?;
    ended.extend(open.into_values());
    if faults.total() > 0 {
        let DamageCount {
            repaired,
            lost,
            missing_lines,
            missing_files,
        } = faults;
        for (outcome, count) in [
            ("repaired", repaired),
            ("lost", lost),
            ("missing", missing_lines + missing_files),
        ] {
            METRICS
                .damaged_journal_lines
                .with_label_values(&[outcome])
                .inc_by(count as u64);
        }
        log::error!(
            "{} is damaged: {repaired} lines were repaired by their checksums, {lost} are lost, {missing_lines} lines and {missing_files} files are missing; a request whose end is lost is recorded as interrupted and not billed. The folder is kept, and `ledger verify` reports it",
            dir.display()
        );
    }
    Ok((ended, faults.total()))
}

/// The requests in a directory's files, and the damage.
#[derive(Default)]
pub(crate) struct JournalContents {
    pub ended: Vec<Ending>,
    pub open: BTreeMap<String, Ending>,
    pub faults: DamageCount,
}

impl JournalContents {
    fn add(&mut self, record: JournalRecord) {
        match record {
            JournalRecord::Open(ending) => {
                drop(self.open.insert(ending.request_id.clone(), ending))
            }
            JournalRecord::End(ending) => {
                self.open.remove(&ending.request_id);
                self.ended.push(ending);
            }
            JournalRecord::Forgotten(request_id) => drop(self.open.remove(&request_id)),
            JournalRecord::Begun { .. } | JournalRecord::Sealed => {}
        }
    }
}

#[derive(Default)]
struct LineCount {
    numbers: BTreeSet<u64>,
    /// Number of lines without a number, which older versions wrote, and of unreadable lines.
    others: usize,
    lines_before: Option<u64>,
    is_sealed: bool,
    is_reserve: bool,
}

impl LineCount {
    fn add(&mut self, line: &JournalLine) {
        match line.number {
            Some(number) => drop(self.numbers.insert(number)),
            None => self.others += 1,
        }
        match line.record {
            JournalRecord::Begun { lines_before, .. } => self.lines_before = Some(lines_before),
            JournalRecord::Sealed => self.is_sealed = true,
            _ => {}
        }
    }

    fn is_empty(&self) -> bool {
        self.numbers.is_empty() && self.others == 0
    }

    /// Returns the number of missing lines, given that at least `written` lines were written.
    fn missing_lines(&self, written: u64) -> usize {
        let first = u64::from(self.is_reserve);
        let until = self
            .numbers
            .last()
            .map_or(0, |last| last.saturating_add(1))
            .max(written);
        let there = self.numbers.len() + self.others;
        usize::try_from(until.saturating_sub(first))
            .unwrap_or(usize::MAX)
            .saturating_sub(there)
    }
}

pub(crate) fn read_journal(dir: &Path) -> Result<JournalContents, StoreError> {
    let mut read = JournalContents::default();
    read.faults = read_records(dir, &mut |record| read.add(record))?;
    Ok(read)
}

/// Calls `each` with the records of a directory's files, in the order of writing. Returns the
/// damage. The memory grows by some bytes for each line.
fn read_records(
    dir: &Path,
    each: &mut dyn FnMut(JournalRecord),
) -> Result<DamageCount, StoreError> {
    let failed = |source| StoreError::io("read a journal", source);
    let (mut faults, mut counted) = (DamageCount::default(), Vec::new());
    for path in journal_files(dir).map_err(failed)? {
        let file = match open_regular(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            file => BufReader::new(file.map_err(failed)?),
        };
        let mut count = LineCount {
            is_reserve: path.extension().is_none(),
            ..LineCount::default()
        };
        let damage = repair::read_lines(file, &mut |line| {
            count.add(&line);
            each(line.record);
        });
        let LineDamage { repaired, lost } = damage.map_err(failed)?;
        count.others += lost;
        faults.lost += lost;
        faults.repaired += repaired;
        counted.push((file_number(&path), count));
    }
    faults.missing_lines = missing_lines(&counted);
    faults.missing_files = if is_numbered(dir) {
        missing_files(&counted)
    } else {
        0
    };
    Ok(faults)
}

fn file_number(path: &Path) -> Option<u64> {
    path.file_stem()?.to_str()?.parse().ok()
}

fn missing_lines(files: &[(Option<u64>, LineCount)]) -> usize {
    let written = |number: Option<u64>| {
        let next = files
            .iter()
            .find(|(next, _)| number.is_some() && *next == number.map(|number| number + 1));
        next.and_then(|(_, next)| next.lines_before)
            .unwrap_or_default()
    };
    files
        .iter()
        .map(|(number, file)| file.missing_lines(written(*number)))
        .sum()
}

/// Returns the number of missing files in a directory whose files are never empty. Empty files
/// count, and the active file if it is gone.
fn missing_files(files: &[(Option<u64>, LineCount)]) -> usize {
    let empty = files.iter().filter(|(_, file)| file.is_empty()).count();
    let newest = files.iter().rfind(|(_, file)| !file.is_reserve);
    empty + usize::from(newest.is_none_or(|(_, file)| file.is_sealed))
}

/// Returns whether the directory's owner wrote a line into each file before the file got its name.
fn is_numbered(dir: &Path) -> bool {
    [LOCK_FILE, RETIRED_LOCK_FILE]
        .iter()
        .any(|lock| read_regular(&dir.join(lock)).is_ok_and(|bytes| bytes == NUMBERED_MARK))
}
