//! Stores one-time links as rows of `app.db`. Each account and purpose has at most one open link
//! from an operator and one sent by mail.
//!
//! When a password changes, a trigger deletes the links that could set a password. This file must
//! not see a token, so a row contains its hash.

use super::account_lifecycle::{WAITS_AT_MS, revoke_keys};
use super::audit::{self, AuditEntry};
use super::organisations::{end_unproven, join_by_domain};
use super::rows::{IS_ACTIVE, first_column};
use super::views::LinkRows;
use super::webhooks;
use ledger::StoreError;
use rusqlite::{OptionalExtension, Row, Transaction, params};

/// A link as stored, without its hash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OneTimeLinkRow {
    pub account: String,
    /// `reset`, `setup` or `verify`.
    pub purpose: String,
    /// True if an operator created the link; false if it was requested and mailed.
    pub by_operator: bool,
    pub created_by: String,
    pub created_at_ms: i64,
    pub expires_at_ms: i64,
}

/// SQL of unexpired links. Those of active accounts are usable.
const LINKS: &str = "FROM one_time_link AS link JOIN account ON account.id = link.account
   WHERE link.expires_at_ms > ?2";

impl LinkRows<'_> {
    /// Stores a link. An operator's link replaces all open links of the account with the same
    /// purpose, and a requested link replaces only earlier requested ones. Returns false, and
    /// changes nothing, if there is no such active account.
    pub fn put_one_time_link(
        &self,
        row: &OneTimeLinkRow,
        hash: &[u8; 32],
        act: Option<&AuditEntry<'_>>,
    ) -> Result<bool, StoreError> {
        self.0.write("store a one-time link", |transaction| {
            let rows = transaction.execute(
                &format!(
                    "INSERT OR REPLACE INTO one_time_link(account, purpose, hash, by_operator, created_by, created_at_ms, expires_at_ms)
                     SELECT id, ?2, ?3, ?4, ?5, ?6, ?7 FROM account
                     WHERE id = ?1 AND {IS_ACTIVE} AND organisation IS NULL"
                ),
                params![
                    row.account,
                    row.purpose,
                    hash,
                    row.by_operator,
                    row.created_by,
                    row.created_at_ms,
                    row.expires_at_ms
                ],
            )?;
            if rows > 0 && row.by_operator {
                transaction.execute(
                    "DELETE FROM one_time_link WHERE account = ?1 AND purpose = ?2 AND by_operator = 0",
                    [&row.account, &row.purpose],
                )?;
            }
            if rows > 0 {
                act.into_iter()
                    .try_for_each(|act| audit::append(transaction, act))?;
            }
            Ok(rows > 0)
        })
    }

    /// Returns a usable link, and whether the e-mail of its account is verified. Reading a link
    /// does not use it up.
    pub fn one_time_link(
        &self,
        hash: &[u8; 32],
        now_ms: i64,
    ) -> Result<Option<(OneTimeLinkRow, bool)>, StoreError> {
        self.0.read("find a one-time link", |connection| {
            connection
                .prepare_cached(&format!(
                    "SELECT link.account, purpose, by_operator, created_by, link.created_at_ms, link.expires_at_ms,
                       account.verified_at_ms IS NOT NULL
                     {LINKS} AND {IS_ACTIVE} AND link.hash = ?1"
                ))?
                .query_row(params![hash, now_ms], |row| Ok((link_row(row)?, row.get(6)?)))
                .optional()
        })
    }

    /// Uses up a link that sets a password. Sets the password and ends all sessions of the account;
    /// with `ends_credentials`, its keys and webhook too. A mailed link also verifies the e-mail.
    /// If it is the first that does, `ends_credentials` also ends what the account made in
    /// organisations. A verification link sets a password only if the e-mail was never verified
    /// before. Returns false, and changes nothing, if the link is unusable, so only one of two
    /// concurrent requests succeeds.
    pub fn set_password_by_link(
        &self,
        hash: &[u8; 32],
        password: &str,
        ends_credentials: bool,
        now_ms: i64,
        act: &AuditEntry<'_>,
    ) -> Result<bool, StoreError> {
        const PURPOSE: &str = "(purpose IN ('reset', 'setup')
            OR purpose = 'verify' AND by_operator = 0 AND verified_at_ms IS NULL)";
        self.0.write("set a password by a link", |transaction| {
            let Some((account, by_operator)) = account_of(transaction, hash, PURPOSE, now_ms)?
            else {
                return Ok(false);
            };
            // The table's trigger deletes every link that resets or sets up the password.
            transaction.execute(
                "UPDATE account SET password = ?2 WHERE id = ?1",
                params![account, password],
            )?;
            transaction.execute("DELETE FROM session WHERE account = ?1", [&account])?;
            if ends_credentials {
                let mut ended = vec![account.clone()];
                if !by_operator && !is_verified(transaction, &account)? {
                    ended.extend(end_unproven(transaction, &account, act, now_ms)?);
                }
                for account in &ended {
                    revoke_keys(transaction, account, now_ms)?;
                }
                webhooks::remove(transaction, &account, now_ms)?;
            }
            if !by_operator {
                verify_email(transaction, &account, now_ms)?;
            }
            audit::append(transaction, act)?;
            Ok(true)
        })
    }

    /// Uses up a link that was sent to an e-mail. The e-mail is verified from then on, so a trial
    /// that waited for it can be granted. Returns false if the link is unusable.
    pub fn verify_email_by_link(&self, hash: &[u8; 32], now_ms: i64) -> Result<bool, StoreError> {
        self.0.write("verify an e-mail by a link", |transaction| {
            let Some((account, _)) = account_of(transaction, hash, "purpose = 'verify'", now_ms)?
            else {
                return Ok(false);
            };
            verify_email(transaction, &account, now_ms)?;
            Ok(true)
        })
    }

    /// Returns the end of the account's trial if its credits wait until the e-mail is verified.
    pub fn waiting_trial(&self, account: &str) -> Result<Option<i64>, StoreError> {
        self.0.read("look for a trial that waits", |connection| {
            connection
                .prepare_cached(
                    "SELECT trial_ends_at_ms FROM account WHERE id = ?1 AND granted_at_ms = ?2",
                )?
                .query_row(params![account, WAITS_AT_MS], first_column)
                .optional()
        })
    }

    /// Returns the time at which the account's e-mail was verified; `None` if it was not.
    pub fn email_verified_at(&self, account: &str) -> Result<Option<i64>, StoreError> {
        self.0
            .read("read when an e-mail was verified", |connection| {
                let found: Option<Option<i64>> = connection
                    .prepare_cached("SELECT verified_at_ms FROM account WHERE id = ?1")?
                    .query_row([account], first_column)
                    .optional()?;
                Ok(found.flatten())
            })
    }
}

/// Records that mail reaches the account holder, who joins the organisation that claimed the
/// domain, and deletes the account's verification links.
pub(crate) fn verify_email(
    transaction: &Transaction<'_>,
    account: &str,
    now_ms: i64,
) -> rusqlite::Result<()> {
    transaction.execute(
        "DELETE FROM one_time_link WHERE account = ?1 AND purpose = 'verify'",
        [account],
    )?;
    let is_first = transaction.execute(
        "UPDATE account SET verified_at_ms = ?2 WHERE id = ?1 AND verified_at_ms IS NULL",
        params![account, now_ms],
    )?;
    if is_first > 0 {
        join_by_domain(transaction, account, now_ms)?;
    }
    transaction.execute(
        "UPDATE account SET granted_at_ms = NULL WHERE id = ?1 AND granted_at_ms = ?2",
        params![account, WAITS_AT_MS],
    )?;
    Ok(())
}

fn is_verified(transaction: &Transaction<'_>, account: &str) -> rusqlite::Result<bool> {
    transaction.query_row(
        "SELECT verified_at_ms IS NOT NULL FROM account WHERE id = ?1",
        [account],
        first_column,
    )
}

/// Returns the account of a usable link, and whether an operator created the link. The SQL
/// condition `purpose` restricts the link's purpose.
fn account_of(
    transaction: &Transaction<'_>,
    hash: &[u8; 32],
    purpose: &'static str,
    now_ms: i64,
) -> rusqlite::Result<Option<(String, bool)>> {
    transaction
        .prepare_cached(&format!(
            "SELECT link.account, by_operator {LINKS} AND {IS_ACTIVE} AND link.hash = ?1 AND {purpose}"
        ))?
        .query_row(params![hash, now_ms], |row| {
            Ok((first_column(row)?, row.get(1)?))
        })
        .optional()
}

fn link_row(row: &Row<'_>) -> rusqlite::Result<OneTimeLinkRow> {
    Ok(OneTimeLinkRow {
        account: first_column(row)?,
        purpose: row.get(1)?,
        by_operator: row.get(2)?,
        created_by: row.get(3)?,
        created_at_ms: row.get(4)?,
        expires_at_ms: row.get(5)?,
    })
}
