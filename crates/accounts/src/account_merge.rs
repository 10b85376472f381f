//! Merges an account into another one for an operator: its members and keys. The caller moves the
//! credits, and deletes the account in the end.
//!
//! This file must not depend on money.

use super::audit::AuditedAccounts;
use super::error::AccountError;
use super::id::new_id;
pub use crate::db::account_merges::MovedParts;
use crate::db::account_merges::{MergeLines, MergePlan};

impl AuditedAccounts<'_> {
    /// Checks whether the account `from` (by id) can be merged into `to`.
    ///
    /// # Errors
    /// Returns an error if there is no such account, if a rule forbids it, or if the database
    /// fails.
    pub fn check_merge(
        &self,
        from: &str,
        to: &str,
        member: Option<&str>,
    ) -> Result<(), AccountError> {
        let plan = MergePlan { from, to, member };
        let refusal = self.accounts.db.people().find_merge_refusal(&plan)?;
        refusal.map_or(Ok(()), Err)
    }

    /// Makes the members of the organisation `from` (by id) members of the organisation `to`, with
    /// the role that gives least, no budget and all models, and moves the keys. There, a key stays
    /// with its member, and those without one become keys of `member`. A second call has nothing to
    /// move.
    ///
    /// # Errors
    /// Returns an error if a rule forbids it, or if the database fails; then nothing is moved.
    pub fn move_members_and_keys(
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
        let people = self.accounts.db.people();
        people.move_members_and_keys(&plan, &lines, new_id)?
    }
}

#[cfg(test)]
mod tests;
