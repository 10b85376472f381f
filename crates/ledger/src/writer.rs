//! Changes of the ledger: a batch of them is one transaction.
//!
//! Read next: `writer/append.rs` (a batch), `writer/batch.rs`, `writer/posting.rs` (grants and
//! other changes that are no requests), `writer/store_events.rs` (what a shared store reports).

pub(crate) mod append;
pub(crate) mod applied;
pub(crate) mod balances;
pub(crate) mod batch;
pub(crate) mod claim;
pub(crate) mod copied_entries;
pub(crate) mod key_spend_update;
pub(crate) mod lookup;
pub(crate) mod posting;
pub(crate) mod store_events;
pub(crate) mod trial;
