//! Statements on `ledger.db` that several modules need. Each one runs on a given connection.
//!
//! This module must not begin or commit a transaction, and must not decide an amount.

pub(crate) mod applied;
pub(crate) mod chain;
pub(crate) mod key_spend_update;
pub(crate) mod lookup;
