//! What running processes hold, per account, for other processes to see: the command line, and a successor.
//!
//! A mirror, a few milliseconds old, that dies with its processes; admission never reads it. Must not be synced.

use super::StoreError;
use super::sqlite;
use crate::money::Micro;
use rusqlite::{Connection, params};
use std::path::Path;

const MIGRATIONS: &[&str] = &["CREATE TABLE held (
    boot    TEXT NOT NULL,
    account TEXT NOT NULL,
    paid    INTEGER NOT NULL,
    trial   INTEGER NOT NULL,
    PRIMARY KEY (account, boot)
  ) STRICT, WITHOUT ROWID;"];

/// The mirror's database.
pub struct HeldMirror(Connection);

impl HeldMirror {
    /// Opens `holds.db` in `dir`.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn open(dir: &Path) -> Result<Self, StoreError> {
        let mut connection = sqlite::open(&dir.join("holds.db"), "open the holds' mirror")?;
        sqlite::migrate(&mut connection, MIGRATIONS, "bring the holds' mirror up to date")?;
        sqlite::never_sync(&connection)?;
        Ok(Self(connection))
    }

    /// Says what `boot` holds of each account: (account, paid, trial). Nothing held removes the row.
    ///
    /// # Errors
    /// The mirror cannot be written.
    pub fn put(&mut self, boot: &str, rows: &[(String, Micro, Micro)]) -> Result<(), StoreError> {
        let sql = |source| StoreError::sqlite("mirror the holds", source);
        let transaction = sqlite::write(&mut self.0).map_err(sql)?;
        for (account, paid, trial) in rows {
            let held = paid.is_positive() || trial.is_positive();
            let statement = if held {
                "INSERT INTO held (boot, account, paid, trial) VALUES (?1, ?2, ?3, ?4)
                 ON CONFLICT (account, boot) DO UPDATE SET paid = excluded.paid, trial = excluded.trial"
            } else {
                "DELETE FROM held WHERE boot = ?1 AND account = ?2 AND ?3 <= 0 AND ?4 <= 0"
            };
            transaction
                .prepare_cached(statement)
                .and_then(|mut statement| statement.execute(params![boot, account, paid, trial]))
                .map_err(sql)?;
        }
        transaction.commit().map_err(sql)
    }

    /// What each boot holds of `account`: (boot, paid, trial).
    ///
    /// # Errors
    /// The mirror cannot be read.
    pub fn of(&self, account: &str) -> Result<Vec<(String, Micro, Micro)>, StoreError> {
        let sql = |source| StoreError::sqlite("read the holds", source);
        let mut statement =
            self.0.prepare_cached("SELECT boot, paid, trial FROM held WHERE account = ?1").map_err(sql)?;
        let rows = statement.query_map([account], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).map_err(sql)?;
        rows.collect::<Result<_, _>>().map_err(sql)
    }

    /// Removes what boots other than `live` held: their processes are gone.
    ///
    /// # Errors
    /// The mirror cannot be written.
    pub fn forget_boots(&mut self, live: &[String]) -> Result<(), StoreError> {
        let live = serde_json::to_string(live).unwrap_or_default();
        self.0
            .execute("DELETE FROM held WHERE boot NOT IN (SELECT value FROM json_each(?1))", [live])
            .map_err(|source| StoreError::sqlite("forget ended processes", source))?;
        Ok(())
    }
}
