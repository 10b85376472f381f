//! Tests of the journal alone, each in its own directory: records survive a process, and no file is
//! removed too early.
//!
//! A test that must die, or must be unable to write, starts itself again in a separate process.

use super::line::{decode, encode};
use super::read::{DamageCount, read_endings, read_journal};
use super::writer::{JournalWrite, JournalWriter, MAX_QUEUED_BEFORE_OPEN};
use super::*;
use crate::{Ending, EndingDetail, RequestOutcome};
use credits::money::Micro;
use llm_protocol::usage::Usage;
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs::File;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::{RwLock, RwLockReadGuard};
use std::time::Duration;
use tempfile::TempDir;

const SEGMENT: u64 = 1 << 20;
const RESERVED: u64 = 1 << 16;

fn ending(request: &str, outcome: RequestOutcome) -> Ending {
    let plain = Ending::in_test(request, "acct_test", 1_800_000_000_000, outcome);
    let usage = Usage {
        input: 10_000,
        ..Usage::default()
    };
    Ending {
        paid: Micro::new(1_000_000),
        detail: EndingDetail {
            usage,
            ..plain.detail
        },
        ..plain
    }
}

fn open(request: &str) -> JournalRecord {
    JournalRecord::Open(ending(request, RequestOutcome::Interrupted))
}

fn end(request: &str) -> JournalRecord {
    JournalRecord::End(ending(request, RequestOutcome::Completed))
}

fn begin(data_dir: &Path) -> Journal {
    Journal::create(data_dir, SEGMENT, RESERVED).unwrap()
}

fn folder(data_dir: &Path, journal: &Journal) -> PathBuf {
    data_dir.join("journal").join(journal.instance_id())
}

fn length(path: &Path) -> u64 {
    std::fs::metadata(path).unwrap().len()
}

/// Simulates a process that wrote `records` and died. Returns its directory.
fn died_with(data_dir: &Path, records: &[JournalRecord]) -> PathBuf {
    let journal = begin(data_dir);
    for record in records {
        journal.write(record).unwrap();
    }
    folder(data_dir, &journal)
}

/// Claims the only orphaned journal.
fn left(data_dir: &Path) -> OrphanedJournal {
    let mut left = claim_orphaned(data_dir).unwrap();
    assert_eq!(left.len(), 1);
    left.remove(0)
}

/// Each request with whether it completed; sorted.
fn completions(endings: Vec<Ending>) -> Vec<(String, bool)> {
    let completed = |ending: Ending| {
        (
            ending.request_id,
            ending.detail.outcome == RequestOutcome::Completed,
        )
    };
    let mut completions: Vec<_> = endings.into_iter().map(completed).collect();
    completions.sort();
    completions
}

fn expected(requests: &[(&str, bool)]) -> Vec<(String, bool)> {
    requests
        .iter()
        .map(|(request, completed)| ((*request).into(), *completed))
        .collect()
}

/// Write-locked while a process starts: until its exec, the child has a copy of every lock of this
/// process, so that a simulated dead process would appear to live.
static PROCESSES: RwLock<()> = RwLock::new(());

/// A test's directory. No process starts while it exists.
struct DataDir {
    dir: TempDir,
    _none_begins: RwLockReadGuard<'static, ()>,
}

impl DataDir {
    fn new() -> Self {
        let none_begins = PROCESSES.read().unwrap_or_else(PoisonError::into_inner);
        Self {
            dir: tempfile::tempdir().unwrap(),
            _none_begins: none_begins,
        }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }
}

/// Variable that makes a test run as the separate process, in the directory that it names.
const APART: &str = "GATEWAY_JOURNAL_TEST_DIR";

fn apart() -> Option<PathBuf> {
    std::env::var_os(APART).map(PathBuf::from)
}

/// Runs `test` again in a separate process, where a write beyond the file size limit fails instead
/// of killing the process.
fn run_apart(test: &str, data_dir: &TempDir) -> Output {
    let (_, module) = module_path!().split_once("::").unwrap();
    let mut command = Command::new("sh");
    command
        .args(["-c", r#"trap "" XFSZ; exec "$0" "$@""#])
        .arg(std::env::current_exe().unwrap());
    command
        .args(["--exact", &format!("{module}::{test}"), "--nocapture"])
        .env(APART, data_dir.path());
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let begins = PROCESSES.write().unwrap_or_else(PoisonError::into_inner);
    let child = command.spawn().unwrap();
    drop(begins);
    child.wait_with_output().unwrap()
}

#[test]
fn every_request_that_a_dead_process_knew_of_is_told_as_it_last_stood() {
    let dir = DataDir::new();
    let folder = died_with(
        dir.path(),
        &[
            open("req_a"),
            open("req_b"),
            end("req_a"),
            open("req_c"),
            end("req_c"),
        ],
    );
    let left = left(dir.path());
    assert_eq!(
        folder.file_name().unwrap().to_str(),
        Some(left.instance_id.as_str())
    );
    let (endings, unreadable) = left.endings().unwrap();
    assert_eq!(
        completions(endings),
        expected(&[("req_a", true), ("req_b", false), ("req_c", true)])
    );
    assert_eq!(unreadable, 0);
    left.remove(0).unwrap();
    assert!(!folder.exists() && !folder.with_extension("damaged").exists());
    assert!(claim_orphaned(dir.path()).unwrap().is_empty());
}

#[test]
fn a_record_comes_back_with_every_amount_and_count_that_was_written() {
    let dir = DataDir::new();
    let written = ending("req_a", RequestOutcome::ClientLeft);
    died_with(dir.path(), &[JournalRecord::End(written.clone())]);
    assert_eq!(left(dir.path()).endings().unwrap(), (vec![written], 0));
}

#[test]
fn changed_lines_are_not_believed_and_what_they_were_in_is_kept() {
    let dir = DataDir::new();
    let folder = died_with(dir.path(), &[end("req_1"), end("req_2"), end("req_3")]);
    let log = folder.join("000001.log");
    // One ending has one flipped bit and costs less than before; another one names a different
    // request.
    let text = std::fs::read_to_string(&log)
        .unwrap()
        .replacen("req_2", "req_X", 1);
    let (rest, last) = text.split_at(text.find("req_3").unwrap());
    std::fs::write(
        &log,
        format!("{rest}{}", last.replacen("\t1000000\t", "\t0000000\t", 1)),
    )
    .unwrap();
    let left = left(dir.path());
    let (endings, unreadable) = left.endings().unwrap();
    assert_eq!(
        (completions(endings), unreadable),
        (expected(&[("req_1", true), ("req_3", true)]), 2)
    );
    left.remove(unreadable).unwrap();
    let aside = folder.with_extension("damaged");
    assert!(!folder.exists() && aside.join("000001.log").exists());
    assert!(
        !aside.join(LOCK_FILE).exists(),
        "it is not to be replayed again"
    );
    assert!(instance_ids(dir.path()).unwrap().is_empty());
    let kept = read_requests(dir.path()).unwrap();
    assert_eq!(kept.len(), 2, "the audit sees what could be read");
    assert!(
        kept.iter()
            .all(|kept| !kept.is_living && kept.ended && kept.cost == Micro::new(1_000_000))
    );
    let damaged: Vec<_> = find_damaged(dir.path())
        .unwrap()
        .iter()
        .map(ToString::to_string)
        .collect();
    assert!(
        damaged.len() == 1 && damaged[0].contains("1 unreadable lines, and 1 that"),
        "{damaged:?}"
    );
}

#[test]
fn no_byte_of_a_line_can_change_unnoticed() {
    // Its checksum begins with a zero and has a letter, so both could be spelled differently.
    let mut lines = (0..).map(|number| encode(&end(&format!("req_{number}")), 7).unwrap());
    let has_zero_and_letter =
        |line: &Vec<u8>| line[1] == b'0' && line[1..9].iter().any(u8::is_ascii_lowercase);
    let line = lines.find(has_zero_and_letter).unwrap();
    let line = &line[1..line.len() - 1];
    assert!(decode(line).is_some());
    for at in 0..line.len() {
        for other in (0..=u8::MAX).filter(|other| *other != line[at]) {
            let mut changed = line.to_vec();
            changed[at] = other;
            assert!(
                decode(&changed).is_none(),
                "{:?}",
                String::from_utf8_lossy(&changed)
            );
        }
    }
}

#[test]
fn a_last_line_that_was_cut_is_no_damage_and_one_cut_before_it_is() {
    let dir = DataDir::new();
    let folder = died_with(dir.path(), &[end("req_1"), end("req_2")]);
    let log = folder.join("000001.log");
    let whole = std::fs::read(&log).unwrap();
    let read = |bytes: &[u8]| {
        std::fs::write(&log, bytes).unwrap();
        let (endings, unreadable) = read_endings(&folder).unwrap();
        (endings.len(), unreadable)
    };
    assert_eq!(read(&whole), (2, 0));
    assert_eq!(
        read(&whole[..whole.len() - 20]),
        (1, 0),
        "its client never got the end"
    );
    let torn = [&whole[..whole.len() - 20], &whole].concat();
    assert_eq!(read(&torn), (3, 1), "the next record closes it");
    assert_eq!(read(b"\n"), (0, 1), "no file is without a line");
    assert_eq!(read(b"half"), (0, 1));
    assert_eq!(
        read(b"\n00000000 \n0\n\xff\xff\xff\xff\xff\xff\xff\xff {}\n"),
        (0, 3)
    );
}

/// The files of a journal, sorted by name.
fn files(folder: &Path) -> Vec<PathBuf> {
    journal_files(folder).unwrap()
}

#[test]
fn a_line_that_is_gone_is_missed_where_a_later_one_is_there() {
    let dir = DataDir::new();
    let folder = died_with(
        dir.path(),
        &[open("req_1"), end("req_1"), open("req_2"), end("req_2")],
    );
    let log = folder.join("000001.log");
    let text = std::fs::read_to_string(&log).unwrap();
    let lines: Vec<&str> = text.split_inclusive("\n\n").collect();
    assert_eq!(lines.len(), 5, "with the one that begins the file");
    let found = |lines: &[&str]| {
        std::fs::write(&log, lines.concat()).unwrap();
        read_journal(&folder).unwrap().faults
    };
    let none = DamageCount::default();
    assert_eq!(found(&lines), none);
    for gone in 0..4 {
        let rest = [&lines[..gone], &lines[gone + 1..]].concat();
        assert_eq!(
            found(&rest),
            DamageCount {
                missing_lines: 1,
                ..none
            },
            "line {gone}"
        );
    }
    assert_eq!(
        found(&[lines[0], lines[4]]),
        DamageCount {
            missing_lines: 3,
            ..none
        }
    );
    // Duplicate and reordered lines do not count as missing. The last line may never have been
    // written.
    assert_eq!(
        found(&[
            lines[0], lines[1], lines[2], lines[1], lines[2], lines[4], lines[3]
        ]),
        none
    );
    assert_eq!(found(&lines[..4]), none);
    // Half a line counts as damaged, and not as missing too.
    let (half, _) = lines[2].split_at(40);
    assert_eq!(
        found(&[lines[0], lines[1], half, "\n\n", lines[3], lines[4]]),
        DamageCount { lost: 1, ..none }
    );
    // The damaged journal is kept, and found from then on.
    found(&[lines[0], lines[2], lines[4]]);
    let left = left(dir.path());
    let (endings, faults) = left.endings().unwrap();
    assert_eq!((endings.len(), faults), (2, 2));
    left.remove(faults).unwrap();
    let damaged: Vec<_> = find_damaged(dir.path())
        .unwrap()
        .iter()
        .map(ToString::to_string)
        .collect();
    assert!(
        damaged.len() == 1 && damaged[0].ends_with("2 lines and 0 files are missing"),
        "{damaged:?}"
    );
}

#[test]
fn a_file_that_is_gone_or_empty_is_missed() {
    let dir = DataDir::new();
    let bytes = encode(&end("req_1"), 1).unwrap().len() as u64;
    let journal = Journal::create(dir.path(), 2 * bytes, RESERVED).unwrap();
    let folder = folder(dir.path(), &journal);
    for request in ["req_1", "req_2", "req_3", "req_4", "req_5"] {
        journal.write(&end(request)).unwrap();
    }
    assert!(find_damaged(dir.path()).unwrap().is_empty());
    drop(journal);
    assert!(find_damaged(dir.path()).unwrap().is_empty());
    let logs = files(&folder);
    assert_eq!(logs.len(), 3);
    let faults = |change: &dyn Fn()| {
        let kept: Vec<_> = logs.iter().map(|log| std::fs::read(log).unwrap()).collect();
        change();
        let faults = read_journal(&folder).unwrap().faults;
        for (log, bytes) in logs.iter().zip(kept) {
            std::fs::write(log, bytes).unwrap();
        }
        (faults.missing_lines, faults.missing_files)
    };
    let (empty, remove) = (
        |at: usize| std::fs::write(&logs[at], []).unwrap(),
        |at: usize| std::fs::remove_file(&logs[at]).unwrap(),
    );
    assert_eq!(faults(&|| ()), (0, 0));
    assert_eq!(
        faults(&|| remove(2)),
        (0, 1),
        "the one before says that there is one"
    );
    assert_eq!(faults(&|| (0..3).for_each(remove)), (0, 1));
    assert_eq!(
        faults(&|| std::fs::rename(&logs[2], folder.join("000003.log.bak")).unwrap()),
        (0, 1)
    );
    assert_eq!(faults(&|| empty(2)), (0, 1));
    assert_eq!(
        faults(&|| empty(0)),
        (3, 1),
        "the next one says how many lines it had"
    );
    assert_eq!(
        faults(&|| remove(0)),
        (0, 0),
        "once the ledger has a full one whole, it is removed"
    );
    let cut = |at: usize| {
        let text = std::fs::read_to_string(&logs[at]).unwrap();
        let lines: Vec<&str> = text.split_inclusive("\n\n").collect();
        std::fs::write(&logs[at], lines[..2].concat()).unwrap();
    };
    assert_eq!(faults(&|| cut(0)), (1, 0), "an end of a full one is missed");
}

#[test]
fn a_pipe_in_the_place_of_a_file_is_named_and_keeps_nobody_waiting() {
    let dir = DataDir::new();
    let folder = died_with(dir.path(), &[open("req_1")]);
    let log = folder.join("000001.log");
    std::fs::remove_file(&log).unwrap();
    let made = std::process::Command::new("mkfifo").arg(&log).status();
    assert!(made.unwrap().success());
    let error = read_endings(&folder).unwrap_err().to_string();
    assert!(
        error.contains("000001.log is not a regular file"),
        "{error}"
    );
}

#[test]
fn a_journal_of_a_version_before_lines_were_numbered_is_read() {
    let dir = DataDir::new();
    let folder = died_with(dir.path(), &[]);
    std::fs::write(folder.join(LOCK_FILE), []).unwrap();
    let log = folder.join("000001.log");
    let old = |record: &JournalRecord| {
        let json = serde_json::to_string(record).unwrap();
        format!("\n{:08x} {json}\n", crc32fast::hash(json.as_bytes()))
    };
    std::fs::write(
        &log,
        [old(&open("req_1")), old(&end("req_1")), old(&open("req_2"))].concat(),
    )
    .unwrap();
    let (endings, faults) = left(dir.path()).endings().unwrap();
    assert_eq!(
        (completions(endings), faults),
        (expected(&[("req_1", true), ("req_2", false)]), 0)
    );
    std::fs::write(&log, []).unwrap();
    assert_eq!(
        read_endings(&folder).unwrap(),
        (Vec::new(), 0),
        "nothing was written to it"
    );
}

#[test]
fn half_of_an_ending_is_none_and_its_request_was_interrupted() {
    if let Some(dir) = apart() {
        failpoint::arm(&"torn_journal_end:2".parse().unwrap());
        let journal = begin(&dir);
        for record in [
            open("req_done"),
            open("req_torn"),
            end("req_done"),
            end("req_torn"),
        ] {
            journal.write(&record).unwrap();
        }
        panic!("it was to die");
    }
    let dir = tempfile::tempdir().unwrap();
    let output = run_apart(
        "half_of_an_ending_is_none_and_its_request_was_interrupted",
        &dir,
    );
    assert_eq!(output.status.signal(), Some(9), "{output:?}");
    let left = left(dir.path());
    let log = std::fs::read_to_string(left.dir.join("000001.log")).unwrap();
    let (_, torn) = log.rsplit_once('\n').unwrap();
    assert!(
        torn.contains("end\treq_torn") && !torn.contains("completed"),
        "{torn}"
    );
    let (endings, unreadable) = left.endings().unwrap();
    assert_eq!(
        (completions(endings), unreadable),
        (expected(&[("req_done", true), ("req_torn", false)]), 0)
    );
}

/// Logs to stderr, for the process that started this one.
struct ToStderr;

impl log::Log for ToStderr {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        eprintln!("{}", record.args());
    }

    fn flush(&self) {}
}

/// Limits the size of this process's files.
fn limit_files(bytes: Option<u64>) {
    let limit = Rlimit {
        current: bytes,
        ..getrlimit(Resource::Fsize)
    };
    setrlimit(Resource::Fsize, limit).unwrap();
}

#[test]
fn on_a_full_disk_whatever_runs_may_end_and_nothing_begins_until_there_is_room() {
    if let Some(dir) = apart() {
        return fill_the_disk(&dir);
    }
    let dir = tempfile::tempdir().unwrap();
    let output = run_apart(
        "on_a_full_disk_whatever_runs_may_end_and_nothing_begins_until_there_is_room",
        &dir,
    );
    let (out, errors) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(
        output.status.success() && out.contains("1 passed"),
        "{out}{errors}"
    );
    let warnings = errors
        .lines()
        .filter(|line| line.contains("cannot write the journal"))
        .count();
    assert_eq!(
        warnings, 3,
        "an operator is told once each time that the disk becomes full:\n{errors}"
    );
    let (endings, unreadable) = left(dir.path()).endings().unwrap();
    // The ledger has the ends of the first two requests, and each request ends there only once.
    let known = [
        ("req_1", false),
        ("req_2", false),
        ("req_3", false),
        ("req_4", true),
    ];
    assert_eq!((completions(endings), unreadable), (expected(&known), 0));
}

fn fill_the_disk(dir: &Path) {
    log::set_logger(&ToStderr).unwrap();
    log::set_max_level(log::LevelFilter::Error);
    let journal = begin(dir);
    let (log, reserve) = (
        folder(dir, &journal).join("000001.log"),
        folder(dir, &journal).join(RESERVE_FILE),
    );
    let blocks = |path: &Path| std::fs::metadata(path).unwrap().blocks();
    for request in ["req_1", "req_2", "req_3", "req_4"] {
        journal.write(&open(request)).unwrap();
    }
    let before = std::fs::read(&log).unwrap();
    // Leave room for a part of the next record.
    limit_files(Some(before.len() as u64 + 100));
    assert!(journal.write(&open("req_late")).is_err());
    assert!(journal.is_degraded());
    assert_eq!(
        std::fs::read(&log).unwrap(),
        before,
        "what did not fit whole is taken back"
    );
    let in_reserve = [
        journal.write(&end("req_1")).unwrap(),
        journal.write(&end("req_2")).unwrap(),
    ];
    assert_eq!(std::fs::read(&log).unwrap(), before);
    assert_eq!(
        read_endings(log.parent().unwrap()).unwrap().0.len(),
        4,
        "an end in the reserve ends its request"
    );

    limit_files(None);
    journal.restore_reserve();
    assert!(
        journal.is_degraded() && length(&reserve) > 0,
        "the ledger lacks what the reserve took"
    );
    drop(in_reserve);
    journal.restore_reserve();
    assert!(!journal.is_degraded());
    assert_eq!(length(&reserve), 0);

    // Of the records that are written together, those that fit whole stay.
    let mut ends = ["req_4", "req_5"].map(|request| EncodedRecord::new(&end(request)).unwrap());
    let first = ends[0].line().len() as u64;
    limit_files(Some(before.len() as u64 + first + 100));
    let written = journal.append_all(&mut ends).into_iter();
    let names: Vec<_> = written
        .map(|file| file.unwrap().path.file_name().unwrap().to_owned())
        .collect();
    assert_eq!(names, ["000001.log", RESERVE_FILE]);
    assert_eq!(length(&log), before.len() as u64 + first);
    limit_files(None);
    journal.restore_reserve();
    assert!(!journal.is_degraded());

    // Not one more byte fits anywhere, but the reserve keeps its preallocated bytes.
    let set_aside = blocks(&reserve);
    limit_files(Some(0));
    assert!(journal.write(&end("req_5")).is_err());
    assert!(journal.write(&open("req_late")).is_err());
    assert!(journal.is_degraded());
    assert_eq!((length(&reserve), blocks(&reserve)), (0, set_aside));
    limit_files(None);
}

#[test]
fn a_reserve_that_finds_no_room_admits_nothing_and_one_that_does_is_room_indeed() {
    let dir = DataDir::new();
    let probe = File::create(dir.path().join("probe")).unwrap();
    if rustix::fs::fallocate(&probe, FallocateFlags::KEEP_SIZE, 0, RESERVED)
        == Err(Errno::OPNOTSUPP)
    {
        test_world::skip("this file system preallocates nothing");
        return;
    }
    let without = Journal::create(dir.path(), SEGMENT, 1 << 62).unwrap();
    assert!(without.is_degraded());
    without.restore_reserve();
    assert!(without.is_degraded());
    let with = begin(dir.path());
    assert!(!with.is_degraded());
    let reserve = std::fs::metadata(folder(dir.path(), &with).join(RESERVE_FILE)).unwrap();
    assert_eq!(reserve.len(), 0);
    assert!(reserve.blocks() * 512 >= RESERVED);
}

#[test]
fn a_file_is_full_at_its_size_and_goes_once_the_ledger_covers_it_whole() {
    let dir = DataDir::new();
    let record = end("req_1");
    let bytes = encode(&record, 1).unwrap().len() as u64;
    let journal = Journal::create(dir.path(), 2 * bytes, RESERVED).unwrap();
    let folder = folder(dir.path(), &journal);
    let files = || {
        journal_files(&folder)
            .unwrap()
            .iter()
            .map(|path| length(path) / bytes)
            .collect::<Vec<_>>()
    };
    let mut held: Vec<_> = (0..6).map(|_| journal.write(&record).unwrap()).collect();
    assert_eq!(files(), [2, 2, 2]);
    journal.remove_covered();
    assert_eq!(files(), [2, 2, 2], "the ledger lacks them all");
    held.remove(0);
    journal.remove_covered();
    assert_eq!(files(), [2, 2, 2], "half of the first is in the ledger");
    held.remove(0);
    journal.remove_covered();
    assert_eq!(files(), [2, 2], "all of the first is in the ledger");
    held[0].keep_for_replay();
    held.clear();
    journal.remove_covered();
    assert_eq!(
        files(),
        [2, 2],
        "one is left to the next start, one is not full until more is written"
    );
    drop(journal.write(&record).unwrap());
    journal.remove_covered();
    assert_eq!(files(), [2, 1]);
    journal.close();
    assert_eq!(files(), [2, 1], "what is left to the next start stays");
}

#[test]
fn a_journal_that_the_ledger_covers_whole_is_gone_with_its_process_and_no_other_is() {
    let dir = DataDir::new();
    let journal = begin(dir.path());
    let folder = folder(dir.path(), &journal);
    let held = journal.write(&end("req_1")).unwrap();
    journal.close();
    assert_eq!(
        read_endings(&folder).unwrap().0.len(),
        1,
        "the ledger lacks it"
    );
    held.keep_for_replay();
    drop(held);
    journal.close();
    assert_eq!(
        read_endings(&folder).unwrap().0.len(),
        1,
        "it is left to the next start"
    );
    let covered = begin(dir.path());
    drop(covered.write(&end("req_2")).unwrap());
    covered.close();
    assert_eq!(instance_ids(dir.path()).unwrap(), [journal.instance_id()]);
}

#[test]
fn the_living_are_told_by_their_locks_and_only_the_dead_are_claimed() {
    let dir = DataDir::new();
    assert!(
        instance_ids(dir.path()).unwrap().is_empty()
            && live_instance_ids(dir.path()).unwrap().is_empty()
    );
    let dead = died_with(dir.path(), &[end("req_1")]);
    let living = begin(dir.path());
    let instance_dir = InstanceDir::create(dir.path()).unwrap();
    // A journal that is being created, and a file that never was a journal.
    let unnamed = dir.path().join("journal/.0190");
    std::fs::create_dir(&unnamed).unwrap();
    open_lock(&unnamed).unwrap();
    std::fs::create_dir(dir.path().join("journal/lost+found")).unwrap();
    let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
    assert_eq!(
        instance_ids(dir.path()).unwrap(),
        [
            name(&dead),
            living.instance_id().into(),
            instance_dir.instance_id.clone()
        ]
    );
    assert_eq!(
        live_instance_ids(dir.path()).unwrap(),
        [
            living.instance_id().to_owned(),
            instance_dir.instance_id.clone()
        ]
    );
    for taken in [living.instance_id(), instance_dir.instance_id.as_str()] {
        let error = claim_journal(&dir.path().join("journal").join(taken))
            .err()
            .unwrap();
        assert!(
            error.to_string().contains("in use by a running gateway"),
            "{error}"
        );
    }
    for other in ["journal/lost+found", "journal/none"] {
        let error = claim_journal(&dir.path().join(other)).err().unwrap();
        assert!(
            error.to_string().contains("not a journal folder"),
            "{error}"
        );
        assert!(!dir.path().join(other).join(LOCK_FILE).exists());
    }
    let claimed = left(dir.path());
    assert_eq!(claimed.dir, dead);
    assert!(claim_journal(&dead).is_err(), "it is claimed already");
    drop(claimed);
    let claimed = claim_journal(&dead).unwrap();
    assert_eq!(
        (
            claimed.instance_id.clone(),
            claimed.endings().unwrap().0.len()
        ),
        (name(&dead), 1)
    );
    assert!(claim_orphaned(dir.path()).unwrap().is_empty());
    drop(claimed);
    instance_dir.remove();
    assert_eq!(
        instance_ids(dir.path()).unwrap(),
        [name(&dead), living.instance_id().into()]
    );
}

#[test]
fn a_journal_is_the_operators_alone() {
    let dir = DataDir::new();
    let folder = died_with(dir.path(), &[end("req_1")]);
    let copied = tempfile::tempdir().unwrap();
    copy_journals(dir.path(), copied.path()).unwrap();
    for folder in [
        folder.clone(),
        copied
            .path()
            .join("journal")
            .join(folder.file_name().unwrap()),
    ] {
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&folder), 0o700);
        assert_eq!(
            (
                mode(&folder.join("000001.log")),
                mode(&folder.join(LOCK_FILE))
            ),
            (0o600, 0o600)
        );
    }
}

#[test]
fn a_reserve_goes_first_where_the_disk_may_be_full_unless_it_was_needed() {
    let dir = DataDir::new();
    let folder = died_with(dir.path(), &[open("req_1")]);
    let reserve = folder.join(RESERVE_FILE);
    let needed = encode(&end("req_1"), 1).unwrap();
    std::fs::write(&reserve, &needed).unwrap();
    let left = left(dir.path());
    left.remove_reserve();
    assert_eq!(std::fs::read(&reserve).unwrap(), needed);
    assert_eq!(
        completions(left.endings().unwrap().0),
        expected(&[("req_1", true)])
    );
    std::fs::write(&reserve, []).unwrap();
    left.remove_reserve();
    assert!(!reserve.exists());
    left.remove_reserve();
    assert_eq!(
        completions(left.endings().unwrap().0),
        expected(&[("req_1", false)])
    );
}

#[test]
fn a_copy_has_the_living_and_the_dead_and_a_needed_reserve() {
    let dir = DataDir::new();
    let dead = died_with(dir.path(), &[open("req_1"), open("req_2")]);
    std::fs::write(dead.join(RESERVE_FILE), encode(&end("req_2"), 1).unwrap()).unwrap();
    let living = begin(dir.path());
    let held = living.write(&end("req_3")).unwrap();
    // The owner removes the file between the listing of the directory and the read.
    symlink("gone", dead.join("000002.log")).unwrap();
    let to = tempfile::tempdir().unwrap();
    assert_eq!(copy_journals(dir.path(), to.path()).unwrap(), 3);
    let of = |instance_id: &str| to.path().join("journal").join(instance_id);
    assert!(
        !of(living.instance_id()).join(RESERVE_FILE).exists(),
        "room set aside is nothing to copy"
    );
    drop(held);
    let endings = claim_orphaned(to.path())
        .unwrap()
        .iter()
        .flat_map(|left| left.endings().unwrap().0)
        .collect();
    assert_eq!(
        completions(endings),
        expected(&[("req_1", false), ("req_2", true), ("req_3", true)])
    );
}

#[test]
fn what_cannot_be_read_is_told_and_never_taken_for_nothing() {
    let dir = DataDir::new();
    let folder = died_with(dir.path(), &[end("req_1")]);
    let left = left(dir.path());
    symlink("gone", folder.join("000002.log")).unwrap();
    assert_eq!(
        left.endings().unwrap().0.len(),
        1,
        "a file that its process just removed is in the ledger"
    );
    std::fs::create_dir(folder.join("000003.log")).unwrap();
    assert!(left.endings().is_err());
    assert!(read_requests(dir.path()).is_err());
    let to = tempfile::tempdir().unwrap();
    assert!(copy_journals(dir.path(), to.path()).is_err());
    assert!(
        journal_files(&folder.join("000001.log")).is_err(),
        "a file is no folder"
    );
    left.remove(0).unwrap();
    assert!(
        journal_files(&folder).unwrap().is_empty(),
        "a folder that its process just removed is in the ledger"
    );
}

#[test]
fn the_audit_sees_who_lives_and_what_still_runs() {
    let dir = DataDir::new();
    let dead = died_with(dir.path(), &[open("req_1"), end("req_1"), open("req_2")]);
    let living = begin(dir.path());
    let held = living.write(&open("req_3")).unwrap();
    std::fs::write(dir.path().join("journal/note"), "not a journal").unwrap();
    let mut all: Vec<_> = read_requests(dir.path()).unwrap();
    all.sort_by(|one, other| one.request_id.cmp(&other.request_id));
    let all: Vec<_> = all
        .iter()
        .map(|kept| {
            (
                &*kept.request_id,
                &*kept.instance_id,
                kept.is_living,
                kept.ended,
            )
        })
        .collect();
    let dead = dead.file_name().unwrap().to_str().unwrap();
    let expected = [
        ("req_1", dead, false, true),
        ("req_2", dead, false, false),
        ("req_3", living.instance_id(), true, false),
    ];
    assert_eq!(all, expected);
    drop(held);
}

/// A journal on a disk that does not answer, for which a pipe stands in that nobody reads.
struct StuckDisk {
    journal: Arc<Journal>,
    active: Option<Arc<Segment>>,
    reader: Option<std::io::PipeReader>,
}

impl StuckDisk {
    fn new(dir: &Path) -> Self {
        let journal = Arc::new(begin(dir));
        let (reader, mut writer) = std::io::pipe().unwrap();
        let flags = rustix::fs::fcntl_getfl(&writer).unwrap();
        rustix::fs::fcntl_setfl(&writer, flags | rustix::fs::OFlags::NONBLOCK).unwrap();
        while writer.write(&[b'\n'; 4_096]).is_ok() {}
        rustix::fs::fcntl_setfl(&writer, flags).unwrap();
        let mut stuck = Segment::create(dir.join("stuck")).unwrap();
        stuck.file = File::from(std::os::fd::OwnedFd::from(writer));
        let active = std::mem::replace(&mut journal.lock_files().active, Arc::new(stuck));
        Self {
            journal,
            active: Some(active),
            reader: Some(reader),
        }
    }

    fn wait_until_stuck(&self) {
        test_world::wait_for("the journal to be stuck", Duration::from_secs(60), || {
            self.journal.is_degraded().then_some(())
        });
    }

    /// The disk answers again.
    fn answer(&mut self) -> std::thread::JoinHandle<()> {
        let mut reader = self.reader.take().unwrap();
        std::thread::spawn(move || drop(std::io::copy(&mut reader, &mut std::io::sink())))
    }

    /// Closes the pipe.
    fn close(mut self, reads: std::thread::JoinHandle<()>) {
        self.journal.lock_files().active = self.active.take().unwrap();
        reads.join().unwrap();
    }
}

fn submit(writer: &JournalWriter, record: &JournalRecord) -> JournalWrite {
    writer.submit(EncodedRecord::new(record), |_| ())
}

#[test]
fn a_disk_that_does_not_answer_holds_up_only_the_journals_thread_and_admits_nothing() {
    let dir = DataDir::new();
    let mut disk = StuckDisk::new(dir.path());
    let writer = JournalWriter::start(Arc::clone(&disk.journal)).unwrap();
    let first = submit(&writer, &open("req_1"));
    disk.wait_until_stuck();
    let (second, third) = (
        submit(&writer, &open("req_2")),
        submit(&writer, &end("req_2")),
    );
    assert!(!first.withdraw(), "the thread writes it");
    assert!(second.withdraw() && second.has_failed());
    assert!(!second.withdraw(), "it is withdrawn already");
    assert!(second.wait_on_thread().is_err());
    assert!(!writer.close(Duration::ZERO), "the thread is stuck");
    let reads = disk.answer();
    for write in [&first, &third] {
        assert!(write.wait_on_thread().is_ok() && write.segment().is_some());
    }
    assert!(writer.close(Duration::from_secs(60)));
    assert!(submit(&writer, &open("req_3")).wait_on_thread().is_err());
    assert!(!disk.journal.is_degraded());
    drop((first, third));
    disk.close(reads);
}

#[test]
fn as_many_openings_wait_for_the_disk_as_the_bound_says_and_every_end() {
    let dir = DataDir::new();
    let mut disk = StuckDisk::new(dir.path());
    let writer = JournalWriter::start(Arc::clone(&disk.journal)).unwrap();
    let stuck = submit(&writer, &open("req_0"));
    disk.wait_until_stuck();
    let waiting: Vec<_> = (0..MAX_QUEUED_BEFORE_OPEN)
        .map(|index| submit(&writer, &open(&format!("req_{index}"))))
        .collect();
    assert!(waiting.iter().all(|write| !write.has_failed()));
    assert!(submit(&writer, &open("req_late")).has_failed());
    let late = submit(&writer, &end("req_late"));
    let reads = disk.answer();
    for write in waiting.iter().chain([&stuck, &late]) {
        assert!(write.wait_on_thread().is_ok());
    }
    drop((writer, waiting, stuck, late));
    disk.close(reads);
}

#[test]
fn the_completion_runs_before_the_wait_ends_and_a_panic_in_it_ends_nothing() {
    let dir = DataDir::new();
    let writer = JournalWriter::start(Arc::new(begin(dir.path()))).unwrap();
    let ran = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&ran);
    let panics = writer.submit(EncodedRecord::new(&open("req_1")), move |written| {
        seen.store(written.is_ok(), Ordering::Relaxed);
        panic!("a completion that fails");
    });
    assert!(panics.wait_on_thread().is_ok() && ran.load(Ordering::Relaxed));
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let written = runtime
        .unwrap()
        .block_on(submit(&writer, &end("req_1")).wait());
    assert!(written.is_ok());
}

/// A used reserve keeps its room until the disk has room for another one.
#[test]
fn a_used_reserve_is_given_back_after_the_disk_has_room_for_another_one() {
    let dir = DataDir::new();
    let journal = begin(dir.path());
    let reserve = folder(dir.path(), &journal).join(RESERVE_FILE);
    let number = || std::fs::metadata(&reserve).unwrap().ino();
    let before = number();
    journal.short.store(true, Ordering::Release);
    journal.restore_reserve();
    assert!(!journal.is_degraded());
    assert_eq!(number(), before, "an unused reserve keeps its room");
    let mut line = encode_unnumbered(&end("req_1")).unwrap();
    journal.lock_files().reserve.append(&mut line).unwrap();
    let used = length(&reserve);
    journal.short.store(true, Ordering::Release);
    journal.restore_reserve();
    assert!(!journal.is_degraded() && used > 0);
    assert_ne!(number(), before);
    assert_eq!(length(&reserve), 0);
    assert!(!reserve.with_extension("new").exists());
}
