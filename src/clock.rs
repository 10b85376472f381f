//! The one source of wall-clock time. Everything else is told what time it is.

use std::time::{SystemTime, UNIX_EPOCH};

/// Milliseconds since 1970 UTC.
#[expect(clippy::disallowed_methods, reason = "the one source")]
pub fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// `ms` since 1970 UTC as RFC 3339, to the millisecond: `2026-11-21T12:00:00.000Z`.
pub fn rfc3339(ms: i64) -> String {
    jiff::Timestamp::from_millisecond(ms).map_or_else(|_| String::from("invalid"), |at| format!("{at:.3}"))
}
