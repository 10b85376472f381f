//! What the rules of `rules/list.rs` run on: a home under test beside a model, and changes that
//! own what they name.
//!
//! Whatever is entered here is entered in both, and then both must agree: on the outcome, on the
//! heads, on every balance and on the spending of every key. Must not know what a rule is about.

use super::model::MemoryLedger;
use super::store::LedgerStore;
use credits::money::{CreditSplit, Micro};
use ledger::StoreError;
use ledger::{
    AppendOutcome, BackgroundPace, BalanceChange, BalanceChangeKind, Claim, Ending, EndingDetail,
    EntryReference, IngestEvent, LedgerBatch, LedgerChange, LedgerEntry, LedgerHeads, Posting,
    PostingResult, Refund, RequestOutcome, SealBoundary,
};
use llm_protocol::Protocol;
use llm_protocol::usage::Usage;
use sha2::{Digest, Sha256};
use std::sync::atomic::AtomicBool;

pub const NOW: i64 = 1_800_000_000_000;
pub const DAY_MS: i64 = 86_400_000;
/// Two with a trial, which ends in a day, and one without.
pub const ACCOUNTS: [&str; 3] = ["acct_a", "acct_b", "acct_c"];
pub const TRIAL_ENDS: i64 = NOW + DAY_MS;
pub const KEYS: [&str; 2] = ["key_a", "key_b"];
pub const INSTANCES: [&str; 3] = ["", "instance_a", "instance_b"];

static GO_ON: AtomicBool = AtomicBool::new(false);
pub static PACE: BackgroundPace<'static> = BackgroundPace { stop: &GO_ON };

/// Makes homes, each with a ledger of its own.
pub type NewHome<'a> = &'a dyn Fn() -> Box<dyn LedgerHome>;

/// A home of one ledger, which can be opened any number of times.
pub trait LedgerHome {
    fn open(&self) -> Box<dyn LedgerStore>;
}

/// A change, with what it needs.
#[derive(Clone, Debug)]
pub enum Change {
    Ending(Box<Ending>),
    Posting {
        kind: &'static str,
        reference: String,
        account: String,
        paid: i64,
        trial: i64,
        at_ms: i64,
    },
    Balance {
        kind: BalanceChangeKind<'static>,
        reference: String,
        account: String,
        amount: i64,
        at_ms: i64,
        claims: Vec<Claim>,
    },
    StoreDebit {
        reference: String,
        account: String,
        amount: i64,
        taken: CreditSplit,
    },
    Refund {
        reference: String,
        request_id: String,
        amount: Option<i64>,
        at_ms: i64,
    },
    Event(Box<IngestEvent>),
}

pub fn split(paid: i64, trial: i64) -> CreditSplit {
    CreditSplit {
        paid: Micro::new(paid),
        trial: Micro::new(trial),
    }
}

/// The id of the request with this number, which began at that ms. Every fourth has an id without a
/// time.
pub fn request_id(number: u32) -> String {
    match number % 4 {
        3 => format!("req_old_{number}"),
        _ => format!("req_{:012x}7abc8{number:015x}", NOW + i64::from(number)),
    }
}

/// A debit of an account, of the first key, at the ms of its number.
pub fn debit(number: u32, account: &str, paid: i64, trial: i64) -> Ending {
    Ending {
        request_id: request_id(number),
        account: account.into(),
        at_ms: NOW + i64::from(number) + 5,
        paid: Micro::new(paid),
        trial: Micro::new(trial),
        writeoff: Micro::ZERO,
        detail: EndingDetail {
            key_id: KEYS[0].into(),
            key_shown: "gw-sk-…".into(),
            model: "beta-5.2".into(),
            surface: Protocol::Messages,
            vendor: "beta".into(),
            outcome: RequestOutcome::Completed,
            usage: Usage {
                input: number.into(),
                output: 7,
                ..Usage::default()
            },
            price_version: "pv_1".into(),
            estimated: number.is_multiple_of(5),
            implausible: false,
            conversation: number.is_multiple_of(3).then(|| format!("{number}")),
            took_ms: Some(number.into()),
            first_token_ms: None,
            cache_marks: None,
            member: None,
        },
    }
}

pub fn void(number: u32, account: &str) -> Ending {
    let mut ending = debit(number, account, 0, 0);
    ending.detail.outcome = RequestOutcome::VendorCut;
    ending
}

pub fn end(ending: Ending) -> Change {
    Change::Ending(Box::new(ending))
}

pub fn grant(reference: &str, account: &str, amount: i64) -> Change {
    change(BalanceChangeKind::Grant, reference, account, amount)
}

pub fn adjust(reference: &str, account: &str, amount: i64) -> Change {
    let kind = BalanceChangeKind::Adjust { reason: "a test" };
    change(kind, reference, account, amount)
}

pub fn change(
    kind: BalanceChangeKind<'static>,
    reference: &str,
    account: &str,
    amount: i64,
) -> Change {
    Change::Balance {
        kind,
        reference: reference.into(),
        account: account.into(),
        amount,
        at_ms: NOW,
        claims: Vec::new(),
    }
}

pub fn trial(account: &str, amount: i64) -> Change {
    Change::Posting {
        kind: "trial",
        reference: format!("trial:{account}"),
        account: account.into(),
        paid: 0,
        trial: amount,
        at_ms: NOW,
    }
}

pub fn refund(reference: &str, number: u32, amount: Option<i64>) -> Change {
    Change::Refund {
        reference: reference.into(),
        request_id: request_id(number),
        amount,
        at_ms: NOW + 1_000,
    }
}

/// Enters changes in one batch.
pub fn append(
    store: &dyn LedgerStore,
    instance_id: &str,
    changes: &[Change],
) -> Result<Vec<AppendOutcome>, StoreError> {
    type ReadClaims<'a> = Box<dyn Fn() -> Result<Vec<Claim>, StoreError> + 'a>;
    let claims: Vec<ReadClaims<'_>> = changes
        .iter()
        .map(|change| -> ReadClaims<'_> {
            match change {
                Change::Balance { claims, .. } => Box::new(|| Ok(claims.clone())),
                _ => Box::new(|| Ok(Vec::new())),
            }
        })
        .collect();
    let changes: Vec<_> = changes
        .iter()
        .zip(&claims)
        .map(|(change, claims)| borrow(change, claims))
        .collect();
    store.append(&LedgerBatch {
        instance_id,
        changes: &changes,
    })
}

fn borrow<'a>(
    change: &'a Change,
    claims: &'a dyn Fn() -> Result<Vec<Claim>, StoreError>,
) -> LedgerChange<'a> {
    match change {
        Change::Ending(ending) => LedgerChange::Ending {
            ending,
            freed: CreditSplit::ZERO,
        },
        Change::Posting {
            kind,
            reference,
            account,
            paid,
            trial,
            at_ms,
        } => LedgerChange::Posting(Posting {
            kind,
            reference,
            account,
            d_paid: Micro::new(*paid),
            d_trial: Micro::new(*trial),
            at_ms: *at_ms,
        }),
        Change::Balance {
            kind,
            reference,
            account,
            amount,
            at_ms,
            ..
        } => LedgerChange::Balance {
            change: BalanceChange {
                kind: *kind,
                reference,
                account,
                amount: Micro::new(*amount),
                actor: None,
                at_ms: *at_ms,
            },
            claims,
        },
        Change::StoreDebit {
            reference,
            account,
            amount,
            taken,
        } => LedgerChange::StoreDebit {
            change: BalanceChange {
                kind: BalanceChangeKind::Adjust { reason: "a test" },
                reference,
                account,
                amount: Micro::new(*amount),
                actor: Some("acct_admin"),
                at_ms: NOW,
            },
            taken: *taken,
        },
        Change::Refund {
            reference,
            request_id,
            amount,
            at_ms,
        } => LedgerChange::Refund(Refund {
            reference,
            request_id,
            amount: amount.map(Micro::new),
            actor: None,
            at_ms: *at_ms,
        }),
        Change::Event(event) => LedgerChange::Event(event),
    }
}

/// A ledger under test, and a model that gets the same.
pub struct LedgerPair {
    pub home: Box<dyn LedgerHome>,
    pub store: Box<dyn LedgerStore>,
    pub model: MemoryLedger,
}

impl LedgerPair {
    /// Opens the accounts.
    pub fn new(home: Box<dyn LedgerHome>) -> Self {
        let (store, model) = (home.open(), MemoryLedger::new(None));
        for (index, account) in ACCOUNTS.iter().enumerate() {
            let ends = (index < 2).then_some(TRIAL_ENDS);
            store.open_account(account, ends, NOW).unwrap();
            model.open_account(account, ends, NOW).unwrap();
        }
        Self { home, store, model }
    }

    /// Opens the accounts, and gives each credits.
    pub fn funded(home: Box<dyn LedgerHome>) -> Self {
        let pair = Self::new(home);
        let mut changes = vec![trial(ACCOUNTS[0], 500), trial(ACCOUNTS[1], 300)];
        changes.extend(ACCOUNTS.map(|account| grant(account, account, 1_000)));
        pair.append("", &changes).unwrap();
        pair
    }

    /// Enters changes in both; they must agree on what becomes of each.
    pub fn append(
        &self,
        instance_id: &str,
        changes: &[Change],
    ) -> Result<Vec<AppendOutcome>, StoreError> {
        let entered = append(&*self.store, instance_id, changes);
        let expected = append(&self.model, instance_id, changes);
        match (&entered, &expected) {
            (Ok(entered), Ok(expected)) => assert_eq!(entered, expected, "of {changes:?}"),
            (Err(_), Err(_)) => {}
            _ => panic!("{entered:?} instead of {expected:?} of {changes:?}"),
        }
        self.agree();
        entered
    }

    /// Enters one change, which must be possible.
    pub fn enter(&self, change: Change) -> AppendOutcome {
        self.append("", &[change]).unwrap().remove(0)
    }

    /// Enters one posting, which must be possible.
    pub fn post(&self, change: Change) -> PostingResult {
        match self.enter(change) {
            AppendOutcome::Posted(posted) => posted,
            other => panic!("{other:?} is no posting"),
        }
    }

    /// Enters one change, which must be refused.
    pub fn refuse(&self, change: Change) -> StoreError {
        self.append("", &[change]).unwrap_err()
    }

    pub fn seal(&self, boundary: SealBoundary, entries_per_segment: i64) {
        self.store
            .seal(boundary, entries_per_segment, PACE, NOW)
            .unwrap();
        self.model
            .seal(boundary, entries_per_segment, PACE, NOW)
            .unwrap();
        self.agree();
    }

    pub fn reopen(&mut self) {
        self.store = self.home.open();
        self.agree();
    }

    pub fn has(&self, account: &str) -> (i64, i64) {
        let row = self.store.account(account, "").unwrap().unwrap();
        (row.paid.get(), row.trial.get())
    }

    pub fn heads(&self) -> LedgerHeads {
        self.store.heads().unwrap()
    }

    /// The end of a request.
    pub fn ending(&self, number: u32) -> Option<LedgerEntry> {
        let request_id = request_id(number);
        self.store
            .entry(EntryReference::Ending(&request_id))
            .unwrap()
    }

    /// Compares all that both say about balances, and the ends of the chains.
    pub fn agree(&self) {
        assert_eq!(self.heads(), self.model.heads().unwrap());
        for account in ACCOUNTS {
            for instance_id in INSTANCES {
                let row = |store: &dyn LedgerStore| store.account(account, instance_id).unwrap();
                assert_eq!(row(&*self.store), row(&self.model), "{account}");
            }
        }
        let today = NOW / DAY_MS;
        for key in KEYS {
            for (instance_id, day) in INSTANCES.iter().zip([0, today, today + 1]) {
                let spend =
                    |store: &dyn LedgerStore| store.key_spend(key, day, instance_id).unwrap();
                assert_eq!(spend(&*self.store), spend(&self.model), "{key} since {day}");
            }
        }
    }

    /// Compares the chains entry by entry, read in slices.
    pub fn agree_on_entries(&self, limit: u32) {
        let (found, expected) = (
            entries_of(&*self.store, 0, limit),
            entries_of(&self.model, 0, 1_000),
        );
        for (one, other) in found.iter().zip(&expected) {
            assert_eq!(format!("{one:?}"), format!("{other:?}"));
        }
        assert_eq!(found.len(), expected.len());
    }
}

/// Reads all entries behind a position, in slices.
pub fn entries_of(store: &dyn LedgerStore, mut after: i64, limit: u32) -> Vec<LedgerEntry> {
    let mut entries = Vec::new();
    loop {
        let slice = store.entries_after(after, limit).unwrap();
        let Some(last) = slice.last() else {
            return entries;
        };
        after = last.seq;
        entries.extend(slice);
    }
}

/// Checks a chain from its first entry, by its own hashes and balances.
pub fn assert_chain(entries: &[LedgerEntry]) {
    let mut prev = vec![0; 32];
    for (number, entry) in (1..).zip(entries) {
        assert_eq!(entry.seq, number, "without gaps");
        assert_eq!(entry.prev, prev, "entry {number} follows the one before it");
        let amounts = [
            entry.d_paid,
            entry.d_trial,
            entry.bal_paid,
            entry.bal_trial,
            entry.writeoff,
        ]
        .map(Micro::get);
        let LedgerEntry {
            seq,
            kind,
            reference,
            account,
            at_ms,
            detail,
            ..
        } = entry;
        let text = format!(
            "{seq}\x1f{kind}\x1f{reference}\x1f{account}\x1f{at_ms}\x1f{amounts:?}\x1f{detail}"
        );
        let hash = Sha256::new().chain_update(&prev).chain_update(text);
        assert_eq!(entry.hash, hash.finalize().as_slice(), "entry {number}");
        assert!(entry.bal_paid >= Micro::ZERO && entry.bal_trial >= Micro::ZERO);
        prev.clone_from(&entry.hash);
    }
}
