//! Numbers for the names of accounts, models, keys and outcomes.
//!
//! A name gets the next number when an entry first has it, so the numbers follow from the entries
//! alone. Must not outlive the transaction that gave a number, unless that was committed.

use rusqlite::{Connection, OptionalExtension, params};
use std::collections::HashMap;

/// Maximum number of names of a table in memory; one more clears them.
const MAX_KNOWN: usize = 65_536;

/// A table of names.
pub(super) struct NameTable {
    table: &'static str,
    known: HashMap<String, i64>,
    /// The highest number given, once it was read.
    last: Option<i64>,
}

/// All tables of names.
pub(super) struct NameTables {
    pub accounts: NameTable,
    pub models: NameTable,
    pub keys: NameTable,
    pub outcomes: NameTable,
}

impl NameTables {
    pub(super) fn new() -> Self {
        Self {
            accounts: NameTable::new("account"),
            models: NameTable::new("model"),
            keys: NameTable::new("api_key"),
            outcomes: NameTable::new("outcome"),
        }
    }
}

impl NameTable {
    fn new(table: &'static str) -> Self {
        Self {
            table,
            known: HashMap::new(),
            last: None,
        }
    }

    /// Returns the number of a name; gives it the next one if it has none.
    pub(super) fn number(&mut self, connection: &Connection, name: &str) -> rusqlite::Result<i64> {
        if let Some(id) = self.known.get(name) {
            return Ok(*id);
        }
        let id = match find_name(connection, self.table, name)? {
            Some(id) => id,
            None => self.add(connection, name)?,
        };
        if self.known.len() >= MAX_KNOWN {
            self.known.clear();
        }
        self.known.insert(name.to_owned(), id);
        Ok(id)
    }

    fn add(&mut self, connection: &Connection, name: &str) -> rusqlite::Result<i64> {
        let table = self.table;
        let last = match self.last {
            Some(last) => last,
            None => connection.query_row(
                &format!("SELECT ifnull(max(id), 0) FROM {table}"),
                [],
                |row| row.get(0),
            )?,
        };
        let id = last + 1;
        connection
            .prepare_cached(&format!("INSERT INTO {table} (id, name) VALUES (?1, ?2)"))?
            .execute(params![id, name])?;
        self.last = Some(id);
        Ok(id)
    }
}

/// Returns the number of a name in `table`, if it has one.
pub(in crate::store::ledger) fn find_name(
    connection: &Connection,
    table: &str,
    name: &str,
) -> rusqlite::Result<Option<i64>> {
    connection
        .prepare_cached(&format!("SELECT id FROM {table} WHERE name = ?1"))?
        .query_row([name], |row| row.get(0))
        .optional()
}
