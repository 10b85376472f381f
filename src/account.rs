//! Accounts, their API keys and their dashboard sessions: who can call, and which account pays.
//!
//! The edge needs only [`Accounts::authenticate`]. The owner of a key is cached
//! (`store/row_cache.rs`): a change by this process (a revocation, a suspension) applies to the
//! next request, a change by another process at most a millisecond later. Must not know HTTP or
//! money. Read next: `account/key.rs` (the format of a key), `account/sign_up.rs`,
//! `account/session.rs`, `store/app.rs` and `store/app/rows.rs` (the rows).

mod audit;
mod delete;
mod invite;
mod key;
mod mailbox;
mod password;
mod session;
mod settings;
mod shared;
mod sign_up;
#[cfg(test)]
mod tests;

pub use crate::store::app::Role;
pub use crate::store::key_settings::{KeySettings, RateSettings};
pub use audit::{Actor, AuditLogReport, AuditedAccounts};
pub use delete::CloseAccountOutcome;
pub use invite::{Invite, InviteState, MAX_INVITE_MS, MAX_INVITES_PER_BATCH};
#[cfg(test)]
pub use key::generate as generate_key;
pub use key::is_well_formed as parse_key;
pub use password::{
    MAX_CHARS as PASSWORD_MOST_CHARS, MIN_CHARS as PASSWORD_LEAST_CHARS,
    generate as random_password,
};
pub use session::{NewSession, Session, SessionOrigin, SessionSummary, csrf_token, session_id};
pub use shared::SharedKeys;
pub use sign_up::{
    NewAccount, SignUpForm, SignUpResult, complete_sign_ups, open_account, open_account_as, sign_up,
};

use crate::config::MAX_RATE;
use crate::store::StoreError;
use crate::store::app::{AccountRow, AppDb, InsertKeyOutcome, KeyRow};
use crate::store::missing;
use std::path::Path;
use std::sync::Arc;

/// Maximum number of live keys per account.
pub const MAX_LIVE_KEYS: i64 = 100;

/// Maximum length of a key's name, in characters.
pub const MAX_KEY_NAME_CHARS: usize = 64;

/// Maximum length of an e-mail address, in bytes.
const MAX_EMAIL_BYTES: usize = 254;

/// Access to `app.db`. Cheap to clone.
#[derive(Clone)]
pub struct Accounts {
    db: Arc<AppDb>,
}

/// The source from which an edge authenticates keys.
#[derive(Clone)]
pub enum KeyAuthenticator {
    Here(Accounts),
    Shared(SharedKeys),
}

impl KeyAuthenticator {
    /// Authenticates a key; see [`Accounts::authenticate`].
    ///
    /// # Errors
    /// Returns why the key is refused.
    pub async fn authenticate(&self, key: &str, now_ms: i64) -> Result<Principal, AuthError> {
        match self {
            Self::Here(accounts) => accounts.authenticate(key, now_ms),
            Self::Shared(keys) => keys.authenticate(key, now_ms).await,
        }
    }
}

/// The account and the key that pay for a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Principal {
    pub account_id: Arc<str>,
    pub key_id: Arc<str>,
    pub key_shown: Arc<str>,
    /// Settings of the key, made by its owner.
    pub settings: Arc<KeySettings>,
    /// Rate settings of the account.
    pub account_rates: RateSettings,
}

/// Why a key is refused.
#[derive(Debug, thiserror::Error)]
pub enum AuthError {
    /// Malformed, wrong checksum, unknown or revoked: the caller cannot see which.
    #[error("this is not a valid gateway key")]
    BadKey,
    #[error("the key has expired")]
    KeyExpired,
    #[error("the key is disabled")]
    KeyDisabled,
    #[error("the account is suspended")]
    AccountSuspended,
    #[error("cannot check keys: {0}")]
    Unavailable(StoreError),
}

#[derive(Debug, thiserror::Error)]
pub enum AccountError {
    #[error(
        "this is not a valid e-mail address: it needs one @, no spaces, and at most 254 ASCII characters"
    )]
    BadEmail,
    #[error("this e-mail already has an account")]
    EmailTaken,
    #[error(
        "a password must have {PASSWORD_LEAST_CHARS} to {PASSWORD_MOST_CHARS} characters and must not be a common password"
    )]
    BadPassword,
    #[error("a key's name must have 1 to {MAX_KEY_NAME_CHARS} characters")]
    BadKeyName,
    #[error("an account can have at most {MAX_LIVE_KEYS} active keys: revoke one first")]
    TooManyKeys,
    #[error("the account does not exist")]
    NoAccount,
    #[error("the key does not exist or is revoked")]
    NoKey,
    #[error("a key can be restricted to at most 100 models, by their catalog ids")]
    BadModels,
    #[error("a rate limit must be at most {MAX_RATE}; 0 means no limit")]
    BadRate,
    #[error("sign-up is closed")]
    SignUpClosed,
    #[error("the invite code is unknown, used or expired")]
    NoInvite,
    #[error("no trials are left today: the next ones are available from 00:00 UTC")]
    TrialsSpent,
    #[error("the number must be 1 to {MAX_INVITES_PER_BATCH}, and the validity at most {} days", MAX_INVITE_MS / 86_400_000)]
    BadInvite,
    #[error("too many invitations are open: revoke some, or wait until some are used or expire")]
    TooManyInvites,
    #[error("cannot read random numbers: {0}")]
    Random(getrandom::Error),
    #[error(transparent)]
    Password(#[from] password::HashError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccountStatus {
    Active,
    Suspended,
    /// The holder closed the account permanently. Only [`Accounts::delete`] sets this.
    Deleted,
}

impl AccountStatus {
    pub fn name(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Suspended => "suspended",
            Self::Deleted => "deleted",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    pub id: String,
    pub email: String,
    pub role: Role,
    pub status: AccountStatus,
    pub created_at_ms: i64,
}

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

    /// An unknown status counts as revoked.
    fn from_name(name: &str) -> Self {
        match name {
            "active" => Self::Active,
            "disabled" => Self::Disabled,
            _ => Self::Revoked,
        }
    }
}

/// A key as its owner sees it later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiKey {
    pub id: String,
    pub name: String,
    /// `gw-sk-Ab12…wxyz`.
    pub shown: String,
    pub status: ApiKeyStatus,
    pub created_at_ms: i64,
    pub revoked_at_ms: Option<i64>,
    pub settings: KeySettings,
}

/// A key as its owner sees it once, after its creation.
pub struct NewKey {
    pub key_id: String,
    /// The key in plain text: shown once and stored nowhere.
    pub key: String,
    pub name: String,
}

impl Accounts {
    /// Opens `app.db` in `data_dir`.
    ///
    /// # Errors
    /// Returns an error if `app.db` cannot be opened or migrated, or if it has no account although
    /// the ledger has entries.
    pub fn open(data_dir: &Path) -> Result<Self, StoreError> {
        if let Some(fault) = missing::app(data_dir)? {
            return Err(StoreError::Unusable(fault));
        }
        Ok(Self {
            db: Arc::new(AppDb::open(data_dir)?),
        })
    }

    /// Authenticates a key; every request calls this. Checks the format and the checksum first, so
    /// that invalid text never reaches the database.
    ///
    /// # Errors
    /// Returns why the key is refused.
    pub fn authenticate(&self, key: &str, now_ms: i64) -> Result<Principal, AuthError> {
        if !parse_key(key) {
            return Err(AuthError::BadKey);
        }
        let owner = self
            .db
            .key_owner(&key::hash(key))
            .map_err(AuthError::Unavailable)?
            .ok_or(AuthError::BadKey)?;
        match ApiKeyStatus::from_name(&owner.status) {
            ApiKeyStatus::Revoked => return Err(AuthError::BadKey),
            ApiKeyStatus::Disabled => return Err(AuthError::KeyDisabled),
            ApiKeyStatus::Active if !owner.account_active => {
                return Err(AuthError::AccountSuspended);
            }
            ApiKeyStatus::Active => {}
        }
        let principal = Principal {
            account_id: Arc::clone(&owner.account),
            key_id: Arc::clone(&owner.key),
            key_shown: Arc::clone(&owner.shown),
            settings: Arc::new(
                KeySettings::decode(&owner.settings).map_err(AuthError::Unavailable)?,
            ),
            account_rates: RateSettings::decode(&owner.account_rates)
                .map_err(AuthError::Unavailable)?,
        };
        principal.check_expiry(now_ms)
    }

    /// Finds an account by its id or its e-mail.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn find(&self, id_or_email: &str) -> Result<Option<Account>, StoreError> {
        let found = match normalize_email(id_or_email) {
            Ok(email) => self.db.account_by_email(&email)?.map(|(row, _)| row),
            Err(_) => self.db.account(id_or_email)?,
        };
        Ok(found.map(Account::from))
    }

    /// Returns accounts whose id or e-mail begins with `prefix`, in pages like [`Accounts::page`].
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn search(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<Account>, StoreError> {
        let prefix = prefix.trim().to_ascii_lowercase();
        let rows = self
            .db
            .search_accounts(&prefix, after.unwrap_or_default(), limit)?;
        Ok(rows.into_iter().map(Account::from).collect())
    }

    /// Returns all accounts, oldest first.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn list(&self) -> Result<Vec<Account>, StoreError> {
        Ok(self.db.accounts()?.into_iter().map(Account::from).collect())
    }

    /// Returns a page of accounts in the order of their creation: at most `limit`, after the one
    /// with the id `after`.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn page(&self, after: Option<&str>, limit: u32) -> Result<Vec<Account>, StoreError> {
        Ok(self
            .db
            .accounts_after(after.unwrap_or_default(), limit)?
            .into_iter()
            .map(Account::from)
            .collect())
    }

    /// Sets an account's status. Returns false if there is no such account. The keys of a suspended
    /// account are refused from the next request on.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn set_status(&self, id: &str, status: AccountStatus) -> Result<bool, StoreError> {
        self.db
            .set_active(id, status == AccountStatus::Active, None)
    }

    /// Returns the account if the password is correct. An unknown e-mail takes as long as a wrong
    /// password. Call it on a blocking thread.
    ///
    /// # Errors
    /// Returns an error if the database or the password hash fails.
    pub fn check_password(
        &self,
        email: &str,
        password: &str,
    ) -> Result<Option<Account>, AccountError> {
        let found = match normalize_email(email) {
            Ok(email) => self.db.account_by_email(&email)?,
            Err(_) => None,
        };
        let (row, stored) = found.map_or((None, None), |(row, stored)| (Some(row), stored));
        let too_long = password.chars().count() > password::MAX_CHARS;
        let checked = password::check(if too_long { "" } else { password }, stored.as_deref())?;
        match (row, checked) {
            (Some(row), password::PasswordCheck::Right) => Ok(Some(row.into())),
            (Some(row), password::PasswordCheck::RightButOld) => {
                self.db.set_password(&row.id, &password::hash(password)?)?;
                Ok(Some(row.into()))
            }
            _ => Ok(None),
        }
    }

    /// Creates a key for an account (by id). The database has only its hash: the returned text is
    /// the only copy.
    ///
    /// # Errors
    /// Returns an error if the name is not valid, if there is no such account, if it has too many
    /// live keys, or if the database fails.
    pub fn create_key(
        &self,
        account: &str,
        name: &str,
        now_ms: i64,
    ) -> Result<NewKey, AccountError> {
        self.create_key_with(account, name, &KeySettings::default(), now_ms)
    }

    /// Creates a key with settings; see [`Accounts::create_key`].
    ///
    /// # Errors
    /// Returns the errors of [`Accounts::create_key`], or an error if the settings are not valid.
    pub fn create_key_with(
        &self,
        account: &str,
        name: &str,
        settings: &KeySettings,
        now_ms: i64,
    ) -> Result<NewKey, AccountError> {
        settings.validate()?;
        let name = name.trim();
        if !(1..=MAX_KEY_NAME_CHARS).contains(&name.chars().count())
            || name.chars().any(char::is_control)
        {
            return Err(AccountError::BadKeyName);
        }
        let key = key::generate().map_err(AccountError::Random)?;
        let row = KeyRow {
            id: new_id("key_", now_ms)?,
            account: account.to_owned(),
            name: name.to_owned(),
            shown: key.shown,
            status: ApiKeyStatus::Active.name().to_owned(),
            created_at_ms: now_ms,
            revoked_at_ms: None,
            settings: settings.encode(),
        };
        match self.db.insert_key(&row, &key.hash, MAX_LIVE_KEYS)? {
            InsertKeyOutcome::Done => Ok(NewKey {
                key_id: row.id,
                key: key.text,
                name: row.name,
            }),
            InsertKeyOutcome::NoAccount => Err(AccountError::NoAccount),
            InsertKeyOutcome::LimitReached => Err(AccountError::TooManyKeys),
        }
    }

    /// Returns an account's keys (the latest 500): live ones first, then newest first.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn keys(&self, account: &str) -> Result<Vec<ApiKey>, StoreError> {
        self.db
            .keys(account)?
            .into_iter()
            .map(ApiKey::from_row)
            .collect()
    }

    /// Returns a key and its account, by the key's id; only a key of `account`, if given.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn key(
        &self,
        account: Option<&str>,
        key_id: &str,
    ) -> Result<Option<(String, ApiKey)>, StoreError> {
        let row = self
            .db
            .key(key_id)?
            .filter(|row| account.is_none_or(|account| account == row.account));
        row.map(|row| Ok((row.account.clone(), ApiKey::from_row(row)?)))
            .transpose()
    }

    /// Changes the settings of a live key from the next request on; only a key of `account`, if
    /// given. Two changes at the same time do not undo each other. Returns the new settings.
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
        let changed = self.db.change_key(account, key_id, |text| {
            let mut settings = KeySettings::decode(text)?;
            change(&mut settings);
            settings.validate()?;
            Ok::<_, AccountError>((settings.encode(), settings))
        })?;
        changed.ok_or(AccountError::NoKey)?
    }

    /// Creates a key with the name and the settings of another one. The old key stays valid for
    /// `overlap_ms`, or until it would have expired by itself, whichever is first. Limits count the
    /// two keys separately.
    ///
    /// # Errors
    /// Returns an error if there is no such live key, if there are too many live keys, or if the
    /// database fails. If the old key could not be changed, the new one is revoked again.
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
        let new = self.create_key_with(&account, &old.name, &old.settings, now_ms)?;
        let ends = now_ms.saturating_add(overlap_ms.max(0));
        let expire = |settings: &mut KeySettings| {
            settings.expires_at_ms = Some(
                settings
                    .expires_at_ms
                    .map_or(ends, |expires| expires.min(ends)),
            );
        };
        if let Err(error) = self.change_key(Some(&account), key_id, expire) {
            self.revoke_key(Some(&account), &new.key_id, now_ms)?;
            return Err(error);
        }
        Ok(new)
    }

    /// Returns the rate settings of an account (by id), which replace the defaults of the config
    /// file.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn account_rates(&self, account: &str) -> Result<RateSettings, StoreError> {
        RateSettings::decode(&self.db.account_rates(account)?.unwrap_or_default())
    }

    /// Sets the rate settings of an account from the next request on. Returns false if there is no
    /// such account.
    ///
    /// # Errors
    /// Returns an error if a rate is above the maximum, or if the database fails.
    pub fn set_account_rates(
        &self,
        account: &str,
        rates: &RateSettings,
    ) -> Result<bool, AccountError> {
        rates.validate()?;
        Ok(self.db.set_account_rates(account, &rates.encode())?)
    }

    /// Disables a key until it is enabled again, or enables it. Returns false if there is no such
    /// live key: a revocation is permanent.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn set_key_enabled(&self, key_id: &str, enabled: bool) -> Result<bool, StoreError> {
        self.db.set_key_active(None, key_id, enabled, None)
    }

    /// Disables or enables a key for the account holder; see [`Accounts::set_key_enabled`].
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn set_own_key_enabled(
        &self,
        account: &str,
        key_id: &str,
        enabled: bool,
    ) -> Result<bool, StoreError> {
        self.db.set_key_active(Some(account), key_id, enabled, None)
    }

    /// Revokes a key permanently; only a key of `account`, if given. Returns false if there is no
    /// such live key.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn revoke_key(
        &self,
        account: Option<&str>,
        key_id: &str,
        now_ms: i64,
    ) -> Result<bool, StoreError> {
        self.db.revoke_key(account, key_id, now_ms, None)
    }
}

impl From<AccountRow> for Account {
    fn from(row: AccountRow) -> Self {
        let status = match (row.deleted, row.active) {
            (true, _) => AccountStatus::Deleted,
            (false, true) => AccountStatus::Active,
            (false, false) => AccountStatus::Suspended,
        };
        Self {
            id: row.id,
            email: row.email,
            role: row.role,
            status,
            created_at_ms: row.created_at_ms,
        }
    }
}

impl Principal {
    /// Returns the principal, unless its key has expired.
    fn check_expiry(self, now_ms: i64) -> Result<Self, AuthError> {
        if self.settings.has_expired(now_ms) {
            Err(AuthError::KeyExpired)
        } else {
            Ok(self)
        }
    }
}

impl ApiKey {
    fn from_row(row: KeyRow) -> Result<Self, StoreError> {
        Ok(Self {
            settings: KeySettings::decode(&row.settings)?,
            id: row.id,
            name: row.name,
            shown: row.shown,
            status: ApiKeyStatus::from_name(&row.status),
            created_at_ms: row.created_at_ms,
            revoked_at_ms: row.revoked_at_ms,
        })
    }
}

/// Trims an e-mail and converts it to lower case: the form in which e-mails are unique.
fn normalize_email(text: &str) -> Result<String, AccountError> {
    let email = text.trim().to_ascii_lowercase();
    let (local, domain) = email.split_once('@').ok_or(AccountError::BadEmail)?;
    let plain = |part: &str| {
        !part.is_empty()
            && part
                .bytes()
                .all(|byte| byte.is_ascii_graphic() && byte != b'@')
    };
    if email.len() > MAX_EMAIL_BYTES || !plain(local) || !plain(domain) {
        return Err(AccountError::BadEmail);
    }
    Ok(email)
}

/// Returns `prefix` and a UUIDv7 of `now_ms` in 32 hex digits.
fn new_id(prefix: &str, now_ms: i64) -> Result<String, AccountError> {
    let mut random = [0u8; 10];
    getrandom::fill(&mut random).map_err(AccountError::Random)?;
    let millis = u64::try_from(now_ms).unwrap_or(0);
    let id = uuid::Builder::from_unix_timestamp_millis(millis, &random).into_uuid();
    Ok(format!("{prefix}{}", id.simple()))
}
