//! Identities at providers, and sign-ins that are under way, as rows of `app.db`.
//!
//! An identity is found by issuer and subject, never by an address. Must not see a secret: of a
//! sign-in it gets the hash. Next: `provider_sign_in.rs`, what an identity changes in its account.

use super::rows::first_column;
use super::views::IdentityRows;
use ledger::StoreError;
use rusqlite::{OptionalExtension, Row, Transaction, params};

/// An identity as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdentityRow {
    pub issuer: String,
    pub subject: String,
    pub account: String,
    pub provider: String,
    pub email: String,
    pub linked_at_ms: i64,
    pub used_at_ms: Option<i64>,
}

/// An identity for an account.
#[derive(Debug, Clone, Copy)]
pub struct NewIdentityRow<'a> {
    pub issuer: &'a str,
    pub subject: &'a str,
    pub provider: &'a str,
    pub email: &'a str,
}

impl IdentityRows<'_> {
    /// Returns the account of an identity.
    pub fn account_of(&self, issuer: &str, subject: &str) -> Result<Option<String>, StoreError> {
        self.0.read("find an identity", |connection| {
            connection
                .prepare_cached("SELECT account FROM identity WHERE issuer = ?1 AND subject = ?2")?
                .query_row([issuer, subject], first_column)
                .optional()
        })
    }

    /// Returns the identities of an account, oldest first.
    pub fn identities(&self, account: &str) -> Result<Vec<IdentityRow>, StoreError> {
        self.0.read("list an account's identities", |connection| {
            connection
                .prepare_cached(
                    "SELECT issuer, subject, account, provider, email, linked_at_ms, used_at_ms
                     FROM identity WHERE account = ?1 ORDER BY linked_at_ms, issuer, subject",
                )?
                .query_map([account], identity_row)?
                .collect()
        })
    }

    /// Inserts a sign-in that is under way. Deletes the expired ones, and the oldest ones above
    /// `max_flows`.
    pub fn insert_flow(
        &self,
        hash: &[u8; 32],
        (provider, identity): (&str, &str),
        expires_at_ms: i64,
        (now_ms, max_flows): (i64, i64),
    ) -> Result<(), StoreError> {
        self.0.write("begin a sign-in at a provider", |transaction| {
            transaction.execute(
                "INSERT OR REPLACE INTO sign_in_flow(hash, provider, identity, expires_at_ms) VALUES(?1, ?2, ?3, ?4)",
                params![hash, provider, identity, expires_at_ms],
            )?;
            transaction
                .execute(
                    "DELETE FROM sign_in_flow WHERE expires_at_ms <= ?1 OR hash IN
                       (SELECT hash FROM sign_in_flow ORDER BY expires_at_ms DESC LIMIT -1 OFFSET ?2)",
                    params![now_ms, max_flows],
                )
                .map(drop)
        })
    }

    /// Returns what the provider said in a sign-in that is under way; empty if it has said nothing.
    pub fn flow(
        &self,
        hash: &[u8; 32],
        provider: &str,
        now_ms: i64,
    ) -> Result<Option<String>, StoreError> {
        self.0.read("read a sign-in at a provider", |connection| {
            connection
                .prepare_cached(
                    "SELECT identity FROM sign_in_flow WHERE hash = ?1 AND provider = ?2 AND expires_at_ms > ?3",
                )?
                .query_row(params![hash, provider, now_ms], first_column)
                .optional()
        })
    }

    /// Ends a sign-in that is under way. Returns false if another request has ended it.
    pub fn end_flow(&self, hash: &[u8; 32]) -> Result<bool, StoreError> {
        self.0.write("end a sign-in at a provider", |transaction| {
            Ok(transaction.execute("DELETE FROM sign_in_flow WHERE hash = ?1", [hash])? == 1)
        })
    }
}

pub(crate) fn has_account(
    transaction: &Transaction<'_>,
    identity: &NewIdentityRow<'_>,
) -> rusqlite::Result<bool> {
    transaction.query_row(
        "SELECT EXISTS(SELECT 1 FROM identity WHERE issuer = ?1 AND subject = ?2)",
        [identity.issuer, identity.subject],
        first_column,
    )
}

/// Inserts an identity that no account has. Returns the number of rows.
pub(crate) fn insert(
    transaction: &Transaction<'_>,
    account: &str,
    identity: &NewIdentityRow<'_>,
    now_ms: i64,
) -> rusqlite::Result<usize> {
    let NewIdentityRow {
        issuer,
        subject,
        provider,
        email,
    } = identity;
    transaction.execute(
        "INSERT INTO identity(issuer, subject, account, provider, email, linked_at_ms)
         VALUES(?1, ?2, ?3, ?4, ?5, ?6) ON CONFLICT DO NOTHING",
        params![issuer, subject, account, provider, email, now_ms],
    )
}

fn identity_row(row: &Row<'_>) -> rusqlite::Result<IdentityRow> {
    Ok(IdentityRow {
        issuer: row.get(0)?,
        subject: row.get(1)?,
        account: row.get(2)?,
        provider: row.get(3)?,
        email: row.get(4)?,
        linked_at_ms: row.get(5)?,
        used_at_ms: row.get(6)?,
    })
}
