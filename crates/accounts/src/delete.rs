//! Deletes an account for its holder or an administrator. Deletion revokes the keys, ends the
//! sessions, and removes the e-mail, which becomes available again.
//!
//! The ledger keeps its entries, under an id that identifies nobody. Running requests are finished
//! and billed. If the account had a trial, `app.db` keeps a keyed hash of its e-mail, so that its
//! mailbox gets no second trial. Only somebody with `app.db` can test addresses against this hash.
//! This file must not depend on money.

use super::accounts::Accounts;
use super::audit::{Actor, AuditChange, AuditedAccounts};
use super::mailbox;
pub use crate::db::account_lifecycle::CloseAccountOutcome;
use ledger::StoreError;
use serde_json::json;
use sha2::{Digest, Sha256};

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
        let Some(row) = self.db.people().account(account)? else {
            return Ok(CloseAccountOutcome::NoAccount);
        };
        let change = AuditChange::new("account.delete", account, &json!({"status": "deleted"}));
        // The pseudonym is not a valid e-mail, so nobody can register it.
        let pseudonym = format!("deleted-{account}");
        let mailbox = self.past_trial_hash(&row.email)?;
        self.db.people().delete_account(
            account,
            &pseudonym,
            &mailbox,
            now_ms,
            &change.to_entry(by, now_ms),
        )
    }

    /// Returns the hash which records that a mailbox had a trial.
    pub(crate) fn past_trial_hash(&self, email: &str) -> Result<[u8; 32], StoreError> {
        let mailbox = mailbox::canonical_address(email).unwrap_or_else(|| email.to_owned());
        // The secret key has a fixed length and comes first, so nobody can extend the hashed text
        // without the key.
        Ok(Sha256::new()
            .chain_update(self.db.people().past_trial_key()?)
            .chain_update(mailbox)
            .finalize()
            .into())
    }
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
