//! A ledger as version 8 of the schema had it, in the place of a new one: entries of many accounts,
//! keys and conversations, and all that stood beside them.
//!
//! The first four migrations make the table, which is then filled; the next four derive what a
//! process of that version kept up to date. Must not be migrated here.

use crate::account::{Account, micro};
use crate::world::World;
use rusqlite::{Connection, OpenFlags, params};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// What makes the tables of entries.
const TABLES: [&str; 4] = [
    include_str!("../../crates/ledger/src/database/001.sql"),
    include_str!("../../crates/ledger/src/database/002.sql"),
    include_str!("../../crates/ledger/src/database/003.sql"),
    include_str!("../../crates/ledger/src/database/004.sql"),
];
/// What derives sums from the entries.
const DERIVED: [&str; 4] = [
    include_str!("../../crates/ledger/src/database/005.sql"),
    include_str!("../../crates/ledger/src/database/006.sql"),
    include_str!("../../crates/ledger/src/database/007.sql"),
    include_str!("../../crates/ledger/src/database/008.sql"),
];
/// What no migration derives: conversations, and what a process had applied that has ended.
const KEPT_BESIDE: &str = "
    INSERT INTO conversation (account, id, began_at, last_at, turns, credits, input, cache_read, output)
      SELECT account, conversation, min(at), max(at), count(*), -sum(d_paid + d_trial),
        sum(detail ->> '$.usage.input'), 0, sum(detail ->> '$.usage.output')
      FROM entry WHERE kind = 'debit' AND conversation IS NOT NULL GROUP BY 1, 2;
    INSERT INTO applied (boot, account, paid, trial)
      SELECT 'boot_8', account, -sum(d_paid), -sum(d_trial) FROM entry WHERE kind = 'debit' GROUP BY 2;
    INSERT INTO applied_key (boot, key, spent)
      SELECT 'boot_8', key_id, -sum(d_paid + d_trial) FROM entry WHERE kind = 'debit' GROUP BY 2;
    PRAGMA user_version = 8;";
/// Indexes of `entry` that a migrated ledger still has.
const INDEXES_THAT_STAY: [&str; 3] = [
    "entry_counts_once",
    "entry_ends_a_request_once",
    "entry_refunds",
];
const RETIRED_TABLES: [&str; 5] = [
    "spent",
    "usage_hour",
    "usage_day",
    "usage_total",
    "conversation",
];

const KEYS_OF_AN_ACCOUNT: i64 = 3;
const CONVERSATIONS_OF_AN_ACCOUNT: i64 = 9;
const DAY_MS: i64 = 86_400_000;
/// Days over which the entries are spread. The last of them is the day before yesterday.
const DAYS: i64 = 20;

/// Columns of an entry, as `INSERT` and the hash have them.
struct OldEntry<'a> {
    kind: &'a str,
    reference: String,
    account: &'a str,
    at_ms: i64,
    d_paid: i64,
    bal_paid: i64,
    detail: String,
}

/// What a migration must not change.
pub struct OldLedger {
    /// The hash of each entry, in hexadecimal digits, in order.
    pub hashes: Vec<String>,
    /// What the first account spent by day: the day, and number, millionths of a credit and tokens
    /// of its responses.
    pub spent_by_day: Vec<(String, [i64; 4])>,
}

/// The debit of a request that the gateway served, from which others are made.
struct EndingSample {
    cost: i64,
    /// Without a conversation.
    detail: String,
}

impl OldLedger {
    /// Puts a ledger with this number of entries in the place of the one of `world`, whose gateway
    /// must have ended. Its accounts are `first`, which has been granted `funds`, and others that
    /// have as much. The requests that `first` has sent are the samples of all others.
    pub fn replace(
        world: &World,
        first: &Account,
        accounts: usize,
        count: i64,
        funds: i64,
    ) -> Self {
        let data = world.data_dir();
        let samples = samples(world, first);
        let ids: Vec<_> = (1..accounts)
            .map(|number| format!("acct_old_{number}"))
            .collect();
        add_accounts(&data.join("app.db"), &first.id, &ids);
        let ids: Vec<_> = std::iter::once(first.id.clone()).chain(ids).collect();

        let old = Connection::open(data.join("old.db")).unwrap();
        let setting =
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF; PRAGMA cache_size = -65536;";
        old.execute_batch(setting).unwrap();
        run_all(&old, &TABLES);
        let newer = data.join("ledger.db");
        old.execute("ATTACH ?1 AS newer", [newer.to_str()]).unwrap();
        old.execute_batch(
            "INSERT INTO price_version SELECT * FROM newer.price_version; DETACH newer;",
        )
        .unwrap();
        fill(&old, &ids, &first.key_id, &samples, count, funds);
        run_all(&old, &DERIVED);
        old.execute_batch(KEPT_BESIDE).unwrap();
        let found = Self::read(&data.join("old.db"), &first.id);
        old.close().unwrap();

        for name in ["ledger.db", "index.db"] {
            for end in ["", "-wal", "-shm"] {
                let _ = std::fs::remove_file(data.join(format!("{name}{end}")));
            }
        }
        std::fs::remove_file(data.join("ledger.anchor")).unwrap();
        std::fs::rename(data.join("old.db"), newer).unwrap();
        found
    }

    fn read(path: &Path, account: &str) -> Self {
        let sums = "SELECT date(day * 86400, 'unixepoch'), sum(responses), sum(credits), sum(input), sum(output)
            FROM usage_day WHERE account = ?1 GROUP BY day ORDER BY day";
        let old = Connection::open(path).unwrap();
        let mut statement = old.prepare(sums).unwrap();
        let row = |row: &rusqlite::Row<'_>| {
            let sums = [row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?];
            Ok((row.get(0)?, sums))
        };
        let spent_by_day = statement.query_map([account], row).unwrap();
        Self {
            hashes: hashes(path),
            spent_by_day: spent_by_day.map(Result::unwrap).collect(),
        }
    }
}

fn hashes(ledger: &Path) -> Vec<String> {
    let ledger = Connection::open_with_flags(ledger, OpenFlags::SQLITE_OPEN_READ_WRITE).unwrap();
    let sql = "SELECT lower(hex(hash)) FROM entry ORDER BY seq";
    let mut statement = ledger.prepare(sql).unwrap();
    let rows = statement.query_map([], |row| row.get(0)).unwrap();
    rows.map(Result::unwrap).collect()
}

/// The hashes of the oldest entries, wherever they are now: a million entries are soon sealed.
pub fn exported_hashes(world: &World, count: usize) -> Vec<String> {
    let csv = world.text(&["ledger", "export", "--format", "csv"]);
    let hash = |line: &str| line.rsplit(',').next().unwrap().to_owned();
    csv.lines().skip(1).take(count).map(hash).collect()
}

/// What `ledger.db` still has of version 8 that pages no longer read.
pub fn retired(data: &Path) -> Vec<String> {
    let path = data.join("ledger.db");
    let ledger = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE).unwrap();
    let names = "SELECT name FROM sqlite_schema WHERE type = 'index' AND tbl_name = 'entry' AND sql IS NOT NULL";
    let mut statement = ledger.prepare(names).unwrap();
    let names = statement.query_map([], |row| row.get(0)).unwrap();
    let mut found: Vec<String> = names.map(Result::unwrap).collect();
    found.retain(|name| !INDEXES_THAT_STAY.contains(&name.as_str()));
    for table in RETIRED_TABLES {
        let sql = format!("SELECT EXISTS (SELECT 1 FROM {table})");
        if ledger.query_row(&sql, [], |row| row.get(0)).unwrap() {
            found.push(table.to_owned());
        }
    }
    found
}

fn run_all(connection: &Connection, texts: &[&str]) {
    texts
        .iter()
        .for_each(|text| connection.execute_batch(text).unwrap());
}

fn samples(world: &World, account: &Account) -> Vec<EndingSample> {
    let all = world.json(&["ledger", "export", "--account", &account.id]);
    let debits = all
        .as_array()
        .unwrap()
        .iter()
        .filter(|row| row["kind"] == "debit");
    let sample = |row: &Value| {
        let detail = row["detail"].as_str().unwrap();
        let members: Value = serde_json::from_str(detail).unwrap();
        let conversation = format!(",\"conversation\":{}", members["conversation"]);
        EndingSample {
            cost: -micro(&row["d_paid"]),
            detail: detail.replace(&conversation, ""),
        }
    };
    let samples: Vec<_> = debits.map(sample).collect();
    assert!(!samples.is_empty() && samples.iter().all(|sample| sample.cost > 0));
    samples
}

/// Adds accounts that are like `first`.
fn add_accounts(path: &Path, first: &str, ids: &[String]) {
    let mut app = Connection::open(path).unwrap();
    let transaction = app.transaction().unwrap();
    transaction
        .execute(
            "CREATE TEMP TABLE added AS SELECT * FROM account WHERE id = ?1",
            [first],
        )
        .unwrap();
    for id in ids {
        transaction
            .execute(
                "UPDATE added SET id = ?1, email = ?1 || '@example.test', mailbox = NULL",
                [id],
            )
            .unwrap();
        transaction
            .execute("INSERT INTO account SELECT * FROM added", [])
            .unwrap();
    }
    transaction.commit().unwrap();
}

/// Enters a grant for each account, then ends of requests.
fn fill(
    old: &Connection,
    ids: &[String],
    first_key: &str,
    samples: &[EndingSample],
    count: i64,
    funds: i64,
) {
    let now_ms = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_millis();
    let last_ms = i64::try_from(now_ms).unwrap() - 2 * DAY_MS;
    let at_ms = |seq: i64| last_ms - (DAYS * DAY_MS) * (count - seq) / count;
    let transaction = old.unchecked_transaction().unwrap();
    let accounts = i64::try_from(ids.len()).unwrap();
    let mut balances = vec![funds; ids.len()];
    let mut last = [0; 32];
    for id in ids {
        let sql =
            "INSERT INTO account (id, paid, trial, credited, opened_at) VALUES (?1, 0, 0, ?2, ?3)";
        transaction
            .execute(sql, params![id, funds, at_ms(0)])
            .unwrap();
    }
    for seq in 1..=count {
        let number = seq - 1;
        let index = usize::try_from(number % accounts).unwrap();
        let account = ids[index].as_str();
        let row = if number < accounts {
            OldEntry {
                kind: "grant",
                reference: format!("funds {index}"),
                account,
                at_ms: at_ms(seq),
                d_paid: funds,
                bal_paid: funds,
                detail: String::new(),
            }
        } else {
            let turn = number / accounts;
            let sample = &samples[usize::try_from(turn).unwrap() % samples.len()];
            let is_void = turn % 11 == 0;
            let cost = if is_void { 0 } else { sample.cost };
            balances[index] -= cost;
            OldEntry {
                kind: if is_void { "void" } else { "debit" },
                reference: request_id(seq),
                account,
                at_ms: at_ms(seq),
                d_paid: -cost,
                bal_paid: balances[index],
                detail: detail(&sample.detail, index, turn, is_void, first_key),
            }
        };
        last = insert(&transaction, seq, &row, last);
    }
    for (id, balance) in ids.iter().zip(balances) {
        let sql = "UPDATE account SET paid = ?2 WHERE id = ?1";
        transaction.execute(sql, params![id, balance]).unwrap();
    }
    transaction.commit().unwrap();
}

/// An id of which the order says nothing, as a request of an old version had it.
fn request_id(seq: i64) -> String {
    let mixed = seq.unsigned_abs().wrapping_mul(0x9e37_79b9_7f4a_7c15);
    format!("req_{mixed:016x}{seq:016x}")
}

/// The detail of a sample, with another key, conversation and outcome. The first account's first
/// key is a real one.
fn detail(sample: &str, account: usize, turn: i64, is_void: bool, first_key: &str) -> String {
    let mut detail = sample.to_owned();
    let mut edit = |from: &str, to: &str| {
        assert_eq!(detail.matches(from).count(), 1, "{from} in {detail}");
        detail = detail.replace(from, to);
    };
    let key = turn % KEYS_OF_AN_ACCOUNT;
    if (account, key) != (0, 0) {
        edit(first_key, &format!("key_old_{account}_{key}"));
    }
    let talk = turn % CONVERSATIONS_OF_AN_ACCOUNT;
    if talk > 0 {
        let took = ",\"took_ms\":";
        edit(took, &format!(",\"conversation\":\"talk_{talk}\"{took}"));
    }
    if is_void || turn % 13 == 0 {
        let outcome = if is_void {
            "vendor_error"
        } else {
            "client_left"
        };
        edit("\"completed\"", &format!("\"{outcome}\""));
    }
    detail
}

fn insert(transaction: &Connection, seq: i64, row: &OldEntry<'_>, prev: [u8; 32]) -> [u8; 32] {
    let OldEntry {
        kind,
        reference,
        account,
        at_ms,
        d_paid,
        bal_paid,
        detail,
    } = row;
    let mut hash = Sha256::new();
    hash.update(prev);
    hash.update(format!(
        "{seq}\x1f{kind}\x1f{reference}\x1f{account}\x1f{at_ms}\x1f[{d_paid}, 0, {bal_paid}, 0, 0]\x1f{detail}"
    ));
    let hash: [u8; 32] = hash.finalize().into();
    let sql = "INSERT INTO entry (seq, kind, ref, account, at, d_paid, d_trial, bal_paid, bal_trial, detail, prev, hash)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, 0, ?7, 0, ?8, ?9, ?10)";
    let values = params![
        seq, kind, reference, account, at_ms, d_paid, bal_paid, detail, prev, hash
    ];
    transaction
        .prepare_cached(sql)
        .unwrap()
        .execute(values)
        .unwrap();
    hash
}
