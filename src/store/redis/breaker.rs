//! What keeps requests from asking a store that does not answer: refused at once, until somebody
//! who probes got an answer.
//!
//! Failures count in a row: a cluster of which one node is gone answers most requests, and is asked
//! on. Must not ask the store itself: that is `billing/watch.rs`.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// So many failures in a row, within so long, and nobody asks any more.
const FAILURES: usize = 5;
const WITHIN: Duration = Duration::from_secs(2);

/// Shared by all who ask on behalf of requests.
pub struct Breaker {
    open: AtomicBool,
    row: Mutex<Row>,
}

#[derive(Default)]
struct Row {
    /// When the last failures were, the oldest first; none since the last success.
    failed: VecDeque<Instant>,
    /// Why the last of them was one.
    why: String,
    answered: Option<Instant>,
}

impl Breaker {
    /// Open: nobody asks before [`Breaker::worked`].
    pub fn open() -> Self {
        Self {
            open: AtomicBool::new(true),
            row: Mutex::default(),
        }
    }

    fn row(&self) -> MutexGuard<'_, Row> {
        self.row.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn is_open(&self) -> bool {
        self.open.load(Ordering::Acquire)
    }

    /// The store has answered.
    pub fn worked(&self, now: Instant) {
        let mut row = self.row();
        row.failed.clear();
        row.answered = Some(now);
        self.open.store(false, Ordering::Release);
    }

    /// The store has not answered, or with what is no answer.
    pub fn failed(&self, now: Instant, why: impl ToString) {
        let mut row = self.row();
        row.why = why.to_string();
        if row.failed.len() == FAILURES {
            row.failed.pop_front();
        }
        row.failed.push_back(now);
        let first = row.failed.front().copied().unwrap_or(now);
        if row.failed.len() == FAILURES && now.saturating_duration_since(first) <= WITHIN {
            self.open.store(true, Ordering::Release);
        }
    }

    /// Since the last answer there was a failure.
    pub fn is_failing(&self) -> bool {
        !self.row().failed.is_empty()
    }

    /// How long ago the last answer was; `None` where there was none.
    pub fn silence(&self, now: Instant) -> Option<Duration> {
        self.row()
            .answered
            .map(|answered| now.saturating_duration_since(answered))
    }

    /// The last failure.
    pub fn why(&self) -> String {
        self.row().why.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Duration = Duration::from_millis(500);

    #[test]
    fn it_opens_at_the_fifth_failure_in_a_row_within_two_seconds_and_not_before() {
        let breaker = Breaker::open();
        let begin = Instant::now();
        assert!(
            breaker.is_open() && breaker.silence(begin).is_none(),
            "nothing is known of the store yet"
        );
        breaker.worked(begin);
        for number in 0..5 {
            assert!(!breaker.is_open(), "after {number} failures");
            breaker.failed(begin + STEP * number, "gone");
        }
        assert!(breaker.is_open() && breaker.is_failing());
        assert_eq!(breaker.why(), "gone");
        assert_eq!(breaker.silence(begin + STEP * 4), Some(WITHIN));
        breaker.worked(begin + STEP * 5);
        assert!(
            !breaker.is_open() && !breaker.is_failing(),
            "one answer closes it"
        );
    }

    #[test]
    fn it_stays_closed_where_failures_are_seldom_or_answers_come_between() {
        let breaker = Breaker::open();
        let begin = Instant::now();
        breaker.worked(begin);
        let seldom = STEP + Duration::from_millis(1);
        for number in 0..20 {
            breaker.failed(begin + seldom * number, "slow");
            assert!(!breaker.is_open(), "the fifth comes just too late");
        }
        let later = begin + seldom * 20;
        for _ in 0..20 {
            (0..4).for_each(|_| breaker.failed(later, "one of three nodes"));
            breaker.worked(later);
            assert!(!breaker.is_open());
        }
    }
}
