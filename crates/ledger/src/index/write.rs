//! Writes a batch of entries to an index: the rows and the new watermark.
//!
//! Each row is written once, in the order of its key, so that a batch of many accounts reads and
//! writes each page once. This file must not begin a transaction.

use super::batch::{
    ActivityIndexRow, ConversationChange, IndexBatch, PostingRow, UsageChange, UsageKey,
};
use super::tables::IndexTables;
use crate::entry::chain::ChainHead;
use crate::entry::spend_totals::{MAX_CREDITS_SUM, MAX_TOKENS_SUM};
use rusqlite::{Connection, params, params_from_iter};
use std::collections::{BTreeMap, HashMap};

pub(crate) const DAY_HOURS: i64 = 24;

/// The position up to which an index is written.
pub(crate) struct Watermark {
    pub position: ChainHead,
    /// Number of ids that were assigned to conversations.
    pub conversations: i64,
}

pub(crate) fn watermark(connection: &Connection) -> rusqlite::Result<Watermark> {
    read_watermark(connection, "main")
}

pub(crate) fn read_watermark(
    connection: &Connection,
    database: &str,
) -> rusqlite::Result<Watermark> {
    let sql = format!("SELECT seq, hash, conversations FROM {database}.watermark");
    connection.prepare_cached(&sql)?.query_row([], |row| {
        Ok(Watermark {
            position: ChainHead {
                seq: row.get(0)?,
                hash: row.get(1)?,
            },
            conversations: row.get(2)?,
        })
    })
}

pub(crate) fn set_watermark(connection: &Connection, to: &Watermark) -> rusqlite::Result<()> {
    connection
        .prepare_cached("UPDATE main.watermark SET seq = ?1, hash = ?2, conversations = ?3")?
        .execute((to.position.seq, &to.position.hash, to.conversations))
        .map(drop)
}

/// Removes all rows, so that the index is like a new one.
pub(crate) fn clear(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute_batch(
        "DELETE FROM main.activity; DELETE FROM main.posting; DELETE FROM main.usage_hour;
         DELETE FROM main.usage_day; DELETE FROM main.usage_total; DELETE FROM main.conversation;
         DELETE FROM main.account; DELETE FROM main.model; DELETE FROM main.api_key;
         DELETE FROM main.member WHERE id > 0; DELETE FROM main.outcome WHERE id > 0;
         UPDATE main.watermark SET seq = 0, hash = zeroblob(32), conversations = 0;",
    )
}

impl IndexBatch {
    /// Writes the rows of the batch, which follows `from`, and moves the watermark.
    pub(crate) fn write(
        self,
        tables: IndexTables<'_>,
        from: Watermark,
    ) -> rusqlite::Result<Watermark> {
        let Some(position) = self.end else {
            return Ok(from);
        };
        let connection = tables.connection();
        let (ids, conversations) =
            write_conversations(tables, self.conversations, from.conversations)?;
        write_usage(connection, self.hours)?;
        write_activity(connection, self.activity, &ids)?;
        write_postings(connection, self.postings)?;
        let to = Watermark {
            position,
            conversations,
        };
        set_watermark(connection, &to)?;
        Ok(to)
    }
}

/// A conversation's id, account and name, and its change.
type NumberedChange = (i64, i64, String, ConversationChange);

/// Writes the changes of conversations. New ones get the ids after `last`, in the order of the
/// entries. Returns the ids by index, and the last id.
fn write_conversations(
    tables: IndexTables<'_>,
    changes: HashMap<(i64, String), ConversationChange>,
    mut last: i64,
) -> rusqlite::Result<(Vec<i64>, i64)> {
    let mut changes: Vec<_> = changes.into_iter().collect();
    changes.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
    let mut ids = vec![0; changes.len()];
    for ((account, name), change) in &changes {
        if tables.has_base() {
            copy_conversation(tables.connection(), *account, name)?;
        }
        let id = tables.find_conversation(*account, name)?;
        if let (Some(place), Some(id)) = (ids.get_mut(change.place), id) {
            *place = id;
        }
    }
    for id in ids.iter_mut().filter(|id| **id == 0) {
        last += 1;
        *id = last;
    }
    let mut numbered: Vec<NumberedChange> = changes
        .into_iter()
        .filter_map(|((account, name), change)| {
            Some((*ids.get(change.place)?, account, name, change))
        })
        .collect();
    numbered.sort_unstable_by_key(|(id, account, ..)| (*account, *id));
    let mut statement = tables.connection().prepare_cached(COUNT_TURNS)?;
    for (id, account, name, change) in &numbered {
        let [turns, input, cache_read, output] = change.sum.counts();
        let (began_ms, last_ms) = change.times.unwrap_or_default();
        statement.execute(params![
            account,
            id,
            name,
            began_ms,
            last_ms,
            turns,
            change.sum.credits,
            input,
            cache_read,
            output
        ])?;
    }
    Ok((ids, last))
}

/// Copies a conversation into the tail, unless the tail has it.
fn copy_conversation(connection: &Connection, account: i64, name: &str) -> rusqlite::Result<()> {
    connection
        .prepare_cached(
            "INSERT INTO main.conversation SELECT * FROM base.conversation WHERE account = ?1 AND name = ?2
               AND NOT EXISTS (SELECT 1 FROM main.conversation WHERE account = ?1 AND name = ?2)",
        )?
        .execute((account, name))
        .map(drop)
}

fn write_activity(
    connection: &Connection,
    mut rows: Vec<ActivityIndexRow>,
    conversations: &[i64],
) -> rusqlite::Result<()> {
    rows.sort_unstable_by_key(|row| (row.account, row.at_ms, row.seq));
    let mut statement = connection.prepare_cached(
        "INSERT INTO main.activity (account, at, seq, kind, model, api_key, outcome, conversation, flags)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
    )?;
    for row in &rows {
        let conversation = row.conversation.and_then(|place| conversations.get(place));
        let [model, api_key, outcome] = row.names.map_or([None; 3], |names| names.map(Some));
        statement.execute(params![
            row.account,
            row.at_ms,
            row.seq,
            row.kind,
            model,
            api_key,
            outcome,
            conversation,
            row.flags,
        ])?;
    }
    Ok(())
}

fn write_postings(connection: &Connection, mut rows: Vec<PostingRow>) -> rusqlite::Result<()> {
    rows.sort_unstable_by_key(|row| (row.account, row.at_ms, row.seq));
    let mut statement = connection.prepare_cached(
        "INSERT INTO main.posting (account, at, seq, kind, change) VALUES (?1, ?2, ?3, ?4, ?5)",
    )?;
    for row in &rows {
        statement.execute(params![
            row.account,
            row.at_ms,
            row.seq,
            row.kind,
            row.change
        ])?;
    }
    Ok(())
}

/// Adds to the sums by hour, by day, and by day over all accounts.
fn write_usage(
    connection: &Connection,
    hours: HashMap<UsageKey, UsageChange>,
) -> rusqlite::Result<()> {
    let hours: BTreeMap<_, _> = hours.into_iter().collect();
    let mut days: BTreeMap<UsageKey, UsageChange> = BTreeMap::new();
    let mut totals: BTreeMap<(i64, i64), UsageChange> = BTreeMap::new();
    for (&[account, hour, model, api_key, member], change) in &hours {
        if change.sum.responses == 0 {
            continue;
        }
        let day = hour.div_euclid(DAY_HOURS);
        let of_day = days.entry([account, day, model, api_key, member]);
        of_day.or_default().add(*change);
        totals.entry((day, model)).or_default().add(*change);
    }
    let of_hours = hours
        .iter()
        .map(|(key, change)| (*key, change, Some(change.voids)));
    write_sums(connection, &HOUR, of_hours)?;
    let of_days = days.iter().map(|(key, change)| (*key, change, None));
    write_sums(connection, &DAY, of_days)?;
    let of_all = totals
        .iter()
        .map(|(&(day, model), change)| ([day, model], change, Some(change.writeoff.get())));
    write_sums(connection, &TOTAL, of_all)
}

/// Adds to the rows of a table of sums. Each row has its key, and the value of the table's own
/// column.
fn write_sums<'a, const KEY: usize>(
    connection: &Connection,
    table: &SumTable,
    rows: impl Iterator<Item = ([i64; KEY], &'a UsageChange, Option<i64>)>,
) -> rusqlite::Result<()> {
    let mut statement = connection.prepare_cached(&add_sql(table))?;
    for (key, change, own) in rows {
        let [responses, input, cache_read, output] = change.sum.counts();
        let credits = change.sum.credits.get();
        let sums = [responses, credits, input, cache_read, output];
        let values = key.into_iter().chain(sums).chain(own);
        statement.execute(params_from_iter(values))?;
    }
    Ok(())
}

/// A table of sums: its name, its key, and its own column with the maximum of that column.
struct SumTable {
    name: &'static str,
    key: &'static str,
    own: Option<(&'static str, i64)>,
}

const HOUR: SumTable = SumTable {
    name: "usage_hour",
    key: "account, hour, model, api_key, member",
    own: Some(("voids", MAX_TOKENS_SUM)),
};

const DAY: SumTable = SumTable {
    name: "usage_day",
    key: "account, day, model, api_key, member",
    own: None,
};

const TOTAL: SumTable = SumTable {
    name: "usage_total",
    key: "day, model",
    own: Some(("writeoff", MAX_CREDITS_SUM)),
};

/// Returns the statement that adds to a row of sums, up to the maxima.
fn add_sql(table: &SumTable) -> String {
    let mut columns = vec![
        ("responses", i64::MAX),
        ("credits", MAX_CREDITS_SUM),
        ("input", MAX_TOKENS_SUM),
        ("cache_read", MAX_TOKENS_SUM),
        ("output", MAX_TOKENS_SUM),
    ];
    columns.extend(table.own);
    let SumTable { name, key, .. } = table;
    let names: Vec<_> = columns.iter().map(|(column, _)| *column).collect();
    let count = key.split(", ").count() + columns.len();
    let values: Vec<_> = (1..=count).map(|number| format!("?{number}")).collect();
    let sums: Vec<_> = columns
        .iter()
        .map(|(column, limit)| format!("{column} = min({column} + excluded.{column}, {limit})"))
        .collect();
    format!(
        "INSERT INTO main.{name} ({key}, {}) VALUES ({}) ON CONFLICT ({key}) DO UPDATE SET {}",
        names.join(", "),
        values.join(", "),
        sums.join(", ")
    )
}

// The statement below contains the maxima of the sums as numbers.
const _: () = assert!(MAX_TOKENS_SUM == 1 << 62 && MAX_CREDITS_SUM == 9_007_199_254_740_991);

/// SQL that counts turns. A void does not change an existing conversation.
const COUNT_TURNS: &str =
    "INSERT INTO main.conversation (account, id, name, began_at, last_at, turns, credits, input, cache_read, output)
     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)
     ON CONFLICT (account, id) DO UPDATE SET
       began_at = iif(turns = 0, excluded.began_at, min(began_at, excluded.began_at)),
       last_at = max(last_at, excluded.last_at), turns = turns + excluded.turns,
       credits = min(credits + excluded.credits, 9007199254740991), input = min(input + excluded.input, 1 << 62),
       cache_read = min(cache_read + excluded.cache_read, 1 << 62), output = min(output + excluded.output, 1 << 62)
     WHERE excluded.turns > 0";
