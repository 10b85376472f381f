//! The open holds of this process and what it has settled, in memory, beside the ledger's posted balances.
//!
//! The rule of admission: `balance = posted − (settled − applied)`, `available = balance − held`. `posted` and
//! `applied` come out of the ledger as one snapshot, `settled` and `held` are steady under the account's lock; so the
//! sum is exact at every moment, whatever the settler is just committing, and no lock is held across a commit.
//! Holds die with the process; one that hands over turns them into claims. What other processes have claimed
//! (`billing/guest.rs`) is in the same snapshot, and counts as held. Must not know prices.

use crate::money::{Micro, Parts};
use crate::store::StoreError;
use crate::store::ledger::{self, Claim, Ledger};
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const SHARDS: usize = 64;

/// All accounts that this process has served.
pub struct Holds {
    boot: String,
    shards: Vec<Mutex<HashMap<Arc<str>, Open>>>,
    hasher: RandomState,
}

/// One account's part: what is held, and what has been settled since this process began.
#[derive(Debug, Clone, Copy, Default)]
struct Open {
    requests: u64,
    held: Parts,
    settled: Parts,
    /// Changed since the mirror was last written.
    unmirrored: bool,
}

/// How a hold was resolved.
#[derive(Debug, Clone, Copy)]
pub struct Resolved {
    /// What the account bears.
    pub taken: Parts,
    /// What it cannot.
    pub writeoff: Micro,
    /// What is no longer claimed once the ledger has the ending, should this process be a guest by then.
    pub freed: Parts,
}

/// Why no credit was set aside.
#[derive(Debug)]
pub enum Refused {
    Insufficient {
        available: Micro,
        needed: Micro,
    },
    TrialExpired,
    TooManyOpen {
        limit: u64,
    },
    /// The process holds all it may.
    Busy,
    /// The ledger cannot be read or written, or lags too far behind.
    Unavailable(String),
}

/// An account at one moment.
#[derive(Debug, Clone, Copy)]
pub struct Standing {
    pub open_requests: u64,
    pub held: Parts,
    /// Free to hold: the trial's part is zero once the trial is over.
    pub available: Parts,
    pub balance: Micro,
    pub trial_ends_at_ms: Option<i64>,
    pub trial_left: Micro,
    /// Credit was bought or granted at some time, the trial apart.
    pub ever_credited: bool,
}

impl Standing {
    pub fn of(row: ledger::Account, held: Parts, settled: Parts, open_requests: u64, now_ms: i64) -> Self {
        let applied = Parts { paid: row.applied_paid, trial: row.applied_trial };
        let posted = Parts { paid: row.paid, trial: row.trial }.minus(settled.minus(applied));
        let held = held.plus(Parts { paid: row.claimed_paid, trial: row.claimed_trial });
        let trial_active = row.trial_ends_at_ms.is_some_and(|ends| now_ms < ends);
        // What an open hold took of the trial stays until the hold resolves; the rest lapses on the dot.
        let trial_left = if trial_active { posted.trial } else { posted.trial.min(held.trial) }.or_zero();
        let free = Parts { paid: posted.paid, trial: trial_left }.minus(held);
        Self {
            open_requests,
            held,
            available: free.or_zero(),
            balance: posted.paid.plus(trial_left),
            trial_ends_at_ms: row.trial_ends_at_ms,
            trial_left,
            ever_credited: row.credited.is_positive(),
        }
    }
}

impl Holds {
    pub fn new(boot: &str) -> Self {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        Self { boot: boot.to_owned(), shards, hasher: RandomState::new() }
    }

    fn shard(&self, account: &str) -> MutexGuard<'_, HashMap<Arc<str>, Open>> {
        let index = usize::try_from(self.hasher.hash_one(account) % SHARDS as u64).unwrap_or_default();
        self.shards[index].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Judges the account's standing and sets aside what `decide` asks for, as one step. Returns the parts that are
    /// held, and the output limit that `decide` gave with them; `None` where this process is no longer the one to decide.
    ///
    /// # Errors
    /// `decide` refused, or the ledger does not have the account.
    pub fn reserve(
        &self,
        ledger: &Ledger,
        account: &Arc<str>,
        now_ms: i64,
        decide: impl FnOnce(&Standing) -> Result<(Micro, u64), Refused>,
    ) -> Result<Option<(Parts, u64)>, Refused> {
        let mut shard = self.shard(account);
        if ledger.is_guest() {
            return Ok(None);
        }
        let row = ledger.account(account, &self.boot).map_err(|error| Refused::Unavailable(error.to_string()))?;
        let row = row.ok_or_else(|| Refused::Unavailable(format!("account {account} is not in the ledger")))?;
        let open = shard.entry(Arc::clone(account)).or_default();
        let standing = Standing::of(row, open.held, open.settled, open.requests, now_ms);
        let (amount, output_limit) = decide(&standing)?;
        let parts = standing.available.take(amount);
        open.add(parts);
        Ok(Some((parts, output_limit)))
    }

    /// Counts what was claimed for a request of this process, a guest.
    pub fn add(&self, account: &Arc<str>, parts: Parts) {
        self.shard(account).entry(Arc::clone(account)).or_default().add(parts);
    }

    /// Requests that the account has open in this process.
    pub fn open_requests(&self, account: &str) -> u64 {
        self.shard(account).get(account).map_or(0, |open| open.requests)
    }

    /// Resolves a hold of `held` with a cost, which may pass the hold by what is available at this moment, and no further.
    /// A guest cannot know what is available: there the hold is all.
    pub fn resolve(&self, ledger: &Ledger, account: &Arc<str>, held: Parts, cost: Micro, now_ms: i64) -> Resolved {
        let mut shard = self.shard(account);
        let open = shard.entry(Arc::clone(account)).or_default();
        let is_guest = ledger.is_guest();
        let mut taken = held.take(cost);
        if taken.total() < cost && !is_guest {
            // Only here is the balance needed. Unreadable means nothing more is taken: never below zero.
            let row = ledger.account(account, &self.boot).ok().flatten();
            if let Some(row) = row {
                let standing = Standing::of(row, open.held, open.settled, open.requests, now_ms);
                taken = taken.plus(standing.available.take(cost.minus(taken.total())));
            }
        }
        open.held = open.held.minus(held);
        open.settled = open.settled.plus(taken);
        open.requests = open.requests.saturating_sub(1);
        open.unmirrored = true;
        Resolved { taken, writeoff: cost.minus(taken.total()), freed: if is_guest { held } else { taken } }
    }

    /// Takes back what [`Holds::resolve`] settled, where it could not be journalled. Returns what is no longer claimed of
    /// it, should this process be a guest.
    pub fn unsettle(&self, ledger: &Ledger, account: &str, resolved: &Resolved) -> Parts {
        if let Some(open) = self.shard(account).get_mut(account) {
            open.settled = open.settled.minus(resolved.taken);
            open.unmirrored = true;
            // Under the lock: a hand-over that comes later finds nothing of it.
            if ledger.is_guest() {
                return resolved.freed;
            }
        }
        Parts::ZERO
    }

    /// The account's standing; `None` where it is not open.
    ///
    /// # Errors
    /// The ledger cannot be read.
    pub fn standing(&self, ledger: &Ledger, account: &str, now_ms: i64) -> Result<Option<Standing>, StoreError> {
        let shard = self.shard(account);
        let open = shard.get(account).copied().unwrap_or_default();
        let row = ledger.account(account, &self.boot)?;
        Ok(row.map(|row| Standing::of(row, open.held, open.settled, open.requests, now_ms)))
    }

    /// True where the account has no request open, in this process or a guest, and nothing settled that the ledger lacks:
    /// a lapse may be posted.
    pub fn is_quiet(&self, ledger: &Ledger, account: &str) -> Result<bool, StoreError> {
        let shard = self.shard(account);
        let open = shard.get(account).copied().unwrap_or_default();
        let Some(row) = ledger.account(account, &self.boot)? else { return Ok(true) };
        let applied = Parts { paid: row.applied_paid, trial: row.applied_trial };
        Ok(open.requests == 0 && applied == open.settled && !row.claimed_trial.is_positive())
    }

    /// Runs `work` while nothing can be held or settled for the account, with what this process claims of it. `None` where
    /// it is no longer the one that admits.
    pub fn frozen<T>(&self, ledger: &Ledger, account: &str, work: impl FnOnce(Claim) -> T) -> Option<T> {
        let shard = self.shard(account);
        let is_guest = ledger.is_guest();
        (!is_guest).then(|| work(self.claim(&shard.get(account).copied().unwrap_or_default())))
    }

    fn claim(&self, open: &Open) -> Claim {
        Claim { boot: self.boot.clone(), held: open.held, settled: open.settled }
    }

    /// Makes this process a guest: all that it holds becomes claims, while nothing is held or resolved.
    ///
    /// # Errors
    /// The ledger cannot be written; nothing has changed then.
    pub fn hand_over(&self, ledger: &Ledger) -> Result<(), StoreError> {
        let shards: Vec<_> =
            self.shards.iter().map(|shard| shard.lock().unwrap_or_else(PoisonError::into_inner)).collect();
        let all = shards.iter().flat_map(|shard| shard.iter());
        let all = all.filter(|(_, open)| open.held != Parts::ZERO || open.settled != Parts::ZERO);
        let held: Vec<_> = all.map(|(account, open)| (account.to_string(), self.claim(open))).collect();
        ledger.hand_over(&self.boot, &held)
    }

    /// Accounts whose holds changed since the last call, and what this process claims of them.
    pub fn changed(&self) -> Vec<(String, Claim)> {
        let mut changed = Vec::new();
        for shard in &self.shards {
            for (account, open) in shard.lock().unwrap_or_else(PoisonError::into_inner).iter_mut() {
                if std::mem::take(&mut open.unmirrored) {
                    changed.push((account.to_string(), self.claim(open)));
                }
            }
        }
        changed
    }

    /// What was to be told of `accounts` could not be: it is to be told again.
    pub fn mark_changed(&self, accounts: &[(String, Claim)]) {
        for (account, _) in accounts {
            if let Some(open) = self.shard(account).get_mut(account.as_str()) {
                open.unmirrored = true;
            }
        }
    }
}

impl Open {
    fn add(&mut self, parts: Parts) {
        self.held = self.held.plus(parts);
        self.requests = self.requests.saturating_add(1);
        self.unmirrored = true;
    }
}
