//! An index of the account serves the queries of the pages, even among a hundred thousand other
//! rows; and the aggregates equal the sum of the entries.

use super::*;
use crate::Ledger;
use crate::entry::spend_totals::{HOUR_MS, MAX_CREDITS_SUM, MAX_TOKENS_COUNTED};
use crate::fixture::query_plan;
use crate::index::{create_for_test, create_tail_for_test};
use crate::{Ending, EndingDetail, IngestEvent, RequestOutcome};
use llm_protocol::usage::Usage;
use rusqlite::types::Value;
use rusqlite::{Connection, StatementStatus, params_from_iter};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

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
    ledger.open_funded(ACCOUNT, credits * 1_000_000, NOW);
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
        let events: Vec<_> = done.iter().collect();
        ledger.changes().enter_store_events(&events).unwrap();
        let pairs: Vec<_> = endings
            .iter()
            .map(|ending| (ending, Default::default()))
            .collect();
        ledger.enter_endings(&pairs, "").unwrap();
    }
    let spent = ledger.pages().hourly_spend(ACCOUNT, 0).unwrap();
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
            .pages()
            .hourly_spend(ACCOUNT, NOW / HOUR_MS + 2)
            .unwrap()
            .is_empty()
    );
    assert!(
        ledger.pages().hourly_spend("acct_b", 0).unwrap().is_empty(),
        "a stranger sees nothing"
    );

    let conversations = ledger.pages().conversations(ACCOUNT, None, 9).unwrap();
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
        .pages()
        .conversations(ACCOUNT, Some((first.last_ms, &first.id)), 9)
        .unwrap();
    assert_eq!(older, conversations[1..]);
    assert_eq!(
        ledger.pages().conversation(ACCOUNT, "c1").unwrap().as_ref(),
        Some(&conversations[1])
    );
    assert!(
        ledger
            .pages()
            .conversation("acct_b", "c1")
            .unwrap()
            .is_none()
    );
    let owner = |id| ledger.pages().account_of_conversation(id).unwrap();
    assert_eq!((owner("c1").as_deref(), owner("c9")), (Some(ACCOUNT), None));
    assert_eq!(ledger.pages().last_ending_seq(ACCOUNT).unwrap(), 5);
    assert_eq!(ledger.pages().last_ending_seq("acct_b").unwrap(), 0);
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
    let spent = ledger.pages().hourly_spend(ACCOUNT, 0).unwrap();
    assert_eq!(spent[0].sum.input, 4 * MAX_TOKENS_COUNTED);
    // At the limit, one more ending changes no total, and is still entered.
    assert_eq!(ledger.index().catch_up_index(9).unwrap(), 5);
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
    let sum = ledger.pages().hourly_spend(ACCOUNT, 0).unwrap()[0].sum;
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
            let rows = ledger
                .pages()
                .endings(ACCOUNT, filter, before, page)
                .unwrap();
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
                .pages()
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
             SELECT iif(i % 10, 1, 2), {NOW} + i * 1000, i, 0, i % 5, i % 7, i % 1000 = 3, iif(i % 100 = 1, 1, 2), 0 FROM n;
             UPDATE activity SET model = 8 WHERE seq = 11;
             INSERT INTO usage_hour SELECT account, at / {HOUR_MS}, model, api_key, 0, count(*), 0, 0, 0, 0, 0
               FROM activity GROUP BY 1, 2, 3, 4;
             INSERT INTO conversation SELECT account, seq + 2, 'c' || seq, at, at, 1, 0, 0, 0, 0 FROM activity;
             INSERT INTO conversation VALUES (1, 1, 'c', {NOW}, {NOW}, 1, 0, 0, 0, 0), (1, 2, 'd', {NOW}, {NOW}, 1, 0, 0, 0, 0);"
        ))
        .unwrap();
    connection
}

#[test]
fn no_page_reads_the_whole_ledger() {
    let dir = tempfile::tempdir().unwrap();
    let index = large(dir.path());
    let tail = create_tail_for_test(dir.path());
    for tables in [IndexTables::new(&index), IndexTables::with_base(&tail)] {
        for (sql, values) in questions(tables) {
            searches(tables, &sql, &values);
        }
    }
}

/// Every query of a page, with values.
fn questions(tables: IndexTables<'_>) -> Vec<(String, Vec<Value>)> {
    let entries = || vec![1.into(), i64::MAX.into(), 50.into()];
    let mut questions = vec![
        (entries_sql(tables, false), entries()),
        (entries_sql(tables, true), entries()),
        (implausible_sql(tables), vec![50.into()]),
        (
            conversations_sql(tables),
            vec![1.into(), i64::MAX.into(), String::new().into(), 50.into()],
        ),
        (
            conversation_sql(tables),
            vec![1.into(), "c7".to_owned().into()],
        ),
    ];
    let to_ms = NOW + ROWS / 2 * 1000;
    let middle = ActivityCursor {
        at_ms: to_ms,
        seq: ROWS / 2,
    };
    for filter in filters(NOW, to_ms) {
        let query = EndingsQuery::new(tables, ACCOUNT, &filter, Some(middle));
        let query = query.unwrap().unwrap();
        let mut sql = vec![query.rows_sql(tables, NOW, middle, 51)];
        if query.walks_hours() {
            sql.push(query.hours_sql(tables));
        }
        questions.extend(sql.into_iter().map(|(sql, values)| {
            let values = values.into_iter().map(Value::from);
            (sql, values.collect())
        }));
    }
    questions
}

fn searches(tables: IndexTables<'_>, sql: &str, values: &[Value]) {
    let plan = query_plan(tables.connection(), sql, params_from_iter(values));
    // An index of a few rows is read from its end.
    let is_search = !plan.contains("SCAN") || plan.contains("activity_implausible");
    assert!(
        plan.contains("SEARCH") || plan.contains("activity_implausible"),
        "{sql}: {plan}"
    );
    assert!(is_search && !plan.contains("TEMP"), "{sql}: {plan}");

    let mut statement = tables.connection().prepare(sql).unwrap();
    statement
        .query_map(params_from_iter(values), |_| Ok(()))
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

/// Counts the steps of SQLite's virtual machine on a connection, in hundreds.
fn count_steps(connection: &mut Connection) -> Arc<AtomicU64> {
    let count = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&count);
    let step = move || {
        counter.fetch_add(100, Ordering::Relaxed);
        false
    };
    connection.progress_handler(100, Some(step)).unwrap();
    count
}

#[test]
fn one_filter_reads_no_more_than_its_page() {
    let dir = tempfile::tempdir().unwrap();
    let mut index = large(dir.path());
    let mut tail = create_tail_for_test(dir.path());
    let (index_steps, tail_steps) = (count_steps(&mut index), count_steps(&mut tail));
    let by_model = |model: &str| ActivityFilter {
        model: Some(model.into()),
        ..ActivityFilter::default()
    };
    let by_key = |key: &str| ActivityFilter {
        key_id: Some(key.into()),
        ..ActivityFilter::default()
    };
    // About twenty steps per row, and about ten for a row of an hour; scanning the whole account
    // would be more than a million.
    let (page, all_hours, one_hour) = (10_000, 20_000, 80_000);
    let single = [
        (page, 51, ActivityFilter::default()),
        (page, 51, by_model("m1")),
        (page, 51, by_key("key_1")),
        (
            page,
            51,
            ActivityFilter {
                outcome: Some(RequestOutcome::VendorCut),
                ..ActivityFilter::default()
            },
        ),
        (
            page,
            51,
            ActivityFilter {
                conversation: Some("c".into()),
                ..ActivityFilter::default()
            },
        ),
        (
            page,
            51,
            ActivityFilter {
                from_ms: Some(NOW),
                to_ms: Some(NOW + 5_000_000),
                ..ActivityFilter::default()
            },
        ),
        // A model and a key that no row has, and a model that one row has.
        (all_hours, 0, by_model("m9")),
        (all_hours, 0, by_key("key_9")),
        (one_hour, 1, by_model("m8")),
    ];
    for (tables, count) in [
        (IndexTables::new(&index), &index_steps),
        (IndexTables::with_base(&tail), &tail_steps),
    ] {
        for (limit, rows, filter) in &single {
            let query = EndingsQuery::new(tables, ACCOUNT, filter, None);
            let query = query.unwrap().unwrap();
            let before = count.load(Ordering::Relaxed);
            let found = query.find(tables, 51).unwrap();
            let steps = count.load(Ordering::Relaxed) - before;
            assert_eq!(found.len(), *rows, "{filter:?}");
            assert!(steps < *limit, "{filter:?}: {steps}");
        }
    }
    // By time the same query reads the whole account, so the test can detect it.
    let by_time =
        "SELECT seq FROM activity NOT INDEXED WHERE account = 1 AND kind < 2 AND model = 9
                   AND at < ?1 ORDER BY at DESC, seq DESC LIMIT 51";
    let before = index_steps.load(Ordering::Relaxed);
    let mut statement = index.prepare(by_time).unwrap();
    let found = statement.query_map([i64::MAX], |_| Ok(())).unwrap();
    assert_eq!(found.count(), 0);
    let steps = index_steps.load(Ordering::Relaxed) - before;
    assert!(steps > 100_000, "{steps}");
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
        ledger.pages().hourly_spend(ACCOUNT, 0).unwrap()
    };
    // Version 5 added sums, which `index.db` has today.
    drop(Ledger::write_old_version(dir.path(), 4));
    std::fs::remove_file(dir.path().join("index.db")).unwrap();
    let ledger = Ledger::open(dir.path()).unwrap();
    assert_eq!(
        (
            before.len(),
            ledger.pages().hourly_spend(ACCOUNT, 0).unwrap()
        ),
        (2, before)
    );
    let filter = ActivityFilter {
        model: Some("beta-5.2".into()),
        ..ActivityFilter::default()
    };
    assert_eq!(
        ledger
            .pages()
            .endings(ACCOUNT, &filter, None, 9)
            .unwrap()
            .len(),
        3
    );
}
