//! Signs programs in for people (RFC 8628): a program asks and gets two codes, a person answers by
//! the one, the program fetches its login by the other and refreshes it from then on.
//!
//! A login is an API key for inference whose text changes with each refresh: limits, spending and
//! revocation are the key's. This file must not depend on HTTP.

use super::api_key::{ApiKeyStatus, KeyHolder, check_inserted};
use super::audit::{AuditChange, AuditedAccounts};
use super::error::AccountError;
use super::id::new_id;
use super::key;
use super::limits::{MAX_KEY_NAME_CHARS, MAX_LIVE_KEYS};
use super::session::{encode_hex, hash_token, new_token};
use super::views::DeviceLogins;
use crate::db::KeyRow;
use crate::db::device_logins::{
    BeginOutcome, DeviceAnswer, DeviceRequest, NewLoginToken, Refresh, RefreshOutcome,
};
use crate::key_settings::{KeyScope, KeySettings};
use ledger::StoreError;
use serde_json::json;
use sha2::{Digest, Sha256};

/// Time in ms in which a person can answer a request.
pub const DEVICE_REQUEST_MS: i64 = 600_000;

/// Lifetime of a token in ms: an hour.
pub const LOGIN_TOKEN_MS: i64 = 3_600_000;

/// Time in ms after which a login ends that was not refreshed: 30 days.
const LOGIN_MS: i64 = 30 * 86_400_000;

/// Time in ms for which the tokens of before a refresh work, so that running requests end well.
const OVERLAP_MS: i64 = 60_000;

/// Maximum number of requests that are kept. At the limit, a new one ends the oldest.
const MAX_REQUESTS: i64 = 10_000;

/// Letters of user codes (RFC 8628 section 6.1): no vowels, so that a code is no word.
const CODE_LETTERS: &[u8; 20] = b"BCDFGHJKLMNPQRSTVWXZ";
const CODE_LENGTH: usize = 8;

/// Number of user codes that are tried until one is free.
const CODE_ATTEMPTS: usize = 8;

/// Start of a refresh token. Two times 64 hex digits follow: those of the login, and its own.
const REFRESH_PREFIX: &str = "gw-rt-";
const PART_DIGITS: usize = 64;

/// The codes of a new request.
pub struct NewDeviceRequest {
    /// For the program alone, which fetches its login by it.
    pub device_code: String,
    /// For the person, such as `BCDF-GHJK`.
    pub user_code: String,
}

/// What a program gets that asks for the answer to its request.
pub enum DevicePoll {
    /// There is no such request, or its login was fetched.
    Unknown,
    Open,
    Refused,
    Expired,
    Approved(LoginTokens),
}

/// What a program gets for a refresh token.
pub enum LoginRefresh {
    Done(LoginTokens),
    /// The token is unknown, or its login does not work any more.
    Invalid,
    /// The token was used before, so its login is revoked. Holds the id of the login's key.
    Reused(String),
    TooMany,
}

/// The tokens of a login in plain text, which are stored nowhere.
pub struct LoginTokens {
    /// Id of the login's key.
    pub key_id: String,
    /// Text of the key. It lasts [`LOGIN_TOKEN_MS`].
    pub access_token: String,
    pub refresh_token: String,
    /// E-mail of the person who approved the login.
    pub email: String,
}

/// A token that is not stored yet.
struct FreshToken {
    key: key::GeneratedKey,
    now_ms: i64,
}

impl FreshToken {
    fn new(now_ms: i64) -> Result<Self, AccountError> {
        let key = key::generate().map_err(AccountError::Random)?;
        Ok(Self { key, now_ms })
    }

    fn row(&self) -> NewLoginToken<'_> {
        NewLoginToken {
            hash: &self.key.hash,
            shown: &self.key.shown,
            expires_at_ms: self.now_ms + LOGIN_TOKEN_MS,
            login_ends_at_ms: self.now_ms + LOGIN_MS,
            now_ms: self.now_ms,
        }
    }

    fn into_tokens(self, key_id: String, refresh_token: String, email: String) -> LoginTokens {
        LoginTokens {
            key_id,
            access_token: self.key.text,
            refresh_token,
            email,
        }
    }
}

impl DeviceLogins<'_> {
    /// Begins the sign-in of a program. `client`: what it calls itself; `address`: from where.
    ///
    /// # Errors
    /// Returns an error if there is no randomness, or if the database fails.
    pub fn request(
        &self,
        client: &str,
        address: &str,
        now_ms: i64,
    ) -> Result<NewDeviceRequest, AccountError> {
        let device_code = new_token()?;
        for _ in 0..CODE_ATTEMPTS {
            let request = DeviceRequest {
                user_code: new_user_code()?,
                client: client.to_owned(),
                address: address.to_owned(),
                created_at_ms: now_ms,
                expires_at_ms: now_ms + DEVICE_REQUEST_MS,
            };
            let rows = self.0.db.device_logins();
            if rows.insert_request(&hash_token(&device_code), &request, MAX_REQUESTS)? {
                let user_code = shown_code(&request.user_code);
                return Ok(NewDeviceRequest {
                    device_code,
                    user_code,
                });
            }
        }
        let taken = "cannot find a free user code for the sign-in of a program";
        Err(StoreError::Unusable(taken.into()).into())
    }

    /// Returns the request that a person can answer by a code as they typed it.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn open_request(
        &self,
        typed_code: &str,
        now_ms: i64,
    ) -> Result<Option<DeviceRequest>, StoreError> {
        let Some(code) = parse_user_code(typed_code) else {
            return Ok(None);
        };
        let found = self.0.db.device_logins().open_request(&code, now_ms)?;
        Ok(found.map(|request| DeviceRequest {
            user_code: shown_code(&request.user_code),
            ..request
        }))
    }

    /// Returns the answer to a program's request, with the tokens of its login the first time.
    ///
    /// # Errors
    /// Returns an error if there is no randomness, or if the database fails.
    pub fn poll(&self, device_code: &str, now_ms: i64) -> Result<DevicePoll, AccountError> {
        let (rows, hash) = (self.0.db.device_logins(), hash_token(device_code));
        let login = match rows.answer(&hash, now_ms)? {
            None => return Ok(DevicePoll::Unknown),
            Some(DeviceAnswer::Open) => return Ok(DevicePoll::Open),
            Some(DeviceAnswer::Refused) => return Ok(DevicePoll::Refused),
            Some(DeviceAnswer::Expired) => return Ok(DevicePoll::Expired),
            Some(DeviceAnswer::Approved(login)) => login,
        };
        let (token, family) = (FreshToken::new(now_ms)?, new_token()?);
        let refresh = format!("{REFRESH_PREFIX}{family}{}", new_token()?);
        let hashes = (&hash_token(&family), &hash_token(&refresh));
        Ok(match rows.begin(&hash, &login, hashes, &token.row())? {
            BeginOutcome::Done { email } => {
                DevicePoll::Approved(token.into_tokens(login, refresh, email))
            }
            BeginOutcome::Ended => DevicePoll::Refused,
            BeginOutcome::Used => DevicePoll::Unknown,
        })
    }

    /// Returns new tokens for a refresh token, which is used up. `address`: from where it comes.
    ///
    /// # Errors
    /// Returns an error if there is no randomness, or if the database fails.
    pub fn refresh(
        &self,
        refresh_token: &str,
        address: &str,
        now_ms: i64,
    ) -> Result<LoginRefresh, AccountError> {
        let rows = self.0.db.device_logins();
        let Some(family) = family_of(refresh_token) else {
            return Ok(LoginRefresh::Invalid);
        };
        let family_hash = hash_token(family);
        let Some(secret) = rows.secret(&family_hash)? else {
            return Ok(LoginRefresh::Invalid);
        };
        // The next token derives from this one, so that two processes of a program, or one that
        // did not receive the response, get the same.
        let mut own = Sha256::new();
        own.update(secret);
        own.update(refresh_token);
        let next = format!("{REFRESH_PREFIX}{family}{}", encode_hex(&own.finalize()));
        let token = FreshToken::new(now_ms)?;
        let refresh = Refresh {
            family: &family_hash,
            presented: &hash_token(refresh_token),
            overlap_ms: OVERLAP_MS,
            token: token.row(),
            address,
        };
        Ok(match rows.refresh(&refresh, &hash_token(&next))? {
            RefreshOutcome::Done { login, email } => {
                LoginRefresh::Done(token.into_tokens(login, next, email))
            }
            RefreshOutcome::Invalid => LoginRefresh::Invalid,
            RefreshOutcome::Reused { login } => LoginRefresh::Reused(login),
            RefreshOutcome::TooMany => LoginRefresh::TooMany,
        })
    }

    /// Revokes the login that a token is of, for its program. Returns the id of its key; `None` if
    /// there is no such login.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn revoke(&self, token: &str, now_ms: i64) -> Result<Option<String>, StoreError> {
        let text = family_of(token).unwrap_or(token);
        let login = self.0.db.device_logins().login_of(&hash_token(text))?;
        if let Some(key) = &login {
            self.0.api_keys().revoke_key(None, key, now_ms)?;
        }
        Ok(login)
    }
}

impl AuditedAccounts<'_> {
    /// Approves the sign-in of a program in the name of the actor. `holder`: whose key the login
    /// is. Returns false if nobody can answer the request any more.
    ///
    /// # Errors
    /// Returns an error if the person is no member with keys, if there are too many live keys, if
    /// there is no randomness, or if the database fails.
    pub fn approve_login(
        &self,
        typed_code: &str,
        holder: KeyHolder<'_>,
    ) -> Result<bool, AccountError> {
        let now_ms = self.now_ms();
        let device_logins = self.accounts.device_logins();
        let Some(request) = device_logins.open_request(typed_code, now_ms)? else {
            return Ok(false);
        };
        let mut secret = [0u8; 32];
        getrandom::fill(&mut secret).map_err(AccountError::Random)?;
        let settings = KeySettings {
            // Until its program fetches it, which moves the end.
            expires_at_ms: Some(request.expires_at_ms),
            scope: Some(KeyScope::Inference),
            ..KeySettings::default()
        };
        let unused = key::generate().map_err(AccountError::Random)?;
        let row = KeyRow {
            id: new_id("key_", now_ms)?,
            account: holder.account.to_owned(),
            name: request.client.chars().take(MAX_KEY_NAME_CHARS).collect(),
            shown: unused.shown,
            status: ApiKeyStatus::Active.name().to_owned(),
            created_at_ms: now_ms,
            revoked_at_ms: None,
            settings: settings.encode(),
            member: holder.member.map(ToOwned::to_owned),
            member_models: String::new(),
            is_login: true,
        };
        let what =
            json!({"account": row.account, "program": request.client, "address": request.address});
        let change = AuditChange::new("login.approve", &row.id, &what);
        let outcome = self.accounts.db.device_logins().approve(
            &plain_code(&request.user_code),
            self.actor(),
            (&row, &unused.hash, &secret),
            (MAX_LIVE_KEYS, request.expires_at_ms),
            &self.audit_entry(&change),
        )?;
        outcome.map_or(Ok(false), |outcome| check_inserted(outcome).map(|()| true))
    }

    /// Refuses the sign-in of a program in the name of the actor. Returns false if nobody can
    /// answer the request any more.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn refuse_login(&self, typed_code: &str) -> Result<bool, StoreError> {
        let device_logins = self.accounts.device_logins();
        let Some(request) = device_logins.open_request(typed_code, self.now_ms())? else {
            return Ok(false);
        };
        let what = json!({"program": request.client, "address": request.address});
        let change = AuditChange::new("login.refuse", self.actor(), &what);
        let code = plain_code(&request.user_code);
        let rows = self.accounts.db.device_logins();
        rows.refuse(&code, &self.audit_entry(&change))
    }
}

/// Returns the digits that all refresh tokens of a login begin with, of a well-formed one.
fn family_of(refresh_token: &str) -> Option<&str> {
    let digits = refresh_token.strip_prefix(REFRESH_PREFIX)?;
    let is_hex = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    (digits.len() == 2 * PART_DIGITS && is_hex).then(|| &digits[..PART_DIGITS])
}

fn new_user_code() -> Result<String, AccountError> {
    let mut code = String::with_capacity(CODE_LENGTH);
    while code.len() < CODE_LENGTH {
        let mut bits = [0u8; 2 * CODE_LENGTH];
        getrandom::fill(&mut bits).map_err(AccountError::Random)?;
        // 240 is a multiple of 20: bytes from there on would make some letters likelier.
        let fair = bits.into_iter().filter(|byte| *byte < 240);
        let letters = fair.map(|byte| char::from(CODE_LETTERS[usize::from(byte % 20)]));
        code.extend(letters.take(CODE_LENGTH - code.len()));
    }
    Ok(code)
}

/// Returns a code as people read it: in two halves.
fn shown_code(code: &str) -> String {
    let (start, end) = code.split_at(CODE_LENGTH / 2);
    format!("{start}-{end}")
}

fn plain_code(shown: &str) -> String {
    shown.replace('-', "")
}

/// Returns the code that a person typed, in any case, and with spaces and hyphens anywhere.
fn parse_user_code(typed: &str) -> Option<String> {
    let letters = typed.chars().filter(|letter| !matches!(letter, ' ' | '-'));
    let code: String = letters
        .take(CODE_LENGTH + 1)
        .map(|letter| letter.to_ascii_uppercase())
        .collect();
    let is_code = code.len() == CODE_LENGTH && code.bytes().all(|it| CODE_LETTERS.contains(&it));
    is_code.then_some(code)
}

#[cfg(test)]
mod tests;
