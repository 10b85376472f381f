//! How often one vendor is asked again: a part of the requests of the last seconds, and a small
//! number in any case. A vendor that fails every call is so not asked twice as often.
//!
//! Must not read a clock, nor know what a request is.

use crate::config::Limits;
use std::time::Instant;

/// Over how many seconds requests and repeats are counted.
const WINDOW_SECONDS: usize = 10;

/// How many repeats are allowed.
#[derive(Debug, Clone, Copy)]
pub struct Allowance {
    /// Of the window's requests, in percent.
    pub percent: u64,
    /// Of any window, however few its requests.
    pub min: u64,
}

impl Allowance {
    pub fn new(limits: &Limits) -> Self {
        Self {
            percent: limits.retry_budget_percent,
            min: limits.retry_budget_min,
        }
    }
}

/// The requests and repeats of one vendor, second by second.
#[derive(Debug, Default)]
pub struct RetryBudget {
    /// From when seconds are counted.
    origin: Option<Instant>,
    seconds: [Second; WINDOW_SECONDS],
}

#[derive(Debug, Default, Clone, Copy)]
struct Second {
    number: u64,
    requests: u64,
    repeats: u64,
}

impl RetryBudget {
    /// A request is sent to the vendor for the first time.
    pub fn add_request(&mut self, now: Instant) {
        if let Some(second) = self.second(now) {
            second.requests = second.requests.saturating_add(1);
        }
    }

    /// Another repeat is allowed.
    pub fn has_left(&self, allowance: Allowance, now: Instant) -> bool {
        let current = self.number(now);
        let counts =
            |second: &&Second| current < second.number.saturating_add(WINDOW_SECONDS as u64);
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

    /// Counts a repeat, where one is allowed.
    pub fn take(&mut self, allowance: Allowance, now: Instant) -> bool {
        let has_left = self.has_left(allowance, now);
        if let Some(second) = self.second(now).filter(|_| has_left) {
            second.repeats = second.repeats.saturating_add(1);
        }
        has_left
    }

    fn number(&self, now: Instant) -> u64 {
        self.origin
            .map_or(0, |origin| now.saturating_duration_since(origin).as_secs())
    }

    /// The count of this second, begun anew where it held one long past.
    fn second(&mut self, now: Instant) -> Option<&mut Second> {
        self.origin.get_or_insert(now);
        let number = self.number(now);
        let index = usize::try_from(number % WINDOW_SECONDS as u64).ok()?;
        let second = self.seconds.get_mut(index)?;
        if second.number != number {
            *second = Second {
                number,
                ..Second::default()
            };
        }
        Some(second)
    }
}
