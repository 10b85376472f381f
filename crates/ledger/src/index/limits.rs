//! Defines the schema of the index, and the sizes and times that its modules share.
//!
//! This file must not open a file.

use std::time::Duration;

pub(crate) const MIGRATIONS: &[&str] = &[include_str!("001.sql"), include_str!("002.sql")];

/// Maximum number of entries in one transaction. A larger transaction writes less for each entry,
/// but takes more memory.
pub const MAX_INDEX_BATCH: u32 = 65_536;

/// Number of entries that the indexer reads from the ledger at a time.
pub(crate) const INDEX_SLICE: u32 = 2_048;

/// Maximum time that a reader waits for another writer of the index.
pub(crate) const READER_TIMEOUT: Duration = Duration::from_millis(50);

/// Page size in bytes. Smaller pages write a quarter less if each entry belongs to another account,
/// but take one and a half times as long.
pub(crate) const PAGE_BYTES: u32 = 4_096;

/// Page cache of the connection that writes, in KiB.
pub(crate) const WRITER_CACHE_KIB: i64 = 16_384;
