//! Moves a key to another account for an operator. The client keeps its key: from the next request
//! on, the other account's balance, limits and rules decide.
//!
//! The key gets a new id there, and the old id is revoked. So past entries, totals and receipts
//! stay with the old account, and its limits count anew. This file must not depend on money.

use super::audit::{AuditChange, AuditedAccounts};
use super::error::AccountError;
use super::id::new_id;
use crate::db::key_moves::KeyMove;
use serde_json::json;

impl AuditedAccounts<'_> {
    /// Moves a key (by id) to another account, in an organisation as the key of `member` (by id).
    /// Without one, it stays with the member or person who has it. Returns its new id.
    ///
    /// # Errors
    /// Returns an error if there is no such live key, if a rule forbids it, or if the database
    /// fails. The audit log has what was refused.
    pub fn move_key(
        &self,
        key: &str,
        to: &str,
        member: Option<&str>,
    ) -> Result<String, AccountError> {
        let new_id = new_id("key_", self.now_ms())?;
        let plan = KeyMove {
            key,
            to,
            member,
            new_id: &new_id,
        };
        let moved = self
            .accounts
            .db
            .keys()
            .move_key(&plan, &self.new_line("key.move", key))?;
        match moved {
            Ok(()) => Ok(new_id),
            Err(refusal) => {
                let what = json!({"account": to, "person": member});
                self.record_refusal(&AuditChange::new("key.move", key, &what), refusal)
            }
        }
    }
}

#[cfg(test)]
mod tests;
