//! Decides whether the wall clock may end trials. A lapse cannot be undone, and a clock may be days
//! ahead for a few seconds.
//!
//! The wall clock is compared with the monotonic clock. A wall clock that jumped ahead is accepted
//! once both clocks have agreed for longer than the jump. So a real jump delays a lapse, and a
//! false one ends no trial. Admission does not use this clock, because it checks the end of a trial
//! itself. This file must only be used for lapses.

use std::time::{Duration, Instant};

/// Maximum difference in ms between two calls that does not count as a jump. A clock that is being
/// adjusted slowly stays below it.
const MAX_SLEW_MS: i64 = 2_000;

/// The accepted state of the wall clock.
pub struct LapseClock {
    base: Instant,
    /// Accepted wall time at `base`, in ms since 1970.
    believed_ms: i64,
    /// Another wall time at `base`, and the time since which the wall clock has shown it.
    unconfirmed: Option<(i64, Instant)>,
}

impl LapseClock {
    /// Creates the clock. `last_known_ms` is the latest time at which the data was in use. A later
    /// time may be false.
    pub fn new(last_known_ms: Option<i64>, now_ms: i64, now: Instant) -> Self {
        Self {
            base: now,
            believed_ms: last_known_ms.unwrap_or(now_ms),
            unconfirmed: None,
        }
    }

    /// Returns whether to accept `now_ms`. The caller must call this function about every second.
    pub fn accepts(&mut self, now_ms: i64, now: Instant) -> bool {
        let offset = now_ms.saturating_sub(millis(now.duration_since(self.base)));
        let ahead = offset.saturating_sub(self.believed_ms);
        if ahead.abs() <= MAX_SLEW_MS {
            self.believed_ms = offset;
            self.unconfirmed = None;
            return true;
        }
        let since = match self.unconfirmed {
            Some((unconfirmed, since))
                if offset.abs_diff(unconfirmed) <= MAX_SLEW_MS.unsigned_abs() =>
            {
                since
            }
            _ => now,
        };
        self.unconfirmed = Some((offset, since));
        if millis(now.duration_since(since)) > ahead.saturating_abs() {
            self.believed_ms = offset;
            self.unconfirmed = None;
            return true;
        }
        // A clock that is behind cannot end a trial too early.
        ahead < 0
    }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_800_000_000_000;
    const DAY: i64 = 86_400_000;

    #[test]
    fn a_clock_that_is_ahead_is_believed_after_it_has_agreed_for_longer_than_that() {
        let base = Instant::now();
        let at = |seconds: u64| base + Duration::from_secs(seconds);
        let wall = |seconds: i64| NOW + seconds * 1_000;
        let mut clock = LapseClock::new(Some(NOW), NOW, base);
        assert!(clock.accepts(wall(1), at(1)));
        // Eight days ahead for three seconds.
        for second in 2..5 {
            assert!(!clock.accepts(wall(i64::try_from(second).unwrap()) + 8 * DAY, at(second)));
        }
        assert!(clock.accepts(wall(5), at(5)), "back again");
        // A minute ahead permanently: accepted after a minute.
        for second in 6..=66 {
            assert!(
                !clock.accepts(wall(i64::try_from(second).unwrap()) + 60_000, at(second)),
                "{second}"
            );
        }
        assert!(clock.accepts(wall(67) + 60_000, at(67)));
        assert!(clock.accepts(wall(68) + 60_000, at(68)));
        // Another jump starts the wait again.
        assert!(!clock.accepts(wall(69) + 120_000, at(69)));
        assert!(
            !clock.accepts(wall(129) + 180_000, at(129)),
            "two jumps are not one that lasts"
        );
    }

    #[test]
    fn a_clock_that_is_slewed_or_behind_ends_no_trial_too_early_and_is_followed() {
        let base = Instant::now();
        let at = |seconds: u64| base + Duration::from_secs(seconds);
        let mut clock = LapseClock::new(None, NOW, base);
        for second in 1..100_u64 {
            let slewed = i64::try_from(second).unwrap() * 1_500;
            assert!(
                clock.accepts(NOW + slewed, at(second)),
                "half a second a second"
            );
        }
        assert!(clock.accepts(NOW - DAY, at(100)), "behind");
        assert!(clock.accepts(NOW + 150_000, at(101)), "as before");
    }

    #[test]
    fn a_start_with_a_clock_ahead_of_the_last_use_waits_as_long() {
        let base = Instant::now();
        let mut clock = LapseClock::new(Some(NOW), NOW + 10_000, base);
        assert!(!clock.accepts(NOW + 10_000, base));
        assert!(!clock.accepts(NOW + 20_000, base + Duration::from_secs(10)));
        assert!(clock.accepts(NOW + 20_100, base + Duration::from_millis(10_100)));
        let mut clock = LapseClock::new(Some(NOW), NOW, base);
        assert!(clock.accepts(NOW, base), "used a moment ago");
    }
}
