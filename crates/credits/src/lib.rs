//! Money: amounts of credit, price lists, what a response costs, and what a key may use.
//!
//! Bytes of the ledger, clocks and vendors are unknown here: every function computes. Amounts are
//! integers in micro-credits, and every product is exact before it is rounded once.
//!
//! Read next: `money.rs`, then `price_list.rs` and `pricing.rs`.

#![cfg_attr(
    test,
    allow(clippy::too_many_lines, reason = "a test reads from top to bottom")
)]

pub mod limits;
pub mod money;
pub mod price_list;
pub mod pricing;
pub mod rates;
#[cfg(feature = "rusqlite")]
mod sql;
pub mod trial;
