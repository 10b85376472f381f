//! API keys from the shared store, with a small cache that removes revoked keys at once.
//!
//! A cached key is valid for at most thirty seconds, and only while this edge receives revocations:
//! without that connection it looks every key up again. Must not know HTTP.

use super::{KeySettings, KeyStatus, Principal, RateSettings, Refusal, key, parse_key};
use crate::store::StoreError;
use crate::store::redis::SharedStore;
use crate::telemetry::METRICS;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

/// Maximum number of cached keys; above it, the cache is cleared.
const CACHED_MAX: usize = 100_000;
const BELIEVED_FOR: Duration = Duration::from_secs(30);
/// Longest duration of a look-up.
const LOOK_UP_WITHIN: Duration = Duration::from_millis(250);
const RECONNECT_LEAST: Duration = Duration::from_millis(50);
const RECONNECT_MOST: Duration = Duration::from_secs(2);
/// Maximum number of revocations whose delay is measured at the same time; further ones are not
/// measured.
const MEASURED_MAX: usize = 8;

/// Cheap to clone.
#[derive(Clone)]
pub struct SharedKeys {
    store: SharedStore,
    cache: Arc<Cache>,
}

#[derive(Default)]
struct Cache {
    /// By the key's hash, in hex.
    known: Mutex<HashMap<String, (Instant, Principal)>>,
    /// Counter of removals from the cache because of a message.
    generation: AtomicU64,
    /// Whether revocations are received.
    listening: AtomicBool,
    measured: Measured,
}

/// Permits for measurements.
struct Measured(Arc<Semaphore>);

impl Default for Measured {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MEASURED_MAX)))
    }
}

impl Measured {
    /// Measures how long a revocation took to reach this edge, by the store's clock alone, because
    /// the local clock can be wrong.
    fn took_effect(&self, store: &SharedStore, revoked_at_ms: Option<i64>) {
        let (Some(revoked_at_ms), Ok(room)) =
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
            drop(room);
        });
    }
}

impl SharedKeys {
    /// Starts the thread that receives revocations. `store` is for look-ups; `watch` is a separate
    /// connection, for that thread.
    ///
    /// # Errors
    /// Returns an error if the thread cannot be started.
    pub fn start(store: SharedStore, watch: SharedStore) -> Result<Self, StoreError> {
        let cache = Arc::new(Cache::default());
        let failed = |source| StoreError::io("start the key watch", source);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(failed)?;
        let heard = Arc::clone(&cache);
        let listen = move || runtime.block_on(heard.listen(&watch));
        std::thread::Builder::new()
            .name("key-watch".into())
            .spawn(listen)
            .map_err(failed)?;
        Ok(Self { store, cache })
    }

    /// Authenticates a key; see [`super::Accounts::authenticate`].
    ///
    /// # Errors
    /// Returns why the key is refused.
    pub async fn authenticate(&self, key: &str, now_ms: i64) -> Result<Principal, Refusal> {
        if !parse_key(key) {
            return Err(Refusal::BadKey);
        }
        let hash: String = key::hash(key)
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        if let Some(principal) = self.cache.find(&hash) {
            return principal.in_time(now_ms);
        }
        let generation = self.cache.generation.load(Ordering::Acquire);
        let late = || {
            Refusal::Unavailable(StoreError::Unusable(
                "look a key up: no answer in time".into(),
            ))
        };
        let fields = tokio::time::timeout(LOOK_UP_WITHIN, self.store.api_key(&hash))
            .await
            .map_err(|_| late())?;
        let fields = fields.map_err(Refusal::Unavailable)?;
        if fields.is_empty()
            && !self
                .store
                .knows_keys()
                .await
                .map_err(Refusal::Unavailable)?
        {
            let lost = "look a key up: the shared store was not told the keys since it lost them";
            return Err(Refusal::Unavailable(StoreError::Unusable(lost.into())));
        }
        let field = |name: &str| fields.get(name).map(String::as_str).unwrap_or_default();
        if (field("status"), field("account_status")) != ("active", "active")
            && self.cache.known().remove(&hash).is_some()
        {
            // This edge did not receive the revocation.
            self.cache
                .measured
                .took_effect(&self.store, field("closed_at").parse().ok());
        }
        match KeyStatus::of(field("status")) {
            KeyStatus::Revoked => Err(Refusal::BadKey),
            KeyStatus::Disabled => Err(Refusal::KeyDisabled),
            KeyStatus::Active if field("account_status") != "active" => {
                Err(Refusal::AccountSuspended)
            }
            KeyStatus::Active => {
                let principal = Principal {
                    account_id: field("account").into(),
                    key_id: field("key_id").into(),
                    key_shown: field("shown").into(),
                    settings: KeySettings::read(field("settings"))
                        .map_err(Refusal::Unavailable)?
                        .into(),
                    account_rates: RateSettings::read(field("account_rates"))
                        .map_err(Refusal::Unavailable)?,
                };
                self.cache.keep(hash, principal.clone(), generation);
                principal.in_time(now_ms)
            }
        }
    }
}

impl Cache {
    fn known(&self) -> MutexGuard<'_, HashMap<String, (Instant, Principal)>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, hash: &str) -> Option<Principal> {
        if !self.listening.load(Ordering::Acquire) {
            return None;
        }
        self.known()
            .get(hash)
            .filter(|(since, _)| since.elapsed() < BELIEVED_FOR)
            .map(|(_, principal)| principal.clone())
    }

    /// Inserts a key, unless a key was removed since `generation` was read: the look-up may then be
    /// older than that removal.
    fn keep(&self, hash: String, principal: Principal, generation: u64) {
        let mut known = self.known();
        if self.generation.load(Ordering::Acquire) != generation {
            return;
        }
        if known.len() >= CACHED_MAX {
            known.clear();
        }
        known.insert(hash, (Instant::now(), principal));
    }

    /// Returns true if the key was in the cache.
    fn forget(&self, hash: &str) -> bool {
        let mut known = self.known();
        self.generation.fetch_add(1, Ordering::AcqRel);
        known.remove(hash).is_some()
    }

    fn forget_all(&self) {
        let mut known = self.known();
        self.generation.fetch_add(1, Ordering::AcqRel);
        known.clear();
    }

    async fn listen(&self, store: &SharedStore) {
        let mut wait = RECONNECT_LEAST;
        loop {
            // The cache may have keys that were revoked while this edge received no messages.
            let ready = || {
                self.forget_all();
                self.listening.store(true, Ordering::Release);
            };
            let outcome = store.watch_keys(ready, |hash, revoked_at_ms| {
                if self.forget(hash) {
                    self.measured.took_effect(store, revoked_at_ms);
                }
            });
            let outcome = outcome.await;
            if self.listening.swap(false, Ordering::AcqRel) {
                wait = RECONNECT_LEAST;
            }
            if let Err(error) = outcome {
                log::warn!("{error}; trying again in {wait:?}");
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(RECONNECT_MOST);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn principal() -> Principal {
        let (settings, account_rates) = Default::default();
        let (account_id, key_id, key_shown) = ("acct_1".into(), "key_1".into(), "gw-sk-…".into());
        Principal {
            account_id,
            key_id,
            key_shown,
            settings,
            account_rates,
        }
    }

    #[test]
    fn the_cache_holds_so_many_keys_and_then_begins_anew() {
        let cache = Cache::default();
        cache.listening.store(true, Ordering::Release);
        for number in 0..CACHED_MAX {
            cache.keep(number.to_string(), principal(), 0);
        }
        assert_eq!(cache.known().len(), CACHED_MAX);
        assert!(cache.find("0").is_some() && cache.find("other").is_none());
        cache.keep("one more".into(), principal(), 0);
        assert_eq!(cache.known().len(), 1);
        assert!(cache.find("0").is_none() && cache.find("one more").is_some());
        for number in 0..3 * CACHED_MAX {
            cache.keep(number.to_string(), principal(), 0);
            assert!(cache.known().len() <= CACHED_MAX);
        }
    }

    #[test]
    fn nothing_is_believed_while_revocations_cannot_be_heard() {
        let cache = Cache::default();
        cache.keep("a".into(), principal(), 0);
        assert!(cache.find("a").is_none());
        cache.listening.store(true, Ordering::Release);
        assert!(cache.find("a").is_some());
        assert!(cache.forget("a") && !cache.forget("a"), "once");
        let long_ago = Instant::now().checked_sub(BELIEVED_FOR).unwrap();
        cache.known().insert("old".into(), (long_ago, principal()));
        assert!(cache.find("old").is_none(), "the backstop");
    }

    #[test]
    fn what_was_found_before_a_revocation_was_heard_is_not_kept() {
        let cache = Cache::default();
        cache.listening.store(true, Ordering::Release);
        let generation = cache.generation.load(Ordering::Acquire);
        assert!(!cache.forget("a"), "it is being looked up");
        cache.keep("a".into(), principal(), generation);
        assert!(cache.find("a").is_none());
        cache.forget_all();
        cache.keep("b".into(), principal(), generation + 1);
        assert!(cache.find("b").is_none());
        cache.keep("b".into(), principal(), generation + 2);
        assert!(cache.find("b").is_some());
    }
}
