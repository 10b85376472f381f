//! Assigns numbers to the names of accounts, models, keys, members and outcomes.
//!
//! A name gets the next number when it first occurs in an entry, so the numbers follow from the
//! entries alone. Cached numbers must be dropped if the transaction that assigned them was not
//! committed.

use super::tables::IndexTables;
use rusqlite::params;
use std::collections::HashMap;

/// Maximum number of names of a table that are cached. One more clears the cache.
const MAX_KNOWN: usize = 65_536;

pub(crate) struct NameTable {
    table: &'static str,
    known: HashMap<String, i64>,
    /// Highest number assigned; `None` until it is read from the table.
    last: Option<i64>,
}

pub(crate) struct NameTables {
    pub accounts: NameTable,
    pub models: NameTable,
    pub keys: NameTable,
    pub members: NameTable,
    pub outcomes: NameTable,
}

impl NameTables {
    pub(crate) fn new() -> Self {
        Self {
            accounts: NameTable::new("account"),
            models: NameTable::new("model"),
            keys: NameTable::new("api_key"),
            members: NameTable::new("member"),
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

    /// Returns the number of a name, and assigns the next one to a new name.
    pub(crate) fn number(&mut self, tables: IndexTables<'_>, name: &str) -> rusqlite::Result<i64> {
        if let Some(id) = self.known.get(name) {
            return Ok(*id);
        }
        let id = match tables.find_name(self.table, name)? {
            Some(id) => id,
            None => self.add(tables, name)?,
        };
        if self.known.len() >= MAX_KNOWN {
            self.known.clear();
        }
        self.known.insert(name.to_owned(), id);
        Ok(id)
    }

    fn add(&mut self, tables: IndexTables<'_>, name: &str) -> rusqlite::Result<i64> {
        let table = self.table;
        let last = match self.last {
            Some(last) => last,
            None => tables.last_name(table)?,
        };
        let id = last + 1;
        tables
            .connection()
            .prepare_cached(&format!(
                "INSERT INTO main.{table} (id, name) VALUES (?1, ?2)"
            ))?
            .execute(params![id, name])?;
        self.last = Some(id);
        Ok(id)
    }
}
