//! Defines the settings of a key and the rates of an account, as stored in `app.db` and in the
//! shared store. They are one JSON text; an empty text sets nothing.
//!
//! Unreadable settings must not be ignored, so reading them returns an error. This file must not
//! validate or enforce settings; `settings.rs` and `principal.rs` do.

use credits::limits::SpendLimit;
use ledger::StoreError;
use serde::{Deserialize, Serialize};

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
    /// Restricts the use of the key. Without a scope, the key may do all that its account may.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<KeyScope>,
    /// Id of the dashboard session whose playground uses the key. The key ends with the session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub playground_session: Option<String>,
}

/// Uses that a key is restricted to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeyScope {
    /// The key may send requests below `/v1`, but the admin API refuses it.
    Inference,
}

impl KeyScope {
    pub fn name(self) -> &'static str {
        match self {
            Self::Inference => "inference",
        }
    }
}

/// Rates of one key or one account, which replace the defaults of the config file. The value 0
/// means no limit.
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

    pub fn decode(text: &str) -> Result<Self, StoreError> {
        if text.is_empty() {
            return Ok(Self::default());
        }
        serde_json::from_str(text).map_err(|error| {
            StoreError::Unusable(format!("cannot read an account's rate limits: {error}"))
        })
    }

    pub(crate) fn encode(&self) -> String {
        if self.is_unset() {
            String::new()
        } else {
            serde_json::to_string(self).unwrap_or_default()
        }
    }
}

impl KeySettings {
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

    /// Makes the key end at `ends_at_ms`, unless it ends earlier.
    pub(crate) fn end_by(&mut self, ends_at_ms: i64) {
        let earlier = self
            .expires_at_ms
            .map_or(ends_at_ms, |at| at.min(ends_at_ms));
        self.expires_at_ms = Some(earlier);
    }

    pub(crate) fn encode(&self) -> String {
        if *self == Self::default() {
            String::new()
        } else {
            serde_json::to_string(self).unwrap_or_default()
        }
    }
}
