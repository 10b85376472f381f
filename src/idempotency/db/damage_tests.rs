//! What a start does with damaged files that hold nothing of lasting value.

use super::IdempotencyDb;
use ledger::journal::holds_mirror::HoldsMirror;
use std::fs;
use std::path::Path;

/// Counts the files in `dir` that were moved aside for `name`.
fn aside(dir: &Path, name: &str) -> usize {
    let files = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap());
    files
        .filter(|file| file.starts_with(&format!("{name}.damaged-")) && !file.ends_with("-wal"))
        .count()
}

/// Opens both databases, as a start does.
fn open(dir: &Path) {
    HoldsMirror::open_or_renew(dir).unwrap();
    IdempotencyDb::open(dir).unwrap();
}

#[test]
fn a_damaged_mirror_and_idempotency_store_are_set_aside_and_made_anew() {
    let bad_page = |bytes: &mut Vec<u8>, page: usize| {
        let size = usize::from(u16::from_be_bytes([bytes[16], bytes[17]]));
        bytes[page * size..(page + 1) * size].fill(0xa5);
    };
    type Damage<'a> = &'a dyn Fn(&mut Vec<u8>);
    let damages: [Damage<'_>; 5] = [
        &|bytes| bytes.fill(b'x'),
        &|bytes| bytes.truncate(bytes.len() / 2),
        &|bytes| bytes[..16].fill(0),
        &|bytes| bad_page(bytes, 1),
        &|bytes| bad_page(bytes, 2),
    ];
    // Valid for SQLite, but without the tables that the program needs.
    let dropped = [
        "DROP TABLE held",
        "DROP TABLE answer",
        "PRAGMA user_version = 0",
    ];
    let changed = [
        "ALTER TABLE held DROP COLUMN trial",
        "ALTER TABLE asked DROP COLUMN done",
    ];
    for statement in dropped.into_iter().chain(changed) {
        for name in ["holds.db", "idempotency.db"] {
            let dir = tempfile::tempdir().unwrap();
            open(dir.path());
            let connection = rusqlite::Connection::open(dir.path().join(name)).unwrap();
            let is_changed = connection.execute_batch(statement).is_ok();
            drop(connection);
            open(dir.path());
            assert_eq!(
                aside(dir.path(), name),
                usize::from(is_changed),
                "{statement} in {name}"
            );
        }
    }
    for (number, damage) in damages.iter().enumerate() {
        for name in ["holds.db", "idempotency.db"] {
            let dir = tempfile::tempdir().unwrap();
            open(dir.path());
            assert_eq!(aside(dir.path(), name), 0, "what is sound stays");
            let path = dir.path().join(name);
            let mut bytes = fs::read(&path).unwrap();
            damage(&mut bytes);
            fs::write(&path, bytes).unwrap();
            open(dir.path());
            assert_eq!(aside(dir.path(), name), 1, "damage {number} of {name}");
            open(dir.path());
            assert_eq!(aside(dir.path(), name), 1, "once");
        }
    }
}

#[test]
fn a_start_after_a_kill_does_not_write_the_log_back() {
    let (served, killed) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let log = killed.path().join("idempotency.db-wal");
    let serving = IdempotencyDb::open(served.path()).unwrap();
    for name in ["idempotency.db", "idempotency.db-wal"] {
        fs::copy(served.path().join(name), killed.path().join(name)).unwrap();
    }
    let bytes = fs::metadata(&log).unwrap().len();
    assert!(bytes > 0);
    let restarted = IdempotencyDb::open(killed.path()).unwrap();
    assert_eq!(fs::metadata(&log).unwrap().len(), bytes);
    drop((serving, restarted));
}
