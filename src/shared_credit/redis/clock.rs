//! Computes the store's clock on an edge from its machine's clock and the measured difference.
//!
//! All edges use one clock for the expiry of keys and the end of requests, so that an edge with a
//! wrong clock decides like the others. When the machine's clock is set, the store's clock stays
//! right. This file must not decide what a time means.

use base::clock;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

/// Maximum round trip, in ms, of a reading that counts. A longer one is useless, because the
/// process was suspended or its clock was set meanwhile.
const MAX_ROUND_TRIP_MS: i64 = 2_000;

/// The difference between the steady clock of this process and the store's clock. Clones are cheap
/// and share the difference. Without a reading, the difference is zero.
#[derive(Debug, Clone, Default)]
pub struct StoreClock(Arc<AtomicI64>);

impl StoreClock {
    /// Records a reading. The store's clock showed `store_ms` at some moment between two times of
    /// [`clock::steady_now_ms`]. A reading that agrees with the known difference has no effect, so
    /// the error is at most half a round trip and does not jitter.
    pub fn record(&self, asked_ms: i64, store_ms: i64, answered_ms: i64) {
        let round_trip_ms = answered_ms.saturating_sub(asked_ms);
        if !(0..=MAX_ROUND_TRIP_MS).contains(&round_trip_ms) {
            return;
        }
        let (least, most) = (
            store_ms.saturating_sub(answered_ms),
            store_ms.saturating_sub(asked_ms),
        );
        if !(least..=most).contains(&self.0.load(Ordering::Relaxed)) {
            let middle = least.saturating_add(round_trip_ms / 2);
            self.0.store(middle, Ordering::Relaxed);
        }
    }

    /// Returns the time in ms by which the store's clock is ahead of this machine's, negative if it
    /// is behind.
    pub fn skew_ms(&self) -> i64 {
        let ahead = self.0.load(Ordering::Relaxed);
        ahead.saturating_sub(clock::set_by_ms())
    }

    /// Converts a time of this machine's clock to the store's clock.
    pub fn to_store_time(&self, local_ms: i64) -> i64 {
        local_ms.saturating_add(self.skew_ms())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_800_000_000_000;
    const THREE_HOURS: i64 = 3 * 3_600_000;

    #[test]
    fn an_edge_that_is_hours_off_has_the_stores_time_to_half_a_round_trip() {
        for off in [THREE_HOURS, -THREE_HOURS, 0] {
            let clock = StoreClock::default();
            let local = NOW + off;
            // The store answered right away, and the way back took 40 ms.
            clock.record(local, NOW, local + 40);
            let error = clock.to_store_time(local + 1_000) - (NOW + 1_000);
            assert!(error.abs() <= 20, "{off}: {error}");
        }
    }

    #[test]
    fn a_reading_that_agrees_changes_nothing_and_one_that_differs_is_followed() {
        // Without the machine's clock, whose reading is off by what a busy machine takes for it.
        let known = |clock: &StoreClock| clock.0.load(Ordering::Relaxed);
        let clock = StoreClock::default();
        clock.record(NOW, NOW + 500, NOW + 2);
        assert_eq!(known(&clock), 499);
        for (store_ms, answered_ms) in [(NOW + 499, NOW), (NOW + 510, NOW + 30)] {
            clock.record(NOW, store_ms, answered_ms);
            assert_eq!(known(&clock), 499, "a slower round trip that agrees");
        }
        clock.record(NOW, NOW - THREE_HOURS, NOW + 2);
        assert_eq!(known(&clock), -THREE_HOURS - 1, "a clock was set");
    }

    #[test]
    fn a_reading_during_which_the_own_clock_was_set_does_not_count() {
        let clock = StoreClock::default();
        clock.record(NOW, NOW + 7, NOW);
        for answered_ms in [NOW - 1, NOW + THREE_HOURS, NOW + MAX_ROUND_TRIP_MS + 1] {
            clock.record(NOW, NOW + 50_000, answered_ms);
        }
        assert_eq!(clock.skew_ms(), 7);
        clock.record(i64::MIN, i64::MAX, i64::MAX);
        assert_eq!(clock.to_store_time(i64::MAX), i64::MAX, "no overflow");
    }
}
