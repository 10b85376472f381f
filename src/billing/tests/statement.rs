//! A statement adds up, month by month and line by line, to what the entries say.

use super::*;
use crate::billing::activity::ActivityCursor;
use crate::billing::statement::{Statement, StatementLine, StatementMonth, StatementSource};
use base::clock::{month_number, rfc3339};
use credits::money::CreditSplit;
use ledger::{BalanceChange, BalanceChangeKind, LedgerEntry, Posting};
use rusqlite::Connection;
use std::collections::BTreeMap;

const DAY_MS: i64 = 86_400_000;
const HOUR_MS: i64 = 3_600_000;

/// Posts an entry of every kind, over several months with one of them empty, some at the edges of a
/// day and a month.
fn fill(billing: &Billing) {
    let ledger = &billing.0.ledger;
    let start = NOW - 100 * DAY_MS;
    ledger
        .rows()
        .open_account(ACCOUNT, Some(NOW + DAY_MS), start)
        .unwrap();
    let posting = |kind, reference, micro, at_ms| Posting {
        kind,
        reference,
        account: ACCOUNT,
        d_paid: Micro::ZERO,
        d_trial: Micro::new(micro),
        at_ms,
    };
    let trial = posting("trial", "trial:acct_test", 5_000_000, start);
    assert!(ledger.changes().post(&trial).unwrap());
    let debit = |request: &str, at_ms, credits| {
        let ending = Ending {
            at_ms,
            ..ending(request, RequestOutcome::Completed, credits)
        };
        let entered = ledger.enter_endings(&[(&ending, CreditSplit::ZERO)], "");
        assert_eq!(entered.unwrap(), 1);
    };
    debit("req_trial", start + HOUR_MS, 2);
    let lapse = posting("lapse", "lapse:acct_test", -3_000_000, start + 7 * DAY_MS);
    assert!(ledger.changes().post(&lapse).unwrap());
    let change = |kind, reference, micro, at_ms| {
        let change = BalanceChange {
            kind,
            reference,
            account: ACCOUNT,
            amount: Micro::new(micro),
            actor: Some("acct_root"),
            at_ms,
        };
        assert!(billing.corrections().post_change(&change).unwrap().is_new);
    };
    let second = NOW - 30 * DAY_MS;
    change(BalanceChangeKind::TopUp, "INV-1", 50_000_000, second);
    change(BalanceChangeKind::Grant, "gift", 1_000_001, second);
    let month_end = base::clock::month_start_ms(month_number(NOW)).unwrap();
    for (number, at_ms) in [month_end - 1, month_end, month_end, NOW]
        .into_iter()
        .enumerate()
    {
        debit(&format!("req_{number}"), at_ms, 3);
    }
    let reason = "a mistake";
    let adjust = BalanceChangeKind::Adjust { reason };
    change(adjust, "fix", -500_000, month_end);
    let refund = billing
        .corrections()
        .refund("req_0", Some(Micro::new(700_000)), "back", NOW);
    assert!(refund.unwrap().is_new);
}

fn entries(billing: &Billing) -> Vec<LedgerEntry> {
    let mut entries = billing.receipts().entries(ACCOUNT, None, 1_000).unwrap();
    entries.reverse();
    entries
}

#[test]
fn the_months_add_up_to_the_balance_and_to_the_entries() {
    let dir = tempfile::tempdir().unwrap();
    let billing = serving(dir.path());
    fill(billing.billing());
    let statement = billing.billing().receipts().statement(ACCOUNT).unwrap();
    let balance = billing.billing().balance(ACCOUNT, NOW).unwrap().balance;
    assert_eq!(statement.balance, balance);
    assert!(statement.adds_up());

    let mut expected: BTreeMap<i64, StatementMonth> = BTreeMap::new();
    for entry in entries(billing.billing()) {
        let month = expected.entry(month_number(entry.at_ms)).or_default();
        let field = match entry.kind.as_str() {
            "debit" => &mut month.spent,
            "topup" => &mut month.topped_up,
            "refund" => &mut month.refunded,
            "adjust" => &mut month.adjusted,
            "lapse" => &mut month.lapsed,
            _ => &mut month.granted,
        };
        *field = field.plus(entry.change());
    }
    let mut running = Micro::ZERO;
    let first = *expected.keys().next().unwrap();
    let shown = statement.months_between(first - 5, month_number(NOW));
    assert_eq!(
        shown.len(),
        usize::try_from(month_number(NOW) - first + 1).unwrap(),
        "every month from the first change on"
    );
    assert!(shown.len() > expected.len(), "one without a change");
    for month in &shown {
        let sums = expected.get(&month.month).copied().unwrap_or_default();
        let changes = [
            (month.granted, sums.granted),
            (month.topped_up, sums.topped_up),
            (month.refunded, sums.refunded),
            (month.adjusted, sums.adjusted),
            (month.lapsed, sums.lapsed),
            (month.spent, sums.spent),
        ];
        assert_eq!(month.opening, running);
        for (found, expected) in changes {
            assert_eq!(found, expected, "{month:?}");
            running = running.plus(found);
        }
        assert_eq!(month.closing, running);
    }
    assert_eq!(running, balance);
    // A part of it begins with the balance of then.
    let last = statement.months_between(month_number(NOW), month_number(NOW));
    assert_eq!(last, shown[shown.len() - 1..]);
    assert_eq!(last[0].refunded, Micro::new(700_000));
    billing.shut_down();
}

#[test]
fn the_lines_are_every_posting_and_a_sum_for_each_day_once() {
    let dir = tempfile::tempdir().unwrap();
    let billing = serving(dir.path());
    fill(billing.billing());
    let (from_day, to_day) = (NOW / DAY_MS - 200, NOW / DAY_MS + 1);
    let all = billing
        .billing()
        .receipts()
        .statement_lines(ACCOUNT, from_day, to_day, None, 1_000)
        .unwrap();
    assert!(all.is_sorted_by(|a, b| a.cursor > b.cursor));
    let sum = all
        .iter()
        .fold(Micro::ZERO, |sum, line| sum.plus(line.change));
    let statement = billing.billing().receipts().statement(ACCOUNT).unwrap();
    assert_eq!(sum, statement.balance);
    let text = |line: &StatementLine| match &line.source {
        StatementSource::Responses { day, count } => {
            format!("{} {count} {}", &rfc3339(day * DAY_MS)[..10], line.change)
        }
        StatementSource::Posting {
            kind,
            reference,
            reason,
            request_id,
            balance_after,
        } => format!(
            "{kind} {reference} {reason:?} {request_id:?} {} {balance_after}",
            line.change
        ),
    };
    let texts: Vec<_> = all.iter().map(text).collect();
    assert_eq!(
        texts,
        [
            "2027-01-15 1 -3",
            "refund back None Some(\"req_0\") 0.7 39.200001",
            "2027-01-01 2 -6",
            "adjust fix Some(\"a mistake\") None -0.5 38.500001",
            "2026-12-31 1 -3",
            "grant gift None None 1.000001 51.000001",
            "topup INV-1 None None 50 50",
            "lapse lapse:acct_test None None -3 0",
            "2026-10-07 1 -2",
            "trial trial:acct_test None None 5 5",
        ]
    );
    for limit in [1, 2, 3, 7] {
        let mut paged: Vec<StatementLine> = Vec::new();
        loop {
            let before: Option<ActivityCursor> = paged.last().map(|line| line.cursor);
            let page = billing
                .billing()
                .receipts()
                .statement_lines(ACCOUNT, from_day, to_day, before, limit)
                .unwrap();
            if page.is_empty() {
                break;
            }
            paged.extend(page);
        }
        assert_eq!(paged.iter().map(text).collect::<Vec<_>>(), texts, "{limit}");
    }
    // A period has only its own lines.
    let new_year = 20_819;
    let december = billing
        .billing()
        .receipts()
        .statement_lines(ACCOUNT, new_year - 31, new_year, None, 9)
        .unwrap();
    assert_eq!(december.iter().map(text).collect::<Vec<_>>(), texts[4..7]);
    let lines = |account| {
        let lines = billing
            .billing()
            .receipts()
            .statement_lines(account, from_day, to_day, None, 9);
        lines.unwrap().len()
    };
    assert_eq!(lines("acct_none"), 0, "a stranger sees nothing");
    assert_eq!(
        billing.billing().receipts().statement("acct_none").unwrap(),
        Statement::default()
    );
    billing.shut_down();
}

#[test]
fn sums_that_were_changed_do_not_add_up() {
    let dir = tempfile::tempdir().unwrap();
    let billing = serving(dir.path());
    fill(billing.billing());
    assert!(
        billing
            .billing()
            .receipts()
            .statement(ACCOUNT)
            .unwrap()
            .adds_up()
    );
    write_index(billing.billing());
    Connection::open(dir.path().join("index.db"))
        .unwrap()
        .execute("UPDATE usage_day SET credits = credits + 1", [])
        .unwrap();
    assert!(
        !billing
            .billing()
            .receipts()
            .statement(ACCOUNT)
            .unwrap()
            .adds_up()
    );
    billing.shut_down();
}
