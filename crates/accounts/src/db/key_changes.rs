//! Reads keys in the order of their last changes, for publishing them to the shared store.
//!
//! This file must not see a key in plain text.

use super::rows::{KEY_MEMBER, MAY_SPEND};
use super::views::KeyRows;
use ledger::StoreError;
use rusqlite::{OptionalExtension as _, Row, params};

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
    /// Id and budget of the key's membership, or empty texts.
    pub member_id: String,
    pub budget: String,
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
        })
    }
}

impl KeyRows<'_> {
    /// Returns the latest change of a key; `None` if there is no such key.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read.
    pub fn key_change(&self, key: &str) -> Result<Option<KeyChange>, StoreError> {
        self.0.read("look for a changed key", |connection| {
            connection
                .prepare_cached(&format!(
                    "SELECT c.rev, c.key, k.hash, k.account, k.shown, k.status, {MAY_SPEND}, k.settings, a.rates, {KEY_MEMBER}
                     FROM change c JOIN api_key k ON k.id = c.key JOIN account a ON a.id = k.account
                     WHERE c.key = ?1"
                ))?
                .query_row([key], KeyChange::from_row)
                .optional()
        })
    }

    /// Returns the latest change of every key that changed after `after`, in order. Keys that were
    /// revoked long ago are included, because an edge that received them as valid must receive the
    /// revocation.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read.
    pub fn key_changes(
        &self,
        after: &ChangeCursor,
        limit: usize,
    ) -> Result<Vec<KeyChange>, StoreError> {
        self.0.read("look for changed keys", |connection| {
            connection
                .prepare_cached(&format!(
                    "SELECT c.rev, c.key, k.hash, k.account, k.shown, k.status, {MAY_SPEND}, k.settings, a.rates, {KEY_MEMBER}
                     FROM change c JOIN api_key k ON k.id = c.key JOIN account a ON a.id = k.account
                     WHERE (c.rev, c.key) > (?1, ?2)
                     ORDER BY c.rev, c.key LIMIT ?3"
                ))?
                .query_map(
                    params![after.rev, after.key, i64::try_from(limit).unwrap_or(i64::MAX)],
                    KeyChange::from_row,
                )?
                .collect()
        })
    }
}
