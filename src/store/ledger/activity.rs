//! The queries behind an account holder's activity pages: ends of requests by filter, and totals by
//! conversation. `ledger/usage.rs` has the totals by time.
//!
//! `index.db` has the totals, so no page sums up a ledger, and the positions of the entries by
//! every filter (`ledger/index.rs`). Must not price anything.

#[cfg(test)]
mod tests;

use super::database::Ledger;
use super::ending::RequestOutcome;
use super::entry::LedgerEntry;
use super::index::find_name;
use super::spend_totals::SpendTotals;
use crate::store::StoreError;
use credits::money::Micro;
use rusqlite::{Connection, OptionalExtension, Row, ToSql, params, params_from_iter};

/// Which ends of requests to list: those that match all given fields.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ActivityFilter {
    pub model: Option<String>,
    pub key_id: Option<String>,
    pub outcome: Option<RequestOutcome>,
    pub conversation: Option<String>,
    /// Start of the period, inclusive, in ms since 1970.
    pub from_ms: Option<i64>,
    /// End of the period, exclusive.
    pub to_ms: Option<i64>,
}

/// A row's position in the order of time. A page begins below the last row of the previous page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ActivityCursor {
    pub at_ms: i64,
    pub seq: i64,
}

/// One model's debits within one hour.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HourlySpend {
    /// Hours since 1970 UTC.
    pub hour: i64,
    pub model: String,
    pub sum: SpendTotals,
}

/// A conversation's debits; each response is a turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conversation {
    pub id: String,
    pub began_ms: i64,
    pub last_ms: i64,
    pub sum: SpendTotals,
}

impl Ledger {
    /// Returns ends of requests below `before`, latest first.
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
        let seqs: Vec<i64> = self.read_index("list an account's responses", |connection| {
            let Some((sql, values)) = endings_sql(connection, account, filter, before, limit)?
            else {
                return Ok(Vec::new());
            };
            connection
                .prepare_cached(&sql)?
                .query_map(params_from_iter(values), |row| row.get(0))?
                .collect()
        })?;
        self.entries_at(&seqs)
    }

    /// Returns debits of any account whose vendor counted more than the request can use, latest
    /// first. An index has them, so that the ledger is not read.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn implausible_entries(&self, limit: u32) -> Result<Vec<LedgerEntry>, StoreError> {
        let seqs: Vec<i64> = self.read_index("list debits of implausible usage", |connection| {
            connection
                .prepare_cached(IMPLAUSIBLE)?
                .query_map([limit], |row| row.get(0))?
                .collect()
        })?;
        self.entries_at(&seqs)
    }

    /// Returns the position of the account's last end of a request; 0 if there is none.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn last_ending_seq(&self, account: &str) -> Result<i64, StoreError> {
        let last = self.find_seqs(account, true, None, 1)?;
        Ok(last.first().copied().unwrap_or(0))
    }

    /// Returns the positions of an account's entries below `before`, newest first: of all of them,
    /// or only of the ends of requests.
    pub(super) fn find_seqs(
        &self,
        account: &str,
        endings_only: bool,
        before: Option<i64>,
        limit: u32,
    ) -> Result<Vec<i64>, StoreError> {
        self.read_index("read an account's entries", |connection| {
            let Some(account) = find_name(connection, "account", account)? else {
                return Ok(Vec::new());
            };
            let sql = if endings_only {
                LAST_ENDINGS
            } else {
                LAST_ENTRIES
            };
            connection
                .prepare_cached(sql)?
                .query_map(params![account, before.unwrap_or(i64::MAX), limit], |row| {
                    row.get(0)
                })?
                .collect()
        })
    }

    /// Returns conversations, the most recently used first. `before` is the time and the id of the
    /// previous page's last one.
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
        self.read_index("list an account's conversations", |connection| {
            let Some(account) = find_name(connection, "account", account)? else {
                return Ok(Vec::new());
            };
            connection
                .prepare_cached(CONVERSATIONS)?
                .query_map(params![account, last_ms, id, limit], conversation_row)?
                .collect()
        })
    }

    /// Returns one conversation; `None` if the account does not have it.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn conversation(
        &self,
        account: &str,
        id: &str,
    ) -> Result<Option<Conversation>, StoreError> {
        self.read_index("read a conversation", |connection| {
            let Some(account) = find_name(connection, "account", account)? else {
                return Ok(None);
            };
            connection
                .prepare_cached(CONVERSATION)?
                .query_row(params![account, id], conversation_row)
                .optional()
        })
    }

    /// Returns the initial credits of the account's trial.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn trial_granted(&self, account: &str) -> Result<Option<Micro>, StoreError> {
        self.read("read a trial's credit", |connection| {
            connection
                .prepare_cached(TRIAL)?
                .query_row([format!("trial:{account}")], |row| row.get(0))
                .optional()
        })
    }
}

const LAST_ENTRIES: &str =
    "SELECT seq FROM activity WHERE account = ?1 AND seq < ?2 ORDER BY seq DESC LIMIT ?3";

const LAST_ENDINGS: &str = "SELECT seq FROM activity WHERE account = ?1 AND seq < ?2 AND kind < 2 ORDER BY seq DESC LIMIT ?3";

// To use a partial index, a query repeats the index's condition in the same words.
const IMPLAUSIBLE: &str = "SELECT seq FROM activity WHERE flags = 1 ORDER BY seq DESC LIMIT ?1";

const CONVERSATIONS: &str =
    "SELECT name, began_at, last_at, turns, credits, input, cache_read, output FROM conversation
     WHERE account = ?1 AND turns > 0 AND (last_at, name) < (?2, ?3) ORDER BY last_at DESC, name DESC LIMIT ?4";

const CONVERSATION: &str =
    "SELECT name, began_at, last_at, turns, credits, input, cache_read, output FROM conversation
     WHERE account = ?1 AND name = ?2 AND turns > 0";

const TRIAL: &str = "SELECT d_trial FROM entry WHERE kind = 'trial' AND ref = ?1";

/// A query with its values.
type EndingsSql = (String, Vec<Box<dyn ToSql>>);

/// Builds the query, with a term for every given field of the filter: each form of the query has
/// its index. Returns `None` if the index does not have a name in it, so that nothing matches.
fn endings_sql(
    connection: &Connection,
    account: &str,
    filter: &ActivityFilter,
    before: Option<ActivityCursor>,
    limit: u32,
) -> rusqlite::Result<Option<EndingsSql>> {
    let Some(account) = find_name(connection, "account", account)? else {
        return Ok(None);
    };
    let ActivityFilter {
        model,
        key_id,
        outcome,
        conversation,
        from_ms,
        to_ms,
    } = filter;
    // All rows before a moment are the rows below that moment's first position.
    let end = to_ms.map(|at_ms| ActivityCursor {
        at_ms,
        seq: i64::MIN,
    });
    let below = [before, end]
        .into_iter()
        .flatten()
        .min()
        .unwrap_or(ActivityCursor {
            at_ms: i64::MAX,
            seq: i64::MAX,
        });
    let mut sql = format!(
        "SELECT seq FROM activity {} WHERE account = ? AND kind < 2",
        choose_index(filter)
    );
    let mut values: Vec<Box<dyn ToSql>> = vec![Box::new(account)];
    let terms = [
        ("model", model.as_deref()),
        ("api_key", key_id.as_deref()),
        ("outcome", outcome.map(RequestOutcome::as_str)),
    ];
    for (column, name) in terms {
        let Some(name) = name else { continue };
        let Some(number) = find_name(connection, column, name)? else {
            return Ok(None);
        };
        sql.push_str(&format!(" AND {column} = ?"));
        values.push(Box::new(number));
    }
    if let Some(name) = conversation {
        let Some(number) = find_conversation(connection, account, name)? else {
            return Ok(None);
        };
        sql.push_str(" AND conversation = ? AND conversation IS NOT NULL");
        values.push(Box::new(number));
    }
    // To use a partial index, the query must repeat the index's condition in the same words.
    if outcome.is_some_and(|outcome| outcome != RequestOutcome::Completed) {
        sql.push_str(" AND outcome <> 0");
    }
    if let Some(from_ms) = from_ms {
        sql.push_str(" AND at >= ?");
        values.push(Box::new(*from_ms));
    }
    sql.push_str(" AND (at, seq) < (?, ?) ORDER BY at DESC, seq DESC LIMIT ?");
    values.extend([
        Box::new(below.at_ms) as Box<dyn ToSql>,
        Box::new(below.seq),
        Box::new(limit),
    ]);
    Ok(Some((sql, values)))
}

/// Names the index of the field that matches the fewest entries: without statistics, SQLite would
/// always read the account's entries by time.
fn choose_index(filter: &ActivityFilter) -> &'static str {
    let is_failure = filter
        .outcome
        .is_some_and(|outcome| outcome != RequestOutcome::Completed);
    if filter.conversation.is_some() {
        "INDEXED BY activity_by_conversation"
    } else if is_failure {
        "INDEXED BY activity_by_outcome"
    } else if filter.key_id.is_some() {
        "INDEXED BY activity_by_key"
    } else if filter.model.is_some() {
        "INDEXED BY activity_by_model"
    } else {
        "NOT INDEXED"
    }
}

fn find_conversation(
    connection: &Connection,
    account: i64,
    name: &str,
) -> rusqlite::Result<Option<i64>> {
    connection
        .prepare_cached("SELECT id FROM conversation WHERE account = ?1 AND name = ?2")?
        .query_row(params![account, name], |row| row.get(0))
        .optional()
}

fn conversation_row(row: &Row<'_>) -> rusqlite::Result<Conversation> {
    Ok(Conversation {
        id: row.get(0)?,
        began_ms: row.get(1)?,
        last_ms: row.get(2)?,
        sum: spend_totals(row, 3)?,
    })
}

pub(super) fn spend_totals(row: &Row<'_>, first: usize) -> rusqlite::Result<SpendTotals> {
    let count = |index: usize| row.get::<_, i64>(first + index).map(i64::unsigned_abs);
    Ok(SpendTotals {
        responses: count(0)?,
        credits: row.get(first + 1)?,
        input: count(2)?,
        cache_read: count(3)?,
        output: count(4)?,
    })
}
