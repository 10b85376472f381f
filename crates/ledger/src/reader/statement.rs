//! Reads the data for an account's statement: its postings, and the changes of its balance by
//! month.
//!
//! The index has the sums (`index.rs`). This file must not add up ends of requests:
//! `reader/usage.rs` reads their sums.

use super::activity::ActivityCursor;
use super::usage::usage_rows;
use crate::StoreError;
use crate::entry::LedgerEntry;
use crate::index::{IndexTables, kind_name};
use crate::views::LedgerPages;
use credits::money::Micro;
use rusqlite::{OptionalExtension, params};

/// All changes of an account's balance by month, from one snapshot.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BalanceChangeSums {
    /// Balance of the account, including expired trial credits.
    pub balance: Micro,
    /// Postings by month and kind of entry. Months are since January 1970 UTC.
    pub postings: Vec<(i64, String, Micro)>,
    /// Debits for responses by month.
    pub debits: Vec<(i64, Micro)>,
}

/// The sums, and the position of the account's last entry, whose balance is the sums' total.
type SumsAndLast = (BalanceChangeSums, Option<i64>);

impl LedgerPages<'_> {
    /// Returns the sums of an account's balance changes, up to the last indexed entry.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn balance_change_sums(&self, account: &str) -> Result<BalanceChangeSums, StoreError> {
        let operation = "add up an account's statement";
        let (mut sums, last) = self.read_account(operation, account, sums)?;
        let last = self.0.index().entries_at(last.as_slice())?;
        if let Some(last) = last.first() {
            sums.balance = last.bal_paid.plus(last.bal_trial);
        }
        Ok(sums)
    }

    /// Returns the postings of an account from `from_ms` up to the position `before`, exclusive,
    /// latest first.
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
        let operation = "list an account's postings";
        let seqs: Vec<i64> = self.read_account(operation, account, |tables, account| {
            let values = params![account, from_ms, before.at_ms, before.seq, limit];
            tables.select(&postings_sql(tables), values, |row| row.get(0))
        })?;
        self.0.index().entries_at(&seqs)
    }
}

/// Runs the queries within one snapshot. Otherwise the sums would not match the balance.
fn sums(tables: IndexTables<'_>, account: i64) -> rusqlite::Result<SumsAndLast> {
    let last = tables
        .connection()
        .prepare_cached(&last_entry_sql(tables))?
        .query_row([account], |row| row.get(0))
        .optional()?;
    let postings = tables.select(&posting_sums_sql(tables), [account], |row| {
        Ok((row.get(0)?, kind_name(row.get(1)?).to_owned(), row.get(2)?))
    })?;
    let debits = tables.select(&debit_sums_sql(tables), [account], |row| {
        Ok((row.get(0)?, row.get(1)?))
    })?;
    let sums = BalanceChangeSums {
        balance: Micro::ZERO,
        postings,
        debits,
    };
    Ok((sums, last))
}

fn last_entry_sql(tables: IndexTables<'_>) -> String {
    let rows = tables.union("SELECT seq FROM $.activity WHERE account = ?1");
    format!("{rows} ORDER BY seq DESC LIMIT 1")
}

fn postings_sql(tables: IndexTables<'_>) -> String {
    let rows = tables.union(
        "SELECT seq, at FROM $.posting WHERE account = ?1 AND at >= ?2 AND (at, seq) < (?3, ?4)",
    );
    format!("{rows} ORDER BY at DESC, seq DESC LIMIT ?5")
}

fn posting_sums_sql(tables: IndexTables<'_>) -> String {
    let rows = tables.union("SELECT at, kind, change FROM $.posting WHERE account = ?1");
    format!(
        "SELECT (strftime('%Y', at / 1000, 'unixepoch') - 1970) * 12 + strftime('%m', at / 1000, 'unixepoch') - 1,
           kind, sum(change)
         FROM ({rows}) GROUP BY 1, 2 ORDER BY 1, 2"
    )
}

fn debit_sums_sql(tables: IndexTables<'_>) -> String {
    format!(
        "SELECT (strftime('%Y', day * 86400, 'unixepoch') - 1970) * 12 + strftime('%m', day * 86400, 'unixepoch') - 1,
           sum(credits)
         FROM ({}) GROUP BY 1 ORDER BY 1",
        usage_rows(tables, "usage_day", "day", "true")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::query_plan;
    use crate::index::{create_for_test, create_tail_for_test};
    use rusqlite::params_from_iter;

    #[test]
    fn a_statement_reads_no_end_of_a_request() {
        let dir = tempfile::tempdir().unwrap();
        let index = create_for_test(dir.path());
        let tail = create_tail_for_test(dir.path());
        for tables in [IndexTables::new(&index), IndexTables::with_base(&tail)] {
            let plan = |sql: &str, count: usize| {
                query_plan(tables.connection(), sql, params_from_iter(vec![1; count]))
            };
            let list = plan(&postings_sql(tables), 5);
            assert!(
                list.contains("SEARCH main.posting USING PRIMARY KEY (account=? AND at>?"),
                "{list}"
            );
            assert!(!list.contains("TEMP") && !list.contains("SCAN"), "{list}");
            let sums = plan(&posting_sums_sql(tables), 1);
            assert!(
                sums.contains("SEARCH main.posting USING PRIMARY KEY (account=?)"),
                "{sums}"
            );
            let debits = plan(&debit_sums_sql(tables), 1);
            assert!(
                debits.contains("SEARCH main.usage_day USING PRIMARY KEY (account=?)"),
                "{debits}"
            );
            let last = plan(&last_entry_sql(tables), 1);
            assert!(last.contains("activity_by_seq (account=?)"), "{last}");
            assert!(!last.contains("TEMP"), "{last}");
        }
    }
}
