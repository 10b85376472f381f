//! The fingerprints of entries and of an index are equal exactly if each row is what the entries
//! make.

use super::{IndexFingerprint, StoredFingerprint};
use crate::store::ledger::Ledger;
use crate::store::ledger::index::create_for_test;
use crate::store::ledger::index::tests::{enter, opened};
use rusqlite::Connection;

/// The tables, with the columns of their keys.
const TABLES: [(&str, &str); 10] = [
    ("account", "id"),
    ("model", "id"),
    ("api_key", "id"),
    ("outcome", "id"),
    ("activity", "account, at, seq"),
    ("posting", "account, at, seq"),
    ("usage_hour", "account, hour, model, api_key"),
    ("usage_day", "account, day, model, api_key"),
    ("usage_total", "day, model"),
    ("conversation", "account, id"),
];

/// Changes that leave every row of its kind in place, or every sum over all rows.
const EXCHANGES: [&str; 9] = [
    "UPDATE activity SET model = 3 - model WHERE model IN (1, 2)",
    "UPDATE conversation SET name = name || '.'",
    "UPDATE activity SET conversation = CASE conversation WHEN 1 THEN 4 ELSE 1 END WHERE conversation IN (1, 4)",
    "UPDATE activity SET kind = 1 - kind WHERE kind < 2 AND seq IN (4, 5, 6, 7, 8, 9, 10)",
    "UPDATE usage_hour SET credits = credits + CASE hour % 2 WHEN 0 THEN 1 ELSE -1 END",
    "UPDATE usage_hour SET input = output, output = input",
    "UPDATE usage_day SET responses = responses + iif(model = 1, 1, -1)",
    "INSERT INTO usage_hour SELECT account, hour + 900, model, api_key, 0, 0, 0, 0, 0, 0 FROM usage_hour LIMIT 1",
    "INSERT INTO conversation SELECT account, id + 900, 'new', 0, 0, 0, 0, 0, 0, 0 FROM conversation LIMIT 1",
];

fn filled(dir: &std::path::Path) -> Ledger {
    let ledger = opened(dir);
    enter(&ledger, 0..500);
    while ledger.catch_up_index(4_096).unwrap() > 0 {}
    ledger
}

fn fingerprint_of(ledger: &Ledger, up_to: usize) -> IndexFingerprint {
    let mut fingerprint = IndexFingerprint::default();
    for entry in &ledger.all_entries()[..up_to] {
        fingerprint.add(entry);
    }
    fingerprint
}

fn is_of(fingerprint: &IndexFingerprint, index: &Connection) -> bool {
    fingerprint.is_of(&StoredFingerprint::read(index, &fingerprint.keys()).unwrap())
}

fn is_index_of(ledger: &Ledger, fingerprint: &mut IndexFingerprint) -> bool {
    let stored = ledger.index_fingerprint(&fingerprint.keys()).unwrap();
    ledger.is_index_of(fingerprint, &stored).unwrap()
}

fn strings(connection: &Connection, select: &str) -> Vec<String> {
    let mut select = connection.prepare(select).unwrap();
    let rows = select.query_map([], |row| row.get(0)).unwrap();
    rows.map(Result::unwrap).collect()
}

#[test]
fn any_change_of_a_row_changes_the_fingerprint() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = filled(dir.path());
    let fingerprint = fingerprint_of(&ledger, 503);
    let index = create_for_test(dir.path());
    assert!(is_of(&fingerprint, &index));
    let mut changes: Vec<String> = EXCHANGES.map(str::to_owned).into();
    changes.push("UPDATE watermark SET conversations = conversations + 1".into());
    for (table, key) in TABLES {
        let one = format!("({key}) = (SELECT {key} FROM {table} ORDER BY {key} LIMIT 1 OFFSET 1)");
        changes.push(format!("DELETE FROM {table} WHERE {one}"));
        let columns = format!("SELECT name FROM pragma_table_info('{table}')");
        for column in strings(&index, &columns) {
            let value = match column.as_str() {
                "name" => "name || 'x'".to_owned(),
                "flags" => "1 - flags".to_owned(),
                _ => format!("ifnull({column}, 0) + 1000000"),
            };
            changes.push(format!("UPDATE {table} SET {column} = {value} WHERE {one}"));
        }
    }
    for table in ["account", "model", "api_key", "outcome"] {
        changes.push(format!(
            "INSERT INTO {table} (id, name) VALUES (900, 'new')"
        ));
    }
    assert!(changes.len() > 80, "{}", changes.len());
    for change in changes {
        index.execute_batch("BEGIN").unwrap();
        assert_ne!(index.execute(&change, []).unwrap(), 0, "{change}");
        assert!(!is_of(&fingerprint, &index), "{change}");
        index.execute_batch("ROLLBACK").unwrap();
    }
    assert!(is_of(&fingerprint, &index), "nothing remained");
}

/// The numbers of names depend on the order in which somebody first indexed them.
#[test]
fn the_numbers_of_names_do_not_count() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = filled(dir.path());
    let index = create_for_test(dir.path());
    index
        .execute_batch(
            "UPDATE model SET id = id + 900;
             UPDATE activity SET model = model + 900 WHERE model IS NOT NULL;
             UPDATE usage_hour SET model = model + 900; UPDATE usage_day SET model = model + 900;
             UPDATE usage_total SET model = model + 900;",
        )
        .unwrap();
    assert!(is_of(&fingerprint_of(&ledger, 503), &index));
}

#[test]
fn entries_that_only_one_side_has_are_added_or_taken_away() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = filled(dir.path());
    // The walk was earlier than the index, at it, and later.
    for read in [0, 1, 300, 503] {
        let mut fingerprint = fingerprint_of(&ledger, read);
        assert!(is_index_of(&ledger, &mut fingerprint), "{read}");
        assert!(is_index_of(&ledger, &mut fingerprint), "{read}, again");
    }
    enter(&ledger, 500..620);
    let mut fingerprint = fingerprint_of(&ledger, 623);
    assert!(is_index_of(&ledger, &mut fingerprint));
    let index = create_for_test(dir.path());
    let delete = "DELETE FROM activity WHERE seq = 7";
    assert_eq!(index.execute(delete, []).unwrap(), 1);
    assert!(!is_index_of(&ledger, &mut fingerprint_of(&ledger, 623)));
}

#[test]
fn an_empty_index_is_that_of_an_empty_ledger() {
    let dir = tempfile::tempdir().unwrap();
    let index = create_for_test(dir.path());
    assert!(is_of(&IndexFingerprint::default(), &index));
}
