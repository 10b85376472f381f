//! Reads API keys from the shared store, with a small cache that removes revoked keys at once.
//!
//! A cached key is valid for at most thirty seconds, and only while this edge receives revocations.
//! Without that connection the edge looks every key up again. Unknown keys are not cached: the
//! next request may find the key: the edge asks the store before it refuses a key, and only limits
//! the rate of such look-ups (`shared_credit/lookup_budget.rs`). This file must not depend on HTTP.

use super::lookup_budget::LookupBudget;
use crate::shared_credit::redis::SharedStore;
use accounts::ApiKeyStatus;
use accounts::{AuthError, KeyIdentity, KeyMember, Principal};
use accounts::{KeySettings, RateSettings};
use base::telemetry::METRICS;
use ledger::StoreError;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

/// Maximum number of cached keys. One more clears the cache.
const MAX_CACHED_KEYS: usize = 100_000;
const CACHE_TTL: Duration = Duration::from_secs(30);
const MIN_RECONNECT_DELAY: Duration = Duration::from_millis(50);
const MAX_RECONNECT_DELAY: Duration = Duration::from_secs(2);
/// Maximum number of revocations whose delay is measured at once. Further ones are not measured.
const MAX_MEASUREMENTS: usize = 8;

/// Authenticates keys by the shared store. Cloning it is cheap.
#[derive(Clone)]
pub struct SharedKeys {
    store: SharedStore,
    cache: Arc<KeyCache>,
    lookups: Arc<LookupBudget>,
}

#[derive(Default)]
struct KeyCache {
    /// Known keys by the hash of the key, in hex.
    known: Mutex<HashMap<String, (Instant, Principal)>>,
    /// Number of removals from the cache because of a message.
    generation: AtomicU64,
    /// True if revocations are received.
    listening: AtomicBool,
    measured: RevocationDelayMeter,
}

/// Permits for measurements.
struct RevocationDelayMeter(Arc<Semaphore>);

impl Default for RevocationDelayMeter {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MAX_MEASUREMENTS)))
    }
}

impl RevocationDelayMeter {
    /// Measures the time that a revocation took to reach this edge. Only the store's clock is used,
    /// because the local clock can be wrong.
    fn record_delay(&self, store: &SharedStore, revoked_at_ms: Option<i64>) {
        let (Some(revoked_at_ms), Ok(permit)) =
            (revoked_at_ms, Arc::clone(&self.0).try_acquire_owned())
        else {
            return;
        };
        let store = store.clone();
        tokio::spawn(async move {
            if let Ok(now_ms) = store.now_ms().await {
                let took = u64::try_from(now_ms.saturating_sub(revoked_at_ms)).unwrap_or(0);
                METRICS
                    .revocation_seconds
                    .observe(Duration::from_millis(took).as_secs_f64());
            }
            drop(permit);
        });
    }
}

impl SharedKeys {
    /// Starts the thread that receives revocations. `store` is the connection for look-ups, and
    /// `subscription` a separate connection for the thread. `lookups_per_second` is the maximum
    /// rate of look-ups of unknown keys.
    ///
    /// # Errors
    /// Returns an error if the thread cannot be started.
    pub fn start(
        store: SharedStore,
        subscription: SharedStore,
        lookups_per_second: u64,
    ) -> Result<Self, StoreError> {
        let cache = Arc::new(KeyCache::default());
        let failed = |source| StoreError::io("start the key watch", source);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(failed)?;
        let listener = Arc::clone(&cache);
        let listen = move || runtime.block_on(listener.watch_revocations(&subscription));
        std::thread::Builder::new()
            .name("key-watch".into())
            .spawn(listen)
            .map_err(failed)?;
        let lookups = Arc::new(LookupBudget::new(lookups_per_second));
        Ok(Self {
            store,
            cache,
            lookups,
        })
    }

    /// Changes the maximum rate of look-ups of unknown keys.
    pub fn set_lookup_rate(&self, per_second: u64) {
        self.lookups.set_rate(per_second);
    }

    /// Returns the fields of a key in the store. The map is empty if no key has this hash.
    async fn look_up(&self, hash: &str) -> Result<HashMap<String, String>, StoreError> {
        let fields = self.store.keys().api_key(hash).await?;
        if fields.is_empty() && !self.store.keys().has_all_keys().await? {
            let lost = "cannot look up a key: the shared store lost its keys; the sidecar must write them again";
            return Err(StoreError::Unusable(lost.into()));
        }
        Ok(fields)
    }

    /// Authenticates a key; see [`accounts::ApiKeys::authenticate`]. `now_ms` is a time of this
    /// machine's clock, but the store's clock decides whether the key has expired.
    ///
    /// # Errors
    /// Returns the reason why the key is refused.
    pub async fn authenticate(&self, key: &str, now_ms: i64) -> Result<Principal, AuthError> {
        if !accounts::parse_key(key) {
            return Err(AuthError::BadKey);
        }
        let hash: String = accounts::hash_key(key)
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        if let Some(principal) = self.cache.find(&hash) {
            return principal.check_expiry(self.store.clock().to_store_time(now_ms));
        }
        // A key that was valid before is always looked up again, so that a flood of made-up keys
        // does not affect it.
        let is_counted = !self.cache.has_seen(&hash);
        if is_counted && !self.lookups.try_take(Instant::now()) {
            return Err(AuthError::TooManyLookups);
        }
        let generation = self.cache.generation.load(Ordering::Acquire);
        let looked_up = self.look_up(&hash).await;
        // While the store is unreachable or loads its data, an edge cannot know which keys are made
        // up.
        if is_counted && !looked_up.as_ref().is_ok_and(HashMap::is_empty) {
            self.lookups.give_back();
        }
        let fields = looked_up.map_err(AuthError::Unavailable)?;
        let field = |name: &str| fields.get(name).map(String::as_str).unwrap_or_default();
        if (field("status"), field("account_status")) != ("active", "active")
            && self.cache.lock_entries().remove(&hash).is_some()
        {
            // This edge did not receive the revocation.
            self.cache
                .measured
                .record_delay(&self.store, field("closed_at").parse().ok());
        }
        let identity = || KeyIdentity {
            account_id: field("account").into(),
            key_id: field("key_id").into(),
            key_shown: field("shown").into(),
        };
        match ApiKeyStatus::from_name(field("status")) {
            ApiKeyStatus::Revoked => Err(AuthError::BadKey),
            ApiKeyStatus::Disabled => Err(AuthError::KeyDisabled(identity())),
            ApiKeyStatus::Active if field("account_status") != "active" => {
                Err(AuthError::AccountSuspended(identity()))
            }
            ApiKeyStatus::Active => {
                let principal = Principal {
                    account_id: field("account").into(),
                    key_id: field("key_id").into(),
                    key_shown: field("shown").into(),
                    settings: KeySettings::decode(field("settings"))
                        .map_err(AuthError::Unavailable)?
                        .into(),
                    account_rates: RateSettings::decode(field("account_rates"))
                        .map_err(AuthError::Unavailable)?,
                    member: KeyMember::decode(field("member"), field("budget"), field("models"))
                        .map_err(AuthError::Unavailable)?,
                };
                self.cache.insert(hash, principal.clone(), generation);
                principal.check_expiry(self.store.clock().to_store_time(now_ms))
            }
        }
    }
}

impl KeyCache {
    fn lock_entries(&self) -> MutexGuard<'_, HashMap<String, (Instant, Principal)>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, hash: &str) -> Option<Principal> {
        if !self.listening.load(Ordering::Acquire) {
            return None;
        }
        self.lock_entries()
            .get(hash)
            .filter(|(since, _)| since.elapsed() < CACHE_TTL)
            .map(|(_, principal)| principal.clone())
    }

    /// Returns whether the key was valid at its last look-up, however long ago that was.
    fn has_seen(&self, hash: &str) -> bool {
        self.lock_entries().contains_key(hash)
    }

    /// Inserts a key, unless a key was removed since `generation` was read. The look-up may then be
    /// older than the removal.
    fn insert(&self, hash: String, principal: Principal, generation: u64) {
        let mut known = self.lock_entries();
        if self.generation.load(Ordering::Acquire) != generation {
            return;
        }
        if known.len() >= MAX_CACHED_KEYS {
            known.clear();
        }
        known.insert(hash, (Instant::now(), principal));
    }

    /// Removes a key. Returns whether the key was in the cache.
    fn remove(&self, hash: &str) -> bool {
        let mut known = self.lock_entries();
        self.generation.fetch_add(1, Ordering::AcqRel);
        known.remove(hash).is_some()
    }

    fn clear(&self) {
        let mut known = self.lock_entries();
        self.generation.fetch_add(1, Ordering::AcqRel);
        known.clear();
    }

    async fn watch_revocations(&self, store: &SharedStore) {
        let mut wait = MIN_RECONNECT_DELAY;
        loop {
            // The cache may contain keys that were revoked while this edge received no messages.
            let ready = || {
                self.clear();
                self.listening.store(true, Ordering::Release);
            };
            let keys = store.keys();
            let outcome = keys.watch_keys(ready, |hash, revoked_at_ms| {
                if self.remove(hash) {
                    self.measured.record_delay(store, revoked_at_ms);
                }
            });
            let outcome = outcome.await;
            if self.listening.swap(false, Ordering::AcqRel) {
                wait = MIN_RECONNECT_DELAY;
            }
            if let Err(error) = outcome {
                log::warn!("{error}; retrying in {} ms", wait.as_millis());
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(MAX_RECONNECT_DELAY);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn principal() -> Principal {
        let (settings, account_rates, member) = Default::default();
        let (account_id, key_id, key_shown) = ("acct_1".into(), "key_1".into(), "gw-sk-…".into());
        Principal {
            account_id,
            key_id,
            key_shown,
            settings,
            account_rates,
            member,
        }
    }

    #[test]
    fn the_cache_holds_so_many_keys_and_then_begins_anew() {
        let cache = KeyCache::default();
        cache.listening.store(true, Ordering::Release);
        for number in 0..MAX_CACHED_KEYS {
            cache.insert(number.to_string(), principal(), 0);
        }
        assert_eq!(cache.lock_entries().len(), MAX_CACHED_KEYS);
        assert!(cache.find("0").is_some() && cache.find("other").is_none());
        cache.insert("one more".into(), principal(), 0);
        assert_eq!(cache.lock_entries().len(), 1);
        assert!(cache.find("0").is_none() && cache.find("one more").is_some());
        for number in 0..3 * MAX_CACHED_KEYS {
            cache.insert(number.to_string(), principal(), 0);
            assert!(cache.lock_entries().len() <= MAX_CACHED_KEYS);
        }
    }

    #[test]
    fn nothing_is_believed_while_revocations_cannot_be_heard() {
        let cache = KeyCache::default();
        cache.insert("a".into(), principal(), 0);
        assert!(cache.find("a").is_none());
        cache.listening.store(true, Ordering::Release);
        assert!(cache.find("a").is_some());
        assert!(cache.remove("a") && !cache.remove("a"), "once");
        let long_ago = Instant::now().checked_sub(CACHE_TTL).unwrap();
        cache
            .lock_entries()
            .insert("old".into(), (long_ago, principal()));
        assert!(cache.find("old").is_none(), "the backstop");
    }

    #[test]
    fn what_was_found_before_a_revocation_was_heard_is_not_kept() {
        let cache = KeyCache::default();
        cache.listening.store(true, Ordering::Release);
        let generation = cache.generation.load(Ordering::Acquire);
        assert!(!cache.remove("a"), "it is being looked up");
        cache.insert("a".into(), principal(), generation);
        assert!(cache.find("a").is_none());
        cache.clear();
        cache.insert("b".into(), principal(), generation + 1);
        assert!(cache.find("b").is_none());
        cache.insert("b".into(), principal(), generation + 2);
        assert!(cache.find("b").is_some());
    }
}
