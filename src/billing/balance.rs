//! Represents an account's credits at one moment, for admission and the account holder.
//!
//! This file must not depend on the source of the credits, and must not reserve any.

use credits::limits::{Period, Spender};
use credits::money::{CreditSplit, Micro};
use ledger::LedgerAccount;

/// An account's credits at one moment.
#[derive(Debug, Clone)]
pub struct Balance {
    pub balance: Micro,
    pub held: Micro,
    pub available: Micro,
    pub trial: Option<TrialState>,
}

#[derive(Debug, Clone)]
pub struct TrialState {
    pub ends_at_ms: i64,
    pub credits_left: Micro,
    pub active: bool,
}

/// An account's credits in the ledger, without holds and settled requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PostedFunds {
    pub balance: Micro,
    /// Sum of all credits that were ever bought or granted, without the trial. It grows with each
    /// top-up.
    pub credited: Micro,
}

impl PostedFunds {
    pub fn from_row(row: LedgerAccount, now_ms: i64) -> Self {
        let none = CreditSplit::default();
        Self {
            balance: CreditSnapshot::from_row(row, none, none, 0, now_ms).balance,
            credited: row.credited,
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub struct CreditSnapshot {
    pub open_requests: u64,
    pub held: CreditSplit,
    /// Credits that can be held. The trial part is zero once the trial is over.
    pub available: CreditSplit,
    pub balance: Micro,
    pub trial_ends_at_ms: Option<i64>,
    pub trial_left: Micro,
    /// True if credits were ever bought or granted, apart from the trial.
    pub ever_credited: bool,
    /// Credits left under the spend limits of the key and of its member, in the order of
    /// [`Spender::ALL`]. `None` without a limit.
    pub spend_left: [Option<SpendLeft>; 2],
}

/// Credits left under a spend limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpendLeft {
    pub of: Spender,
    pub period: Period,
    pub free: Micro,
}

impl CreditSnapshot {
    pub fn from_row(
        row: LedgerAccount,
        held: CreditSplit,
        settled: CreditSplit,
        open_requests: u64,
        now_ms: i64,
    ) -> Self {
        let applied = CreditSplit {
            paid: row.applied_paid,
            trial: row.applied_trial,
        };
        let posted = CreditSplit {
            paid: row.paid,
            trial: row.trial,
        }
        .minus(settled.minus(applied));
        let held = held.plus(CreditSplit {
            paid: row.claimed_paid,
            trial: row.claimed_trial,
        });
        let trial_active = row.trial_ends_at_ms.is_some_and(|ends| now_ms < ends);
        // Trial credits that an open hold has reserved remain until the hold resolves. The rest
        // lapses exactly at the end of the trial.
        let trial_left = if trial_active {
            posted.trial
        } else {
            posted.trial.min(held.trial)
        }
        .or_zero();
        let free = CreditSplit {
            paid: posted.paid,
            trial: trial_left,
        }
        .minus(held);
        Self {
            open_requests,
            held,
            available: free.or_zero(),
            balance: posted.paid.plus(trial_left),
            trial_ends_at_ms: row.trial_ends_at_ms,
            trial_left,
            ever_credited: row.credited.is_positive(),
            spend_left: [None; 2],
        }
    }

    /// Returns the balance that the account holder sees.
    pub fn balance_at(&self, now_ms: i64) -> Balance {
        Balance {
            balance: self.balance,
            held: self.held.total(),
            available: self.available.total(),
            trial: self.trial_ends_at_ms.map(|ends_at_ms| TrialState {
                ends_at_ms,
                credits_left: self.trial_left,
                active: now_ms < ends_at_ms,
            }),
        }
    }
}
