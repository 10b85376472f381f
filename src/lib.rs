//! model-gateway: one address and one key for the models of several vendors, metered and billed in
//! credits.
//!
//! `ARCHITECTURE.md` is the map of the source, which shows the layers and follows one request.
//! `docs/decisions.md` has the reasons. Read `edge.rs` next, whose hooks are numbered in the order
//! in which Pingora calls them.
//!
//! # Vocabulary
//!
//! * **surface**: the protocol that the client speaks: *chat* (chat completions), *messages* or
//!   *responses*.
//! * **client**: the program that calls the gateway. **vendor**: the service that the gateway
//!   calls. **endpoint**: one address of a vendor.
//! * **model**: an entry of the catalog, with its vendor, upstream name, price and capabilities.
//! * **principal**: the account and the key that pay.
//! * **quote**: the largest possible cost of a request. **hold**: credits reserved for a request.
//!   **settle**: end a hold with a debit. **release**: end it without one.
//! * **entry**: an immutable line of the ledger. **receipt**: the explanation of an entry.
//! * **ending**: how a request ended: its usage, cost and outcome.
//! * **journal**: the edge's append-only file of requests that may not be in the ledger yet.

#![cfg_attr(
    test,
    allow(clippy::too_many_lines, reason = "a test reads from top to bottom")
)]

// The modules have the alphabetical order of rustfmt.
pub mod account_merge;
pub mod admin;
pub mod app;
pub mod billing;
pub mod cli;
mod client_counts;
pub mod client_guides;
pub mod document;
pub mod edge;
pub mod handler_threads;
pub mod idempotency;
pub mod known_request;
pub mod local_link;
pub mod notify;
pub mod optional_parts;
pub mod organisations;
pub mod payments;
pub mod private_refusals;
pub mod provider_client;
pub mod pulse;
pub mod refused_requests;
pub mod replica;
pub mod shared_credit;
pub mod sidecar;
pub mod sign_in;
pub mod upstreams;
