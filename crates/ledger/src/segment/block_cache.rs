//! The block that was decoded last, of all segments that one process reads.
//!
//! A journal that is replayed asks for one request after the other, and a page for entries next to
//! each other: without it, each of them would decode the same block. This file must not keep more
//! than one block (at most a few MB).

use crate::LedgerEntry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Names a block by the hash with which its segment ends: a file that was replaced has another one.
pub(crate) type BlockKey = ([u8; 32], usize);

type CachedBlock = (BlockKey, Arc<[LedgerEntry]>);

/// The last decoded block.
#[derive(Default)]
pub struct BlockCache(Mutex<Option<CachedBlock>>);

impl BlockCache {
    /// Returns the block `key`, which `decode` makes if it is not the last one.
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
        // Without the lock: readers of other blocks do not wait.
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
