//! Holds the attempts of an admitted request: their common parameters, the history, and the running
//! attempt.
//!
//! This file must not decide whether another attempt follows: `upstream/retry_rules.rs` does.

use crate::upstreams::{CountedFailure, EndpointLease, EndpointPool};
use http::HeaderValue;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::Arc;

/// Parameters of a call to the vendor of the current model. All attempts share them.
pub struct VendorCall {
    /// Path of the call, such as `/v1/messages`.
    pub path: &'static str,
    /// Value of the version header, if the client sent one.
    pub version: Option<String>,
    /// The content type, if the body is not JSON.
    pub content_type: Option<HeaderValue>,
    /// Preview flags of the messages protocol.
    pub previews: Option<String>,
    /// True if the gateway requests a stream. It may do so although the client did not.
    pub asks_for_stream: bool,
    /// The vendor's endpoints. Each attempt uses one of them.
    pub endpoints: Arc<EndpointPool>,
    /// Hash of the conversation. Set if the conversation should keep its endpoint.
    pub affinity_key: Option<u64>,
}

/// The earlier attempts, as far as the next one depends on them.
#[derive(Default)]
pub struct AttemptHistory {
    /// Number of attempts at endpoints of earlier models.
    pub at_earlier_models: usize,
    /// Indexes of the current model's endpoints at which attempts began.
    pub tried: Vec<usize>,
    pub next: NextAttempt,
    /// True if an attempt at another endpoint of this vendor would send the same request again, so
    /// that it counts against the retry budget.
    pub counts_as_retry: bool,
    /// True if an attempt was repeated because its pooled connection was dead.
    pub has_replaced_connection: bool,
    /// True if the request was repeated without a member that the vendor had refused.
    pub has_left_out_member: bool,
    /// True if a vendor may have begun to work on the request.
    pub was_sent: bool,
    /// The failures of attempts since the last one that was answered.
    pub failed: Vec<CountedFailure>,
}

impl AttemptHistory {
    pub fn for_next_model(&mut self) -> Self {
        Self {
            at_earlier_models: self.count(),
            was_sent: self.was_sent,
            failed: std::mem::take(&mut self.failed),
            ..Self::default()
        }
    }

    pub fn count(&self) -> usize {
        self.at_earlier_models + self.tried.len()
    }
}

/// The endpoint of the next attempt, if there is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NextAttempt {
    /// An endpoint that was not tried yet.
    #[default]
    OtherEndpoint,
    /// The endpoint of the last attempt, over a fresh connection or at its next address.
    SameEndpoint,
    /// The endpoint of the last attempt, which refused the body, with another body.
    SameEndpointOtherBody,
}

/// The running attempt, which holds a slot at one endpoint.
pub struct Attempt {
    pub lease: EndpointLease,
    pub addresses: Vec<SocketAddr>,
    pub socket: Option<RawFd>,
    /// True if the vendor reported that it failed without generating anything.
    pub has_refused: bool,
    /// Message of the vendor's error, for the log.
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
