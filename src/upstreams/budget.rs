//! Limits retries by the budget of one vendor: a percentage of the requests of the last seconds,
//! and a small minimum. The budget keeps the gateway from doubling the load on a vendor that fails
//! every call.
//!
//! This file must not read a clock or depend on requests.

use config::Limits;
use std::time::Instant;

/// Length of the window over which requests and retries are counted, in seconds.
const WINDOW_SECONDS: usize = 10;

#[derive(Debug, Clone, Copy)]
pub struct RetryAllowance {
    /// Maximum number of retries as a percentage of the window's requests.
    pub percent: u64,
    /// Minimum number of retries per window, independent of the number of requests.
    pub min: u64,
}

impl RetryAllowance {
    /// Returns the allowance of a vendor with this number of endpoints. A few retries are always
    /// allowed, until the breaker of each dead endpoint has opened: the budget limits storms, not
    /// the first failures.
    pub fn new(limits: &Limits, endpoints: usize) -> Self {
        let endpoints = u64::try_from(endpoints).unwrap_or(u64::MAX);
        let until_open = limits.breaker_failures.saturating_mul(endpoints);
        Self {
            percent: limits.retry_budget_percent,
            min: match limits.retry_budget_min {
                0 => 0,
                min => min.max(until_open),
            },
        }
    }
}

/// Requests to one vendor and their retries, counted per second.
#[derive(Debug, Default)]
pub struct RetryBudget {
    /// Start of the first counted second.
    origin: Option<Instant>,
    seconds: [BudgetSecond; WINDOW_SECONDS],
}

#[derive(Debug, Default, Clone, Copy)]
struct BudgetSecond {
    number: u64,
    requests: u64,
    repeats: u64,
}

impl RetryBudget {
    /// Counts a request that the gateway sends to the vendor for the first time.
    pub fn count_request(&mut self, now: Instant) {
        if let Some(second) = self.second_mut(now) {
            second.requests = second.requests.saturating_add(1);
        }
    }

    pub fn has_left(&self, allowance: RetryAllowance, now: Instant) -> bool {
        let current = self.current_second(now);
        let counts =
            |second: &&BudgetSecond| current < second.number.saturating_add(WINDOW_SECONDS as u64);
        let (requests, repeats) = self.seconds.iter().filter(counts).fold(
            (0_u64, 0_u64),
            |(requests, repeats), second| {
                (
                    requests.saturating_add(second.requests),
                    repeats.saturating_add(second.repeats),
                )
            },
        );
        repeats < (requests.saturating_mul(allowance.percent) / 100).max(allowance.min)
    }

    /// Counts a retry if one is allowed. Returns whether it was allowed.
    pub fn try_take(&mut self, allowance: RetryAllowance, now: Instant) -> bool {
        let has_left = self.has_left(allowance, now);
        if let Some(second) = self.second_mut(now).filter(|_| has_left) {
            second.repeats = second.repeats.saturating_add(1);
        }
        has_left
    }

    fn current_second(&self, now: Instant) -> u64 {
        self.origin
            .map_or(0, |origin| now.saturating_duration_since(origin).as_secs())
    }

    /// Returns the counter of the current second, and resets it if it belongs to an earlier second.
    fn second_mut(&mut self, now: Instant) -> Option<&mut BudgetSecond> {
        self.origin.get_or_insert(now);
        let number = self.current_second(now);
        let index = usize::try_from(number % WINDOW_SECONDS as u64).ok()?;
        let second = self.seconds.get_mut(index)?;
        if second.number != number {
            *second = BudgetSecond {
                number,
                ..BudgetSecond::default()
            };
        }
        Some(second)
    }
}
