//! Limits the attempts per e-mail and per address, with a bounded table of times.
//!
//! Each entry is the time at which its allowance is full again (GCRA). With 5 attempts a minute,
//! five may come at once, and one more every 12 s. This file must not depend on the kind of
//! attempt.
//!
//! The crate `governor` is not used, because it does not limit the number of keys and cannot take
//! an attempt back.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

/// Maximum number of entries. When the table is full, the entry whose allowance is full the soonest
/// is evicted.
const MAX_ENTRIES: usize = 10_000;

/// Kind and subject of an attempt.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ThrottleKey {
    EmailSigningIn(String),
    EmailSigningInFrom(String, IpAddr),
    AddressSigningIn(IpAddr),
    AddressSigningUp(IpAddr),
    AddressAtProvider(IpAddr),
    AddressOpeningLink(IpAddr),
    EmailForgot(String),
    AddressForgot(IpAddr),
    AccountVerifying(String),
    AccountInviting(String),
    AccountCreatingPlaygroundKeys(String),
    AccountTestingWebhook(String),
    AccountResending(String),
    AccountRedeeming(String),
    AddressRedeeming(IpAddr),
    AccountSettingUp(String),
    AddressAskingLogin(IpAddr),
    /// By the device code, of a request that exists.
    LoginPolling(String),
    PersonGuessingLogins(String),
    AddressGuessingLogins(IpAddr),
    AccountReadingReceipts(String),
}

/// A limit of `count` attempts in `window_ms`.
#[derive(Debug, Clone, Copy)]
pub struct AttemptLimit {
    pub count: i64,
    pub window_ms: i64,
}

impl AttemptLimit {
    fn step_ms(self) -> i64 {
        (self.window_ms / self.count.max(1)).max(1)
    }
}

#[derive(Default)]
pub struct Throttle {
    full_at_ms: Mutex<HashMap<ThrottleKey, i64>>,
}

impl Throttle {
    /// Counts an attempt. If it is over the limit, returns the seconds to wait.
    pub fn try_acquire(
        &self,
        key: &ThrottleKey,
        rate: AttemptLimit,
        now_ms: i64,
    ) -> Result<(), i64> {
        let mut table = self
            .full_at_ms
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let step = rate.step_ms();
        let window = step.saturating_mul(rate.count.max(1));
        // Only a clock that was set back can yield a time beyond a fully used allowance. Such an
        // entry is ignored.
        let known = table
            .get(key)
            .copied()
            .filter(|at| *at <= now_ms.saturating_add(window));
        let full_at = known.unwrap_or(now_ms).max(now_ms) + step;
        let wait_ms = full_at - now_ms - window;
        if wait_ms > 0 {
            return Err((wait_ms + 999) / 1_000);
        }
        if table.len() >= MAX_ENTRIES && !table.contains_key(key) {
            evict_earliest(&mut table, now_ms);
        }
        table.insert(key.clone(), full_at);
        Ok(())
    }

    /// Takes back a counted attempt, because it succeeded.
    pub fn release(&self, key: &ThrottleKey, rate: AttemptLimit) {
        let mut table = self
            .full_at_ms
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(full_at) = table.get_mut(key) {
            *full_at -= rate.step_ms();
        }
    }
}

fn evict_earliest(table: &mut HashMap<ThrottleKey, i64>, now_ms: i64) {
    table.retain(|_, full_at| *full_at > now_ms);
    if table.len() >= MAX_ENTRIES
        && let Some(first) = table
            .iter()
            .min_by_key(|(_, full_at)| **full_at)
            .map(|(key, _)| key.clone())
    {
        table.remove(&first);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: AttemptLimit = AttemptLimit {
        count: 5,
        window_ms: 60_000,
    };

    #[test]
    fn five_attempts_may_come_at_once_then_one_every_twelve_seconds() {
        let throttle = Throttle::default();
        let key = ThrottleKey::EmailSigningIn("a@example.com".into());
        for _ in 0..5 {
            assert_eq!(throttle.try_acquire(&key, RATE, 1_000), Ok(()));
        }
        assert_eq!(throttle.try_acquire(&key, RATE, 1_000), Err(12));
        assert_eq!(throttle.try_acquire(&key, RATE, 13_000), Ok(()));
        assert_eq!(throttle.try_acquire(&key, RATE, 13_000), Err(12));
        throttle.release(&key, RATE);
        assert_eq!(
            throttle.try_acquire(&key, RATE, 13_000),
            Ok(()),
            "an attempt that succeeded does not count"
        );
        assert_eq!(
            throttle.try_acquire(
                &ThrottleKey::EmailSigningIn("b@example.com".into()),
                RATE,
                13_000
            ),
            Ok(())
        );
    }

    #[test]
    fn a_clock_that_is_set_back_prolongs_no_wait() {
        let throttle = Throttle::default();
        let key = ThrottleKey::EmailSigningIn("a@example.com".into());
        let day = 86_400_000;
        for now_ms in [day, 0] {
            for _ in 0..5 {
                assert_eq!(throttle.try_acquire(&key, RATE, now_ms), Ok(()));
            }
            assert_eq!(throttle.try_acquire(&key, RATE, now_ms), Err(12));
        }
    }

    #[test]
    fn the_table_has_a_limit() {
        let throttle = Throttle::default();
        for index in 0..MAX_ENTRIES + 500 {
            throttle
                .try_acquire(&ThrottleKey::EmailSigningIn(index.to_string()), RATE, 1_000)
                .unwrap();
        }
        assert_eq!(throttle.full_at_ms.lock().unwrap().len(), MAX_ENTRIES);
    }
}
