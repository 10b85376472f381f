//! `app.db`: accounts and API keys, as rows. Sessions are in `db/session.rs`, the opening
//! and closing of accounts in `db/account_lifecycle.rs`, the administrators' actions in
//! `db/audit.rs`.
//!
//! Inserts the values it receives: ids, times, hashes and rules come from `lib.rs`. Must not
//! see a key, a password or a session token in plain text. Read next: `db/rows.rs` (the
//! rows), `db/database.rs` (the connections).

pub mod account_lifecycle;
pub mod alerts;
pub mod audit;
mod database;
pub mod key_changes;
pub mod links;
pub mod mail;
mod rows;
pub mod search;
pub mod session;
#[cfg(test)]
mod tests;
pub mod webhooks;

use audit::AuditEntry;
pub use database::AppDb;
use ledger::StoreError;
use ledger::sqlite::missing;
use rows::{ACCOUNT_COLUMNS, KEY_COLUMNS, account_row, first_column, key_row};
pub use rows::{AccountRow, KeyOwner, KeyRow, Role};
use rusqlite::{OptionalExtension, params};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

/// Maximum number of keys in a list, revoked ones included.
const MAX_KEYS_LISTED: i64 = 500;

/// The result of an insert that has a limit.
#[derive(Debug, PartialEq, Eq)]
pub enum InsertKeyOutcome {
    Done,
    NoAccount,
    LimitReached,
}

impl AppDb {
    pub fn account(&self, id: &str) -> Result<Option<AccountRow>, StoreError> {
        self.read("find an account by id", |connection| {
            connection
                .prepare_cached(&format!(
                    "SELECT {ACCOUNT_COLUMNS} FROM account WHERE id = ?1"
                ))?
                .query_row([id], account_row)
                .optional()
        })
    }

    /// Returns the account of a normalized e-mail, and its password's hash.
    pub fn account_by_email(
        &self,
        email: &str,
    ) -> Result<Option<(AccountRow, Option<String>)>, StoreError> {
        self.read("find an account by e-mail", |connection| {
            connection
                .prepare_cached(&format!(
                    "SELECT {ACCOUNT_COLUMNS}, password FROM account WHERE email = ?1"
                ))?
                .query_row([email], |row| Ok((account_row(row)?, row.get("password")?)))
                .optional()
        })
    }

    /// Returns a page of accounts in the order of their ids, which is the order of their creation:
    /// those after `after`.
    pub fn accounts_after(&self, after: &str, limit: u32) -> Result<Vec<AccountRow>, StoreError> {
        self.read("list a page of accounts", |connection| {
            connection
                .prepare_cached(&format!(
                    "SELECT {ACCOUNT_COLUMNS} FROM account WHERE id > ?1 ORDER BY id LIMIT ?2"
                ))?
                .query_map(params![after, limit], account_row)?
                .collect()
        })
    }

    /// Returns all accounts, oldest first.
    pub fn accounts(&self) -> Result<Vec<AccountRow>, StoreError> {
        self.account_list("list accounts", "created_at_ms IS NOT NULL")
    }

    /// Returns the accounts that, as far as `app.db` knows, the ledger does not have yet.
    pub fn accounts_without_grant(&self) -> Result<Vec<AccountRow>, StoreError> {
        self.account_list("list accounts without a grant", "granted_at_ms IS NULL")
    }

    fn account_list(
        &self,
        operation: &'static str,
        filter: &'static str,
    ) -> Result<Vec<AccountRow>, StoreError> {
        self.read(operation, |connection| {
            connection
                .prepare_cached(&format!(
                    "SELECT {ACCOUNT_COLUMNS} FROM account WHERE {filter} ORDER BY created_at_ms, id"
                ))?
                .query_map([], account_row)?
                .collect()
        })
    }

    pub fn mark_granted(&self, id: &str, now_ms: i64) -> Result<(), StoreError> {
        self.write("mark an account as granted", |transaction| {
            let sql =
                "UPDATE account SET granted_at_ms = ?2 WHERE id = ?1 AND granted_at_ms IS NULL";
            transaction.execute(sql, params![id, now_ms]).map(drop)
        })
    }

    /// Sets an account's status. Returns false if the account does not exist or is deleted.
    /// `audit_entry` is the line for the audit log.
    pub fn set_active(
        &self,
        id: &str,
        active: bool,
        audit_entry: Option<&AuditEntry<'_>>,
    ) -> Result<bool, StoreError> {
        self.write("set an account's status", |transaction| {
            let status = if active { "active" } else { "suspended" };
            let sql = "UPDATE account SET status = ?2 WHERE id = ?1 AND deleted_at_ms IS NULL";
            let is_set = transaction.execute(sql, params![id, status])? == 1;
            if is_set {
                audit_entry
                    .into_iter()
                    .try_for_each(|act| audit::append(transaction, act))?;
            }
            Ok(is_set)
        })
    }

    pub fn set_password(&self, id: &str, password: &str) -> Result<(), StoreError> {
        self.write("set an account's password", |transaction| {
            let sql = "UPDATE account SET password = ?2 WHERE id = ?1 AND deleted_at_ms IS NULL";
            transaction.execute(sql, params![id, password]).map(drop)
        })
    }

    /// Inserts a key unless its account already has `live_max` live ones.
    pub fn insert_key(
        &self,
        row: &KeyRow,
        hash: &[u8; 32],
        live_max: i64,
    ) -> Result<InsertKeyOutcome, StoreError> {
        self.write("insert a key", |transaction| {
            let known: bool =
                transaction.query_row("SELECT EXISTS(SELECT 1 FROM account WHERE id = ?1)", [&row.account], first_column)?;
            if !known {
                return Ok(InsertKeyOutcome::NoAccount);
            }
            // An expired key is not valid, so a rotated one does not count.
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

    /// Returns the owner of a key. Every request calls this; see [`RowCache`] for how old the
    /// answer can be.
    pub fn key_owner(&self, hash: &[u8; 32]) -> Result<Option<Arc<KeyOwner>>, StoreError> {
        self.owners
            .get(hash, || Ok(self.read_key_owner(hash)?.map(Arc::new)))
    }

    fn read_key_owner(&self, hash: &[u8; 32]) -> Result<Option<KeyOwner>, StoreError> {
        self.read("look up a key", |connection| {
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
        self.read("list an account's keys", |connection| {
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
        self.read("list an account's keys with settings", |connection| {
            connection
                .prepare_cached(&format!(
                    "SELECT {KEY_COLUMNS} FROM api_key WHERE account = ?1 AND status <> 'revoked' AND settings <> ''",
                ))?
                .query_map([account], key_row)?
                .collect()
        })
    }

    pub fn key(&self, key: &str) -> Result<Option<KeyRow>, StoreError> {
        self.read("find a key by its id", |connection| {
            connection
                .prepare_cached(&format!("SELECT {KEY_COLUMNS} FROM api_key WHERE id = ?1"))?
                .query_row([key], key_row)
                .optional()
        })
    }

    /// Replaces the settings of a live key (of `account`, if given) by the result of `change`, in
    /// one step. Returns `None` if there is no such live key. If `change` fails, nothing changes.
    pub fn change_key<T, E>(
        &self,
        account: Option<&str>,
        key: &str,
        change: impl FnOnce(&str) -> Result<(String, T), E>,
    ) -> Result<Option<Result<T, E>>, StoreError> {
        self.write("change a key's settings", |transaction| {
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

    /// Returns the rate settings of an account; `None` if there is no such account.
    pub fn account_rates(&self, id: &str) -> Result<Option<String>, StoreError> {
        self.read("read an account's rates", |connection| {
            connection
                .prepare_cached("SELECT rates FROM account WHERE id = ?1")?
                .query_row([id], first_column)
                .optional()
        })
    }

    /// Sets the rates of an account. Returns false if there is no such account.
    pub fn set_account_rates(&self, id: &str, rates: &str) -> Result<bool, StoreError> {
        self.write("set an account's rates", |transaction| {
            Ok(transaction.execute(
                "UPDATE account SET rates = ?2 WHERE id = ?1",
                params![id, rates],
            )? == 1)
        })
    }

    /// Disables a key (of `account`, if given), or enables it again. Returns false if there is no
    /// such live key.
    pub fn set_key_active(
        &self,
        account: Option<&str>,
        key: &str,
        active: bool,
        audit_entry: Option<&AuditEntry<'_>>,
    ) -> Result<bool, StoreError> {
        self.write("set a key's status", |transaction| {
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

    /// Revokes a key (of `account`, if given). Returns false if there is no such live key.
    pub fn revoke_key(
        &self,
        account: Option<&str>,
        key: &str,
        now_ms: i64,
        audit_entry: Option<&AuditEntry<'_>>,
    ) -> Result<bool, StoreError> {
        self.write("revoke a key", |transaction| {
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

/// Returns the accounts that have received their sign-up credits, and the end of their trials in ms
/// since 1970; `None` without `app.db`.
///
/// # Errors
/// Returns an error if the file cannot be read.
pub fn granted_accounts(dir: &Path) -> Result<Option<HashMap<String, Option<i64>>>, StoreError> {
    let Some(connection) = missing::open_with(dir, "app.db", "account")? else {
        return Ok(None);
    };
    let rows = || -> rusqlite::Result<_> {
        connection
            .prepare("SELECT id, iif(trial_micro IS NULL, NULL, trial_ends_at_ms) FROM account WHERE granted_at_ms > 0")?
            .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?
            .collect()
    };
    rows()
        .map(Some)
        .map_err(|source| StoreError::sqlite("look for accounts", source))
}
