//! What an operator may post: grants, refunds, adjustments. Beside a gateway that serves, or inside one.
//!
//! Must not look at prices: a refund gives back what was taken, whatever the price is today.

use super::Billing;
use crate::money::Micro;
use crate::store::StoreError;
use crate::store::ledger::{Change, Posted, Refund};

impl Billing {
    /// Grants credit, once per reference: false where it had been granted.
    ///
    /// # Errors
    /// The reference was used for something else, the account is not open, or the ledger cannot be written.
    pub fn grant(&self, account: &str, amount: Micro, reference: &str, now_ms: i64) -> Result<bool, StoreError> {
        let (reference, reason, at_ms) = (named(reference)?, None, now_ms);
        if !amount.is_positive() {
            return Err(StoreError::Refused(format!("grant {amount}: the amount must be above 0")));
        }
        let change = Change { reference, account, amount, reason, at_ms };
        Ok(self.0.ledger.change(&change, "", || Ok(Vec::new()))?.is_new)
    }

    /// Gives back what a request was debited, or a part of it, once per reference; `None` is all that is left of it.
    ///
    /// # Errors
    /// There is no such debit, or all refunds together would pass it, or the reference was used for something else, or
    /// the ledger cannot be written.
    pub fn refund(
        &self,
        request_id: &str,
        amount: Option<Micro>,
        reference: &str,
        now_ms: i64,
    ) -> Result<Posted, StoreError> {
        let refund = Refund { reference: named(reference)?, request_id, amount, at_ms: now_ms };
        self.0.ledger.refund(&refund)
    }

    /// Corrects a balance by hand, once per reference. What is taken is taken from what is free: never from a running
    /// request's hold, in whatever process, never below zero.
    ///
    /// # Errors
    /// The account cannot bear it, or the reference was used for something else, or the ledger cannot be written.
    pub fn adjust(
        &self,
        account: &str,
        amount: Micro,
        reference: &str,
        reason: &str,
        now_ms: i64,
    ) -> Result<Posted, StoreError> {
        if amount == Micro::ZERO || reason.trim().is_empty() {
            let message = format!("adjust account {account} by {amount}: it needs an amount other than 0 and a reason");
            return Err(StoreError::Refused(message));
        }
        let (reference, reason, at_ms) = (named(reference)?, Some(reason), now_ms);
        let change = Change { reference, account, amount, reason, at_ms };
        if amount.is_positive() {
            return self.0.ledger.change(&change, "", || Ok(Vec::new()));
        }
        let change_here = |told| self.0.ledger.change(&change, self.boot(), || Ok(vec![told]));
        let serving = self.0.serving.as_ref();
        let here = serving.and_then(|serving| serving.holds.frozen(&self.0.ledger, account, change_here));
        here.unwrap_or_else(|| self.take_as_guest(&change))
    }
}

fn named(reference: &str) -> Result<&str, StoreError> {
    if reference.trim().is_empty() || reference.chars().any(char::is_control) {
        return Err(StoreError::Refused("a reference must be a text without control characters".into()));
    }
    Ok(reference)
}
