//! Finds references that occur more than once among any number of entries, wherever those are:
//! unlike an index, it takes sealed entries too.
//!
//! It keeps two keyed hashes and the position of each entry, 24 bytes, in a temporary file that
//! SQLite sorts; the memory is the page cache of that file. Equal references are then next to each
//! other. Must not judge what it finds.

use super::references::ReferenceRow;
use crate::store::StoreError;
use rusqlite::{Connection, params};
use std::hash::{BuildHasher as _, RandomState};

/// Memory for pages, and for the rows that are sorted at a time.
const CACHE_KIB: u32 = 8_192;

/// Two entries with the same reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RepeatedReference {
    pub first_seq: i64,
    /// Position of the later entry.
    pub seq: i64,
    /// Whether both end a request; otherwise they are of one kind.
    pub is_ending: bool,
}

/// References of entries, to be sorted.
pub struct ReferenceSorter {
    file: Connection,
    /// Nobody can make two references whose hashes are equal under unknown keys.
    keys: [RandomState; 2],
    count: u64,
}

impl ReferenceSorter {
    /// Creates an empty sorter with a temporary file.
    ///
    /// # Errors
    /// Returns an error if the file cannot be created.
    pub fn new() -> Result<Self, StoreError> {
        let create = || {
            // An empty name is a temporary file, which is gone with the connection.
            let file = Connection::open("")?;
            file.execute_batch(&format!(
                "PRAGMA cache_size = -{CACHE_KIB}; PRAGMA temp_store = FILE;
                 PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;
                 CREATE TABLE reference (one INTEGER, other INTEGER, seq INTEGER, is_ending INTEGER);
                 BEGIN;"
            ))?;
            Ok(file)
        };
        Ok(Self {
            file: create().map_err(sql)?,
            keys: [RandomState::new(), RandomState::new()],
            count: 0,
        })
    }

    /// Returns the number of references.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Adds the reference of an entry; its kind is empty if the entry ends a request.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    pub fn add(&mut self, row: ReferenceRow<'_>) -> Result<(), StoreError> {
        let [one, other] = &self.keys;
        let hash = |key: &RandomState| key.hash_one((row.kind, row.reference)).cast_signed();
        let values = params![hash(one), hash(other), row.seq, row.kind.is_empty()];
        let insert = || {
            self.file
                .prepare_cached("INSERT INTO reference VALUES (?1, ?2, ?3, ?4)")?
                .execute(values)
        };
        insert().map_err(sql)?;
        self.count += 1;
        Ok(())
    }

    /// Sorts the references. Calls `on_reference` for each of them, with the number of those that
    /// were read, and with the pair if an earlier entry has the same one.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read or written.
    pub fn for_each_sorted(
        &self,
        on_reference: &mut dyn FnMut(u64, Option<RepeatedReference>),
    ) -> Result<(), StoreError> {
        self.compare_neighbours(on_reference).map_err(sql)
    }

    fn compare_neighbours(
        &self,
        on_reference: &mut dyn FnMut(u64, Option<RepeatedReference>),
    ) -> rusqlite::Result<()> {
        let order = "SELECT one, other, seq, is_ending FROM reference ORDER BY one, other, seq";
        let mut statement = self.file.prepare(order)?;
        let mut rows = statement.query([])?;
        let (mut first, mut count) = (None, 0);
        while let Some(row) = rows.next()? {
            let hashes: (i64, i64) = (row.get(0)?, row.get(1)?);
            let (seq, is_ending) = (row.get(2)?, row.get(3)?);
            count += 1;
            match first {
                Some((known, first_seq)) if known == hashes => {
                    let repeated = RepeatedReference {
                        first_seq,
                        seq,
                        is_ending,
                    };
                    // One entry can be in a segment and in the table.
                    on_reference(count, (seq != first_seq).then_some(repeated));
                }
                _ => {
                    first = Some((hashes, seq));
                    on_reference(count, None);
                }
            }
        }
        Ok(())
    }
}

fn sql(source: rusqlite::Error) -> StoreError {
    StoreError::sqlite("sort the references of the ledger", source)
}
