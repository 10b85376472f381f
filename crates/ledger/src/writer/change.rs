//! Defines the changes that a commit enters, and their outcomes.
//!
//! This file must not depend on a database.

use super::claim::ClaimsOnAccount;
use super::posting::{BalanceChange, PostingResult, Refund};
use super::store_events::IngestEvent;
use super::trial::{Posting, TrialExtension};
use crate::entry::ending::Ending;
use credits::money::CreditSplit;

/// Changes that are entered together.
#[derive(Clone, Copy)]
pub struct LedgerBatch<'a> {
    /// The running process that has settled the endings, but not seen them applied yet. Empty for a
    /// replay, and for a process that settles no requests.
    pub instance_id: &'a str,
    pub changes: &'a [LedgerChange<'a>],
}

/// A change of the ledger. Its reference decides whether it was entered before.
#[derive(Clone, Copy)]
pub enum LedgerChange<'a> {
    /// A request has ended. The balance decides which credits pay: the trial and the paid credits
    /// that the process settled, then the other bucket, and the rest is written off. `freed` is the
    /// part of the instance's claim to release, if the instance has handed over.
    Ending {
        ending: &'a Ending,
        freed: CreditSplit,
    },
    /// The credits of a trial, or their lapse.
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
    /// An event of the shared store.
    Event(&'a IngestEvent),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AppendOutcome {
    Ended,
    /// The request had ended already.
    AlreadyEnded,
    /// The ending was not entered, because a segment is missing that may contain the request.
    Withheld,
    /// The change is in the ledger, entered now or earlier.
    Posted(PostingResult),
    /// The ledger's debit for the event, made now or earlier. `None` if the event cannot be
    /// entered, because the account is not open or a segment is missing that may contain the
    /// request.
    Debited(Option<CreditSplit>),
}
