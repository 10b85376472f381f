//! Measures what the gateway adds: it takes turns with a direct connection, nginx and a bare
//! Pingora proxy, in one run. `scripts/bench` builds what is needed and runs this.
//!
//! `speed GATEWAY BARE NGINX|- SECONDS ROUNDS JSON [UNBILLED]`: the measured system has a core of
//! its own; the simulated vendor and the load share another. CPU is the process's own, from
//! `/proc`; ratios compare medians of the same rounds, and each row says how much of the machine
//! other work used meanwhile. With `UNBILLED`, peers take part, and the gateway with many accounts,
//! without billing, and in front of a vendor that speaks HTTP/2. Must not judge the results: the
//! table shows what was measured, and `docs/speed.md` has the targets.
//!
//! `speed vendors GATEWAY SECONDS ROUNDS`: the gateway in front of vendors that speak HTTP/1.1 and
//! HTTP/2.
//!
//! `speed instructions GATEWAY RECORD keep|write [PATTERN]`: instructions per request, compared
//! with the recorded ones (`speed/instructions.rs`).
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::disallowed_methods
)]
#![allow(clippy::float_arithmetic)]

#[allow(dead_code, reason = "shared with the other benchmarks")]
mod accounts;
#[path = "speed/instructions.rs"]
mod instructions;
#[path = "speed/load.rs"]
mod load;
#[allow(dead_code, reason = "shared with the other benchmarks")]
mod meter;
#[path = "speed/others.rs"]
mod others;
#[path = "speed/peers.rs"]
mod peers;
mod rig;
#[path = "speed/system.rs"]
mod system;
#[path = "speed/ways.rs"]
mod ways;

use load::{Load, Streams};
use others::MachineReading;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use system::{System, Vendor};
use ways::{
    CROSSED, CROSSED_BACK, MESSAGES, MESSAGES_RESPONSES, PASSED, RESPONSES, RESPONSES_CHAT,
    RESPONSES_MESSAGES, Way,
};

struct Case {
    way: Way,
    bytes: usize,
    connections: usize,
}

const fn case(way: Way, bytes: usize, connections: usize) -> Case {
    Case {
        way,
        bytes,
        connections,
    }
}

const CASES: [Case; 18] = [
    case(PASSED, 1_024, 1),
    case(PASSED, 1_024, 16),
    case(PASSED, 1_024, 64),
    case(MESSAGES, 1_024, 16),
    case(CROSSED, 1_024, 16),
    case(CROSSED_BACK, 1_024, 16),
    case(RESPONSES, 1_024, 16),
    case(RESPONSES_MESSAGES, 1_024, 16),
    case(RESPONSES_CHAT, 1_024, 16),
    case(MESSAGES_RESPONSES, 1_024, 16),
    case(PASSED, 65_536, 16),
    case(MESSAGES, 65_536, 16),
    case(CROSSED, 65_536, 16),
    case(RESPONSES, 65_536, 16),
    case(RESPONSES_MESSAGES, 65_536, 16),
    case(PASSED, 1_048_576, 1),
    case(MESSAGES, 1_048_576, 1),
    case(CROSSED, 1_048_576, 1),
];

/// Events of each stream, 20 ms apart.
const EVENTS: usize = 100;
const STREAMS: [(Way, usize); 6] = [
    (PASSED, 50),
    (MESSAGES, 50),
    (CROSSED, 50),
    (RESPONSES, 50),
    (RESPONSES_MESSAGES, 50),
    (PASSED, 500),
];

/// Numbers of concurrent streams to try, until one is too many.
const STREAM_COUNTS: [usize; 6] = [100, 250, 500, 800, 1_000, 1_500];
const LATE_US: f64 = 20_000.0;

const CPU_OF_REQUEST: &str = "CPU µs/request";
const CPU_OF_EVENT: &str = "CPU µs/event";
/// The measure of how quiet the machine was.
const OTHERS: &str = "% of a core for others";

/// All values of each case and measure, by system.
#[derive(Default)]
struct Figures(BTreeMap<(String, &'static str), BTreeMap<&'static str, Vec<f64>>>);

impl Figures {
    fn record(&mut self, case: &str, measure: &'static str, system: &'static str, value: f64) {
        self.0
            .entry((case.to_owned(), measure))
            .or_default()
            .entry(system)
            .or_default()
            .push(value);
    }

    /// Adds to each request, and to each event by its part of a stream, what the indexer takes for
    /// one request.
    fn add_indexing(&mut self, system: &System) {
        let indexing = system.indexing_us();
        for ((_, measure), by_system) in &mut self.0 {
            let part = match *measure {
                CPU_OF_REQUEST => indexing,
                CPU_OF_EVENT => indexing / EVENTS as f64,
                _ => continue,
            };
            if let Some(values) = by_system.get_mut(system.name) {
                values.iter_mut().for_each(|value| *value += part);
            }
        }
        self.record("all", "indexer's µs/request", system.name, indexing);
    }

    fn print(&self, systems: &[&'static str]) {
        let references =
            ["nginx", "bare", "aisix"].map(|name| systems.contains(&name).then_some(name));
        let references: Vec<_> = references.into_iter().flatten().collect();
        print!("\n| case | measure | {} |", systems.join(" | "));
        for reference in &references {
            print!(" gateway ÷ {reference} |");
        }
        println!(
            "\n|---|---|{}",
            "---:|".repeat(systems.len() + references.len())
        );
        for ((case, measure), by_system) in &self.0 {
            let of = |system| by_system.get(system).map(|values| median(values));
            let ratio = |to| match (of("gateway"), of(to)) {
                _ if *measure == OTHERS => String::new(),
                (Some(one), Some(other)) if other > 0.0 => format!("{:.2}", one / other),
                _ => String::new(),
            };
            let cells = systems
                .iter()
                .map(|system| of(system).map_or_else(String::new, |value| format!("{value:.1}")));
            let ratios = references.iter().map(|reference| ratio(reference));
            let cells = cells.chain(ratios).collect::<Vec<_>>().join(" | ");
            println!("| {case} | {measure} | {cells} |");
        }
    }

    fn json(&self) -> Value {
        let rows = self.0.iter().map(|((case, measure), by_system)| {
            let medians = by_system.iter().map(|(system, values)| ((*system).to_owned(), json!(median(values))));
            json!({"case": case, "measure": measure, "medians": Value::Object(medians.collect()), "rounds": by_system})
        });
        rows.collect()
    }
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len().is_multiple_of(2) {
        f64::midpoint(sorted[middle - 1], sorted[middle])
    } else {
        sorted[middle]
    }
}

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args()
        .skip(1)
        .filter(|argument| argument != "--bench")
        .collect();
    let words: Vec<_> = arguments.iter().map(String::as_str).collect();
    if let ["instructions", gateway, record, mode, pattern @ ..] = words.as_slice() {
        let pattern = pattern.first().copied().unwrap_or_default();
        let is_good = instructions::run(
            Path::new(gateway),
            Path::new(record),
            *mode == "write",
            pattern,
        );
        return if is_good {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        };
    }
    if let ["vendors", gateway, seconds, rounds] = words.as_slice() {
        let seconds = Duration::from_secs(seconds.parse().expect("seconds"));
        compare_vendors(Path::new(gateway), seconds, rounds.parse().expect("rounds"));
        return ExitCode::SUCCESS;
    }
    compare(arguments);
    ExitCode::SUCCESS
}

/// Compares the gateway in front of vendors that speak HTTP/1.1 without TLS, HTTP/1.1 over TLS, and
/// HTTP/2 over TLS.
fn compare_vendors(gateway: &Path, seconds: Duration, rounds: usize) {
    let dir = tempfile::tempdir().expect("a folder");
    let (plain, _plain) = system::simulator(gateway);
    let (tls, _tls) = system::tls_simulator(gateway, dir.path());
    let authority = dir.path().join("ca.pem");
    let over = |version| System::gateway(gateway, Vendor::Tls(tls, version, &authority));
    let systems = [
        System::gateway(gateway, Vendor::Plain(plain)).named("HTTP/1.1"),
        over(1).named("HTTP/1.1 over TLS"),
        over(2).named("HTTP/2 over TLS"),
    ];
    let mut figures = Figures::default();
    for system in &systems {
        Load::of(system, PASSED, 1_024).drive(16, Duration::from_secs(1));
    }
    for round in 0..rounds {
        for (bytes, connections) in [(1_024, 1), (1_024, 16), (1_024, 64), (1_048_576, 1)] {
            for system in in_turn(&systems, round) {
                measure(
                    &mut figures,
                    system,
                    &case(PASSED, bytes, connections),
                    seconds,
                );
            }
        }
        for count in [50, 500] {
            for system in in_turn(&systems, round) {
                measure_streams(&mut figures, system, PASSED, count);
            }
        }
        println!("round {} of {rounds} done", round + 1);
    }
    systems
        .iter()
        .for_each(|system| figures.add_indexing(system));
    figures.print(&systems.each_ref().map(|system| system.name));
}

fn compare(arguments: Vec<String>) {
    let mut arguments = arguments.into_iter();
    let mut next = || {
        arguments
            .next()
            .expect("speed GATEWAY BARE NGINX|- SECONDS ROUNDS JSON [UNBILLED]")
    };
    let (gateway, bare, nginx) = (PathBuf::from(next()), PathBuf::from(next()), next());
    let seconds = Duration::from_secs(next().parse().expect("seconds"));
    let (rounds, out) = (next().parse::<usize>().expect("rounds"), next());
    let unbilled = arguments.next().map(PathBuf::from);
    let (vendor, _simulator) = system::simulator(&gateway);
    let plain = Vendor::Plain(vendor);
    let mut systems = vec![System::direct(vendor)];
    if nginx != "-" {
        systems.push(System::nginx(&nginx, vendor));
    }
    systems.push(System::bare(&bare, plain));
    let dir = tempfile::tempdir().expect("a folder");
    let mut _tls_simulator = None;
    if let Some(unbilled) = &unbilled {
        systems.extend(peers::installed(vendor));
        let (tls, simulator) = system::tls_simulator(&gateway, dir.path());
        _tls_simulator = Some(simulator);
        let authority = dir.path().join("ca.pem");
        let h2 = Vendor::Tls(tls, 2, &authority);
        systems.push(System::bare(&bare, h2).named("bare, HTTP/2 vendor"));
        systems.push(System::gateway(&gateway, h2).named("gateway, HTTP/2 vendor"));
        systems.push(System::gateway_of_many(&gateway, plain));
        systems.push(System::unbilled_of_many(unbilled, plain));
    }
    systems.push(System::gateway(&gateway, plain));
    let names: Vec<_> = systems.iter().map(|system| system.name).collect();
    let mut figures = Figures::default();
    memory_and_start(&mut figures, &systems);
    for system in &systems {
        // Warm up: connections, caches and pages that the first requests need.
        Load::of(system, PASSED, 1_024).drive(16, Duration::from_secs(1));
    }
    for round in 0..rounds {
        for case in &CASES {
            for system in
                in_turn(&systems, round).filter(|system| system.supports(case.way, case.bytes, 0))
            {
                measure(&mut figures, system, case, seconds);
            }
        }
        for (way, count) in STREAMS {
            for system in in_turn(&systems, round).filter(|system| system.supports(way, 0, count)) {
                measure_streams(&mut figures, system, way, count);
            }
        }
        for system in &systems {
            // Noted in each round, to show growth.
            figures.record("after a round", "RSS MB", system.name, system.rss_mb());
        }
        println!("round {} of {rounds} done", round + 1);
    }
    for system in systems
        .iter()
        .filter(|system| system.supports(PASSED, 0, STREAM_COUNTS[0]))
    {
        figures.record(
            "streams held",
            "streams",
            system.name,
            streams_held(system) as f64,
        );
    }
    systems
        .iter()
        .for_each(|system| figures.add_indexing(system));
    figures.print(&names);
    std::fs::write(out, format!("{:#}\n", figures.json())).expect("write the JSON");
}

/// The order reverses with each round.
fn in_turn(systems: &[System], round: usize) -> Box<dyn Iterator<Item = &System> + '_> {
    if round.is_multiple_of(2) {
        Box::new(systems.iter())
    } else {
        Box::new(systems.iter().rev())
    }
}

fn measure(figures: &mut Figures, system: &System, case: &Case, seconds: Duration) {
    let load = Load::of(system, case.way, case.bytes);
    let (machine, before) = (MachineReading::now(), system.cpu_us());
    let done = load.drive(case.connections, seconds);
    system.settle();
    let cpu = system.cpu_us() - before;
    let name = format!(
        "{} {} KB, {} conn",
        case.way.name,
        case.bytes / 1_024,
        case.connections
    );
    figures.record(&name, CPU_OF_REQUEST, system.name, cpu / done.count as f64);
    figures.record(
        &name,
        "req/s",
        system.name,
        done.count as f64 / done.elapsed.as_secs_f64(),
    );
    figures.record(&name, "p50 µs", system.name, done.percentile(50));
    figures.record(&name, "p99 µs", system.name, done.percentile(99));
    figures.record(&name, OTHERS, system.name, machine.others_percent());
}

fn measure_streams(figures: &mut Figures, system: &System, way: Way, count: usize) {
    let idle_mb = system.rss_mb();
    let streams = Streams::of(system, way, count, EVENTS);
    let (machine, before) = (MachineReading::now(), system.cpu_us());
    let done = streams.run(|| system.rss_mb());
    system.settle();
    let cpu = system.cpu_us() - before;
    let name = format!("{} {count} streams", way.name);
    figures.record(&name, CPU_OF_EVENT, system.name, cpu / done.events as f64);
    figures.record(&name, "first event p50 µs", system.name, done.first(50));
    figures.record(&name, "event lateness p50 µs", system.name, done.late(50));
    figures.record(&name, "event lateness p99 µs", system.name, done.late(99));
    figures.record(&name, OTHERS, system.name, machine.others_percent());
    if count >= 500 {
        figures.record(
            &name,
            "RSS KB/stream",
            system.name,
            (done.peak_rss_mb - idle_mb).max(0.0) * 1_024.0 / count as f64,
        );
    }
}

/// Number of concurrent streams at which 99 of 100 events are less than [`LATE_US`] late.
fn streams_held(system: &System) -> usize {
    let keeps_pace = |count: &&usize| {
        Streams::of(system, PASSED, **count, EVENTS)
            .run(|| 0.0)
            .late(99)
            < LATE_US
    };
    STREAM_COUNTS
        .iter()
        .take_while(keeps_pace)
        .last()
        .copied()
        .unwrap_or_default()
}

fn memory_and_start(figures: &mut Figures, systems: &[System]) {
    for system in systems.iter().filter(|system| system.process.is_some()) {
        figures.record("start", "RSS MB", system.name, system.rss_mb());
        figures.record("start", "program MB", system.name, system.program_mb());
        figures.record(
            "start",
            "ms to the first answer",
            system.name,
            system.started_in.as_secs_f64() * 1_000.0,
        );
    }
}
