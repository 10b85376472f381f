//! Tests a shared store that fails in every way that Redis knows: running requests complete and are
//! debited once; new requests are refused at once with the right reason, or are served; and after
//! the fault everything works as before.
//!
//! A fleet goes through faults, one after the other. The first half of each row is its control: the
//! row fails if nobody notices the fault, or if the repair does not end it.

use crate::account::{Account, micro};
use crate::client::{Answer, Connection, Request};
use crate::shared::Fleet;
use crate::surface::{BOTH, Chat, Surface};
use crate::world::{Plan, SOON, World, free_port, wait_for, wait_until};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};
use test_world::redis::Server;

/// Maximum time of an answer that does not wait. It is in seconds because the machine may be busy.
/// The test prints the measured time.
const AT_ONCE: Duration = Duration::from_secs(30);
const FUNDS: i64 = 1_000_000_000;

/// What happens to new requests while the fault lasts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Work {
    /// The edge answers 503 or 529, and counts the failures under one of these reasons.
    Refused(&'static [&'static str]),
    GoesOn,
    /// The edge refuses for a moment, and then serves again without help.
    Heals,
}

struct Fault {
    name: &'static str,
    strike: fn(&mut Server) -> Option<Child>,
    heal: fn(&mut Server),
    work: Work,
}

fn cli(command: &'static [&'static str]) -> impl Fn(&mut Server) {
    move |redis| {
        let said = redis.cli(command);
        assert!(
            !said.starts_with("ERR") && !said.is_empty(),
            "{command:?}: {said}"
        );
    }
}

fn snapshot(redis: &Server) -> PathBuf {
    Path::new(redis.cli(&["config", "get", "dir"]).lines().nth(1).unwrap()).join("dump.rdb")
}

macro_rules! told {
    ($($word:expr),*) => { |redis| { cli(&[$($word),*])(redis); None } };
}
macro_rules! heals {
    ($($word:expr),*) => { |redis| cli(&[$($word),*])(redis) };
}

/// Faults of the process and its data.
const PROCESS_FAULTS: &[Fault] = &[
    Fault {
        name: "slow",
        strike: told!["client", "pause", "60000", "write"],
        heal: heals!["client", "unpause"],
        work: Work::Refused(&["store_timeout"]),
    },
    Fault {
        name: "a black hole",
        strike: |redis| {
            redis.signal("STOP");
            None
        },
        heal: |redis| redis.signal("CONT"),
        work: Work::Refused(&["store_timeout"]),
    },
    Fault {
        name: "gone",
        strike: |redis| {
            redis.kill();
            None
        },
        heal: Server::start_again,
        work: Work::Refused(&["store_unreachable"]),
    },
    Fault {
        name: "without its scripts",
        strike: told!["script", "flush"],
        heal: |_| (),
        work: Work::GoesOn,
    },
    Fault {
        name: "busy",
        strike: |redis| {
            redis.cli(&["config", "set", "busy-reply-threshold", "20"]);
            let script = redis.begin_cli(&["eval", "while true do end", "0"]);
            wait_until("the script to be in the way", SOON, || {
                redis.cli(&["ping"]).starts_with("BUSY")
            });
            Some(script)
        },
        heal: heals!["script", "kill"],
        work: Work::Refused(&["store_busy"]),
    },
    Fault {
        name: "reading its files",
        strike: |redis| {
            redis.cli(&[
                "eval",
                "for i=1,20000 do redis.call('set','filler:'..i,i) end",
                "0",
            ]);
            redis.kill();
            redis.begin_again_slowly(60);
            wait_until("the server to say so", SOON, || {
                redis.cli(&["ping"]).starts_with("LOADING")
            });
            None
        },
        heal: |redis| {
            wait_until("the server to have read its files", SOON, || {
                redis.cli(&["ping"]) == "PONG"
            });
            redis.cli(&[
                "eval",
                "for i=1,20000 do redis.call('del','filler:'..i) end",
                "0",
            ]);
        },
        work: Work::Refused(&["store_loading", "store_timeout"]),
    },
    Fault {
        name: "empty",
        strike: told!["flushall"],
        heal: |_| (),
        work: Work::Heals,
    },
];

/// Settings in which it works and refuses.
const SETTING_FAULTS: &[Fault] = &[
    Fault {
        name: "out of memory",
        strike: told!["config", "set", "maxmemory", "1mb"],
        heal: heals!["config", "set", "maxmemory", "0"],
        work: Work::Refused(&["store_out_of_memory"]),
    },
    Fault {
        name: "a replica now",
        strike: told!["replicaof", "127.0.0.1", "1"],
        heal: heals!["replicaof", "no", "one"],
        work: Work::Refused(&["store_read_only"]),
    },
    Fault {
        name: "a replica that says nothing without its primary",
        strike: |redis| {
            redis.cli(&["config", "set", "replica-serve-stale-data", "no"]);
            redis.cli(&["replicaof", "127.0.0.1", "1"]);
            None
        },
        heal: heals!["replicaof", "no", "one"],
        work: Work::Refused(&["store_no_primary"]),
    },
    Fault {
        name: "without enough replicas",
        strike: told!["config", "set", "min-replicas-to-write", "1"],
        heal: heals!["config", "set", "min-replicas-to-write", "0"],
        work: Work::Refused(&["store_no_replicas"]),
    },
    Fault {
        name: "unable to save",
        strike: |redis| {
            // A folder at the path of the snapshot, so that Redis cannot write it.
            std::fs::create_dir(snapshot(redis)).unwrap();
            redis.cli(&["config", "set", "save", "3600 1000000"]);
            redis.cli(&["bgsave"]);
            wait_until("the snapshot to fail", SOON, || {
                redis
                    .cli(&["info", "persistence"])
                    .contains("rdb_last_bgsave_status:err")
            });
            None
        },
        heal: |redis| {
            std::fs::remove_dir(snapshot(redis)).unwrap();
            redis.cli(&["config", "set", "save", ""]);
        },
        work: Work::Refused(&["store_misconf"]),
    },
    Fault {
        name: "behind a password",
        strike: |redis| {
            redis.cli(&["config", "set", "requirepass", "secret"]);
            redis.cli(&[
                "-a",
                "secret",
                "--no-auth-warning",
                "client",
                "kill",
                "type",
                "normal",
            ]);
            None
        },
        heal: heals![
            "-a",
            "secret",
            "--no-auth-warning",
            "config",
            "set",
            "requirepass",
            ""
        ],
        work: Work::Refused(&["store_auth"]),
    },
    Fault {
        name: "without the right to run scripts",
        strike: told!["acl", "setuser", "default", "-evalsha"],
        heal: heals!["acl", "setuser", "default", "+@all"],
        work: Work::Refused(&["store_forbidden"]),
    },
];

/// Requests that the vendor is answering.
struct Running(Vec<(Surface, Connection, Option<Answer>)>);

impl Running {
    /// Begins a stream and a whole answer at each edge.
    fn begin(fleet: &Fleet, account: &Account) -> Self {
        let mut running = Vec::new();
        for (surface, edge) in BOTH.into_iter().zip(&fleet.edges) {
            let (connection, answer) = edge
                .begin_stream(&surface.stream(&account.key, "events=12 hold=5 input=10 output=5"));
            running.push((surface, connection, Some(answer)));
            let mut connection = edge.connect();
            connection.send(
                &surface
                    .whole(&account.key, "hold=headers input=10 output=5")
                    .bytes(),
            );
            running.push((surface, connection, None));
        }
        fleet.sidecar.vendor.wait_busy(running.len() as u64);
        Self(running)
    }

    /// Checks that every request completes. Returns their ids and their total cost.
    fn end(self, fault: &str) -> (Vec<String>, i64) {
        let mut cost = 0;
        let ended = self.0.into_iter().map(|(surface, mut connection, begun)| {
            let is_stream = begun.is_some();
            let mut answer = begun.unwrap_or_else(|| connection.begin());
            connection.finish(&mut answer);
            let is_whole = if is_stream {
                surface.is_complete(&answer)
            } else {
                answer.status == 200
            };
            assert!(
                is_whole,
                "{fault}: {surface:?}, stream {is_stream}: {}",
                answer.text()
            );
            cost += surface.cost(10, 5);
            answer.request_id()
        });
        (ended.collect(), cost)
    }
}

fn ask(edge: &World, surface: Surface, account: &Account) -> (Answer, Duration) {
    let began = Instant::now();
    let answer = edge.ask(&surface.whole(&account.key, "input=10 output=5"));
    (answer, began.elapsed())
}

fn is_refusal(answer: &Answer) -> bool {
    answer.status == 503 || answer.status == 529
}

/// Sends new requests on both surfaces to every edge while the fault lasts. Returns the successful
/// ones, and the time of the slowest refusal.
fn new_work(fleet: &Fleet, account: &Account, fault: &Fault) -> (Vec<(Surface, String)>, Duration) {
    let (mut done, mut slowest) = (Vec::new(), Duration::ZERO);
    for _ in 0..2 {
        for edge in &fleet.edges {
            for surface in BOTH {
                let (answer, took) = ask(edge, surface, account);
                slowest = slowest.max(if is_refusal(&answer) {
                    took
                } else {
                    Duration::ZERO
                });
                assert!(took < AT_ONCE, "{}: answered after {took:?}", fault.name);
                match fault.work {
                    Work::Refused(_) => {
                        let busy = ((503, "server_error"), (529, "overloaded_error"));
                        surface.fails(&answer, busy.0, busy.1, Some("ledger_unavailable"));
                        assert_eq!(answer.header("retry-after"), Some("2"), "{}", fault.name);
                    }
                    Work::Heals if is_refusal(&answer) => {}
                    Work::GoesOn | Work::Heals => {
                        assert_eq!(answer.status, 200, "{}: {}", fault.name, answer.text());
                        done.push((surface, answer.request_id()));
                    }
                }
            }
        }
    }
    (done, slowest)
}

/// Checks that, during the fault, each edge reports that it is not ready, and why.
fn told(fleet: &Fleet, account: &Account, fault: &Fault, reasons: &[&str]) {
    for edge in &fleet.edges {
        wait_for(fault.name, SOON, || {
            let ready = crate::client::ask(edge.admin, &Request::get("/readyz"));
            (ready.status == 503 && ready.text().contains("shared store")).then_some(())
        });
        wait_until(fault.name, SOON, || {
            edge.metric("gateway_store_up", &[]) == 0.0
        });
        let counted = || {
            reasons
                .iter()
                .map(|reason| edge.metric("gateway_ledger_errors_total", &[reason]))
                .sum::<f64>()
        };
        wait_until(fault.name, SOON, || counted() > 0.0);
        // From now on no request waits for the store.
        let (answer, took) = ask(edge, Chat, account);
        eprintln!("  {}: refused in {took:?} once it is known", fault.name);
        assert!(is_refusal(&answer), "{}: {}", fault.name, answer.text());
    }
}

fn healed(fleet: &Fleet, account: &Account, fault: &Fault) -> Vec<(Surface, String)> {
    let mut asked = Vec::new();
    for edge in &fleet.edges {
        wait_for(
            &format!("{}: an edge to be ready again", fault.name),
            SOON,
            || edge.is_ready().then_some(()),
        );
        assert_eq!(edge.metric("gateway_store_up", &[]), 1.0, "{}", fault.name);
        let answer = wait_for(fault.name, SOON, || {
            let (answer, _) = ask(edge, Chat, account);
            (answer.status == 200).then_some(answer)
        });
        asked.push((Chat, answer.request_id()));
    }
    wait_until(fault.name, SOON, || fleet.sidecar.is_ready());
    asked
}

#[test]
fn whatever_befalls_the_stores_process_running_work_ends_whole_and_is_paid_once() {
    running_work_ends_whole(PROCESS_FAULTS);
}

#[test]
fn however_the_store_is_set_running_work_ends_whole_and_is_paid_once() {
    running_work_ends_whole(SETTING_FAULTS);
}

#[allow(clippy::print_stdout, reason = "figures for a person")]
fn running_work_ends_whole(faults: &[Fault]) {
    let mut fleet = Fleet::new();
    let account = fleet.funded(FUNDS);
    let rounds = if crate::is_long() { 5 } else { 1 };
    let (mut spent, mut all) = (0, Vec::new());
    for fault in (0..rounds).flat_map(|_| faults) {
        let began = Instant::now();
        let running = Running::begin(&fleet, &account);
        let mut helper = (fault.strike)(&mut fleet.redis);
        let (mut done, slowest) = new_work(&fleet, &account, fault);
        if let Work::Refused(reasons) = fault.work {
            told(&fleet, &account, fault, reasons);
        }
        fleet.sidecar.vendor.release();
        let (ended, cost) = running.end(fault.name);
        (fault.heal)(&mut fleet.redis);
        if let Some(helper) = &mut helper {
            helper.wait().unwrap();
        }
        done.extend(healed(&fleet, &account, fault));
        spent += cost
            + done
                .iter()
                .map(|(surface, _)| surface.cost(10, 5))
                .sum::<i64>();
        all.extend(ended);
        all.extend(done.into_iter().map(|(_, id)| id));
        let (balance, endings) = fleet.settled(&account, &all);
        assert_eq!(balance, FUNDS - spent, "{}: drift", fault.name);
        let free = endings
            .values()
            .filter(|ending| micro(&ending["credits"]) == 0);
        assert!(
            free.clone()
                .all(|ending| ending["outcome"] == "interrupted"),
            "{}: {:?}",
            fault.name,
            free.last()
        );
        println!(
            "{}: {:?}, the slowest refusal in {slowest:?}",
            fault.name,
            began.elapsed()
        );
    }
}

#[test]
fn what_starts_without_the_store_is_unready_until_it_is_there_and_judged() {
    let port = free_port();
    let store = format!("store: {{kind: redis, url: \"redis://127.0.0.1:{port}\"}}");
    let plan = |role| {
        Plan::default()
            .role(role)
            .edit("store: {kind: embedded}", &store)
    };
    let sidecar = plan("sidecar").begin();
    let edge = plan("edge")
        .sidecar(sidecar.sidecar)
        .endpoints(&[sidecar.vendor.port])
        .begin();
    let both = [&sidecar, &edge];
    let why = |world: &World| crate::client::try_ask(world.admin, &Request::get("/readyz"));
    for world in both {
        // Before that, the process reports that the gateway does not listen yet.
        wait_for("a process without its store", SOON, || {
            why(world).filter(|said| said.text().contains("shared store"))
        });
        assert_eq!(world.metric("gateway_store_up", &[]), 0.0);
    }
    let account = sidecar.funded(10_000_000);
    let (answer, took) = ask(&edge, Chat, &account);
    assert!(
        is_refusal(&answer) && took < AT_ONCE,
        "{} after {took:?}",
        answer.status
    );
    // A Redis that would lose its data on a restart: the edge admits nothing, and each process logs
    // the reason once.
    let redis = Server::start_on(port, &["--appendonly", "no"]);
    for world in both {
        wait_for("the server to be judged", SOON, || {
            why(world).filter(|said| said.text().contains("appendonly is no"))
        });
        assert!(world.metric("gateway_ledger_errors_total", &["store_refused"]) > 0.0);
        world.wait_log("appendonly is no");
        assert_eq!(
            world.log().matches("appendonly is no").count(),
            1,
            "{}",
            world.log()
        );
        assert!(!world.is_ready());
    }
    assert!(is_refusal(&ask(&edge, Chat, &account).0));
    let kept = redis.cli(&["keys", "*"]);
    assert!(
        kept.is_empty() || kept == "gw:{p0}:up",
        "more is kept there than what a probe left for a moment: {kept}"
    );
    redis.cli(&["config", "set", "appendonly", "yes"]);
    for world in both {
        wait_until("it to be set right", SOON, || world.is_ready());
        assert_eq!(world.metric("gateway_store_up", &[]), 1.0);
    }
    let credits = Request::get("/v1/credits").bearer(&account.key);
    wait_until("the key to be known", SOON, || {
        edge.ask(&credits).status == 200
    });
    edge.works(Chat, &account.key);
    sidecar.entered(&edge, &account);
    // An idle edge notices the failure as well.
    redis.signal("STOP");
    let began = Instant::now();
    wait_until("an idle edge to miss its store", SOON, || !edge.is_ready());
    println!("an idle edge misses its store after {:?}", began.elapsed());
    redis.signal("CONT");
    wait_until("an idle edge to have it again", SOON, || edge.is_ready());
    edge.close();
    sidecar.close();
}

/// Starts a gateway on a server that it must refuse. Returns its log.
fn refusal(role: &'static str, redis: &Server, url: &str) -> String {
    let store = format!(
        "store: {{kind: redis, url: \"{}\"}}",
        url.replace("PORT", &redis.port.to_string())
    );
    let mut world = Plan::default()
        .role(role)
        .edit("store: {kind: embedded}", &store)
        .begin();
    let code = world.wait_end(SOON);
    assert_ne!(code, 0, "{}", world.log());
    world.log()
}

#[test]
fn a_store_that_would_lose_money_is_refused_at_the_start_with_what_to_set() {
    let redis = Server::start();
    let plain = "redis://127.0.0.1:PORT";
    let refused = |url: &str, words: &[&str]| {
        for role in ["edge", "sidecar"] {
            let said = refusal(role, &redis, url);
            assert!(
                words.iter().all(|word| said.contains(word)),
                "{role}: {said}"
            );
        }
    };
    redis.cli(&["config", "set", "appendonly", "no"]);
    redis.cli(&["config", "set", "maxmemory", "100mb"]);
    redis.cli(&["config", "set", "maxmemory-policy", "allkeys-lru"]);
    refused(
        plain,
        &[
            "maxmemory-policy is allkeys-lru",
            "must be noeviction",
            "appendonly is no",
            "must be yes",
        ],
    );
    redis.cli(&["config", "set", "appendonly", "yes"]);
    redis.cli(&["config", "set", "maxmemory", "0"]);
    redis.cli(&["replicaof", "127.0.0.1", "1"]);
    refused(
        plain,
        &["read-only replica", "store.url", "replicaof no one"],
    );
    redis.cli(&["replicaof", "no", "one"]);
    redis.cli(&[
        "acl",
        "setuser",
        "weak",
        "on",
        ">pw",
        "~gw:*",
        "&gw:*",
        "+@all",
        "-@scripting",
    ]);
    refused(
        "redis://weak:pw@127.0.0.1:PORT",
        &["rights", "evalsha", "+@scripting"],
    );
    // Only the rights that the gateway's error message lists as the minimum.
    let rights = [
        "~gw:*",
        "&gw:*",
        "+@read",
        "+@write",
        "+@scripting",
        "+@pubsub",
        "+@connection",
        "+@transaction",
    ];
    let named = [
        "acl",
        "setuser",
        "fit",
        "on",
        ">pw",
        "+info",
        "+time",
        "+config|get",
    ];
    assert_eq!(redis.cli(&[&named[..], &rights[..]].concat()), "OK");
    let store = format!(
        "{{kind: redis, url: \"redis://fit:pw@127.0.0.1:{}\"}}",
        redis.port
    );
    let fleet = Fleet::on(redis, &store);
    let account = fleet.funded(FUNDS);
    let asked: Vec<_> = fleet
        .edges
        .iter()
        .map(|edge| edge.works(Chat, &account.key).request_id())
        .collect();
    fleet.settled(&account, &asked);
    for process in fleet.edges.iter().chain([&fleet.sidecar]) {
        assert!(!process.log().contains("NOPERM"), "{}", process.log());
    }
}

impl World {
    /// Waits until this sidecar's ledger has the entries of the requests that were sent to `edge`.
    fn entered(&self, edge: &World, account: &Account) -> Vec<Value> {
        wait_for("the ledger to have it", SOON, || {
            let endings = self.endings(account);
            (!endings.is_empty() && edge.standing(account).held == 0).then_some(endings)
        })
    }
}
