//! Defines faults of the connection that tests can request from the simulated Stripe.
//!
//! This file must not send an answer, which `sender.rs` does.

use std::time::Duration;

/// A fault of the next calls whose path contains `path`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SimStripeFault {
    pub path: String,
    /// Number of affected calls.
    pub times: u32,
    /// True if Stripe carries out the call, so that only its answer is lost.
    pub acts: bool,
    pub delay: Duration,
    /// Status of an error that replaces the answer.
    pub status: Option<u16>,
    /// True if the connection closes without an answer.
    pub is_cut: bool,
    /// True if the connection closes in the middle of the answer.
    pub is_torn: bool,
}
