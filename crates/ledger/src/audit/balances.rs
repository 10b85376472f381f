//! Checks the rules about balances: an account is the sum of its entries (`running balance`,
//! `balance`, `credited`, `trial balance`), none is below zero (`never below zero`), and each kind
//! of entry moves credit in its direction (`direction`).
//!
//! This file must not depend on the purpose of an entry.

use super::findings::LedgerAuditReport;
use crate::segment::SealedBalance;
use crate::{LedgerAccountRow, LedgerEntry};
use credits::money::Micro;
use std::collections::HashMap;

/// Totals of one account's entries, in µc. A sum beyond an `i64` saturates, and then differs from
/// every balance.
#[derive(Debug, Clone, Copy, Default)]
struct AccountTotals {
    paid: i64,
    trial: i64,
    credited: i64,
}

#[derive(Default)]
pub(crate) struct BalanceRules {
    totals: HashMap<Box<str>, AccountTotals>,
    /// Sums of the account rows, and of these accounts' entries.
    balances: i128,
    entered: i128,
}

impl BalanceRules {
    pub fn new(accounts: &[SealedBalance]) -> Self {
        let totals = |start: &SealedBalance| AccountTotals {
            paid: start.paid.get(),
            trial: start.trial.get(),
            credited: start.credited.get(),
        };
        let totals = accounts
            .iter()
            .map(|start| (start.account.as_str().into(), totals(start)));
        Self {
            totals: totals.collect(),
            ..Self::default()
        }
    }

    pub fn check_entry(&mut self, entry: &LedgerEntry, report: &mut LedgerAuditReport) {
        check_direction(entry, report);
        let totals = match self.totals.get_mut(entry.account.as_str()) {
            Some(totals) => totals,
            None => self
                .totals
                .entry(entry.account.as_str().into())
                .or_default(),
        };
        totals.paid = totals.paid.saturating_add(entry.d_paid.get());
        totals.trial = totals.trial.saturating_add(entry.d_trial.get());
        totals.credited = totals.credited.saturating_add(entry.credited().get());
        let AccountTotals { paid, trial, .. } = *totals;
        if (paid, trial) != (entry.bal_paid.get(), entry.bal_trial.get()) {
            let message = format!(
                "the entry gives the balances {} paid and {} trial, which do not match its predecessors",
                entry.bal_paid, entry.bal_trial
            );
            report.add_finding("running balance", entry.seq, message);
        }
        if paid < 0 || trial < 0 {
            let message = format!("the entry leaves {paid} µc paid and {trial} µc trial");
            report.add_finding("never below zero", entry.seq, message);
        }
    }

    /// Compares the sums with the balances that were recorded after the entry `seq`.
    pub fn compare(&self, recorded: &[SealedBalance], seq: i64, report: &mut LedgerAuditReport) {
        for start in recorded {
            let SealedBalance {
                account,
                paid,
                trial,
                credited,
            } = start;
            let totals = self.totals.get(account.as_str());
            let totals = totals.copied().unwrap_or_default();
            let sums = (totals.paid, totals.trial, totals.credited);
            if sums != (paid.get(), trial.get(), credited.get()) {
                let message = format!(
                    "account {account} is recorded with {} + {} µc behind entry {seq}, but its entries sum to {} + {} µc",
                    paid.get(),
                    trial.get(),
                    totals.paid,
                    totals.trial
                );
                report.add_finding("balance", seq, message);
            }
        }
    }

    pub fn check_account(&mut self, row: &LedgerAccountRow, report: &mut LedgerAuditReport) {
        let totals = self.totals.remove(row.id.as_str()).unwrap_or_default();
        let (paid, trial) = (row.paid.get(), row.trial.get());
        self.balances += i128::from(paid) + i128::from(trial);
        self.entered += i128::from(totals.paid) + i128::from(totals.trial);
        if (totals.paid, totals.trial) != (paid, trial) {
            let message = format!(
                "account {} has {paid} + {trial} µc, but its entries sum to {} + {} µc",
                row.id, totals.paid, totals.trial
            );
            report.add_finding("balance", 0, message);
        }
        if paid < 0 || trial < 0 {
            let message = format!("account {} has {paid} + {trial} µc", row.id);
            report.add_finding("never below zero", 0, message);
        }
        if totals.credited != row.credited.get() {
            let message = format!(
                "account {} was granted {} µc, but its row has {} µc",
                row.id,
                totals.credited,
                row.credited.get()
            );
            report.add_finding("credited", 0, message);
        }
    }

    /// Reports the accounts that have entries but no row. Call it after all accounts were checked.
    pub fn finish(&mut self, report: &mut LedgerAuditReport) {
        let mut strangers: Vec<_> = self.totals.drain().collect();
        strangers.sort_unstable_by(|one, other| one.0.cmp(&other.0));
        for (account, totals) in strangers {
            self.entered += i128::from(totals.paid) + i128::from(totals.trial);
            let message = format!("account {account} has entries but no balance");
            report.add_finding("balance", 0, message);
        }
        if self.balances != self.entered {
            let message = format!(
                "the accounts have {} µc, but all entries sum to {} µc",
                self.balances, self.entered
            );
            report.add_finding("trial balance", 0, message);
        }
    }
}

/// Checks the sign of an entry. Each kind has its counter-account (promotion, sales, revenue, …)
/// and moves credit in one direction.
fn check_direction(entry: &LedgerEntry, report: &mut LedgerAuditReport) {
    let zero = Micro::ZERO;
    let (paid, trial) = (entry.d_paid, entry.d_trial);
    let is_right = match entry.kind.as_str() {
        "trial" => paid == zero && trial >= zero,
        "grant" | "topup" | "bonus" | "code" => paid >= zero && trial == zero,
        "payment_refund" => paid <= zero && trial == zero,
        "dispute" => trial == zero,
        "refund" => paid >= zero && trial >= zero,
        "lapse" => paid == zero && trial <= zero,
        "adjust" => paid >= zero && trial >= zero || paid <= zero && trial <= zero,
        "debit" | "void" => paid <= zero && trial <= zero && entry.writeoff >= zero,
        _ => false,
    };
    if !is_right {
        let message = format!(
            "a {} must not change the balance by {paid} paid and {trial} trial",
            entry.kind
        );
        report.add_finding("direction", entry.seq, message);
    }
    let may_write_off = match entry.kind.as_str() {
        "debit" | "void" => true,
        // Credits from a payment may be spent before the payment is taken back.
        "payment_refund" | "dispute" => paid <= zero && entry.writeoff >= zero,
        _ => false,
    };
    if entry.writeoff != zero && !may_write_off {
        let message = format!("a {} must not have a write-off", entry.kind);
        report.add_finding("direction", entry.seq, message);
    }
}
