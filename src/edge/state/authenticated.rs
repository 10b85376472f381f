//! Represents a request whose key is valid.
//!
//! This file must not check a key: `edge/admit.rs` does.

use accounts::Principal;
use std::time::Instant;

/// The account and key that pay for a request, and when they were identified.
#[derive(Clone)]
pub struct Authenticated {
    pub principal: Principal,
    pub at: Instant,
}
