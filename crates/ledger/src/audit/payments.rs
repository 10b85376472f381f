//! Checks the rules about credits that were bought from a payment provider: every paid order has
//! its entries and every such entry its order (`payment`), refunds and disputes of a payment take
//! no more than it has bought, and just what the provider has taken back (`payment`). Every
//! redeemed code has its entry, and every entry of a code its code (`code`).
//!
//! The memory grows with the payments and codes. This file must not read `app.db`.

use super::findings::LedgerAuditReport;
use crate::reader::balances::{ReversalTotals, dispute_id};
use crate::{LedgerEntry, PostingDetail};
use credits::money::Micro;
use std::collections::{HashMap, HashSet};

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
    /// Credits for what refunds and disputes have taken back at the provider. They can exceed what
    /// was bought.
    pub due: Micro,
    /// True if the ledger must have taken them, because nothing holds them any more.
    pub is_taken_back: bool,
}

/// A code of `app.db` that an account redeems.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedeemedCode {
    /// Reference of its entry in the ledger.
    pub id: String,
    pub account: String,
    pub credits: Micro,
    /// True if the ledger must have the entry. It is entered before the code is marked.
    pub is_entered: bool,
}

/// What `app.db` has sold and given.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ShopRows {
    pub orders: Vec<PaidOrder>,
    pub codes: Vec<RedeemedCode>,
}

struct CodeSeen {
    account: Box<str>,
    seq: i64,
    credits: Micro,
}

#[derive(Default)]
struct PaymentSeen {
    account: Box<str>,
    order: Box<str>,
    seq: i64,
    credits: Micro,
    bonus: Micro,
    refunds: ReversalTotals,
    disputes: HashMap<Box<str>, ReversalTotals>,
}

impl PaymentSeen {
    fn bought(&self) -> Micro {
        self.credits.plus(self.bonus)
    }

    fn taken_back(&self) -> Micro {
        let disputed = self.disputes.values().map(|it| it.requested);
        disputed.fold(self.refunds.requested, Micro::plus)
    }
}

#[derive(Default)]
pub(crate) struct PaymentRules {
    payments: HashMap<Box<str>, PaymentSeen>,
    codes: HashMap<Box<str>, CodeSeen>,
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
        let seen = self.payments.get_mut(payment.as_str());
        let Some(seen) = seen.filter(|seen| *seen.account == *entry.account) else {
            let message = format!(
                "{payment} was taken back from account {}, but did not buy credits for it",
                entry.account
            );
            return report.add_finding("payment", entry.seq, message);
        };
        let reversal = match entry.kind.as_str() {
            "dispute" => {
                let dispute = dispute_id(payment, reference);
                seen.disputes.entry(dispute.into()).or_default()
            }
            _ => &mut seen.refunds,
        };
        if change > Micro::ZERO && change > reversal.taken() {
            let message = format!("{reference} returned more than was taken");
            report.add_finding("payment", entry.seq, message);
        }
        reversal.add(change, entry.writeoff);
    }

    /// Adds the entry of a code.
    pub fn add_code(&mut self, entry: &LedgerEntry) {
        let seen = CodeSeen {
            account: entry.account.as_str().into(),
            seq: entry.seq,
            credits: entry.change(),
        };
        self.codes.insert(entry.reference.as_str().into(), seen);
    }

    /// Checks the refunds and disputes. All entries must have been added.
    pub fn finish(&self, report: &mut LedgerAuditReport) {
        for (payment, seen) in &self.payments {
            let (taken, bought) = (seen.taken_back(), seen.bought());
            if taken > bought {
                let message =
                    format!("{taken} credits of {payment} were taken back, but it bought {bought}");
                report.add_finding("payment", seen.seq, message);
            }
        }
    }

    /// Compares the entries with the orders. The ledger must have the orders that were read before
    /// the entries, and each entry must belong to an order that was read after them.
    pub fn check_orders<'a>(
        &self,
        before: &'a [PaidOrder],
        after: &'a [PaidOrder],
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
            if let Some(seen) = seen.filter(|_| order.is_taken_back)
                && seen.taken_back() < order.due.min(seen.bought())
            {
                let message = format!(
                    "{} credits of {} were taken back at the provider, but {} in the ledger",
                    order.due.min(seen.bought()),
                    order.payment,
                    seen.taken_back()
                );
                report.add_finding("payment", seen.seq, message);
            }
        }
        let by_id = |orders: &'a [PaidOrder]| -> HashMap<&'a str, &'a PaidOrder> {
            orders.iter().map(|it| (it.id.as_str(), it)).collect()
        };
        let (before, after) = (by_id(before), by_id(after));
        for (payment, seen) in &self.payments {
            let order = after
                .get(&*seen.order)
                .filter(|it| *it.payment == **payment);
            let Some(order) = order else {
                let message = format!("{payment} bought credits, but there is no order with it");
                report.add_finding("payment", seen.seq, message);
                continue;
            };
            // What changes meanwhile is judged the next time.
            let is_unchanged = before.get(&*seen.order) == Some(order);
            if is_unchanged && order.is_taken_back && seen.taken_back() > order.due {
                let message = format!(
                    "{} credits of {payment} were taken back in the ledger, but {} at the provider",
                    seen.taken_back(),
                    order.due
                );
                report.add_finding("payment", seen.seq, message);
            }
        }
    }

    /// Compares the entries with the codes, read before and after the entries like the orders.
    pub fn check_codes(
        &self,
        before: &[RedeemedCode],
        after: &[RedeemedCode],
        report: &mut LedgerAuditReport,
    ) {
        for code in before.iter().filter(|code| code.is_entered) {
            let seen = self.codes.get(code.id.as_str());
            let is_right = seen
                .is_some_and(|seen| *seen.account == *code.account && seen.credits == code.credits);
            if !is_right {
                let message = format!(
                    "code {} was redeemed, but the ledger does not have its {} credits for account {}",
                    code.id, code.credits, code.account
                );
                report.add_finding("code", seen.map_or(0, |seen| seen.seq), message);
            }
        }
        let known: HashSet<_> = after.iter().map(|code| code.id.as_str()).collect();
        for (id, seen) in &self.codes {
            if !known.contains(&**id) {
                let message =
                    format!("{id} gave credits, but there is no redeemed code with this id");
                report.add_finding("code", seen.seq, message);
            }
        }
    }
}
