//! Rules of a ledger about money: what a change does to a balance and to a key's spending, and how
//! often.
//!
//! Must not know the home that they run on.

use super::store::LedgerStore;
use super::world::*;
use credits::money::{MAX_MICRO, Micro};
use ledger::StoreError;
use ledger::{AppendOutcome, BalanceChangeKind, Claim, EntryReference, IngestEvent, SealBoundary};

pub fn an_account_opens_once(home: NewHome<'_>) {
    let pair = LedgerPair::funded(home());
    for store in [&*pair.store, &pair.model as &dyn LedgerStore] {
        store.open_account(ACCOUNTS[0], None, NOW).unwrap();
    }
    pair.agree();
    assert_eq!(pair.has(ACCOUNTS[0]), (1_000, 500));
    let row = pair.store.account(ACCOUNTS[0], "").unwrap().unwrap();
    assert_eq!(row.trial_ends_at_ms, Some(TRIAL_ENDS));
    assert_eq!(pair.store.account("acct_nobody", "").unwrap(), None);
    for change in [
        grant("g", "acct_nobody", 5),
        adjust("a", "acct_nobody", -5),
        trial("acct_nobody", 5),
        end(debit(1, "acct_nobody", 5, 0)),
    ] {
        pair.refuse(change);
    }
}

/// One of each kind of change.
pub fn sample() -> Vec<Change> {
    vec![
        end(debit(1, ACCOUNTS[0], 100, 40)),
        end(void(2, ACCOUNTS[0])),
        trial(ACCOUNTS[2], 7),
        grant("g 1", ACCOUNTS[1], 50),
        change(BalanceChangeKind::TopUp, "t 1", ACCOUNTS[1], 60),
        adjust("a 1", ACCOUNTS[1], -70),
        refund("r 1", 1, Some(30)),
        Change::StoreDebit {
            reference: "s 1".into(),
            account: ACCOUNTS[2].into(),
            amount: -20,
            taken: split(20, 0),
        },
        Change::Event(Box::new(IngestEvent::Ended(
            Box::new(debit(5, ACCOUNTS[2], 9, 0)),
            None,
        ))),
    ]
}

pub fn a_repeated_reference_changes_nothing(home: NewHome<'_>) {
    let pair = LedgerPair::funded(home());
    pair.append("", &sample()).unwrap();
    let heads = pair.heads();
    let balances = ACCOUNTS.map(|account| pair.has(account));
    for change in sample() {
        pair.enter(change);
    }
    // In one batch, and twice in the same batch.
    pair.append("", &[sample(), sample()].concat()).unwrap();
    let again = [
        end(debit(6, ACCOUNTS[0], 1, 0)),
        end(debit(6, ACCOUNTS[0], 2, 0)),
    ];
    assert_eq!(pair.heads(), heads);
    assert_eq!(ACCOUNTS.map(|account| pair.has(account)), balances);
    let entered = pair.append("", &again).unwrap();
    assert_eq!(entered, [AppendOutcome::Ended, AppendOutcome::AlreadyEnded]);
    // A request ends once: neither by a void after a debit, nor by a debit after a void.
    for number in [1, 2] {
        let other_ways = [
            end(debit(number, ACCOUNTS[0], 3, 3)),
            end(void(number, ACCOUNTS[0])),
        ];
        for change in other_ways {
            assert_eq!(pair.enter(change), AppendOutcome::AlreadyEnded);
        }
    }
    pair.agree_on_entries(4);
}

pub fn a_reference_is_not_used_for_something_else(home: NewHome<'_>) {
    let pair = LedgerPair::funded(home());
    pair.append("", &sample()).unwrap();
    let others = [
        grant("g 1", ACCOUNTS[1], 51),
        grant("g 1", ACCOUNTS[0], 50),
        adjust("a 1", ACCOUNTS[1], -71),
        change(
            BalanceChangeKind::Adjust { reason: "another" },
            "a 1",
            ACCOUNTS[1],
            -70,
        ),
        refund("r 1", 1, Some(31)),
        refund("r 1", 5, Some(30)),
    ];
    let heads = pair.heads();
    for change in others {
        let error = pair.refuse(change.clone());
        assert!(
            matches!(error, StoreError::ReferenceUsed(_)),
            "{error} of {change:?}"
        );
    }
    assert_eq!(pair.heads(), heads);
    // References of different kinds are different ones.
    assert!(pair.post(grant("a 1", ACCOUNTS[1], 1)).is_new);
    assert!(
        pair.post(change(BalanceChangeKind::TopUp, "g 1", ACCOUNTS[0], 2))
            .is_new
    );
    assert!(!pair.post(refund("r 1", 1, None)).is_new);
}

pub fn a_batch_is_all_or_nothing(home: NewHome<'_>) {
    let pair = LedgerPair::funded(home());
    let failing = [
        refund("r 9", 9, None),
        grant("g 9", "acct_nobody", 1),
        adjust("a 9", ACCOUNTS[2], -1_000_000),
        end(debit(9, "acct_nobody", 1, 1)),
    ];
    let heads = pair.heads();
    for (change, position) in failing.iter().zip([0, 1, 5, 9]) {
        let mut batch = sample();
        batch.insert(position, change.clone());
        pair.append("instance_a", &batch).unwrap_err();
        assert_eq!(pair.heads(), heads);
        assert!(pair.ending(1).is_none());
    }
    pair.append("instance_a", &sample()).unwrap();
    assert_eq!(pair.heads().last.seq, heads.last.seq + 9);
    assert_eq!(pair.append("instance_a", &[]).unwrap(), []);
    pair.agree_on_entries(100);
}

pub fn a_debit_takes_what_is_there_and_writes_off_the_rest(home: NewHome<'_>) {
    let pair = LedgerPair::funded(home());
    let account = ACCOUNTS[0];
    // Paid and trial: what the process took, what is left, what is written off.
    let steps = [
        ((0, 200), (1_000, 300), 0),
        ((100, 50), (900, 250), 0),
        // The trial lacks 50, which the paid credits cover.
        ((0, 300), (850, 0), 0),
        ((1, 0), (849, 0), 0),
        ((800, 100), (0, 0), 51),
        ((5, 5), (0, 0), 10),
        ((0, 0), (0, 0), 0),
    ];
    for (number, ((paid, trial), has, writeoff)) in (0..).zip(steps) {
        let entered = pair.enter(end(debit(number, account, paid, trial)));
        assert_eq!(entered, AppendOutcome::Ended);
        assert_eq!(pair.has(account), has, "step {number}");
        let entry = pair.ending(number).unwrap();
        assert_eq!(
            (entry.kind.as_str(), entry.writeoff.get()),
            ("debit", writeoff)
        );
        assert_eq!(-entry.change().get() + writeoff, paid + trial);
    }
    // The trial covers what the paid credits lack; and the process may have written off a part.
    let mut ending = debit(100, ACCOUNTS[1], 1_100, 0);
    ending.writeoff = Micro::new(11);
    pair.enter(end(ending));
    assert_eq!(pair.has(ACCOUNTS[1]), (0, 200));
    assert_eq!(pair.ending(100).unwrap().writeoff.get(), 11);
    // All in one batch, more than the account has.
    let many: Vec<_> = (200..230)
        .map(|number| end(debit(number, ACCOUNTS[2], 50, 0)))
        .collect();
    pair.append("", &many).unwrap();
    assert_eq!(pair.has(ACCOUNTS[2]), (0, 0));
    let entries = entries_of(&*pair.store, 0, 7);
    let written_off: i64 = entries.iter().map(|entry| entry.writeoff.get()).sum();
    assert_eq!(written_off, 51 + 10 + 11 + 500);
    assert_chain(&entries);
}

pub fn a_void_costs_nothing_and_ends_the_request(home: NewHome<'_>) {
    let pair = LedgerPair::funded(home());
    assert_eq!(pair.enter(end(void(1, ACCOUNTS[0]))), AppendOutcome::Ended);
    let entry = pair.ending(1).unwrap();
    assert_eq!((entry.kind.as_str(), entry.change()), ("void", Micro::ZERO));
    assert_eq!(pair.has(ACCOUNTS[0]), (1_000, 500));
    assert!(matches!(
        pair.refuse(refund("r", 1, None)),
        StoreError::Unknown(_)
    ));
    // A key that was used without cost was used all the same.
    let spend = pair.store.key_spend(KEYS[0], 0, "").unwrap();
    assert_eq!(
        (spend.total, spend.used_at_ms),
        (Micro::ZERO, Some(NOW + 6))
    );
}

pub fn refunds_never_exceed_the_debit(home: NewHome<'_>) {
    let pair = LedgerPair::funded(home());
    pair.enter(end(debit(1, ACCOUNTS[0], 300, 200)));
    assert_eq!(pair.has(ACCOUNTS[0]), (700, 300));
    // The paid part comes back first, then the trial's part, as long as the trial runs.
    for (reference, amount, has) in [("r 1", 250, (950, 300)), ("r 2", 100, (1_000, 350))] {
        let posted = pair.post(refund(reference, 1, Some(amount)));
        assert_eq!((posted.is_new, posted.change.get()), (true, amount));
        assert_eq!(pair.has(ACCOUNTS[0]), has);
    }
    for amount in [151, 0, -1] {
        let error = pair.refuse(refund("r 3", 1, Some(amount)));
        assert!(matches!(error, StoreError::Refused(_)), "{error}");
    }
    let rest = pair.post(refund("r 3", 1, None));
    assert_eq!((rest.change.get(), rest.balance.get()), (150, 1_500));
    assert_eq!(pair.has(ACCOUNTS[0]), (1_000, 500));
    for amount in [None, Some(1)] {
        pair.refuse(refund("r 4", 1, amount));
    }
    // After the trial's end its part comes back as paid credits. A refund is no new credit.
    pair.enter(end(debit(2, ACCOUNTS[0], 0, 60)));
    let late = Change::Refund {
        reference: "r 5".into(),
        request_id: request_id(2),
        amount: None,
        at_ms: TRIAL_ENDS,
    };
    pair.post(late);
    assert_eq!(pair.has(ACCOUNTS[0]), (1_060, 440));
    let row = pair.store.account(ACCOUNTS[0], "").unwrap().unwrap();
    assert_eq!(row.credited.get(), 1_000);
    // Two refunds in one batch count together.
    pair.enter(end(debit(5, ACCOUNTS[0], 10, 0)));
    let both = [refund("r 6", 5, Some(6)), refund("r 7", 5, Some(6))];
    pair.append("", &both).unwrap_err();
    let error = pair.refuse(refund("r 8", 77, None));
    assert!(matches!(error, StoreError::Unknown(_)), "{error}");
}

pub fn a_trial_is_granted_and_lapses_once(home: NewHome<'_>) {
    let pair = LedgerPair::new(home());
    let posted = pair.post(trial(ACCOUNTS[0], 500));
    assert_eq!((posted.change.get(), posted.balance.get()), (500, 500));
    pair.post(change(BalanceChangeKind::TopUp, "t", ACCOUNTS[0], 40));
    pair.post(adjust("a", ACCOUNTS[0], 2));
    let row = pair.store.account(ACCOUNTS[0], "").unwrap().unwrap();
    assert_eq!(row.credited.get(), 42, "the trial apart");
    let entry = pair
        .store
        .entry(EntryReference::Posting {
            kind: "trial",
            reference: "trial:acct_a",
        })
        .unwrap()
        .unwrap();
    assert!(
        entry.detail.contains(&TRIAL_ENDS.to_string()),
        "{}",
        entry.detail
    );
    let lapse = |amount| Change::Posting {
        kind: "lapse",
        reference: "lapse:acct_a".into(),
        account: ACCOUNTS[0].into(),
        paid: 0,
        trial: amount,
        at_ms: TRIAL_ENDS,
    };
    pair.refuse(lapse(-501));
    assert!(pair.post(lapse(-500)).is_new);
    let again = pair.post(lapse(-500));
    assert_eq!((again.is_new, again.change.get()), (false, -500));
    assert_eq!(pair.has(ACCOUNTS[0]), (42, 0));
    let error = pair.refuse(grant("g", ACCOUNTS[0], MAX_MICRO));
    assert!(matches!(error, StoreError::Refused(_)), "{error}");
}

pub fn an_adjustment_takes_free_credits_only(home: NewHome<'_>) {
    let pair = LedgerPair::funded(home());
    let held_by = |instance_id: &str, held, settled| Claim {
        instance_id: instance_id.into(),
        held,
        settled,
    };
    let deduct = |reference: &str, amount: i64, at_ms, claims: &[Claim]| Change::Balance {
        kind: BalanceChangeKind::Adjust { reason: "a test" },
        reference: reference.into(),
        account: ACCOUNTS[0].into(),
        amount: -amount,
        at_ms,
        claims: claims.to_vec(),
    };
    // 100 of what the instance has settled are applied; 50 are on their way.
    pair.append("instance_a", &[end(debit(1, ACCOUNTS[0], 100, 0))])
        .unwrap();
    let claims = [
        held_by("instance_a", split(200, 100), split(150, 0)),
        held_by("instance_b", split(50, 0), split(0, 0)),
    ];
    assert_eq!(pair.has(ACCOUNTS[0]), (900, 500));
    let error = pair.refuse(deduct("a 1", 1_001, NOW, &claims));
    assert!(matches!(error, StoreError::Refused(_)), "{error}");
    // After its end, a trial is no credit.
    pair.refuse(deduct("a 1", 601, TRIAL_ENDS, &claims));
    // Paid credits first.
    pair.post(deduct("a 1", 550, NOW, &claims));
    assert_eq!(pair.has(ACCOUNTS[0]), (350, 500));
    pair.post(deduct("a 2", 450, NOW, &claims));
    assert_eq!(pair.has(ACCOUNTS[0]), (300, 100));
    pair.refuse(deduct("a 3", 1, NOW, &claims));
    pair.post(deduct("a 3", 400, NOW, &[]));
    assert_eq!(pair.has(ACCOUNTS[0]), (0, 0));
    // A debit of the shared store waits until the ledger has the credits, and takes any of them.
    let store_debit = |taken| Change::StoreDebit {
        reference: "s 1".into(),
        account: ACCOUNTS[1].into(),
        amount: -1_100,
        taken,
    };
    pair.refuse(store_debit(split(1_400, 0)));
    pair.post(store_debit(split(1_100, 0)));
    assert_eq!(pair.has(ACCOUNTS[1]), (0, 200));
}

pub fn a_key_spends_on_the_day_of_the_ending(home: NewHome<'_>) {
    let pair = LedgerPair::funded(home());
    let today = NOW.div_euclid(DAY_MS);
    let spend_of = |number, key: &str, days: i64, paid| {
        let mut ending = debit(number, ACCOUNTS[2], paid, 0);
        ending.at_ms += days * DAY_MS;
        ending.detail.key_id = key.into();
        end(ending)
    };
    // Out of order: a late ending counts on its own day, and in the totals of later ones.
    for (number, key, days, paid) in [
        (1, KEYS[0], 0, 10),
        (2, KEYS[0], 2, 20),
        (4, KEYS[0], -3, 40),
        (5, KEYS[1], 1, 80),
        (6, KEYS[0], 1, 100),
    ] {
        pair.enter(spend_of(number, key, days, paid));
    }
    let batch = [
        spend_of(8, KEYS[0], 2, 1),
        spend_of(9, KEYS[0], -3, 2),
        spend_of(10, KEYS[0], 3, 4),
    ];
    pair.append("instance_a", &batch).unwrap();
    // The account pays 743 of these 5 000, and so does the key.
    pair.enter(spend_of(12, KEYS[0], 3, 5_000));
    for (first_day, spent) in [
        (0, 920),
        (today - 3, 920),
        (today - 2, 878),
        (today, 878),
        (today + 1, 868),
        (today + 2, 768),
        (today + 3, 747),
        (today + 4, 0),
    ] {
        let spend = pair.store.key_spend(KEYS[0], first_day, "").unwrap();
        assert_eq!((spend.spent.get(), spend.total.get()), (spent, 920));
    }
    let spend = pair.store.key_spend(KEYS[0], today, "instance_a").unwrap();
    assert_eq!(spend.applied.get(), 7);
    assert_eq!(spend.used_at_ms, Some(NOW + 12 + 5 + 3 * DAY_MS));
    let unused = pair.store.key_spend("key_none", 0, "instance_a").unwrap();
    assert_eq!(unused, Default::default());
}

pub fn settled_credits_are_applied(home: NewHome<'_>) {
    let pair = LedgerPair::funded(home());
    let applied = |instance_id: &str| {
        let row = pair.store.account(ACCOUNTS[0], instance_id).unwrap();
        row.map(|row| (row.applied_paid.get(), row.applied_trial.get()))
            .unwrap()
    };
    // Instances in turns; the ledger may take another amount than was settled.
    for (number, instance_id) in (1..).zip(["instance_a", "instance_b", "instance_a", ""]) {
        pair.append(instance_id, &[end(debit(number, ACCOUNTS[0], 400, 300))])
            .unwrap();
    }
    assert_eq!(applied("instance_a"), (800, 600));
    assert_eq!(applied("instance_b"), (400, 300));
    assert_eq!(applied(""), (0, 0));
    // A request that another process has entered meanwhile is applied, and does not count again.
    let known = pair
        .append("instance_b", &[end(debit(1, ACCOUNTS[0], 400, 300))])
        .unwrap();
    assert_eq!(known, [AppendOutcome::AlreadyEnded]);
    assert_eq!(applied("instance_b"), (800, 600));
    let spend = pair.store.key_spend(KEYS[0], 0, "instance_b").unwrap();
    assert_eq!(spend.applied.get(), 1_400);
}

pub fn events_of_a_shared_store_count_once(home: NewHome<'_>) {
    let pair = LedgerPair::funded(home());
    let event = |event| Change::Event(Box::new(event));
    let ended = |ending| event(IngestEvent::Ended(Box::new(ending), None));
    let late = |ending| event(IngestEvent::EndedLate(Box::new(ending), None));
    let debited = |paid, trial| AppendOutcome::Debited(Some(split(paid, trial)));
    let first = debit(1, ACCOUNTS[0], 900, 600);
    for _ in 0..2 {
        assert_eq!(pair.enter(ended(first.clone())), debited(1_000, 500));
    }
    // The ledger posts the debit of a late ending to the store: whatever the store debited for it
    // is too much.
    let second = debit(2, ACCOUNTS[1], 10, 5);
    assert_eq!(pair.enter(late(second.clone())), debited(0, 0));
    assert_eq!(pair.has(ACCOUNTS[1]), (990, 295));
    assert!(pair.ending(2).unwrap().is_late());
    pair.post(grant("g", ACCOUNTS[2], 1));
    pair.seal(SealBoundary::Everything, 100);
    for change in [late(second.clone()), ended(second)] {
        assert_eq!(pair.enter(change), debited(0, 0));
    }
    for change in [ended(first.clone()), end(first)] {
        pair.enter(change);
    }
    let lapse = |account: &str| {
        event(IngestEvent::Lapsed {
            account: account.into(),
            trial: Micro::new(1),
            at_ms: TRIAL_ENDS - 5,
        })
    };
    for _ in 0..2 {
        assert_eq!(pair.enter(lapse(ACCOUNTS[1])), debited(0, 295));
    }
    assert_eq!(pair.has(ACCOUNTS[1]), (990, 0));
    for change in [
        lapse("acct_nobody"),
        ended(debit(4, "acct_nobody", 1, 0)),
        late(debit(4, "acct_nobody", 1, 0)),
    ] {
        assert_eq!(pair.enter(change), AppendOutcome::Debited(None));
    }
    pair.agree_on_entries(2);
}
