//! Dashboard sessions: a 256-bit token in a cookie, its SHA-256 in the store, and a life of 12 idle
//! hours or 7 days.
//!
//! Must not know cookies or HTTP: that is `sidecar/session.rs`.

use super::audit::Told;
use super::password;
use super::{Account, AccountError, Accounts, Acting};
use crate::store::StoreError;
use crate::store::app::session::{Lifetime, SessionRow};
use serde_json::Value;
use sha2::{Digest, Sha256};

const HOUR_MS: i64 = 3_600_000;
const LIFETIME: Lifetime = Lifetime {
    idle_ms: 12 * HOUR_MS,
    absolute_ms: 7 * 24 * HOUR_MS,
};

/// A use is written down at most this often: a page view is not worth a disk write.
const TOUCH_EVERY_MS: i64 = 60_000;

/// 256 bits in hex.
const TOKEN_DIGITS: usize = 64;

/// Sessions of one account; past it, the oldest ends.
const SESSIONS_MAX: i64 = 50;

/// For how long a typed password stands for its holder where it is asked for again.
const CONFIRMED_FOR_MS: i64 = 10 * 60_000;

/// Of what a browser says it is, and of an address: in characters.
const ORIGIN_CHARS_MAX: usize = 80;

/// Of a session's hash: tells an account's sessions apart, and opens none.
const ID_BYTES: usize = 16;

/// Where a session comes from, as its holder is shown it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Origin<'a> {
    pub address: &'a str,
    pub browser: &'a str,
}

/// One of an account holder's own sessions.
#[derive(Debug, Clone)]
pub struct OwnSession {
    pub id: String,
    pub created_at_ms: i64,
    pub used_at_ms: i64,
    pub address: String,
    pub browser: String,
}

/// A new session's token, which is kept nowhere else.
pub struct NewSession {
    pub token: String,
}

/// A live session.
#[derive(Debug, Clone)]
pub struct Session {
    pub account: Account,
    used_at_ms: i64,
    confirmed_at_ms: i64,
}

impl Session {
    /// True where this use is to be written down with [`Accounts::touch_session`].
    pub fn touch_due(&self, now_ms: i64) -> bool {
        now_ms.saturating_sub(self.used_at_ms) >= TOUCH_EVERY_MS
    }

    /// The password was typed a short while ago: it need not be asked for again.
    pub fn is_confirmed(&self, now_ms: i64) -> bool {
        now_ms.saturating_sub(self.confirmed_at_ms) < CONFIRMED_FOR_MS
    }
}

impl Accounts {
    /// # Errors
    /// No randomness, or the store failed.
    pub fn create_session(&self, account: &str, now_ms: i64) -> Result<NewSession, AccountError> {
        self.create_session_from(account, Origin::default(), now_ms)
    }

    /// A session of somebody who has just typed the password, and where it comes from.
    ///
    /// # Errors
    /// As [`Accounts::create_session`].
    pub fn create_session_from(
        &self,
        account: &str,
        origin: Origin<'_>,
        now_ms: i64,
    ) -> Result<NewSession, AccountError> {
        let mut bits = [0u8; 32];
        getrandom::fill(&mut bits).map_err(AccountError::Random)?;
        let token = hex(&bits);
        let cut = |text: &str| text.chars().take(ORIGIN_CHARS_MAX).collect::<String>();
        let row = SessionRow {
            hash: &hash(&token),
            account,
            created_at_ms: now_ms,
            confirmed_at_ms: now_ms,
            address: &cut(origin.address),
            browser: &cut(origin.browser),
        };
        self.db.insert_session(&row, LIFETIME, SESSIONS_MAX)?;
        Ok(NewSession { token })
    }

    /// The live session of a token. Does not count as a use of it.
    ///
    /// # Errors
    /// The store failed.
    pub fn find_session(&self, token: &str, now_ms: i64) -> Result<Option<Session>, StoreError> {
        if token.len() != TOKEN_DIGITS {
            return Ok(None);
        }
        let Some(found) = self.db.session(&hash(token), now_ms, LIFETIME)? else {
            return Ok(None);
        };
        let account = self.db.account(&found.account)?;
        Ok(account.map(|row| Session {
            account: row.into(),
            used_at_ms: found.used_at_ms,
            confirmed_at_ms: found.confirmed_at_ms,
        }))
    }

    /// Writes a use down: the session's idle time begins anew.
    ///
    /// # Errors
    /// The store failed.
    pub fn touch_session(&self, token: &str, now_ms: i64) -> Result<(), StoreError> {
        self.db.touch_session(&hash(token), now_ms)
    }

    /// # Errors
    /// The store failed.
    pub fn end_session(&self, token: &str) -> Result<(), StoreError> {
        self.db.end_session(&hash(token))
    }

    /// The live sessions of an account, the last used first.
    ///
    /// # Errors
    /// The store failed.
    pub fn sessions(&self, account: &str, now_ms: i64) -> Result<Vec<OwnSession>, StoreError> {
        let rows = self.db.sessions(account, now_ms, LIFETIME)?;
        let own = rows.into_iter().map(|row| OwnSession {
            id: id(&row.hash),
            created_at_ms: row.created_at_ms,
            used_at_ms: row.used_at_ms,
            address: row.address,
            browser: row.browser,
        });
        Ok(own.collect())
    }

    /// Ends one session of an account, by its id; says whether there was such a one.
    ///
    /// # Errors
    /// The store failed.
    pub fn end_own_session(&self, account: &str, id: &str) -> Result<bool, StoreError> {
        let Some(start) = unhex(id).filter(|start| start.len() == ID_BYTES) else {
            return Ok(false);
        };
        self.db.end_session_of(account, &start)
    }

    /// Ends the sessions of an account but the one with this token; says how many there were.
    ///
    /// # Errors
    /// The store failed.
    pub fn end_other_sessions(&self, account: &str, token: &str) -> Result<usize, StoreError> {
        self.db.end_other_sessions(account, &hash(token))
    }

    /// Writes down that the holder of this session has just typed the password.
    ///
    /// # Errors
    /// The store failed.
    pub fn confirm_session(&self, token: &str, now_ms: i64) -> Result<(), StoreError> {
        self.db.confirm_session(&hash(token), now_ms)
    }

    /// Gives an account a new password and ends all its sessions. Slow: call it on a blocking
    /// thread.
    ///
    /// # Errors
    /// A bad password, or the hash or the store failed.
    pub fn replace_password(&self, account: &str, new: &str) -> Result<(), AccountError> {
        if !password::is_allowed(new) {
            return Err(AccountError::BadPassword);
        }
        self.db
            .replace_password(account, &password::hash(new)?, None)?;
        Ok(())
    }

    /// Ends every session of an account; says how many there were.
    ///
    /// # Errors
    /// The store failed.
    pub fn end_sessions(&self, account: &str) -> Result<usize, StoreError> {
        self.db.end_sessions(account)
    }

    /// Deletes everybody's dead sessions; says how many there were. A new session does this too.
    ///
    /// # Errors
    /// The store failed.
    pub fn purge_sessions(&self, now_ms: i64) -> Result<usize, StoreError> {
        self.db.purge_sessions(now_ms, LIFETIME)
    }
}

impl Acting<'_> {
    /// As [`Accounts::replace_password`], for an administrator. Returns whether there is such an
    /// account.
    ///
    /// # Errors
    /// As there.
    pub fn set_password(&self, account: &str, new: &str) -> Result<bool, AccountError> {
        if !password::is_allowed(new) {
            return Err(AccountError::BadPassword);
        }
        let told = Told::new("account.set-password", account, &Value::Null);
        Ok(self.accounts.db.replace_password(
            account,
            &password::hash(new)?,
            Some(&self.act(&told)),
        )?)
    }
}

/// The token that a session's forms carry. It follows from the session's secret token, so it needs
/// no storing, ends with the session, and tells nothing about it.
pub fn csrf_token(session_token: &str) -> String {
    hex(&Sha256::digest(
        format!("form token of {session_token}").as_bytes(),
    ))
}

/// What names a session to its holder.
pub fn session_id(token: &str) -> String {
    id(&hash(token))
}

fn id(hash: &[u8; 32]) -> String {
    hex(hash.get(..ID_BYTES).unwrap_or_default())
}

fn unhex(text: &str) -> Option<Vec<u8>> {
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

fn hash(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes
        .iter()
        .fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
}
