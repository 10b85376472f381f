//! Implements the store that several edges share, with balances and holds in Redis (or Valkey).
//! Only scripts, which run as one step, change them.
//!
//! Each account, with all its data, is in one of sixteen partitions. A partition is one hash slot,
//! so a script finds all its data on one node. Redis decides how much an account can spend. The
//! ledger, which consumes the events of the partitions, is authoritative. Scripts read the server's
//! clock, and edges measure it (`redis/clock.rs`), so the edges' clocks do not matter. This module
//! must not depend on HTTP or prices. Read next: `redis/keyspace.rs` (the keys), `redis/client.rs`
//! (the calls), `redis/reservation.rs` and `redis/settlement.rs` with their scripts
//! `redis/reserve.lua` and `redis/end.lua`, which begin with `redis/common.lua`.

mod api_keys;
mod balance;
mod blocking;
pub mod breaker;
mod client;
mod clock;
mod errors;
mod events;
mod fitness;
mod idempotency;
mod ingest;
mod keyspace;
mod link;
mod refused;
mod reply;
mod reservation;
mod revocations;
mod scripts;
mod settlement;
mod views;

pub use balance::{AccountSeed, PostCommand, PostReply, StoreAccount, lapse_operation};
pub use blocking::block_on;
pub use client::SharedStore;
pub use clock::StoreClock;
pub use events::{StoreEvent, StoredEvents};
pub use ingest::{MAX_RESTORED, PartitionServer, RestoreEntry, SharedKey, SpendSeed};
pub use keyspace::{PARTITIONS, partition};
pub use reservation::{ReserveCommand, ReserveReply};
pub use settlement::{EndState, SettleCommand, SettleReply};
