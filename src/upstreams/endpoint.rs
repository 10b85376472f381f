//! Represents one endpoint, with its breaker, its health checks, the pauses that its vendor
//! requested, and its running requests.
//!
//! This file must not do I/O and must not choose an endpoint.

use super::breaker::{BreakerPermit, BreakerRules, BreakerState, CircuitBreaker};
use super::failures::{FailureKind, FailureLog, LastFailure, VendorFailure};
use super::load_balancer::Candidate;
use super::lock::lock;
use super::recent::{RecentAttempts, RecentOutcomes};
use super::vendor_key::{VendorKey, VendorKeyLease};
use base::telemetry::METRICS;
use config::Limits;
use config::catalog::VendorEndpoint;
use sha2::{Digest as _, Sha256};
use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Maximum number of HTTP/2 violations by one endpoint after which the gateway still retries
/// HTTP/2. After that, Pingora's choice applies: HTTP/1.1.
const MAX_H2_VIOLATIONS: u64 = 1_000;

/// The state of one endpoint for an operator.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct EndpointState {
    pub vendor: String,
    pub endpoint: String,
    pub weight: u32,
    pub in_flight: u32,
    /// Maximum number of concurrent requests. `None` means no limit.
    pub max_concurrent: Option<u32>,
    /// `closed`, `open` or `half_open`.
    pub breaker: &'static str,
    /// Number of seconds until the breaker allows a test. 0 if the breaker is not open.
    pub opens_in_seconds: u64,
    /// True if the active health check passes or is not configured.
    pub passes_checks: bool,
    /// Models that the vendor asked the gateway to pause on this endpoint, with the remaining
    /// seconds.
    pub cooling_seconds: Vec<(String, u64)>,
    /// True if the vendor refuses the gateway's key or its account has no credit. The endpoint then
    /// gets only requests that test this.
    pub key_refused: bool,
    /// Number of seconds until the next such test, if known.
    pub key_tested_in_seconds: Option<u64>,
    pub recent: RecentAttempts,
    /// The last failure. `None` if no attempt has failed since this process started.
    pub last_failure: Option<LastFailure>,
}

/// The reason why the vendor asked the gateway to pause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CoolDownReason {
    RateLimited,
    Overloaded,
}

/// The conditions under which a request may use an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EndpointAvailability {
    Available,
    /// The breaker or the health check blocks the endpoint, until a time that may be known.
    Blocked {
        passes_checks: bool,
        until: Option<Instant>,
    },
    Full,
    Cooling {
        why: CoolDownReason,
        left: Duration,
        /// True if a request may probe the endpoint despite the pause.
        is_due: bool,
    },
}

impl EndpointAvailability {
    /// Combines this availability with the breaker of the vendor's key.
    pub(super) fn with_key(self, key: BreakerPermit) -> Self {
        let BreakerPermit::Blocked(key_until) = key else {
            return self;
        };
        match self {
            EndpointAvailability::Available => EndpointAvailability::Blocked {
                passes_checks: true,
                until: key_until,
            },
            EndpointAvailability::Blocked {
                passes_checks,
                until,
            } => EndpointAvailability::Blocked {
                passes_checks,
                until: until.max(key_until),
            },
            EndpointAvailability::Full | EndpointAvailability::Cooling { .. } => self,
        }
    }
}

pub(super) struct MonitoredEndpoint {
    vendor: String,
    label: String,
    number: u32,
    weight: u32,
    max_concurrent: Option<u32>,
    seed: u64,
    /// State that is shared with the same endpoint of the previous config.
    pub(super) health: Arc<Mutex<EndpointHealth>>,
    /// Failures, which the vendor's other endpoints share.
    failures: Arc<FailureLog>,
}

pub(super) struct EndpointHealth {
    pub(super) breaker: CircuitBreaker,
    in_flight: u32,
    passes_checks: bool,
    /// Pauses by the vendor's name for the model. The config bounds their number.
    cooling: HashMap<String, CoolDown>,
    /// True if the endpoint has reset a stream with `HTTP_1_1_REQUIRED`.
    wants_http1: bool,
    /// Number of times that the endpoint violated HTTP/2 on an HTTP/2 connection.
    h2_violations: u64,
    /// Number that separates current connections from older ones, which no request may use.
    connection_group: u64,
    recent: RecentOutcomes,
    last_failure: Option<LastFailure>,
}

/// A pause that a vendor requested for one model.
#[derive(Clone, Copy)]
struct CoolDown {
    why: CoolDownReason,
    since: Instant,
    until: Instant,
    /// Test of the pause. The vendor may have meant only one customer or one request, so from time
    /// to time one request probes the endpoint.
    probe: Option<CoolDownProbe>,
}

#[derive(Clone, Copy)]
struct CoolDownProbe {
    every: Duration,
    next: Instant,
}

impl CoolDown {
    fn is_due(&self, now: Instant) -> bool {
        self.probe.is_some_and(|probe| probe.next <= now)
    }
}

impl MonitoredEndpoint {
    pub(super) fn new(
        vendor: &str,
        endpoint: &VendorEndpoint,
        number: u32,
        known: Option<&Self>,
        failures: &Arc<FailureLog>,
    ) -> Self {
        let label = endpoint.label();
        let seed = Sha256::digest(format!("{label} {number}"))
            .first_chunk::<8>()
            .map_or(0, |half| u64::from_be_bytes(*half));
        let fresh = || {
            let breaker = CircuitBreaker::new(RandomState::new().hash_one(&label));
            Arc::new(Mutex::new(EndpointHealth {
                breaker,
                in_flight: 0,
                passes_checks: true,
                cooling: HashMap::new(),
                wants_http1: false,
                h2_violations: 0,
                connection_group: 0,
                recent: RecentOutcomes::new(Instant::now()),
                last_failure: None,
            }))
        };
        let health = known.map_or_else(fresh, |known| Arc::clone(&known.health));
        if endpoint.health_check.is_none() {
            lock(&health).passes_checks = true;
        }
        let (vendor, weight, max_concurrent) =
            (vendor.to_owned(), endpoint.weight, endpoint.max_concurrent);
        let monitored = Self {
            vendor,
            label,
            number,
            weight,
            max_concurrent,
            seed,
            health,
            failures: Arc::clone(failures),
        };
        monitored.publish_health(&lock(&monitored.health));
        monitored
    }

    pub(super) fn matches(&self, endpoint: &VendorEndpoint, number: u32) -> bool {
        self.label == endpoint.label() && self.number == number
    }

    pub(super) fn candidate(&self, index: usize) -> Candidate {
        Candidate {
            index,
            weight: self.weight,
            seed: self.seed,
        }
    }

    pub(super) fn availability(&self, model: &str, now: Instant) -> EndpointAvailability {
        let health = lock(&self.health);
        let is_full = self
            .max_concurrent
            .is_some_and(|max| health.in_flight >= max);
        if let Some(cooling) = health
            .cooling
            .get(model)
            .filter(|cooling| now < cooling.until)
        {
            let (left, is_due) = (
                cooling.until.duration_since(now),
                cooling.is_due(now) && !is_full,
            );
            return EndpointAvailability::Cooling {
                why: cooling.why,
                left,
                is_due,
            };
        }
        if is_full {
            return EndpointAvailability::Full;
        }
        match (health.breaker.permit(now), health.passes_checks) {
            (BreakerPermit::Allowed | BreakerPermit::Probe, true) => {
                EndpointAvailability::Available
            }
            (BreakerPermit::Allowed | BreakerPermit::Probe, false) => {
                EndpointAvailability::Blocked {
                    passes_checks: false,
                    until: None,
                }
            }
            (BreakerPermit::Blocked(until), passes_checks) => EndpointAvailability::Blocked {
                passes_checks,
                until,
            },
        }
    }

    /// Takes a slot at the endpoint. Returns `None` if a request from before the reload took the
    /// last slot.
    pub(super) fn lease(
        self: &Arc<Self>,
        index: usize,
        model: &str,
        key: &Arc<VendorKey>,
        now: Instant,
    ) -> Option<EndpointLease> {
        let mut health = lock(&self.health);
        if self
            .max_concurrent
            .is_some_and(|max| health.in_flight >= max)
        {
            return None;
        }
        health.in_flight = health.in_flight.saturating_add(1);
        if let Some(probe) = health
            .cooling
            .get_mut(model)
            .and_then(|cooling| cooling.probe.as_mut())
        {
            probe.next = now + probe.every;
        }
        let is_probe = health.breaker.permit(now) == BreakerPermit::Probe;
        if is_probe {
            health.breaker.begin_probe();
        }
        drop(health);
        let (endpoint, key) = (Arc::clone(self), key.lease(now));
        Some(EndpointLease {
            endpoint,
            key,
            index,
            began: now,
            is_probe,
            is_decided: false,
            has_failed: false,
            connection_group: 0,
        })
    }

    /// Closes the breaker because the vendor has a new key.
    pub(super) fn reset_breaker(&self) {
        let mut health = lock(&self.health);
        health.breaker.reset();
        self.publish_health(&health);
    }

    pub(super) fn set_health_check_result(&self, passes: bool) {
        let mut health = lock(&self.health);
        if health.passes_checks != passes {
            log::warn!(
                "{} {}: health check {}",
                self.vendor,
                self.label,
                if passes { "passes" } else { "fails" }
            );
        }
        health.passes_checks = passes;
        self.publish_health(&health);
    }

    fn publish_health(&self, health: &EndpointHealth) {
        let is_healthy = health.passes_checks && health.breaker.state() == BreakerState::Closed;
        METRICS
            .upstream_healthy
            .with_label_values(&[&self.vendor, &self.label])
            .set(i64::from(is_healthy));
    }

    pub(super) fn state(&self, key: &VendorKey, now: Instant) -> EndpointState {
        let (key_refused, key_until) = match key.permit(now) {
            BreakerPermit::Allowed => (false, None),
            BreakerPermit::Probe => (true, Some(now)),
            BreakerPermit::Blocked(until) => (true, until),
        };
        let health = lock(&self.health);
        let (breaker, until) = match health.breaker.state() {
            BreakerState::Closed => ("closed", None),
            BreakerState::Open(until) => ("open", Some(until)),
            BreakerState::HalfOpen => ("half_open", None),
        };
        let seconds = |until: Instant| until.saturating_duration_since(now).as_secs();
        let cooling = health
            .cooling
            .iter()
            .filter(|(_, cooling)| now < cooling.until);
        let mut cooling_seconds: Vec<_> = cooling
            .map(|(model, cooling)| (model.clone(), seconds(cooling.until)))
            .collect();
        cooling_seconds.sort();
        EndpointState {
            vendor: self.vendor.clone(),
            endpoint: self.label.clone(),
            weight: self.weight,
            in_flight: health.in_flight,
            max_concurrent: self.max_concurrent,
            breaker,
            opens_in_seconds: until.map_or(0, seconds),
            passes_checks: health.passes_checks,
            cooling_seconds,
            key_refused,
            key_tested_in_seconds: key_until.map(seconds),
            recent: health.recent.summarize(now),
            last_failure: health.last_failure.clone(),
        }
    }
}

impl Drop for MonitoredEndpoint {
    fn drop(&mut self) {
        // If a reload keeps the endpoint, its successor shares this state.
        if Arc::strong_count(&self.health) == 1 {
            let _ = METRICS
                .upstream_healthy
                .remove_label_values(&[&self.vendor, &self.label]);
        }
    }
}

/// A request's slot at an endpoint. The endpoint counts the request until the lease is dropped.
/// Only the first verdict counts.
pub struct EndpointLease {
    endpoint: Arc<MonitoredEndpoint>,
    key: VendorKeyLease,
    pub index: usize,
    began: Instant,
    is_probe: bool,
    is_decided: bool,
    /// True if the attempt has failed, and has not begun to succeed since.
    has_failed: bool,
    connection_group: u64,
}

/// Identifies the log line in which a failure is counted.
#[derive(Clone)]
pub struct CountedFailure {
    log: Arc<FailureLog>,
    kind: FailureKind,
}

impl CountedFailure {
    /// Counts that another attempt has answered the request.
    pub fn count_answered(&self) {
        self.log.count_answered(self.kind);
    }
}

impl EndpointLease {
    pub fn label(&self) -> &str {
        &self.endpoint.label
    }

    /// Makes the gateway use HTTP/1.1 for this endpoint for the rest of the process's life.
    pub fn use_http1(&self) {
        lock(&self.endpoint.health).wants_http1 = true;
    }

    /// Records that the endpoint violated HTTP/2. Pingora alone would then use HTTP/1.1 for the
    /// rest of the process's life. The gateway puts the endpoint's next connection into another
    /// group, for which Pingora negotiates HTTP/2 again.
    pub fn record_h2_violation(&self) {
        let mut health = lock(&self.endpoint.health);
        if health.h2_violations < MAX_H2_VIOLATIONS {
            health.h2_violations += 1;
            health.connection_group = health.connection_group.wrapping_add(1);
        }
    }

    /// Records that the connection of this lease was dead. A vendor that restarts closes all its
    /// connections, so connections of the same age may be dead too, and the next request opens a
    /// new one.
    pub fn record_dead_connection(&self) {
        let mut health = lock(&self.endpoint.health);
        // If several requests used the same connection, only the first one counts.
        if health.connection_group == self.connection_group {
            health.connection_group = health.connection_group.wrapping_add(1);
        }
    }

    /// Returns the number of the group of connections that the next attempt uses.
    pub fn choose_connection_group(&mut self) -> u64 {
        self.connection_group = lock(&self.endpoint.health).connection_group;
        self.connection_group
    }

    pub fn uses_http1(&self) -> bool {
        lock(&self.endpoint.health).wants_http1
    }

    /// Counts a failure of this attempt for the log and the endpoint's state. The breaker does not
    /// change.
    pub fn count_failure(
        &mut self,
        failure: &VendorFailure<'_>,
        at_ms: i64,
        now: Instant,
    ) -> CountedFailure {
        self.has_failed = true;
        lock(&self.endpoint.health).last_failure = Some(failure.to_last(at_ms));
        let log = &self.endpoint.failures;
        CountedFailure {
            kind: log.add(&self.endpoint.label, failure, now),
            log: Arc::clone(log),
        }
    }

    /// Returns whether a failure of this attempt was counted and no success has followed.
    pub fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// Records that the endpoint has begun a successful response. Its breaker closes, and its pause
    /// for this model ends, although the rest of the response may still fail.
    pub fn record_response(&mut self, model: &str, now: Instant) {
        self.has_failed = false;
        let mut health = lock(&self.endpoint.health);
        let after = now.saturating_duration_since(self.began);
        health.recent.record_first_byte(after, now);
        health.breaker.record_response(self.began);
        // A request that began before the pause shows nothing about the state after it.
        if health
            .cooling
            .get(model)
            .is_some_and(|cooling| cooling.since <= self.began)
        {
            health.cooling.remove(model);
        }
        self.endpoint.publish_health(&health);
        drop(health);
        self.key.record_accepted();
    }

    /// Records that the vendor refuses the gateway's key or account. A retry would not help, so the
    /// gateway stops using this endpoint at once, and the vendor's other endpoints until a request
    /// shows that the vendor accepts the key. Returns whether the refusal is new.
    pub fn record_refused_key(&mut self, limits: &Limits, now: Instant) -> bool {
        let rules = BreakerRules::from_limits(limits);
        self.is_decided = true;
        let mut health = lock(&self.endpoint.health);
        if health.breaker.trip(&rules, now) {
            METRICS
                .upstream_opened
                .with_label_values(&[&self.endpoint.vendor, &self.endpoint.label])
                .inc();
        }
        self.endpoint.publish_health(&health);
        drop(health);
        self.key.record_refused(&rules, now)
    }

    pub fn record_success(&mut self, limits: &Limits, now: Instant) {
        let began = self.began;
        self.record_verdict(|health| {
            health
                .breaker
                .record_success(&BreakerRules::from_limits(limits), began, now);
            false
        });
    }

    pub fn record_failure(&mut self, limits: &Limits, now: Instant) {
        self.record_verdict(|health| {
            health
                .breaker
                .record_failure(&BreakerRules::from_limits(limits), now)
        });
    }

    /// Pauses this model at the endpoint for the time that the vendor requested.
    pub fn cool_down(
        &self,
        model: &str,
        why: CoolDownReason,
        pause: Duration,
        limits: &Limits,
        now: Instant,
    ) {
        let pause = pause.min(Duration::from_secs(limits.cool_down_max_seconds));
        if pause.is_zero() {
            return;
        }
        let every = Duration::from_secs(limits.cool_down_probe_seconds);
        let probe = (!every.is_zero()).then_some(CoolDownProbe {
            every,
            next: now + every,
        });
        let cooling = CoolDown {
            why,
            since: now,
            until: now + pause,
            probe,
        };
        lock(&self.endpoint.health)
            .cooling
            .insert(model.to_owned(), cooling);
    }

    fn record_verdict(&mut self, record: impl FnOnce(&mut EndpointHealth) -> bool) {
        if std::mem::replace(&mut self.is_decided, true) {
            return;
        }
        self.key.mark_known();
        let mut health = lock(&self.endpoint.health);
        if record(&mut health) {
            let (vendor, label) = (&self.endpoint.vendor, &self.endpoint.label);
            METRICS
                .upstream_opened
                .with_label_values(&[vendor, label])
                .inc();
            log::warn!(
                "{vendor} {label}: too many failures; its circuit breaker opens, and the endpoint gets no requests for a while"
            );
        }
        self.endpoint.publish_health(&health);
    }
}

impl Drop for EndpointLease {
    fn drop(&mut self) {
        let mut health = lock(&self.endpoint.health);
        let now = Instant::now();
        health.in_flight = health.in_flight.saturating_sub(1);
        health.recent.record_end(self.has_failed, now);
        if self.is_probe && !self.is_decided {
            health.breaker.release_probe(now);
        }
    }
}
