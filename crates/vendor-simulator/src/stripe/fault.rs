//! Faults of the wire, as the simulated Stripe has them on request.
//!
//! Must not send an answer: `sender.rs` does.

use std::time::Duration;

/// A fault of the next calls whose path contains `path`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SimStripeFault {
    pub path: String,
    /// Number of calls that it affects.
    pub times: u32,
    /// Whether Stripe does what the call asks for, so that only its answer is lost.
    pub acts: bool,
    pub delay: Duration,
    /// Status of an error, instead of the answer.
    pub status: Option<u16>,
    /// The connection closes without an answer.
    pub is_cut: bool,
    /// The connection closes in the middle of the answer.
    pub is_torn: bool,
}
