use super::*;
use crate::Ledger;
use crate::fixture::query_plan;
use crate::{Ending, RequestOutcome};
use std::path::Path;

const ACCOUNT: &str = "acct_1";

fn ledger_with(dir: &Path, endings: std::ops::Range<usize>) -> Ledger {
    let ledger = Ledger::open(dir).unwrap();
    ledger.open_funded(ACCOUNT, 1_000_000, 0);
    add(&ledger, endings);
    ledger
}

fn add(ledger: &Ledger, endings: std::ops::Range<usize>) {
    let endings: Vec<_> = endings
        .map(|number| Ending {
            paid: Micro::new(2),
            ..Ending::in_test(
                &format!("req_{number:06}"),
                ACCOUNT,
                0,
                RequestOutcome::Completed,
            )
        })
        .collect();
    ledger.enter_new(&endings);
}

/// Appends rows without hashes.
fn insert_rows(connection: &Connection, count: usize, detail: &str) {
    connection
        .execute(
            "WITH RECURSIVE n (i) AS (
               SELECT max(seq) + 1 FROM entry UNION ALL SELECT i + 1 FROM n LIMIT ?1
             )
             INSERT INTO entry (seq, kind, ref, account, at, d_paid, d_trial, bal_paid, bal_trial, detail, prev, hash)
             SELECT i, 'adjust', i, 'acct_1', 0, 0, 0, 0, 0, ?2, x'', x'' FROM n",
            params![i64::try_from(count).unwrap(), detail],
        )
        .unwrap();
}

fn rest(walk: &mut LedgerWalk) -> (Vec<usize>, Vec<LedgerAccountRow>, Vec<KeySpendRow>) {
    let (mut slices, mut accounts, mut keys) = (Vec::new(), Vec::new(), Vec::new());
    walk.finish(&mut |item| match item {
        WalkItem::Slice(slice) => slices.push(slice.len()),
        WalkItem::Account(row) => accounts.push(row),
        WalkItem::KeySpend(row) => keys.push(row),
    })
    .unwrap();
    (slices, accounts, keys)
}

#[test]
fn a_walk_reads_each_entry_once_and_ends_with_the_balances_of_that_moment() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = ledger_with(dir.path(), 0..2 * MAX_SLICE_ENTRIES);
    let mut walk = ledger.checks().walk(i64::MIN).unwrap();
    let mut seen: Vec<i64> = Vec::new();
    for slice in &mut walk {
        let slice = slice.unwrap();
        assert!(slice.len() <= MAX_SLICE_ENTRIES);
        // Each slice is a short read: meanwhile, entries are added.
        if seen.is_empty() {
            add(&ledger, 10_000..10_100);
        }
        seen.extend(slice.iter().map(|entry| entry.seq));
    }
    add(&ledger, 20_000..20_010);
    let (slices, accounts, keys) = rest(&mut walk);
    let count = 1 + 2 * MAX_SLICE_ENTRIES + 110;
    assert_eq!(seen.len() + slices.iter().sum::<usize>(), count);
    assert!(seen.iter().copied().eq(1..=seen.len() as i64));
    assert_eq!(walk.position(), count as i64);
    let spent = 2 * (count as i64 - 1);
    assert_eq!(accounts[0].paid, Micro::new(1_000_000 - spent));
    assert_eq!(
        (keys.len(), keys[0].total),
        (1, Micro::new(spent)),
        "of the same moment"
    );
}

#[test]
fn a_walk_that_a_writer_outruns_ends_in_one_last_read() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = ledger_with(dir.path(), 0..MAX_SLICE_ENTRIES + 1);
    let mut walk = ledger.checks().walk(i64::MIN).unwrap();
    let connection = Connection::open(dir.path().join("ledger.db")).unwrap();
    let mut slices = 0;
    for slice in walk.by_ref() {
        slices += slice.map(|_| 1).unwrap();
        assert!(slices < 1_000, "it never ends");
        insert_rows(&connection, MAX_SLICE_ENTRIES + 100, "");
    }
    let (rest, accounts, _) = rest(&mut walk);
    assert!(rest.len() > 1, "{rest:?}");
    assert_eq!(accounts.len(), 1);
}

#[test]
fn a_slice_is_limited_in_bytes_too() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = ledger_with(dir.path(), 0..0);
    let connection = Connection::open(dir.path().join("ledger.db")).unwrap();
    insert_rows(&connection, 8, &"x".repeat(2 << 20));
    let (slices, ..) = rest(&mut ledger.checks().walk(i64::MIN).unwrap());
    // The grant, and eight details of 2 MiB.
    assert_eq!(slices, [3, 2, 2, 2]);
}

#[test]
fn neither_the_writer_nor_point_reads_wait_for_a_walk() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = ledger_with(dir.path(), 0..10);
    let mut walk = ledger.checks().walk(i64::MIN).unwrap();
    let mut entries = 0;
    walk.finish(&mut |item| {
        if let WalkItem::Slice(slice) = item {
            // In the middle of the walk's longest read.
            add(&ledger, 100..110);
            assert!(ledger.rows().account(ACCOUNT, "").unwrap().is_some());
            entries += slice.len();
        }
    })
    .unwrap();
    assert_eq!(entries, 11, "as of the moment when the read began");
}

#[test]
fn references_come_in_order_from_the_index_alone() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = ledger_with(dir.path(), 0..MAX_SLICE_ENTRIES + 5);
    let mut walk = ledger.checks().walk(i64::MIN).unwrap();
    rest(&mut walk);
    for (index, count) in [
        (ReferenceIndex::CountsOnce, MAX_SLICE_ENTRIES + 6),
        (ReferenceIndex::EndsOnce, MAX_SLICE_ENTRIES + 5),
    ] {
        let mut read = Vec::new();
        let mut after = Some((String::new(), String::new()));
        while let Some(last) = after {
            after = walk
                .references(index, &last, &mut |row| {
                    read.push((row.kind.to_owned(), row.reference.to_owned(), row.seq));
                })
                .unwrap();
        }
        let mut sorted = Vec::new();
        walk.sorted_references(index, &mut |row| {
            sorted.push((row.kind.to_owned(), row.reference.to_owned(), row.seq));
        })
        .unwrap();
        assert_eq!(read.len(), count);
        assert!(read == sorted && read.is_sorted());
    }
    let lookup = query_plan(
        &Connection::open(dir.path().join("ledger.db")).unwrap(),
        "SELECT ref, kind, account, d_paid, d_trial, writeoff FROM entry
         WHERE kind IN ('debit', 'void') AND ref IN (SELECT value FROM json_each('[]'))",
        [],
    );
    assert!(lookup.contains("SEARCH entry USING INDEX"), "{lookup}");
}

#[test]
fn requests_are_looked_up_with_and_without_the_indexes() {
    let dir = tempfile::tempdir().unwrap();
    let count = MAX_REFERENCES_LOOKED_UP + 1;
    let ledger = ledger_with(dir.path(), 0..count);
    let ids: Vec<_> = (0..count + 1).map(|id| format!("req_{id:06}")).collect();
    let ids: Vec<_> = ids.iter().map(String::as_str).collect();
    let walk = ledger.checks().walk(i64::MIN).unwrap();
    assert_eq!(walk.endings(&ids).unwrap().len(), count);
    let connection = Connection::open(dir.path().join("ledger.db")).unwrap();
    connection
        .execute_batch("DROP INDEX entry_counts_once; DROP INDEX entry_ends_a_request_once")
        .unwrap();
    let found = walk.endings(&ids).unwrap();
    assert_eq!(found.len(), count);
    assert_eq!(
        (found[0].charged, found[0].kind.as_str()),
        (Micro::new(2), "debit")
    );
}
