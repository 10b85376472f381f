//! Implements the ledger: immutable, hash-chained entries, and balances, which are sums of entries.
//!
//! The ledger keeps these rules, whichever database stores it. An entry with the same kind and
//! reference counts once. A request ends at most once. A balance never goes below zero. Entries
//! never change. When a call reports success, its write is on disk. Every change of a balance is an
//! entry in the same transaction. The gateway's ledger writer writes here; any process can post
//! grants and other changes. This crate must not decide what a response costs, and must not depend
//! on HTTP.
//!
//! # Parts, from bottom to top
//!
//! A part uses only those before it in this list, as the gateway's `tests/tidy/main.rs` checks.
//!
//! * [`error`]: errors of databases.
//! * [`sqlite`]: one file of SQLite, its damage and its row cache.
//! * [`instance_lock`]: one process on a data directory admits requests.
//! * `entry`: an entry, an ending and an account as types; the hash chain.
//! * `statements`: statements on `ledger.db` that several parts need.
//! * [`segment`]: the format of a sealed segment.
//! * `sealed`: finds the files of sealed segments, and the entries in them.
//! * `index`: `index.db`, from which pages of entries are read.
//! * [`postgres`]: PostgreSQL as the home of ledger and accounts.
//! * [`copy`]: a file of SQLite as a copy of the data in PostgreSQL.
//! * `database`: `ledger.db`, its schema and its anchor.
//! * `views`: the ledger's interface, by subject.
//! * `indexing`: the ledger and its index together.
//! * `sealing`: seals the oldest entries, archives segments, exports sealed entries.
//! * `reader`: accounts, the chain, spending of keys, pages, usage and statements.
//! * `writer`: a batch of changes is one transaction.
//! * [`journal`]: the append-only file of requests that may not be in the ledger yet.
//! * [`indexer`]: the thread that writes the index; compares the index, and rebuilds it.
//! * [`audit`]: recomputes every debit and checks every rule.

#![cfg_attr(
    test,
    allow(clippy::too_many_lines, reason = "a test reads from top to bottom")
)]

pub mod audit;
pub mod copy;
mod database;
mod entry;
pub mod error;
#[cfg(any(test, feature = "fixtures"))]
mod fixture;
mod index;
pub mod indexer;
mod indexing;
pub mod instance_lock;
pub mod journal;
pub mod postgres;
mod reader;
mod sealed;
mod sealing;
pub mod segment;
pub mod sqlite;
mod statements;
mod views;
mod writer;

pub use database::Ledger;
pub use database::anchor;
pub use entry::account::{KeySpend, LedgerAccount, LedgerAccountRow};
pub use entry::chain::{ChainHead, EntryHasher, entry_hash};
pub use entry::ending::{Ending, EndingDetail, RequestOutcome};
pub use entry::hex::encode_hex;
pub use entry::spend_totals::{HOUR_MS, SpendTotals};
pub use entry::{EntrySelection, LedgerEntry};
pub use error::StoreError;
pub use index::compare::AggregateMismatch;
pub use index::{
    FingerprintKeys, IndexFault, IndexFingerprint, MAX_INDEX_BATCH, StoredFingerprint,
};
pub use reader::activity::{ActivityCursor, ActivityFilter, Conversation, HourlySpend};
pub use reader::balances::{PaymentTotals, RefundEntry, RequestCharge, ReversalTotals};
pub use reader::chain::{EntryReference, LedgerHeads};
pub use reader::statement::BalanceChangeSums;
pub use reader::usage::{DailyTotal, UsageCursor, UsageInterval, UsageQuery, UsageRow, UsageSpan};
pub use sealed::files::{SEGMENT_DIR, SegmentRecord};
pub use sealing::archive::{SegmentState, SegmentStatus};
pub use sealing::{BackgroundPace, SealBoundary, SegmentLock};
pub use views::{
    AdmissionCache, LedgerChanges, LedgerChecks, LedgerIndexing, LedgerPages, LedgerRows, Segments,
    StoreEvents,
};
pub use writer::change::{AppendOutcome, LedgerBatch, LedgerChange};
pub use writer::claim::{Claim, ClaimsOnAccount};
pub use writer::posting::{
    AvailableCredit, BalanceChange, BalanceChangeKind, DebitSplit, PostingDetail, PostingResult,
    Refund, split_debit,
};
pub use writer::store_events::{IngestEvent, PartitionLocation};
pub use writer::trial::{Posting, TrialExtension};
