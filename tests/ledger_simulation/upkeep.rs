//! What the ledger does besides entering endings (sealing, archiving, indexing), and deaths in the
//! middle of its work.
//!
//! The process dies at the named points of the program: there it panics, and then its memory is
//! lost. Must not know what the books should be: that is `ledger_simulation/model.rs`.

use super::episode::{ACCOUNTS, Episode, Sabotage, name};
use base::failpoint;
use rusqlite::Connection;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    Turn,
    Seal,
    Archive,
    Index,
    Reindex,
}

/// Where the process dies, doing what, and at most at which passage.
const DEATHS: [(Work, &str, u64); 4] = [
    (Work::Turn, "mid_commit", 4),
    (Work::Turn, "after_commit", 1),
    (Work::Index, "mid_index", 1),
    (Work::Reindex, "before_reindex_swap", 1),
];

/// The same, while segments are written and moved.
const SEALING_DEATHS: [(Work, &str, u64); 8] = [
    (Work::Seal, "mid_index", 1),
    (Work::Seal, "segment_renamed", 2),
    (Work::Seal, "before_segment_record", 2),
    (Work::Seal, "after_segment_record", 2),
    (Work::Seal, "mid_segment_delete", 3),
    (Work::Archive, "mid_archive_copy", 2),
    (Work::Archive, "before_archive_record", 2),
    (Work::Archive, "after_archive_record", 2),
];

/// What each run must have counted.
pub const COUNTED: [&str; 17] = [
    "Turn",
    "Seal",
    "Archive",
    "Index",
    "Reindex",
    "dead at mid_commit",
    "dead at after_commit",
    "dead at mid_index",
    "dead at segment_renamed",
    "dead at before_segment_record",
    "dead at after_segment_record",
    "dead at mid_segment_delete",
    "dead at mid_archive_copy",
    "dead at before_archive_record",
    "dead at after_archive_record",
    "dead at before_reindex_swap",
    "dead in a replay",
];

impl Episode {
    /// Does some work, in which the process may die.
    pub fn upkeep(&mut self) {
        let seals = self.seals && !self.dice.one_in(4);
        let deaths: &[_] = if seals { &SEALING_DEATHS } else { &DEATHS };
        let (work, point, passages) = *self.dice.pick(deaths).unwrap();
        let passage = 1 + self.dice.below(passages);
        let dies = !self.dice.one_in(4);
        if dies {
            arm(point, passage);
        }
        // Small, because a look-up in a segment decodes a whole block.
        let entries_per_segment = 12 + self.dice.below(24);
        match survives(|| self.work(work, entries_per_segment)) {
            true => {
                self.counts.add(&format!("{work:?}"));
                if work == Work::Turn {
                    self.turned();
                }
            }
            false => {
                self.counts.add(&format!("dead at {point}"));
                if point == "after_commit" {
                    self.committed();
                }
                self.sabotage_after_death(work);
                self.crash();
            }
        }
        for account in 0..ACCOUNTS {
            let statement = self
                .core()
                .billing()
                .receipts()
                .statement(&name(account))
                .unwrap();
            assert!(statement.adds_up(), "{account}: {statement:?}");
        }
    }

    fn work(&self, work: Work, entries_per_segment: u64) {
        let core = self.core();
        match work {
            Work::Turn => drop(core.step(self.now).unwrap()),
            Work::Seal => drop(
                core.billing()
                    .upkeep()
                    .seal(None, entries_per_segment)
                    .unwrap(),
            ),
            Work::Archive => {
                drop(
                    core.billing()
                        .upkeep()
                        .archive_segments(i64::MAX, &self.archive())
                        .unwrap(),
                );
            }
            // A page indexes what it needs.
            Work::Index => drop(core.billing().receipts().statement(&name(0)).unwrap()),
            Work::Reindex => {
                let wrong = core.billing().upkeep().reindex(&mut |_| ()).unwrap();
                assert_eq!(wrong, 0, "rows of the index were wrong");
            }
        }
    }

    /// Takes away what a death in this work relies on.
    fn sabotage_after_death(&self, work: Work) {
        match (self.sabotage, work) {
            (Some(Sabotage::LosesSegments), Work::Seal | Work::Archive) => {
                for dir in [self.dir.path().join("segments"), self.archive()] {
                    remove_files(&dir);
                }
            }
            (Some(Sabotage::LosesIndexRows), Work::Index | Work::Reindex | Work::Turn) => {
                remove_rows(&self.dir.path().join("index.db"));
            }
            _ => {}
        }
    }

    /// Starts a process, which may die while it replays the journals, and ends it.
    pub fn start_briefly(&mut self) {
        arm("mid_commit", 1 + self.dice.below(6));
        if !survives(|| drop(self.start())) {
            self.counts.add("dead in a replay");
        }
    }
}

/// Whether `work` ends before the process dies at the point that is armed.
fn survives(work: impl FnOnce()) -> bool {
    let done = catch_unwind(AssertUnwindSafe(work));
    failpoint::disarm();
    match done {
        Err(panic) if !is_fail_point(&*panic) => resume_unwind(panic),
        done => done.is_ok(),
    }
}

/// Whether this is a panic at a fail point.
pub fn is_fail_point(panic: &(dyn Any + Send)) -> bool {
    let text = panic.downcast_ref::<String>();
    text.is_some_and(|text| text.starts_with("fail point "))
}

fn arm(point: &str, passage: u64) {
    failpoint::arm(&format!("panic@{point}:{passage}").parse().unwrap());
}

fn remove_files(dir: &Path) {
    for file in std::fs::read_dir(dir).into_iter().flatten() {
        std::fs::remove_file(file.unwrap().path()).unwrap();
    }
}

/// Removes a row of each table that has many, so that the index still knows how far it is.
fn remove_rows(path: &Path) {
    let index = Connection::open(path).unwrap();
    let tables: Vec<String> = index
        .prepare("SELECT name FROM sqlite_schema WHERE type = 'table'")
        .unwrap()
        .query_map([], |row| row.get(0))
        .unwrap()
        .map(Result::unwrap)
        .collect();
    for table in tables {
        let count: i64 = index
            .query_row(&format!("SELECT count(*) FROM {table}"), [], |row| {
                row.get(0)
            })
            .unwrap();
        if count > 10 {
            let mut columns = index
                .prepare(&format!(
                    "SELECT name FROM pragma_table_info('{table}') WHERE pk > 0"
                ))
                .unwrap();
            let key: Vec<String> = columns
                .query_map([], |row| row.get(0))
                .unwrap()
                .map(Result::unwrap)
                .collect();
            let key = key.join(", ");
            let sql =
                format!("DELETE FROM {table} WHERE ({key}) IN (SELECT {key} FROM {table} LIMIT 1)");
            index.execute(&sql, []).unwrap();
        }
    }
}
