//! Credit that several edges share: balances and holds in Redis (or Valkey), keys, idempotency
//! keys.
//!
//! The shared store decides which account can spend how much; the sidecar's ledger consumes what it
//! reports. Without `store.kind: redis` nothing here runs. Read `shared_credit/redis.rs` (what the
//! store does), then the way of a request at an edge: `keys.rs`, `reserve.rs`, `settle.rs`,
//! `outbox.rs`; then the sidecar's side: `ledger_ingest.rs`. This module must not know HTTP.

mod admin;
mod admission;
mod billing;
mod idempotency;
mod keys;
pub mod ledger_ingest;
mod lookup_budget;
pub mod outbox;
mod publication;
pub mod redis;
pub mod refusals;
mod reserve;
mod settle;
pub mod store_health;

pub use admin::{SharedStoreAdmin, shared_balances};
pub use admission::SharedAdmission;
pub use billing::SharedBilling;
pub use idempotency::RedisIdempotency;
pub use keys::SharedKeys;
pub use publication::wait_until_published;
