//! Checks the rules about postings, which are all entries except ends of requests: refunds never
//! exceed their debit (`refund`), adjustments have a reason (`detail`), a trial ends when its grant
//! and its sign-up say (`trial end`), lapses after that (`lapse`), and every account with a grant
//! exists (`balance`).
//!
//! The memory grows with the postings and accounts, not with the ends of requests. This file must
//! not add up balances.

use super::endings::{FoundEndings, find_endings};
use super::findings::LedgerAuditReport;
use super::payments::{PaymentRules, ShopRows};
use crate::StoreError;
use crate::audit::walk::LedgerWalk;
use crate::{Ledger, LedgerAccountRow, LedgerEntry, PostingDetail};
use base::clock::rfc3339;
use credits::money::Micro;
use std::collections::{HashMap, HashSet};

pub(crate) struct PostingRules {
    /// Accounts with a grant according to `app.db`, and the ends of their trials in ms since 1970.
    /// `None` without `app.db`. An account is removed once it was checked.
    granted: Option<HashMap<String, Option<i64>>>,
    /// End of each trial, from the last entry that sets one.
    trial_ends: HashMap<Box<str>, i64>,
    /// Accounts whose trial was extended after their sign-up.
    extended: HashSet<Box<str>>,
    /// Position and time of the lapse of each trial.
    lapses: HashMap<Box<str>, (i64, i64)>,
    refunds: Vec<RefundSeen>,
    payments: PaymentRules,
}

struct RefundSeen {
    seq: i64,
    account: Box<str>,
    request_id: Box<str>,
    amount: Micro,
}

impl PostingRules {
    pub fn new(granted: Option<HashMap<String, Option<i64>>>) -> Self {
        Self {
            granted,
            trial_ends: HashMap::new(),
            extended: HashSet::new(),
            lapses: HashMap::new(),
            refunds: Vec::new(),
            payments: PaymentRules::default(),
        }
    }

    pub fn check(&mut self, entry: &LedgerEntry, report: &mut LedgerAuditReport) {
        let account = || entry.account.as_str().into();
        let detail = PostingDetail::decode(&entry.detail);
        match (entry.kind.as_str(), detail) {
            ("refund", detail) => {
                report.refunds += 1;
                self.add_refund(entry, detail.ok(), report);
            }
            ("adjust", detail) => {
                report.adjustments += 1;
                if detail.ok().and_then(|detail| detail.reason).is_none() {
                    let message = "an adjustment has no reason".into();
                    report.add_finding("detail", entry.seq, message);
                }
            }
            ("trial", Ok(detail)) => {
                let ends = detail.trial_ends_at_ms.map(|ends| (account(), ends));
                self.trial_ends.extend(ends);
                if entry.d_trial == Micro::ZERO {
                    self.extended.insert(account());
                }
            }
            ("topup" | "bonus" | "payment_refund" | "dispute", Ok(detail)) => {
                self.payments.add(entry, &detail, report);
            }
            ("code", Ok(_)) => self.payments.add_code(entry),
            (
                "trial" | "grant" | "topup" | "bonus" | "payment_refund" | "dispute" | "code",
                Err(_),
            ) => {
                report.add_finding("detail", entry.seq, "the detail cannot be read".into());
            }
            ("lapse", _) => drop(self.lapses.insert(account(), (entry.seq, entry.at_ms))),
            _ => {}
        }
    }

    fn add_refund(
        &mut self,
        entry: &LedgerEntry,
        detail: Option<PostingDetail>,
        report: &mut LedgerAuditReport,
    ) {
        match detail.and_then(|detail| detail.request_id) {
            Some(request_id) => self.refunds.push(RefundSeen {
                seq: entry.seq,
                account: entry.account.as_str().into(),
                request_id: request_id.into(),
                amount: entry.change(),
            }),
            None => {
                let message = "a refund does not name the refunded request".into();
                report.add_finding("detail", entry.seq, message);
            }
        }
    }

    /// Checks an account against its sign-up and the postings of its trial.
    pub fn check_account(&mut self, row: &LedgerAccountRow, report: &mut LedgerAuditReport) {
        let promised = self
            .granted
            .as_mut()
            .and_then(|granted| granted.remove(&row.id))
            .filter(|_| !self.extended.contains(row.id.as_str()));
        let entered = self.trial_ends.remove(row.id.as_str()).map(Some);
        let differs = [promised, entered]
            .into_iter()
            .flatten()
            .find(|ends| *ends != row.trial_ends_at_ms);
        if let Some(ends) = differs {
            let time = |ends: Option<i64>| ends.map_or_else(|| "never".into(), rfc3339);
            let message = format!(
                "the trial of account {} ends {}, but it was granted until {}",
                row.id,
                time(row.trial_ends_at_ms),
                time(ends)
            );
            report.add_finding("trial end", 0, message);
        }
        if let Some((seq, at)) = self.lapses.remove(row.id.as_str())
            && row.trial_ends_at_ms.is_none_or(|ends| at < ends)
        {
            let message = format!("the trial of account {} had not ended", row.id);
            report.add_finding("lapse", seq, message);
        }
    }

    /// Reports missing accounts and wrong lapses. All accounts must have been checked.
    pub fn finish(
        &mut self,
        ledger: &Ledger,
        walk: &LedgerWalk,
        report: &mut LedgerAuditReport,
    ) -> Result<(), StoreError> {
        let mut lost: Vec<_> = self.granted.take().into_iter().flatten().collect();
        lost.sort();
        for (id, _) in lost {
            let message = format!("account {id} is in app.db but has no balance in the ledger");
            report.add_finding("balance", 0, message);
        }
        self.payments.finish(report);
        self.check_refunds(ledger, walk, report)
    }

    /// Compares the payments and codes with the orders and codes of `app.db`.
    pub fn check_shop(&self, before: &ShopRows, after: &ShopRows, report: &mut LedgerAuditReport) {
        self.payments
            .check_orders(&before.orders, &after.orders, report);
        self.payments
            .check_codes(&before.codes, &after.codes, report);
    }

    fn check_refunds(
        &mut self,
        ledger: &Ledger,
        walk: &LedgerWalk,
        report: &mut LedgerAuditReport,
    ) -> Result<(), StoreError> {
        let refunds = std::mem::take(&mut self.refunds);
        let mut requests: Vec<_> = refunds.iter().map(|refund| &*refund.request_id).collect();
        requests.sort_unstable();
        requests.dedup();
        let FoundEndings { known, unknown } = find_endings(ledger, walk, &requests)?;
        let debits = known.into_values().filter(|ending| ending.kind == "debit");
        let mut debits: HashMap<String, (String, Micro)> = debits
            .map(|debit| (debit.request_id, (debit.account, debit.charged)))
            .collect();
        for refund in &refunds {
            let RefundSeen {
                seq,
                account,
                request_id,
                amount,
            } = refund;
            let message = match debits.get_mut(&**request_id) {
                Some((of, refundable)) if **of == **account && *refundable >= *amount => {
                    *refundable = refundable.minus(*amount);
                    continue;
                }
                Some((of, refundable)) => format!(
                    "{account} got {amount} back for {request_id}, but only {refundable} of the debit of account {of} is left to refund"
                ),
                None if unknown.contains(&**request_id) => continue,
                None => format!("{request_id} was refunded but has no debit"),
            };
            report.add_finding("refund", *seq, message);
        }
        Ok(())
    }
}
