//! A reader finds the same wherever `index.db` ends, writes nothing, and goes on when the file is
//! written or replaced by others. What it does not find, it counts.

use super::*;
use crate::index::create_for_test;
use crate::index::tests::{ending, enter, opened};
use crate::{
    ActivityCursor, ActivityFilter, Ending, EndingDetail, Ledger, RequestOutcome, UsageInterval,
    UsageQuery, UsageSpan,
};
use credits::money::{CreditSplit, Micro};
use llm_protocol::usage::Usage;
use proptest::prelude::*;
use std::fmt::Debug;

const ACCOUNTS: [&str; 4] = ["acct_a", "acct_b", "acct_c", "acct_none"];
const DAY: i64 = 1_800_000_000_000 / 86_400_000;

/// All that pages show, by question.
fn answers(ledger: &Ledger) -> Vec<String> {
    let mut answers = Vec::new();
    let mut add =
        |question: &str, answer: &dyn Debug| answers.push(format!("{question}: {answer:?}"));
    let days = ledger.pages().daily_totals(DAY - 2, DAY + 9).unwrap();
    add("daily totals", &days);
    add(
        "implausible",
        &seqs(&ledger.pages().implausible_entries(99).unwrap()),
    );
    let accounts = ACCOUNTS.map(ToOwned::to_owned);
    add(
        "spend",
        &ledger.pages().spend_since(&accounts, DAY + 1).unwrap(),
    );
    for account in ACCOUNTS {
        for endings_only in [false, true] {
            let entries = ledger
                .rows()
                .entries(account, endings_only, None, 999)
                .unwrap();
            add("entries", &seqs(&entries));
            let later = ledger
                .rows()
                .entries(account, endings_only, Some(30), 9)
                .unwrap();
            add("entries below", &seqs(&later));
        }
        add(
            "last ending",
            &ledger.pages().last_ending_seq(account).unwrap(),
        );
        add("hours", &ledger.pages().hourly_spend(account, 0).unwrap());
        add(
            "sums",
            &ledger.pages().balance_change_sums(account).unwrap(),
        );
        let end = ActivityCursor {
            at_ms: i64::MAX,
            seq: 0,
        };
        let postings = ledger.pages().postings(account, 0, end, 9).unwrap();
        add("postings", &seqs(&postings));
        for filter in filters() {
            add(&format!("{filter:?}"), &pages(ledger, account, &filter));
        }
        let mut before: Option<(i64, String)> = None;
        loop {
            let cursor = before.as_ref().map(|(at_ms, id)| (*at_ms, id.as_str()));
            let page = ledger.pages().conversations(account, cursor, 4).unwrap();
            add("conversations", &page);
            let Some(last) = page.last() else { break };
            before = Some((last.last_ms, last.id.clone()));
        }
        for id in ["0", "3", "none"] {
            add(
                "conversation",
                &ledger.pages().conversation(account, id).unwrap(),
            );
        }
        for query in usage_queries() {
            let rows = ledger.pages().usage(account, &query, None, 999).unwrap();
            if let Some(first) = rows.first() {
                let later = ledger
                    .pages()
                    .usage(account, &query, Some(first.cursor()), 3);
                add("usage, next page", &later.unwrap());
            }
            add(&format!("{query:?}"), &rows);
        }
    }
    answers
}

fn seqs(entries: &[crate::LedgerEntry]) -> Vec<i64> {
    entries.iter().map(|entry| entry.seq).collect()
}

/// All pages of a list, of three rows each.
fn pages(ledger: &Ledger, account: &str, filter: &ActivityFilter) -> Vec<i64> {
    let mut found = Vec::new();
    let mut before = None;
    loop {
        let page = ledger.pages().endings(account, filter, before, 3).unwrap();
        let Some(last) = page.last() else {
            return found;
        };
        before = Some(ActivityCursor {
            at_ms: last.at_ms,
            seq: last.seq,
        });
        found.extend(seqs(&page));
    }
}

fn filters() -> Vec<ActivityFilter> {
    let all = ActivityFilter::default;
    let model = Some("m1".to_owned());
    let key_id = Some("key_1".to_owned());
    let conversation = Some("1".to_owned());
    let from_ms = Some(DAY * 86_400_000 + 50_000_000);
    vec![
        all(),
        ActivityFilter {
            model: model.clone(),
            ..all()
        },
        ActivityFilter {
            key_id: key_id.clone(),
            ..all()
        },
        ActivityFilter {
            model: model.clone(),
            key_id,
            from_ms,
            ..all()
        },
        ActivityFilter {
            model,
            outcome: Some(RequestOutcome::VendorCut),
            ..all()
        },
        ActivityFilter {
            outcome: Some(RequestOutcome::Completed),
            to_ms: from_ms,
            ..all()
        },
        ActivityFilter {
            conversation,
            ..all()
        },
        ActivityFilter {
            model: Some("none".into()),
            ..all()
        },
    ]
}

fn usage_queries() -> Vec<UsageQuery> {
    let days = UsageSpan::Days(0, i64::MAX);
    let hours = UsageSpan::Hours((DAY - 1) * 24, (DAY + 2) * 24);
    let mut queries = Vec::new();
    for span in [days, hours] {
        for interval in [None, Some(UsageInterval::Unit), Some(UsageInterval::Month)] {
            for (by_model, by_key) in [(false, false), (true, true)] {
                queries.push(UsageQuery {
                    interval,
                    by_model,
                    by_key,
                    ..UsageQuery::new(span)
                });
            }
        }
        queries.push(UsageQuery {
            model: Some("m1".into()),
            key_id: Some("key_1".into()),
            ..UsageQuery::new(span)
        });
    }
    queries
}

/// What an ending is made of: account, time, outcome, model, key, conversation, and whether the
/// vendor counted nonsense.
type EndingSeed = (usize, i64, usize, u8, u8, Option<u8>, bool);

fn seeds() -> impl Strategy<Value = Vec<EndingSeed>> {
    let seed = (
        0..3_usize,
        -90_000_000..200_000_000_i64,
        0..RequestOutcome::ALL.len(),
        0..3_u8,
        0..3_u8,
        proptest::option::of(0..6_u8),
        proptest::bool::weighted(0.2),
    );
    proptest::collection::vec(seed, 1..90)
}

fn ending_of(number: usize, seed: &EndingSeed) -> Ending {
    let (account, at_ms, outcome, model, key, conversation, is_nonsense) = *seed;
    let plain = ending(number);
    let tokens = if is_nonsense { u64::MAX } else { 100 };
    let outcome = RequestOutcome::ALL[outcome];
    let made = Ending {
        account: ACCOUNTS[account].into(),
        at_ms: DAY * 86_400_000 + at_ms,
        paid: Micro::ZERO,
        detail: EndingDetail {
            outcome,
            model: format!("m{model}"),
            key_id: format!("key_{key}"),
            conversation: conversation.map(|id| id.to_string()),
            implausible: is_nonsense,
            usage: Usage {
                input: tokens,
                cache_read: tokens / 2,
                output: 7,
                ..Usage::default()
            },
            ..plain.detail
        },
        ..plain
    };
    let is_free = made.kind() == "void";
    Ending {
        paid: Micro::new(if is_free { 0 } else { 1_000 }),
        ..made
    }
}

fn enter_seeds(ledger: &Ledger, seeds: &[EndingSeed]) {
    let endings: Vec<_> = seeds
        .iter()
        .enumerate()
        .map(|(number, seed)| ending_of(number, seed))
        .collect();
    ledger.enter_new(&endings);
}

fn flush(ledger: &Ledger) {
    while ledger.index().catch_up_index(MAX_INDEX_BATCH).unwrap() > 0 {}
    assert_eq!(ledger.index().index_backlog().unwrap(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn every_question_has_one_answer_wherever_the_file_ends(seeds in seeds(), cut in 0..94_u32) {
        let dir = tempfile::tempdir().unwrap();
        let ledger = opened(dir.path());
        enter_seeds(&ledger, &seeds);
        flush(&ledger);
        let whole = answers(&ledger);
        clear(&create_for_test(dir.path())).unwrap();
        prop_assert_eq!(&answers(&ledger), &whole, "all in memory");
        for step in [cut, 3, 1] {
            if step > 0 {
                ledger.index().catch_up_index(step).unwrap();
            }
            prop_assert_eq!(&answers(&ledger), &whole, "{} in memory", ledger.index().index_backlog().unwrap());
            prop_assert_eq!(ledger.index().index_lag(), 0);
        }
    }
}

#[test]
fn sums_at_their_limits_are_the_same_in_memory_and_in_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = opened(dir.path());
    let seed: EndingSeed = (0, 0, 0, 1, 1, Some(1), true);
    enter_seeds(&ledger, &[seed]);
    flush(&ledger);
    let index = create_for_test(dir.path());
    for table in ["usage_hour", "usage_day", "usage_total", "conversation"] {
        let limits = "input = 1 << 62, cache_read = 1 << 62, output = (1 << 44) - 3,
                      credits = 9007199254740991";
        index
            .execute(&format!("UPDATE {table} SET {limits}"), [])
            .unwrap();
    }
    let one = ending_of(7, &seed);
    ledger
        .enter_endings(&[(&one, CreditSplit::ZERO)], "")
        .unwrap();
    let before = answers(&ledger);
    assert_eq!(ledger.index().index_backlog().unwrap(), 1);
    flush(&ledger);
    assert_eq!(answers(&ledger), before);
}

#[test]
fn a_reader_writes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = opened(dir.path());
    enter(&ledger, 0..90);
    flush(&ledger);
    enter(&ledger, 90..200);
    let bytes =
        || ["index.db", "index.db-wal"].map(|name| std::fs::read(dir.path().join(name)).unwrap());
    let before = bytes();
    let found = answers(&ledger);
    assert_eq!(answers(&ledger), found);
    assert!(bytes() == before, "a read has changed index.db or its log");
    assert_eq!(
        (
            ledger.index().index_backlog().unwrap(),
            ledger.index().index_lag()
        ),
        (110, 0)
    );
    // The files show a write, so that the test can detect it.
    flush(&ledger);
    assert!(bytes() != before);
    assert_eq!(answers(&ledger), found);
}

#[test]
fn readers_see_each_entry_while_two_processes_write_in_turns() {
    let dir = tempfile::tempdir().unwrap();
    let (one, other) = (opened(dir.path()), Ledger::open(dir.path()).unwrap());
    for round in 0..8 {
        enter(&one, round * 25..round * 25 + 25);
        let (writer, reader) = match round % 2 {
            0 => (&one, &other),
            _ => (&other, &one),
        };
        let found = answers(reader);
        assert_eq!(answers(writer), found);
        assert!(writer.index().catch_up_index(20).unwrap() > 0);
        assert_eq!(answers(reader), found);
        assert_eq!(answers(writer), found);
    }
    flush(&other);
    assert_eq!(one.index().find_wrong_aggregates(9).unwrap(), []);
}

#[test]
fn a_file_that_is_replaced_under_a_reader_is_followed() {
    let dir = tempfile::tempdir().unwrap();
    let serving = opened(dir.path());
    enter(&serving, 0..120);
    flush(&serving);
    enter(&serving, 120..150);
    let found = answers(&serving);
    // Another process sets the file aside, and has written only a part of the new one.
    for name in ["index.db-wal", "index.db-shm", "index.db"] {
        std::fs::remove_file(dir.path().join(name)).unwrap();
    }
    let other = Ledger::open(dir.path()).unwrap();
    assert_eq!(other.index().catch_up_index(50).unwrap(), 50);
    assert_eq!(answers(&serving), found);
    assert_eq!(serving.index().index_backlog().unwrap(), 103);
    assert_eq!(answers(&other), found);
    // A rebuild in the same file, while the reader has a tail.
    create_for_test(dir.path())
        .execute_batch("UPDATE conversation SET turns = 77; UPDATE usage_day SET credits = 1")
        .unwrap();
    assert_ne!(answers(&serving), found);
    assert!(!other.index().reindex(9, &mut |_| ()).unwrap().is_empty());
    assert_eq!(answers(&serving), found);
}

#[test]
fn a_tail_has_a_limit_and_a_reader_says_what_it_lacks() {
    let dir = tempfile::tempdir().unwrap();
    let mut ledger = opened(dir.path());
    ledger.index.tail_limits = TailLimits {
        entries: 100,
        entries_per_read: 40,
    };
    let listed = |ledger: &Ledger| {
        let of = |account| {
            ledger
                .rows()
                .entries(account, false, None, 999)
                .unwrap()
                .len()
        };
        ["acct_a", "acct_b", "acct_c"].map(of)
    };
    // At the limit: each read adds its part. The first one adds 40 entries.
    enter(&ledger, 0..97);
    assert_eq!(ledger.index().index_backlog().unwrap(), 100);
    assert_eq!(ledger.pages().last_ending_seq("acct_a").unwrap(), 40);
    assert_eq!(
        (ledger.index().index_lag(), ledger.index().index_lag()),
        (20, 0)
    );
    assert_eq!(listed(&ledger).iter().sum::<usize>(), 100);
    // What does not fit is missing, and what is there stays.
    enter(&ledger, 97..100);
    assert_eq!(ledger.index().index_lag(), 3);
    assert_eq!(listed(&ledger).iter().sum::<usize>(), 100);
    // A process that begins with more than fits reads the file alone.
    let mut other = Ledger::open(dir.path()).unwrap();
    other.index.tail_limits = ledger.index.tail_limits;
    assert_eq!((other.index().index_lag(), listed(&other)), (103, [0; 3]));
    assert_eq!(ledger.index().catch_up_index(3).unwrap(), 3);
    for _ in 0..2 {
        other.index().index_lag();
    }
    assert_eq!(other.index().index_lag(), 0);
    assert_eq!(listed(&other).iter().sum::<usize>(), 103);
}

#[test]
fn a_reader_does_not_wait_for_another_process_that_writes() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = opened(dir.path());
    enter(&ledger, 0..30);
    flush(&ledger);
    let mut other = create_for_test(dir.path());
    let held = sqlite::begin_write(&mut other).unwrap();
    enter(&ledger, 30..60);
    assert!(
        ledger.index().catch_up_index(99).is_err(),
        "the file is locked"
    );
    let found = ledger.pages().last_ending_seq("acct_a").unwrap();
    assert_eq!((found, ledger.index().index_lag()), (61, 0));
    drop(held);
}

#[test]
fn a_reader_without_a_tail_reads_the_file_and_says_what_it_lacks() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = opened(dir.path());
    enter(&ledger, 0..30);
    flush(&ledger);
    enter(&ledger, 30..60);
    let last = ChainHead {
        seq: 64,
        hash: Vec::new(),
    };
    let unreadable = |_: &ChainHead, _| Err(StoreError::Unusable("no entries".into()));
    let read = |tables: IndexTables<'_>| Ok((tables.has_base(), tables.last_seq()?));
    let found = ledger.index.read_newest("read", &last, &unreadable, read);
    assert_eq!(found.unwrap(), (false, 33));
    // The next read rebuilds the tail.
    assert_eq!(ledger.pages().last_ending_seq("acct_a").unwrap(), 61);
    assert!(IndexTail::open(&dir.path().join("none/index.db"), TailLimits::DEFAULT).is_err());
    assert!(!dir.path().join("none").exists());
}
