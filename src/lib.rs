//! model-gateway: one address and one key for the models of several vendors, metered and billed in
//! credits.
//!
//! This file is the map. `ARCHITECTURE.md` shows the layers and follows one request;
//! `docs/decisions.md` has the reasons. Read `edge.rs` next: its hooks are numbered in the order in
//! which Pingora calls them.
//!
//! # Modules, in reading order
//!
//! The path of a request, from the socket inwards:
//!
//! * [`edge`]: the proxy; the life of one request, hook by hook.
//! * [`llm_protocol`], in `crates/`: the three protocols and the metering of tokens: reads, edits,
//!   translates and renders bytes; no I/O.
//! * [`config::catalog`], in `crates/`: models, their routes to vendors, and their prices.
//! * [`upstreams`]: the state of the vendors' endpoints, and which one a request uses.
//! * [`credits`], in `crates/`: amounts of credit as integers, price lists, limits.
//! * [`billing`]: quote, hold, journal, ledger writer; with a shared store, outbox and ingest.
//! * [`idempotency`]: one response per idempotency key.
//! * [`edge_store`]: the store of an edge, embedded or shared: keys, holds, idempotency keys.
//! * [`account`]: accounts, API keys and dashboard sessions.
//! * [`store`]: the SQLite databases and the shared store in Redis.
//!
//! For people and administrators:
//!
//! * [`sidecar`]: sign-up, dashboard and catalog as web pages.
//! * [`admin`]: the administrators' HTTP API.
//! * [`notify`]: mail to account holders.
//! * [`notify`]: alerts about credits, and the webhooks that carry them.
//! * [`document`]: accounts, keys and entries as JSON, for pages, admin API and command line.
//! * [`client_guides`]: set-up files of client programs, for the pages and the command line.
//! * [`local_link`]: in-memory connections from the edge to a sidecar in the same process.
//!
//! The process:
//!
//! * [`cli`]: the command line.
//! * [`app`]: start, reload, upgrade and shutdown.
//! * [`config`], in `crates/`: the config file and the environment, as validated settings.
//!
//! Small tools, and what tests use:
//!
//! * [`base`], in `crates/`: clock, queue, fail points, files, telemetry.//!
//! * [`config::address`]: client addresses and trusted networks.
//! * [`vendor_simulator`], in `crates/`: simulated vendors.
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

// Alphabetical, as rustfmt orders them.
pub mod account;
pub mod admin;
pub mod app;
pub mod billing;
pub mod cli;
pub mod client_guides;
pub mod document;
pub mod edge;
pub mod edge_store;
pub mod idempotency;
pub mod local_link;
pub mod notify;
pub mod private_refusals;
pub mod sidecar;
pub mod store;
pub mod upstreams;
