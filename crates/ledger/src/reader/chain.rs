//! Reads the chain of entries: one entry by its reference, all entries, and the last entry.
//!
//! This file must not write.

use crate::StoreError;
use crate::entry::chain::ChainHead;
use crate::entry::{ENTRY_COLUMNS, LedgerEntry, entry};
use crate::sealed;
use crate::sealed::files::{sealed_end, segment_of};
use crate::statements::chain::chain_head;
use crate::statements::lookup;
use crate::views::LedgerRows;
use rusqlite::OptionalExtension;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryReference<'a> {
    /// The end of a request, which is a debit or a void.
    Ending(&'a str),
    /// A posting, by its kind and reference.
    Posting { kind: &'a str, reference: &'a str },
}

/// The last entries of the chain and of its sealed part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LedgerHeads {
    pub last: ChainHead,
    pub sealed: ChainHead,
}

impl LedgerRows<'_> {
    /// Returns the entry with a reference, sealed or not.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read, or if a segment that could have the entry is
    /// missing.
    pub fn entry(&self, reference: EntryReference<'_>) -> Result<Option<LedgerEntry>, StoreError> {
        match reference {
            // Postings remain in the ledger when their segment is sealed.
            EntryReference::Posting { kind, reference } => {
                self.0.read("look for a posting", |connection| {
                    lookup::find_entry(connection, kind, reference)
                })
            }
            EntryReference::Ending(request_id) => {
                let known = self.0.read("look for the end of a request", |connection| {
                    connection
                        .prepare_cached(&format!(
                            "SELECT {ENTRY_COLUMNS} FROM entry WHERE ref = ?1 AND kind IN ('debit', 'void')"
                        ))?
                        .query_row([request_id], entry)
                        .optional()
                })?;
                match known {
                    Some(entry) => Ok(Some(entry)),
                    None => self.0.segments().sealed_ending(request_id),
                }
            }
        }
    }

    /// Walks the chain. Returns at most `limit` entries after `after_seq`, in order and without
    /// gaps, including sealed ones. The result is empty at the end of the chain.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read, or if a segment is missing.
    pub fn entries_after(
        &self,
        after_seq: i64,
        limit: u32,
    ) -> Result<Vec<LedgerEntry>, StoreError> {
        let sql = |source| StoreError::sqlite("read the ledger's entries", source);
        let count = usize::try_from(limit).unwrap_or(usize::MAX);
        self.0.readers.with(|connection| {
            // Use one snapshot, so that an entry that is being sealed is in one of the two places.
            let snapshot = connection.unchecked_transaction().map_err(sql)?;
            let mut entries = sealed::entries_after(&snapshot, &self.0.segments, after_seq, count)?;
            let after = entries.last().map_or(after_seq, |entry| entry.seq);
            let rest = u32::try_from(count - entries.len()).unwrap_or(u32::MAX);
            entries.extend(lookup::entries_after(&snapshot, after, rest).map_err(sql)?);
            Ok(entries)
        })
    }

    /// Returns the last entries of the chain and of its sealed part, from one snapshot.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn heads(&self) -> Result<LedgerHeads, StoreError> {
        self.0.read("read the ends of the ledger", |connection| {
            let snapshot = connection.unchecked_transaction()?;
            let (seq, _) = sealed_end(&snapshot)?;
            let sealed =
                segment_of(&snapshot, seq)?.map_or_else(ChainHead::genesis, |segment| ChainHead {
                    seq,
                    hash: segment.last_hash,
                });
            let last = chain_head(&snapshot)?;
            Ok(LedgerHeads { last, sealed })
        })
    }
}
