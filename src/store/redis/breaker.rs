//! The circuit breaker of the shared store. While it is open, requests fail at once, until a probe
//! gets an answer.
//!
//! Only consecutive failures count. A cluster with one node down answers most requests, so requests
//! still reach it. Must not call the store itself: that is `billing/store_health.rs`.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Number of consecutive failures, within [`FAILURE_WINDOW`], that opens the breaker.
const FAILURES: usize = 5;
const WITHIN: Duration = Duration::from_secs(2);

/// The circuit breaker that all calls on behalf of requests share.
pub struct Breaker {
    open: AtomicBool,
    row: Mutex<Row>,
}

#[derive(Default)]
struct Row {
    /// Times of the last failures, oldest first; empty since the last success.
    failed: VecDeque<Instant>,
    /// Reason of the last failure.
    why: String,
    answered: Option<Instant>,
}

impl Breaker {
    /// Creates an open breaker: no request calls the store before [`StoreBreaker::record_success`].
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

    /// Records an answer of the store, and closes the breaker.
    pub fn worked(&self, now: Instant) {
        let mut row = self.row();
        row.failed.clear();
        row.answered = Some(now);
        self.open.store(false, Ordering::Release);
    }

    /// Records a failed call: the store did not answer, or its answer is not usable.
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

    /// Returns true if there was a failure since the last answer.
    pub fn is_failing(&self) -> bool {
        !self.row().failed.is_empty()
    }

    /// Time since the last answer; `None` if there was none.
    pub fn silence(&self, now: Instant) -> Option<Duration> {
        self.row()
            .answered
            .map(|answered| now.saturating_duration_since(answered))
    }

    /// Reason of the last failure.
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
