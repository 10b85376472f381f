//! A request whose key is valid.
//!
//! This file must not check a key: `edge/admit.rs` does.

use accounts::Principal;
use std::time::Instant;

/// Who pays for a request, and since when the gateway knows it.
#[derive(Clone)]
pub struct Authenticated {
    pub principal: Principal,
    pub at: Instant,
}
