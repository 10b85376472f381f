//! Reads the responses of account holders for their activity pages, by filter. `ledger.pages()` has
//! their conversations, and their spending by time and model.
//!
//! This file must not write.

use super::receipt::Receipt;
use super::views::BillingPages;
use credits::money::Micro;
use credits::pricing;
use ledger::StoreError;
pub use ledger::{ActivityCursor, ActivityFilter, Conversation, RequestOutcome, SpendTotals};

impl BillingPages<'_> {
    /// Lists the ended requests that match `filter`, latest first. `before` is the cursor of the
    /// last request on the previous page.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn activity(
        &self,
        account: &str,
        filter: &ActivityFilter,
        before: Option<ActivityCursor>,
        limit: u32,
    ) -> Result<Vec<Receipt>, StoreError> {
        let entries = self
            .0
            .0
            .ledger
            .pages()
            .endings(account, filter, before, limit)?;
        entries
            .into_iter()
            .map(|entry| self.0.receipts().receipt_from_entry(entry))
            .collect()
    }

    /// Returns the credits that the vendors' caches saved in the latest responses that match
    /// `filter`, at most `limit`, and whether more responses match.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn cache_savings(
        &self,
        account: &str,
        filter: &ActivityFilter,
        limit: u16,
    ) -> Result<(Micro, bool), StoreError> {
        let receipts = self.activity(account, filter, None, u32::from(limit) + 1)?;
        let counted = receipts.iter().take(limit.into());
        let saved = counted.fold(Micro::ZERO, |sum, receipt| {
            sum.plus(receipt.cache_savings())
        });
        Ok((saved, receipts.len() > usize::from(limit)))
    }

    /// Lists at most `limit` debits of all accounts whose vendor counted more than the maximum of
    /// the request, latest first. The search covers the last 50 000 entries of the ledger.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn implausible_receipts(&self, limit: u32) -> Result<Vec<(String, Receipt)>, StoreError> {
        let entries = self.0.0.ledger.pages().implausible_entries(limit)?;
        entries
            .into_iter()
            .map(|entry| {
                Ok((
                    entry.account.clone(),
                    self.0.receipts().receipt_from_entry(entry)?,
                ))
            })
            .collect()
    }

    /// Returns the number of newest entries that pages, reports and statements lack, because the
    /// ledger's index is far behind. The number is 0 unless the index is being built or rebuilt.
    pub fn index_lag(&self) -> u64 {
        self.0.0.ledger.index().index_lag()
    }
}

impl Receipt {
    /// Returns the receipt's position in chronological order, for paging.
    pub fn cursor(&self) -> ActivityCursor {
        ActivityCursor {
            at_ms: self.at_ms,
            seq: self.seq,
        }
    }

    /// Returns the credits that the vendor's cache saved, minus the cost of writing to it. The
    /// result may be negative.
    pub fn cache_savings(&self) -> Micro {
        pricing::cache_savings(&self.detail.usage, &self.price)
    }
}
