//! Why a vendor's answer cannot be read on, whoever reads it.
//!
//! It must not say what a client is told of it: `failure.rs` does.

use crate::protocol::Protocol;
use crate::protocol::failure::{self, Failure, Kind, VendorError};

/// Why a vendor's answer cannot be read on. Nothing of the event at fault was passed on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fault {
    /// HTML, nothing, or broken JSON where there must be JSON.
    NotJson,
    /// The vendor says that it failed.
    Vendor(VendorError),
    /// The answer ended before its end.
    Cut,
    /// More than is held: one event, or pieces that must wait for one another.
    TooLarge,
    /// A 200 without a complete answer in it.
    Empty,
}

/// Events of the messages protocol.
const MESSAGES_EVENTS: [&[u8]; 7] = [
    b"message_start",
    b"message_delta",
    b"message_stop",
    b"content_block_start",
    b"content_block_delta",
    b"content_block_stop",
    b"ping",
];

impl Fault {
    /// The vendor says that it failed, in these words, as far as they can be read.
    pub(in crate::protocol) fn told(error: &[u8]) -> Fault {
        Fault::Vendor(VendorError::read(error).unwrap_or_default())
    }

    /// Of an event that is not a JSON object. One of a name that we do not know may be anything: it
    /// is passed over.
    ///
    /// # Errors
    /// By its name it must be one.
    pub(in crate::protocol) fn of_unreadable(
        vendor: Protocol,
        name: &[u8],
        data: &[u8],
    ) -> Result<(), Fault> {
        let is_known = match vendor {
            _ if name == b"error" => return Err(Fault::told(data)),
            _ if name.is_empty() => true,
            Protocol::Chat => name == b"message",
            Protocol::Messages => name == b"message" || MESSAGES_EVENTS.contains(&name),
            Protocol::Responses => name.starts_with(b"response."),
        };
        if is_known {
            Err(Fault::NotJson)
        } else {
            Ok(())
        }
    }

    /// What the caller is told. `vendor` is the vendor's protocol.
    pub fn failure(&self, vendor: Protocol, upstream_model: &str, public_model: &str) -> Failure {
        match self {
            Fault::NotJson => Failure::of(Kind::UpstreamFailed),
            Fault::Cut => Failure::of(Kind::UpstreamClosed),
            Fault::TooLarge => Failure::of(Kind::UpstreamEventTooLarge),
            Fault::Empty => Failure::new(
                Kind::UpstreamFailed,
                "The upstream returned no complete answer.",
            ),
            Fault::Vendor(error) => {
                failure::from_vendor_error(vendor, error, upstream_model, public_model)
            }
        }
    }
}
