//! The grant of a new account.

use crate::money::Micro;

/// Credits granted at sign-up, which lapse at a time.
#[derive(Debug, Clone, Copy)]
pub struct Trial {
    pub credits: Micro,
    /// Milliseconds since 1970.
    pub ends_at_ms: i64,
}
