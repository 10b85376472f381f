//! Tests of refunds and adjustments: bounded, once per reference, next to a serving gateway.

use super::*;
use credits::trial::Trial;
use ledger::StoreError;
use ledger::{BalanceChange, BalanceChangeKind, PostingResult};

fn credits(text: &str) -> Micro {
    text.parse().unwrap()
}

fn refused(outcome: Result<PostingResult, StoreError>) -> String {
    match outcome {
        Err(
            StoreError::Refused(message)
            | StoreError::Unknown(message)
            | StoreError::ReferenceUsed(message),
        ) => message,
        other => panic!("not refused: {other:?}"),
    }
}

/// An account of ten credits with a debit of one credit for `req_a`, and the process that corrects
/// it.
fn debited(dir: &Path) -> (CreditService, Billing) {
    let billing = serving(dir);
    account_with(billing.billing(), 10);
    let (quote, usage) = one_credit();
    let (hold, _) = billing
        .reserve(opening("req_a"), &quote, false, NOW)
        .unwrap();
    hold.settle(usage, RequestOutcome::Completed, false, NOW)
        .wait_on_thread()
        .unwrap();
    wait_for("the debit", || receipt(&billing, "req_a").is_some());
    (billing, Billing::open(dir).unwrap())
}

#[test]
fn all_refunds_of_a_debit_together_never_pass_it() {
    let dir = tempfile::tempdir().unwrap();
    let (billing, operator) = debited(dir.path());
    let refund = |amount: Option<&str>, reference| {
        operator
            .corrections()
            .refund("req_a", amount.map(credits), reference, NOW)
    };
    refused(refund(Some("1.000001"), "too much"));
    refused(refund(Some("0"), "nothing"));
    refused(refund(Some("-1"), "less than nothing"));
    assert!(refused(operator.corrections().refund("req_b", None, "r", NOW)).contains("no debit"));
    let first = refund(Some("0.4"), "ticket 1").unwrap();
    assert_eq!(
        (first.is_new, first.change, first.balance),
        (true, credits("0.4"), credits("9.4"))
    );
    assert_eq!(
        balance(billing.billing()),
        "9.4 held 0 available 9.4",
        "the gateway sees it at once"
    );
    let repeated = refund(Some("0.4"), "ticket 1").unwrap();
    assert_eq!(
        (repeated.is_new, repeated.change, repeated.balance),
        (false, credits("0.4"), credits("9.4"))
    );
    assert!(refused(refund(Some("0.5"), "ticket 1")).contains("already used for something else"));
    refused(refund(Some("0.600001"), "ticket 2"));
    let rest = refund(None, "ticket 2").unwrap();
    assert_eq!((rest.is_new, rest.change), (true, credits("0.6")));
    assert!(
        !refund(None, "ticket 2").unwrap().is_new,
        "the rest again is the same refund"
    );
    refused(refund(None, "ticket 3"));
    assert_eq!(balance(billing.billing()), "10 held 0 available 10");
    let verdict = billing.billing().verify(NOW).unwrap();
    assert!(verdict.findings.is_empty(), "{:?}", verdict.findings);
    assert_eq!((verdict.debits, verdict.refunds), (1, 2));
}

#[test]
fn of_many_refunds_at_once_as_many_count_as_the_debit_bears() {
    let dir = tempfile::tempdir().unwrap();
    let (billing, _) = debited(dir.path());
    let counted = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (dir, counted) = (dir.path(), &counted);
            scope.spawn(move || {
                let operator = Billing::open(dir).unwrap();
                for turn in 0..3 {
                    let reference = format!("{thread} {turn}");
                    if operator
                        .corrections()
                        .refund("req_a", Some(credits("0.1")), &reference, NOW)
                        .is_ok()
                    {
                        counted.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    assert_eq!(counted.load(Ordering::Relaxed), 10);
    assert_sound(billing.billing(), 1);
}

#[test]
fn what_a_trial_bore_comes_back_to_a_trial_that_runs_and_as_credit_after_it() {
    let dir = tempfile::tempdir().unwrap();
    let billing = serving(dir.path());
    let ends_at_ms = clock::now_ms() + 3_600_000;
    billing
        .billing()
        .open_account(
            ACCOUNT,
            Some(Trial {
                credits: credits("0.7"),
                ends_at_ms,
            }),
            0,
        )
        .unwrap();
    billing
        .billing()
        .corrections()
        .grant(ACCOUNT, credits("5"), "g", 0)
        .unwrap();
    let (quote, usage) = one_credit();
    let (hold, _) = billing.reserve(opening("req_a"), &quote, false, 0).unwrap();
    hold.settle(usage, RequestOutcome::Completed, false, 0)
        .wait_on_thread()
        .unwrap();
    wait_for("the debit", || receipt(&billing, "req_a").is_some());
    let buckets = || {
        let row = billing
            .billing()
            .0
            .ledger
            .rows()
            .account(ACCOUNT, "")
            .unwrap()
            .unwrap();
        (row.paid.to_string(), row.trial.to_string())
    };
    assert_eq!(buckets(), ("4.7".into(), "0".into()));
    billing
        .billing()
        .corrections()
        .refund("req_a", Some(credits("0.5")), "r1", ends_at_ms - 1)
        .unwrap();
    assert_eq!(buckets(), ("5".into(), "0.2".into()), "the paid part first");
    billing
        .billing()
        .corrections()
        .refund("req_a", None, "r2", ends_at_ms)
        .unwrap();
    assert_eq!(buckets(), ("5.5".into(), "0.2".into()));
    assert_sound(billing.billing(), 1);
}

#[test]
fn an_adjustment_takes_nothing_that_is_held_and_never_goes_below_zero() {
    let dir = tempfile::tempdir().unwrap();
    let (billing, operator) = debited(dir.path());
    let (quote, usage) = one_credit();
    let (hold, _) = billing
        .reserve(opening("req_b"), &quote, false, NOW)
        .unwrap();
    wait_for("the mirror", || {
        operator.balance(ACCOUNT, NOW).unwrap().held == credits("1")
    });
    let adjust = |amount, reference, reason| {
        operator
            .corrections()
            .adjust(ACCOUNT, credits(amount), reference, reason, NOW)
    };
    assert!(refused(adjust("-8.000001", "a1", "a mistake")).contains("only 8 are available"));
    refused(billing.billing().corrections().adjust(
        ACCOUNT,
        credits("-8.000001"),
        "a1",
        "a mistake",
        NOW,
    ));
    refused(adjust("0", "a0", "a mistake"));
    refused(adjust("1", "a0", " "));
    refused(adjust("1", "", "a mistake"));
    assert!(adjust("-8", "a1", "a mistake").unwrap().is_new);
    assert!(
        !adjust("-8", "a1", "a mistake").unwrap().is_new,
        "the same reference counts once"
    );
    refused(adjust("-8", "a1", "another mistake"));
    refused(adjust("-7", "a1", "a mistake"));
    assert_eq!(balance(billing.billing()), "1 held 1 available 0");
    hold.settle(usage, RequestOutcome::Completed, false, NOW)
        .wait_on_thread()
        .unwrap();
    refused(adjust(
        "-0.000001",
        "a2",
        "what is settled is not free, entered or not",
    ));
    wait_for("the debit", || receipt(&billing, "req_b").is_some());
    assert_eq!(receipt(&billing, "req_b").unwrap().writeoff, Micro::ZERO);
    adjust("2.5", "a3", "goodwill").unwrap();
    assert_eq!(balance(billing.billing()), "2.5 held 0 available 2.5");
    let verdict = operator.verify(NOW).unwrap();
    assert!(verdict.findings.is_empty(), "{:?}", verdict.findings);
    assert_eq!((verdict.debits, verdict.adjustments), (2, 2));
    let reasons: Vec<_> = operator
        .receipts()
        .entries(ACCOUNT, None, 10)
        .unwrap()
        .into_iter()
        .map(|entry| entry.detail)
        .collect();
    assert!(reasons[0].contains("goodwill"), "{reasons:?}");
}

#[test]
fn a_grant_counts_once_and_its_reference_is_never_used_for_another() {
    let dir = tempfile::tempdir().unwrap();
    let billing = serving(dir.path());
    account_with(billing.billing(), 10);
    billing
        .billing()
        .open_account("acct_other", None, NOW)
        .unwrap();
    assert!(
        !billing
            .billing()
            .corrections()
            .grant(ACCOUNT, credits("10"), "first", NOW + 1)
            .unwrap()
    );
    for (account, amount) in [(ACCOUNT, "11"), ("acct_other", "10")] {
        let error = billing
            .billing()
            .corrections()
            .grant(account, credits(amount), "first", NOW)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("something else") && error.contains("entry 1"),
            "{error}"
        );
    }
    let too_much = billing
        .billing()
        .corrections()
        .grant(ACCOUNT, Micro::new(i64::MAX), "all", NOW)
        .unwrap_err()
        .to_string();
    assert!(too_much.contains("a balance is at most"), "{too_much}");
    assert!(
        billing
            .billing()
            .corrections()
            .grant("acct_none", credits("1"), "x", NOW)
            .is_err()
    );
    assert_eq!(balance(billing.billing()), "10 held 0 available 10");
    assert_sound(billing.billing(), 0);
}

/// Ledgers of every older version, as that version wrote them: their entries stay, and new kinds of
/// entries can be posted.
#[test]
fn a_ledger_of_an_older_version_keeps_its_entries_and_takes_what_came_later() {
    for version in [1, 2] {
        let dir = tempfile::tempdir().unwrap();
        let old = Ledger::write_old_version(dir.path(), version);
        let account = "INSERT INTO account VALUES ('acct_test', 0, 0, NULL, 0, 0)";
        old.execute_batch(account).unwrap();
        drop(old);
        let first = serving(dir.path());
        assert!(
            first
                .billing()
                .corrections()
                .grant(ACCOUNT, credits("10"), "first", NOW)
                .unwrap()
        );
        first.shut_down();
        let hashes = |billing: &CreditService| -> Vec<_> {
            billing
                .billing()
                .receipts()
                .entries(ACCOUNT, None, 9)
                .unwrap()
                .into_iter()
                .map(|entry| entry.hash)
                .collect()
        };
        let hash = hashes(&first);
        drop(first);
        let old = Ledger::write_old_version(dir.path(), version);
        let topup = "INSERT INTO entry SELECT 2, 'topup', 'x', account, at, 0, 0, 0, 0, 0, '', prev, hash FROM entry";
        assert!(
            old.execute_batch(topup).is_err(),
            "version {version} knew top-ups"
        );
        drop(old);
        let billing = serving(dir.path());
        assert_eq!(hashes(&billing), hash);
        billing
            .billing()
            .corrections()
            .adjust(ACCOUNT, credits("-1"), "a", "a mistake", NOW)
            .unwrap();
        let (kind, amount) = (BalanceChangeKind::TopUp, credits("2"));
        let bought = BalanceChange {
            kind,
            reference: "t",
            account: ACCOUNT,
            amount,
            actor: Some("acct_root"),
            at_ms: NOW,
        };
        assert!(
            billing
                .billing()
                .corrections()
                .post_change(&bought)
                .unwrap()
                .is_new
        );
        assert_eq!(balance(billing.billing()), "11 held 0 available 11");
        assert_sound(billing.billing(), 0);
    }
}
