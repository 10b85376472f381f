//! What pages show of the ledger: lists of entries, usage by time, statements. Must not write.

pub(crate) mod activity;
pub(crate) mod statement;
pub(crate) mod usage;
