//! Compares `index.db` with the entries, and rebuilds it and the spending of keys. The audit
//! compares the spending of keys while it walks.
//!
//! An audit that has read all entries compares their fingerprint with that of the index. To find
//! the wrong rows, a separate index is built from the entries, in short slices. This file must not
//! change an entry or a balance.

use crate::StoreError;
use crate::entry::LedgerEntry;
use crate::index::compare::AggregateMismatch;
use crate::index::{
    FingerprintKeys, IndexFault, IndexFingerprint, IndexRebuild, StoredFingerprint,
};
use crate::statements::chain::chain_head;
use crate::views::LedgerIndexing;
use rusqlite::Connection;

/// Maximum number of comparisons. A comparison restarts if a process rebuilt the index meanwhile.
const MAX_COMPARISONS: u32 = 3;

/// Number of entries read at a time to bring a fingerprint up to date.
const FINGERPRINT_SLICE: u32 = 2_048;

impl LedgerIndexing<'_> {
    /// Computes the fingerprint of `index.db` from one snapshot. Writers do not wait, and the
    /// memory does not grow with the entries. A damaged file is not set aside.
    pub fn index_fingerprint(&self, keys: &FingerprintKeys) -> StoredFingerprint {
        StoredFingerprint::of_file(self.0.index.dir(), keys)
    }

    /// Compares the index with the entries. Returns the difference, or `None` without one.
    /// `fingerprint` must cover all entries up to its position; the comparison extends it to the
    /// last entry in the index.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn index_fault(
        &self,
        fingerprint: &mut IndexFingerprint,
        stored: StoredFingerprint,
    ) -> Result<Option<IndexFault>, StoreError> {
        let tables = match stored.tables {
            Ok(tables) => tables,
            Err(fault) => return Ok(Some(fault)),
        };
        let wrong = |what: &str| Ok(Some(IndexFault::Wrong(what.into())));
        let (last, to) = (fingerprint.seq(), tables.position.seq);
        let has_last = |connection: &Connection| self.has_entry(connection, &tables.position);
        if to < 0 || to > 0 && !self.0.readers.with(has_last)? {
            return wrong("says that it has entries which this ledger does not have");
        }
        self.for_each_entry(last, to, &mut |entry| fingerprint.add(entry))?;
        self.for_each_entry(to, last, &mut |entry| fingerprint.remove(entry))?;
        fingerprint.set_seq(to);
        if fingerprint.is_of(&tables) {
            return Ok(None);
        }
        if tables.has_full_sum {
            return Ok(Some(IndexFault::FullSum));
        }
        wrong("differs from the entries")
    }

    /// Returns the reason if `index.db` was set aside since the last call.
    pub fn take_index_damage(&self) -> Option<String> {
        self.0.index.take_damage()
    }

    /// Calls `each` with the entries after `from`, up to and including `to`.
    fn for_each_entry(
        &self,
        mut from: i64,
        to: i64,
        each: &mut dyn FnMut(&LedgerEntry),
    ) -> Result<(), StoreError> {
        while from < to {
            let entries = self
                .0
                .readers
                .with(|connection| self.entries_following(connection, from, FINGERPRINT_SLICE))?;
            let Some(last) = entries.last() else { break };
            from = last.seq;
            entries
                .iter()
                .filter(|entry| entry.seq <= to)
                .for_each(&mut *each);
        }
        Ok(())
    }

    /// Returns at most `limit` rows of each table of `index.db` that differ from the rows computed
    /// from the entries. The comparison ends at the last entry in the index. Writers do not wait,
    /// and the memory does not grow with the ledger. The temporary file is as large as `index.db`.
    ///
    /// # Errors
    /// Returns an error if the ledger or the index cannot be read, or if the disk is full.
    pub fn find_wrong_aggregates(&self, limit: u32) -> Result<Vec<AggregateMismatch>, StoreError> {
        Ok(self.compare_index(limit, &mut |_| ())?.1)
    }

    /// Rebuilds `index.db` and the spending of keys from the entries. Pages read the old index
    /// until the new one is complete. The ledger writer waits only while the last entries are read
    /// and the spending of keys is written. `on_entries` gets the number of entries read so far.
    /// Returns the rows that were wrong, at most `limit` of each table.
    ///
    /// # Errors
    /// Returns an error if a segment is missing or damaged, because sums without its entries would
    /// be too low, or if a file cannot be read or written. The stored index is then unchanged.
    pub fn reindex(
        &self,
        limit: u32,
        on_entries: &mut dyn FnMut(u64),
    ) -> Result<Vec<AggregateMismatch>, StoreError> {
        let statuses = self.0.segments().segment_statuses(true)?;
        if let Some(fault) = statuses.into_iter().find_map(|status| status.fault) {
            return Err(StoreError::SegmentUnavailable(format!(
                "cannot make the index and the spending of keys anew without every segment: {fault}"
            )));
        }
        let (mut rebuild, mut wrong) = self.compare_index(limit, on_entries)?;
        // The stored index may have been far behind, so add all remaining entries first.
        while self.advance_rebuild(&mut rebuild, i64::MAX)? {
            on_entries(entry_count(&rebuild));
        }
        self.0.index.replace(rebuild.connection())?;
        let mut writer = self.0.writer();
        let sql = |source| StoreError::sqlite("make the spending of keys anew", source);
        let transaction = writer.begin().map_err(sql)?;
        let last = chain_head(&transaction).map_err(sql)?.seq;
        while self.advance(&mut rebuild, &transaction, last)? {}
        let found = rebuild
            .compare_key_spend(&transaction, limit)
            .map_err(sql)?;
        if !found.is_empty() {
            rebuild.write_key_spend(&transaction).map_err(sql)?;
        }
        transaction.commit().map_err(sql)?;
        wrong.extend(found);
        Ok(wrong)
    }

    /// Walks the entries up to the index's watermark, and compares.
    fn compare_index(
        &self,
        limit: u32,
        on_entries: &mut dyn FnMut(u64),
    ) -> Result<(IndexRebuild, Vec<AggregateMismatch>), StoreError> {
        for _ in 0..MAX_COMPARISONS {
            let mut rebuild = IndexRebuild::create(self.0.index.dir())?;
            let to = self.0.index.position()?.seq;
            while self.advance_rebuild(&mut rebuild, to)? {
                on_entries(entry_count(&rebuild));
            }
            // All queries use one snapshot of the index, which may have advanced meanwhile.
            let (mut wrong, mut behind) = (None, Ok(false));
            let operation = "compare the ledger's entries with its index";
            self.0.index.read(operation, |connection| {
                let snapshot = connection.unchecked_transaction()?;
                let to = index_seq(&snapshot)?;
                if rebuild.seq()? > to {
                    return Ok(());
                }
                behind = self.advance_rebuild(&mut rebuild, to);
                while matches!(behind, Ok(true)) {
                    behind = self.advance_rebuild(&mut rebuild, to);
                }
                wrong = Some(rebuild.compare_index(&snapshot, limit)?);
                Ok(())
            })?;
            behind?;
            if let Some(wrong) = wrong {
                return Ok((rebuild, wrong));
            }
        }
        Err(StoreError::Unusable(
            "cannot compare the index with the entries: another process makes it anew".into(),
        ))
    }

    fn advance_rebuild(&self, rebuild: &mut IndexRebuild, to: i64) -> Result<bool, StoreError> {
        self.0
            .readers
            .with(|connection| self.advance(rebuild, connection, to))
    }

    /// Adds the next batch of entries, up to and including `to`. Returns false if no entry is left.
    fn advance(
        &self,
        rebuild: &mut IndexRebuild,
        ledger: &Connection,
        to: i64,
    ) -> Result<bool, StoreError> {
        let read = |seq, limit| self.entries_following(ledger, seq, limit);
        Ok(rebuild.add_batch(to, read)? > 0)
    }
}

fn entry_count(rebuild: &IndexRebuild) -> u64 {
    u64::try_from(rebuild.seq().unwrap_or_default()).unwrap_or_default()
}

fn index_seq(connection: &Connection) -> rusqlite::Result<i64> {
    connection.query_row("SELECT seq FROM watermark", [], |row| row.get(0))
}
