//! Detects when this process serves nobody, although it lives: a task on the threads that serve
//! requests checks every second what every request needs, and beats if it may be admitted.
//!
//! A disk that does not answer holds up the reads of keys and balances, or blocks the thread that
//! writes to it, and soon the other threads, which wait for the same file. This file must not look
//! for the cause.

use crate::billing::admission::Admission;
use crate::billing::backlog::LedgerBacklog;
use arc_swap::ArcSwap;
use base::telemetry::METRICS;
use futures_util::future::BoxFuture;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const BEAT_INTERVAL: Duration = Duration::from_secs(1);
/// Time without a beat after which nobody counts as served. A busy machine delays beats too.
const MAX_SILENCE: Duration = Duration::from_secs(5);
/// The failure of a check that has not ended.
const NO_ANSWER: &str = "the disk of data_dir does not answer";

/// Checks what every request needs. Returns the reason if it fails.
type Check = Box<dyn Fn() -> BoxFuture<'static, Result<(), String>> + Send + Sync>;

pub struct Pulse {
    began: Instant,
    max_silence: Duration,
    is_started: AtomicBool,
    /// Time of the last beat, in ms since `began`.
    last_ms: AtomicU64,
    check: Check,
    /// Why the check has not passed. Empty if it has.
    failure: ArcSwap<String>,
}

impl Pulse {
    pub fn new(admission: Arc<dyn Admission>) -> Self {
        let check = move || -> BoxFuture<'static, _> {
            let admission = Arc::clone(&admission);
            Box::pin(async move {
                if admission.backlog().is_some_and(LedgerBacklog::is_full) {
                    return Err("too many ended requests wait for the ledger".to_owned());
                }
                let reads = admission.check_reads().await;
                reads.map_err(|error| error.to_string())
            })
        };
        Self::with_check(MAX_SILENCE, Box::new(check))
    }

    fn with_check(max_silence: Duration, check: Check) -> Self {
        Self {
            began: Instant::now(),
            max_silence,
            is_started: AtomicBool::new(false),
            last_ms: AtomicU64::new(0),
            check,
            failure: ArcSwap::default(),
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
                pulse.failure.store(Arc::new(NO_ANSWER.to_owned()));
                let failure = (pulse.check)().await.err();
                if failure.is_none() {
                    pulse.beat();
                }
                pulse.failure.store(Arc::new(failure.unwrap_or_default()));
                tokio::time::sleep(BEAT_INTERVAL.min(pulse.max_silence / 4)).await;
            }
        });
    }

    fn beat(&self) {
        let since = self.began.elapsed().as_millis();
        let since = u64::try_from(since).unwrap_or(u64::MAX);
        self.last_ms.store(since, Ordering::Release);
    }

    /// Returns why nobody is served. Returns `None` before the first connection.
    pub fn stop_reason(&self) -> Option<String> {
        let last = Duration::from_millis(self.last_ms.load(Ordering::Acquire));
        let is_silent = self.is_started.load(Ordering::Acquire)
            && self.began.elapsed().saturating_sub(last) > self.max_silence;
        is_silent.then(|| match self.failure.load().as_str() {
            "" => "the threads that serve requests do not run: the disk of data_dir may not answer"
                .to_owned(),
            failure => format!("no request can be admitted: {failure}"),
        })
    }

    /// Logs and counts a stop. `reported` holds the start of a stop that was logged before, or
    /// `None`. A thread that does not serve requests must call this function often.
    pub fn report(&self, reported: &mut Option<Instant>) {
        match (self.stop_reason(), *reported) {
            (Some(reason), None) => {
                log::error!("{reason}; nobody is served meanwhile");
                METRICS.ledger_error("edge_stopped");
                *reported = Some(Instant::now());
            }
            (None, Some(since)) => {
                let took = since.elapsed().as_secs();
                log::warn!("requests are served again, after {took} s");
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

    const SILENCE: Duration = Duration::from_millis(100);

    /// Waits for a reason that contains `reason`, or for none.
    fn wait_for_stop(pulse: &Pulse, reason: Option<&str>) {
        test_world::wait_until("the pulse", test_world::SOON, || {
            let stop = pulse.stop_reason();
            let is_reason = match (&stop, reason) {
                (Some(stop), Some(reason)) => stop.contains(reason),
                (stop, reason) => stop.is_none() && reason.is_none(),
            };
            is_reason && pulse.is_started.load(Ordering::Acquire)
        });
    }

    /// Runs `held` on a thread that serves requests after it has started the pulse. It serves on
    /// until the sender is dropped.
    fn serve(
        pulse: &Arc<Pulse>,
        held: impl FnOnce() + Send + 'static,
    ) -> tokio::sync::oneshot::Sender<()> {
        let (end, ended) = tokio::sync::oneshot::channel::<()>();
        let edge = Arc::clone(pulse);
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = { runtime }.enable_time().build().unwrap();
            runtime.block_on(async {
                edge.start();
                edge.start();
                held();
                drop(ended.await);
            });
        });
        end
    }

    #[test]
    fn a_thread_that_is_held_up_stops_the_pulse_until_it_goes_on() {
        let pass = || -> BoxFuture<'static, _> { Box::pin(async { Ok(()) }) };
        let pulse = Arc::new(Pulse::with_check(SILENCE, Box::new(pass)));
        assert_eq!(pulse.stop_reason(), None, "nobody has connected");
        let (release, held) = mpsc::sync_channel::<()>(0);
        let _serving = serve(&pulse, move || held.recv().unwrap());
        let mut reported = None;
        wait_for_stop(&pulse, Some("threads"));
        pulse.report(&mut reported);
        assert!(reported.is_some());
        release.send(()).unwrap();
        wait_for_stop(&pulse, None);
        pulse.report(&mut reported);
        assert!(reported.is_none());
    }

    #[test]
    fn a_check_that_fails_or_does_not_end_stops_the_pulse_until_it_passes() {
        let (set, outcome) = tokio::sync::watch::channel(Some(Ok(())));
        let check = move || -> BoxFuture<'static, _> {
            let mut outcome = outcome.clone();
            Box::pin(async move {
                outcome
                    .wait_for(Option::is_some)
                    .await
                    .unwrap()
                    .clone()
                    .unwrap()
            })
        };
        let pulse = Arc::new(Pulse::with_check(SILENCE, Box::new(check)));
        let _serving = serve(&pulse, || {});
        for (outcome, why) in [
            (None, "the disk of data_dir does not answer"),
            (
                Some(Err("cannot look up a key".to_owned())),
                "cannot look up a key",
            ),
        ] {
            wait_for_stop(&pulse, None);
            set.send(outcome).unwrap();
            let message = format!("no request can be admitted: {why}");
            wait_for_stop(&pulse, Some(&message));
            set.send(Some(Ok(()))).unwrap();
        }
        wait_for_stop(&pulse, None);
    }
}
