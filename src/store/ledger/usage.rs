//! Usage: debits summed up by account, hour or day, model and key; and over all accounts, by day
//! and model.
//!
//! The sums are rows of `index.db` (`ledger/index/write.rs` adds the debits). A query reads the
//! rows of its account and its span, never the entries. Refunds are not in the sums: they are
//! postings of their own. Must not price anything.

#[cfg(test)]
mod tests;

use super::activity::{HourlySpend, spend_totals};
use super::database::Ledger;
use super::index::find_name;
use super::spend_totals::SpendTotals;
use crate::store::StoreError;
use credits::money::Micro;
use rusqlite::{Connection, Row, ToSql, params, params_from_iter};
use std::collections::BTreeMap;

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
        self.read_index("add up an account's debits", |connection| {
            let Some((sql, values)) = usage_sql(connection, account, query, after, limit)? else {
                return Ok(Vec::new());
            };
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
        self.read_index("add up an account's debits", |connection| {
            let Some(account) = find_name(connection, "account", account)? else {
                return Ok(Vec::new());
            };
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
        self.read_index("add up the debits of several accounts", |connection| {
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
        self.read_index("add up the debits of all accounts", |connection| {
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

const SPEND_SINCE: &str = "SELECT account.name, min(sum(credits), 9007199254740991)
     FROM account CROSS JOIN usage_day ON usage_day.account = account.id
     WHERE account.name IN (SELECT value FROM json_each(?1)) AND day >= ?2 GROUP BY account.id";

const DAILY_TOTALS: &str =
    "SELECT day, model.name, responses, credits, input, cache_read, output, writeoff
     FROM usage_total CROSS JOIN model ON model.id = usage_total.model
     WHERE day >= ?1 AND day < ?2 ORDER BY day, model.name";

fn hourly_sql() -> String {
    format!(
        "SELECT hour, model.name, {SUMS} FROM usage_hour CROSS JOIN model ON model.id = usage_hour.model
         WHERE account = ?1 AND hour >= ?2 GROUP BY hour, model.name ORDER BY hour, model.name"
    )
}

/// A query with its values.
type UsageSql = (String, Vec<Box<dyn ToSql>>);

/// Builds the query; `None` if the index does not have a name in it, so that nothing matches.
fn usage_sql(
    connection: &Connection,
    account: &str,
    query: &UsageQuery,
    after: Option<(i64, &str, &str)>,
    limit: u32,
) -> rusqlite::Result<Option<UsageSql>> {
    let Some(account) = find_name(connection, "account", account)? else {
        return Ok(None);
    };
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
    // Names are joined only where the report is divided by them: the order of a page is theirs.
    let mut joins = String::new();
    let mut column = |is_wanted: bool, names: &'static str| {
        if !is_wanted {
            return "''".to_owned();
        }
        joins.push_str(&format!(
            " CROSS JOIN {names} ON {names}.id = {table}.{names}"
        ));
        format!("{names}.name")
    };
    let (model_column, key_column) = (column(*by_model, "model"), column(*by_key, "api_key"));
    let mut values: Vec<Box<dyn ToSql>> = vec![Box::new(account), Box::new(from), Box::new(to)];
    let mut filters = String::new();
    for (names, value) in [("model", model), ("api_key", key_id)] {
        let Some(value) = value else { continue };
        let Some(number) = find_name(connection, names, value)? else {
            return Ok(None);
        };
        filters.push_str(&format!(" AND {table}.{names} = ?"));
        values.push(Box::new(number));
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
         FROM {table}{joins} WHERE account = ? AND {unit} >= ? AND {unit} < ?{filters}
         GROUP BY 1, 2, 3{having} ORDER BY 1, 2, 3 LIMIT ?"
    );
    Ok(Some((sql, values)))
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
