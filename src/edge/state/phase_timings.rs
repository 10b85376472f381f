//! Holds the duration of each phase of a request.
//!
//! This file must not read a clock.

use std::fmt;
use std::time::Duration;

/// Consecutive parts of the time until the vendor's header.
#[derive(Debug, Clone, Copy)]
pub struct PhaseTimings {
    pub auth: Duration,
    /// Time to receive the client's body.
    pub body: Duration,
    /// Time for translation, quote and hold.
    pub admit: Duration,
    /// Time from admission to the vendor's header, failed attempts included.
    pub vendor: Option<Duration>,
}

/// Formats the phases as the value of a `server-timing` header, in milliseconds.
impl fmt::Display for PhaseTimings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut part = |name: &str, time: Duration| {
            // Writing a `u128` takes several times as long as writing a `u64`.
            let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
            write!(f, "{name};dur={}.{:03}", micros / 1_000, micros % 1_000)
        };
        part("auth", self.auth)?;
        part(", body", self.body)?;
        part(", admit", self.admit)?;
        self.vendor
            .map_or(Ok(()), |vendor| part(", vendor", vendor))
    }
}
