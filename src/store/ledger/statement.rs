//! What a statement of an account is made of: its postings, and sums by month of everything that
//! changed its balance.
//!
//! Must not add up ends of requests: `ledger/usage.rs` keeps their sums.

use super::activity::ActivityCursor;
use super::database::Ledger;
use super::entry::{ENTRY_COLUMNS, LedgerEntry, entry};
use crate::store::StoreError;
use credits::money::Micro;
use rusqlite::{Connection, OptionalExtension, params};

/// All changes of an account's balance by month, as of one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BalanceChangeSums {
    /// Balance of the account, expired trial credits included.
    pub balance: Micro,
    /// Postings by month and kind of entry. Months are since January 1970 UTC.
    pub postings: Vec<(i64, String, Micro)>,
    /// Debits of responses by month.
    pub debits: Vec<(i64, Micro)>,
}

impl Ledger {
    /// Returns the sums of everything that changed an account's balance.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn balance_change_sums(&self, account: &str) -> Result<BalanceChangeSums, StoreError> {
        self.read("add up an account's statement", |connection| {
            // One snapshot for all three queries: otherwise they would not add up.
            let snapshot = connection.unchecked_transaction()?;
            sums(&snapshot, account)
        })
    }

    /// Returns the entries of an account that are not ends of requests, from `from_ms` up to, and
    /// without, the position `before`, latest first.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn postings(
        &self,
        account: &str,
        from_ms: i64,
        before: ActivityCursor,
        limit: u32,
    ) -> Result<Vec<LedgerEntry>, StoreError> {
        self.read("list an account's postings", |connection| {
            connection
                .prepare_cached(&postings_sql())?
                .query_map(
                    params![account, from_ms, before.at_ms, before.seq, limit],
                    entry,
                )?
                .collect()
        })
    }
}

fn sums(connection: &Connection, account: &str) -> rusqlite::Result<BalanceChangeSums> {
    let balance = connection
        .prepare_cached("SELECT paid + trial FROM account WHERE id = ?1")?
        .query_row([account], |row| row.get(0))
        .optional()?;
    let postings = connection
        .prepare_cached(POSTING_SUMS)?
        .query_map([account], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?
        .collect::<rusqlite::Result<_>>()?;
    let debits = connection
        .prepare_cached(DEBIT_SUMS)?
        .query_map([account], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<rusqlite::Result<_>>()?;
    Ok(BalanceChangeSums {
        balance: balance.unwrap_or_default(),
        postings,
        debits,
    })
}

// To use the partial index, the queries repeat its condition in the same words.
fn postings_sql() -> String {
    format!(
        "SELECT {ENTRY_COLUMNS} FROM entry WHERE account = ?1 AND kind NOT IN ('debit', 'void')
         AND at >= ?2 AND (at, seq) < (?3, ?4) ORDER BY at DESC, seq DESC LIMIT ?5"
    )
}

const POSTING_SUMS: &str =
    "SELECT (strftime('%Y', at / 1000, 'unixepoch') - 1970) * 12 + strftime('%m', at / 1000, 'unixepoch') - 1,
       kind, sum(d_paid + d_trial)
     FROM entry WHERE account = ?1 AND kind NOT IN ('debit', 'void') GROUP BY 1, 2 ORDER BY 1, 2";

const DEBIT_SUMS: &str =
    "SELECT (strftime('%Y', day * 86400, 'unixepoch') - 1970) * 12 + strftime('%m', day * 86400, 'unixepoch') - 1,
       sum(credits)
     FROM usage_day WHERE account = ?1 GROUP BY 1 ORDER BY 1";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::ledger::database::MIGRATIONS;
    use crate::store::sqlite;
    use rusqlite::{ToSql, params_from_iter};

    #[test]
    fn a_statement_reads_no_end_of_a_request() {
        let dir = tempfile::tempdir().unwrap();
        let mut connection = sqlite::open(&dir.path().join("ledger.db"), "open a ledger").unwrap();
        sqlite::migrate(&mut connection, MIGRATIONS, "migrate a ledger").unwrap();
        let plan = |sql: &str, count: usize| {
            let mut statement = connection
                .prepare(&format!("EXPLAIN QUERY PLAN {sql}"))
                .unwrap();
            let values: Vec<Box<dyn ToSql>> = (0..count).map(|_| Box::new(1) as _).collect();
            let plan = statement
                .query_map(params_from_iter(values), |row| row.get::<_, String>(3))
                .unwrap();
            plan.collect::<Result<Vec<_>, _>>().unwrap().join("; ")
        };
        let list = plan(&postings_sql(), 5);
        assert!(
            list.contains("INDEX entry_postings (account=? AND at>?"),
            "{list}"
        );
        assert!(!list.contains("TEMP"), "{list}");
        let sums = plan(POSTING_SUMS, 1);
        assert!(
            sums.contains("COVERING INDEX entry_postings (account=?)"),
            "{sums}"
        );
        let debits = plan(DEBIT_SUMS, 1);
        assert!(
            debits.starts_with("SEARCH usage_day USING PRIMARY KEY (account=?)"),
            "{debits}"
        );
    }
}
