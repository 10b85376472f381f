//! The key that a vendor's endpoints are asked with: its breaker, and how many requests may find
//! out at once whether the vendor takes it.
//!
//! Must not read a clock, nor know which endpoint a request goes to.

use super::breaker::{Breaker, Pass, Rules};
use super::lock;
use std::sync::{Arc, Mutex};
use std::time::Instant;
use tokio::sync::Notify;

/// Requests that may be under way with a key that no answer has confirmed or refused yet.
pub const MAX_UNCONFIRMED: u32 = 3;

/// One vendor's key, in the config that it is written in.
pub struct VendorKey {
    state: Mutex<KeyState>,
    /// Wakes the requests that wait for the first verdict.
    changed: Notify,
}

struct KeyState {
    breaker: Breaker,
    /// A request has ended with a verdict on the key.
    is_known: bool,
    unconfirmed: u32,
}

impl VendorKey {
    pub fn new(seed: u64) -> Self {
        let state = KeyState {
            breaker: Breaker::new(seed),
            is_known: false,
            unconfirmed: 0,
        };
        Self {
            state: Mutex::new(state),
            changed: Notify::new(),
        }
    }

    pub fn pass(&self, now: Instant) -> Pass {
        lock(&self.state).breaker.pass(now)
    }

    /// Another request may be sent with the key: it was confirmed or refused, or few requests find
    /// out at this moment.
    pub fn has_room(&self) -> bool {
        let state = lock(&self.state);
        state.is_known || state.unconfirmed < MAX_UNCONFIRMED
    }

    /// Waits until [`Self::has_room`]. Another request may take the room first.
    pub async fn wait_for_room(&self) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if self.has_room() {
                return;
            }
            changed.await;
        }
    }

    /// A request is about to be sent with the key.
    pub fn enter(self: &Arc<Self>, now: Instant) -> KeyLease {
        let mut state = lock(&self.state);
        let is_unconfirmed = !state.is_known;
        state.unconfirmed = state.unconfirmed.saturating_add(u32::from(is_unconfirmed));
        let is_probe = state.breaker.pass(now) == Pass::Probe;
        if is_probe {
            state.breaker.probe();
        }
        drop(state);
        KeyLease {
            key: Arc::clone(self),
            began: now,
            is_probe,
            is_unconfirmed,
        }
    }
}

/// A request with a vendor's key. Dropped without a verdict, it leaves the key as it was.
pub struct KeyLease {
    key: Arc<VendorKey>,
    began: Instant,
    is_probe: bool,
    is_unconfirmed: bool,
}

impl KeyLease {
    /// The vendor answers or fails for another reason: nothing keeps other requests from being
    /// sent.
    pub fn mark_known(&self) {
        lock(&self.key.state).is_known = true;
        self.key.changed.notify_waiters();
    }

    /// The vendor takes the key.
    pub fn accepted(&self) {
        lock(&self.key.state).breaker.answers(self.began);
        self.mark_known();
    }

    /// The vendor refuses the key or its account. Whether that is news.
    pub fn refused(&self, rules: &Rules, now: Instant) -> bool {
        let is_news = lock(&self.key.state).breaker.trip(rules, now);
        self.mark_known();
        is_news
    }
}

impl Drop for KeyLease {
    fn drop(&mut self) {
        let mut state = lock(&self.key.state);
        state.unconfirmed = state
            .unconfirmed
            .saturating_sub(u32::from(self.is_unconfirmed));
        if self.is_probe {
            // Unless it was decided meanwhile.
            state.breaker.probe_again(Instant::now());
        }
        drop(state);
        if self.is_unconfirmed {
            self.key.changed.notify_waiters();
        }
    }
}
