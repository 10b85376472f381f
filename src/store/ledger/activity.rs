//! The queries behind an account holder's activity pages: ends of requests by filter, and totals by
//! conversation. `ledger/usage.rs` has the totals by time.
//!
//! The totals are stored next to the entries and change in the transaction that enters a debit, so
//! no page sums up a ledger. An index of the account serves every query. Must not price anything.

#[cfg(test)]
mod tests;

use super::database::Ledger;
use super::ending::{Ending, RequestOutcome};
use super::entry::{ENTRY_COLUMNS, LedgerEntry, entry};
use crate::store::StoreError;
use credits::money::Micro;
use rusqlite::{OptionalExtension, Row, ToSql, Transaction, params, params_from_iter};
use std::collections::BTreeMap;

pub const HOUR_MS: i64 = 3_600_000;

/// Maximum number of tokens counted per class of one response. A vendor's nonsense counter must not
/// overflow the totals, which SQLite would refuse.
pub(super) const MAX_TOKENS_COUNTED: u64 = 1 << 40;

/// Limit of a total of tokens. `MAX_CREDITS_SUM` is the limit of a total of credits (in µc).
pub(super) const MAX_TOKENS_SUM: i64 = 1 << 62;
pub(super) const MAX_CREDITS_SUM: i64 = 9_007_199_254_740_991;

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

/// A total of debits. Input includes every class of input tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SpendTotals {
    pub responses: u64,
    pub credits: Micro,
    pub input: u64,
    pub cache_read: u64,
    pub output: u64,
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

impl SpendTotals {
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            responses: self.responses.saturating_add(other.responses),
            credits: self.credits.plus(other.credits),
            input: self.input.saturating_add(other.input),
            cache_read: self.cache_read.saturating_add(other.cache_read),
            output: self.output.saturating_add(other.output),
        }
    }

    /// Responses, input, cache reads and output, as SQLite integers.
    pub(super) fn counts(self) -> [i64; 4] {
        [self.responses, self.input, self.cache_read, self.output]
            .map(|count| i64::try_from(count).unwrap_or(i64::MAX))
    }
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
        let (sql, values) = endings_sql(account, filter, before, limit);
        self.read("list an account's responses", |connection| {
            connection
                .prepare_cached(&sql)?
                .query_map(params_from_iter(values), entry)?
                .collect()
        })
    }

    /// Returns debits of any account whose vendor counted more than the request can use, latest
    /// first. An index has them, so that the ledger is not read.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn implausible_entries(&self, limit: u32) -> Result<Vec<LedgerEntry>, StoreError> {
        let sql = format!(
            "SELECT {ENTRY_COLUMNS} FROM entry INDEXED BY entry_implausible
             WHERE kind = 'debit' AND instr(detail, '\"implausible\":true') > 0 ORDER BY seq DESC LIMIT ?1"
        );
        self.read("list debits of implausible usage", |connection| {
            connection
                .prepare_cached(&sql)?
                .query_map([limit], entry)?
                .collect()
        })
    }

    /// Returns the position of the account's last end of a request; 0 if there is none.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn last_ending_seq(&self, account: &str) -> Result<i64, StoreError> {
        let last = self.read("look for an account's last response", |connection| {
            connection
                .prepare_cached(LAST_ENDING)?
                .query_row([account], |row| row.get(0))
                .optional()
        })?;
        Ok(last.unwrap_or(0))
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
        self.read("list an account's conversations", |connection| {
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
        self.read("read a conversation", |connection| {
            connection
                .prepare_cached(CONVERSATION)?
                .query_row([account, id], conversation_row)
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

const LAST_ENDING: &str = "SELECT seq FROM entry WHERE account = ?1 AND kind IN ('debit', 'void') ORDER BY seq DESC LIMIT 1";

const CONVERSATIONS: &str =
    "SELECT id, began_at, last_at, turns, credits, input, cache_read, output FROM conversation
     WHERE account = ?1 AND (last_at, id) < (?2, ?3) ORDER BY last_at DESC, id DESC LIMIT ?4";

const CONVERSATION: &str =
    "SELECT id, began_at, last_at, turns, credits, input, cache_read, output FROM conversation
                            WHERE account = ?1 AND id = ?2";

const TRIAL: &str = "SELECT d_trial FROM entry WHERE kind = 'trial' AND ref = ?1";

/// Builds the query, with a term for every given field of the filter: each form of the query has
/// its index.
fn endings_sql(
    account: &str,
    filter: &ActivityFilter,
    before: Option<ActivityCursor>,
    limit: u32,
) -> (String, Vec<Box<dyn ToSql>>) {
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
        "SELECT {ENTRY_COLUMNS} FROM entry WHERE account = ? AND kind IN ('debit', 'void')"
    );
    let mut values: Vec<Box<dyn ToSql>> = vec![Box::new(account.to_owned())];
    let outcome_name = outcome.map(|outcome| outcome.as_str().to_owned());
    let terms = [
        ("model", model),
        ("key_id", key_id),
        ("outcome", &outcome_name),
        ("conversation", conversation),
    ];
    for (column, value) in terms {
        let Some(value) = value else { continue };
        sql.push_str(&format!(" AND {column} = ?"));
        values.push(Box::new(value.clone()));
    }
    // To use a partial index, the query must repeat the index's condition in the same words.
    if outcome.is_some_and(|outcome| outcome != RequestOutcome::Completed) {
        sql.push_str(" AND outcome <> 'completed'");
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
    (sql, values)
}

/// Changes of conversations by debits, summed up before they are written.
#[derive(Default)]
pub(super) struct ConversationUpdate<'a>(BTreeMap<(&'a str, &'a str), ConversationTotals>);

struct ConversationTotals {
    began_ms: i64,
    last_ms: i64,
    sum: SpendTotals,
}

impl<'a> ConversationUpdate<'a> {
    /// Adds a debit, which is a turn, if it belongs to a conversation.
    pub(super) fn add(&mut self, ending: &'a Ending, sum: SpendTotals) {
        let Some(conversation) = &ending.detail.conversation else {
            return;
        };
        let turns = self
            .0
            .entry((&ending.account, conversation))
            .or_insert(ConversationTotals {
                began_ms: ending.at_ms,
                last_ms: ending.at_ms,
                sum: SpendTotals::default(),
            });
        turns.began_ms = turns.began_ms.min(ending.at_ms);
        turns.last_ms = turns.last_ms.max(ending.at_ms);
        turns.sum = turns.sum.plus(sum);
    }

    /// Adds the turns to the stored conversations.
    pub(super) fn write(self, transaction: &Transaction<'_>) -> rusqlite::Result<()> {
        for ((account, conversation), totals) in &self.0 {
            let [turns, input, cache_read, output] = totals.sum.counts();
            let values = params![
                account,
                conversation,
                totals.began_ms,
                totals.last_ms,
                turns,
                totals.sum.credits,
                input,
                cache_read,
                output
            ];
            transaction.prepare_cached(COUNT_TURN)?.execute(values)?;
        }
        Ok(())
    }
}

const COUNT_TURN: &str =
    "INSERT INTO conversation (account, id, began_at, last_at, turns, credits, input, cache_read, output)
     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
     ON CONFLICT (account, id) DO UPDATE SET began_at = min(began_at, excluded.began_at),
       last_at = max(last_at, excluded.last_at), turns = turns + excluded.turns,
       credits = min(credits + excluded.credits, 9007199254740991), input = min(input + excluded.input, 1 << 62),
       cache_read = min(cache_read + excluded.cache_read, 1 << 62), output = min(output + excluded.output, 1 << 62)";

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
