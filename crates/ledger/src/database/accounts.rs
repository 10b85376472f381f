//! Accounts and price versions: opens and stores them, and reads them as one snapshot.

use crate::StoreError;
use crate::entry::LedgerEntry;
use crate::entry::account::{LedgerAccount, account_row};
use crate::entry::interface::{EntryReference, LedgerStore as _};
use crate::views::LedgerRows;
use crate::writer::trial::Posting;
use credits::money::Micro;
use credits::price_list::PriceList;
use credits::trial::Trial;
use rusqlite::{OptionalExtension, params};

impl LedgerRows<'_> {
    /// Opens an account with zero balances; an open one does not change.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be written.
    pub fn open_account(
        &self,
        account: &str,
        trial_ends_at_ms: Option<i64>,
        at_ms: i64,
    ) -> Result<(), StoreError> {
        let sql = "INSERT INTO account (id, paid, trial, trial_ends_at, opened_at) VALUES (?1, 0, 0, ?2, ?3)
                   ON CONFLICT (id) DO NOTHING";
        self.0.write("open an account", |transaction| {
            transaction
                .execute(sql, params![account, trial_ends_at_ms, at_ms])
                .map(drop)
        })
    }

    /// Opens an account with its trial. The grant has the reference `trial:<account>`, so a second
    /// call changes nothing.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be written.
    pub fn open_account_with_trial(
        &self,
        account: &str,
        trial: Option<Trial>,
        now_ms: i64,
    ) -> Result<(), StoreError> {
        self.open_account(account, trial.map(|trial| trial.ends_at_ms), now_ms)?;
        if let Some(trial) = trial {
            self.0.changes().post(&Posting {
                kind: "trial",
                reference: &format!("trial:{account}"),
                account,
                d_paid: Micro::ZERO,
                d_trial: trial.credits,
                at_ms: now_ms,
            })?;
        }
        Ok(())
    }

    /// Stores a price version, before its first use.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be written.
    pub fn store_price(&self, price: &PriceList, at_ms: i64) -> Result<(), StoreError> {
        let json = serde_json::to_string(price)
            .map_err(|error| StoreError::Unusable(error.to_string()))?;
        self.0.write("store a price version", |transaction| {
            transaction
                .execute(
                    "INSERT INTO price_version (id, json, first_used_at) VALUES (?1, ?2, ?3) ON CONFLICT (id) DO NOTHING",
                    params![price.version, json, at_ms],
                )
                .map(drop)
        })
    }

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

    /// Returns the account as one snapshot; `None` if it was never opened. A point read of a few
    /// microseconds.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn account(
        &self,
        account: &str,
        instance_id: &str,
    ) -> Result<Option<LedgerAccount>, StoreError> {
        self.0.read("read an account's balance", |connection| {
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

    /// Returns the account like [`Ledger::account`], but from a cache: the row can lack a change
    /// that another process made within the last millisecond (`sqlite/row_cache.rs`). This is safe,
    /// because the commit of an ending never debits more than the account has.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn cached_account(
        &self,
        account: &str,
        instance_id: &str,
    ) -> Result<Option<LedgerAccount>, StoreError> {
        self.0
            .account_rows
            .get([instance_id, account].concat().as_bytes(), || {
                self.account(account, instance_id)
            })
    }

    /// See [`RowCache::pause_checks`].
    #[cfg(any(test, feature = "fixtures"))]
    pub fn pause_account_checks(&self) {
        self.0.account_rows.pause_checks();
    }

    /// Clears the cache of accounts.
    pub fn clear_account_cache(&self) {
        self.0.account_rows.clear();
    }

    /// Returns the ids of the instances with applied endings or claims that are not forgotten.
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

    /// Deletes what the instances in `dead` had applied and claimed: their processes have ended,
    /// and their journals are entered.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be written.
    pub fn forget_instances(&self, instance_ids: &[String]) -> Result<(), StoreError> {
        let instance_ids = serde_json::to_string(instance_ids).unwrap_or_default();
        let mut writer = self.0.writer();
        let sql = |source| StoreError::sqlite("remove the records of ended processes", source);
        let transaction = writer.begin().map_err(sql)?;
        for table in ["applied", "applied_key", "claim", "instance"] {
            let sql_text =
                format!("DELETE FROM {table} WHERE boot IN (SELECT value FROM json_each(?1))");
            transaction
                .execute(&sql_text, [&instance_ids])
                .map_err(sql)?;
        }
        transaction.commit().map_err(sql)
    }

    /// Returns the end of a request, or `None` if it has not ended (or belongs to another account).
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read, or if a segment that could have it is not at
    /// hand.
    pub fn ending(
        &self,
        account: &str,
        request_id: &str,
    ) -> Result<Option<LedgerEntry>, StoreError> {
        let found = self.0.entry(EntryReference::Ending(request_id))?;
        Ok(found.filter(|entry| entry.account == account))
    }

    /// Returns an account's entries below `before`, newest first: all of them, or only the ends of
    /// requests.
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
