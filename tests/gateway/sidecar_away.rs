//! Tests edges without a sidecar: they keep serving, the entries wait in the store and in the
//! edges' journals, and all are in the ledger soon after the sidecar is back. The number of waiting
//! entries, and their bytes, are limited: near the limit the gateway slows requests and then
//! refuses them, and it logs that before it does.
//!
//! The sidecar is away for four seconds in the short run, and for two minutes in the long run.

use crate::account::Account;
use crate::client::{self, Answer};
use crate::crash::FUNDS;
use crate::shared::Fleet;
use crate::surface::Chat;
use crate::world::{Plan, SOON, World, wait_for, wait_until};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use test_world::redis::Server;

const AWAY: Duration = Duration::from_secs(4);
const LONG_AWAY: Duration = Duration::from_secs(120);
/// All entries must be in the ledger within this time after the sidecar's return.
const DRAINED_WITHIN: Duration = Duration::from_secs(180);
/// Size of a file of the journals. Each edge fills more than one while the sidecar is away.
const JOURNAL_FILE_BYTES: u64 = 65_536;
/// The smallest values that the config allows.
const PENDING_MOST: u64 = 1_024;
const BYTES_MOST: u64 = 1_048_576;
/// Requests that are under way at once when the bound is met: they may all wait beyond it.
const CLIENTS: usize = 48;

fn fleet(edge_plan: impl Fn(Plan) -> Plan) -> Fleet {
    let redis = Server::start();
    let way = format!("127.0.0.1:{}", redis.port);
    Fleet::through(redis, &way, [&way, &way], edge_plan)
}

fn pending(edge: &World) -> f64 {
    edge.metric("gateway_journal_pending", &[])
}

fn is_refused(answer: &Answer) -> bool {
    answer.status == 429 && answer.header("retry-after").is_some()
}

fn oldest(edge: &World) -> f64 {
    edge.metric("gateway_journal_oldest_seconds", &[])
}

/// Bytes and number of files of an edge's journal.
fn journal(edge: &World) -> (u64, usize) {
    let (mut bytes, mut files) = (0, 0);
    for boot in std::fs::read_dir(edge.data_dir().join("journal")).unwrap() {
        for file in std::fs::read_dir(boot.unwrap().path())
            .into_iter()
            .flatten()
            .flatten()
        {
            if file
                .path()
                .extension()
                .is_some_and(|extension| extension == "log")
            {
                bytes += file.metadata().map_or(0, |metadata| metadata.len());
                files += 1;
            }
        }
    }
    (bytes, files)
}

#[test]
fn edges_go_on_without_the_sidecar_and_all_is_in_the_ledger_soon_after_its_return() {
    go_on_without_the_sidecar(AWAY);
}

#[test]
#[ignore = "long installation: edges without a sidecar for 2 minutes"]
fn edges_go_on_for_minutes_without_the_sidecar_and_all_is_in_the_ledger_soon_after_its_return() {
    go_on_without_the_sidecar(LONG_AWAY);
}

/// Kills the sidecar under load, and starts it again after at least this time.
#[allow(
    clippy::print_stdout,
    clippy::float_arithmetic,
    reason = "figures for a person, and of metrics"
)]
fn go_on_without_the_sidecar(min_away: Duration) {
    let mut fleet = fleet(|plan| {
        plan.limit("journal_segment_bytes", JOURNAL_FILE_BYTES)
            .limit("journal_pending", 1_048_576)
    });
    let account = fleet.funded(FUNDS);
    fleet.sidecar.kill();
    let (mut told, mut away) = (Vec::new(), Duration::ZERO);
    let log = fleet.under_load(&account, |fleet| {
        let began = Instant::now();
        wait_for("the journals to grow", min_away + SOON, || {
            let are_long = fleet.edges.iter().all(|edge| {
                let (bytes, files) = journal(edge);
                bytes > JOURNAL_FILE_BYTES && files > 1
            });
            (are_long && began.elapsed() >= min_away).then_some(())
        });
        away = began.elapsed();
        told = fleet
            .edges
            .iter()
            .map(|edge| (pending(edge), oldest(edge), journal(edge)))
            .collect();
        // On a busy machine a request can time out waiting for the store. No request is refused
        // because the sidecar is away.
        let works = |edge: &World| {
            edge.ask(&Chat.whole(&account.key, "input=10 output=5"))
                .status
                == 200
        };
        fleet
            .edges
            .iter()
            .for_each(|edge| wait_until("an answer", SOON, || works(edge)));
    });
    let began = Instant::now();
    fleet.sidecar.start_gateway();
    wait_until("all endings to be in the ledger", DRAINED_WITHIN, || {
        fleet.edges.iter().all(|edge| pending(edge) == 0.0)
    });
    let drained = began.elapsed();
    println!(
        "away for {away:?}: {} answers whole, {} refused; at the end pending, oldest, journal bytes and files: {told:?}; \
         all in the ledger {drained:?} after its start",
        log.whole.len(),
        log.odd.len()
    );
    let waited: f64 = told.iter().map(|(pending, ..)| pending).sum();
    assert!(
        waited >= log.whole.len() as f64 * 0.9,
        "{waited} waited of {}",
        log.whole.len()
    );
    for (edge, (_, before, _)) in fleet.edges.iter().zip(told) {
        // The first request came shortly after the sidecar was killed.
        assert!(
            before >= away.as_secs_f64() - 3.0 && before <= away.as_secs_f64() + 20.0,
            "the oldest is {before} s old after {away:?}"
        );
        assert_eq!(oldest(edge), 0.0);
        wait_until("the journal to be one file", SOON, || journal(edge).1 == 1);
    }
    fleet.matches(&account, &log);
}

/// Sends an edge this number of requests, over some connections: each waits up to a second where
/// admission is slowed.
fn ask_many(edge: &World, account: &Account, most: usize) {
    let bytes = Chat.whole(&account.key, "input=10 output=5").bytes();
    let (port, bytes, asked) = (edge.edge, &bytes, &AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(move || {
                let mut connection = client::Connection::open(port);
                while asked.fetch_add(1, Ordering::Relaxed) < most {
                    connection.send(bytes);
                    let mut answer = connection.begin();
                    connection.finish(&mut answer);
                    assert!(
                        matches!(answer.status, 200 | 503) || is_refused(&answer),
                        "{}",
                        answer.text()
                    );
                    // On a busy machine a request can time out waiting for the store.
                    if answer.status != 200 {
                        connection = client::Connection::open(port);
                    }
                }
            });
        }
    });
}

/// Sends requests until the edge refuses the account because of what waits.
fn ask_until_refused(edge: &World, account: &Account) {
    let request = Chat.whole(&account.key, "input=10 output=5");
    let began = Instant::now();
    while !is_refused(&edge.ask(&request)) {
        assert!(began.elapsed() < DRAINED_WITHIN, "the bound is never met");
        ask_many(edge, account, 2 * CLIENTS);
    }
}

#[test]
fn what_may_wait_for_the_ledger_has_a_bound_that_is_told_before_it_is_met() {
    let mut fleet = fleet(|plan| plan.limit("journal_pending", PENDING_MOST));
    let account = fleet.funded(FUNDS);
    let warnings = |fleet: &Fleet| {
        fleet.edges[0]
            .log()
            .matches("ended requests wait for the ledger")
            .count()
    };
    fleet.sidecar.kill();
    ask_many(&fleet.edges[0], &account, 200);
    assert!(pending(&fleet.edges[0]) <= 200.0 + CLIENTS as f64);
    assert_eq!(warnings(&fleet), 0, "there is room");
    let delayed = || fleet.edges[0].metric("gateway_ledger_backlog_total", &["\"delayed\""]);
    assert_eq!(delayed(), 0.0);
    let request = Chat.whole(&account.key, "input=10 output=5");
    ask_until_refused(&fleet.edges[0], &account);
    // An account that is alone is refused at three quarters, which leaves room for others.
    let waiting = pending(&fleet.edges[0]);
    assert!(
        (0.75 * PENDING_MOST as f64..0.8 * PENDING_MOST as f64).contains(&waiting),
        "{waiting} wait"
    );
    assert!(
        delayed() > 0.0 && warnings(&fleet) == 2,
        "slowed, then refused"
    );
    fleet.edges[1].works(Chat, &account.key);
    assert_eq!(warnings(&fleet), 2, "told once");
    fleet.sidecar.start_gateway();
    wait_until("the edge to admit again", DRAINED_WITHIN, || {
        fleet.edges[0].ask(&request).status == 200
    });
    wait_until("all endings to be in the ledger", DRAINED_WITHIN, || {
        fleet.edges.iter().all(|edge| pending(edge) == 0.0)
    });
    fleet.settled(&account, &[]);
}

#[test]
fn what_may_wait_for_the_ledger_has_a_bound_in_bytes_too() {
    let mut fleet = fleet(|plan| plan.limit("journal_bytes", BYTES_MOST));
    let account = fleet.funded(FUNDS);
    let edge = &fleet.edges[0];
    let waiting = |edge: &World| edge.metric("gateway_journal_bytes", &[]);
    fleet.sidecar.kill();
    ask_until_refused(edge, &account);
    let bytes = waiting(edge);
    let bound = BYTES_MOST as f64;
    assert!(
        (0.75 * bound..0.8 * bound).contains(&bytes) && pending(edge) < 2_000.0,
        "{bytes} bytes of {} requests wait",
        pending(edge)
    );
    let (on_disk, _) = journal(edge);
    println!("{bytes} bytes wait, and the journal has {on_disk}");
    assert!(on_disk as f64 <= bytes, "{on_disk} bytes in the journal");
    fleet.sidecar.start_gateway();
    let request = Chat.whole(&account.key, "input=10 output=5");
    wait_until("the edge to admit again", DRAINED_WITHIN, || {
        fleet.edges[0].ask(&request).status == 200
    });
    wait_for("nothing to wait", DRAINED_WITHIN, || {
        let edges = &fleet.edges;
        edges.iter().all(|edge| waiting(edge) == 0.0).then_some(())
    });
    fleet.settled(&account, &[]);
}
