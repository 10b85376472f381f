//! The ledger: balances, and the immutable, hash-chained entries that they are the sum of.
//!
//! Every change of a balance is an entry in the same transaction. The gateway's ledger writer
//! writes here; any process can post grants and other changes (`ledger/posting.rs`). Must not
//! decide what a response costs.

mod activity;
mod aggregates;
pub mod anchor;
mod batch;
mod claim;
#[cfg(test)]
mod fixture;
mod key_spend;
mod posting;
mod schema;
mod store_events;

use super::StoreError;
use super::missing;
use super::row_cache::RowCache;
use super::sqlite::{self, Readers};
use crate::failpoint::{self, Point};
pub use activity::{
    ActivityCursor, ActivityFilter, Conversation, HOUR_MS, HourlySpend, SpendTotals,
};
use anchor::{AnchorTrust, LedgerAnchor};
use batch::{EndingBatch, append};
pub use claim::Claim;
use credits::money::{CreditSplit, Micro};
use credits::price_list::PriceList;
pub use key_spend::KeySpend;
use llm_protocol::Protocol;
use llm_protocol::usage::Usage;
pub use posting::{
    BalanceChange, BalanceChangeKind, PostingDetail, PostingResult, Refund, split_debit,
};
use rusqlite::{Connection, OptionalExtension, Row, Transaction, params};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, MutexGuard, PoisonError};
pub use store_events::{IngestEvent, PartitionLocation};

const MIGRATIONS: &[&str] = &[
    include_str!("ledger/001.sql"),
    include_str!("ledger/002.sql"),
    include_str!("ledger/003.sql"),
    include_str!("ledger/004.sql"),
    include_str!("ledger/005.sql"),
    include_str!("ledger/006.sql"),
    include_str!("ledger/007.sql"),
];
const MAX_READERS: usize = 8;

/// The ledger's database.
pub struct Ledger {
    writer: Mutex<Connection>,
    readers: Readers,
    /// Accounts as admission reads them, by process and account.
    standing: RowCache<LedgerAccount>,
    /// Whether this process has handed over. Changes under the writer's lock.
    guest: AtomicBool,
    /// `None` if the ledger is opened only for reading.
    anchor: Option<LedgerAnchor>,
    /// Time at which the anchor was last written before it was opened.
    anchored_ms: i64,
}

/// The one connection that writes. When it is released, admission reads accounts again.
struct LedgerWriteGuard<'a> {
    connection: MutexGuard<'a, Connection>,
    standing: &'a RowCache<LedgerAccount>,
}

impl Deref for LedgerWriteGuard<'_> {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        &self.connection
    }
}

impl DerefMut for LedgerWriteGuard<'_> {
    fn deref_mut(&mut self) -> &mut Connection {
        &mut self.connection
    }
}

impl Drop for LedgerWriteGuard<'_> {
    fn drop(&mut self) {
        self.standing.clear();
    }
}

/// An account's row, the part of the instance's settled credits that it already includes, and the
/// claims of other instances: one consistent snapshot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LedgerAccount {
    pub paid: Micro,
    pub trial: Micro,
    pub trial_ends_at_ms: Option<i64>,
    /// Sum of all credits ever bought or granted, without the trial.
    pub credited: Micro,
    pub applied_paid: Micro,
    pub applied_trial: Micro,
    /// Credits that other instances have claimed.
    pub claimed_paid: Micro,
    pub claimed_trial: Micro,
}

/// An account's row as the audit reads it.
#[derive(Debug, Clone)]
pub struct LedgerAccountRow {
    pub id: String,
    pub paid: Micro,
    pub trial: Micro,
    pub credited: Micro,
    pub trial_ends_at_ms: Option<i64>,
}

/// A request and how it ended: the detail of a `debit` or a `void`, and the journal's record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ending {
    #[serde(rename = "ref")]
    pub request_id: String,
    pub account: String,
    pub at_ms: i64,
    /// Credits that the account pays for the request, by bucket.
    pub paid: Micro,
    pub trial: Micro,
    /// Part of the cost that the account could not cover.
    pub writeoff: Micro,
    pub detail: EndingDetail,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndingDetail {
    pub key_id: String,
    pub key_shown: String,
    pub model: String,
    pub surface: Protocol,
    pub vendor: String,
    pub outcome: RequestOutcome,
    pub usage: Usage,
    pub price_version: String,
    pub estimated: bool,
    /// Whether a counter of the vendor was higher than the request can use; the request is then
    /// billed at that bound. This field and the following ones are written only if they are set:
    /// entries from before they existed then read, and hash, like entries of today.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub implausible: bool,
    /// Conversation that the request was a turn of, if the gateway could recognize it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversation: Option<String>,
    /// Time from admission to the end, in ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub took_ms: Option<u64>,
    /// Time from admission to the first token of a streamed answer, in ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_token_ms: Option<u64>,
}

/// How a request with a hold ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestOutcome {
    Completed,
    ClientLeft,
    /// The gateway stopped the stream, because of a time, size or write limit.
    GatewayEnded,
    /// The vendor refused the request, and documents this refusal as free.
    RefusedFree,
    VendorError,
    VendorCut,
    /// The process ended while the request ran.
    Interrupted,
}

impl RequestOutcome {
    /// Every outcome, the usual one first.
    pub const ALL: [Self; 7] = [
        Self::Completed,
        Self::ClientLeft,
        Self::GatewayEnded,
        Self::RefusedFree,
        Self::VendorError,
        Self::VendorCut,
        Self::Interrupted,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::ClientLeft => "client_left",
            Self::GatewayEnded => "gateway_ended",
            Self::RefusedFree => "refused_free",
            Self::VendorError => "vendor_error",
            Self::VendorCut => "vendor_cut",
            Self::Interrupted => "interrupted",
        }
    }
}

impl Ending {
    pub fn cost(&self) -> Micro {
        self.paid.plus(self.trial).plus(self.writeoff)
    }

    /// Returns the entry's kind. A response is a debit even if it cost nothing, if the client
    /// received it or if the vendor generated it for a client that disconnected.
    pub fn kind(&self) -> &'static str {
        match self.detail.outcome {
            RequestOutcome::Completed
            | RequestOutcome::ClientLeft
            | RequestOutcome::GatewayEnded
            | RequestOutcome::RefusedFree => "debit",
            RequestOutcome::VendorError
            | RequestOutcome::VendorCut
            | RequestOutcome::Interrupted => "void",
        }
    }
}

/// End of the detail of a late ending.
const LATE_SUFFIX: &str = ",\"late\":true}";

/// An entry of the ledger as stored.
#[derive(Debug, Clone)]
pub struct LedgerEntry {
    pub seq: i64,
    pub kind: String,
    pub reference: String,
    pub account: String,
    pub at_ms: i64,
    pub d_paid: Micro,
    pub d_trial: Micro,
    pub bal_paid: Micro,
    pub bal_trial: Micro,
    pub writeoff: Micro,
    /// JSON: [`EndingDetail`] on debits and voids, [`PostingDetail`] on changes that an operator
    /// posted; otherwise empty.
    pub detail: String,
    pub prev: Vec<u8>,
    pub hash: Vec<u8>,
}

impl LedgerEntry {
    /// Creates an entry that is not chained yet and has no balances yet.
    fn new(
        kind: &str,
        reference: &str,
        account: &str,
        at_ms: i64,
        parts: (Micro, Micro),
        detail: String,
    ) -> Self {
        Self {
            seq: 0,
            kind: kind.into(),
            reference: reference.into(),
            account: account.into(),
            at_ms,
            d_paid: parts.0,
            d_trial: parts.1,
            bal_paid: Micro::ZERO,
            bal_trial: Micro::ZERO,
            writeoff: Micro::ZERO,
            detail,
            prev: Vec::new(),
            hash: Vec::new(),
        }
    }

    /// Returns the entry's change of the balance.
    pub fn change(&self) -> Micro {
        self.d_paid.plus(self.d_trial)
    }

    /// Returns the credits that the entry adds besides the trial. If an account has received any,
    /// and its credits are used up, the error does not say that its trial is over.
    pub fn credited(&self) -> Micro {
        let is_credit = matches!(self.kind.as_str(), "grant" | "topup" | "adjust");
        if is_credit {
            self.change().or_zero()
        } else {
            Micro::ZERO
        }
    }

    /// Returns true if the entry is the end of a request.
    pub fn is_ending(&self) -> bool {
        matches!(self.kind.as_str(), "debit" | "void")
    }

    /// Returns true if the entry is the end of a request whose debit the ledger decided by itself,
    /// not the shared store.
    pub fn is_late(&self) -> bool {
        self.is_ending() && self.detail.ends_with(LATE_SUFFIX)
    }
}

/// Which entries to read.
#[derive(Debug, Clone, Default)]
pub struct EntrySelection {
    pub account: Option<String>,
    /// Start of the period, inclusive, in ms since 1970.
    pub from_ms: Option<i64>,
    /// End of the period, exclusive.
    pub to_ms: Option<i64>,
}

/// A change of a balance that no request caused and nobody ordered: a sign-up's trial, and its
/// expiry.
#[derive(Debug, Clone, Copy)]
pub struct Posting<'a> {
    pub kind: &'static str,
    pub reference: &'a str,
    pub account: &'a str,
    pub d_paid: Micro,
    pub d_trial: Micro,
    pub at_ms: i64,
}

impl Ledger {
    /// Opens `ledger.db` in `dir`, which must match its anchor.
    ///
    /// # Errors
    /// Returns an error if the file cannot be opened or migrated, if it is missing although there
    /// are accounts, or if it is an older or a different ledger.
    pub fn open(dir: &Path) -> Result<Self, StoreError> {
        Self::open_with_trust(dir, AnchorTrust::Anchored)
    }

    fn open_with_trust(dir: &Path, trust: AnchorTrust) -> Result<Self, StoreError> {
        let path = dir.join("ledger.db");
        if let Some(fault) = missing::ledger(dir)? {
            return Err(StoreError::Unusable(fault));
        }
        // Read before the ledger, which only grows.
        let named = anchor::read(dir)?;
        let anchored_ms = anchor::modified_ms(dir);
        let mut writer = sqlite::open(&path, "open the ledger")?;
        sqlite::migrate(&mut writer, MIGRATIONS, "migrate the ledger")?;
        writer.set_prepared_statement_cache_capacity(64);
        let readers = Readers::open(&path, MAX_READERS, "open the ledger for reading")?;
        let standing = RowCache::open(&path, "open the ledger for reading")?;
        let anchor = anchor::open_for_ledger(dir, &writer, named, trust)?;
        let (writer, guest) = (Mutex::new(writer), AtomicBool::new(false));
        Ok(Self {
            writer,
            readers,
            standing,
            guest,
            anchor,
            anchored_ms,
        })
    }

    fn writer(&self) -> LedgerWriteGuard<'_> {
        let connection = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        LedgerWriteGuard {
            connection,
            standing: &self.standing,
        }
    }

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
    pub fn account(&self, account: &str, boot: &str) -> Result<Option<LedgerAccount>, StoreError> {
        self.read("read an account's balance", |connection| {
            connection
                .prepare_cached(
                    "SELECT a.paid, a.trial, a.trial_ends_at, a.credited, ifnull(p.paid, 0), ifnull(p.trial, 0),
                       (SELECT ifnull(sum(paid), 0) FROM claim WHERE account = ?1 AND boot <> ?2),
                       (SELECT ifnull(sum(trial), 0) FROM claim WHERE account = ?1 AND boot <> ?2)
                     FROM account a LEFT JOIN applied p ON p.boot = ?2 AND p.account = a.id WHERE a.id = ?1",
                )?
                .query_row([account, boot], account_row)
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
        boot: &str,
    ) -> Result<Option<LedgerAccount>, StoreError> {
        self.standing.get([boot, account].concat().as_bytes(), || {
            self.account(account, boot)
        })
    }

    /// See [`RowCache::pause_checks`].
    #[cfg(test)]
    pub fn pause_account_checks(&self) {
        self.standing.pause_checks();
    }

    /// Clears the cache of accounts.
    pub fn clear_account_cache(&self) {
        self.standing.clear();
    }

    /// Posts an entry and changes the balance, once per kind and reference. Returns false if it was
    /// posted before.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be written, if the account is not open, or if a
    /// balance would go below zero.
    pub fn post(&self, post: &Posting<'_>) -> Result<bool, StoreError> {
        let mut writer = self.writer();
        let sql = |source| StoreError::sqlite("post to the ledger", source);
        let transaction = sqlite::begin_write(&mut writer).map_err(sql)?;
        let posted = insert_posting(&transaction, post).map_err(sql)?;
        self.commit(transaction, || {}).map_err(sql)?;
        Ok(posted)
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
        boot: &str,
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
                claim::subtract_claim(&transaction, boot, &ending.account, *freed).map_err(sql)?;
            }
            applied.add(ending);
            failpoint::hit(Point::MidCommit);
        }
        batch.write().map_err(sql)?;
        // A replay of a journal has no instance: it changes balances that no running process has
        // settled.
        if !boot.is_empty() {
            applied.write(&transaction, boot).map_err(sql)?;
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
    pub fn forget_instances(&self, dead: &[String]) -> Result<(), StoreError> {
        let dead = serde_json::to_string(dead).unwrap_or_default();
        let mut writer = self.writer();
        let sql = |source| StoreError::sqlite("remove the records of ended processes", source);
        let transaction = sqlite::begin_write(&mut writer).map_err(sql)?;
        for table in ["applied", "applied_key", "claim"] {
            let sql_text =
                format!("DELETE FROM {table} WHERE boot IN (SELECT value FROM json_each(?1))");
            transaction.execute(&sql_text, [&dead]).map_err(sql)?;
        }
        transaction.commit().map_err(sql)
    }

    /// Returns the accounts whose trial is over and whose trial credits have not expired yet.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn expired_trials(&self, now_ms: i64) -> Result<Vec<(String, Micro)>, StoreError> {
        self.read("look for expired trials", |connection| {
            connection
                .prepare_cached("SELECT id, trial FROM account WHERE trial > 0 AND trial_ends_at <= ?1 LIMIT 100")?
                .query_map([now_ms], |row| Ok((row.get(0)?, row.get(1)?)))?
                .collect()
        })
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

    /// Writes the log back into `ledger.db`, so that the file alone is complete: before a copy, and
    /// at the end.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be written.
    pub fn checkpoint(&self) -> Result<(), StoreError> {
        failpoint::hit(Point::BeforeCheckpoint);
        sqlite::checkpoint(&self.writer())?;
        failpoint::hit(Point::AfterCheckpoint);
        Ok(())
    }

    fn read<T>(
        &self,
        operation: &'static str,
        read: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        self.readers
            .with(read)
            .map_err(|source| StoreError::sqlite(operation, source))
    }
}

fn account_row(row: &Row<'_>) -> rusqlite::Result<LedgerAccount> {
    Ok(LedgerAccount {
        paid: row.get(0)?,
        trial: row.get(1)?,
        trial_ends_at_ms: row.get(2)?,
        credited: row.get(3)?,
        applied_paid: row.get(4)?,
        applied_trial: row.get(5)?,
        claimed_paid: row.get(6)?,
        claimed_trial: row.get(7)?,
    })
}

const ENTRY_COLUMNS: &str = "seq, kind, ref, account, at, d_paid, d_trial, bal_paid, bal_trial, writeoff, detail, prev, hash";

fn entry(row: &Row<'_>) -> rusqlite::Result<LedgerEntry> {
    Ok(LedgerEntry {
        seq: row.get(0)?,
        kind: row.get(1)?,
        reference: row.get(2)?,
        account: row.get(3)?,
        at_ms: row.get(4)?,
        d_paid: row.get(5)?,
        d_trial: row.get(6)?,
        bal_paid: row.get(7)?,
        bal_trial: row.get(8)?,
        writeoff: row.get(9)?,
        detail: row.get(10)?,
        prev: row.get(11)?,
        hash: row.get(12)?,
    })
}

/// Returns an entry's hash, over the previous entry's hash and all fields of the entry.
pub fn entry_hash(entry: &LedgerEntry) -> Vec<u8> {
    let mut hash = Sha256::new();
    hash.update(&entry.prev);
    let numbers = [
        entry.d_paid,
        entry.d_trial,
        entry.bal_paid,
        entry.bal_trial,
        entry.writeoff,
    ]
    .map(Micro::get);
    let LedgerEntry {
        seq,
        kind,
        reference,
        account,
        at_ms,
        detail,
        ..
    } = entry;
    hash.update(format!(
        "{seq}\x1f{kind}\x1f{reference}\x1f{account}\x1f{at_ms}\x1f{numbers:?}\x1f{detail}"
    ));
    hash.finalize().to_vec()
}

fn insert_posting(transaction: &Transaction<'_>, post: &Posting<'_>) -> rusqlite::Result<bool> {
    let known = transaction
        .prepare_cached("SELECT 1 FROM entry WHERE kind = ?1 AND ref = ?2")?
        .exists(params![post.kind, post.reference])?;
    if known {
        return Ok(false);
    }
    let (paid, trial) = balances(transaction, post.account)?;
    let parts = (post.d_paid, post.d_trial);
    let entry = LedgerEntry::new(
        post.kind,
        post.reference,
        post.account,
        post.at_ms,
        parts,
        posting_detail(transaction, post)?,
    );
    append(
        transaction,
        LedgerEntry {
            bal_paid: paid.plus(post.d_paid),
            bal_trial: trial.plus(post.d_trial),
            ..entry
        },
    )?;
    Ok(true)
}

/// A trial's grant contains its end, so that the chain of hashes covers it.
fn posting_detail(transaction: &Transaction<'_>, post: &Posting<'_>) -> rusqlite::Result<String> {
    if post.kind != "trial" {
        return Ok(String::new());
    }
    let trial_ends_at_ms = posting::trial_end(transaction, post.account)?;
    let detail = PostingDetail {
        trial_ends_at_ms,
        ..PostingDetail::default()
    };
    serde_json::to_string(&detail)
        .map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))
}

/// Returns the JSON of an ending's detail.
fn ending_detail(ending: &Ending) -> rusqlite::Result<String> {
    serde_json::to_string(&ending.detail)
        .map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))
}

fn balances(transaction: &Transaction<'_>, account: &str) -> rusqlite::Result<(Micro, Micro)> {
    transaction
        .prepare_cached("SELECT paid, trial FROM account WHERE id = ?1")?
        .query_row([account], |row| Ok((row.get(0)?, row.get(1)?)))
}
