//! Applies the provider's events: a paid order gets its credits. `payments/clawback.rs` takes them
//! back.
//!
//! Every change is a ledger entry whose reference depends on the payment, so it counts once, even
//! if several processes post it. `app.db` is updated afterwards. This file must not take the
//! account, amount or credits from an event, but only from the order.

use super::error::PaymentError;
use super::provider::{
    Checkout, CheckoutState, EventSubject, PaymentProvider, ProviderEvent, Refunded,
};
use super::service::Payments;
use crate::notify::alerts::{FiredRule, PaymentNotice};
use accounts::AccountStatus;
use accounts::db::PaymentRows;
use accounts::db::payments::{OrderRow, OrderState};
use base::failpoint::{self, Point};
use config::payments::write_money;
use ledger::{BalanceChange, BalanceChangeKind, StoreError};
use sha2::{Digest as _, Sha256};

/// Time in ms until the first poll of a paid order. An event about a refund can be lost too.
const PAID_POLL_MS: i64 = 24 * 3_600_000;

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
        let mark = event_mark(event);
        if self.rows().events().is_handled(&mark)? {
            return Ok(EventOutcome::Known);
        }
        let provider = self.provider(&settings);
        match &event.subject {
            EventSubject::Checkout(checkout) => {
                let order = self.checkout_order(checkout)?;
                self.apply_checkout(&order.id, checkout, &*provider, now_ms)?;
            }
            EventSubject::Setup(page) => {
                let rows = self.accounts.database().auto_topups();
                rows.poll_setup_now(page, now_ms)?;
            }
            EventSubject::Refund { payment, refunded } => {
                if let Some(order) = self.paid_order(&provider.reference(payment))? {
                    self.apply_reversals(&order.id, Some(refunded), &[], now_ms)?;
                }
            }
            EventSubject::Dispute { payment, dispute } => {
                if let Some(order) = self.paid_order(&provider.reference(payment))? {
                    let disputes = std::slice::from_ref(dispute);
                    self.apply_reversals(&order.id, None, disputes, now_ms)?;
                }
            }
            EventSubject::Other => {}
        }
        // The mark comes last, because a marked event is not handled again.
        self.rows().events().mark_handled(&mark, now_ms)?;
        Ok(EventOutcome::Handled)
    }

    pub(super) fn rows(&self) -> PaymentRows<'_> {
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
        match self.rows().order(order)? {
            Some(paid) if paid.state == OrderState::Paid => {
                let refunded = checkout.refunded.map(|total| Refunded {
                    total,
                    amount: checkout.amount.unwrap_or_default(),
                    currency: checkout.currency.clone().unwrap_or_default(),
                });
                self.apply_reversals(order, refunded.as_ref(), &checkout.disputes, now_ms)
            }
            _ => Ok(()),
        }
    }

    /// Applies the state of a checkout to its order.
    fn apply_state(
        &self,
        order: &str,
        checkout: &Checkout,
        provider: &dyn PaymentProvider,
        now_ms: i64,
    ) -> Result<(), PaymentError> {
        let _settling = self.lock_settling()?;
        let order = self
            .rows()
            .order(order)?
            .ok_or_else(|| PaymentError::NotYet(format!("there is no order {order}")))?;
        let state = match checkout.state {
            _ if order.state == OrderState::Paid => return Ok(()),
            CheckoutState::Open => return Ok(()),
            // The payment may have been refunded since it was refused, which an event about its
            // checkout does not say. The provider's answer to a poll does.
            CheckoutState::Paid
                if order.state == OrderState::Refused && checkout.refunded.is_none() =>
            {
                return Ok(self.rows().poll_refused_order(&order.id, now_ms)?);
            }
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
                self.notify(FiredRule::PaymentFailed, &order, &text, now_ms);
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
            self.notify(FiredRule::PaymentRefused, order, &text, now_ms);
        }
        self.rows()
            .set_order_state(&order.id, OrderState::Refused, difference)?;
        Ok(())
    }

    /// Sends a notice about an order. The caller sends it before it stores the change that the
    /// notice is about: a crash between the two repeats the notice, which the alert's period then
    /// suppresses.
    pub(super) fn notify(&self, rule: FiredRule, order: &OrderRow, text: &str, now_ms: i64) {
        let notice = PaymentNotice {
            rule,
            period: order.created_at_ms,
            text,
            account: Some(&order.account),
            order: Some(&order.id),
        };
        notice.send(&self.accounts, &self.settings.load(), now_ms);
    }
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

/// Returns the mark of a handled event: its id, and a hash of what it says. An event with a known
/// id that says something else is handled too.
fn event_mark(event: &ProviderEvent) -> String {
    let hash = Sha256::digest(format!("{:?}", event.subject));
    let start = hash.iter().take(8);
    start.fold(event.id.clone() + ":", |mark, byte| {
        mark + &format!("{byte:02x}")
    })
}
