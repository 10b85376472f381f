//! Sealing and archiving, and what finds sealed entries.

use super::*;
use crate::Ledger;
use crate::fixture::query_plan;
use crate::sealing::archive::SegmentState;
use crate::{
    AppendOutcome, BalanceChange, BalanceChangeKind, Ending, EntrySelection, Refund, RequestOutcome,
};
use credits::money::{CreditSplit, Micro};
use rusqlite::Connection;
use std::path::Path;

const NOW: i64 = 1_800_000_000_000;
const HOUR_MS: i64 = 3_600_000;
static GO_ON: AtomicBool = AtomicBool::new(false);
static PACE: BackgroundPace<'static> = BackgroundPace { stop: &GO_ON };

/// The id of the request with this number, which began then.
fn request_id(number: i64) -> String {
    let tail = number.unsigned_abs().wrapping_mul(0x9e37_79b9_7f4a_7c15);
    format!("req_{:012x}7abc8{tail:015x}", NOW + number)
        .chars()
        .take(36)
        .collect()
}

fn ending(number: i64) -> Ending {
    let account = format!("acct_{}", number % 3);
    let plain = Ending::in_test(
        &request_id(number),
        &account,
        NOW + number + 5,
        RequestOutcome::Completed,
    );
    Ending {
        paid: Micro::new(1_000 + number),
        ..plain
    }
}

fn enter(ledger: &Ledger, numbers: std::ops::Range<i64>) {
    let endings: Vec<_> = numbers.map(ending).collect();
    ledger.enter_new(&endings);
}

fn grant(ledger: &Ledger, account: &str, reference: &str) {
    let change = BalanceChange {
        kind: BalanceChangeKind::Grant,
        reference,
        account,
        amount: Micro::new(50_000_000),
        actor: None,
        at_ms: NOW,
    };
    assert!(
        ledger
            .changes()
            .post_change(&change, "", &|| Ok(Vec::new()))
            .unwrap()
            .is_new
    );
}

/// A ledger with three accounts, a grant for each, and 40 debits.
fn ledger_in(dir: &Path) -> Ledger {
    let ledger = Ledger::open(dir).unwrap();
    for number in 0..3 {
        let account = format!("acct_{number}");
        ledger.rows().open_account(&account, None, NOW).unwrap();
        grant(&ledger, &account, &account);
    }
    enter(&ledger, 0..40);
    ledger
}

fn seal_all(ledger: &Ledger, per_segment: i64) -> Vec<SegmentRecord> {
    ledger
        .segments()
        .seal(SealBoundary::Everything, per_segment, PACE, NOW + HOUR_MS)
        .unwrap()
}

/// Every entry, as an export writes it.
fn export(ledger: &Ledger) -> Vec<String> {
    let mut lines = Vec::new();
    ledger
        .segments()
        .for_each_selected(&EntrySelection::default(), &mut |entry| {
            lines.push(format!("{entry:?}"));
            Ok(())
        })
        .unwrap();
    lines
}

fn count(dir: &Path, what: &str) -> i64 {
    rusqlite::Connection::open(dir.join("ledger.db"))
        .unwrap()
        .query_row(&format!("SELECT count(*) FROM {what}"), [], |row| {
            row.get(0)
        })
        .unwrap()
}

fn file_of(ledger: &Ledger, segment: &SegmentRecord) -> PathBuf {
    ledger.segments.dir().join(&segment.file)
}

#[test]
fn sealed_ends_leave_the_table_and_every_reader_still_finds_them() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = ledger_in(dir.path());
    let before = export(&ledger);
    let sealed = seal_all(&ledger, 16);
    assert_eq!(
        sealed
            .iter()
            .map(|one| (one.first, one.last, one.endings))
            .collect::<Vec<_>>(),
        [(1, 16, 13), (17, 32, 16), (33, 42, 10)],
        "43 entries, and the last one stays"
    );
    assert_eq!(
        count(dir.path(), "entry"),
        4,
        "three grants and the last debit"
    );
    assert_eq!(export(&ledger), before);
    let after_five = ledger.rows().entries_after(5, 30).unwrap();
    assert_eq!(
        after_five.iter().map(|entry| entry.seq).collect::<Vec<_>>(),
        (6..36).collect::<Vec<_>>()
    );
    assert_eq!(
        ledger.rows().entries_after(30, 100).unwrap().len(),
        13,
        "into the table"
    );
    let receipt = ledger
        .rows()
        .ending("acct_1", &request_id(7))
        .unwrap()
        .unwrap();
    assert_eq!(format!("{receipt:?}"), before[10]);
    assert!(
        ledger
            .rows()
            .ending("acct_2", &request_id(7))
            .unwrap()
            .is_none(),
        "of another account"
    );
    assert!(
        ledger
            .rows()
            .ending("acct_1", "req_unknown")
            .unwrap()
            .is_none()
    );
    let found = ledger
        .segments()
        .sealed_entries_at(&[20, 2, 43, 99])
        .unwrap();
    assert_eq!(
        found.iter().map(|entry| entry.seq).collect::<Vec<_>>(),
        [20, 2],
        "sealed ones"
    );
    assert!(seal_all(&ledger, 16).is_empty(), "nothing is left");
}

#[test]
fn a_sealed_debit_can_be_refunded_once_and_no_more_than_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = ledger_in(dir.path());
    seal_all(&ledger, 100);
    let id = request_id(7);
    let refund = |reference, amount: Option<i64>| {
        ledger.changes().refund(&Refund {
            reference,
            request_id: &id,
            amount: amount.map(Micro::new),
            actor: None,
            at_ms: NOW + HOUR_MS,
        })
    };
    assert_eq!(refund("ticket-1", Some(7)).unwrap().change, Micro::new(7));
    seal_all(&ledger, 100);
    assert!(
        !refund("ticket-1", Some(7)).unwrap().is_new,
        "the refund stays in the table"
    );
    let error = refund("ticket-2", Some(1_001)).unwrap_err();
    assert!(matches!(error, StoreError::Refused(_)), "{error}");
    let charge = ledger.rows().request_charge(&id).unwrap().unwrap();
    assert_eq!(
        (charge.charged, charge.refunded),
        (Micro::new(1_007), Micro::new(7))
    );
    assert_eq!(refund("ticket-2", None).unwrap().change, Micro::new(1_000));
}

#[test]
fn only_sealed_ends_can_be_deleted_and_a_record_never_changes() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = ledger_in(dir.path());
    let delete = |seq: i64| {
        rusqlite::Connection::open(dir.path().join("ledger.db"))
            .unwrap()
            .execute("DELETE FROM entry WHERE seq = ?1", [seq])
    };
    assert!(delete(10).is_err(), "nothing is sealed");
    ledger
        .segments()
        .seal(SealBoundary::Before(NOW + 15), 100, PACE, NOW)
        .unwrap();
    assert!(delete(2).is_err(), "a posting");
    assert!(delete(20).is_err(), "after the segment");
    let change = |sql: &str| {
        rusqlite::Connection::open(dir.path().join("ledger.db"))
            .unwrap()
            .execute(sql, [])
    };
    assert!(change("DELETE FROM segment").is_err());
    assert!(change("UPDATE segment SET last = 40").is_err());
    assert!(change("UPDATE entry SET at = 1").is_err());
}

#[test]
fn an_end_that_is_sealed_is_not_entered_again() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = ledger_in(dir.path());
    seal_all(&ledger, 16);
    let (known, new) = (ending(3), ending(100));
    let other_form = Ending {
        request_id: "req_old".into(),
        ..ending(101)
    };
    let entered = ledger
        .append_endings(
            &[
                (&known, CreditSplit::ZERO),
                (&new, CreditSplit::ZERO),
                (&other_form, CreditSplit::ZERO),
            ],
            "",
        )
        .unwrap();
    let expected = [
        AppendOutcome::AlreadyEnded,
        AppendOutcome::Ended,
        AppendOutcome::Ended,
    ];
    assert_eq!(entered, expected);
    assert_eq!(
        ledger
            .enter_endings(&[(&other_form, CreditSplit::ZERO)], "")
            .unwrap(),
        0
    );
}

/// Ids keep their time until a clock that was set back has caught up.
#[test]
fn an_end_before_the_time_in_its_id_is_found_in_its_segment_and_not_entered_again() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = ledger_in(dir.path());
    let early = Ending {
        at_ms: NOW + 50,
        ..ending(HOUR_MS)
    };
    let entered = ledger.enter_endings(&[(&early, CreditSplit::ZERO)], "");
    assert_eq!(entered.unwrap(), 1);
    enter(&ledger, 60..62);
    assert_eq!(seal_all(&ledger, 16).len(), 3);
    assert!(count(dir.path(), "entry") < 10, "it is sealed");
    let found = ledger
        .rows()
        .ending(&early.account, &early.request_id)
        .unwrap();
    assert!(found.is_some());
    let again = ledger.append_endings(&[(&early, CreditSplit::ZERO)], "");
    assert_eq!(again.unwrap(), [AppendOutcome::AlreadyEnded]);
}

#[test]
fn an_end_that_may_be_in_a_missing_segment_is_withheld_until_it_is_back() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = ledger_in(dir.path());
    let sealed = seal_all(&ledger, 100);
    drop(ledger);
    let ledger = Ledger::open(dir.path()).unwrap();
    let (path, away) = (file_of(&ledger, &sealed[0]), dir.path().join("away"));
    std::fs::rename(&path, &away).unwrap();
    let (known, late, later) = (
        ending(3),
        Ending {
            request_id: "req_x".into(),
            ..ending(50)
        },
        ending(90_000),
    );
    let all = [
        (&known, CreditSplit::ZERO),
        (&late, CreditSplit::ZERO),
        (&later, CreditSplit::ZERO),
    ];
    let entered = ledger.append_endings(&all, "").unwrap();
    let expected = [
        AppendOutcome::Withheld,
        AppendOutcome::Withheld,
        AppendOutcome::Ended,
    ];
    assert_eq!(entered, expected, "one began after the seal");
    let error = ledger
        .rows()
        .ending("acct_0", &request_id(3))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains(&sealed[0].file) && error.contains("put the file into"),
        "{error}"
    );
    let refund = Refund {
        reference: "t",
        request_id: &request_id(3),
        amount: None,
        actor: None,
        at_ms: NOW,
    };
    assert!(matches!(
        ledger.changes().refund(&refund),
        Err(StoreError::SegmentUnavailable(_))
    ));
    assert!(
        ledger
            .segments()
            .for_each_selected(&EntrySelection::default(), &mut |_| Ok(()))
            .is_err()
    );
    std::fs::rename(&away, &path).unwrap();
    let entered = ledger.append_endings(&all, "").unwrap();
    let expected = [
        AppendOutcome::AlreadyEnded,
        AppendOutcome::Ended,
        AppendOutcome::AlreadyEnded,
    ];
    assert_eq!(entered, expected);
    assert!(
        ledger
            .rows()
            .ending("acct_0", &request_id(3))
            .unwrap()
            .is_some()
    );
}

#[test]
fn the_balances_at_a_segments_end_are_in_the_file_and_in_the_ledger() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = ledger_in(dir.path());
    ledger.rows().open_account("acct_9", None, NOW).unwrap();
    let first = seal_all(&ledger, 100).remove(0);
    grant(&ledger, "acct_9", "late");
    enter(&ledger, 200..210);
    let second = seal_all(&ledger, 100).remove(0);
    for segment in [&first, &second] {
        let in_file: Vec<_> = ledger
            .segments()
            .open_segment(segment)
            .unwrap()
            .balances()
            .unwrap()
            .map(Result::unwrap)
            .collect();
        assert_eq!(
            in_file,
            ledger.segments().sealed_balances(segment.last).unwrap()
        );
        let mut expected: BTreeMap<String, (Micro, Micro)> = BTreeMap::new();
        ledger
            .segments()
            .for_each_selected(&EntrySelection::default(), &mut |entry| {
                if entry.seq <= segment.last {
                    let credited = expected
                        .get(&entry.account)
                        .map_or(Micro::ZERO, |known| known.1);
                    expected.insert(
                        entry.account.clone(),
                        (entry.bal_paid, credited.plus(entry.credited())),
                    );
                }
                Ok(())
            })
            .unwrap();
        let found: BTreeMap<_, _> = in_file
            .into_iter()
            .map(|row| (row.account, (row.paid, row.credited)))
            .collect();
        assert_eq!(found, expected);
    }
    assert_eq!((first.accounts, second.accounts), (3, 4));
}

#[test]
fn a_file_proves_itself_and_names_its_predecessor() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = ledger_in(dir.path());
    let sealed = seal_all(&ledger, 20);
    let key = ledger.segments().public_key().unwrap().unwrap();
    let [one, two] = [&sealed[0], &sealed[1]]
        .map(|segment| SegmentReader::open(&file_of(&ledger, segment)).unwrap());
    assert_eq!(one.manifest().previous_hash, "0".repeat(64));
    assert_eq!(two.manifest().previous_hash, one.manifest().last_hash);
    assert_eq!(two.verify().unwrap(), sealed[1].sha256);
    one.verify_signature(&key).unwrap();
    let other = one.verify_signature(&"0".repeat(64)).unwrap_err();
    assert_eq!(other.state(), "foreign");
    let seqs: Vec<_> = two.entries().map(|entry| entry.unwrap().seq).collect();
    assert_eq!(seqs, (21..41).collect::<Vec<_>>());
}

#[test]
fn a_damaged_byte_of_a_file_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = ledger_in(dir.path());
    let path = file_of(&ledger, &seal_all(&ledger, 100)[0]);
    let whole = std::fs::read(&path).unwrap();
    for at in (0..whole.len()).step_by(7) {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x20;
        std::fs::write(&path, &damaged).unwrap();
        let checked = SegmentReader::open(&path).and_then(|reader| reader.verify());
        assert!(checked.is_err(), "byte {at} of {}", whole.len());
    }
    for length in [0, 8, 75, whole.len() / 2, whole.len() - 1] {
        std::fs::write(&path, &whole[..length]).unwrap();
        assert!(SegmentReader::open(&path).is_err(), "{length} bytes");
    }
}

#[test]
fn archived_segments_are_found_and_a_file_put_back_too() {
    let dir = tempfile::tempdir().unwrap();
    let archive = tempfile::tempdir().unwrap();
    let ledger = ledger_in(dir.path());
    let sealed = seal_all(&ledger, 16);
    let before = export(&ledger);
    let moved = ledger
        .segments()
        .archive_segments(NOW + 30, archive.path(), PACE)
        .unwrap();
    assert_eq!(moved.len(), 1, "the others have later entries");
    assert!(!file_of(&ledger, &sealed[0]).exists());
    assert_eq!(export(&ledger), before);
    assert!(
        ledger
            .rows()
            .ending("acct_1", &request_id(7))
            .unwrap()
            .is_some()
    );
    let states = |ledger: &Ledger| -> Vec<SegmentState> {
        ledger
            .segments()
            .segment_statuses(true)
            .unwrap()
            .iter()
            .map(|one| one.state)
            .collect()
    };
    use SegmentState::{Archived, Here, Missing};
    assert_eq!(states(&ledger), [Archived, Here, Here]);
    let (there, here) = (
        archive.path().join(&sealed[0].file),
        file_of(&ledger, &sealed[0]),
    );
    std::fs::rename(&there, dir.path().join("aside")).unwrap();
    assert_eq!(states(&ledger), [Missing, Here, Here]);
    let fault = ledger.segments().segment_statuses(false).unwrap()[0]
        .fault
        .clone()
        .unwrap();
    let folder = archive.path().canonicalize().unwrap();
    assert!(
        fault.contains(folder.to_str().unwrap()) && fault.contains(&sealed[0].file),
        "{fault}"
    );
    std::fs::rename(dir.path().join("aside"), &here).unwrap();
    assert_eq!(
        states(&ledger),
        [Here, Here, Here],
        "put back into the data directory"
    );
    seal_all(&ledger, 16);
    assert!(here.exists(), "the only copy stays");
}

#[test]
fn a_folder_that_is_no_archive_and_a_damaged_file_change_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let archive = tempfile::tempdir().unwrap();
    let ledger = ledger_in(dir.path());
    let segment = seal_all(&ledger, 100).remove(0);
    let refused = |to: &Path| {
        ledger
            .segments()
            .archive_segments(i64::MAX, to, PACE)
            .unwrap_err()
            .to_string()
    };
    assert!(refused(&archive.path().join("none")).contains("create it"));
    assert!(refused(ledger.segments.dir()).contains("the segments are in"));
    std::fs::write(archive.path().join("file"), "x").unwrap();
    assert!(refused(&archive.path().join("file")).contains("not a folder"));
    let path = file_of(&ledger, &segment);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[20] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let error = refused(archive.path());
    assert!(
        error.contains(&segment.file) && error.contains("damaged"),
        "{error}"
    );
    assert!(path.exists());
    assert_eq!(
        std::fs::read_dir(archive.path()).unwrap().count(),
        1,
        "no copy is left"
    );
    assert_eq!(
        ledger.segments().segment_statuses(true).unwrap()[0].state,
        SegmentState::Damaged
    );
}

#[test]
fn an_archive_never_replaces_another_file_and_never_begins_anew_where_a_disk_is_not_mounted() {
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let archive = tempfile::tempdir().unwrap();
    let (ledger, foreign) = (ledger_in(dir.path()), ledger_in(other.path()));
    let strange = seal_all(&foreign, 16).remove(0);
    let segment = seal_all(&ledger, 16).remove(0);
    assert_eq!(strange.file, segment.file);
    let archive_from = |ledger: &Ledger, before_ms: i64| {
        ledger
            .segments()
            .archive_segments(before_ms, archive.path(), PACE)
    };
    assert_eq!(archive_from(&foreign, NOW + 30).unwrap().len(), 1);
    let there = archive.path().join(&strange.file);
    let theirs = std::fs::read(&there).unwrap();
    let error = archive_from(&ledger, NOW + 30).unwrap_err().to_string();
    assert!(error.contains("another file of this name"), "{error}");
    assert_eq!(std::fs::read(&there).unwrap(), theirs);
    assert!(file_of(&ledger, &segment).exists());

    // An empty folder in the place of the archive's disk.
    let aside = other.path().join("aside");
    std::fs::rename(&there, &aside).unwrap();
    let error = archive_from(&foreign, i64::MAX).unwrap_err().to_string();
    assert!(
        error.contains("mount its disk") && error.contains(&strange.file),
        "{error}"
    );
    assert_eq!(std::fs::read_dir(archive.path()).unwrap().count(), 0);
    std::fs::rename(&aside, &there).unwrap();
    assert!(!archive_from(&foreign, i64::MAX).unwrap().is_empty());
}

#[test]
fn sums_are_not_made_anew_without_every_segment() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = ledger_in(dir.path());
    let segment = seal_all(&ledger, 16).remove(0);
    let spent = || count(dir.path(), "key_spend WHERE total > 0");
    let before = spent();
    assert!(before > 0);
    let (file, aside) = (file_of(&ledger, &segment), dir.path().join("aside"));
    std::fs::rename(&file, &aside).unwrap();
    let error = ledger
        .index()
        .reindex(10, &mut |_| ())
        .unwrap_err()
        .to_string();
    assert!(error.contains(&segment.file), "{error}");
    assert_eq!(spent(), before);
    std::fs::rename(&aside, &file).unwrap();
    assert_eq!(ledger.index().reindex(10, &mut |_| ()).unwrap(), []);
    assert_eq!(spent(), before);
}

#[test]
fn a_segment_that_is_archived_during_a_backup_is_in_it() {
    let dir = tempfile::tempdir().unwrap();
    let (archive, backup) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let ledger = ledger_in(dir.path());
    let segment = seal_all(&ledger, 16).remove(0);
    let moved = ledger
        .segments()
        .archive_segments(NOW + 30, archive.path(), PACE)
        .unwrap();
    let archived_ms = moved[0].archived_at_ms.unwrap();
    let copy = backup.path().join("segments").join(&segment.file);
    ledger
        .segments()
        .copy_segments(backup.path(), archived_ms + 1)
        .unwrap();
    assert!(!copy.exists(), "it was in the archive before");
    ledger
        .segments()
        .copy_segments(backup.path(), archived_ms)
        .unwrap();
    assert!(copy.exists());
}

#[test]
fn a_segment_of_another_installation_is_named() {
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (ledger, foreign) = (ledger_in(dir.path()), ledger_in(other.path()));
    let segment = seal_all(&ledger, 100).remove(0);
    let strange = seal_all(&foreign, 100).remove(0);
    std::fs::copy(file_of(&foreign, &strange), file_of(&ledger, &segment)).unwrap();
    let status = ledger.segments().segment_statuses(false).unwrap().remove(0);
    assert_eq!(status.state, SegmentState::Damaged);
    assert!(status.fault.unwrap().contains("another installation"));
}

#[test]
fn a_pipe_in_the_place_of_a_segment_keeps_nobody_waiting() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = ledger_in(dir.path());
    let segment = seal_all(&ledger, 100).remove(0);
    let file = file_of(&ledger, &segment);
    std::fs::remove_file(&file).unwrap();
    let made = std::process::Command::new("mkfifo").arg(&file).status();
    assert!(made.unwrap().success());
    let status = ledger.segments().segment_statuses(false).unwrap().remove(0);
    assert_eq!(status.state, SegmentState::Damaged);
    assert!(status.fault.unwrap().contains("not a regular file"));
}

#[test]
fn what_a_dead_process_left_is_finished_discarded_or_set_aside() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = ledger_in(dir.path());
    let folder = ledger.segments.dir().to_owned();
    // Renamed, but not recorded: a copy of entries that the ledger still has.
    seal_all(&ledger, 100);
    let copied = tempfile::tempdir().unwrap();
    let older = ledger_in(copied.path());
    sqlite::create_dir(older.segments.dir()).unwrap();
    std::fs::write(folder.join("000000000043-000000000050.partial"), "half").unwrap();
    std::fs::write(folder.join("000000000043-000000000050.segment"), "strange").unwrap();
    for file in std::fs::read_dir(&folder).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), older.segments.dir().join(file.file_name())).unwrap();
    }
    let before = export(&older);
    assert_eq!(seal_all(&older, 100).len(), 1);
    assert_eq!(export(&older), before);
    let mut names: Vec<_> = std::fs::read_dir(older.segments.dir())
        .unwrap()
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    let whole = "000000000001-000000000042.segment";
    assert_eq!(
        names,
        [whole, "000000000043-000000000050.segment.unknown", "lock"]
    );
}

/// Otherwise sealing a large ledger reads all of it for every few entries that leave.
#[test]
fn the_entries_that_leave_are_found_by_their_position() {
    let dir = tempfile::tempdir().unwrap();
    drop(ledger_in(dir.path()));
    let connection = Connection::open(dir.path().join("ledger.db")).unwrap();
    let plan = query_plan(&connection, DELETE_ENDINGS, [1, 2]);
    assert!(
        plan.contains("INTEGER PRIMARY KEY (rowid>? AND rowid<?)"),
        "{plan}"
    );
}

#[test]
fn a_broken_chain_is_not_sealed() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = ledger_in(dir.path());
    let tool = rusqlite::Connection::open(dir.path().join("ledger.db")).unwrap();
    tool.execute_batch(
        "DROP TRIGGER entry_is_never_changed; UPDATE entry SET d_paid = d_paid - 1 WHERE seq = 30;",
    )
    .unwrap();
    let error = ledger
        .segments()
        .seal(SealBoundary::Everything, 100, PACE, NOW)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("entry 30") && error.contains("ledger verify"),
        "{error}"
    );
    assert_eq!(
        (count(dir.path(), "entry"), count(dir.path(), "segment")),
        (43, 0)
    );
}

#[test]
fn an_anchor_that_names_a_sealed_entry_still_fits() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = ledger_in(dir.path());
    let anchor = std::fs::read(dir.path().join("ledger.anchor")).unwrap();
    enter(&ledger, 50..55);
    let segment = seal_all(&ledger, 100).remove(0);
    std::fs::write(dir.path().join("ledger.anchor"), &anchor).unwrap();
    assert_eq!(ledger.checks().anchor_fault(dir.path()).unwrap(), None);
    std::fs::remove_file(file_of(&ledger, &segment)).unwrap();
    assert_eq!(
        ledger.checks().anchor_fault(dir.path()).unwrap(),
        None,
        "only this ledger can have sealed it"
    );
    drop(ledger);
    Ledger::open(dir.path()).unwrap();
}

/// As where the archive is a mount of the folder that the segments are in.
#[test]
fn the_only_name_of_a_file_is_not_removed() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = ledger_in(dir.path());
    let segment = seal_all(&ledger, 100).remove(0);
    let other = tempfile::tempdir().unwrap();
    let alias = other.path().join("alias");
    std::os::unix::fs::symlink(ledger.segments.dir(), &alias).unwrap();
    let error = ledger
        .segments()
        .remove_local(&segment, &alias.join(&segment.file), PACE);
    let error = error.unwrap_err().to_string();
    assert!(error.contains("the segments are in"), "{error}");
    assert!(file_of(&ledger, &segment).exists());
    // A copy, or another name of the file, is enough.
    let archived = other.path().join(&segment.file);
    std::fs::hard_link(file_of(&ledger, &segment), &archived)
        .or_else(|_| std::fs::copy(file_of(&ledger, &segment), &archived).map(drop))
        .unwrap();
    ledger
        .segments()
        .remove_local(&segment, &archived, PACE)
        .unwrap();
    assert!(archived.exists() && !file_of(&ledger, &segment).exists());
}

/// As where it is a mount of that folder, or shows it through another file system.
#[test]
fn an_archive_that_shows_the_local_files_is_refused() {
    let (dir, archive) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let ledger = ledger_in(dir.path());
    let segment = seal_all(&ledger, 100).remove(0);
    let error = ledger
        .segments()
        .archive_segments(i64::MAX, ledger.segments.dir(), PACE);
    let error = error.unwrap_err().to_string();
    assert!(error.contains("the segments are in"), "{error}");
    assert!(file_of(&ledger, &segment).exists());
    let names = || std::fs::read_dir(ledger.segments.dir()).unwrap().count();
    assert_eq!(names(), 2, "the segment and the lock");
    let moved = ledger
        .segments()
        .archive_segments(i64::MAX, archive.path(), PACE);
    assert_eq!(moved.unwrap().len(), 1);
    assert_eq!(names(), 1, "the lock");
}

#[test]
fn what_has_the_name_of_an_archived_segment_is_set_aside_and_never_removed() {
    let (dir, archive) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let ledger = ledger_in(dir.path());
    let segment = seal_all(&ledger, 100).remove(0);
    ledger
        .segments()
        .archive_segments(i64::MAX, archive.path(), PACE)
        .unwrap();
    let place = file_of(&ledger, &segment);
    let aside = place.with_extension("segment.unknown");
    std::fs::write(&place, "something of the operator's").unwrap();
    enter(&ledger, 50..55);
    assert_eq!(seal_all(&ledger, 100).len(), 1);
    assert!(!place.exists());
    assert_eq!(
        std::fs::read_to_string(&aside).unwrap(),
        "something of the operator's"
    );
    std::fs::remove_file(&aside).unwrap();
    std::fs::create_dir(&place).unwrap();
    enter(&ledger, 60..65);
    assert_eq!(seal_all(&ledger, 100).len(), 1);
    assert!(aside.is_dir() && !place.exists());
}

#[test]
fn a_pipe_in_the_archive_or_in_the_place_of_the_lock_keeps_nobody_waiting() {
    let (dir, archive) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let ledger = ledger_in(dir.path());
    let segment = seal_all(&ledger, 100).remove(0);
    let make_pipe = |path: &Path| {
        let made = std::process::Command::new("mkfifo").arg(path).status();
        assert!(made.unwrap().success());
    };
    make_pipe(&archive.path().join(&segment.file));
    let error = ledger
        .segments()
        .archive_segments(i64::MAX, archive.path(), PACE);
    let error = error.unwrap_err().to_string();
    assert!(error.contains("is not a regular file"), "{error}");
    assert!(file_of(&ledger, &segment).exists());
    let lock = ledger.segments.dir().join(LOCK_FILE);
    std::fs::remove_file(&lock).unwrap();
    make_pipe(&lock);
    assert!(
        ledger
            .segments()
            .pause_sealing(Duration::ZERO)
            .unwrap()
            .is_none()
    );
    assert!(!ledger.segments().is_sealing_paused());
    let error = ledger
        .segments()
        .seal(SealBoundary::Everything, 16, PACE, NOW);
    assert!(error.is_err());
}

#[test]
fn sealed_entries_are_found_in_the_operators_archive_wherever_the_ledger_notes_them() {
    let (dir, archive) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let elsewhere = tempfile::tempdir().unwrap();
    let ledger = ledger_in(dir.path());
    let segment = seal_all(&ledger, 100).remove(0);
    let before = export(&ledger);
    let backup = dir.path().join("older.db");
    sqlite::copy(&dir.path().join("ledger.db"), &backup, "copy").unwrap();
    ledger
        .segments()
        .archive_segments(i64::MAX, archive.path(), PACE)
        .unwrap();
    // The archive moves.
    let moved = elsewhere.path().join(&segment.file);
    std::fs::rename(archive.path().join(&segment.file), &moved).unwrap();
    let state = |ledger: &Ledger| ledger.segments().segment_statuses(true).unwrap()[0].state;
    assert_eq!(state(&ledger), SegmentState::Missing);
    ledger.segments().set_archive(Some(elsewhere.path()));
    assert_eq!(state(&ledger), SegmentState::Archived);
    assert_eq!(export(&ledger), before);
    // A restored ledger does not know of the archive at all.
    let restored = tempfile::tempdir().unwrap();
    std::fs::copy(&backup, restored.path().join("ledger.db")).unwrap();
    let ledger = Ledger::open_for_audit(restored.path()).unwrap();
    assert_eq!(state(&ledger), SegmentState::Missing);
    ledger.segments().set_archive(Some(elsewhere.path()));
    assert_eq!(export(&ledger), before);
    let copied = ledger.segments().copy_segments(restored.path(), 0).unwrap();
    assert_eq!(copied, [""; 0], "the archive has it");
    // Archiving notes it where it is.
    let noted = ledger
        .segments()
        .archive_segments(i64::MAX, elsewhere.path(), PACE);
    assert_eq!(noted.unwrap().len(), 1);
    assert!(moved.exists());
}

#[test]
fn a_backup_names_the_segments_that_are_nowhere() {
    let (dir, backup) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let ledger = ledger_in(dir.path());
    let segment = seal_all(&ledger, 16).remove(0);
    assert_eq!(
        ledger.segments().copy_segments(backup.path(), 0).unwrap(),
        [""; 0]
    );
    std::fs::remove_file(file_of(&ledger, &segment)).unwrap();
    let missing = ledger.segments().copy_segments(backup.path(), 0).unwrap();
    assert_eq!(missing.len(), 1);
    assert!(missing[0].contains(&segment.file), "{missing:?}");
}

#[test]
fn nobody_seals_beside_an_audit_and_audits_do_not_wait_for_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = ledger_in(dir.path());
    assert!(
        ledger
            .segments()
            .pause_sealing(Duration::ZERO)
            .unwrap()
            .is_none()
    );
    assert_eq!(seal_all(&ledger, 16).len(), 3);
    assert!(!ledger.segments().is_sealing_paused());
    let audits = [(); 2].map(|()| {
        ledger
            .segments()
            .pause_sealing(Duration::ZERO)
            .unwrap()
            .unwrap()
    });
    assert!(ledger.segments().is_sealing_paused());
    let error = ledger
        .segments()
        .seal(SealBoundary::Everything, 16, PACE, NOW);
    assert!(error.unwrap_err().to_string().contains("audits"));
    drop(audits);
    let lock = ledger.segments().lock_segments().unwrap();
    let error = ledger
        .segments()
        .pause_sealing(Duration::from_millis(60))
        .err();
    assert!(error.unwrap().to_string().contains("seals or archives"));
    drop(lock);
    assert!(ledger.segments().pause_sealing(Duration::ZERO).is_ok());
}

#[test]
fn one_process_at_a_time_seals() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = ledger_in(dir.path());
    let lock = ledger.segments().lock_segments().unwrap();
    let error = Ledger::open(dir.path())
        .unwrap()
        .segments()
        .seal(SealBoundary::Everything, 100, PACE, NOW)
        .unwrap_err();
    assert!(error.to_string().contains("another process"), "{error}");
    drop(lock);
    assert_eq!(seal_all(&ledger, 100).len(), 1);
}

#[test]
fn a_boundary_seals_by_time_or_by_number() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = ledger_in(dir.path());
    let through = |boundary| ledger.segments().sealable_through(boundary).unwrap();
    assert_eq!(through(SealBoundary::Everything), 42);
    assert_eq!(
        through(SealBoundary::Before(NOW + 15)),
        13,
        "three grants and ten debits"
    );
    assert_eq!(through(SealBoundary::Before(NOW)), 0);
    assert_eq!(through(SealBoundary::Before(i64::MAX)), 42);
    let full = |before_ms, entries| through(SealBoundary::Full { before_ms, entries });
    assert_eq!((full(NOW, 50), full(NOW, 42), full(NOW, 20)), (0, 42, 40));
    assert_eq!(full(NOW + 15, 50), 13);
    let empty = tempfile::tempdir().unwrap();
    assert!(seal_all(&Ledger::open(empty.path()).unwrap(), 10).is_empty());
}

#[test]
fn a_lock_is_released_although_a_process_that_was_just_forked_has_its_file_open() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = Ledger::open(dir.path()).unwrap();
    let lock = ledger.segments().lock_segments().unwrap();
    let inherited = lock.0.try_clone().unwrap();
    assert!(ledger.segments().lock_segments().is_err());
    drop(lock);
    assert!(ledger.segments().lock_segments().is_ok());
    drop(inherited);
}
