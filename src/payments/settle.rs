//! Applies the provider's events: a paid order gets its credits, and a refund or a dispute takes
//! them back.
//!
//! Every change is a ledger entry whose reference depends on the payment, so it counts once, even
//! if several processes post it. `app.db` is updated afterwards. This file must not take the
//! account, amount or credits from an event, but only from the order.

use super::error::PaymentError;
use super::provider::{
    Checkout, CheckoutState, Dispute, DisputeOutcome, EventSubject, PaymentProvider, ProviderEvent,
};
use super::service::Payments;
use crate::notify::alerts::{FiredRule, NoticeAudience, PaymentNotice};
use accounts::AccountStatus;
use accounts::db::PaymentRows;
use accounts::db::audit::AuditEntry;
use accounts::db::payments::{OrderRow, OrderState};
use base::failpoint::{self, Point};
use config::payments::write_money;
use credits::money::Micro;
use ledger::{
    BalanceChange, BalanceChangeKind, DISPUTE_RETURNED, EntryReference, PostingResult, StoreError,
};
use serde_json::json;
use std::sync::{Mutex, PoisonError};

/// Lock by which one payment is settled at a time, so that its entries are counted and extended in
/// one step. The references keep two processes from posting the same entry.
static SETTLING: Mutex<()> = Mutex::new(());

/// Maximum number of attempts to take credits back. Another process may take credits of the same
/// payment at the same time.
const MAX_ATTEMPTS: u32 = 5;

/// Time in ms until the first poll of a paid order. An event about a refund can be lost too.
const PAID_POLL_MS: i64 = 24 * 3_600_000;

/// Actor in the audit log.
const ACTOR: &str = "payments";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventOutcome {
    Handled,
    /// The event was handled before.
    Known,
    /// The event does not concern the gateway.
    Ignored,
}

impl Payments {
    /// Handles an event whose signature was checked.
    ///
    /// # Errors
    /// Returns [`PaymentError::NotYet`] if the event must come again, and an error if a database
    /// fails.
    pub fn handle_event(
        &self,
        event: &ProviderEvent,
        now_ms: i64,
    ) -> Result<EventOutcome, PaymentError> {
        let settings = self.settings().ok_or(PaymentError::Off)?;
        if event.subject == EventSubject::Other {
            return Ok(EventOutcome::Ignored);
        }
        if settings
            .is_live
            .is_some_and(|is_live| is_live != event.is_live)
        {
            log::error!(
                "payments: ignored the event {}, which is of another mode (live or test) than secret_key",
                event.id
            );
            return Ok(EventOutcome::Ignored);
        }
        if self.rows().is_event_handled(&event.id)? {
            return Ok(EventOutcome::Known);
        }
        let provider = self.provider(&settings);
        match &event.subject {
            EventSubject::Checkout(checkout) => {
                let order = self.checkout_order(checkout)?;
                self.apply_checkout(&order.id, checkout, &*provider, now_ms)?;
            }
            EventSubject::Refund { payment, refunded } => {
                if let Some(order) = self.paid_order(&provider.reference(payment))? {
                    self.apply_refund(&order, *refunded, now_ms)?;
                }
            }
            EventSubject::Dispute { payment, dispute } => {
                if let Some(order) = self.paid_order(&provider.reference(payment))? {
                    self.apply_dispute(&order, dispute, now_ms)?;
                }
            }
            EventSubject::Other => {}
        }
        // The mark comes last, because a marked event is not handled again.
        self.rows().mark_event_handled(&event.id, now_ms)?;
        Ok(EventOutcome::Handled)
    }

    fn rows(&self) -> PaymentRows<'_> {
        self.accounts.database().payments()
    }

    /// Returns the order of a checkout. An order that ended before its checkout was stored is found
    /// by its id, because the provider sends events of that checkout too.
    fn checkout_order(&self, checkout: &Checkout) -> Result<OrderRow, PaymentError> {
        if let Some(order) = self.rows().order_by_checkout(&checkout.id)? {
            return Ok(order);
        }
        if let Some(id) = &checkout.order
            && self.rows().adopt_checkout(id, &checkout.id)?
            && let Some(order) = self.rows().order(id)?
        {
            return Ok(order);
        }
        let message = format!("no order has the checkout {}", checkout.id);
        Err(PaymentError::NotYet(message))
    }

    /// Returns the order of a payment whose credits are in the ledger. `None` if the payment bought
    /// no credits, because it differed from its order.
    fn paid_order(&self, reference: &str) -> Result<Option<OrderRow>, PaymentError> {
        match self.rows().order_by_payment(reference)? {
            Some(order) if order.state == OrderState::Refused => Ok(None),
            Some(order) if order.state == OrderState::Paid => Ok(Some(order)),
            _ => Err(PaymentError::NotYet(format!(
                "no paid order has the payment {reference}"
            ))),
        }
    }

    /// Applies the provider's report about the checkout of an order.
    pub(super) fn apply_checkout(
        &self,
        order: &str,
        checkout: &Checkout,
        provider: &dyn PaymentProvider,
        now_ms: i64,
    ) -> Result<(), PaymentError> {
        self.apply_state(order, checkout, provider, now_ms)?;
        let find = || self.rows().order(order);
        let Some(paid) = find()?.filter(|order| order.state == OrderState::Paid) else {
            return Ok(());
        };
        if let Some(refunded) = checkout.refunded.filter(|refunded| *refunded > 0) {
            self.apply_refund(&paid, refunded, now_ms)?;
        }
        for dispute in &checkout.disputes {
            // The order is read again, because the previous dispute may have changed it.
            if let Some(paid) = find()? {
                self.apply_dispute(&paid, dispute, now_ms)?;
            }
        }
        Ok(())
    }

    /// Applies the state of a checkout to its order.
    fn apply_state(
        &self,
        order: &str,
        checkout: &Checkout,
        provider: &dyn PaymentProvider,
        now_ms: i64,
    ) -> Result<(), PaymentError> {
        let _settling = SETTLING.lock().unwrap_or_else(PoisonError::into_inner);
        let order = self
            .rows()
            .order(order)?
            .ok_or_else(|| PaymentError::NotYet(format!("there is no order {order}")))?;
        let state = match checkout.state {
            _ if order.state == OrderState::Paid => return Ok(()),
            CheckoutState::Open => return Ok(()),
            CheckoutState::Paid => return self.credit(&order, checkout, provider, now_ms),
            CheckoutState::Processing => OrderState::Processing,
            CheckoutState::Expired => OrderState::Expired,
            CheckoutState::Failed => OrderState::Failed,
        };
        // An event can be outdated, so a payment in progress does not return to waiting.
        if order.state.is_waiting() {
            if state == OrderState::Failed {
                let amount = write_money(&order.currency, order.amount);
                let text = format!("The payment of {amount} failed. Nothing was charged.");
                let audience = NoticeAudience::Account(&order.account);
                self.notify(FiredRule::PaymentFailed, audience, &order, &text, now_ms);
            }
            self.rows().set_order_state(&order.id, state, "")?;
        }
        Ok(())
    }

    /// Posts the credits of a paid order.
    fn credit(
        &self,
        order: &OrderRow,
        checkout: &Checkout,
        provider: &dyn PaymentProvider,
        now_ms: i64,
    ) -> Result<(), PaymentError> {
        let payment = checkout.payment.as_deref();
        let Some(reference) = payment.map(|payment| provider.reference(payment)) else {
            return self.refuse(order, "the checkout has no payment", now_ms);
        };
        // A payment that is refused next is claimed too, so that an event about its refund finds
        // the order.
        let is_claimed = self.rows().claim_payment(&order.id, &reference)?;
        if let Some(difference) = difference(order, checkout) {
            return self.refuse(order, &difference, now_ms);
        }
        if !is_claimed {
            let difference = "another order or another payment has this payment";
            return self.refuse(order, difference, now_ms);
        }
        let change = |kind, amount| BalanceChange {
            kind,
            reference: &reference,
            account: &order.account,
            amount,
            actor: None,
            at_ms: now_ms,
        };
        let corrections = self.billing.corrections();
        let order_id = &order.id;
        let kind = BalanceChangeKind::Purchase { order: order_id };
        let posted = match corrections.post_change(&change(kind, order.credits)) {
            // An operator has posted this reference by hand, so only people can tell whether it was
            // this payment.
            Err(StoreError::ReferenceUsed(message)) => return self.refuse(order, &message, now_ms),
            posted => posted?,
        };
        if order.bonus.is_positive() {
            let kind = BalanceChangeKind::Bonus { order: order_id };
            corrections.post_change(&change(kind, order.bonus))?;
        }
        failpoint::hit(Point::PaymentEntered);
        let status = self.accounts.find(&order.account)?.map(|it| it.status);
        let note = match status {
            Some(AccountStatus::Active) => "",
            Some(AccountStatus::Suspended) => "The account was suspended when the payment arrived.",
            Some(AccountStatus::Deleted) | None => {
                "The account was deleted when the payment arrived: refund the payment."
            }
        };
        let next_poll_ms = now_ms + PAID_POLL_MS;
        self.rows()
            .mark_paid(&order.id, checkout.tax, note, now_ms, next_poll_ms)?;
        if posted.is_new {
            log::info!(
                "payments: order {} of account {} is paid: {} credits",
                order.id,
                order.account,
                order.credits.plus(order.bonus)
            );
        }
        Ok(())
    }

    /// Refuses to credit a payment that differs from its order.
    fn refuse(&self, order: &OrderRow, difference: &str, now_ms: i64) -> Result<(), PaymentError> {
        log::error!(
            "payments: order {} is paid and not credited: {difference}; look at the payment at the provider",
            order.id
        );
        if order.state != OrderState::Refused {
            let text = format!("Order {} is paid and not credited: {difference}.", order.id);
            let audience = NoticeAudience::Operators;
            self.notify(FiredRule::PaymentRefused, audience, order, &text, now_ms);
        }
        self.rows()
            .set_order_state(&order.id, OrderState::Refused, difference)?;
        Ok(())
    }

    /// Sends a notice about an order. The caller sends it before it stores the change that the
    /// notice is about: a crash between the two repeats the notice, which the alert's period then
    /// suppresses.
    fn notify(
        &self,
        rule: FiredRule,
        audience: NoticeAudience<'_>,
        order: &OrderRow,
        text: &str,
        now_ms: i64,
    ) {
        let notice = PaymentNotice {
            rule,
            audience,
            period: order.created_at_ms,
            text,
            order: Some(&order.id),
        };
        notice.send(&self.accounts, &self.settings.load(), now_ms);
    }

    /// Takes back the credits of a refunded amount. The total so far is `refunded`, in minor units.
    pub(super) fn apply_refund(
        &self,
        order: &OrderRow,
        refunded: i64,
        now_ms: i64,
    ) -> Result<(), PaymentError> {
        let _settling = SETTLING.lock().unwrap_or_else(PoisonError::into_inner);
        let payment = order.payment.as_deref().unwrap_or_default();
        for _ in 0..MAX_ATTEMPTS {
            let totals = self.billing.ledger().changes().payment_totals(payment)?;
            let due = share(order, refunded)
                .minus(totals.refunded)
                .min(totals.left());
            if !due.is_positive() {
                self.rows().set_refunded(&order.id, refunded)?;
                return self.suspend_if_spent(order, now_ms);
            }
            let posted = self.post_clawback(
                order,
                BalanceChangeKind::PaymentRefund { payment },
                &format!("{payment}:{}", totals.refunds),
                due,
                now_ms,
            );
            match posted {
                // Another process has posted this number, or has taken the rest.
                Err(StoreError::ReferenceUsed(_) | StoreError::Refused(_)) | Ok(_) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let message = format!("the refund of order {} could not be entered yet", order.id);
        Err(PaymentError::NotYet(message))
    }

    /// Takes the credits of a disputed payment, and returns them if the dispute was won.
    fn apply_dispute(
        &self,
        order: &OrderRow,
        dispute: &Dispute,
        now_ms: i64,
    ) -> Result<(), PaymentError> {
        if dispute.outcome == DisputeOutcome::Inquiry {
            return Ok(());
        }
        self.enter_dispute(order, dispute, now_ms)?;
        // A refund that arrived while the dispute had taken all credits takes them now.
        match self.rows().order(&order.id)? {
            Some(order) => self.apply_refund(&order, order.refunded, now_ms),
            None => Ok(()),
        }
    }

    fn enter_dispute(
        &self,
        order: &OrderRow,
        dispute: &Dispute,
        now_ms: i64,
    ) -> Result<(), PaymentError> {
        let _settling = SETTLING.lock().unwrap_or_else(PoisonError::into_inner);
        let payment = order.payment.as_deref().unwrap_or_default();
        let reference = format!("{payment}:{}", dispute.id);
        let find = |reference: &str| {
            let kind = "dispute";
            let entry = EntryReference::Posting { kind, reference };
            self.billing.ledger().rows().entry(entry)
        };
        // The entry is posted before a won dispute too, so that its earlier event changes nothing
        // if it arrives later.
        if find(&reference)?.is_none() {
            let totals = self.billing.ledger().changes().payment_totals(payment)?;
            let due = share(order, dispute.amount).min(totals.left());
            if due.is_positive() {
                if dispute.outcome == DisputeOutcome::Taken {
                    let amount = write_money(&order.currency, dispute.amount);
                    let text = format!("The bank has taken {amount} of order {} back.", order.id);
                    let audience = NoticeAudience::Operators;
                    self.notify(FiredRule::PaymentDisputed, audience, order, &text, now_ms);
                }
                let kind = BalanceChangeKind::Dispute { payment };
                self.post_clawback(order, kind, &reference, due, now_ms)?;
            }
        }
        // Written-off credits were spent, so they are not returned.
        if dispute.outcome == DisputeOutcome::Won
            && let Some(taken) = find(&reference)?
        {
            self.billing.corrections().post_change(&BalanceChange {
                kind: BalanceChangeKind::Dispute { payment },
                reference: &format!("{reference}{DISPUTE_RETURNED}"),
                account: &order.account,
                amount: Micro::ZERO.minus(taken.change()),
                actor: None,
                at_ms: now_ms,
            })?;
        }
        self.suspend_if_spent(order, now_ms)
    }

    fn post_clawback(
        &self,
        order: &OrderRow,
        kind: BalanceChangeKind<'_>,
        reference: &str,
        amount: Micro,
        now_ms: i64,
    ) -> Result<PostingResult, StoreError> {
        self.billing.corrections().post_change(&BalanceChange {
            kind,
            reference,
            account: &order.account,
            amount: Micro::ZERO.minus(amount),
            actor: None,
            at_ms: now_ms,
        })
    }

    /// Suspends the account if credits of a payment were spent before the payment was reversed. An
    /// operator decides about the account afterwards.
    fn suspend_if_spent(&self, order: &OrderRow, now_ms: i64) -> Result<(), PaymentError> {
        let payment = order.payment.as_deref().unwrap_or_default();
        let totals = self.billing.ledger().changes().payment_totals(payment)?;
        if totals.written_off <= order.written_off {
            return Ok(());
        }
        let after = json!({
            "status": "suspended",
            "order": order.id,
            "written_off": totals.written_off,
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
            .suspend_for_writeoff(order, totals.written_off, &entry)?;
        log::warn!(
            "payments: account {} is suspended: order {} was taken back, and {} of its credits were spent",
            order.account,
            order.id,
            totals.written_off
        );
        Ok(())
    }
}

/// Returns the credits, including the bonus, for a part of an order's amount. The whole amount
/// yields all credits.
pub(super) fn share(order: &OrderRow, minor: i64) -> Micro {
    let all = order.credits.plus(order.bonus);
    let minor = minor.clamp(0, order.amount);
    let share = i128::from(all.get()) * i128::from(minor) / i128::from(order.amount.max(1));
    Micro::new(i64::try_from(share).unwrap_or(all.get()))
}

/// Describes the difference between a payment and its order.
fn difference(order: &OrderRow, checkout: &Checkout) -> Option<String> {
    let wrong = |what: &str, paid: &str, ordered: &str| {
        Some(format!("the {what} is {paid}, not {ordered}"))
    };
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    let amount = checkout.amount.unwrap_or_default();
    if text(&checkout.order) != order.id {
        return wrong("order", &text(&checkout.order), &order.id);
    }
    if text(&checkout.account) != order.account {
        return wrong("account", &text(&checkout.account), &order.account);
    }
    if text(&checkout.currency) != order.currency {
        return wrong("currency", &text(&checkout.currency), &order.currency);
    }
    match amount == order.amount {
        true => None,
        false => wrong("amount", &amount.to_string(), &order.amount.to_string()),
    }
}
