//! Stores dashboard sessions as rows of `app.db`, by the hashes of their tokens.
//!
//! Each query checks whether a session is still valid. This file must not see a token.

use super::audit::{self, AuditEntry};
use super::organisations::role_at;
use super::rows::first_column;
use super::views::SessionRows;
use crate::membership::OrganisationRole;
use ledger::StoreError;
use rusqlite::{OptionalExtension, params};

#[derive(Debug, Clone, Copy)]
pub struct SessionLifetime {
    /// Maximum time since the last use, in ms.
    pub idle_ms: i64,
    /// Maximum time since sign-in, in ms.
    pub absolute_ms: i64,
}

#[derive(Debug, Clone, Copy)]
pub struct NewSessionRow<'a> {
    pub hash: &'a [u8; 32],
    pub account: &'a str,
    pub created_at_ms: i64,
    /// Time at which the password was last entered.
    pub confirmed_at_ms: i64,
    pub address: &'a str,
    pub browser: &'a str,
}

/// The session data that a request needs.
#[derive(Debug, Clone)]
pub struct ActiveSessionRow {
    pub account: String,
    pub used_at_ms: i64,
    pub confirmed_at_ms: i64,
    /// Whether the account has a password.
    pub has_password: bool,
    /// The organisation that the session shows, and the role there; `None`: the own account.
    pub shown: Option<(String, OrganisationRole)>,
}

/// A session, for the account holder's list of sessions.
#[derive(Debug, Clone)]
pub struct SessionListRow {
    pub hash: [u8; 32],
    pub created_at_ms: i64,
    pub used_at_ms: i64,
    pub address: String,
    pub browser: String,
}

impl SessionRows<'_> {
    /// Inserts a session. All expired sessions are deleted, and the account's oldest ones above
    /// `max_sessions`.
    pub fn insert_session(
        &self,
        row: &NewSessionRow<'_>,
        lifetime: SessionLifetime,
        max_sessions: i64,
    ) -> Result<(), StoreError> {
        self.0.write("insert a session", |transaction| {
            let NewSessionRow { hash, account, created_at_ms: now_ms, confirmed_at_ms, address, browser } = *row;
            transaction.execute(
                "INSERT INTO session(hash, account, created_at_ms, used_at_ms, confirmed_at_ms, address, browser)
                 VALUES(?1, ?2, ?3, ?3, ?4, ?5, ?6)",
                params![hash, account, now_ms, confirmed_at_ms, address, browser],
            )?;
            transaction.execute(
                "DELETE FROM session WHERE hash IN
                   (SELECT hash FROM session WHERE account = ?1 ORDER BY created_at_ms DESC LIMIT -1 OFFSET ?2)",
                params![account, max_sessions],
            )?;
            transaction.execute(PURGE_SQL, params![now_ms - lifetime.idle_ms, now_ms - lifetime.absolute_ms]).map(drop)
        })
    }

    /// Returns a session if it is valid.
    pub fn session(
        &self,
        hash: &[u8; 32],
        now_ms: i64,
        lifetime: SessionLifetime,
    ) -> Result<Option<ActiveSessionRow>, StoreError> {
        self.0.read("find a session", |connection| {
            connection
                .prepare_cached(
                    // A person who is no member any more is shown their own account.
                    "SELECT s.account, used_at_ms, confirmed_at_ms,
                       EXISTS(SELECT 1 FROM account WHERE id = s.account AND password IS NOT NULL),
                       m.account, m.role
                     FROM session s LEFT JOIN membership m ON m.account = s.shown AND m.person = s.account
                     WHERE hash = ?1 AND used_at_ms > ?2 AND created_at_ms > ?3",
                )?
                .query_row(
                    params![
                        hash,
                        now_ms - lifetime.idle_ms,
                        now_ms - lifetime.absolute_ms
                    ],
                    |row| {
                        Ok(ActiveSessionRow {
                            account: first_column(row)?,
                            used_at_ms: row.get(1)?,
                            confirmed_at_ms: row.get(2)?,
                            has_password: row.get(3)?,
                            shown: match row.get::<_, Option<String>>(4)? {
                                Some(account) => Some((account, role_at(row, 5)?)),
                                None => None,
                            },
                        })
                    },
                )
                .optional()
        })
    }

    pub fn touch_session(&self, hash: &[u8; 32], now_ms: i64) -> Result<(), StoreError> {
        self.0.write("mark a session as used", |transaction| {
            let sql = "UPDATE session SET used_at_ms = max(used_at_ms, ?2) WHERE hash = ?1";
            transaction.execute(sql, params![hash, now_ms]).map(drop)
        })
    }

    pub fn end_session(&self, hash: &[u8; 32]) -> Result<(), StoreError> {
        self.0.write("end a session", |transaction| {
            transaction
                .execute("DELETE FROM session WHERE hash = ?1", [hash])
                .map(drop)
        })
    }

    /// Returns the valid sessions of an account, last used first.
    pub fn sessions(
        &self,
        account: &str,
        now_ms: i64,
        lifetime: SessionLifetime,
    ) -> Result<Vec<SessionListRow>, StoreError> {
        self.0.read("list an account's sessions", |connection| {
            connection
                .prepare_cached(
                    "SELECT hash, created_at_ms, used_at_ms, address, browser FROM session
                     WHERE account = ?1 AND used_at_ms > ?2 AND created_at_ms > ?3
                     ORDER BY used_at_ms DESC, created_at_ms DESC, hash",
                )?
                .query_map(
                    params![
                        account,
                        now_ms - lifetime.idle_ms,
                        now_ms - lifetime.absolute_ms
                    ],
                    |row| {
                        Ok(SessionListRow {
                            hash: first_column(row)?,
                            created_at_ms: row.get(1)?,
                            used_at_ms: row.get(2)?,
                            address: row.get(3)?,
                            browser: row.get(4)?,
                        })
                    },
                )?
                .collect()
        })
    }

    /// Ends all sessions of an account, except the one with the hash `but`. Returns their number.
    pub fn end_other_sessions(&self, account: &str, but: &[u8; 32]) -> Result<usize, StoreError> {
        self.0
            .write("end an account's other sessions", |transaction| {
                transaction.execute(
                    "DELETE FROM session WHERE account = ?1 AND hash <> ?2",
                    params![account, but],
                )
            })
    }

    /// Ends one session of an account, found by the first bytes of its hash.
    pub fn end_session_by_prefix(&self, account: &str, start: &[u8]) -> Result<bool, StoreError> {
        self.0.write("end one session", |transaction| {
            let rows = transaction.execute(
                "DELETE FROM session WHERE account = ?1 AND substr(hash, 1, ?3) = ?2",
                params![
                    account,
                    start,
                    i64::try_from(start.len()).unwrap_or(i64::MAX)
                ],
            )?;
            Ok(rows > 0)
        })
    }

    /// Records that the session's holder has just entered the password.
    pub fn confirm_session(&self, hash: &[u8; 32], now_ms: i64) -> Result<(), StoreError> {
        self.0.write("confirm a session", |transaction| {
            let sql =
                "UPDATE session SET confirmed_at_ms = max(confirmed_at_ms, ?2) WHERE hash = ?1";
            transaction.execute(sql, params![hash, now_ms]).map(drop)
        })
    }

    /// Sets an account's new password and ends all its sessions, in one step. Returns false if no
    /// such person has an account.
    pub fn replace_password(
        &self,
        account: &str,
        password: &str,
        act: Option<&AuditEntry<'_>>,
    ) -> Result<bool, StoreError> {
        self.0.write("replace a password", |transaction| {
            let sql = "UPDATE account SET password = ?2
                       WHERE id = ?1 AND deleted_at_ms IS NULL AND organisation IS NULL";
            let is_set = transaction.execute(sql, params![account, password])? == 1;
            transaction.execute("DELETE FROM session WHERE account = ?1", [account])?;
            if is_set {
                act.into_iter()
                    .try_for_each(|act| audit::append(transaction, act))?;
            }
            Ok(is_set)
        })
    }

    /// Ends every session of an account. Returns their number.
    pub fn end_sessions(&self, account: &str) -> Result<usize, StoreError> {
        self.0.write("end an account's sessions", |transaction| {
            transaction.execute("DELETE FROM session WHERE account = ?1", [account])
        })
    }

    /// Deletes all expired sessions. Returns their number.
    pub fn purge_sessions(
        &self,
        now_ms: i64,
        lifetime: SessionLifetime,
    ) -> Result<usize, StoreError> {
        self.0.write("remove expired sessions", |transaction| {
            transaction.execute(
                PURGE_SQL,
                params![now_ms - lifetime.idle_ms, now_ms - lifetime.absolute_ms],
            )
        })
    }
}

const PURGE_SQL: &str = "DELETE FROM session WHERE used_at_ms <= ?1 OR created_at_ms <= ?2";
