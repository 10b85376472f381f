//! The vendors' endpoints as they are at this moment: who is well, who is asked to be left alone,
//! how much runs there; and which one a request goes to.
//!
//! Must not do I/O: the edge tells what became of each request and of each health check. What it
//! knows outlives a reload of the config. Next: `upstreams/breaker.rs`, `upstreams/vendor_key.rs`,
//! `upstreams/budget.rs`, `upstreams/choice.rs`.

pub mod breaker;
mod budget;
pub mod choice;
#[cfg(test)]
mod tests;
mod vendor_key;

use crate::catalog::{Endpoint, Vendor};
use crate::config::Limits;
use crate::telemetry::METRICS;
use breaker::{Breaker, Pass, Rules, State};
use budget::{Allowance, RetryBudget};
use choice::{Candidate, Turns};
use sha2::{Digest as _, Sha256};
use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use vendor_key::{KeyLease, VendorKey};

/// Violations of HTTP/2 by one endpoint after each of which it is asked over HTTP/2 again. After
/// that Pingora's choice stands: HTTP/1.1.
const MAX_H2_VIOLATIONS: u64 = 1_000;

/// All vendors' endpoints.
#[derive(Default)]
pub struct Fleet(Mutex<HashMap<String, Arc<Endpoints>>>);

impl Fleet {
    /// The endpoints of a vendor, with what is known of them from before a reload.
    pub fn of(&self, vendor: &Arc<Vendor>) -> Arc<Endpoints> {
        let mut known = lock(&self.0);
        let before = known.get(&vendor.name);
        if let Some(same) = before.filter(|endpoints| Arc::ptr_eq(&endpoints.vendor, vendor)) {
            return Arc::clone(same);
        }
        let endpoints = Arc::new(Endpoints::new(vendor, before.map(Arc::as_ref)));
        known.insert(vendor.name.clone(), Arc::clone(&endpoints));
        endpoints
    }

    /// Knows these vendors, and no others any more.
    pub fn keep<'v>(&self, vendors: impl Iterator<Item = &'v Arc<Vendor>> + Clone) {
        vendors.clone().for_each(|vendor| drop(self.of(vendor)));
        lock(&self.0).retain(|name, _| vendors.clone().any(|vendor| vendor.name == *name));
    }

    /// How every endpoint is, for an operator.
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

/// One endpoint, as an operator sees it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct EndpointState {
    pub vendor: String,
    pub endpoint: String,
    pub weight: u32,
    pub in_flight: u32,
    /// `None`: any number.
    pub max_concurrent: Option<u32>,
    /// `closed`, `open` or `half_open`.
    pub breaker: &'static str,
    /// Until the breaker lets a request try; 0 where it is not open.
    pub opens_in_seconds: u64,
    /// The active health check passes, or there is none.
    pub passes_checks: bool,
    /// Models that the endpoint asked to be left alone with, and for how long still.
    pub cooling_seconds: Vec<(String, u64)>,
}

/// One vendor's endpoints, in the order of the config.
pub struct Endpoints {
    pub vendor: Arc<Vendor>,
    tracks: Vec<Arc<Track>>,
    /// Held while one is chosen.
    turns: Mutex<Turns>,
    /// Opens when the vendor refuses the gateway's key or account, which all endpoints are asked
    /// with.
    key: Arc<VendorKey>,
    /// How often the vendor may be asked again for what failed.
    budget: Arc<Mutex<RetryBudget>>,
}

/// What a request asks of its vendor's endpoints.
#[derive(Debug, Clone, Copy)]
pub struct Wish<'a> {
    /// The vendor's name of the model.
    pub model: &'a str,
    /// Of its conversation; `None`: whose turn it is.
    pub key: Option<u64>,
    /// Another model may be asked instead: what is shut is not tried for want of better.
    pub has_instead: bool,
    /// It has waited for the first verdict on the vendor's key as long as it may.
    pub has_waited: bool,
    /// Tried before, by index.
    pub tried: &'a [usize],
}

/// Why no endpoint can be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unavailable {
    /// All were tried.
    Tried,
    /// As many requests run as may.
    Full,
    /// No answer says yet whether the vendor takes the key, and other requests find out.
    KeyUnconfirmed,
    /// The vendor has said when to come again.
    Cooling { why: Cooling, left: Duration },
}

/// What the vendor said as it asked to be left alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cooling {
    RateLimited,
    Overloaded,
}

impl Endpoints {
    fn new(vendor: &Arc<Vendor>, before: Option<&Self>) -> Self {
        let mut names = HashMap::new();
        let tracks = vendor.endpoints.iter().map(|endpoint| {
            // The same address may be listed twice.
            let number = names
                .entry(endpoint.label())
                .and_modify(|count| *count += 1)
                .or_insert(0_u32);
            let known = before.and_then(|before| {
                before
                    .tracks
                    .iter()
                    .find(|track| track.is(endpoint, *number))
            });
            Arc::new(Track::new(
                &vendor.name,
                endpoint,
                *number,
                known.map(Arc::as_ref),
            ))
        });
        let tracks: Vec<Arc<Track>> = tracks.collect();
        let same_key =
            before.filter(|before| before.vendor.api_key.reveal() == vendor.api_key.reveal());
        if same_key.is_none() {
            // What was shut for the key before is open to the new one.
            for track in &tracks {
                let mut health = lock(&track.health);
                health.breaker.reset();
                track.show(&health);
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

    /// A request is about to be sent to this vendor for the first time.
    pub fn add_request(&self, now: Instant) {
        lock(&self.budget).add_request(now);
    }

    /// What failed at one of the endpoints may be sent to another: the retry budget has something
    /// left.
    pub fn may_repeat(&self, limits: &Limits, now: Instant) -> bool {
        lock(&self.budget).has_left(Allowance::new(limits), now)
    }

    /// Takes a repeat out of the retry budget. False where nothing is left of it.
    pub fn take_repeat(&self, limits: &Limits, now: Instant) -> bool {
        lock(&self.budget).take(Allowance::new(limits), now)
    }

    /// Chooses an endpoint and counts the request there until the lease is dropped.
    ///
    /// # Errors
    /// There is none to be had.
    pub fn choose(&self, wish: Wish<'_>, now: Instant) -> Result<Lease, Unavailable> {
        let mut turns = lock(&self.turns);
        if wish.has_instead && !wish.has_waited && !self.key.has_room() {
            return Err(Unavailable::KeyUnconfirmed);
        }
        let seen = self.look(&wish, now);
        let candidates = |fit: fn(&Look) -> bool| -> Vec<Candidate> {
            seen.iter()
                .filter(|(_, look)| fit(look))
                .map(|(candidate, _)| *candidate)
                .collect()
        };
        let well = candidates(|look| *look == Look::Well);
        let index = match wish.key {
            Some(key) => choice::by_key(key, &well),
            None => turns.next(&well),
        };
        // Nobody is refused because of a breaker: the one that is soonest tried again is the least
        // bad.
        let least_bad = || {
            let shut = seen.iter().filter_map(|(candidate, look)| match look {
                Look::Shut {
                    passes_checks,
                    until,
                } => Some((!passes_checks, *until, candidate.index)),
                _ => None,
            });
            shut.min().map(|(_, _, index)| index)
        };
        // One request now and then finds out whether the vendor means it still.
        let probe = || {
            let mut due = seen
                .iter()
                .filter(|(_, look)| matches!(look, Look::Cooling { is_due: true, .. }));
            due.next().map(|(candidate, _)| candidate.index)
        };
        let least_bad = || if wish.has_instead { None } else { least_bad() };
        let chosen = index
            .or_else(probe)
            .or_else(least_bad)
            .and_then(|index| self.tracks.get(index).map(|track| (index, track)));
        match chosen {
            Some((index, track)) => track
                .enter(index, wish.model, &self.key, now)
                .ok_or(Unavailable::Full),
            None => Err(why_none(seen.iter().map(|(_, look)| look))),
        }
    }

    /// Waits, no longer than `limit`, until the vendor has taken or refused the key, or one of the
    /// requests that find out is gone.
    pub async fn wait_for_key(&self, limit: Duration) {
        let _ = tokio::time::timeout(limit, self.key.wait_for_room()).await;
    }

    /// Another endpoint could be had.
    pub fn has(&self, wish: Wish<'_>, now: Instant) -> bool {
        let may = |look: &Look| {
            matches!(
                look,
                Look::Well | Look::Shut { .. } | Look::Cooling { is_due: true, .. }
            )
        };
        self.look(&wish, now).iter().any(|(_, look)| may(look))
    }

    fn look(&self, wish: &Wish<'_>, now: Instant) -> Vec<(Candidate, Look)> {
        let all = self
            .tracks
            .iter()
            .enumerate()
            .map(|(index, track)| track.candidate(index));
        let key = self.key.pass(now);
        all.zip(&self.tracks)
            .filter(|(candidate, _)| !wish.tried.contains(&candidate.index))
            .map(|(candidate, track)| (candidate, track.look(wish.model, now).with_key(key)))
            .collect()
    }

    /// What the active health check of an endpoint came to.
    pub fn set_passes_checks(&self, index: usize, passes: bool) {
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
        track.show(&health);
    }
}

/// What keeps the most hopeful of those from being chosen.
fn why_none<'a>(looks: impl Iterator<Item = &'a Look>) -> Unavailable {
    let mut found = Unavailable::Tried;
    for look in looks {
        found = match (found, look) {
            (_, Look::Full) => return Unavailable::Full,
            (Unavailable::Cooling { left, .. }, Look::Cooling { left: more, .. })
                if left <= *more =>
            {
                found
            }
            (_, Look::Cooling { why, left, .. }) => Unavailable::Cooling {
                why: *why,
                left: *left,
            },
            _ => found,
        };
    }
    found
}

/// How an endpoint looks to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Look {
    Well,
    /// By its breaker or its health check; and until when, if that is known.
    Shut {
        passes_checks: bool,
        until: Option<Instant>,
    },
    Full,
    Cooling {
        why: Cooling,
        left: Duration,
        /// A request may try all the same.
        is_due: bool,
    },
}

impl Look {
    /// The same where the vendor's key may be shut as well.
    fn with_key(self, key: Pass) -> Self {
        let Pass::Shut(key_until) = key else {
            return self;
        };
        match self {
            Look::Well => Look::Shut {
                passes_checks: true,
                until: key_until,
            },
            Look::Shut {
                passes_checks,
                until,
            } => Look::Shut {
                passes_checks,
                until: until.max(key_until),
            },
            Look::Full | Look::Cooling { .. } => self,
        }
    }
}

/// What is known of one endpoint.
struct Track {
    vendor: String,
    label: String,
    number: u32,
    weight: u32,
    max_concurrent: Option<u32>,
    seed: u64,
    /// Shared with the same endpoint of the config before.
    health: Arc<Mutex<Health>>,
}

struct Health {
    breaker: Breaker,
    in_flight: u32,
    passes_checks: bool,
    /// By the vendor's name of the model: their number is bounded by the config's.
    cooling: HashMap<String, CoolDown>,
    /// It has reset a stream with `HTTP_1_1_REQUIRED`.
    wants_http1: bool,
    /// How often it has sent what is not HTTP/2 on such a connection.
    h2_violations: u64,
}

/// A vendor has asked to be left alone with a model.
#[derive(Clone, Copy)]
struct CoolDown {
    why: Cooling,
    since: Instant,
    until: Instant,
    /// What it says is of its own wish, of one customer or of one request: so from time to time one
    /// request tries.
    probe: Option<Probe>,
}

#[derive(Clone, Copy)]
struct Probe {
    every: Duration,
    next: Instant,
}

impl CoolDown {
    fn is_due(&self, now: Instant) -> bool {
        self.probe.is_some_and(|probe| probe.next <= now)
    }
}

impl Track {
    fn new(vendor: &str, endpoint: &Endpoint, number: u32, known: Option<&Self>) -> Self {
        let label = endpoint.label();
        let seed = Sha256::digest(format!("{label} {number}"))
            .first_chunk::<8>()
            .map_or(0, |half| u64::from_be_bytes(*half));
        let fresh = || {
            let breaker = Breaker::new(RandomState::new().hash_one(&label));
            Arc::new(Mutex::new(Health {
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
        track.show(&lock(&track.health));
        track
    }

    fn is(&self, endpoint: &Endpoint, number: u32) -> bool {
        self.label == endpoint.label() && self.number == number
    }

    fn candidate(&self, index: usize) -> Candidate {
        Candidate {
            index,
            weight: self.weight,
            seed: self.seed,
        }
    }

    fn look(&self, model: &str, now: Instant) -> Look {
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
            return Look::Cooling {
                why: cooling.why,
                left,
                is_due,
            };
        }
        if is_full {
            return Look::Full;
        }
        match (health.breaker.pass(now), health.passes_checks) {
            (Pass::Free | Pass::Probe, true) => Look::Well,
            (Pass::Free | Pass::Probe, false) => Look::Shut {
                passes_checks: false,
                until: None,
            },
            (Pass::Shut(until), passes_checks) => Look::Shut {
                passes_checks,
                until,
            },
        }
    }

    /// `None`: a request that came under the config before has taken the last place.
    fn enter(
        self: &Arc<Self>,
        index: usize,
        model: &str,
        key: &Arc<VendorKey>,
        now: Instant,
    ) -> Option<Lease> {
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
        let is_probe = health.breaker.pass(now) == Pass::Probe;
        if is_probe {
            health.breaker.probe();
        }
        drop(health);
        let (track, key) = (Arc::clone(self), key.enter(now));
        Some(Lease {
            track,
            key,
            index,
            began: now,
            is_probe,
            is_decided: false,
        })
    }

    /// Tells the metrics.
    fn show(&self, health: &Health) {
        let is_well = health.passes_checks && health.breaker.state() == State::Closed;
        METRICS
            .upstream_healthy
            .with_label_values(&[&self.vendor, &self.label])
            .set(i64::from(is_well));
    }

    fn state(&self, now: Instant) -> EndpointState {
        let health = lock(&self.health);
        let (breaker, until) = match health.breaker.state() {
            State::Closed => ("closed", None),
            State::Open(until) => ("open", Some(until)),
            State::HalfOpen => ("half_open", None),
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

impl Drop for Track {
    fn drop(&mut self) {
        // Where a reload keeps the endpoint, its successor shares what is known of it.
        if Arc::strong_count(&self.health) == 1 {
            let _ = METRICS
                .upstream_healthy
                .remove_label_values(&[&self.vendor, &self.label]);
        }
    }
}

/// A request at an endpoint. It counts there until this is dropped; the first verdict stands.
pub struct Lease {
    track: Arc<Track>,
    key: KeyLease,
    pub index: usize,
    began: Instant,
    is_probe: bool,
    is_decided: bool,
}

impl Lease {
    /// The endpoint's name in metrics.
    pub fn label(&self) -> &str {
        &self.track.label
    }

    /// The endpoint is asked over HTTP/1.1 from now on, for as long as this process lives.
    pub fn use_http1(&self) {
        lock(&self.track.health).wants_http1 = true;
    }

    /// The endpoint has broken HTTP/2's rules. Pingora would ask it over HTTP/1.1 from then on, for
    /// as long as the process lives; its next connection is of another group, for which HTTP/2 is
    /// negotiated anew.
    pub fn violated_h2(&self) {
        let mut health = lock(&self.track.health);
        health.h2_violations = health
            .h2_violations
            .saturating_add(1)
            .min(MAX_H2_VIOLATIONS);
    }

    /// Tells the endpoint's connections from those before it last broke HTTP/2's rules.
    pub fn connection_group(&self) -> u64 {
        lock(&self.track.health).h2_violations
    }

    pub fn uses_http1(&self) -> bool {
        lock(&self.track.health).wants_http1
    }

    /// The endpoint has begun to answer well: one that was shut, or cooling down for the model, is
    /// open to all. What becomes of the answer is open.
    pub fn answers(&self, model: &str) {
        let mut health = lock(&self.track.health);
        health.breaker.answers(self.began);
        // What began before the vendor asked to be left alone says nothing of it since.
        if health
            .cooling
            .get(model)
            .is_some_and(|cooling| cooling.since <= self.began)
        {
            health.cooling.remove(model);
        }
        self.track.show(&health);
        drop(health);
        self.key.accepted();
    }

    /// The vendor refuses the gateway's key or account. That does not pass by asking: the endpoint
    /// is left alone at once, and so are the vendor's others until a request finds the key good
    /// there. Whether that is news.
    pub fn refused_key(&mut self, limits: &Limits, now: Instant) -> bool {
        let rules = Rules::of(limits);
        self.is_decided = true;
        let mut health = lock(&self.track.health);
        if health.breaker.trip(&rules, now) {
            METRICS
                .upstream_opened
                .with_label_values(&[&self.track.vendor, &self.track.label])
                .inc();
        }
        self.track.show(&health);
        drop(health);
        self.key.refused(&rules, now)
    }

    pub fn succeeded(&mut self, limits: &Limits, now: Instant) {
        let began = self.began;
        self.decide(|health| {
            health.breaker.succeeded(&Rules::of(limits), began, now);
            false
        });
    }

    pub fn failed(&mut self, limits: &Limits, now: Instant) {
        self.decide(|health| health.breaker.failed(&Rules::of(limits), now));
    }

    /// The vendor wants to be left alone with this model for so long.
    pub fn cool(&self, model: &str, why: Cooling, wanted: Duration, limits: &Limits, now: Instant) {
        let wanted = wanted.min(Duration::from_secs(limits.cool_down_max_seconds));
        if wanted.is_zero() {
            return;
        }
        let every = Duration::from_secs(limits.cool_down_probe_seconds);
        let probe = (!every.is_zero()).then_some(Probe {
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

    fn decide(&mut self, judge: impl FnOnce(&mut Health) -> bool) {
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
            log::warn!("{vendor} {label}: too many failures; left alone for a while");
        }
        self.track.show(&health);
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut health = lock(&self.track.health);
        health.in_flight = health.in_flight.saturating_sub(1);
        if self.is_probe && !self.is_decided {
            health.breaker.probe_again(Instant::now());
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
