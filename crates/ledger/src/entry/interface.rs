//! What every home of the ledger can do: the trait, and what is passed through it.
//!
//! `ledger.db` is the first home (`writer/append.rs` has the implementation). A store is one chain
//! of entries: a home that keeps several chains is several stores, and each account belongs to one
//! of them. `crates/ledger/tests/rules.rs` has the rules as tests, which every home must pass. What
//! only files have (the anchor, backups, the index, the files of segments) is not here. Must not
//! name a database.

use crate::StoreError;
use crate::database::anchor::ChainHead;
use crate::{
    BackgroundPace, BalanceChange, ClaimsOnAccount, Ending, IngestEvent, KeySpend, LedgerAccount,
    LedgerEntry, Posting, PostingResult, Refund, SealBoundary,
};
use credits::money::CreditSplit;

/// A ledger: balances, and the chain of entries that they are the sum of.
///
/// Several processes can have the same ledger open. Each commit of one is the whole of a batch, and
/// every later read of another sees it.
pub trait LedgerStore: Send + Sync {
    /// Opens an account with zero balances; an open one does not change.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be written.
    fn open_account(
        &self,
        account: &str,
        trial_ends_at_ms: Option<i64>,
        at_ms: i64,
    ) -> Result<(), StoreError>;

    /// Enters the changes of a batch, in their order, in one commit. Each takes effect once,
    /// however often and by however many processes it is entered. Returns one outcome for each;
    /// when this returns, the entries are durable.
    ///
    /// # Errors
    /// Returns an error if the rules forbid one of the changes, if an account is not open, or if
    /// the ledger cannot be written; then nothing of the batch is entered. A store that does not
    /// know whether its commit took effect finds out before it returns: repeated by the caller, a
    /// batch would count twice as applied.
    fn append(&self, batch: &LedgerBatch<'_>) -> Result<Vec<AppendOutcome>, StoreError>;

    /// Returns an account's balances, and what of them the instance has applied, as one snapshot;
    /// `None` if it was never opened.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    fn account(
        &self,
        account: &str,
        instance_id: &str,
    ) -> Result<Option<LedgerAccount>, StoreError>;

    /// Returns a key's spending from `first_day` on (days since 1970), and the part of it that the
    /// instance has applied.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    fn key_spend(
        &self,
        key: &str,
        first_day: i64,
        instance_id: &str,
    ) -> Result<KeySpend, StoreError>;

    /// Returns the entry with a reference, sealed or not.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read, or if a segment that could have the entry is
    /// not at hand.
    fn entry(&self, reference: EntryReference<'_>) -> Result<Option<LedgerEntry>, StoreError>;

    /// Walks the chain: returns the entries behind `after_seq`, sealed ones too, in their order and
    /// without gaps: at most `limit`. Empty at the end of the chain.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read, or if a segment is not at hand.
    fn entries_after(&self, after_seq: i64, limit: u32) -> Result<Vec<LedgerEntry>, StoreError>;

    /// Seals the oldest entries up to `boundary`, at most `entries_per_segment` at a time. The last
    /// entry is never sealed: the next one is chained to it.
    ///
    /// # Errors
    /// Returns an error if somebody else seals, or if the ledger cannot be read or written; the
    /// entries that are not sealed then stay where they are.
    fn seal(
        &self,
        boundary: SealBoundary,
        entries_per_segment: i64,
        pace: BackgroundPace<'_>,
        now_ms: i64,
    ) -> Result<(), StoreError>;

    /// Returns the ends of the chain and of its sealed part, as of one moment.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    fn heads(&self) -> Result<LedgerHeads, StoreError>;
}

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
    /// What the shared store reports.
    Event(&'a IngestEvent),
}

/// What became of a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AppendOutcome {
    Ended,
    /// The request had ended before.
    AlreadyEnded,
    /// A segment that may have the end of the request is not at hand: it was not entered.
    Withheld,
    /// The change is in the ledger, entered now or earlier.
    Posted(PostingResult),
    /// What the ledger debited for the event, now or earlier. `None` if nothing can be entered: the
    /// account is not open, or a segment that may have the request is not at hand.
    Debited(Option<CreditSplit>),
}

/// What an entry is found by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryReference<'a> {
    /// The end of a request, whether a debit or a void.
    Ending(&'a str),
    /// Any other entry.
    Posting { kind: &'a str, reference: &'a str },
}

/// The ends of a chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LedgerHeads {
    pub last: ChainHead,
    /// The last sealed entry.
    pub sealed: ChainHead,
}
