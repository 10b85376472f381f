//! What must find entries that are sealed: the end of one request, entries by position, and an
//! export of all entries.
//!
//! A segment is recorded before its entries leave `entry`, and a reader looks in `entry` first, so
//! it finds each entry in one of the two. If the file of a segment is not at hand, the error names
//! it and says what to do. Must not write.

use crate::StoreError;
use crate::entry::{ENTRY_COLUMNS, EntrySelection, LedgerEntry, entry};
use crate::sealing::files::{
    SegmentFiles, SegmentRecord, sealed_end, segment_of, segments_after, segments_since,
};
use crate::segment::{SealedBalance, SegmentFault, request_time_ms};
use crate::views::Segments;
use credits::money::Micro;
use rusqlite::{Connection, Row, params};

/// How much earlier than its id a request can have ended, if a clock was set back meanwhile.
const CLOCK_TOLERANCE_MS: i64 = 100;

/// What the segments say about the end of a request.
pub(crate) enum SealedEnding {
    None,
    Found(Box<LedgerEntry>),
    /// A segment that could have it is not at hand.
    Unavailable(StoreError),
}

/// Returns true if a request with this id can have ended in a segment that ends at
/// `sealed_until_ms`.
pub(crate) fn may_be_sealed(reference: &str, sealed_until_ms: i64) -> bool {
    sealed_until_ms != i64::MIN
        && earliest_end_ms(reference).is_none_or(|ends| ends <= sealed_until_ms)
}

impl LedgerEntry {
    /// Returns the latest time from which on somebody looks for this end of a request: the time in
    /// its id can be later than its end, if a clock was set back in between.
    pub fn looked_up_until_ms(&self) -> i64 {
        let begun_ms = request_time_ms(&self.reference);
        self.at_ms.max(begun_ms.unwrap_or(i64::MIN))
    }
}

fn earliest_end_ms(reference: &str) -> Option<i64> {
    request_time_ms(reference).map(|began| began.saturating_sub(CLOCK_TOLERANCE_MS))
}

/// Looks for the end of a request in the segments that can have it.
pub(crate) fn find_sealed_ending(
    connection: &Connection,
    files: &SegmentFiles,
    reference: &str,
) -> rusqlite::Result<SealedEnding> {
    let mut unavailable = None;
    for segment in segments_since(connection, earliest_end_ms(reference))? {
        match read_segment(connection, files, &segment, |reader| {
            reader.ending(reference, files.blocks())
        })? {
            Ok(Some(entry)) => return Ok(SealedEnding::Found(Box::new(entry))),
            Ok(None) => {}
            Err(error) => unavailable = Some(error),
        }
    }
    Ok(unavailable.map_or(SealedEnding::None, SealedEnding::Unavailable))
}

/// Reads a segment. If that fails, looks again where its file is: it may just have been archived,
/// or put back.
fn read_segment<T>(
    connection: &Connection,
    files: &SegmentFiles,
    segment: &SegmentRecord,
    read: impl Fn(&crate::segment::SegmentReader) -> Result<T, SegmentFault>,
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

impl Segments<'_> {
    /// Returns the end of a request from the segments, whosever it is.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read, or if a segment that could have it is not at
    /// hand.
    pub fn sealed_ending(&self, reference: &str) -> Result<Option<LedgerEntry>, StoreError> {
        let found = self.0.read(
            "look for a request in the ledger's segments",
            |connection| find_sealed_ending(connection, &self.0.segments, reference),
        )?;
        match found {
            SealedEnding::None => Ok(None),
            SealedEnding::Found(entry) => Ok(Some(*entry)),
            SealedEnding::Unavailable(error) => Err(error),
        }
    }

    /// Returns the sealed entries at these positions, in the order given; a position that is not
    /// sealed is left out.
    ///
    /// # Errors
    /// Returns an error if a segment cannot be read.
    pub fn sealed_entries_at(&self, seqs: &[i64]) -> Result<Vec<LedgerEntry>, StoreError> {
        let sql = |source| StoreError::sqlite("read sealed entries", source);
        self.0.readers.with(|connection| {
            let mut entries = Vec::new();
            for seq in seqs {
                let Some(segment) = segment_of(connection, *seq).map_err(sql)? else {
                    continue;
                };
                let read = read_segment(connection, &self.0.segments, &segment, |reader| {
                    reader.entry_at(*seq, self.0.segments.blocks())
                });
                entries.extend(read.map_err(sql)??);
            }
            Ok(entries)
        })
    }

    /// Returns entries after `seq`, in order, the sealed ones too.
    pub(crate) fn sealed_entries_after(
        &self,
        connection: &Connection,
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
            let read = read_segment(connection, &self.0.segments, &segment, |reader| {
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

    /// Calls `each` for the selected entries in order, sealed or not, as of one moment. Reads one
    /// entry at a time, never the whole table into memory. Writers do not wait for it.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read, if a segment is not at hand, or if `each`
    /// fails.
    pub fn for_each_selected(
        &self,
        selection: &EntrySelection,
        each: &mut dyn FnMut(LedgerEntry) -> std::io::Result<()>,
    ) -> Result<(), StoreError> {
        let mut each = |entry| {
            each(entry).map_err(|source| StoreError::io("write out the ledger's entries", source))
        };
        self.0
            .readers
            .with(|connection| self.walk_all(connection, selection, &mut each))
    }

    fn walk_all(
        &self,
        connection: &Connection,
        selection: &EntrySelection,
        each: &mut dyn FnMut(LedgerEntry) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let sql = |source| StoreError::sqlite("read the ledger's entries", source);
        let mut done = 0;
        // Sealed entries never change. Reading them before the snapshot keeps it short.
        loop {
            let segments = segments_after(connection, done).map_err(sql)?;
            let Some(last) = segments.last().map(|segment| segment.last) else {
                break;
            };
            self.walk_segments(&segments, selection, each)?;
            done = last;
        }
        let snapshot = connection.unchecked_transaction().map_err(sql)?;
        let segments = segments_after(&snapshot, done).map_err(sql)?;
        self.walk_segments(&segments, selection, each)?;
        done = segments.last().map_or(done, |segment| segment.last);
        let mut statement = snapshot
            .prepare_cached(&format!(
                "SELECT {ENTRY_COLUMNS} FROM entry WHERE seq > ?4 AND account = ifnull(?1, account)
                 AND at >= ifnull(?2, at) AND (?3 IS NULL OR at < ?3) ORDER BY seq"
            ))
            .map_err(sql)?;
        let EntrySelection {
            account,
            from_ms,
            to_ms,
        } = selection;
        let mut rows = statement
            .query(params![account, from_ms, to_ms, done])
            .map_err(sql)?;
        while let Some(row) = rows.next().map_err(sql)? {
            each(entry(row).map_err(sql)?)?;
        }
        Ok(())
    }

    fn walk_segments(
        &self,
        segments: &[SegmentRecord],
        selection: &EntrySelection,
        each: &mut dyn FnMut(LedgerEntry) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let EntrySelection {
            account,
            from_ms,
            to_ms,
        } = selection;
        for segment in segments {
            let is_outside = to_ms.is_some_and(|to| segment.from_ms >= to)
                || from_ms.is_some_and(|from| segment.to_ms < from);
            if is_outside {
                continue;
            }
            // Opened for this walk alone: a walk over many must not close the ones in use.
            let reader = self.open_segment(segment)?;
            let unavailable = |fault| self.0.segments.unavailable(segment, &fault);
            for entry in reader.entries() {
                let entry = entry.map_err(unavailable)?;
                let is_selected = account.as_ref().is_none_or(|id| *id == entry.account)
                    && from_ms.is_none_or(|from| entry.at_ms >= from)
                    && to_ms.is_none_or(|to| entry.at_ms < to);
                if is_selected {
                    each(entry)?;
                }
            }
        }
        Ok(())
    }

    /// Returns how far the ledger is sealed, as noted, and as its segments say: the last entry, and
    /// the time of the latest end of a request.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn sealed_ends(&self) -> Result<[(i64, i64); 2], StoreError> {
        self.0
            .read("read how far the ledger is sealed", |connection| {
                let snapshot = connection.unchecked_transaction()?;
                let recorded = snapshot.query_row(
                    "SELECT ifnull(max(last), 0), ifnull(max(ended_until), ?1) FROM segment",
                    [i64::MIN],
                    |row| Ok((row.get(0)?, row.get(1)?)),
                )?;
                Ok([sealed_end(&snapshot)?, recorded])
            })
    }

    /// Returns the balance of every account at the end of a segment, which ends with the entry
    /// `seq`.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn sealed_balances(&self, seq: i64) -> Result<Vec<SealedBalance>, StoreError> {
        self.0
            .read("read the balances at the end of a segment", |connection| {
                balances_at(connection, seq)
            })
    }
}

fn balances_at(connection: &Connection, seq: i64) -> rusqlite::Result<Vec<SealedBalance>> {
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

/// Returns balances at the end of the segment that ends with `seq`, sorted, of the accounts after
/// `after`. Empty at the end.
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
