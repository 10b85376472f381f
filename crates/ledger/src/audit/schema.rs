//! Checks that `ledger.db` still has the triggers and indexes that protect it, and that its rows
//! about processes are valid.
//!
//! This file must not write.

use crate::StoreError;
use crate::database::MIGRATIONS;
use crate::indexer::retired::RETIRED_INDEXES;
use crate::sqlite;
use crate::views::LedgerChecks;
use rusqlite::Connection;
use std::collections::BTreeMap;

/// Query for the objects to compare. Tables are compared by name alone, because SQLite rewrites
/// their text when they are renamed. Triggers and indexes are compared by their text.
const OBJECTS: &str =
    "SELECT type || ' ' || name, iif(type = 'table', '', ifnull(sql, '')) FROM sqlite_schema
  WHERE name NOT LIKE 'sqlite\\_%' ESCAPE '\\'";

impl LedgerChecks<'_> {
    /// Returns the differences from the schema that this program creates, one line each.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn schema_faults(&self) -> Result<Vec<String>, StoreError> {
        let operation = "compare the ledger's schema";
        let sql = |source| StoreError::sqlite(operation, source);
        let mut fresh = Connection::open_in_memory().map_err(sql)?;
        sqlite::migrate(&mut fresh, MIGRATIONS, operation)?;
        let expected = schema_objects(&fresh).map_err(sql)?;
        let found = self.0.read(operation, schema_objects)?;
        let missing = expected
            .iter()
            .filter_map(|(name, text)| match found.get(name) {
                // This object is dropped once `index.db` replaces it.
                None if is_retired(name) => None,
                None => Some(format!("{name} is missing")),
                Some(known) if known != text => Some(format!("{name} was changed")),
                Some(_) => None,
            });
        let strange = found.keys().filter(|name| !expected.contains_key(*name));
        Ok(missing
            .chain(strange.map(|name| format!("{name} does not belong in the ledger")))
            .collect())
    }

    /// Returns the claims and the applied endings of processes not in `known`, one line each.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn unknown_instance_records(&self, known: &[String]) -> Result<Vec<String>, StoreError> {
        let known = serde_json::to_string(known).unwrap_or_default();
        self.0.read("look for rows of unknown processes", |connection| {
            connection
                .prepare(
                    "SELECT name || ': instance ' || boot || ', which has ended, ' || what FROM (
                       SELECT 'claim' AS name, boot, 'claims ' || paid || ' + ' || trial || ' µc of account ' || account AS what
                         FROM claim WHERE paid <> 0 OR trial <> 0
                       UNION ALL SELECT 'applied', boot, 'has applied ' || paid || ' + ' || trial || ' µc to account ' || account
                         FROM applied
                       UNION ALL SELECT 'applied_key', boot, 'has applied ' || spent || ' µc to key ' || key FROM applied_key
                       UNION ALL SELECT 'instance', boot, 'has applied amounts to the rows of accounts and keys' FROM instance
                     ) WHERE boot NOT IN (SELECT value FROM json_each(?1)) ORDER BY 1 LIMIT 100",
                )?
                .query_map([&known], |row| row.get(0))?
                .collect()
        })
    }

    /// Returns a description of each account or key whose row has an amount applied by an instance
    /// with a number that was never assigned. A later instance would take the amount for its own.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn amounts_of_no_instance(&self) -> Result<Vec<String>, StoreError> {
        self.0.read("look for amounts of no process", |connection| {
            connection
                .prepare(
                    "WITH last(number) AS (SELECT ifnull(max(seq), 0) FROM sqlite_sequence WHERE name = 'instance')
                     SELECT what || ' has an amount of instance ' || applied_by || ', which never existed' FROM (
                       SELECT 'account ' || id AS what, applied_by FROM account
                       UNION ALL SELECT 'key ' || key, applied_by FROM key_spend
                     ), last WHERE applied_by > number ORDER BY 1 LIMIT 100",
                )?
                .query_map([], |row| row.get(0))?
                .collect()
        })
    }
}

fn is_retired(object: &str) -> bool {
    object
        .strip_prefix("index ")
        .is_some_and(|name| RETIRED_INDEXES.contains(&name))
}

fn schema_objects(connection: &Connection) -> rusqlite::Result<BTreeMap<String, String>> {
    connection
        .prepare(OBJECTS)?
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::ENTRY_COLUMNS;

    const VALUES: &str = "1, ?1, 'r', 'a', 0, 0, 0, 0, 0, 0, '', x'', x''";

    #[test]
    fn an_insert_checks_the_kind_and_fills_no_temporary_table() {
        let mut fresh = Connection::open_in_memory().unwrap();
        sqlite::migrate(&mut fresh, MIGRATIONS, "test").unwrap();
        let account = "INSERT INTO account (id, paid, trial, opened_at) VALUES ('a', 0, 0, 0)";
        fresh.execute(account, []).unwrap();
        let insert = format!("INSERT INTO entry ({ENTRY_COLUMNS}) VALUES ({VALUES})");
        let kinds = [
            "trial",
            "grant",
            "topup",
            "refund",
            "adjust",
            "lapse",
            "debit",
            "void",
            "bonus",
            "payment_refund",
            "dispute",
            "code",
        ];
        for kind in kinds {
            let savepoint = fresh.savepoint().unwrap();
            assert_eq!(savepoint.execute(&insert, [kind]).unwrap(), 1, "{kind}");
        }
        for strange in ["", "Debit", "debits", "gift"] {
            let error = fresh.execute(&insert, [strange]).unwrap_err().to_string();
            assert!(error.contains("CHECK"), "{strange}: {error}");
        }
        let steps: Vec<String> = fresh
            .prepare(&format!("EXPLAIN {insert}"))
            .unwrap()
            .query_map(["debit"], |row| row.get(1))
            .unwrap()
            .collect::<Result<_, _>>()
            .unwrap();
        assert!(steps.iter().any(|step| step == "Insert"));
        assert!(!steps.iter().any(|step| step == "OpenEphemeral"));
    }
}
