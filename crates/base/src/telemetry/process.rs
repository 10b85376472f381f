//! Exports the process metrics that Prometheus client libraries export under standard names: CPU
//! time, memory, file descriptors.
//!
//! Each scrape reads them from the kernel. This file must not be read while a request is processed.

use super::family::register_family;
use prometheus::{Counter, Gauge, IntGauge, Registry};
use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};

pub struct ProcessMetrics {
    cpu_seconds: Counter,
    open_fds: IntGauge,
    max_fds: IntGauge,
    resident_bytes: IntGauge,
    virtual_bytes: IntGauge,
    threads: IntGauge,
}

impl ProcessMetrics {
    pub fn new(registry: &Registry) -> Self {
        let gauge = |name: &str, help: &str| register_family(registry, IntGauge::new(name, help));
        let start_help = "Start time of the process since 1970 in seconds.";
        let start = register_family(
            registry,
            Gauge::new("process_start_time_seconds", start_help),
        );
        start.set(start_time_seconds().unwrap_or(0.0));
        let cpu_help = "User and system CPU time in seconds.";
        Self {
            cpu_seconds: register_family(
                registry,
                Counter::new("process_cpu_seconds_total", cpu_help),
            ),
            open_fds: gauge("process_open_fds", "Open file descriptors."),
            max_fds: gauge(
                "process_max_fds",
                "Maximum number of open file descriptors.",
            ),
            resident_bytes: gauge(
                "process_resident_memory_bytes",
                "Resident memory size in bytes.",
            ),
            virtual_bytes: gauge(
                "process_virtual_memory_bytes",
                "Virtual memory size in bytes.",
            ),
            threads: gauge(
                "process_threads",
                "Operating system threads of the process.",
            ),
        }
    }

    /// Updates all metrics. A value that the kernel does not report stays unchanged.
    #[expect(
        clippy::float_arithmetic,
        reason = "the standard unit of CPU time is seconds, in a fraction"
    )]
    pub fn update(&self) {
        let cpu = clock_gettime(ClockId::ProcessCPUTime);
        #[expect(
            clippy::cast_precision_loss,
            reason = "seconds and nanoseconds of a process's CPU time"
        )]
        let seconds = cpu.tv_sec as f64 + cpu.tv_nsec as f64 / 1e9;
        // Two concurrent scrapes may both add the same difference, but a counter must not decrease.
        self.cpu_seconds
            .inc_by((seconds - self.cpu_seconds.get()).max(0.0));
        if let Ok(fds) = std::fs::read_dir("/proc/self/fd") {
            // One of the descriptors belongs to the directory that is being read.
            self.open_fds
                .set(i64::try_from(fds.count().saturating_sub(1)).unwrap_or(i64::MAX));
        }
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        self.max_fds.set(i64::try_from(limit).unwrap_or(i64::MAX));
        let Some(stat) = ProcessStat::read() else {
            return;
        };
        self.threads.set(stat.threads);
        self.virtual_bytes.set(stat.virtual_bytes);
        let page = i64::try_from(rustix::param::page_size()).unwrap_or(i64::MAX);
        self.resident_bytes
            .set(stat.resident_pages.saturating_mul(page));
    }
}

/// Fields of `/proc/self/stat`.
struct ProcessStat {
    threads: i64,
    /// Start time of the process, in clock ticks since boot.
    start_ticks: i64,
    virtual_bytes: i64,
    resident_pages: i64,
}

impl ProcessStat {
    fn read() -> Option<Self> {
        Self::parse(&std::fs::read_to_string("/proc/self/stat").ok()?)
    }

    /// Parses the fields after the program's name, which may contain spaces and brackets.
    fn parse(text: &str) -> Option<Self> {
        let fields: Vec<_> = text.rsplit_once(") ")?.1.split_ascii_whitespace().collect();
        // The first of these fields has the number 3 in proc(5).
        let field = |number: usize| fields.get(number - 3)?.parse().ok();
        Some(Self {
            threads: field(20)?,
            start_ticks: field(22)?,
            virtual_bytes: field(23)?,
            resident_pages: field(24)?,
        })
    }
}

#[expect(
    clippy::cast_precision_loss,
    clippy::float_arithmetic,
    reason = "seconds from ticks since a machine's start"
)]
fn start_time_seconds() -> Option<f64> {
    let machine = std::fs::read_to_string("/proc/stat").ok()?;
    let boot_time: f64 = machine
        .lines()
        .find_map(|line| line.strip_prefix("btime "))?
        .trim()
        .parse()
        .ok()?;
    Some(
        boot_time
            + ProcessStat::read()?.start_ticks as f64
                / rustix::param::clock_ticks_per_second() as f64,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_name_with_spaces_and_brackets_is_skipped() {
        let text = "7 (a) b (c) S 1 7 7 0 -1 4194304 90 0 0 0 12 3 0 0 20 0 9 0 8123 4096000 250 18446744073709551615";
        let stat = ProcessStat::parse(text).unwrap();
        assert_eq!(
            (
                stat.threads,
                stat.start_ticks,
                stat.virtual_bytes,
                stat.resident_pages
            ),
            (9, 8_123, 4_096_000, 250)
        );
    }

    #[test]
    fn this_process_started_within_the_last_day_and_uses_the_machine() {
        let now = crate::clock::now_ms() / 1_000;
        let start = start_time_seconds().unwrap();
        #[expect(clippy::cast_possible_truncation, reason = "whole seconds")]
        let age = now - start as i64;
        assert!((-2..86_400).contains(&age), "{age}");
        let metrics = ProcessMetrics::new(&Registry::new());
        metrics.update();
        assert!(
            metrics.resident_bytes.get() > 1_000_000
                && metrics.virtual_bytes.get() >= metrics.resident_bytes.get()
        );
        assert!(metrics.open_fds.get() > 2 && metrics.max_fds.get() >= metrics.open_fds.get());
        assert!(metrics.threads.get() > 0 && metrics.cpu_seconds.get() > 0.0);
        let before = metrics.cpu_seconds.get();
        metrics.update();
        assert!(metrics.cpu_seconds.get() >= before);
    }
}
