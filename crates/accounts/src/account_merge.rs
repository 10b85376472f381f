//! Merges an account into another one for an operator: stores the merge, moves members and keys,
//! and deletes the account in the end. In between, the caller moves the credits.
//!
//! This file must not depend on money, except for the amount that the caller stores.

use super::audit::AuditedAccounts;
use super::error::AccountError;
use super::id::new_id;
use super::views::Merges;
use crate::db::account_lifecycle::CloseAccountOutcome;
use crate::db::account_merges::{MergeLines, MergePlan};
pub use crate::db::account_merges::{MovedParts, StoredMerge};
use crate::delete::{deletion, pseudonym};
use credits::money::Micro;
use ledger::StoreError;

impl Merges<'_> {
    /// Returns the merge by which an account (by id) ends or has ended.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn find(&self, from: &str) -> Result<Option<StoredMerge>, StoreError> {
        self.0.db.merges().find(from)
    }

    /// Returns the merge of an account (by id), and those into it that have not ended. Without an
    /// account, returns all that have not ended.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn list(&self, account: Option<&str>) -> Result<Vec<StoredMerge>, StoreError> {
        self.0.db.merges().list(account)
    }

    /// Stores the part of the credits that is moved next, before the ledger has an entry of it.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn set_part(&self, from: &str, part: u32, amount: Micro) -> Result<(), StoreError> {
        self.0.db.merges().set_part(from, part, amount)
    }
}

impl AuditedAccounts<'_> {
    /// Stores the merge of the account `from` (by id) into `to`, unless it was stored before. The
    /// same transaction makes the members of the organisation `from` members of the organisation
    /// `to`, with the role that gives least, no budget and all models, and moves the keys. There, a
    /// key stays with its member, and those without one become keys of `member`.
    ///
    /// # Errors
    /// Returns an error if a rule forbids it, or if the database fails; then nothing is changed.
    pub fn start_merge(
        &self,
        from: &str,
        to: &str,
        member: Option<&str>,
    ) -> Result<MovedParts, AccountError> {
        let plan = MergePlan { from, to, member };
        let lines = MergeLines {
            key: self.new_line("key.move", ""),
            member: self.new_line("organisation.add", to),
        };
        let new_id = || new_id("key_", self.now_ms());
        self.accounts.db.merges().start(&plan, &lines, new_id)?
    }

    /// Ends the merge of an account (by id), and deletes the account.
    ///
    /// # Errors
    /// Returns an error if the database fails; then nothing is changed or logged.
    pub fn end_merge(&self, from: &str) -> Result<CloseAccountOutcome, StoreError> {
        let change = deletion(from);
        let entry = self.audit_entry(&change);
        self.accounts
            .db
            .merges()
            .end(from, &pseudonym(from), &entry)
    }
}

#[cfg(test)]
mod tests;
