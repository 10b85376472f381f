//! Tests of a backup while the gateway writes to the data directory.

use super::*;
use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

#[test]
fn a_copy_has_every_ending_from_before_it_began() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("data");
    // Small files, so that some are removed while others are copied.
    let limits = Limits {
        journal_segment_bytes: 4_096,
        ..Limits::default()
    };
    let billing = CreditService::serve(&dir, &limits, None).unwrap();
    billing.billing().store_prices(&[model()], NOW).unwrap();
    account_with(billing.billing(), 1_000_000);
    let (quote, usage) = one_credit();
    let quote = &quote;
    let (stop, done) = (AtomicBool::new(false), Mutex::new(Vec::<String>::new()));
    let copies: Vec<_> = std::thread::scope(|scope| {
        for thread in 0..3 {
            let (billing, stop, done) = (&billing, &stop, &done);
            scope.spawn(move || {
                for turn in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let request = format!("req_{thread}_{turn}");
                    let Ok((hold, _)) = billing.reserve(opening(&request), quote, true, NOW) else {
                        continue;
                    };
                    hold.settle(usage, RequestOutcome::Completed, false, NOW)
                        .wait_on_thread()
                        .unwrap();
                    done.lock().unwrap().push(request);
                }
            });
        }
        let operator = Billing::open(&dir).unwrap();
        let mut copied = 0;
        let copies = (0..6).map(|index| {
            wait_for("more requests to end", || {
                done.lock().unwrap().len() >= copied + 100
            });
            let before: HashSet<_> = done.lock().unwrap().iter().cloned().collect();
            copied = before.len();
            let to = home.path().join(format!("copy {index}"));
            operator.upkeep().backup(&to).unwrap();
            (to, before)
        });
        let copies = copies.collect();
        stop.store(true, Ordering::Relaxed);
        copies
    });
    assert!(
        Billing::open(&dir)
            .unwrap()
            .upkeep()
            .backup(&copies[0].0)
            .is_err(),
        "nothing is overwritten"
    );
    billing.shut_down();
    drop(billing);
    for (copy, before) in copies {
        let restored = CreditService::serve(&copy, &limits, None).unwrap();
        assert!(!before.is_empty());
        for request in &before {
            let receipt = restored
                .billing()
                .receipts()
                .receipt(ACCOUNT, request)
                .unwrap();
            assert!(
                receipt.is_some_and(|receipt| receipt.detail.outcome == RequestOutcome::Completed),
                "{request} is missing"
            );
        }
        let verdict = restored.billing().verify(NOW).unwrap();
        assert!(verdict.findings.is_empty(), "{:?}", verdict.findings);
        assert!(verdict.debits >= before.len() as u64);
        assert_eq!(
            restored.billing().balance(ACCOUNT, NOW).unwrap().held,
            Micro::ZERO
        );
        restored.shut_down();
    }
}
