//! Tracks the progress of the shutdown, for code that admits requests, answers them, or reports
//! readiness.
//!
//! Requests read the state without a lock. This file must not end a request: `app.rs` sets the
//! state, and each request ends itself (`intake/buffered_session.rs`).

use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Maximum time that a request sleeps before it checks for a shutdown. It is shorter than the
/// shortest `limits.drain_seconds`.
pub const CHECK_INTERVAL: Duration = Duration::from_millis(900);

/// The instant from which the stored times count.
static EPOCH: LazyLock<Instant> = LazyLock::new(Instant::now);

#[derive(Debug, Default)]
pub struct Shutdown {
    is_lame_duck: AtomicBool,
    /// Milliseconds since `EPOCH`. 0 means not set.
    cutoff_ms: AtomicU64,
    cut: AtomicUsize,
}

impl Shutdown {
    /// Begins the lame-duck phase: the process still accepts and serves requests, but load
    /// balancers should send theirs elsewhere.
    pub fn begin_lame_duck(&self) {
        self.is_lame_duck.store(true, Ordering::Release);
    }

    pub fn is_lame_duck(&self) -> bool {
        self.is_lame_duck.load(Ordering::Acquire)
    }

    /// Sets the time at which running requests are ended. Only the first call has an effect.
    pub fn set_cutoff(&self, at: Instant) {
        let ms = u64::try_from(at.saturating_duration_since(*EPOCH).as_millis())
            .unwrap_or(u64::MAX)
            .max(1);
        let _ = self
            .cutoff_ms
            .compare_exchange(0, ms, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Returns the time at which running requests are ended, or `None` without a shutdown.
    pub fn cutoff(&self) -> Option<Instant> {
        match self.cutoff_ms.load(Ordering::Acquire) {
            0 => None,
            ms => EPOCH.checked_add(Duration::from_millis(ms)),
        }
    }

    /// Waits until a cutoff is set, and then until the cutoff.
    pub async fn wait_for_cutoff(&self) {
        loop {
            let wait = match self
                .cutoff()
                .map(|at| at.saturating_duration_since(Instant::now()))
            {
                Some(Duration::ZERO) => return,
                wait => wait.map_or(CHECK_INTERVAL, |wait| wait.min(CHECK_INTERVAL)),
            };
            tokio::time::sleep(wait).await;
        }
    }

    /// Counts a request that ended itself at the cutoff.
    pub fn count_cut(&self) {
        self.cut.fetch_add(1, Ordering::AcqRel);
    }

    /// Returns the number of requests that ended themselves at the cutoff.
    pub fn cut_count(&self) -> usize {
        self.cut.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_cutoff_counts() {
        let shutdown = Shutdown::default();
        assert_eq!(shutdown.cutoff(), None);
        let at = Instant::now() + Duration::from_secs(5);
        shutdown.set_cutoff(at);
        shutdown.set_cutoff(at + Duration::from_secs(5));
        let cutoff = shutdown.cutoff().unwrap();
        assert!(cutoff <= at && at.duration_since(cutoff) < Duration::from_millis(2));
    }
}
