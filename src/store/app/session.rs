//! Dashboard sessions, as rows of `app.db`, each under the hash of its token.
//!
//! Whether a session is still good is decided here, in the query, from the times passed in. Must not see a token.

use super::{AppDb, first};
use crate::store::StoreError;
use rusqlite::{OptionalExtension, params};

/// How long sessions last, in ms.
#[derive(Debug, Clone, Copy)]
pub struct Lifetime {
    /// Since its last use.
    pub idle_ms: i64,
    /// Since sign-in.
    pub absolute_ms: i64,
}

impl AppDb {
    /// Inserts a session, and deletes the dead ones of everybody and the oldest of this account past `most`.
    pub fn insert_session(
        &self,
        hash: &[u8; 32],
        account: &str,
        now_ms: i64,
        lifetime: Lifetime,
        most: i64,
    ) -> Result<(), StoreError> {
        self.write("insert a session", |transaction| {
            transaction.execute(
                "INSERT INTO session(hash, account, created_at_ms, used_at_ms) VALUES(?1, ?2, ?3, ?3)",
                params![hash, account, now_ms],
            )?;
            transaction.execute(
                "DELETE FROM session WHERE hash IN
                   (SELECT hash FROM session WHERE account = ?1 ORDER BY created_at_ms DESC LIMIT -1 OFFSET ?2)",
                params![account, most],
            )?;
            transaction.execute(PURGE, params![now_ms - lifetime.idle_ms, now_ms - lifetime.absolute_ms]).map(drop)
        })
    }

    /// The account of a live session, and when the session was last marked as used.
    pub fn session(
        &self,
        hash: &[u8; 32],
        now_ms: i64,
        lifetime: Lifetime,
    ) -> Result<Option<(String, i64)>, StoreError> {
        self.read("find a session", |connection| {
            connection
                .prepare_cached(
                    "SELECT account, used_at_ms FROM session
                     WHERE hash = ?1 AND used_at_ms > ?2 AND created_at_ms > ?3",
                )?
                .query_row(params![hash, now_ms - lifetime.idle_ms, now_ms - lifetime.absolute_ms], |row| {
                    Ok((first(row)?, row.get(1)?))
                })
                .optional()
        })
    }

    pub fn touch_session(&self, hash: &[u8; 32], now_ms: i64) -> Result<(), StoreError> {
        self.write("mark a session as used", |transaction| {
            let sql = "UPDATE session SET used_at_ms = max(used_at_ms, ?2) WHERE hash = ?1";
            transaction.execute(sql, params![hash, now_ms]).map(drop)
        })
    }

    pub fn end_session(&self, hash: &[u8; 32]) -> Result<(), StoreError> {
        self.write("end a session", |transaction| {
            transaction.execute("DELETE FROM session WHERE hash = ?1", [hash]).map(drop)
        })
    }

    /// Ends every session of an account; says how many there were.
    pub fn end_sessions(&self, account: &str) -> Result<usize, StoreError> {
        self.write("end an account's sessions", |transaction| {
            transaction.execute("DELETE FROM session WHERE account = ?1", [account])
        })
    }

    /// Deletes the dead sessions of everybody; says how many there were.
    pub fn purge_sessions(&self, now_ms: i64, lifetime: Lifetime) -> Result<usize, StoreError> {
        self.write("purge dead sessions", |transaction| {
            transaction.execute(PURGE, params![now_ms - lifetime.idle_ms, now_ms - lifetime.absolute_ms])
        })
    }
}

const PURGE: &str = "DELETE FROM session WHERE used_at_ms <= ?1 OR created_at_ms <= ?2";
