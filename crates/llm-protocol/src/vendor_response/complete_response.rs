//! A whole answer that the gateway may send to the client, for passthrough and translation.
//!
//! This file must not know which of the two made it.
//!
//! Read next: `vendor_response/completion.rs`.

use crate::usage::{MeteredUsage, Usage};
use bytes::Bytes;

/// A whole answer that the gateway may send to the client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CompleteResponse {
    pub body: Bytes,
    /// Billed usage; `None`: the vendor did not report final counts.
    pub usage: Option<MeteredUsage>,
    /// The usage as far as the vendor reported it.
    pub known_usage: Option<Usage>,
    /// UTF-8 bytes of text, reasoning, refusal and tool arguments, for estimates.
    pub generated_bytes: u64,
    /// Whether a messages vendor refused before any output. The vendor documents this as free.
    pub refused_free: bool,
    /// Changes of the answer that the client must learn of, for `x-gateway-warnings`.
    pub warnings: Vec<&'static str>,
}
