//! Handles `Idempotency-Key`: the gateway answers the request with a key once, and replays the
//! response for a day.
//!
//! The order of steps makes this correct: commit the key as `running`; reserve the hold; journal
//! the debit; commit `done` with the response; send the last byte. A key is spent exactly if its
//! request was debited, and free again otherwise. After a crash the ledger decides, once the
//! journal is replayed into it (an edge with a shared store asks its own journal): a debit whose
//! response was not stored leaves a key that is done and has no response to replay. Read
//! `idempotency/claim.rs` next, then `idempotency/keys.rs` with its two implementations,
//! `idempotency/embedded.rs` and `shared_credit/idempotency.rs`; `idempotency/db.rs` and
//! `shared_credit/redis/idempotency.rs` describe the failures that their data survives. This module
//! must not depend on HTTP; its caller is `edge/admit/idempotency_key.rs`.

mod claim;
pub mod db;
mod embedded;
pub mod entry;
mod guard;
mod housekeeping;
pub(crate) mod key_completion;
mod keys;
mod service;
#[cfg(test)]
mod tests;

pub use claim::{BodyHash, KeyLookupOutcome, ReplayedResponse, hash_body, is_valid_key};
pub use embedded::EmbeddedIdempotency;
pub use guard::{IdempotencyGuard, KeyCommit};
pub use housekeeping::IdempotencyHousekeeping;
pub use key_completion::{IdempotencyCompletion, Retention};
pub use keys::{ClaimError, IdempotencyKeys};
pub use service::Idempotency;
