//! Stores API keys as rows of `app.db`.
//!
//! This file must not see a key, so it receives hashes.

use super::audit::{self, AuditEntry};
use super::organisations::{role_at, role_of};
use super::rows::{KEY_COLUMNS, KEY_MEMBER, KeyOwner, KeyRow, MAY_SPEND, first_column, key_row};
use super::views::KeyRows;
use crate::membership::{MemberAction, OrganisationRole};
use ledger::StoreError;
use rusqlite::{OptionalExtension, Row, Transaction, params};
use std::sync::Arc;

/// Maximum number of keys in a list, including revoked ones.
const MAX_KEYS_LISTED: i64 = 500;

/// Whether lists have a key: all but the playground's that no longer work at the time `?4`.
const IS_LISTED: &str = "CASE WHEN settings = '' THEN 1 ELSE
    settings ->> '$.playground_session' IS NULL
    OR (status <> 'revoked' AND ifnull(settings ->> '$.expires_at_ms', ?4 + 1) > ?4) END";

/// Which keys of an account a list has.
#[derive(Debug, Clone, Copy, Default)]
pub struct KeyFilter<'a> {
    /// Whether they are revoked; `None` does not matter.
    pub is_revoked: Option<bool>,
    /// Their id, or a part of their name or of the text that they are shown with; empty: all.
    pub term: &'a str,
    /// The member (by id) whose keys they are; `None`: of all.
    pub member: Option<&'a str>,
    pub now_ms: i64,
}

#[derive(Debug, PartialEq, Eq)]
pub enum InsertKeyOutcome {
    Done,
    NoAccount,
    /// The person is no member, or the role does not allow it.
    NotAllowed,
    LimitReached,
}

impl KeyRows<'_> {
    /// Inserts a key, unless its account already has `live_max` live keys; an organisation's,
    /// unless its member has.
    pub fn insert_key(
        &self,
        row: &KeyRow,
        hash: &[u8; 32],
        live_max: i64,
    ) -> Result<InsertKeyOutcome, StoreError> {
        self.0.write("insert a key", |transaction| {
            insert_key(transaction, row, hash, live_max)
        })
    }

    /// Returns the owner of a key if it is in memory. Every request calls this function, and it
    /// never waits for the disk. [`ledger::sqlite::row_cache`] documents the maximum age of the
    /// answer.
    pub fn key_owner_in_memory(&self, hash: &[u8; 32]) -> Option<Arc<KeyOwner>> {
        self.0.owners.peek(hash)
    }

    /// Returns the owner of a key, from memory or the disk.
    pub fn key_owner(&self, hash: &[u8; 32]) -> Result<Option<Arc<KeyOwner>>, StoreError> {
        self.0
            .owners
            .get(hash, || Ok(self.read_key_owner(hash)?.map(Arc::new)))
    }

    fn read_key_owner(&self, hash: &[u8; 32]) -> Result<Option<KeyOwner>, StoreError> {
        self.0.read_for_request("look up a key", |connection| {
            let owner = |row: &Row<'_>| {
                Ok(KeyOwner {
                    key: row.get(0)?,
                    account: row.get(1)?,
                    shown: row.get(2)?,
                    status: row.get(3)?,
                    account_active: row.get(4)?,
                    settings: row.get(5)?,
                    account_rates: row.get(6)?,
                    member_id: row.get(7)?,
                    budget: row.get(8)?,
                    models: row.get(9)?,
                    token_ends_at_ms: row.get(10)?,
                })
            };
            let columns = format!(
                "SELECT k.id, k.account, k.shown, k.status, {MAY_SPEND}, k.settings, a.rates, {KEY_MEMBER}"
            );
            let own = connection
                .prepare_cached(&format!(
                    "{columns}, NULL FROM api_key k JOIN account a ON a.id = k.account WHERE k.hash = ?1"
                ))?
                .query_row([hash], owner)
                .optional()?;
            if own.is_some() {
                return Ok(own);
            }
            connection
                .prepare_cached(&format!(
                    "{columns}, t.expires_at_ms FROM login_token t JOIN api_key k ON k.id = t.login
                     JOIN account a ON a.id = k.account WHERE t.hash = ?1"
                ))?
                .query_row([hash], owner)
                .optional()
        })
    }

    /// Returns a page of an account's keys, newest first: at most `limit`, after the key `after`.
    /// Playground keys that no longer work are in none.
    pub fn keys_page(
        &self,
        account: &str,
        filter: &KeyFilter<'_>,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<KeyRow>, StoreError> {
        self.0.read("list a page of an account's keys", |connection| {
            connection
                .prepare_cached(&format!(
                    "SELECT {KEY_COLUMNS} FROM api_key
                     WHERE account = ?1 AND (status = 'revoked') = ifnull(?2, status = 'revoked')
                       AND (?3 = '' OR id = ?3 OR instr(lower(name), lower(?3)) > 0 OR instr(shown, ?3) > 0)
                       AND member IS ifnull(?7, member)
                       AND {IS_LISTED}
                       AND (created_at_ms, id) < (
                         ifnull((SELECT created_at_ms FROM api_key WHERE id = ?5), 9223372036854775807),
                         ifnull(?5, ''))
                     ORDER BY created_at_ms DESC, id DESC LIMIT ?6",
                ))?
                .query_map(
                    params![account, filter.is_revoked, filter.term, filter.now_ms, after, limit, filter.member],
                    key_row,
                )?
                .collect()
        })
    }

    /// Counts the keys that [`KeyRows::keys_page`] lists without a filter: those that are not
    /// revoked, and those that are.
    pub fn count_keys(
        &self,
        account: &str,
        member: Option<&str>,
        now_ms: i64,
    ) -> Result<(u64, u64), StoreError> {
        self.0.read("count an account's keys", |connection| {
            connection
                .prepare_cached(&format!(
                    "SELECT count(*) FILTER (WHERE status <> 'revoked'),
                            count(*) FILTER (WHERE status = 'revoked')
                     FROM api_key
                     WHERE account = ?1 AND member IS ifnull(?2, member) AND ?3 = ?3 AND {IS_LISTED}",
                ))?
                .query_row(params![account, member, 0, now_ms], |row| {
                    let count = |at: usize| row.get::<_, i64>(at).map(i64::unsigned_abs);
                    Ok((count(0)?, count(1)?))
                })
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

    /// Returns the live keys of a person: those of the own account, and of the memberships.
    pub fn keys_of_person(&self, person: &str) -> Result<Vec<KeyRow>, StoreError> {
        self.0.read("list a person's keys", |connection| {
            connection
                .prepare_cached(&format!(
                    "SELECT {KEY_COLUMNS} FROM api_key
                     WHERE (account = ?1 OR member = ?1) AND status <> 'revoked'
                     ORDER BY created_at_ms DESC, id DESC LIMIT ?2",
                ))?
                .query_map(params![person, MAX_KEYS_LISTED], key_row)?
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

    /// Returns the member whose key it is, and the role; `None` if it is not a member's.
    pub fn member_of_key(
        &self,
        account: &str,
        key: &str,
    ) -> Result<Option<(String, OrganisationRole)>, StoreError> {
        self.0.read("find the member of a key", |connection| {
            connection
                .prepare_cached(
                    "SELECT m.person, m.role FROM api_key k
                     JOIN membership m ON m.account = k.account AND m.person = k.member
                     WHERE k.id = ?2 AND k.account = ?1",
                )?
                .query_row([account, key], |row| Ok((row.get(0)?, role_at(row, 1)?)))
                .optional()
        })
    }

    /// Returns the ids of a member's keys that are not revoked.
    pub fn live_keys_of_member(
        &self,
        account: &str,
        member: &str,
    ) -> Result<Vec<String>, StoreError> {
        self.0.read("list a member's keys", |connection| {
            connection
                .prepare_cached(
                    "SELECT id FROM api_key WHERE member = ?2 AND account = ?1 AND status <> 'revoked'",
                )?
                .query_map([account, member], first_column)?
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
            let is_revoked = revoke(transaction, account, key, now_ms)?;
            if is_revoked {
                audit_entry
                    .into_iter()
                    .try_for_each(|act| audit::append(transaction, act))?;
            }
            Ok(is_revoked)
        })
    }
}

pub(crate) fn insert_key(
    transaction: &Transaction<'_>,
    row: &KeyRow,
    hash: &[u8; 32],
    live_max: i64,
) -> rusqlite::Result<InsertKeyOutcome> {
    if let Some(refused) = find_insert_refusal(transaction, row, live_max)? {
        return Ok(refused);
    }
    insert(transaction, row, hash)?;
    Ok(InsertKeyOutcome::Done)
}

/// Returns why a key cannot be inserted, if so.
pub(crate) fn find_insert_refusal(
    transaction: &Transaction<'_>,
    row: &KeyRow,
    live_max: i64,
) -> rusqlite::Result<Option<InsertKeyOutcome>> {
    let known: bool = transaction.query_row(
        "SELECT EXISTS(SELECT 1 FROM account WHERE id = ?1)",
        [&row.account],
        first_column,
    )?;
    let role = match &row.member {
        Some(member) => role_of(transaction, &row.account, member)?,
        None => Some(OrganisationRole::Owner),
    };
    if !known {
        return Ok(Some(InsertKeyOutcome::NoAccount));
    }
    if !role.is_some_and(|role| role.may(MemberAction::UseKeys)) {
        return Ok(Some(InsertKeyOutcome::NotAllowed));
    }
    // An expired key is invalid, so a rotated key does not count after its overlap.
    let live: i64 = transaction.query_row(
        "SELECT count(*) FROM api_key WHERE account = ?1 AND member IS ?3 AND status <> 'revoked'
         AND (settings = '' OR ifnull(settings ->> '$.expires_at_ms', ?2 + 1) > ?2)",
        params![row.account, row.created_at_ms, row.member],
        first_column,
    )?;
    Ok((live >= live_max).then_some(InsertKeyOutcome::LimitReached))
}

pub(crate) fn insert(
    transaction: &Transaction<'_>,
    row: &KeyRow,
    hash: &[u8; 32],
) -> rusqlite::Result<()> {
    transaction.execute(
        "INSERT INTO api_key(id, account, name, hash, shown, status, created_at_ms, settings, member)
         VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
        params![row.id, row.account, row.name, hash, row.shown, row.status, row.created_at_ms, row.settings, row.member],
    )
    .map(drop)
}

/// Revokes a key. Returns whether there was such a live key.
pub(crate) fn revoke(
    transaction: &Transaction<'_>,
    account: Option<&str>,
    key: &str,
    now_ms: i64,
) -> rusqlite::Result<bool> {
    let rows = transaction.execute(
        "UPDATE api_key SET status = 'revoked', revoked_at_ms = ?3
         WHERE id = ?1 AND account = coalesce(?2, account) AND status <> 'revoked'",
        params![key, account, now_ms],
    )?;
    Ok(rows == 1)
}
