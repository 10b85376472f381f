//! Keeps new webhook secrets in memory for as long as the session that created one may see it. Thus
//! a reload of the page neither loses the secret nor creates another one.
//!
//! This file must not write a secret to disk or to a log.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

/// Time for which a new secret is shown, in ms: 5 min.
pub const SHOWN_MS: i64 = 5 * 60_000;
/// Maximum number of secrets in memory. At the limit, the oldest is evicted.
const MAX_SECRETS: usize = 1_000;

struct FreshSecret {
    /// Hash of the session's token.
    session: String,
    account: String,
    secret: String,
    until_ms: i64,
}

#[derive(Default)]
pub struct FreshSecrets(Mutex<VecDeque<FreshSecret>>);

impl FreshSecrets {
    /// Keeps a secret for one session, and drops the older secrets of the account.
    pub fn put(&self, session: String, account: &str, secret: String, now_ms: i64) {
        self.forget(account);
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|one| now_ms < one.until_ms);
        if all.len() >= MAX_SECRETS {
            all.pop_front();
        }
        all.push_back(FreshSecret {
            session,
            account: account.to_owned(),
            secret,
            until_ms: now_ms + SHOWN_MS,
        });
    }

    pub fn find(&self, session: &str, account: &str, now_ms: i64) -> Option<String> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter()
            .find(|one| one.session == session && one.account == account && now_ms < one.until_ms)
            .map(|one| one.secret.clone())
    }

    pub fn forget(&self, account: &str) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|one| one.account != account);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_shown_to_its_session_for_five_minutes() {
        let fresh = FreshSecrets::default();
        fresh.put("s1".into(), "a", "one".into(), 0);
        assert_eq!(fresh.find("s1", "a", SHOWN_MS - 1).as_deref(), Some("one"));
        assert_eq!(fresh.find("s1", "a", SHOWN_MS), None);
        assert_eq!(fresh.find("s2", "a", 0), None, "another session");
        assert_eq!(fresh.find("s1", "b", 0), None, "another account");
        fresh.put("s2".into(), "a", "two".into(), 1);
        assert_eq!(fresh.find("s1", "a", 1), None, "outdated");
        assert_eq!(fresh.find("s2", "a", 1).as_deref(), Some("two"));
        fresh.forget("a");
        assert_eq!(fresh.find("s2", "a", 1), None);
    }

    #[test]
    fn the_number_of_secrets_has_a_limit() {
        let fresh = FreshSecrets::default();
        for index in 0..=MAX_SECRETS {
            fresh.put(format!("s{index}"), &format!("a{index}"), "x".into(), 0);
        }
        assert_eq!(fresh.0.lock().unwrap().len(), MAX_SECRETS);
        assert_eq!(fresh.find("s0", "a0", 0), None);
        assert!(fresh.find("s1", "a1", 0).is_some());
        fresh.put("s".into(), "a", "x".into(), SHOWN_MS);
        assert_eq!(fresh.0.lock().unwrap().len(), 1, "old ones are dropped");
    }
}
