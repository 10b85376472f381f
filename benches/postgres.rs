//! Measures a ledger in PostgreSQL beside one in SQLite: debits a second, CPU time of the sidecar's
//! part for a debit, and the time of a commit. `scripts/bench-postgres` builds and runs this.
//!
//! It starts a primary and a standby on this machine. Both ledgers enter the same endings of many
//! accounts and keys in batches, as the sidecar does with the events of the shared store. At the
//! end both chains must have the same length, and PostgreSQL must have nothing to report. Must not
//! reach past the public interface of the library.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::disallowed_methods
)]

#[allow(dead_code, reason = "shared with the other benchmarks")]
mod rig;

use accounts::db::AppDb;
use clap::Parser;
use credits::money::{CreditSplit, Micro};
use ledger::postgres::{PostgresHome, PostgresSettings};
use ledger::{Ending, EndingDetail, Ledger, LedgerBatch, LedgerChange, Posting, RequestOutcome};
use llm_protocol::Protocol;
use llm_protocol::usage::Usage;
use model_gateway::replica;
use model_gateway::replica::verify_postgres;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use test_world::postgres::PostgresServer;

/// As in `main.rs`.
#[cfg(not(test))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const NOW_MS: i64 = 1_800_000_000_000;

/// Measures a ledger in PostgreSQL beside one in SQLite.
#[derive(Parser)]
#[command(name = "postgres")]
struct Options {
    /// Number of accounts
    #[arg(long, default_value_t = 1_000)]
    accounts: u64,
    /// Number of keys of each account
    #[arg(long, default_value_t = 5)]
    keys: u64,
    /// Number of endings to enter
    #[arg(long, default_value_t = 200_000)]
    entries: u64,
    /// Endings of a batch
    #[arg(long, value_delimiter = ',', default_values_t = [256, 1_024, 4_096])]
    batches: Vec<u64>,
    /// Folder in which the servers and the ledgers keep their files
    #[arg(long, default_value = ".", overrides_with = "dir")]
    dir: PathBuf,
}

/// Row of the table.
struct Row {
    time: Duration,
    cpu: Duration,
    commits: Vec<Duration>,
}

fn main() {
    // Cargo passes this to every benchmark.
    let arguments = std::env::args_os().filter(|argument| argument != "--bench");
    let options = Options::parse_from(arguments);
    let primary = PostgresServer::start_in(&options.dir);
    let standby = primary.start_standby_in(&options.dir);
    println!("| ledger | batch | debits/s | µs CPU a debit | commit p50 ms | commit p99 ms |");
    println!("|---|---:|---:|---:|---:|---:|");
    for (index, batch) in options.batches.iter().enumerate() {
        let folder = tempfile::tempdir_in(&options.dir).unwrap();
        let sqlite = Ledger::open(folder.path()).unwrap();
        print(
            "SQLite",
            *batch,
            &options,
            &measure(&sqlite, &options, *batch),
        );

        let copy = tempfile::tempdir_in(&options.dir).unwrap();
        let home = PostgresHome::new(PostgresSettings {
            url: primary.create_database(&format!("bench_{index}")),
            require_standby: true,
            address: "127.0.0.1:1".into(),
        })
        .unwrap();
        home.prepare().unwrap();
        let ledger = take(copy.path(), &home);
        print(
            "PostgreSQL",
            *batch,
            &options,
            &measure(&ledger, &options, *batch),
        );
        assert_eq!(
            ledger.rows().heads().unwrap().last,
            sqlite.rows().heads().unwrap().last,
            "the same entries make the same chain"
        );
        let found = verify_postgres(&home, copy.path(), true).unwrap();
        assert!(found.is_empty(), "{found:?}");
    }
    drop((standby, primary));
}

fn take(dir: &Path, home: &PostgresHome) -> Ledger {
    let ledger = Ledger::open_with_home(dir, Some(home)).unwrap();
    let app = AppDb::open(dir, Some(home)).unwrap();
    assert!(replica::take(&ledger, &app).unwrap().is_some());
    ledger
}

fn account(number: u64) -> String {
    format!("acct_{number:06}")
}

fn measure(ledger: &Ledger, options: &Options, batch: u64) -> Row {
    for number in 0..options.accounts {
        let account = account(number);
        ledger.rows().open_account(&account, None, NOW_MS).unwrap();
    }
    for number in 0..options.accounts {
        let account = account(number);
        ledger
            .changes()
            .post(&Posting {
                kind: "grant",
                reference: &account,
                account: &account,
                d_paid: Micro::new(1_000_000_000_000),
                d_trial: Micro::ZERO,
                at_ms: NOW_MS,
            })
            .unwrap();
    }
    // The same sequence in every run: a linear congruential generator.
    let mut state = 20_261_126_u64;
    let mut any = |below: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let (began, cpu) = (Instant::now(), rig::cpu_ns(std::process::id()));
    let mut commits = Vec::new();
    let mut next = 0;
    while next < options.entries {
        let endings: Vec<_> = (next..options.entries.min(next + batch))
            .map(|number| {
                let holder = any(options.accounts);
                let key = holder * options.keys + any(options.keys);
                ending(number, account(holder), format!("key_{key:06}"))
            })
            .collect();
        next += batch;
        let changes: Vec<_> = endings
            .iter()
            .map(|ending| LedgerChange::Ending {
                ending,
                freed: CreditSplit::ZERO,
            })
            .collect();
        let asked = Instant::now();
        let batch = LedgerBatch {
            instance_id: "",
            changes: &changes,
        };
        ledger.changes().append(&batch).unwrap();
        commits.push(asked.elapsed());
    }
    commits.sort();
    Row {
        time: began.elapsed(),
        cpu: Duration::from_nanos(rig::cpu_ns(std::process::id()) - cpu),
        commits,
    }
}

fn ending(number: u64, account: String, key_id: String) -> Ending {
    let at_ms = NOW_MS + i64::try_from(number).unwrap();
    Ending {
        request_id: format!("req_{at_ms:012x}7abc8{number:015x}"),
        account,
        at_ms,
        paid: Micro::new(1_234),
        trial: Micro::ZERO,
        writeoff: Micro::ZERO,
        detail: EndingDetail {
            key_id,
            key_shown: "gw-sk-…abcd".into(),
            model: "beta-5.2".into(),
            surface: Protocol::Messages,
            vendor: "beta".into(),
            outcome: RequestOutcome::Completed,
            usage: Usage {
                input: 1_000 + number % 100,
                output: 200,
                ..Usage::default()
            },
            price_version: "pv_0123456789abcdef".into(),
            estimated: false,
            implausible: false,
            conversation: Some(format!("{:016x}", number / 20)),
            took_ms: Some(1_200),
            first_token_ms: None,
            cache_marks: None,
            member: None,
        },
    }
}

fn print(name: &str, batch: u64, options: &Options, row: &Row) {
    let ms = |share: usize| {
        let index = (row.commits.len() * share / 100).min(row.commits.len() - 1);
        tenths(row.commits[index].as_micros() / 100)
    };
    let count = u128::from(options.entries);
    println!(
        "| {name} | {batch} | {} | {} | {} | {} |",
        count * 1_000 / row.time.as_millis().max(1),
        tenths(row.cpu.as_nanos() / 100 / count),
        ms(50),
        ms(99),
    );
}

/// Writes a number of tenths.
fn tenths(number: u128) -> String {
    format!("{}.{}", number / 10, number % 10)
}
