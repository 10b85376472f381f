//! Rebuilds an index from the entries in a separate file. The stored index can be compared with it,
//! or replaced by it.
//!
//! The rebuild reads the ledger in short slices and writes batches like the indexer's, so its
//! memory is that of one batch. The file has no name, so that it disappears with the process. This
//! file must not change an entry or a balance.

use super::batch::read_batch;
use super::limits::{MIGRATIONS, PAGE_BYTES};
use super::names::NameTables;
use super::tables::IndexTables;
use super::write::watermark;
use crate::StoreError;
use crate::entry::LedgerEntry;
use crate::entry::chain::ChainHead;
use crate::index::compare::{AggregateMismatch, TableKey, TableShape, compare_tables};
use crate::sqlite;
use crate::statements::applied::move_key_amounts;
use rusqlite::{Connection, params};
use serde::Deserialize;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

const OPERATION: &str = "make the ledger's index anew";

/// Maximum number of entries in one transaction. It is smaller than the indexer's, because an audit
/// must not need much memory.
const MAX_BATCH: u32 = 16_384;

/// Page cache in KiB. A batch is sorted and visits each page once, so a cache for the pages above
/// the leaves is enough.
const CACHE_KIB: u32 = 4_096;

/// Number of rebuilds that this process has started. It makes the names of temporary files unique.
static BEGUN: AtomicU32 = AtomicU32::new(0);

/// An index computed from the entries up to its watermark, and the spending of keys up to the same
/// entry.
pub struct IndexRebuild {
    connection: Connection,
    names: NameTables,
}

const NUMBER: TableKey = TableKey::number("number", "id");
const ACCOUNT: TableKey = TableKey::name("account", "account", "account");
const MODEL: TableKey = TableKey::name("model", "model", "model");
const API_KEY: TableKey = TableKey::name("key", "api_key", "api_key");
const MEMBER: TableKey = TableKey::name("member", "member", "member");

const TABLES: [TableShape; 11] = [
    TableShape::new("account", &[NUMBER], "name"),
    TableShape::new("model", &[NUMBER], "name"),
    TableShape::new("api_key", &[NUMBER], "name"),
    TableShape::new("member", &[NUMBER], "name"),
    TableShape::new("outcome", &[NUMBER], "name"),
    TableShape::new(
        "activity",
        &[
            ACCOUNT,
            TableKey::number("time", "at"),
            TableKey::number("entry", "seq"),
        ],
        "kind, model, api_key, outcome, conversation, flags",
    ),
    TableShape::new(
        "posting",
        &[
            ACCOUNT,
            TableKey::number("time", "at"),
            TableKey::number("entry", "seq"),
        ],
        "kind, change",
    ),
    TableShape::new(
        "usage_hour",
        &[
            ACCOUNT,
            TableKey::number("hour", "hour"),
            MODEL,
            API_KEY,
            MEMBER,
        ],
        "responses, credits, input, cache_read, output, voids",
    ),
    TableShape::new(
        "usage_day",
        &[
            ACCOUNT,
            TableKey::number("day", "day"),
            MODEL,
            API_KEY,
            MEMBER,
        ],
        "responses, credits, input, cache_read, output",
    ),
    TableShape::new(
        "usage_total",
        &[TableKey::number("day", "day"), MODEL],
        "responses, credits, input, cache_read, output, writeoff",
    ),
    TableShape::new(
        "conversation",
        &[ACCOUNT, TableKey::number("conversation", "name")],
        "id, began_at, last_at, turns, credits, input, cache_read, output",
    ),
];

/// The spending of keys, in the form of the ledger's table `key_spend`.
pub(crate) const KEY_SPEND: TableShape = TableShape::new(
    "key_spend",
    &[
        TableKey::number("key", "key"),
        TableKey::number("day", "day"),
    ],
    "total, used_at",
);

/// SQL for a table in the temporary file beside the index. The swap does not copy this table.
const KEY_DAYS: &str = "
    CREATE TEMP TABLE key_day (
      key     TEXT NOT NULL,
      day     INTEGER NOT NULL,
      spent   INTEGER NOT NULL,
      used_at INTEGER NOT NULL,
      PRIMARY KEY (key, day)
    ) STRICT, WITHOUT ROWID;
    CREATE TEMP VIEW key_spend AS
      SELECT key, day, sum(spent) OVER (PARTITION BY key ORDER BY day) AS total, used_at FROM key_day;";

const COUNT_KEY_DAY: &str = "INSERT INTO key_day (key, day, spent, used_at) VALUES (?1, ?2, ?3, ?4)
     ON CONFLICT (key, day) DO UPDATE SET spent = spent + excluded.spent, used_at = max(used_at, excluded.used_at)";

impl IndexRebuild {
    /// Creates an empty index on the disk of the ledger in `dir`.
    pub(crate) fn create(dir: &Path) -> Result<Self, StoreError> {
        let number = BEGUN.fetch_add(1, Ordering::Relaxed);
        let name = format!("index.db.{}-{number}.new", std::process::id());
        let mut connection = sqlite::create_unnamed(&dir.join(name), PAGE_BYTES, OPERATION)?;
        sqlite::migrate(&mut connection, MIGRATIONS, OPERATION)?;
        connection
            .execute_batch(&format!("PRAGMA cache_size = -{CACHE_KIB}; {KEY_DAYS}"))
            .map_err(|source| StoreError::sqlite(OPERATION, source))?;
        connection.set_prepared_statement_cache_capacity(64);
        Ok(Self {
            connection,
            names: NameTables::new(),
        })
    }

    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Returns the position of the last entry in the index.
    pub(crate) fn seq(&self) -> rusqlite::Result<i64> {
        Ok(watermark(&self.connection)?.position.seq)
    }

    /// Adds at most [`MAX_BATCH`] of the next entries, up to and including `to`, in one
    /// transaction. `read` returns at most that number of entries after a position, and none at the
    /// end. Returns the number of added entries.
    ///
    /// # Errors
    /// Returns an error if entries cannot be read or their rows cannot be written.
    pub(crate) fn add_batch(
        &mut self,
        to: i64,
        read: impl Fn(i64, u32) -> Result<Vec<LedgerEntry>, StoreError>,
    ) -> Result<usize, StoreError> {
        let sql = |source| StoreError::sqlite(OPERATION, source);
        let from = watermark(&self.connection).map_err(sql)?;
        let transaction = self.connection.unchecked_transaction().map_err(sql)?;
        let tables = IndexTables::new(&transaction);
        let key_days = RefCell::new(KeyDays::new());
        let read = |position: &ChainHead, limit| {
            let mut entries = read(position.seq, limit)?;
            entries.retain(|entry| entry.seq <= to);
            count_key_days(&entries, &mut key_days.borrow_mut());
            Ok(Some(entries))
        };
        let limit = MAX_BATCH;
        let batch = read_batch(tables, &from.position, limit, &mut self.names, &read)?;
        let batch = batch.unwrap_or_default();
        let count = batch.len();
        batch.write(tables, from).map_err(sql)?;
        write_key_days(&transaction, key_days.take()).map_err(sql)?;
        transaction.commit().map_err(sql)?;
        Ok(count)
    }

    /// Returns the rows of the stored index that differ, at most `limit` for each table.
    pub(crate) fn compare_index(
        &self,
        stored: &Connection,
        limit: u32,
    ) -> rusqlite::Result<Vec<AggregateMismatch>> {
        let mut wrong = Vec::new();
        for table in &TABLES {
            wrong.extend(compare_tables(table, &self.connection, stored, limit)?);
        }
        Ok(wrong)
    }

    /// Returns at most `limit` of the rows of the ledger's `key_spend` that differ.
    pub(crate) fn compare_key_spend(
        &self,
        ledger: &Connection,
        limit: u32,
    ) -> rusqlite::Result<Vec<AggregateMismatch>> {
        compare_tables(&KEY_SPEND, &self.connection, ledger, limit)
    }

    /// Replaces the rows of the ledger's `key_spend` with the spending that was computed.
    pub(crate) fn write_key_spend(&self, ledger: &Connection) -> rusqlite::Result<()> {
        move_key_amounts(ledger)?;
        ledger.execute("DELETE FROM key_spend", [])?;
        let mut insert = ledger
            .prepare("INSERT INTO key_spend (key, day, total, used_at) VALUES (?1, ?2, ?3, ?4)")?;
        let mut days = self
            .connection
            .prepare("SELECT key, day, total, used_at FROM key_spend")?;
        let mut rows = days.query([])?;
        while let Some(row) = rows.next()? {
            let (key, day): (String, i64) = (row.get(0)?, row.get(1)?);
            let (total, used_at): (i64, i64) = (row.get(2)?, row.get(3)?);
            insert.execute(params![key, day, total, used_at])?;
        }
        Ok(())
    }
}

/// The spending of keys and members by key and day: the sum in µc, and the time of the last request
/// in ms since 1970.
type KeyDays = BTreeMap<(String, i64), (i64, i64)>;

fn count_key_days(entries: &[LedgerEntry], key_days: &mut KeyDays) {
    for entry in entries.iter().filter(|entry| entry.is_ending()) {
        let day = credits::limits::day_number(entry.at_ms);
        for spender in spenders(entry) {
            let (spent, used_at_ms) = key_days.entry((spender, day)).or_insert((0, entry.at_ms));
            *spent = spent.saturating_sub(entry.change().get());
            *used_at_ms = entry.at_ms.max(*used_at_ms);
        }
    }
}

fn write_key_days(connection: &Connection, key_days: KeyDays) -> rusqlite::Result<()> {
    let mut count = connection.prepare_cached(COUNT_KEY_DAY)?;
    for ((key, day), (spent, used_at_ms)) in key_days {
        count.execute(params![key, day, spent, used_at_ms])?;
    }
    Ok(())
}

/// Returns the key and the member of an ending, if its detail names them.
fn spenders(entry: &LedgerEntry) -> impl Iterator<Item = String> {
    #[derive(Default, Deserialize)]
    struct SpenderDetail {
        key_id: Option<String>,
        member: Option<String>,
    }
    let detail = serde_json::from_str::<SpenderDetail>(&entry.detail).unwrap_or_default();
    detail.key_id.into_iter().chain(detail.member)
}
