//! Represents the gateway's key for one vendor, with its circuit breaker, and a limit on the
//! requests that test at a time whether the vendor accepts the key.
//!
//! This file must not read a clock or depend on the endpoint of a request.

use super::breaker::{BreakerPermit, BreakerRules, CircuitBreaker};
use super::lock::lock;
use std::sync::{Arc, Mutex};
use std::time::Instant;
use tokio::sync::Notify;

/// Maximum number of running requests with a key that no response has confirmed or refused yet.
pub const MAX_UNCONFIRMED: u32 = 3;

/// One vendor's key in one version of the config.
pub struct VendorKey {
    state: Mutex<VendorKeyState>,
    /// Wakes the requests that wait for the first verdict.
    changed: Notify,
}

struct VendorKeyState {
    breaker: CircuitBreaker,
    /// True if any request has ended with a verdict on the key.
    is_known: bool,
    unconfirmed: u32,
}

impl VendorKey {
    pub fn new(seed: u64) -> Self {
        let state = VendorKeyState {
            breaker: CircuitBreaker::new(seed),
            is_known: false,
            unconfirmed: 0,
        };
        Self {
            state: Mutex::new(state),
            changed: Notify::new(),
        }
    }

    pub fn permit(&self, now: Instant) -> BreakerPermit {
        lock(&self.state).breaker.permit(now)
    }

    /// Returns whether another request may use the key, because the vendor has confirmed or refused
    /// it, or fewer than [`MAX_UNCONFIRMED`] requests are testing it.
    pub fn has_capacity(&self) -> bool {
        let state = lock(&self.state);
        state.is_known || state.unconfirmed < MAX_UNCONFIRMED
    }

    /// Waits until [`Self::has_capacity`] returns true. Another request may take the slot first.
    pub async fn wait_for_capacity(&self) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if self.has_capacity() {
                return;
            }
            changed.await;
        }
    }

    /// Registers a request that the gateway is about to send with the key.
    pub fn lease(self: &Arc<Self>, now: Instant) -> VendorKeyLease {
        let mut state = lock(&self.state);
        let is_unconfirmed = !state.is_known;
        state.unconfirmed = state.unconfirmed.saturating_add(u32::from(is_unconfirmed));
        let is_probe = state.breaker.permit(now) == BreakerPermit::Probe;
        if is_probe {
            state.breaker.begin_probe();
        }
        drop(state);
        VendorKeyLease {
            key: Arc::clone(self),
            began: now,
            is_probe,
            is_unconfirmed,
        }
    }
}

/// The use of a vendor's key by one request. A lease that is dropped without a verdict does not
/// change the state of the key.
pub struct VendorKeyLease {
    key: Arc<VendorKey>,
    began: Instant,
    is_probe: bool,
    is_unconfirmed: bool,
}

impl VendorKeyLease {
    /// Records that the vendor responded or failed for a reason other than the key, so that other
    /// requests may use the key.
    pub fn mark_known(&self) {
        lock(&self.key.state).is_known = true;
        self.key.changed.notify_waiters();
    }

    pub fn record_accepted(&self) {
        lock(&self.key.state).breaker.record_response(self.began);
        self.mark_known();
    }

    /// Records that the vendor refuses the key or its account. Returns whether the refusal is new.
    pub fn record_refused(&self, rules: &BreakerRules, now: Instant) -> bool {
        let has_opened = lock(&self.key.state).breaker.trip(rules, now);
        self.mark_known();
        has_opened
    }
}

impl Drop for VendorKeyLease {
    fn drop(&mut self) {
        let mut state = lock(&self.key.state);
        state.unconfirmed = state
            .unconfirmed
            .saturating_sub(u32::from(self.is_unconfirmed));
        if self.is_probe {
            // This has no effect if another request has decided meanwhile.
            state.breaker.release_probe(Instant::now());
        }
        drop(state);
        if self.is_unconfirmed {
            self.key.changed.notify_waiters();
        }
    }
}
