//! Compares the aggregates that pages and limits read (`usage_hour`, `usage_day`, `usage_total`,
//! `conversation`, `key_spend`) with the ledger's entries, and rebuilds them.
//!
//! Each aggregate is defined once, by the query that sums up the entries. The audit compares the
//! table with the query's result, and a rebuild stores that result. Must not change an entry or a
//! balance.

use super::activity;
use super::database::Ledger;
use crate::store::StoreError;
use crate::store::sqlite;
use rusqlite::{Connection, params};

/// An aggregate that does not equal the sum of its entries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AggregateMismatch {
    /// Name of the table.
    pub of: &'static str,
    /// Keys of the row.
    pub row: String,
}

/// A table of aggregates.
struct AggregateTable {
    name: &'static str,
    /// SQL that shows its keys as one text.
    shown: &'static str,
    columns: &'static str,
    /// SQL that computes the columns from the entries.
    entries: fn() -> String,
}

const TABLES: [AggregateTable; 5] = [
    AggregateTable {
        name: "usage_hour",
        shown: "'account ' || account || ', hour ' || hour || ', model ' || model || ', key ' || key_id",
        columns: "account, hour, model, key_id, responses, credits, input, cache_read, output",
        entries: || {
            format!(
                "SELECT account, at / 3600000 AS hour, model, key_id, count(*) AS responses, {SUMS}
                 FROM response GROUP BY 1, 2, 3, 4"
            )
        },
    },
    AggregateTable {
        name: "usage_day",
        shown: "'account ' || account || ', day ' || day || ', model ' || model || ', key ' || key_id",
        columns: "account, day, model, key_id, responses, credits, input, cache_read, output",
        entries: || {
            format!(
                "SELECT account, at / 86400000 AS day, model, key_id, count(*) AS responses, {SUMS}
                 FROM response GROUP BY 1, 2, 3, 4"
            )
        },
    },
    AggregateTable {
        name: "usage_total",
        shown: "'day ' || day || ', model ' || model",
        columns: "day, model, responses, credits, input, cache_read, output, writeoff",
        entries: || {
            format!(
                "SELECT at / 86400000 AS day, model, count(*) AS responses, {SUMS},
                   min(sum(writeoff), (SELECT credits FROM ceiling)) AS writeoff
                 FROM response GROUP BY 1, 2"
            )
        },
    },
    AggregateTable {
        name: "conversation",
        shown: "'account ' || account || ', conversation ' || id",
        columns: "account, id, began_at, last_at, turns, credits, input, cache_read, output",
        entries: || {
            format!(
                "SELECT account, conversation AS id, min(at) AS began_at, max(at) AS last_at, count(*) AS turns, {SUMS}
                 FROM response WHERE conversation IS NOT NULL GROUP BY account, conversation"
            )
        },
    },
    AggregateTable {
        name: "key_spend",
        shown: "'key ' || key || ', day ' || day",
        columns: "key, day, total, used_at",
        entries: || {
            "SELECT key, day, sum(spent) OVER (PARTITION BY key ORDER BY day) AS total, used_at
             FROM (SELECT key_id AS key, at / 86400000 AS day, -sum(d_paid + d_trial) AS spent, max(at) AS used_at
                   FROM entry WHERE kind IN ('debit', 'void') AND key_id IS NOT NULL GROUP BY 1, 2)"
                .to_owned()
        },
    },
];

/// SQL for debits with their tokens, each class limited to the most that counts: a vendor's
/// counters can be nonsense.
const RESPONSES: &str = "ceiling (each, tokens, credits) AS (VALUES (?1, ?2, ?3)), response AS (
  SELECT account, at, ifnull(model, '') AS model, ifnull(key_id, '') AS key_id, conversation, d_paid, d_trial, writeoff,
    min(ifnull(detail ->> '$.usage.input', 0) + ifnull(detail ->> '$.usage.cache_read', 0)
      + ifnull(detail ->> '$.usage.cache_write_5m', 0) + ifnull(detail ->> '$.usage.cache_write_1h', 0)
      + ifnull(detail ->> '$.usage.audio_input', 0), (SELECT each FROM ceiling)) AS input,
    min(ifnull(detail ->> '$.usage.cache_read', 0), (SELECT each FROM ceiling)) AS cache_read,
    min(ifnull(detail ->> '$.usage.output', 0) + ifnull(detail ->> '$.usage.audio_output', 0), (SELECT each FROM ceiling)) AS output
  FROM entry WHERE kind = 'debit' AND json_valid(detail))";

/// SQL for the sums of several of these responses.
const SUMS: &str = "min(-sum(d_paid + d_trial), (SELECT credits FROM ceiling)) AS credits,
  min(sum(input), (SELECT tokens FROM ceiling)) AS input,
  min(sum(cache_read), (SELECT tokens FROM ceiling)) AS cache_read,
  min(sum(output), (SELECT tokens FROM ceiling)) AS output";

impl AggregateTable {
    /// Returns the SQL that computes the correct content of the table.
    fn expected_sql(&self) -> String {
        format!(
            "WITH {RESPONSES}, expected AS MATERIALIZED ({})",
            (self.entries)()
        )
    }

    /// Returns the rows that differ, in either direction: at most `limit`.
    fn find_mismatches(
        &self,
        connection: &Connection,
        limit: u32,
    ) -> rusqlite::Result<Vec<AggregateMismatch>> {
        let Self {
            name,
            shown,
            columns,
            ..
        } = self;
        let sql = format!(
            "{}, stored AS MATERIALIZED (SELECT {columns} FROM {name})
             SELECT DISTINCT {shown} FROM (
               SELECT * FROM (SELECT {columns} FROM expected EXCEPT SELECT {columns} FROM stored)
               UNION ALL SELECT * FROM (SELECT {columns} FROM stored EXCEPT SELECT {columns} FROM expected)
             ) ORDER BY 1 LIMIT ?4",
            self.expected_sql()
        );
        let [each, tokens, credits] = CEILINGS;
        connection
            .prepare(&sql)?
            .query_map(params![each, tokens, credits, limit], |row| {
                Ok(AggregateMismatch {
                    of: name,
                    row: row.get(0)?,
                })
            })?
            .collect()
    }

    fn rebuild(&self, connection: &Connection) -> rusqlite::Result<()> {
        let Self { name, columns, .. } = self;
        connection.execute(&format!("DELETE FROM {name}"), [])?;
        let sql = format!(
            "{} INSERT INTO {name} ({columns}) SELECT {columns} FROM expected",
            self.expected_sql()
        );
        connection.execute(&sql, CEILINGS)?;
        Ok(())
    }
}

const CEILINGS: [i64; 3] = [
    activity::MAX_TOKENS_COUNTED.cast_signed(),
    activity::MAX_TOKENS_SUM,
    activity::MAX_CREDITS_SUM,
];

impl Ledger {
    /// Returns the aggregates that do not equal the sum of their entries, at most `limit` of each
    /// table. Each table is read as of one moment. Writers do not wait for it.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn find_wrong_aggregates(&self, limit: u32) -> Result<Vec<AggregateMismatch>, StoreError> {
        self.read(
            "compare the ledger's entries with its totals",
            |connection| {
                let wrong = TABLES
                    .iter()
                    .map(|table| table.find_mismatches(connection, limit));
                Ok(wrong.collect::<rusqlite::Result<Vec<_>>>()?.concat())
            },
        )
    }

    /// Rebuilds the aggregates from the entries in one transaction; the ledger writer waits for it.
    /// Returns the wrong ones, at most `limit` of each table.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be written; then nothing is changed.
    pub fn rebuild_aggregates(&self, limit: u32) -> Result<Vec<AggregateMismatch>, StoreError> {
        let mut writer = self.writer();
        let sql = |source| StoreError::sqlite("rebuild the ledger's totals", source);
        let transaction = sqlite::begin_write(&mut writer).map_err(sql)?;
        let mut wrong = Vec::new();
        for table in &TABLES {
            let found = table.find_mismatches(&transaction, limit).map_err(sql)?;
            if !found.is_empty() {
                table.rebuild(&transaction).map_err(sql)?;
            }
            wrong.extend(found);
        }
        transaction.commit().map_err(sql)?;
        Ok(wrong)
    }
}
