//! The store of an edge: it authenticates keys, reserves and settles credits, and keeps idempotency
//! keys.
//!
//! [`EdgeStore`] is all that the edge knows of it. There are two: [`EmbeddedStore`] is the files of
//! this process (SQLite), [`RedisStore`] the store that several edges share. `app.rs` chooses one
//! when a process starts; nothing else asks which it is. Must not know HTTP. Read
//! `edge_store/interface.rs` first.

mod embedded;
mod embedded_idempotency;
mod interface;
mod key_completion;
mod redis;
mod redis_idempotency;

pub use embedded::EmbeddedStore;
pub use interface::{ClaimError, EdgeStore};
pub use key_completion::{IdempotencyCompletion, KeyWrite, Retention};
pub use redis::RedisStore;
