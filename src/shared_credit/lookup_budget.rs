//! Limits the look-ups of unknown keys in the shared store, so that a flood of made-up keys does
//! not load the store.
//!
//! The limit is a leaky bucket of one second, filled by the time that a look-up takes at the
//! allowed rate. This file must not depend on keys.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Capacity of the bucket, as the time that its look-ups take at the allowed rate.
const MAX_BURST: Duration = Duration::from_secs(1);

/// The budget of an edge for look-ups of keys that were never valid.
pub struct LookupBudget {
    per_second: AtomicU64,
    /// Time at which the look-ups so far would have ended at the allowed rate.
    used_until: Mutex<Option<Instant>>,
}

impl LookupBudget {
    pub fn new(per_second: u64) -> Self {
        Self {
            per_second: AtomicU64::new(per_second),
            used_until: Mutex::default(),
        }
    }

    pub fn set_rate(&self, per_second: u64) {
        self.per_second.store(per_second, Ordering::Relaxed);
    }

    /// Takes one look-up from the budget. Returns false if the budget is used up.
    pub fn try_take(&self, now: Instant) -> bool {
        let mut used_until = self
            .used_until
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let from = used_until.map_or(now, |until| until.max(now));
        let until = from + self.cost();
        if until.saturating_duration_since(now) > MAX_BURST {
            return false;
        }
        *used_until = Some(until);
        true
    }

    /// Returns a look-up to the budget, because the key was valid or the store did not answer.
    pub fn give_back(&self) {
        let mut used_until = self
            .used_until
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *used_until = used_until.and_then(|until| until.checked_sub(self.cost()));
    }

    fn cost(&self) -> Duration {
        MAX_BURST
            / u32::try_from(self.per_second.load(Ordering::Relaxed).max(1)).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_of_look_ups_may_be_made_at_once_and_then_as_many_each_second() {
        let (budget, now) = (LookupBudget::new(10), Instant::now());
        let take = |at: Duration| (0..100).filter(|_| budget.try_take(now + at)).count();
        assert_eq!(take(Duration::ZERO), 10);
        assert_eq!(take(Duration::from_millis(500)), 5);
        assert_eq!(take(Duration::from_secs(60)), 10, "no more than a second");
        budget.set_rate(1_000);
        assert_eq!(take(Duration::from_secs(120)), 100);
    }

    #[test]
    fn valid_keys_take_nothing_from_the_budget() {
        let (budget, now) = (LookupBudget::new(2), Instant::now());
        for _ in 0..1_000 {
            assert!(budget.try_take(now));
            budget.give_back();
        }
        assert!(budget.try_take(now) && budget.try_take(now));
        assert!(!budget.try_take(now));
    }
}
