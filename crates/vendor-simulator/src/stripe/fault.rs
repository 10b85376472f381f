//! Defines faults that tests can request from the simulated Stripe: of the connection, and of the
//! bank.
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

/// Reason for which a bank declines a saved card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SimDecline {
    /// The name by which tests choose it, which is Stripe's decline code.
    pub name: &'static str,
    /// Code of the error.
    pub code: &'static str,
    pub message: &'static str,
}

const fn decline(name: &'static str, code: &'static str, message: &'static str) -> SimDecline {
    SimDecline {
        name,
        code,
        message,
    }
}

#[rustfmt::skip]
const DECLINES: [SimDecline; 5] = [
    decline("generic_decline", "card_declined", "Your card was declined."),
    decline("insufficient_funds", "card_declined", "Your card has insufficient funds."),
    decline("lost_card", "card_declined", "Your card was declined."),
    decline("expired_card", "expired_card", "Your card has expired."),
    decline("authentication_required", "authentication_required", "Your card was declined. This transaction requires authentication."),
];

impl SimDecline {
    pub fn find(name: &str) -> Option<Self> {
        DECLINES.into_iter().find(|known| known.name == name)
    }
}
