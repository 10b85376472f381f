//! Keys in the store that many edges share, with a small cache that a revocation reaches at once.
//!
//! A cached key is believed for thirty seconds at most, and only while this edge hears of revocations: without that
//! connection every key is looked up anew. Must not know HTTP.

use super::{KeySettings, KeyStatus, Principal, RateSettings, Refusal, key, parse_key};
use crate::store::StoreError;
use crate::store::redis::SharedStore;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Keys in the cache; beyond, it begins anew.
const CACHED_MAX: usize = 100_000;
const BELIEVED_FOR: Duration = Duration::from_secs(30);
/// How long a look-up may take.
const LOOK_UP_WITHIN: Duration = Duration::from_millis(250);
const RECONNECT_LEAST: Duration = Duration::from_millis(50);
const RECONNECT_MOST: Duration = Duration::from_secs(2);

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
    /// Revocations are heard of.
    listening: AtomicBool,
}

impl SharedKeys {
    /// `store` is for look-ups; `watch`, a connection of its own, hears of revocations on a thread of its own.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(store: SharedStore, watch: SharedStore) -> Result<Self, StoreError> {
        let cache = Arc::new(Cache::default());
        let failed = |source| StoreError::io("start the key watch", source);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let heard = Arc::clone(&cache);
        let listen = move || runtime.block_on(heard.listen(&watch));
        std::thread::Builder::new().name("key-watch".into()).spawn(listen).map_err(failed)?;
        Ok(Self { store, cache })
    }

    /// As [`super::Accounts::authenticate`].
    ///
    /// # Errors
    /// Why the key does not open the door.
    pub async fn authenticate(&self, key: &str, now_ms: i64) -> Result<Principal, Refusal> {
        if !parse_key(key) {
            return Err(Refusal::BadKey);
        }
        let hash: String = key::hash(key).iter().map(|byte| format!("{byte:02x}")).collect();
        if let Some(principal) = self.cache.find(&hash) {
            return principal.in_time(now_ms);
        }
        let late = || Refusal::Unavailable(StoreError::Unusable("look a key up: no answer in time".into()));
        let fields = tokio::time::timeout(LOOK_UP_WITHIN, self.store.api_key(&hash)).await.map_err(|_| late())?;
        let fields = fields.map_err(Refusal::Unavailable)?;
        let field = |name: &str| fields.get(name).map(String::as_str).unwrap_or_default();
        match KeyStatus::of(field("status")) {
            KeyStatus::Revoked => Err(Refusal::BadKey),
            KeyStatus::Disabled => Err(Refusal::KeyDisabled),
            KeyStatus::Active if field("account_status") != "active" => Err(Refusal::AccountSuspended),
            KeyStatus::Active => {
                let principal = Principal {
                    account_id: field("account").into(),
                    key_id: field("key_id").into(),
                    key_shown: field("shown").into(),
                    settings: KeySettings::read(field("settings")).map_err(Refusal::Unavailable)?.into(),
                    account_rates: RateSettings::read(field("account_rates")).map_err(Refusal::Unavailable)?,
                };
                self.cache.keep(hash, principal.clone());
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

    fn keep(&self, hash: String, principal: Principal) {
        let mut known = self.known();
        if known.len() >= CACHED_MAX {
            known.clear();
        }
        known.insert(hash, (Instant::now(), principal));
    }

    async fn listen(&self, store: &SharedStore) {
        let mut wait = RECONNECT_LEAST;
        loop {
            // What was revoked while nobody listened may be in the cache.
            let ready = || {
                self.known().clear();
                self.listening.store(true, Ordering::Release);
            };
            let outcome = store.watch_keys(ready, |hash| drop(self.known().remove(hash))).await;
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
