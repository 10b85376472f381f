//! An account's end, by its holder: keys revoked, sessions ended, e-mail forgotten and free again.
//!
//! The ledger keeps its entries, under an id that names nobody; requests that run are finished and billed. Must not look
//! at money.

use super::audit::Told;
use super::{Accounts, By};
use crate::store::StoreError;
use serde_json::json;

impl Accounts {
    /// Ends an account for ever. Says whether there was one to end.
    ///
    /// # Errors
    /// The store failed; nothing is changed then.
    pub fn delete(&self, by: &By, now_ms: i64) -> Result<bool, StoreError> {
        let account = &by.actor;
        let told = Told::new("account.delete", account, &json!({"status": "deleted"}));
        // Not an e-mail, so nobody can have or ever get it.
        self.db.delete_account(account, &format!("deleted-{account}"), now_ms, &told.by(by, now_ms))
    }
}
