//! Implements the circuit breaker of one endpoint. It opens when too many requests fail in a row,
//! or too large a share of them, and lets one request through after a while to test the endpoint.
//!
//! This file must not read a clock or depend on requests.

use config::Limits;
use std::time::{Duration, Instant};

/// The conditions under which the breaker opens, and the duration of an opening.
#[derive(Debug, Clone, Copy)]
pub struct BreakerRules {
    /// Number of consecutive failures that open the breaker. 0 means that it never opens.
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

impl BreakerRules {
    pub fn from_limits(limits: &Limits) -> Self {
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
pub struct CircuitBreaker {
    state: BreakerState,
    in_a_row: u64,
    window: Option<FailureWindow>,
    /// Number of openings since the breaker was last closed.
    opened: u32,
    opened_at: Option<Instant>,
    /// Seed of the random delay. It differs between processes, so that they do not all retry at the
    /// same instant.
    seed: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BreakerState {
    Closed,
    /// The breaker is open until this instant. After that, one request may test the endpoint.
    Open(Instant),
    /// One request tests the endpoint.
    HalfOpen,
}

/// Number of requests and failures since the window began.
#[derive(Debug, Clone, Copy)]
struct FailureWindow {
    began: Instant,
    requests: u64,
    failures: u64,
}

/// The permission for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BreakerPermit {
    Allowed,
    /// The request may pass as the one that tests the endpoint.
    Probe,
    /// The request may pass only if no other endpoint is available. The instant is that of the next
    /// test, if known.
    Blocked(Option<Instant>),
}

impl CircuitBreaker {
    pub fn new(seed: u64) -> Self {
        Self {
            state: BreakerState::Closed,
            in_a_row: 0,
            window: None,
            opened: 0,
            opened_at: None,
            seed,
        }
    }

    pub fn state(&self) -> BreakerState {
        self.state
    }

    pub fn permit(&self, now: Instant) -> BreakerPermit {
        match self.state {
            BreakerState::Closed => BreakerPermit::Allowed,
            BreakerState::Open(until) if now >= until => BreakerPermit::Probe,
            BreakerState::Open(until) => BreakerPermit::Blocked(Some(until)),
            BreakerState::HalfOpen => BreakerPermit::Blocked(None),
        }
    }

    pub fn begin_probe(&mut self) {
        self.state = BreakerState::HalfOpen;
    }

    /// Records that the test request ended without a verdict. The next request may test the
    /// endpoint.
    pub fn release_probe(&mut self, now: Instant) {
        if self.state == BreakerState::HalfOpen {
            self.state = BreakerState::Open(now);
        }
    }

    /// Records that the endpoint answers a request that began at `began`, and closes the breaker. A
    /// request that began before the breaker opened has no effect.
    pub fn record_response(&mut self, began: Instant) {
        let is_late = self.opened_at.is_some_and(|opened| began < opened);
        if self.state != BreakerState::Closed && !is_late {
            *self = Self::new(self.seed);
        }
    }

    pub fn record_success(&mut self, rules: &BreakerRules, began: Instant, now: Instant) {
        self.record_response(began);
        if self.state == BreakerState::Closed {
            self.in_a_row = 0;
            self.count_request(rules, now, 0);
        }
    }

    /// Records a failure. Returns whether it opened the breaker.
    pub fn record_failure(&mut self, rules: &BreakerRules, now: Instant) -> bool {
        self.in_a_row = self.in_a_row.saturating_add(1);
        let window = self.count_request(rules, now, 1);
        let too_many = window.requests >= rules.window_requests
            && window.failures.saturating_mul(100) >= window.requests.saturating_mul(rules.percent);
        let opens = match self.state {
            BreakerState::HalfOpen => true,
            BreakerState::Closed => {
                rules.failures > 0 && (self.in_a_row >= rules.failures || too_many)
            }
            // A request that passed because no other endpoint was available has no effect.
            BreakerState::Open(_) => false,
        };
        if opens {
            self.open(rules, now);
        }
        opens
    }

    /// Opens the breaker at once, because a retry would fail too. Returns whether the breaker was
    /// not open before.
    pub fn trip(&mut self, rules: &BreakerRules, now: Instant) -> bool {
        let opens = rules.failures > 0 && !matches!(self.state, BreakerState::Open(_));
        if opens {
            self.open(rules, now);
        }
        opens
    }

    /// Clears all counts, because the endpoint or its key has changed.
    pub fn reset(&mut self) {
        *self = Self::new(self.seed);
    }

    fn open(&mut self, rules: &BreakerRules, now: Instant) {
        self.state = BreakerState::Open(now + self.open_duration(rules));
        self.opened = self.opened.saturating_add(1);
        self.opened_at = Some(now);
        self.window = None;
    }

    fn count_request(
        &mut self,
        rules: &BreakerRules,
        now: Instant,
        failures: u64,
    ) -> FailureWindow {
        let fresh = FailureWindow {
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

    /// Returns the duration of an opening. It doubles each time up to the maximum, plus up to a
    /// quarter at random.
    fn open_duration(&self, rules: &BreakerRules) -> Duration {
        let whole = rules
            .open
            .saturating_mul(1 << self.opened.min(16))
            .min(rules.open_max.max(rules.open));
        let quarter = u64::try_from(whole.as_millis() / 4)
            .unwrap_or(u64::MAX)
            .max(1);
        whole
            + Duration::from_millis(
                super::load_balancer::mix_bits(self.seed ^ u64::from(self.opened)) % quarter,
            )
    }
}
