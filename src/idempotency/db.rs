//! Implements the database `idempotency.db`, with the requests under idempotency keys and their
//! responses.
//!
//! A commit is in the log file before the call returns, so it survives the process (`kill -9`).
//! SQLite syncs the log only when it writes the log back into the file (`synchronous = NORMAL`). A
//! power cut can lose the newest rows; a repeated request under such a key then counts as new. This
//! module must not validate keys or depend on a request's cost.

use crate::idempotency::entry::{IdempotencyLookup, IdempotencyRequest, StoredResponse};
use ledger::StoreError;
use ledger::sqlite;
use ledger::sqlite::damage;
use ledger::sqlite::damage::DatabaseSpec;
use rusqlite::{Connection, OptionalExtension, Transaction, params};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

const MIGRATIONS: &[&str] = &[include_str!("db/001.sql"), include_str!("db/002.sql")];

/// Maximum number of rows that one commit removes. Each row can have a response of many pages, and
/// requests wait during the commit.
const MAX_REMOVAL_BATCH: usize = 16;

/// Number of pages in the log above which the log is restarted, for which writers must wait.
const MAX_LOG_PAGES: i64 = 4_096;

/// The idempotency database of one process. `writer` serves requests. `checkpointer` checkpoints
/// the write-ahead log, and serves reads for which no request waits.
pub struct IdempotencyDb {
    writer: Mutex<Connection>,
    checkpointer: Mutex<Connection>,
}

/// Limits on the stored rows and responses. One account may use up to a quarter of each, so that it
/// cannot displace the data of others.
#[derive(Debug, Clone, Copy)]
pub struct RetentionLimits {
    pub entries: u64,
    /// Maximum total size of all responses in bytes.
    pub bytes: u64,
}

impl RetentionLimits {
    fn for_one_account(self) -> Self {
        Self {
            entries: self.entries / 4,
            bytes: self.bytes / 4,
        }
    }
}

impl IdempotencyDb {
    /// Opens `idempotency.db` in `dir`, and replaces a damaged file.
    ///
    /// # Errors
    /// Returns an error if the file cannot be opened or migrated.
    pub fn open(dir: &Path) -> Result<Self, StoreError> {
        let path = dir.join("idempotency.db");
        let shape = DatabaseSpec {
            table: "asked",
            migrations: MIGRATIONS,
        };
        damage::open_or_renew(&path, &shape, || Self::open_at(&path))
    }

    fn open_at(path: &Path) -> Result<Self, StoreError> {
        let connect = || -> Result<Connection, StoreError> {
            let connection = sqlite::open(path, "open idempotency.db")?;
            // `checkpoint` writes the log back, so that no request waits for that.
            connection
                .execute_batch("PRAGMA synchronous = NORMAL; PRAGMA wal_autocheckpoint = 0;")
                .map_err(|source| StoreError::sqlite("set up idempotency.db", source))?;
            Ok(connection)
        };
        let mut writer = connect()?;
        sqlite::migrate(&mut writer, MIGRATIONS, "migrate idempotency.db")?;
        sqlite::erase_deleted(&writer)?;
        Ok(Self {
            writer: Mutex::new(writer),
            checkpointer: Mutex::new(connect()?),
        })
    }

    /// Runs one `BEGIN IMMEDIATE` transaction.
    fn write<T>(
        &self,
        operation: &'static str,
        change: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        let mut writer = lock(&self.writer);
        let work = || {
            let transaction = sqlite::begin_write(&mut writer)?;
            let value = change(&transaction)?;
            transaction.commit()?;
            Ok(value)
        };
        work().map_err(|source| StoreError::sqlite(operation, source))
    }

    /// Looks a key up, and enters the request as running if the key is unknown. This is one atomic
    /// step, even if several callers do it at the same time.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read or written; the request was not entered then.
    pub fn claim(
        &self,
        request: &IdempotencyRequest<'_>,
        now_ms: i64,
    ) -> Result<IdempotencyLookup, StoreError> {
        self.write("record an idempotency key", |transaction| {
            let known: Option<(Vec<u8>, String, bool, i64)> = transaction
                .prepare_cached(
                    "SELECT hash, request_id, done, expires_at FROM asked
                     WHERE account = ?1 AND path = ?2 AND key = ?3",
                )?
                .query_row([request.account, request.path, request.key], |row| {
                    Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
                })
                .optional()?;
            let Some((hash, request_id, done, expires_at)) = known else {
                return insert_or_find(transaction, request);
            };
            if done && expires_at <= now_ms {
                remove(transaction, &request_id)?;
                return insert_or_find(transaction, request);
            }
            Ok(match (hash == request.hash, done) {
                (false, _) => IdempotencyLookup::OtherBody,
                (true, false) => IdempotencyLookup::Running,
                (true, true) => IdempotencyLookup::Done {
                    response: read_response(transaction, &request_id)?,
                    request_id,
                },
            })
        })
    }

    /// Returns whether the key is known and has not expired.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read.
    pub fn is_known(
        &self,
        request: &IdempotencyRequest<'_>,
        now_ms: i64,
    ) -> Result<bool, StoreError> {
        let writer = lock(&self.writer);
        let lookup = || {
            let mut known = writer.prepare_cached(
                "SELECT 1 FROM asked WHERE account = ?1 AND path = ?2 AND key = ?3 AND NOT (done AND expires_at <= ?4)",
            )?;
            known.exists(params![request.account, request.path, request.key, now_ms])
        };
        lookup().map_err(|source| StoreError::sqlite("look up an idempotency key", source))
    }

    /// Marks the request as done and stores its response. `None` stores no response.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    pub fn complete(
        &self,
        request_id: &str,
        response: Option<&StoredResponse>,
        expires_at_ms: i64,
    ) -> Result<(), StoreError> {
        self.write("store the response of an idempotency key", |transaction| {
            let bytes = response.map_or(0, |response| {
                i64::try_from(response.body.len()).unwrap_or(i64::MAX)
            });
            let known = transaction
                .prepare_cached(
                    "UPDATE asked SET done = 1, expires_at = ?2, bytes = ?3 WHERE request_id = ?1",
                )?
                .execute(params![request_id, expires_at_ms, bytes])?;
            let Some(response) = response.filter(|_| known == 1) else {
                return Ok(());
            };
            let headers = serde_json::to_string(&response.headers)
                .map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))?;
            transaction
                .prepare_cached(
                    "INSERT INTO answer (request_id, headers, body) VALUES (?1, ?2, ?3)",
                )?
                .execute(params![request_id, headers, response.body])
                .map(drop)
        })
    }

    /// Releases the key of a request that had no result.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    pub fn release(&self, request_id: &str) -> Result<(), StoreError> {
        self.write("release an idempotency key", |transaction| {
            transaction
                .prepare_cached("DELETE FROM asked WHERE request_id = ?1 AND done = 0")?
                .execute([request_id])
                .map(drop)
        })
    }

    /// Returns the running requests of all instances except the given ones, as pairs of account and
    /// request id.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read.
    pub fn orphaned_requests(
        &self,
        instance_ids: &[String],
    ) -> Result<Vec<(String, String)>, StoreError> {
        let instance_ids = serde_json::to_string(instance_ids).unwrap_or_default();
        // The query must not use the writer's connection, for which requests wait. It runs every
        // second and usually finds no rows.
        let reader = lock(&self.checkpointer);
        let lookup = || -> rusqlite::Result<Vec<(String, String)>> {
            reader
                .prepare_cached(
                    "SELECT account, request_id FROM asked
                     WHERE done = 0 AND boot NOT IN (SELECT value FROM json_each(?1))",
                )?
                .query_map([instance_ids], |row| Ok((row.get(0)?, row.get(1)?)))?
                .collect()
        };
        lookup()
            .map_err(|source| StoreError::sqlite("look for requests of ended processes", source))
    }

    /// Removes expired rows, and then the oldest ones above the limits of one account and of all
    /// accounts. Above the limit on bytes only responses are removed, and above the limit on
    /// entries whole keys. Running requests are kept.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written; removed rows are not restored.
    pub fn clean(&self, now_ms: i64, limits: RetentionLimits) -> Result<(), StoreError> {
        while self.remove_expired(now_ms)? == MAX_REMOVAL_BATCH {}
        let of_account = limits.for_one_account();
        for account in self.accounts_above(of_account)? {
            self.shrink(Some(&account), of_account)?;
        }
        self.shrink(None, limits)
    }

    fn shrink(&self, account: Option<&str>, limits: RetentionLimits) -> Result<(), StoreError> {
        while self.shrink_bytes(account, limits.bytes)? {}
        while self.shrink_entries(account, limits.entries)? {}
        Ok(())
    }

    /// Removes the data of an account, except for its running requests.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written; removed rows are not restored.
    pub fn remove_account(&self, account: &str) -> Result<(), StoreError> {
        let none = RetentionLimits {
            entries: 0,
            bytes: 0,
        };
        self.shrink(Some(account), none)
    }

    /// Returns the accounts that exceed the limits for one account.
    fn accounts_above(&self, limits: RetentionLimits) -> Result<Vec<String>, StoreError> {
        // As in `orphaned_requests`, no request waits for this query.
        let reader = lock(&self.checkpointer);
        let lookup = || -> rusqlite::Result<Vec<String>> {
            reader
                .prepare_cached(
                    "SELECT account FROM asked WHERE done = 1 GROUP BY account
                     HAVING sum(bytes) > ?1 OR count(*) > ?2",
                )?
                .query_map([as_limit(limits.bytes), as_limit(limits.entries)], |row| {
                    row.get(0)
                })?
                .collect()
        };
        lookup().map_err(|source| StoreError::sqlite("look for accounts above a limit", source))
    }

    fn remove_expired(&self, now_ms: i64) -> Result<usize, StoreError> {
        self.write("remove expired idempotency keys", |transaction| {
            transaction
                .prepare_cached(
                    "DELETE FROM asked WHERE request_id IN
                     (SELECT request_id FROM asked WHERE done = 1 AND expires_at <= ?1 LIMIT ?2)",
                )?
                .execute(params![now_ms, count(MAX_REMOVAL_BATCH)])
        })
    }

    /// Removes the oldest responses of an account, or of all accounts. Returns whether more may
    /// have to be removed.
    fn shrink_bytes(&self, account: Option<&str>, max_bytes: u64) -> Result<bool, StoreError> {
        let of = owner_condition(account);
        self.write("remove the oldest stored responses", |transaction| {
            let total: i64 = transaction
                .prepare_cached(&format!(
                    "SELECT ifnull(sum(bytes), 0) FROM asked WHERE done = 1 AND {of}"
                ))?
                .query_row([account], |row| row.get(0))?;
            let mut excess = total.saturating_sub(as_limit(max_bytes));
            let oldest: Vec<(String, i64)> = transaction
                .prepare_cached(&format!(
                    "SELECT request_id, bytes FROM asked WHERE done = 1 AND bytes > 0 AND {of}
                     ORDER BY expires_at LIMIT ?2"
                ))?
                .query_map(params![account, count(MAX_REMOVAL_BATCH)], |row| {
                    Ok((row.get(0)?, row.get(1)?))
                })?
                .collect::<Result<_, _>>()?;
            for (request_id, bytes) in oldest {
                if excess <= 0 {
                    return Ok(false);
                }
                transaction
                    .prepare_cached("DELETE FROM answer WHERE request_id = ?1")?
                    .execute([&request_id])?;
                transaction
                    .prepare_cached("UPDATE asked SET bytes = 0 WHERE request_id = ?1")?
                    .execute([&request_id])?;
                excess = excess.saturating_sub(bytes);
            }
            Ok(excess > 0 && total > 0)
        })
    }

    /// Removes the oldest keys of an account, or of all accounts. Returns whether more may remain.
    fn shrink_entries(&self, account: Option<&str>, max_entries: u64) -> Result<bool, StoreError> {
        let of = owner_condition(account);
        self.write("remove the oldest idempotency keys", |transaction| {
            let entries: i64 = transaction
                .prepare_cached(&format!(
                    "SELECT count(*) FROM asked WHERE done = 1 AND {of}"
                ))?
                .query_row([account], |row| row.get(0))?;
            let excess = entries.saturating_sub(as_limit(max_entries));
            if excess <= 0 {
                return Ok(false);
            }
            let removed = transaction
                .prepare_cached(&format!(
                    "DELETE FROM asked WHERE request_id IN
                     (SELECT request_id FROM asked WHERE done = 1 AND {of} ORDER BY expires_at LIMIT ?2)"
                ))?
                .execute(params![account, excess.min(count(MAX_REMOVAL_BATCH))])?;
            Ok(removed > 0)
        })
    }

    /// Writes the log back into the file. Writers wait only if the log has grown too long.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    pub fn checkpoint(&self) -> Result<(), StoreError> {
        let passive = |connection: &Connection| {
            connection
                .query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| {
                    row.get::<_, i64>(1)
                })
                .map_err(|source| StoreError::sqlite("checkpoint idempotency.db", source))
        };
        let pages = passive(&lock(&self.checkpointer))?;
        if pages > MAX_LOG_PAGES {
            passive(&lock(&self.writer))?;
        }
        Ok(())
    }
}

fn lock(mutex: &Mutex<Connection>) -> MutexGuard<'_, Connection> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the condition of a query whose first parameter is an account, or NULL for all accounts.
/// The two cases have different texts, because each one has its own index.
fn owner_condition(account: Option<&str>) -> &'static str {
    match account {
        Some(_) => "account = ?1",
        None => "?1 IS NULL",
    }
}

fn as_limit(limit: u64) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

fn count(rows: usize) -> i64 {
    i64::try_from(rows).unwrap_or(i64::MAX)
}

fn insert_or_find(
    transaction: &Transaction<'_>,
    request: &IdempotencyRequest<'_>,
) -> rusqlite::Result<IdempotencyLookup> {
    let IdempotencyRequest {
        account,
        path,
        key,
        hash,
        request_id,
        instance_id,
    } = request;
    transaction
        .prepare_cached(
            "INSERT INTO asked (account, path, key, hash, request_id, boot, expires_at)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, 0)",
        )?
        .execute(params![
            account,
            path,
            key,
            hash.as_slice(),
            request_id,
            instance_id
        ])?;
    Ok(IdempotencyLookup::Nothing)
}

fn remove(transaction: &Transaction<'_>, request_id: &str) -> rusqlite::Result<()> {
    transaction
        .prepare_cached("DELETE FROM asked WHERE request_id = ?1")?
        .execute([request_id])
        .map(drop)
}

fn read_response(
    transaction: &Transaction<'_>,
    request_id: &str,
) -> rusqlite::Result<Option<StoredResponse>> {
    let row: Option<(String, Vec<u8>)> = transaction
        .prepare_cached("SELECT headers, body FROM answer WHERE request_id = ?1")?
        .query_row([request_id], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    // This program can read every response that it wrote. An unreadable one is ignored.
    Ok(row.and_then(|(headers, body)| {
        Some(StoredResponse {
            headers: serde_json::from_str(&headers).ok()?,
            body,
        })
    }))
}

#[cfg(test)]
mod damage_tests;
#[cfg(test)]
mod tests;
