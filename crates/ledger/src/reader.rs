//! What is read of the ledger: accounts, the chain, spending of keys, and what pages show: lists of
//! entries, usage by time, statements. Must not write.

pub(crate) mod accounts;
pub(crate) mod activity;
pub(crate) mod balances;
pub(crate) mod chain;
pub(crate) mod key_spend;
pub(crate) mod statement;
pub(crate) mod usage;
