//! Compares the provider's payments with the orders and their entries in the ledger, and names each
//! difference.
//!
//! It changes no order and no entry: an operator decides about a difference.

use super::clawback::disputed_amount;
use super::error::PaymentError;
use super::provider::{CheckoutState, Dispute, DisputeOutcome, ListedPayment, PaymentProvider};
use super::service::Payments;
use crate::notify::alerts::{FiredRule, PaymentNotice};
use accounts::db::payments::{ClawbackState, OrderRow, OrderState};
use config::payments::write_money;
use ledger::{PaymentTotals, ReversalTotals, StoreError};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::Arc;

const SECOND_MS: i64 = 1_000;
const HOUR_MS: i64 = 3_600 * SECOND_MS;
const DAY_MS: i64 = 24 * HOUR_MS;

/// Age of the newest payments of a comparison: younger ones may still be on their way.
const SETTLED_MS: i64 = HOUR_MS;
/// Days that the daily comparison covers, so that a day without an answer is made up for.
pub(super) const DAILY_DAYS: u32 = 3;
/// Maximum number of days of a comparison.
pub const MAX_DAYS: u32 = 366;
/// Maximum number of payments of a comparison.
const MAX_PAYMENTS: usize = 100_000;
/// How long results are kept.
const RETENTION_MS: i64 = 90 * DAY_MS;

/// The result of a comparison.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reconciliation {
    pub at_ms: i64,
    /// The payments that were begun in this span.
    pub from_ms: i64,
    pub to_ms: i64,
    /// Number of the provider's payments whose money has arrived, and of the orders paid here.
    pub payments: usize,
    pub orders: usize,
    pub differences: Vec<Difference>,
}

/// Something that the provider and the ledger do not agree about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// The order, if there is one.
    pub order: Option<String>,
    /// The provider's id of the payment, if there is one.
    pub payment: Option<String>,
    pub text: String,
}

impl Payments {
    /// Compares the payments of the last `days` days, and keeps the result.
    ///
    /// # Errors
    /// Returns an error if the provider cannot be read completely, or if a database fails.
    pub async fn reconcile(&self, days: u32, now_ms: i64) -> Result<Reconciliation, PaymentError> {
        let settings = self.settings().ok_or(PaymentError::Off)?;
        if !(1..=MAX_DAYS).contains(&days) {
            return Err(PaymentError::Amount(format!(
                "compare 1 to {MAX_DAYS} days"
            )));
        }
        let provider = self.provider(&settings);
        let (from_ms, to_ms) = (now_ms - i64::from(days) * DAY_MS, now_ms - SETTLED_MS);
        let listed = paid_between(&*provider, from_ms, to_ms).await?;
        let mut report = Reconciliation {
            at_ms: now_ms,
            from_ms,
            to_ms,
            payments: listed.len(),
            orders: 0,
            differences: Vec::new(),
        };
        let (mut report, unlisted) = {
            let provider = Arc::clone(&provider);
            self.run(move |payments| {
                let unlisted = payments.compare_listed(&listed, &*provider, &mut report)?;
                Ok::<_, StoreError>((report, unlisted))
            })
            .await?
        };
        // A payment can be begun before the span and be confirmed in it.
        for order in unlisted {
            let differences = self.compare_unlisted(order, &*provider).await?;
            report.differences.extend(differences);
        }
        let stored = report.clone();
        self.run(move |payments| {
            let text = serde_json::to_string(&stored).unwrap_or_default();
            let book = payments.accounts.database().payment_book();
            book.insert_reconciliation(now_ms, &text, now_ms - RETENTION_MS)
        })
        .await?;
        if !report.differences.is_empty() {
            self.notify_differences(report.differences.len(), now_ms)
                .await?;
        }
        Ok(report)
    }

    /// Looks for the payment of an order that the ledger has and the provider's list has not.
    async fn compare_unlisted(
        &self,
        order: OrderRow,
        provider: &dyn PaymentProvider,
    ) -> Result<Vec<Difference>, PaymentError> {
        let checkout = order.checkout.as_deref().unwrap_or_default();
        let found = provider.checkout(checkout).await?;
        let payment = found.payment.as_deref().map(|id| provider.reference(id));
        if found.state != CheckoutState::Paid || payment != order.payment {
            return Ok(vec![Difference {
                text: format!(
                    "{} are in the ledger as paid, and the provider does not have the payment",
                    write_money(&order.currency, order.amount)
                ),
                order: Some(order.id),
                payment: order.payment,
            }]);
        }
        let payment = ListedPayment {
            id: found.payment.unwrap_or_default(),
            order: found.order,
            amount: found.amount.unwrap_or_default(),
            currency: found.currency.unwrap_or_default(),
            refunded: found.refunded.unwrap_or_default(),
            is_disputed: !found.disputes.is_empty(),
            is_paid: true,
        };
        let disputes = found.disputes;
        self.run(move |payments| payments.compare(&order, &payment, &disputes))
            .await
    }

    /// Notifies the operator of differences, and logs them.
    async fn notify_differences(&self, count: usize, now_ms: i64) -> Result<(), PaymentError> {
        let text = format!("The payment provider and the ledger differ in {count} payments.");
        let (accounts, settings) = (self.accounts.clone(), self.settings.load_full());
        self.run(move |_| {
            let notice = PaymentNotice {
                rule: FiredRule::PaymentsDiffer,
                period: now_ms.div_euclid(DAY_MS),
                text: &text,
                account: None,
                order: None,
            };
            notice.send(&accounts, &settings, now_ms);
            Ok::<_, StoreError>(())
        })
        .await?;
        log::error!(
            "payments: {count} differences between the provider and the ledger: `model-gateway payments reconcile` names them"
        );
        Ok(())
    }

    /// Compares if the last comparison is a day old.
    pub(super) async fn reconcile_daily(&self, now_ms: i64) -> Result<(), PaymentError> {
        let last = self
            .run(move |payments| {
                let book = payments.accounts.database().payment_book();
                book.last_reconciliation()
            })
            .await?;
        if last.is_none_or(|(at_ms, _)| now_ms - at_ms >= DAY_MS || at_ms > now_ms) {
            self.reconcile(DAILY_DAYS, now_ms).await?;
        }
        Ok(())
    }

    /// Returns the latest result.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub fn last_reconciliation(&self) -> Result<Option<Reconciliation>, PaymentError> {
        let book = self.accounts.database().payment_book();
        let last = book.last_reconciliation()?;
        // Another version of the program may have written it otherwise.
        Ok(last.and_then(|(_, text)| serde_json::from_str(&text).ok()))
    }

    /// Compares the listed payments. Returns the orders to ask about: those paid in the span that
    /// are not among them, and those of disputed payments, because the list has no disputes.
    fn compare_listed(
        &self,
        listed: &[ListedPayment],
        provider: &dyn PaymentProvider,
        report: &mut Reconciliation,
    ) -> Result<Vec<OrderRow>, StoreError> {
        let rows = self.accounts.database().payments();
        let (mut seen, mut asked) = (BTreeSet::new(), Vec::new());
        for payment in listed {
            let reference = provider.reference(&payment.id);
            let order = rows
                .order_by_payment(&reference)?
                .filter(|order| order.state == OrderState::Paid);
            match order {
                Some(order) if payment.is_disputed => asked.push(order),
                Some(order) => report
                    .differences
                    .extend(self.compare(&order, payment, &[])?),
                None => report.differences.push(Difference {
                    order: payment.order.clone(),
                    payment: Some(payment.id.clone()),
                    text: format!(
                        "{} were paid, and the ledger has no credits for it",
                        write_money(&payment.currency, payment.amount)
                    ),
                }),
            }
            seen.insert(reference);
        }
        let book = self.accounts.database().payment_book();
        let limit = u32::try_from(MAX_PAYMENTS).unwrap_or(u32::MAX);
        let mut orders = book.orders_paid_between(report.from_ms, report.to_ms, limit)?;
        report.orders = orders.len();
        orders.retain(|order| {
            let payment = order.payment.as_deref().unwrap_or_default();
            !seen.contains(payment)
        });
        asked.append(&mut orders);
        Ok(asked)
    }

    /// Compares a payment with its order and its entries.
    fn compare(
        &self,
        order: &OrderRow,
        payment: &ListedPayment,
        disputes: &[Dispute],
    ) -> Result<Vec<Difference>, StoreError> {
        let reference = order.payment.as_deref().unwrap_or_default();
        let totals = self.billing.ledger().changes().payment_totals(reference)?;
        let mut texts = Vec::new();
        let paid = write_money(&payment.currency, payment.amount);
        let ordered = write_money(&order.currency, order.amount);
        if paid != ordered {
            texts.push(format!("{paid} were paid, and {ordered} were ordered"));
        }
        let bought = order.credits.plus(order.bonus);
        if totals.bought != bought {
            texts.push(format!(
                "{bought} credits were bought, and the ledger has {}",
                totals.bought
            ));
        }
        texts.extend(missing(
            order,
            &totals,
            payment.refunded,
            totals.refunds,
            "refunded",
        ));
        for dispute in disputes {
            let so_far = totals.disputes.get(&dispute.id).copied();
            let so_far = so_far.unwrap_or_default();
            if dispute.outcome == DisputeOutcome::Taken {
                let minor = disputed_amount(order, dispute);
                texts.extend(missing(order, &totals, minor, so_far, "disputed"));
            } else if so_far.requested.is_positive() {
                texts.push(format!(
                    "the bank returned the money of dispute {}, and {} credits are not given back",
                    dispute.id,
                    so_far.taken()
                ));
            }
        }
        if totals.refunds.requested > order.share(payment.refunded) {
            texts.push(format!(
                "{} credits are taken back in the ledger, and {} were refunded",
                totals.refunds.requested,
                write_money(&order.currency, payment.refunded)
            ));
        }
        let differences = texts.into_iter().map(|text| Difference {
            order: Some(order.id.clone()),
            payment: Some(payment.id.clone()),
            text,
        });
        Ok(differences.collect())
    }
}

/// Returns the provider's payments that were begun in a span and whose money has arrived.
async fn paid_between(
    provider: &dyn PaymentProvider,
    from_ms: i64,
    to_ms: i64,
) -> Result<Vec<ListedPayment>, PaymentError> {
    let (from, to) = (from_ms / SECOND_MS, to_ms / SECOND_MS);
    let mut listed: Vec<ListedPayment> = Vec::new();
    loop {
        let after = listed.last().map(|it| it.id.as_str());
        let page = provider.payments_between(from, to, after).await?;
        if page.is_empty() {
            break;
        }
        listed.extend(page);
        if listed.len() > MAX_PAYMENTS {
            return Err(PaymentError::Amount(format!(
                "there are more than {MAX_PAYMENTS} payments: compare fewer days"
            )));
        }
    }
    listed.retain(|payment| payment.is_paid);
    Ok(listed)
}

/// Describes what a refund or a dispute has taken at the provider and not in the ledger.
fn missing(
    order: &OrderRow,
    totals: &PaymentTotals,
    minor: i64,
    so_far: ReversalTotals,
    what: &str,
) -> Option<String> {
    let due = order.share(minor).minus(so_far.requested);
    let due = due.min(totals.left());
    let reason = match order.clawback {
        ClawbackState::Held => ": running requests hold them",
        ClawbackState::None | ClawbackState::Open => "",
    };
    let money = write_money(&order.currency, minor);
    due.is_positive().then(|| {
        format!("{money} were {what}, and {due} credits for it are not taken back{reason}")
    })
}
