//! The audit log, as rows of `app.db`: one line per act in an administrator's name, each with the
//! hash of the one before.
//!
//! A line is written in the transaction of the act it tells of, where the act is in this file.
//! Lines are never changed or deleted (triggers), and `verify` shows where that was done all the
//! same. Must not be handed a secret.

use super::{AppDb, first};
use crate::store::StoreError;
use rusqlite::{Connection, OptionalExtension, Row, Transaction, params};
use sha2::{Digest, Sha256};

/// What is to be told of an act.
#[derive(Debug, Clone, Copy)]
pub struct Act<'a> {
    pub at_ms: i64,
    pub actor: &'a str,
    pub address: &'a str,
    /// `account.suspend`
    pub act: &'a str,
    pub object: &'a str,
    /// JSON, or nothing.
    pub before: &'a str,
    pub after: &'a str,
}

/// A line as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditRow {
    pub seq: i64,
    pub at_ms: i64,
    pub actor: String,
    pub address: String,
    pub act: String,
    pub object: String,
    pub before: String,
    pub after: String,
    pub prev: Vec<u8>,
    pub hash: Vec<u8>,
}

impl AuditRow {
    /// What the line's hash must be: of the hash before it, and of its members with the byte 1F
    /// between them.
    pub fn expected_hash(&self) -> [u8; 32] {
        let Self {
            seq,
            at_ms,
            actor,
            address,
            act,
            object,
            before,
            after,
            prev,
            ..
        } = self;
        let text = [
            &seq.to_string(),
            &at_ms.to_string(),
            actor,
            address,
            act,
            object,
            before,
            after,
        ]
        .map(String::as_str)
        .join("\u{1f}");
        Sha256::new()
            .chain_update(prev)
            .chain_update(text)
            .finalize()
            .into()
    }
}

/// Adds a line, in the transaction of what it tells of.
pub(super) fn append(transaction: &Transaction<'_>, act: &Act<'_>) -> rusqlite::Result<()> {
    let last: Option<(i64, Vec<u8>)> = transaction
        .query_row(
            "SELECT seq, hash FROM audit ORDER BY seq DESC LIMIT 1",
            [],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )
        .optional()?;
    let (last_seq, prev) = last.unwrap_or_else(|| (0, vec![0; 32]));
    let row = AuditRow {
        seq: last_seq + 1,
        at_ms: act.at_ms,
        actor: act.actor.to_owned(),
        address: act.address.to_owned(),
        act: act.act.to_owned(),
        object: act.object.to_owned(),
        before: act.before.to_owned(),
        after: act.after.to_owned(),
        prev,
        hash: Vec::new(),
    };
    let hash = row.expected_hash();
    transaction
        .execute(
            "INSERT INTO audit(seq, at_ms, actor, address, act, object, before, after, prev, hash)
             VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
            params![
                row.seq,
                row.at_ms,
                row.actor,
                row.address,
                row.act,
                row.object,
                row.before,
                row.after,
                row.prev,
                hash
            ],
        )
        .map(drop)
}

impl AppDb {
    /// Adds a line of its own: of an act that is not in this file.
    pub fn append_audit(&self, act: &Act<'_>) -> Result<(), StoreError> {
        self.write("write a line of the audit log", |transaction| {
            append(transaction, act)
        })
    }

    /// The newest first: at most `limit`, before the line `before`.
    pub fn audit(&self, before: Option<i64>, limit: u32) -> Result<Vec<AuditRow>, StoreError> {
        self.read("read the audit log", |connection| {
            connection
                .prepare_cached(
                    "SELECT seq, at_ms, actor, address, act, object, before, after, prev, hash FROM audit
                     WHERE seq < ?1 ORDER BY seq DESC LIMIT ?2",
                )?
                .query_map(params![before.unwrap_or(i64::MAX), limit], row)?
                .collect()
        })
    }

    /// Hands every line over, the oldest first.
    pub fn each_audit(&self, each: &mut dyn FnMut(AuditRow)) -> Result<(), StoreError> {
        self.read("read the audit log", |connection: &Connection| {
            let mut statement = connection.prepare(
                "SELECT seq, at_ms, actor, address, act, object, before, after, prev, hash FROM audit ORDER BY seq",
            )?;
            let mut rows = statement.query([])?;
            while let Some(line) = rows.next()? {
                each(row(line)?);
            }
            Ok(())
        })
    }
}

fn row(row: &Row<'_>) -> rusqlite::Result<AuditRow> {
    Ok(AuditRow {
        seq: first(row)?,
        at_ms: row.get(1)?,
        actor: row.get(2)?,
        address: row.get(3)?,
        act: row.get(4)?,
        object: row.get(5)?,
        before: row.get(6)?,
        after: row.get(7)?,
        prev: row.get(8)?,
        hash: row.get(9)?,
    })
}
