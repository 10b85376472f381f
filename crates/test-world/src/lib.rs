//! Helpers that tests share: free ports, waiting for a condition, skipping, and real servers that
//! end with their test.
//!
//! This module must not depend on the product, because unit tests use it too. Read next:
//! `ports.rs`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods
)]

pub mod faketime;
pub mod ports;
pub mod postgres;
pub mod programs;
pub mod redis;
pub mod skip;

pub use faketime::{SettableClock, faketime};
pub use ports::free_port;
pub use programs::count_program;
pub use skip::skip;

use rustix::process::{Pid, Signal, kill_process};
use std::time::{Duration, Instant};

/// Timeout for everything that takes an instant on an idle machine. The timeout is long because the
/// machine may be busy, and a test reaches it only when something is broken.
pub const SOON: Duration = Duration::from_secs(60);

/// Minimum and maximum time between two checks of a condition.
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(5);
const MAX_POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Divisor of the time waited so far, which yields the interval. The interval grows because a check
/// may cost a request or a process.
const POLL_PART: u32 = 20;

#[track_caller]
pub fn wait_for<T>(what: &str, limit: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        let waited = began.elapsed();
        assert!(waited < limit, "waited {limit:?} in vain for {what}");
        let interval = waited / POLL_PART;
        std::thread::sleep(interval.clamp(MIN_POLL_INTERVAL, MAX_POLL_INTERVAL));
    }
}

#[track_caller]
pub fn wait_until(what: &str, limit: Duration, mut condition: impl FnMut() -> bool) {
    wait_for(what, limit, || condition().then_some(()));
}

/// Sends a signal such as `TERM` or `HUP` to a process.
#[track_caller]
pub fn signal(pid: u32, name: &str) {
    let signal = match name {
        "TERM" => Signal::TERM,
        "HUP" => Signal::HUP,
        "QUIT" => Signal::QUIT,
        "INT" => Signal::INT,
        "KILL" => Signal::KILL,
        "STOP" => Signal::STOP,
        "CONT" => Signal::CONT,
        "USR1" => Signal::USR1,
        "USR2" => Signal::USR2,
        other => panic!("no test sends the signal {other:?}"),
    };
    let process = Pid::from_raw(i32::try_from(pid).unwrap()).expect("a process id");
    if let Err(error) = kill_process(process, signal) {
        panic!("send {name} to process {pid}: {error}");
    }
}
