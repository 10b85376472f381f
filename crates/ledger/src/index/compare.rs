//! Compares a table with the same table of a rebuilt index, row by row in the order of its key.
//!
//! The comparison keeps one row of each table in memory. This file must not write.

use rusqlite::types::ValueRef;
use rusqlite::{Connection, OptionalExtension, Row};
use std::cmp::Ordering;

/// A stored row that differs from the row computed from the entries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AggregateMismatch {
    /// Name of the table.
    pub of: &'static str,
    /// Key of the row, as a text.
    pub row: String,
}

/// A table to compare: its key and its other columns.
pub(crate) struct TableShape {
    name: &'static str,
    key: &'static [TableKey],
    columns: &'static str,
}

/// A column of a key, and its presentation in messages.
pub(crate) struct TableKey {
    label: &'static str,
    column: &'static str,
    /// Table with the names for the column's numbers.
    names: Option<&'static str>,
}

impl TableKey {
    /// Creates a column whose value a message shows unchanged.
    pub(crate) const fn number(label: &'static str, column: &'static str) -> Self {
        Self {
            label,
            column,
            names: None,
        }
    }

    /// Creates a column of numbers whose names are in another table.
    pub(crate) const fn name(
        label: &'static str,
        column: &'static str,
        names: &'static str,
    ) -> Self {
        Self {
            label,
            column,
            names: Some(names),
        }
    }
}

impl TableShape {
    pub(crate) const fn new(
        name: &'static str,
        key: &'static [TableKey],
        columns: &'static str,
    ) -> Self {
        Self { name, key, columns }
    }

    fn select(&self) -> String {
        let key: Vec<_> = self.key.iter().map(|key| key.column).collect();
        let key = key.join(", ");
        format!(
            "SELECT {key}, {} FROM {} ORDER BY {key}",
            self.columns, self.name
        )
    }

    fn describe(&self, row: &Row<'_>, names: [&Connection; 2]) -> rusqlite::Result<String> {
        let mut parts = Vec::new();
        for (index, key) in self.key.iter().enumerate() {
            let value = match row.get_ref(index)? {
                ValueRef::Integer(number) => {
                    let name = key.names.and_then(|table| {
                        names
                            .iter()
                            .find_map(|connection| name_of(connection, table, number))
                    });
                    name.unwrap_or_else(|| number.to_string())
                }
                ValueRef::Text(text) => String::from_utf8_lossy(text).into_owned(),
                _ => String::new(),
            };
            parts.push(format!("{} {value}", key.label));
        }
        Ok(parts.join(", "))
    }
}

/// Returns at most `limit` of the rows that differ or that only one side has. Both sides must sort
/// the key in the order of SQLite.
pub(crate) fn compare_tables(
    table: &TableShape,
    expected: &Connection,
    stored: &Connection,
    limit: u32,
) -> rusqlite::Result<Vec<AggregateMismatch>> {
    let sql = table.select();
    let names = [expected, stored];
    let (mut expected, mut stored) = (expected.prepare(&sql)?, stored.prepare(&sql)?);
    let count = stored.column_count();
    let (mut expected, mut stored) = (expected.query([])?, stored.query([])?);
    let (mut one, mut other) = (expected.next()?, stored.next()?);
    let mut wrong = Vec::new();
    while wrong.len() < limit as usize {
        let (differing, order) = match (one, other) {
            (None, None) => break,
            (Some(row), None) => (Some(row), Ordering::Less),
            (None, Some(row)) => (Some(row), Ordering::Greater),
            (Some(one), Some(other)) => match compare_columns(one, other, 0..table.key.len())? {
                Ordering::Equal => {
                    let rest = compare_columns(one, other, table.key.len()..count)?;
                    (rest.is_ne().then_some(one), Ordering::Equal)
                }
                Ordering::Less => (Some(one), Ordering::Less),
                Ordering::Greater => (Some(other), Ordering::Greater),
            },
        };
        if let Some(row) = differing {
            wrong.push(AggregateMismatch {
                of: table.name,
                row: table.describe(row, names)?,
            });
        }
        if order.is_le() {
            one = expected.next()?;
        }
        if order.is_ge() {
            other = stored.next()?;
        }
    }
    Ok(wrong)
}

fn compare_columns(
    one: &Row<'_>,
    other: &Row<'_>,
    columns: std::ops::Range<usize>,
) -> rusqlite::Result<Ordering> {
    for index in columns {
        let order = compare_values(one.get_ref(index)?, other.get_ref(index)?);
        if order.is_ne() {
            return Ok(order);
        }
    }
    Ok(Ordering::Equal)
}

/// Compares two values in the order of SQLite. The tables have no real numbers.
fn compare_values(one: ValueRef<'_>, other: ValueRef<'_>) -> Ordering {
    match (one, other) {
        (ValueRef::Integer(one), ValueRef::Integer(other)) => one.cmp(&other),
        (ValueRef::Text(one), ValueRef::Text(other))
        | (ValueRef::Blob(one), ValueRef::Blob(other)) => one.cmp(other),
        (one, other) => rank(one).cmp(&rank(other)),
    }
}

fn rank(value: ValueRef<'_>) -> u8 {
    match value {
        ValueRef::Null => 0,
        ValueRef::Integer(_) | ValueRef::Real(_) => 1,
        ValueRef::Text(_) => 2,
        ValueRef::Blob(_) => 3,
    }
}

fn name_of(connection: &Connection, table: &str, number: i64) -> Option<String> {
    let sql = format!("SELECT name FROM {table} WHERE id = ?1");
    let name = connection.query_row(&sql, [number], |row| row.get(0));
    name.optional().ok().flatten()
}
