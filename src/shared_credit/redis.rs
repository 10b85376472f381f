//! The store that several edges share: balances and holds in Redis (or Valkey). Only scripts that
//! run as one step change them.
//!
//! Each account, with everything that belongs to it, is in one of sixteen partitions. A partition
//! is one hash slot, so a script finds everything on one node. Redis decides which account can
//! spend how much. The truth is the ledger, which consumes the events of the partitions. Scripts
//! read the server's clock, and edges measure it (`redis/clock.rs`), so the edges' clocks do not
//! matter. This module must not know HTTP or prices. Read next: `redis/keyspace.rs` (the keys),
//! `redis/client.rs` (the calls), `redis/reservation.rs` and `redis/settlement.rs` with their
//! scripts `redis/reserve.lua` and `redis/end.lua`, which begin with `redis/common.lua`.

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
pub use ingest::{KeySeed, MAX_RESTORED, PartitionServer, RestoreEntry, SharedKey};
pub use keyspace::{PARTITIONS, partition};
pub use reservation::{ReserveCommand, ReserveReply};
pub use settlement::{EndState, SettleCommand, SettleReply};
