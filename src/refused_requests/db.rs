//! Implements the database `refused.db`, with rows of refused requests, their number by day, status
//! and code, and notes of other requests.
//!
//! This file must not depend on the reasons of refusals.

use super::note::{MAX_NOTES, NoteKind, RequestNote, VendorFault};
use super::request::{
    KEPT_DAYS, MAX_LISTED, RefusedRequest, WaitingOfAccount, known_surface, lock,
};
use credits::limits::day_number;
use ledger::StoreError;
use ledger::sqlite::damage::{self, DatabaseSpec};
use ledger::sqlite::{self, Readers};
use rusqlite::{Connection, OptionalExtension, Row, Transaction, params};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const MIGRATIONS: &[&str] = &[include_str!("001.sql"), include_str!("002.sql")];
/// Maximum number of connections for reading.
const MAX_READERS: usize = 2;
const DAY_MS: i64 = 86_400_000;

/// Time after which a read that runs counts as stuck. A read takes microseconds.
const MAX_READ: Duration = Duration::from_secs(1);

pub struct RefusedRequestsDb {
    writer: Mutex<Connection>,
    readers: Readers,
    /// Starts of the reads that run.
    running: Mutex<BTreeMap<u64, Instant>>,
    /// Number of reads so far.
    reads: AtomicU64,
}

/// Counts a read as running until it is dropped, also by a panic.
struct RunningRead<'a> {
    db: &'a RefusedRequestsDb,
    number: u64,
}

impl Drop for RunningRead<'_> {
    fn drop(&mut self) {
        lock(&self.db.running).remove(&self.number);
    }
}

/// Criteria for a list of refusals. By default, the list has all of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RefusedFilter {
    pub key_id: Option<String>,
    pub model: Option<String>,
    pub status: Option<u16>,
    pub from_ms: Option<i64>,
    /// End of the period in ms since 1970, exclusive.
    pub to_ms: Option<i64>,
}

/// Position of a refusal in the list of its account.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct RefusedCursor {
    pub at_ms: i64,
    pub seq: i64,
}

/// Number of refusals with one status and code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedCount {
    pub status: u16,
    pub code: String,
    pub requests: u64,
}

impl RefusedRequestsDb {
    pub fn open(dir: &Path) -> Result<Self, StoreError> {
        let path = dir.join("refused.db");
        let spec = DatabaseSpec {
            table: "refused",
            migrations: MIGRATIONS,
        };
        damage::open_or_renew(&path, &spec, || Self::open_at(&path))
    }

    fn open_at(path: &Path) -> Result<Self, StoreError> {
        let operation = "open refused.db";
        let mut writer = sqlite::open(path, operation)?;
        // A power cut may lose the last rows.
        writer
            .execute_batch("PRAGMA synchronous = NORMAL;")
            .map_err(|source| StoreError::sqlite(operation, source))?;
        sqlite::migrate(&mut writer, MIGRATIONS, "migrate refused.db")?;
        sqlite::erase_deleted(&writer)?;
        Ok(Self {
            writer: Mutex::new(writer),
            readers: Readers::open(path, MAX_READERS, operation)?,
            running: Mutex::default(),
            reads: AtomicU64::new(0),
        })
    }

    fn write(
        &self,
        operation: &'static str,
        change: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<()>,
    ) -> Result<(), StoreError> {
        let mut writer = lock(&self.writer);
        let work = || {
            let transaction = sqlite::begin_write(&mut writer)?;
            change(&transaction)?;
            transaction.commit()
        };
        work().map_err(|source| StoreError::sqlite(operation, source))
    }

    /// Reads the file. Fails at once while another read is stuck: pages can leave out what the file
    /// has, and must not wait for as long as the disk does not answer.
    pub(super) fn read<T>(
        &self,
        operation: &'static str,
        query: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        let number = self.reads.fetch_add(1, Ordering::Relaxed);
        {
            let mut running = lock(&self.running);
            let oldest = running.values().next();
            if oldest.is_some_and(|began| began.elapsed() > MAX_READ) {
                let text = format!("cannot {operation}: the disk of refused.db does not answer");
                return Err(StoreError::Unusable(text));
            }
            running.insert(number, Instant::now());
        }
        let _running = RunningRead { db: self, number };
        self.readers
            .with(query)
            .map_err(|source| StoreError::sqlite(operation, source))
    }

    /// Inserts refusals, and deletes the oldest rows of accounts that then have too many.
    pub fn insert(&self, accounts: &HashMap<Arc<str>, WaitingOfAccount>) -> Result<(), StoreError> {
        self.write("write refused requests", |transaction| {
            for (account, waiting) in accounts {
                for refused in &waiting.listed {
                    insert_row(transaction, refused)?;
                }
                for ((day, status, code), requests) in &waiting.counts {
                    transaction
                        .prepare_cached(
                            "INSERT INTO refused_count(account, day, status, code, requests)
                             VALUES(?1, ?2, ?3, ?4, ?5)
                             ON CONFLICT DO UPDATE SET requests = requests + excluded.requests",
                        )?
                        .execute(params![
                            account,
                            day,
                            status,
                            code,
                            i64::try_from(*requests).unwrap_or(i64::MAX)
                        ])?;
                }
                transaction
                    .prepare_cached(
                        "DELETE FROM refused WHERE account = ?1 AND (at_ms, seq) <= (
                           SELECT at_ms, seq FROM refused WHERE account = ?1
                           ORDER BY at_ms DESC, seq DESC LIMIT 1 OFFSET ?2)",
                    )?
                    .execute(params![account, MAX_LISTED])?;
                insert_notes(transaction, account, waiting)?;
            }
            Ok(())
        })
    }

    /// Returns the note of a request, by its id or an id of its vendor.
    /// A vendor can give requests of several accounts one id.
    pub fn find_note(
        &self,
        account: Option<&str>,
        id: &str,
    ) -> Result<Option<RequestNote>, StoreError> {
        self.read("find the note of a request", |connection| {
            let columns = ["request_id", "header_id", "answer_id"];
            let queries = columns.map(|column| {
                format!(
                    "SELECT {NOTE_COLUMNS} FROM request_note
                     WHERE {column} = ?1 AND account = ifnull(?2, account)"
                )
            });
            connection
                .prepare_cached(&format!("{} LIMIT 1", queries.join(" UNION ALL ")))?
                .query_row(params![id, account], read_note)
                .optional()
        })
    }

    /// Deletes refusals that are older than [`KEPT_DAYS`].
    pub fn purge(&self, now_ms: i64) -> Result<(), StoreError> {
        let day = day_number(now_ms) - KEPT_DAYS;
        self.write("delete old refused requests", |transaction| {
            transaction.execute("DELETE FROM refused WHERE at_ms < ?1", [day * DAY_MS])?;
            transaction.execute("DELETE FROM refused_count WHERE day < ?1", [day])?;
            transaction.execute("DELETE FROM request_note WHERE at_ms < ?1", [day * DAY_MS])?;
            Ok(())
        })
    }

    /// Returns the accounts that have refusals or notes.
    pub fn accounts(&self) -> Result<Vec<String>, StoreError> {
        self.read("list the accounts of refused requests", |connection| {
            connection
                .prepare_cached(
                    "SELECT account FROM refused_count UNION SELECT account FROM request_note",
                )?
                .query_map([], |row| row.get(0))?
                .collect()
        })
    }

    pub fn forget(&self, account: &str) -> Result<(), StoreError> {
        self.write("forget an account's refused requests", |transaction| {
            transaction.execute("DELETE FROM refused WHERE account = ?1", [account])?;
            transaction.execute("DELETE FROM refused_count WHERE account = ?1", [account])?;
            transaction.execute("DELETE FROM request_note WHERE account = ?1", [account])?;
            Ok(())
        })
    }

    pub fn list(
        &self,
        account: &str,
        filter: &RefusedFilter,
        before: Option<RefusedCursor>,
        limit: u32,
    ) -> Result<Vec<(RefusedCursor, RefusedRequest)>, StoreError> {
        let before = before.unwrap_or(RefusedCursor {
            at_ms: i64::MAX,
            seq: i64::MAX,
        });
        self.read("list an account's refused requests", |connection| {
            connection
                .prepare_cached(&format!(
                    "SELECT {COLUMNS} FROM refused
                     WHERE account = ?1 AND (at_ms, seq) < (?2, ?3)
                       AND (?4 IS NULL OR key_id = ?4) AND (?5 IS NULL OR model = ?5)
                       AND (?6 IS NULL OR status = ?6)
                       AND at_ms >= ifnull(?7, at_ms) AND at_ms < ifnull(?8, at_ms + 1)
                     ORDER BY at_ms DESC, seq DESC LIMIT ?9"
                ))?
                .query_map(
                    params![
                        account,
                        before.at_ms,
                        before.seq,
                        filter.key_id,
                        filter.model,
                        filter.status,
                        filter.from_ms,
                        filter.to_ms,
                        limit
                    ],
                    read_row,
                )?
                .collect()
        })
    }

    pub fn find(&self, request_id: &str) -> Result<Option<RefusedRequest>, StoreError> {
        self.read("find a refused request", |connection| {
            connection
                .prepare_cached(&format!(
                    "SELECT {COLUMNS} FROM refused WHERE request_id = ?1"
                ))?
                .query_row([request_id], |row| Ok(read_row(row)?.1))
                .optional()
        })
    }

    pub fn counts(&self, account: &str, from_day: i64) -> Result<Vec<RefusedCount>, StoreError> {
        self.read("count an account's refused requests", |connection| {
            connection
                .prepare_cached(
                    "SELECT status, code, sum(requests) AS requests FROM refused_count
                     WHERE account = ?1 AND day >= ?2
                     GROUP BY status, code ORDER BY requests DESC, status, code",
                )?
                .query_map(params![account, from_day], |row| {
                    let requests: i64 = row.get(2)?;
                    Ok(RefusedCount {
                        status: row.get(0)?,
                        code: row.get(1)?,
                        requests: u64::try_from(requests).unwrap_or_default(),
                    })
                })?
                .collect()
        })
    }
}

/// What [`read_note`] reads.
const NOTE_COLUMNS: &str = "request_id, account, at_ms, kind, status, asked_for, header_id, \
                            answer_id, vendor, vendor_status, cause, words, is_private";

/// Enters the notes of an account, and deletes the oldest if there are too many then.
fn insert_notes(
    transaction: &Transaction<'_>,
    account: &str,
    waiting: &WaitingOfAccount,
) -> rusqlite::Result<()> {
    for note in &waiting.notes {
        let fault = note.fault.as_ref();
        transaction
            .prepare_cached(&format!(
                "INSERT INTO request_note({NOTE_COLUMNS})
                 VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13) ON CONFLICT DO NOTHING"
            ))?
            .execute(params![
                note.request_id,
                note.account,
                note.at_ms,
                note.kind.as_str(),
                note.status,
                note.asked_for,
                note.header_id,
                note.answer_id,
                fault.map(|fault| &fault.vendor),
                fault.and_then(|fault| fault.status),
                fault.map(|fault| &fault.cause),
                fault.map(|fault| &fault.words),
                fault.is_some_and(|fault| fault.is_private),
            ])?;
    }
    for kind in [NoteKind::Failed, NoteKind::Answered, NoteKind::Free] {
        if waiting.notes.iter().any(|note| note.kind == kind) {
            transaction
                .prepare_cached(
                    "DELETE FROM request_note WHERE account = ?1 AND kind = ?2 AND (at_ms, seq) <= (
                       SELECT at_ms, seq FROM request_note WHERE account = ?1 AND kind = ?2
                       ORDER BY at_ms DESC, seq DESC LIMIT 1 OFFSET ?3)",
                )?
                .execute(params![account, kind.as_str(), MAX_NOTES])?;
        }
    }
    Ok(())
}

fn read_note(row: &Row<'_>) -> rusqlite::Result<RequestNote> {
    let kind: String = row.get("kind")?;
    let vendor: Option<String> = row.get("vendor")?;
    let fault = match vendor {
        Some(vendor) => Some(VendorFault {
            vendor,
            status: row.get("vendor_status")?,
            cause: row.get("cause")?,
            words: row.get("words")?,
            is_private: row.get("is_private")?,
        }),
        None => None,
    };
    Ok(RequestNote {
        request_id: row.get("request_id")?,
        account: row.get("account")?,
        at_ms: row.get("at_ms")?,
        kind: NoteKind::from_name(&kind),
        status: row.get("status")?,
        asked_for: row.get("asked_for")?,
        header_id: row.get("header_id")?,
        answer_id: row.get("answer_id")?,
        fault,
    })
}

const COLUMNS: &str =
    "request_id, account, at_ms, status, code, message, surface, model, key_id, key_shown, seq";

fn insert_row(transaction: &Transaction<'_>, refused: &RefusedRequest) -> rusqlite::Result<()> {
    transaction
        .prepare_cached(
            "INSERT INTO refused(request_id, account, at_ms, status, code, message, surface, model, key_id, key_shown)
             VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10) ON CONFLICT DO NOTHING",
        )?
        .execute(params![
            refused.request_id,
            refused.account,
            refused.at_ms,
            refused.status,
            refused.code,
            refused.message,
            refused.surface,
            refused.model,
            refused.key_id,
            refused.key_shown,
        ])
        .map(drop)
}

fn read_row(row: &Row<'_>) -> rusqlite::Result<(RefusedCursor, RefusedRequest)> {
    let surface: String = row.get("surface")?;
    let refused = RefusedRequest {
        request_id: row.get("request_id")?,
        account: row.get("account")?,
        at_ms: row.get("at_ms")?,
        status: row.get("status")?,
        code: row.get("code")?,
        message: row.get("message")?,
        surface: known_surface(&surface),
        model: row.get("model")?,
        key_id: row.get("key_id")?,
        key_shown: row.get("key_shown")?,
    };
    let cursor = RefusedCursor {
        at_ms: refused.at_ms,
        seq: row.get("seq")?,
    };
    Ok((cursor, refused))
}
