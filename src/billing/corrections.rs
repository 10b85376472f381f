//! Implements the manual postings of an operator: grants, top-ups, refunds and adjustments. They
//! run inside a serving gateway or in another process beside it.
//!
//! This file must not use prices: a refund returns the debited amount, whatever the price is today.

use super::views::Corrections;
use credits::money::Micro;
use ledger::StoreError;
use ledger::{BalanceChange, BalanceChangeKind, Claim, PostingResult, Refund, TrialExtension};

/// Maximum length of a reference, such as the number of an invoice or a ticket.
pub const MAX_REFERENCE_CHARS: usize = 200;
/// Maximum length of a reason.
pub const MAX_REASON_CHARS: usize = 2_000;

impl Corrections<'_> {
    /// Grants credit from the command line, once per reference. Returns false if the reference was
    /// used before.
    ///
    /// # Errors
    /// Returns the errors of [`Self::post_change`].
    pub fn grant(
        &self,
        account: &str,
        amount: Micro,
        reference: &str,
        now_ms: i64,
    ) -> Result<bool, StoreError> {
        let kind = BalanceChangeKind::Grant;
        Ok(self
            .post_change(&BalanceChange {
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
    /// Returns the errors of [`Self::post_change`].
    pub fn adjust(
        &self,
        account: &str,
        amount: Micro,
        reference: &str,
        reason: &str,
        now_ms: i64,
    ) -> Result<PostingResult, StoreError> {
        let kind = BalanceChangeKind::Adjust { reason };
        self.post_change(&BalanceChange {
            kind,
            reference,
            account,
            amount,
            actor: None,
            at_ms: now_ms,
        })
    }

    /// Refunds a request's debit from the command line.
    ///
    /// # Errors
    /// Returns the errors of [`Self::post_refund`].
    pub fn refund(
        &self,
        request_id: &str,
        amount: Option<Micro>,
        reference: &str,
        now_ms: i64,
    ) -> Result<PostingResult, StoreError> {
        self.post_refund(&Refund {
            reference,
            request_id,
            amount,
            actor: None,
            at_ms: now_ms,
        })
    }

    /// Refunds a request's debit, or a part of it, once per reference.
    ///
    /// # Errors
    /// Returns an error if the debit does not exist, if all its refunds together would exceed it,
    /// if the reference was used for a different change, or if the ledger cannot be written.
    pub fn post_refund(&self, refund: &Refund<'_>) -> Result<PostingResult, StoreError> {
        check_reference(refund.reference)?;
        self.0.0.ledger.changes().refund(refund)
    }

    /// Moves the end of a running trial to a later time.
    ///
    /// # Errors
    /// Returns an error if the account has no running trial, if the trial already ends later, if a
    /// shared store decides about its end, or if the ledger cannot be written.
    pub fn extend_trial(&self, extension: &TrialExtension<'_>) -> Result<(), StoreError> {
        if self.0.0.shared.is_some() {
            let why = "a shared store has the ends of trials: grant credits instead".to_owned();
            return Err(StoreError::Refused(why));
        }
        self.0.0.ledger.changes().extend_trial(extension)
    }

    /// Returns the credits of an account that running requests hold, also those of edges that share
    /// a store.
    ///
    /// # Errors
    /// Returns an error if a store cannot be read or the account is not open.
    pub fn held(&self, account: &str, now_ms: i64) -> Result<Micro, StoreError> {
        match &self.0.0.shared {
            Some(shared) => shared.held(account),
            None => Ok(self.0.balance(account, now_ms)?.held),
        }
    }

    /// Changes a balance manually, once per reference. Grants and top-ups only add credit. A
    /// negative adjustment takes free credit only. It never uses the hold of a running request, and
    /// leaves no balance below zero.
    ///
    /// # Errors
    /// Returns an error if the account cannot cover the change or is not open, if the reference was
    /// used for a different change, or if the ledger cannot be written.
    pub fn post_change(&self, change: &BalanceChange<'_>) -> Result<PostingResult, StoreError> {
        check_reference(change.reference)?;
        let BalanceChange {
            kind,
            account,
            amount,
            ..
        } = *change;
        match kind {
            BalanceChangeKind::Adjust { reason }
                if amount == Micro::ZERO || !is_valid_reason(reason) =>
            {
                return Err(StoreError::Refused(format!(
                    "cannot adjust account {account} by {amount}: give an amount other than 0, and a reason of at most {MAX_REASON_CHARS} characters"
                )));
            }
            BalanceChangeKind::PaymentRefund { .. } if amount >= Micro::ZERO => {
                let message = format!("cannot post a refund of a payment of {amount}");
                return Err(StoreError::Refused(message));
            }
            BalanceChangeKind::Grant
            | BalanceChangeKind::TopUp
            | BalanceChangeKind::Code
            | BalanceChangeKind::Purchase { .. }
            | BalanceChangeKind::Bonus { .. }
                if !amount.is_positive() =>
            {
                let message = format!(
                    "cannot post a {} of {amount}: the amount must be above 0",
                    kind.name()
                );
                return Err(StoreError::Refused(message));
            }
            _ => {}
        }
        if amount >= Micro::ZERO {
            // Added credit needs no claim, so no account has to be frozen.
            return self
                .0
                .0
                .ledger
                .changes()
                .post_change(change, "", &|| Ok(Vec::new()));
        }
        if let Some(shared) = &self.0.0.shared {
            return shared.post_debit(&self.0.0.ledger, change);
        }
        let post = |held: Claim| {
            self.0
                .0
                .ledger
                .changes()
                .post_change(change, self.0.instance_id(), &|| Ok(vec![held.clone()]))
        };
        let holds = self.0.0.holds.as_ref();
        let posted =
            holds.and_then(|holds| holds.with_frozen_account(&self.0.0.ledger, account, post));
        posted.unwrap_or_else(|| self.0.post_debit_by_claim(change))
    }
}

/// Returns whether a text can be used as a reference, because it can be printed and searched for.
pub fn is_valid_reference(text: &str) -> bool {
    !text.trim().is_empty()
        && text.chars().count() <= MAX_REFERENCE_CHARS
        && !text.chars().any(char::is_control)
}

pub fn is_valid_reason(text: &str) -> bool {
    !text.trim().is_empty() && text.chars().count() <= MAX_REASON_CHARS
}

fn check_reference(reference: &str) -> Result<(), StoreError> {
    if is_valid_reference(reference) {
        return Ok(());
    }
    let message = format!(
        "a reference must have 1 to {MAX_REFERENCE_CHARS} characters and no control characters"
    );
    Err(StoreError::Refused(message))
}
