//! Why the gateway cannot read a vendor's answer any further, for passthrough and translation.
//!
//! This file must not decide the client's error message: `failure.rs` does.

use crate::Protocol;
use crate::failure::{self, Failure, Kind, VendorError};
use crate::profile::VendorProfile;

/// Why the gateway cannot read a vendor's answer any further. Nothing of the faulty event was sent
/// to the client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum UpstreamError {
    /// HTML, an empty body, or malformed JSON.
    NotJson,
    /// The vendor reports an error.
    Vendor(VendorError),
    /// The answer stopped before its end.
    Cut,
    /// Data beyond the buffer limit: one event, or items that must wait for one another.
    TooLarge,
    /// A 200 response without a complete answer.
    Empty,
}

/// What reading a vendor's answer gives.
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
    /// Creates the error for a vendor's error event, with as much of its text as can be parsed.
    pub(crate) fn from_error_body(error: &[u8]) -> UpstreamError {
        UpstreamError::Vendor(VendorError::parse(error).unwrap_or_default())
    }

    /// Checks an event that is not a JSON object. An event with an unknown name may hold anything,
    /// so it is skipped.
    ///
    /// # Errors
    /// Returns an error if the event is an error, or if an event of that name must be JSON.
    pub(crate) fn check_unreadable(vendor: Protocol, name: &[u8], data: &[u8]) -> ReadResult {
        let is_known = match vendor {
            _ if name == b"error" => return Err(UpstreamError::from_error_body(data)),
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

    /// Returns the failure to report to the caller.
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
