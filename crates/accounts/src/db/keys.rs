//! Stores API keys as rows of `app.db`.
//!
//! This file must not see a key, so it receives hashes.

use super::audit::{self, AuditEntry};
use super::rows::{KEY_COLUMNS, KeyOwner, KeyRow, first_column, key_row};
use super::views::KeyRows;
use ledger::StoreError;
use rusqlite::{OptionalExtension, params};
use std::sync::Arc;

/// Maximum number of keys in a list, including revoked ones.
const MAX_KEYS_LISTED: i64 = 500;

#[derive(Debug, PartialEq, Eq)]
pub enum InsertKeyOutcome {
    Done,
    NoAccount,
    LimitReached,
}

impl KeyRows<'_> {
    /// Inserts a key, unless its account already has `live_max` live keys.
    pub fn insert_key(
        &self,
        row: &KeyRow,
        hash: &[u8; 32],
        live_max: i64,
    ) -> Result<InsertKeyOutcome, StoreError> {
        self.0.write("insert a key", |transaction| {
            let known: bool =
                transaction.query_row("SELECT EXISTS(SELECT 1 FROM account WHERE id = ?1)", [&row.account], first_column)?;
            if !known {
                return Ok(InsertKeyOutcome::NoAccount);
            }
            // An expired key is invalid, so a rotated key does not count after its overlap.
            let live: i64 = transaction.query_row(
                "SELECT count(*) FROM api_key WHERE account = ?1 AND status <> 'revoked'
                 AND (settings = '' OR ifnull(settings ->> '$.expires_at_ms', ?2 + 1) > ?2)",
                params![row.account, row.created_at_ms],
                first_column,
            )?;
            if live >= live_max {
                return Ok(InsertKeyOutcome::LimitReached);
            }
            transaction.execute(
                "INSERT INTO api_key(id, account, name, hash, shown, status, created_at_ms, settings)
                 VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
                params![row.id, row.account, row.name, hash, row.shown, row.status, row.created_at_ms, row.settings],
            )?;
            Ok(InsertKeyOutcome::Done)
        })
    }

    /// Returns the owner of a key. Every request calls this function. [`ledger::sqlite::row_cache`]
    /// documents the maximum age of the answer.
    pub fn key_owner(&self, hash: &[u8; 32]) -> Result<Option<Arc<KeyOwner>>, StoreError> {
        self.0
            .owners
            .get(hash, || Ok(self.read_key_owner(hash)?.map(Arc::new)))
    }

    fn read_key_owner(&self, hash: &[u8; 32]) -> Result<Option<KeyOwner>, StoreError> {
        self.0.read("look up a key", |connection| {
            connection
                .prepare_cached(
                    "SELECT k.id, k.account, k.shown, k.status, a.status = 'active', k.settings, a.rates
                     FROM api_key k JOIN account a ON a.id = k.account WHERE k.hash = ?1",
                )?
                .query_row([hash], |row| {
                    Ok(KeyOwner {
                        key: row.get(0)?,
                        account: row.get(1)?,
                        shown: row.get(2)?,
                        status: row.get(3)?,
                        account_active: row.get(4)?,
                        settings: row.get(5)?,
                        account_rates: row.get(6)?,
                    })
                })
                .optional()
        })
    }

    /// Returns an account's keys: live ones first, then newest first.
    pub fn keys(&self, account: &str) -> Result<Vec<KeyRow>, StoreError> {
        self.0.read("list an account's keys", |connection| {
            connection
                .prepare_cached(&format!(
                    "SELECT {KEY_COLUMNS} FROM api_key
                     WHERE account = ?1 ORDER BY status = 'revoked', created_at_ms DESC, id DESC LIMIT ?2",
                ))?
                .query_map(params![account, MAX_KEYS_LISTED], key_row)?
                .collect()
        })
    }

    /// Returns the account's keys that are not revoked and have settings.
    pub fn keys_with_settings(&self, account: &str) -> Result<Vec<KeyRow>, StoreError> {
        self.0.read("list an account's keys with settings", |connection| {
            connection
                .prepare_cached(&format!(
                    "SELECT {KEY_COLUMNS} FROM api_key WHERE account = ?1 AND status <> 'revoked' AND settings <> ''",
                ))?
                .query_map([account], key_row)?
                .collect()
        })
    }

    pub fn key(&self, key: &str) -> Result<Option<KeyRow>, StoreError> {
        self.0.read("find a key by its id", |connection| {
            connection
                .prepare_cached(&format!("SELECT {KEY_COLUMNS} FROM api_key WHERE id = ?1"))?
                .query_row([key], key_row)
                .optional()
        })
    }

    /// Replaces the settings of a live key by the result of `change` in one transaction. With
    /// `account`, only a key of that account is changed. Returns `None` if there is no such live
    /// key. If `change` fails, nothing changes.
    pub fn change_key<T, E>(
        &self,
        account: Option<&str>,
        key: &str,
        change: impl FnOnce(&str) -> Result<(String, T), E>,
    ) -> Result<Option<Result<T, E>>, StoreError> {
        self.0.write("change a key's settings", |transaction| {
            let before: Option<String> = transaction
                .prepare_cached(
                    "SELECT settings FROM api_key WHERE id = ?1 AND account = coalesce(?2, account) AND status <> 'revoked'",
                )?
                .query_row(params![key, account], first_column)
                .optional()?;
            let Some(before) = before else { return Ok(None) };
            Ok(Some(match change(&before) {
                Ok((after, value)) => {
                    transaction.execute("UPDATE api_key SET settings = ?2 WHERE id = ?1", params![key, after])?;
                    Ok(value)
                }
                Err(error) => Err(error),
            }))
        })
    }

    /// Disables or enables a key. With `account`, only a key of that account is changed. Returns
    /// false if there is no such live key.
    pub fn set_key_active(
        &self,
        account: Option<&str>,
        key: &str,
        active: bool,
        audit_entry: Option<&AuditEntry<'_>>,
    ) -> Result<bool, StoreError> {
        self.0.write("set a key's status", |transaction| {
            let status = if active { "active" } else { "disabled" };
            let sql = "UPDATE api_key SET status = ?2
                       WHERE id = ?1 AND account = coalesce(?3, account) AND status <> 'revoked'";
            let is_set = transaction.execute(sql, params![key, status, account])? == 1;
            if is_set {
                audit_entry
                    .into_iter()
                    .try_for_each(|act| audit::append(transaction, act))?;
            }
            Ok(is_set)
        })
    }

    /// Revokes a key. With `account`, only a key of that account is revoked. Returns false if there
    /// is no such live key.
    pub fn revoke_key(
        &self,
        account: Option<&str>,
        key: &str,
        now_ms: i64,
        audit_entry: Option<&AuditEntry<'_>>,
    ) -> Result<bool, StoreError> {
        self.0.write("revoke a key", |transaction| {
            let rows = transaction.execute(
                "UPDATE api_key SET status = 'revoked', revoked_at_ms = ?3
                 WHERE id = ?1 AND account = coalesce(?2, account) AND status <> 'revoked'",
                params![key, account, now_ms],
            )?;
            if rows == 1 {
                audit_entry
                    .into_iter()
                    .try_for_each(|act| audit::append(transaction, act))?;
            }
            Ok(rows == 1)
        })
    }
}
