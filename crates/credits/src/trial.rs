//! Defines the grant of a new account.

use crate::money::Micro;

/// Credits that are granted at sign-up and lapse later.
#[derive(Debug, Clone, Copy)]
pub struct Trial {
    pub credits: Micro,
    /// End of the trial, in milliseconds since 1970.
    pub ends_at_ms: i64,
}
