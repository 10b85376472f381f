//! Rows of codes that are redeemed for credits.
//!
//! This file sees hashes, never a code, and enters nothing in the ledger.

use super::audit::{self, AuditEntry};
use super::rows::{IS_ACTIVE, first_column};
use super::views::CodeRows;
use credits::money::Micro;
use ledger::StoreError;
use ledger::audit::RedeemedCode;
use rusqlite::{Connection, Row, params};

/// A code as stored: its hash, without the code.
#[derive(Debug, Clone)]
pub struct CodeRow {
    pub hash: [u8; 32],
    pub batch: String,
    pub credits: Micro,
    pub per_account: u32,
    pub created_at_ms: i64,
    pub created_by: String,
    pub expires_at_ms: i64,
    pub voided_at_ms: Option<i64>,
    pub redeemed_by: Option<String>,
    pub redeemed_at_ms: Option<i64>,
}

/// Codes that were created together, and what became of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CodeBatch {
    pub id: String,
    /// Of one code.
    pub credits: Micro,
    pub per_account: u32,
    pub created_at_ms: i64,
    pub created_by: String,
    pub expires_at_ms: i64,
    pub count: u32,
    pub redeemed: u32,
    pub voided: u32,
}

const COLUMNS: &str = "hash, batch, credits, per_account, created_at_ms, created_by, expires_at_ms, voided_at_ms, redeemed_by, redeemed_at_ms";

fn code_row(row: &Row<'_>) -> rusqlite::Result<CodeRow> {
    Ok(CodeRow {
        hash: row.get("hash")?,
        batch: row.get("batch")?,
        credits: row.get("credits")?,
        per_account: row.get("per_account")?,
        created_at_ms: row.get("created_at_ms")?,
        created_by: row.get("created_by")?,
        expires_at_ms: row.get("expires_at_ms")?,
        voided_at_ms: row.get("voided_at_ms")?,
        redeemed_by: row.get("redeemed_by")?,
        redeemed_at_ms: row.get("redeemed_at_ms")?,
    })
}

impl CodeRows<'_> {
    pub fn insert_codes(
        &self,
        rows: &[CodeRow],
        audit_entry: &AuditEntry<'_>,
    ) -> Result<(), StoreError> {
        self.0.write("insert codes", |transaction| {
            let mut statement = transaction.prepare_cached(
                "INSERT INTO credit_code(hash, batch, credits, per_account, created_at_ms, created_by, expires_at_ms)
                 VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7)",
            )?;
            for row in rows {
                statement.execute(params![
                    row.hash,
                    row.batch,
                    row.credits,
                    row.per_account,
                    row.created_at_ms,
                    row.created_by,
                    row.expires_at_ms
                ])?;
            }
            audit::append(transaction, audit_entry)
        })
    }

    /// Gives a code to the account that redeems it, if it is valid for this account. An account
    /// that has it already, without its entry, gets it again.
    pub fn claim_code(
        &self,
        hash: &[u8; 32],
        account: &str,
        now_ms: i64,
    ) -> Result<Option<CodeRow>, StoreError> {
        self.0.write("redeem a code", |transaction| {
            let mut statement = transaction.prepare_cached(&format!(
                "UPDATE credit_code SET redeemed_by = ?2, redeemed_at_ms = ifnull(redeemed_at_ms, ?3)
                 WHERE hash = ?1 AND NOT is_entered
                   AND EXISTS(SELECT 1 FROM account WHERE id = ?2 AND {IS_ACTIVE})
                   AND (redeemed_by = ?2 OR redeemed_by IS NULL AND voided_at_ms IS NULL AND expires_at_ms > ?3
                     AND (SELECT count(*) FROM credit_code AS other
                          WHERE other.batch = credit_code.batch AND other.redeemed_by = ?2) < per_account)
                 RETURNING {COLUMNS}"
            ))?;
            let claimed = statement.query_map(params![hash, account, now_ms], code_row)?;
            claimed.last().transpose()
        })
    }

    /// Records that the ledger has the entry of a code, with the line of the audit log: once.
    pub fn mark_entered(
        &self,
        hash: &[u8; 32],
        audit_entry: &AuditEntry<'_>,
    ) -> Result<(), StoreError> {
        self.0.write("mark a code as entered", |transaction| {
            let sql = "UPDATE credit_code SET is_entered = 1
                 WHERE hash = ?1 AND redeemed_by IS NOT NULL AND NOT is_entered";
            if transaction.execute(sql, [hash])? > 0 {
                audit::append(transaction, audit_entry)?;
            }
            Ok(())
        })
    }

    /// Returns codes that an account redeems since before `before_ms`, and whose entry nobody has
    /// marked: a crash came between.
    pub fn claimed_codes(&self, before_ms: i64, limit: u32) -> Result<Vec<CodeRow>, StoreError> {
        self.0.read("look for claimed codes", |connection| {
            connection
                .prepare_cached(&format!(
                    "SELECT {COLUMNS} FROM credit_code
                     WHERE redeemed_by IS NOT NULL AND NOT is_entered AND redeemed_at_ms < ?1 LIMIT ?2"
                ))?
                .query_map(params![before_ms, limit], code_row)?
                .collect()
        })
    }

    /// Returns batches before the batch `before` (empty: from the newest on), newest first.
    pub fn code_batches(&self, before: &str, limit: u32) -> Result<Vec<CodeBatch>, StoreError> {
        self.0.read("list batches of codes", |connection| {
            connection
                .prepare_cached(
                    "SELECT batch, max(credits) AS credits, max(per_account) AS per_account,
                       max(created_at_ms) AS created_at_ms, max(created_by) AS created_by,
                       max(expires_at_ms) AS expires_at_ms, count(*) AS count, count(redeemed_by) AS redeemed,
                       sum(voided_at_ms IS NOT NULL AND redeemed_by IS NULL) AS voided
                     FROM credit_code WHERE ?1 = '' OR batch < ?1 GROUP BY batch ORDER BY batch DESC LIMIT ?2",
                )?
                .query_map(params![before, limit], |row| {
                    Ok(CodeBatch {
                        id: row.get("batch")?,
                        credits: row.get("credits")?,
                        per_account: row.get("per_account")?,
                        created_at_ms: row.get("created_at_ms")?,
                        created_by: row.get("created_by")?,
                        expires_at_ms: row.get("expires_at_ms")?,
                        count: row.get("count")?,
                        redeemed: row.get("redeemed")?,
                        voided: row.get("voided")?,
                    })
                })?
                .collect()
        })
    }

    /// Returns the codes of a batch.
    pub fn codes_of(&self, batch: &str) -> Result<Vec<CodeRow>, StoreError> {
        self.0.read("list the codes of a batch", |connection| {
            connection
                .prepare_cached(&format!(
                    "SELECT {COLUMNS} FROM credit_code WHERE batch = ?1 ORDER BY hash"
                ))?
                .query_map([batch], code_row)?
                .collect()
        })
    }

    /// Voids the codes of a batch, or the one with this hash, that nobody has redeemed. Returns how
    /// many were voided.
    pub fn void_codes(
        &self,
        batch: &str,
        hash_start: Option<&[u8; 8]>,
        now_ms: i64,
        audit_entry: &AuditEntry<'_>,
    ) -> Result<usize, StoreError> {
        self.0.write("void codes", |transaction| {
            let sql = "UPDATE credit_code SET voided_at_ms = ?3
                 WHERE (batch = ?1 OR substr(hash, 1, 8) = ?2) AND redeemed_by IS NULL AND voided_at_ms IS NULL";
            let count = transaction.execute(sql, params![batch, hash_start, now_ms])?;
            if count > 0 {
                audit::append(transaction, audit_entry)?;
            }
            Ok(count)
        })
    }

    /// Whether there is such a batch.
    pub fn has_batch(&self, batch: &str) -> Result<bool, StoreError> {
        self.0.read("look for a batch of codes", |connection| {
            connection
                .prepare_cached("SELECT EXISTS(SELECT 1 FROM credit_code WHERE batch = ?1)")?
                .query_row([batch], first_column)
        })
    }
}

/// Returns the codes that accounts have redeemed, or are about to.
pub(super) fn redeemed_codes(connection: &Connection) -> rusqlite::Result<Vec<RedeemedCode>> {
    connection
        .prepare(
            // The id of `CodeRow::id`.
            "SELECT 'code_' || lower(hex(substr(hash, 1, 8))), redeemed_by, credits, is_entered
             FROM credit_code WHERE redeemed_by IS NOT NULL",
        )?
        .query_map([], |row| {
            Ok(RedeemedCode {
                id: first_column(row)?,
                account: row.get(1)?,
                credits: row.get(2)?,
                is_entered: row.get(3)?,
            })
        })?
        .collect()
}
