//! The ledger: balances, and the immutable, hash-chained entries that they are the sum of.
//!
//! Every change of a balance is an entry in the same transaction. The gateway's ledger writer
//! writes here; any process can post grants and other changes (`ledger/posting.rs`). Must not
//! decide what a response costs. Read next: `ledger/ending.rs` and `ledger/entry.rs` (the types),
//! `ledger/chain.rs` (the hashes), `ledger/database.rs` (the connections), `ledger/batch.rs` (the
//! endings of one commit).

mod account;
mod activity;
mod aggregates;
pub mod anchor;
mod balances;
mod batch;
mod chain;
mod claim;
mod database;
mod ending;
mod entry;
#[cfg(test)]
mod fixture;
mod key_spend;
mod posting;
mod schema;
mod statement;
mod store_events;
mod trial;
mod usage;

use super::StoreError;
use super::sqlite;
use crate::failpoint::{self, Point};
use account::account_row;
pub use account::{LedgerAccount, LedgerAccountRow};
pub use activity::{
    ActivityCursor, ActivityFilter, Conversation, HOUR_MS, HourlySpend, SpendTotals,
};
pub use balances::RequestCharge;
use batch::EndingBatch;
pub use chain::entry_hash;
pub use claim::Claim;
use credits::money::CreditSplit;
use credits::price_list::PriceList;
pub use database::Ledger;
use ending::ending_detail;
pub use ending::{Ending, EndingDetail, RequestOutcome};
use entry::{ENTRY_COLUMNS, entry};
pub use entry::{EntrySelection, LedgerEntry};
pub use key_spend::KeySpend;
pub use posting::{
    BalanceChange, BalanceChangeKind, PostingDetail, PostingResult, Refund, split_debit,
};
use rusqlite::{OptionalExtension, Row, params};
pub use statement::BalanceChangeSums;
pub use store_events::{IngestEvent, PartitionLocation};
pub use trial::Posting;
pub use usage::{DailyTotal, UsageInterval, UsageQuery, UsageRow, UsageSpan};

impl Ledger {
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
        self.writer()
            .execute(sql, params![account, trial_ends_at_ms, at_ms])
            .map_err(|source| StoreError::sqlite("open an account", source))?;
        Ok(())
    }

    /// Stores a price version, before its first use.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be written.
    pub fn store_price(&self, price: &PriceList, at_ms: i64) -> Result<(), StoreError> {
        let json = serde_json::to_string(price)
            .map_err(|error| StoreError::Unusable(error.to_string()))?;
        self.writer()
            .execute(
                "INSERT INTO price_version (id, json, first_used_at) VALUES (?1, ?2, ?3) ON CONFLICT (id) DO NOTHING",
                params![price.version, json, at_ms],
            )
            .map_err(|source| StoreError::sqlite("store a price version", source))?;
        Ok(())
    }

    /// Returns a price version.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn price(&self, version: &str) -> Result<Option<PriceList>, StoreError> {
        let json: Option<String> = self.read("read a price version", |connection| {
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
        self.read("read an account's balance", |connection| {
            connection
                .prepare_cached(
                    "SELECT a.paid, a.trial, a.trial_ends_at, a.credited, ifnull(p.paid, 0), ifnull(p.trial, 0),
                       (SELECT ifnull(sum(paid), 0) FROM claim WHERE account = ?1 AND boot <> ?2),
                       (SELECT ifnull(sum(trial), 0) FROM claim WHERE account = ?1 AND boot <> ?2)
                     FROM account a LEFT JOIN applied p ON p.boot = ?2 AND p.account = a.id WHERE a.id = ?1",
                )?
                .query_row([account, instance_id], account_row)
                .optional()
        })
    }

    /// Returns the account like [`Ledger::account`], but from a cache: the row can lack a change
    /// that another process made within the last millisecond (`store/row_cache.rs`). This is safe,
    /// because the commit of an ending never debits more than the account has.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn cached_account(
        &self,
        account: &str,
        instance_id: &str,
    ) -> Result<Option<LedgerAccount>, StoreError> {
        self.account_rows
            .get([instance_id, account].concat().as_bytes(), || {
                self.account(account, instance_id)
            })
    }

    /// See [`RowCache::pause_checks`].
    #[cfg(test)]
    pub fn pause_account_checks(&self) {
        self.account_rows.pause_checks();
    }

    /// Clears the cache of accounts.
    pub fn clear_account_cache(&self) {
        self.account_rows.clear();
    }

    /// Enters `endings` in one commit and counts them as applied for the instance. A request that
    /// has ended before does not change. If the instance has handed over by now, each ending also
    /// releases the given part of its claim. Returns the number of new endings.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be written; nothing was entered.
    pub fn enter_endings(
        &self,
        endings: &[(&Ending, CreditSplit)],
        instance_id: &str,
    ) -> Result<usize, StoreError> {
        let mut writer = self.writer();
        let sql = |source| StoreError::sqlite("enter debits", source);
        let transaction = sqlite::begin_write(&mut writer).map_err(sql)?;
        let mut new = 0;
        let mut batch = EndingBatch::new(&transaction).map_err(sql)?;
        let mut applied = key_spend::AppliedUpdate::default();
        for (ending, freed) in endings {
            new += usize::from(
                batch
                    .enter(ending, ending_detail(ending).map_err(sql)?)
                    .map_err(sql)?,
            );
            if self.has_handed_over() && *freed != CreditSplit::ZERO {
                claim::subtract_claim(&transaction, instance_id, &ending.account, *freed)
                    .map_err(sql)?;
            }
            applied.add(ending);
            failpoint::hit(Point::MidCommit);
        }
        batch.write().map_err(sql)?;
        // A replay of a journal has no instance: it changes balances that no running process has
        // settled.
        if !instance_id.is_empty() {
            applied.write(&transaction, instance_id).map_err(sql)?;
        }
        self.commit(transaction, || failpoint::hit(Point::AfterCommit))
            .map_err(sql)?;
        Ok(new)
    }

    /// Returns the ids of the instances with applied endings or claims that are not forgotten.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn instance_ids(&self) -> Result<Vec<String>, StoreError> {
        self.read("look for processes", |connection| {
            connection
                .prepare("SELECT boot FROM claim UNION SELECT boot FROM applied UNION SELECT boot FROM applied_key")?
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
        let mut writer = self.writer();
        let sql = |source| StoreError::sqlite("remove the records of ended processes", source);
        let transaction = sqlite::begin_write(&mut writer).map_err(sql)?;
        for table in ["applied", "applied_key", "claim"] {
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
    /// Returns an error if the ledger cannot be read.
    pub fn ending(
        &self,
        account: &str,
        request_id: &str,
    ) -> Result<Option<LedgerEntry>, StoreError> {
        self.read("read a receipt", |connection| {
            connection
                .prepare_cached(&format!(
                    "SELECT {ENTRY_COLUMNS} FROM entry WHERE ref = ?1 AND kind IN ('debit', 'void') AND account = ?2"
                ))?
                .query_row([request_id, account], entry)
                .optional()
        })
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
        let kinds = if endings_only {
            "AND kind IN ('debit', 'void')"
        } else {
            ""
        };
        self.read("read an account's entries", |connection| {
            connection
                .prepare_cached(&format!(
                    "SELECT {ENTRY_COLUMNS} FROM entry WHERE account = ?1 AND seq < ?2 {kinds} ORDER BY seq DESC LIMIT ?3"
                ))?
                .query_map(params![account, before.unwrap_or(i64::MAX), limit], entry)?
                .collect()
        })
    }

    /// Calls `each` for all entries in order, then returns all accounts, as of one moment.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn for_each_entry(
        &self,
        each: &mut dyn FnMut(LedgerEntry),
    ) -> Result<Vec<LedgerAccountRow>, StoreError> {
        let mut writer = self.writer();
        let sql = |source| StoreError::sqlite("read the whole ledger", source);
        let snapshot = writer.transaction().map_err(sql)?;
        let mut statement = snapshot
            .prepare(&format!("SELECT {ENTRY_COLUMNS} FROM entry ORDER BY seq"))
            .map_err(sql)?;
        for entry in statement.query_map([], entry).map_err(sql)? {
            each(entry.map_err(sql)?);
        }
        let mut statement = snapshot
            .prepare("SELECT id, paid, trial, credited, trial_ends_at FROM account")
            .map_err(sql)?;
        let account = |row: &Row<'_>| {
            Ok(LedgerAccountRow {
                id: row.get(0)?,
                paid: row.get(1)?,
                trial: row.get(2)?,
                credited: row.get(3)?,
                trial_ends_at_ms: row.get(4)?,
            })
        };
        let accounts = statement.query_map([], account).map_err(sql)?;
        accounts.collect::<Result<_, _>>().map_err(sql)
    }

    /// Calls `each` for the selected entries in order, as of one moment. Reads one entry at a time,
    /// never the whole table into memory. Writers do not wait for it.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read, or if `each` fails.
    pub fn for_each_selected(
        &self,
        selection: &EntrySelection,
        each: &mut dyn FnMut(LedgerEntry) -> std::io::Result<()>,
    ) -> Result<(), StoreError> {
        let sql = |source| StoreError::sqlite("read the ledger's entries", source);
        self.readers.with(|connection| {
            let mut statement = connection
                .prepare_cached(&format!(
                    "SELECT {ENTRY_COLUMNS} FROM entry WHERE account = ifnull(?1, account) AND at >= ifnull(?2, at)
                     AND (?3 IS NULL OR at < ?3) ORDER BY seq"
                ))
                .map_err(sql)?;
            let EntrySelection { account, from_ms, to_ms } = selection;
            for entry in statement.query_map(params![account, from_ms, to_ms], entry).map_err(sql)? {
                each(entry.map_err(sql)?).map_err(|source| StoreError::io("write out the ledger's entries", source))?;
            }
            Ok(())
        })
    }
}
