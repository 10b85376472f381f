//! Stores accounts and API keys as rows of `app.db`. Sessions are in `db/session.rs`, the opening
//! and closing of accounts in `db/account_lifecycle.rs`, the administrators' actions in
//! `db/audit.rs`.
//!
//! The callers provide ids, times and hashes, and they check the rules. This module must not see a
//! key, a password or a session token in plain text. Read next: `db/rows.rs` (the rows),
//! `db/database.rs` (the connections).

pub mod account_lifecycle;
pub(crate) mod account_merges;
pub mod alerts;
pub mod audit;
pub mod auto_topup;
pub mod codes;
mod database;
pub mod device_logins;
mod due;
pub mod identities;
pub mod invites;
pub mod key_changes;
pub(crate) mod key_moves;
mod keys;
pub mod links;
pub mod mail;
pub mod organisations;
mod past_mailbox;
pub mod payment_book;
pub mod payments;
pub mod provider_sign_in;
mod rows;
pub mod search;
pub mod session;
#[cfg(test)]
mod tests;
mod views;
pub mod webhooks;

use audit::AuditEntry;
pub use database::AppDb;
pub use keys::{InsertKeyOutcome, KeyFilter};
use ledger::StoreError;
use ledger::sqlite::missing;
pub(crate) use rows::decode_models;
use rows::{ACCOUNT_COLUMNS, MAY_SPEND, account_row, first_column};
pub use rows::{AccountRow, KeyMember, KeyOwner, KeyRow, Role, membership_id};
use rusqlite::{OptionalExtension, params};
use std::collections::HashMap;
use std::path::Path;
pub use views::{
    AccountRows, AlertRows, AuditRows, ClawbackRows, CodeRows, DeviceLoginRows, IdentityRows,
    KeyRows, LinkRows, MailRows, MergeRows, PaymentBookRows, PaymentEventRows, PaymentRows,
    SessionRows, WebhookRows,
};

impl AccountRows<'_> {
    pub fn account(&self, id: &str) -> Result<Option<AccountRow>, StoreError> {
        self.0.read("find an account by id", |connection| {
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
        self.0.read("find an account by e-mail", |connection| {
            connection
                .prepare_cached(&format!(
                    "SELECT {ACCOUNT_COLUMNS}, password FROM account WHERE email = ?1"
                ))?
                .query_row([email], |row| Ok((account_row(row)?, row.get("password")?)))
                .optional()
        })
    }

    /// Returns a page of accounts in the order of their ids, which is the order of creation. The
    /// page begins after the id `after`.
    pub fn accounts_after(&self, after: &str, limit: u32) -> Result<Vec<AccountRow>, StoreError> {
        self.0.read("list a page of accounts", |connection| {
            connection
                .prepare_cached(&format!(
                    "SELECT {ACCOUNT_COLUMNS} FROM account WHERE id > ?1 ORDER BY id LIMIT ?2"
                ))?
                .query_map(params![after, limit], account_row)?
                .collect()
        })
    }

    /// Returns a page of organisations like [`AccountRows::accounts_after`], without deleted ones.
    pub fn organisations_after(
        &self,
        after: &str,
        limit: u32,
    ) -> Result<Vec<AccountRow>, StoreError> {
        self.0.read("list a page of organisations", |connection| {
            connection
                .prepare_cached(&format!(
                    "SELECT {ACCOUNT_COLUMNS} FROM account
                     WHERE id > ?1 AND organisation IS NOT NULL AND deleted_at_ms IS NULL
                     ORDER BY id LIMIT ?2"
                ))?
                .query_map(params![after, limit], account_row)?
                .collect()
        })
    }

    /// Returns all accounts, oldest first.
    pub fn accounts(&self) -> Result<Vec<AccountRow>, StoreError> {
        self.account_list("list accounts", "created_at_ms IS NOT NULL")
    }

    /// Returns the accounts that the ledger does not have yet according to `app.db`.
    pub fn accounts_without_grant(&self) -> Result<Vec<AccountRow>, StoreError> {
        self.account_list("list accounts without a grant", "granted_at_ms IS NULL")
    }

    fn account_list(
        &self,
        operation: &'static str,
        filter: &'static str,
    ) -> Result<Vec<AccountRow>, StoreError> {
        self.0.read(operation, |connection| {
            connection
                .prepare_cached(&format!(
                    "SELECT {ACCOUNT_COLUMNS} FROM account WHERE {filter} ORDER BY created_at_ms, id"
                ))?
                .query_map([], account_row)?
                .collect()
        })
    }

    pub fn mark_granted(&self, id: &str, now_ms: i64) -> Result<(), StoreError> {
        self.0.write("mark an account as granted", |transaction| {
            let sql =
                "UPDATE account SET granted_at_ms = ?2 WHERE id = ?1 AND granted_at_ms IS NULL";
            transaction.execute(sql, params![id, now_ms]).map(drop)
        })
    }

    /// Returns whether the account may begin requests: it is active, and no payment of it that was
    /// taken back waits for running requests.
    pub fn may_spend(&self, id: &str) -> Result<bool, StoreError> {
        self.0
            .read("read whether an account may spend", |connection| {
                connection
                    .prepare_cached(&format!(
                        "SELECT 1 FROM account a WHERE a.id = ?1 AND {MAY_SPEND}"
                    ))?
                    .exists([id])
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
        self.0.write("set an account's status", |transaction| {
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
        self.0.write("set an account's password", |transaction| {
            let sql = "UPDATE account SET password = ?2 WHERE id = ?1 AND deleted_at_ms IS NULL";
            transaction.execute(sql, params![id, password]).map(drop)
        })
    }

    /// Returns the rate settings of an account; `None` if there is no such account.
    pub fn account_rates(&self, id: &str) -> Result<Option<String>, StoreError> {
        self.0.read("read an account's rates", |connection| {
            connection
                .prepare_cached("SELECT rates FROM account WHERE id = ?1")?
                .query_row([id], first_column)
                .optional()
        })
    }

    /// Sets the rates of an account. Returns false if there is no such account.
    pub fn set_account_rates(&self, id: &str, rates: &str) -> Result<bool, StoreError> {
        self.0.write("set an account's rates", |transaction| {
            Ok(transaction.execute(
                "UPDATE account SET rates = ?2 WHERE id = ?1",
                params![id, rates],
            )? == 1)
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
