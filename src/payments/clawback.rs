//! Takes credits back whose payment was refunded or disputed, and returns those of a dispute that
//! was won.
//!
//! `app.db` first records what the provider has taken: the refunded total, and the amount of each
//! dispute. Then the ledger takes what it has not taken yet, as entries with numbered references,
//! so that this can be interrupted at every point and go on. An entry takes the credits that are
//! free, and writes off those that were spent. The credits that running requests hold are left: the
//! order is then `held`, its account may begin no requests, and the poller comes back every few
//! seconds. This file must not take an account or credits from an event, but only from the order.

use super::error::PaymentError;
use super::provider::{Dispute, DisputeOutcome, Refunded};
use super::service::Payments;
use crate::notify::alerts::FiredRule;
use accounts::db::audit::AuditEntry;
use accounts::db::payments::{ClawbackState, OrderRow};
use base::failpoint::{self, Point};
use config::payments::write_money;
use credits::money::Micro;
use ledger::{BalanceChange, BalanceChangeKind, PaymentTotals, ReversalTotals, StoreError};
use serde_json::json;
use std::fs::{File, OpenOptions};

/// Name of the file whose lock lets one thread of one process settle payments at a time.
const LOCK_FILE: &str = "payments.lock";

/// Maximum number of entries that one look posts for a refund or a dispute: a debit that a crash
/// has left in the shared store, a return, a debit, and what became free meanwhile.
const MAX_PARTS: u32 = 5;

/// Number of orders that the poller reads at a time.
const PAGE_ORDERS: u32 = 50;

/// Actor in the audit log.
pub(super) const ACTOR: &str = "payments";

/// All refunds of a payment, or one of its disputes.
#[derive(Debug, Clone, Copy)]
enum Reversal<'a> {
    Refunds,
    Dispute(&'a str),
}

impl Reversal<'_> {
    /// Returns what the ledger has taken for it so far.
    fn totals(self, totals: &PaymentTotals) -> ReversalTotals {
        match self {
            Self::Refunds => totals.refunds,
            Self::Dispute(id) => totals.disputes.get(id).copied().unwrap_or_default(),
        }
    }

    /// Returns the reference of its next entry.
    fn reference(self, payment: &str, entries: u32) -> String {
        match (self, entries) {
            (Self::Refunds, number) => format!("{payment}:{number}"),
            (Self::Dispute(id), 0) => format!("{payment}:{id}"),
            (Self::Dispute(id), number) => format!("{payment}:{id}:{number}"),
        }
    }
}

impl Payments {
    /// Waits for the lock by which one payment is settled at a time, so that its entries are
    /// counted and extended in one step. Commands settle payments too, in their own processes.
    pub(super) fn lock_settling(&self) -> Result<File, StoreError> {
        let path = self.billing.data_dir().join(LOCK_FILE);
        let lock = || {
            let mut options = OpenOptions::new();
            let file = options.create(true).append(true).open(path)?;
            file.lock().map(|()| file)
        };
        lock().map_err(|source| StoreError::io("lock payments.lock", source))
    }

    /// Applies what the provider reports about refunds and disputes of a paid order: `refunded` is
    /// the total so far, if it is known.
    ///
    /// # Errors
    /// Returns an error if a database or the shared store fails. What was recorded before is taken
    /// back by the poller then.
    pub(super) fn apply_reversals(
        &self,
        order: &str,
        refunded: Option<&Refunded>,
        disputes: &[Dispute],
        now_ms: i64,
    ) -> Result<(), PaymentError> {
        let _settling = self.lock_settling()?;
        let find = || {
            let found = self.rows().order(order)?;
            found.ok_or_else(|| PaymentError::NotYet(format!("there is no order {order}")))
        };
        let mut row = find()?;
        if row.clawback == ClawbackState::Open {
            // A crash may have left a debit in the shared store, which the ledger enters only while
            // the amounts are those of that time.
            self.take_back(&row, now_ms)?;
        }
        if let Some(refunded) = refunded {
            self.record_refund(&row, refunded, now_ms)?;
        }
        for dispute in disputes {
            self.record_dispute(&row, dispute, now_ms)?;
        }
        failpoint::hit(Point::ReversalRecorded);
        row = find()?;
        self.take_back(&row, now_ms)
    }

    /// Goes on with all orders whose credits are still to be taken back: because requests held
    /// them, or because the process died.
    pub(super) fn finish_clawbacks(&self, now_ms: i64) -> Result<(), StoreError> {
        let mut after = String::new();
        loop {
            let orders = self.rows().clawbacks().list_open(&after, PAGE_ORDERS)?;
            let Some(last) = orders.last() else {
                return Ok(());
            };
            after.clone_from(last);
            for order in &orders {
                if let Err(error) = self.apply_reversals(order, None, &[], now_ms) {
                    log::warn!(
                        "payments: cannot take back the credits of order {order}: {error}; trying again"
                    );
                }
            }
        }
    }

    /// Records a refund. One that does not fit the order changes nothing.
    fn record_refund(
        &self,
        order: &OrderRow,
        refunded: &Refunded,
        now_ms: i64,
    ) -> Result<(), PaymentError> {
        let Refunded {
            total,
            amount,
            currency,
        } = refunded;
        if *currency == order.currency && *amount == order.amount && *total <= order.amount {
            return Ok(self.rows().clawbacks().set_refunded(&order.id, *total)?);
        }
        let text = format!(
            "The provider reports that {} of {} of the payment {} are refunded, and order {} is of {}: no credits were taken back.",
            write_money(currency, *total),
            write_money(currency, *amount),
            order.payment.as_deref().unwrap_or_default(),
            order.id,
            write_money(&order.currency, order.amount)
        );
        log::error!("payments: {text}");
        self.notify(FiredRule::PaymentsDiffer, order, &text, now_ms);
        Ok(self.rows().set_note(&order.id, &text)?)
    }

    /// Records a dispute. One of more than the payment, or in another currency, counts as one of
    /// the whole payment: banks convert amounts.
    fn record_dispute(
        &self,
        order: &OrderRow,
        dispute: &Dispute,
        now_ms: i64,
    ) -> Result<(), PaymentError> {
        let amount = match dispute.outcome {
            DisputeOutcome::Inquiry => return Ok(()),
            DisputeOutcome::Won => 0,
            DisputeOutcome::Taken => disputed_amount(order, dispute),
        };
        let known = order.disputes.get(&dispute.id);
        if amount > 0 && !known.is_some_and(|known| [0, amount].contains(known)) {
            let mut text = format!(
                "The bank has taken {} of order {} back.",
                write_money(&dispute.currency, dispute.amount),
                order.id
            );
            if dispute.currency != order.currency || dispute.amount > order.amount {
                let paid = write_money(&order.currency, order.amount);
                text += &format!(" It does not fit the payment of {paid}, all of which counts.");
                log::error!("payments: {text}");
                self.rows().set_note(&order.id, &text)?;
            }
            self.notify(FiredRule::PaymentDisputed, order, &text, now_ms);
        }
        let rows = self.rows().clawbacks();
        Ok(rows.set_disputed(&order.id, &dispute.id, amount)?)
    }

    /// Makes the ledger take what is due for the refunds and disputes of an order. The caller holds
    /// the lock.
    fn take_back(&self, order: &OrderRow, now_ms: i64) -> Result<(), PaymentError> {
        let mut is_done = true;
        let disputes = order.disputes.iter();
        let disputes = disputes.map(|(id, minor)| (Reversal::Dispute(id), *minor));
        // A dispute that was won leaves its credits to the refunds.
        for (reversal, minor) in disputes.chain([(Reversal::Refunds, order.refunded)]) {
            is_done &= self.take_back_for(order, reversal, order.share(minor), now_ms)?;
        }
        self.suspend_if_spent(order, now_ms)?;
        let state = match is_done {
            true => ClawbackState::None,
            false => ClawbackState::Held,
        };
        if state == ClawbackState::Held && order.clawback != state {
            log::info!(
                "payments: requests of account {} hold credits of order {}, which was taken back: it begins no requests until they have ended",
                order.account,
                order.id
            );
        }
        Ok(self.rows().clawbacks().set_state(&order.id, state)?)
    }

    /// Posts entries until the ledger has taken `target` credits for a reversal. Returns false if
    /// running requests hold the rest.
    fn take_back_for(
        &self,
        order: &OrderRow,
        reversal: Reversal<'_>,
        target: Micro,
        now_ms: i64,
    ) -> Result<bool, PaymentError> {
        let payment = order.payment.as_deref().unwrap_or_default();
        for _ in 0..MAX_PARTS {
            let totals = self.billing.ledger().changes().payment_totals(payment)?;
            let so_far = reversal.totals(&totals);
            let due = target.minus(so_far.requested).min(totals.left());
            let (kind, amount) = match reversal {
                // All that was taken is returned, and the right amount is taken then. Written-off
                // credits were spent, so they are not returned.
                Reversal::Dispute(_) if target < so_far.requested => {
                    (BalanceChangeKind::Dispute { payment }, so_far.taken())
                }
                _ if !due.is_positive() => return Ok(true),
                Reversal::Dispute(_) => {
                    let kind = BalanceChangeKind::Dispute { payment };
                    (kind, Micro::ZERO.minus(due))
                }
                Reversal::Refunds => {
                    let kind = BalanceChangeKind::PaymentRefund { payment };
                    (kind, Micro::ZERO.minus(due))
                }
            };
            let posted = self.billing.corrections().post_change(&BalanceChange {
                kind,
                reference: &reversal.reference(payment, so_far.entries),
                account: &order.account,
                amount,
                actor: None,
                at_ms: now_ms,
            });
            match posted {
                Err(StoreError::Held(_)) => return Ok(false),
                posted => posted?,
            };
            failpoint::hit(Point::CreditsTakenBack);
        }
        Ok(false)
    }

    /// Suspends the account if credits of a payment were spent before the payment was reversed. An
    /// operator decides about the account afterwards.
    fn suspend_if_spent(&self, order: &OrderRow, now_ms: i64) -> Result<(), PaymentError> {
        let payment = order.payment.as_deref().unwrap_or_default();
        let totals = self.billing.ledger().changes().payment_totals(payment)?;
        let written_off = totals.written_off();
        if written_off <= order.written_off {
            return Ok(());
        }
        let after = json!({
            "status": "suspended",
            "order": order.id,
            "written_off": written_off,
            "reason": "a payment was taken back after its credits were spent",
        });
        let entry = AuditEntry {
            at_ms: now_ms,
            actor: ACTOR,
            address: "",
            act: "account.suspend",
            object: &order.account,
            before: "",
            after: &after.to_string(),
        };
        self.rows()
            .clawbacks()
            .suspend_for_writeoff(order, written_off, &entry)?;
        log::warn!(
            "payments: account {} is suspended: order {} was taken back, and {written_off} of its credits were spent",
            order.account,
            order.id
        );
        Ok(())
    }
}

/// Returns how much of a payment a dispute has taken, in minor units.
pub(super) fn disputed_amount(order: &OrderRow, dispute: &Dispute) -> i64 {
    match dispute.currency == order.currency {
        true => dispute.amount.clamp(0, order.amount),
        false => order.amount,
    }
}
