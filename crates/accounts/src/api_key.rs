//! Manages the API keys of accounts in `app.db`. Keys authenticate requests; holders create,
//! change, rotate and revoke them.
//!
//! This file must not depend on the format of a key, which `key.rs` defines.

use super::error::AccountError;
use super::id::new_id;
use super::key;
use super::limits::{MAX_KEY_NAME_CHARS, MAX_LIVE_KEYS};
use super::principal::{AuthError, KeyIdentity, Principal};
use super::views::ApiKeys;
use crate::db::{
    InsertKeyOutcome, KeyFilter, KeyMember, KeyOwner, KeyRow, decode_models, membership_id,
};
use crate::key_settings::{KeySettings, RateSettings};
use crate::membership::MemberAction;
use crate::settings::is_allowed;
use base::readable_name::is_readable;
use ledger::StoreError;
use std::sync::Arc;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApiKeyStatus {
    Active,
    Disabled,
    Revoked,
}

impl ApiKeyStatus {
    pub fn name(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Disabled => "disabled",
            Self::Revoked => "revoked",
        }
    }

    /// Parses a status. An unknown status counts as revoked.
    pub fn from_name(name: &str) -> Self {
        match name {
            "active" => Self::Active,
            "disabled" => Self::Disabled,
            _ => Self::Revoked,
        }
    }
}

/// A key without its text, as its owner sees it later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiKey {
    pub id: String,
    pub name: String,
    /// Shortened text of the key: `gw-sk-Ab12…wxyz`.
    pub shown: String,
    pub status: ApiKeyStatus,
    pub created_at_ms: i64,
    pub revoked_at_ms: Option<i64>,
    pub settings: KeySettings,
    /// The person (by id) who made the key, if its account is an organisation's.
    pub member: Option<String>,
    /// Catalog ids of the models that this person's keys may use; empty allows all.
    pub member_models: Vec<String>,
    /// Whether it is the login of a program, whose text changes every hour.
    pub is_login: bool,
}

/// Whose key a new one is.
#[derive(Debug, Clone, Copy)]
pub struct KeyHolder<'a> {
    /// Id of the account that pays.
    pub account: &'a str,
    /// The member (by id) of the organisation that makes it; `None`: the account's own holder, or
    /// an operator.
    pub member: Option<&'a str>,
}

/// A key with its text, as its owner sees it once after its creation.
pub struct NewKey {
    pub key_id: String,
    /// The key in plain text, which is shown once and stored nowhere.
    pub key: String,
    pub name: String,
}

impl ApiKeys<'_> {
    /// Authenticates a key. The format and the checksum are checked first, so that invalid text
    /// never reaches the database.
    ///
    /// # Errors
    /// Returns the reason for which the key is refused.
    pub fn authenticate(&self, key: &str, now_ms: i64) -> Result<Principal, AuthError> {
        if !key::is_well_formed(key) {
            return Err(AuthError::BadKey);
        }
        let owner = self.0.db.keys().key_owner(&key::hash(key));
        let owner = owner
            .map_err(AuthError::Unavailable)?
            .ok_or(AuthError::BadKey)?;
        principal(&owner, now_ms)
    }

    /// Authenticates a key like [`ApiKeys::authenticate`]; every request calls this function.
    /// Returns `None` if the key's row is not in memory. Never waits for the disk.
    pub fn authenticate_in_memory(
        &self,
        key: &str,
        now_ms: i64,
    ) -> Option<Result<Principal, AuthError>> {
        if !key::is_well_formed(key) {
            return Some(Err(AuthError::BadKey));
        }
        let owner = self.0.db.keys().key_owner_in_memory(&key::hash(key))?;
        Some(principal(&owner, now_ms))
    }

    /// Creates a key for an account (by id). The database has only the key's hash, so the returned
    /// text is the only copy.
    ///
    /// # Errors
    /// Returns an error if the name is not valid, if there is no such account, if the account has
    /// too many live keys, or if the database fails.
    pub fn create_key(
        &self,
        account: &str,
        name: &str,
        now_ms: i64,
    ) -> Result<NewKey, AccountError> {
        self.create_key_with(account, name, &KeySettings::default(), now_ms)
    }

    /// Creates a key with settings; see [`ApiKeys::create_key`].
    ///
    /// # Errors
    /// Returns the errors of [`ApiKeys::create_key`], or an error if the settings are not valid.
    pub fn create_key_with(
        &self,
        account: &str,
        name: &str,
        settings: &KeySettings,
        now_ms: i64,
    ) -> Result<NewKey, AccountError> {
        let holder = KeyHolder {
            account,
            member: None,
        };
        self.create_key_of(holder, name, settings, now_ms)
    }

    /// Creates a key like [`ApiKeys::create_key_with`], for a member of an organisation too.
    ///
    /// # Errors
    /// Returns the errors of [`ApiKeys::create_key_with`]; of a person who is no member with keys,
    /// that there is no such account.
    pub fn create_key_of(
        &self,
        holder: KeyHolder<'_>,
        name: &str,
        settings: &KeySettings,
        now_ms: i64,
    ) -> Result<NewKey, AccountError> {
        settings.validate()?;
        let name = name.trim();
        if !(1..=MAX_KEY_NAME_CHARS).contains(&name.chars().count()) {
            return Err(AccountError::BadKeyName);
        }
        if !is_readable(name) {
            return Err(AccountError::HiddenCharInKeyName);
        }
        let key = key::generate().map_err(AccountError::Random)?;
        let row = KeyRow {
            id: new_id("key_", now_ms)?,
            account: holder.account.to_owned(),
            name: name.to_owned(),
            shown: key.shown,
            status: ApiKeyStatus::Active.name().to_owned(),
            created_at_ms: now_ms,
            revoked_at_ms: None,
            settings: settings.encode(),
            member: holder.member.map(ToOwned::to_owned),
            member_models: String::new(),
            is_login: false,
        };
        let keys = self.0.db.keys();
        check_inserted(keys.insert_key(&row, &key.hash, MAX_LIVE_KEYS)?)?;
        Ok(NewKey {
            key_id: row.id,
            key: key.text,
            name: row.name,
        })
    }

    /// Returns a page of an account's keys, newest first: at most `limit`, after the key with the
    /// id `after`. Playground keys that no longer work are in none.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn page(
        &self,
        account: &str,
        filter: &KeyFilter<'_>,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<ApiKey>, StoreError> {
        let rows = self.0.db.keys().keys_page(account, filter, after, limit)?;
        rows.into_iter().map(ApiKey::from_row).collect()
    }

    /// Counts an account's keys that lists have: those that are not revoked, and those that are.
    /// With `member`, only the keys of that member.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn count(
        &self,
        account: &str,
        member: Option<&str>,
        now_ms: i64,
    ) -> Result<(u64, u64), StoreError> {
        self.0.db.keys().count_keys(account, member, now_ms)
    }

    /// Returns an account's keys (the latest 500): live ones first, then newest first.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn keys(&self, account: &str) -> Result<Vec<ApiKey>, StoreError> {
        self.0
            .db
            .keys()
            .keys(account)?
            .into_iter()
            .map(ApiKey::from_row)
            .collect()
    }

    /// Returns the live keys of a person (by id), newest first: those of the own account, and those
    /// that the person has as a member of organisations.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn keys_of_person(&self, person: &str) -> Result<Vec<ApiKey>, StoreError> {
        let rows = self.0.db.keys().keys_of_person(person)?;
        rows.into_iter().map(ApiKey::from_row).collect()
    }

    /// Returns the id of the membership of a key (by id) whose member sees nothing of others in the
    /// organisation; `None` for any other key.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn only_member(&self, account: &str, key_id: &str) -> Result<Option<String>, StoreError> {
        let found = self.0.db.keys().member_of_key(account, key_id)?;
        let only = found.filter(|(_, role)| !role.may(MemberAction::SeeUsage));
        Ok(only.map(|(person, _)| membership_id(account, &person)))
    }

    /// Returns the ids of a member's keys in an organisation that are not revoked.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn live_of_member(&self, account: &str, member: &str) -> Result<Vec<String>, StoreError> {
        self.0.db.keys().live_keys_of_member(account, member)
    }

    /// Returns a key and its account, by the key's id; with `account`, only a key of that account.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn key(
        &self,
        account: Option<&str>,
        key_id: &str,
    ) -> Result<Option<(String, ApiKey)>, StoreError> {
        let row = self
            .0
            .db
            .keys()
            .key(key_id)?
            .filter(|row| account.is_none_or(|account| account == row.account));
        row.map(|row| Ok((row.account.clone(), ApiKey::from_row(row)?)))
            .transpose()
    }

    /// Changes the settings of a live key from the next request on; with `account`, only a key of
    /// that account is changed. Concurrent changes do not undo each other. Returns the new
    /// settings.
    ///
    /// # Errors
    /// Returns an error if there is no such live key, if the settings are not valid, or if the
    /// database fails.
    pub fn change_key(
        &self,
        account: Option<&str>,
        key_id: &str,
        change: impl FnOnce(&mut KeySettings),
    ) -> Result<KeySettings, AccountError> {
        let changed = self.0.db.keys().change_key(account, key_id, |text| {
            let mut settings = KeySettings::decode(text)?;
            change(&mut settings);
            settings.validate()?;
            Ok::<_, AccountError>((settings.encode(), settings))
        })?;
        changed.ok_or(AccountError::NoKey)?
    }

    /// Creates a key with the name and the settings of another one. The old key stays valid for
    /// `overlap_ms`, or until its own expiry if that is earlier. Limits count the two keys
    /// separately.
    ///
    /// # Errors
    /// Returns an error if there is no such live key, if it is a login, if there are too many live
    /// keys, or if the database fails. If the old key could not be changed, the new one is revoked
    /// again.
    pub fn rotate_key(
        &self,
        account: Option<&str>,
        key_id: &str,
        overlap_ms: i64,
        now_ms: i64,
    ) -> Result<NewKey, AccountError> {
        let (account, old) = self.key(account, key_id)?.ok_or(AccountError::NoKey)?;
        if old.status == ApiKeyStatus::Revoked || old.settings.has_expired(now_ms) {
            return Err(AccountError::NoKey);
        }
        if old.is_login {
            return Err(AccountError::IsLogin);
        }
        let holder = KeyHolder {
            account: &account,
            member: old.member.as_deref(),
        };
        let new = self.create_key_of(holder, &old.name, &old.settings, now_ms)?;
        let ends = now_ms.saturating_add(overlap_ms.max(0));
        let expire = |settings: &mut KeySettings| settings.end_by(ends);
        if let Err(error) = self.change_key(Some(&account), key_id, expire) {
            self.revoke_key(Some(&account), &new.key_id, now_ms)?;
            return Err(error);
        }
        Ok(new)
    }

    /// Disables a key until it is enabled again, or enables it. Returns false if there is no such
    /// live key, because a revocation is permanent.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn set_key_enabled(&self, key_id: &str, enabled: bool) -> Result<bool, StoreError> {
        self.0.db.keys().set_key_active(None, key_id, enabled, None)
    }

    /// Disables or enables a key for the account holder; see [`Self::set_key_enabled`].
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn set_own_key_enabled(
        &self,
        account: &str,
        key_id: &str,
        enabled: bool,
    ) -> Result<bool, StoreError> {
        self.0
            .db
            .keys()
            .set_key_active(Some(account), key_id, enabled, None)
    }

    /// Revokes a key permanently; with `account`, only a key of that account is revoked. Returns
    /// false if there is no such live key.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn revoke_key(
        &self,
        account: Option<&str>,
        key_id: &str,
        now_ms: i64,
    ) -> Result<bool, StoreError> {
        self.0.db.keys().revoke_key(account, key_id, now_ms, None)
    }
}

impl ApiKey {
    pub(crate) fn from_row(row: KeyRow) -> Result<Self, StoreError> {
        Ok(Self {
            settings: KeySettings::decode(&row.settings)?,
            id: row.id,
            name: row.name,
            shown: row.shown,
            status: ApiKeyStatus::from_name(&row.status),
            created_at_ms: row.created_at_ms,
            revoked_at_ms: row.revoked_at_ms,
            member: row.member,
            member_models: decode_models(&row.member_models),
            is_login: row.is_login,
        })
    }

    /// Returns whether the key may use the model with this catalog id.
    pub fn allows(&self, model: &str) -> bool {
        self.settings.allows(model) && is_allowed(&self.member_models, model)
    }
}

/// Returns the error for a key that was not inserted.
pub(crate) fn check_inserted(outcome: InsertKeyOutcome) -> Result<(), AccountError> {
    match outcome {
        InsertKeyOutcome::Done => Ok(()),
        InsertKeyOutcome::NoAccount => Err(AccountError::NoAccount),
        InsertKeyOutcome::NotAllowed => Err(AccountError::NotAllowed),
        InsertKeyOutcome::LimitReached => Err(AccountError::TooManyKeys),
    }
}

/// Returns whom a key's request is of.
fn principal(owner: &KeyOwner, now_ms: i64) -> Result<Principal, AuthError> {
    let identity = || KeyIdentity {
        account_id: Arc::clone(&owner.account),
        key_id: Arc::clone(&owner.key),
        key_shown: Arc::clone(&owner.shown),
    };
    match ApiKeyStatus::from_name(&owner.status) {
        ApiKeyStatus::Revoked => return Err(AuthError::BadKey),
        ApiKeyStatus::Disabled => return Err(AuthError::KeyDisabled(identity())),
        ApiKeyStatus::Active if !owner.account_active => {
            return Err(AuthError::AccountSuspended(identity()));
        }
        ApiKeyStatus::Active => {}
    }
    let mut settings = KeySettings::decode(&owner.settings).map_err(AuthError::Unavailable)?;
    if let Some(ends) = owner.token_ends_at_ms {
        settings.end_by(ends);
    }
    let principal = Principal {
        account_id: Arc::clone(&owner.account),
        key_id: Arc::clone(&owner.key),
        key_shown: Arc::clone(&owner.shown),
        settings: Arc::new(settings),
        account_rates: RateSettings::decode(&owner.account_rates)
            .map_err(AuthError::Unavailable)?,
        member: KeyMember::decode(&owner.member_id, &owner.budget, &owner.models)
            .map_err(AuthError::Unavailable)?,
    };
    principal.check_expiry(now_ms)
}
