//! The current state of the vendors' endpoints: which are healthy, which cool down, how many
//! requests run at each; and which endpoint a request uses.
//!
//! This module must not do I/O: the edge reports the outcome of each request and each health check.
//! The state survives a reload of the config. Next: `upstreams/breaker.rs`,
//! `upstreams/vendor_key.rs`, `upstreams/budget.rs`, `upstreams/load_balancer.rs`.

pub mod breaker;
mod budget;
pub mod load_balancer;
mod lock;
#[cfg(test)]
mod tests;
mod vendor_key;

use crate::catalog::{CatalogVendor, VendorEndpoint};
use crate::config::Limits;
use crate::telemetry::METRICS;
use breaker::{BreakerPermit, BreakerRules, BreakerState, CircuitBreaker};
use budget::{RetryAllowance, RetryBudget};
use load_balancer::{Candidate, SmoothRoundRobin};
use lock::lock;
use sha2::{Digest as _, Sha256};
use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use vendor_key::{VendorKey, VendorKeyLease};

/// Maximum number of HTTP/2 violations by one endpoint after which the gateway still retries
/// HTTP/2. After that, Pingora's choice applies: HTTP/1.1.
const MAX_H2_VIOLATIONS: u64 = 1_000;

/// The endpoints of all vendors.
#[derive(Default)]
pub struct EndpointRegistry(Mutex<HashMap<String, Arc<EndpointPool>>>);

impl EndpointRegistry {
    /// Returns the endpoints of a vendor, with the state from before a reload.
    pub fn pool_for(&self, vendor: &Arc<CatalogVendor>) -> Arc<EndpointPool> {
        let mut known = lock(&self.0);
        let before = known.get(&vendor.name);
        if let Some(same) = before.filter(|endpoints| Arc::ptr_eq(&endpoints.vendor, vendor)) {
            return Arc::clone(same);
        }
        let endpoints = Arc::new(EndpointPool::new(vendor, before.map(Arc::as_ref)));
        known.insert(vendor.name.clone(), Arc::clone(&endpoints));
        endpoints
    }

    /// Keeps the state of these vendors and drops that of all others.
    pub fn retain_vendors<'v>(
        &self,
        vendors: impl Iterator<Item = &'v Arc<CatalogVendor>> + Clone,
    ) {
        vendors
            .clone()
            .for_each(|vendor| drop(self.pool_for(vendor)));
        lock(&self.0).retain(|name, _| vendors.clone().any(|vendor| vendor.name == *name));
    }

    /// Returns the state of every endpoint, for an operator.
    pub fn states(&self, now: Instant) -> Vec<EndpointState> {
        let all: Vec<_> = lock(&self.0).values().cloned().collect();
        let mut states: Vec<_> = all
            .iter()
            .flat_map(|endpoints| endpoints.tracks.iter().map(|track| track.state(now)))
            .collect();
        states.sort_by(|one, other| {
            (&one.vendor, &one.endpoint).cmp(&(&other.vendor, &other.endpoint))
        });
        states
    }
}

/// The state of one endpoint, as an operator sees it.
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
    /// Seconds until the breaker lets a request try. 0 if the breaker is not open.
    pub opens_in_seconds: u64,
    /// Whether the active health check passes or there is none.
    pub passes_checks: bool,
    /// Models that the vendor asked the gateway to pause on this endpoint, and the remaining
    /// seconds.
    pub cooling_seconds: Vec<(String, u64)>,
}

/// One vendor's endpoints, in the order of the config.
pub struct EndpointPool {
    pub vendor: Arc<CatalogVendor>,
    tracks: Vec<Arc<MonitoredEndpoint>>,
    /// Locked during the choice of an endpoint.
    turns: Mutex<SmoothRoundRobin>,
    /// Breaker that opens when the vendor refuses the gateway's key or account. All endpoints of
    /// the vendor use the same key.
    key: Arc<VendorKey>,
    /// Limit on how often the gateway may retry failed requests at this vendor.
    budget: Arc<Mutex<RetryBudget>>,
}

/// What a request needs from its vendor's endpoints.
#[derive(Debug, Clone, Copy)]
pub struct EndpointQuery<'a> {
    /// The vendor's name for the model.
    pub model: &'a str,
    /// Hash of the conversation, which selects the endpoint. `None` uses weighted round robin.
    pub key: Option<u64>,
    /// Whether another model can answer instead. If so, the gateway does not fall back to an
    /// endpoint whose breaker is open.
    pub has_instead: bool,
    /// Whether the request has waited its maximum time for the first verdict on the vendor's key.
    pub has_waited: bool,
    /// Indexes of the endpoints that were tried before.
    pub tried: &'a [usize],
}

/// Why no endpoint is available.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndpointUnavailable {
    /// All endpoints were tried.
    Tried,
    /// The maximum number of requests is running.
    Full,
    /// No response has confirmed or refused the vendor's key yet, and other requests are finding
    /// out.
    KeyUnconfirmed,
    /// The vendor has said when to retry.
    Cooling { why: CoolDownReason, left: Duration },
}

/// Why the vendor asked the gateway to pause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CoolDownReason {
    RateLimited,
    Overloaded,
}

impl EndpointPool {
    fn new(vendor: &Arc<CatalogVendor>, before: Option<&Self>) -> Self {
        let mut names = HashMap::new();
        let tracks = vendor.endpoints.iter().map(|endpoint| {
            // The config may list the same address twice.
            let number = names
                .entry(endpoint.label())
                .and_modify(|count| *count += 1)
                .or_insert(0_u32);
            let known = before.and_then(|before| {
                before
                    .tracks
                    .iter()
                    .find(|track| track.matches(endpoint, *number))
            });
            Arc::new(MonitoredEndpoint::new(
                &vendor.name,
                endpoint,
                *number,
                known.map(Arc::as_ref),
            ))
        });
        let tracks: Vec<Arc<MonitoredEndpoint>> = tracks.collect();
        let same_key =
            before.filter(|before| before.vendor.api_key.reveal() == vendor.api_key.reveal());
        if same_key.is_none() {
            // The key has changed: endpoints that the old key closed are open to the new key.
            for track in &tracks {
                let mut health = lock(&track.health);
                health.breaker.reset();
                track.publish_health(&health);
            }
        }
        let fresh = || Arc::new(VendorKey::new(RandomState::new().hash_one(&vendor.name)));
        let key = same_key.map_or_else(fresh, |before| Arc::clone(&before.key));
        let budget = before.map_or_else(Arc::default, |before| Arc::clone(&before.budget));
        Self {
            vendor: Arc::clone(vendor),
            tracks,
            turns: Mutex::default(),
            key,
            budget,
        }
    }

    /// Counts a request that the gateway is about to send to this vendor for the first time.
    pub fn count_request(&self, now: Instant) {
        lock(&self.budget).count_request(now);
    }

    /// Whether the retry budget lets the gateway send a failed request to another endpoint.
    pub fn has_retry_budget(&self, limits: &Limits, now: Instant) -> bool {
        lock(&self.budget).has_left(RetryAllowance::new(limits), now)
    }

    /// Takes one retry out of the retry budget. Returns false if the budget is exhausted.
    pub fn take_retry(&self, limits: &Limits, now: Instant) -> bool {
        lock(&self.budget).try_take(RetryAllowance::new(limits), now)
    }

    /// Chooses an endpoint and counts the request there until the lease is dropped.
    ///
    /// # Errors
    /// Returns the reason if no endpoint is available.
    pub fn choose(
        &self,
        wish: EndpointQuery<'_>,
        now: Instant,
    ) -> Result<EndpointLease, EndpointUnavailable> {
        let mut turns = lock(&self.turns);
        if wish.has_instead && !wish.has_waited && !self.key.has_room() {
            return Err(EndpointUnavailable::KeyUnconfirmed);
        }
        let seen = self.availability(&wish, now);
        let candidates = |fit: fn(&EndpointAvailability) -> bool| -> Vec<Candidate> {
            seen.iter()
                .filter(|(_, look)| fit(look))
                .map(|(candidate, _)| *candidate)
                .collect()
        };
        let well = candidates(|look| *look == EndpointAvailability::Well);
        let index = match wish.key {
            Some(key) => load_balancer::select_by_hash(key, &well),
            None => turns.next(&well),
        };
        // The gateway never refuses a request because of a breaker. It uses the endpoint whose
        // breaker lets a request try soonest.
        let least_bad = || {
            let shut = seen.iter().filter_map(|(candidate, look)| match look {
                EndpointAvailability::Shut {
                    passes_checks,
                    until,
                } => Some((!passes_checks, *until, candidate.index)),
                _ => None,
            });
            shut.min().map(|(_, _, index)| index)
        };
        // From time to time one request probes whether the vendor still wants a pause.
        let probe = || {
            let mut due = seen.iter().filter(|(_, look)| {
                matches!(look, EndpointAvailability::Cooling { is_due: true, .. })
            });
            due.next().map(|(candidate, _)| candidate.index)
        };
        let least_bad = || if wish.has_instead { None } else { least_bad() };
        let chosen = index
            .or_else(probe)
            .or_else(least_bad)
            .and_then(|index| self.tracks.get(index).map(|track| (index, track)));
        match chosen {
            Some((index, track)) => track
                .lease(index, wish.model, &self.key, now)
                .ok_or(EndpointUnavailable::Full),
            None => Err(unavailable_reason(seen.iter().map(|(_, look)| look))),
        }
    }

    /// Waits at most `limit` until the vendor has accepted or refused the key, or one of the
    /// requests that test it has ended.
    pub async fn wait_for_key(&self, limit: Duration) {
        let _ = tokio::time::timeout(limit, self.key.wait_for_room()).await;
    }

    /// Whether another endpoint is available.
    pub fn has_available(&self, wish: EndpointQuery<'_>, now: Instant) -> bool {
        let may = |look: &EndpointAvailability| {
            matches!(
                look,
                EndpointAvailability::Well
                    | EndpointAvailability::Shut { .. }
                    | EndpointAvailability::Cooling { is_due: true, .. }
            )
        };
        self.availability(&wish, now)
            .iter()
            .any(|(_, look)| may(look))
    }

    fn availability(
        &self,
        wish: &EndpointQuery<'_>,
        now: Instant,
    ) -> Vec<(Candidate, EndpointAvailability)> {
        let all = self
            .tracks
            .iter()
            .enumerate()
            .map(|(index, track)| track.candidate(index));
        let key = self.key.permit(now);
        all.zip(&self.tracks)
            .filter(|(candidate, _)| !wish.tried.contains(&candidate.index))
            .map(|(candidate, track)| {
                (candidate, track.availability(wish.model, now).with_key(key))
            })
            .collect()
    }

    /// Records the result of an endpoint's active health check.
    pub fn set_health_check_result(&self, index: usize, passes: bool) {
        let Some(track) = self.tracks.get(index) else {
            return;
        };
        let mut health = lock(&track.health);
        if health.passes_checks != passes {
            log::warn!(
                "{} {}: health check {}",
                track.vendor,
                track.label,
                if passes { "passes" } else { "fails" }
            );
        }
        health.passes_checks = passes;
        track.publish_health(&health);
    }
}

/// Returns why the endpoint that is closest to being available cannot be chosen.
fn unavailable_reason<'a>(
    looks: impl Iterator<Item = &'a EndpointAvailability>,
) -> EndpointUnavailable {
    let mut found = EndpointUnavailable::Tried;
    for look in looks {
        found = match (found, look) {
            (_, EndpointAvailability::Full) => return EndpointUnavailable::Full,
            (
                EndpointUnavailable::Cooling { left, .. },
                EndpointAvailability::Cooling { left: more, .. },
            ) if left <= *more => found,
            (_, EndpointAvailability::Cooling { why, left, .. }) => EndpointUnavailable::Cooling {
                why: *why,
                left: *left,
            },
            _ => found,
        };
    }
    found
}

/// Whether and how a request may use an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EndpointAvailability {
    Well,
    /// Closed by its breaker or its health check, and until when, if that is known.
    Shut {
        passes_checks: bool,
        until: Option<Instant>,
    },
    Full,
    Cooling {
        why: CoolDownReason,
        left: Duration,
        /// Whether a request may probe the endpoint despite the pause.
        is_due: bool,
    },
}

impl EndpointAvailability {
    /// Combines this availability with the breaker of the vendor's key.
    fn with_key(self, key: BreakerPermit) -> Self {
        let BreakerPermit::Shut(key_until) = key else {
            return self;
        };
        match self {
            EndpointAvailability::Well => EndpointAvailability::Shut {
                passes_checks: true,
                until: key_until,
            },
            EndpointAvailability::Shut {
                passes_checks,
                until,
            } => EndpointAvailability::Shut {
                passes_checks,
                until: until.max(key_until),
            },
            EndpointAvailability::Full | EndpointAvailability::Cooling { .. } => self,
        }
    }
}

/// One endpoint and its state.
struct MonitoredEndpoint {
    vendor: String,
    label: String,
    number: u32,
    weight: u32,
    max_concurrent: Option<u32>,
    seed: u64,
    /// Shared with the same endpoint of the previous config.
    health: Arc<Mutex<EndpointHealth>>,
}

struct EndpointHealth {
    breaker: CircuitBreaker,
    in_flight: u32,
    passes_checks: bool,
    /// Pauses by the vendor's name for the model. The config bounds their number.
    cooling: HashMap<String, CoolDown>,
    /// Whether the endpoint has reset a stream with `HTTP_1_1_REQUIRED`.
    wants_http1: bool,
    /// Number of times the endpoint violated HTTP/2 on an HTTP/2 connection.
    h2_violations: u64,
}

/// A pause that a vendor requested for one model.
#[derive(Clone, Copy)]
struct CoolDown {
    why: CoolDownReason,
    since: Instant,
    until: Instant,
    /// The vendor may mean only one customer or one request, so from time to time one request
    /// probes the endpoint.
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
    fn new(vendor: &str, endpoint: &VendorEndpoint, number: u32, known: Option<&Self>) -> Self {
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
            }))
        };
        let health = known.map_or_else(fresh, |known| Arc::clone(&known.health));
        if endpoint.health_check.is_none() {
            lock(&health).passes_checks = true;
        }
        let (vendor, weight, max_concurrent) =
            (vendor.to_owned(), endpoint.weight, endpoint.max_concurrent);
        let track = Self {
            vendor,
            label,
            number,
            weight,
            max_concurrent,
            seed,
            health,
        };
        track.publish_health(&lock(&track.health));
        track
    }

    fn matches(&self, endpoint: &VendorEndpoint, number: u32) -> bool {
        self.label == endpoint.label() && self.number == number
    }

    fn candidate(&self, index: usize) -> Candidate {
        Candidate {
            index,
            weight: self.weight,
            seed: self.seed,
        }
    }

    fn availability(&self, model: &str, now: Instant) -> EndpointAvailability {
        let health = lock(&self.health);
        let is_full = self
            .max_concurrent
            .is_some_and(|most| health.in_flight >= most);
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
            (BreakerPermit::Free | BreakerPermit::Probe, true) => EndpointAvailability::Well,
            (BreakerPermit::Free | BreakerPermit::Probe, false) => EndpointAvailability::Shut {
                passes_checks: false,
                until: None,
            },
            (BreakerPermit::Shut(until), passes_checks) => EndpointAvailability::Shut {
                passes_checks,
                until,
            },
        }
    }

    /// Takes a slot at the endpoint. Returns `None` if a request from before the reload took the
    /// last slot.
    fn lease(
        self: &Arc<Self>,
        index: usize,
        model: &str,
        key: &Arc<VendorKey>,
        now: Instant,
    ) -> Option<EndpointLease> {
        let mut health = lock(&self.health);
        if self
            .max_concurrent
            .is_some_and(|most| health.in_flight >= most)
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
        let (track, key) = (Arc::clone(self), key.lease(now));
        Some(EndpointLease {
            track,
            key,
            index,
            began: now,
            is_probe,
            is_decided: false,
        })
    }

    /// Updates the metrics.
    fn publish_health(&self, health: &EndpointHealth) {
        let is_well = health.passes_checks && health.breaker.state() == BreakerState::Closed;
        METRICS
            .upstream_healthy
            .with_label_values(&[&self.vendor, &self.label])
            .set(i64::from(is_well));
    }

    fn state(&self, now: Instant) -> EndpointState {
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
    track: Arc<MonitoredEndpoint>,
    key: VendorKeyLease,
    pub index: usize,
    began: Instant,
    is_probe: bool,
    is_decided: bool,
}

impl EndpointLease {
    /// Label of the endpoint in metrics.
    pub fn label(&self) -> &str {
        &self.track.label
    }

    /// Makes the gateway use HTTP/1.1 for this endpoint for the rest of the process's life.
    pub fn use_http1(&self) {
        lock(&self.track.health).wants_http1 = true;
    }

    /// Records that the endpoint violated HTTP/2. Pingora alone would then use HTTP/1.1 for the
    /// rest of the process's life. The gateway puts the endpoint's next connection into another
    /// group, for which Pingora negotiates HTTP/2 again.
    pub fn record_h2_violation(&self) {
        let mut health = lock(&self.track.health);
        health.h2_violations = health
            .h2_violations
            .saturating_add(1)
            .min(MAX_H2_VIOLATIONS);
    }

    /// Number that separates the endpoint's connections from those before its last HTTP/2
    /// violation.
    pub fn connection_group(&self) -> u64 {
        lock(&self.track.health).h2_violations
    }

    pub fn uses_http1(&self) -> bool {
        lock(&self.track.health).wants_http1
    }

    /// Records that the endpoint has begun a successful response. Its breaker closes, and its pause
    /// for this model ends. The rest of the response may still fail.
    pub fn record_answer(&self, model: &str) {
        let mut health = lock(&self.track.health);
        health.breaker.record_answer(self.began);
        // A request that began before the pause says nothing about the state after it.
        if health
            .cooling
            .get(model)
            .is_some_and(|cooling| cooling.since <= self.began)
        {
            health.cooling.remove(model);
        }
        self.track.publish_health(&health);
        drop(health);
        self.key.record_accepted();
    }

    /// Records that the vendor refuses the gateway's key or account. Retrying does not help: the
    /// gateway stops using the endpoint at once, and the vendor's other endpoints until a request
    /// there shows that the vendor accepts the key. Returns whether this is new.
    pub fn record_refused_key(&mut self, limits: &Limits, now: Instant) -> bool {
        let rules = BreakerRules::from_limits(limits);
        self.is_decided = true;
        let mut health = lock(&self.track.health);
        if health.breaker.trip(&rules, now) {
            METRICS
                .upstream_opened
                .with_label_values(&[&self.track.vendor, &self.track.label])
                .inc();
        }
        self.track.publish_health(&health);
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

    /// Pauses this model at the endpoint for the time that the vendor asked for.
    pub fn cool_down(
        &self,
        model: &str,
        why: CoolDownReason,
        wanted: Duration,
        limits: &Limits,
        now: Instant,
    ) {
        let wanted = wanted.min(Duration::from_secs(limits.cool_down_max_seconds));
        if wanted.is_zero() {
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
            until: now + wanted,
            probe,
        };
        lock(&self.track.health)
            .cooling
            .insert(model.to_owned(), cooling);
    }

    fn record_verdict(&mut self, judge: impl FnOnce(&mut EndpointHealth) -> bool) {
        if std::mem::replace(&mut self.is_decided, true) {
            return;
        }
        self.key.mark_known();
        let mut health = lock(&self.track.health);
        if judge(&mut health) {
            let (vendor, label) = (&self.track.vendor, &self.track.label);
            METRICS
                .upstream_opened
                .with_label_values(&[vendor, label])
                .inc();
            log::warn!(
                "{vendor} {label}: too many failures; its circuit breaker opens, and the endpoint gets no requests for a while"
            );
        }
        self.track.publish_health(&health);
    }
}

impl Drop for EndpointLease {
    fn drop(&mut self) {
        let mut health = lock(&self.track.health);
        health.in_flight = health.in_flight.saturating_sub(1);
        if self.is_probe && !self.is_decided {
            health.breaker.release_probe(Instant::now());
        }
    }
}
