//! Stores invitations as rows of `app.db`.
//!
//! This file must not see a code, so it receives hashes.

use super::audit::{self, AuditEntry};
use super::rows::first_column;
use super::views::InviteRows;
use ledger::StoreError;
use rusqlite::{OptionalExtension, params};

/// An invitation as stored: with a hash instead of its secret code.
#[derive(Debug, Clone)]
pub struct InviteRow {
    pub hash: [u8; 32],
    pub created_at_ms: i64,
    pub expires_at_ms: i64,
    pub created_by: String,
    pub used_by: Option<String>,
    pub withdrawn_at_ms: Option<i64>,
}

impl InviteRows<'_> {
    /// Inserts invitations, unless more than `max_open` invitations would then be open.
    pub fn insert_invites(
        &self,
        rows: &[InviteRow],
        max_open: i64,
        audit_entry: &AuditEntry<'_>,
    ) -> Result<bool, StoreError> {
        self.0.write("insert invitations", |transaction| {
            let now_ms = rows.first().map_or(0, |row| row.created_at_ms);
            let open: i64 = transaction.query_row(
                "SELECT count(*) FROM invite WHERE used_by IS NULL AND expires_at_ms > ?1",
                [now_ms],
                first_column,
            )?;
            if open.saturating_add(i64::try_from(rows.len()).unwrap_or(i64::MAX)) > max_open {
                return Ok(false);
            }
            for InviteRow { hash, created_at_ms, expires_at_ms, created_by, .. } in rows {
                transaction.execute(
                    "INSERT INTO invite(hash, created_at_ms, expires_at_ms, created_by) VALUES(?1, ?2, ?3, ?4)",
                    params![hash, created_at_ms, expires_at_ms, created_by],
                )?;
            }
            audit::append(transaction, audit_entry)?;
            Ok(true)
        })
    }

    /// Returns whether there is an open invitation whose hash begins with `start`.
    pub fn is_open_invite(&self, start: &[u8; 8], now_ms: i64) -> Result<bool, StoreError> {
        self.0.read("look for an invitation", |connection| {
            connection
                .prepare_cached(
                    "SELECT 1 FROM invite
                     WHERE hash >= ?1 AND hash <= ?2 AND used_by IS NULL AND expires_at_ms > ?3",
                )?
                .exists(params![start, last_hash_with_prefix(start), now_ms])
        })
    }

    /// Revokes the open invitation whose hash begins with `start`. Returns false if there is none.
    pub fn revoke_invite(
        &self,
        start: &[u8; 8],
        now_ms: i64,
        audit_entry: &AuditEntry<'_>,
    ) -> Result<bool, StoreError> {
        self.0.write("revoke an invitation", |transaction| {
            let rows = transaction.execute(
                "UPDATE invite SET withdrawn_at_ms = ?3, expires_at_ms = ?3
                 WHERE hash >= ?1 AND hash <= ?2 AND used_by IS NULL AND expires_at_ms > ?3",
                params![start, last_hash_with_prefix(start), now_ms],
            )?;
            if rows > 0 {
                audit::append(transaction, audit_entry)?;
            }
            Ok(rows > 0)
        })
    }

    /// Returns invitations, newest first. With `before`, the list begins after the invitation whose
    /// hash has that prefix.
    pub fn invites(
        &self,
        before: Option<&[u8; 8]>,
        limit: u32,
    ) -> Result<Vec<InviteRow>, StoreError> {
        self.0.read("list invitations", |connection| {
            // Invitations created together have the same time, so the hash is the tie-breaker.
            let position: Option<(i64, Vec<u8>)> = match before {
                None => Some((i64::MAX, Vec::new())),
                Some(start) => connection
                    .prepare_cached("SELECT created_at_ms, hash FROM invite WHERE hash >= ?1 AND hash <= ?2")?
                    .query_row(params![start, last_hash_with_prefix(start)], |row| Ok((row.get(0)?, row.get(1)?)))
                    .optional()?,
            };
            let Some((at_ms, hash)) = position else { return Ok(Vec::new()) };
            connection
                .prepare_cached(
                    "SELECT hash, created_at_ms, expires_at_ms, created_by, used_by, withdrawn_at_ms FROM invite
                     WHERE (created_at_ms, hash) < (?1, ?2) ORDER BY created_at_ms DESC, hash DESC LIMIT ?3",
                )?
                .query_map(params![at_ms, hash, limit], |row| {
                    Ok(InviteRow {
                        hash: row.get(0)?,
                        created_at_ms: row.get(1)?,
                        expires_at_ms: row.get(2)?,
                        created_by: row.get(3)?,
                        used_by: row.get(4)?,
                        withdrawn_at_ms: row.get(5)?,
                    })
                })?
                .collect()
        })
    }
}

/// Returns the highest hash with this prefix. The hashes with a prefix form a range, which the
/// primary key supports.
fn last_hash_with_prefix(start: &[u8; 8]) -> Vec<u8> {
    [&start[..], &[0xff; 24]].concat()
}
