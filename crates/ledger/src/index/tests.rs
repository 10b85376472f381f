//! The index is what the entries make, however they come: in which batches, by which process, after
//! which damage. `index/tail/tests.rs` has the readers.

use super::*;
use crate::Ledger;
use crate::{Ending, EndingDetail, RequestOutcome};
use credits::money::Micro;
use llm_protocol::usage::Usage;

const NOW: i64 = 1_800_000_000_000;

pub(crate) fn opened(dir: &Path) -> Ledger {
    let ledger = Ledger::open(dir).unwrap();
    for account in ["acct_a", "acct_b", "acct_c"] {
        ledger.open_funded(account, 900_000_000, NOW);
    }
    ledger
}

pub(crate) fn ending(number: usize) -> Ending {
    let outcome = RequestOutcome::ALL[number % RequestOutcome::ALL.len()];
    let account = ["acct_a", "acct_b", "acct_c"][number % 3];
    let at_ms = NOW + i64::try_from(number).unwrap() * 977_000 % 200_000_000;
    let plain = Ending::in_test(&format!("req_{number:05}"), account, at_ms, outcome);
    let is_free = plain.kind() == "void";
    Ending {
        paid: Micro::new(if is_free { 0 } else { 1_000 }),
        detail: EndingDetail {
            model: format!("m{}", number % 4),
            key_id: format!("key_{}", number % 11),
            member: (!number.is_multiple_of(3)).then(|| format!("acct_a/acct_{}", number % 5)),
            conversation: (!number.is_multiple_of(4)).then(|| format!("{}", number % 37)),
            implausible: number.is_multiple_of(13),
            usage: Usage {
                input: 10,
                output: 5,
                ..Usage::default()
            },
            ..plain.detail
        },
        ..plain
    }
}

pub(crate) fn enter(ledger: &Ledger, numbers: std::ops::Range<usize>) {
    let endings: Vec<_> = numbers.map(ending).collect();
    ledger.enter_new(&endings);
}

/// All rows of an index, table by table.
fn rows(dir: &Path) -> Vec<String> {
    let connection = sqlite::open_reader(&dir.join("index.db"), "read an index").unwrap();
    let tables = [
        "watermark",
        "account",
        "model",
        "api_key",
        "member",
        "outcome",
        "activity",
        "posting",
        "usage_hour",
        "usage_day",
        "usage_total",
        "conversation",
    ];
    let of = |table: &str| -> Vec<String> {
        let mut statement = connection
            .prepare(&format!("SELECT * FROM {table} ORDER BY 1, 2"))
            .unwrap();
        let count = statement.column_count();
        let row = |row: &rusqlite::Row<'_>| {
            let values: Vec<rusqlite::types::Value> =
                (0..count).map(|index| row.get(index).unwrap()).collect();
            Ok(format!("{table} {values:?}"))
        };
        let rows = statement.query_map([], row).unwrap();
        rows.map(Result::unwrap).collect()
    };
    let mut rows: Vec<_> = tables.into_iter().flat_map(of).collect();
    rows.sort();
    rows
}

fn catch_up(ledger: &Ledger, batch: u32) {
    while ledger.index().catch_up_index(batch).unwrap() > 0 {}
    assert_eq!(ledger.index().index_backlog().unwrap(), 0);
}

#[test]
fn the_same_entries_make_the_same_index_whatever_the_batches() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = opened(dir.path());
    enter(&ledger, 0..500);
    assert_eq!(
        (
            ledger.index().index_backlog().unwrap(),
            ledger.index().index_lag()
        ),
        (503, 0)
    );
    catch_up(&ledger, 4_096);
    let whole = rows(dir.path());
    assert!(whole.len() > 800, "{}", whole.len());
    for batch in [1, 7, 100] {
        clear(&create_for_test(dir.path())).unwrap();
        assert_eq!(ledger.index().index_backlog().unwrap(), 503);
        catch_up(&ledger, batch);
        assert_eq!(rows(dir.path()), whole, "batches of {batch}");
    }
    assert_eq!(ledger.index().find_wrong_aggregates(9).unwrap(), []);
    assert_eq!(ledger.index().reindex(9, &mut |_| ()).unwrap(), []);
    assert_eq!(rows(dir.path()), whole, "made anew");
}

#[test]
fn several_processes_index_one_ledger_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = opened(dir.path());
    enter(&ledger, 0..400);
    // Each has its own connections, as a process has.
    std::thread::scope(|scope| {
        let dir = dir.path();
        for batch in [3, 5, 11] {
            scope.spawn(move || {
                let ledger = Ledger::open(dir).unwrap();
                while ledger.index().index_backlog().unwrap() > 0 {
                    if let Err(error) = ledger.index().catch_up_index(batch) {
                        assert!(is_busy(&error), "{error}");
                    }
                }
            });
        }
    });
    let together = rows(dir.path());
    clear(&create_for_test(dir.path())).unwrap();
    catch_up(&ledger, 4_096);
    assert_eq!(together, rows(dir.path()));
}

#[test]
fn an_index_that_is_damaged_foreign_newer_or_gone_is_made_anew() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("index.db");
    let ledger = opened(dir.path());
    enter(&ledger, 0..300);
    catch_up(&ledger, 4_096);
    let sound = rows(dir.path());
    drop(ledger);
    sqlite::checkpoint(&create_for_test(dir.path())).unwrap();
    let sound_copy = dir.path().join("sound.db");
    std::fs::copy(&path, &sound_copy).unwrap();
    let change = |sql: &str| create_for_test(dir.path()).execute_batch(sql).unwrap();
    let damage = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = std::fs::read(&path).unwrap();
        change(&mut bytes);
        std::fs::write(&path, bytes).unwrap();
    };
    type Change<'a> = &'a dyn Fn();
    let changes: [(&str, bool, Change<'_>); 12] = [
        ("garbage", true, &|| damage(&|bytes| bytes.fill(0xa5))),
        ("torn", true, &|| damage(&|bytes| bytes.truncate(3 * 1_024))),
        ("no header", true, &|| damage(&|bytes| bytes[..16].fill(0))),
        ("half", true, &|| damage(&|bytes| bytes[1_024..].fill(0xa5))),
        ("newer", true, &|| change("PRAGMA user_version = 99")),
        ("no table", true, &|| change("DROP TABLE watermark")),
        ("no row", true, &|| change("DELETE FROM watermark")),
        ("gone", false, &|| std::fs::remove_file(&path).unwrap()),
        ("older", false, &|| {
            std::fs::remove_file(&path).unwrap();
            let mut old = sqlite::open_with_page_size(&path, PAGE_BYTES, "test").unwrap();
            sqlite::migrate(&mut old, &MIGRATIONS[..1], "test").unwrap();
            // As the program of that version left it.
            old.execute_batch(&format!(
                "ATTACH '{}' AS new;
                 INSERT INTO account SELECT * FROM new.account;
                 INSERT INTO model SELECT * FROM new.model;
                 INSERT INTO api_key SELECT * FROM new.api_key;
                 INSERT INTO activity SELECT * FROM new.activity;
                 INSERT INTO posting SELECT * FROM new.posting;
                 INSERT INTO usage_hour SELECT account, hour, model, api_key, responses, credits,
                   input, cache_read, output, voids FROM new.usage_hour WHERE true
                   ON CONFLICT DO NOTHING;
                 INSERT INTO usage_total SELECT * FROM new.usage_total;
                 INSERT INTO conversation SELECT * FROM new.conversation;
                 DELETE FROM outcome; INSERT INTO outcome SELECT * FROM new.outcome;
                 DELETE FROM watermark; INSERT INTO watermark SELECT * FROM new.watermark;",
                sound_copy.display()
            ))
            .unwrap();
        }),
        ("empty", false, &|| std::fs::write(&path, "").unwrap()),
        ("ahead", false, &|| change("UPDATE watermark SET seq = 999")),
        ("foreign", false, &|| {
            change("UPDATE watermark SET hash = randomblob(32); DELETE FROM activity")
        }),
    ];
    for (what, is_set_aside, change) in changes {
        change();
        let ledger = Ledger::open(dir.path()).unwrap();
        let found = ledger.rows().entries("acct_a", true, None, 999).unwrap();
        assert_eq!(found.len(), 100, "{what}");
        catch_up(&ledger, 4_096);
        assert_eq!(rows(dir.path()), sound, "{what}");
        let names = std::fs::read_dir(dir.path()).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let aside: Vec<_> = names
            .filter(|name| name.starts_with("index.db.") && !name.ends_with("-wal"))
            .collect();
        assert_eq!(!aside.is_empty(), is_set_aside, "{what}: {aside:?}");
        for name in aside {
            std::fs::remove_file(dir.path().join(name)).unwrap();
        }
    }
}

#[test]
fn damage_that_a_running_process_meets_is_set_aside_too() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("index.db");
    let ledger = opened(dir.path());
    enter(&ledger, 0..300);
    catch_up(&ledger, 4_096);
    // A second process, which finds out when it writes.
    let other = Ledger::open(dir.path()).unwrap();
    assert_eq!(other.index().index_lag(), 0);
    sqlite::checkpoint(&create_for_test(dir.path())).unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[1_024..].fill(0xa5);
    std::fs::write(&path, bytes).unwrap();
    enter(&ledger, 300..310);
    for ledger in [&ledger, &other, &ledger] {
        let mut found = 0;
        for _ in 0..3 {
            found = ledger
                .rows()
                .entries("acct_b", true, None, 999)
                .map_or(0, |found| found.len());
        }
        assert_eq!(found, 103);
    }
    catch_up(&other, 4_096);
    assert_eq!(ledger.index().find_wrong_aggregates(9).unwrap(), []);
}

#[test]
fn an_index_that_somebody_empties_under_a_running_process_is_made_anew() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = opened(dir.path());
    enter(&ledger, 0..300);
    catch_up(&ledger, 4_096);
    let mut options = std::fs::OpenOptions::new();
    let index = options.write(true).open(dir.path().join("index.db"));
    index.unwrap().set_len(0).unwrap();
    // Of each 3 entries one is of this account.
    let found = ledger.rows().entries("acct_b", true, None, 999).unwrap();
    assert_eq!(found.len(), 100);
    let other = Ledger::open(dir.path()).unwrap();
    catch_up(&other, 4_096);
    assert_eq!(other.index().find_wrong_aggregates(9).unwrap(), []);
}

#[test]
fn a_rebuild_replaces_the_index_under_a_process_that_has_it_open() {
    let dir = tempfile::tempdir().unwrap();
    let (serving, command) = (opened(dir.path()), Ledger::open(dir.path()).unwrap());
    enter(&serving, 0..300);
    catch_up(&serving, 4_096);
    let sound = rows(dir.path());
    create_for_test(dir.path())
        .execute_batch("DELETE FROM activity WHERE seq = 7; UPDATE usage_day SET credits = 1")
        .unwrap();
    let mut seen = Vec::new();
    let wrong = command
        .index()
        .reindex(3, &mut |count| seen.push(count))
        .unwrap();
    assert_eq!(seen, [303]);
    let tables: Vec<_> = wrong.iter().map(|wrong| wrong.of).collect();
    assert_eq!(tables, ["activity", "usage_day", "usage_day", "usage_day"]);
    assert!(
        wrong[0].row.starts_with("account acct_a, time "),
        "{wrong:?}"
    );
    assert_eq!(rows(dir.path()), sound);
    // The process goes on, with names that it has not seen in this index.
    enter(&serving, 300..400);
    assert_eq!(
        serving
            .rows()
            .entries("acct_a", true, None, 999)
            .unwrap()
            .len(),
        134
    );
    catch_up(&serving, 4_096);
    assert_eq!(serving.index().find_wrong_aggregates(9).unwrap(), []);
    let left = std::fs::read_dir(dir.path()).unwrap();
    let names = left.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert!(!names.into_iter().any(|name| name.ends_with(".new")));
}
