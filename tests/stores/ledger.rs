//! The rules of a ledger, as tests that every home of it must pass. They know the trait alone.
//!
//! `ledger.db` runs them, and a model in memory (`stores/ledger_model.rs`), which can break a rule
//! on purpose: then they must fail. Another home is one more [`LedgerHome`] and one more test. Read
//! next: `stores/ledger_world.rs`, what the rules run on; `stores/ledger_money.rs` and
//! `stores/ledger_chain.rs`, the rules; `stores/ledger_random.rs`, random batches.

use super::copies::CopyWorld;
use super::ledger_chain::*;
use super::ledger_model::{Fault, MemoryLedger};
use super::ledger_money::*;
use super::ledger_random::any_batches_leave_the_same_books;
use super::ledger_world::LedgerHome;
use ledger::{Ledger, LedgerStore};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use tempfile::TempDir;
use test_world::postgres::PostgresServer;

/// Makes homes, each with a ledger of its own.
pub type NewHome<'a> = &'a dyn Fn() -> Box<dyn LedgerHome>;
type Rule = fn(NewHome<'_>);

const RULES: &[(&str, Rule)] = &[
    ("an account opens once", an_account_opens_once),
    (
        "a repeated reference changes nothing",
        a_repeated_reference_changes_nothing,
    ),
    (
        "a reference is not used for something else",
        a_reference_is_not_used_for_something_else,
    ),
    ("a batch is all or nothing", a_batch_is_all_or_nothing),
    (
        "a debit takes what is there and writes off the rest",
        a_debit_takes_what_is_there_and_writes_off_the_rest,
    ),
    (
        "a void costs nothing and ends the request",
        a_void_costs_nothing_and_ends_the_request,
    ),
    (
        "refunds never exceed the debit",
        refunds_never_exceed_the_debit,
    ),
    (
        "a trial is granted and lapses once",
        a_trial_is_granted_and_lapses_once,
    ),
    (
        "an adjustment takes free credits only",
        an_adjustment_takes_free_credits_only,
    ),
    (
        "a key spends on the day of the ending",
        a_key_spends_on_the_day_of_the_ending,
    ),
    ("settled credits are applied", settled_credits_are_applied),
    (
        "events of a shared store count once",
        events_of_a_shared_store_count_once,
    ),
    (
        "an entry is found by its reference",
        an_entry_is_found_by_its_reference,
    ),
    (
        "a walk has no gaps while entries are added",
        a_walk_has_no_gaps_while_entries_are_added,
    ),
    (
        "sealing moves the sealed end alone",
        sealing_moves_the_sealed_end_alone,
    ),
    (
        "a reopened ledger is the same",
        a_reopened_ledger_is_the_same,
    ),
    ("two handles take turns", two_handles_take_turns),
    (
        "any batches leave the same books",
        any_batches_leave_the_same_books,
    ),
];

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

impl LedgerHome for CopyWorld {
    fn open(&self) -> Box<dyn LedgerStore> {
        Box::new(self.ledger())
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
fn a_ledger_in_postgres_keeps_every_rule() {
    let server = PostgresServer::start();
    let _standby = server.start_standby();
    let databases = Cell::new(0);
    for (_, rule) in RULES {
        rule(&|| {
            databases.set(databases.get() + 1);
            Box::new(CopyWorld::new(
                &server,
                &format!("rules_{}", databases.get()),
            ))
        });
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
