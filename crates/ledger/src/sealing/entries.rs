//! Reads sealed entries: the end of one request, entries by position, and an export of all entries.
//!
//! This file must not write.

use crate::StoreError;
use crate::entry::{ENTRY_COLUMNS, EntrySelection, LedgerEntry, entry};
use crate::sealed::files::{SegmentRecord, sealed_end, segments_after};
use crate::sealed::{self, balances_at, find_sealed_ending};
use crate::segment::SealedBalance;
use crate::views::Segments;
use rusqlite::{Connection, params};

impl Segments<'_> {
    /// Returns the end of a request of any account from the segments.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read, or if a segment is missing that could contain
    /// it.
    pub fn sealed_ending(&self, reference: &str) -> Result<Option<LedgerEntry>, StoreError> {
        self.0.read(
            "look for a request in the ledger's segments",
            |connection| find_sealed_ending(connection, &self.0.segments, reference),
        )?
    }

    /// Returns the sealed entries at these positions, in the given order. Others are left out.
    ///
    /// # Errors
    /// Returns an error if a segment cannot be read.
    pub fn sealed_entries_at(&self, seqs: &[i64]) -> Result<Vec<LedgerEntry>, StoreError> {
        self.0
            .readers
            .with(|connection| sealed::entries_at(connection, &self.0.segments, seqs))
    }

    /// Calls `each` for the selected entries in order, sealed or not, from one snapshot. Only one
    /// entry is in memory at a time, and writers do not wait.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read, if a segment is missing, or if `each`
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
        // Sealed entries never change. Reading them first keeps the snapshot short.
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
            // Open the segment for this walk alone, because a walk over many segments must not
            // close those in use.
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

    /// Returns the end of the sealed range twice: from the ledger's note, and from its segments.
    /// Each has the last entry, and the time of the latest end of a request.
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

    /// Returns the balance of every account at the end of the segment whose last entry is `seq`.
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
