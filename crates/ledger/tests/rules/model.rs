//! A second home of the ledger, in memory: the rules of entries, written a second time in `i128`,
//! with a chain of its own.
//!
//! It can break one rule on purpose, so that the tests of the rules show that they find it. It must
//! not call the code of `ledger.db`, and shares only the types that are passed to it.

use super::store::LedgerStore;
use credits::money::{CreditSplit, MAX_MICRO, Micro};
use ledger::StoreError;
use ledger::{
    AppendOutcome, BackgroundPace, BalanceChange, BalanceChangeKind, ChainHead, ClaimsOnAccount,
    Ending, EntryReference, IngestEvent, KeySpend, LedgerAccount, LedgerBatch, LedgerChange,
    LedgerEntry, LedgerHeads, Posting, PostingDetail, PostingResult, Refund, RequestOutcome,
    SealBoundary,
};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

const DAY_MS: i64 = 86_400_000;

/// A rule that a home can break.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    EntersTwice,
    KeepsHalfABatch,
    GoesBelowZero,
    LosesWriteOffs,
    ChargesVoids,
    RefundsMoreThanTheDebit,
    RefundsAnotherBucket,
    TakesHeldCredits,
    AcceptsAReferenceForSomethingElse,
    CountsKeysByTheCommit,
    ForgetsWhatIsApplied,
    ForgetsLateEvents,
    ForgetsSealedEndings,
    EntersSealedEndingsAgain,
    SealsTheLastEntry,
    SkipsAnEntryBetweenSlices,
    ChainsToTheFirstEntry,
    LosesTheLastBatchWhenReopened,
    KeepsACopyForEachHandle,
}

impl Fault {
    pub const ALL: [Self; 19] = [
        Self::EntersTwice,
        Self::KeepsHalfABatch,
        Self::GoesBelowZero,
        Self::LosesWriteOffs,
        Self::ChargesVoids,
        Self::RefundsMoreThanTheDebit,
        Self::RefundsAnotherBucket,
        Self::TakesHeldCredits,
        Self::AcceptsAReferenceForSomethingElse,
        Self::CountsKeysByTheCommit,
        Self::ForgetsWhatIsApplied,
        Self::ForgetsLateEvents,
        Self::ForgetsSealedEndings,
        Self::EntersSealedEndingsAgain,
        Self::SealsTheLastEntry,
        Self::SkipsAnEntryBetweenSlices,
        Self::ChainsToTheFirstEntry,
        Self::LosesTheLastBatchWhenReopened,
        Self::KeepsACopyForEachHandle,
    ];
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Buckets {
    paid: i128,
    trial: i128,
}

impl Buckets {
    fn from_split(split: CreditSplit) -> Self {
        Self {
            paid: split.paid.get().into(),
            trial: split.trial.get().into(),
        }
    }

    fn total(self) -> i128 {
        self.paid + self.trial
    }

    fn plus(self, other: Self) -> Self {
        Self {
            paid: self.paid + other.paid,
            trial: self.trial + other.trial,
        }
    }

    fn minus(self, other: Self) -> Self {
        Self {
            paid: self.paid - other.paid,
            trial: self.trial - other.trial,
        }
    }

    fn or_zero(self) -> Self {
        Self {
            paid: self.paid.max(0),
            trial: self.trial.max(0),
        }
    }

    /// What an account with these credits can pay of `wanted`: from the same bucket, then from the
    /// other one.
    fn cover(self, wanted: Self) -> Self {
        let (paid, trial) = (wanted.paid.min(self.paid), wanted.trial.min(self.trial));
        Self {
            paid: paid + (wanted.trial - trial).min(self.paid - paid),
            trial: trial + (wanted.paid - paid).min(self.trial - trial),
        }
    }
}

#[derive(Clone, Debug, Default)]
struct Account {
    has: Buckets,
    credited: i128,
    trial_ends: Option<i64>,
    applied: BTreeMap<String, Buckets>,
}

#[derive(Clone, Debug, Default)]
struct Key {
    /// What was spent on a day, and the time of the last ending of that day.
    days: BTreeMap<i64, (i128, i64)>,
    applied: BTreeMap<String, i128>,
}

/// What the ledger has.
#[derive(Clone, Debug, Default)]
struct Books {
    accounts: BTreeMap<String, Account>,
    keys: BTreeMap<String, Key>,
    entries: Vec<LedgerEntry>,
    sealed_through: i64,
}

/// A handle on the books.
pub struct MemoryLedger {
    books: Arc<Mutex<Books>>,
    fault: Option<Fault>,
}

fn micro(amount: i128) -> Micro {
    Micro::new(i64::try_from(amount).unwrap())
}

impl MemoryLedger {
    pub fn new(fault: Option<Fault>) -> Self {
        Self {
            books: Arc::default(),
            fault,
        }
    }

    /// Opens the same books again.
    pub fn reopen(&self) -> Self {
        let mut books = Arc::clone(&self.books);
        match self.fault {
            Some(Fault::LosesTheLastBatchWhenReopened) => {
                self.lock().entries.pop();
            }
            Some(Fault::KeepsACopyForEachHandle) => {
                books = Arc::new(Mutex::new(self.lock().clone()));
            }
            _ => {}
        }
        Self {
            books,
            fault: self.fault,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap()
    }

    fn has(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }
}

/// The entry that a change makes, before it is chained.
struct NewEntry<'a> {
    kind: &'a str,
    reference: &'a str,
    account: &'a str,
    at_ms: i64,
    change: Buckets,
    writeoff: i128,
    detail: String,
}

impl Books {
    fn account(&self, account: &str) -> Result<&Account, StoreError> {
        self.accounts
            .get(account)
            .ok_or_else(|| StoreError::Unknown(format!("account {account} is not in the ledger")))
    }

    fn find(&self, kind: &str, reference: &str) -> Option<&LedgerEntry> {
        self.entries
            .iter()
            .find(|entry| entry.kind == kind && entry.reference == reference)
    }

    fn find_ending(&self, request_id: &str) -> Option<&LedgerEntry> {
        self.entries
            .iter()
            .find(|entry| entry.is_ending() && entry.reference == request_id)
    }

    fn push(&mut self, new: NewEntry<'_>, fault: Option<Fault>) -> Result<(), StoreError> {
        let has = self.account(new.account)?.has.plus(new.change);
        if has != has.or_zero() && fault != Some(Fault::GoesBelowZero) {
            return Err(StoreError::Refused("a balance would go below zero".into()));
        }
        let seq = i64::try_from(self.entries.len()).unwrap() + 1;
        let chained_to = match fault {
            Some(Fault::ChainsToTheFirstEntry) => self.entries.first(),
            _ => self.entries.last(),
        };
        let prev = chained_to.map_or_else(|| vec![0; 32], |last| last.hash.clone());
        let amounts = [
            new.change.paid,
            new.change.trial,
            has.paid,
            has.trial,
            new.writeoff,
        ];
        // As the documentation of `ledger export` gives it.
        let text = [
            seq.to_string(),
            new.kind.into(),
            new.reference.into(),
            new.account.into(),
            new.at_ms.to_string(),
            format!("{amounts:?}"),
            new.detail.clone(),
        ]
        .join("\x1f");
        let hash = Sha256::new().chain_update(&prev).chain_update(text);
        let [d_paid, d_trial, bal_paid, bal_trial, writeoff] = amounts.map(micro);
        self.entries.push(LedgerEntry {
            seq,
            kind: new.kind.into(),
            reference: new.reference.into(),
            account: new.account.into(),
            at_ms: new.at_ms,
            d_paid,
            d_trial,
            bal_paid,
            bal_trial,
            writeoff,
            detail: new.detail,
            prev,
            hash: hash.finalize().to_vec(),
        });
        self.accounts.get_mut(new.account).unwrap().has = has;
        Ok(())
    }

    fn posted(&self, entry: &LedgerEntry, is_new: bool) -> PostingResult {
        PostingResult {
            account: entry.account.clone(),
            is_new,
            change: entry.change(),
            balance: micro(self.accounts[&entry.account].has.total()),
        }
    }

    fn post(
        &mut self,
        new: NewEntry<'_>,
        fault: Option<Fault>,
    ) -> Result<PostingResult, StoreError> {
        let has = self.account(new.account)?.has;
        if has.paid + new.change.paid > i128::from(MAX_MICRO) {
            return Err(StoreError::Refused("a balance is too large".into()));
        }
        self.push(new, fault)?;
        Ok(self.posted(self.entries.last().unwrap(), true))
    }

    fn end(
        &mut self,
        ending: &Ending,
        instance_id: &str,
        detail: String,
        fault: Option<Fault>,
    ) -> Result<AppendOutcome, StoreError> {
        let has = self.account(&ending.account)?.has;
        let settled = Buckets::from_split(CreditSplit {
            paid: ending.paid,
            trial: ending.trial,
        });
        let kind = match ending.detail.outcome {
            RequestOutcome::VendorError
            | RequestOutcome::VendorCut
            | RequestOutcome::Interrupted => "void",
            _ => "debit",
        };
        if !instance_id.is_empty() && fault != Some(Fault::ForgetsWhatIsApplied) {
            let account = self.accounts.get_mut(&ending.account).unwrap();
            let applied = account.applied.entry(instance_id.into()).or_default();
            *applied = applied.plus(settled.or_zero());
            let key = self.keys.entry(ending.detail.key_id.clone()).or_default();
            *key.applied.entry(instance_id.into()).or_default() += settled.or_zero().total();
        }
        let known = self.find_ending(&ending.request_id).map(|entry| entry.seq);
        let is_forgotten = known.is_some_and(|seq| match fault {
            Some(Fault::EntersTwice) => true,
            Some(Fault::EntersSealedEndingsAgain) => seq <= self.sealed_through,
            _ => false,
        });
        if known.is_some() && !is_forgotten {
            return Ok(AppendOutcome::AlreadyEnded);
        }
        let taken = match fault {
            Some(Fault::GoesBelowZero) => settled,
            Some(Fault::ChargesVoids) if kind == "void" => has.cover(Buckets {
                paid: settled.paid + 1,
                ..settled
            }),
            _ => has.cover(settled),
        };
        let writeoff = match fault {
            Some(Fault::LosesWriteOffs) => 0,
            _ => settled.total() + i128::from(ending.writeoff.get()) - taken.total(),
        };
        self.push(
            NewEntry {
                kind,
                reference: &ending.request_id,
                account: &ending.account,
                at_ms: ending.at_ms,
                change: Buckets::default().minus(taken),
                writeoff,
                detail,
            },
            fault,
        )?;
        let mut day = ending.at_ms.div_euclid(DAY_MS);
        let key = self.keys.entry(ending.detail.key_id.clone()).or_default();
        if fault == Some(Fault::CountsKeysByTheCommit) {
            day = key.days.keys().last().map_or(day, |last| day.max(*last));
        }
        let (spent, used_at) = key.days.entry(day).or_insert((0, i64::MIN));
        *spent += taken.total();
        *used_at = ending.at_ms.max(*used_at);
        Ok(AppendOutcome::Ended)
    }

    fn post_system(
        &mut self,
        post: &Posting<'_>,
        fault: Option<Fault>,
    ) -> Result<PostingResult, StoreError> {
        if let Some(known) = self.find(post.kind, post.reference) {
            return Ok(self.posted(known, false));
        }
        let detail = PostingDetail {
            trial_ends_at_ms: self.account(post.account)?.trial_ends,
            ..PostingDetail::default()
        };
        let detail = match post.kind {
            "trial" => serde_json::to_string(&detail).unwrap(),
            _ => String::new(),
        };
        self.post(
            NewEntry {
                kind: post.kind,
                reference: post.reference,
                account: post.account,
                at_ms: post.at_ms,
                change: Buckets::from_split(CreditSplit {
                    paid: post.d_paid,
                    trial: post.d_trial,
                }),
                writeoff: 0,
                detail,
            },
            fault,
        )
    }

    /// Returns the earlier result of a reference, if it was for the same change.
    fn known_posting(
        &self,
        kind: &str,
        reference: &str,
        is_same: impl Fn(&LedgerEntry, &PostingDetail) -> bool,
        fault: Option<Fault>,
    ) -> Result<Option<PostingResult>, StoreError> {
        let Some(known) = self.find(kind, reference) else {
            return Ok(None);
        };
        let detail = PostingDetail::decode(&known.detail).unwrap();
        let accepts_all = fault == Some(Fault::AcceptsAReferenceForSomethingElse);
        if !is_same(known, &detail) && !accepts_all {
            return Err(StoreError::ReferenceUsed(format!("{reference} is used")));
        }
        Ok(Some(self.posted(known, false)))
    }

    fn change(
        &mut self,
        change: &BalanceChange<'_>,
        claims: Option<ClaimsOnAccount<'_>>,
        taken: Option<CreditSplit>,
        fault: Option<Fault>,
    ) -> Result<PostingResult, StoreError> {
        let (kind, reason) = match change.kind {
            BalanceChangeKind::Grant => ("grant", None),
            BalanceChangeKind::TopUp => ("topup", None),
            BalanceChangeKind::Adjust { reason } => ("adjust", Some(reason.to_owned())),
            kind => unreachable!("these rules post no {}", kind.name()),
        };
        let is_same = |known: &LedgerEntry, detail: &PostingDetail| {
            known.account == change.account
                && known.change() == change.amount
                && detail.reason == reason
        };
        if let Some(known) = self.known_posting(kind, change.reference, is_same, fault)? {
            return Ok(known);
        }
        let detail = PostingDetail {
            reason: reason.clone(),
            actor: change.actor.map(Into::into),
            ..PostingDetail::default()
        };
        let amount = i128::from(change.amount.get());
        let account = self.accounts.get(change.account);
        let has = account.map_or_else(Buckets::default, |account| account.has);
        let parts = if let Some(taken) = taken.map(Buckets::from_split) {
            let covered = has.cover(taken);
            if covered.total() < taken.total() {
                return Err(StoreError::Refused("the ledger does not have that".into()));
            }
            Buckets::default().minus(covered)
        } else if amount < 0 {
            let mut free = has;
            for claim in claims.map_or(Ok(Vec::new()), |claims| claims())? {
                let applied = account
                    .and_then(|account| account.applied.get(&claim.instance_id).copied())
                    .unwrap_or_default();
                let on_its_way = Buckets::from_split(claim.settled).minus(applied).or_zero();
                if fault != Some(Fault::TakesHeldCredits) {
                    free = free
                        .minus(Buckets::from_split(claim.held))
                        .minus(on_its_way);
                }
            }
            let ends = account.and_then(|account| account.trial_ends);
            if ends.is_none_or(|ends| change.at_ms >= ends) {
                free.trial = 0;
            }
            let free = free.or_zero();
            let paid = (-amount).min(free.paid);
            if -amount - paid > free.trial {
                return Err(StoreError::Refused("the credits are not free".into()));
            }
            Buckets {
                paid: -paid,
                trial: amount + paid,
            }
        } else {
            Buckets {
                paid: amount,
                trial: 0,
            }
        };
        let is_plain = detail.reason.is_none() && detail.actor.is_none();
        let posted = self.post(
            NewEntry {
                kind,
                reference: change.reference,
                account: change.account,
                at_ms: change.at_ms,
                change: parts,
                writeoff: 0,
                detail: match is_plain {
                    true => String::new(),
                    false => serde_json::to_string(&detail).unwrap(),
                },
            },
            fault,
        )?;
        self.accounts.get_mut(change.account).unwrap().credited += amount.max(0);
        Ok(posted)
    }

    fn refund(
        &mut self,
        refund: &Refund<'_>,
        fault: Option<Fault>,
    ) -> Result<PostingResult, StoreError> {
        let is_same = |known: &LedgerEntry, detail: &PostingDetail| {
            detail.request_id.as_deref() == Some(refund.request_id)
                && refund.amount.is_none_or(|amount| amount == known.change())
        };
        if let Some(known) = self.known_posting("refund", refund.reference, is_same, fault)? {
            return Ok(known);
        }
        let debit = self
            .find("debit", refund.request_id)
            .ok_or_else(|| StoreError::Unknown("there is no such debit".into()))?;
        let account = debit.account.clone();
        let taken = Buckets::default().minus(Buckets::from_split(CreditSplit {
            paid: debit.d_paid,
            trial: debit.d_trial,
        }));
        let of_request = |entry: &&LedgerEntry| {
            let detail = PostingDetail::decode(&entry.detail).unwrap_or_default();
            entry.kind == "refund" && detail.request_id.as_deref() == Some(refund.request_id)
        };
        let refunded: i128 = match fault {
            Some(Fault::RefundsMoreThanTheDebit) => 0,
            _ => self
                .entries
                .iter()
                .filter(of_request)
                .map(|entry| i128::from(entry.change().get()))
                .sum(),
        };
        let left = taken.total() - refunded;
        let amount = refund
            .amount
            .map_or(left, |amount| i128::from(amount.get()));
        if amount <= 0 || amount > left {
            return Err(StoreError::Refused("nothing is left to refund".into()));
        }
        let runs = self.accounts[&account]
            .trial_ends
            .is_some_and(|ends| refund.at_ms < ends);
        let paid = match (runs, fault) {
            (_, Some(Fault::RefundsAnotherBucket)) => 0,
            (true, _) => (taken.paid - refunded).max(0).min(amount),
            (false, _) => amount,
        };
        let detail = PostingDetail {
            request_id: Some(refund.request_id.into()),
            actor: refund.actor.map(Into::into),
            ..PostingDetail::default()
        };
        self.post(
            NewEntry {
                kind: "refund",
                reference: refund.reference,
                account: &account,
                at_ms: refund.at_ms,
                change: Buckets {
                    paid,
                    trial: amount - paid,
                },
                writeoff: 0,
                detail: serde_json::to_string(&detail).unwrap(),
            },
            fault,
        )
    }

    fn enter_event(
        &mut self,
        event: &IngestEvent,
        fault: Option<Fault>,
    ) -> Result<Option<CreditSplit>, StoreError> {
        let debit = |entry: &LedgerEntry| CreditSplit {
            paid: Micro::ZERO.minus(entry.d_paid),
            trial: Micro::ZERO.minus(entry.d_trial),
        };
        let (ending, is_late) = match event {
            IngestEvent::Ended(ending, _) => (ending, false),
            IngestEvent::EndedLate(ending, _) => (ending, true),
            IngestEvent::Lapsed { account, at_ms, .. } => {
                let Some(known) = self.accounts.get(account) else {
                    return Ok(None);
                };
                let at_ms = known.trial_ends.map_or(*at_ms, |ends| ends.max(*at_ms));
                let (left, reference) = (known.has.trial, format!("lapse:{account}"));
                self.post_system(
                    &Posting {
                        kind: "lapse",
                        reference: &reference,
                        account,
                        d_paid: Micro::ZERO,
                        d_trial: micro(-left),
                        at_ms,
                    },
                    fault,
                )?;
                return Ok(self.find("lapse", &reference).map(debit));
            }
        };
        if !self.accounts.contains_key(&ending.account) {
            return Ok(None);
        }
        let mut detail = serde_json::to_string(&ending.detail).unwrap();
        if is_late && fault != Some(Fault::ForgetsLateEvents) {
            detail.pop();
            detail += ",\"late\":true}";
        }
        self.end(ending, "", detail, fault)?;
        let entry = self.find_ending(&ending.request_id).unwrap();
        let is_posted_back = is_late || entry.detail.ends_with(",\"late\":true}");
        Ok(Some(match is_posted_back {
            true => CreditSplit::ZERO,
            false => debit(entry),
        }))
    }

    fn enter(
        &mut self,
        change: &LedgerChange<'_>,
        instance_id: &str,
        fault: Option<Fault>,
    ) -> Result<AppendOutcome, StoreError> {
        let posted = match change {
            LedgerChange::Ending { ending, .. } => {
                let detail = serde_json::to_string(&ending.detail).unwrap();
                return self.end(ending, instance_id, detail, fault);
            }
            LedgerChange::Event(event) => {
                return self.enter_event(event, fault).map(AppendOutcome::Debited);
            }
            LedgerChange::Posting(post) => self.post_system(post, fault),
            LedgerChange::Balance { change, claims } => {
                self.change(change, Some(*claims), None, fault)
            }
            LedgerChange::StoreDebit { change, taken } => {
                self.change(change, None, Some(*taken), fault)
            }
            LedgerChange::Refund(refund) => self.refund(refund, fault),
            LedgerChange::TrialEnd(_) => unreachable!("no command of these rules extends a trial"),
        };
        posted.map(AppendOutcome::Posted)
    }
}

impl LedgerStore for MemoryLedger {
    fn open_account(
        &self,
        account: &str,
        trial_ends_at_ms: Option<i64>,
        _at_ms: i64,
    ) -> Result<(), StoreError> {
        let mut books = self.lock();
        books
            .accounts
            .entry(account.into())
            .or_insert_with(|| Account {
                trial_ends: trial_ends_at_ms,
                ..Account::default()
            });
        Ok(())
    }

    fn append(&self, batch: &LedgerBatch<'_>) -> Result<Vec<AppendOutcome>, StoreError> {
        let mut books = self.lock();
        let mut next = books.clone();
        let entered: Result<Vec<_>, _> = batch
            .changes
            .iter()
            .map(|change| next.enter(change, batch.instance_id, self.fault))
            .collect();
        if entered.is_ok() || self.has(Fault::KeepsHalfABatch) {
            *books = next;
        }
        entered
    }

    fn account(
        &self,
        account: &str,
        instance_id: &str,
    ) -> Result<Option<LedgerAccount>, StoreError> {
        let books = self.lock();
        Ok(books.accounts.get(account).map(|row| {
            let applied = row.applied.get(instance_id).copied().unwrap_or_default();
            LedgerAccount {
                paid: micro(row.has.paid),
                trial: micro(row.has.trial),
                trial_ends_at_ms: row.trial_ends,
                credited: micro(row.credited),
                applied_paid: micro(applied.paid),
                applied_trial: micro(applied.trial),
                claimed_paid: Micro::ZERO,
                claimed_trial: Micro::ZERO,
            }
        }))
    }

    fn key_spend(
        &self,
        key: &str,
        first_day: i64,
        instance_id: &str,
    ) -> Result<KeySpend, StoreError> {
        let books = self.lock();
        let key = books.keys.get(key).cloned().unwrap_or_default();
        let sum = |from: i64| {
            let days = key.days.range(from..);
            micro(days.map(|(_, (spent, _))| *spent).sum())
        };
        Ok(KeySpend {
            spent: sum(first_day),
            total: sum(i64::MIN),
            applied: micro(key.applied.get(instance_id).copied().unwrap_or_default()),
            used_at_ms: key.days.values().last().map(|(_, used_at)| *used_at),
        })
    }

    fn entry(&self, reference: EntryReference<'_>) -> Result<Option<LedgerEntry>, StoreError> {
        let books = self.lock();
        let found = match reference {
            EntryReference::Ending(request_id) => books.find_ending(request_id),
            EntryReference::Posting { kind, reference } => books.find(kind, reference),
        };
        let is_forgotten = |entry: &LedgerEntry| {
            self.has(Fault::ForgetsSealedEndings)
                && entry.is_ending()
                && entry.seq <= books.sealed_through
        };
        Ok(found.filter(|entry| !is_forgotten(entry)).cloned())
    }

    fn entries_after(&self, after_seq: i64, limit: u32) -> Result<Vec<LedgerEntry>, StoreError> {
        let books = self.lock();
        let skipped = i64::from(self.has(Fault::SkipsAnEntryBetweenSlices) && after_seq > 2);
        let after = books
            .entries
            .iter()
            .filter(|entry| entry.seq > after_seq + skipped);
        Ok(after.take(limit as usize).cloned().collect())
    }

    fn seal(
        &self,
        boundary: SealBoundary,
        entries_per_segment: i64,
        _pace: BackgroundPace<'_>,
        _now_ms: i64,
    ) -> Result<(), StoreError> {
        let mut books = self.lock();
        let spared = i64::from(!self.has(Fault::SealsTheLastEntry));
        let (done, end) = (books.sealed_through, books.entries.len() as i64 - spared);
        let begins_before = |time| {
            let older = books.entries.iter().take_while(|entry| entry.at_ms < time);
            (older.count() as i64).min(end)
        };
        let through = match boundary {
            SealBoundary::Everything => end,
            SealBoundary::Before(time) => begins_before(time),
            SealBoundary::Full { before_ms, entries } => {
                let full = done + (end - done) / entries * entries;
                begins_before(before_ms).max(full)
            }
        };
        assert!(entries_per_segment > 0);
        books.sealed_through = through.max(done);
        Ok(())
    }

    fn heads(&self) -> Result<LedgerHeads, StoreError> {
        let books = self.lock();
        let head_at = |seq: i64| {
            let at = usize::try_from(seq - 1)
                .ok()
                .and_then(|at| books.entries.get(at));
            at.map_or_else(ChainHead::genesis, |entry| ChainHead {
                seq,
                hash: entry.hash.clone(),
            })
        };
        Ok(LedgerHeads {
            last: head_at(books.entries.len() as i64),
            sealed: head_at(books.sealed_through),
        })
    }
}
