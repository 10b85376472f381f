//! Detects when the threads that serve requests are blocked: a task there beats every second.
//!
//! A disk that does not answer blocks the thread that writes to it, and soon the other threads,
//! which wait for the same file. The process then lives without serving anyone. This file must not
//! look for the cause.

use base::telemetry::METRICS;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const BEAT_INTERVAL: Duration = Duration::from_secs(1);
/// Time without a beat after which the threads count as blocked. A busy machine delays beats too.
const MAX_SILENCE: Duration = Duration::from_secs(5);

pub struct Pulse {
    began: Instant,
    max_silence: Duration,
    is_started: AtomicBool,
    /// Time of the last beat, in ms since `began`.
    last_ms: AtomicU64,
}

impl Default for Pulse {
    fn default() -> Self {
        Self::new(MAX_SILENCE)
    }
}

impl Pulse {
    fn new(max_silence: Duration) -> Self {
        Self {
            began: Instant::now(),
            max_silence,
            is_started: AtomicBool::new(false),
            last_ms: AtomicU64::new(0),
        }
    }

    /// Starts the beats on the runtime of the caller. Later calls do nothing.
    pub fn start(self: &Arc<Self>) {
        if self.is_started.load(Ordering::Relaxed) {
            return;
        }
        self.beat();
        if self.is_started.swap(true, Ordering::AcqRel) {
            return;
        }
        let pulse = Arc::clone(self);
        tokio::spawn(async move {
            loop {
                pulse.beat();
                tokio::time::sleep(BEAT_INTERVAL.min(pulse.max_silence / 4)).await;
            }
        });
    }

    fn beat(&self) {
        let since = self.began.elapsed().as_millis();
        let since = u64::try_from(since).unwrap_or(u64::MAX);
        self.last_ms.store(since, Ordering::Release);
    }

    /// Returns whether the threads are blocked. Returns false before the first connection.
    pub fn has_stopped(&self) -> bool {
        let last = Duration::from_millis(self.last_ms.load(Ordering::Acquire));
        self.is_started.load(Ordering::Acquire)
            && self.began.elapsed().saturating_sub(last) > self.max_silence
    }

    /// Logs and counts a stop. `reported` holds the start of a stop that was logged before, or
    /// `None`. A thread that does not serve requests must call this function often.
    pub fn report(&self, reported: &mut Option<Instant>) {
        match (self.has_stopped(), *reported) {
            (true, None) => {
                log::error!(
                    "the threads that serve requests do not run: most likely the disk of data_dir does not answer; nobody is served meanwhile"
                );
                METRICS.ledger_error("edge_stopped");
                *reported = Some(Instant::now());
            }
            (false, Some(since)) => {
                let took = since.elapsed().as_secs();
                log::warn!("the threads that serve requests run again, after {took} s");
                *reported = None;
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn a_thread_that_is_held_up_stops_the_pulse_until_it_goes_on() {
        let pulse = Arc::new(Pulse::new(Duration::from_millis(100)));
        assert!(!pulse.has_stopped(), "nobody has connected");
        let (release, held) = mpsc::sync_channel::<()>(0);
        let (end, ended) = tokio::sync::oneshot::channel::<()>();
        let edge = Arc::clone(&pulse);
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = { runtime }.enable_time().build().unwrap();
            runtime.block_on(async {
                edge.start();
                edge.start();
                held.recv().unwrap();
                drop(ended.await);
            });
        });
        let wait_until = |stopped| {
            while pulse.has_stopped() != stopped || !pulse.is_started.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
        };
        let mut reported = None;
        wait_until(true);
        pulse.report(&mut reported);
        assert!(reported.is_some());
        release.send(()).unwrap();
        wait_until(false);
        pulse.report(&mut reported);
        end.send(()).unwrap();
        thread.join().unwrap();
    }
}
