//! PostgreSQL as the home of the ledger and of the accounts. A sidecar commits there first.
//!
//! Every sidecar has a copy of all data in its SQLite files (`copy.rs`). One sidecar at a time is
//! the holder, for as long as it renews its lease; only the holder writes. Each commit contains the
//! holder's epoch, so that a superseded holder cannot commit any more. This module must not decide
//! an amount: the ledger's rules have made the entries. Read next: `postgres/commit.rs`,
//! `postgres/lease.rs`, `postgres/home.rs` and `postgres/session.rs` (the connection).

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
