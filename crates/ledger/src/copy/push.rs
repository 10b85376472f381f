//! Sends the rows of a copy, except the entries, to PostgreSQL.

use super::Copy;
use crate::StoreError;
use crate::postgres::{HomeCommit, Position};
use crate::sqlite;
use rusqlite::Connection;

impl Copy {
    /// Sends a new database the rows that each file has from the start.
    ///
    /// # Errors
    /// Returns an error if either side cannot be read or written.
    pub fn push_first_rows(&self, connection: &mut Connection) -> Result<(), StoreError> {
        match self.home.holding(self.domain)?.position.version {
            0 => self.push_rows(connection),
            _ => Ok(()),
        }
    }

    /// Sends PostgreSQL all rows except the entries.
    ///
    /// # Errors
    /// Returns an error if either side cannot be read or written.
    pub fn push_rows(&self, connection: &mut Connection) -> Result<(), StoreError> {
        let sql = |source| StoreError::sqlite("read the rows for PostgreSQL", source);
        let transaction = sqlite::begin_write(connection).map_err(sql)?;
        let holding = self.home.holding(self.domain)?;
        self.changed.clear(&transaction).map_err(sql)?;
        self.changed.mark_all(&transaction).map_err(sql)?;
        let (accounts, rows) = self
            .changed
            .collect(&transaction, self.domain)
            .map_err(sql)?;
        self.changed.clear(&transaction).map_err(sql)?;
        let version = holding.position.version.max(self.version(&transaction)?) + 1;
        transaction
            .execute("UPDATE copy SET version = ?1", [version])
            .map_err(sql)?;
        self.home.commit(HomeCommit {
            domain: self.domain,
            epoch: holding.epoch,
            after: Position {
                version,
                ..holding.position.clone()
            },
            before: holding.position,
            entries: Vec::new(),
            accounts,
            rows,
        })?;
        transaction.commit().map_err(sql)
    }
}
