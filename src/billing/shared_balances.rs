//! The balances by which edges with a shared store decide, as commands change and compare them.
//!
//! This file must not contain behaviour: `shared_credit/admin.rs` is the implementation.

use ledger::audit::LedgerAuditReport;
use ledger::{BalanceChange, Ledger, PostingResult, StoreError};

pub trait SharedBalances: Send + Sync {
    /// Posts a debit: first there, so that no request can use the credits any more, then in the
    /// ledger. Running it again completes one that died in between.
    ///
    /// # Errors
    /// Returns an error if the account cannot cover it, or if either store cannot be written.
    fn post_debit(
        &self,
        ledger: &Ledger,
        change: &BalanceChange<'_>,
    ) -> Result<PostingResult, StoreError>;

    /// Compares every account that is there with the ledger, and adds a finding for each
    /// difference.
    ///
    /// # Errors
    /// Returns an error if either store cannot be read.
    fn compare(&self, ledger: &Ledger, report: &mut LedgerAuditReport) -> Result<(), StoreError>;
}
