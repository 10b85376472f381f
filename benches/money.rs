//! Measures the cost of billing: CPU time per request of a gateway that bills and of one that does
//! not (`benches/unbilled.rs`), in one run. `scripts/bench-money` builds the two programs and runs
//! this.
//!
//! `money BILLED UNBILLED [SECONDS [ROUNDS]]`: both gateways stand in front of one simulated
//! vendor. 16 connections send requests for whole answers and for streams to the two gateways in
//! turns. The result is the CPU time of the gateway's process, including the ledger writer's
//! thread, until the ledger has all entries. At the end the ledger must have as many debits as
//! answers for the first gateway, and none for the second. Must not measure wall-clock time,
//! because the machine may be busy.
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
#[allow(dead_code, reason = "shared with the other benchmarks")]
mod rig;

use client::{Connection, End, Request};
use rig::{Process, free_port, wait_for};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const CONNECTIONS: usize = 16;
const BODY_BYTES: usize = 1_024;
const MODEL: &str = "alpha-haiku-4-5-20251001";
/// A gateway with an account that can pay for everything.
struct Gateway {
    process: Process,
    /// The program with the commands, which bills.
    commands: PathBuf,
    dir: TempDir,
    edge: u16,
    admin: u16,
    key: String,
    answered: u64,
}

fn main() {
    let mut arguments = std::env::args()
        .skip(1)
        .filter(|argument| argument != "--bench");
    let mut program = || {
        PathBuf::from(
            arguments
                .next()
                .expect("money BILLED UNBILLED [SECONDS [ROUNDS]]"),
        )
    };
    let (billed, unbilled) = (program(), program());
    let mut number = |default| {
        arguments
            .next()
            .map_or(default, |text| text.parse::<u64>().expect("a number"))
    };
    let (seconds, rounds) = (number(5), number(5));
    let (vendor, _simulator) = rig::simulator(Command::new(&billed), &[]);
    let mut gateways = [
        Gateway::start(Command::new(&billed).args(["run", "-c"]), &billed, vendor),
        Gateway::start(&mut Command::new(&unbilled), &billed, vendor),
    ];
    println!(
        "CPU per request, {CONNECTIONS} connections, {BODY_BYTES} byte requests, {seconds} s a turn\n"
    );
    println!("| answers | round | requests | billed µs | unbilled µs | difference µs | ratio |");
    println!("|---|---:|---:|---:|---:|---:|---:|");
    for stream in [false, true] {
        let what = if stream { "streamed" } else { "whole" };
        for gateway in &mut gateways {
            // Warm up: connections, caches and pages that the first requests need.
            gateway.drive(stream, Duration::from_secs(1));
        }
        let mut costs = Vec::new();
        for round in 1..=rounds {
            // The order alternates with each round.
            let order = if round % 2 == 0 { [1, 0] } else { [0, 1] };
            let (mut cost, mut requests) = ([0; 2], 0);
            for index in order {
                let (count, ns) = gateways[index].drive(stream, Duration::from_secs(seconds));
                cost[index] = ns / count;
                requests += count;
            }
            println!("| {what} | {round} | {requests} | {} |", row(cost));
            costs.push(cost);
        }
        let median = [0, 1].map(|index| {
            let mut all: Vec<_> = costs.iter().map(|cost| cost[index]).collect();
            all.sort_unstable();
            all[all.len() / 2]
        });
        println!("| {what} | **median** | | {} |", row(median));
    }
    let [billed, unbilled] = gateways;
    let (debits, answered) = (billed.finish(), billed.answered);
    assert_eq!(
        debits, answered,
        "the billed gateway did not debit each answer once"
    );
    assert_eq!(unbilled.finish(), 0, "the other gateway billed");
    println!(
        "\n{answered} answers billed, {debits} debits; {} answers unbilled, 0 debits",
        unbilled.answered
    );
}

/// `billed | unbilled | difference | ratio` of two costs in ns.
fn row([billed, unbilled]: [u64; 2]) -> String {
    let micros = |ns: i64| {
        format!(
            "{}{}.{}",
            if ns < 0 { "-" } else { "" },
            ns.abs() / 1_000,
            ns.abs() % 1_000 / 100
        )
    };
    let (on, off) = (
        i64::try_from(billed).unwrap(),
        i64::try_from(unbilled).unwrap(),
    );
    let percent = billed * 100 / unbilled.max(1);
    format!(
        "{} | {} | {} | {}.{:02}",
        micros(on),
        micros(off),
        micros(on - off),
        percent / 100,
        percent % 100
    )
}

impl Gateway {
    /// Starts a gateway by `start`, which needs the path of the config file as its last argument.
    fn start(start: &mut Command, commands: &Path, vendor: u16) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (edge, sidecar, admin) = (free_port(), free_port(), free_port());
        let file = dir.path().join("gateway.yaml");
        std::fs::write(
            &file,
            rig::config(&dir.path().join("data"), [edge, sidecar, admin, vendor]),
        )
        .unwrap();
        let process = Process(
            start
                .arg(&file)
                .env("RUST_LOG", "error")
                .spawn()
                .expect("start a gateway"),
        );
        let is_ready = || {
            client::try_ask(admin, &Request::get("/readyz"))
                .is_some_and(|answer| answer.status == 200)
        };
        wait_for("to be ready", is_ready);
        let key = rig::funded_key(commands, &file, "bench@example.test", "9000000000");
        Self {
            process,
            commands: commands.to_owned(),
            dir,
            edge,
            admin,
            key,
            answered: 0,
        }
    }

    fn command(&self, args: &[&str]) -> Value {
        rig::command(&self.commands, &self.dir.path().join("gateway.yaml"), args)
    }

    fn request(&self, stream: bool) -> Vec<u8> {
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
        Request::post("/v1/messages", body)
            .bearer(&self.key)
            .bytes()
    }

    /// Sends requests on all connections for `time`. Returns the number of answers and their CPU
    /// time in ns.
    fn drive(&mut self, stream: bool, time: Duration) -> (u64, u64) {
        let (request, answers) = (self.request(stream), AtomicU64::new(0));
        let before = self.process.cpu_ns();
        let until = Instant::now() + time;
        std::thread::scope(|scope| {
            for _ in 0..CONNECTIONS {
                scope.spawn(|| {
                    let mut connection = Connection::open(self.edge);
                    while Instant::now() < until {
                        assert!(connection.send(&request), "a gateway closed a connection");
                        let answer = connection.answer();
                        assert_eq!(
                            (answer.status, answer.end()),
                            (200, Some(End::Whole)),
                            "{}",
                            answer.text()
                        );
                        assert!(
                            !stream || answer.has("event: message_stop"),
                            "{}",
                            answer.text()
                        );
                        answers.fetch_add(1, Ordering::Relaxed);
                        if answer.header("connection") == Some("close") {
                            connection = Connection::open(self.edge);
                        }
                    }
                });
            }
        });
        // The cost includes the work that the ledger writer still has to do.
        wait_for("to settle", || {
            let metrics = client::ask(self.admin, &Request::get("/metrics")).text();
            metrics
                .lines()
                .any(|line| line == "gateway_journal_pending 0")
        });
        let cpu_ns = self.process.cpu_ns() - before;
        let count = answers.into_inner();
        self.answered += count;
        assert!(
            count > 0 && cpu_ns > 0,
            "nothing was measured: {count} answers, {cpu_ns} ns"
        );
        (count, cpu_ns)
    }

    /// Number of debits in the ledger, which must pass `verify`.
    fn finish(&self) -> u64 {
        let verdict = self.command(&["ledger", "verify"]);
        assert_eq!(verdict["findings"], json!([]), "{verdict}");
        verdict["debits"].as_u64().unwrap()
    }
}
