//! Queries for an account holder's activity pages: ends of requests by filter, and totals by
//! conversation. `reader/usage.rs` has the totals by time.
//!
//! `index.db` has the totals and the positions of the entries by every filter, so no page reads the
//! whole ledger. This module must not compute a price.

mod endings;
#[cfg(test)]
mod tests;

use crate::StoreError;
use crate::entry::LedgerEntry;
use crate::entry::spend_totals::SpendTotals;
use crate::index::IndexTables;
use crate::views::LedgerPages;
use credits::money::Micro;
use endings::EndingsQuery;
pub use endings::{ActivityCursor, ActivityFilter};
use rusqlite::{OptionalExtension, Row, params};

/// The sum of one model's debits in one hour.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HourlySpend {
    /// Hours since 1970 UTC.
    pub hour: i64,
    pub model: String,
    pub sum: SpendTotals,
}

/// The totals of a conversation. Each response is a turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conversation {
    pub id: String,
    pub began_ms: i64,
    pub last_ms: i64,
    pub sum: SpendTotals,
}

impl LedgerPages<'_> {
    /// Returns ends of requests before the position `before`, latest first.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn endings(
        &self,
        account: &str,
        filter: &ActivityFilter,
        before: Option<ActivityCursor>,
        limit: u32,
    ) -> Result<Vec<LedgerEntry>, StoreError> {
        let seqs = self
            .0
            .index()
            .read_index(
                "list an account's responses",
                |tables| match EndingsQuery::new(tables, account, filter, before)? {
                    Some(query) => query.find(tables, limit),
                    None => Ok(Vec::new()),
                },
            )?;
        self.0.index().entries_at(&seqs)
    }

    /// Returns debits of all accounts whose vendor counted more than the maximum of the request,
    /// latest first. An index lists them.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn implausible_entries(&self, limit: u32) -> Result<Vec<LedgerEntry>, StoreError> {
        let operation = "list debits of implausible usage";
        let seqs: Vec<i64> = self.0.index().read_index(operation, |tables| {
            tables.select(&implausible_sql(tables), [limit], |row| row.get(0))
        })?;
        self.0.index().entries_at(&seqs)
    }

    /// Returns the position of the account's last end of a request; 0 if it has none.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn last_ending_seq(&self, account: &str) -> Result<i64, StoreError> {
        let last = self.find_seqs(account, true, None, 1)?;
        Ok(last.first().copied().unwrap_or(0))
    }

    /// Returns the positions of an account's entries before `before`, newest first. The result has
    /// all entries, or only the ends of requests.
    pub(crate) fn find_seqs(
        &self,
        account: &str,
        endings_only: bool,
        before: Option<i64>,
        limit: u32,
    ) -> Result<Vec<i64>, StoreError> {
        let operation = "read an account's entries";
        self.read_account(operation, account, |tables, account| {
            let values = params![account, before.unwrap_or(i64::MAX), limit];
            tables.select(&entries_sql(tables, endings_only), values, |row| row.get(0))
        })
    }

    /// Returns conversations, the most recently used first. `before` has the time and the id of the
    /// previous page's last conversation.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn conversations(
        &self,
        account: &str,
        before: Option<(i64, &str)>,
        limit: u32,
    ) -> Result<Vec<Conversation>, StoreError> {
        let (last_ms, id) = before.unwrap_or((i64::MAX, ""));
        let operation = "list an account's conversations";
        self.read_account(operation, account, |tables, account| {
            let values = params![account, last_ms, id, limit];
            tables.select(&conversations_sql(tables), values, conversation_row)
        })
    }

    /// Returns one conversation, or `None` if the account does not have it.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn conversation(
        &self,
        account: &str,
        id: &str,
    ) -> Result<Option<Conversation>, StoreError> {
        self.read_account("read a conversation", account, |tables, account| {
            tables
                .connection()
                .prepare_cached(&conversation_sql(tables))?
                .query_row(params![account, id], conversation_row)
                .optional()
        })
    }

    /// Returns the account that has a conversation; `None` if no account has it. Looks at every
    /// account, which takes microseconds each.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn account_of_conversation(&self, id: &str) -> Result<Option<String>, StoreError> {
        let operation = "look for a conversation";
        self.0.index().read_index(operation, |tables| {
            let owner = |row: &Row<'_>| row.get(0);
            tables
                .connection()
                .prepare_cached(&conversation_owner_sql(tables))?
                .query_row([id], owner)
                .optional()
        })
    }

    /// Returns the initial credits of the account's trial.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn trial_granted(&self, account: &str) -> Result<Option<Micro>, StoreError> {
        self.0.read("read a trial's credit", |connection| {
            connection
                .prepare_cached(TRIAL)?
                .query_row([format!("trial:{account}")], |row| row.get(0))
                .optional()
        })
    }
}

/// Returns the query for the positions of an account's entries before a position, newest first.
fn entries_sql(tables: IndexTables<'_>, endings_only: bool) -> String {
    let kinds = if endings_only { " AND kind < 2" } else { "" };
    let rows = format!("SELECT seq FROM $.activity WHERE account = ?1 AND seq < ?2{kinds}");
    format!("{} ORDER BY seq DESC LIMIT ?3", tables.union(&rows))
}

fn implausible_sql(tables: IndexTables<'_>) -> String {
    // SQLite uses a partial index only if the query repeats the index's condition literally.
    let rows = tables.union("SELECT seq FROM $.activity WHERE flags = 1");
    format!("{rows} ORDER BY seq DESC LIMIT ?1")
}

fn conversations_sql(tables: IndexTables<'_>) -> String {
    let rows = tables.union_of_conversations(
        "SELECT name, began_at, last_at, turns, credits, input, cache_read, output FROM $.conversation
         WHERE account = ?1 AND turns > 0 AND (last_at, name) < (?2, ?3)",
    );
    format!("{rows} ORDER BY last_at DESC, name DESC LIMIT ?4")
}

fn conversation_sql(tables: IndexTables<'_>) -> String {
    tables.union_of_conversations(
        "SELECT name, began_at, last_at, turns, credits, input, cache_read, output FROM $.conversation
         WHERE account = ?1 AND name = ?2 AND turns > 0",
    )
}

fn conversation_owner_sql(tables: IndexTables<'_>) -> String {
    let accounts = tables.union("SELECT id, name FROM $.account");
    let owners = tables.union(&format!(
        "SELECT owner.name FROM ({accounts}) AS owner CROSS JOIN $.conversation AS found
         ON found.account = owner.id AND found.name = ?1 WHERE found.turns > 0"
    ));
    format!("{owners} LIMIT 1")
}

const TRIAL: &str = "SELECT d_trial FROM entry WHERE kind = 'trial' AND ref = ?1";

fn conversation_row(row: &Row<'_>) -> rusqlite::Result<Conversation> {
    Ok(Conversation {
        id: row.get(0)?,
        began_ms: row.get(1)?,
        last_ms: row.get(2)?,
        sum: spend_totals(row, 3)?,
    })
}

pub(crate) fn spend_totals(row: &Row<'_>, first: usize) -> rusqlite::Result<SpendTotals> {
    let count = |index: usize| row.get::<_, i64>(first + index).map(i64::unsigned_abs);
    Ok(SpendTotals {
        responses: count(0)?,
        credits: row.get(first + 1)?,
        input: count(2)?,
        cache_read: count(3)?,
        output: count(4)?,
    })
}
