//! Checks the rules about credits that were bought from a payment provider: every paid order has
//! its entries and every such entry its order (`payment`), and refunds and disputes of a payment
//! take no more than it has bought (`payment`).
//!
//! The memory grows with the payments. This file must not read `app.db`.

use super::findings::LedgerAuditReport;
use crate::reader::balances::DISPUTE_RETURNED;
use crate::{LedgerEntry, PostingDetail};
use credits::money::Micro;
use std::collections::HashMap;

/// An order of `app.db` that has a payment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PaidOrder {
    pub id: String,
    pub account: String,
    /// Reference of the order's purchase in the ledger.
    pub payment: String,
    pub credits: Micro,
    pub bonus: Micro,
    /// True if the ledger must have the entries of the order. They are entered before the order is
    /// marked.
    pub is_entered: bool,
}

#[derive(Default)]
struct PaymentSeen {
    account: Box<str>,
    order: Box<str>,
    seq: i64,
    credits: Micro,
    bonus: Micro,
    taken: Micro,
}

#[derive(Default)]
pub(crate) struct PaymentRules {
    payments: HashMap<Box<str>, PaymentSeen>,
    /// The amount that each dispute took, by the dispute's reference, until it is returned.
    disputes: HashMap<Box<str>, (Box<str>, Micro)>,
}

impl PaymentRules {
    /// Adds an entry that may belong to a payment.
    pub fn add(
        &mut self,
        entry: &LedgerEntry,
        detail: &PostingDetail,
        report: &mut LedgerAuditReport,
    ) {
        let (reference, change) = (entry.reference.as_str(), entry.change());
        if let Some(order) = &detail.order {
            let payment = self.payments.entry(reference.into()).or_default();
            payment.account = entry.account.as_str().into();
            payment.order = order.as_str().into();
            payment.seq = entry.seq;
            match entry.kind.as_str() {
                "bonus" => payment.bonus = payment.bonus.plus(change),
                _ => payment.credits = payment.credits.plus(change),
            }
            return;
        }
        let Some(payment) = &detail.payment else {
            if entry.kind != "topup" {
                let message = format!("a {} does not name its payment", entry.kind);
                report.add_finding("payment", entry.seq, message);
            }
            return;
        };
        let requested = entry.writeoff.minus(change);
        let account = self.payments.get(payment.as_str()).map(|it| &*it.account);
        if account != Some(&*entry.account) {
            let message = format!(
                "{payment} was taken back from account {}, but did not buy credits for it",
                entry.account
            );
            return report.add_finding("payment", entry.seq, message);
        }
        if entry.kind == "dispute" {
            match reference.strip_suffix(DISPUTE_RETURNED) {
                Some(dispute) => {
                    let taken = self.disputes.remove(dispute);
                    if taken.is_none_or(|(_, taken)| change > taken) {
                        let message = format!("{dispute} returned more than it took");
                        report.add_finding("payment", entry.seq, message);
                    }
                }
                None => {
                    let taken = (payment.as_str().into(), requested);
                    self.disputes.insert(reference.into(), taken);
                }
            }
        } else if let Some(payment) = self.payments.get_mut(payment.as_str()) {
            payment.taken = payment.taken.plus(requested);
        }
    }

    /// Checks the refunds and disputes. All entries must have been added.
    pub fn finish(&mut self, report: &mut LedgerAuditReport) {
        for (payment, taken) in std::mem::take(&mut self.disputes).into_values() {
            if let Some(seen) = self.payments.get_mut(&*payment) {
                seen.taken = seen.taken.plus(taken);
            }
        }
        for (payment, seen) in &self.payments {
            let bought = seen.credits.plus(seen.bonus);
            if seen.taken > bought {
                let message = format!(
                    "{} credits of {payment} were taken back, but it bought {bought}",
                    seen.taken
                );
                report.add_finding("payment", seen.seq, message);
            }
        }
    }

    /// Compares the entries with the orders. The ledger must have the orders that were read before
    /// the entries, and each entry must belong to an order that was read after them.
    pub fn check_orders(
        &self,
        before: &[PaidOrder],
        after: &[PaidOrder],
        report: &mut LedgerAuditReport,
    ) {
        for order in before.iter().filter(|order| order.is_entered) {
            let seen = self.payments.get(order.payment.as_str());
            let is_right = seen.is_some_and(|seen| {
                *seen.account == *order.account
                    && *seen.order == *order.id
                    && (seen.credits, seen.bonus) == (order.credits, order.bonus)
            });
            if !is_right {
                let message = format!(
                    "order {} was paid by {}, but the ledger does not have its {} credits and {} bonus credits for account {}",
                    order.id, order.payment, order.credits, order.bonus, order.account
                );
                report.add_finding("payment", seen.map_or(0, |seen| seen.seq), message);
            }
        }
        let known: HashMap<_, _> = after
            .iter()
            .map(|order| (order.id.as_str(), order.payment.as_str()))
            .collect();
        for (payment, seen) in &self.payments {
            if known.get(&*seen.order) != Some(&&**payment) {
                let message = format!("{payment} bought credits, but there is no order with it");
                report.add_finding("payment", seen.seq, message);
            }
        }
    }
}
