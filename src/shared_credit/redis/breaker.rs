//! Implements the circuit breaker of the shared store. While the breaker is open, requests fail at
//! once, until a probe gets an answer.
//!
//! Only consecutive failures count. A cluster with one node down answers most requests, so the
//! breaker stays closed. This file must not call the store: `shared_credit/store_health.rs` does.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Number of consecutive failures, within [`StoreBreaker::window`], that opens the breaker.
const MAX_FAILURES: usize = 5;
/// Length of the window, as a multiple of the time that a call waits for its answer.
const WINDOW_REPLIES: u32 = 10;
const MIN_WINDOW: Duration = Duration::from_secs(2);

/// The circuit breaker that all calls on behalf of requests share.
pub struct StoreBreaker {
    open: AtomicBool,
    row: Mutex<FailureHistory>,
    reply_timeout: Duration,
}

#[derive(Default)]
struct FailureHistory {
    /// Times of the failures since the last success, oldest first.
    failed: VecDeque<Instant>,
    /// Reason of the last failure.
    why: String,
    replied_at: Option<Instant>,
}

impl StoreBreaker {
    /// Creates an open breaker: no request calls the store before [`StoreBreaker::record_success`].
    ///
    /// `reply_timeout` is the time that a call waits for its answer.
    pub fn new_open(reply_timeout: Duration) -> Self {
        Self {
            open: AtomicBool::new(true),
            row: Mutex::default(),
            reply_timeout,
        }
    }

    /// Returns the time in which consecutive failures open the breaker. After this time without an
    /// answer, the store does not count as answering.
    pub fn window(&self) -> Duration {
        self.reply_timeout
            .saturating_mul(WINDOW_REPLIES)
            .max(MIN_WINDOW)
    }

    fn lock_history(&self) -> MutexGuard<'_, FailureHistory> {
        self.row.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn is_open(&self) -> bool {
        self.open.load(Ordering::Acquire)
    }

    /// Records an answer of the store, which closes the breaker.
    pub fn record_success(&self, now: Instant) {
        let mut row = self.lock_history();
        row.failed.clear();
        row.replied_at = Some(now);
        self.open.store(false, Ordering::Release);
    }

    /// Records a failed call, in which the store did not answer or sent an unusable answer.
    pub fn record_failure(&self, now: Instant, why: impl ToString) {
        let mut row = self.lock_history();
        row.why = why.to_string();
        if row.failed.len() == MAX_FAILURES {
            row.failed.pop_front();
        }
        row.failed.push_back(now);
        let first = row.failed.front().copied().unwrap_or(now);
        if row.failed.len() == MAX_FAILURES && now.saturating_duration_since(first) <= self.window()
        {
            self.open.store(true, Ordering::Release);
        }
    }

    /// Returns whether a call has failed since the last answer.
    pub fn is_failing(&self) -> bool {
        !self.lock_history().failed.is_empty()
    }

    /// Returns the time since the last answer, or `None` before the first one.
    pub fn time_since_reply(&self, now: Instant) -> Option<Duration> {
        self.lock_history()
            .replied_at
            .map(|replied_at| now.saturating_duration_since(replied_at))
    }

    pub fn last_failure(&self) -> String {
        self.lock_history().why.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPLY_TIMEOUT: Duration = Duration::from_millis(200);
    const STEP: Duration = Duration::from_millis(500);

    #[test]
    fn it_opens_at_the_fifth_failure_in_a_row_within_its_window_and_not_before() {
        let breaker = StoreBreaker::new_open(REPLY_TIMEOUT);
        let begin = Instant::now();
        assert!(
            breaker.is_open() && breaker.time_since_reply(begin).is_none(),
            "nothing is known of the store yet"
        );
        breaker.record_success(begin);
        for number in 0..5 {
            assert!(!breaker.is_open(), "after {number} failures");
            breaker.record_failure(begin + STEP * number, "gone");
        }
        assert!(breaker.is_open() && breaker.is_failing());
        assert_eq!(breaker.last_failure(), "gone");
        assert_eq!(
            breaker.time_since_reply(begin + STEP * 4),
            Some(breaker.window())
        );
        breaker.record_success(begin + STEP * 5);
        assert!(
            !breaker.is_open() && !breaker.is_failing(),
            "one answer closes it"
        );
    }

    #[test]
    fn its_window_grows_with_the_reply_timeout_and_never_ends_between_two_probes() {
        for (reply_ms, window_ms) in [(20, 2_000), (200, 2_000), (201, 2_010), (1_000, 10_000)] {
            let breaker = StoreBreaker::new_open(Duration::from_millis(reply_ms));
            assert_eq!(breaker.window(), Duration::from_millis(window_ms));
        }
    }

    #[test]
    fn it_stays_closed_where_failures_are_seldom_or_answers_come_between() {
        let breaker = StoreBreaker::new_open(REPLY_TIMEOUT);
        let begin = Instant::now();
        breaker.record_success(begin);
        let seldom = STEP + Duration::from_millis(1);
        for number in 0..20 {
            breaker.record_failure(begin + seldom * number, "slow");
            assert!(!breaker.is_open(), "the fifth comes just too late");
        }
        let later = begin + seldom * 20;
        for _ in 0..20 {
            (0..4).for_each(|_| breaker.record_failure(later, "one of three nodes"));
            breaker.record_success(later);
            assert!(!breaker.is_open());
        }
    }
}
