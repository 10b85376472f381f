//! Detects when this process serves nobody, although it lives: a task on the threads that serve
//! checks every second what every request or page needs, and beats if that works.
//!
//! A disk that does not answer holds up reads, or blocks the thread that writes to it, and soon the
//! other threads, which wait for the same file. Another thread counts the ticks without a beat.
//! Time in which the process was stopped has no ticks, so it counts as no silence. The thread also
//! reports writes that stand still; what needs no write is served meanwhile, so they stop no pulse.
//! This file must not look for the cause.

use arc_swap::ArcSwap;
use base::telemetry::METRICS;
use futures_util::future::BoxFuture;
use ledger::sqlite::writer::WriteCount;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const TICK_INTERVAL: Duration = Duration::from_millis(250);
/// Number of ticks between two checks: a second.
const BEAT_TICKS: u32 = 4;
/// Number of ticks without a beat after which nobody counts as served: five seconds. A busy machine
/// delays beats too.
const MAX_SILENT_TICKS: u32 = 20;
/// Number of ticks without a beat that a process may have while it recovers: two seconds.
const BEAT_SLACK_TICKS: u32 = 2 * BEAT_TICKS;
/// Number of steady ticks after which the process counts as recovered: three seconds. A process
/// that is well for a moment now and then would otherwise get requests in each of them.
const RECOVERY_TICKS: u32 = 12;
/// Number of ticks after which a write counts as stuck: ten seconds. A write may wait for five
/// seconds for the lock of another process.
const MAX_WRITE_TICKS: u32 = 40;
/// The failure of a check that has not ended.
const NO_ANSWER: &str = "the disk of data_dir does not answer";

/// Checks what every request or page needs. Returns the reason if it fails.
pub type Check = Box<dyn Fn() -> BoxFuture<'static, Result<(), String>> + Send + Sync>;

/// Returns why a part of the process refuses work at the moment. Never waits.
pub type RefusalProbe = Box<dyn Fn() -> Option<String> + Send + Sync>;

/// What a process needs to serve.
pub struct Vitals {
    /// What cannot be done while the check fails.
    pub consequence: &'static str,
    /// Label of the stop in `gateway_ledger_errors_total`.
    pub reason: &'static str,
    pub check: Check,
    /// Counts of writes to databases, with the file of each.
    pub writes: Vec<(&'static str, WriteCount)>,
    /// The parts of the process that refuse work when they are unwell, by a code.
    pub refusals: Vec<(&'static str, RefusalProbe)>,
}

pub struct Pulse {
    vitals: Vitals,
    tick_interval: Duration,
    is_started: AtomicBool,
    /// True if the check has passed since the last tick.
    has_beaten: AtomicBool,
    /// Why the last check has not passed. Empty if it has.
    failure: ArcSwap<String>,
    state: Mutex<PulseState>,
}

struct PulseState {
    beats: Alarm,
    /// Why nobody is served, or was not until the last beat.
    stop: String,
    refusals: Vec<WatchedRefusal>,
    writes: Vec<WatchedWrites>,
}

/// A part of the process that may refuse work.
struct WatchedRefusal {
    code: &'static str,
    refusal: RefusalProbe,
    /// Why it refuses work, or refused it the last time.
    reason: String,
    alarm: Alarm,
}

impl WatchedRefusal {
    fn new((code, refusal): (&'static str, RefusalProbe)) -> Self {
        Self {
            code,
            refusal,
            reason: "the process has not been checked yet".to_owned(),
            // One tick may meet a process that was stopped and has not gone on yet.
            alarm: Alarm::new_on(1, 0),
        }
    }

    fn tick(&mut self) {
        let refusal = (self.refusal)();
        self.alarm.tick(refusal.is_none());
        if let Some(reason) = refusal {
            self.reason = reason;
        }
    }
}

/// Writes to a database, of which one runs at a time.
struct WatchedWrites {
    file: &'static str,
    count: WriteCount,
    /// The write that ran at the last tick.
    running: Option<u64>,
    alarm: Alarm,
}

impl WatchedWrites {
    fn new(file: &'static str, count: WriteCount) -> Self {
        // The series exists before the first fault.
        METRICS.stuck_writes.with_label_values(&[file]);
        Self {
            file,
            count,
            running: None,
            alarm: Alarm::new(MAX_WRITE_TICKS, BEAT_SLACK_TICKS),
        }
    }

    /// Counts one more tick. Logs and counts a write that gets stuck, and one that ends.
    fn tick(&mut self) {
        let running = self.count.running();
        let was_stuck = self.alarm.is_on;
        self.alarm
            .tick(running.is_none() || running != self.running);
        self.running = running;
        let (file, stuck) = (
            self.file,
            METRICS.stuck_writes.with_label_values(&[self.file]),
        );
        match (was_stuck, self.alarm.is_on) {
            (false, true) => {
                stuck.inc();
                log::error!(
                    "a write to {file} has not ended for ten seconds: the disk of data_dir may not answer, or PostgreSQL if it has the ledger; what needs no such write is served meanwhile"
                );
            }
            (true, false) => {
                stuck.dec();
                log::warn!("writes to {file} end again");
            }
            _ => {}
        }
    }
}

/// A fault that is noticed and forgotten with a delay, counted in ticks.
struct Alarm {
    /// Maximum number of ticks without a sign of life while the alarm is off.
    max_silence: u32,
    /// The same while the process recovers.
    max_recovery_silence: u32,
    silent_ticks: u32,
    steady_ticks: u32,
    is_on: bool,
    /// True until the first sign of life, which ends the alarm at once.
    is_starting: bool,
}

impl Alarm {
    fn new(max_silence: u32, max_recovery_silence: u32) -> Self {
        Self {
            max_silence,
            max_recovery_silence,
            silent_ticks: 0,
            steady_ticks: 0,
            is_on: false,
            is_starting: false,
        }
    }

    /// Creates an alarm that is on until the first sign of life.
    fn new_on(max_silence: u32, max_recovery_silence: u32) -> Self {
        Self {
            is_on: true,
            is_starting: true,
            ..Self::new(max_silence, max_recovery_silence)
        }
    }

    fn is_silent(&self) -> bool {
        self.silent_ticks > self.max_silence
    }

    /// Counts one more tick, and whether there was a sign of life since the last one.
    fn tick(&mut self, has_sign: bool) {
        self.silent_ticks = match has_sign {
            true => 0,
            false => self.silent_ticks.saturating_add(1),
        };
        self.steady_ticks = match self.silent_ticks <= self.max_recovery_silence {
            true => self.steady_ticks.saturating_add(1),
            false => 0,
        };
        if self.is_silent() {
            self.is_on = true;
        } else if self.steady_ticks >= RECOVERY_TICKS || self.is_starting && has_sign {
            self.is_on = false;
        }
        self.is_starting &= !has_sign;
    }
}

impl Pulse {
    pub fn new(vitals: Vitals) -> Self {
        Self::with_ticks(TICK_INTERVAL, vitals)
    }

    fn with_ticks(tick_interval: Duration, mut vitals: Vitals) -> Self {
        let writes = std::mem::take(&mut vitals.writes).into_iter();
        let writes = writes.map(|(file, count)| WatchedWrites::new(file, count));
        let writes = writes.collect();
        let refusals = std::mem::take(&mut vitals.refusals).into_iter();
        let refusals = refusals.map(WatchedRefusal::new).collect();
        Self {
            vitals,
            tick_interval,
            is_started: AtomicBool::new(false),
            has_beaten: AtomicBool::new(false),
            failure: ArcSwap::default(),
            state: Mutex::new(PulseState {
                beats: Alarm::new(MAX_SILENT_TICKS, BEAT_SLACK_TICKS),
                stop: String::new(),
                refusals,
                writes,
            }),
        }
    }

    /// Starts the beats on the runtime of the caller. Later calls do nothing.
    pub fn start(self: &Arc<Self>) {
        if self.is_started.load(Ordering::Relaxed) || self.is_started.swap(true, Ordering::AcqRel) {
            return;
        }
        let pulse = Arc::clone(self);
        tokio::spawn(async move {
            loop {
                pulse.check().await;
                tokio::time::sleep(pulse.tick_interval * BEAT_TICKS).await;
            }
        });
    }

    /// Starts the thread that counts ticks. It ends with this pulse.
    ///
    /// # Errors
    /// Returns an error if the thread cannot be started.
    pub fn watch(self: &Arc<Self>) -> io::Result<()> {
        let (pulse, tick_interval) = (Arc::downgrade(self), self.tick_interval);
        let count = move || {
            let mut reported = None;
            while let Some(pulse) = pulse.upgrade() {
                pulse.tick();
                pulse.report(&mut reported);
                drop(pulse);
                std::thread::sleep(tick_interval);
            }
        };
        let counter = std::thread::Builder::new().name("pulse".into());
        counter.spawn(count).map(drop)
    }

    async fn check(&self) {
        // The reason of an earlier check stands until this one ends.
        if self.failure.load().is_empty() {
            self.failure.store(Arc::new(NO_ANSWER.to_owned()));
        }
        let failure = (self.vitals.check)().await.err();
        self.has_beaten
            .fetch_or(failure.is_none(), Ordering::AcqRel);
        self.failure.store(Arc::new(failure.unwrap_or_default()));
    }

    fn lock(&self) -> MutexGuard<'_, PulseState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tick(&self) {
        let mut state = self.lock();
        if self.is_started.load(Ordering::Acquire) {
            let has_beaten = self.has_beaten.swap(false, Ordering::AcqRel);
            state.beats.tick(has_beaten);
        }
        if state.beats.is_silent() {
            state.stop = match self.failure.load().as_str() {
                "" => "the threads that serve requests do not run: the disk of data_dir may not answer"
                    .to_owned(),
                failure => format!("{}: {failure}", self.vitals.consequence),
            };
        }
        state.writes.iter_mut().for_each(WatchedWrites::tick);
        state.refusals.iter_mut().for_each(WatchedRefusal::tick);
    }

    /// Returns why nobody is served. Returns `None` before the start.
    pub fn stop_reason(&self) -> Option<String> {
        let state = self.lock();
        state.beats.is_on.then(|| state.stop.clone())
    }

    /// Returns why parts of the process refuse work, or did so a moment ago, with their codes.
    pub fn refusals(&self) -> Vec<(&'static str, String)> {
        let state = self.lock();
        let refusals = state.refusals.iter().filter(|it| it.alarm.is_on);
        refusals.map(|it| (it.code, it.reason.clone())).collect()
    }

    /// Logs and counts a stop. `reported` holds the start of a stop that was logged before, or
    /// `None`.
    fn report(&self, reported: &mut Option<Instant>) {
        match (self.stop_reason(), *reported) {
            (Some(reason), None) => {
                log::error!("{reason}; nobody is served meanwhile");
                METRICS.ledger_error(self.vitals.reason);
                *reported = Some(Instant::now());
            }
            (None, Some(since)) => {
                let took = since.elapsed().as_secs();
                log::warn!("the process serves again, after {took} s");
                *reported = None;
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt as _;
    use std::sync::mpsc;
    use tokio::sync::watch;

    fn vitals(check: Check) -> Vitals {
        Vitals {
            consequence: "no request can be admitted",
            reason: "edge_stopped",
            check,
            writes: Vec::new(),
            refusals: Vec::new(),
        }
    }

    /// Returns for each tick whether the alarm is on: `.` or `!`.
    fn watch_ticks(alarm: &mut Alarm, signs: &str) -> String {
        let mut on = |sign| {
            alarm.tick(sign == '+');
            if alarm.is_on { '!' } else { '.' }
        };
        signs.chars().map(&mut on).collect()
    }

    #[test]
    fn an_alarm_is_noticed_and_forgotten_with_a_delay() {
        let (silent, beat) = ("-".repeat(20), "+---");
        for (name, signs, expected) in [
            ("beats of a second", beat.repeat(3), ".".repeat(12)),
            ("the longest silence", format!("{silent}+"), ".".repeat(21)),
            (
                "one more tick",
                format!("{silent}-"),
                format!("{}!", ".".repeat(20)),
            ),
            (
                "three seconds of beats",
                format!("{silent}-{}", beat.repeat(3)),
                format!("{}{}.", ".".repeat(20), "!".repeat(12)),
            ),
            (
                "beats that are too late again and again",
                format!("{silent}-{}", "+---------".repeat(4)),
                format!("{}{}", ".".repeat(20), "!".repeat(41)),
            ),
        ] {
            let mut alarm = Alarm::new(MAX_SILENT_TICKS, BEAT_SLACK_TICKS);
            assert_eq!(watch_ticks(&mut alarm, &signs), expected, "{name}");
        }
    }

    #[test]
    fn refusals_that_come_and_go_are_one_fault_or_none() {
        for (name, signs, expected) in [
            ("well from the start", "++".to_owned(), "..".to_owned()),
            ("ill at the start", "---++".to_owned(), "!!!..".to_owned()),
            // As after a stop of the process, or for a moment of each second.
            ("one tick", "+-+---".to_owned(), "....!!".to_owned()),
            (
                "now and then",
                "+---+---".repeat(4),
                format!("..{}", "!".repeat(30)),
            ),
            (
                "three seconds without one",
                format!("+--{}", "+".repeat(12)),
                format!("..{}.", "!".repeat(12)),
            ),
        ] {
            let mut alarm = Alarm::new_on(1, 0);
            assert_eq!(watch_ticks(&mut alarm, &signs), expected, "{name}");
        }
    }

    #[test]
    fn a_check_that_fails_or_does_not_end_stops_the_pulse_until_it_passes_for_a_while() {
        let (set, outcome) = watch::channel(Some(Ok(())));
        let check = move || -> BoxFuture<'static, _> {
            let mut outcome = outcome.clone();
            Box::pin(async move {
                let outcome = outcome.wait_for(Option::is_some).await;
                outcome.unwrap().clone().unwrap()
            })
        };
        let pulse = Pulse::new(vitals(Box::new(check)));
        (0..2 * MAX_SILENT_TICKS).for_each(|_| pulse.tick());
        assert_eq!(pulse.stop_reason(), None, "nobody has connected");
        pulse.is_started.store(true, Ordering::Release);
        // Runs a check every second, and returns the reasons after each.
        let run = |seconds: u32, outcome| {
            set.send_replace(outcome);
            let mut second = |_| {
                let _ = pulse.check().now_or_never();
                (0..BEAT_TICKS).for_each(|_| pulse.tick());
                pulse.stop_reason().unwrap_or_default()
            };
            (0..seconds).map(&mut second).collect::<Vec<_>>()
        };
        let key = Err("cannot look up a key".to_owned());
        for (outcome, why) in [(None, NO_ANSWER), (Some(key), "cannot look up a key")] {
            assert_eq!(run(1, Some(Ok(()))), [""]);
            let message = format!("no request can be admitted: {why}");
            let stopped = run(6, outcome);
            assert_eq!(stopped[..4], ["", "", "", ""], "{why}");
            assert_eq!(stopped[5], message);
            let reasons = run(4, Some(Ok(())));
            assert_eq!(
                reasons[..2],
                [message.clone(), message],
                "until it recovers"
            );
            assert_eq!(reasons[3], "");
        }
    }

    #[test]
    fn a_thread_that_is_held_up_stops_the_pulse_until_it_goes_on() {
        let pass = || -> BoxFuture<'static, _> { Box::pin(async { Ok(()) }) };
        let tick_interval = Duration::from_millis(5);
        let pulse = Arc::new(Pulse::with_ticks(tick_interval, vitals(Box::new(pass))));
        pulse.watch().unwrap();
        let wait_for = |is_stopped: bool| {
            test_world::wait_until("the pulse", test_world::SOON, || {
                let stop = pulse.stop_reason();
                stop.is_some_and(|stop| stop.contains("threads")) == is_stopped
            });
        };
        let (release, held) = mpsc::sync_channel::<()>(0);
        let (end, ended) = tokio::sync::oneshot::channel::<()>();
        let edge = Arc::clone(&pulse);
        let serving = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = { runtime }.enable_time().build().unwrap();
            runtime.block_on(async {
                edge.start();
                edge.start();
                held.recv().unwrap();
                drop(ended.await);
            });
        });
        wait_for(true);
        release.send(()).unwrap();
        wait_for(false);
        drop(end);
        serving.join().unwrap();
    }
}
