//! The rules of a ledger, as tests that every home of it must pass. They know the trait of
//! `rules/store.rs` alone.
//!
//! `ledger.db` runs them, and a model in memory (`rules/model.rs`), which can break a rule on
//! purpose: then they must fail. The gateway's `tests/stores/ledger.rs` runs them on a ledger in
//! PostgreSQL. Read next: `rules/world.rs`, what the rules run on; `rules/money.rs` and
//! `rules/chain.rs`, the rules; `rules/random.rs`, random batches.

#![allow(
    clippy::too_many_lines,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::disallowed_methods
)]

mod chain;
mod list;
mod model;
mod money;
mod random;
mod store;
mod world;

use ledger::Ledger;
use list::{RULES, Rule};
use model::{Fault, MemoryLedger};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use store::LedgerStore;
use tempfile::TempDir;
use world::LedgerHome;

/// `ledger.db` in a folder of its own.
struct SqliteHome(TempDir);

impl SqliteHome {
    /// Prefers memory: the rules are not about power failures.
    fn new() -> Self {
        let memory = Path::new("/dev/shm");
        let dir = match memory.is_dir() {
            true => tempfile::tempdir_in(memory),
            false => tempfile::tempdir(),
        };
        Self(dir.unwrap())
    }
}

impl LedgerHome for SqliteHome {
    fn open(&self) -> Box<dyn LedgerStore> {
        Box::new(Ledger::open(self.0.path()).unwrap())
    }
}

impl LedgerHome for MemoryLedger {
    fn open(&self) -> Box<dyn LedgerStore> {
        Box::new(self.reopen())
    }
}

#[test]
fn a_ledger_in_sqlite_keeps_every_rule() {
    for (_, rule) in RULES {
        rule(&|| Box::new(SqliteHome::new()));
    }
}

#[test]
fn a_ledger_in_memory_keeps_every_rule() {
    for (_, rule) in RULES {
        rule(&|| Box::new(MemoryLedger::new(None)));
    }
}

/// The control: without it, a rule that checks nothing would be green too.
#[test]
fn a_home_that_breaks_a_rule_is_found() {
    for fault in Fault::ALL {
        let home = || -> Box<dyn LedgerHome> { Box::new(MemoryLedger::new(Some(fault))) };
        let fails = |rule: Rule| catch_unwind(AssertUnwindSafe(|| rule(&home))).is_err();
        let failing: Vec<_> = RULES
            .iter()
            .filter(|(_, rule)| fails(*rule))
            .map(|(name, _)| *name)
            .collect();
        println!("{fault:?}: {failing:?}");
        assert!(!failing.is_empty(), "no rule finds {fault:?}");
    }
}
