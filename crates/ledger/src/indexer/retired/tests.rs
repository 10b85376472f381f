//! A ledger loses its old indexes and sums step by step, and a process of version 8 that still ends
//! its requests beside this one can commit at each step.

use super::*;
use crate::Ledger;
use crate::entry::LedgerEntry;
use crate::entry::chain::entry_hash;
use crate::entry::ending::ending_detail;
use crate::sqlite;
use crate::statements::chain::chain_head;
use crate::{Ending, EndingDetail, RequestOutcome};
use credits::money::Micro;
use rusqlite::params;
use std::path::Path;

const NOW: i64 = 1_800_000_000_000;
const ACCOUNT: &str = "acct_a";

/// The statements of a commit of version 8, as it has them.
const VERSION_8: [&str; 8] = [
    "UPDATE account SET paid = ?2, trial = ?3 WHERE id = ?1",
    "INSERT INTO key_spend (key, day, total, used_at)
     VALUES (?1, ?2, ?3 + ifnull((SELECT total FROM key_spend WHERE key = ?1 AND day < ?2 ORDER BY day DESC LIMIT 1), 0),
       ?4)
     ON CONFLICT (key, day) DO UPDATE SET total = total + ?3, used_at = max(used_at, excluded.used_at)",
    "INSERT INTO conversation (account, id, began_at, last_at, turns, credits, input, cache_read, output)
     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
     ON CONFLICT (account, id) DO UPDATE SET began_at = min(began_at, excluded.began_at),
       last_at = max(last_at, excluded.last_at), turns = turns + excluded.turns,
       credits = min(credits + excluded.credits, 9007199254740991), input = min(input + excluded.input, 1 << 62),
       cache_read = min(cache_read + excluded.cache_read, 1 << 62), output = min(output + excluded.output, 1 << 62)",
    "INSERT INTO usage_hour (account, hour, model, key_id, responses, credits, input, cache_read, output)
     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
     ON CONFLICT (account, hour, model, key_id) DO UPDATE SET responses = responses + excluded.responses,
       credits = min(credits + excluded.credits, 9007199254740991), input = min(input + excluded.input, 1 << 62),
       cache_read = min(cache_read + excluded.cache_read, 1 << 62), output = min(output + excluded.output, 1 << 62)",
    "INSERT INTO usage_day (account, day, model, key_id, responses, credits, input, cache_read, output)
     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
     ON CONFLICT (account, day, model, key_id) DO UPDATE SET responses = responses + excluded.responses,
       credits = min(credits + excluded.credits, 9007199254740991), input = min(input + excluded.input, 1 << 62),
       cache_read = min(cache_read + excluded.cache_read, 1 << 62), output = min(output + excluded.output, 1 << 62)",
    "INSERT INTO usage_total (day, model, responses, credits, input, cache_read, output, writeoff)
     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
     ON CONFLICT (day, model) DO UPDATE SET responses = responses + excluded.responses,
       credits = min(credits + excluded.credits, 9007199254740991), input = min(input + excluded.input, 1 << 62),
       cache_read = min(cache_read + excluded.cache_read, 1 << 62), output = min(output + excluded.output, 1 << 62),
       writeoff = min(writeoff + excluded.writeoff, 9007199254740991)",
    "INSERT INTO applied (boot, account, paid, trial) VALUES (?1, ?2, ?3, ?4)
     ON CONFLICT (boot, account) DO UPDATE SET paid = paid + excluded.paid, trial = trial + excluded.trial",
    "INSERT INTO applied_key (boot, key, spent) VALUES (?1, ?2, ?3)
     ON CONFLICT (boot, key) DO UPDATE SET spent = spent + excluded.spent",
];

fn ending(request: &str) -> Ending {
    let plain = Ending::in_test(request, ACCOUNT, NOW, RequestOutcome::Completed);
    Ending {
        paid: Micro::new(1_000),
        detail: EndingDetail {
            conversation: Some("17".into()),
            ..plain.detail
        },
        ..plain
    }
}

/// Commits one debit as a process of version 8 does.
fn commit_as_version_8(dir: &Path, request: &str) {
    let mut old = sqlite::open(&dir.join("ledger.db"), "open an old ledger").unwrap();
    let transaction = sqlite::begin_write(&mut old).unwrap();
    let ending = ending(request);
    let last = chain_head(&transaction).unwrap();
    let balance: i64 = transaction
        .query_row("SELECT paid FROM account WHERE id = ?1", [ACCOUNT], |row| {
            row.get(0)
        })
        .unwrap();
    let change = (Micro::new(-1_000), Micro::ZERO);
    let detail = ending_detail(&ending).unwrap();
    let mut entry = LedgerEntry::new("debit", request, ACCOUNT, NOW, change, detail);
    (entry.seq, entry.prev) = (last.seq + 1, last.hash);
    entry.bal_paid = Micro::new(balance - 1_000);
    entry.hash = entry_hash(&entry);
    entry.insert_alone(&transaction);
    let (hour, day) = (NOW / 3_600_000, NOW / 86_400_000);
    let [
        balance_sql,
        key,
        conversation,
        of_hour,
        of_day,
        total,
        applied,
        applied_key,
    ] = VERSION_8;
    let run = |sql: &str, values: &[&dyn rusqlite::ToSql]| {
        assert_eq!(transaction.execute(sql, values).unwrap(), 1, "{sql}");
    };
    run(balance_sql, params![ACCOUNT, balance - 1_000, 0]);
    run(key, params!["key_1", day, 1_000, NOW]);
    run(
        conversation,
        params![ACCOUNT, "17", NOW, NOW, 1, 1_000, 0, 0, 0],
    );
    run(
        of_hour,
        params![ACCOUNT, hour, "beta-5.2", "key_1", 1, 1_000, 0, 0, 0],
    );
    run(
        of_day,
        params![ACCOUNT, day, "beta-5.2", "key_1", 1, 1_000, 0, 0, 0],
    );
    run(total, params![day, "beta-5.2", 1, 1_000, 0, 0, 0, 0]);
    run(applied, params!["boot_8", ACCOUNT, 1_000, 0]);
    run(applied_key, params!["boot_8", "key_1", 1_000]);
    transaction.commit().unwrap();
}

#[test]
fn a_draining_process_of_version_8_commits_whatever_is_removed_meanwhile() {
    let dir = tempfile::tempdir().unwrap();
    drop(Ledger::open(dir.path()).unwrap());
    drop(Ledger::write_old_version(dir.path(), 8));
    let ledger = Ledger::open(dir.path()).unwrap();
    ledger.open_funded(ACCOUNT, 1_000_000, NOW);
    let mut count = 0;
    loop {
        count += 1;
        commit_as_version_8(dir.path(), &format!("req_{count}"));
        assert_eq!(
            ledger.checks().schema_faults().unwrap(),
            Vec::<String>::new()
        );
        assert!(
            ledger.index().remove_retired().unwrap(),
            "the old sums were written"
        );
        let left = ledger.read("count", |connection| {
            let sql = "SELECT count(*) FROM sqlite_schema WHERE type = 'index' AND sql IS NOT NULL";
            connection.query_row(sql, [], |row| row.get::<_, i64>(0))
        });
        // Three of `entry`, one of `conversation`.
        if left.unwrap() == 4 {
            break;
        }
    }
    assert_eq!(count, RETIRED_INDEXES.len());
    commit_as_version_8(dir.path(), "req_last");
    // The four sums are emptied, one in each step.
    for _ in RETIRED_TABLES {
        assert!(ledger.index().remove_retired().unwrap());
    }
    assert!(!ledger.index().remove_retired().unwrap(), "nothing is left");
    commit_as_version_8(dir.path(), "req_after");
    let conversation = ledger.pages().conversation(ACCOUNT, "17").unwrap().unwrap();
    assert_eq!(conversation.sum.responses, count as u64 + 2);
    let found = ledger.rows().entries(ACCOUNT, true, None, 99).unwrap();
    assert_eq!(found.len(), count + 2);
    assert_eq!(ledger.index().catch_up_index(99).unwrap(), count + 3);
    assert_eq!(ledger.index().find_wrong_aggregates(9).unwrap(), []);
    assert_eq!(
        ledger.checks().schema_faults().unwrap(),
        Vec::<String>::new()
    );
}
