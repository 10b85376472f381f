//! The attempts of an admitted request: how they call the vendor, what the earlier ones leave for
//! the next, and the running one.
//!
//! This file must not decide whether another attempt follows: `upstream/retry_rules.rs` does.

use crate::upstreams::{CountedFailure, EndpointLease, EndpointPool};
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::Arc;

/// How to call the vendor of the current model. The same for each attempt.
pub struct VendorCall {
    /// `/v1/messages`, …
    pub path: &'static str,
    /// Value of the version header, if the client sent one.
    pub version: Option<String>,
    /// Preview flags of the messages protocol.
    pub previews: Option<String>,
    /// Whether the gateway requests a stream, whether or not the client did.
    pub asks_for_stream: bool,
    /// The vendor's endpoints. Each attempt uses one of them.
    pub endpoints: Arc<EndpointPool>,
    /// Hash of the conversation, if it should keep its endpoint.
    pub affinity_key: Option<u64>,
}

/// What the attempts so far leave for the next one.
#[derive(Default)]
pub struct AttemptHistory {
    /// Number of attempts at endpoints of earlier models.
    pub at_earlier_models: usize,
    /// Indexes of the current model's endpoints at which attempts began.
    pub tried: Vec<usize>,
    pub next: NextAttempt,
    /// Whether another endpoint of this vendor would get what the vendor has received before, so
    /// that the attempt counts against the retry budget.
    pub counts_as_retry: bool,
    /// Whether an attempt was repeated because its pooled connection was dead.
    pub has_replaced_connection: bool,
    /// Whether the request was repeated without a member that the vendor had refused.
    pub has_left_out_member: bool,
    /// Whether a vendor may have begun to work on the request.
    pub was_sent: bool,
    /// The failures that no later attempt has answered yet.
    pub failed: Vec<CountedFailure>,
}

impl AttemptHistory {
    /// Returns the state before the first attempt at the next model.
    pub fn for_next_model(&mut self) -> Self {
        Self {
            at_earlier_models: self.count(),
            was_sent: self.was_sent,
            failed: std::mem::take(&mut self.failed),
            ..Self::default()
        }
    }

    /// Returns the number of attempts that began.
    pub fn count(&self) -> usize {
        self.at_earlier_models + self.tried.len()
    }
}

/// Where the next attempt goes, if there is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NextAttempt {
    /// To an endpoint that was not tried yet.
    #[default]
    OtherEndpoint,
    /// To the same endpoint, over a fresh connection or at its next address.
    SameEndpoint,
    /// To the same endpoint, which refused the body, with another body.
    SameEndpointOtherBody,
}

/// The running attempt: a slot at one endpoint.
pub struct Attempt {
    pub lease: EndpointLease,
    /// Addresses of the endpoint that were tried.
    pub addresses: Vec<SocketAddr>,
    /// Socket of the connection.
    pub socket: Option<RawFd>,
    /// Whether the vendor reported that it failed without generating anything.
    pub has_refused: bool,
    /// What the vendor's error says, for the log.
    pub words: String,
}

impl Attempt {
    pub fn new(lease: EndpointLease) -> Self {
        Self {
            lease,
            addresses: Vec::new(),
            socket: None,
            has_refused: false,
            words: String::new(),
        }
    }
}
