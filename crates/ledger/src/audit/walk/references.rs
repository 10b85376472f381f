//! Reads references of entries in the order of the unique indexes, so that a walk finds repeated
//! ones without keeping them in memory. It also reads the ends of single requests.
//!
//! This file must not report a violation.

use credits::money::Micro;
use rusqlite::{Connection, Row, params};

/// Maximum number of requests that one query looks up.
pub(crate) const MAX_REFERENCES_LOOKED_UP: usize = 4_096;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReferenceIndex {
    /// An entry counts once per kind and reference.
    CountsOnce,
    /// A request ends once: by a debit or a void.
    EndsOnce,
}

impl ReferenceIndex {
    pub fn name(self) -> &'static str {
        match self {
            Self::CountsOnce => "entry_counts_once",
            Self::EndsOnce => "entry_ends_a_request_once",
        }
    }

    /// Returns the SQL of the first column of [`ReferenceRow`], of the condition for the entries in
    /// the index, and of the order. The index alone contains all columns of the query.
    fn query(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::CountsOnce => ("kind", "1", "kind, ref"),
            Self::EndsOnce => ("''", "kind IN ('debit', 'void')", "ref"),
        }
    }
}

/// One reference. The kind is empty for [`ReferenceIndex::EndsOnce`].
#[derive(Debug, Clone, Copy)]
pub struct ReferenceRow<'a> {
    pub kind: &'a str,
    pub reference: &'a str,
    pub seq: i64,
}

#[derive(Debug, Clone)]
pub struct EndingRow {
    pub request_id: String,
    pub kind: String,
    pub account: String,
    pub charged: Micro,
    pub writeoff: Micro,
}

pub(crate) fn read_index(
    connection: &Connection,
    index: ReferenceIndex,
    after: &(String, String),
    max_count: usize,
    each: &mut dyn FnMut(ReferenceRow<'_>),
) -> rusqlite::Result<Option<(String, String)>> {
    let (name, (kind, which, order)) = (index.name(), index.query());
    let is_unique = connection
        .prepare_cached("SELECT 1 FROM pragma_index_list('entry') WHERE name = ?1 AND \"unique\"")?
        .exists([name])?;
    let behind = match index {
        ReferenceIndex::CountsOnce => "(kind, ref) > (?1, ?2)",
        ReferenceIndex::EndsOnce => "ref > ?2 AND ?1 = ''",
    };
    let text = format!(
        "SELECT {kind}, ref, seq FROM entry INDEXED BY {name} WHERE {which} AND {behind}
         ORDER BY {order} LIMIT ?3"
    );
    // An index with this name but other columns or rows does not serve the query, and SQLite then
    // refuses to prepare it.
    let Some(mut statement) = is_unique
        .then(|| connection.prepare_cached(&text).ok())
        .flatten()
    else {
        return Ok(None);
    };
    let limit = i64::try_from(max_count).unwrap_or(i64::MAX);
    let mut rows = statement.query(params![after.0, after.1, limit])?;
    let mut last = None;
    let mut count = 0;
    while let Some(row) = rows.next()? {
        let reference = reference_row(row)?;
        each(reference);
        count += 1;
        if count == max_count {
            last = Some((reference.kind.to_owned(), reference.reference.to_owned()));
        }
    }
    Ok(last)
}

pub(crate) fn sort_table(
    connection: &Connection,
    index: ReferenceIndex,
    up_to: i64,
    each: &mut dyn FnMut(ReferenceRow<'_>),
) -> rusqlite::Result<()> {
    let (kind, which, order) = index.query();
    let mut statement = connection.prepare(&format!(
        "SELECT {kind}, ref, seq FROM entry NOT INDEXED WHERE {which} AND seq <= ?1
         ORDER BY {order}, seq"
    ))?;
    let mut rows = statement.query([up_to])?;
    while let Some(row) = rows.next()? {
        each(reference_row(row)?);
    }
    Ok(())
}

fn reference_row<'a>(row: &'a Row<'_>) -> rusqlite::Result<ReferenceRow<'a>> {
    let text = |index| -> rusqlite::Result<&'a str> { Ok(row.get_ref(index)?.as_str()?) };
    Ok(ReferenceRow {
        kind: text(0)?,
        reference: text(1)?,
        seq: row.get(2)?,
    })
}

pub(crate) fn endings(
    connection: &Connection,
    request_ids: &[&str],
) -> rusqlite::Result<Vec<EndingRow>> {
    let request_ids = serde_json::to_string(request_ids).unwrap_or_default();
    // Without an index, one scan finds all of them.
    connection
        .prepare_cached(
            "SELECT ref, kind, account, d_paid, d_trial, writeoff FROM entry
             WHERE kind IN ('debit', 'void') AND ref IN (SELECT value FROM json_each(?1))",
        )?
        .query_map([request_ids], |row| {
            let (d_paid, d_trial): (Micro, Micro) = (row.get(3)?, row.get(4)?);
            Ok(EndingRow {
                request_id: row.get(0)?,
                kind: row.get(1)?,
                account: row.get(2)?,
                charged: Micro::ZERO.minus(d_paid).minus(d_trial),
                writeoff: row.get(5)?,
            })
        })?
        .collect()
}
