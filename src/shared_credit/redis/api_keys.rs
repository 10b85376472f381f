//! Reads API keys for edges, by the key's hash.
//!
//! This file must not publish a key, which `redis/ingest.rs` does, and must not see a key in plain
//! text.

use super::keyspace::KEYS_KNOWN;
use super::views::StoreKeys;
use ::redis::Cmd;
use ledger::StoreError;
use std::collections::HashMap;

impl StoreKeys<'_> {
    /// Returns the fields of the API key with this hash. The map is empty for an unknown key.
    ///
    /// # Errors
    /// Returns an error if the store cannot be called.
    pub async fn api_key(&self, hash: &str) -> Result<HashMap<String, String>, StoreError> {
        let mut get = Cmd::new();
        get.arg("HGETALL").arg(format!("gw:k:{hash}"));
        self.0.query("look up a key", &get).await
    }

    /// Returns whether the store has all API keys, so that an unknown key is not valid. Returns
    /// false if the store lost the keys and has not received them again.
    ///
    /// # Errors
    /// Returns an error if the store cannot be called.
    pub async fn has_all_keys(&self) -> Result<bool, StoreError> {
        let mut exists = Cmd::new();
        exists.arg("EXISTS").arg(KEYS_KNOWN);
        self.0
            .query("check whether the keys are published", &exists)
            .await
    }
}
