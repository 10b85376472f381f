//! The maximum nesting depths of the JSON that the gateway reads.
//!
//! This file must not depend on anything: the readers of both directions share these bounds.
//!
//! Read next: `json/scanner.rs`, which keeps a bound.

/// Maximum nesting depth of a request.
pub const MAX_DEPTH: u32 = 64;

/// Maximum nesting depth of an answer. Requests have a lower limit.
pub(crate) const MAX_RESPONSE_DEPTH: u32 = 128;
