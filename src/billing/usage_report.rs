//! Builds an account's usage report for the API, from the parameters of a query to JSON. Every
//! process returns the same JSON.
//!
//! This file must not depend on HTTP, accounts or the names of keys: the caller passes the names.

use super::activity::SpendTotals;
use super::views::UsageReports;
use base::clock;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ledger::{StoreError, UsageCursor, UsageInterval, UsageQuery, UsageRow, UsageSpan};
use serde_json::{Value, json};

const DAY_MS: i64 = 86_400_000;

/// Number of days, including the last day, of a report whose query has no range.
const DEFAULT_DAYS: i64 = 30;

/// Maximum number of days in a report, which are ten years.
const MAX_DAYS: i64 = 3_660;

/// Maximum number of rows on a page. Without `limit`, a page has this number.
const MAX_ROWS: u32 = 1_000;

const PARAMETERS: &str = "from, to, group_by, model, key, limit or cursor";

/// The debits that a report covers, their grouping, and the requested page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsageReportQuery {
    /// First day of the report, in days since 1970 UTC. The first and the last day are included.
    first_day: i64,
    last_day: i64,
    by_day: bool,
    by_model: bool,
    by_key: bool,
    by_member: bool,
    model: Option<String>,
    key_id: Option<String>,
    /// Id of a membership.
    member: Option<String>,
    limit: u32,
    after: Option<(i64, String, String, String)>,
}

/// A parameter of a query that is not valid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsageQueryError {
    pub param: String,
    pub code: &'static str,
    pub message: String,
}

impl UsageQueryError {
    fn new(param: &str, code: &'static str, message: impl Into<String>) -> Self {
        Self {
            param: param.to_owned(),
            code,
            message: message.into(),
        }
    }
}

impl UsageReportQuery {
    /// Parses the query part of an address.
    ///
    /// # Errors
    /// Returns the first parameter that is unknown, given twice or not valid.
    pub fn parse(query: &str, now_ms: i64) -> Result<Self, UsageQueryError> {
        let parameters = UsageParameters::parse(query)?;
        let (first_day, last_day) = parse_range(&parameters, now_ms)?;
        let mut parsed = Self {
            first_day,
            last_day,
            by_day: false,
            by_model: false,
            by_key: false,
            by_member: false,
            model: parameters.get("model").map(str::to_owned),
            key_id: parameters.get("key").map(str::to_owned),
            member: None,
            limit: parse_limit(parameters.get("limit"))?,
            after: None,
        };
        for group in parameters
            .get("group_by")
            .unwrap_or("day,model,key")
            .split(',')
        {
            match group {
                "day" => parsed.by_day = true,
                "model" => parsed.by_model = true,
                "key" => parsed.by_key = true,
                "member" => parsed.by_member = true,
                _ => {
                    let message =
                        "must be a list of day, model, key and member, separated by commas";
                    return Err(UsageQueryError::new("group_by", "invalid_group", message));
                }
            }
        }
        if let Some(cursor) = parameters.get("cursor") {
            let invalid = || {
                let message = "must be the `next` of an earlier page";
                UsageQueryError::new("cursor", "invalid_cursor", message)
            };
            parsed.after = Some(decode_cursor(cursor).ok_or_else(invalid)?);
        }
        Ok(parsed)
    }

    /// Restricts the report to what one member (by the id of the membership) spent with one key
    /// (by id), whatever key it named.
    #[must_use]
    pub fn of_member_key(self, key: &str, member: &str) -> Self {
        Self {
            key_id: Some(key.to_owned()),
            member: Some(member.to_owned()),
            ..self
        }
    }

    fn groups(&self) -> Vec<&'static str> {
        [
            (self.by_day, "day"),
            (self.by_model, "model"),
            (self.by_key, "key"),
            (self.by_member, "member"),
        ]
        .into_iter()
        .filter_map(|(is_wanted, name)| is_wanted.then_some(name))
        .collect()
    }

    /// Returns the query for the sum of all debits in the report.
    fn total(&self) -> UsageQuery {
        UsageQuery {
            model: self.model.clone(),
            key_id: self.key_id.clone(),
            member: self.member.clone(),
            ..UsageQuery::new(UsageSpan::Days(self.first_day, self.last_day + 1))
        }
    }

    fn rows(&self) -> UsageQuery {
        UsageQuery {
            interval: self.by_day.then_some(UsageInterval::Unit),
            by_model: self.by_model,
            by_key: self.by_key,
            by_member: self.by_member,
            ..self.total()
        }
    }

    fn row(&self, row: &UsageRow, describe: &UsageNames<'_>) -> Value {
        let mut value = totals(row.sum);
        if self.by_day {
            value["day"] = json!(format_day(row.time));
        }
        if self.by_model {
            value["model"] = json!(row.model);
        }
        if self.by_key {
            value["key"] = (describe.key)(&row.key_id);
        }
        if self.by_member {
            value["member"] = match row.member.as_str() {
                "" => Value::Null,
                member => (describe.member)(member),
            };
        }
        value
    }
}

/// Returns the JSON for a key, by its id, and for a member, by the id of the membership.
pub struct UsageNames<'a> {
    pub key: &'a dyn Fn(&str) -> Value,
    pub member: &'a dyn Fn(&str) -> Value,
}

impl UsageReports<'_> {
    /// Reports an account's usage.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn usage_report(
        &self,
        account: &str,
        query: &UsageReportQuery,
        describe: &UsageNames<'_>,
    ) -> Result<Value, StoreError> {
        let after = query.after.as_ref();
        let after = after
            .map(|(time, model, key, member)| -> UsageCursor<'_> { (*time, model, key, member) });
        // One row more than the page has room for means that a next page exists.
        let usage = self.0.ledger().pages();
        let mut rows = usage.usage(account, &query.rows(), after, query.limit + 1)?;
        let page_size = usize::try_from(query.limit).unwrap_or(usize::MAX);
        let has_more = rows.len() > page_size;
        rows.truncate(page_size);
        let next = rows.last().filter(|_| has_more).map(encode_cursor);
        let total = usage.usage(account, &query.total(), None, 1)?;
        let total = total.first().map(|row| row.sum).unwrap_or_default();
        let data: Vec<_> = rows.iter().map(|row| query.row(row, describe)).collect();
        let mut report = json!({
            "object": "usage",
            "from": format_day(query.first_day),
            "to": format_day(query.last_day),
            "time_zone": "UTC",
            "group_by": query.groups(),
            "data": data,
            "total": totals(total),
            "next": next,
        });
        let lag = self.0.pages().index_lag();
        if lag > 0 {
            report["entries_not_indexed"] = json!(lag);
        }
        Ok(report)
    }
}

fn totals(sum: SpendTotals) -> Value {
    json!({
        "responses": sum.responses,
        "tokens": {"input": sum.input, "cache_read": sum.cache_read, "output": sum.output},
        "credits": sum.credits,
    })
}

fn format_day(day: i64) -> String {
    let time = clock::rfc3339(day.saturating_mul(DAY_MS));
    time.get(..10).unwrap_or_default().to_owned()
}

fn parse_range(parameters: &UsageParameters, now_ms: i64) -> Result<(i64, i64), UsageQueryError> {
    let invalid = |param, message: String| UsageQueryError::new(param, "invalid_range", message);
    let day = |param: &'static str| {
        let Some(text) = parameters.get(param) else {
            return Ok(None);
        };
        match clock::day_start_ms(text) {
            Some(ms) => Ok(Some(ms.div_euclid(DAY_MS))),
            None => Err(invalid(
                param,
                "must be a day, such as 2026-11-30".to_owned(),
            )),
        }
    };
    let (first, last) = (day("from")?, day("to")?);
    let today = now_ms.div_euclid(DAY_MS);
    let last = last.unwrap_or_else(|| today.max(first.unwrap_or(today)));
    let first = first.unwrap_or(last - (DEFAULT_DAYS - 1));
    if first > last {
        return Err(invalid("from", "must not be after `to`".to_owned()));
    }
    if last - first >= MAX_DAYS {
        return Err(invalid(
            "from",
            format!("must be at most {MAX_DAYS} days before the end of the report"),
        ));
    }
    Ok((first, last))
}

fn parse_limit(text: Option<&str>) -> Result<u32, UsageQueryError> {
    let limit = text.map_or(Some(MAX_ROWS), |text| text.parse().ok());
    limit
        .filter(|limit| (1..=MAX_ROWS).contains(limit))
        .ok_or_else(|| {
            let message = format!("must be 1 to {MAX_ROWS}");
            UsageQueryError::new("limit", "invalid_limit", message)
        })
}

fn encode_cursor(row: &UsageRow) -> String {
    URL_SAFE_NO_PAD.encode(json!(row.cursor()).to_string())
}

fn decode_cursor(text: &str) -> Option<(i64, String, String, String)> {
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(text).ok()?).ok()
}

/// The parameters of a query, decoded. An empty value counts as missing.
struct UsageParameters(Vec<(String, String)>);

impl UsageParameters {
    fn parse(query: &str) -> Result<Self, UsageQueryError> {
        let mut parameters: Vec<(String, String)> = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let invalid = |name: &str, message: &str| {
                UsageQueryError::new(name, "invalid_parameter", message)
            };
            let undecodable = || invalid("query", "has an escape that is not UTF-8");
            let name = decode_component(name).ok_or_else(undecodable)?;
            let value = decode_component(value).ok_or_else(undecodable)?;
            if !matches!(
                name.as_str(),
                "from" | "to" | "group_by" | "model" | "key" | "limit" | "cursor"
            ) {
                let message = format!("is not a parameter: use {PARAMETERS}");
                return Err(invalid(&name, &message));
            }
            if parameters.iter().any(|(known, _)| *known == name) {
                return Err(invalid(&name, "is given twice"));
            }
            parameters.push((name, value));
        }
        Ok(Self(parameters))
    }

    fn get(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().find(|(known, _)| known == name);
        found
            .map(|(_, value)| value.as_str())
            .filter(|value| !value.is_empty())
    }
}

/// Decodes `%2C` and `+`. Returns `None` if the result is not UTF-8 or an escape is incomplete.
fn decode_component(text: &str) -> Option<String> {
    let mut bytes = text.bytes();
    let mut decoded = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'+' => b' ',
            b'%' => {
                let mut digit = || char::from(bytes.next()?).to_digit(16);
                let (high, low) = (digit()?, digit()?);
                u8::try_from(high * 16 + low).ok()?
            }
            _ => byte,
        });
    }
    String::from_utf8(decoded).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2027-01-15 08:00 UTC.
    const NOW: i64 = 1_800_000_000_000;
    const TODAY: i64 = NOW / DAY_MS;

    fn parse(query: &str) -> Result<UsageReportQuery, UsageQueryError> {
        UsageReportQuery::parse(query, NOW)
    }

    #[test]
    fn without_parameters_a_report_has_thirty_days_and_every_group() {
        let query = parse("").unwrap();
        assert_eq!((query.first_day, query.last_day), (TODAY - 29, TODAY));
        assert_eq!(query.groups(), ["day", "model", "key"]);
        assert_eq!((query.limit, &query.after), (1_000, &None));
        assert_eq!(query, parse("from=&to=&group_by=&limit=&cursor=").unwrap());
        let query = parse("to=2026-12-31").unwrap();
        assert_eq!(format_day(query.first_day), "2026-12-02");
        let query = parse("from=2027-01-20").unwrap();
        assert_eq!((query.first_day, query.last_day), (TODAY + 5, TODAY + 5));
    }

    #[test]
    fn parameters_are_decoded() {
        let query = parse("group_by=member,key%2Cday&model=a%2fb%3A1+x&key=key_1&limit=7").unwrap();
        assert_eq!(query.groups(), ["day", "key", "member"]);
        assert_eq!(query.model.as_deref(), Some("a/b:1 x"));
        assert_eq!((query.key_id.as_deref(), query.limit), (Some("key_1"), 7));
    }

    #[test]
    fn a_range_has_at_most_ten_years() {
        let first = |days: i64| format!("from={}&to=2027-01-15", format_day(TODAY - days + 1));
        assert!(parse(&first(MAX_DAYS)).is_ok());
        let error = parse(&first(MAX_DAYS + 1)).unwrap_err();
        assert_eq!(
            (error.param.as_str(), error.code),
            ("from", "invalid_range")
        );
    }

    #[test]
    fn what_is_not_valid_is_named() {
        for (query, param, code) in [
            ("from=2026-02-30", "from", "invalid_range"),
            ("to=yesterday", "to", "invalid_range"),
            ("from=2026-02-02&to=2026-02-01", "from", "invalid_range"),
            ("group_by=hour", "group_by", "invalid_group"),
            ("group_by=day,,key", "group_by", "invalid_group"),
            ("limit=0", "limit", "invalid_limit"),
            ("limit=1001", "limit", "invalid_limit"),
            ("cursor=x", "cursor", "invalid_cursor"),
            ("cursor=W10", "cursor", "invalid_cursor"),
            ("model=a&model=b", "model", "invalid_parameter"),
            ("groupby=day", "groupby", "invalid_parameter"),
            ("model=%ff", "query", "invalid_parameter"),
            ("model=%2", "query", "invalid_parameter"),
        ] {
            let error = parse(query).unwrap_err();
            assert_eq!((error.param.as_str(), error.code), (param, code), "{query}");
        }
    }
}
