//! Repairs that an operator starts: entering a dead process's journal, and rebuilding the index and
//! the spending of keys.
//!
//! This file must not change an existing entry.

use super::views::BillingUpkeep;
use ledger::StoreError;
use ledger::journal;
use ledger::journal::replay::enter_endings;
use std::path::Path;

impl BillingUpkeep<'_> {
    /// Enters the endings of a dead process's journal directory. Returns the number of new endings,
    /// and the number of unreadable lines.
    ///
    /// # Errors
    /// Returns an error if the directory cannot be read or the ledger cannot be written.
    pub fn replay_journal(&self, dir: &Path) -> Result<(usize, usize), StoreError> {
        // Keep the claim on the directory until all endings are entered. It ensures that the
        // process is dead: an open request in the journal of a running process has not ended.
        let orphaned = journal::claim_journal(dir)?;
        let (endings, unreadable) = orphaned.endings()?;
        let replayed = enter_endings(&self.0.0.ledger, &endings)?;
        if !replayed.withheld.is_empty() {
            return Err(StoreError::SegmentUnavailable(format!(
                "{} requests of the journal may be in a segment that is not at hand: `ledger segments` names it; put it back and repeat",
                replayed.withheld.len()
            )));
        }
        Ok((replayed.new, unreadable))
    }

    /// Rebuilds `index.db` and the spending of keys from the entries. Entries and balances do not
    /// change. `on_entries` gets the number of entries read so far. Returns the number of wrong
    /// rows, up to a maximum.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read or written.
    pub fn reindex(&self, on_entries: &mut dyn FnMut(u64)) -> Result<usize, StoreError> {
        Ok(self
            .0
            .0
            .ledger
            .index()
            .reindex(ledger::audit::MAX_AGGREGATES_CHECKED, on_entries)?
            .len())
    }
}
