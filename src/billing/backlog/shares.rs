//! Counts the waiting endings of each account.
//!
//! Accounts without waiting endings are removed, so the memory is bounded by the number of waiting
//! endings. Accounts are identified by a keyed hash. Two accounts with the same hash would share a
//! count, but an account cannot cause that. This file must not depend on the use of a share.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

const SHARDS: u64 = 64;

type Counts = HashMap<u64, u64>;

pub(super) struct AccountShares {
    shards: Vec<Mutex<Counts>>,
    accounts: AtomicUsize,
    hasher: RandomState,
}

impl Default for AccountShares {
    fn default() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            accounts: AtomicUsize::new(0),
            hasher: RandomState::new(),
        }
    }
}

impl AccountShares {
    pub fn add(&self, account: &str) {
        let (mut counts, hash) = self.lock(account);
        let count = counts.entry(hash).or_insert(0);
        if *count == 0 {
            self.accounts.fetch_add(1, Ordering::Relaxed);
        }
        *count = count.saturating_add(1);
    }

    pub fn remove(&self, account: &str) {
        let (mut counts, hash) = self.lock(account);
        if let Entry::Occupied(mut count) = counts.entry(hash) {
            *count.get_mut() = count.get().saturating_sub(1);
            if *count.get() == 0 {
                count.remove();
                self.accounts.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    /// Returns the number of waiting endings of this account.
    pub fn count_for(&self, account: &str) -> u64 {
        let (counts, hash) = self.lock(account);
        counts.get(&hash).copied().unwrap_or_default()
    }

    /// Returns the number of accounts with waiting endings.
    pub fn accounts(&self) -> usize {
        self.accounts.load(Ordering::Relaxed)
    }

    fn lock(&self, account: &str) -> (MutexGuard<'_, Counts>, u64) {
        let hash = self.hasher.hash_one(account);
        let index = usize::try_from(hash % SHARDS).unwrap_or_default();
        let counts = self.shards[index]
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        (counts, hash)
    }

    #[cfg(test)]
    pub fn counts(&self) -> usize {
        self.shards
            .iter()
            .map(|shard| shard.lock().unwrap().len())
            .sum()
    }
}
