//! Usage: debits summed up by account, hour or day, model and key; and over all accounts, by day
//! and model.
//!
//! The sums are rows beside the entries and change in the transaction that enters a debit. A query
//! reads the rows of its account and its span, never the entries. Refunds are not in the sums: they
//! are postings of their own. Must not price anything.

#[cfg(test)]
mod tests;

use super::activity::{HOUR_MS, HourlySpend, MAX_TOKENS_COUNTED, SpendTotals, spend_totals};
use super::database::Ledger;
use super::ending::Ending;
use crate::store::StoreError;
use credits::money::Micro;
use rusqlite::{Row, ToSql, Transaction, params, params_from_iter};
use std::collections::BTreeMap;

const DAY_HOURS: i64 = 24;

/// A span of time: from the first number up to, and without, the second. Hours and days are since
/// 1970 UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UsageSpan {
    Hours(i64, i64),
    Days(i64, i64),
}

/// How a report divides its span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UsageInterval {
    /// Each hour or day, as the span counts.
    Unit,
    /// Months since January 1970 UTC. The first and the last one may be parts of a month.
    Month,
}

/// A question about an account's usage: which debits, and how they are grouped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsageQuery {
    pub span: UsageSpan,
    pub model: Option<String>,
    pub key_id: Option<String>,
    /// `None` sums up the whole span.
    pub interval: Option<UsageInterval>,
    pub by_model: bool,
    pub by_key: bool,
}

/// A group of debits. A field that the query does not group by is 0 or empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsageRow {
    /// Hour, day or month since 1970 UTC.
    pub time: i64,
    pub model: String,
    pub key_id: String,
    pub sum: SpendTotals,
}

/// One model's debits on one day, over all accounts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DailyTotal {
    /// Days since 1970 UTC.
    pub day: i64,
    pub model: String,
    pub sum: SpendTotals,
    /// The parts of the costs that the accounts could not pay.
    pub writeoff: Micro,
}

impl UsageQuery {
    /// All of an account's debits in `span` as one sum.
    pub fn new(span: UsageSpan) -> Self {
        Self {
            span,
            model: None,
            key_id: None,
            interval: None,
            by_model: false,
            by_key: false,
        }
    }
}

impl UsageRow {
    /// Returns the row's place in the order of a report: a next page begins after it.
    pub fn cursor(&self) -> (i64, &str, &str) {
        (self.time, &self.model, &self.key_id)
    }
}

impl Ledger {
    /// Returns an account's debits in groups, ordered by time, model and key: at most `limit`, from
    /// the one after the cursor `after` on.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn usage(
        &self,
        account: &str,
        query: &UsageQuery,
        after: Option<(i64, &str, &str)>,
        limit: u32,
    ) -> Result<Vec<UsageRow>, StoreError> {
        let (sql, values) = usage_sql(account, query, after, limit);
        self.read("add up an account's debits", |connection| {
            connection
                .prepare_cached(&sql)?
                .query_map(params_from_iter(values), usage_row)?
                .collect()
        })
    }

    /// Returns the debits from the hour `from_hour` on by hour and model, in order of the hours.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn hourly_spend(
        &self,
        account: &str,
        from_hour: i64,
    ) -> Result<Vec<HourlySpend>, StoreError> {
        self.read("add up an account's debits", |connection| {
            connection
                .prepare_cached(&hourly_sql())?
                .query_map(params![account, from_hour], hourly_spend_row)?
                .collect()
        })
    }

    /// Returns the credits that each of `accounts` has spent from `first_day` on; an account
    /// without debits is not in the result.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn spend_since(
        &self,
        accounts: &[String],
        first_day: i64,
    ) -> Result<BTreeMap<String, Micro>, StoreError> {
        let accounts = serde_json::to_string(accounts).unwrap_or_default();
        self.read("add up the debits of several accounts", |connection| {
            connection
                .prepare_cached(SPEND_SINCE)?
                .query_map(params![accounts, first_day], |row| {
                    Ok((row.get(0)?, row.get(1)?))
                })?
                .collect()
        })
    }

    /// Returns the debits of all accounts on the days from `from_day` up to, and without, `to_day`,
    /// by day and model.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn daily_totals(&self, from_day: i64, to_day: i64) -> Result<Vec<DailyTotal>, StoreError> {
        self.read("add up the debits of all accounts", |connection| {
            connection
                .prepare_cached(DAILY_TOTALS)?
                .query_map(params![from_day, to_day], daily_total_row)?
                .collect()
        })
    }
}

/// The sums of several rows. A vendor's nonsense counters must not overflow them, which SQLite
/// would refuse: of one row, at most 2^44 tokens of a class count.
const SUMS: &str = "sum(responses), min(sum(credits), 9007199254740991), sum(min(input, 1 << 44)),
       sum(min(cache_read, 1 << 44)), sum(min(output, 1 << 44))";

const SPEND_SINCE: &str = "SELECT account, min(sum(credits), 9007199254740991) FROM usage_day
     WHERE account IN (SELECT value FROM json_each(?1)) AND day >= ?2 GROUP BY account";

const DAILY_TOTALS: &str =
    "SELECT day, model, responses, credits, input, cache_read, output, writeoff
     FROM usage_total WHERE day >= ?1 AND day < ?2 ORDER BY day, model";

fn hourly_sql() -> String {
    format!(
        "SELECT hour, model, {SUMS} FROM usage_hour WHERE account = ?1 AND hour >= ?2
         GROUP BY hour, model ORDER BY hour, model"
    )
}

fn usage_sql(
    account: &str,
    query: &UsageQuery,
    after: Option<(i64, &str, &str)>,
    limit: u32,
) -> (String, Vec<Box<dyn ToSql>>) {
    let UsageQuery {
        span,
        model,
        key_id,
        interval,
        by_model,
        by_key,
    } = query;
    let (table, unit, day, from, to) = match *span {
        UsageSpan::Hours(from, to) => ("usage_hour", "hour", "hour / 24", from, to),
        UsageSpan::Days(from, to) => ("usage_day", "day", "day", from, to),
    };
    let time = match interval {
        None => "0".to_owned(),
        Some(UsageInterval::Unit) => unit.to_owned(),
        Some(UsageInterval::Month) => format!(
            "(strftime('%Y', ({day}) * 86400, 'unixepoch') - 1970) * 12
             + strftime('%m', ({day}) * 86400, 'unixepoch') - 1"
        ),
    };
    let column = |is_wanted: bool, name: &'static str| if is_wanted { name } else { "''" };
    let (model_column, key_column) = (column(*by_model, "model"), column(*by_key, "key_id"));
    let mut values: Vec<Box<dyn ToSql>> =
        vec![Box::new(account.to_owned()), Box::new(from), Box::new(to)];
    let mut filters = String::new();
    for (name, value) in [("model", model), ("key_id", key_id)] {
        let Some(value) = value else { continue };
        filters.push_str(&format!(" AND {name} = ?"));
        values.push(Box::new(value.clone()));
    }
    let mut having = "";
    if let Some((time, model, key_id)) = after {
        having = " HAVING (in_time, of_model, of_key) > (?, ?, ?)";
        values.push(Box::new(time));
        values.push(Box::new(model.to_owned()));
        values.push(Box::new(key_id.to_owned()));
    }
    values.push(Box::new(limit));
    let sql = format!(
        "SELECT {time} AS in_time, {model_column} AS of_model, {key_column} AS of_key, {SUMS}
         FROM {table} WHERE account = ? AND {unit} >= ? AND {unit} < ?{filters}
         GROUP BY 1, 2, 3{having} ORDER BY 1, 2, 3 LIMIT ?"
    );
    (sql, values)
}

fn usage_row(row: &Row<'_>) -> rusqlite::Result<UsageRow> {
    Ok(UsageRow {
        time: row.get(0)?,
        model: row.get(1)?,
        key_id: row.get(2)?,
        sum: spend_totals(row, 3)?,
    })
}

fn hourly_spend_row(row: &Row<'_>) -> rusqlite::Result<HourlySpend> {
    Ok(HourlySpend {
        hour: row.get(0)?,
        model: row.get(1)?,
        sum: spend_totals(row, 2)?,
    })
}

fn daily_total_row(row: &Row<'_>) -> rusqlite::Result<DailyTotal> {
    Ok(DailyTotal {
        day: row.get(0)?,
        model: row.get(1)?,
        sum: spend_totals(row, 2)?,
        writeoff: row.get(7)?,
    })
}

/// Returns what one debit adds to a sum.
pub(super) fn debit_totals(ending: &Ending, credits: Micro) -> SpendTotals {
    let usage = &ending.detail.usage;
    let [input, cache_read, output] = [usage.input_total(), usage.cache_read, usage.output_total()]
        .map(|tokens| tokens.min(MAX_TOKENS_COUNTED));
    SpendTotals {
        responses: 1,
        credits,
        input,
        cache_read,
        output,
    }
}

/// Debits, summed up by account, hour, model and key before they are written.
#[derive(Default)]
pub(super) struct UsageUpdate<'a>(BTreeMap<(&'a str, i64, &'a str, &'a str), UsageChange>);

#[derive(Clone, Copy, Default)]
struct UsageChange {
    sum: SpendTotals,
    writeoff: Micro,
}

impl UsageChange {
    fn add(&mut self, other: Self) {
        self.sum = self.sum.plus(other.sum);
        self.writeoff = self.writeoff.plus(other.writeoff);
    }
}

impl<'a> UsageUpdate<'a> {
    /// Adds a debit. A late one counts in the hour in which its request ended.
    pub(super) fn add(&mut self, ending: &'a Ending, sum: SpendTotals, writeoff: Micro) {
        let hour = ending.at_ms.div_euclid(HOUR_MS);
        let key = (
            ending.account.as_str(),
            hour,
            ending.detail.model.as_str(),
            ending.detail.key_id.as_str(),
        );
        self.0
            .entry(key)
            .or_default()
            .add(UsageChange { sum, writeoff });
    }

    /// Adds the debits to the stored sums.
    pub(super) fn write(self, transaction: &Transaction<'_>) -> rusqlite::Result<()> {
        let mut days: BTreeMap<(&str, i64, &str, &str), UsageChange> = BTreeMap::new();
        let mut totals: BTreeMap<(i64, &str), UsageChange> = BTreeMap::new();
        let mut statement = transaction.prepare_cached(COUNT_HOUR)?;
        for (&(account, hour, model, key_id), change) in &self.0 {
            let [responses, input, cache_read, output] = change.sum.counts();
            statement.execute(params![
                account,
                hour,
                model,
                key_id,
                responses,
                change.sum.credits,
                input,
                cache_read,
                output
            ])?;
            let day = hour.div_euclid(DAY_HOURS);
            days.entry((account, day, model, key_id))
                .or_default()
                .add(*change);
            totals.entry((day, model)).or_default().add(*change);
        }
        let mut statement = transaction.prepare_cached(COUNT_DAY)?;
        for (&(account, day, model, key_id), change) in &days {
            let [responses, input, cache_read, output] = change.sum.counts();
            statement.execute(params![
                account,
                day,
                model,
                key_id,
                responses,
                change.sum.credits,
                input,
                cache_read,
                output
            ])?;
        }
        let mut statement = transaction.prepare_cached(COUNT_TOTAL)?;
        for (&(day, model), change) in &totals {
            let [responses, input, cache_read, output] = change.sum.counts();
            statement.execute(params![
                day,
                model,
                responses,
                change.sum.credits,
                input,
                cache_read,
                output,
                change.writeoff
            ])?;
        }
        Ok(())
    }
}

const COUNT_HOUR: &str =
    "INSERT INTO usage_hour (account, hour, model, key_id, responses, credits, input, cache_read, output)
     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
     ON CONFLICT (account, hour, model, key_id) DO UPDATE SET responses = responses + excluded.responses,
       credits = min(credits + excluded.credits, 9007199254740991), input = min(input + excluded.input, 1 << 62),
       cache_read = min(cache_read + excluded.cache_read, 1 << 62), output = min(output + excluded.output, 1 << 62)";

const COUNT_DAY: &str =
    "INSERT INTO usage_day (account, day, model, key_id, responses, credits, input, cache_read, output)
     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
     ON CONFLICT (account, day, model, key_id) DO UPDATE SET responses = responses + excluded.responses,
       credits = min(credits + excluded.credits, 9007199254740991), input = min(input + excluded.input, 1 << 62),
       cache_read = min(cache_read + excluded.cache_read, 1 << 62), output = min(output + excluded.output, 1 << 62)";

const COUNT_TOTAL: &str =
    "INSERT INTO usage_total (day, model, responses, credits, input, cache_read, output, writeoff)
     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
     ON CONFLICT (day, model) DO UPDATE SET responses = responses + excluded.responses,
       credits = min(credits + excluded.credits, 9007199254740991), input = min(input + excluded.input, 1 << 62),
       cache_read = min(cache_read + excluded.cache_read, 1 << 62), output = min(output + excluded.output, 1 << 62),
       writeoff = min(writeoff + excluded.writeoff, 9007199254740991)";
