//! The schema of the index, and the sizes and times that its parts share.
//!
//! This file must not open a file.

use std::time::Duration;

pub(crate) const MIGRATIONS: &[&str] = &[include_str!("001.sql")];

/// Maximum number of entries in one transaction. More of them write less for each entry, and take
/// more memory.
pub const MAX_INDEX_BATCH: u32 = 65_536;

/// Number of entries that are read from the ledger at once, to be indexed.
pub(crate) const INDEX_SLICE: u32 = 2_048;

/// Longest time for which a reader waits for another writer of the index.
pub(crate) const READER_TIMEOUT: Duration = Duration::from_millis(50);

/// Page size in bytes. Smaller pages write a quarter less if each entry is of another account, but
/// cost half as much time again.
pub(crate) const PAGE_BYTES: u32 = 4_096;

/// Page cache of the connection that writes, in KiB.
pub(crate) const WRITER_CACHE_KIB: i64 = 16_384;
