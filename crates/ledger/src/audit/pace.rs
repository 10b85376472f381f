//! Limits the CPU time of an audit, which rests after each slice of its work.
//!
//! This file must not depend on the work.

use std::time::{Duration, Instant};

/// Maximum duration of a rest. A slice may take long because the machine is busy, and the audit
/// must still continue.
const MAX_REST: Duration = Duration::from_secs(1);

/// The share of one core that an audit may use, in percent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuShare(u32);

impl CpuShare {
    /// The whole core, without rests. The audit may also read ahead on a second core.
    pub const FULL: Self = Self(100);

    /// Creates a share of 1 to 100 percent.
    pub fn from_percent(percent: u32) -> Self {
        Self(percent.clamp(1, 100))
    }

    pub fn is_full(self) -> bool {
        self == Self::FULL
    }

    /// Returns how long to rest after `work`.
    fn rest_after(self, work: Duration) -> Duration {
        (work * (100 - self.0) / self.0).min(MAX_REST)
    }
}

/// Rests between the slices of one audit.
pub struct Pace {
    pub share: CpuShare,
    since: Instant,
}

impl Pace {
    pub fn new(share: CpuShare) -> Self {
        Self {
            share,
            since: Instant::now(),
        }
    }

    /// Sleeps in proportion to the time since the last rest, so that the audit uses only its share.
    pub fn rest(&mut self) {
        if !self.share.is_full() {
            std::thread::sleep(self.share.rest_after(self.since.elapsed()));
            self.since = Instant::now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_leaves_the_share_for_work() {
        let rest_ms = |percent, work_ms| {
            let work = Duration::from_millis(work_ms);
            CpuShare::from_percent(percent).rest_after(work).as_millis()
        };
        assert_eq!(rest_ms(100, 20), 0);
        assert_eq!(rest_ms(50, 20), 20);
        assert_eq!(rest_ms(25, 20), 60);
        assert_eq!(rest_ms(0, 1), 99, "at least one percent");
        assert_eq!(rest_ms(200, 20), 0, "at most all of it");
        assert_eq!(rest_ms(25, 333), 999);
        assert_eq!(rest_ms(25, 334), 1_000, "no longer than a second");
        assert_eq!(rest_ms(25, 60_000), 1_000);
    }
}
