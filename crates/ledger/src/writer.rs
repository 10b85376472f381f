//! Changes of the ledger: a batch of them is one transaction.
//!
//! Read next: `writer/change.rs` (what a batch has), `writer/append.rs` (a batch),
//! `writer/batch.rs`, `writer/posting.rs` (grants and other changes that are no requests),
//! `writer/store_events.rs` (what a shared store reports).

pub(crate) mod accounts;
pub(crate) mod append;
pub(crate) mod batch;
pub(crate) mod change;
pub(crate) mod claim;
pub(crate) mod posting;
pub(crate) mod store_events;
pub(crate) mod trial;
