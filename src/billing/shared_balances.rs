//! Defines the interface by which commands change and compare the balances in a shared store.
//!
//! This file must not contain behaviour: `shared_credit/admin.rs` is the implementation.

use credits::money::Micro;
use ledger::audit::LedgerAuditReport;
use ledger::{BalanceChange, Ledger, PostingResult, StoreError};

pub trait SharedBalances: Send + Sync {
    /// Posts a debit first in the shared store, so that no request can use the credits any more,
    /// and then in the ledger. A second call completes a debit that was interrupted.
    ///
    /// # Errors
    /// Returns an error if the account cannot cover it, or if either store cannot be written.
    fn post_debit(
        &self,
        ledger: &Ledger,
        change: &BalanceChange<'_>,
    ) -> Result<PostingResult, StoreError>;

    /// Returns the credits of an account that running requests hold.
    ///
    /// # Errors
    /// Returns an error if the store cannot be read.
    fn held(&self, account: &str) -> Result<Micro, StoreError>;

    /// Compares every account in the shared store with the ledger, and adds a finding for each
    /// difference.
    ///
    /// # Errors
    /// Returns an error if either store cannot be read.
    fn compare(&self, ledger: &Ledger, report: &mut LedgerAuditReport) -> Result<(), StoreError>;
}
