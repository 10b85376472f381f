//! The fingerprints of entries and of an index are equal exactly if each row is what the entries
//! make.

use super::{IndexFingerprint, TablesFingerprint};
use crate::Ledger;
use crate::index::create_for_test;
use crate::index::tests::{enter, opened};
use rusqlite::Connection;

/// The tables, with the columns of their keys.
const TABLES: [(&str, &str); 11] = [
    ("account", "id"),
    ("model", "id"),
    ("api_key", "id"),
    ("member", "id"),
    ("outcome", "id"),
    ("activity", "account, at, seq"),
    ("posting", "account, at, seq"),
    ("usage_hour", "account, hour, model, api_key, member"),
    ("usage_day", "account, day, model, api_key, member"),
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
    "INSERT INTO usage_hour SELECT account, hour + 900, model, api_key, member, 0, 0, 0, 0, 0, 0 FROM usage_hour LIMIT 1",
    "INSERT INTO conversation SELECT account, id + 900, 'new', 0, 0, 0, 0, 0, 0, 0 FROM conversation LIMIT 1",
];

/// What no row of the other tables shows.
const SCHEMAS_AND_WATERMARKS: [&str; 9] = [
    "UPDATE watermark SET conversations = conversations + 1",
    "INSERT INTO watermark SELECT * FROM watermark",
    "DELETE FROM watermark",
    "DROP INDEX activity_by_outcome",
    "DROP INDEX conversation_by_time; CREATE INDEX conversation_by_time ON conversation (last_at)",
    "CREATE TRIGGER later AFTER UPDATE ON watermark BEGIN DELETE FROM posting; END",
    "CREATE TABLE more (id INTEGER)",
    "DROP TABLE usage_total; CREATE VIEW usage_total AS SELECT 1",
    "UPDATE outcome SET id = 99 - id; UPDATE activity SET outcome = 99 - outcome WHERE outcome IS NOT NULL",
];

/// Changes of a table while an index of it is out of its schema.
const MISSED_BY_AN_INDEX: [(&str, &str); 6] = [
    ("activity_by_seq", "DELETE FROM activity WHERE seq = 7"),
    (
        "activity_by_outcome",
        "UPDATE activity SET outcome = 0 WHERE seq IN (10, 11, 12, 13)",
    ),
    ("activity_implausible", "UPDATE activity SET flags = 0"),
    (
        "activity_by_conversation",
        "UPDATE activity SET conversation = 1 WHERE conversation = 2",
    ),
    (
        "conversation_by_time",
        "UPDATE conversation SET turns = 0 WHERE id = 3",
    ),
    (
        "conversation_by_name",
        "UPDATE conversation SET name = 'other' WHERE id = 3",
    ),
];

fn filled(dir: &std::path::Path) -> Ledger {
    let ledger = opened(dir);
    enter(&ledger, 0..500);
    while ledger.index().catch_up_index(4_096).unwrap() > 0 {}
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
    let tables = TablesFingerprint::read(index, &fingerprint.keys());
    tables.is_ok_and(|tables| fingerprint.is_of(&tables))
}

fn fault(ledger: &Ledger, fingerprint: &mut IndexFingerprint) -> Option<String> {
    let stored = ledger.index().index_fingerprint(&fingerprint.keys());
    let fault = ledger.index().index_fault(fingerprint, stored).unwrap();
    fault.map(|fault| fault.to_string())
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
    changes.extend(SCHEMAS_AND_WATERMARKS.map(str::to_owned));
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
    for table in ["account", "model", "api_key", "member", "outcome"] {
        changes.push(format!(
            "INSERT INTO {table} (id, name) VALUES (900, 'new')"
        ));
    }
    assert!(changes.len() > 80, "{}", changes.len());
    for change in changes {
        index.execute_batch("BEGIN").unwrap();
        let before = index.total_changes();
        index.execute_batch(&change).unwrap();
        let is_schema = change.starts_with("DROP") || change.starts_with("CREATE");
        assert!(is_schema || index.total_changes() > before, "{change}");
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
        assert_eq!(fault(&ledger, &mut fingerprint), None, "{read}");
        assert_eq!(fault(&ledger, &mut fingerprint), None, "{read}, again");
    }
    enter(&ledger, 500..620);
    let mut fingerprint = fingerprint_of(&ledger, 623);
    assert_eq!(fault(&ledger, &mut fingerprint), None);
    let index = create_for_test(dir.path());
    let delete = "DELETE FROM activity WHERE seq = 7";
    assert_eq!(index.execute(delete, []).unwrap(), 1);
    assert_ne!(fault(&ledger, &mut fingerprint_of(&ledger, 623)), None);
}

#[test]
fn an_empty_index_is_that_of_an_empty_ledger() {
    let dir = tempfile::tempdir().unwrap();
    let index = create_for_test(dir.path());
    assert!(is_of(&IndexFingerprint::default(), &index));
}

/// The changes are undone with the index back in place, so that only the index is wrong.
#[test]
fn an_index_that_lacks_rows_of_its_table_changes_the_fingerprint() {
    for (name, change) in MISSED_BY_AN_INDEX {
        let dir = tempfile::tempdir().unwrap();
        let ledger = filled(dir.path());
        let mut fingerprint = fingerprint_of(&ledger, 503);
        let index = create_for_test(dir.path());
        let sql = |sql: &str| index.execute_batch(sql).unwrap();
        sql("CREATE TABLE kept AS SELECT * FROM sqlite_schema");
        sql("CREATE TABLE kept_activity AS SELECT * FROM activity");
        sql("CREATE TABLE kept_conversation AS SELECT * FROM conversation");
        // With the index in its schema, the change makes the index's rows wrong.
        sql(change);
        sql("PRAGMA writable_schema = ON");
        sql(&format!("DELETE FROM sqlite_schema WHERE name = '{name}'"));
        sql("PRAGMA writable_schema = RESET");
        sql("DELETE FROM activity; INSERT INTO activity SELECT * FROM kept_activity");
        sql("DELETE FROM conversation; INSERT INTO conversation SELECT * FROM kept_conversation");
        sql("DROP TABLE kept_activity; DROP TABLE kept_conversation");
        sql("PRAGMA writable_schema = ON");
        sql(&format!(
            "INSERT INTO sqlite_schema SELECT * FROM kept WHERE name = '{name}'"
        ));
        sql("DROP TABLE kept");
        sql("PRAGMA writable_schema = RESET");
        drop(index);
        let found = fault(&ledger, &mut fingerprint).unwrap_or_default();
        let of_an_index = [
            "an index",
            "by its name",
            "without its turns",
            "number of conversations",
            "time of a conversation",
        ];
        assert!(
            of_an_index.iter().any(|words| found.contains(words)),
            "{name}: {found:?}"
        );
    }
}

#[test]
fn an_index_that_cannot_be_read_is_named_and_stays_where_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = filled(dir.path());
    let mut fingerprint = fingerprint_of(&ledger, 503);
    let path = dir.path().join("index.db");
    crate::sqlite::checkpoint(&create_for_test(dir.path())).unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[8_192..].fill(0xa5);
    std::fs::write(&path, &bytes).unwrap();
    let found = fault(&ledger, &mut fingerprint).unwrap();
    assert!(found.contains("cannot be read"), "{found}");
    assert_eq!(std::fs::read(&path).unwrap(), bytes);
}

#[test]
fn an_index_that_is_ahead_or_of_another_ledger_is_told() {
    for change in [
        "UPDATE watermark SET seq = seq + 1",
        "UPDATE watermark SET seq = -1",
        "UPDATE watermark SET hash = zeroblob(32)",
    ] {
        let dir = tempfile::tempdir().unwrap();
        let ledger = filled(dir.path());
        let mut fingerprint = fingerprint_of(&ledger, 503);
        create_for_test(dir.path()).execute_batch(change).unwrap();
        let found = fault(&ledger, &mut fingerprint).unwrap();
        assert!(found.contains("does not have"), "{change}: {found}");
    }
}
