//! Settings of a key, made by its owner: its expiry, its spending limit, its models, its rates.
//!
//! They are stored as one JSON text with the key, in `app.db` and in the shared store; an empty
//! text sets nothing. Unreadable settings must not be ignored: the key is refused. Must not know
//! which code enforces the limits.

use super::AccountError;
use crate::config::MAX_RATE;
use crate::store::StoreError;
use credits::limits::SpendLimit;
use serde::{Deserialize, Serialize};

/// Maximum number of models that a key can be restricted to. `MAX_MODEL_BYTES` is the maximum
/// length of a model's id.
const MAX_MODELS: usize = 100;
const MAX_MODEL_BYTES: usize = 128;

/// Settings of one key. The default sets nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct KeySettings {
    /// Time from which the key is refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at_ms: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spend_limit: Option<SpendLimit>,
    /// Catalog ids of the allowed models; empty allows all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allowed_models: Vec<String>,
    #[serde(skip_serializing_if = "RateSettings::is_unset")]
    pub rates: RateSettings,
}

/// Rates of one key or one account, which replace the defaults of the config file. 0 = no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RateSettings {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests_per_minute: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_per_minute: Option<u64>,
    /// Maximum number of concurrent requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrent: Option<u64>,
}

impl RateSettings {
    fn is_unset(&self) -> bool {
        *self == Self::default()
    }

    /// Checks the rates.
    ///
    /// # Errors
    /// Returns an error if a rate is above the maximum.
    pub fn validate(&self) -> Result<(), AccountError> {
        let all = [
            self.requests_per_minute,
            self.tokens_per_minute,
            self.concurrent,
        ];
        if all.into_iter().flatten().any(|rate| rate > MAX_RATE) {
            Err(AccountError::BadRate)
        } else {
            Ok(())
        }
    }

    pub(super) fn decode(text: &str) -> Result<Self, StoreError> {
        if text.is_empty() {
            return Ok(Self::default());
        }
        serde_json::from_str(text).map_err(|error| {
            StoreError::Unusable(format!("cannot read an account's rate limits: {error}"))
        })
    }

    pub(super) fn encode(&self) -> String {
        if self.is_unset() {
            String::new()
        } else {
            serde_json::to_string(self).unwrap_or_default()
        }
    }
}

impl KeySettings {
    /// Returns true from the exact time of expiry on.
    pub fn has_expired(&self, now_ms: i64) -> bool {
        self.expires_at_ms.is_some_and(|expires| expires <= now_ms)
    }

    pub fn allows(&self, model: &str) -> bool {
        self.allowed_models.is_empty() || self.allowed_models.iter().any(|allowed| allowed == model)
    }

    /// Checks the settings.
    ///
    /// # Errors
    /// Returns an error if there are too many models, if a model's id is not valid, or if a rate is
    /// above the maximum.
    pub fn validate(&self) -> Result<(), AccountError> {
        let is_id = |id: &String| {
            !id.is_empty() && id.len() <= MAX_MODEL_BYTES && !id.contains(char::is_whitespace)
        };
        if self.allowed_models.len() > MAX_MODELS || !self.allowed_models.iter().all(is_id) {
            return Err(AccountError::BadModels);
        }
        self.rates.validate()
    }

    /// Parses the JSON text.
    ///
    /// # Errors
    /// Returns an error if this version does not know the text.
    pub fn decode(text: &str) -> Result<Self, StoreError> {
        if text.is_empty() {
            return Ok(Self::default());
        }
        serde_json::from_str(text)
            .map_err(|error| StoreError::Unusable(format!("cannot read a key's settings: {error}")))
    }

    pub(super) fn encode(&self) -> String {
        if *self == Self::default() {
            String::new()
        } else {
            serde_json::to_string(self).unwrap_or_default()
        }
    }
}
