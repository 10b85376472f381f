//! Connects the ledger with its index. It provides batches of entries for `index.db`, the newest
//! entries for readers, and entries by their position.
//!
//! This file must not depend on the index's tables: `index.rs` does.

use crate::StoreError;
use crate::entry::LedgerEntry;
use crate::entry::chain::ChainHead;
use crate::index::IndexTables;
use crate::sealed;
use crate::sealed::files::segments_after;
use crate::statements::chain::chain_head;
use crate::statements::lookup;
use crate::statements::lookup::{entries_after, hash_at};
use crate::views::LedgerIndexing;
use rusqlite::Connection;
use std::collections::HashSet;

impl LedgerIndexing<'_> {
    /// Writes the next entries to `index.db`, at most `max_entries` and at most
    /// [`MAX_INDEX_BATCH`](crate::MAX_INDEX_BATCH), in one transaction. Returns their number; 0 if
    /// the file has all of them. Any process may call it at any time.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read, or if the index cannot be written or is
    /// locked by another process; nothing has changed then.
    pub fn catch_up_index(&self, max_entries: u32) -> Result<usize, StoreError> {
        let read = |position: &ChainHead, limit| self.entries_beyond(position, limit);
        let indexed = self.0.index.write_batch(max_entries, None, &read)?;
        Ok(indexed.unwrap_or(0))
    }

    /// Returns the number of entries that `index.db` lacks. Readers see most of them: see
    /// [`LedgerIndexing::index_lag`].
    ///
    /// # Errors
    /// Returns an error if the ledger or the index cannot be read.
    pub fn index_backlog(&self) -> Result<u64, StoreError> {
        let (last, indexed) = (self.last_position()?, self.0.index.position()?);
        Ok(u64::try_from(last.seq.saturating_sub(indexed.seq)).unwrap_or(0))
    }

    /// Returns the number of entries that readers do not see; 0 if the ledger cannot be read.
    pub fn index_lag(&self) -> u64 {
        let last = self.last_position().map_or(0, |last| last.seq);
        let indexed = self
            .read_index("read how far the ledger is indexed", |tables| {
                tables.last_seq()
            })
            .unwrap_or(0);
        u64::try_from(last.saturating_sub(indexed)).unwrap_or(0)
    }

    /// Reads the index and the entries after it, so a reader sees all earlier commits unless the
    /// index is far behind. `read` runs within one transaction, and may run again after a failure.
    pub(crate) fn read_index<T>(
        &self,
        operation: &'static str,
        read: impl FnMut(IndexTables<'_>) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        let last = self.last_position()?;
        let entries = |position: &ChainHead, limit| self.entries_beyond(position, limit);
        self.0.index.read_newest(operation, &last, &entries, read)
    }

    /// Returns the entries at these positions, in this order.
    pub(crate) fn entries_at(&self, seqs: &[i64]) -> Result<Vec<LedgerEntry>, StoreError> {
        if seqs.is_empty() {
            return Ok(Vec::new());
        }
        let mut entries = self
            .0
            .read("read entries by their position", |connection| {
                lookup::entries_at(connection, seqs)
            })?;
        if entries.len() == seqs.len() {
            return Ok(entries);
        }
        // The other entries are sealed, some of them only a moment ago.
        let found: HashSet<_> = entries.iter().map(|entry| entry.seq).collect();
        let sealed: Vec<_> = seqs
            .iter()
            .copied()
            .filter(|seq| !found.contains(seq))
            .collect();
        let sealed = self
            .0
            .readers
            .with(|connection| sealed::entries_at(connection, &self.0.segments, &sealed));
        entries.extend(sealed?);
        let place = |entry: &LedgerEntry| seqs.iter().position(|seq| *seq == entry.seq);
        entries.sort_by_key(place);
        Ok(entries)
    }

    /// Returns the entries after `position`, or `None` if the ledger does not have that one.
    fn entries_beyond(
        &self,
        position: &ChainHead,
        limit: u32,
    ) -> Result<Option<Vec<LedgerEntry>>, StoreError> {
        let sql = |source| StoreError::sqlite("read the entries to index", source);
        self.0.readers.with(|connection| {
            let snapshot = connection.unchecked_transaction().map_err(sql)?;
            if position.seq > 0 && !self.has_entry(&snapshot, position)? {
                return Ok(None);
            }
            self.entries_following(&snapshot, position.seq, limit)
                .map(Some)
        })
    }

    /// Returns whether the ledger has this entry. An entry in a missing segment counts as present.
    pub(crate) fn has_entry(
        &self,
        connection: &Connection,
        wanted: &ChainHead,
    ) -> Result<bool, StoreError> {
        let sql = |source| StoreError::sqlite("look for an entry", source);
        if let Some(found) = hash_at(connection, wanted.seq).map_err(sql)? {
            return Ok(found == wanted.hash);
        }
        match sealed::entries_after(connection, &self.0.segments, wanted.seq - 1, 1) {
            Ok(entries) => Ok(entries
                .first()
                .is_some_and(|entry| entry.seq == wanted.seq && entry.hash == wanted.hash)),
            Err(StoreError::SegmentUnavailable(_)) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Returns at most `limit` entries after the position `seq`, in order and including sealed
    /// ones. From a missing segment, the result has only the entries that are still in the ledger.
    pub(crate) fn entries_following(
        &self,
        connection: &Connection,
        seq: i64,
        limit: u32,
    ) -> Result<Vec<LedgerEntry>, StoreError> {
        let sql = |source| StoreError::sqlite("read the ledger's entries", source);
        let mut from = seq;
        for segment in segments_after(connection, seq).map_err(sql)? {
            match sealed::entries_after(connection, &self.0.segments, from, limit as usize) {
                Ok(entries) if !entries.is_empty() => return Ok(entries),
                Ok(_) => {}
                Err(StoreError::SegmentUnavailable(reason)) => {
                    log::error!(
                        "{reason}; pages lack the ends of requests in it until it is back and `ledger reindex` was run"
                    );
                    let mut postings = entries_after(connection, from, limit).map_err(sql)?;
                    postings.retain(|entry| entry.seq <= segment.last);
                    if !postings.is_empty() {
                        return Ok(postings);
                    }
                }
                Err(error) => return Err(error),
            }
            from = from.max(segment.last);
        }
        entries_after(connection, from, limit).map_err(sql)
    }

    fn last_position(&self) -> Result<ChainHead, StoreError> {
        self.0.read("read the ledger's last entry", chain_head)
    }
}
