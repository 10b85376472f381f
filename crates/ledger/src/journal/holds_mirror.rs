//! Credits that running processes hold, per account, for other processes to read: the command line,
//! and a successor process.
//!
//! The database is a copy that lags by a few milliseconds, and its rows are removed with their
//! process. Admission works in memory and never reads them. A reader that needs current rows
//! requests a refresh and waits until it is complete: the rows then include all holds at the time
//! of the request. The database must not be synced.

use crate::Claim;
use crate::StoreError;
use crate::sqlite;
use crate::sqlite::damage;
use crate::sqlite::damage::DatabaseSpec;
use crate::sqlite::log_index::ValueSinceCommit;
use credits::money::CreditSplit;
use rusqlite::{Connection, params};
use std::path::Path;

const MIGRATIONS: &[&str] = &[
    "CREATE TABLE held (
    boot    TEXT NOT NULL,
    account TEXT NOT NULL,
    paid    INTEGER NOT NULL,
    trial   INTEGER NOT NULL,
    PRIMARY KEY (account, boot)
  ) STRICT, WITHOUT ROWID;",
    // A row has the settled credits next to the held ones. Otherwise credits that have not reached
    // the ledger would look free.
    "DROP TABLE held;
  CREATE TABLE held (
    boot          TEXT NOT NULL,
    account       TEXT NOT NULL,
    paid          INTEGER NOT NULL,
    trial         INTEGER NOT NULL,
    settled_paid  INTEGER NOT NULL,
    settled_trial INTEGER NOT NULL,
    PRIMARY KEY (account, boot)
  ) STRICT, WITHOUT ROWID;",
    "CREATE TABLE question (asked INTEGER NOT NULL, answered INTEGER NOT NULL) STRICT;
  INSERT INTO question VALUES (0, 0);",
];

const FILE: &str = "holds.db";
const OPEN: &str = "open holds.db";
/// Page size of a new file in bytes. A commit changes a few scattered rows and writes their pages,
/// so small pages write less.
const PAGE_BYTES: u32 = 1_024;
const DATABASE_SPEC: DatabaseSpec = DatabaseSpec {
    table: "held",
    migrations: MIGRATIONS,
};

/// The database with the copied holds.
pub struct HoldsMirror {
    connection: Connection,
    /// The numbers of the last completed and of the last requested refresh. The ledger writer asks
    /// for them 50 times a second.
    refresh_state: ValueSinceCommit<(i64, i64)>,
}

impl HoldsMirror {
    /// Opens `holds.db` in `dir` at the start of the process that admits requests, and replaces a
    /// damaged file. See [`HoldsMirror::open`].
    ///
    /// # Errors
    /// Returns an error if the file cannot be opened.
    pub fn open_or_renew(dir: &Path) -> Result<Self, StoreError> {
        let mirror = damage::open_or_renew(&dir.join(FILE), &DATABASE_SPEC, || Self::open(dir))?;
        let insert = "INSERT INTO question SELECT 0, 0 WHERE NOT EXISTS (SELECT 1 FROM question)";
        mirror
            .connection
            .execute(insert, [])
            .map_err(|source| StoreError::sqlite("create holds.db", source))?;
        Ok(mirror)
    }

    /// Describes the damage of `holds.db` in `dir`, if any.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read for another reason.
    pub fn find_damage(dir: &Path) -> Result<Option<String>, StoreError> {
        damage::find_damage(&dir.join(FILE), &DATABASE_SPEC)
    }

    /// Opens `holds.db` in `dir`.
    ///
    /// # Errors
    /// Returns an error if the file cannot be opened.
    pub fn open(dir: &Path) -> Result<Self, StoreError> {
        let path = dir.join(FILE);
        let mut connection = sqlite::open_with_page_size(&path, PAGE_BYTES, OPEN)?;
        sqlite::migrate(&mut connection, MIGRATIONS, "migrate holds.db")?;
        sqlite::disable_sync(&connection)?;
        sqlite::warm_up(&connection, OPEN)?;
        let refresh_state =
            ValueSinceCommit::open(&path).map_err(|source| StoreError::io(OPEN, source))?;
        Ok(Self {
            connection,
            refresh_state,
        })
    }

    /// Writes the held and settled credits of each process, as pairs of account and claim.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    pub fn put(&mut self, rows: &[(String, Claim)]) -> Result<(), StoreError> {
        let sql = |source| StoreError::sqlite("publish the reservations", source);
        let transaction = sqlite::begin_write(&mut self.connection).map_err(sql)?;
        for (account, claim) in rows {
            transaction
                .prepare_cached(
                    "INSERT INTO held (boot, account, paid, trial, settled_paid, settled_trial)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6)
                     ON CONFLICT (account, boot) DO UPDATE SET paid = excluded.paid, trial = excluded.trial,
                       settled_paid = excluded.settled_paid, settled_trial = excluded.settled_trial",
                )
                .and_then(|mut statement| {
                    let Claim { instance_id, held, settled } = claim;
                    statement.execute(params![instance_id, account, held.paid, held.trial, settled.paid, settled.trial])
                })
                .map_err(sql)?;
        }
        transaction.commit().map_err(sql)
    }

    /// Requests a refresh. Returns its number.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    pub fn request_refresh(&self) -> Result<i64, StoreError> {
        self.connection
            .query_row(
                "UPDATE question SET asked = asked + 1 RETURNING asked",
                [],
                |row| row.get(0),
            )
            .map_err(|source| StoreError::sqlite("request the current reservations", source))
    }

    /// Returns the numbers of the last completed and of the last requested refresh.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read.
    pub fn refresh_state(&mut self) -> Result<(i64, i64), StoreError> {
        let connection = &self.connection;
        let read = || {
            connection
                .prepare_cached("SELECT answered, asked FROM question")
                .and_then(|mut statement| {
                    statement.query_row([], |row| Ok((row.get(0)?, row.get(1)?)))
                })
        };
        self.refresh_state.get(read).map_err(|source| {
            StoreError::sqlite("check for a request for the current reservations", source)
        })
    }

    /// Marks refresh `number` as complete, because all holds at its request are written.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    pub fn complete_refresh(&self, number: i64) -> Result<(), StoreError> {
        self.connection
            .execute("UPDATE question SET answered = max(answered, ?1)", [number])
            .map(drop)
            .map_err(|source| {
                StoreError::sqlite("answer a request for the current reservations", source)
            })
    }

    /// Removes the rows of an instance that writes no more rows.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    pub fn remove_instance(&self, instance_id: &str) -> Result<(), StoreError> {
        self.connection
            .execute("DELETE FROM held WHERE boot = ?1", [instance_id])
            .map(drop)
            .map_err(|source| {
                StoreError::sqlite("remove the reservations of an ended process", source)
            })
    }

    /// Returns the credits of `account` that each process holds or has settled.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read.
    pub fn claims_of(&self, account: &str) -> Result<Vec<Claim>, StoreError> {
        Ok(self
            .select("WHERE account = ?1", [account])?
            .into_iter()
            .map(|(_, claim)| claim)
            .collect())
    }

    /// Returns the held and settled credits of each process, as pairs of account and claim.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read.
    pub fn all_claims(&self) -> Result<Vec<(String, Claim)>, StoreError> {
        self.select("WHERE paid <> 0 OR trial <> 0", [])
    }

    fn select(
        &self,
        filter: &str,
        values: impl rusqlite::Params,
    ) -> Result<Vec<(String, Claim)>, StoreError> {
        let sql = |source| StoreError::sqlite("read the reservations", source);
        let columns = "account, boot, paid, trial, settled_paid, settled_trial";
        let mut statement = self
            .connection
            .prepare_cached(&format!("SELECT {columns} FROM held {filter}"))
            .map_err(sql)?;
        let rows = statement
            .query_map(values, |row| {
                let held = CreditSplit {
                    paid: row.get(2)?,
                    trial: row.get(3)?,
                };
                let settled = CreditSplit {
                    paid: row.get(4)?,
                    trial: row.get(5)?,
                };
                Ok((
                    row.get(0)?,
                    Claim {
                        instance_id: row.get(1)?,
                        held,
                        settled,
                    },
                ))
            })
            .map_err(sql)?;
        rows.collect::<Result<_, _>>().map_err(sql)
    }

    /// Removes the rows of all instances except `live`, because their processes have ended.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    pub fn retain_instances(&mut self, live: &[String]) -> Result<(), StoreError> {
        let live = serde_json::to_string(live).unwrap_or_default();
        self.connection
            .execute(
                "DELETE FROM held WHERE boot NOT IN (SELECT value FROM json_each(?1))",
                [live],
            )
            .map_err(|source| {
                StoreError::sqlite("remove the records of ended processes", source)
            })?;
        Ok(())
    }
}
