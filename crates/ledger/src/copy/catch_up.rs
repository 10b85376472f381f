//! Copies the commits of other data directories from PostgreSQL into the file, page by page.
//!
//! Every entry's hash is computed here, because PostgreSQL is trusted no more than a file. This
//! file must not change data in PostgreSQL.

use super::changed_rows::{CopiedTable, decode};
use super::copied_entries;
use super::file::Copy;
use crate::StoreError;
use crate::postgres::{AccountBalance, CopiedRow, CopyPage, Domain};
use crate::sqlite;
use rusqlite::config::DbConfig;
use rusqlite::types::Value;
use rusqlite::{Connection, Transaction, params_from_iter};
use serde_json::Value as Json;

impl Copy {
    /// Brings the file up to date, with one commit for each page.
    ///
    /// # Errors
    /// Returns an error if PostgreSQL cannot be reached, if it lacks data that the file has, or if
    /// the file cannot be written.
    pub fn catch_up(&self, connection: &mut Connection) -> Result<(), StoreError> {
        let sql = |source| StoreError::sqlite("bring a copy up to date", source);
        let position = self.position(connection)?;
        let holding = self.home.holding(self.domain)?;
        self.check_format(connection, &holding)?;
        if position == holding.position {
            return Ok(());
        }
        loop {
            let transaction = sqlite::begin_write(connection).map_err(sql)?;
            let position = self.position(&transaction)?;
            let holding = self.home.holding(self.domain)?;
            self.check_same_chain(&position, &holding.position)?;
            let is_last = self.take_page(&transaction)?;
            transaction.commit().map_err(sql)?;
            if is_last {
                return Ok(());
            }
        }
    }

    /// Copies data that the file lacks from PostgreSQL, at most one page of entries. Returns true
    /// if the file is then up to date.
    pub(crate) fn take_page(&self, transaction: &Transaction<'_>) -> Result<bool, StoreError> {
        let position = self.position(transaction)?;
        let page = self
            .home
            .page(self.domain, position.seq, position.version)?;
        let sql = |source| StoreError::sqlite("bring a copy up to date", source);
        // The file's own triggers would change rows that are copied too, so they are off. Temporary
        // triggers stay on.
        let triggers = DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER;
        transaction.set_db_config(triggers, false).map_err(sql)?;
        let applied = self.apply(transaction, &page);
        transaction.set_db_config(triggers, true).map_err(sql)?;
        applied?;
        self.changed.clear(transaction).map_err(sql)?;
        Ok(page.is_last)
    }

    fn apply(&self, transaction: &Transaction<'_>, page: &CopyPage) -> Result<(), StoreError> {
        let sql = |source| StoreError::sqlite("bring a copy up to date", source);
        transaction
            .pragma_update(None, "defer_foreign_keys", true)
            .map_err(sql)?;
        for account in &page.accounts {
            open_account(transaction, account).map_err(sql)?;
        }
        if self.domain == Domain::Ledger {
            copied_entries::insert(transaction, &page.entries)?;
        }
        if !page.is_last {
            return Ok(());
        }
        for account in &page.accounts {
            set_account(transaction, account).map_err(sql)?;
        }
        // Delete rows first, so that their keys are free.
        for deletes in [true, false] {
            for row in page.rows.iter().filter(|row| row.row.is_none() == deletes) {
                self.apply_row(transaction, row)?;
            }
        }
        transaction
            .prepare_cached("UPDATE copy SET version = ?1")
            .and_then(|mut statement| statement.execute([page.holding.position.version]))
            .map(drop)
            .map_err(sql)
    }

    fn apply_row(&self, transaction: &Transaction<'_>, row: &CopiedRow) -> Result<(), StoreError> {
        let unreadable = || {
            StoreError::Unusable(format!(
                "cannot read the row {} of table {} in PostgreSQL",
                row.key, row.table
            ))
        };
        // A newer program may have tables that this program does not know.
        let Some(table) = self.changed.table(&row.table) else {
            return Ok(());
        };
        let key: Vec<Json> = serde_json::from_str(&row.key).map_err(|_| unreadable())?;
        let key: Vec<Value> = key
            .iter()
            .map(decode)
            .collect::<Option<_>>()
            .ok_or_else(unreadable)?;
        if key.len() != table.key.len() {
            return Err(unreadable());
        }
        let done = match &row.row {
            None => delete(transaction, table, &key),
            Some(text) => {
                let object: serde_json::Map<String, Json> =
                    serde_json::from_str(text).map_err(|_| unreadable())?;
                // Columns that this program does not know are left out, and columns that the row
                // lacks get their defaults.
                let mut columns: Vec<&str> = Vec::new();
                let mut values: Vec<Value> = Vec::new();
                if table.key == ["rowid"] {
                    columns.push("rowid");
                    values.extend(key);
                }
                for column in &table.columns {
                    if let Some(value) = object.get(column) {
                        columns.push(column);
                        values.push(decode(value).ok_or_else(unreadable)?);
                    }
                }
                put(transaction, table, &columns, values)
            }
        };
        done.map_err(|source| StoreError::sqlite("bring a copy up to date", source))
    }
}

fn delete(
    transaction: &Transaction<'_>,
    table: &CopiedTable,
    key: &[Value],
) -> rusqlite::Result<()> {
    transaction
        .prepare_cached(&format!(
            "DELETE FROM main.{} WHERE {}",
            table.name, table.condition
        ))?
        .execute(params_from_iter(key))
        .map(drop)
}

fn put(
    transaction: &Transaction<'_>,
    table: &CopiedTable,
    columns: &[&str],
    values: Vec<Value>,
) -> rusqlite::Result<()> {
    let places: Vec<String> = (1..=columns.len())
        .map(|index| format!("?{index}"))
        .collect();
    transaction
        .prepare_cached(&format!(
            "INSERT OR REPLACE INTO main.{} ({}) VALUES ({})",
            table.name,
            columns.join(", "),
            places.join(", ")
        ))?
        .execute(params_from_iter(values))
        .map(drop)
}

fn open_account(transaction: &Transaction<'_>, account: &AccountBalance) -> rusqlite::Result<()> {
    transaction
        .prepare_cached(
            "INSERT INTO account (id, paid, trial, trial_ends_at, opened_at) VALUES (?1, 0, 0, ?2, ?3)
             ON CONFLICT (id) DO NOTHING",
        )?
        .execute(rusqlite::params![
            account.id,
            account.trial_ends_at_ms,
            account.opened_at_ms
        ])
        .map(drop)
}

fn set_account(transaction: &Transaction<'_>, account: &AccountBalance) -> rusqlite::Result<()> {
    transaction
        .prepare_cached(
            "UPDATE account SET paid = ?2, trial = ?3, trial_ends_at = ?4, credited = ?5 WHERE id = ?1",
        )?
        .execute(rusqlite::params![
            account.id,
            account.paid,
            account.trial,
            account.trial_ends_at_ms,
            account.credited
        ])
        .map(drop)
}
