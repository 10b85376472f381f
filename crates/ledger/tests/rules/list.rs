//! The rules of a ledger, by name.
//!
//! Another home is one more [`super::world::LedgerHome`] and one more test.

use super::chain::*;
use super::money::*;
use super::random::any_batches_leave_the_same_books;
use super::world::NewHome;

pub type Rule = fn(NewHome<'_>);

pub const RULES: &[(&str, Rule)] = &[
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
