//! An account holder redeems a code for credits.
//!
//! `app.db` gives the code to one account, then the ledger enters the credits under the code's id,
//! then `app.db` learns of it. After a crash in between, the poller goes on. Nobody learns why a
//! code is not valid.

use super::error::PaymentError;
use super::service::Payments;
use accounts::db::audit::AuditEntry;
use accounts::db::codes::CodeRow;
use accounts::hash_code;
use credits::money::Micro;
use ledger::{BalanceChange, BalanceChangeKind};
use serde_json::json;

/// Codes that one look of the poller finishes.
const MAX_CLAIMED: u32 = 100;
/// Age from which on a redemption was interrupted.
const INTERRUPTED_MS: i64 = 60_000;

impl Payments {
    /// Whether account holders can redeem codes.
    pub fn takes_codes(&self) -> bool {
        self.settings.load().codes
    }

    /// Redeems a code for an account. Returns the credits.
    ///
    /// # Errors
    /// Returns `Conflict` if the code is not valid for the account, whatever the
    /// reason, and an error if a database fails.
    pub fn redeem(&self, account: &str, text: &str, now_ms: i64) -> Result<Micro, PaymentError> {
        if !self.takes_codes() {
            return Err(PaymentError::Off);
        }
        let rows = self.accounts.database().codes();
        let claimed = match hash_code(text) {
            Some(hash) => rows.claim_code(&hash, account, now_ms)?,
            None => None,
        };
        let code =
            claimed.ok_or_else(|| PaymentError::Conflict("this code is not valid".to_owned()))?;
        self.enter_code(&code, account, now_ms)?;
        Ok(code.credits)
    }

    /// Finishes redemptions that a crash interrupted.
    pub(super) fn finish_codes(&self, now_ms: i64) -> Result<(), PaymentError> {
        let rows = self.accounts.database().codes();
        for code in rows.claimed_codes(now_ms - INTERRUPTED_MS, MAX_CLAIMED)? {
            let account = code.redeemed_by.clone().unwrap_or_default();
            self.enter_code(&code, &account, now_ms)?;
        }
        Ok(())
    }

    fn enter_code(&self, code: &CodeRow, account: &str, now_ms: i64) -> Result<(), PaymentError> {
        let reference = code.id();
        self.billing.corrections().post_change(&BalanceChange {
            kind: BalanceChangeKind::Code,
            reference: &reference,
            account,
            amount: code.credits,
            actor: None,
            at_ms: now_ms,
        })?;
        let what = json!({
            "account": account, "credits": code.credits, "ref": reference, "batch": code.batch,
        });
        let audit_entry = AuditEntry {
            at_ms: now_ms,
            actor: account,
            address: "",
            act: "code.redeem",
            object: &reference,
            before: "",
            after: &what.to_string(),
        };
        let rows = self.accounts.database().codes();
        Ok(rows.mark_entered(&code.hash, &audit_entry)?)
    }
}
