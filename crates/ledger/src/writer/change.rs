//! The changes that a commit enters, and what becomes of each.
//!
//! This file must not name a database.

use super::claim::ClaimsOnAccount;
use super::posting::{BalanceChange, PostingResult, Refund};
use super::store_events::IngestEvent;
use super::trial::{Posting, TrialExtension};
use crate::entry::ending::Ending;
use credits::money::CreditSplit;

/// Changes that are entered together.
#[derive(Clone, Copy)]
pub struct LedgerBatch<'a> {
    /// The running process that has settled the endings and counts them as on their way; empty for
    /// a replay, and for a process that settles nothing.
    pub instance_id: &'a str,
    pub changes: &'a [LedgerChange<'a>],
}

/// A change of the ledger. Its reference decides whether it was entered before.
#[derive(Clone, Copy)]
pub enum LedgerChange<'a> {
    /// A request has ended. The balance decides what it pays: the trial and the paid credits that
    /// the process settled, then the other bucket, and what neither covers is written off. `freed`
    /// is the part of the instance's claim to release, if it has handed over.
    Ending {
        ending: &'a Ending,
        freed: CreditSplit,
    },
    /// A trial's credits, or their lapse.
    Posting(Posting<'a>),
    /// A grant, a top-up or an adjustment. A debit never uses credits that running processes hold.
    Balance {
        change: BalanceChange<'a>,
        claims: ClaimsOnAccount<'a>,
    },
    /// An adjustment that the shared store has already debited.
    StoreDebit {
        change: BalanceChange<'a>,
        taken: CreditSplit,
    },
    Refund(Refund<'a>),
    /// A later end of a running trial.
    TrialEnd(TrialExtension<'a>),
    /// What the shared store reports.
    Event(&'a IngestEvent),
}

/// What became of a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AppendOutcome {
    Ended,
    /// The request had ended before.
    AlreadyEnded,
    /// The ending was not entered, because a segment that may have it is missing.
    Withheld,
    /// The change is in the ledger, entered now or earlier.
    Posted(PostingResult),
    /// What the ledger debited for the event, now or earlier. `None` if nothing can be entered: the
    /// account is not open, or a segment that may have the request is missing.
    Debited(Option<CreditSplit>),
}
