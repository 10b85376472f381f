//! An account's end, by its holder: keys revoked, sessions ended, e-mail forgotten and free again.
//!
//! The ledger keeps its entries, under an id that names nobody; requests that run are finished and
//! billed. Of the e-mail of an account that had a trial a keyed hash is kept, so that its mailbox
//! gets no second one: whoever has `app.db` can try addresses against it, and nobody else. Must not
//! look at money.

use super::audit::Told;
use super::{Accounts, By, mailbox};
use crate::store::StoreError;
pub use crate::store::app::people::Closed;
use serde_json::json;
use sha2::{Digest, Sha256};

impl Accounts {
    /// Ends an account for ever; not that of the last administrator.
    ///
    /// # Errors
    /// The store failed; nothing is changed then.
    pub fn delete(&self, by: &By, now_ms: i64) -> Result<Closed, StoreError> {
        let account = &by.actor;
        let Some(row) = self.db.account(account)? else {
            return Ok(Closed::NoAccount);
        };
        let told = Told::new("account.delete", account, &json!({"status": "deleted"}));
        // Not an e-mail, so nobody can have or ever get it.
        let pseudonym = format!("deleted-{account}");
        let mailbox = self.past_trial(&row.email)?;
        self.db
            .delete_account(account, &pseudonym, &mailbox, now_ms, &told.by(by, now_ms))
    }

    /// Under what it is kept that a mailbox had its trial.
    pub(super) fn past_trial(&self, email: &str) -> Result<[u8; 32], StoreError> {
        let mailbox = mailbox::of(email).unwrap_or_else(|| email.to_owned());
        // The key is of fixed length and stands first: nothing can be appended to what is hashed
        // without knowing it.
        Ok(Sha256::new()
            .chain_update(self.db.past_trial_key()?)
            .chain_update(mailbox)
            .finalize()
            .into())
    }
}
