//! What a key's owner has set for it: until when it works, what it may spend, which models it may
//! use, how fast.
//!
//! Kept as one JSON text beside the key, in `app.db` and in the shared store alike; an empty one
//! sets nothing. A setting that cannot be read is no setting that may be passed over: the key is
//! refused. Must not know who counts.

use super::AccountError;
use crate::billing::bounds::SpendLimit;
use crate::config::RATE_MAX;
use crate::store::StoreError;
use serde::{Deserialize, Serialize};

/// Models that a key can be bound to, and the length of each one's id in bytes.
const MODELS_MAX: usize = 100;
const MODEL_BYTES_MAX: usize = 128;

/// Of one key. The default sets nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct KeySettings {
    /// From this moment on it is refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at_ms: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spend_limit: Option<SpendLimit>,
    /// Catalog ids; empty: all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allowed_models: Vec<String>,
    #[serde(skip_serializing_if = "RateSettings::is_unset")]
    pub rates: RateSettings,
}

/// What is set for one key or one account, in the place of what the config file says for all. 0 =
/// no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RateSettings {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests_per_minute: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_per_minute: Option<u64>,
    /// Requests that may run at one time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrent: Option<u64>,
}

impl RateSettings {
    fn is_unset(&self) -> bool {
        *self == Self::default()
    }

    /// # Errors
    /// A rate is beyond what can be counted.
    pub fn check(&self) -> Result<(), AccountError> {
        let all = [
            self.requests_per_minute,
            self.tokens_per_minute,
            self.concurrent,
        ];
        if all.into_iter().flatten().any(|rate| rate > RATE_MAX) {
            Err(AccountError::BadRate)
        } else {
            Ok(())
        }
    }

    pub(super) fn read(text: &str) -> Result<Self, StoreError> {
        if text.is_empty() {
            return Ok(Self::default());
        }
        serde_json::from_str(text)
            .map_err(|error| StoreError::Unusable(format!("read an account's rates: {error}")))
    }

    pub(super) fn text(&self) -> String {
        if self.is_unset() {
            String::new()
        } else {
            serde_json::to_string(self).unwrap_or_default()
        }
    }
}

impl KeySettings {
    /// At the very moment it is refused.
    pub fn has_expired(&self, now_ms: i64) -> bool {
        self.expires_at_ms.is_some_and(|expires| expires <= now_ms)
    }

    pub fn allows(&self, model: &str) -> bool {
        self.allowed_models.is_empty() || self.allowed_models.iter().any(|allowed| allowed == model)
    }

    /// # Errors
    /// Too many models, or one that no catalog can have; or a rate beyond what can be counted.
    pub fn check(&self) -> Result<(), AccountError> {
        let is_id = |id: &String| {
            !id.is_empty() && id.len() <= MODEL_BYTES_MAX && !id.contains(char::is_whitespace)
        };
        if self.allowed_models.len() > MODELS_MAX || !self.allowed_models.iter().all(is_id) {
            return Err(AccountError::BadModels);
        }
        self.rates.check()
    }

    /// # Errors
    /// The text is none that this version knows.
    pub fn read(text: &str) -> Result<Self, StoreError> {
        if text.is_empty() {
            return Ok(Self::default());
        }
        serde_json::from_str(text)
            .map_err(|error| StoreError::Unusable(format!("read a key's settings: {error}")))
    }

    pub(super) fn text(&self) -> String {
        if *self == Self::default() {
            String::new()
        } else {
            serde_json::to_string(self).unwrap_or_default()
        }
    }
}
