//! PostgreSQL as the home of the ledger and of the accounts: what a sidecar commits is there first.
//!
//! Every sidecar has a copy of all data in its SQLite files (`copy.rs`). One sidecar at a time is
//! the holder, for as long as it renews its lease; only the holder writes. Its epoch is a part of
//! each commit, so that a holder that was superseded cannot commit any more. This module must not
//! decide an amount: entries come here as the ledger's rules made them. Read next:
//! `postgres/commit.rs`, `postgres/lease.rs`, `postgres/home.rs` and `postgres/session.rs` (the
//! connection).

mod commit;
mod home;
mod lease;
mod model;
mod read;
mod server;
mod session;

pub use home::PostgresHome;
pub use lease::LEASE;
pub use model::{
    AccountBalance, CopiedRow, Domain, Holding, HomeCommit, Position, PostgresSettings,
};
pub use read::{CopyPage, MAX_PAGE_ENTRIES};
pub use server::{SCHEMA, ServerReport};
