//! model-gateway: one address and one key for all models of two kinds of vendor, metered and billed
//! in credits.
//!
//! This file is the map. Read it first, then `edge.rs`, then follow the numbered hooks.
//!
//! # Vocabulary
//!
//! * **surface**: the protocol that the client speaks, *chat* (chat completions) or *messages*.
//! * **client**: the program that calls the gateway. **vendor**: the service that the gateway
//!   calls. **endpoint**: one address of a vendor.
//! * **model**: a catalog id. **route**: a model's vendor, upstream name, price and capabilities.
//! * **principal**: the account and the key that pay.
//! * **quote**: the largest possible cost of a request. **hold**: credit reserved for a request.
//!   **debit**: credit settled.
//! * **entry**: an immutable line of the ledger. **receipt**: an explanation of an entry.
//! * **journal**: the edge's append-only file of usage that may not be in the ledger yet.

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
