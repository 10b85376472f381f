//! The circuit breaker of one endpoint. It opens when too many requests fail in a row, or too large
//! a share of them, and lets one request through after a while to test the endpoint.
//!
//! This file must not read a clock and must not know what a request is.

use crate::config::Limits;
use std::time::{Duration, Instant};

/// When the breaker opens, and for how long.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    /// Number of failures in a row that open the breaker. 0 means that it never opens.
    pub failures: u64,
    /// Percentage of failures that opens the breaker, in a window with at least `window_requests`
    /// requests.
    pub percent: u64,
    pub window: Duration,
    pub window_requests: u64,
    /// Duration of the first opening. Each further opening lasts twice as long.
    pub open: Duration,
    pub open_max: Duration,
}

impl Rules {
    pub fn of(limits: &Limits) -> Self {
        Self {
            failures: limits.breaker_failures,
            percent: limits.breaker_failure_percent,
            window: Duration::from_secs(limits.breaker_window_seconds),
            window_requests: limits.breaker_window_requests,
            open: Duration::from_secs(limits.breaker_open_seconds),
            open_max: Duration::from_secs(limits.breaker_open_max_seconds),
        }
    }
}

#[derive(Debug)]
pub struct Breaker {
    state: State,
    in_a_row: u64,
    window: Option<Window>,
    /// Number of openings since the breaker was last closed, and time of the last opening.
    opened: u32,
    opened_at: Option<Instant>,
    /// Differs between processes, so that they do not all retry at the same instant.
    seed: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    Closed,
    /// Open until this instant. After it, one request may try.
    Open(Instant),
    /// One request is trying.
    HalfOpen,
}

/// Counts of the requests since the window began.
#[derive(Debug, Clone, Copy)]
struct Window {
    began: Instant,
    requests: u64,
    failures: u64,
}

/// Whether a request may pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pass {
    Free,
    /// As the request that tests the endpoint.
    Probe,
    /// Only if no other endpoint is available. Holds the instant of the next test, if it is known.
    Shut(Option<Instant>),
}

impl Breaker {
    pub fn new(seed: u64) -> Self {
        Self {
            state: State::Closed,
            in_a_row: 0,
            window: None,
            opened: 0,
            opened_at: None,
            seed,
        }
    }

    pub fn state(&self) -> State {
        self.state
    }

    pub fn pass(&self, now: Instant) -> Pass {
        match self.state {
            State::Closed => Pass::Free,
            State::Open(until) if now >= until => Pass::Probe,
            State::Open(until) => Pass::Shut(Some(until)),
            State::HalfOpen => Pass::Shut(None),
        }
    }

    /// Records that the test request has begun.
    pub fn probe(&mut self) {
        self.state = State::HalfOpen;
    }

    /// Records that the test request ended without a verdict. The next request may try.
    pub fn probe_again(&mut self, now: Instant) {
        if self.state == State::HalfOpen {
            self.state = State::Open(now);
        }
    }

    /// Records that the endpoint answers a request that began at `began`, and closes the breaker. A
    /// request that began before the breaker opened changes nothing.
    pub fn answers(&mut self, began: Instant) {
        let is_late = self.opened_at.is_some_and(|opened| began < opened);
        if self.state != State::Closed && !is_late {
            *self = Self::new(self.seed);
        }
    }

    pub fn succeeded(&mut self, rules: &Rules, began: Instant, now: Instant) {
        self.answers(began);
        if self.state == State::Closed {
            self.in_a_row = 0;
            self.count(rules, now, 0);
        }
    }

    /// Records a failure. Returns whether it opened the breaker.
    pub fn failed(&mut self, rules: &Rules, now: Instant) -> bool {
        self.in_a_row = self.in_a_row.saturating_add(1);
        let window = self.count(rules, now, 1);
        let too_many = window.requests >= rules.window_requests
            && window.failures.saturating_mul(100) >= window.requests.saturating_mul(rules.percent);
        let opens = match self.state {
            State::HalfOpen => true,
            State::Closed => rules.failures > 0 && (self.in_a_row >= rules.failures || too_many),
            // A request that was let through because no other endpoint was available changes
            // nothing.
            State::Open(_) => false,
        };
        if opens {
            self.open(rules, now);
        }
        opens
    }

    /// Opens the breaker at once, because a retry would fail as well. Returns whether it was not
    /// open before.
    pub fn trip(&mut self, rules: &Rules, now: Instant) -> bool {
        let opens = rules.failures > 0 && !matches!(self.state, State::Open(_));
        if opens {
            self.open(rules, now);
        }
        opens
    }

    /// Forgets all counts, because what they were about has changed.
    pub fn reset(&mut self) {
        *self = Self::new(self.seed);
    }

    fn open(&mut self, rules: &Rules, now: Instant) {
        self.state = State::Open(now + self.open_for(rules));
        self.opened = self.opened.saturating_add(1);
        self.opened_at = Some(now);
        self.window = None;
    }

    fn count(&mut self, rules: &Rules, now: Instant, failures: u64) -> Window {
        let fresh = Window {
            began: now,
            requests: 0,
            failures: 0,
        };
        let mut window = self
            .window
            .filter(|window| now.duration_since(window.began) < rules.window)
            .unwrap_or(fresh);
        window.requests = window.requests.saturating_add(1);
        window.failures = window.failures.saturating_add(failures);
        self.window = Some(window);
        window
    }

    /// Returns how long the breaker stays open: twice as long each time, up to the maximum, plus up
    /// to a quarter at random.
    fn open_for(&self, rules: &Rules) -> Duration {
        let whole = rules
            .open
            .saturating_mul(1 << self.opened.min(16))
            .min(rules.open_max.max(rules.open));
        let quarter = u64::try_from(whole.as_millis() / 4)
            .unwrap_or(u64::MAX)
            .max(1);
        whole
            + Duration::from_millis(
                super::choice::mix(self.seed ^ u64::from(self.opened)) % quarter,
            )
    }
}
