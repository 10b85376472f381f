//! Keeps the last decoded block of all segments that one process reads.
//!
//! The replay of a journal looks up one request after the other, and a page reads neighbouring
//! entries. Without the cache, each look-up would decode the same block. This file must not keep
//! more than one block (at most a few MB).

use crate::LedgerEntry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Identifies a block by the hash at the end of its segment, and its number. A file that was
/// replaced has another hash.
pub(crate) type BlockKey = ([u8; 32], usize);

type CachedBlock = (BlockKey, Arc<[LedgerEntry]>);

#[derive(Default)]
pub struct BlockCache(Mutex<Option<CachedBlock>>);

impl BlockCache {
    /// Returns the block `key`. If it is not in the cache, `decode` produces it.
    ///
    /// # Errors
    /// Returns the error of `decode`.
    pub(crate) fn get<E>(
        &self,
        key: BlockKey,
        decode: impl FnOnce() -> Result<Vec<LedgerEntry>, E>,
    ) -> Result<Arc<[LedgerEntry]>, E> {
        let last = self.lock().clone();
        if let Some((of, entries)) = last
            && of == key
        {
            return Ok(entries);
        }
        // Decode without the lock, so that readers of other blocks do not wait.
        let entries: Arc<[LedgerEntry]> = decode()?.into();
        *self.lock() = Some((key, Arc::clone(&entries)));
        Ok(entries)
    }

    fn lock(&self) -> MutexGuard<'_, Option<CachedBlock>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_block_is_kept_and_a_fault_is_not() {
        let cache = BlockCache::default();
        let get = |number: usize, decoded: Result<(), &'static str>| {
            let mut is_decoded = false;
            let found = cache.get(([7; 32], number), || {
                is_decoded = true;
                decoded.map(|()| Vec::new())
            });
            (found.map(|_| ()), is_decoded)
        };
        assert_eq!(get(1, Ok(())), (Ok(()), true));
        assert_eq!(get(1, Ok(())), (Ok(()), false));
        assert_eq!(get(2, Err("damaged")), (Err("damaged"), true));
        assert_eq!(get(2, Ok(())), (Ok(()), true));
        assert_eq!(get(1, Ok(())), (Ok(()), true), "2 was the last one");
    }
}
