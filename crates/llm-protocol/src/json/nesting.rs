//! Defines the maximum nesting depths of the JSON that the gateway reads.
//!
//! The readers of both directions share these bounds.
//!
//! Read next: `json/scanner.rs`, which enforces a bound.

/// Maximum nesting depth of a request.
pub const MAX_DEPTH: u32 = 64;

/// Maximum nesting depth of an answer. It exceeds that of a request, which an answer may embed.
pub(crate) const MAX_RESPONSE_DEPTH: u32 = 128;
