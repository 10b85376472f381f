//! Tracks the current activity of each account and key in this process that `billing` does not
//! track: the bytes of request bodies, and the requests that hold no credit yet.
//!
//! An entry lives as long as a request or a counter uses it. This file must not decide limits.

use super::intake::BodyBytes;
use crate::billing::PendingRequests;
use base::clock;
use credits::rates::FreeUseCounter;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Number of entries above which unused ones are removed.
const MIN_ENTRIES: usize = 1_024;

#[derive(Default)]
pub struct ActivityRegistry(Mutex<ActivityEntries>);

#[derive(Default)]
struct ActivityEntries {
    by_id: HashMap<Arc<str>, Arc<Activity>>,
    /// Number of entries at which the next sweep removes the unused ones.
    sweep_at: usize,
}

#[derive(Default)]
pub struct Activity {
    pub body_bytes: BodyBytes,
    /// Number of requests whose header has arrived and that hold no credit yet.
    arriving: AtomicU64,
    lookups: AtomicU64,
    free: Mutex<FreeUseCounter>,
}

/// A lookup in the ledger, of a receipt or of usage, counted until it is dropped.
pub struct LookupGuard(Arc<Activity>);

impl LookupGuard {
    /// Counts a lookup. Returns `None` if `max_lookups` lookups are in progress already.
    pub fn enter(account: Arc<Activity>, max_lookups: u64) -> Option<Self> {
        let lookup = Self(account);
        (lookup.0.lookups.fetch_add(1, Ordering::AcqRel) < max_lookups).then_some(lookup)
    }
}

impl Drop for LookupGuard {
    fn drop(&mut self) {
        self.0.lookups.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A request that holds no credit yet, counted until it is dropped.
pub struct PendingAdmission {
    account: Arc<Activity>,
    key: Arc<Activity>,
}

impl PendingAdmission {
    pub fn enter(account: Arc<Activity>, key: Arc<Activity>) -> Self {
        account.arriving.fetch_add(1, Ordering::AcqRel);
        key.arriving.fetch_add(1, Ordering::AcqRel);
        Self { account, key }
    }

    /// Returns how many other requests without a hold the account has, and how many the key has.
    pub fn others(&self) -> PendingRequests {
        let others =
            |activity: &Activity| activity.arriving.load(Ordering::Acquire).saturating_sub(1);
        PendingRequests {
            of_account: others(&self.account),
            of_key: others(&self.key),
        }
    }
}

impl Drop for PendingAdmission {
    fn drop(&mut self) {
        self.account.arriving.fetch_sub(1, Ordering::AcqRel);
        self.key.arriving.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Activity {
    pub fn free_usage(&self) -> MutexGuard<'_, FreeUseCounter> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether the entry can be removed without losing a count.
    fn is_idle(self: &Arc<Self>, now_ms: i64) -> bool {
        Arc::strong_count(self) == 1
            && Arc::strong_count(&self.body_bytes) == 1
            && self.free_usage().is_idle(now_ms)
    }
}

impl ActivityRegistry {
    pub fn get(&self, id: &Arc<str>) -> Arc<Activity> {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = entries.by_id.get(id) {
            return Arc::clone(known);
        }
        if entries.by_id.len() >= entries.sweep_at.max(MIN_ENTRIES) {
            let now_ms = clock::steady_now_ms();
            entries
                .by_id
                .retain(|_, activity| !activity.is_idle(now_ms));
            entries.sweep_at = entries.by_id.len().saturating_mul(2);
        }
        Arc::clone(entries.by_id.entry(Arc::clone(id)).or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use credits::rates::FreeUse;

    #[test]
    fn entries_are_kept_while_they_are_used_and_removed_in_numbers() {
        let registry = ActivityRegistry::default();
        let used: Arc<str> = "used".into();
        let bytes = Arc::clone(&registry.get(&used).body_bytes);
        bytes.store(7, Ordering::Relaxed);
        let counted: Arc<str> = "counted".into();
        registry
            .get(&counted)
            .free_usage()
            .add(FreeUse::Count, 7, 10, clock::steady_now_ms());
        for number in 0..3 * MIN_ENTRIES {
            registry.get(&number.to_string().into());
        }
        assert_eq!(registry.get(&used).body_bytes.load(Ordering::Relaxed), 7);
        assert!(
            registry.get(&counted).free_usage().wait_ms(
                FreeUse::Count,
                7,
                10,
                clock::steady_now_ms()
            ) > 0
        );
        let kept = registry.0.lock().unwrap().by_id.len();
        assert!(kept <= 2 * MIN_ENTRIES, "{kept} entries are kept");
    }
}
