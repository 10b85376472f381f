//! Finds the ends of an account's requests by filter, latest first.
//!
//! A filter by conversation or by failure has an index. A filter by model or key alone walks back
//! through the hours whose sums have that model or key, because an index for them would write a
//! page for nearly each entry. This file must not read the ledger.

use crate::RequestOutcome;
use crate::entry::spend_totals::HOUR_MS;
use crate::index::IndexTables;
use rusqlite::params_from_iter;

/// Criteria for the ends of requests. An end must match all given fields.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ActivityFilter {
    pub model: Option<String>,
    pub key_id: Option<String>,
    pub outcome: Option<RequestOutcome>,
    pub conversation: Option<String>,
    /// Start of the period in ms since 1970, inclusive.
    pub from_ms: Option<i64>,
    /// End of the period in ms since 1970, exclusive.
    pub to_ms: Option<i64>,
}

/// A row's position in the order of time. The next page begins after the previous page's last row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ActivityCursor {
    pub at_ms: i64,
    pub seq: i64,
}

/// A filter with the numbers of its names.
pub(crate) struct EndingsQuery {
    account: i64,
    model: Option<i64>,
    api_key: Option<i64>,
    outcome: Option<i64>,
    conversation: Option<i64>,
    is_failure: bool,
    from_ms: i64,
    /// Upper limit of the positions, exclusive.
    below: ActivityCursor,
}

pub(crate) type EndingsSql = (String, Vec<i64>);

impl EndingsQuery {
    /// Resolves the names of a filter. Returns `None` if the index lacks one of them, so that no
    /// row can match.
    pub(crate) fn new(
        tables: IndexTables<'_>,
        account: &str,
        filter: &ActivityFilter,
        before: Option<ActivityCursor>,
    ) -> rusqlite::Result<Option<Self>> {
        let Some(account) = tables.find_name("account", account)? else {
            return Ok(None);
        };
        let outcome = filter.outcome.map(RequestOutcome::as_str);
        let names = [
            ("model", filter.model.as_deref()),
            ("api_key", filter.key_id.as_deref()),
            ("outcome", outcome),
        ];
        let mut numbers = [None; 3];
        for ((table, name), number) in names.into_iter().zip(&mut numbers) {
            let Some(name) = name else { continue };
            *number = tables.find_name(table, name)?;
            if number.is_none() {
                return Ok(None);
            }
        }
        let mut conversation = None;
        if let Some(name) = &filter.conversation {
            conversation = tables.find_conversation(account, name)?;
            if conversation.is_none() {
                return Ok(None);
            }
        }
        let [model, api_key, outcome] = numbers;
        // The rows before a moment are those below that moment's first position.
        let end = filter.to_ms.map(|at_ms| ActivityCursor {
            at_ms,
            seq: i64::MIN,
        });
        let last = ActivityCursor {
            at_ms: i64::MAX,
            seq: i64::MAX,
        };
        Ok(Some(Self {
            account,
            model,
            api_key,
            outcome,
            conversation,
            is_failure: filter
                .outcome
                .is_some_and(|outcome| outcome != RequestOutcome::Completed),
            from_ms: filter.from_ms.unwrap_or(i64::MIN),
            below: before.into_iter().chain(end).min().unwrap_or(last),
        }))
    }

    /// Returns at most `limit` positions of the latest matches.
    pub(crate) fn find(&self, tables: IndexTables<'_>, limit: u32) -> rusqlite::Result<Vec<i64>> {
        if !self.walks_hours() {
            return run(
                tables,
                &self.rows_sql(tables, self.from_ms, self.below, limit),
            );
        }
        let (sql, values) = self.hours_sql(tables);
        let mut statement = tables.connection().prepare_cached(&sql)?;
        let mut hours = statement.query(params_from_iter(values))?;
        let (mut found, mut last) = (Vec::new(), None);
        while let Some(row) = hours.next()? {
            let hour: i64 = row.get(0)?;
            let left = usize::try_from(limit).unwrap_or(usize::MAX) - found.len();
            if left == 0 {
                break;
            }
            // The tail and `index.db` may both have the hour.
            if last.replace(hour) == Some(hour) {
                continue;
            }
            let from_ms = self.from_ms.max(hour * HOUR_MS);
            let end = ActivityCursor {
                at_ms: (hour + 1) * HOUR_MS,
                seq: i64::MIN,
            };
            let left = u32::try_from(left).unwrap_or(u32::MAX);
            let below = self.below.min(end);
            found.extend(run(tables, &self.rows_sql(tables, from_ms, below, left))?);
        }
        Ok(found)
    }

    /// Returns whether the query walks through the hours that have rows of the model or the key.
    pub(crate) fn walks_hours(&self) -> bool {
        (self.model.is_some() || self.api_key.is_some())
            && self.conversation.is_none()
            && !self.is_failure
    }

    /// Returns the query for the hours that have rows of the model and the key, latest first.
    pub(crate) fn hours_sql(&self, tables: IndexTables<'_>) -> EndingsSql {
        let mut values = vec![
            self.account,
            self.from_ms.div_euclid(HOUR_MS),
            self.below.at_ms.div_euclid(HOUR_MS),
        ];
        let mut hours =
            "SELECT hour FROM $.usage_hour WHERE account = ?1 AND hour >= ?2 AND hour <= ?3"
                .to_owned();
        for (column, number) in [("model", self.model), ("api_key", self.api_key)] {
            let Some(number) = number else { continue };
            values.push(number);
            hours.push_str(&format!(" AND {column} = ?{}", values.len()));
        }
        let sql = format!("{} ORDER BY hour DESC", tables.union(&hours));
        (sql, values)
    }

    /// Returns the query for the matches from a time up to a position, exclusive. Each form of the
    /// query has its index.
    pub(crate) fn rows_sql(
        &self,
        tables: IndexTables<'_>,
        from_ms: i64,
        below: ActivityCursor,
        limit: u32,
    ) -> EndingsSql {
        let mut values = vec![
            self.account,
            from_ms,
            below.at_ms,
            below.seq,
            i64::from(limit),
        ];
        let mut rows = format!(
            "SELECT seq, at FROM $.activity {} WHERE account = ?1 AND kind < 2
             AND at >= ?2 AND (at, seq) < (?3, ?4)",
            self.choose_index()
        );
        let terms = [
            ("model", self.model),
            ("api_key", self.api_key),
            ("outcome", self.outcome),
            ("conversation", self.conversation),
        ];
        for (column, number) in terms {
            let Some(number) = number else { continue };
            values.push(number);
            rows.push_str(&format!(" AND {column} = ?{}", values.len()));
        }
        // SQLite uses a partial index only if the query repeats the index's condition literally.
        if self.conversation.is_some() {
            rows.push_str(" AND conversation IS NOT NULL");
        }
        if self.is_failure {
            rows.push_str(" AND outcome <> 0");
        }
        let rows = tables.union(&rows);
        (
            format!("{rows} ORDER BY at DESC, seq DESC LIMIT ?5"),
            values,
        )
    }

    /// Names the index of the field that matches the fewest entries. Without statistics, SQLite
    /// would always read the account's entries by time.
    fn choose_index(&self) -> &'static str {
        if self.conversation.is_some() {
            "INDEXED BY activity_by_conversation"
        } else if self.is_failure {
            "INDEXED BY activity_by_outcome"
        } else {
            "NOT INDEXED"
        }
    }
}

fn run(tables: IndexTables<'_>, (sql, values): &EndingsSql) -> rusqlite::Result<Vec<i64>> {
    tables.select(sql, params_from_iter(values), |row| row.get(0))
}
