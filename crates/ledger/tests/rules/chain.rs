//! Rules of a ledger about its chain of entries: how they are found, read in order, sealed, and
//! entered by several processes.
//!
//! Must not know the home that they run on.

use super::money::sample;
use super::store::LedgerStore;
use super::world::*;
use ledger::{AppendOutcome, EntryReference, SealBoundary};

pub fn an_entry_is_found_by_its_reference(home: NewHome<'_>) {
    let pair = LedgerPair::funded(home());
    pair.append("", &sample()).unwrap();
    let of = |store: &dyn LedgerStore| {
        let endings = [1, 2, 5].map(request_id);
        let endings = endings.iter().map(|id| EntryReference::Ending(id));
        let postings = [
            ("trial", "trial:acct_c"),
            ("grant", "g 1"),
            ("topup", "t 1"),
            ("adjust", "a 1"),
            ("refund", "r 1"),
            ("adjust", "s 1"),
        ];
        let postings =
            postings.map(|(kind, reference)| EntryReference::Posting { kind, reference });
        let found = endings
            .chain(postings)
            .map(|reference| store.entry(reference).unwrap().unwrap());
        found.map(|entry| format!("{entry:?}")).collect::<Vec<_>>()
    };
    let before = of(&*pair.store);
    assert_eq!(before, of(&pair.model));
    let is_unknown = |reference: EntryReference<'_>| pair.store.entry(reference).unwrap().is_none();
    for _ in 0..2 {
        assert!(is_unknown(EntryReference::Ending("g 1")));
        assert!(is_unknown(EntryReference::Ending(&request_id(77))));
        let (kind, reference) = ("grant", "t 1");
        assert!(is_unknown(EntryReference::Posting { kind, reference }));
        pair.enter(grant("last", ACCOUNTS[0], 1));
        pair.seal(SealBoundary::Everything, 4);
        assert_eq!(of(&*pair.store), before, "sealed entries too");
    }
    // A sealed request has ended, and can be refunded.
    assert_eq!(
        pair.enter(end(debit(1, ACCOUNTS[0], 100, 40))),
        AppendOutcome::AlreadyEnded
    );
    assert_eq!(pair.post(refund("r 2", 1, None)).change.get(), 110);
    pair.refuse(refund("r 3", 1, Some(1)));
}

pub fn a_walk_has_no_gaps_while_entries_are_added(home: NewHome<'_>) {
    let pair = LedgerPair::funded(home());
    let last = 60;
    let other = pair.home.open();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for number in 0..last {
                let batch = [
                    end(debit(2 * number, ACCOUNTS[0], 1, 0)),
                    end(debit(2 * number + 1, ACCOUNTS[1], 0, 1)),
                ];
                append(&*other, "instance_a", &batch).unwrap();
                if number % 20 == 19 {
                    other.seal(SealBoundary::Everything, 16, PACE, NOW).unwrap();
                }
            }
        });
        for limit in [1, 3, 7, 100] {
            loop {
                let ends = writer.is_finished();
                assert_chain(&entries_of(&*pair.store, 0, limit));
                if ends {
                    break;
                }
            }
        }
    });
    let entries = entries_of(&*pair.store, 0, 1_000);
    assert_eq!(entries.len(), 5 + 2 * last as usize);
    let seqs = |after, limit| {
        let slice = pair.store.entries_after(after, limit).unwrap();
        slice.iter().map(|entry| entry.seq).collect::<Vec<_>>()
    };
    // From any position, sealed or not, and beyond the end.
    for after in -1..=entries.len() as i64 + 1 {
        let expected: Vec<_> = (after.max(0) + 1..=entries.len() as i64).take(3).collect();
        assert_eq!(seqs(after, 3), expected);
    }
    assert_eq!(seqs(0, 0), [0; 0]);
}

pub fn sealing_moves_the_sealed_end_alone(home: NewHome<'_>) {
    let pair = LedgerPair::funded(home());
    pair.seal(SealBoundary::Everything, 100);
    let mut sealed = vec![pair.heads().sealed.seq];
    for round in 0..4 {
        let batch: Vec<_> = (0..10)
            .map(|number| end(debit(round * 10 + number, ACCOUNTS[0], 1, 1)))
            .collect();
        pair.append("", &batch).unwrap();
        let (heads, before) = (pair.heads(), entries_of(&*pair.store, 0, 9));
        let boundary = match round {
            0 => SealBoundary::Everything,
            1 => SealBoundary::Before(NOW + 18),
            _ => SealBoundary::Full {
                before_ms: NOW,
                entries: 8,
            },
        };
        pair.seal(boundary, 5);
        assert_eq!(pair.heads().last, heads.last);
        sealed.push(pair.heads().sealed.seq);
        // Again: nothing more is due.
        pair.seal(boundary, 5);
        assert_eq!(pair.heads().sealed.seq, *sealed.last().unwrap());
        let after = entries_of(&*pair.store, 0, 9);
        assert_eq!(format!("{before:?}"), format!("{after:?}"));
        let of_head = &after[usize::try_from(*sealed.last().unwrap()).unwrap() - 1];
        assert_eq!(of_head.hash, pair.heads().sealed.hash);
    }
    assert_eq!(sealed, [4, 14, 18, 34, 42]);
    assert_chain(&entries_of(&*pair.store, 0, 9));
}

pub fn a_reopened_ledger_is_the_same(home: NewHome<'_>) {
    let mut pair = LedgerPair::funded(home());
    for change in sample() {
        pair.append("instance_a", &[change]).unwrap();
        pair.reopen();
    }
    pair.seal(SealBoundary::Everything, 3);
    pair.reopen();
    pair.agree_on_entries(4);
    pair.enter(end(debit(40, ACCOUNTS[0], 1, 1)));
    pair.reopen();
    assert_chain(&entries_of(&*pair.store, 0, 4));
}

pub fn two_handles_take_turns(home: NewHome<'_>) {
    let mut pair = LedgerPair::funded(home());
    let mut other = pair.home.open();
    for (number, change) in sample().into_iter().enumerate() {
        if number % 2 == 0 {
            std::mem::swap(&mut pair.store, &mut other);
        }
        // Each sees at once what the other has entered.
        pair.append("instance_a", &[change]).unwrap();
    }
    // At the same time, with the same requests: each request ends once.
    let enter = |store: &dyn LedgerStore, instance_id: &str| -> usize {
        let enter_one = |number| {
            let ending = end(debit(number, ACCOUNTS[0], 2, 0));
            let outcomes = append(store, instance_id, &[ending]).unwrap();
            usize::from(outcomes == [AppendOutcome::Ended])
        };
        (100..160).map(enter_one).sum()
    };
    let (one, two) = std::thread::scope(|scope| {
        let one = scope.spawn(|| enter(&*pair.store, "instance_a"));
        let two = scope.spawn(|| enter(&*other, "instance_b"));
        (one.join().unwrap(), two.join().unwrap())
    });
    assert_eq!(one + two, 60);
    assert_eq!(pair.has(ACCOUNTS[0]), (1_000 - 70 - 120, 460));
    assert_chain(&entries_of(&*other, 0, 20));
    assert_eq!(pair.store.heads().unwrap(), other.heads().unwrap());
}
