//! Tests with several processes on one balance: a gateway that has handed over, its successor, and
//! commands.
//!
//! Each `Billing` here stands for one process; they share nothing but files.

use super::*;
use crate::billing::reserve::Reservation;
use credits::trial::Trial;
use ledger::{Claim, StoreError};
use std::sync::atomic::AtomicBool;

/// A gateway that has ten credits and holds three of them, and its successor.
fn handed_over(dir: &Path) -> (CreditService, Vec<Hold>, CreditService) {
    let old = serving(dir);
    account_with(old.billing(), 10);
    let (quote, _) = one_credit();
    let held = (0..3).map(|index| {
        old.reserve(opening(&format!("req_old_{index}")), &quote, true, NOW)
            .unwrap()
            .0
    });
    let held = held.collect();
    let successor = std::thread::scope(|scope| {
        let successor = scope
            .spawn(|| CreditService::serve_as_successor(dir, &Limits::default(), None).unwrap());
        wait_for("the successor to wait", || old.hand_over().is_ok());
        successor.join().unwrap()
    });
    (old, held, successor)
}

fn admitted(billing: &CreditService, name: &str, tries: usize) -> Vec<Hold> {
    let (quote, _) = one_credit();
    (0..tries)
        .filter_map(|index| {
            Some(
                billing
                    .reserve(opening(&format!("req_{name}_{index}")), &quote, true, NOW)
                    .ok()?
                    .0,
            )
        })
        .collect()
}

fn settle_all(holds: Vec<Hold>) {
    let (_, usage) = one_credit();
    for hold in holds {
        assert_eq!(
            hold.settle(usage, RequestOutcome::Completed, false, NOW)
                .wait_on_thread()
                .unwrap(),
            Micro::new(1_000_000)
        );
    }
}

/// Otherwise one busy account is slowed to the rate that is assumed at the start.
#[test]
fn the_rate_of_a_ledger_that_keeps_up_is_measured() {
    let dir = tempfile::tempdir().unwrap();
    let billing = serving(dir.path());
    account_with(billing.billing(), 1_000);
    for turn in 0..20 {
        let holds = admitted(&billing, &format!("turn{turn}"), 50);
        assert_eq!(holds.len(), 50);
        settle_all(holds);
    }
    let backlog = billing.backlog();
    wait_for("the ledger", || backlog.waiting() == 0);
    (0..1_000).for_each(|_| backlog.add(ACCOUNT));
    // On a busy machine, the ledger may also be slower than that.
    let assumed = Duration::from_secs(4);
    assert_ne!(backlog.time(), assumed, "250 a second, as at the start");
}

#[test]
fn a_second_gateway_does_not_start_on_a_folder_that_is_served() {
    let dir = tempfile::tempdir().unwrap();
    let billing = serving(dir.path());
    let error = CreditService::serve(dir.path(), &Limits::default(), None)
        .err()
        .unwrap()
        .to_string();
    assert!(
        error.contains(&format!("process {}", std::process::id())) && error.contains("--upgrade"),
        "{error}"
    );
    drop(billing);
    CreditService::serve(dir.path(), &Limits::default(), None).unwrap();
}

#[test]
fn a_successor_sees_what_its_predecessor_holds_and_gets_it_as_that_ends() {
    let dir = tempfile::tempdir().unwrap();
    let (old, mut held, new) = handed_over(dir.path());
    assert_eq!(balance(new.billing()), "10 held 3 available 7");
    let mine = admitted(&new, "new", 20);
    assert_eq!(mine.len(), 7, "what the predecessor holds is not free");
    wait_for("the predecessor to know", || {
        balance(old.billing()) == "10 held 10 available 0"
    });
    assert!(
        admitted(&old, "late", 3).is_empty(),
        "nor is what the successor holds"
    );
    let (_, usage) = one_credit();
    let half = Usage { output: 0, ..usage };
    held.remove(0)
        .settle(half, RequestOutcome::Completed, false, NOW)
        .wait_on_thread()
        .unwrap();
    wait_for("the first", || {
        balance(new.billing()) == "9.5 held 9 available 0.5"
    });
    held.remove(0).release(RequestOutcome::VendorError, NOW);
    wait_for("the second", || {
        balance(new.billing()) == "9.5 held 8 available 1.5"
    });
    let late = admitted(&old, "late", 3);
    assert_eq!(
        late.len(),
        1,
        "what is free the predecessor may have as well"
    );
    assert_eq!(balance(new.billing()), "9.5 held 9 available 0.5");
    settle_all(late);
    settle_all(held);
    settle_all(mine);
    old.shut_down();
    wait_for("all", || {
        new.billing()
            .receipts()
            .receipts(ACCOUNT, None, 100)
            .unwrap()
            .len()
            == 11
    });
    assert_eq!(balance(new.billing()), "0.5 held 0 available 0.5");
    assert_sound(new.billing(), 10);
}

#[test]
fn what_a_predecessor_held_that_died_is_free_again_and_what_it_had_finished_is_debited() {
    let dir = tempfile::tempdir().unwrap();
    let (old, mut held, new) = handed_over(dir.path());
    let (_, usage) = one_credit();
    // Its journal has the end of one request, which the ledger may or may not have.
    held.remove(0)
        .settle(usage, RequestOutcome::Completed, false, NOW)
        .wait_on_thread()
        .unwrap();
    held.into_iter().for_each(Hold::abandon);
    drop(old);
    wait_for("the dead one's affairs", || {
        balance(new.billing()) == "9 held 0 available 9"
    });
    let receipts = new
        .billing()
        .receipts()
        .receipts(ACCOUNT, None, 10)
        .unwrap();
    let of = |outcome| {
        receipts
            .iter()
            .filter(|receipt| receipt.detail.outcome == outcome)
            .count()
    };
    assert_eq!(
        (
            of(RequestOutcome::Completed),
            of(RequestOutcome::Interrupted)
        ),
        (1, 2)
    );
    assert_sound(new.billing(), 1);
}

#[test]
fn a_trial_that_ends_waits_for_what_a_predecessor_holds_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let old = serving(dir.path());
    let now = clock::now_ms();
    let ends_at_ms = now + 300;
    old.billing()
        .open_account(
            ACCOUNT,
            Some(Trial {
                credits: Micro::new(10_000_000),
                ends_at_ms,
            }),
            now,
        )
        .unwrap();
    let (quote, usage) = one_credit();
    let (held, _) = old.reserve(opening("req_old"), &quote, true, now).unwrap();
    let new = std::thread::scope(|scope| {
        let successor = scope.spawn(|| {
            CreditService::serve_as_successor(dir.path(), &Limits::default(), None).unwrap()
        });
        wait_for("the successor to wait", || old.hand_over().is_ok());
        successor.join().unwrap()
    });
    let at = |now_ms| new.billing().balance(ACCOUNT, now_ms).unwrap();
    // Wait for two rounds of the successor's housekeeping, in which it could lapse the trial.
    let began = Instant::now();
    wait_for("the trial to be long over", || {
        began.elapsed() > Duration::from_millis(2_500)
    });
    assert_eq!(
        at(clock::now_ms()).balance,
        Micro::new(1_000_000),
        "what is held stays until it resolves"
    );
    held.settle(usage, RequestOutcome::Completed, false, clock::now_ms())
        .wait_on_thread()
        .unwrap();
    wait_for("the debit", || {
        new.billing()
            .receipts()
            .receipt(ACCOUNT, "req_old")
            .unwrap()
            .is_some()
    });
    let receipt = new
        .billing()
        .receipts()
        .receipt(ACCOUNT, "req_old")
        .unwrap()
        .unwrap();
    assert_eq!(
        (receipt.credits, receipt.writeoff),
        (Micro::new(1_000_000), Micro::ZERO)
    );
    wait_for("the rest to lapse", || {
        new.billing()
            .0
            .ledger
            .rows()
            .account(ACCOUNT, "")
            .unwrap()
            .unwrap()
            .trial
            == Micro::ZERO
    });
    assert_sound(new.billing(), 1);
}

#[test]
fn what_a_dead_gateway_had_settled_is_not_free_to_a_command() {
    let dir = tempfile::tempdir().unwrap();
    let billing = CreditService::serve_stepwise(dir.path(), &Limits::default()).unwrap();
    billing.billing().store_prices(&[model()], NOW).unwrap();
    account_with(billing.billing(), 10);
    let (quote, usage) = one_credit();
    let (hold, _) = billing
        .reserve(opening("req_a"), &quote, true, NOW)
        .unwrap();
    // The client has the last byte, and the ledger has nothing of the request yet.
    hold.settle(usage, RequestOutcome::Completed, false, NOW)
        .wait_on_thread()
        .unwrap();
    drop(billing);
    let operator = Billing::open(dir.path()).unwrap();
    let take = |credits: i64, reference: &str| {
        operator.corrections().adjust(
            ACCOUNT,
            Micro::new(-credits * 1_000_000),
            reference,
            "a test",
            NOW,
        )
    };
    assert!(
        matches!(take(10, "all"), Err(StoreError::Refused(_))),
        "nine are left"
    );
    take(9, "the rest").unwrap();
    let receipt = operator
        .receipts()
        .receipt(ACCOUNT, "req_a")
        .unwrap()
        .unwrap();
    assert_eq!(
        (receipt.credits, receipt.writeoff),
        (Micro::new(1_000_000), Micro::ZERO)
    );
    assert_sound(&operator, 1);
}

#[test]
fn credit_for_ten_admits_exactly_ten_in_two_processes_that_race() {
    for round in 0..if std::env::var_os("GATEWAY_LONG").is_some() {
        100
    } else {
        5
    } {
        let dir = tempfile::tempdir().unwrap();
        let (old, held, new) = handed_over(dir.path());
        drop(held);
        wait_for("ten to be free", || {
            balance(new.billing()) == "10 held 0 available 10"
        });
        let (mut mine, mut theirs) = std::thread::scope(|scope| {
            let mine = scope.spawn(|| admitted(&new, "new", 32));
            let theirs = scope.spawn(|| admitted(&old, "theirs", 32));
            (mine.join().unwrap(), theirs.join().unwrap())
        });
        // If two processes race for the last credit, both may be refused; afterwards either can
        // reserve it.
        mine.extend(admitted(&new, "rest", 10));
        assert_eq!(
            mine.len() + theirs.len(),
            10,
            "round {round}: {} and {}",
            mine.len(),
            theirs.len()
        );
        settle_all(theirs.split_off(0));
        settle_all(mine);
        wait_for("all to be debited", || {
            new.billing()
                .receipts()
                .receipts(ACCOUNT, None, 100)
                .unwrap()
                .len()
                == 13
        });
        assert_eq!(balance(new.billing()), "0 held 0 available 0");
        let unborne = new
            .billing()
            .receipts()
            .receipts(ACCOUNT, None, 100)
            .unwrap();
        assert!(
            unborne
                .iter()
                .all(|receipt| receipt.writeoff == Micro::ZERO)
        );
        assert_sound(new.billing(), 10);
    }
}

/// Requests that take free credit as soon as there is some, and commands that take credit too:
/// every hold was covered.
#[test]
fn a_command_never_takes_what_a_request_was_just_given() {
    let dir = tempfile::tempdir().unwrap();
    let billing = serving(dir.path());
    account_with(billing.billing(), 3);
    let (taken, settled, is_over) = (
        AtomicUsize::new(0),
        AtomicUsize::new(0),
        AtomicBool::new(false),
    );
    let rounds = 150;
    std::thread::scope(|scope| {
        let (dir, billing, taken, settled, is_over) =
            (dir.path(), &billing, &taken, &settled, &is_over);
        scope.spawn(move || {
            for round in 0..rounds {
                let holds = admitted(billing, &format!("{round}"), 4);
                std::thread::sleep(Duration::from_millis(1));
                settled.fetch_add(holds.len(), Ordering::Relaxed);
                settle_all(holds);
                billing
                    .billing()
                    .corrections()
                    .grant(
                        ACCOUNT,
                        Micro::new(3_000_000),
                        &format!("round {round}"),
                        NOW,
                    )
                    .unwrap();
            }
            is_over.store(true, Ordering::Release);
        });
        for thread in 0..2 {
            scope.spawn(move || {
                let operator = Billing::open(dir).unwrap();
                for turn in 0.. {
                    if is_over.load(Ordering::Acquire) {
                        break;
                    }
                    let amount = Micro::new(-1_000_000);
                    let reference = format!("{thread} {turn}");
                    match operator
                        .corrections()
                        .adjust(ACCOUNT, amount, &reference, "a test", NOW)
                    {
                        Ok(_) => taken.fetch_add(1, Ordering::Relaxed),
                        Err(StoreError::Refused(_)) => 0,
                        Err(other) => panic!("{other}"),
                    };
                }
            });
        }
    });
    assert!(
        taken.load(Ordering::Relaxed) > 0,
        "the commands were never quick enough"
    );
    let settled = settled.into_inner();
    assert!(settled > 100, "{settled} requests");
    wait_for("the ledger", || receipts(&billing, 10_000).len() == settled);
    let receipts = receipts(&billing, 10_000);
    for receipt in &receipts {
        assert_eq!(
            (receipt.writeoff, receipt.credits),
            (Micro::ZERO, Micro::new(1_000_000)),
            "{}",
            receipt.request_id
        );
    }
    assert_sound(billing.billing(), receipts.len() as u64);
}

/// An operator's debit waits for the disk. A request that begins or ends meanwhile does not.
#[test]
fn no_request_waits_for_the_debit_of_an_operator() {
    let dir = tempfile::tempdir().unwrap();
    let billing = serving(dir.path());
    account_with(billing.billing(), 3);
    let mut running = admitted(&billing, "running", 2);
    let (service, serving) = (&billing, &billing.serving);
    let ((quote, _), first) = (one_credit(), vec![running.remove(0)]);
    let (tell, told) = std::sync::mpsc::sync_channel(1);
    let ended = std::thread::scope(|scope| {
        let quote = &quote;
        let post = |claim: Claim| {
            assert_eq!(claim.held.total(), Micro::new(2_000_000));
            scope.spawn(move || {
                settle_all(first);
                let begun = service.begin_reservation(opening("req_new"), quote, true, NOW);
                let is_unread = matches!(begun, Ok(Reservation::Unread(_)));
                tell.send(is_unread).unwrap();
            });
            told.recv_timeout(test_world::SOON)
        };
        let holds = &serving.holds;
        holds.with_frozen_account(&serving.ledger, ACCOUNT, post)
    });
    assert_eq!(ended, Some(Ok(true)));
    assert_eq!(serving.holds.open_requests(ACCOUNT), 1);
    let after = admitted(&billing, "after", 2);
    assert_eq!(after.len(), 1, "one is spent, one is held");
    settle_all(running);
    settle_all(after);
    wait_for("the ledger", || {
        let receipts = billing.billing().receipts();
        receipts.receipts(ACCOUNT, None, 10).unwrap().len() == 3
    });
    assert_sound(billing.billing(), 3);
}

/// However old a cached row is, a process that asks for the holds causes it to be read again.
#[test]
fn what_a_command_took_is_not_given_to_a_request_that_remembers_it() {
    let dir = tempfile::tempdir().unwrap();
    let billing = serving(dir.path());
    account_with(billing.billing(), 3);
    billing.billing().0.ledger.rows().in_memory().pause_checks();
    settle_all(admitted(&billing, "before", 1));
    wait_for("the ledger", || receipts(&billing, 10).len() == 1);
    let held = admitted(&billing, "held", 1);
    let operator = Billing::open(dir.path()).unwrap();
    operator
        .corrections()
        .adjust(ACCOUNT, Micro::new(-1_000_000), "one", "a test", NOW)
        .unwrap();
    assert!(
        admitted(&billing, "after", 1).is_empty(),
        "one was spent, one is held, one was taken"
    );
    settle_all(held);
}

/// A gateway with ten credits of which three are spent, with the end of the third request waiting
/// for a segment; the folder of the segments, and where they are now.
fn waiting_for_a_segment(dir: &Path) -> (CreditService, [std::path::PathBuf; 2]) {
    let request_at = |at_ms: i64| format!("req_{at_ms:012x}7abc8000000000000000");
    let billing = CreditService::serve_stepwise(dir, &Limits::default()).unwrap();
    billing.billing().store_prices(&[model()], NOW).unwrap();
    account_with(billing.billing(), 10);
    let (quote, usage) = one_credit();
    let spend = |billing: &CreditService, request: &str, at_ms: i64| {
        let (hold, _) = billing
            .reserve(opening(request), &quote, true, at_ms)
            .unwrap();
        hold.settle(usage, RequestOutcome::Completed, false, at_ms)
            .wait_on_thread()
            .unwrap();
    };
    // A clock that was ahead: the sealed request ended after the next one begins.
    let ahead = NOW + 3_600_000;
    spend(&billing, &request_at(ahead), ahead);
    billing.step(ahead).unwrap();
    assert_eq!(
        billing.billing().upkeep().seal(None, 1_000).unwrap().len(),
        1
    );
    spend(&billing, "req_last", ahead);
    billing.step(ahead).unwrap();
    assert!(
        !billing
            .billing()
            .upkeep()
            .seal(None, 1_000)
            .unwrap()
            .is_empty()
    );
    billing.shut_down();
    drop(billing);
    let folders = ["segments", "away"].map(|name| dir.join(name));
    std::fs::rename(&folders[0], &folders[1]).unwrap();
    let billing = CreditService::serve_stepwise(dir, &Limits::default()).unwrap();
    spend(&billing, &request_at(NOW), NOW);
    billing.step(NOW).unwrap();
    let before = balance(billing.billing());
    assert!(before.ends_with("available 7"), "{before}");
    (billing, folders)
}

/// An ending that may be in a segment that is not at hand stays in its journal. Its cost is held
/// meanwhile, else the account and the key could spend it again after each restart.
#[test]
fn what_waits_for_a_missing_segment_is_not_free_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let (billing, [folder, away]) = waiting_for_a_segment(dir.path());
    let (quote, _) = one_credit();
    drop(billing);
    for restart in 0..2 {
        let billing = CreditService::serve_stepwise(dir.path(), &Limits::default()).unwrap();
        let now = balance(billing.billing());
        assert!(now.ends_with("held 1 available 7"), "{restart}: {now}");
        let bounds = limits::spending("3.5/total");
        let limited = HoldRequest {
            bounds,
            ..opening("req_limited")
        };
        let refused = billing.reserve(limited, &quote, true, NOW);
        assert!(
            matches!(refused, Err(ReserveError::SpendLimit { .. })),
            "the key has spent three"
        );
    }
    std::fs::rename(&away, &folder).unwrap();
    let billing = CreditService::serve_stepwise(dir.path(), &Limits::default()).unwrap();
    assert_eq!(balance(billing.billing()), "7 held 0 available 7");
    assert_sound(billing.billing(), 3);
}

/// The process whose requests they are tries again, and so does the one that follows it.
#[test]
fn what_waits_for_a_segment_is_entered_once_it_is_back() {
    for dies in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let (mut billing, [folder, away]) = waiting_for_a_segment(dir.path());
        if dies {
            drop(billing);
            billing = CreditService::serve_stepwise(dir.path(), &Limits::default()).unwrap();
        }
        billing.step(NOW).unwrap();
        let waiting = balance(billing.billing());
        assert!(waiting.ends_with("available 7"), "{dies}: {waiting}");
        std::fs::rename(&away, &folder).unwrap();
        billing.step(NOW).unwrap();
        assert_eq!(balance(billing.billing()), "7 held 0 available 7", "{dies}");
        assert_sound(billing.billing(), 3);
        billing.shut_down();
        drop(billing);
        assert_eq!(
            ledger::journal::instance_ids(dir.path()).unwrap(),
            [""; 0],
            "{dies}"
        );
    }
}

#[test]
fn what_waits_for_a_segment_is_held_once_after_an_upgrade() {
    let dir = tempfile::tempdir().unwrap();
    let (old, [folder, away]) = waiting_for_a_segment(dir.path());
    let old_id = old.instance_id().to_owned();
    let new = std::thread::scope(|scope| {
        let serve =
            || CreditService::serve_as_successor(dir.path(), &Limits::default(), None).unwrap();
        let successor = scope.spawn(serve);
        wait_for("the successor to wait", || old.hand_over().is_ok());
        successor.join().unwrap()
    });
    assert_eq!(balance(new.billing()), "8 held 1 available 7");
    old.shut_down();
    drop(old);
    wait_for("the claims of the old process to go", || {
        !new.billing()
            .0
            .ledger
            .rows()
            .instance_ids()
            .unwrap()
            .contains(&old_id)
    });
    assert_eq!(balance(new.billing()), "8 held 1 available 7");
    drop(new);
    std::fs::rename(&away, &folder).unwrap();
    let billing = CreditService::serve_stepwise(dir.path(), &Limits::default()).unwrap();
    assert_eq!(balance(billing.billing()), "7 held 0 available 7");
    assert_sound(billing.billing(), 3);
}

/// Without a running gateway nobody holds what they cost.
#[test]
fn a_command_takes_nothing_from_an_account_whose_request_waits_for_a_segment() {
    let dir = tempfile::tempdir().unwrap();
    let (billing, [folder, away]) = waiting_for_a_segment(dir.path());
    drop(billing);
    let command = Billing::open(dir.path()).unwrap();
    let take = |reference: &str| {
        command
            .corrections()
            .adjust(ACCOUNT, Micro::new(-7_500_000), reference, "a mistake", NOW)
    };
    let refused = take("a").unwrap_err().to_string();
    assert!(refused.contains("wait for a segment"), "{refused}");
    std::fs::rename(&away, &folder).unwrap();
    assert!(take("b").is_err(), "only seven are left");
    command
        .corrections()
        .adjust(ACCOUNT, Micro::new(-7_000_000), "c", "a mistake", NOW)
        .unwrap();
    drop(command);
    let billing = CreditService::serve_stepwise(dir.path(), &Limits::default()).unwrap();
    assert_eq!(balance(billing.billing()), "0 held 0 available 0");
    assert_sound(billing.billing(), 3);
}
