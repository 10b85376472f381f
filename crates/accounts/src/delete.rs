//! Deletes an account for its holder or an administrator. Deletion revokes the keys, ends the
//! sessions, and removes the e-mail, which becomes available again.
//!
//! The ledger keeps its entries, under an id that identifies nobody. Running requests are finished
//! and billed. `app.db` keeps a keyed hash of the e-mail if the account had a trial or was a member
//! of an organisation. This file must not depend on money.

use super::accounts::Accounts;
use super::audit::{Actor, AuditChange, AuditedAccounts};
pub use crate::db::account_lifecycle::CloseAccountOutcome;
use ledger::StoreError;
use serde_json::json;

impl Accounts {
    /// Deletes the account of `by`; see [`AuditedAccounts::delete_account`].
    ///
    /// # Errors
    /// Returns an error if the database fails; then nothing is changed.
    pub fn delete(&self, by: &Actor, now_ms: i64) -> Result<CloseAccountOutcome, StoreError> {
        self.delete_account_as(&by.actor, by, now_ms)
    }

    fn delete_account_as(
        &self,
        account: &str,
        by: &Actor,
        now_ms: i64,
    ) -> Result<CloseAccountOutcome, StoreError> {
        let change = deletion(account);
        let entry = change.to_entry(by, now_ms);
        self.db
            .people()
            .delete_account(account, &pseudonym(account), now_ms, &entry)
    }
}

pub(crate) fn deletion(account: &str) -> AuditChange {
    AuditChange::new("account.delete", account, &json!({"status": "deleted"}))
}

/// Returns what replaces the e-mail of a deleted account. It is not a valid e-mail, so nobody can
/// register it.
pub(crate) fn pseudonym(account: &str) -> String {
    format!("deleted-{account}")
}

impl AuditedAccounts<'_> {
    /// Deletes an account permanently, unless it is the last administrator's.
    ///
    /// # Errors
    /// Returns an error if the database fails; then nothing is changed or logged.
    pub fn delete_account(&self, account: &str) -> Result<CloseAccountOutcome, StoreError> {
        self.accounts
            .delete_account_as(account, self.by(), self.now_ms())
    }
}
