//! Refusals below the level of a request: malformed headers and bodies, header timeouts, failed
//! handshakes, connections over a limit. Each is counted, and logged in one line with its reason.
//!
//! A flood of refusals must not flood the log: for each reason, at most [`MAX_LINES_PER_WINDOW`]
//! lines are written per [`WINDOW_INTERVAL`], then one line with the number of suppressed lines.
//! Must not log a header, a query or a secret.

use super::metrics::METRICS;
pub use super::refusal_reason::RefusalReason;
use std::fmt;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Maximum number of lines per reason and window.
const MAX_LINES_PER_WINDOW: u32 = 10;
const WINDOW_INTERVAL: Duration = Duration::from_secs(10);

/// Counts and logs a refusal. `detail`: a sentence without its full stop and without secrets.
pub fn record(reason: RefusalReason, client: Option<IpAddr>, detail: impl fmt::Display) {
    METRICS.count_refusal(reason);
    let admission = window(reason).admit(Instant::now());
    if let Some(suppressed) = admission.suppressed {
        log_suppressed(reason, suppressed);
    }
    if admission.write {
        let client = client
            .map(|address| format!(" from {address}"))
            .unwrap_or_default();
        log::warn!("refused ({}){client}: {detail}", reason.as_str());
    }
    if admission.schedule {
        schedule_summary(reason);
    }
}

fn log_suppressed(reason: RefusalReason, count: u64) {
    let seconds = WINDOW_INTERVAL.as_secs();
    log::warn!(
        "refused ({}): {count} more within {seconds} s, not logged one by one",
        reason.as_str()
    );
}

/// Schedules a line with the number of suppressed lines at the end of the window. Outside a
/// runtime, the next refusal writes it.
fn schedule_summary(reason: RefusalReason) {
    let Ok(runtime) = tokio::runtime::Handle::try_current() else {
        return;
    };
    runtime.spawn(async move {
        tokio::time::sleep(WINDOW_INTERVAL).await;
        let suppressed = window(reason).take_suppressed();
        if suppressed > 0 {
            log_suppressed(reason, suppressed);
        }
    });
}

/// The log window of one reason.
#[derive(Debug, Clone, Copy)]
struct LogWindow {
    began: Option<Instant>,
    written: u32,
    suppressed: u64,
}

/// The log decision for one refusal.
#[derive(Debug, PartialEq, Eq)]
struct LogAdmission {
    write: bool,
    /// True for the first line that this window suppresses.
    schedule: bool,
    /// Number of lines that the previous window suppressed, if its summary was not written.
    suppressed: Option<u64>,
}

impl LogWindow {
    const NEW: Self = Self {
        began: None,
        written: 0,
        suppressed: 0,
    };

    fn admit(&mut self, now: Instant) -> LogAdmission {
        let mut suppressed = None;
        if self
            .began
            .is_none_or(|began| now.duration_since(began) >= WINDOW_INTERVAL)
        {
            suppressed = Some(self.suppressed).filter(|count| *count > 0);
            *self = Self {
                began: Some(now),
                ..Self::NEW
            };
        }
        if self.written < MAX_LINES_PER_WINDOW {
            self.written += 1;
            return LogAdmission {
                write: true,
                schedule: false,
                suppressed,
            };
        }
        self.suppressed = self.suppressed.saturating_add(1);
        LogAdmission {
            write: false,
            schedule: self.suppressed == 1,
            suppressed,
        }
    }
}

static WINDOWS: [Mutex<LogWindow>; RefusalReason::ALL.len()] =
    [const { Mutex::new(LogWindow::NEW) }; RefusalReason::ALL.len()];

struct LockedLogWindow(std::sync::MutexGuard<'static, LogWindow>);

fn window(reason: RefusalReason) -> LockedLogWindow {
    LockedLogWindow(
        WINDOWS[reason as usize]
            .lock()
            .unwrap_or_else(PoisonError::into_inner),
    )
}

impl LockedLogWindow {
    fn admit(mut self, now: Instant) -> LogAdmission {
        self.0.admit(now)
    }

    fn take_suppressed(mut self) -> u64 {
        std::mem::take(&mut self.0.suppressed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_a_few_lines_and_the_number_of_the_others() {
        let begin = Instant::now();
        let mut window = LogWindow::NEW;
        let written = (0..1_000).filter(|_| window.admit(begin).write).count();
        assert_eq!(
            (written as u32, window.suppressed),
            (
                MAX_LINES_PER_WINDOW,
                1_000 - u64::from(MAX_LINES_PER_WINDOW)
            )
        );
        let next = window.admit(begin + WINDOW_INTERVAL);
        assert_eq!(
            next,
            LogAdmission {
                write: true,
                schedule: false,
                suppressed: Some(990)
            }
        );
        assert_eq!(window.suppressed, 0);
    }

    #[test]
    fn one_summary_is_scheduled_for_a_window() {
        let begin = Instant::now();
        let mut window = LogWindow::NEW;
        let scheduled = (0..100).filter(|_| window.admit(begin).schedule).count();
        assert_eq!(scheduled, 1);
    }

    #[test]
    fn each_reason_has_a_label_and_a_window_of_its_own() {
        for (index, reason) in RefusalReason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, index);
        }
        let mut labels = RefusalReason::ALL.map(RefusalReason::as_str);
        labels.sort_unstable();
        assert!(labels.windows(2).all(|pair| pair[0] != pair[1]));
    }
}
