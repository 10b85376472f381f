//! Manages dashboard sessions. The cookie contains a 256-bit token, and the database its SHA-256. A
//! session ends after 12 hours without use, or after 7 days.
//!
//! This file must not depend on cookies or HTTP, which `sidecar/session.rs` handles.

use super::accounts::Account;
use super::audit::{AuditChange, AuditedAccounts};
use super::error::AccountError;
use super::views::Logins;
use super::{mailbox, password};
use crate::db::session::{NewSessionRow, SessionLifetime};
use crate::membership::OrganisationRole;
use base::clock::now_ms;
use ledger::StoreError;
use serde_json::Value;
use sha2::{Digest, Sha256};

const HOUR_MS: i64 = 3_600_000;
const LIFETIME: SessionLifetime = SessionLifetime {
    idle_ms: 12 * HOUR_MS,
    absolute_ms: 7 * 24 * HOUR_MS,
};

/// Minimum time in ms between two recorded uses of a session, because a disk write for each page
/// view would be wasteful.
const TOUCH_INTERVAL_MS: i64 = 60_000;

/// Number of hex digits of a token: 256 bits.
const TOKEN_DIGITS: usize = 64;

/// Maximum number of sessions per account. At the limit, a new session ends the oldest.
const MAX_SESSIONS: i64 = 50;

/// Time in ms for which an entered password counts as a confirmation. Afterwards, the holder must
/// enter the password again.
const CONFIRMATION_TTL_MS: i64 = 10 * 60_000;

/// Maximum length of a browser's name and of an address, in characters.
const MAX_ORIGIN_CHARS: usize = 80;

/// Number of hash bytes in a session's id. They identify a session and grant no access.
const ID_BYTES: usize = 16;

/// Browser and address from which a session was started, for its holder.
#[derive(Debug, Clone, Copy, Default)]
pub struct SessionOrigin<'a> {
    pub address: &'a str,
    pub browser: &'a str,
}

/// A session in its holder's list.
#[derive(Debug, Clone)]
pub struct SessionSummary {
    pub id: String,
    pub created_at_ms: i64,
    pub used_at_ms: i64,
    pub address: String,
    pub browser: String,
}

/// A new session's token, which is stored nowhere else.
pub struct NewSession {
    pub token: String,
}

#[derive(Debug, Clone)]
pub struct Session {
    /// The account that the session shows: the person's own one, or an organisation's.
    pub account: Account,
    /// The own account of the person who signed in.
    pub person: Account,
    /// What the person may do in the account that is shown.
    pub role: OrganisationRole,
    /// Whether the person has a password.
    pub has_password: bool,
    used_at_ms: i64,
    confirmed_at_ms: i64,
}

impl Session {
    /// Returns whether this use must be recorded with [`Logins::touch_session`].
    pub fn is_touch_due(&self, now_ms: i64) -> bool {
        now_ms.saturating_sub(self.used_at_ms) >= TOUCH_INTERVAL_MS
    }

    /// Returns whether the holder entered the password recently, so that pages do not ask again.
    pub fn is_confirmed(&self, now_ms: i64) -> bool {
        now_ms.saturating_sub(self.confirmed_at_ms) < CONFIRMATION_TTL_MS
    }
}

impl Logins<'_> {
    /// Creates a session.
    ///
    /// # Errors
    /// Returns an error if there is no randomness, or if the database fails.
    pub fn create_session(&self, account: &str, now_ms: i64) -> Result<NewSession, AccountError> {
        self.create_session_from(account, SessionOrigin::default(), now_ms)
    }

    /// Creates a session with its origin, for a person who has just entered the password or signed
    /// in at a provider.
    ///
    /// # Errors
    /// Returns an error if there is no randomness, or if the database fails.
    pub fn create_session_from(
        &self,
        account: &str,
        origin: SessionOrigin<'_>,
        now_ms: i64,
    ) -> Result<NewSession, AccountError> {
        let token = new_token()?;
        let cut = |text: &str| text.chars().take(MAX_ORIGIN_CHARS).collect::<String>();
        let row = NewSessionRow {
            hash: &hash_token(&token),
            account,
            created_at_ms: now_ms,
            confirmed_at_ms: now_ms,
            address: &cut(origin.address),
            browser: &cut(origin.browser),
        };
        self.0
            .db
            .sessions()
            .insert_session(&row, LIFETIME, MAX_SESSIONS)?;
        Ok(NewSession { token })
    }

    /// Returns the valid session of a token. Finding a session does not count as a use.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn find_session(&self, token: &str, now_ms: i64) -> Result<Option<Session>, StoreError> {
        if token.len() != TOKEN_DIGITS {
            return Ok(None);
        }
        let Some(found) = self
            .0
            .db
            .sessions()
            .session(&hash_token(token), now_ms, LIFETIME)?
        else {
            return Ok(None);
        };
        let people = self.0.db.people();
        let Some(person) = people.account(&found.account)?.map(Account::from) else {
            return Ok(None);
        };
        let (account, role) = match found.shown {
            Some((id, role)) => (people.account(&id)?.map(Account::from), role),
            None => (Some(person.clone()), OrganisationRole::Owner),
        };
        Ok(account.map(|account| Session {
            account,
            person,
            role,
            has_password: found.has_password,
            used_at_ms: found.used_at_ms,
            confirmed_at_ms: found.confirmed_at_ms,
        }))
    }

    /// Records a use of a session, which restarts its idle time.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn touch_session(&self, token: &str, now_ms: i64) -> Result<(), StoreError> {
        self.0
            .db
            .sessions()
            .touch_session(&hash_token(token), now_ms)
    }

    /// Ends a session.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn end_session(&self, token: &str) -> Result<(), StoreError> {
        let hash = hash_token(token);
        let session = self.0.db.sessions().session(&hash, now_ms(), LIFETIME)?;
        self.0.db.sessions().end_session(&hash)?;
        if let Some(session) = session {
            self.0.api_keys().end_playgrounds(&session.account);
        }
        Ok(())
    }

    /// Returns the valid sessions of an account, last used first.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn sessions(&self, account: &str, now_ms: i64) -> Result<Vec<SessionSummary>, StoreError> {
        let rows = self.0.db.sessions().sessions(account, now_ms, LIFETIME)?;
        let own = rows.into_iter().map(|row| SessionSummary {
            id: id_from_hash(&row.hash),
            created_at_ms: row.created_at_ms,
            used_at_ms: row.used_at_ms,
            address: row.address,
            browser: row.browser,
        });
        Ok(own.collect())
    }

    /// Ends one session of an account, by its id. Returns false if there is none.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn end_own_session(&self, account: &str, id: &str) -> Result<bool, StoreError> {
        let Some(start) = decode_hex(id).filter(|start| start.len() == ID_BYTES) else {
            return Ok(false);
        };
        let has_ended = self
            .0
            .db
            .sessions()
            .end_session_by_prefix(account, &start)?;
        self.0.api_keys().end_playgrounds(account);
        Ok(has_ended)
    }

    /// Ends the sessions of an account except the one with this token. Returns their number.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn end_other_sessions(&self, account: &str, token: &str) -> Result<usize, StoreError> {
        let ended = self
            .0
            .db
            .sessions()
            .end_other_sessions(account, &hash_token(token))?;
        self.0.api_keys().end_playgrounds(account);
        Ok(ended)
    }

    /// Records that the holder of this session has just entered the password.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn confirm_session(&self, token: &str, now_ms: i64) -> Result<(), StoreError> {
        self.0
            .db
            .sessions()
            .confirm_session(&hash_token(token), now_ms)
    }

    /// Returns the account if the password is correct. An unknown e-mail takes as long as a wrong
    /// password. Hashing is slow, so call this function on a blocking thread.
    ///
    /// # Errors
    /// Returns an error if the database or the password hash fails.
    pub fn check_password(
        &self,
        email: &str,
        password: &str,
    ) -> Result<Option<Account>, AccountError> {
        let found = self
            .0
            .db
            .people()
            .account_by_email(&mailbox::email_key(email))?;
        let (row, stored) = found.map_or((None, None), |(row, stored)| (Some(row), stored));
        let too_long = password.chars().count() > password::MAX_CHARS;
        let checked = password::check(if too_long { "" } else { password }, stored.as_deref())?;
        match (row, checked) {
            (Some(row), password::PasswordCheck::Right) => Ok(Some(row.into())),
            (Some(row), password::PasswordCheck::NeedsRehash) => {
                self.0
                    .db
                    .people()
                    .set_password(&row.id, &password::hash(password)?)?;
                Ok(Some(row.into()))
            }
            _ => Ok(None),
        }
    }

    pub(crate) fn check_new_password(&self, account: &str, new: &str) -> Result<(), AccountError> {
        let row = self.0.db.people().account(account)?;
        let email = row.map_or_else(String::new, |row| row.email);
        match password::is_allowed(new, &email) {
            true => Ok(()),
            false => Err(AccountError::BadPassword),
        }
    }

    /// Sets an account's new password and ends all its sessions. Hashing is slow, so call this
    /// function on a blocking thread.
    ///
    /// # Errors
    /// Returns an error if the password is not allowed, or if the hash or the database fails.
    pub fn replace_password(&self, account: &str, new: &str) -> Result<(), AccountError> {
        self.check_new_password(account, new)?;
        self.0
            .db
            .sessions()
            .replace_password(account, &password::hash(new)?, None)?;
        self.0.api_keys().end_playgrounds(account);
        Ok(())
    }

    /// Ends every session of an account. Returns their number.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn end_sessions(&self, account: &str) -> Result<usize, StoreError> {
        let ended = self.0.db.sessions().end_sessions(account)?;
        self.0.api_keys().end_playgrounds(account);
        Ok(ended)
    }

    /// Deletes all expired sessions. Returns their number. Creating a session does this too.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn purge_sessions(&self, now_ms: i64) -> Result<usize, StoreError> {
        self.0.db.sessions().purge_sessions(now_ms, LIFETIME)
    }
}

impl AuditedAccounts<'_> {
    /// Sets an account's password for an administrator; see [`Logins::replace_password`]. Returns
    /// false if there is no such account.
    ///
    /// # Errors
    /// Returns an error if the password is not allowed, or if the hash or the database fails.
    pub fn set_password(&self, account: &str, new: &str) -> Result<bool, AccountError> {
        self.accounts.logins().check_new_password(account, new)?;
        let change = AuditChange::new("account.set-password", account, &Value::Null);
        let is_set = self.accounts.db.sessions().replace_password(
            account,
            &password::hash(new)?,
            Some(&self.audit_entry(&change)),
        )?;
        self.accounts.api_keys().end_playgrounds(account);
        Ok(is_set)
    }
}

/// Returns the token for the forms of a session's pages that show `account` (an id). It is derived
/// from the session's secret token, so it needs no storage and ends with the session. It reveals
/// nothing about the secret. A page that is still open acts on no other account than it shows.
pub fn csrf_token(session_token: &str, account: &str) -> String {
    encode_hex(&Sha256::digest(
        format!("form token of {session_token} for {account}").as_bytes(),
    ))
}

/// Returns the id that identifies a session to its holder.
pub fn session_id(token: &str) -> String {
    id_from_hash(&hash_token(token))
}

fn id_from_hash(hash: &[u8; 32]) -> String {
    encode_hex(hash.get(..ID_BYTES).unwrap_or_default())
}

fn decode_hex(text: &str) -> Option<Vec<u8>> {
    let digits = text
        .as_bytes()
        .chunks(2)
        .map(|pair| std::str::from_utf8(pair).ok());
    digits
        .map(|pair| {
            pair.filter(|pair| pair.len() == 2)
                .and_then(|pair| u8::from_str_radix(pair, 16).ok())
        })
        .collect()
}

/// Returns a random token of 256 bits, in hex.
pub(crate) fn new_token() -> Result<String, AccountError> {
    let mut bits = [0u8; 32];
    getrandom::fill(&mut bits).map_err(AccountError::Random)?;
    Ok(encode_hex(&bits))
}

pub(crate) fn hash_token(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

pub(crate) fn encode_hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes
        .iter()
        .fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
}
