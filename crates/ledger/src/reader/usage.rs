//! Usage: the debits of an account by hour or day, model, key and member, and the debits of all
//! accounts by day and model.
//!
//! The sums are rows of the index (`index/write.rs` adds the debits). A query reads the rows of its
//! account and its span from `index.db` and the tail, and never reads entries. Refunds are not in
//! the sums, because they are separate postings. This module must not compute a price.

#[cfg(test)]
mod tests;

use super::activity::{HourlySpend, spend_totals};
use crate::StoreError;
use crate::entry::spend_totals::SpendTotals;
use crate::index::IndexTables;
use crate::views::LedgerPages;
use credits::money::Micro;
use rusqlite::{Row, ToSql, params, params_from_iter};
use std::collections::BTreeMap;

/// A span of time from the first number up to the second, exclusive. Both count from 1970 UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UsageSpan {
    Hours(i64, i64),
    Days(i64, i64),
}

/// The length of the intervals into which a report divides its span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UsageInterval {
    /// The unit of the span: an hour or a day.
    Unit,
    /// A month, counted from January 1970 UTC. The first and the last month may be incomplete.
    Month,
}

/// The criteria and the grouping of a usage report for an account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsageQuery {
    pub span: UsageSpan,
    pub model: Option<String>,
    pub key_id: Option<String>,
    /// Id of a membership.
    pub member: Option<String>,
    /// Interval of the groups. `None` sums up the whole span.
    pub interval: Option<UsageInterval>,
    pub by_model: bool,
    pub by_key: bool,
    pub by_member: bool,
}

/// A group of debits. A field that the query does not group by is 0 or empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsageRow {
    /// Hour, day or month since 1970 UTC.
    pub time: i64,
    pub model: String,
    pub key_id: String,
    /// Id of the membership whose key it was; empty for a key of no member.
    pub member: String,
    pub sum: SpendTotals,
}

/// A position in the order of a report: time, model, key and member.
pub type UsageCursor<'a> = (i64, &'a str, &'a str, &'a str);

/// The sum of one model's debits on one day, over all accounts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DailyTotal {
    /// Days since 1970 UTC.
    pub day: i64,
    pub model: String,
    pub sum: SpendTotals,
    /// The part of the costs that the accounts could not pay.
    pub writeoff: Micro,
}

impl UsageQuery {
    /// Creates a query for the sum of an account's debits in `span`.
    pub fn new(span: UsageSpan) -> Self {
        Self {
            span,
            model: None,
            key_id: None,
            member: None,
            interval: None,
            by_model: false,
            by_key: false,
            by_member: false,
        }
    }
}

impl UsageRow {
    /// Returns the row's position in the order of a report. The next page begins after it.
    pub fn cursor(&self) -> UsageCursor<'_> {
        (self.time, &self.model, &self.key_id, &self.member)
    }
}

impl LedgerPages<'_> {
    /// Returns at most `limit` groups of an account's debits, ordered by time, model, key and
    /// member, and starting after the cursor `after`.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn usage(
        &self,
        account: &str,
        query: &UsageQuery,
        after: Option<UsageCursor<'_>>,
        limit: u32,
    ) -> Result<Vec<UsageRow>, StoreError> {
        self.0
            .index()
            .read_index("add up an account's debits", |tables| {
                let Some((sql, values)) = usage_sql(tables, account, query, after, limit)? else {
                    return Ok(Vec::new());
                };
                tables.select(&sql, params_from_iter(values), usage_row)
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
        let operation = "add up an account's debits";
        self.read_account(operation, account, |tables, account| {
            let values = params![account, from_hour];
            tables.select(&hourly_sql(tables), values, hourly_spend_row)
        })
    }

    /// Returns the credits that each of `accounts` has spent from `first_day` on; the result leaves
    /// out accounts without debits.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn spend_since(
        &self,
        accounts: &[String],
        first_day: i64,
    ) -> Result<BTreeMap<String, Micro>, StoreError> {
        self.0
            .index()
            .read_index("add up the debits of several accounts", |tables| {
                let mut names = BTreeMap::new();
                for account in accounts {
                    if let Some(number) = tables.find_name("account", account)? {
                        names.insert(number, account.clone());
                    }
                }
                let numbers: Vec<_> = names.keys().collect();
                let numbers = serde_json::to_string(&numbers).unwrap_or_default();
                let mut statement = tables
                    .connection()
                    .prepare_cached(&spend_since_sql(tables))?;
                let mut rows = statement.query(params![numbers, first_day])?;
                let mut sums = BTreeMap::new();
                while let Some(row) = rows.next()? {
                    if let Some(account) = names.remove(&row.get(0)?) {
                        sums.insert(account, row.get(1)?);
                    }
                }
                Ok(sums)
            })
    }

    /// Returns the debits of the `limit` accounts that spent most from `from_day` up to `to_day`,
    /// exclusive, in descending order. The query reads the days of all accounts.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn spend_by_account(
        &self,
        from_day: i64,
        to_day: i64,
        limit: u32,
    ) -> Result<Vec<(String, SpendTotals)>, StoreError> {
        self.0
            .index()
            .read_index("add up the debits of each account", |tables| {
                let values = params![from_day, to_day, limit];
                let row = |row: &Row<'_>| Ok((row.get(0)?, spend_totals(row, 1)?));
                tables.select(&spend_by_account_sql(tables), values, row)
            })
    }

    /// Returns the debits of all accounts by day and model, from `from_day` up to `to_day`,
    /// exclusive.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn daily_totals(&self, from_day: i64, to_day: i64) -> Result<Vec<DailyTotal>, StoreError> {
        self.0
            .index()
            .read_index("add up the debits of all accounts", |tables| {
                let values = params![from_day, to_day];
                tables.select(&daily_totals_sql(tables), values, daily_total_row)
            })
    }
}

/// SQL for the sums of several rows of [`usage_rows`].
const SUMS: &str =
    "sum(responses), min(sum(credits), 9007199254740991), sum(input), sum(cache_read), sum(output)";

/// Returns a query for an account's rows of `table` with debits whose `unit` of time fits `span`: A
/// row of the tail and one of `index.db` with the same key count as one row. A row contributes at
/// most 2^44 tokens of a class, so that a vendor's absurd counters cannot overflow a sum, which
/// SQLite would refuse.
pub(crate) fn usage_rows(tables: IndexTables<'_>, table: &str, unit: &str, span: &str) -> String {
    let rows = tables.union(&format!(
        "SELECT {unit}, model, api_key, member, responses, credits, input, cache_read, output
         FROM $.{table}
         WHERE account = ?1 AND {span} AND responses > 0"
    ));
    let tokens: Vec<_> = ["input", "cache_read", "output"]
        .iter()
        .map(|class| format!("min(sum(min({class}, 1 << 44)), 1 << 44) AS {class}"))
        .collect();
    format!(
        "SELECT {unit}, model, api_key, member, sum(responses) AS responses,
           min(sum(credits), 9007199254740991) AS credits, {}
         FROM ({rows}) GROUP BY {unit}, model, api_key, member",
        tokens.join(", ")
    )
}

fn spend_since_sql(tables: IndexTables<'_>) -> String {
    let rows = tables.union(
        "SELECT account, credits FROM $.usage_day
         WHERE account IN (SELECT value FROM json_each(?1)) AND day >= ?2",
    );
    format!("SELECT account, min(sum(credits), 9007199254740991) FROM ({rows}) GROUP BY account")
}

/// Returns the query for the spending by account. It reads names only of the returned rows, and has
/// the limits of [`usage_rows`].
fn spend_by_account_sql(tables: IndexTables<'_>) -> String {
    let rows = tables.union(
        "SELECT account, responses, credits, min(input, 1 << 44) AS input,
           min(cache_read, 1 << 44) AS cache_read, min(output, 1 << 44) AS output
         FROM $.usage_day WHERE day >= ?1 AND day < ?2",
    );
    format!(
        "SELECT {} , responses, credits, input, cache_read, output FROM (
           SELECT account, sum(responses) AS responses,
             min(sum(credits), 9007199254740991) AS credits, min(sum(input), 1 << 62) AS input,
             min(sum(cache_read), 1 << 62) AS cache_read, min(sum(output), 1 << 62) AS output
           FROM ({rows}) GROUP BY account ORDER BY credits DESC, account LIMIT ?3
         ) AS usage ORDER BY credits DESC, account",
        tables.name_of("account", "usage.account")
    )
}

/// Returns the query for the totals by day. The limits are those of a stored row, because the tail
/// has too few entries for an overflow.
fn daily_totals_sql(tables: IndexTables<'_>) -> String {
    let rows = tables.union("SELECT * FROM $.usage_total WHERE day >= ?1 AND day < ?2");
    format!(
        "SELECT day, {} AS model_name, sum(responses), min(sum(credits), 9007199254740991),
           min(sum(input), 1 << 62), min(sum(cache_read), 1 << 62), min(sum(output), 1 << 62),
           min(sum(writeoff), 9007199254740991)
         FROM ({rows}) AS total GROUP BY day, model ORDER BY day, model_name",
        tables.name_of("model", "total.model")
    )
}

fn hourly_sql(tables: IndexTables<'_>) -> String {
    format!(
        "SELECT hour, {} AS model_name, {SUMS} FROM ({}) AS usage
         GROUP BY hour, model_name ORDER BY hour, model_name",
        tables.name_of("model", "usage.model"),
        usage_rows(tables, "usage_hour", "hour", "hour >= ?2"),
    )
}

/// An SQL query with the values of its parameters.
type UsageSql = (String, Vec<Box<dyn ToSql>>);

/// Builds the query. Returns `None` if the index lacks a name in the criteria, so no row can match.
fn usage_sql(
    tables: IndexTables<'_>,
    account: &str,
    query: &UsageQuery,
    after: Option<UsageCursor<'_>>,
    limit: u32,
) -> rusqlite::Result<Option<UsageSql>> {
    let Some(account) = tables.find_name("account", account)? else {
        return Ok(None);
    };
    let UsageQuery {
        span,
        model,
        key_id,
        member,
        interval,
        by_model,
        by_key,
        by_member,
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
    // Names are read only if the report is grouped by them, because they determine a page's order.
    let column = |is_wanted: bool, names: &str| match is_wanted {
        true => tables.name_of(names, &format!("usage.{names}")),
        false => "''".to_owned(),
    };
    let model_column = column(*by_model, "model");
    let key_column = column(*by_key, "api_key");
    let member_column = column(*by_member, "member");
    let mut values: Vec<Box<dyn ToSql>> = vec![Box::new(account), Box::new(from), Box::new(to)];
    let mut rows = format!("{unit} >= ?2 AND {unit} < ?3");
    for (names, value) in [("model", model), ("api_key", key_id), ("member", member)] {
        let Some(value) = value else { continue };
        let Some(number) = tables.find_name(names, value)? else {
            return Ok(None);
        };
        values.push(Box::new(number));
        rows.push_str(&format!(" AND {names} = ?{}", values.len()));
    }
    let rows = usage_rows(tables, table, unit, &rows);
    values.push(Box::new(limit));
    let limit = values.len();
    let mut having = String::new();
    if let Some((time, model, key_id, member)) = after {
        let [one, two, three, four] = [1, 2, 3, 4].map(|place| limit + place);
        having = format!(
            " HAVING (in_time, of_model, of_key, of_member) > (?{one}, ?{two}, ?{three}, ?{four})"
        );
        values.push(Box::new(time));
        for name in [model, key_id, member] {
            values.push(Box::new(name.to_owned()));
        }
    }
    let sql = format!(
        "SELECT {time} AS in_time, {model_column} AS of_model, {key_column} AS of_key,
           {member_column} AS of_member, {SUMS}
         FROM ({rows}) AS usage GROUP BY 1, 2, 3, 4{having} ORDER BY 1, 2, 3, 4 LIMIT ?{limit}"
    );
    Ok(Some((sql, values)))
}

fn usage_row(row: &Row<'_>) -> rusqlite::Result<UsageRow> {
    Ok(UsageRow {
        time: row.get(0)?,
        model: row.get(1)?,
        key_id: row.get(2)?,
        member: row.get(3)?,
        sum: spend_totals(row, 4)?,
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
