//! The sums equal the entries that they are sums of, however a query groups them; a ledger of the
//! version before gets them; and a query reads no other account's rows.

use super::*;
use crate::HOUR_MS;
use crate::Ledger;
use crate::audit::walk::WalkItem;
use crate::fixture::query_plan;
use crate::index::{create_for_test, create_tail_for_test};
use crate::{Ending, EndingDetail, LedgerEntry, RequestOutcome};
use credits::money::CreditSplit;
use llm_protocol::usage::Usage;
use rusqlite::Connection;
use std::path::Path;

const HOUR: i64 = HOUR_MS;
const DAY_HOURS: i64 = 24;
const DAY_MS: i64 = DAY_HOURS * HOUR_MS;

/// 2026-03-29, the day on which clocks in Europe change: a day in UTC has 24 hours all the same.
const DAY: i64 = 20_541;
const ACCOUNTS: [&str; 2] = ["acct_a", "acct_b"];

/// Times around midnight, the end of a month, and the end of a year.
const TIMES: [i64; 8] = [
    DAY * DAY_MS - 1,
    DAY * DAY_MS,
    DAY * DAY_MS + 90 * 60_000,
    (DAY + 1) * DAY_MS - 1,
    (DAY + 1) * DAY_MS,
    // 2026-04-01.
    (DAY + 3) * DAY_MS - 1,
    (DAY + 3) * DAY_MS,
    // 2027-01-01.
    (DAY + 278) * DAY_MS,
];

fn opened(dir: &Path) -> Ledger {
    let ledger = Ledger::open(dir).unwrap();
    // The second account cannot pay for everything.
    for (account, micro) in ACCOUNTS.into_iter().zip([9_000_000_000, 1_000_000]) {
        ledger.open_funded(account, micro, 0);
    }
    ledger
}

fn ending(number: usize) -> Ending {
    let outcome = RequestOutcome::ALL[number % RequestOutcome::ALL.len()];
    let at_ms = TIMES[number * 5 % TIMES.len()];
    let plain = Ending::in_test(
        &format!("req_{number:04}"),
        ACCOUNTS[number % 3 % 2],
        at_ms,
        outcome,
    );
    let is_free = plain.kind() == "void";
    let count = u64::try_from(number).unwrap();
    Ending {
        paid: Micro::new(if is_free { 0 } else { 40_000 + count as i64 }),
        detail: EndingDetail {
            model: format!("m{}", number / 3 % 3),
            key_id: format!("key_{}", number / 9 % 4),
            // Some keys are handed over, and some belong to no member.
            member: (!number.is_multiple_of(5)).then(|| format!("acct_a/acct_{}", number % 2)),
            usage: Usage {
                input: 10 + count,
                cache_read: count % 7,
                output: 5,
                ..Usage::default()
            },
            ..plain.detail
        },
        ..plain
    }
}

/// A ledger with several hundred endings in commits of several sizes, some of them entered late.
fn filled(dir: &Path) -> Ledger {
    let ledger = opened(dir);
    let endings: Vec<_> = (0..400).map(ending).collect();
    for (index, commit) in endings.chunks(37).enumerate() {
        let pairs: Vec<_> = commit
            .iter()
            .map(|ending| (ending, CreditSplit::ZERO))
            .collect();
        assert_eq!(ledger.enter_endings(&pairs, "").unwrap(), pairs.len());
        // Whoever enters a commit again changes no sum.
        if index % 3 == 0 {
            assert_eq!(ledger.enter_endings(&pairs, "").unwrap(), 0);
        }
    }
    ledger
}

fn entries(ledger: &Ledger) -> Vec<LedgerEntry> {
    let mut entries = Vec::new();
    let each = &mut |item| {
        if let WalkItem::Slice(slice) = item {
            entries.extend(slice);
        }
    };
    ledger
        .checks()
        .walk(i64::MIN)
        .unwrap()
        .finish(each)
        .unwrap();
    entries
}

/// The sums of an account's debits, added up one by one.
fn expected(entries: &[LedgerEntry], account: &str, query: &UsageQuery) -> Vec<UsageRow> {
    let mut sums: BTreeMap<(i64, String, String, String), SpendTotals> = BTreeMap::new();
    for entry in entries {
        if entry.kind != "debit" || entry.account != account {
            continue;
        }
        let detail: EndingDetail = serde_json::from_str(&entry.detail).unwrap();
        let (unit, is_inside) = match query.span {
            UsageSpan::Hours(from, to) => {
                let hour = entry.at_ms.div_euclid(HOUR);
                (hour, (from..to).contains(&hour))
            }
            UsageSpan::Days(from, to) => {
                let day = entry.at_ms.div_euclid(DAY_MS);
                (day, (from..to).contains(&day))
            }
        };
        let is_wanted = query.model.as_ref().is_none_or(|it| *it == detail.model)
            && query.key_id.as_ref().is_none_or(|it| *it == detail.key_id)
            && (query.member.is_none() || query.member == detail.member);
        if !is_inside || !is_wanted {
            continue;
        }
        let time = match query.interval {
            None => 0,
            Some(UsageInterval::Unit) => unit,
            Some(UsageInterval::Month) => {
                let at = base::clock::rfc3339(entry.at_ms);
                let number = |range| {
                    at.get::<std::ops::Range<usize>>(range)
                        .unwrap()
                        .parse::<i64>()
                };
                (number(0..4).unwrap() - 1970) * 12 + number(5..7).unwrap() - 1
            }
        };
        let only = |is_wanted: bool, name: String| if is_wanted { name } else { String::new() };
        let group = (
            time,
            only(query.by_model, detail.model),
            only(query.by_key, detail.key_id),
            only(query.by_member, detail.member.unwrap_or_default()),
        );
        let sum = sums.entry(group).or_default();
        *sum = sum.plus(SpendTotals {
            responses: 1,
            credits: Micro::ZERO.minus(entry.change()),
            input: detail.usage.input_total(),
            cache_read: detail.usage.cache_read,
            output: detail.usage.output_total(),
        });
    }
    let row = |((time, model, key_id, member), sum)| UsageRow {
        time,
        model,
        key_id,
        member,
        sum,
    };
    sums.into_iter().map(row).collect()
}

/// Every grouping of every span.
fn queries() -> Vec<UsageQuery> {
    let spans = [
        UsageSpan::Days(0, DAY + 400),
        UsageSpan::Days(DAY, DAY + 1),
        UsageSpan::Days(DAY + 1, DAY + 3),
        UsageSpan::Hours(DAY * DAY_HOURS, DAY * DAY_HOURS + 2),
        UsageSpan::Hours(0, (DAY + 400) * DAY_HOURS),
        UsageSpan::Days(DAY + 3, DAY),
    ];
    let mut queries = Vec::new();
    for span in spans {
        for interval in [None, Some(UsageInterval::Unit), Some(UsageInterval::Month)] {
            for bits in 0..64_u32 {
                let has = |bit: u32| bits & (1 << bit) != 0;
                queries.push(UsageQuery {
                    span,
                    interval,
                    by_model: has(0),
                    by_key: has(1),
                    model: has(2).then(|| "m1".to_owned()),
                    key_id: has(3).then(|| "key_1".to_owned()),
                    by_member: has(4),
                    member: has(5).then(|| "acct_a/acct_1".to_owned()),
                });
            }
        }
    }
    queries
}

#[test]
fn every_grouping_is_the_sum_of_its_entries() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = filled(dir.path());
    let entries = entries(&ledger);
    let mut found = 0;
    for query in queries() {
        for account in ACCOUNTS {
            let rows = ledger
                .pages()
                .usage(account, &query, None, u32::MAX)
                .unwrap();
            assert_eq!(
                rows,
                expected(&entries, account, &query),
                "{account}: {query:?}"
            );
            found += rows.len();
        }
        assert!(
            ledger
                .pages()
                .usage("acct_c", &query, None, 9)
                .unwrap()
                .is_empty(),
            "a stranger sees nothing"
        );
    }
    assert!(found > 800, "only {found} rows were compared");
    assert!(ledger.index().catch_up_index(u32::MAX).unwrap() > 0);
    assert_eq!(ledger.index().find_wrong_aggregates(9).unwrap(), []);
}

#[test]
fn pages_of_a_report_neither_repeat_nor_leave_out() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = filled(dir.path());
    let query = UsageQuery {
        interval: Some(UsageInterval::Unit),
        by_model: true,
        by_key: true,
        by_member: true,
        ..UsageQuery::new(UsageSpan::Days(0, DAY + 400))
    };
    let all = ledger
        .pages()
        .usage(ACCOUNTS[0], &query, None, u32::MAX)
        .unwrap();
    let mut paged: Vec<UsageRow> = Vec::new();
    loop {
        let after = paged.last().map(UsageRow::cursor);
        let page = ledger.pages().usage(ACCOUNTS[0], &query, after, 7).unwrap();
        if page.is_empty() {
            break;
        }
        paged.extend(page);
    }
    assert!(all.len() > 14, "{}", all.len());
    assert_eq!(paged, all);
}

#[test]
fn the_operator_s_sums_are_those_of_all_accounts() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = filled(dir.path());
    let entries = entries(&ledger);
    let totals = ledger.pages().daily_totals(0, DAY + 400).unwrap();
    let by_day = UsageQuery {
        interval: Some(UsageInterval::Unit),
        by_model: true,
        ..UsageQuery::new(UsageSpan::Days(0, DAY + 400))
    };
    let mut sums: BTreeMap<(i64, String), SpendTotals> = BTreeMap::new();
    for account in ACCOUNTS {
        for row in expected(&entries, account, &by_day) {
            let sum = sums.entry((row.time, row.model)).or_default();
            *sum = sum.plus(row.sum);
        }
    }
    let found: BTreeMap<_, _> = totals
        .iter()
        .map(|total| ((total.day, total.model.clone()), total.sum))
        .collect();
    assert_eq!(found, sums);
    let sum = |amounts: &mut dyn Iterator<Item = Micro>| amounts.fold(Micro::ZERO, Micro::plus);
    let lost = sum(&mut entries.iter().map(|entry| entry.writeoff));
    assert!(lost.is_positive(), "the second account pays for everything");
    assert_eq!(sum(&mut totals.iter().map(|total| total.writeoff)), lost);
    assert_eq!(
        ledger.pages().daily_totals(DAY, DAY + 1).unwrap(),
        totals
            .iter()
            .filter(|total| total.day == DAY)
            .cloned()
            .collect::<Vec<_>>()
    );

    let names = ["acct_a", "acct_b", "acct_c"].map(str::to_owned);
    let since = ledger.pages().spend_since(&names, DAY + 1).unwrap();
    let spent = |account: &str| {
        let span = UsageSpan::Days(DAY + 1, i64::MAX);
        let rows = expected(&entries, account, &UsageQuery::new(span));
        sum(&mut rows.iter().map(|row| row.sum.credits))
    };
    assert_eq!(since.len(), 2, "{since:?}");
    for account in ACCOUNTS {
        assert_eq!(since[account], spent(account));
    }
    assert_eq!(
        ledger.pages().spend_since(&names[..1], 0).unwrap().len(),
        1,
        "only of the accounts that were asked for"
    );
}

#[test]
fn a_ledger_of_version_7_gets_the_sums_of_its_debits() {
    let dir = tempfile::tempdir().unwrap();
    let all = |ledger: &Ledger| {
        let by_key = UsageQuery {
            interval: Some(UsageInterval::Unit),
            by_model: true,
            by_key: true,
            by_member: true,
            ..UsageQuery::new(UsageSpan::Days(0, i64::MAX))
        };
        let by_hour = UsageQuery {
            span: UsageSpan::Hours(0, i64::MAX),
            ..by_key.clone()
        };
        let of_account = |account| {
            [&by_key, &by_hour].map(|query| {
                ledger
                    .pages()
                    .usage(account, query, None, u32::MAX)
                    .unwrap()
            })
        };
        (
            ACCOUNTS.map(of_account),
            ledger.pages().daily_totals(0, i64::MAX).unwrap(),
        )
    };
    let before = all(&filled(dir.path()));
    let old = Ledger::write_old_version(dir.path(), 7);
    std::fs::remove_file(dir.path().join("index.db")).unwrap();
    let spent = "INSERT INTO spent VALUES ('acct_a', 1, 'm1', 1, 1, 1, 1, 1)";
    assert_eq!(old.execute(spent, []).unwrap(), 1);
    drop(old);
    let ledger = Ledger::open(dir.path()).unwrap();
    assert_eq!(all(&ledger), before);
    // The copy has none of the older aggregates.
    assert!(ledger.index().catch_up_index(u32::MAX).unwrap() > 0);
    let mut wrong = ledger.index().find_wrong_aggregates(9).unwrap();
    wrong.retain(|mismatch| mismatch.of != "key_spend");
    assert_eq!(wrong, []);
    assert_eq!(
        ledger.checks().schema_faults().unwrap(),
        Vec::<String>::new()
    );
    // A process of the older version that still runs can go on.
    let old = Connection::open(dir.path().join("ledger.db")).unwrap();
    assert_eq!(old.execute(spent, []).unwrap(), 1);
    ledger
        .enter_endings(&[(&ending(9_999), CreditSplit::ZERO)], "")
        .unwrap();
    assert_ne!(all(&ledger), before);
}

#[test]
fn a_report_reads_the_rows_of_its_account_and_span() {
    let dir = tempfile::tempdir().unwrap();
    let index = create_for_test(dir.path());
    index
        .execute_batch(
            "INSERT INTO account VALUES (1, 'acct_a'); INSERT INTO model VALUES (1, 'm1');
             INSERT INTO api_key VALUES (1, 'key_1');
             INSERT INTO member VALUES (1, 'acct_a/acct_1');",
        )
        .unwrap();
    let tail = create_tail_for_test(dir.path());
    for tables in [IndexTables::new(&index), IndexTables::with_base(&tail)] {
        reads_ranges(tables);
    }
}

fn reads_ranges(tables: IndexTables<'_>) {
    let reads_a_range = |sql: &str, values: &[Box<dyn ToSql>]| {
        let plan = query_plan(tables.connection(), sql, params_from_iter(values));
        assert!(plan.contains("SEARCH main.usage_"), "{sql}: {plan}");
        let is_scan = ["SCAN main.", "SCAN base."].map(|scan| plan.contains(scan));
        assert_eq!(is_scan, [false; 2], "{sql}: {plan}");
        plan
    };
    for query in queries() {
        for after in [None, Some((DAY, "m1", "key_1", ""))] {
            let sql = usage_sql(tables, ACCOUNTS[0], &query, after, 100);
            let (sql, values) = sql.unwrap().unwrap();
            let plan = reads_a_range(&sql, &values);
            let unit = match query.span {
                UsageSpan::Hours(..) => "(account=? AND hour>? AND hour<?",
                UsageSpan::Days(..) => "(account=? AND day>? AND day<?",
            };
            assert!(plan.contains(unit), "{sql}: {plan}");
        }
    }
    let values = || vec![Box::new(1) as Box<dyn ToSql>, Box::new(0)];
    reads_a_range(&hourly_sql(tables), &values());
    reads_a_range(&daily_totals_sql(tables), &[Box::new(0), Box::new(9)]);
    reads_a_range(&spend_since_sql(tables), &[Box::new("[1]"), Box::new(0)]);
}
