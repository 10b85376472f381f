//! Tests of `verify` on sealed entries: a reference that occurs again is found, wherever its first
//! entry is; and so is what the ledger keeps of sealed entries, if it differs from them.

use super::audit::books;
use super::*;
use ledger::{LedgerEntry, entry_hash};
use rusqlite::Connection;

/// Small segments, so that the first entries are in other ones than the last.
const SEGMENT_ENTRIES: u64 = 3;

/// Chains a void behind the last entry that ends this request, as no process would.
fn add_void(billing: &Billing, request: &str) {
    let all = billing.0.ledger.all_entries();
    let last = all.last().unwrap();
    let void = all.iter().rfind(|entry| entry.kind == "void").unwrap();
    let latest = all.iter().rfind(|entry| entry.account == void.account);
    let latest = latest.unwrap();
    add(
        billing,
        LedgerEntry {
            seq: last.seq + 1,
            prev: last.hash.clone(),
            reference: request.into(),
            bal_paid: latest.bal_paid,
            bal_trial: latest.bal_trial,
            ..void.clone()
        },
    );
}

fn add(billing: &Billing, mut entry: LedgerEntry) {
    entry.hash = entry_hash(&entry);
    entry.insert_alone(&Connection::open(billing.0.data_dir.join("ledger.db")).unwrap());
}

/// The rules that an audit reports, each with the position of the entry.
fn findings(billing: &Billing, scope: AuditScope) -> Vec<(&'static str, i64)> {
    let report = billing
        .verify_with_progress(NOW, scope, CpuShare::FULL, &mut |_| ())
        .unwrap();
    let found = report.findings.iter();
    found.map(|found| (found.rule, found.seq)).collect()
}

fn seal(billing: &Billing) -> usize {
    billing.upkeep().seal(None, SEGMENT_ENTRIES).unwrap().len()
}

#[test]
fn a_request_that_ends_again_behind_its_sealed_end_is_found() {
    let dir = tempfile::tempdir().unwrap();
    books(dir.path());
    let billing = Billing::open(dir.path()).unwrap();
    assert!(seal(&billing) > 1);
    add_void(&billing, "req_new");
    assert_eq!(findings(&billing, AuditScope::Everything), []);
    let last = billing.0.ledger.all_entries().last().unwrap().seq;

    // In a segment, and in the table, where no index has the first one.
    add_void(&billing, "req_b");
    let twice = ("one ending per request", last + 1);
    assert_eq!(findings(&billing, AuditScope::Everything), [twice]);
    assert_eq!(findings(&billing, AuditScope::Unsealed), []);

    // In two segments, and a third time in the table.
    add_void(&billing, "req_other");
    assert!(seal(&billing) > 0);
    assert_eq!(findings(&billing, AuditScope::Everything), [twice]);
    add_void(&billing, "req_b");
    let again = ("one ending per request", last + 3);
    assert_eq!(findings(&billing, AuditScope::Everything), [twice, again]);
}

#[test]
fn a_posting_that_counts_again_behind_its_sealed_entry_is_found() {
    let dir = tempfile::tempdir().unwrap();
    books(dir.path());
    let billing = Billing::open(dir.path()).unwrap();
    add_void(&billing, "req_new");
    assert!(seal(&billing) > 1);
    let all = billing.0.ledger.all_entries();
    let (grant, last) = (
        all.iter().find(|one| one.kind == "grant").unwrap(),
        all.last().unwrap(),
    );
    // The index of the table does not have the first one any more.
    tamper(
        &billing,
        "entry_is_never_removed",
        &format!("DELETE FROM entry WHERE seq = {}", grant.seq),
    );
    let again = LedgerEntry {
        seq: last.seq + 1,
        prev: last.hash.clone(),
        d_paid: Micro::ZERO,
        bal_paid: last.bal_paid,
        bal_trial: last.bal_trial,
        ..grant.clone()
    };
    assert_eq!(last.account, again.account);
    add(&billing, again);
    let twice = ("once per reference", last.seq + 1);
    let removed = ("sealed posting", grant.seq);
    assert_eq!(findings(&billing, AuditScope::Everything), [removed, twice]);
}

/// A ledger whose entries are sealed but for the last one, and the refund in it.
fn sealed_books(dir: &Path) -> (Billing, LedgerEntry) {
    books(dir);
    let billing = Billing::open(dir).unwrap();
    add_void(&billing, "req_new");
    assert!(seal(&billing) > 1);
    assert_eq!(findings(&billing, AuditScope::Everything), []);
    let all = billing.0.ledger.all_entries();
    let refund = all.into_iter().find(|one| one.kind == "refund").unwrap();
    (billing, refund)
}

/// Changes the ledger behind the back of its trigger.
fn tamper(billing: &Billing, trigger: &str, sql: &str) {
    let ledger = Connection::open(billing.0.data_dir.join("ledger.db")).unwrap();
    let made = "SELECT sql FROM sqlite_schema WHERE name = ?1";
    let made: String = ledger.query_row(made, [trigger], |row| row.get(0)).unwrap();
    ledger
        .execute_batch(&format!("DROP TRIGGER {trigger}; {sql}; {made};"))
        .unwrap();
}

#[test]
fn a_sealed_refund_that_left_the_ledger_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let (billing, refund) = sealed_books(dir.path());
    let segments = billing.0.ledger.segments().segment_records().unwrap();
    let sealed_in = segments.iter().find(|one| one.last >= refund.seq).unwrap();
    let removal = format!("DELETE FROM entry WHERE seq = {}", refund.seq);
    tamper(&billing, "entry_is_never_removed", &removal);
    let missing = ("sealed posting", refund.seq);
    assert_eq!(findings(&billing, AuditScope::Everything), [missing]);
    // Without the segments, their number of postings is known.
    let missing = ("sealed posting", sealed_in.first);
    assert_eq!(findings(&billing, AuditScope::Unsealed), [missing]);
}

#[test]
fn a_sealed_refund_that_the_ledger_has_otherwise_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let (billing, refund) = sealed_books(dir.path());
    let mut other = LedgerEntry {
        d_paid: Micro::new(1),
        ..refund.clone()
    };
    other.hash = entry_hash(&other);
    let hash: String = other
        .hash
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let change = format!(
        "UPDATE entry SET d_paid = 1, hash = x'{hash}' WHERE seq = {}",
        refund.seq
    );
    tamper(&billing, "entry_is_never_changed", &change);
    let changed = ("sealed posting", refund.seq);
    assert_eq!(findings(&billing, AuditScope::Everything), [changed]);
}

#[test]
fn what_keys_spent_is_compared_with_sealed_entries() {
    let dir = tempfile::tempdir().unwrap();
    let (billing, _) = sealed_books(dir.path());
    let ledger = Connection::open(dir.path().join("ledger.db")).unwrap();
    let change = "UPDATE key_spend SET total = total - 1";
    assert!(ledger.execute(change, []).unwrap() > 0);
    assert_eq!(findings(&billing, AuditScope::Everything), [("sums", 0)]);
    // Not everything was read: nothing is known about keys.
    let first = billing
        .0
        .ledger
        .segments()
        .segment_records()
        .unwrap()
        .remove(0);
    std::fs::remove_file(dir.path().join("segments").join(&first.file)).unwrap();
    let missing = ("segment", first.first);
    // And no sum of the index is compared: each would seem wrong.
    let uncompared = ("segment", 0);
    let found = findings(&billing, AuditScope::Everything);
    assert_eq!(found, [missing, uncompared]);
    let index = Connection::open(dir.path().join("index.db")).unwrap();
    index.execute("DELETE FROM usage_hour", []).unwrap();
    let found = findings(&billing, AuditScope::Everything);
    assert_eq!(found, [missing, uncompared]);
}

#[test]
fn a_record_that_differs_from_its_signed_segment_is_found() {
    let both = [AuditScope::Unsealed, AuditScope::Everything];
    let all = [AuditScope::Everything];
    let changes: [(&str, &[AuditScope]); 6] = [
        ("endings = endings + 1", &both),
        ("accounts = 0", &both),
        ("from_ms = 0, to_ms = 0", &both),
        ("sealed_at = 0", &both),
        ("ended_until = 0", &all),
        ("sha256 = zeroblob(32)", &all),
    ];
    for (change, scopes) in changes {
        let dir = tempfile::tempdir().unwrap();
        let (billing, _) = sealed_books(dir.path());
        let first = billing
            .0
            .ledger
            .segments()
            .segment_records()
            .unwrap()
            .remove(0)
            .first;
        let change = format!("UPDATE segment SET {change} WHERE first = {first}");
        tamper(&billing, "segment_is_never_changed", &change);
        for scope in scopes {
            let found = findings(&billing, *scope);
            assert!(found.contains(&("segment", first)), "{change}: {found:?}");
        }
    }
}

#[test]
fn a_damaged_part_of_a_segment_that_no_entry_needs_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let (billing, _) = sealed_books(dir.path());
    let first = billing
        .0
        .ledger
        .segments()
        .segment_records()
        .unwrap()
        .remove(0);
    let path = dir.path().join("segments").join(&first.file);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[0] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let damaged = [("segment", first.first)];
    assert_eq!(findings(&billing, AuditScope::Everything), damaged);
}

#[test]
fn a_wrong_note_of_how_far_the_ledger_is_sealed_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let (billing, _) = sealed_books(dir.path());
    let ledger = Connection::open(dir.path().join("ledger.db")).unwrap();
    let change = "UPDATE installation SET sealed_through = sealed_through - 1";
    ledger.execute(change, []).unwrap();
    let last = billing
        .0
        .ledger
        .segments()
        .segment_records()
        .unwrap()
        .pop()
        .unwrap();
    let short = ("segment", last.last - 1);
    assert_eq!(findings(&billing, AuditScope::Everything), [short]);
}

/// A reader finds an end of a request in the table before it looks into a segment.
#[test]
fn an_end_of_a_request_where_the_ends_are_sealed_is_found() {
    let both = [AuditScope::Unsealed, AuditScope::Everything];
    let dir = tempfile::tempdir().unwrap();
    let (billing, _) = sealed_books(dir.path());
    let segments = billing.0.ledger.segments().segment_records().unwrap();
    let sealed = |seq: &i64| {
        let found = billing
            .0
            .ledger
            .segments()
            .sealed_entries_at(&[*seq])
            .unwrap();
        found.into_iter().next().filter(LedgerEntry::is_ending)
    };
    let (seq, ending) = (1..=segments.last().unwrap().last)
        .find_map(|seq| Some((seq, sealed(&seq)?)))
        .unwrap();
    let other = |seq, reference: &str| LedgerEntry {
        seq,
        reference: reference.into(),
        d_paid: Micro::new(-500),
        ..ending.clone()
    };
    let planted = |scope| {
        let mut found = findings(&billing, scope);
        // A refund of the debit does not fit the other one.
        found.retain(|found| found.0 != "refund");
        found
    };
    add(&billing, other(0, "req_planted"));
    add(&billing, other(seq, &ending.reference));
    for scope in both {
        let places = [("sealed ending", 0), ("sealed ending", seq)];
        assert_eq!(planted(scope), places);
    }
    // While the ends of a segment leave, it has the same.
    let removal = format!("DELETE FROM entry WHERE seq IN (0, {seq})");
    tamper(&billing, "entry_is_never_removed", &removal);
    let leaving =
        format!("UPDATE segment SET emptied_at = NULL WHERE last >= {seq} AND first <= {seq}");
    tamper(&billing, "segment_is_never_changed", &leaving);
    add(&billing, ending.clone());
    for scope in both {
        assert_eq!(findings(&billing, scope), []);
    }
    tamper(&billing, "entry_is_never_removed", &removal);
    add(&billing, other(seq, &ending.reference));
    for scope in both {
        assert_eq!(planted(scope), [("sealed ending", seq)]);
    }
}

/// The next process would take them for its own, and count them as spent or as free.
#[test]
fn amounts_of_a_process_that_never_was_are_found() {
    let dir = tempfile::tempdir().unwrap();
    let (billing, _) = sealed_books(dir.path());
    let ledger = Connection::open(dir.path().join("ledger.db")).unwrap();
    for change in [
        "UPDATE account SET applied_by = 1000, applied_paid = 5",
        "UPDATE key_spend SET applied_by = 1000, applied = 5",
    ] {
        let before = findings(&billing, AuditScope::Everything);
        assert!(ledger.execute(change, []).unwrap() > 0);
        let after = findings(&billing, AuditScope::Everything);
        assert!(after.len() > before.len(), "{change}: {after:?}");
        assert!(after.iter().all(|found| found.0 == "claims"), "{after:?}");
    }
}

#[test]
fn an_index_that_was_set_aside_is_reported_once() {
    for scope in [AuditScope::Unsealed, AuditScope::Everything] {
        let dir = tempfile::tempdir().unwrap();
        drop(sealed_books(dir.path()));
        std::fs::write(dir.path().join("index.db"), [7; 8_192]).unwrap();
        for log in ["index.db-wal", "index.db-shm"] {
            let _ = std::fs::remove_file(dir.path().join(log));
        }
        let billing = Billing::open(dir.path()).unwrap();
        assert_eq!(findings(&billing, scope), [("sums", 0)]);
        assert_eq!(findings(&billing, scope), []);
    }
}
