//! A ledger that is slower than its requests: admission slows, the account that floods is refused
//! before anyone else, and all is settled once when the ledger has caught up.
//!
//! A fail point makes each entry of the ledger take 100 ms, so that also a busy machine sends more
//! requests than the ledger enters. If the gateway is killed then, the next start enters what
//! waited.

use crate::account::Account;
use crate::client::{Answer, Connection};
use crate::failure_table::{Case, may_reach_clients};
use crate::h2::cpu_time;
use crate::surface::Chat;
use crate::world::{Plan, SOON, World, wait_for, wait_until};
use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// More than the slow ledger settles in an hour.
const SLOW_ENTRIES: &str = "crawl@ledger_entry:50000";
/// The lowest rate that admission reckons with, in entries per second. The slow ledger is no faster
/// however busy the machine is, so the bound is always the same number of requests.
const RATE: f64 = 10.0;
/// So long that a quarter of what the ledger enters meanwhile is more than all requests that follow
/// once the flood is refused: those that were admitted before, and the quiet account's.
const BOUND_SECONDS: u64 = 30;
/// More requests at one time than a wait of a second each slows down to the rate of the ledger.
const CLIENTS: usize = 32;
/// Clients that leave while they wait.
const LEAVING: usize = 10;
/// Requests of the quiet account. A loop of them would not be quiet for this ledger.
const QUIET: usize = 10;
/// For a machine on which the gateway is hardly faster than the slow ledger.
const PATIENCE: Duration = Duration::from_secs(90);
const MS: Duration = Duration::from_millis(1);
/// CPU time that the longest start after a kill may take: 65 536 requests, in the dev profile.
const MAX_START: Duration = Duration::from_secs(10);

/// What the clients of one account saw.
#[derive(Default)]
struct Seen {
    answered: AtomicUsize,
    refused: AtomicUsize,
    /// Answers that no client should get.
    odd: Mutex<Vec<String>>,
}

impl Seen {
    fn add(&self, answer: &Answer) {
        match answer.status {
            200 => self.answered.fetch_add(1, Ordering::Relaxed),
            429 if is_refusal(answer) => self.refused.fetch_add(1, Ordering::Relaxed),
            _ => {
                self.odd.lock().unwrap().push(answer.text());
                0
            }
        };
    }
}

fn is_refusal(answer: &Answer) -> bool {
    let seconds = answer
        .header("retry-after")
        .and_then(|value| value.parse::<u64>().ok());
    answer.json()["error"]["code"] == "rate_limit_exceeded"
        && seconds.is_some_and(|seconds| (1..=30).contains(&seconds))
}

/// Sends one request after the other until `stop`.
fn send_until(world: &World, account: &Account, seen: &Seen, stop: &AtomicBool) {
    let request = Chat.whole(&account.key, "input=10 output=5").bytes();
    let mut connection = world.connect();
    while !stop.load(Ordering::Relaxed) {
        connection.send(&request);
        let mut answer = connection.begin();
        connection.finish(&mut answer);
        seen.add(&answer);
        if answer.status != 200 {
            connection = world.connect();
            // Hundreds of refusals a second would only take the CPU from the gateway.
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

/// Lets the gateway measure the ledger. Until then it assumes a rate, and a program that is fast
/// enough takes more than the bound before the first measurement.
#[expect(clippy::float_arithmetic, reason = "metrics are floats")]
fn measure_ledger(world: &World, account: &Account, seen: &Seen) {
    // A commit of few is not measured.
    const AT_ONCE: usize = 64;
    let ask = || seen.add(&world.ask(&Chat.whole(&account.key, "input=10 output=5")));
    let pending = || world.metric("gateway_journal_pending", &[]);
    let is_measured = || {
        ask();
        let pending = pending();
        pending > 0.0 && backlog_seconds(world) * RATE >= pending
    };
    while !is_measured() {
        std::thread::scope(|scope| {
            (0..AT_ONCE).for_each(|_| drop(scope.spawn(ask)));
        });
        wait_until("the ledger to be idle", PATIENCE, || pending() == 0.0);
    }
}

fn backlog_seconds(world: &World) -> f64 {
    world.metric("gateway_ledger_backlog_seconds", &[])
}

fn outcomes(world: &World, outcome: &str) -> f64 {
    let label = format!("outcome=\"{outcome}\"");
    world.metric("gateway_ledger_backlog_total", &[&label])
}

#[test]
fn a_flooding_account_is_slowed_and_then_refused_while_a_quiet_one_is_served() {
    let plan = Plan::default()
        .limit("ledger_backlog_seconds", BOUND_SECONDS)
        .limit("open_requests_per_account", 512)
        .environment("GW_FAIL", SLOW_ENTRIES);
    let world = plan.start();
    let flood = world.funded(100_000_000_000);
    let quiet = world.account();
    let (of_flood, of_quiet, stop) = (Seen::default(), Seen::default(), AtomicBool::new(false));
    measure_ledger(&world, &quiet, &of_quiet);
    let mut waiting: Vec<Connection> = Vec::new();
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| send_until(&world, &flood, &of_flood, &stop));
        }
        // If an assertion fails, the threads must end.
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            wait_until("the flood to be slowed", PATIENCE, || {
                backlog_seconds(&world) >= 0.45 * BOUND_SECONDS as f64
            });
            assert!(outcomes(&world, "delayed") > 0.0);
            // These leave while they wait.
            let request = Chat.whole(&flood.key, "input=10 output=5").bytes();
            waiting.extend((0..LEAVING).map(|_| {
                let mut connection = world.connect();
                connection.send(&request);
                connection
            }));
            waiting.clear();
            wait_for("one that left to be noticed", SOON, || {
                let left = world.metric("gateway_rejected_total", &["reason=\"invalid_request\""]);
                (left > 0.0).then_some(())
            });
            wait_until("the flood to be refused", PATIENCE, || {
                of_flood.refused.load(Ordering::Relaxed) >= 50
            });
            for _ in 0..QUIET {
                of_quiet.add(&world.ask(&Chat.whole(&quiet.key, "input=10 output=5")));
            }
            let refused = Case::of_bytes("LedgerBacklog", &flood.key, 0);
            let served = may_reach_clients(&world, &[200], || refused.to_vec());
            of_flood.answered.fetch_add(served, Ordering::Relaxed);
            assert!(world.is_ready(), "{:?}", world.readiness());
        }));
        stop.store(true, Ordering::Relaxed);
        outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    assert_eq!(*of_quiet.odd.lock().unwrap(), [""; 0]);
    assert_eq!(of_quiet.refused.load(Ordering::Relaxed), 0);
    assert_eq!(*of_flood.odd.lock().unwrap(), [""; 0], "nobody gets 503");
    assert_eq!(outcomes(&world, "refused_full"), 0.0);
    assert!(outcomes(&world, "refused_share") >= 50.0);

    wait_until("the ledger to catch up", PATIENCE, || {
        world.metric("gateway_journal_pending", &[]) == 0.0
    });
    assert_eq!(backlog_seconds(&world), 0.0);
    for (account, seen) in [(&flood, &of_flood), (&quiet, &of_quiet)] {
        let debits = world.endings(account);
        let whole = debits
            .iter()
            .filter(|debit| debit["outcome"] == "completed");
        // On a busy machine, some of those that left were served before that was noticed.
        let leaving = if account.id == flood.id { LEAVING } else { 0 };
        let (whole, answered) = (whole.count(), seen.answered.load(Ordering::Relaxed));
        assert!(
            (answered..=answered + leaving).contains(&whole),
            "{whole} of {answered}"
        );
    }
    let delayed = outcomes(&world, "delayed");
    world.works(Chat, &flood.key);
    assert_eq!(outcomes(&world, "delayed"), delayed, "admission is open");
    for text in [
        "the gateway slows new requests",
        "the gateway refuses accounts that send more than their share",
        "the ledger has caught up",
    ] {
        // Once for each time that the backlog passes a bound, not for each request. On a busy
        // machine it may do that several times.
        let count = world.log().matches(text).count();
        assert!((1..=10).contains(&count), "{text}: {count} times");
    }
}

#[test]
fn a_start_after_a_kill_with_a_full_backlog_debits_each_request_once() {
    start_after_a_kill(600);
}

#[test]
#[ignore = "long load: a start that enters 65 536 requests of a backlog, about 5 minutes"]
fn a_start_after_a_kill_with_a_backlog_of_65_536_debits_each_request_once() {
    start_after_a_kill(65_536);
}

/// Kills a gateway when this number of ended requests wait, and starts it again.
#[allow(clippy::print_stdout, reason = "figures for a person")]
fn start_after_a_kill(full: u32) {
    // Admission does not slow before a quarter of the bound.
    let plan = Plan::default()
        .limit("keepalive_requests", 1_000_000)
        .limit("ledger_backlog_seconds", 3_600)
        .limit("journal_pending", u64::from(full) * 5);
    let mut world = plan.start();
    let account = world.funded(100_000_000_000);
    world.kill();
    // A busy machine may send hardly more than the slow ledger settles, and fills the backlog of
    // one that crawls. The long variant would meet the bound on a backlog that takes so long.
    let effect = if crate::is_long() { "slow" } else { "crawl" };
    world.start_failing(Some(&format!("{effect}@ledger_entry:1000000")));
    let (seen, stop, began) = (Seen::default(), AtomicBool::new(false), Instant::now());
    let waiting = std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| send_until(&world, &account, &seen, &stop));
        }
        // If the wait fails, the threads must end.
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            wait_for(
                "the backlog to be full",
                PATIENCE.max(full * 10 * MS),
                || {
                    let waiting = world.metric("gateway_journal_pending", &[]);
                    (waiting >= f64::from(full)).then_some(waiting)
                },
            )
        }));
        stop.store(true, Ordering::Relaxed);
        outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    println!("{waiting} endings wait after {:?}", began.elapsed());
    assert_eq!(*seen.odd.lock().unwrap(), [""; 0]);
    world.kill();

    let began = Instant::now();
    world.begin_gateway(None);
    wait_until("the gateway to be ready", PATIENCE, || world.is_ready());
    let start = cpu_time(world.pid());
    let answered = seen.answered.load(Ordering::Relaxed);
    let all = wait_for("each request to be debited", PATIENCE, || {
        Some(world.endings(&account)).filter(|all| all.len() >= answered)
    });
    println!(
        "ready after {start:?} of CPU time, {answered} debits after {:?}",
        began.elapsed()
    );
    assert!(start <= MAX_START, "{start:?}");
    let completed = all.iter().filter(|ending| ending["outcome"] == "completed");
    let ids: HashSet<_> = all
        .iter()
        .map(|ending| ending["request_id"].as_str())
        .collect();
    assert_eq!(
        (completed.count(), ids.len(), all.len()),
        (answered, answered, answered)
    );
}
