//! Finds sealed data with one connection: the end of one request, entries by position, and the
//! balances at the end of a segment.
//!
//! A segment is recorded before its entries leave `entry`, and a reader looks in `entry` first, so
//! it finds each entry in one of the two. If the file of a segment is missing, the error names the
//! file and the remedy. This module must not write.

pub(crate) mod files;

use crate::StoreError;
use crate::entry::LedgerEntry;
use crate::segment::{SealedBalance, SegmentFault, SegmentReader, request_time_ms};
use credits::money::Micro;
use files::{SegmentFiles, SegmentRecord, sealed_end, segment_of, segments_after, segments_since};
use rusqlite::{Connection, Row, params};

/// Maximum time in ms by which a request can have ended before the time in its id, because a clock
/// was set back.
const CLOCK_TOLERANCE_MS: i64 = 100;

/// Returns whether a request with this id can have ended in a segment that ends at
/// `sealed_until_ms`.
pub(crate) fn may_be_sealed(reference: &str, sealed_until_ms: i64) -> bool {
    sealed_until_ms != i64::MIN
        && earliest_end_ms(reference).is_none_or(|ends| ends <= sealed_until_ms)
}

impl LedgerEntry {
    /// Returns the latest time at which a reader may look for this end of a request. The time in
    /// its id can be later than the end if a clock was set back in between.
    pub fn looked_up_until_ms(&self) -> i64 {
        let begun_ms = request_time_ms(&self.reference);
        self.at_ms.max(begun_ms.unwrap_or(i64::MIN))
    }
}

fn earliest_end_ms(reference: &str) -> Option<i64> {
    request_time_ms(reference).map(|began| began.saturating_sub(CLOCK_TOLERANCE_MS))
}

/// Looks for the end of a request in the segments that can contain it. The inner error means that
/// such a segment is missing or damaged.
pub(crate) fn find_sealed_ending(
    connection: &Connection,
    files: &SegmentFiles,
    reference: &str,
) -> rusqlite::Result<Result<Option<LedgerEntry>, StoreError>> {
    let mut unavailable = None;
    for segment in segments_since(connection, earliest_end_ms(reference))? {
        match read_segment(connection, files, &segment, |reader| {
            reader.ending(reference, files.blocks())
        })? {
            Ok(Some(entry)) => return Ok(Ok(Some(entry))),
            Ok(None) => {}
            Err(error) => unavailable = Some(error),
        }
    }
    Ok(unavailable.map_or(Ok(None), Err))
}

/// Reads a segment. If that fails, the function looks for its file again, because the file may just
/// have been archived or put back.
fn read_segment<T>(
    connection: &Connection,
    files: &SegmentFiles,
    segment: &SegmentRecord,
    read: impl Fn(&SegmentReader) -> Result<T, SegmentFault>,
) -> rusqlite::Result<Result<T, StoreError>> {
    let attempt = |segment: &SegmentRecord| {
        let reader = files.reader(segment)?;
        read(&reader)
    };
    if let Ok(found) = attempt(segment) {
        return Ok(Ok(found));
    }
    files.close(segment.first);
    let current = segment_of(connection, segment.first)?.unwrap_or_else(|| segment.clone());
    Ok(attempt(&current).map_err(|fault| {
        files.close(segment.first);
        files.unavailable(&current, &fault)
    }))
}

/// Returns the sealed entries at these positions, in the given order. Others are left out.
pub(crate) fn entries_at(
    connection: &Connection,
    files: &SegmentFiles,
    seqs: &[i64],
) -> Result<Vec<LedgerEntry>, StoreError> {
    let sql = |source| StoreError::sqlite("read sealed entries", source);
    let mut entries = Vec::new();
    for seq in seqs {
        let Some(segment) = segment_of(connection, *seq).map_err(sql)? else {
            continue;
        };
        let read = read_segment(connection, files, &segment, |reader| {
            reader.entry_at(*seq, files.blocks())
        });
        entries.extend(read.map_err(sql)??);
    }
    Ok(entries)
}

/// Returns at most `limit` sealed entries after `seq`, in order.
pub(crate) fn entries_after(
    connection: &Connection,
    files: &SegmentFiles,
    seq: i64,
    limit: usize,
) -> Result<Vec<LedgerEntry>, StoreError> {
    let sql = |source| StoreError::sqlite("read sealed entries", source);
    if seq >= sealed_end(connection).map_err(sql)?.0 {
        return Ok(Vec::new());
    }
    let mut entries = Vec::new();
    for segment in segments_after(connection, seq).map_err(sql)? {
        if entries.len() >= limit {
            break;
        }
        let read = read_segment(connection, files, &segment, |reader| {
            let after = reader.entries_from(seq.saturating_add(1));
            let wanted = after.filter(|entry| {
                entry.as_ref().is_ok_and(|entry| entry.seq > seq) || entry.is_err()
            });
            wanted
                .take(limit - entries.len())
                .collect::<Result<Vec<_>, _>>()
        });
        entries.extend(read.map_err(sql)??);
    }
    Ok(entries)
}

/// Returns the balance of every account at the end of the segment whose last entry is `seq`.
pub(crate) fn balances_at(
    connection: &Connection,
    seq: i64,
) -> rusqlite::Result<Vec<SealedBalance>> {
    let mut balances = Vec::new();
    let mut after = None;
    loop {
        let slice = balance_slice(connection, after.as_deref(), seq)?;
        let Some(last) = slice.last() else {
            return Ok(balances);
        };
        after = Some(last.account.clone());
        balances.extend(slice);
    }
}

/// Number of balances in one read.
const BALANCE_SLICE: i64 = 2_048;

/// Returns a slice of the balances at the end of the segment whose last entry is `seq`, sorted, for
/// accounts after `after`. The slice is empty at the end.
pub(crate) fn balance_slice(
    connection: &Connection,
    after: Option<&str>,
    seq: i64,
) -> rusqlite::Result<Vec<SealedBalance>> {
    let balance = |row: &Row<'_>| {
        Ok(SealedBalance {
            account: row.get(0)?,
            paid: row.get::<_, Micro>(1)?,
            trial: row.get::<_, Micro>(2)?,
            credited: row.get::<_, Micro>(3)?,
        })
    };
    connection
        .prepare_cached(
            "SELECT account, paid, trial, credited FROM sealed_balance b
             WHERE (?1 IS NULL OR account > ?1) AND sealed_through =
               (SELECT max(sealed_through) FROM sealed_balance WHERE account = b.account AND sealed_through <= ?2)
             ORDER BY account LIMIT ?3",
        )?
        .query_map(params![after, seq, BALANCE_SLICE], balance)?
        .collect()
}
