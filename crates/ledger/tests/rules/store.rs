//! What every home of the ledger can do, for the rules: `ledger.db` and the model in memory.
//!
//! Must not decide anything: each method of a [`Ledger`] calls one of its views.

use ledger::StoreError;
use ledger::{
    AppendOutcome, BackgroundPace, EntryReference, KeySpend, Ledger, LedgerAccount, LedgerBatch,
    LedgerEntry, LedgerHeads, SealBoundary,
};

/// A ledger. Several handles can have the same one open: each commit of one is the whole of a
/// batch, and every later read of another sees it.
pub trait LedgerStore: Send + Sync {
    fn open_account(
        &self,
        account: &str,
        trial_ends_at_ms: Option<i64>,
        at_ms: i64,
    ) -> Result<(), StoreError>;
    fn append(&self, batch: &LedgerBatch<'_>) -> Result<Vec<AppendOutcome>, StoreError>;
    fn account(
        &self,
        account: &str,
        instance_id: &str,
    ) -> Result<Option<LedgerAccount>, StoreError>;
    fn key_spend(
        &self,
        key: &str,
        first_day: i64,
        instance_id: &str,
    ) -> Result<KeySpend, StoreError>;
    fn entry(&self, reference: EntryReference<'_>) -> Result<Option<LedgerEntry>, StoreError>;
    fn entries_after(&self, after_seq: i64, limit: u32) -> Result<Vec<LedgerEntry>, StoreError>;
    fn seal(
        &self,
        boundary: SealBoundary,
        entries_per_segment: i64,
        pace: BackgroundPace<'_>,
        now_ms: i64,
    ) -> Result<(), StoreError>;
    fn heads(&self) -> Result<LedgerHeads, StoreError>;
}

impl LedgerStore for Ledger {
    fn open_account(
        &self,
        account: &str,
        trial_ends_at_ms: Option<i64>,
        at_ms: i64,
    ) -> Result<(), StoreError> {
        self.rows().open_account(account, trial_ends_at_ms, at_ms)
    }

    fn append(&self, batch: &LedgerBatch<'_>) -> Result<Vec<AppendOutcome>, StoreError> {
        self.changes().append(batch)
    }

    fn account(
        &self,
        account: &str,
        instance_id: &str,
    ) -> Result<Option<LedgerAccount>, StoreError> {
        self.rows().account(account, instance_id)
    }

    fn key_spend(
        &self,
        key: &str,
        first_day: i64,
        instance_id: &str,
    ) -> Result<KeySpend, StoreError> {
        self.rows().key_spend(key, first_day, instance_id)
    }

    fn entry(&self, reference: EntryReference<'_>) -> Result<Option<LedgerEntry>, StoreError> {
        self.rows().entry(reference)
    }

    fn entries_after(&self, after_seq: i64, limit: u32) -> Result<Vec<LedgerEntry>, StoreError> {
        self.rows().entries_after(after_seq, limit)
    }

    fn seal(
        &self,
        boundary: SealBoundary,
        entries_per_segment: i64,
        pace: BackgroundPace<'_>,
        now_ms: i64,
    ) -> Result<(), StoreError> {
        let sealed = self
            .segments()
            .seal(boundary, entries_per_segment, pace, now_ms);
        sealed.map(drop)
    }

    fn heads(&self) -> Result<LedgerHeads, StoreError> {
        self.rows().heads()
    }
}
