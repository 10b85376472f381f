//! Measures how much of its memory and file limits this process uses, and if it can take new work.
//!
//! A separate thread measures a few times per second, so a request costs one load. This file must
//! not end running requests: admitted requests finish, and new ones are refused until resources are
//! free again.

use super::connections::Connections;
use arc_swap::ArcSwap;
use base::telemetry::METRICS;
use config::Settings;
use llm_protocol::failure::Kind;
use rustix::process::{Resource, getrlimit};
use std::path::Path;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Interval between measurements.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Percentage of either limit above which new work is refused.
const FULL_PERCENT: u64 = 90;
/// Time after a shortage until the process is ready again.
const RECOVERY_INTERVAL: Duration = Duration::from_secs(5);
/// Number of requests that are served at a time even during a shortage: memory that the allocator
/// keeps, or files that idle clients hold, must not block all clients for good.
const MIN_SERVED_REQUESTS: usize = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shortage {
    Memory = 1,
    Files = 2,
}

/// State of the memory and file limits.
#[derive(Debug, Default)]
pub struct ResourceGuard {
    short: AtomicU8,
    /// The last shortage, with the time of its last measurement.
    last: Mutex<Option<(Shortage, Instant)>>,
}

impl ResourceGuard {
    fn shortage(&self) -> Option<Shortage> {
        [Shortage::Memory, Shortage::Files]
            .into_iter()
            .find(|short| *short as u8 == self.short.load(Ordering::Relaxed))
    }

    /// Returns why a request is refused. `in_flight` is the number of running requests including
    /// this one.
    pub fn refusal(&self, in_flight: usize) -> Option<Kind> {
        self.shortage()
            .filter(|_| in_flight > MIN_SERVED_REQUESTS)
            .map(|short| match short {
                Shortage::Memory => Kind::MemoryShort,
                Shortage::Files => Kind::FilesShort,
            })
    }

    /// Returns why load balancers should send new work elsewhere: a current shortage, or one a few
    /// seconds ago. The delay keeps a balancer from ending the shortage by moving the load away and
    /// bringing it back with the next request.
    pub fn recent_shortage(&self) -> Option<Shortage> {
        let last = *self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.filter(|(_, seen)| seen.elapsed() < RECOVERY_INTERVAL)
            .map(|(short, _)| short)
    }

    /// Starts a thread that measures for as long as the process lives.
    ///
    /// # Errors
    /// Returns an error if the thread cannot be started.
    pub fn watch(
        self: Arc<Self>,
        settings: Arc<ArcSwap<Settings>>,
        connections: Arc<Connections>,
    ) -> std::io::Result<()> {
        match memory_budget(settings.load().limits.memory_bytes, detect_memory_budget) {
            Some(bytes) => log::info!("memory budget: {bytes} bytes"),
            None => log::warn!(
                "there is no memory budget, because /proc/meminfo cannot be read; set limits.memory_bytes"
            ),
        }
        let watch = move || {
            loop {
                self.measure(settings.load().limits.memory_bytes, detect_memory_budget);
                if self.shortage() == Some(Shortage::Files) {
                    connections.close_idle();
                }
                std::thread::sleep(POLL_INTERVAL);
            }
        };
        std::thread::Builder::new()
            .name("pressure".into())
            .spawn(watch)?;
        Ok(())
    }

    /// Measures once. `configured` is the budget of the config, in bytes. Without one, the budget
    /// is detected at each measurement, because other processes, such as a predecessor, may free
    /// memory soon after the start.
    fn measure(&self, configured: u64, found: impl FnOnce() -> Option<u64>) {
        let resident = resident_bytes();
        let files = open_files();
        METRICS
            .resident_bytes
            .set(i64::try_from(resident).unwrap_or(i64::MAX));
        METRICS
            .open_files
            .set(i64::try_from(files).unwrap_or(i64::MAX));
        let memory = (
            resident,
            memory_budget(configured, found).unwrap_or(u64::MAX),
        );
        self.record_shortage(find_shortage(
            memory,
            (
                files,
                getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX),
            ),
        ));
    }

    fn record_shortage(&self, now: Option<Shortage>) {
        if let Some(short) = now {
            *self.last.lock().unwrap_or_else(PoisonError::into_inner) =
                Some((short, Instant::now()));
        }
        let number = now.map_or(0, |short| short as u8);
        if self.short.swap(number, Ordering::Relaxed) == number {
            return;
        }
        match now {
            None => log::info!(
                "memory and open files are below their limits again: the gateway admits new requests"
            ),
            Some(Shortage::Memory) => {
                log::warn!(
                    "memory is at {FULL_PERCENT} % of its budget: the gateway refuses new requests"
                )
            }
            Some(Shortage::Files) => {
                log::warn!(
                    "open files are at {FULL_PERCENT} % of their limit: the gateway refuses new requests"
                );
            }
        }
    }
}

fn memory_budget(configured: u64, found: impl FnOnce() -> Option<u64>) -> Option<u64> {
    Some(configured)
        .filter(|configured| *configured > 0)
        .or_else(found)
}

fn find_shortage((resident, budget): (u64, u64), (files, limit): (u64, u64)) -> Option<Shortage> {
    let is_full = |used: u64, limit: u64| {
        used >= limit / 100 * FULL_PERCENT + limit % 100 * FULL_PERCENT / 100
    };
    if is_full(files, limit) {
        Some(Shortage::Files)
    } else if is_full(resident, budget) {
        Some(Shortage::Memory)
    } else {
        None
    }
}

fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    parse_kib(&status, "VmRSS:").unwrap_or(0)
}

/// Returns the number of open files. 0 if it is unknown.
pub fn open_files() -> u64 {
    // Newer kernels report the number of open files as the directory's size; older ones report 0.
    match std::fs::metadata("/proc/self/fd").map(|folder| folder.len()) {
        Ok(0) | Err(_) => {
            std::fs::read_dir("/proc/self/fd").map_or(0, |files| files.count() as u64)
        }
        Ok(count) => count,
    }
}

/// Returns the value of the line `name`, in bytes, in a file whose values are in kB.
fn parse_kib(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(
        line.split_ascii_whitespace()
            .next()?
            .parse::<u64>()
            .ok()?
            .saturating_mul(1_024),
    )
}

/// Returns the memory that this process may use if no budget is configured: the machine's free
/// memory, or the limit of its control group if that is lower.
fn detect_memory_budget() -> Option<u64> {
    let machine = std::fs::read_to_string("/proc/meminfo").ok();
    let free = machine
        .as_deref()
        .and_then(|text| parse_kib(text, "MemAvailable:"));
    let free = free.map(|free| free.saturating_add(resident_bytes()));
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    // Version 1 reports "no limit" as a number that no machine reaches.
    let group = group_limit(&groups, Path::new("/sys/fs/cgroup")).filter(|limit| *limit < 1 << 60);
    [free, group].into_iter().flatten().min()
}

/// Returns the lowest limit of this process's control group and its ancestors, for version 2 or
/// version 1.
fn group_limit(groups: &str, root: &Path) -> Option<u64> {
    let limits = groups.lines().filter_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        let (root, file) = match controllers {
            "" => (root.to_owned(), "memory.max"),
            _ if controllers.split(',').any(|name| name == "memory") => {
                (root.join("memory"), "memory.limit_in_bytes")
            }
            _ => return None,
        };
        let above = Path::new(path.trim_start_matches('/')).ancestors();
        above
            .filter_map(|group| {
                std::fs::read_to_string(root.join(group).join(file))
                    .ok()?
                    .trim()
                    .parse()
                    .ok()
            })
            .min()
    });
    limits.min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_work_is_refused_from_nine_tenths_on() {
        let (much, few) = ((0, u64::MAX), (0, 1_000));
        assert_eq!(find_shortage(much, few), None);
        assert_eq!(find_shortage((899, 1_000), few), None);
        assert_eq!(find_shortage((900, 1_000), few), Some(Shortage::Memory));
        assert_eq!(find_shortage(much, (899, 1_000)), None);
        assert_eq!(find_shortage(much, (900, 1_000)), Some(Shortage::Files));
        assert_eq!(
            find_shortage((900, 1_000), (900, 1_000)),
            Some(Shortage::Files),
            "which is over sooner"
        );
        assert_eq!(find_shortage((90, 99), few), Some(Shortage::Memory));
    }

    #[test]
    fn the_budget_of_each_look_is_the_one_of_that_moment() {
        let pressure = ResourceGuard::default();
        let full = |configured, found| {
            pressure.measure(configured, || found);
            pressure.refusal(usize::MAX)
        };
        assert_eq!(
            full(0, Some(1)),
            Some(Kind::MemoryShort),
            "a predecessor has it all"
        );
        assert_eq!(full(0, Some(u64::MAX)), None, "it has ended");
        assert_eq!(
            full(1, Some(u64::MAX)),
            Some(Kind::MemoryShort),
            "what is told counts"
        );
        assert_eq!(full(u64::MAX, Some(1)), None);
        assert_eq!(full(0, None), None, "nobody knows");
    }

    #[test]
    fn some_requests_are_served_whatever_is_short() {
        let pressure = ResourceGuard::default();
        assert_eq!(pressure.refusal(usize::MAX), None);
        for (short, kind) in [
            (Shortage::Memory, Kind::MemoryShort),
            (Shortage::Files, Kind::FilesShort),
        ] {
            pressure.record_shortage(Some(short));
            assert_eq!(pressure.refusal(MIN_SERVED_REQUESTS), None);
            assert_eq!(pressure.refusal(MIN_SERVED_REQUESTS + 1), Some(kind));
        }
        pressure.record_shortage(None);
        assert_eq!(pressure.refusal(usize::MAX), None);
    }

    #[test]
    fn the_process_is_not_ready_for_a_while_after_a_shortage() {
        let pressure = ResourceGuard::default();
        assert_eq!(pressure.recent_shortage(), None);
        pressure.record_shortage(Some(Shortage::Files));
        assert_eq!(pressure.recent_shortage(), Some(Shortage::Files));
        pressure.record_shortage(None);
        assert_eq!(
            (pressure.refusal(usize::MAX), pressure.recent_shortage()),
            (None, Some(Shortage::Files))
        );
        *pressure.last.lock().unwrap() = Instant::now()
            .checked_sub(RECOVERY_INTERVAL)
            .map(|at| (Shortage::Files, at));
        assert_eq!(pressure.recent_shortage(), None);
    }

    #[test]
    fn this_process_uses_memory_and_files() {
        assert!(resident_bytes() > 100_000);
        let before = open_files();
        let more = [(); 20].map(|()| std::fs::File::open("/proc/self/status").unwrap());
        assert!(open_files() >= before + 10, "{before}");
        drop(more);
        assert!(detect_memory_budget().unwrap() > resident_bytes());
    }

    #[test]
    fn the_least_of_a_groups_limits_and_those_above_it_counts() {
        let root = tempfile::tempdir().unwrap();
        let inner = root.path().join("a/b");
        std::fs::create_dir_all(&inner).unwrap();
        assert_eq!(group_limit("0::/a/b\n", root.path()), None);
        std::fs::write(inner.join("memory.max"), "max\n").unwrap();
        assert_eq!(group_limit("0::/a/b\n", root.path()), None);
        std::fs::write(root.path().join("a/memory.max"), "5000\n").unwrap();
        assert_eq!(group_limit("0::/a/b\n", root.path()), Some(5_000));
        std::fs::write(inner.join("memory.max"), "7000\n").unwrap();
        assert_eq!(group_limit("0::/a/b\n", root.path()), Some(5_000));
        assert_eq!(group_limit("0::/\n", root.path()), None);
        std::fs::create_dir_all(root.path().join("memory/x")).unwrap();
        std::fs::write(root.path().join("memory/x/memory.limit_in_bytes"), "300\n").unwrap();
        assert_eq!(
            group_limit("4:cpu,memory:/x\n2:pids:/x\n", root.path()),
            Some(300)
        );
    }
}
