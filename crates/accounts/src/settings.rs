//! Validates the settings that owners give to their keys: expiry, spending limit, models and rates.
//!
//! The type and its JSON text are in `key_settings.rs`, so that the ledger ingest can read them
//! too. Unreadable settings must not be ignored, so such a key is refused. This file must not
//! enforce the limits.

use super::error::AccountError;
use crate::key_settings::{KeySettings, RateSettings};
use config::MAX_RATE;

/// Maximum number of models that a key or a member can be restricted to. `MAX_MODEL_BYTES` limits
/// an id.
const MAX_MODELS: usize = 100;
const MAX_MODEL_BYTES: usize = 128;

impl RateSettings {
    /// Checks the rates.
    ///
    /// # Errors
    /// Returns an error if a rate is above the maximum.
    pub fn validate(&self) -> Result<(), AccountError> {
        if self
            .rates()
            .into_iter()
            .flatten()
            .any(|rate| rate > MAX_RATE)
        {
            Err(AccountError::BadRate)
        } else {
            Ok(())
        }
    }
}

impl KeySettings {
    /// Returns whether the key has expired, which is true at the exact time of expiry.
    pub fn has_expired(&self, now_ms: i64) -> bool {
        self.expires_at_ms.is_some_and(|expires| expires <= now_ms)
    }

    /// Returns whether the key's own list has the model with this catalog id. Whether the key may
    /// use it also depends on its member: see [`crate::Principal::allows`].
    pub(crate) fn allows(&self, model: &str) -> bool {
        is_allowed(&self.allowed_models, model)
    }

    /// Checks the settings.
    ///
    /// # Errors
    /// Returns an error if there are too many models, if a model's id is not valid, or if a rate is
    /// above the maximum.
    pub fn validate(&self) -> Result<(), AccountError> {
        validate_models(&self.allowed_models)?;
        self.rates.validate()
    }
}

/// Returns whether a list of allowed models has the model with this catalog id. An empty list
/// allows all.
pub(crate) fn is_allowed(list: &[String], model: &str) -> bool {
    list.is_empty() || list.iter().any(|allowed| allowed == model)
}

/// Checks a list of allowed models, of a key or a member.
pub(crate) fn validate_models(list: &[String]) -> Result<(), AccountError> {
    let is_id = |id: &String| {
        !id.is_empty() && id.len() <= MAX_MODEL_BYTES && !id.contains(char::is_whitespace)
    };
    match list.len() <= MAX_MODELS && list.iter().all(is_id) {
        true => Ok(()),
        false => Err(AccountError::BadModels),
    }
}
