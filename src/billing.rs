//! The billing service: quote → hold → settle or release; balances, receipts, grants; journal
//! replay at start.
//!
//! Three steps in this order make a bill correct. The gateway reserves credits before it calls the
//! vendor. It journals the ending before the client receives the last byte. The ledger has the
//! ending within milliseconds. Read `crates/credits/src/pricing.rs` (what a request costs),
//! `billing/quote.rs` (the worst case of a request), `billing/holds.rs` (whether the account may
//! spend it), `crates/ledger/src/journal.rs` and `billing/ledger_writer.rs` (each request counts
//! once, whichever process dies), `billing/service.rs` (what one process has of all this); for many
//! edges with one shared store, `shared_credit.rs`. Must not know HTTP.

mod account_usage;
pub mod activity;
pub mod admission;
pub mod backlog;
mod backup;
mod balance;
pub mod corrections;
mod embedded;
pub mod estimate;
mod funds;
mod handover;
mod hold;
pub mod holds;

pub mod json;
mod lapse_clock;
mod ledger_writer;
mod open_holds;
pub mod overview;
pub mod quote;
mod receipt;
pub mod reported_turns;
mod reserve;
mod retention;
mod service;
mod settle;
pub mod shared_balances;
pub mod statement;
#[cfg(test)]
mod tests;
pub mod usage;
pub mod usage_report;
mod views;

pub use backup::Backup;
pub(crate) use balance::CreditSnapshot;
pub use balance::{Balance, PostedFunds, TrialState};
use credits::limits::Period;
use credits::money::CreditSplit;
use credits::trial::Trial;
pub use embedded::EmbeddedAdmission;
pub(crate) use hold::record_metrics;
pub use hold::{HeldRequest, Hold, HoldEnd, HoldRequest, HoldStore};
pub use holds::{PendingRequests, ReserveError};
pub(crate) use lapse_clock::LapseClock;
use ledger::StoreError;
pub use ledger::audit::{
    Audit, AuditProgress, AuditScope, AuditStart, AuditStep, CpuShare, Finding, LedgerAuditReport,
    verify_accounts, verify_missing_ledger,
};
use ledger::{KeySpend, Ledger};
pub use open_holds::OpenHolds;
pub use receipt::Receipt;
pub use service::Billing;
use std::time::Duration;
pub use views::{BillingPages, BillingUpkeep, Corrections, Receipts, UsageReports};

/// Longest wait of an audit for somebody who seals: a round over ten million entries takes minutes.
const SEALING_TIMEOUT: Duration = Duration::from_secs(600);
/// How often an audit begins, if entries are sealed for the first time while it runs.
const MAX_AUDITS: u32 = 3;

impl Billing {
    /// The ledger, for what opens accounts in it.
    pub fn ledger(&self) -> &Ledger {
        &self.0.ledger
    }

    /// Opens the ledger account with its sign-up grant.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be written.
    pub fn open_account(
        &self,
        account: &str,
        trial: Option<Trial>,
        now_ms: i64,
    ) -> Result<(), StoreError> {
        self.0
            .ledger
            .rows()
            .open_account_with_trial(account, trial, now_ms)
    }

    /// Returns the credits that a key has spent in the period that contains `now_ms` and in total,
    /// and when it was last used. The figures come from the ledger, which lags by a few
    /// milliseconds.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn key_spend(
        &self,
        key_id: &str,
        period: Period,
        now_ms: i64,
    ) -> Result<KeySpend, StoreError> {
        self.0
            .ledger
            .rows()
            .key_spend(key_id, period.first_day(now_ms), "")
    }

    /// # Errors
    /// Returns an error if the store cannot be read or the account is not open.
    pub fn balance(&self, account: &str, now_ms: i64) -> Result<Balance, StoreError> {
        let credit = match self.0.serving.as_ref().filter(|_| !self.has_handed_over()) {
            Some(serving) => serving.holds.snapshot(&self.0.ledger, account, now_ms)?,
            None => {
                let claims = self.claims_of_others(account)?;
                let held = claims
                    .iter()
                    .fold(CreditSplit::default(), |held, claim| held.plus(claim.held));
                let row = self.0.ledger.rows().account(account, "")?;
                row.map(|row| {
                    CreditSnapshot::from_row(row, held, CreditSplit::default(), 0, now_ms)
                })
            }
        };
        let credit = credit.ok_or_else(|| {
            StoreError::Unusable(format!("account {account} is not in the ledger"))
        })?;
        Ok(credit.balance_at(now_ms))
    }

    /// Returns the balance as the ledger has it, with one read: it can lack what was settled in the
    /// last moments. `None` if the account is not open.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn posted_funds(
        &self,
        account: &str,
        now_ms: i64,
    ) -> Result<Option<PostedFunds>, StoreError> {
        let row = self.0.ledger.rows().account(account, "")?;
        Ok(row.map(|row| PostedFunds::from_row(row, now_ms)))
    }

    /// Recomputes every debit and checks every invariant.
    ///
    /// # Errors
    /// Returns an error if the ledger or the shared store cannot be read. A violated invariant is a
    /// finding, not an error.
    pub fn verify(&self, now_ms: i64) -> Result<LedgerAuditReport, StoreError> {
        self.verify_with_progress(now_ms, AuditScope::Everything, CpuShare::FULL, &mut |_| ())
    }

    /// Like [`Self::verify`], with at most this share of a core; calls `on_progress` after each
    /// slice of work.
    ///
    /// # Errors
    /// As for [`Self::verify`].
    pub fn verify_with_progress(
        &self,
        now_ms: i64,
        scope: AuditScope,
        share: CpuShare,
        on_progress: &mut dyn FnMut(AuditProgress),
    ) -> Result<LedgerAuditReport, StoreError> {
        let (ledger, data_dir) = (&self.0.ledger, &self.0.data_dir);
        let _pause = ledger.segments().pause_sealing(SEALING_TIMEOUT)?;
        let mut attempts = 0;
        let mut report = loop {
            let start = AuditStart::after_segments(ledger)?;
            let audit = Audit {
                ledger,
                data_dir,
                now_ms,
                start: &start,
                scope,
                share,
                // Before the ledger: it must have all of them.
                granted: accounts::db::granted_accounts(data_dir)?,
            };
            let report = ledger::audit::verify(audit, on_progress)?;
            attempts += 1;
            // Entries that were sealed meanwhile are missing where the audit looked for them.
            if attempts == MAX_AUDITS || AuditStart::sealed_head(ledger)? == start.head {
                break report;
            }
        };
        if let Some(shared) = &self.0.shared {
            shared.compare(&self.0.ledger, &mut report)?;
        }
        Ok(report)
    }

    /// Makes anew from the entries what pages and limits read (`index.db`, and the spending of
    /// keys); entries and balances do not change. `on_entries` gets the number of entries read so
    /// far. Returns the number of wrong rows, up to a maximum.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read or written.
    pub fn reindex(&self, on_entries: &mut dyn FnMut(u64)) -> Result<usize, StoreError> {
        Ok(self
            .0
            .ledger
            .index()
            .reindex(ledger::audit::MAX_AGGREGATES_CHECKED, on_entries)?
            .len())
    }
}
