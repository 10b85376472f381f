//! Defines the errors of reading a vendor's answer, for passthrough and translation.
//!
//! This file must not decide the client's error message: `failure.rs` does.

use crate::Protocol;
use crate::failure::{self, Failure, Kind, VendorError};
use crate::profile::VendorProfile;

/// The reason why the gateway cannot read a vendor's answer any further. No part of the faulty
/// event was sent to the client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum UpstreamError {
    /// The answer is HTML, empty, or malformed JSON.
    NotJson,
    /// The vendor reports an error.
    Vendor(VendorError),
    /// The answer ended too early.
    Cut,
    /// The buffer limit is too small for one event, or for items that must wait for one another.
    TooLarge,
    /// The vendor sent a 200 without a complete answer.
    Empty,
}

/// The result of reading a vendor's answer.
pub type ReadResult<T = ()> = Result<T, UpstreamError>;

/// Names of the messages protocol's events.
const MESSAGES_EVENTS: [&[u8]; 7] = [
    b"message_start",
    b"message_delta",
    b"message_stop",
    b"content_block_start",
    b"content_block_delta",
    b"content_block_stop",
    b"ping",
];

impl UpstreamError {
    /// Creates the error for a vendor's error event, with the part of its text that can be parsed.
    pub(crate) fn from_error_body(error: &[u8]) -> UpstreamError {
        let found = VendorError::parse(error).or_else(|| VendorError::from_finish_reason(error));
        UpstreamError::Vendor(found.unwrap_or_default())
    }

    /// Checks an event that is not a JSON object. An event with an unknown name may contain
    /// anything, so the function accepts it.
    ///
    /// # Errors
    /// Returns an error if the event is an error, or if an event with this name must be JSON.
    pub(crate) fn check_unreadable(vendor: Protocol, name: &[u8], data: &[u8]) -> ReadResult {
        // Google's servers send a list that contains one error.
        let is_error_list = data.starts_with(b"[") && VendorError::parse(data).is_some();
        let is_known = match vendor {
            _ if name == b"error" || is_error_list => {
                return Err(UpstreamError::from_error_body(data));
            }
            _ if name.is_empty() => true,
            Protocol::Chat => name == b"message",
            Protocol::Messages => name == b"message" || MESSAGES_EVENTS.contains(&name),
            Protocol::Responses => name.starts_with(b"response."),
        };
        if is_known {
            Err(UpstreamError::NotJson)
        } else {
            Ok(())
        }
    }

    pub fn to_failure(
        &self,
        profile: &VendorProfile,
        upstream_model: &str,
        public_model: &str,
    ) -> Failure {
        match self {
            UpstreamError::NotJson => Failure::new(Kind::UpstreamFailed, failure::UNKNOWN_FORM),
            UpstreamError::Cut => Failure::from_kind(Kind::UpstreamClosed),
            UpstreamError::TooLarge => Failure::from_kind(Kind::UpstreamEventTooLarge),
            UpstreamError::Empty => Failure::new(
                Kind::UpstreamFailed,
                "The model's vendor returned no complete answer.",
            ),
            UpstreamError::Vendor(error) => {
                failure::from_vendor_error(profile, error, upstream_model, public_model)
            }
        }
    }
}
