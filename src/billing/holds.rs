//! The open holds of this process and what it has settled, in memory, beside the ledger's posted
//! balances.
//!
//! The rule of admission: `balance = posted − (settled − applied)`, `available = balance − held`.
//! `posted` and `applied` come out of the ledger as one snapshot, `settled` and `held` are steady
//! under the account's lock; so the sum is exact at every moment, whatever the settler is just
//! committing, and no lock is held across a commit. Holds die with the process; one that hands over
//! turns them into claims. What other processes have claimed (`billing/guest.rs`) is in the same
//! snapshot, and counts as held. What a key has spent and holds is counted by the same rule, and
//! what it and its account asked for lately under the same lock. Must not know prices.

use super::bounds::Bounds;
use super::rates::{Gauge, Meters, Wait, Whose};
use super::{Balance, TrialState};
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
    shards: Vec<Mutex<Shard>>,
    hasher: RandomState,
}

/// Some of the accounts, and their keys.
#[derive(Default)]
struct Shard {
    accounts: HashMap<Arc<str>, Open>,
    keys: HashMap<Arc<str>, OpenOfKey>,
}

/// Who asks, and within which bounds.
#[derive(Debug, Clone, Copy)]
pub struct Asker<'a> {
    pub account: &'a Arc<str>,
    pub key: &'a Arc<str>,
    pub bounds: &'a Bounds,
}

/// One account's part: what is held, and what has been settled since this process began.
#[derive(Debug, Clone, Copy, Default)]
struct Open {
    requests: u64,
    held: Parts,
    settled: Parts,
    /// Changed since the mirror was last written.
    unmirrored: bool,
    gauge: Gauge,
}

/// One key's part, counted whether or not it is limited: a limit may be set at any time.
#[derive(Debug, Clone, Copy, Default)]
struct OpenOfKey {
    requests: u64,
    held: Micro,
    settled: Micro,
    gauge: Gauge,
}

/// Requests of an account, and of its key, that have come and hold nothing yet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Arriving {
    pub of_account: u64,
    pub of_key: u64,
}

/// How a hold was resolved.
#[derive(Debug, Clone, Copy)]
pub struct Resolved {
    /// What the account bears.
    pub taken: Parts,
    /// What it cannot.
    pub writeoff: Micro,
    /// What is no longer claimed once the ledger has the ending, should this process be a guest by
    /// then.
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
    /// The key's own limit leaves less than the request needs.
    KeySpendLimit {
        free: Micro,
    },
    TooManyOpen {
        limit: u64,
    },
    /// A limit on requests, tokens or what runs at one time.
    Limited(Wait),
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
    /// What the key's own limit leaves; `None` where it has none.
    pub key_free: Option<Micro>,
}

impl Standing {
    pub fn of(
        row: ledger::Account,
        held: Parts,
        settled: Parts,
        open_requests: u64,
        now_ms: i64,
    ) -> Self {
        let applied = Parts {
            paid: row.applied_paid,
            trial: row.applied_trial,
        };
        let posted = Parts {
            paid: row.paid,
            trial: row.trial,
        }
        .minus(settled.minus(applied));
        let held = held.plus(Parts {
            paid: row.claimed_paid,
            trial: row.claimed_trial,
        });
        let trial_active = row.trial_ends_at_ms.is_some_and(|ends| now_ms < ends);
        // What an open hold took of the trial stays until the hold resolves; the rest lapses on the
        // dot.
        let trial_left = if trial_active {
            posted.trial
        } else {
            posted.trial.min(held.trial)
        }
        .or_zero();
        let free = Parts {
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
            key_free: None,
        }
    }

    /// As its account's holder sees it.
    pub fn shown(&self, now_ms: i64) -> Balance {
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

impl Holds {
    pub fn new(boot: &str) -> Self {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        Self {
            boot: boot.to_owned(),
            shards,
            hasher: RandomState::new(),
        }
    }

    fn shard(&self, account: &str) -> MutexGuard<'_, Shard> {
        let index =
            usize::try_from(self.hasher.hash_one(account) % SHARDS as u64).unwrap_or_default();
        self.shards[index]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Judges the account's standing and sets aside what `decide` asks for, as one step. Returns
    /// the parts that are held, the output limit that `decide` gave with them, and what is left
    /// under the asker's limits; `None` where this process is no longer the one to decide.
    ///
    /// # Errors
    /// A limit is reached, `decide` refused, or the ledger does not have the account; nothing is
    /// counted then.
    pub fn reserve(
        &self,
        ledger: &Ledger,
        asker: &Asker<'_>,
        now_ms: i64,
        decide: impl FnOnce(&Standing) -> Result<(Micro, u64), Refused>,
    ) -> Result<Option<(Parts, u64, Meters)>, Refused> {
        let mut shard = self.shard(asker.account);
        if ledger.is_guest() {
            return Ok(None);
        }
        let standing = shard.check(ledger, asker, &self.boot, Arriving::default(), now_ms)?;
        let (amount, output_limit) = decide(&standing)?;
        let parts = standing.available.take(amount);
        let (open, of_key) = shard.of(asker);
        open.add(parts);
        of_key.add(parts);
        Ok(Some((parts, output_limit, shard.take(asker, now_ms))))
    }

    /// Judges the asker's limits, and by `decide` its account's standing, before anything is known
    /// of its request's body. Nothing is set aside or counted. A process that is no longer the one
    /// to decide refuses nothing here.
    ///
    /// # Errors
    /// A limit is reached, `decide` refused, or the ledger does not have the account.
    pub fn check(
        &self,
        ledger: &Ledger,
        asker: &Asker<'_>,
        arriving: Arriving,
        now_ms: i64,
        decide: impl FnOnce(&Standing) -> Result<(), Refused>,
    ) -> Result<(), Refused> {
        let mut shard = self.shard(asker.account);
        if ledger.is_guest() {
            return Ok(());
        }
        decide(&shard.check(ledger, asker, &self.boot, arriving, now_ms)?)
    }

    /// Counts a request of this process, a guest, against the asker's limits as far as this process
    /// knows: what runs in the one that has taken over is not counted here, nor this there. Returns
    /// what is left.
    ///
    /// # Errors
    /// A limit is reached.
    pub fn meter(&self, asker: &Asker<'_>, now_ms: i64) -> Result<Meters, Refused> {
        let mut shard = self.shard(asker.account);
        shard
            .judge(asker, Arriving::default(), now_ms)
            .map_err(Refused::Limited)?;
        Ok(shard.take(asker, now_ms))
    }

    /// What the key's own limit leaves; `None` where it has none. Exact in the process that admits.
    /// During a hand-over each process counts what it holds itself and what both have spent: the
    /// limit may be passed by what the requests that the other one has open come to.
    ///
    /// # Errors
    /// The ledger cannot be read.
    pub fn key_free(
        &self,
        ledger: &Ledger,
        asker: &Asker<'_>,
        now_ms: i64,
    ) -> Result<Option<Micro>, StoreError> {
        let shard = self.shard(asker.account);
        let of_key = shard.keys.get(asker.key).copied().unwrap_or_default();
        of_key.free(ledger, asker, &self.boot, now_ms)
    }

    /// Counts what was claimed for a request of this process, a guest.
    pub fn add(&self, asker: &Asker<'_>, parts: Parts) {
        let mut shard = self.shard(asker.account);
        let (open, of_key) = shard.of(asker);
        open.add(parts);
        of_key.add(parts);
    }

    /// Requests that the account has open in this process.
    pub fn open_requests(&self, account: &str) -> u64 {
        self.shard(account)
            .accounts
            .get(account)
            .map_or(0, |open| open.requests)
    }

    /// Resolves a hold of `held` with a cost, which may pass the hold by what is available at this
    /// moment, and no further. A guest cannot know what is available: there the hold is all.
    /// `tokens` were used.
    pub fn resolve(
        &self,
        ledger: &Ledger,
        asker: &Asker<'_>,
        held: Parts,
        cost: Micro,
        tokens: u64,
        now_ms: i64,
    ) -> Resolved {
        let Asker {
            account, bounds, ..
        } = *asker;
        let mut shard = self.shard(account);
        let (open, of_key) = shard.of(asker);
        open.gauge.correct(&bounds.account, bounds.tokens, tokens);
        of_key.gauge.correct(&bounds.key, bounds.tokens, tokens);
        let is_guest = ledger.is_guest();
        let mut taken = held.take(cost);
        if taken.total() < cost && !is_guest {
            // Only here is the balance needed. Unreadable means nothing more is taken: never below
            // zero.
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
        // A cost beyond the hold is the key's too, whatever its limit: the account has paid it.
        of_key.held = of_key.held.minus(held.total());
        of_key.settled = of_key.settled.plus(taken.total());
        of_key.requests = of_key.requests.saturating_sub(1);
        Resolved {
            taken,
            writeoff: cost.minus(taken.total()),
            freed: if is_guest { held } else { taken },
        }
    }

    /// Takes back what [`Holds::resolve`] settled, where it could not be journalled. Returns what
    /// is no longer claimed of it, should this process be a guest.
    pub fn unsettle(&self, ledger: &Ledger, asker: &Asker<'_>, resolved: &Resolved) -> Parts {
        let mut shard = self.shard(asker.account);
        if let Some(of_key) = shard.keys.get_mut(asker.key) {
            of_key.settled = of_key.settled.minus(resolved.taken.total());
        }
        if let Some(open) = shard.accounts.get_mut(asker.account) {
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
    pub fn standing(
        &self,
        ledger: &Ledger,
        account: &str,
        now_ms: i64,
    ) -> Result<Option<Standing>, StoreError> {
        let shard = self.shard(account);
        let open = shard.accounts.get(account).copied().unwrap_or_default();
        let row = ledger.account(account, &self.boot)?;
        Ok(row.map(|row| Standing::of(row, open.held, open.settled, open.requests, now_ms)))
    }

    /// True where the account has no request open, in this process or a guest, and nothing settled
    /// that the ledger lacks: a lapse may be posted.
    pub fn is_quiet(&self, ledger: &Ledger, account: &str) -> Result<bool, StoreError> {
        let shard = self.shard(account);
        let open = shard.accounts.get(account).copied().unwrap_or_default();
        let Some(row) = ledger.account(account, &self.boot)? else {
            return Ok(true);
        };
        let applied = Parts {
            paid: row.applied_paid,
            trial: row.applied_trial,
        };
        Ok(open.requests == 0 && applied == open.settled && !row.claimed_trial.is_positive())
    }

    /// Runs `work` while nothing can be held or settled for the account, with what this process
    /// claims of it. `None` where it is no longer the one that admits.
    pub fn frozen<T>(
        &self,
        ledger: &Ledger,
        account: &str,
        work: impl FnOnce(Claim) -> T,
    ) -> Option<T> {
        let shard = self.shard(account);
        let is_guest = ledger.is_guest();
        (!is_guest)
            .then(|| work(self.claim(&shard.accounts.get(account).copied().unwrap_or_default())))
    }

    fn claim(&self, open: &Open) -> Claim {
        Claim {
            boot: self.boot.clone(),
            held: open.held,
            settled: open.settled,
        }
    }

    /// Makes this process a guest: all that it holds becomes claims, while nothing is held or
    /// resolved.
    ///
    /// # Errors
    /// The ledger cannot be written; nothing has changed then.
    pub fn hand_over(&self, ledger: &Ledger) -> Result<(), StoreError> {
        let shards: Vec<_> = self
            .shards
            .iter()
            .map(|shard| shard.lock().unwrap_or_else(PoisonError::into_inner))
            .collect();
        let all = shards.iter().flat_map(|shard| shard.accounts.iter());
        let all = all.filter(|(_, open)| open.held != Parts::ZERO || open.settled != Parts::ZERO);
        let held: Vec<_> = all
            .map(|(account, open)| (account.to_string(), self.claim(open)))
            .collect();
        ledger.hand_over(&self.boot, &held)
    }

    /// Accounts whose holds changed since the last call, and what this process claims of them.
    pub fn changed(&self) -> Vec<(String, Claim)> {
        let mut changed = Vec::new();
        for shard in &self.shards {
            for (account, open) in shard
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .accounts
                .iter_mut()
            {
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
            if let Some(open) = self.shard(account).accounts.get_mut(account.as_str()) {
                open.unmirrored = true;
            }
        }
    }
}

impl Shard {
    fn of(&mut self, asker: &Asker<'_>) -> (&mut Open, &mut OpenOfKey) {
        let open = self.accounts.entry(Arc::clone(asker.account)).or_default();
        (open, self.keys.entry(Arc::clone(asker.key)).or_default())
    }

    /// The account's standing beside `arriving` requests, where the asker's limits bear one more.
    fn check(
        &mut self,
        ledger: &Ledger,
        asker: &Asker<'_>,
        boot: &str,
        arriving: Arriving,
        now_ms: i64,
    ) -> Result<Standing, Refused> {
        let row = ledger.account_lately(asker.account, boot);
        let row = row.map_err(|error| Refused::Unavailable(error.to_string()))?;
        let row = row.ok_or_else(|| {
            Refused::Unavailable(format!("account {} is not in the ledger", asker.account))
        })?;
        self.judge(asker, arriving, now_ms)
            .map_err(Refused::Limited)?;
        let (open, of_key) = self.of(asker);
        let open_requests = open.requests.saturating_add(arriving.of_account);
        let mut standing = Standing::of(row, open.held, open.settled, open_requests, now_ms);
        standing.key_free = of_key.free(ledger, asker, boot, now_ms)?;
        Ok(standing)
    }

    /// Whether the asker's limits bear one more request; nothing is counted by asking.
    fn judge(&mut self, asker: &Asker<'_>, arriving: Arriving, now_ms: i64) -> Result<(), Wait> {
        let bounds = asker.bounds;
        if bounds.key.is_unlimited() && bounds.account.is_unlimited() {
            return Ok(());
        }
        let (open, of_key) = self.of(asker);
        let outcome = of_key
            .gauge
            .judge(
                &bounds.key,
                Whose::Key,
                of_key.requests.saturating_add(arriving.of_key),
                bounds.tokens,
                now_ms,
            )
            .and_then(|()| {
                let open_requests = open.requests.saturating_add(arriving.of_account);
                open.gauge.judge(
                    &bounds.account,
                    Whose::Account,
                    open_requests,
                    bounds.tokens,
                    now_ms,
                )
            });
        outcome.map_err(|wait| {
            let meters = open.gauge.meters(&bounds.account, now_ms);
            Wait {
                meters: of_key.gauge.meters(&bounds.key, now_ms).with(meters),
                ..wait
            }
        })
    }

    /// Counts a request that was admitted. Returns what is left.
    fn take(&mut self, asker: &Asker<'_>, now_ms: i64) -> Meters {
        let bounds = asker.bounds;
        if bounds.key.is_unlimited() && bounds.account.is_unlimited() {
            return Meters::default();
        }
        let (open, of_key) = self.of(asker);
        of_key.gauge.take(&bounds.key, bounds.tokens, now_ms);
        open.gauge.take(&bounds.account, bounds.tokens, now_ms);
        of_key
            .gauge
            .meters(&bounds.key, now_ms)
            .with(open.gauge.meters(&bounds.account, now_ms))
    }
}

impl OpenOfKey {
    fn add(&mut self, parts: Parts) {
        self.held = self.held.plus(parts.total());
        self.requests = self.requests.saturating_add(1);
    }

    /// What was settled here and is not in the ledger yet counts as spent now, whichever day it
    /// will be entered on.
    fn free(
        &self,
        ledger: &Ledger,
        asker: &Asker<'_>,
        boot: &str,
        now_ms: i64,
    ) -> Result<Option<Micro>, StoreError> {
        let Some(limit) = asker.bounds.spend else {
            return Ok(None);
        };
        let known = ledger.key_spend(asker.key, limit.period.first_day(now_ms), boot)?;
        let spent = known.spent.plus(self.settled.minus(known.applied));
        Ok(Some(limit.credits.minus(spent).minus(self.held)))
    }
}

impl Open {
    fn add(&mut self, parts: Parts) {
        self.held = self.held.plus(parts);
        self.requests = self.requests.saturating_add(1);
        self.unmirrored = true;
    }
}
