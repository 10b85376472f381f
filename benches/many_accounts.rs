//! Measures a gateway that bills many accounts, with many keys and conversations, over HTTP: what a
//! request costs, how many are settled, and how many are refused. `scripts/bench-money --accounts`
//! builds and runs this.
//!
//! The accounts are made through the library before the gateway starts. Each request is of a
//! random account and key, and its body repeats the beginning of one of the account's
//! conversations, by which the gateway recognizes it. At the end the ledger must have as many
//! debits as answers, and `verify` must find nothing. A refusal is counted and not sent again. Must
//! not compare wall-clock times: the machine may be busy.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::disallowed_methods
)]

#[allow(dead_code, reason = "shared with the other benchmarks")]
mod accounts;
#[allow(dead_code)]
#[path = "../tests/gateway/client.rs"]
mod client;
#[allow(dead_code, reason = "shared with the other benchmarks")]
mod meter;
#[allow(dead_code, reason = "shared with the other benchmarks")]
mod rig;

use accounts::{Holder, Shape, Turn, Turns};
use clap::Parser;
use client::{Connection, End, Request};
use meter::{Reading, Spent, per_second, thousandth};
use rig::{Process, free_port, wait_at_most, wait_for};
use serde_json::json;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const BODY_BYTES: usize = 1_024;
/// Each conversation is with one of these.
const MODELS: [&str; 3] = [
    "alpha-opus-4-7",
    "alpha-sonnet-4-6",
    "alpha-haiku-4-5-20251001",
];
/// Statuses of a gateway that admits nothing more; the messages protocol has one of its own.
const BUSY: u16 = 503;
const OVERLOADED: u16 = 529;
/// Longest time until the ledger has a whole backlog.
const SETTLED_WITHIN: Duration = Duration::from_secs(900);

/// Measures a gateway that bills many accounts over HTTP.
#[derive(Parser)]
#[command(name = "many_accounts")]
pub struct Options {
    /// The gateway's program
    gateway: PathBuf,
    /// Number of accounts
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..))]
    accounts: u64,
    /// Number of keys of each account
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=100))]
    keys: u64,
    /// Number of conversations at one time, of all accounts together; each account has at least one
    #[arg(long, default_value_t = 20_000)]
    conversations: u64,
    /// Turns of a conversation, on average
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    turns: u64,
    /// Number of connections
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..))]
    connections: u64,
    /// Requests per second [default: as many as are answered]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    rate: Option<u64>,
    /// Time for which requests are sent [default: 10]
    #[arg(long, conflicts_with = "requests", value_parser = clap::value_parser!(u64).range(1..))]
    seconds: Option<u64>,
    /// Number of requests to send, in place of a time
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    requests: Option<u64>,
}

#[allow(dead_code, reason = "a test calls `run`")]
fn main() {
    // Cargo adds this one.
    let arguments = std::env::args().filter(|argument| argument != "--bench");
    let (gateway, answered) = run(&Options::parse_from(arguments));
    gateway.compare(answered).unwrap();
    println!("\n{answered} whole answers, {answered} debits; `verify` found nothing");
}

/// Sends the requests and prints what they cost. Returns the gateway and the number of whole
/// answers.
pub fn run(options: &Options) -> (Gateway, u64) {
    let size = |number: u64| usize::try_from(number).unwrap();
    let shape = Shape {
        accounts: size(options.accounts),
        keys: size(options.keys),
        conversations: size(options.conversations),
        turns: options.turns,
    };
    let (gateway, holders) = Gateway::start(&options.gateway, &shape);
    let me = gateway.process.0.id();
    println!("load average before: {}\n", meter::load_average());
    meter::wait_until_it_rests(me);
    let (before, written) = (Reading::of(me), meter::written_bytes(me));
    let load = Load {
        edge: gateway.edge,
        holders,
        turns: Mutex::new(Turns::new(shape, 0)),
        rate: options.rate,
        requests: options.requests.unwrap_or(u64::MAX),
        time: match (options.requests, options.seconds) {
            (Some(_), _) => Duration::MAX,
            (None, seconds) => Duration::from_secs(seconds.unwrap_or(10)),
        },
        sent: AtomicU64::new(0),
        began: Instant::now(),
    };
    let answers = load.send(options.connections);
    let sent_in = load.began.elapsed();
    gateway.wait_until_settled();
    let settled_in = load.began.elapsed();
    meter::wait_until_it_rests(me);
    let row = Row {
        sent_in,
        settled_in,
        spent: Reading::of(me).since(&before),
        written: meter::written_bytes(me) - written,
    };
    let whole = answers.count(200);
    row.print(answers);
    println!("\nload average after: {}", meter::load_average());
    (gateway, whole)
}

/// A gateway with many accounts, and the simulated vendors behind it.
pub struct Gateway {
    process: Process,
    _vendor: Process,
    program: PathBuf,
    dir: TempDir,
    edge: u16,
    admin: u16,
}

impl Gateway {
    fn start(program: &PathBuf, shape: &Shape) -> (Self, Vec<Holder>) {
        let (vendor, simulator) = rig::simulator(Command::new(program), &[]);
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        let began = Instant::now();
        let holders = accounts::open_accounts(&data, shape);
        println!(
            "{} accounts with {} keys each made in {} s",
            shape.accounts,
            shape.keys,
            thousandth(u64::try_from(began.elapsed().as_millis()).unwrap())
        );
        let (edge, sidecar, admin) = (free_port(), free_port(), free_port());
        let file = dir.path().join("gateway.yaml");
        std::fs::write(&file, rig::config(&data, [edge, sidecar, admin, vendor])).unwrap();
        let mut command = Command::new(program);
        command.args(["run", "-c"]).arg(&file);
        // Each refusal would be a line of its log.
        let process = command.env("RUST_LOG", "off").spawn();
        let gateway = Self {
            process: Process(process.expect("start a gateway")),
            _vendor: simulator,
            program: program.clone(),
            dir,
            edge,
            admin,
        };
        wait_for("to be ready", || {
            client::try_ask(admin, &Request::get("/readyz"))
                .is_some_and(|answer| answer.status == 200)
        });
        (gateway, holders)
    }

    fn wait_until_settled(&self) {
        wait_at_most(SETTLED_WITHIN, "to settle", || {
            let metrics = client::ask(self.admin, &Request::get("/metrics")).text();
            metrics
                .lines()
                .any(|line| line == "gateway_journal_pending 0")
        });
    }

    /// Compares the ledger with the number of whole answers.
    ///
    /// # Errors
    /// Says how they differ, or what `verify` found.
    pub fn compare(&self, answered: u64) -> Result<(), String> {
        let config = self.dir.path().join("gateway.yaml");
        let verdict = rig::command(&self.program, &config, &["ledger", "verify"]);
        if verdict["findings"] != json!([]) {
            return Err(format!("`verify` found {}", verdict["findings"]));
        }
        if verdict["debits"] != answered {
            return Err(format!(
                "{} debits for {answered} whole answers",
                verdict["debits"]
            ));
        }
        Ok(())
    }
}

/// The requests to send.
struct Load {
    edge: u16,
    holders: Vec<Holder>,
    turns: Mutex<Turns>,
    rate: Option<u64>,
    requests: u64,
    time: Duration,
    sent: AtomicU64,
    began: Instant,
}

/// Time of each answer in µs, by status.
#[derive(Default)]
struct Answers(BTreeMap<u16, Vec<u64>>);

impl Load {
    fn send(&self, connections: u64) -> Answers {
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..connections)
                .map(|_| scope.spawn(|| self.send_on_one()))
                .collect();
            let mut all = Answers::default();
            for thread in threads {
                for (status, mut times) in thread.join().unwrap().0 {
                    all.0.entry(status).or_default().append(&mut times);
                }
            }
            all
        })
    }

    fn send_on_one(&self) -> Answers {
        let mut answers = Answers::default();
        let mut connection = Connection::open(self.edge);
        while let Some(due) = self.next() {
            let turn = self.turns.lock().unwrap().take();
            let request = self.request(turn);
            // With a rate, a late request waits too.
            let due = due.unwrap_or_else(Instant::now);
            let answer = loop {
                // The gateway may have closed a connection that was idle.
                if connection.send(&request)
                    && let Some(answer) = connection.try_answer()
                {
                    break answer;
                }
                connection = Connection::open(self.edge);
            };
            let time_us = u64::try_from(due.elapsed().as_micros()).unwrap();
            assert_eq!(answer.end(), Some(End::Whole), "{}", answer.text());
            assert!(
                matches!(answer.status, 200 | 429 | BUSY | OVERLOADED),
                "{}: {}",
                answer.status,
                answer.text()
            );
            answers.0.entry(answer.status).or_default().push(time_us);
            if answer.header("connection") == Some("close") {
                connection = Connection::open(self.edge);
            }
        }
        answers
    }

    /// Waits for the time of the next request, if there is a rate. Returns that time; `None` if
    /// no more are to be sent.
    fn next(&self) -> Option<Option<Instant>> {
        let number = self.sent.fetch_add(1, Ordering::Relaxed);
        let Some(rate) = self.rate else {
            let goes_on = number < self.requests && self.began.elapsed() < self.time;
            return goes_on.then_some(None);
        };
        let after = Duration::from_micros(number * 1_000_000 / rate);
        if number >= self.requests || after >= self.time {
            return None;
        }
        let due = self.began + after;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        Some(Some(due))
    }

    fn request(&self, turn: Turn) -> Vec<u8> {
        let holder = &self.holders[turn.account];
        let model = MODELS[usize::try_from(turn.conversation % 3).unwrap()];
        // Every turn repeats the first message.
        let opening = format!("Conversation {:016x} begins.", turn.conversation);
        let body = |filler: usize| {
            let text = format!(
                "[[sim input=200 output=50 events=10]] {}",
                "x".repeat(filler)
            );
            json!({
                "model": model, "max_tokens": 1_000, "messages": [
                    {"role": "user", "content": opening},
                    {"role": "assistant", "content": "It does."},
                    {"role": "user", "content": text},
                ],
            })
            .to_string()
        };
        let body = body(BODY_BYTES - body(0).len());
        Request::post("/v1/messages", body)
            .bearer(&holder.keys[turn.key].text)
            .bytes()
    }
}

impl Answers {
    fn count(&self, status: u16) -> u64 {
        self.0
            .get(&status)
            .map_or(0, |times| u64::try_from(times.len()).unwrap())
    }
}

/// What the requests have cost.
struct Row {
    sent_in: Duration,
    settled_in: Duration,
    spent: Spent,
    written: u64,
}

impl Row {
    fn print(&self, mut answers: Answers) {
        let [whole, limited, refused] = [200, 429, OVERLOADED].map(|status| answers.count(status));
        let refused = refused + answers.count(BUSY);
        assert!(whole > 0, "no request was answered");
        let per_entry = |ns: u64| thousandth(ns / whole);
        let times = answers.0.entry(200).or_default();
        let [p50, p99] = [50, 99].map(|percent| thousandth(meter::percentile(times, percent)));
        println!(
            "| 200 | 429 | 503 or 529 | answered/s | settled/s | writer µs | indexer µs | process µs \
             | written B | p50 ms | p99 ms |\n\
             |---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n\
             | {whole} | {limited} | {refused} | {} | {} | {} | {} | {} | {} | {p50} | {p99} |",
            per_second(whole, self.sent_in),
            per_second(whole, self.settled_in),
            per_entry(self.spent.writer_ns),
            per_entry(self.spent.indexer_ns),
            per_entry(self.spent.process_ns),
            self.written / whole,
        );
    }
}
