//! An old ledger is migrated while the gateway serves from it, and `kill -9` hits it again and
//! again: old entries stay as they are, each answered request is debited once, and in the end the
//! index has the sums that the old tables had.
//!
//! In the short run the ledger is one batch of the index, and the gateway kills itself at named
//! points. In the long run it is several batches, kills at other moments are added, and the test
//! asserts how much slower requests are meanwhile.

use crate::account::{Account, micro, taken};
use crate::client::Request;
use crate::crash::{FUNDS, Habit, Load, Log, by_id, client_interval};
use crate::old_ledger::{OldLedger, exported_hashes, retired};
use crate::surface::BOTH;
use crate::world::{Plan, SOON, World, wait_for, wait_until};
use serde_json::Value;
use std::collections::HashSet;
use std::fs::File;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// A death in the only batch of the index, or two in the first two. A second death would not be in
/// the only batch: the removal may begin before other entries are indexed.
const SHORT_INDEX_DEATHS: &[&str] = &["mid_index"];
const LONG_INDEX_DEATHS: &[&str] = &["mid_index", "mid_index:2"];
/// Deaths while the ledger loses what it no longer needs, by the number of steps before: in one of
/// eight indexes, and in one of the steps that empty the tables behind them. On a busy machine the
/// kills before have left less; each death then is in the last step at the latest.
const REMOVAL_DEATHS: [usize; 5] = [1, 4, 6, 2, 1];
/// Largest ratio between the latencies of requests during and after the migration.
const MAX_RATIO: f64 = 2.0;

struct MigrationSize {
    entries: i64,
    accounts: usize,
    index_deaths: &'static [&'static str],
    /// Kills at other moments than the named ones.
    kills: u64,
    /// For the index of the whole ledger.
    limit: Duration,
    /// Number of requests after the migration.
    requests_after: u64,
    has_max_ratio: bool,
}

const SHORT: MigrationSize = MigrationSize {
    entries: 10_000,
    accounts: 20,
    index_deaths: SHORT_INDEX_DEATHS,
    kills: 0,
    limit: Duration::from_secs(180),
    requests_after: 100,
    has_max_ratio: false,
};
const LONG: MigrationSize = MigrationSize {
    entries: 200_000,
    accounts: 300,
    index_deaths: LONG_INDEX_DEATHS,
    kills: 12,
    limit: Duration::from_secs(1_800),
    requests_after: 3_000,
    has_max_ratio: true,
};

/// A world whose gateway has ended, with an old ledger of which the returned account is the first.
#[allow(clippy::print_stdout, reason = "figures for a person")]
fn prepare(size: &MigrationSize) -> (World, Account, OldLedger) {
    // The old ledger knows no other account.
    let mut world = Plan::default().without_administrator().start();
    let account = world.funded(FUNDS);
    for surface in BOTH {
        world.works(surface, &account.key);
    }
    world.ended(&account, 2);
    world.signal("TERM");
    assert_eq!(world.wait_end(SOON), 0);
    let began = Instant::now();
    let MigrationSize {
        entries, accounts, ..
    } = *size;
    let old = OldLedger::replace(&world, &account, accounts, entries, FUNDS);
    println!(
        "an old ledger of {entries} entries, made in {:?}",
        began.elapsed()
    );
    assert_eq!(retired(&world.data_dir()).len(), 8 + 4);
    (world, account, old)
}

/// A process of an older version that still runs, which is to say that it holds the lock of its
/// journal. The ledger keeps what it reads, however long the first batch of the index takes.
struct OlderProcess {
    folder: PathBuf,
    _lock: File,
}

impl OlderProcess {
    fn start(world: &World) -> Self {
        let folder = world.data_dir().join("journal/older");
        std::fs::create_dir_all(&folder).unwrap();
        let lock = File::create(folder.join("lock")).unwrap();
        lock.lock().unwrap();
        Self {
            folder,
            _lock: lock,
        }
    }
}

impl Drop for OlderProcess {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.folder).unwrap();
    }
}

/// Starts a gateway that kills itself, and waits until it has.
fn die_at(world: &mut World, point: &str, limit: Duration) {
    world.begin_gateway(Some(point));
    wait_for(point, limit, || {
        assert!(
            !retired(&world.data_dir()).is_empty(),
            "the removal was over before {point}"
        );
        world.has_ended().then_some(())
    });
}

/// Kills the gateway until the migration is over, and leaves one that serves. Returns the time at
/// which the migration was over.
#[allow(clippy::print_stdout, reason = "figures for a person")]
fn kill_through_the_migration(world: &mut World, size: &MigrationSize) -> Instant {
    let older = OlderProcess::start(world);
    for point in size.index_deaths {
        die_at(world, point, SOON);
    }
    drop(older);
    for kill in 0..size.kills {
        let took = world.start_gateway();
        std::thread::sleep(Duration::from_millis(20 + kill * 7_919 % 400));
        let left = world.metric("gateway_index_lag_entries", &[]);
        world.kill();
        println!("kill {kill}: ready after {took:?}, {left} entries not indexed");
    }
    assert!(
        !retired(&world.data_dir()).is_empty(),
        "no kill met the migration"
    );
    for step in REMOVAL_DEATHS {
        let began = Instant::now();
        let point = format!("mid_retired:{}", step.min(retired(&world.data_dir()).len()));
        die_at(world, &point, size.limit);
        let left = retired(&world.data_dir());
        println!("{point} after {:?}: {left:?} are left", began.elapsed());
        assert!(!left.is_empty(), "the removal was over");
    }
    world.start_gateway();
    wait_until("the old indexes and tables to go", size.limit, || {
        retired(&world.data_dir()).is_empty()
    });
    Instant::now()
}

/// The 99th percentile.
fn p99(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() * 99 / 100]
}

/// Latencies of requests that began before a time, and of the others.
fn latencies(log: &Log, boundary: Instant) -> (Vec<Duration>, Vec<Duration>) {
    let (before, after): (Vec<_>, Vec<_>) =
        log.took.iter().partition(|(began, _)| *began < boundary);
    let times = |all: Vec<&(Instant, Duration)>| all.iter().map(|(_, took)| *took).collect();
    (times(before), times(after))
}

#[test]
fn an_old_ledger_survives_kills_while_it_is_migrated_and_serves() {
    migrate_under_load(&SHORT);
}

#[test]
#[ignore = "long kills: migrates 200 000 entries, with 12 more kills, about 10 minutes"]
fn a_large_old_ledger_survives_kills_while_it_is_migrated_and_serves() {
    migrate_under_load(&LONG);
}

#[allow(
    clippy::print_stdout,
    clippy::float_arithmetic,
    reason = "figures for a person, and of metrics"
)]
fn migrate_under_load(size: &MigrationSize) {
    let (mut world, account, old) = prepare(size);
    let (mut over, began) = (None, Instant::now());
    let load = Load {
        keys: &[&account.key],
        habits: &[Habit::Whole, Habit::Stream],
        interval: client_interval(),
        min_whole: 0,
    };
    let log = load.run(world.edge, || {
        over = Some(kill_through_the_migration(&mut world, size));
        // Each client may have sent a request before.
        let calls = world.vendor.calls() + size.requests_after + 16;
        wait_until("requests after the migration", size.limit, || {
            world.vendor.calls() >= calls
        });
    });
    let (during, after) = latencies(&log, over.unwrap());
    let counts = (during.len(), after.len());
    assert!(counts.0 > 20 && counts.1 > 20, "{counts:?}");
    let (during, after) = (p99(during), p99(after));
    let ratio = during.as_secs_f64() / after.as_secs_f64();
    println!(
        "{:?}: p99 {during:?} of {} requests during the migration, {after:?} of {} after it: ratio {ratio:.2}",
        began.elapsed(),
        counts.0,
        counts.1
    );
    assert!(!size.has_max_ratio || ratio <= MAX_RATIO, "{ratio}");
    assert_eq!(log.odd, [""; 0]);

    world.vendor.wait_idle();
    wait_for("the last requests to be debited", SOON, || {
        let waiting = world.metric("gateway_journal_pending", &[]);
        (world.standing(&account).held == 0 && waiting == 0.0).then_some(())
    });
    let found = exported_hashes(&world, old.hashes.len());
    assert!(found == old.hashes, "an old entry has another hash");
    check_debits(&world, &account, &log);
    check_sums(&world, &account, &old);
    assert_eq!(retired(&world.data_dir()), [""; 0]);
    let verdict = world.json(&["ledger", "verify", "--all"]);
    assert_eq!(verdict["findings"], Value::Array(Vec::new()), "{verdict}");
    world.close();
}

/// Checks that each answered request is debited once, and that the balance is what is left.
fn check_debits(world: &World, account: &Account, log: &Log) {
    let (endings, doubled) = by_id(world, account);
    assert_eq!(doubled, 0, "a request ended twice");
    let lost = log.whole.iter().filter(|id| {
        let ending = endings.get(*id);
        ending
            .is_none_or(|ending| ending["outcome"] != "completed" || micro(&ending["credits"]) <= 0)
    });
    assert_eq!(
        lost.collect::<Vec<_>>(),
        [""; 0],
        "answered, but not debited"
    );
    let all: Vec<_> = endings.into_values().collect();
    assert_eq!(world.standing(account).balance, FUNDS - taken(&all));
}

/// Checks that a report of the index has the days of the old tables.
fn check_sums(world: &World, account: &Account, old: &OldLedger) {
    let request = Request::get("/v1/usage?group_by=day").bearer(&account.key);
    let report = world.ask(&request).json();
    let days: HashSet<_> = old
        .spent_by_day
        .iter()
        .map(|(day, _)| day.as_str())
        .collect();
    let row = |row: &Value| {
        let tokens = |class: &str| row["tokens"][class].as_i64().unwrap();
        let responses = row["responses"].as_i64().unwrap();
        let sums = [
            responses,
            micro(&row["credits"]),
            tokens("input"),
            tokens("output"),
        ];
        (row["day"].as_str().unwrap().to_owned(), sums)
    };
    let mut found: Vec<_> = report["data"].as_array().unwrap().iter().map(row).collect();
    found.retain(|(day, _)| days.contains(day.as_str()));
    found.sort();
    assert!(!found.is_empty() && found == old.spent_by_day, "{report}");
}
