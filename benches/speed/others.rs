//! How much of the machine other work uses while something is measured: ratios from a busy machine
//! mean little. Reads `/proc`. Must not judge.

use std::time::Instant;

/// Length of a tick in `/proc`: Linux always reports USER_HZ as 100.
const TICKS_PER_SECOND: f64 = 100.0;

/// The CPU time of all processes, and of this program and what it started, so far.
pub struct MachineReading {
    at: Instant,
    all_ticks: u64,
    own_ticks: u64,
}

impl MachineReading {
    pub fn now() -> Self {
        Self {
            at: Instant::now(),
            own_ticks: own_ticks(),
            all_ticks: all_ticks(),
        }
    }

    /// Returns what others have used since this reading, in percent of one core. Other machines on
    /// the same host count too, as far as they took time from this one.
    pub fn others_percent(&self) -> f64 {
        let now = Self::now();
        let others =
            (now.all_ticks - self.all_ticks).saturating_sub(now.own_ticks - self.own_ticks);
        let seconds = (now.at - self.at).as_secs_f64();
        100.0 * others as f64 / TICKS_PER_SECOND / seconds
    }
}

/// Ticks of all cores that were neither idle nor waiting for a disk.
fn all_ticks() -> u64 {
    let stat = std::fs::read_to_string("/proc/stat").unwrap();
    let line = stat.lines().next().unwrap();
    let fields: Vec<u64> = line
        .split_whitespace()
        .skip(1)
        .map(|field| field.parse().unwrap())
        .collect();
    let [user, nice, system, _idle, _iowait, irq, softirq, stolen, ..] = fields.as_slice() else {
        panic!("/proc/stat has few columns: {line:?}");
    };
    user + nice + system + irq + softirq + stolen
}

/// Ticks of this process and of its children that still run.
fn own_ticks() -> u64 {
    let own = std::process::id();
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let ticks = processes.filter_map(|process| {
        let pid: u32 = process.file_name().to_str()?.parse().ok()?;
        let stat = std::fs::read_to_string(process.path().join("stat")).ok()?;
        // The fields after the name, which ends with the last bracket: state, parent, nine others,
        // user and system time.
        let fields: Vec<_> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let parent: u32 = fields.get(1)?.parse().ok()?;
        let time = |field: usize| fields.get(field)?.parse::<u64>().ok();
        (pid == own || parent == own).then_some(time(11)? + time(12)?)
    });
    ticks.sum()
}
