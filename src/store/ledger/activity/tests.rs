//! An index of the account serves the queries of the pages, even among a hundred thousand other
//! rows; and the aggregates equal the sum of the entries.

use super::*;
use crate::store::ledger::index::create_for_test;
use crate::store::ledger::spend_totals::{HOUR_MS, MAX_CREDITS_SUM, MAX_TOKENS_COUNTED};
use crate::store::ledger::{Ending, EndingDetail, IngestEvent};
use llm_protocol::usage::Usage;
use rusqlite::{Connection, StatementStatus};

const ACCOUNT: &str = "acct_a";
const NOW: i64 = 1_800_000_000_000;
const ROWS: i64 = 100_000;

fn ending(
    request: &str,
    at_ms: i64,
    outcome: RequestOutcome,
    usage: Usage,
    conversation: Option<&str>,
) -> Ending {
    let plain = Ending::in_test(request, ACCOUNT, at_ms, outcome);
    let conversation = conversation.map(ToOwned::to_owned);
    Ending {
        paid: Micro::new(500_000),
        detail: EndingDetail {
            usage,
            conversation,
            ..plain.detail
        },
        ..plain
    }
}

fn opened(dir: &std::path::Path, credits: i64) -> Ledger {
    let ledger = Ledger::open(dir).unwrap();
    ledger.open_account(ACCOUNT, None, NOW).unwrap();
    let grant = super::super::Posting {
        kind: "grant",
        reference: "first",
        account: ACCOUNT,
        d_paid: Micro::new(credits * 1_000_000),
        d_trial: Micro::ZERO,
        at_ms: NOW,
    };
    assert!(ledger.post(&grant).unwrap());
    ledger
}

#[test]
fn the_sums_beside_the_entries_are_what_was_taken_once_for_each_request() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = opened(dir.path(), 1);
    let usage = Usage {
        input: 10,
        cache_read: 30,
        output: 5,
        ..Usage::default()
    };
    let endings = [
        ending("req_a", NOW, RequestOutcome::Completed, usage, Some("c1")),
        ending(
            "req_b",
            NOW + HOUR_MS,
            RequestOutcome::Completed,
            usage,
            Some("c1"),
        ),
        // The account has no credits left: the part it cannot cover is not spent.
        ending(
            "req_c",
            NOW + HOUR_MS,
            RequestOutcome::ClientLeft,
            usage,
            Some("c2"),
        ),
        // Costs nothing, and is not a turn.
        Ending {
            paid: Micro::ZERO,
            ..ending("req_d", NOW, RequestOutcome::VendorCut, usage, Some("c1"))
        },
    ];
    for _ in 0..2 {
        let done: Vec<_> = endings
            .iter()
            .map(|ending| IngestEvent::Ended(Box::new(ending.clone()), None))
            .collect();
        ledger.enter_store_events(&done).unwrap();
        let pairs: Vec<_> = endings
            .iter()
            .map(|ending| (ending, Default::default()))
            .collect();
        ledger.enter_endings(&pairs, "").unwrap();
    }
    let spent = ledger.hourly_spend(ACCOUNT, 0).unwrap();
    let shown: Vec<_> = spent
        .iter()
        .map(|spent| (spent.hour - NOW / HOUR_MS, spent.sum))
        .collect();
    let sum = |responses, credits, times: u64| SpendTotals {
        responses,
        credits: Micro::new(credits),
        input: 40 * times,
        cache_read: 30 * times,
        output: 5 * times,
    };
    assert_eq!(shown, [(0, sum(1, 500_000, 1)), (1, sum(2, 500_000, 2))]);
    assert!(
        ledger
            .hourly_spend(ACCOUNT, NOW / HOUR_MS + 2)
            .unwrap()
            .is_empty()
    );
    assert!(
        ledger.hourly_spend("acct_b", 0).unwrap().is_empty(),
        "a stranger sees nothing"
    );

    let conversations = ledger.conversations(ACCOUNT, None, 9).unwrap();
    let ids: Vec<_> = conversations
        .iter()
        .map(|found| (found.id.as_str(), found.sum))
        .collect();
    assert_eq!(ids, [("c2", sum(1, 0, 1)), ("c1", sum(2, 1_000_000, 2))]);
    assert_eq!(
        (conversations[1].began_ms, conversations[1].last_ms),
        (NOW, NOW + HOUR_MS)
    );
    let first = &conversations[0];
    let older = ledger
        .conversations(ACCOUNT, Some((first.last_ms, &first.id)), 9)
        .unwrap();
    assert_eq!(older, conversations[1..]);
    assert_eq!(
        ledger.conversation(ACCOUNT, "c1").unwrap().as_ref(),
        Some(&conversations[1])
    );
    assert!(ledger.conversation("acct_b", "c1").unwrap().is_none());
    assert_eq!(ledger.last_ending_seq(ACCOUNT).unwrap(), 5);
    assert_eq!(ledger.last_ending_seq("acct_b").unwrap(), 0);
}

#[test]
fn a_vendor_that_counts_nonsense_stops_no_settler() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = opened(dir.path(), 10);
    let usage = Usage {
        input: u64::MAX,
        cache_read: u64::MAX,
        output: u64::MAX,
        ..Usage::default()
    };
    let largest: Vec<_> = (0..4)
        .map(|n| Ending {
            paid: Micro::new(1_000_000),
            ..ending(
                &format!("req_{n}"),
                NOW,
                RequestOutcome::Completed,
                usage,
                Some("c"),
            )
        })
        .collect();
    let pairs: Vec<_> = largest
        .iter()
        .map(|ending| (ending, Default::default()))
        .collect();
    assert_eq!(ledger.enter_endings(&pairs, "").unwrap(), 4);
    let spent = ledger.hourly_spend(ACCOUNT, 0).unwrap();
    assert_eq!(spent[0].sum.input, 4 * MAX_TOKENS_COUNTED);
    // At the limit, one more ending changes no total, and is still entered.
    Connection::open(dir.path().join("index.db"))
        .unwrap()
        .execute(
            "UPDATE usage_hour SET input = 1 << 62, credits = 9007199254740991",
            [],
        )
        .unwrap();
    let one = ending("req_more", NOW, RequestOutcome::Completed, usage, None);
    assert_eq!(
        ledger
            .enter_endings(&[(&one, Default::default())], "")
            .unwrap(),
        1
    );
    let sum = ledger.hourly_spend(ACCOUNT, 0).unwrap()[0].sum;
    assert_eq!((sum.input, sum.credits.get()), (1 << 44, MAX_CREDITS_SUM));
}

#[test]
fn rows_are_found_by_every_filter_and_pages_neither_repeat_nor_leave_out() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = opened(dir.path(), 100);
    let mut endings = Vec::new();
    for n in 0..30_i64 {
        // Three endings at each moment, so that a page can end within one.
        let outcome = RequestOutcome::ALL[usize::try_from(n).unwrap() % 7];
        let mut one = ending(
            &format!("req_{n:02}"),
            NOW + n / 3,
            outcome,
            Usage::default(),
            Some("c"),
        );
        one.detail.model = format!("m{}", n % 2);
        one.detail.key_id = format!("key_{}", n % 5);
        endings.push(one);
    }
    // Entered late, as after a crash: the oldest by time are the last by position.
    endings.rotate_left(3);
    let pairs: Vec<_> = endings
        .iter()
        .map(|ending| (ending, Default::default()))
        .collect();
    ledger.enter_endings(&pairs, "").unwrap();
    let all = |filter: &ActivityFilter, page: u32| {
        let mut found: Vec<LedgerEntry> = Vec::new();
        loop {
            let before = found.last().map(|last| ActivityCursor {
                at_ms: last.at_ms,
                seq: last.seq,
            });
            let rows = ledger.endings(ACCOUNT, filter, before, page).unwrap();
            if rows.is_empty() {
                return found;
            }
            found.extend(rows);
        }
    };
    let every = all(&ActivityFilter::default(), 4);
    assert_eq!(every.len(), 30);
    assert!(every.is_sorted_by(|a, b| (a.at_ms, a.seq) > (b.at_ms, b.seq)));
    let fits = |filter: &ActivityFilter, ending: &Ending| {
        let detail = &ending.detail;
        filter
            .model
            .as_ref()
            .is_none_or(|model| *model == detail.model)
            && filter
                .key_id
                .as_ref()
                .is_none_or(|key| *key == detail.key_id)
            && filter
                .outcome
                .is_none_or(|outcome| outcome == detail.outcome)
            && filter.from_ms.is_none_or(|from| from <= ending.at_ms)
            && filter.to_ms.is_none_or(|to| ending.at_ms < to)
    };
    for filter in filters(NOW + 3, NOW + 7) {
        let found: Vec<_> = all(&filter, 2)
            .into_iter()
            .map(|entry| entry.reference)
            .collect();
        let mut expected: Vec<_> = endings
            .iter()
            .filter(|ending| fits(&filter, ending))
            .collect();
        expected.sort_by_key(|ending| std::cmp::Reverse(ending.at_ms));
        assert_eq!(found.len(), expected.len(), "{filter:?}");
        assert!(
            expected
                .iter()
                .all(|ending| found.contains(&ending.request_id)),
            "{filter:?}"
        );
        assert!(
            ledger
                .endings("acct_b", &filter, None, 9)
                .unwrap()
                .is_empty(),
            "a stranger sees nothing"
        );
    }
}

/// Returns every combination of fields.
fn filters(from_ms: i64, to_ms: i64) -> Vec<ActivityFilter> {
    let outcomes = [
        None,
        Some(RequestOutcome::Completed),
        Some(RequestOutcome::VendorCut),
    ];
    let mut filters = Vec::new();
    for bits in 0..32_u32 {
        let has = |bit: u32| bits & (1 << bit) != 0;
        filters.extend(outcomes.map(|outcome| ActivityFilter {
            model: has(0).then(|| "m1".to_owned()),
            key_id: has(1).then(|| "key_1".to_owned()),
            outcome,
            conversation: has(2).then(|| "c".to_owned()),
            from_ms: has(3).then_some(from_ms),
            to_ms: has(4).then_some(to_ms),
        }));
    }
    filters
}

/// Creates a large index; most of its rows belong to one account.
fn large(dir: &std::path::Path) -> Connection {
    let connection = create_for_test(dir);
    connection
        .execute_batch(&format!(
            "PRAGMA synchronous = OFF;
             INSERT INTO account VALUES (1, 'acct_a'), (2, 'acct_b');
             INSERT INTO model WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 9)
               SELECT i, 'm' || i FROM n;
             INSERT INTO api_key SELECT id, 'key_' || id FROM model;
             INSERT INTO outcome VALUES (1, 'vendor_cut');
             INSERT INTO activity (account, at, seq, kind, model, api_key, outcome, conversation, flags)
             WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {ROWS})
             SELECT iif(i % 10, 1, 2), {NOW} + i * 1000, i, 0, i % 5, i % 7, i % 1000 = 0, iif(i % 100 = 1, 1, 2), 0 FROM n;
             INSERT INTO conversation SELECT account, 'c' || seq, seq + 2, at, at, 1, 0, 0, 0, 0 FROM activity;
             INSERT INTO conversation VALUES (1, 'c', 1, {NOW}, {NOW}, 1, 0, 0, 0, 0), (1, 'd', 2, {NOW}, {NOW}, 1, 0, 0, 0, 0);"
        ))
        .unwrap();
    connection
}

#[test]
fn no_page_reads_the_whole_ledger() {
    let dir = tempfile::tempdir().unwrap();
    let connection = large(dir.path());
    let mut questions: Vec<(String, Vec<Box<dyn ToSql>>)> = vec![
        (
            LAST_ENTRIES.into(),
            vec![Box::new(1), Box::new(i64::MAX), Box::new(50)],
        ),
        (
            LAST_ENDINGS.into(),
            vec![Box::new(1), Box::new(i64::MAX), Box::new(50)],
        ),
        (
            CONVERSATIONS.into(),
            vec![Box::new(1), Box::new(i64::MAX), Box::new(""), Box::new(50)],
        ),
        (CONVERSATION.into(), vec![Box::new(1), Box::new("c7")]),
    ];
    let to_ms = NOW + ROWS / 2 * 1000;
    let middle = Some(ActivityCursor {
        at_ms: to_ms,
        seq: ROWS / 2,
    });
    questions.extend(filters(NOW, to_ms).iter().map(|filter| {
        endings_sql(&connection, ACCOUNT, filter, middle, 51)
            .unwrap()
            .unwrap()
    }));
    for (sql, values) in questions {
        let mut statement = connection
            .prepare(&format!("EXPLAIN QUERY PLAN {sql}"))
            .unwrap();
        let plan = statement
            .query_map(params_from_iter(&values), |row| row.get::<_, String>(3))
            .unwrap();
        let plan = plan.collect::<Result<Vec<_>, _>>().unwrap().join("; ");
        assert!(
            plan.starts_with("SEARCH") && !plan.contains("SCAN") && !plan.contains("TEMP"),
            "{sql}: {plan}"
        );

        let mut statement = connection.prepare(&sql).unwrap();
        statement
            .query_map(params_from_iter(&values), |_| Ok(()))
            .unwrap()
            .for_each(drop);
        let status = |what| statement.get_status(what);
        assert_eq!(
            (
                status(StatementStatus::FullscanStep),
                status(StatementStatus::Sort)
            ),
            (0, 0),
            "{sql}: {plan}"
        );
    }
}

#[test]
fn one_filter_reads_no_more_than_its_page() {
    let dir = tempfile::tempdir().unwrap();
    let connection = large(dir.path());
    let single = [
        ActivityFilter::default(),
        ActivityFilter {
            model: Some("m1".into()),
            ..ActivityFilter::default()
        },
        ActivityFilter {
            key_id: Some("key_1".into()),
            ..ActivityFilter::default()
        },
        ActivityFilter {
            outcome: Some(RequestOutcome::VendorCut),
            ..ActivityFilter::default()
        },
        ActivityFilter {
            conversation: Some("c".into()),
            ..ActivityFilter::default()
        },
        ActivityFilter {
            from_ms: Some(NOW),
            to_ms: Some(NOW + 5_000_000),
            ..ActivityFilter::default()
        },
        // A model that no row has.
        ActivityFilter {
            model: Some("m9".into()),
            ..ActivityFilter::default()
        },
        ActivityFilter {
            key_id: Some("key_9".into()),
            ..ActivityFilter::default()
        },
    ];
    let steps = |filter: &ActivityFilter| {
        let query = endings_sql(&connection, ACCOUNT, filter, None, 51);
        let (sql, values) = query.unwrap().unwrap();
        let mut statement = connection.prepare(&sql).unwrap();
        statement
            .query_map(params_from_iter(&values), |_| Ok(()))
            .unwrap()
            .for_each(drop);
        statement.get_status(StatementStatus::VmStep)
    };
    for filter in &single {
        // About twenty steps of the virtual machine per row; scanning the whole account would be
        // more than a million.
        assert!(steps(filter) < 3_000, "{filter:?}");
    }
    // By time the same query reads the whole account, so the test can detect it.
    let by_time =
        "SELECT seq FROM activity NOT INDEXED WHERE account = 1 AND kind < 2 AND model = 9
                   AND at < ?1 ORDER BY at DESC, seq DESC LIMIT 51";
    let mut statement = connection.prepare(by_time).unwrap();
    assert_eq!(
        statement.query_map([i64::MAX], |_| Ok(())).unwrap().count(),
        0
    );
    assert!(statement.get_status(StatementStatus::VmStep) > 100_000);
}

#[test]
fn a_ledger_that_had_no_sums_gets_those_of_its_debits() {
    let dir = tempfile::tempdir().unwrap();
    let usage = Usage {
        input: 10,
        cache_read: 30,
        cache_write_1h: 2,
        output: 5,
        ..Usage::default()
    };
    let before = {
        let ledger = opened(dir.path(), 10);
        let endings = [
            ending("req_a", NOW, RequestOutcome::Completed, usage, None),
            ending(
                "req_b",
                NOW + HOUR_MS,
                RequestOutcome::ClientLeft,
                usage,
                None,
            ),
            Ending {
                paid: Micro::ZERO,
                ..ending(
                    "req_c",
                    NOW,
                    RequestOutcome::VendorError,
                    Usage::default(),
                    None,
                )
            },
        ];
        let pairs: Vec<_> = endings
            .iter()
            .map(|ending| (ending, Default::default()))
            .collect();
        assert_eq!(ledger.enter_endings(&pairs, "").unwrap(), 3);
        ledger.hourly_spend(ACCOUNT, 0).unwrap()
    };
    // Version 5 added sums, which `index.db` has today.
    drop(Ledger::write_old_version(dir.path(), 4));
    std::fs::remove_file(dir.path().join("index.db")).unwrap();
    let ledger = Ledger::open(dir.path()).unwrap();
    assert_eq!(
        (before.len(), ledger.hourly_spend(ACCOUNT, 0).unwrap()),
        (2, before)
    );
    let filter = ActivityFilter {
        model: Some("beta-5.2".into()),
        ..ActivityFilter::default()
    };
    assert_eq!(ledger.endings(ACCOUNT, &filter, None, 9).unwrap().len(), 3);
}
