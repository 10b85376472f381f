//! model-gateway: one address and one key for every model of two kinds of vendor, metered and
//! billed in credits.
//!
//! This file is the map. Read it first, then `edge.rs`, then follow the numbers.
//!
//! # Vocabulary
//!
//! * **surface**: the protocol the client speaks, *chat* (chat completions) or *messages*.
//! * **client**: whoever calls us. **vendor**: whom we call. **endpoint**: one address of a vendor.
//! * **model**: a catalog id. **route**: a model's vendor, upstream name, price and capabilities.
//! * **principal**: the account and the key that pay.
//! * **quote**: the largest possible cost of a request. **hold**: credit set aside for it.
//!   **debit**: credit settled.
//! * **entry**: an immutable line of the ledger. **receipt**: an entry explained.
//! * **journal**: the edge's append-only file of usage that is not yet known to be in the ledger.

// In reading order.
#![cfg_attr(
    test,
    allow(clippy::too_many_lines, reason = "a test reads from top to bottom")
)]

pub mod account;
pub mod address;
pub mod admin;
pub mod app;
pub mod billing;
pub mod catalog;
pub mod cli;
pub mod clock;
pub mod config;
pub mod edge;
pub mod failpoint;
pub mod idempotency;
pub mod local_link;
pub mod money;
pub mod protocol;
pub mod queue;
pub mod sidecar;
pub mod simulator;
pub mod store;
pub mod telemetry;
pub mod upstreams;
pub mod usage;
