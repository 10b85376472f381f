//! Finds the rows that a transaction changed, by temporary triggers of the connection that writes.
//!
//! The triggers record primary keys, and the rows are read before the commit. The triggers are not
//! stored in the file. This file must not send data to PostgreSQL.

use crate::postgres::{AccountBalance, CopiedRow, Domain};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension, Transaction, params_from_iter};
use serde_json::{Map, Value as Json, json};
use std::collections::BTreeMap;

/// Maximum number of columns in a primary key.
const MAX_KEY_COLUMNS: usize = 3;

pub struct CopiedTable {
    pub name: &'static str,
    /// Columns of the primary key, or `rowid`.
    pub key: Vec<String>,
    pub columns: Vec<String>,
    /// SQL condition that finds the row of a key.
    pub condition: String,
    select: String,
}

pub struct ChangedRows {
    tables: BTreeMap<&'static str, CopiedTable>,
}

/// The rows to send: accounts, and rows of the other tables.
type Rows = (Vec<AccountBalance>, Vec<CopiedRow>);

impl ChangedRows {
    /// Creates the triggers that record changes of the tables.
    pub fn record(connection: &Connection, names: &[&'static str]) -> rusqlite::Result<Self> {
        connection.execute_batch(
            "CREATE TEMP TABLE IF NOT EXISTS changed_row (tbl TEXT NOT NULL, k0, k1, k2);",
        )?;
        let mut tables = BTreeMap::new();
        for name in names {
            let table = CopiedTable::read(connection, name)?;
            for (event, row) in [
                ("INSERT", "NEW"),
                ("UPDATE", "NEW"),
                ("UPDATE", "OLD"),
                ("DELETE", "OLD"),
            ] {
                let mut key: Vec<String> = table
                    .key
                    .iter()
                    .map(|column| format!("{row}.{column}"))
                    .collect();
                key.resize(MAX_KEY_COLUMNS, "NULL".into());
                connection.execute_batch(&format!(
                    "CREATE TEMP TRIGGER IF NOT EXISTS changed_{name}_{event}_{row} AFTER {event} ON main.{name} BEGIN
                       INSERT INTO changed_row VALUES ('{name}', {});
                     END;",
                    key.join(", ")
                ))?;
            }
            tables.insert(*name, table);
        }
        Ok(Self { tables })
    }

    pub fn table(&self, name: &str) -> Option<&CopiedTable> {
        self.tables.get(name)
    }

    pub fn clear(&self, transaction: &Transaction<'_>) -> rusqlite::Result<()> {
        transaction
            .prepare_cached("DELETE FROM temp.changed_row")?
            .execute([])
            .map(drop)
    }

    /// Records every row as changed.
    pub fn mark_all(&self, transaction: &Transaction<'_>) -> rusqlite::Result<()> {
        for table in self.tables.values() {
            let mut key = table.key.clone();
            key.resize(MAX_KEY_COLUMNS, "NULL".into());
            let (name, key) = (table.name, key.join(", "));
            transaction.execute(
                &format!("INSERT INTO temp.changed_row SELECT '{name}', {key} FROM main.{name}"),
                [],
            )?;
        }
        Ok(())
    }

    /// Returns the current content of the rows that changed.
    pub fn collect(&self, transaction: &Transaction<'_>, domain: Domain) -> rusqlite::Result<Rows> {
        let keys: Vec<(String, [Value; MAX_KEY_COLUMNS])> = transaction
            .prepare_cached("SELECT DISTINCT tbl, k0, k1, k2 FROM temp.changed_row")?
            .query_map([], |row| {
                Ok((row.get(0)?, [row.get(1)?, row.get(2)?, row.get(3)?]))
            })?
            .collect::<Result<_, _>>()?;
        let (mut accounts, mut rows) = (Vec::new(), Vec::new());
        for (name, key) in keys {
            let Some(table) = self.tables.get(name.as_str()) else {
                continue;
            };
            let key = key.get(..table.key.len()).unwrap_or_default();
            if domain == Domain::Ledger && name == "account" {
                accounts.extend(balance(transaction, key)?);
            } else {
                rows.push(CopiedRow {
                    key: Json::Array(key.iter().map(encode).collect()).to_string(),
                    row: table.row(transaction, key)?,
                    table: name,
                });
            }
        }
        Ok((accounts, rows))
    }
}

impl CopiedTable {
    fn read(connection: &Connection, name: &'static str) -> rusqlite::Result<Self> {
        let mut columns: Vec<String> = Vec::new();
        let mut key: Vec<(i64, String)> = Vec::new();
        let mut statement = connection.prepare(&format!("PRAGMA main.table_info({name})"))?;
        let mut found = statement.query([])?;
        while let Some(row) = found.next()? {
            let column: String = row.get("name")?;
            match row.get::<_, i64>("pk")? {
                0 => {}
                place => key.push((place, column.clone())),
            }
            columns.push(column);
        }
        key.sort();
        let mut key: Vec<String> = key.into_iter().map(|(_, column)| column).collect();
        if key.is_empty() {
            key.push("rowid".into());
        }
        let condition: Vec<String> = key
            .iter()
            .enumerate()
            .map(|(index, column)| format!("{column} IS ?{}", index + 1))
            .collect();
        let condition = condition.join(" AND ");
        let select = format!(
            "SELECT {} FROM main.{name} WHERE {condition}",
            columns.join(", ")
        );
        Ok(Self {
            name,
            key,
            columns,
            condition,
            select,
        })
    }

    /// Returns a row as JSON, or `None` if the row does not exist.
    fn row(
        &self,
        transaction: &Transaction<'_>,
        key: &[Value],
    ) -> rusqlite::Result<Option<String>> {
        transaction
            .prepare_cached(&self.select)?
            .query_row(params_from_iter(key), |row| {
                let mut object = Map::new();
                for (index, column) in self.columns.iter().enumerate() {
                    object.insert(column.clone(), encode(&row.get(index)?));
                }
                Ok(Json::Object(object).to_string())
            })
            .optional()
    }
}

fn balance(
    transaction: &Transaction<'_>,
    key: &[Value],
) -> rusqlite::Result<Option<AccountBalance>> {
    transaction
        .prepare_cached(
            "SELECT id, paid, trial, trial_ends_at, credited, opened_at FROM account WHERE id = ?1",
        )?
        .query_row(params_from_iter(key), |row| {
            Ok(AccountBalance {
                id: row.get(0)?,
                paid: row.get(1)?,
                trial: row.get(2)?,
                trial_ends_at_ms: row.get(3)?,
                credited: row.get(4)?,
                opened_at_ms: row.get(5)?,
            })
        })
        .optional()
}

/// Returns a value as JSON. Bytes become an object, because JSON has no type for them.
fn encode(value: &Value) -> Json {
    match value {
        Value::Null => Json::Null,
        Value::Integer(number) => json!(number),
        Value::Real(number) => json!({"real": number}),
        Value::Text(text) => json!(text),
        Value::Blob(bytes) => json!({"bytes": BASE64.encode(bytes)}),
    }
}

/// Reverses [`encode`]. Returns `None` if the JSON is no encoded value.
pub fn decode(json: &Json) -> Option<Value> {
    match json {
        Json::Null => Some(Value::Null),
        Json::Number(number) => number.as_i64().map(Value::Integer),
        Json::String(text) => Some(Value::Text(text.clone())),
        Json::Object(object) => match (object.get("bytes"), object.get("real")) {
            (Some(Json::String(bytes)), None) => BASE64.decode(bytes).ok().map(Value::Blob),
            (None, Some(Json::Number(number))) => number.as_f64().map(Value::Real),
            _ => None,
        },
        Json::Bool(_) | Json::Array(_) => None,
    }
}
