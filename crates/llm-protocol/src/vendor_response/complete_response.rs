//! Represents a whole answer that the gateway may send to the client, for passthrough and
//! translation.
//!
//! This file must not depend on which of the two made the answer.
//!
//! Read next: `vendor_response/completion.rs`.

use crate::usage::{MeteredUsage, Usage};
use bytes::Bytes;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CompleteResponse {
    pub body: Bytes,
    /// Billed usage, or `None` if the vendor did not report final counts.
    pub usage: Option<MeteredUsage>,
    /// The usage that the vendor reported, even if it is not final.
    pub known_usage: Option<Usage>,
    /// Number of UTF-8 bytes of text, reasoning, refusal and tool arguments, for estimates.
    pub generated_bytes: u64,
    /// True if a messages vendor refused before any output, which the vendor documents as free.
    pub refused_free: bool,
    /// Changes of the answer that the client must learn of, for `x-gateway-warnings`.
    pub warnings: Vec<&'static str>,
}
