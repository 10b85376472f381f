//! Delays sign-in after repeated wrong passwords. The wait doubles with each wrong password, up to
//! a quarter of an hour.
//!
//! Wrong passwords count per pair of account and client address, so that an attacker cannot keep
//! the account holder out at another address. `throttle.rs` limits the attempts on an account from
//! all addresses. A wait locks nobody out: it ends by itself, and attempts during the wait do not
//! prolong it.
//!
//! The crate `governor` is not used, because it limits a rate and has no wait that doubles.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

/// Number of wrong passwords that cause no wait.
const FREE_ATTEMPTS: u32 = 5;

const MIN_WAIT_MS: i64 = 2_000;
const MAX_WAIT_MS: i64 = 15 * 60_000;

/// Time in ms without an attempt after which a streak is forgotten.
const STREAK_EXPIRY_MS: i64 = 60 * 60_000;

/// Maximum number of entries. When the table is full, the least recently used entry is evicted.
const MAX_ENTRIES: usize = 10_000;

#[derive(Debug, Clone, Copy)]
struct FailureStreak {
    failures: u32,
    last_ms: i64,
}

impl FailureStreak {
    fn wait_ms(self) -> i64 {
        let doublings = self.failures.saturating_sub(FREE_ATTEMPTS);
        if self.failures < FREE_ATTEMPTS {
            0
        } else {
            MIN_WAIT_MS
                .saturating_mul(1 << doublings.min(20))
                .min(MAX_WAIT_MS)
        }
    }
}

#[derive(Default)]
pub struct LoginBackoff {
    streaks: Mutex<HashMap<(String, IpAddr), FailureStreak>>,
}

impl LoginBackoff {
    /// Checks whether a password may be tried now. If not, returns the seconds to wait.
    pub fn check(&self, email: &str, address: IpAddr, now_ms: i64) -> Result<(), i64> {
        let streaks = self.streaks.lock().unwrap_or_else(PoisonError::into_inner);
        let streak = streaks.get(&(email.to_owned(), address));
        // The wait is limited to its full length, even if the clock was set back.
        let wait_ms = streak.map_or(0, |streak| {
            (streak.last_ms + streak.wait_ms() - now_ms).min(streak.wait_ms())
        });
        if wait_ms > 0 {
            Err((wait_ms + 999) / 1_000)
        } else {
            Ok(())
        }
    }

    pub fn record_failure(&self, email: &str, address: IpAddr, now_ms: i64) {
        let mut streaks = self.streaks.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (email.to_owned(), address);
        if streaks.len() >= MAX_ENTRIES && !streaks.contains_key(&key) {
            evict_oldest(&mut streaks, now_ms);
        }
        let streak = streaks.entry(key).or_insert(FailureStreak {
            failures: 0,
            last_ms: now_ms,
        });
        let is_old = now_ms - streak.last_ms >= STREAK_EXPIRY_MS;
        *streak = FailureStreak {
            failures: if is_old {
                1
            } else {
                streak.failures.saturating_add(1)
            },
            last_ms: now_ms,
        };
    }

    pub fn record_success(&self, email: &str, address: IpAddr) {
        self.streaks
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&(email.to_owned(), address));
    }
}

fn evict_oldest(streaks: &mut HashMap<(String, IpAddr), FailureStreak>, now_ms: i64) {
    streaks.retain(|_, streak| now_ms - streak.last_ms < STREAK_EXPIRY_MS);
    if streaks.len() >= MAX_ENTRIES
        && let Some(oldest) = streaks
            .iter()
            .min_by_key(|(_, streak)| streak.last_ms)
            .map(|(key, _)| key.clone())
    {
        streaks.remove(&oldest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
    const THERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 2));

    #[test]
    fn a_clock_that_is_set_back_prolongs_no_wait() {
        let backoff = LoginBackoff::default();
        let day = 86_400_000;
        (0..FREE_ATTEMPTS - 1).for_each(|_| backoff.record_failure("a", HERE, day));
        assert_eq!(backoff.check("a", HERE, 0), Ok(()));
        backoff.record_failure("a", HERE, day);
        assert_eq!(backoff.check("a", HERE, 0), Err(2));
    }

    #[test]
    fn a_wait_doubles_up_to_a_limit_and_applies_to_one_address() {
        let backoff = LoginBackoff::default();
        let mut now_ms = 0;
        let mut waits = Vec::new();
        for _ in 0..20 {
            waits.push(backoff.check("a", HERE, now_ms).err().unwrap_or(0));
            now_ms += waits.last().unwrap() * 1_000;
            assert_eq!(
                backoff.check("a", HERE, now_ms),
                Ok(()),
                "a wait ends by itself"
            );
            backoff.record_failure("a", HERE, now_ms);
        }
        assert_eq!(waits[..10], [0, 0, 0, 0, 0, 2, 4, 8, 16, 32]);
        assert_eq!(waits[19], 900, "never longer than a quarter of an hour");
        assert_eq!(backoff.check("a", HERE, now_ms), Err(900));
        assert_eq!(
            backoff.check("a", HERE, now_ms),
            Err(900),
            "asking does not lengthen it"
        );
        assert_eq!(
            backoff.check("a", THERE, now_ms),
            Ok(()),
            "the holder is not kept out from elsewhere"
        );
        assert_eq!(backoff.check("b", HERE, now_ms), Ok(()));
        backoff.record_success("a", HERE);
        assert_eq!(backoff.check("a", HERE, now_ms), Ok(()));
    }

    #[test]
    fn a_streak_is_forgotten_after_an_hour() {
        let backoff = LoginBackoff::default();
        (0..9).for_each(|_| backoff.record_failure("a", HERE, 0));
        backoff.record_failure("a", HERE, STREAK_EXPIRY_MS);
        assert_eq!(backoff.check("a", HERE, STREAK_EXPIRY_MS), Ok(()));
    }

    #[test]
    fn the_table_has_a_limit() {
        let backoff = LoginBackoff::default();
        (0..MAX_ENTRIES + 100)
            .for_each(|index| backoff.record_failure(&index.to_string(), HERE, 0));
        assert_eq!(backoff.streaks.lock().unwrap().len(), MAX_ENTRIES);
    }
}
