//! `kill -9` under load: a client that received a whole answer was debited for it once, and nobody
//! was debited for anything else.
//!
//! The clients log the requests whose end they saw. After the last restart, the test compares that
//! log with the ledger. The control deletes the journal between kill and restart: then debits must
//! be missing, or the test proves nothing. The test kills ten times in the short run, and for five
//! minutes or `GATEWAY_KILL_SECONDS` in the long run.

use crate::account::{Account, micro, taken};
use crate::client::Connection;
use crate::surface::{BOTH, Surface};
use crate::world::{SOON, Simulator, World, wait_for, wait_until};
use serde_json::Value;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

pub const FUNDS: i64 = 1_000_000_000_000;
pub const CLIENTS_OF_A_KIND: usize = 2;
const MIN_KILLS: u64 = 10;
/// Minimum duration of the kills in the long run.
const LONG_KILLS: Duration = Duration::from_secs(300);
/// Interval of a client's requests in the short run. More requests than that would only take the
/// CPU from the other tests.
const CLIENT_INTERVAL: Duration = Duration::from_millis(25);
/// The same in tests that take some seconds however many requests there are.
const SLOW_CLIENT_INTERVAL: Duration = Duration::from_millis(250);
/// Shortest time that a refused client waits before it asks again.
const MIN_REFUSED_INTERVAL: Duration = Duration::from_millis(20);

/// The request that a client repeats.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Habit {
    Whole,
    Stream,
    /// The client leaves in the middle of a stream.
    Abort,
}

/// Request ids, by what the clients saw.
#[derive(Default)]
pub struct Log {
    /// The client saw the terminal event, or a complete JSON answer.
    pub whole: HashSet<String>,
    /// The time at which a client saw the end of each of them.
    pub finished: Vec<(Instant, String)>,
    /// When each of them began, and how long it took.
    pub took: Vec<(Instant, Duration)>,
    /// The client saw the head and then left of its own will.
    pub aborted: HashSet<String>,
    /// The client saw the head and no end: the gateway died.
    pub cut: HashSet<String>,
    /// All other answers; there should be none.
    pub odd: Vec<String>,
}

impl Log {
    pub fn add(&mut self, other: Self) {
        self.whole.extend(other.whole);
        self.finished.extend(other.finished);
        self.took.extend(other.took);
        self.aborted.extend(other.aborted);
        self.cut.extend(other.cut);
        self.odd.extend(other.odd);
    }

    /// Checks that no answer was odd or cut off, and that the ledger has all answers and this
    /// number of others once each, paid from [`FUNDS`]. Returns their endings.
    #[track_caller]
    pub fn is_in_ledger(&self, world: &World, account: &Account, others: usize) -> Vec<Value> {
        let (odd, cut) = (self.odd.len(), self.cut.len());
        assert!(odd == 0, "{odd} odd answers: {:?}", self.odd.first());
        assert!(cut == 0, "{cut} answers cut");
        let answers = self.whole.len() + others;
        let endings = wait_for("all to be in the ledger", SOON, || {
            Some(world.endings(account)).filter(|endings| endings.len() >= answers)
        });
        assert_eq!(
            endings.len(),
            answers,
            "every answer once, and nothing else"
        );
        assert_eq!(taken(&endings), FUNDS - world.standing(account).balance);
        endings
    }
}

/// What clients send, and how often.
#[derive(Clone, Copy)]
pub struct Load<'a> {
    /// A client uses one key after the other.
    pub keys: &'a [&'a str],
    pub habits: &'a [Habit],
    /// Shortest time from one request of a client to its next.
    pub interval: Duration,
    /// Number of whole answers of each edge before which the clients do not stop. If it is not 0,
    /// the edges must be able to answer in the end.
    pub min_whole: usize,
}

/// Stops the clients of an edge, and counts the whole responses that they got.
#[derive(Default)]
struct Progress {
    stop: AtomicBool,
    whole: AtomicUsize,
}

impl Load<'_> {
    /// One client: repeats its request until `stop`, also while the gateway is down.
    fn client(self, edge: u16, surface: Surface, habit: Habit, progress: &Progress) -> Log {
        let mut log = Log::default();
        let mut kept: Option<Connection> = None;
        // Clients that pause have long streams, so that a kill meets some.
        let stream = match self.interval.is_zero() {
            true => "events=3 gap_us=700 input=10 output=5",
            false => "events=3 gap_ms=20 input=10 output=5",
        };
        let requests = self.keys.iter().map(|key| match habit {
            Habit::Whole => surface.whole(key, "input=10 output=5"),
            Habit::Stream => surface.stream(key, stream),
            Habit::Abort => surface.stream(key, "events=6 gap_ms=2 input=10 output=5"),
        });
        let requests: Vec<_> = requests.map(|request| request.bytes()).collect();
        let mut requests = requests.iter().cycle();
        let mut due = Instant::now();
        while !progress.stop.load(Ordering::Relaxed) {
            let Some(mut connection) = kept.take().or_else(|| Connection::try_open(edge)) else {
                std::thread::sleep(Duration::from_millis(2));
                continue;
            };
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            let began = Instant::now();
            if !connection.send(requests.next().expect("a key")) {
                continue;
            }
            let Some(mut answer) = connection.try_begin() else {
                continue;
            };
            let id = answer.request_id();
            if habit == Habit::Abort && answer.status == 200 {
                connection.more(&mut answer);
                log.aborted.insert(id);
                due = began + self.interval;
                continue;
            }
            connection.finish(&mut answer);
            let is_whole = match habit {
                Habit::Whole => {
                    answer.status == 200 && serde_json::from_slice::<Value>(&answer.body).is_ok()
                }
                _ => surface.is_complete(&answer),
            };
            match (is_whole, answer.end() == Some(crate::client::End::Whole)) {
                (true, kept_alive) => {
                    log.finished.push((Instant::now(), id.clone()));
                    log.took.push((began, began.elapsed()));
                    log.whole.insert(id);
                    progress.whole.fetch_add(1, Ordering::Relaxed);
                    kept = kept_alive.then_some(connection);
                    due = began + self.interval;
                }
                (false, false) if answer.status == 200 => drop(log.cut.insert(id)),
                (false, _) => {
                    log.odd.push(format!("{} {}", answer.status, answer.text()));
                    std::thread::sleep(self.interval.max(MIN_REFUSED_INTERVAL));
                }
            }
        }
        log
    }

    /// Runs clients of each habit while `chaos` runs.
    pub fn run(self, edge: u16, chaos: impl FnOnce()) -> Log {
        let progress = &Progress::default();
        std::thread::scope(|scope| {
            let mut threads = Vec::new();
            for surface in BOTH {
                for &habit in self.habits {
                    for _ in 0..CLIENTS_OF_A_KIND {
                        let client = move || self.client(edge, surface, habit, progress);
                        threads.push(scope.spawn(client));
                    }
                }
            }
            // Stop the clients also if the chaos panics: else they would run forever.
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                chaos();
                wait_until("enough whole answers", 3 * SOON, || {
                    progress.whole.load(Ordering::Relaxed) >= self.min_whole
                });
            }));
            progress.stop.store(true, Ordering::Relaxed);
            let mut log = Log::default();
            threads
                .into_iter()
                .for_each(|thread| log.add(thread.join().unwrap()));
            outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            log
        })
    }

    /// Runs clients of each habit at two edges while `chaos` runs.
    pub fn run_at(self, [first, second]: [u16; 2], chaos: impl FnOnce()) -> Log {
        let mut other = Log::default();
        let mut log = self.run(first, || other = self.run(second, chaos));
        log.add(other);
        log
    }
}

/// Interval of a client's requests.
pub fn client_interval() -> Duration {
    if crate::is_long() {
        Duration::ZERO
    } else {
        CLIENT_INTERVAL
    }
}

/// Interval of a client's requests in a test that takes some seconds however many there are.
pub fn slow_client_interval() -> Duration {
    if crate::is_long() {
        Duration::ZERO
    } else {
        SLOW_CLIENT_INTERVAL
    }
}

/// Runs clients of each habit while `chaos` runs.
pub fn under_load(edge: u16, key: &str, habits: &[Habit], chaos: impl FnOnce()) -> Log {
    let load = Load {
        keys: &[key],
        habits,
        interval: Duration::ZERO,
        min_whole: 0,
    };
    load.run(edge, chaos)
}

/// Runs clients of each habit at two edges while `chaos` runs.
pub fn under_load_at(edges: [u16; 2], key: &str, habits: &[Habit], chaos: impl FnOnce()) -> Log {
    let load = Load {
        keys: &[key],
        habits,
        interval: client_interval(),
        min_whole: 0,
    };
    load.run_at(edges, chaos)
}

/// Waits until a vendor has had this number of calls more.
pub fn wait_for_calls(vendor: &Simulator, count: u64) {
    let before = vendor.calls();
    wait_until("more calls of the vendor", 3 * SOON, || {
        vendor.calls() >= before + count
    });
}

/// The account's endings by request id, and the number of duplicates.
pub fn by_id(world: &World, account: &Account) -> (HashMap<String, Value>, usize) {
    let endings = world.endings(account);
    let count = endings.len();
    let id = |ending: &Value| ending["request_id"].as_str().unwrap().to_owned();
    let by_id: HashMap<_, _> = endings
        .into_iter()
        .map(|ending| (id(&ending), ending))
        .collect();
    let doubled = count - by_id.len();
    (by_id, doubled)
}

/// The duration of the kills, if `GATEWAY_KILL_SECONDS` sets it.
pub fn asked_seconds() -> Option<Duration> {
    let asked = std::env::var("GATEWAY_KILL_SECONDS").ok();
    asked.map(|seconds| Duration::from_secs(seconds.parse().expect("a number of seconds")))
}

#[test]
fn kills_under_load_neither_lose_nor_double_a_debit() {
    kill_under_load(Duration::ZERO);
}

#[test]
#[ignore = "long kills: kill -9 under load for 5 minutes, or for GATEWAY_KILL_SECONDS"]
fn kills_under_load_for_minutes_neither_lose_nor_double_a_debit() {
    kill_under_load(asked_seconds().unwrap_or(LONG_KILLS));
}

/// Kills the gateway again and again for at least this time.
#[allow(clippy::print_stdout, reason = "figures for a person")]
fn kill_under_load(time: Duration) {
    const MIN_ANSWERS: usize = 300;
    let (mut world, account) = World::with_funds(FUNDS);
    let mut kills = 0;
    let mut restarts = Vec::new();
    let began = Instant::now();
    let load = Load {
        keys: &[&account.key],
        habits: &[Habit::Whole, Habit::Stream, Habit::Abort],
        interval: client_interval(),
        min_whole: MIN_ANSWERS,
    };
    let log = load.run(world.edge, || {
        while kills < MIN_KILLS || began.elapsed() < time {
            std::thread::sleep(Duration::from_millis(150 + kills * 7_919 % 500));
            world.kill();
            restarts.push(world.start_gateway());
            kills += 1;
        }
    });
    world.vendor.wait_idle();
    // The last requests may still be ending. The checks below report credit that is held or missing
    // after that.
    let settled = |world: &World| {
        let standing = world.standing(&account);
        let endings = world.endings(&account);
        (standing.held, FUNDS - standing.balance - taken(&endings))
    };
    let began_to_settle = Instant::now();
    while settled(&world) != (0, 0) && began_to_settle.elapsed() < SOON {
        std::thread::sleep(Duration::from_millis(20));
    }
    let (held, drift) = settled(&world);
    let (endings, doubled) = by_id(&world, &account);
    let of = |outcome: &str| -> HashSet<&String> {
        endings
            .iter()
            .filter(|(_, ending)| ending["outcome"] == outcome)
            .map(|(id, _)| id)
            .collect()
    };
    let (completed, interrupted) = (of("completed"), of("interrupted"));
    let unseen: Vec<_> = completed
        .iter()
        .filter(|id| !log.whole.contains(**id) && !log.aborted.contains(**id))
        .collect();
    let cut_after_debit = unseen.iter().filter(|id| log.cut.contains(***id)).count();
    restarts.sort();
    let (usual, slowest) = (restarts[restarts.len() / 2], restarts[restarts.len() - 1]);
    let lost = log
        .whole
        .iter()
        .filter(|id| !completed.contains(*id))
        .count();
    println!(
        "{kills} kills in {:?}: {} completed, {lost} lost, {doubled} doubled, {drift} µc drift, {held} µc held, restart \
         {usual:?}, the slowest {slowest:?}",
        began.elapsed(),
        log.whole.len(),
    );
    println!(
        "clients: {} aborted, {} cut; ledger: {} completed, {} client_left, {} interrupted; journalled but not seen whole: \
         {} ({cut_after_debit} of them begun)",
        log.aborted.len(),
        log.cut.len(),
        completed.len(),
        of("client_left").len(),
        interrupted.len(),
        unseen.len(),
    );
    assert!(
        log.odd.is_empty(),
        "{} odd answers: {:?}",
        log.odd.len(),
        &log.odd[..log.odd.len().min(3)]
    );
    assert_eq!(
        (lost, doubled, drift, held),
        (0, 0, 0, 0),
        "lost, doubled, drift, held"
    );
    assert!(log.whole.len() >= MIN_ANSWERS, "too few answers to tell");
    assert!(
        !interrupted.is_empty() && !log.cut.is_empty(),
        "no kill met a running request"
    );
    // At a kill, each client has at most one request in flight.
    let most = kills as usize * 2 * 3 * CLIENTS_OF_A_KIND / 2;
    assert!(
        unseen.len() <= most,
        "{} debits that no client saw the answer of",
        unseen.len()
    );
    for (id, ending) in &endings {
        let credits = micro(&ending["credits"]);
        match ending["outcome"].as_str().unwrap() {
            "completed" => assert!(credits > 0, "{ending}"),
            "client_left" => assert!(!log.whole.contains(id), "{ending}"),
            _ => assert_eq!(credits, 0, "{ending}"),
        }
    }
    // Checks the median: the slowest restart depends on the machine's other load. The median would
    // grow with the number of entries to replay.
    assert!(usual < Duration::from_secs(10), "a restart takes {usual:?}");
}

#[test]
fn without_the_journal_a_kill_does_lose_debits() {
    let (mut world, account) = World::with_funds(FUNDS);
    let mut lost = 0;
    for round in 0..40 {
        let log = under_load(
            world.edge,
            &account.key,
            &[Habit::Whole, Habit::Whole],
            || {
                std::thread::sleep(Duration::from_millis(150));
                world.kill();
            },
        );
        for boot in std::fs::read_dir(world.data_dir().join("journal")).unwrap() {
            std::fs::remove_dir_all(boot.unwrap().path()).unwrap();
        }
        world.start_gateway();
        let (endings, doubled) = by_id(&world, &account);
        assert_eq!(doubled, 0, "a request ended twice");
        lost = log
            .whole
            .iter()
            .filter(|id| !endings.contains_key(*id))
            .count();
        if lost > 0 {
            println!(
                "without the journal {lost} of {} answers were lost in round {round}",
                log.whole.len()
            );
            break;
        }
    }
    assert!(
        lost > 0,
        "the journal was deleted after 40 kills under load, and no answer was missed"
    );
}
