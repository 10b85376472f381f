//! Implements the billing service: quotes, holds, and their settlement or release; balances,
//! receipts and grants; the replay of journals at start.
//!
//! Three steps, in this order, make a bill correct. The gateway reserves credits before it calls
//! the vendor. It journals the ending before the client receives the last byte. The ledger has the
//! ending within milliseconds. Read `crates/credits/src/pricing.rs` (what a request costs),
//! `billing/quote.rs` (the worst case of a request), `billing/holds.rs` (whether the account may
//! spend it), `crates/ledger/src/journal.rs` and `billing/ledger_writer.rs` (each request counts
//! once, whichever process dies), `billing/service.rs` (what a serving process has of all this);
//! for many edges with one shared store, `shared_credit.rs`. This module must not depend on HTTP.

mod account_usage;
pub mod activity;
pub mod admission;
pub mod backlog;
mod backup;
mod balance;
pub mod corrections;
mod data_dir;
mod embedded;
pub mod estimate;
mod file_checks;
mod funds;
mod handover;
mod hold;
pub mod holds;
pub mod json;
mod lapse_clock;
mod ledger_writer;
mod open_holds;
pub mod quote;
pub mod quote_metered;
mod receipt;
mod repair;
pub mod reported_turns;
mod reserve;
mod retention;
mod service;
mod settle;
pub mod shared_balances;
pub mod statement;
mod stored_prices;
#[cfg(test)]
mod tests;
pub mod usage_report;
mod usual_reserve;
mod views;

pub use backup::Backup;
pub(crate) use balance::CreditSnapshot;
pub use balance::{Balance, PostedFunds, TrialState};
pub use data_dir::Billing;
pub use embedded::{EmbeddedAdmission, LEDGER_CALLS};
pub use file_checks::{check_reads, write_counts};
pub use hold::{Debit, HeldRequest, Hold, HoldEnd, HoldRequest, HoldStore};
pub(crate) use hold::{record_metrics, without_charge};
pub use holds::{PendingRequests, ReserveError};
pub(crate) use lapse_clock::LapseClock;
pub use ledger::audit::{
    Audit, AuditProgress, AuditScope, AuditStart, AuditStep, CpuShare, Finding, LedgerAuditReport,
    verify_accounts, verify_missing_ledger,
};
pub use open_holds::OpenHolds;
pub use receipt::Receipt;
pub use service::CreditService;
pub(crate) use service::JOURNAL_CLOSE_TIMEOUT;
pub use usual_reserve::UsualReserve;
pub use views::{BillingPages, BillingUpkeep, Corrections, Receipts, UsageReports};
