//! What an operator may post: grants, top-ups, refunds, adjustments. Beside a gateway that serves,
//! or inside one.
//!
//! Must not look at prices: a refund gives back what was taken, whatever the price is today.

use super::{Billing, beside};
use crate::money::Micro;
use crate::store::StoreError;
use crate::store::ledger::{Change, ChangeKind, Posted, Refund};

/// A reference is a name, as of an invoice or a ticket: this long at most.
pub const REFERENCE_CHARS_MAX: usize = 200;
/// A reason is a few lines.
pub const REASON_CHARS_MAX: usize = 2_000;

impl Billing {
    /// Grants credit from the command line, once per reference: false where it had been granted.
    ///
    /// # Errors
    /// As [`Billing::change`].
    pub fn grant(
        &self,
        account: &str,
        amount: Micro,
        reference: &str,
        now_ms: i64,
    ) -> Result<bool, StoreError> {
        let kind = ChangeKind::Grant;
        Ok(self
            .change(&Change {
                kind,
                reference,
                account,
                amount,
                actor: None,
                at_ms: now_ms,
            })?
            .is_new)
    }

    /// Corrects a balance from the command line, once per reference.
    ///
    /// # Errors
    /// As [`Billing::change`].
    pub fn adjust(
        &self,
        account: &str,
        amount: Micro,
        reference: &str,
        reason: &str,
        now_ms: i64,
    ) -> Result<Posted, StoreError> {
        let kind = ChangeKind::Adjust { reason };
        self.change(&Change {
            kind,
            reference,
            account,
            amount,
            actor: None,
            at_ms: now_ms,
        })
    }

    /// Gives back from the command line what a request was debited.
    ///
    /// # Errors
    /// As [`Billing::give_back`].
    pub fn refund(
        &self,
        request_id: &str,
        amount: Option<Micro>,
        reference: &str,
        now_ms: i64,
    ) -> Result<Posted, StoreError> {
        self.give_back(&Refund {
            reference,
            request_id,
            amount,
            actor: None,
            at_ms: now_ms,
        })
    }

    /// Gives back what a request was debited, or a part of it, once per reference.
    ///
    /// # Errors
    /// There is no such debit, or all refunds together would pass it, or the reference was used for
    /// something else, or the ledger cannot be written.
    pub fn give_back(&self, refund: &Refund<'_>) -> Result<Posted, StoreError> {
        named(refund.reference)?;
        self.0.ledger.refund(refund)
    }

    /// Changes a balance by hand, once per reference. Grants and top-ups only give. What an
    /// adjustment takes is taken from what is free: never from a running request's hold, in
    /// whatever process, never below zero.
    ///
    /// # Errors
    /// The account cannot bear it or is not open, or the reference was used for something else, or
    /// the ledger cannot be written.
    pub fn change(&self, change: &Change<'_>) -> Result<Posted, StoreError> {
        named(change.reference)?;
        let Change {
            kind,
            account,
            amount,
            ..
        } = *change;
        match kind {
            ChangeKind::Adjust { reason } if amount == Micro::ZERO || !is_reason(reason) => {
                return Err(StoreError::Refused(format!(
                    "adjust account {account} by {amount}: it needs an amount other than 0, and a reason of at most {REASON_CHARS_MAX} characters"
                )));
            }
            ChangeKind::Grant | ChangeKind::TopUp if !amount.is_positive() => {
                let message = format!(
                    "post a {} of {amount}: the amount must be above 0",
                    kind.name()
                );
                return Err(StoreError::Refused(message));
            }
            _ => {}
        }
        if amount.is_positive() {
            // What is given needs no claim: nothing in this process has to stand still for it.
            return self.0.ledger.change(change, "", || Ok(Vec::new()));
        }
        if let Some(address) = &self.0.shared {
            return beside::take(&self.0.ledger, address, change);
        }
        let change_here = |told| self.0.ledger.change(change, self.boot(), || Ok(vec![told]));
        let serving = self.0.serving.as_ref();
        let here =
            serving.and_then(|serving| serving.holds.frozen(&self.0.ledger, account, change_here));
        here.unwrap_or_else(|| self.take_as_guest(change))
    }
}

/// A reference that can be told and looked for.
pub fn is_reference(text: &str) -> bool {
    !text.trim().is_empty()
        && text.chars().count() <= REFERENCE_CHARS_MAX
        && !text.chars().any(char::is_control)
}

pub fn is_reason(text: &str) -> bool {
    !text.trim().is_empty() && text.chars().count() <= REASON_CHARS_MAX
}

fn named(reference: &str) -> Result<(), StoreError> {
    if is_reference(reference) {
        return Ok(());
    }
    let message = format!(
        "a reference is a text of 1 to {REFERENCE_CHARS_MAX} characters without control characters"
    );
    Err(StoreError::Refused(message))
}
