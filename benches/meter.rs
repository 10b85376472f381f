//! What a process has spent: CPU time by thread, and bytes written to disks, from `/proc`; and the
//! words in which a table reports them.
//!
//! Must not start a process, and must not know what the process does.

use super::rig;
use rustix::time::{ClockId, clock_gettime};
use std::time::{Duration, Instant};

/// Names of the thread that writes the ledger, which it had or will have.
const WRITER: [&str; 2] = ["settler", "ledger-writer"];
/// Name of the thread that writes what is derived from the ledger.
const INDEXER: [&str; 1] = ["indexer"];

/// How long a process is watched to see whether it rests.
const WATCHED: Duration = Duration::from_millis(200);
/// Most CPU time that a process takes meanwhile if it rests: a twentieth of a core.
const RESTING_NS: u64 = 10_000_000;
/// Longest wait for a process to rest: what it does for longer is its ordinary work.
const PATIENCE: Duration = Duration::from_secs(30);

/// All that a process has spent so far.
#[derive(Clone, Copy)]
pub struct Reading {
    at: Instant,
    process_ns: u64,
    writer_ns: u64,
    pub indexer_ns: u64,
}

/// CPU time between two readings.
pub struct Spent {
    pub wall: Duration,
    pub process_ns: u64,
    pub writer_ns: u64,
    pub indexer_ns: u64,
}

impl Reading {
    pub fn of(process: u32) -> Self {
        let threads = threads(process);
        let sum = |names: &[&str]| {
            threads
                .iter()
                .filter(|(name, _)| names.contains(&name.as_str()))
                .map(|(_, ns)| ns)
                .sum()
        };
        Self {
            at: Instant::now(),
            process_ns: rig::cpu_ns(process),
            writer_ns: sum(&WRITER),
            indexer_ns: sum(&INDEXER),
        }
    }

    pub fn since(&self, before: &Self) -> Spent {
        Spent {
            wall: self.at - before.at,
            process_ns: self.process_ns - before.process_ns,
            writer_ns: self.writer_ns - before.writer_ns,
            indexer_ns: self.indexer_ns - before.indexer_ns,
        }
    }
}

/// Name and CPU time of each living thread.
fn threads(process: u32) -> Vec<(String, u64)> {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let read = |task: std::fs::DirEntry| {
        let file = |name| std::fs::read_to_string(task.path().join(name)).ok();
        let (name, run) = (file("comm")?, file("schedstat")?);
        let ns = run.split_whitespace().next()?.parse().ok()?;
        Some((name.trim_end().to_owned(), ns))
    };
    // A thread may end while it is read.
    tasks.flatten().filter_map(read).collect()
}

/// CPU time of the calling thread so far.
pub fn own_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    u64::try_from(time.tv_sec * 1_000_000_000 + time.tv_nsec).unwrap()
}

/// Bytes that a process has written to disks, counted when it makes pages of files dirty.
pub fn written_bytes(process: u32) -> u64 {
    let io = std::fs::read_to_string(format!("/proc/{process}/io")).unwrap();
    let line = io
        .lines()
        .find_map(|line| line.strip_prefix("write_bytes: "));
    line.unwrap().parse().unwrap()
}

/// Waits until the process has nothing left to do: work behind the last commit belongs to what was
/// measured before, not to what is measured next.
pub fn wait_until_it_rests(process: u32) {
    let began = Instant::now();
    while began.elapsed() < PATIENCE {
        let before = Reading::of(process);
        std::thread::sleep(WATCHED);
        if Reading::of(process).since(&before).process_ns <= RESTING_NS {
            return;
        }
    }
}

/// The smallest value that `percent` of the values do not exceed; 0 if there is none.
pub fn percentile(values: &mut [u64], percent: usize) -> u64 {
    values.sort_unstable();
    let rank = (values.len() * percent).div_ceil(100);
    values.get(rank.saturating_sub(1)).copied().unwrap_or(0)
}

/// A thousandth of a number, with one decimal: µs of ns, or ms of µs.
pub fn thousandth(number: u64) -> String {
    format!("{}.{}", number / 1_000, number % 1_000 / 100)
}

/// How many there were in one second.
pub fn per_second(count: u64, time: Duration) -> u64 {
    let rate = u128::from(count) * 1_000_000_000 / time.as_nanos().max(1);
    u64::try_from(rate).unwrap()
}

/// The load of the machine: figures of wall-clock time mean little under load of others.
pub fn load_average() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap();
    let first: Vec<_> = text.split_whitespace().take(3).collect();
    first.join(" ")
}
