//! Money: amounts of credit, price lists, the cost of a response, and the limits of a key.
//!
//! All functions are pure computations, which depend neither on the ledger nor on a clock or a
//! vendor. Amounts are integers in micro-credits, and every product is exact before it is rounded
//! once.
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
