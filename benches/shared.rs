//! Measures the cost of a request when edges share a store: commands, bytes, memory and CPU time of
//! Redis, and CPU time of the edge and of the sidecar, on this machine. `scripts/bench-redis`
//! builds the program and runs this.
//!
//! `shared PROGRAM [SECONDS [ROUNDS]]`: one edge, one sidecar and one Redis in front of a simulated
//! vendor take turns with a single process that has an embedded store. 16 connections send requests
//! for whole answers and for streams. The figures of Redis are read before and after each turn, and
//! those of an idle time of the same length are subtracted, because edges and the sidecar also send
//! commands on their own. A turn ends when the ledger has all entries. At the end the ledger must
//! have as many debits as answers. Must not measure wall-clock time, because the machine may be
//! busy.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::disallowed_methods
)]

#[allow(dead_code)]
#[path = "../tests/gateway/client.rs"]
mod client;
mod rig;

use client::{Connection, End, Request};
use rig::{Process, free_port, wait_for};
use serde_json::json;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const CONNECTIONS: usize = 16;
const BODY_BYTES: usize = 1_024;
const MODEL: &str = "alpha-haiku-4-5-20251001";
/// Number of accounts, so that all partitions are used.
const ACCOUNTS: usize = 32;

/// A gateway that gets requests, and the keys to send.
struct Door {
    port: u16,
    /// Port of the metrics, which show the entries that the ledger does not have yet.
    admin: u16,
    keys: Vec<String>,
    answered: u64,
}

struct Fleet {
    edge: Process,
    sidecar: Process,
    redis: Process,
    program: PathBuf,
    dir: TempDir,
    ports: Ports,
    door: Door,
}

/// The whole service in one process.
struct Embedded {
    process: Process,
    program: PathBuf,
    dir: TempDir,
    door: Door,
}

#[derive(Clone, Copy)]
struct Ports {
    edge: u16,
    edge_admin: u16,
    sidecar: u16,
    sidecar_admin: u16,
    redis: u16,
    vendor: u16,
}

/// Counters of all processes so far.
#[derive(Clone, Default)]
struct Done {
    commands: BTreeMap<String, u64>,
    redis_in: u64,
    redis_out: u64,
    redis_memory: u64,
    redis_cpu_ns: u64,
    edge_cpu_ns: u64,
    sidecar_cpu_ns: u64,
    edge_resident_kib: u64,
}

fn main() {
    let mut arguments = std::env::args()
        .skip(1)
        .filter(|argument| argument != "--bench");
    let program = PathBuf::from(arguments.next().expect("shared PROGRAM [SECONDS [ROUNDS]]"));
    let mut number = |default| {
        arguments
            .next()
            .map_or(default, |text| text.parse::<u64>().expect("a number"))
    };
    let (seconds, rounds) = (number(5), number(3));
    let (vendor, _simulator) = rig::simulator(Command::new(&program), &[]);
    let mut embedded = Embedded::start(program.clone(), vendor);
    let mut fleet = Fleet::start(program, vendor);
    println!(
        "{CONNECTIONS} connections, {BODY_BYTES} byte requests, {ACCOUNTS} accounts, {seconds} s a turn\n"
    );
    println!(
        "| answers | requests | Redis: calls of scripts | all commands | bytes in | bytes out | bytes kept | CPU µs | edge CPU µs | sidecar CPU µs | embedded CPU µs |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|");
    for stream in [false, true] {
        let what = if stream { "streamed" } else { "whole" };
        // Warm up: connections, caches and pages that the first requests need.
        fleet.door.drive(stream, Duration::from_secs(1));
        embedded.door.drive(stream, Duration::from_secs(1));
        let mut commands = BTreeMap::new();
        let mut quietest = u128::MAX;
        for _ in 0..rounds {
            let began = Instant::now();
            let before = fleet.done();
            let (requests, refused) = fleet.door.drive(stream, Duration::from_secs(seconds));
            let after = fleet.done();
            // Work that also happens in an idle time of the same length does not belong to the
            // requests.
            let pause = began.elapsed();
            std::thread::sleep(pause);
            let idle = fleet.done();
            // Beside the script that each request waits for, only the sidecar calls EXISTS, at any
            // time a few times a second.
            let waited = [&before, &after, &idle]
                .map(|done| done.commands.get("exists").copied().unwrap_or(0));
            let waited = (waited[1] - waited[0]).saturating_sub(waited[2] - waited[1]);
            let margin = 20 + requests / 100;
            assert!(
                (requests - margin..=requests + refused + margin).contains(&waited),
                "{waited} round trips of {requests} requests"
            );
            let [busy, quiet] = [&after, &idle].map(|done| done.commands.values().sum::<u64>());
            quietest = quietest.min(u128::from(quiet - busy) * 1_000 / pause.as_millis());
            let alone = embedded.cpu_of_a_request(stream, Duration::from_secs(seconds));
            println!(
                "| {what} | {requests} | {} | {alone} |",
                row(requests, &before, &after, &idle)
            );
            commands = per_request(requests, &before, &after, &idle);
        }
        let named: Vec<_> = commands
            .iter()
            .filter(|(_, count)| count.as_str() != "0.00")
            .collect();
        println!("\n{what}, commands of a request: {named:?}");
        println!("commands a second while nothing happens: {quietest}\n");
    }
    println!("edge {} KiB resident", fleet.done().edge_resident_kib);
    for (debits, answered) in [
        (fleet.finish(), fleet.door.answered),
        (embedded.finish(), embedded.door.answered),
    ] {
        assert_eq!(debits, answered, "not each answer was debited once");
        println!("{answered} answers, {debits} debits");
    }
}

/// Formats hundredths as a decimal.
fn hundredths(value: u64) -> String {
    format!("{}.{:02}", value / 100, value % 100)
}

/// A counter's increase per request, in hundredths, minus the increase in an idle time.
fn each(requests: u64, of: impl Fn(&Done) -> u64, [before, after, idle]: [&Done; 3]) -> u64 {
    let busy = of(after).saturating_sub(of(before));
    busy.saturating_sub(of(idle).saturating_sub(of(after))) * 100 / requests
}

fn row(requests: u64, before: &Done, after: &Done, idle: &Done) -> String {
    let of =
        |count: &dyn Fn(&Done) -> u64| hundredths(each(requests, count, [before, after, idle]));
    let cpu = |count: &dyn Fn(&Done) -> u64| {
        hundredths(each(requests, count, [before, after, idle]) / 1_000)
    };
    let scripts = of(&|done| done.commands.get("evalsha").copied().unwrap_or(0));
    let all = of(&|done| done.commands.values().sum());
    // This memory is not freed when a request ends, so no idle time is subtracted.
    let kept = hundredths(after.redis_memory.saturating_sub(before.redis_memory) * 100 / requests);
    [
        scripts,
        all,
        of(&|done| done.redis_in),
        of(&|done| done.redis_out),
        kept,
        cpu(&|done| done.redis_cpu_ns),
        cpu(&|done| done.edge_cpu_ns),
        cpu(&|done| done.sidecar_cpu_ns),
    ]
    .join(" | ")
}

fn per_request(
    requests: u64,
    before: &Done,
    after: &Done,
    idle: &Done,
) -> BTreeMap<String, String> {
    let count = |name: &String| {
        hundredths(each(
            requests,
            |done| done.commands.get(name).copied().unwrap_or(0),
            [before, after, idle],
        ))
    };
    after
        .commands
        .keys()
        .map(|name| (name.clone(), count(name)))
        .collect()
}

fn is_ready(admin: u16) -> bool {
    client::try_ask(admin, &Request::get("/readyz")).is_some_and(|answer| answer.status == 200)
}

impl Ports {
    fn config(self, dir: &Path, role: &str) -> PathBuf {
        let admin = if role == "edge" {
            self.edge_admin
        } else {
            self.sidecar_admin
        };
        let text = rig::config(
            &dir.join(role),
            [self.edge, self.sidecar, admin, self.vendor],
        );
        let store = format!(
            "store: {{kind: redis, url: \"redis://127.0.0.1:{}\"}}",
            self.redis
        );
        let file = dir.join(format!("{role}.yaml"));
        std::fs::write(&file, text.replace("store: {kind: embedded}", &store)).unwrap();
        file
    }
}

impl Door {
    /// Creates accounts that can pay, and waits until the gateway knows their keys.
    fn open(port: u16, admin: u16, program: &Path, config: &Path) -> Self {
        let account = |number| {
            let key = rig::funded_key(
                program,
                config,
                &format!("bench-{number}@example.test"),
                "900000000",
            );
            let credits = Request::get("/v1/credits").bearer(&key);
            wait_for("for a key to be known", || {
                client::ask(port, &credits).status == 200
            });
            key
        };
        Self {
            port,
            admin,
            keys: (0..ACCOUNTS).map(account).collect(),
            answered: 0,
        }
    }

    fn request(stream: bool, key: &str) -> Vec<u8> {
        let body = |filler: usize| {
            let text = format!(
                "[[sim input=200 output=50 events=10]] {}",
                "x".repeat(filler)
            );
            json!({
                "model": MODEL, "max_tokens": 1_000, "stream": stream, "messages": [{"role": "user", "content": text}],
            })
            .to_string()
        };
        let body = body(BODY_BYTES - body(0).len());
        assert_eq!(body.len(), BODY_BYTES);
        Request::post("/v1/messages", body).bearer(key).bytes()
    }

    /// Sends requests on all connections for `time`, and waits until the ledger has all entries.
    /// Returns the number of answers and of refusals.
    fn drive(&mut self, stream: bool, time: Duration) -> (u64, u64) {
        let requests: Vec<_> = self
            .keys
            .iter()
            .map(|key| Self::request(stream, key))
            .collect();
        let (answers, until) = (AtomicU64::new(0), Instant::now() + time);
        let refused = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for number in 0..CONNECTIONS {
                let (requests, answers, refused, edge) = (&requests, &answers, &refused, self.port);
                scope.spawn(move || {
                    let mut connection = Connection::open(edge);
                    let own = requests
                        .iter()
                        .cycle()
                        .skip(number * ACCOUNTS / CONNECTIONS);
                    for request in own.take_while(|_| Instant::now() < until) {
                        assert!(connection.send(request), "a connection was closed");
                        let answer = connection.answer();
                        // After `limits.keepalive_requests`.
                        if answer.header("connection") == Some("close") {
                            connection = Connection::open(edge);
                        }
                        if answer.status == 529 {
                            // On a busy machine the shared store may answer too late.
                            refused.fetch_add(1, Ordering::Relaxed);
                            continue;
                        }
                        assert_eq!(
                            (answer.status, answer.end()),
                            (200, Some(End::Whole)),
                            "{}",
                            answer.text()
                        );
                        answers.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        wait_for("to be in the ledger", || {
            let metrics = client::ask(self.admin, &Request::get("/metrics")).text();
            metrics
                .lines()
                .any(|line| line == "gateway_journal_pending 0")
        });
        let count = answers.into_inner();
        let refused = refused.into_inner();
        self.answered += count;
        assert!(count > 0, "nothing was measured");
        if refused > 0 {
            println!(
                "({refused} requests were refused, since the machine is too busy: these numbers are worth little)"
            );
        }
        (count, refused)
    }
}

/// Number of debits in the ledger, which must pass `verify`.
fn debits(program: &Path, config: &Path) -> u64 {
    let verdict = rig::command(program, config, &["ledger", "verify"]);
    assert_eq!(verdict["findings"], json!([]), "{verdict}");
    verdict["debits"].as_u64().unwrap()
}

impl Embedded {
    fn start(program: PathBuf, vendor: u16) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let [edge, sidecar, admin] = [free_port(), free_port(), free_port()];
        let file = dir.path().join("gateway.yaml");
        std::fs::write(
            &file,
            rig::config(dir.path(), [edge, sidecar, admin, vendor]),
        )
        .unwrap();
        let mut command = Command::new(&program);
        command
            .args(["run", "-c"])
            .arg(&file)
            .env("RUST_LOG", "error");
        let process = Process(command.spawn().expect("start the program"));
        wait_for("for the gateway to be ready", || is_ready(admin));
        let door = Door::open(edge, admin, &program, &file);
        Self {
            process,
            program,
            dir,
            door,
        }
    }

    /// CPU time per request in µs, minus that of an idle time of the same length.
    fn cpu_of_a_request(&mut self, stream: bool, time: Duration) -> String {
        let (began, before) = (Instant::now(), self.process.cpu_ns());
        let (requests, _) = self.door.drive(stream, time);
        let busy = self.process.cpu_ns() - before;
        std::thread::sleep(began.elapsed());
        let idle = self.process.cpu_ns() - before - busy;
        hundredths(busy.saturating_sub(idle) / 10 / requests)
    }

    fn finish(&self) -> u64 {
        debits(&self.program, &self.dir.path().join("gateway.yaml"))
    }
}

impl Fleet {
    fn start(program: PathBuf, vendor: u16) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let port = free_port;
        let ports = Ports {
            edge: port(),
            edge_admin: port(),
            sidecar: port(),
            sidecar_admin: port(),
            redis: port(),
            vendor,
        };
        let mut redis = Command::new("redis-server");
        redis.args([
            "--port",
            &ports.redis.to_string(),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "yes",
        ]);
        let redis = redis
            .arg("--dir")
            .arg(dir.path())
            .stdout(Stdio::null())
            .spawn()
            .expect("start redis-server");
        let redis = Process(redis);
        wait_for("Redis to answer", || cli(ports.redis, &["PING"]) == "PONG");
        let start = |role: &str| {
            let mut command = Command::new(&program);
            command
                .arg(role)
                .arg("-c")
                .arg(ports.config(dir.path(), role))
                .env("RUST_LOG", "error");
            Process(command.spawn().expect("start the program"))
        };
        let sidecar = start("sidecar");
        wait_for("the sidecar to be ready", || is_ready(ports.sidecar_admin));
        let edge = start("edge");
        wait_for("the edge to be ready", || is_ready(ports.edge_admin));
        let door = Door::open(
            ports.edge,
            ports.edge_admin,
            &program,
            &dir.path().join("sidecar.yaml"),
        );
        Self {
            edge,
            sidecar,
            redis,
            program,
            dir,
            ports,
            door,
        }
    }

    /// The config of the sidecar, which has the ledger.
    fn config(&self) -> PathBuf {
        self.dir.path().join("sidecar.yaml")
    }

    fn done(&self) -> Done {
        let info = cli(self.ports.redis, &["INFO", "everything"]);
        let field = |name: &str| {
            let line = info
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.unwrap_or_default().trim().to_owned()
        };
        let count = |name: &str| field(name).parse::<u64>().unwrap();
        let commands = info.lines().filter_map(|line| {
            let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
            Some((name.to_owned(), rest.split(',').next()?.parse().ok()?))
        });
        Done {
            commands: commands.collect(),
            redis_in: count("total_net_input_bytes"),
            redis_out: count("total_net_output_bytes"),
            redis_memory: count("used_memory"),
            redis_cpu_ns: self.redis.cpu_ns(),
            edge_cpu_ns: self.edge.cpu_ns(),
            sidecar_cpu_ns: self.sidecar.cpu_ns(),
            edge_resident_kib: self.edge.resident_kib(),
        }
    }

    fn finish(&self) -> u64 {
        debits(&self.program, &self.config())
    }
}

fn cli(port: u16, command: &[&str]) -> String {
    let output = Command::new("redis-cli")
        .args(["-p", &port.to_string()])
        .args(command)
        .output()
        .unwrap();
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}
