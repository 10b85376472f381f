//! Refusals below the level of a request: malformed headers and bodies, header timeouts, failed
//! handshakes, connections over a limit. Each is counted, and logged in one line with its reason.
//!
//! The logger limits the lines of each reason. This file must not log a header, a query or a
//! secret.

use super::metrics::METRICS;
pub use super::refusal_reason::RefusalReason;
use std::fmt;
use std::net::IpAddr;

/// Counts and logs a refusal. `detail` is a sentence without its full stop and without secrets.
pub fn record(reason: RefusalReason, client: Option<IpAddr>, detail: impl fmt::Display) {
    METRICS.count_refusal(reason);
    let kind = reason.as_str();
    match client {
        Some(client) => log::warn!(kind; "refused ({kind}) from {client}: {detail}"),
        None => log::warn!(kind; "refused ({kind}): {detail}"),
    }
}
