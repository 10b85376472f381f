//! What account holders look their spending up by: ends of requests by filter, sums by the hour and
//! by conversation.
//!
//! The sums stand beside the entries and move in the transaction that enters a debit, so no page
//! adds a ledger up. Every question is answered by an index of its account. Must not price
//! anything.

#[cfg(test)]
mod tests;

use super::{COLUMNS, Ending, Entry, Ledger, Outcome, entry};
use crate::money::Micro;
use crate::store::StoreError;
use rusqlite::{OptionalExtension, Row, ToSql, Transaction, params, params_from_iter};
use std::collections::BTreeMap;

pub const HOUR_MS: i64 = 3_600_000;

/// What is counted of one response, of each class: a vendor that tells nonsense must not make the
/// sums overflow, which SQLite would refuse.
pub(super) const TOKENS_COUNTED_MAX: u64 = 1 << 40;

/// What a sum of tokens stops at, and one of credits (in µc).
pub(super) const TOKENS_SUM_MAX: i64 = 1 << 62;
pub(super) const CREDITS_SUM_MAX: i64 = 9_007_199_254_740_991;

/// Entries that are searched for implausible usage: there is no index of it.
const SEARCHED_ENTRIES: u32 = 50_000;

/// Which ends of requests to list: those that fit every member that is given.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    pub model: Option<String>,
    pub key_id: Option<String>,
    pub outcome: Option<Outcome>,
    pub conversation: Option<String>,
    /// From this moment on, ms since 1970.
    pub from_ms: Option<i64>,
    /// Up to this moment and without it.
    pub to_ms: Option<i64>,
}

/// A row's place in the order of time; a page goes on below the last one of the page before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    pub at_ms: i64,
    pub seq: i64,
}

/// What was debited, added up. Input counts every class of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sum {
    pub responses: u64,
    pub credits: Micro,
    pub input: u64,
    pub cache_read: u64,
    pub output: u64,
}

/// One model's debits within one hour.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spent {
    /// Hours since 1970 UTC.
    pub hour: i64,
    pub model: String,
    pub sum: Sum,
}

/// A conversation's debits; a response is a turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conversation {
    pub id: String,
    pub began_ms: i64,
    pub last_ms: i64,
    pub sum: Sum,
}

impl Sum {
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

    /// Responses, input, cache reads and output, as SQLite counts.
    fn counts(self) -> [i64; 4] {
        [self.responses, self.input, self.cache_read, self.output]
            .map(|count| i64::try_from(count).unwrap_or(i64::MAX))
    }
}

impl Ledger {
    /// Ends of requests, the latest first, below `before`.
    ///
    /// # Errors
    /// The ledger cannot be read.
    pub fn endings(
        &self,
        account: &str,
        filter: &Filter,
        before: Option<Place>,
        limit: u32,
    ) -> Result<Vec<Entry>, StoreError> {
        let (sql, values) = endings_sql(account, filter, before, limit);
        self.read("list an account's responses", |connection| {
            connection
                .prepare_cached(&sql)?
                .query_map(params_from_iter(values), entry)?
                .collect()
        })
    }

    /// Debits of any account whose vendor counted more than the request can use, the latest first:
    /// of the last [`SEARCHED_ENTRIES`] entries at most `limit`.
    ///
    /// # Errors
    /// The ledger cannot be read.
    pub fn implausible(&self, limit: u32) -> Result<Vec<Entry>, StoreError> {
        let sql = format!(
            "SELECT {COLUMNS} FROM entry WHERE seq > (SELECT max(seq) FROM entry) - ?1 AND kind = 'debit'
             AND instr(detail, '\"implausible\":true') > 0 ORDER BY seq DESC LIMIT ?2"
        );
        self.read("list debits of implausible usage", |connection| {
            connection
                .prepare_cached(&sql)?
                .query_map(params![SEARCHED_ENTRIES, limit], entry)?
                .collect()
        })
    }

    /// The position of the account's last end of a request; 0 where there is none.
    ///
    /// # Errors
    /// The ledger cannot be read.
    pub fn last_ending(&self, account: &str) -> Result<i64, StoreError> {
        let last = self.read("look for an account's last response", |connection| {
            connection
                .prepare_cached(LAST_ENDING)?
                .query_row([account], |row| row.get(0))
                .optional()
        })?;
        Ok(last.unwrap_or(0))
    }

    /// What was debited from the hour `from` on, in order of the hours.
    ///
    /// # Errors
    /// The ledger cannot be read.
    pub fn spent(&self, account: &str, from_hour: i64) -> Result<Vec<Spent>, StoreError> {
        self.read("add up an account's debits", |connection| {
            connection
                .prepare_cached(SPENT)?
                .query_map(params![account, from_hour], spent)?
                .collect()
        })
    }

    /// Conversations, the one that was spoken in last first, below `before`: when that was, and
    /// whose.
    ///
    /// # Errors
    /// The ledger cannot be read.
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
                .query_map(params![account, last_ms, id, limit], conversation)?
                .collect()
        })
    }

    /// One conversation; `None` where the account has no such one.
    ///
    /// # Errors
    /// The ledger cannot be read.
    pub fn conversation(
        &self,
        account: &str,
        id: &str,
    ) -> Result<Option<Conversation>, StoreError> {
        self.read("read a conversation", |connection| {
            connection
                .prepare_cached(CONVERSATION)?
                .query_row([account, id], conversation)
                .optional()
        })
    }

    /// What the account's trial began with.
    ///
    /// # Errors
    /// The ledger cannot be read.
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

const SPENT: &str = "SELECT hour, model, responses, credits, input, cache_read, output FROM spent
                     WHERE account = ?1 AND hour >= ?2 ORDER BY hour, model";

const CONVERSATIONS: &str =
    "SELECT id, began_at, last_at, turns, credits, input, cache_read, output FROM conversation
     WHERE account = ?1 AND (last_at, id) < (?2, ?3) ORDER BY last_at DESC, id DESC LIMIT ?4";

const CONVERSATION: &str =
    "SELECT id, began_at, last_at, turns, credits, input, cache_read, output FROM conversation
                            WHERE account = ?1 AND id = ?2";

const TRIAL: &str = "SELECT d_trial FROM entry WHERE kind = 'trial' AND ref = ?1";

/// The question, with a term for every member of the filter that is given: each shape has its
/// index.
fn endings_sql(
    account: &str,
    filter: &Filter,
    before: Option<Place>,
    limit: u32,
) -> (String, Vec<Box<dyn ToSql>>) {
    let Filter {
        model,
        key_id,
        outcome,
        conversation,
        from_ms,
        to_ms,
    } = filter;
    // Everything before a moment is everything below that moment's first place.
    let end = to_ms.map(|at_ms| Place {
        at_ms,
        seq: i64::MIN,
    });
    let below = [before, end].into_iter().flatten().min().unwrap_or(Place {
        at_ms: i64::MAX,
        seq: i64::MAX,
    });
    let mut sql =
        format!("SELECT {COLUMNS} FROM entry WHERE account = ? AND kind IN ('debit', 'void')");
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
    // What an index leaves out, the question must leave out in the same words.
    if outcome.is_some_and(|outcome| outcome != Outcome::Completed) {
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

/// What debits add to the sums, added up before it is written.
#[derive(Default)]
pub(super) struct Sums<'a> {
    /// By account, hour and model.
    hours: BTreeMap<(&'a str, i64, &'a str), Sum>,
    /// By account and conversation.
    turns: BTreeMap<(&'a str, &'a str), Turns>,
}

struct Turns {
    began_ms: i64,
    last_ms: i64,
    sum: Sum,
}

impl<'a> Sums<'a> {
    /// Counts a debit of `credits`.
    pub(super) fn count(&mut self, ending: &'a Ending, credits: Micro) {
        if ending.kind() != "debit" {
            return;
        }
        let (detail, usage) = (&ending.detail, &ending.detail.usage);
        let [input, cache_read, output] =
            [usage.input_total(), usage.cache_read, usage.output_total()]
                .map(|tokens| tokens.min(TOKENS_COUNTED_MAX));
        let one = Sum {
            responses: 1,
            credits,
            input,
            cache_read,
            output,
        };
        let hour = self
            .hours
            .entry((
                &ending.account,
                ending.at_ms.div_euclid(HOUR_MS),
                &detail.model,
            ))
            .or_default();
        *hour = hour.plus(one);
        let Some(conversation) = &detail.conversation else {
            return;
        };
        let turns = self
            .turns
            .entry((&ending.account, conversation))
            .or_insert(Turns {
                began_ms: ending.at_ms,
                last_ms: ending.at_ms,
                sum: Sum::default(),
            });
        turns.began_ms = turns.began_ms.min(ending.at_ms);
        turns.last_ms = turns.last_ms.max(ending.at_ms);
        turns.sum = turns.sum.plus(one);
    }

    /// Adds it all to the sums, in the transaction that enters the debits.
    pub(super) fn write(self, transaction: &Transaction<'_>) -> rusqlite::Result<()> {
        for ((account, hour, model), sum) in &self.hours {
            let [responses, input, cache_read, output] = sum.counts();
            let values = params![
                account,
                hour,
                model,
                responses,
                sum.credits,
                input,
                cache_read,
                output
            ];
            transaction.prepare_cached(COUNT_HOUR)?.execute(values)?;
        }
        for (
            (account, conversation),
            Turns {
                began_ms,
                last_ms,
                sum,
            },
        ) in &self.turns
        {
            let [turns, input, cache_read, output] = sum.counts();
            let values = params![
                account,
                conversation,
                began_ms,
                last_ms,
                turns,
                sum.credits,
                input,
                cache_read,
                output
            ];
            transaction.prepare_cached(COUNT_TURN)?.execute(values)?;
        }
        Ok(())
    }
}

const COUNT_HOUR: &str = "INSERT INTO spent (account, hour, model, responses, credits, input, cache_read, output)
     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
     ON CONFLICT (account, hour, model) DO UPDATE SET responses = responses + excluded.responses,
       credits = min(credits + excluded.credits, 9007199254740991), input = min(input + excluded.input, 1 << 62),
       cache_read = min(cache_read + excluded.cache_read, 1 << 62), output = min(output + excluded.output, 1 << 62)";

const COUNT_TURN: &str =
    "INSERT INTO conversation (account, id, began_at, last_at, turns, credits, input, cache_read, output)
     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
     ON CONFLICT (account, id) DO UPDATE SET began_at = min(began_at, excluded.began_at),
       last_at = max(last_at, excluded.last_at), turns = turns + excluded.turns,
       credits = min(credits + excluded.credits, 9007199254740991), input = min(input + excluded.input, 1 << 62),
       cache_read = min(cache_read + excluded.cache_read, 1 << 62), output = min(output + excluded.output, 1 << 62)";

fn spent(row: &Row<'_>) -> rusqlite::Result<Spent> {
    Ok(Spent {
        hour: row.get(0)?,
        model: row.get(1)?,
        sum: sum(row, 2)?,
    })
}

fn conversation(row: &Row<'_>) -> rusqlite::Result<Conversation> {
    Ok(Conversation {
        id: row.get(0)?,
        began_ms: row.get(1)?,
        last_ms: row.get(2)?,
        sum: sum(row, 3)?,
    })
}

fn sum(row: &Row<'_>, first: usize) -> rusqlite::Result<Sum> {
    let count = |index: usize| row.get::<_, i64>(first + index).map(i64::unsigned_abs);
    Ok(Sum {
        responses: count(0)?,
        credits: row.get(first + 1)?,
        input: count(2)?,
        cache_read: count(3)?,
        output: count(4)?,
    })
}
