//! Waits until the shared store has the newest state of a key. Code that creates or revokes a key
//! thus returns only when edges accept or refuse the key.
//!
//! The sidecar publishes keys (`shared_credit/ledger_ingest/publish.rs`). This file must not write
//! to the store, because a second writer could undo a later change.

use crate::shared_credit::redis::{SharedStore, block_on};
use accounts::Accounts;
use accounts::db::key_changes::KeyChange;
use config::redis_address::RedisAddress;
use ledger::StoreError;
use std::collections::HashMap;
use std::time::Duration;
use tokio::time::Instant;

/// Maximum wait. The sidecar publishes within some 30 ms.
const MAX_WAIT: Duration = Duration::from_secs(3);
/// Time limit of a reply of the store.
const REPLY_TIMEOUT: Duration = Duration::from_millis(500);
const MIN_POLL_DELAY: Duration = Duration::from_millis(5);
const MAX_POLL_DELAY: Duration = Duration::from_millis(100);

/// Waits for at most three seconds until the edges can see the newest state of a key. Returns false
/// if they cannot yet; they will once the shared store is reachable and the sidecar runs. Returns
/// true at once without a shared store. The caller must be on a blocking thread.
pub fn wait_until_published(accounts: &Accounts, key_id: &str) -> bool {
    let Some(address) = accounts.shared_store() else {
        return true;
    };
    let published = block_on(poll_store(accounts, address, key_id));
    match published {
        Ok(true) => return true,
        Ok(false) => log::warn!(
            "the shared store does not have the newest state of {key_id} yet: edges will have it once the store is reachable and the sidecar runs"
        ),
        Err(error) => log::warn!("cannot check whether {key_id} is published: {error}"),
    }
    false
}

async fn poll_store(
    accounts: &Accounts,
    address: &RedisAddress,
    key_id: &str,
) -> Result<bool, StoreError> {
    let store = SharedStore::new(address.clone(), REPLY_TIMEOUT);
    let (until, mut delay) = (Instant::now() + MAX_WAIT, MIN_POLL_DELAY);
    loop {
        // Each round reads both states, because another process may change the key in between.
        let newest = accounts.database().keys().key_change(key_id)?;
        if are_published(&store, &newest, until).await {
            return Ok(true);
        }
        if Instant::now() + delay >= until {
            return Ok(false);
        }
        tokio::time::sleep(delay).await;
        delay = (delay * 2).min(MAX_POLL_DELAY);
    }
}

/// Returns whether the store has a key as it is under each of its hashes.
async fn are_published(store: &SharedStore, newest: &[KeyChange], until: Instant) -> bool {
    for change in newest {
        let hash = change.hash_hex();
        let look = tokio::time::timeout_at(until, store.keys().api_key(&hash)).await;
        if !matches!(look, Ok(Ok(published)) if is_same(change, &published)) {
            return false;
        }
    }
    true
}

fn is_same(newest: &KeyChange, published: &HashMap<String, String>) -> bool {
    let account_status = match newest.account_is_active {
        true => "active",
        false => "suspended",
    };
    [
        // A key that was moved has another account and id.
        ("account", newest.account.as_str()),
        ("key_id", newest.at.key.as_str()),
        ("status", newest.status.as_str()),
        ("account_status", account_status),
        ("settings", &newest.settings),
        ("account_rates", &newest.account_rates),
        ("member", &newest.member_id),
        ("budget", &newest.budget),
        ("models", &newest.models),
    ]
    .into_iter()
    .all(|(field, value)| published.get(field).is_some_and(|found| found == value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::clock::now_ms;

    fn accounts(address: Option<RedisAddress>) -> (tempfile::TempDir, Accounts, String) {
        let folder = tempfile::tempdir().unwrap();
        let accounts = Accounts::open(folder.path()).unwrap();
        let new = accounts::NewAccount::new("ada@example.test");
        let account = accounts.create_account(&new, now_ms()).unwrap().id;
        let key = accounts
            .api_keys()
            .create_key(&account, "laptop", now_ms())
            .unwrap();
        (folder, accounts.with_shared_store(address), key.key_id)
    }

    #[test]
    fn without_a_shared_store_a_key_is_published_at_once() {
        let (_folder, accounts, key_id) = accounts(None);
        assert!(wait_until_published(&accounts, &key_id));
    }

    #[test]
    fn without_an_answer_the_wait_ends_and_says_so() {
        let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("redis://{}", closed.local_addr().unwrap());
        drop(closed);
        let (_folder, accounts, key_id) = accounts(Some(RedisAddress::One(address)));
        let began = std::time::Instant::now();
        assert!(!wait_until_published(&accounts, &key_id));
        assert!(began.elapsed() < 10 * MAX_WAIT);
    }

    #[test]
    fn a_key_is_published_when_each_field_is() {
        let (_folder, accounts, key_id) = accounts(None);
        let newest = accounts
            .database()
            .keys()
            .key_change(&key_id)
            .unwrap()
            .remove(0);
        let fields = [
            ("account", newest.account.as_str()),
            ("key_id", key_id.as_str()),
            ("status", "active"),
            ("account_status", "active"),
            ("settings", newest.settings.as_str()),
            ("account_rates", newest.account_rates.as_str()),
            ("member", newest.member_id.as_str()),
            ("budget", newest.budget.as_str()),
            ("models", newest.models.as_str()),
        ];
        let published: HashMap<_, _> = fields
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into();
        assert!(is_same(&newest, &published));
        assert!(!is_same(&newest, &HashMap::new()), "nothing is there yet");
        for (field, _) in fields {
            let mut older = published.clone();
            older.insert(field.to_owned(), "older".to_owned());
            assert!(!is_same(&newest, &older), "{field}");
        }
    }
}
