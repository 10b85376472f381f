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

/// A change of a key's settings: `None` leaves a setting as it is.
#[derive(Debug, Default)]
pub struct KeySettingsPatch {
    pub expires_at_ms: Option<Option<i64>>,
    pub spend_limit: Option<Option<SpendLimit>>,
    pub allowed_models: Option<Vec<String>>,
    pub scope: Option<Option<KeyScope>>,
    pub rates: RatesPatch,
}

/// A change of rates, in the order of [`RateSettings::NAMES`]: `None` leaves a rate as it is.
pub type RatesPatch = [Option<Option<u64>>; 3];

impl RateSettings {
    /// The names of the rates, in JSON and in forms.
    pub const NAMES: [&str; 3] = ["requests_per_minute", "tokens_per_minute", "concurrent"];

    /// Builds the settings from rates in the order of [`RateSettings::NAMES`].
    pub fn from_rates(
        [requests_per_minute, tokens_per_minute, concurrent]: [Option<u64>; 3],
    ) -> Self {
        Self {
            requests_per_minute,
            tokens_per_minute,
            concurrent,
        }
    }

    /// Returns the rates in the order of [`RateSettings::NAMES`].
    pub fn rates(&self) -> [Option<u64>; 3] {
        let Self {
            requests_per_minute,
            tokens_per_minute,
            concurrent,
        } = *self;
        [requests_per_minute, tokens_per_minute, concurrent]
    }

    pub fn apply(&mut self, patch: RatesPatch) {
        let mut rates = self.rates();
        for (rate, change) in rates.iter_mut().zip(patch) {
            *rate = change.unwrap_or(*rate);
        }
        *self = Self::from_rates(rates);
    }

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

    pub fn apply(&mut self, patch: &KeySettingsPatch) {
        fn set<T: Clone>(value: &mut T, change: Option<&T>) {
            if let Some(change) = change {
                value.clone_from(change);
            }
        }
        let Self {
            expires_at_ms,
            spend_limit,
            allowed_models,
            rates,
            scope,
            // Only the playground sets this member.
            playground_session: _,
        } = self;
        set(expires_at_ms, patch.expires_at_ms.as_ref());
        set(spend_limit, patch.spend_limit.as_ref());
        set(allowed_models, patch.allowed_models.as_ref());
        set(scope, patch.scope.as_ref());
        rates.apply(patch.rates);
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
