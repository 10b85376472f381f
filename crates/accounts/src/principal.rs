//! Defines the account and key that pay for a request, and the reasons for which a key is refused.
//!
//! This file must not look up keys, which `api_key.rs` and `shared_credit/keys.rs` do.

use crate::db::KeyMember;
use crate::key_settings::{KeySettings, RateSettings};
use crate::settings::is_allowed;
use credits::limits::SpendLimit;
use ledger::StoreError;
use std::sync::Arc;

/// The account and the key that pay for a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Principal {
    pub account_id: Arc<str>,
    pub key_id: Arc<str>,
    pub key_shown: Arc<str>,
    /// Settings of the key that its owner chose.
    pub settings: Arc<KeySettings>,
    pub account_rates: RateSettings,
    /// The member of the organisation whose key it is.
    pub member: Option<KeyMember>,
}

/// A key that the gateway recognised.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyIdentity {
    pub account_id: Arc<str>,
    pub key_id: Arc<str>,
    pub key_shown: Arc<str>,
}

/// Reason for which a key is refused.
#[derive(Debug, thiserror::Error)]
pub enum AuthError {
    /// The key is malformed, has a wrong checksum, is unknown or is revoked. The caller cannot
    /// distinguish these cases.
    #[error("this is not a valid gateway key")]
    BadKey,
    #[error("the key has expired")]
    KeyExpired(KeyIdentity),
    #[error("the key is disabled")]
    KeyDisabled(KeyIdentity),
    #[error("the account is suspended")]
    AccountSuspended(KeyIdentity),
    /// Too many unknown keys are arriving, so this key is not looked up.
    #[error("too many unknown keys are being looked up")]
    TooManyLookups,
    #[error("cannot check keys: {0}")]
    Unavailable(StoreError),
}

impl AuthError {
    /// Returns the refused key; `None` if the gateway did not recognise it.
    pub fn key(&self) -> Option<&KeyIdentity> {
        match self {
            Self::KeyExpired(key) | Self::KeyDisabled(key) | Self::AccountSuspended(key) => {
                Some(key)
            }
            Self::BadKey | Self::TooManyLookups | Self::Unavailable(_) => None,
        }
    }
}

impl Principal {
    /// Returns the spend limits of the key and of its member, in the order of
    /// [`credits::limits::Spender::ALL`].
    pub fn spend_limits(&self) -> [Option<SpendLimit>; 2] {
        let member = self.member.as_ref();
        [
            self.settings.spend_limit,
            member.and_then(|member| member.budget),
        ]
    }

    /// Returns whether the key may use the model with this catalog id: its own list and that of its
    /// member must have it.
    pub fn allows(&self, model: &str) -> bool {
        self.key_allows(model) && self.member_allows(model)
    }

    /// Returns whether the list of the key alone has the model.
    pub fn key_allows(&self, model: &str) -> bool {
        self.settings.allows(model)
    }

    fn member_allows(&self, model: &str) -> bool {
        let member = self.member.as_ref();
        member.is_none_or(|member| is_allowed(&member.allowed_models, model))
    }

    /// Returns the id of the membership whose spending it is, if the key is a member's.
    pub fn member_id(&self) -> Option<&Arc<str>> {
        self.member.as_ref().map(|member| &member.id)
    }

    pub fn identity(&self) -> KeyIdentity {
        KeyIdentity {
            account_id: Arc::clone(&self.account_id),
            key_id: Arc::clone(&self.key_id),
            key_shown: Arc::clone(&self.key_shown),
        }
    }

    /// Returns the principal, unless its key has expired.
    pub fn check_expiry(self, now_ms: i64) -> Result<Self, AuthError> {
        if self.settings.has_expired(now_ms) {
            Err(AuthError::KeyExpired(self.identity()))
        } else {
            Ok(self)
        }
    }
}
