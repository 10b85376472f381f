//! Dashboard sessions: a 256-bit token in a cookie, its SHA-256 in the store, and a life of 12 idle hours or 7 days.
//!
//! Must not know cookies or HTTP: that is `sidecar/session.rs`.

use super::{Account, AccountError, Accounts};
use crate::store::StoreError;
use crate::store::app::session::Lifetime;
use sha2::{Digest, Sha256};

const HOUR_MS: i64 = 3_600_000;
const LIFETIME: Lifetime = Lifetime { idle_ms: 12 * HOUR_MS, absolute_ms: 7 * 24 * HOUR_MS };

/// A use is written down at most this often: a page view is not worth a disk write.
const TOUCH_EVERY_MS: i64 = 60_000;

/// 256 bits in hex.
const TOKEN_DIGITS: usize = 64;

/// Sessions of one account; past it, the oldest ends.
const SESSIONS_MAX: i64 = 50;

/// A new session's token, which is kept nowhere else.
pub struct NewSession {
    pub token: String,
}

/// A live session.
#[derive(Debug, Clone)]
pub struct Session {
    pub account: Account,
    used_at_ms: i64,
}

impl Session {
    /// True where this use is to be written down with [`Accounts::touch_session`].
    pub fn touch_due(&self, now_ms: i64) -> bool {
        now_ms.saturating_sub(self.used_at_ms) >= TOUCH_EVERY_MS
    }
}

impl Accounts {
    /// # Errors
    /// No randomness, or the store failed.
    pub fn create_session(&self, account: &str, now_ms: i64) -> Result<NewSession, AccountError> {
        let mut bits = [0u8; 32];
        getrandom::fill(&mut bits).map_err(AccountError::Random)?;
        let token = hex(&bits);
        self.db.insert_session(&hash(&token), account, now_ms, LIFETIME, SESSIONS_MAX)?;
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
        let Some((account, used_at_ms)) = self.db.session(&hash(token), now_ms, LIFETIME)? else { return Ok(None) };
        let account = self.db.account(&account)?;
        Ok(account.map(|row| Session { account: row.into(), used_at_ms }))
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

/// The token that a session's forms carry. It follows from the session's secret token, so it needs no storing, ends
/// with the session, and tells nothing about it.
pub fn csrf_token(session_token: &str) -> String {
    hex(&Sha256::digest(format!("form token of {session_token}").as_bytes()))
}

fn hash(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
