//! The ledger: balances, and the immutable, hash-chained entries that they are the sum of.
//!
//! The ledger keeps these rules, whichever database stores it. An entry with the same kind and
//! reference counts once. A request ends at most once. A balance never goes below zero. Entries
//! never change. When a call reports success, its write is on disk. Every change of a balance is an
//! entry in the same transaction. The gateway's ledger writer writes here; any process can post
//! grants and other changes. Must not decide what a response costs, and must not know HTTP.
//!
//! # Parts, roughly from bottom to top
//!
//! * [`error`], [`sqlite`]: errors of databases; one file of SQLite, its damage and its row cache.
//! * [`postgres`]: PostgreSQL as the home of ledger and accounts. [`copy`]: SQLite as its copy.
//! * `entry`: the types, the hash chain, and the trait that every home of a ledger implements.
//! * [`segment`]: the format of a sealed segment.
//! * `database`: `ledger.db`, its schema, its anchor, its accounts.
//! * `index`: `index.db`, from which pages of entries are read.
//! * `sealing`: seals the oldest entries, archives segments, finds sealed entries.
//! * `writer`: a batch of changes is one transaction. `reader`: pages, usage and statements.
//! * [`journal`]: the append-only file of requests that may not be in the ledger yet.
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
pub mod instance_lock;
pub mod journal;
pub mod postgres;
mod reader;
mod sealing;
pub mod segment;
pub mod sqlite;
mod views;
mod writer;

pub use database::Ledger;
pub use database::anchor;
pub use entry::account::{LedgerAccount, LedgerAccountRow};
pub use entry::chain::{EntryHasher, entry_hash};
pub use entry::ending::{Ending, EndingDetail, RequestOutcome};
pub use entry::hex::encode_hex;
pub use entry::interface::{
    AppendOutcome, EntryReference, LedgerBatch, LedgerChange, LedgerHeads, LedgerStore,
};
pub use entry::key_spend::KeySpend;
pub use entry::spend_totals::{HOUR_MS, SpendTotals};
pub use entry::{EntrySelection, LedgerEntry};
pub use error::StoreError;
pub use index::compare::AggregateMismatch;
pub use index::indexer;
pub use index::{
    FingerprintKeys, IndexFault, IndexFingerprint, MAX_INDEX_BATCH, StoredFingerprint,
};
pub use reader::activity::{ActivityCursor, ActivityFilter, Conversation, HourlySpend};
pub use reader::statement::BalanceChangeSums;
pub use reader::usage::{DailyTotal, UsageInterval, UsageQuery, UsageRow, UsageSpan};
pub use sealing::archive::{SegmentState, SegmentStatus};
pub use sealing::files::{SEGMENT_DIR, SegmentRecord};
pub use sealing::{BackgroundPace, SealBoundary, SegmentLock};
pub use views::{
    LedgerChanges, LedgerChecks, LedgerIndexing, LedgerPages, LedgerRows, Segments, StoreEvents,
};
pub use writer::balances::RequestCharge;
pub use writer::claim::{Claim, ClaimsOnAccount};
pub use writer::posting::{
    BalanceChange, BalanceChangeKind, PostingDetail, PostingResult, Refund, split_debit,
};
pub use writer::store_events::{IngestEvent, PartitionLocation};
pub use writer::trial::Posting;
