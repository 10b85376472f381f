//! The other databases of the gateway, beside the ledger.
//!
//! * [`app`]: accounts, keys, sessions (`app.db`).
//! * [`idempotency`]: requests made under idempotency keys, and their responses (`idempotency.db`).
//! * [`idempotency_entry`]: those requests and responses, as callers pass them to either store.
//! * [`redis`]: keys, balances and holds that several edges share.
//! * [`copies`]: the copies of PostgreSQL that sidecars keep.
//! * [`key_settings`]: the settings of a key, as `app.db` and the shared store have them.
//!
//! Must not decide prices, rules or statuses.

pub mod app;
pub mod copies;
pub mod idempotency;
pub mod idempotency_entry;
pub mod key_settings;
pub mod redis;
