//! Changes of the ledger. A batch of changes is one transaction.
//!
//! Read next: `writer/change.rs` (the changes of a batch), `writer/append.rs` (a batch),
//! `writer/batch.rs`, `writer/posting.rs` (grants and other postings), `writer/store_events.rs`
//! (the events of a shared store).

pub(crate) mod accounts;
pub(crate) mod append;
pub(crate) mod batch;
pub(crate) mod change;
pub(crate) mod claim;
pub(crate) mod posting;
pub(crate) mod store_events;
pub(crate) mod trial;
