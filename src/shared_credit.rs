//! Implements credit that several edges share: balances, holds, keys and idempotency keys in Redis
//! (or Valkey).
//!
//! The shared store decides how much an account can spend, and the sidecar's ledger consumes the
//! store's events. The module runs only with `store.kind: redis`. Read `shared_credit/redis.rs`
//! (the store), then the files that a request passes at an edge: `keys.rs`, `reserve.rs`,
//! `settle.rs`, `outbox.rs`; then the sidecar's side: `ledger_ingest.rs`. This module must not
//! depend on HTTP.

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
