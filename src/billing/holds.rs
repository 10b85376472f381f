//! This process's open holds and settled amounts, in memory, next to the posted balances in the
//! ledger.
//!
//! The admission rule: `balance = posted − (settled − applied)`, `available = balance − held`.
//! `posted` and `applied` come from the ledger as one snapshot; `settled` and `held` do not change
//! while the account's lock is held. So the sum is exact at every moment, even during a commit of
//! the ledger writer, and no lock is held across a commit. Holds end with the process, except that
//! a process that hands over turns them into claims. The claims of other processes
//! (`billing/handover.rs`) are in the same snapshot and count as held. The same rule applies to the
//! spending and the holds of a key, and of a member. The same lock protects the rate counters of
//! the key and the account.
//!
//! Threads that serve requests need the locks, and must not wait for the disk. So nobody who holds
//! a lock may do that but [`HoldRegistry::with_frozen_account`] and [`HoldRegistry::hand_over`].
//! Meanwhile no request is admitted, and the end of one is noted for the next holder of the lock
//! ([`EndedHold`]); at a handover it waits. A row of the ledger that is not in memory is read
//! without a lock ([`HoldRegistry::load_rows`]), and then the caller tries again. This file must
//! not depend on prices.

use super::backlog::BacklogRefusal;
use super::balance::{CreditSnapshot, SpendLeft};
use base::clock;
use credits::limits::{Period, RequestLimits, SpendLimit, Spender};
use credits::money::{CreditSplit, Micro};
use credits::rates::{LimitScope, RateCounter, RateLimitStatuses, RateLimitWait};
use ledger::journal::replay::WithheldCost;
use ledger::{Claim, KeySpend, Ledger, LedgerAccount, StoreError};
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use tokio::runtime::Handle;

const SHARDS: usize = 64;
/// Number of attempts to lock a shard before somebody counts as waiting for the disk with its lock.
const MAX_LOCK_ATTEMPTS: u32 = 1_000;
/// Number of attempts between which the holder of the lock may have this thread's processor.
const ATTEMPTS_PER_YIELD: u32 = 50;

/// The holds of all accounts that this process has served.
pub struct HoldRegistry {
    instance_id: String,
    shards: Vec<(Mutex<Shard>, Mutex<Vec<EndedHold>>)>,
    /// True from the beginning of a handover. No end is noted then.
    is_handing_over: AtomicBool,
    hasher: RandomState,
    /// Number of endings of dead processes whose costs are held here.
    withheld: AtomicUsize,
}

/// A part of the accounts, their keys and members, with a lock of its own.
#[derive(Default)]
struct Shard {
    accounts: HashMap<Arc<str>, AccountHolds>,
    spenders: HashMap<Arc<str>, SpenderHolds>,
}

/// The account, key and member that make a request, with its limits.
#[derive(Debug, Clone, Copy)]
pub struct Payer<'a> {
    pub account: &'a Arc<str>,
    pub key: &'a Arc<str>,
    /// Id of the membership whose key it is, if the account is an organisation's.
    pub member: Option<&'a Arc<str>>,
    pub bounds: &'a RequestLimits,
}

/// One account's holds, and the credits that were settled since this process began.
#[derive(Debug, Clone, Copy, Default)]
struct AccountHolds {
    requests: u64,
    held: CreditSplit,
    /// Part of `held` for requests of dead processes whose endings the ledger cannot enter yet.
    withheld: CreditSplit,
    settled: CreditSplit,
    /// The ledger's row at the last admission.
    known: Option<LedgerAccount>,
    /// True if the holds changed since the mirror was last written.
    unmirrored: bool,
    gauge: RateCounter,
}

/// The holds of one key or member. They are counted even without a limit, because a limit may be
/// set at any time.
#[derive(Debug, Clone, Copy, Default)]
struct SpenderHolds {
    requests: u64,
    held: Micro,
    /// Part of `held` for requests of dead processes whose endings the ledger cannot enter yet.
    withheld: Micro,
    settled: Micro,
    gauge: RateCounter,
}

/// A resolved hold that its shard does not have yet, because somebody held the lock for long.
struct EndedHold {
    account: Arc<str>,
    key: Arc<str>,
    member: Option<Arc<str>>,
    bounds: RequestLimits,
    held: CreditSplit,
    taken: CreditSplit,
    tokens: u64,
}

/// Number of requests of an account and of its key that have arrived and hold no credits yet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PendingRequests {
    pub of_account: u64,
    pub of_key: u64,
}

#[derive(Debug, Clone, Copy)]
pub struct HoldResolution {
    /// Credits that the account pays.
    pub taken: CreditSplit,
    /// Cost that the account cannot pay.
    pub writeoff: Micro,
    /// Claim to release once the ledger has the ending. It is zero unless this process has handed
    /// over by then.
    pub freed: CreditSplit,
}

/// The reserved parts, the output limit, and the status of the rate limits.
pub type ReservedHold = (CreditSplit, u64, RateLimitStatuses);

/// What a decision without the disk came to.
#[derive(Debug)]
pub enum InMemory<T> {
    Decided(T),
    /// It needs a row that is not in memory: read it by [`HoldRegistry::load_rows`], and try again.
    Unread,
}

/// The reason why no credits were reserved.
#[derive(Debug)]
pub enum ReserveError {
    Insufficient {
        available: Micro,
        needed: Micro,
    },
    TrialExpired,
    /// The account was suspended after the request's key had been looked up.
    Suspended,
    /// The rest of the spend limit of the key, or of its member, is less than the request needs.
    SpendLimit {
        of: Spender,
        period: Period,
        free: Micro,
    },
    TooManyOpen {
        limit: u64,
    },
    /// A limit on requests, tokens or concurrency is reached.
    Limited(RateLimitWait),
    /// The process has reached its maximum of open requests.
    Busy,
    /// The ledger is too far behind.
    Backlog(BacklogRefusal),
    /// The ledger cannot be read or written.
    Unavailable(String),
}

impl ReserveError {
    /// Wraps the error of an opening record.
    pub fn from_journal(error: io::Error) -> Self {
        Self::Unavailable(format!("cannot write the journal: {error}"))
    }
}

impl From<BacklogRefusal> for ReserveError {
    fn from(refusal: BacklogRefusal) -> Self {
        Self::Backlog(refusal)
    }
}

impl HoldRegistry {
    pub fn instance_id(&self) -> &str {
        &self.instance_id
    }

    pub fn new(instance_id: &str) -> Self {
        let shards = (0..SHARDS).map(|_| Default::default()).collect();
        Self {
            instance_id: instance_id.to_owned(),
            shards,
            is_handing_over: AtomicBool::new(false),
            hasher: RandomState::new(),
            withheld: AtomicUsize::new(0),
        }
    }

    fn lock_shard(&self, account: &str) -> MutexGuard<'_, Shard> {
        self.lock_index(self.shard_index(account))
    }

    fn lock_index(&self, index: usize) -> MutexGuard<'_, Shard> {
        let (shard, ended) = &self.shards[index];
        let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
        shard.enter(ended);
        shard
    }

    fn lock_all(&self) -> Vec<MutexGuard<'_, Shard>> {
        let locked = (0..SHARDS).map(|index| self.lock_index(index));
        locked.collect()
    }

    /// Locks the account's shard, or returns `None` if somebody holds the lock for longer than a
    /// few microseconds of their own time.
    fn try_lock_shard(&self, account: &str) -> Option<MutexGuard<'_, Shard>> {
        let (shard, ended) = &self.shards[self.shard_index(account)];
        for attempt in 1..=MAX_LOCK_ATTEMPTS {
            let mut shard = match shard.try_lock() {
                Ok(shard) => shard,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                // The holder may wait for a processor, not for the disk.
                Err(TryLockError::WouldBlock) if attempt.is_multiple_of(ATTEMPTS_PER_YIELD) => {
                    std::thread::yield_now();
                    continue;
                }
                Err(TryLockError::WouldBlock) => {
                    std::hint::spin_loop();
                    continue;
                }
            };
            shard.enter(ended);
            return Some(shard);
        }
        None
    }

    /// Reads the rows of the ledger that a decision about the payer's requests needs into memory,
    /// and waits until nobody holds the shard's lock. It may wait for the disk.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read or does not have the account.
    pub fn load_rows(
        &self,
        ledger: &Ledger,
        account: &str,
        spending: &[(Arc<str>, Period)],
        now_ms: i64,
    ) -> Result<(), ReserveError> {
        drop(self.lock_shard(account));
        if !ledger
            .rows()
            .in_memory()
            .load_account(account, &self.instance_id)?
        {
            return Err(ReserveError::Unavailable(format!(
                "account {account} is not in the ledger"
            )));
        }
        for (spender, period) in spending {
            let first_day = period.first_day(now_ms);
            let rows = ledger.rows().in_memory();
            rows.load_key_spend(spender, first_day, &self.instance_id)?;
        }
        Ok(())
    }

    fn shard_index(&self, account: &str) -> usize {
        usize::try_from(self.hasher.hash_one(account) % SHARDS as u64).unwrap_or_default()
    }

    /// Checks the account's credits and reserves what `decide` returns, in one step. Returns the
    /// reserved parts, the output limit from `decide`, and the rate limit status; `None` if this
    /// process no longer admits requests. Never waits for the disk.
    ///
    /// # Errors
    /// Returns an error if a limit is reached or `decide` refuses; the request is not counted then.
    pub fn reserve(
        &self,
        ledger: &Ledger,
        payer: &Payer<'_>,
        now_ms: i64,
        decide: impl FnOnce(&CreditSnapshot) -> Result<(Micro, u64), ReserveError>,
    ) -> Result<InMemory<Option<ReservedHold>>, ReserveError> {
        let Some(mut shard) = self.try_lock_shard(payer.account) else {
            return Ok(InMemory::Unread);
        };
        if ledger.changes().has_handed_over() {
            return Ok(InMemory::Decided(None));
        }
        let arriving = PendingRequests::default();
        let Some(credit) = shard.check(ledger, payer, &self.instance_id, arriving, now_ms)? else {
            return Ok(InMemory::Unread);
        };
        let (amount, output_limit) = decide(&credit)?;
        let parts = credit.available.draw(amount);
        shard.add(payer, parts);
        let meters = shard.count_request(payer);
        Ok(InMemory::Decided(Some((parts, output_limit, meters))))
    }

    /// Checks the payer's limits, and with `decide` the account's credits, before the gateway reads
    /// the request's body. The request is neither reserved nor counted. The check always succeeds
    /// in a process that no longer admits requests. Never waits for the disk.
    ///
    /// # Errors
    /// Returns an error if a limit is reached or `decide` refuses.
    pub fn check(
        &self,
        ledger: &Ledger,
        payer: &Payer<'_>,
        arriving: PendingRequests,
        now_ms: i64,
        decide: impl FnOnce(&CreditSnapshot) -> Result<(), ReserveError>,
    ) -> Result<InMemory<()>, ReserveError> {
        let Some(mut shard) = self.try_lock_shard(payer.account) else {
            return Ok(InMemory::Unread);
        };
        if ledger.changes().has_handed_over() {
            return Ok(InMemory::Decided(()));
        }
        match shard.check(ledger, payer, &self.instance_id, arriving, now_ms)? {
            Some(credit) => decide(&credit).map(InMemory::Decided),
            None => Ok(InMemory::Unread),
        }
    }

    /// Counts a request of a process that has handed over against the payer's rate limits. The two
    /// processes do not see each other's running requests. Returns the rate limit status.
    ///
    /// # Errors
    /// Returns an error if a limit is reached.
    pub fn count_request(&self, payer: &Payer<'_>) -> Result<RateLimitStatuses, ReserveError> {
        let mut shard = self.lock_shard(payer.account);
        shard
            .check_rates(payer, PendingRequests::default())
            .map_err(ReserveError::Limited)?;
        Ok(shard.count_request(payer))
    }

    /// Returns the credits left under the spend limits of the key and of its member. The result is
    /// exact in the process that admits requests. During a handover, each process counts its own
    /// holds and the spending of both, so a limit may be exceeded by the cost of the other
    /// process's open requests.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn spend_left(
        &self,
        ledger: &Ledger,
        payer: &Payer<'_>,
        now_ms: i64,
    ) -> Result<[Option<SpendLeft>; 2], StoreError> {
        let mut known = [None; 2];
        for (index, (spender, limit)) in payer.spend_limits() {
            let first_day = limit.period.first_day(now_ms);
            let rows = ledger.rows();
            known[index] = Some(rows.key_spend(spender, first_day, &self.instance_id)?);
        }
        Ok(self.lock_shard(payer.account).spend_left(payer, known))
    }

    /// Counts the claimed credits of a request in this process, which has handed over.
    pub fn add_claimed(&self, payer: &Payer<'_>, parts: CreditSplit) {
        let mut shard = self.lock_shard(payer.account);
        shard.add(payer, parts);
    }

    /// Holds the costs of ended requests of dead processes whose endings wait for a missing
    /// segment, and releases those that were held so far. Otherwise an account could spend the
    /// credits again.
    pub(super) fn set_withheld(&self, costs: &[WithheldCost]) {
        if self.withheld.swap(costs.len(), Ordering::Relaxed) == 0 && costs.is_empty() {
            return;
        }
        let mut shards = self.lock_all();
        for shard in &mut shards {
            for open in shard.accounts.values_mut() {
                open.hold_withheld(CreditSplit::ZERO.minus(open.withheld));
            }
            for holds in shard.spenders.values_mut() {
                holds.hold_withheld(Micro::ZERO.minus(holds.withheld));
            }
        }
        for WithheldCost {
            account,
            spenders,
            cost,
        } in costs
        {
            let shard = &mut shards[self.shard_index(account)];
            let open = shard.accounts.entry(Arc::clone(account)).or_default();
            open.hold_withheld(*cost);
            for spender in spenders {
                let holds = shard.spenders.entry(Arc::clone(spender)).or_default();
                holds.hold_withheld(cost.total());
            }
        }
    }

    /// Returns the number of endings of dead processes that wait for a missing segment.
    pub fn withheld(&self) -> usize {
        self.withheld.load(Ordering::Relaxed)
    }

    /// Returns the number of requests that the account has open in this process.
    pub fn open_requests(&self, account: &str) -> u64 {
        self.lock_shard(account)
            .accounts
            .get(account)
            .map_or(0, |open| open.requests)
    }

    /// Resolves a hold of `held` with the request's cost and its `tokens`. The cost may exceed the
    /// hold by at most the credits available now. A process that has handed over does not know the
    /// available credits, so it takes at most the hold; nor does one of whose account an operator
    /// takes credits meanwhile, and this waits for the disk.
    pub fn resolve(
        &self,
        ledger: &Ledger,
        payer: &Payer<'_>,
        held: CreditSplit,
        cost: Micro,
        tokens: u64,
        now_ms: i64,
    ) -> HoldResolution {
        let account = payer.account;
        let mut shard = match self.try_lock_shard(account) {
            Some(shard) => shard,
            None => match self.note_end(payer, held, cost, tokens) {
                Some(resolution) => return resolution,
                None => self.lock_shard(account),
            },
        };
        let open = shard.entries(payer).0;
        let has_handed_over = ledger.changes().has_handed_over();
        let mut taken = held.draw(cost);
        if taken.total() < cost && !has_handed_over {
            // Only this case needs the balance. Where its row is not in memory any more and this
            // thread must not read it, the row at the account's last admission decides: the commit
            // never debits more than the account has.
            let rows = ledger.rows();
            let row = rows.in_memory().account(account, &self.instance_id);
            let row = row.or_else(|| match Handle::try_current() {
                Ok(_) => open.known,
                Err(_) => rows.account(account, &self.instance_id).ok().flatten(),
            });
            if let Some(row) = row {
                let credit =
                    CreditSnapshot::from_row(row, open.held, open.settled, open.requests, now_ms);
                taken = taken.plus(credit.available.draw(cost.minus(taken.total())));
            }
        }
        shard.end(payer, held, taken, tokens);
        HoldResolution {
            taken,
            writeoff: cost.minus(taken.total()),
            freed: if has_handed_over { held } else { taken },
        }
    }

    /// Notes the end of a hold for the next holder of the shard's lock. Returns `None` at a
    /// handover.
    fn note_end(
        &self,
        payer: &Payer<'_>,
        held: CreditSplit,
        cost: Micro,
        tokens: u64,
    ) -> Option<HoldResolution> {
        let taken = held.draw(cost);
        let (_, ended) = &self.shards[self.shard_index(payer.account)];
        let mut ended = ended.lock().unwrap_or_else(PoisonError::into_inner);
        // A handover that has not locked the shard yet enters what is noted now.
        if self.is_handing_over.load(Ordering::SeqCst) {
            return None;
        }
        ended.push(EndedHold {
            account: Arc::clone(payer.account),
            key: Arc::clone(payer.key),
            member: payer.member.cloned(),
            bounds: *payer.bounds,
            held,
            taken,
            tokens,
        });
        Some(HoldResolution {
            taken,
            writeoff: cost.minus(taken.total()),
            freed: taken,
        })
    }

    /// Undoes a settlement of [`HoldRegistry::resolve`] that could not be journalled. Returns the
    /// claim to release, if this process has handed over.
    pub fn undo_settlement(
        &self,
        ledger: &Ledger,
        payer: &Payer<'_>,
        resolved: &HoldResolution,
    ) -> CreditSplit {
        let mut shard = self.lock_shard(payer.account);
        for spender in payer.spenders() {
            if let Some(holds) = shard.spenders.get_mut(spender) {
                holds.settled = holds.settled.minus(resolved.taken.total());
            }
        }
        if let Some(open) = shard.accounts.get_mut(payer.account) {
            open.settled = open.settled.minus(resolved.taken);
            open.unmirrored = true;
            // The lock is held, so a later handover does not see the undone settlement.
            if ledger.changes().has_handed_over() {
                return resolved.freed;
            }
        }
        CreditSplit::ZERO
    }

    /// Returns the account's credits, or `None` if it is not open.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be read.
    pub fn snapshot(
        &self,
        ledger: &Ledger,
        account: &str,
        now_ms: i64,
    ) -> Result<Option<CreditSnapshot>, StoreError> {
        let row = ledger.rows().account(account, &self.instance_id)?;
        let shard = self.lock_shard(account);
        let open = shard.accounts.get(account).copied().unwrap_or_default();
        Ok(row.map(|row| {
            CreditSnapshot::from_row(row, open.held, open.settled, open.requests, now_ms)
        }))
    }

    /// Returns whether the account has no open request, in this process or in one that handed over,
    /// and no settled or withheld credits that the ledger lacks. Only then may a lapse be posted.
    pub fn is_idle(&self, ledger: &Ledger, account: &str) -> Result<bool, StoreError> {
        let Some(row) = ledger.rows().account(account, &self.instance_id)? else {
            return Ok(true);
        };
        let shard = self.lock_shard(account);
        let open = shard.accounts.get(account).copied().unwrap_or_default();
        let applied = CreditSplit {
            paid: row.applied_paid,
            trial: row.applied_trial,
        };
        Ok(open.requests == 0
            && open.withheld == CreditSplit::ZERO
            && applied == open.settled
            && !row.claimed_trial.is_positive())
    }

    /// Runs `work` with this process's claim on the account. No credits of the account can be held
    /// or settled meanwhile. Returns `None` if this process no longer admits requests.
    pub fn with_frozen_account<T>(
        &self,
        ledger: &Ledger,
        account: &str,
        work: impl FnOnce(Claim) -> T,
    ) -> Option<T> {
        let shard = self.lock_shard(account);
        let has_handed_over = ledger.changes().has_handed_over();
        (!has_handed_over)
            .then(|| work(self.claim(&shard.accounts.get(account).copied().unwrap_or_default())))
    }

    fn claim(&self, open: &AccountHolds) -> Claim {
        Claim {
            instance_id: self.instance_id.clone(),
            held: open.held,
            settled: open.settled,
        }
    }

    /// Turns all holds into claims, which hands them over. No hold can begin or end meanwhile.
    ///
    /// # Errors
    /// Returns an error if the ledger cannot be written; the holds are then unchanged.
    pub fn hand_over(&self, ledger: &Ledger) -> Result<(), StoreError> {
        self.is_handing_over.store(true, Ordering::SeqCst);
        let shards = self.lock_all();
        let all = shards.iter().flat_map(|shard| shard.accounts.iter());
        let all = all.filter(|(_, open)| {
            open.held != CreditSplit::ZERO || open.settled != CreditSplit::ZERO
        });
        let held: Vec<_> = all
            .map(|(account, open)| (account.to_string(), self.claim(open)))
            .collect();
        let handed_over = ledger.changes().hand_over(&self.instance_id, &held);
        self.is_handing_over
            .store(handed_over.is_ok(), Ordering::SeqCst);
        handed_over
    }

    /// Returns the accounts whose holds changed since the last call, with this process's claims on
    /// them.
    pub fn take_changed(&self) -> Vec<(String, Claim)> {
        let mut changed = Vec::new();
        for index in 0..SHARDS {
            for (account, open) in &mut self.lock_index(index).accounts {
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
            if let Some(open) = self.lock_shard(account).accounts.get_mut(account.as_str()) {
                open.unmirrored = true;
            }
        }
    }
}

impl<'a> Payer<'a> {
    /// Returns the ids whose spending the request counts as, in the order of [`Spender::ALL`].
    fn spenders(&self) -> impl Iterator<Item = &'a Arc<str>> + use<'a> {
        std::iter::once(self.key).chain(self.member)
    }

    /// Returns the spend limits and whose they are, each with its place in [`Spender::ALL`].
    pub(super) fn spend_limits(
        &self,
    ) -> impl Iterator<Item = (usize, (&'a Arc<str>, SpendLimit))> + use<'a> {
        let limits = self.spenders().zip(self.bounds.spend).enumerate();
        limits.filter_map(|(index, (spender, limit))| Some((index, (spender, limit?))))
    }
}

impl Shard {
    fn entries(&mut self, payer: &Payer<'_>) -> (&mut AccountHolds, &mut SpenderHolds) {
        let open = self.accounts.entry(Arc::clone(payer.account)).or_default();
        (
            open,
            self.spenders.entry(Arc::clone(payer.key)).or_default(),
        )
    }

    /// Adds a hold to the account, the key and the member.
    fn add(&mut self, payer: &Payer<'_>, parts: CreditSplit) {
        self.entries(payer).0.add(parts);
        for spender in payer.spenders() {
            let holds = self.spenders.entry(Arc::clone(spender)).or_default();
            holds.add(parts);
        }
    }

    /// Returns the credits left under each spend limit, of whose spender `known` has the spending.
    fn spend_left(
        &self,
        payer: &Payer<'_>,
        known: [Option<KeySpend>; 2],
    ) -> [Option<SpendLeft>; 2] {
        let mut left = [None; 2];
        for (index, (spender, SpendLimit { credits, period })) in payer.spend_limits() {
            let holds = self.spenders.get(spender).copied().unwrap_or_default();
            let spent = holds.spent(known[index].unwrap_or_default());
            left[index] = Some(SpendLeft {
                of: Spender::ALL[index],
                period,
                free: credits.minus(spent).minus(holds.held).or_zero(),
            });
        }
        left
    }

    /// Enters the holds that ended while somebody held the lock for long.
    fn enter(&mut self, ended: &Mutex<Vec<EndedHold>>) {
        let ended = std::mem::take(&mut *ended.lock().unwrap_or_else(PoisonError::into_inner));
        for ended in &ended {
            let payer = Payer {
                account: &ended.account,
                key: &ended.key,
                member: ended.member.as_ref(),
                bounds: &ended.bounds,
            };
            self.end(&payer, ended.held, ended.taken, ended.tokens);
        }
    }

    fn end(&mut self, payer: &Payer<'_>, held: CreditSplit, taken: CreditSplit, tokens: u64) {
        let bounds = payer.bounds;
        let (open, of_key) = self.entries(payer);
        open.gauge
            .correct_tokens(&bounds.account, bounds.tokens, tokens);
        of_key
            .gauge
            .correct_tokens(&bounds.key, bounds.tokens, tokens);
        open.held = open.held.minus(held);
        open.settled = open.settled.plus(taken);
        open.requests = open.requests.saturating_sub(1);
        open.unmirrored = true;
        // A cost above the hold counts for the key and the member too, even beyond their limits,
        // because the account has paid it.
        for spender in payer.spenders() {
            let holds = self.spenders.entry(Arc::clone(spender)).or_default();
            holds.held = holds.held.minus(held.total());
            holds.settled = holds.settled.plus(taken.total());
            holds.requests = holds.requests.saturating_sub(1);
        }
    }

    /// Checks whether the rate limits allow one more request besides the `arriving` ones, and
    /// returns the account's credits; `None` if a row is not in memory.
    fn check(
        &mut self,
        ledger: &Ledger,
        payer: &Payer<'_>,
        instance_id: &str,
        arriving: PendingRequests,
        now_ms: i64,
    ) -> Result<Option<CreditSnapshot>, ReserveError> {
        let rows = ledger.rows().in_memory();
        let Some(row) = rows.account(payer.account, instance_id) else {
            return Ok(None);
        };
        let mut known = [None; 2];
        for (index, (spender, limit)) in payer.spend_limits() {
            let first_day = limit.period.first_day(now_ms);
            let spend = rows.key_spend(spender, first_day, instance_id);
            if spend.is_none() {
                return Ok(None);
            }
            known[index] = spend;
        }
        self.check_rates(payer, arriving)
            .map_err(ReserveError::Limited)?;
        let (open, _) = self.entries(payer);
        open.known = Some(row);
        let open_requests = open.requests.saturating_add(arriving.of_account);
        let mut credit =
            CreditSnapshot::from_row(row, open.held, open.settled, open_requests, now_ms);
        credit.spend_left = self.spend_left(payer, known);
        Ok(Some(credit))
    }

    /// Checks whether the payer's rate limits allow one more request, without counting it. A limit
    /// per minute must not refill because somebody sets the machine's clock.
    fn check_rates(
        &mut self,
        payer: &Payer<'_>,
        arriving: PendingRequests,
    ) -> Result<(), RateLimitWait> {
        let (bounds, now_ms) = (payer.bounds, clock::steady_now_ms());
        if bounds.key.is_unlimited() && bounds.account.is_unlimited() {
            return Ok(());
        }
        let (open, of_key) = self.entries(payer);
        let outcome = of_key
            .gauge
            .check(
                &bounds.key,
                LimitScope::Key,
                of_key.requests.saturating_add(arriving.of_key),
                bounds.tokens,
                now_ms,
            )
            .and_then(|()| {
                let open_requests = open.requests.saturating_add(arriving.of_account);
                open.gauge.check(
                    &bounds.account,
                    LimitScope::Account,
                    open_requests,
                    bounds.tokens,
                    now_ms,
                )
            });
        outcome.map_err(|wait| {
            let meters = open.gauge.statuses(&bounds.account, now_ms);
            RateLimitWait {
                meters: of_key.gauge.statuses(&bounds.key, now_ms).tighter(meters),
                ..wait
            }
        })
    }

    /// Counts an admitted request. Returns the rate limit status.
    fn count_request(&mut self, payer: &Payer<'_>) -> RateLimitStatuses {
        let (bounds, now_ms) = (payer.bounds, clock::steady_now_ms());
        if bounds.key.is_unlimited() && bounds.account.is_unlimited() {
            return RateLimitStatuses::default();
        }
        let (open, of_key) = self.entries(payer);
        of_key
            .gauge
            .count_request(&bounds.key, bounds.tokens, now_ms);
        open.gauge
            .count_request(&bounds.account, bounds.tokens, now_ms);
        of_key
            .gauge
            .statuses(&bounds.key, now_ms)
            .tighter(open.gauge.statuses(&bounds.account, now_ms))
    }
}

impl SpenderHolds {
    fn add(&mut self, parts: CreditSplit) {
        self.held = self.held.plus(parts.total());
        self.requests = self.requests.saturating_add(1);
    }

    fn hold_withheld(&mut self, change: Micro) {
        self.held = self.held.plus(change);
        self.withheld = self.withheld.plus(change);
    }

    /// Returns the credits spent since a day. Settled credits that the ledger does not have yet
    /// count as spent now, on whichever day they are entered.
    fn spent(&self, known: KeySpend) -> Micro {
        known.spent.plus(self.settled.minus(known.applied))
    }
}

impl AccountHolds {
    fn add(&mut self, parts: CreditSplit) {
        self.held = self.held.plus(parts);
        self.requests = self.requests.saturating_add(1);
        self.unmirrored = true;
    }

    fn hold_withheld(&mut self, change: CreditSplit) {
        if change != CreditSplit::ZERO {
            self.held = self.held.plus(change);
            self.withheld = self.withheld.plus(change);
            self.unmirrored = true;
        }
    }
}
