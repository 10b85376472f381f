//! Reads accounts, price versions and the ends of requests, each from one snapshot.
//!
//! This file must not write.

use crate::StoreError;
use crate::entry::LedgerEntry;
use crate::entry::account::{LedgerAccount, account_row};
use crate::reader::chain::EntryReference;
use crate::views::{LedgerPages, LedgerRows};
use credits::price_list::PriceList;
use rusqlite::OptionalExtension;

impl LedgerPages<'_> {
    /// Returns the time at which a price version was stored, in ms since 1970. The first use is
    /// later.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn price_stored_at(&self, version: &str) -> Result<Option<i64>, StoreError> {
        self.0.read("read a price version", |connection| {
            connection
                .prepare_cached("SELECT first_used_at FROM price_version WHERE id = ?1")?
                .query_row([version], |row| row.get(0))
                .optional()
        })
    }
}

impl LedgerRows<'_> {
    /// Returns a price version.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn price(&self, version: &str) -> Result<Option<PriceList>, StoreError> {
        let json: Option<String> = self.0.read("read a price version", |connection| {
            connection
                .prepare_cached("SELECT json FROM price_version WHERE id = ?1")?
                .query_row([version], |row| row.get(0))
                .optional()
        })?;
        json.map(|json| serde_json::from_str(&json))
            .transpose()
            .map_err(|error| {
                StoreError::Unusable(format!("cannot read price version {version}: {error}"))
            })
    }

    /// Returns the account from one snapshot, or `None` if it was never opened. This point read
    /// takes a few microseconds.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn account(
        &self,
        account: &str,
        instance_id: &str,
    ) -> Result<Option<LedgerAccount>, StoreError> {
        self.0
            .read_for_request("read an account's balance", |connection| {
                connection
                    .prepare_cached(
                        "SELECT a.paid, a.trial, a.trial_ends_at, a.credited,
                       iif(a.applied_by = i.number, a.applied_paid, ifnull(p.paid, 0)),
                       iif(a.applied_by = i.number, a.applied_trial, ifnull(p.trial, 0)),
                       (SELECT ifnull(sum(paid), 0) FROM claim WHERE account = ?1 AND boot <> ?2),
                       (SELECT ifnull(sum(trial), 0) FROM claim WHERE account = ?1 AND boot <> ?2)
                     FROM account a LEFT JOIN instance i ON i.boot = ?2
                       LEFT JOIN applied p ON p.boot = ?2 AND p.account = a.id WHERE a.id = ?1",
                    )?
                    .query_row([account, instance_id], account_row)
                    .optional()
            })
    }

    /// Returns the ids of the instances whose applied endings or claims are still stored.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn instance_ids(&self) -> Result<Vec<String>, StoreError> {
        self.0.read("look for processes", |connection| {
            connection
                .prepare("SELECT boot FROM claim UNION SELECT boot FROM applied UNION SELECT boot FROM applied_key
                          UNION SELECT boot FROM instance")?
                .query_map([], |row| row.get(0))?
                .collect()
        })
    }

    /// Returns the end of a request. Returns `None` if it has not ended or belongs to another
    /// account.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read, or if a segment that could have it is not at
    /// hand.
    pub fn ending(
        &self,
        account: &str,
        request_id: &str,
    ) -> Result<Option<LedgerEntry>, StoreError> {
        let found = self.entry(EntryReference::Ending(request_id))?;
        Ok(found.filter(|entry| entry.account == account))
    }

    /// Returns an account's entries before the position `before`, newest first. The result has all
    /// entries, or only the ends of requests.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn entries(
        &self,
        account: &str,
        endings_only: bool,
        before: Option<i64>,
        limit: u32,
    ) -> Result<Vec<LedgerEntry>, StoreError> {
        let seqs = self
            .0
            .pages()
            .find_seqs(account, endings_only, before, limit)?;
        self.0.index().entries_at(&seqs)
    }
}
