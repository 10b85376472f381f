//! Tests of the billing rules on a real ledger, each in its own directory.
//!
//! Read next: `tests/corrections.rs` (refunds, adjustments), `tests/audit.rs` (what `verify`
//! finds), `tests/audit_sealed.rs` (what it finds in segments), `tests/audit_walk.rs` (how it
//! walks), `tests/copies.rs`, `tests/several.rs` (several processes), `tests/statement.rs`.

mod audit;
mod audit_sealed;
mod audit_walk;
mod copies;
mod corrections;
mod limits;
mod several;
mod statement;

use super::*;
use base::clock;
use config::Limits;
use config::catalog::CatalogModel;
use credits::money::Micro;
use credits::price_list::PriceList;
use credits::pricing::{Quote, WorstCase};
use credits::trial::Trial;
use ledger::journal::{Journal, JournalRecord};
use ledger::{Ending, EndingDetail, Ledger, RequestOutcome};
use llm_protocol::Protocol;
use llm_protocol::usage::Usage;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const ACCOUNT: &str = "acct_test";
const NOW: i64 = 1_800_000_000_000;

fn model() -> Arc<CatalogModel> {
    let price = PriceList::new([100, 10, 125, 200, 500].map(|whole| Micro::new(whole * 1_000_000)));
    Arc::new(CatalogModel {
        context_tokens: 1_000_000,
        max_output_tokens: 1_000,
        ..CatalogModel::in_test(Protocol::Chat, price)
    })
}

/// 1 000 output tokens and 5 000 input tokens: exactly one credit.
fn one_credit() -> (Quote, Usage) {
    let price = &model().price;
    let reach = WorstCase {
        input_tokens: 5_000,
        input_price: price.input,
        output_price: price.output,
    };
    let quote = Quote::flat(reach, 1, 1_000, 1_000);
    (
        quote,
        Usage {
            input: 5_000,
            output: 1_000,
            ..Usage::default()
        },
    )
}

fn serving(dir: &Path) -> CreditService {
    let billing = CreditService::serve(dir, &Limits::default(), None).unwrap();
    billing.billing().store_prices(&[model()], NOW).unwrap();
    billing
}

fn account_with(billing: &Billing, credits: i64) {
    billing.open_account(ACCOUNT, None, NOW).unwrap();
    assert!(
        billing
            .corrections()
            .grant(ACCOUNT, Micro::new(credits * 1_000_000), "first", NOW)
            .unwrap()
    );
}

fn opening(request: &str) -> HoldRequest {
    HoldRequest {
        request_id: request.into(),
        account: ACCOUNT.into(),
        key_id: "key_1".into(),
        key_shown: "gw-sk-…".into(),
        member: None,
        model: model(),
        surface: Protocol::Chat,
        bounds: Default::default(),
        conversation: None,
    }
}

fn balance(billing: &Billing) -> String {
    let balance = billing.balance(ACCOUNT, NOW).unwrap();
    format!(
        "{} held {} available {}",
        balance.balance, balance.held, balance.available
    )
}

fn receipt(billing: &CreditService, request: &str) -> Option<Receipt> {
    let receipts = billing.billing().receipts();
    receipts.receipt(ACCOUNT, request).unwrap()
}

fn receipts(billing: &CreditService, limit: u32) -> Vec<Receipt> {
    let receipts = billing.billing().receipts();
    receipts.receipts(ACCOUNT, None, limit).unwrap()
}

/// Writes to `index.db` what only the memory of readers has.
fn write_index(billing: &Billing) {
    assert!(billing.0.ledger.index().catch_up_index(u32::MAX).unwrap() > 0);
}

fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(
            began.elapsed() < test_world::SOON,
            "waited in vain for {what}"
        );
        std::thread::yield_now();
    }
}

fn assert_sound(billing: &Billing, debits: u64) {
    let verdict = billing.verify(NOW).unwrap();
    assert!(verdict.findings.is_empty(), "{:?}", verdict.findings);
    assert_eq!(verdict.debits, debits);
}

/// Asserts that the only finding is one journal with an unreadable line.
fn assert_damaged(billing: &Billing, debits: u64) {
    let verdict = billing.verify(NOW).unwrap();
    let rules: Vec<_> = verdict
        .findings
        .iter()
        .map(|finding| finding.rule)
        .collect();
    assert_eq!((rules, verdict.debits), (vec!["damaged journal"], debits));
}

#[test]
fn a_hold_is_set_aside_settled_once_and_explained_by_a_receipt() {
    let dir = tempfile::tempdir().unwrap();
    let billing = serving(dir.path());
    account_with(billing.billing(), 10);
    let (quote, usage) = one_credit();
    let (hold, limit) = billing
        .reserve(opening("req_a"), &quote, false, NOW)
        .unwrap();
    assert_eq!(limit, 1_000);
    assert_eq!(balance(billing.billing()), "10 held 1 available 9");
    let half = Usage { output: 0, ..usage };
    assert_eq!(
        hold.settle(half, RequestOutcome::Completed, false, NOW)
            .wait_on_thread()
            .unwrap(),
        Micro::new(500_000)
    );
    assert_eq!(balance(billing.billing()), "9.5 held 0 available 9.5");
    wait_for("the receipt", || receipt(&billing, "req_a").is_some());
    let receipt = receipt(&billing, "req_a").unwrap();
    assert_eq!(
        (receipt.credits, receipt.balance_after),
        (Micro::new(500_000), Micro::new(9_500_000))
    );
    assert!(
        billing
            .billing()
            .receipts()
            .receipt("acct_other", "req_a")
            .unwrap()
            .is_none(),
        "a stranger sees nothing"
    );
    assert_eq!(balance(billing.billing()), "9.5 held 0 available 9.5");
    assert_sound(billing.billing(), 1);
    billing.shut_down();
    assert!(
        ledger::journal::live_instance_ids(dir.path())
            .unwrap()
            .is_empty(),
        "a journal that is covered is removed"
    );
}

#[test]
fn credit_for_ten_admits_exactly_ten_of_sixty_four() {
    let dir = tempfile::tempdir().unwrap();
    let billing = serving(dir.path());
    account_with(billing.billing(), 10);
    let (quote, _) = one_credit();
    let quote = &quote;
    let admitted: Vec<_> = std::thread::scope(|scope| {
        let try_one = |index: usize| {
            let billing = &billing;
            scope.spawn(move || {
                billing
                    .reserve(opening(&format!("req_{index}")), quote, true, NOW)
                    .ok()
            })
        };
        let tries: Vec<_> = (0..64).map(try_one).collect();
        tries
            .into_iter()
            .filter_map(|thread| thread.join().unwrap())
            .collect()
    });
    assert_eq!(admitted.len(), 10);
    assert_eq!(balance(billing.billing()), "10 held 10 available 0");
    drop(admitted);
    assert_eq!(
        balance(billing.billing()),
        "10 held 0 available 10",
        "holds that nobody ended are given back"
    );
    wait_for("ten voids", || receipts(&billing, 100).len() == 10);
    assert_sound(billing.billing(), 0);
}

/// A balance kept in two places invites this race. While debits are being committed, credit must
/// neither be counted twice (an overdraft) nor be missing for a moment (a false refusal).
#[test]
fn under_load_the_last_credit_is_spent_and_no_more() {
    let dir = tempfile::tempdir().unwrap();
    let billing = serving(dir.path());
    let credits = 400;
    account_with(billing.billing(), credits);
    let (quote, usage) = one_credit();
    let quote = &quote;
    let spent = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (billing, spent) = (&billing, &spent);
            scope.spawn(move || {
                for turn in 0.. {
                    let request = format!("req_{thread}_{turn}");
                    match billing.reserve(opening(&request), quote, true, NOW) {
                        Ok((hold, _)) => {
                            hold.settle(usage, RequestOutcome::Completed, false, NOW)
                                .wait_on_thread()
                                .unwrap();
                            spent.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(ReserveError::Insufficient { available, .. }) => {
                            // Other requests may hold the last credits for a moment; stop when
                            // nothing is left for any of them.
                            if available == Micro::ZERO {
                                return;
                            }
                        }
                        Err(other) => panic!("{other:?}"),
                    }
                }
            });
        }
    });
    assert_eq!(spent.load(Ordering::Relaxed), 400);
    assert_eq!(balance(billing.billing()), "0 held 0 available 0");
    wait_for("all debits", || {
        billing.billing().verify(NOW).unwrap().debits == 400
    });
    assert_sound(billing.billing(), 400);
}

#[test]
fn a_cost_beyond_hold_and_balance_is_written_off() {
    let dir = tempfile::tempdir().unwrap();
    let billing = serving(dir.path());
    account_with(billing.billing(), 2);
    let (quote, usage) = one_credit();
    let (hold, _) = billing
        .reserve(opening("req_a"), &quote, false, NOW)
        .unwrap();
    let five_credits = Usage {
        output: 9_000,
        ..usage
    };
    let taken = hold
        .settle(five_credits, RequestOutcome::Completed, false, NOW)
        .wait_on_thread()
        .unwrap();
    assert_eq!(
        taken,
        Micro::new(2_000_000),
        "the hold and what was available"
    );
    wait_for("the receipt", || receipt(&billing, "req_a").is_some());
    assert_eq!(
        receipt(&billing, "req_a").unwrap().writeoff,
        Micro::new(3_000_000)
    );
    assert_eq!(balance(billing.billing()), "0 held 0 available 0");
    assert_sound(billing.billing(), 1);
}

/// Writes the journal that a dying process would leave, and returns its directory.
fn die_with(dir: &Path, records: &[JournalRecord]) -> std::path::PathBuf {
    let journal = Journal::create(dir, 1 << 20, 1 << 16).unwrap();
    for record in records {
        journal.write(record).unwrap();
    }
    dir.join("journal").join(journal.instance_id())
}

fn ending(request: &str, outcome: RequestOutcome, credits: i64) -> Ending {
    let usage = Usage {
        input: u64::try_from(credits).unwrap() * 10_000,
        ..Usage::default()
    };
    let plain = Ending::in_test(request, ACCOUNT, NOW, outcome);
    Ending {
        paid: Micro::new(credits * 1_000_000),
        detail: EndingDetail {
            usage,
            price_version: model().price.version.clone(),
            ..plain.detail
        },
        ..plain
    }
}

#[test]
fn what_a_dead_process_journalled_is_debited_once_and_what_it_did_not_is_void() {
    let dir = tempfile::tempdir().unwrap();
    account_with(serving(dir.path()).billing(), 10);
    let interrupted =
        |request| JournalRecord::Open(ending(request, RequestOutcome::Interrupted, 0));
    let folder = die_with(
        dir.path(),
        &[
            interrupted("req_done"),
            interrupted("req_cut"),
            JournalRecord::End(ending("req_done", RequestOutcome::Completed, 3)),
            interrupted("req_torn"),
        ],
    );
    let log = folder.join("000001.log");
    let mut bytes = std::fs::read(&log).unwrap();
    bytes.extend_from_slice(b"1234abcd 0000000009 end\treq_to");
    std::fs::write(&log, bytes).unwrap();

    let billing = serving(dir.path());
    assert_eq!(balance(billing.billing()), "7 held 0 available 7");
    assert!(!folder.exists(), "a replayed journal is removed");
    let outcome = |request| receipt(&billing, request).unwrap().detail.outcome;
    assert_eq!(outcome("req_done"), RequestOutcome::Completed);
    assert_eq!(outcome("req_cut"), RequestOutcome::Interrupted);
    assert_eq!(
        outcome("req_torn"),
        RequestOutcome::Interrupted,
        "half a record is none"
    );
    assert_sound(billing.billing(), 1);

    die_with(
        dir.path(),
        &[JournalRecord::End(ending(
            "req_done",
            RequestOutcome::Completed,
            3,
        ))],
    );
    billing.shut_down();
    drop(billing);
    assert_eq!(
        balance(serving(dir.path()).billing()),
        "7 held 0 available 7",
        "a second replay changes nothing"
    );
}

#[test]
fn a_write_that_a_full_disk_tore_takes_no_other_record_with_it() {
    let dir = tempfile::tempdir().unwrap();
    account_with(serving(dir.path()).billing(), 10);
    let journal = Journal::create(dir.path(), 1 << 20, 1 << 16).unwrap();
    let log = dir
        .path()
        .join("journal")
        .join(journal.instance_id())
        .join("000001.log");
    let torn = |text: &[u8]| {
        use std::io::Write;
        std::fs::OpenOptions::new()
            .append(true)
            .open(&log)
            .unwrap()
            .write_all(text)
            .unwrap();
    };
    torn(b"\n1234abcd 0000000009 end\treq_to");
    journal
        .write(&JournalRecord::End(ending(
            "req_after",
            RequestOutcome::Completed,
            3,
        )))
        .unwrap();
    drop(journal);
    let billing = serving(dir.path());
    assert_eq!(balance(billing.billing()), "7 held 0 available 7");
    assert_damaged(billing.billing(), 1);
}

#[test]
fn a_living_processs_journal_is_not_replayed_under_its_feet() {
    let dir = tempfile::tempdir().unwrap();
    let billing = serving(dir.path());
    account_with(billing.billing(), 10);
    let (quote, usage) = one_credit();
    let (hold, _) = billing
        .reserve(opening("req_a"), &quote, false, NOW)
        .unwrap();
    let instance_id = ledger::journal::live_instance_ids(dir.path())
        .unwrap()
        .pop()
        .unwrap();
    let other = Billing::open(dir.path()).unwrap();
    assert!(
        other
            .upkeep()
            .replay_journal(&dir.path().join("journal").join(instance_id))
            .is_err(),
        "it would void a request that runs"
    );
    hold.settle(usage, RequestOutcome::Completed, false, NOW)
        .wait_on_thread()
        .unwrap();
    wait_for("the debit", || {
        billing.billing().verify(NOW).unwrap().debits == 1
    });
    assert_eq!(balance(billing.billing()), "9 held 0 available 9");
}

#[test]
fn a_damaged_journal_is_replayed_as_far_as_it_can_be_read_and_set_aside() {
    let dir = tempfile::tempdir().unwrap();
    account_with(serving(dir.path()).billing(), 10);
    let done = |request| JournalRecord::End(ending(request, RequestOutcome::Completed, 1));
    let folder = die_with(dir.path(), &[done("req_1"), done("req_2"), done("req_3")]);
    let log = folder.join("000001.log");
    let text = std::fs::read_to_string(&log)
        .unwrap()
        .replacen("req_2", "req_X", 1);
    std::fs::write(&log, text).unwrap();
    let billing = serving(dir.path());
    assert_eq!(
        balance(billing.billing()),
        "8 held 0 available 8",
        "the line that was changed is not believed"
    );
    assert!(
        folder.with_extension("damaged").exists(),
        "what cannot be read is kept"
    );
    assert_damaged(billing.billing(), 2);
}

#[test]
fn a_trial_is_spent_first_and_lapses_on_the_dot() {
    let dir = tempfile::tempdir().unwrap();
    let billing = serving(dir.path());
    // The ledger writer's own clock is years before the trial's end at NOW, so it posts no lapse
    // meanwhile.
    let ends_at_ms = clock::now_ms() + 3_600_000;
    billing
        .billing()
        .open_account(
            ACCOUNT,
            Some(Trial {
                credits: Micro::new(300_000_000),
                ends_at_ms,
            }),
            0,
        )
        .unwrap();
    billing
        .billing()
        .open_account(
            ACCOUNT,
            Some(Trial {
                credits: Micro::new(300_000_000),
                ends_at_ms,
            }),
            0,
        )
        .unwrap();
    billing
        .billing()
        .corrections()
        .grant(ACCOUNT, Micro::new(5_000_000), "g", 0)
        .unwrap();
    assert!(
        !billing
            .billing()
            .corrections()
            .grant(ACCOUNT, Micro::new(5_000_000), "g", 0)
            .unwrap(),
        "a reference counts once"
    );
    let at = |now_ms| billing.billing().balance(ACCOUNT, now_ms).unwrap();
    assert_eq!(at(ends_at_ms - 1).balance, Micro::new(305_000_000));
    let (quote, usage) = one_credit();
    let (hold, _) = billing
        .reserve(opening("req_a"), &quote, false, ends_at_ms - 1)
        .unwrap();
    assert_eq!(
        at(ends_at_ms).balance,
        Micro::new(6_000_000),
        "the held part of the trial stays until it resolves"
    );
    assert_eq!(at(ends_at_ms).available, Micro::new(5_000_000));
    assert!(
        !at(ends_at_ms).trial.unwrap().active,
        "it ends on the millisecond"
    );
    hold.settle(usage, RequestOutcome::Completed, false, ends_at_ms)
        .wait_on_thread()
        .unwrap();
    assert_eq!(
        at(ends_at_ms).balance,
        Micro::new(5_000_000),
        "the trial paid for what it had held"
    );
}

#[test]
fn an_account_whose_trial_is_over_is_told_so_until_it_was_ever_given_credit() {
    let dir = tempfile::tempdir().unwrap();
    let billing = serving(dir.path());
    let ends_at_ms = clock::now_ms() - 1;
    billing
        .billing()
        .open_account(
            ACCOUNT,
            Some(Trial {
                credits: Micro::new(300_000_000),
                ends_at_ms,
            }),
            0,
        )
        .unwrap();
    let (quote, usage) = one_credit();
    let refused = |request| {
        billing
            .reserve(opening(request), &quote, false, clock::now_ms())
            .err()
            .unwrap()
    };
    assert!(matches!(refused("req_a"), ReserveError::TrialExpired));
    wait_for("the lapse", || {
        billing
            .billing()
            .0
            .ledger
            .rows()
            .account(ACCOUNT, "")
            .unwrap()
            .unwrap()
            .trial
            == Micro::ZERO
    });
    billing
        .billing()
        .corrections()
        .grant(ACCOUNT, Micro::new(1_000_000), "g", 0)
        .unwrap();
    let (hold, _) = billing
        .reserve(opening("req_b"), &quote, false, NOW)
        .unwrap();
    hold.settle(usage, RequestOutcome::Completed, false, NOW)
        .wait_on_thread()
        .unwrap();
    assert!(matches!(
        refused("req_c"),
        ReserveError::Insufficient { .. }
    ));
    wait_for("the debit", || {
        billing.billing().verify(NOW).unwrap().debits == 1
    });
    assert_sound(billing.billing(), 1);
}
