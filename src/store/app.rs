//! `app.db`: accounts and API keys, as rows. Sessions are in `store/app/session.rs`, the opening
//! and closing of accounts in `store/app/account_lifecycle.rs`, the administrators' actions in
//! `store/app/audit.rs`.
//!
//! Inserts the values it receives: ids, times, hashes and rules come from `account.rs`. Must not
//! see a key, a password or a session token in plain text.

pub mod account_lifecycle;
pub mod audit;
pub mod key_changes;
pub mod session;

use super::StoreError;
use super::missing;
use super::row_cache::RowCache;
use super::sqlite::{self, Readers};
use audit::AuditEntry;
use credits::money::Micro;
use credits::trial::Trial;
use rusqlite::{Connection, OptionalExtension, Row, Transaction, params};
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

const MIGRATIONS: &[&str] = &[
    include_str!("app/001_accounts.sql"),
    include_str!("app/002_changes.sql"),
    include_str!("app/003_settings.sql"),
    include_str!("app/004_people.sql"),
    include_str!("app/005_roles.sql"),
];

/// Maximum number of connections for reading. A point read takes microseconds: more would not make
/// two cores faster.
const MAX_READERS: usize = 4;

/// Maximum number of keys in a list, revoked ones included.
const MAX_KEYS_LISTED: i64 = 500;

/// The database of one process: one connection that writes, a few that read.
pub struct AppDb {
    writer: Mutex<Connection>,
    readers: Readers,
    /// Owner of each key, by the key's hash.
    owners: RowCache<Arc<KeyOwner>>,
}

/// Rights of a person beyond the use of their own account.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// No further rights.
    Member,
    /// Read access to the operator pages.
    Viewer,
    /// Read access to the operator pages, and the right to make changes there.
    Admin,
}

impl Role {
    pub fn name(self) -> &'static str {
        match self {
            Self::Member => "member",
            Self::Viewer => "viewer",
            Self::Admin => "administrator",
        }
    }
}

/// An account as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccountRow {
    pub id: String,
    pub email: String,
    pub role: Role,
    pub active: bool,
    /// Whether the holder closed the account; nobody can sign in to it.
    pub deleted: bool,
    pub created_at_ms: i64,
    pub trial: Option<(Micro, i64)>,
    pub granted: bool,
}

impl AccountRow {
    pub fn trial(&self) -> Option<Trial> {
        self.trial.map(|(credits, ends_at_ms)| Trial {
            credits,
            ends_at_ms,
        })
    }
}

/// The data of a key that admission reads by the key's hash.
pub struct KeyOwner {
    pub key: Arc<str>,
    pub account: Arc<str>,
    pub shown: Arc<str>,
    pub status: String,
    pub account_active: bool,
    /// JSON, or empty.
    pub settings: String,
    pub account_rates: String,
}

/// An API key as stored, without its hash.
pub struct KeyRow {
    pub id: String,
    pub account: String,
    pub name: String,
    pub shown: String,
    pub status: String,
    pub created_at_ms: i64,
    pub revoked_at_ms: Option<i64>,
    /// JSON, or empty.
    pub settings: String,
}

/// The result of an insert that has a limit.
#[derive(Debug, PartialEq, Eq)]
pub enum InsertKeyOutcome {
    Done,
    NoAccount,
    LimitReached,
}

impl AppDb {
    pub fn open(data_dir: &Path) -> Result<Self, StoreError> {
        let operation = "open app.db";
        let path = data_dir.join("app.db");
        let mut writer = sqlite::open(&path, operation)?;
        sqlite::migrate(&mut writer, MIGRATIONS, "migrate app.db")?;
        let readers = Readers::open(&path, MAX_READERS, operation)?;
        let owners = RowCache::open(&path, operation)?;
        Ok(Self {
            writer: Mutex::new(writer),
            readers,
            owners,
        })
    }

    fn read<T>(
        &self,
        operation: &'static str,
        query: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        self.readers
            .with(query)
            .map_err(|source| StoreError::sqlite(operation, source))
    }

    /// Runs one `BEGIN IMMEDIATE` transaction.
    fn write<T>(
        &self,
        operation: &'static str,
        change: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let work = || {
            let transaction = sqlite::begin_write(&mut writer)?;
            let value = change(&transaction)?;
            transaction.commit()?;
            Ok(value)
        };
        let outcome = work();
        // A caller that wrote must see its own write: a revoked key is not valid from here on.
        self.owners.clear();
        outcome.map_err(|source| StoreError::Sqlite { operation, source })
    }

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

    /// Sets an account's status. Returns false if the account does not exist or is deleted. `told`
    /// is the line for the audit log.
    pub fn set_active(
        &self,
        id: &str,
        active: bool,
        told: Option<&AuditEntry<'_>>,
    ) -> Result<bool, StoreError> {
        self.write("set an account's status", |transaction| {
            let status = if active { "active" } else { "suspended" };
            let sql = "UPDATE account SET status = ?2 WHERE id = ?1 AND deleted_at_ms IS NULL";
            let is_set = transaction.execute(sql, params![id, status])? == 1;
            if is_set {
                told.into_iter()
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
        told: Option<&AuditEntry<'_>>,
    ) -> Result<bool, StoreError> {
        self.write("set a key's status", |transaction| {
            let status = if active { "active" } else { "disabled" };
            let sql = "UPDATE api_key SET status = ?2
                       WHERE id = ?1 AND account = coalesce(?3, account) AND status <> 'revoked'";
            let is_set = transaction.execute(sql, params![key, status, account])? == 1;
            if is_set {
                told.into_iter()
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
        told: Option<&AuditEntry<'_>>,
    ) -> Result<bool, StoreError> {
        self.write("revoke a key", |transaction| {
            let rows = transaction.execute(
                "UPDATE api_key SET status = 'revoked', revoked_at_ms = ?3
                 WHERE id = ?1 AND account = coalesce(?2, account) AND status <> 'revoked'",
                params![key, account, now_ms],
            )?;
            if rows == 1 {
                told.into_iter()
                    .try_for_each(|act| audit::append(transaction, act))?;
            }
            Ok(rows == 1)
        })
    }
}

const ACCOUNT_COLUMNS: &str = "id, email, admin, viewer, status, deleted_at_ms, created_at_ms, trial_micro, trial_ends_at_ms, granted_at_ms";

const KEY_COLUMNS: &str =
    "id, account, name, shown, status, created_at_ms, revoked_at_ms, settings";

fn account_row(row: &Row<'_>) -> rusqlite::Result<AccountRow> {
    let trial = row
        .get::<_, Option<i64>>("trial_micro")?
        .zip(row.get("trial_ends_at_ms")?);
    Ok(AccountRow {
        id: row.get("id")?,
        email: row.get("email")?,
        role: match (row.get("admin")?, row.get("viewer")?) {
            (true, _) => Role::Admin,
            (false, true) => Role::Viewer,
            (false, false) => Role::Member,
        },
        active: row.get::<_, String>("status")? == "active",
        deleted: row.get::<_, Option<i64>>("deleted_at_ms")?.is_some(),
        created_at_ms: row.get("created_at_ms")?,
        trial: trial.map(|(micro, ends)| (Micro::new(micro), ends)),
        granted: row.get::<_, Option<i64>>("granted_at_ms")?.is_some(),
    })
}

fn key_row(row: &Row<'_>) -> rusqlite::Result<KeyRow> {
    Ok(KeyRow {
        id: row.get(0)?,
        account: row.get(1)?,
        name: row.get(2)?,
        shown: row.get(3)?,
        status: row.get(4)?,
        created_at_ms: row.get(5)?,
        revoked_at_ms: row.get(6)?,
        settings: row.get(7)?,
    })
}

fn first_column<T: rusqlite::types::FromSql>(row: &Row<'_>) -> rusqlite::Result<T> {
    row.get(0)
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
            .prepare("SELECT id, iif(trial_micro IS NULL, NULL, trial_ends_at_ms) FROM account WHERE granted_at_ms IS NOT NULL")?
            .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?
            .collect()
    };
    rows()
        .map(Some)
        .map_err(|source| StoreError::sqlite("look for accounts", source))
}
