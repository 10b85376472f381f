//! Counts the instructions that the gateway's program uses for a request. Callgrind counts them, so
//! the figure is the same on a busy machine. Must not judge by a clock.
//!
//! The gateway runs with all its threads: the figure includes the work of the ledger writer, the
//! journal and the access log, but not the kernel's. The instructions of an idle process are
//! measured first and subtracted. Each measurement is repeated, so that one-time work (connections,
//! caches, prepared statements) falls into the first runs.

use super::load::{Load, Streams};
use super::system::{self, System, Vendor};
use super::ways::{
    CROSSED, CROSSED_BACK, EMBEDDING, MESSAGES, PASSED, RESPONSES, RESPONSES_MESSAGES, Way,
};
use serde_json::{Map, Value, json};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// An increase over the record by more than this, in percent, is reported as a regression. The
/// number of requests that share a commit varies.
const TOLERANCE_PERCENT: f64 = 5.0;

const CONNECTIONS: usize = 8;
/// How often the metrics are read to measure that.
const METRICS_READS: u32 = 4;
/// Length of the idle time that is measured first.
const IDLE: Duration = Duration::from_secs(4);
/// Events of the shorter stream; the longer one has twice as many.
const EVENTS: usize = 60;

struct Case {
    way: Way,
    bytes: usize,
    /// Requests on each connection.
    requests: usize,
}

const fn case(way: Way, bytes: usize, requests: usize) -> Case {
    Case {
        way,
        bytes,
        requests,
    }
}

const CASES: [Case; 15] = [
    case(PASSED, 1_024, 60),
    case(EMBEDDING, 1_024, 60),
    case(MESSAGES, 1_024, 60),
    case(CROSSED, 1_024, 60),
    case(CROSSED_BACK, 1_024, 60),
    case(RESPONSES, 1_024, 60),
    case(RESPONSES_MESSAGES, 1_024, 60),
    case(PASSED, 65_536, 30),
    case(EMBEDDING, 65_536, 30),
    case(CROSSED, 65_536, 20),
    case(RESPONSES, 65_536, 30),
    case(RESPONSES_MESSAGES, 65_536, 20),
    case(PASSED, 1_048_576, 6),
    case(MESSAGES, 1_048_576, 6),
    case(CROSSED, 1_048_576, 3),
];

const STREAMS: [Way; 6] = [
    PASSED,
    MESSAGES,
    CROSSED,
    CROSSED_BACK,
    RESPONSES,
    RESPONSES_MESSAGES,
];

/// A gateway whose instructions are counted.
struct Counted {
    system: System,
    dir: TempDir,
    /// Instructions per second of an idle process.
    idle: f64,
    /// Instructions to read the metrics once, with the series that the process has by now.
    metrics: f64,
    dumps: usize,
}

impl Counted {
    fn start(gateway: &Path, vendor: u16) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut command = system::pinned(system::CORE, Path::new("valgrind"));
        let out = format!("--callgrind-out-file={}", dir.path().join("out").display());
        command
            .args(["--tool=callgrind", "--instr-atstart=no", &out])
            .arg(gateway);
        command.stderr(Stdio::null());
        let system = System::gateway_by(command, 1, gateway, Vendor::Plain(vendor));
        let mut counted = Self {
            system,
            dir,
            idle: 0.0,
            metrics: 0.0,
            dumps: 0,
        };
        counted.tell("instrumentation on");
        // The count begins with the first dump. Background threads read schemas and prepare
        // statements once.
        counted.take();
        std::thread::sleep(IDLE);
        counted.take();
        let began = Instant::now();
        std::thread::sleep(IDLE);
        counted.idle = counted.take() / began.elapsed().as_secs_f64();
        counted
    }

    fn tell(&self, what: &str) {
        let process = self.system.process.as_ref().expect("a process");
        let mut command = Command::new("vgdb");
        command
            .arg(format!("--pid={}", process.0.id()))
            .args(what.split(' '));
        let output = command.output().expect("vgdb");
        assert!(
            output.status.success(),
            "vgdb {what}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }

    /// Instructions since the last call.
    fn take(&mut self) -> f64 {
        self.tell("dump");
        self.dumps += 1;
        let file = self.dir.path().join(format!("out.{}", self.dumps));
        let text = std::fs::read_to_string(&file).expect("what callgrind counted");
        let total = text
            .lines()
            .find_map(|line| line.strip_prefix("totals: "))
            .expect("a total");
        total.trim().parse().expect("a number")
    }

    /// Instructions of `work`, minus those of an idle process in the same time, and of reading the
    /// metrics to see its end.
    fn of(&mut self, work: impl FnOnce(&System)) -> f64 {
        self.take();
        let began = Instant::now();
        work(&self.system);
        let reads = self.system.settle();
        self.take() - self.idle * began.elapsed().as_secs_f64() - self.metrics * f64::from(reads)
    }

    /// Measures what it takes to read the metrics.
    fn measure_metrics(&mut self) {
        self.take();
        let began = Instant::now();
        let reads: u32 = (0..METRICS_READS).map(|_| self.system.settle()).sum();
        let all = self.take() - self.idle * began.elapsed().as_secs_f64();
        self.metrics = all / f64::from(reads);
    }

    fn request(&mut self, case: &Case) -> f64 {
        let load = |system: &System| Load::of(system, case.way, case.bytes);
        // Warm up: connections, buffers and prepared statements that the first requests need.
        self.of(|system| drop(load(system).ask(CONNECTIONS, case.requests.min(10))));
        self.measure_metrics();
        let mut counts: Vec<_> = (0..3)
            .map(|_| self.of(|system| drop(load(system).ask(CONNECTIONS, case.requests))))
            .map(|count| count / (CONNECTIONS * case.requests) as f64)
            .collect();
        counts.sort_by(f64::total_cmp);
        counts[1]
    }

    /// Instructions per additional event.
    fn event(&mut self, way: Way) -> f64 {
        let mut of = |events| {
            let mut seen = 0;
            let count = self.of(|system| {
                seen = Streams::of(system, way, CONNECTIONS, events)
                    .run(|| 0.0)
                    .events
            });
            (count, seen as f64)
        };
        of(EVENTS);
        let ((short, few), (long, many)) = (of(EVENTS), of(EVENTS * 2));
        (long - short) / (many - few)
    }
}

fn size(bytes: usize) -> String {
    if bytes < 1_048_576 {
        format!("{} KB", bytes / 1_024)
    } else {
        format!("{} MB", bytes / 1_048_576)
    }
}

/// Counts every case whose name contains `pattern`, and compares it with `recorded`. Returns false
/// if one exceeds the tolerance.
pub fn run(gateway: &Path, recorded: &Path, record: bool, pattern: &str) -> bool {
    let before: Value = std::fs::read(recorded)
        .ok()
        .and_then(|text| serde_json::from_slice(&text).ok())
        .unwrap_or_default();
    let (vendor, _simulator) = system::simulator(gateway);
    let mut counted = Counted::start(gateway, vendor);
    let mut now = before.as_object().cloned().unwrap_or_default();
    let mut is_good = true;
    println!("| instructions | recorded | now | change |\n|---|---:|---:|---:|");
    let mut note = |now: &mut Map<String, Value>, name: String, count: f64| {
        let old = before[&name].as_f64();
        let change = old.map(|old| (count / old - 1.0) * 100.0);
        let shown = change.map_or_else(String::new, |change| format!("{change:+.1} %"));
        let old = old.map_or_else(String::new, |old| format!("{old:.0}"));
        println!("| {name} | {old} | {count:.0} | {shown} |");
        is_good &= change.is_none_or(|change| change <= TOLERANCE_PERCENT);
        now.insert(name, json!(count.round()));
    };
    if pattern.is_empty() {
        let idle = counted.idle;
        note(&mut now, "idle, per second".into(), idle);
    }
    for case in &CASES {
        let name = format!("{} {}, per request", case.way.name, size(case.bytes));
        if name.contains(pattern) {
            let count = counted.request(case);
            note(&mut now, name, count);
        }
    }
    for way in STREAMS {
        let name = format!("{} stream, per event", way.name);
        if name.contains(pattern) {
            let count = counted.event(way);
            note(&mut now, name, count);
        }
    }
    if record {
        std::fs::write(recorded, format!("{:#}\n", Value::Object(now))).expect("write the record");
    }
    is_good
}
