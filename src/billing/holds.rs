//! This process's open holds and settled amounts, in memory, next to the posted balances in the
//! ledger.
//!
//! The admission rule: `balance = posted − (settled − applied)`, `available = balance − held`.
//! `posted` and `applied` come from the ledger as one snapshot; `settled` and `held` do not change
//! while the account's lock is held. So the sum is exact at every moment, even during a commit of
//! the ledger writer, and no lock is held across a commit. Holds end with the process; a process
//! that hands over turns them into claims. The claims of other processes (`billing/handover.rs`)
//! are in the same snapshot and count as held. The same rule counts what a key has spent and holds.
//! The same lock protects the rate counters of the key and the account. Must not know prices.

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

/// The holds of all accounts that this process has served.
pub struct Holds {
    boot: String,
    shards: Vec<Mutex<Shard>>,
    hasher: RandomState,
}

/// One shard: some of the accounts, and their keys.
#[derive(Default)]
struct Shard {
    accounts: HashMap<Arc<str>, Open>,
    keys: HashMap<Arc<str>, OpenOfKey>,
}

/// The account and key that make a request, with its limits.
#[derive(Debug, Clone, Copy)]
pub struct Asker<'a> {
    pub account: &'a Arc<str>,
    pub key: &'a Arc<str>,
    pub bounds: &'a Bounds,
}

/// One account's holds, and the credits settled since this process began.
#[derive(Debug, Clone, Copy, Default)]
struct Open {
    requests: u64,
    held: Parts,
    settled: Parts,
    /// Whether it changed since the mirror was last written.
    unmirrored: bool,
    gauge: Gauge,
}

/// One key's holds, counted even without a limit: a limit may be set at any time.
#[derive(Debug, Clone, Copy, Default)]
struct OpenOfKey {
    requests: u64,
    held: Micro,
    settled: Micro,
    gauge: Gauge,
}

/// Requests of an account, and of its key, that have arrived and hold nothing yet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Arriving {
    pub of_account: u64,
    pub of_key: u64,
}

/// Result of resolving a hold.
#[derive(Debug, Clone, Copy)]
pub struct Resolved {
    /// Credits that the account pays.
    pub taken: Parts,
    /// Cost that the account cannot pay.
    pub writeoff: Micro,
    /// Claim to release once the ledger has the ending, if this process has handed over by then.
    pub freed: Parts,
}

/// Why no credits were reserved.
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
    /// A limit on requests, tokens or concurrency is reached.
    Limited(Wait),
    /// The process has reached its maximum of open requests.
    Busy,
    /// The ledger cannot be read or written, or lags too far behind.
    Unavailable(String),
}

/// An account's credits at one moment.
#[derive(Debug, Clone, Copy)]
pub struct Standing {
    pub open_requests: u64,
    pub held: Parts,
    /// Credits free to hold; the trial part is zero once the trial is over.
    pub available: Parts,
    pub balance: Micro,
    pub trial_ends_at_ms: Option<i64>,
    pub trial_left: Micro,
    /// Whether credit was ever bought or granted, apart from the trial.
    pub ever_credited: bool,
    /// Credits left under the key's own limit; `None` if it has no limit.
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
        // Trial credit that an open hold reserved remains until the hold resolves; the rest lapses
        // exactly at the end of the trial.
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

    /// The balance that the account holder sees.
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

    /// Checks the account's credits and reserves what `decide` returns, in one step. Returns the
    /// reserved parts, the output limit from `decide`, and the rate limit status; `None` if this
    /// process no longer admits requests.
    ///
    /// # Errors
    /// Returns an error if a limit is reached, `decide` refuses, or the ledger does not have the
    /// account; nothing is counted then.
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

    /// Checks the payer's limits, and with `decide` the account's credits, before the gateway reads
    /// the request's body. Reserves and counts nothing. Always succeeds in a process that no longer
    /// admits requests.
    ///
    /// # Errors
    /// Returns an error if a limit is reached, `decide` refuses, or the ledger does not have the
    /// account.
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

    /// Counts a request of a process that has handed over against the payer's rate limits. The two
    /// processes do not see each other's running requests. Returns the rate limit status.
    ///
    /// # Errors
    /// Returns an error if a limit is reached.
    pub fn meter(&self, asker: &Asker<'_>, now_ms: i64) -> Result<Meters, Refused> {
        let mut shard = self.shard(asker.account);
        shard
            .judge(asker, Arriving::default(), now_ms)
            .map_err(Refused::Limited)?;
        Ok(shard.take(asker, now_ms))
    }

    /// Returns the credits left under the key's own limit; `None` if it has no limit. Exact in the
    /// process that admits requests. During a hand-over, each process counts its own holds and what
    /// both have spent; so the key may exceed its limit by the cost of the other process's open
    /// requests.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
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

    /// Counts the claimed credits of a request of this process, which has handed over.
    pub fn add(&self, asker: &Asker<'_>, parts: Parts) {
        let mut shard = self.shard(asker.account);
        let (open, of_key) = shard.of(asker);
        open.add(parts);
        of_key.add(parts);
    }

    /// Number of requests that the account has open in this process.
    pub fn open_requests(&self, account: &str) -> u64 {
        self.shard(account)
            .accounts
            .get(account)
            .map_or(0, |open| open.requests)
    }

    /// Resolves a hold of `held` with the request's cost and its `tokens`. The cost may exceed the
    /// hold by at most the credits available now. A process that has handed over does not know what
    /// is available, so it takes at most the hold.
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
            // Only this case needs the balance. If it cannot be read, take nothing more, so that it
            // never falls below zero.
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
        // A cost above the hold counts for the key too, even beyond its limit: the account has paid
        // it.
        of_key.held = of_key.held.minus(held.total());
        of_key.settled = of_key.settled.plus(taken.total());
        of_key.requests = of_key.requests.saturating_sub(1);
        Resolved {
            taken,
            writeoff: cost.minus(taken.total()),
            freed: if is_guest { held } else { taken },
        }
    }

    /// Undoes what [`HoldRegistry::resolve`] settled, if it could not be journalled. Returns the
    /// claim to release, if this process has handed over.
    pub fn unsettle(&self, ledger: &Ledger, asker: &Asker<'_>, resolved: &Resolved) -> Parts {
        let mut shard = self.shard(asker.account);
        if let Some(of_key) = shard.keys.get_mut(asker.key) {
            of_key.settled = of_key.settled.minus(resolved.taken.total());
        }
        if let Some(open) = shard.accounts.get_mut(asker.account) {
            open.settled = open.settled.minus(resolved.taken);
            open.unmirrored = true;
            // Under the lock, so a later hand-over sees none of it.
            if ledger.is_guest() {
                return resolved.freed;
            }
        }
        Parts::ZERO
    }

    /// Returns the account's credits; `None` if it is not open.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
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

    /// Whether the account has no open request, here or in a process that handed over, and nothing
    /// settled that the ledger lacks. Only then may a lapse be posted.
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

    /// Runs `work` with this process's claim on the account, while nothing can be held or settled
    /// for it. Returns `None` if this process no longer admits requests.
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

    /// Hands over: turns all holds into claims, while nothing is held or resolved.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be written; nothing changes then.
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

    /// Returns the accounts whose holds changed since the last call, with this process's claims on
    /// them.
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

    /// Marks `accounts` as changed again, because their claims could not be written.
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

    /// Checks the rate limits for one more request besides the `arriving` ones, and returns the
    /// account's credits.
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

    /// Checks whether the payer's rate limits allow one more request. Counts nothing.
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

    /// Counts an admitted request. Returns the rate limit status.
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

    /// Credits settled here that the ledger does not have yet count as spent now, whichever day
    /// they are entered on.
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
