//! Holds the current state of the vendors' endpoints (their health, pauses and running requests),
//! and the choice of an endpoint for a request.
//!
//! This module must not do I/O: the edge reports the outcome of each request and each health check.
//! The state survives a reload of the config. Next: `upstreams/endpoint.rs` (one endpoint),
//! `upstreams/breaker.rs`, `upstreams/vendor_key.rs`, `upstreams/budget.rs`,
//! `upstreams/load_balancer.rs`, `upstreams/failures.rs` (their lines in the log).

pub mod breaker;
mod budget;
mod endpoint;
mod failures;
mod learned;
pub mod load_balancer;
mod lock;
mod recent;
#[cfg(test)]
mod tests;
mod vendor_key;

use budget::{RetryAllowance, RetryBudget};
use config::Limits;
use config::catalog::CatalogVendor;
pub use endpoint::{CoolDownReason, CountedFailure, EndpointLease, EndpointState};
use endpoint::{EndpointAvailability, MonitoredEndpoint};
use failures::FailureLog;
pub use failures::{LastFailure, MAX_WORDS_CHARS, VendorFailure, VendorFailureCause};
use learned::LearnedMembers;
use load_balancer::{Candidate, SmoothRoundRobin};
use lock::lock;
use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use vendor_key::VendorKey;

#[derive(Default)]
pub struct EndpointRegistry(Mutex<HashMap<String, Arc<EndpointPool>>>);

impl EndpointRegistry {
    /// Returns the endpoints of a vendor, with the state from before a reload.
    pub fn pool_for(&self, vendor: &Arc<CatalogVendor>) -> Arc<EndpointPool> {
        let mut known = lock(&self.0);
        let before = known.get(&vendor.name);
        if let Some(same) = before.filter(|pool| Arc::ptr_eq(&pool.vendor, vendor)) {
            return Arc::clone(same);
        }
        let pool = Arc::new(EndpointPool::new(vendor, before.map(Arc::as_ref)));
        known.insert(vendor.name.clone(), Arc::clone(&pool));
        pool
    }

    /// Keeps the state of these vendors, and drops that of all others.
    pub fn retain_vendors<'v>(
        &self,
        vendors: impl Iterator<Item = &'v Arc<CatalogVendor>> + Clone,
    ) {
        vendors
            .clone()
            .for_each(|vendor| drop(self.pool_for(vendor)));
        lock(&self.0).retain(|name, _| vendors.clone().any(|vendor| vendor.name == *name));
    }

    /// Returns the state of every endpoint for an operator.
    pub fn states(&self, now: Instant) -> Vec<EndpointState> {
        let all: Vec<_> = lock(&self.0).values().cloned().collect();
        let mut states: Vec<_> = all
            .iter()
            .flat_map(|pool| {
                let endpoints = pool.endpoints.iter();
                endpoints.map(|endpoint| endpoint.state(&pool.key, now))
            })
            .collect();
        states.sort_by(|one, other| {
            (&one.vendor, &one.endpoint).cmp(&(&other.vendor, &other.endpoint))
        });
        states
    }

    /// Logs the failures of the vendors, with one line for each vendor, cause and minute. The
    /// caller must call this method every second. With `all`, it also logs the failures whose line
    /// is not due, because the process ends.
    pub fn log_failures(&self, now: Instant, all: bool) {
        let pools: Vec<_> = lock(&self.0).values().cloned().collect();
        for pool in pools {
            let kind = pool.vendor.name.as_str();
            for line in pool.failures.take_lines(now, all) {
                log::warn!(kind; "vendor `{kind}`: {line}");
            }
        }
    }
}

/// Minimum time between two log lines about unrecognised answers of one vendor.
const UNKNOWN_FORM_LOG_INTERVAL: Duration = Duration::from_secs(60);

/// One vendor's endpoints, in the order of the config.
pub struct EndpointPool {
    pub vendor: Arc<CatalogVendor>,
    endpoints: Vec<Arc<MonitoredEndpoint>>,
    /// State of the round robin. The lock is held during the choice of an endpoint.
    turns: Mutex<SmoothRoundRobin>,
    /// Breaker that opens when the vendor refuses the gateway's key or account. All endpoints of
    /// the vendor use the same key.
    key: Arc<VendorKey>,
    /// Limit on retries of failed requests at this vendor.
    budget: Arc<Mutex<RetryBudget>>,
    learned: Arc<Mutex<LearnedMembers>>,
    failures: Arc<FailureLog>,
    /// Time of the last log line about an unrecognised answer.
    unknown_form_logged: Mutex<Option<Instant>>,
}

/// The requirements of a request on its vendor's endpoints.
#[derive(Debug, Clone, Copy)]
pub struct EndpointQuery<'a> {
    /// The vendor's name for the model.
    pub model: &'a str,
    /// Hash of the conversation, which selects the endpoint. `None` uses weighted round robin.
    pub key: Option<u64>,
    /// True if another model can answer instead. If so, an endpoint whose breaker is open is not
    /// used.
    pub has_instead: bool,
    /// True if the request has waited its maximum time for the first verdict on the vendor's key.
    pub has_waited: bool,
    /// Indexes of the endpoints that were already tried.
    pub tried: &'a [usize],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndpointUnavailable {
    /// All endpoints were tried.
    Tried,
    /// The maximum number of requests is running.
    Full,
    /// No response has confirmed or refused the vendor's key yet, and other requests are testing
    /// it.
    KeyUnconfirmed,
    /// The vendor has stated when to retry.
    Cooling { why: CoolDownReason, left: Duration },
}

impl EndpointPool {
    fn new(vendor: &Arc<CatalogVendor>, before: Option<&Self>) -> Self {
        let mut names = HashMap::new();
        let failures = before.map_or_else(Arc::default, |before| Arc::clone(&before.failures));
        let endpoints = vendor.endpoints.iter().map(|endpoint| {
            // The config may list the same address twice.
            let number = names
                .entry(endpoint.label())
                .and_modify(|count| *count += 1)
                .or_insert(0_u32);
            let known = before.and_then(|before| {
                before
                    .endpoints
                    .iter()
                    .find(|earlier| earlier.matches(endpoint, *number))
            });
            Arc::new(MonitoredEndpoint::new(
                &vendor.name,
                endpoint,
                *number,
                known.map(Arc::as_ref),
                &failures,
            ))
        });
        let endpoints: Vec<Arc<MonitoredEndpoint>> = endpoints.collect();
        let same_key =
            before.filter(|before| before.vendor.api_key.reveal() == vendor.api_key.reveal());
        if same_key.is_none() {
            // The key has changed, so endpoints that the old key closed are open to the new key.
            for endpoint in &endpoints {
                endpoint.reset_breaker();
            }
        }
        let fresh = || Arc::new(VendorKey::new(RandomState::new().hash_one(&vendor.name)));
        let key = same_key.map_or_else(fresh, |before| Arc::clone(&before.key));
        let budget = before.map_or_else(Arc::default, |before| Arc::clone(&before.budget));
        let learned = before.map_or_else(Arc::default, |before| Arc::clone(&before.learned));
        Self {
            vendor: Arc::clone(vendor),
            endpoints,
            turns: Mutex::default(),
            key,
            budget,
            learned,
            failures,
            unknown_form_logged: Mutex::default(),
        }
    }

    /// Counts a request that the gateway sends to this vendor for the first time.
    pub fn count_request(&self, now: Instant) {
        lock(&self.budget).count_request(now);
    }

    /// Returns whether the retry budget allows to send a failed request to another endpoint.
    pub fn has_retry_budget(&self, limits: &Limits, now: Instant) -> bool {
        lock(&self.budget).has_left(RetryAllowance::new(limits, self.endpoints.len()), now)
    }

    /// Takes one retry from the budget. Returns false if the budget is exhausted.
    pub fn take_retry(&self, limits: &Limits, now: Instant) -> bool {
        lock(&self.budget).try_take(RetryAllowance::new(limits, self.endpoints.len()), now)
    }

    /// Records that the server of this model refuses the member. Returns whether the refusal was
    /// unknown.
    pub fn learn_refusal(&self, upstream_model: &str, member: &'static str, now: Instant) -> bool {
        lock(&self.learned).record(upstream_model, member, now)
    }

    /// Returns the members that the server of this model has recently refused.
    pub fn learned_refusals(&self, upstream_model: &str, now: Instant) -> Vec<&'static str> {
        lock(&self.learned).of_model(upstream_model, now)
    }

    /// Returns whether to log an unrecognised answer of this vendor. Such lines are rare, because
    /// all answers of a vendor may be unrecognised.
    pub fn logs_unknown_form(&self, now: Instant) -> bool {
        let mut logged = lock(&self.unknown_form_logged);
        let is_due = logged.is_none_or(|at| now.duration_since(at) >= UNKNOWN_FORM_LOG_INTERVAL);
        if is_due {
            *logged = Some(now);
        }
        is_due
    }

    /// Chooses an endpoint, which counts the request until the lease is dropped.
    ///
    /// # Errors
    /// Returns the reason if no endpoint is available.
    pub fn choose(
        &self,
        query: EndpointQuery<'_>,
        now: Instant,
    ) -> Result<EndpointLease, EndpointUnavailable> {
        let mut turns = lock(&self.turns);
        if query.has_instead && !query.has_waited && !self.key.has_capacity() {
            return Err(EndpointUnavailable::KeyUnconfirmed);
        }
        let states = self.availability(&query, now);
        let candidates = |matches: fn(&EndpointAvailability) -> bool| -> Vec<Candidate> {
            states
                .iter()
                .filter(|(_, availability)| matches(availability))
                .map(|(candidate, _)| *candidate)
                .collect()
        };
        let available = candidates(|availability| *availability == EndpointAvailability::Available);
        let index = match query.key {
            Some(key) => load_balancer::select_by_hash(key, &available),
            None => turns.next(&available),
        };
        // The gateway never refuses a request because of a breaker. It uses the endpoint whose
        // breaker allows a test soonest.
        let soonest = || {
            let blocked =
                states
                    .iter()
                    .filter_map(|(candidate, availability)| match availability {
                        EndpointAvailability::Blocked {
                            passes_checks,
                            until,
                        } => Some((!passes_checks, *until, candidate.index)),
                        _ => None,
                    });
            blocked.min().map(|(_, _, index)| index)
        };
        // From time to time one request probes whether the vendor still requires a pause.
        let probe = || {
            let mut due = states.iter().filter(|(_, availability)| {
                matches!(
                    availability,
                    EndpointAvailability::Cooling { is_due: true, .. }
                )
            });
            due.next().map(|(candidate, _)| candidate.index)
        };
        let soonest = || if query.has_instead { None } else { soonest() };
        let chosen = index
            .or_else(probe)
            .or_else(soonest)
            .and_then(|index| self.endpoints.get(index).map(|endpoint| (index, endpoint)));
        match chosen {
            Some((index, endpoint)) => endpoint
                .lease(index, query.model, &self.key, now)
                .ok_or(EndpointUnavailable::Full),
            None => Err(unavailable_reason(
                states.iter().map(|(_, availability)| availability),
            )),
        }
    }

    /// Waits at most `limit` until the vendor has accepted or refused the key, or one of the
    /// requests that test it has ended.
    pub async fn wait_for_key(&self, limit: Duration) {
        let _ = tokio::time::timeout(limit, self.key.wait_for_capacity()).await;
    }

    pub fn has_available(&self, query: EndpointQuery<'_>, now: Instant) -> bool {
        let is_usable = |availability: &EndpointAvailability| {
            matches!(
                availability,
                EndpointAvailability::Available
                    | EndpointAvailability::Blocked { .. }
                    | EndpointAvailability::Cooling { is_due: true, .. }
            )
        };
        self.availability(&query, now)
            .iter()
            .any(|(_, availability)| is_usable(availability))
    }

    fn availability(
        &self,
        query: &EndpointQuery<'_>,
        now: Instant,
    ) -> Vec<(Candidate, EndpointAvailability)> {
        let all = self
            .endpoints
            .iter()
            .enumerate()
            .map(|(index, endpoint)| endpoint.candidate(index));
        let key = self.key.permit(now);
        all.zip(&self.endpoints)
            .filter(|(candidate, _)| !query.tried.contains(&candidate.index))
            .map(|(candidate, endpoint)| {
                (
                    candidate,
                    endpoint.availability(query.model, now).with_key(key),
                )
            })
            .collect()
    }

    pub fn set_health_check_result(&self, index: usize, passes: bool) {
        if let Some(endpoint) = self.endpoints.get(index) {
            endpoint.set_health_check_result(passes);
        }
    }
}

/// Returns the reason why the endpoint that is closest to being available cannot be chosen.
fn unavailable_reason<'a>(
    all: impl Iterator<Item = &'a EndpointAvailability>,
) -> EndpointUnavailable {
    let mut found = EndpointUnavailable::Tried;
    for availability in all {
        found = match (found, availability) {
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
