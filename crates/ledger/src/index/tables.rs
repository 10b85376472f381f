//! Provides the tables that a query of the index reads: those of `index.db` alone, or of the tail
//! in memory and of `index.db` below it.
//!
//! The tail has the entries that `index.db` lacks. Sums with the same key must be added, and a
//! conversation in the tail replaces that of `index.db`. This file must not depend on columns other
//! than keys.

use rusqlite::{Connection, OptionalExtension, Params, Row};

/// Name of the database to which a connection writes batches.
const MAIN: &str = "main";

/// Name under which a connection of the tail has `index.db` attached.
pub(crate) const BASE: &str = "base";

/// The tables of the index on one connection, within one transaction.
#[derive(Clone, Copy)]
pub(crate) struct IndexTables<'a> {
    connection: &'a Connection,
    databases: &'static [&'static str],
}

impl<'a> IndexTables<'a> {
    /// Creates the tables of one file.
    pub(crate) fn new(connection: &'a Connection) -> Self {
        Self {
            connection,
            databases: &[MAIN],
        }
    }

    /// Creates the tables of the tail, with `index.db` as an attached database.
    pub(crate) fn with_base(connection: &'a Connection) -> Self {
        Self {
            connection,
            databases: &[MAIN, BASE],
        }
    }

    pub(crate) fn connection(&self) -> &'a Connection {
        self.connection
    }

    pub(crate) fn has_base(&self) -> bool {
        self.databases.contains(&BASE)
    }

    /// Returns a query for the rows that `select` finds in all databases. `select` has `$.` in
    /// front of the names of tables, and numbered parameters.
    pub(crate) fn union(&self, select: &str) -> String {
        let selects: Vec<_> = self
            .databases
            .iter()
            .map(|database| select.replace("$.", &format!("{database}.")))
            .collect();
        selects.join(" UNION ALL ")
    }

    /// Returns a query like [`IndexTables::union`] for `conversation`, without the rows of
    /// `index.db` that the tail replaces. `select` must end with its conditions.
    pub(crate) fn union_of_conversations(&self, select: &str) -> String {
        let mut sql = select.replace("$.", "main.");
        if self.has_base() {
            sql.push_str(" UNION ALL ");
            sql.push_str(&select.replace("$.", "base."));
            sql.push_str(
                " AND NOT EXISTS (SELECT 1 FROM main.conversation AS newer
                 WHERE newer.account = conversation.account AND newer.id = conversation.id)",
            );
        }
        sql
    }

    /// Returns an SQL expression for the name of the number in `column`, from the table `names`.
    pub(crate) fn name_of(&self, names: &str, column: &str) -> String {
        let name =
            |database: &&str| format!("(SELECT name FROM {database}.{names} WHERE id = {column})");
        let found: Vec<_> = self.databases.iter().map(name).collect();
        match found.as_slice() {
            [one] => one.clone(),
            several => format!("coalesce({})", several.join(", ")),
        }
    }

    /// Returns the number of a name in the table `names`, or `None` for an unknown name.
    pub(crate) fn find_name(&self, names: &str, name: &str) -> rusqlite::Result<Option<i64>> {
        let sql = self.union(&format!("SELECT id FROM $.{names} WHERE name = ?1"));
        self.connection
            .prepare_cached(&sql)?
            .query_row([name], |row| row.get(0))
            .optional()
    }

    pub(crate) fn select<T, Rows: FromIterator<T>>(
        &self,
        sql: &str,
        values: impl Params,
        row: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<Rows> {
        self.connection
            .prepare_cached(sql)?
            .query_map(values, row)?
            .collect()
    }

    pub(crate) fn last_name(&self, names: &str) -> rusqlite::Result<i64> {
        let ids = self.union(&format!("SELECT max(id) AS id FROM $.{names}"));
        let sql = format!("SELECT ifnull(max(id), 0) FROM ({ids})");
        self.connection.query_row(&sql, [], |row| row.get(0))
    }

    pub(crate) fn find_conversation(
        &self,
        account: i64,
        name: &str,
    ) -> rusqlite::Result<Option<i64>> {
        let sql = self.union("SELECT id FROM $.conversation WHERE account = ?1 AND name = ?2");
        self.connection
            .prepare_cached(&sql)?
            .query_row((account, name), |row| row.get(0))
            .optional()
    }

    /// Returns the position of the last entry in the tables.
    pub(crate) fn last_seq(&self) -> rusqlite::Result<i64> {
        self.connection
            .prepare_cached("SELECT seq FROM main.watermark")?
            .query_row([], |row| row.get(0))
    }
}
