//! The audit log, as rows of `app.db`: one line for each action of an administrator, with the hash
//! of the previous line.
//!
//! If the action changes `app.db`, its line is written in the same transaction. Triggers forbid
//! changing or deleting lines, and `verify` reports it if somebody did. Must not receive a secret.

use super::rows::first_column;
use super::views::AuditRows;
use ledger::StoreError;
use rusqlite::{Connection, OptionalExtension, Row, ToSql, Transaction, params, params_from_iter};
use sha2::{Digest, Sha256};

const AUDIT_COLUMNS: &str = "seq, at_ms, actor, address, act, object, before, after, prev, hash";

/// An action for the audit log.
#[derive(Debug, Clone, Copy)]
pub struct AuditEntry<'a> {
    pub at_ms: i64,
    pub actor: &'a str,
    pub address: &'a str,
    /// Name of the action, such as `account.suspend`.
    pub act: &'a str,
    pub object: &'a str,
    /// JSON, or empty.
    pub before: &'a str,
    pub after: &'a str,
}

/// A line that is built in the transaction that appends it.
pub(crate) struct NewAuditLine {
    pub at_ms: i64,
    pub actor: String,
    pub address: String,
    pub act: &'static str,
    pub object: String,
    pub before: String,
    pub after: String,
}

impl NewAuditLine {
    fn as_entry(&self) -> AuditEntry<'_> {
        AuditEntry {
            at_ms: self.at_ms,
            actor: &self.actor,
            address: &self.address,
            act: self.act,
            object: &self.object,
            before: &self.before,
            after: &self.after,
        }
    }
}

/// Which lines a reader wants. A field that is `None` does not matter.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuditFilter {
    /// Who acted: the id of an account, or the text of another actor.
    pub actor: Option<String>,
    /// Id of the account that the line is about: itself, one of its keys, or one of its requests.
    pub account: Option<String>,
    pub act: Option<String>,
    /// From the first time up to, and without, the second, in ms since 1970.
    pub times_ms: Option<(i64, i64)>,
}

/// A line as stored.
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
    /// Computes the hash that the line must have: the hash of the previous line's hash and of the
    /// line's fields, with the byte 1F between them.
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

/// Appends a line, in the transaction of the action it records.
pub(crate) fn append(transaction: &Transaction<'_>, act: &AuditEntry<'_>) -> rusqlite::Result<()> {
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

impl AuditRows<'_> {
    /// Appends a line in its own transaction, for an action that does not change `app.db`.
    pub fn append_audit(&self, act: &AuditEntry<'_>) -> Result<(), StoreError> {
        self.0.write("write to the audit log", |transaction| {
            append(transaction, act)
        })
    }

    /// Appends a line like [`AuditRows::append_audit`], unless there is an equal one after
    /// `since_ms`. Reads first: most calls repeat one.
    pub fn append_audit_once(&self, act: &AuditEntry<'_>, since_ms: i64) -> Result<(), StoreError> {
        let is_logged = |connection: &Connection| -> rusqlite::Result<bool> {
            connection
                .prepare_cached(
                    "SELECT EXISTS(SELECT 1 FROM audit WHERE object = ?1 AND actor = ?2 AND act = ?3
                       AND after = ?4 AND at_ms > ?5)",
                )?
                .query_row(
                    params![act.object, act.actor, act.act, act.after, since_ms],
                    first_column,
                )
        };
        if self.0.read("read the audit log", is_logged)? {
            return Ok(());
        }
        self.0.write("write to the audit log", |transaction| {
            if is_logged(transaction)? {
                return Ok(());
            }
            append(transaction, act)
        })
    }

    /// Appends a line that depends on those of the action `act`, oldest first, which `build` gets:
    /// in the transaction in which they were read. Appends none if `build` returns none.
    pub(crate) fn append_audit_after(
        &self,
        act: &str,
        build: impl FnOnce(&[AuditRow]) -> Option<NewAuditLine>,
    ) -> Result<(), StoreError> {
        self.0.write("write to the audit log", |transaction| {
            let rows = rows_of(transaction, act)?;
            match build(&rows) {
                Some(line) => append(transaction, &line.as_entry()),
                None => Ok(()),
            }
        })
    }

    /// Returns all lines of an action, oldest first.
    pub fn audit_rows_of(&self, act: &str) -> Result<Vec<AuditRow>, StoreError> {
        self.0
            .read("read the audit log", |connection| rows_of(connection, act))
    }

    /// Returns at most `limit` lines before the line `before`, newest first.
    pub fn audit_rows(&self, before: Option<i64>, limit: u32) -> Result<Vec<AuditRow>, StoreError> {
        self.0.read("read the audit log", |connection| {
            connection
                .prepare_cached(&format!(
                    "SELECT {AUDIT_COLUMNS} FROM audit WHERE seq < ?1 ORDER BY seq DESC LIMIT ?2"
                ))?
                .query_map(params![before.unwrap_or(i64::MAX), limit], audit_row)?
                .collect()
        })
    }

    /// Returns at most `limit` lines that match `filter` before the line `before`, newest first.
    pub fn find_audit_rows(
        &self,
        filter: &AuditFilter,
        before: Option<i64>,
        limit: u32,
    ) -> Result<Vec<AuditRow>, StoreError> {
        let mut sql = format!("SELECT {AUDIT_COLUMNS} FROM audit WHERE seq < ?1");
        let mut values: Vec<Box<dyn ToSql>> = vec![Box::new(before.unwrap_or(i64::MAX))];
        let mut add = |condition: &str, value: Box<dyn ToSql>| {
            values.push(value);
            sql.push_str(" AND ");
            sql.push_str(&condition.replace("?", &format!("?{}", values.len())));
        };
        if let Some(actor) = &filter.actor {
            add("actor = ?", Box::new(actor.clone()));
        }
        if let Some(account) = &filter.account {
            add(
                "(object = ? OR object IN (SELECT id FROM api_key WHERE account = ?)
                  OR (act = 'request.refund' AND json_extract(after, '$.account') = ?))",
                Box::new(account.clone()),
            );
        }
        if let Some(act) = &filter.act {
            add("act = ?", Box::new(act.clone()));
        }
        if let Some((from_ms, to_ms)) = filter.times_ms {
            add("at_ms >= ?", Box::new(from_ms));
            add("at_ms < ?", Box::new(to_ms));
        }
        values.push(Box::new(limit));
        sql.push_str(&format!(" ORDER BY seq DESC LIMIT ?{}", values.len()));
        self.0.read("read the audit log", |connection| {
            connection
                .prepare_cached(&sql)?
                .query_map(params_from_iter(values), audit_row)?
                .collect()
        })
    }

    /// Calls `each` for every line, oldest first.
    pub fn for_each_audit_row(&self, each: &mut dyn FnMut(AuditRow)) -> Result<(), StoreError> {
        self.0
            .read("read the audit log", |connection: &Connection| {
                let mut statement = connection
                    .prepare(&format!("SELECT {AUDIT_COLUMNS} FROM audit ORDER BY seq"))?;
                let mut rows = statement.query([])?;
                while let Some(line) = rows.next()? {
                    each(audit_row(line)?);
                }
                Ok(())
            })
    }
}

fn rows_of(connection: &Connection, act: &str) -> rusqlite::Result<Vec<AuditRow>> {
    connection
        .prepare_cached(&format!(
            "SELECT {AUDIT_COLUMNS} FROM audit WHERE act = ?1 ORDER BY seq"
        ))?
        .query_map([act], audit_row)?
        .collect()
}

fn audit_row(row: &Row<'_>) -> rusqlite::Result<AuditRow> {
    Ok(AuditRow {
        seq: first_column(row)?,
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
