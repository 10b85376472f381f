//! Random batches of changes, which must leave a ledger and a model of it with the same books.
//!
//! Few accounts, references and credits, so that references come again and credits run out. Must
//! not know the home that they run on.

use super::world::*;
use credits::money::Micro;
use ledger::{BalanceChangeKind, Claim, IngestEvent, SealBoundary};
use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};

/// What happens in a random sequence.
#[derive(Clone, Debug)]
enum Step {
    Append(&'static str, Vec<Change>),
    Seal(SealBoundary, i64),
    Reopen,
}

fn any_change() -> impl Strategy<Value = Change> {
    let account = || prop::sample::select(ACCOUNTS.to_vec());
    // Few references, so that they come again; and few credits, so that they run out.
    let number = || 0_u32..24;
    let amount = || -400_i64..700;
    let at_ms = || prop::sample::select(vec![NOW, TRIAL_ENDS - 1, TRIAL_ENDS, NOW + 3 * DAY_MS]);
    let ending = (
        number(),
        account(),
        0_i64..300,
        0_i64..200,
        0_i64..20,
        0_i64..4,
    );
    let ending = (ending, any::<bool>(), 0_usize..2).prop_map(
        |((number, account, paid, trial, writeoff, day), is_debit, key)| {
            let mut ending = void(number, account);
            if is_debit || number % 3 > 0 {
                ending = debit(number, account, paid, trial);
                ending.writeoff = Micro::new(writeoff);
            }
            ending.at_ms += day * DAY_MS;
            ending.detail.key_id = KEYS[key].into();
            ending
        },
    );
    let kind = prop::sample::select(vec![
        BalanceChangeKind::Grant,
        BalanceChangeKind::TopUp,
        BalanceChangeKind::Adjust { reason: "a test" },
    ]);
    let balance = (kind, number(), account(), amount(), at_ms(), 0_i64..100);
    let balance = balance.prop_map(|(kind, number, account, amount, at_ms, held)| {
        let is_adjustment = matches!(kind, BalanceChangeKind::Adjust { .. });
        Change::Balance {
            kind,
            reference: format!("ref {number}"),
            account: account.into(),
            amount: if is_adjustment {
                amount
            } else {
                amount.abs() + 1
            },
            at_ms,
            claims: vec![Claim {
                instance_id: "instance_a".into(),
                held: split(held, held / 2),
                settled: split(held * 3, held),
            }],
        }
    });
    let refund = (number(), number(), prop::option::of(amount()), at_ms());
    let refund = refund.prop_map(|(reference, number, amount, at_ms)| Change::Refund {
        reference: format!("ref {reference}"),
        request_id: request_id(number),
        amount,
        at_ms,
    });
    let trial = (account(), 1_i64..300).prop_map(|(account, amount)| trial(account, amount));
    let lapse = account().prop_map(|account| {
        Change::Event(Box::new(IngestEvent::Lapsed {
            account: account.into(),
            trial: Micro::ZERO,
            at_ms: NOW,
        }))
    });
    let store_debit = (number(), account(), 0_i64..300, 0_i64..100);
    let store_debit = store_debit.prop_map(|(number, account, paid, trial)| Change::StoreDebit {
        reference: format!("ref {number}"),
        account: account.into(),
        amount: -(paid + trial),
        taken: split(paid, trial),
    });
    let event = (ending.clone(), any::<bool>()).prop_map(|(ending, is_late)| {
        let ending = Box::new(ending);
        Change::Event(Box::new(match is_late {
            true => IngestEvent::EndedLate(ending, None),
            false => IngestEvent::Ended(ending, None),
        }))
    });
    prop_oneof![
        8 => ending.prop_map(end),
        4 => balance,
        3 => refund,
        1 => trial,
        1 => lapse,
        1 => store_debit,
        2 => event,
    ]
}

fn any_step() -> impl Strategy<Value = Step> {
    let instance_id = prop::sample::select(INSTANCES.to_vec());
    let changes = prop::collection::vec(any_change(), 1..5);
    let boundary = prop_oneof![
        Just(SealBoundary::Everything),
        (1_i64..9).prop_map(|entries| SealBoundary::Full {
            before_ms: i64::MIN,
            entries,
        }),
    ];
    prop_oneof![
        12 => (instance_id, changes).prop_map(|(id, changes)| Step::Append(id, changes)),
        1 => (boundary, 1_i64..9).prop_map(|(boundary, entries)| Step::Seal(boundary, entries)),
        1 => Just(Step::Reopen),
    ]
}

pub fn any_batches_leave_the_same_books(home: NewHome<'_>) {
    let config = ProptestConfig {
        cases: ProptestConfig::default().cases / 8,
        max_shrink_iters: 64,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let seed = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = TestRunner::new_with_rng(config, seed);
    let steps = prop::collection::vec(any_step(), 1..30);
    let outcome = runner.run(&steps, |steps| {
        let mut pair = LedgerPair::funded(home());
        for step in steps {
            match step {
                // Both refuse the same batches.
                Step::Append(instance_id, changes) => drop(pair.append(instance_id, &changes)),
                Step::Seal(boundary, entries) => pair.seal(boundary, entries),
                Step::Reopen => pair.reopen(),
            }
        }
        pair.agree_on_entries(5);
        Ok(())
    });
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
}
