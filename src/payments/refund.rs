//! An operator refunds a payment: at the provider and in the ledger, in one action.
//!
//! The refund is a row before the provider is called. A repetition finds the row, and first asks
//! the provider what was paid back: so nothing is paid back twice, also after the provider has
//! forgotten the key of the request. `payments/clawback.rs` takes the credits back.

use super::error::PaymentError;
use super::provider::{ProviderError, Refunded};
use super::service::Payments;
use accounts::Actor;
use accounts::db::audit::{AuditEntry, AuditOutcome, OutcomeKind};
use accounts::db::payment_book::{InsertRefundOutcome, RefundRow};
use accounts::db::payments::{OrderRow, OrderState};
use base::clock::now_ms;
use config::PaymentSettings;
use config::payments::write_money;
use serde_json::json;
use sha2::{Digest as _, Sha256};
use std::fmt::Write as _;
use std::sync::Arc;

/// Reference of a refund of all that is left, if the operator names none.
pub const FULL_REFUND: &str = "full";

/// A refund that is done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PaymentRefund {
    pub order: OrderRow,
    pub refund: RefundRow,
    /// False if it was done before.
    pub is_new: bool,
}

impl Payments {
    /// Refunds a paid order, or a part of it, once per reference. `amount` is in minor units;
    /// `None` refunds all that is left. The audit log has the attempt and its outcome.
    ///
    /// # Errors
    /// Returns an error if there is no such paid order, if the amount is more than what is left, or
    /// if the provider or a database fails. Repeated with the same reference, the refund goes on.
    pub async fn refund_order(
        &self,
        by: &Actor,
        id: &str,
        amount: Option<i64>,
        reference: &str,
    ) -> Result<PaymentRefund, PaymentError> {
        let settings = self.settings().ok_or(PaymentError::Off)?;
        let (by, attempt) = (by.clone(), id.to_owned());
        let (order, what) = {
            let (id, reference) = (id.to_owned(), reference.to_owned());
            self.run(move |payments| payments.refundable(&id, amount, &reference))
                .await?
        };
        let entry = move |payments: &Self, outcome: Option<(i64, &AuditOutcome)>| {
            let entry = AuditEntry {
                at_ms: now_ms(),
                actor: &by.actor,
                address: &by.address,
                act: "payment.refund",
                object: &attempt,
                before: "",
                after: &what,
            };
            let rows = payments.accounts.database().audit();
            match outcome {
                None => rows.append_attempt(&entry),
                Some((seq, outcome)) => rows.append_outcome(seq, &entry, outcome).map(|()| seq),
            }
        };
        let begin = entry.clone();
        let seq = self.run(move |payments| begin(payments, None)).await?;
        let result = self.refund_once(&settings, order, amount, reference).await;
        let outcome = match &result {
            Ok(done) if done.is_new => AuditOutcome::DONE,
            Ok(_) => AuditOutcome::new(OutcomeKind::Repeated),
            Err(error) => AuditOutcome {
                why: error.to_string(),
                ..AuditOutcome::new(match error.is_refusal() {
                    true => OutcomeKind::Refused,
                    false => OutcomeKind::Failed,
                })
            },
        };
        let logged = self
            .run(move |payments| entry(payments, Some((seq, &outcome))))
            .await;
        if let Err(error) = logged {
            log::error!(
                "cannot record in the audit log what became of the refund of {id}: {error}"
            );
        }
        result
    }

    async fn refund_once(
        &self,
        settings: &Arc<PaymentSettings>,
        order: OrderRow,
        amount: Option<i64>,
        reference: &str,
    ) -> Result<PaymentRefund, PaymentError> {
        let provider = self.provider(settings);
        let (order, refund, is_repeated) = {
            let reference = reference.to_owned();
            self.run(move |payments| payments.begin_refund(order, amount, &reference))
                .await?
        };
        if refund.done_at_ms.is_some() {
            return Ok(PaymentRefund {
                order,
                refund,
                is_new: false,
            });
        }
        let (payment, checkout) = (
            order.payment.clone().unwrap_or_default(),
            order.checkout.clone().unwrap_or_default(),
        );
        let due = refund.refunded_before.saturating_add(refund.amount);
        let mut refunded = match is_repeated {
            true => provider.checkout(&checkout).await?.refunded.unwrap_or(0),
            false => refund.refunded_before,
        };
        if refunded < due {
            let key = idempotency_key("refund", &format!("{}:{}", order.id, refund.reference));
            let outcome = provider.refund(&payment, refund.amount, &key).await;
            if let Err(error @ ProviderError::Refused { .. }) = outcome {
                self.run(move |payments| {
                    let book = payments.accounts.database().payment_book();
                    book.drop_refund(&order.id, &refund.reference)
                })
                .await?;
                return Err(error.into());
            }
            outcome?;
            refunded = due;
        }
        self.run(move |payments| {
            let now_ms = now_ms();
            let all = Refunded {
                total: refunded,
                amount: order.amount,
                currency: order.currency.clone(),
            };
            payments.apply_reversals(&order.id, Some(&all), &[], now_ms)?;
            let database = payments.accounts.database();
            let book = database.payment_book();
            // Of repetitions at the same time, one finishes it.
            let is_new = book.finish_refund(&order.id, &refund.reference, now_ms)?;
            let order = database.payments().order(&order.id)?.unwrap_or(order);
            Ok::<_, PaymentError>(PaymentRefund {
                order,
                refund,
                is_new,
            })
        })
        .await
    }

    /// Returns a paid order, and what the audit log says about its refund.
    fn refundable(
        &self,
        id: &str,
        amount: Option<i64>,
        reference: &str,
    ) -> Result<(OrderRow, String), PaymentError> {
        let order = self.accounts.database().payments().order(id)?;
        let order = order.ok_or_else(|| {
            PaymentError::Unknown(format!("there is no payment with the id {id}"))
        })?;
        if order.state != OrderState::Paid {
            return Err(PaymentError::Conflict(format!(
                "the payment {id} is {}, not paid: there is nothing to refund here",
                order.state.name()
            )));
        }
        let what = json!({
            "account": order.account,
            "amount": amount.map(|minor| write_money(&order.currency, minor)),
            "ref": reference,
        });
        Ok((order, what.to_string()))
    }

    /// Stores the refund. Returns it, and whether it was there before.
    fn begin_refund(
        &self,
        order: OrderRow,
        amount: Option<i64>,
        reference: &str,
    ) -> Result<(OrderRow, RefundRow, bool), PaymentError> {
        let (id, write) = (&order.id, |minor| write_money(&order.currency, minor));
        let book = self.accounts.database().payment_book();
        let (row, is_repeated) = match book.insert_refund(&order, reference, amount, now_ms())? {
            InsertRefundOutcome::New(row) => (row, false),
            InsertRefundOutcome::Known(row) if amount.is_none_or(|it| it == row.amount) => {
                (row, true)
            }
            InsertRefundOutcome::Known(row) => {
                return Err(PaymentError::ReferenceUsed(format!(
                    "the reference {reference} is that of another refund of this payment, of {}: use another one",
                    write(row.amount)
                )));
            }
            InsertRefundOutcome::Running(row) => {
                return Err(PaymentError::Conflict(format!(
                    "a refund of this payment with the reference {} has not finished: repeat that one first",
                    row.reference
                )));
            }
            InsertRefundOutcome::OverAmount { left: 0 } => {
                return Err(PaymentError::Conflict(format!(
                    "the payment {id} is refunded: nothing is left of it"
                )));
            }
            InsertRefundOutcome::OverAmount { left } => {
                return Err(PaymentError::Amount(format!(
                    "only {} of the payment {id} can be refunded",
                    write(left)
                )));
            }
        };
        Ok((order, row, is_repeated))
    }
}

/// Returns the key by which the provider knows a repetition of a request. The text may have letters
/// that a header must not.
pub(super) fn idempotency_key(what: &str, text: &str) -> String {
    let hash = Sha256::digest(text);
    hash.iter()
        .take(16)
        .fold(format!("{what}-"), |mut key, byte| {
            // Writing to a string never fails.
            let _ = write!(key, "{byte:02x}");
            key
        })
}
