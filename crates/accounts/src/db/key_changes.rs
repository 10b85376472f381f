//! Reads keys in the order of their last changes, for publishing them to the shared store.
//!
//! This file must not see a key in plain text.

use super::rows::{KEY_MEMBER, MAY_SPEND};
use super::views::KeyRows;
use crate::key_settings::KeySettings;
use ledger::StoreError;
use rusqlite::{Connection, Row, params};

#[derive(Debug, Clone)]
pub struct KeyChange {
    /// Position of the change among all changes.
    pub at: ChangeCursor,
    pub hash: [u8; 32],
    pub account: String,
    pub shown: String,
    pub status: String,
    pub account_is_active: bool,
    /// JSON, or an empty text.
    pub settings: String,
    pub account_rates: String,
    /// Id, budget and allowed models of the key's membership, or empty texts.
    pub member_id: String,
    pub budget: String,
    pub models: String,
    /// When the text with this hash ends; `None` but for a token of a login.
    pub token_ends_at_ms: Option<i64>,
}

fn changes_sql() -> String {
    format!(
        "SELECT c.rev, c.key, k.hash, k.account, k.shown, k.status, {MAY_SPEND}, k.settings, a.rates, {KEY_MEMBER}
         FROM change c JOIN api_key k ON k.id = c.key JOIN account a ON a.id = k.account"
    )
}

/// A position among the changes, consisting of revision and key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChangeCursor {
    pub rev: i64,
    pub key: String,
}

impl KeyChange {
    /// Returns the hash in the shared store's format.
    pub fn hash_hex(&self) -> String {
        self.hash
            .iter()
            .fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
    }

    fn from_row(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            at: ChangeCursor {
                rev: row.get(0)?,
                key: row.get(1)?,
            },
            hash: row.get(2)?,
            account: row.get(3)?,
            shown: row.get(4)?,
            status: row.get(5)?,
            account_is_active: row.get(6)?,
            settings: row.get(7)?,
            account_rates: row.get(8)?,
            member_id: row.get(9)?,
            budget: row.get(10)?,
            models: row.get(11)?,
            token_ends_at_ms: None,
        })
    }

    /// Returns the change for a token of this login, which ends before the login does.
    fn for_token(&self, hash: [u8; 32], ends_at_ms: i64) -> Self {
        let mut change = self.clone();
        // Edges refuse a key whose settings cannot be read.
        if let Ok(mut settings) = KeySettings::decode(&self.settings) {
            settings.end_by(ends_at_ms);
            change.settings = settings.encode();
        }
        (change.hash, change.token_ends_at_ms) = (hash, Some(ends_at_ms));
        change
    }
}

/// Adds the changes for the tokens of logins, each after that of its key.
fn add_tokens(
    connection: &Connection,
    changes: Vec<KeyChange>,
) -> rusqlite::Result<Vec<KeyChange>> {
    let mut tokens = connection
        .prepare_cached("SELECT hash, expires_at_ms FROM login_token WHERE login = ?1")?;
    let mut all = Vec::with_capacity(changes.len());
    for change in changes {
        let of_login = tokens
            .query_map([&change.at.key], |row| {
                Ok(change.for_token(row.get(0)?, row.get(1)?))
            })?
            .collect::<rusqlite::Result<Vec<_>>>()?;
        all.push(change);
        all.extend(of_login);
    }
    Ok(all)
}

impl KeyRows<'_> {
    /// Returns the latest change of a key, for each hash by which it is found; nothing if there is
    /// no such key.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read.
    pub fn key_change(&self, key: &str) -> Result<Vec<KeyChange>, StoreError> {
        self.0.read("look for a changed key", |connection| {
            let changes = connection
                .prepare_cached(&format!("{} WHERE c.key = ?1", changes_sql()))?
                .query_map([key], KeyChange::from_row)?
                .collect::<rusqlite::Result<_>>()?;
            add_tokens(connection, changes)
        })
    }

    /// Returns the latest change of every key that changed after `after`, in order: at most `limit`
    /// of keys, with those of their tokens. Keys that were revoked long ago are included, because
    /// an edge that received them as valid must receive the revocation.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read.
    pub fn key_changes(
        &self,
        after: &ChangeCursor,
        limit: usize,
    ) -> Result<Vec<KeyChange>, StoreError> {
        self.0.read("look for changed keys", |connection| {
            let changes = connection
                .prepare_cached(&format!(
                    "{} WHERE (c.rev, c.key) > (?1, ?2) ORDER BY c.rev, c.key LIMIT ?3",
                    changes_sql()
                ))?
                .query_map(
                    params![
                        after.rev,
                        after.key,
                        i64::try_from(limit).unwrap_or(i64::MAX)
                    ],
                    KeyChange::from_row,
                )?
                .collect::<rusqlite::Result<_>>()?;
            add_tokens(connection, changes)
        })
    }
}
