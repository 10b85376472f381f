//! Limits the concurrent password hashes: at most two, on blocking threads.
//!
//! Must not know what is hashed.

use super::blocking::run_blocking;
use super::error::PageError;
use std::sync::Arc;
use tokio::sync::Semaphore;

/// Maximum number of concurrent password hashes: each needs 19 MiB and a core.
const MAX_CONCURRENT_HASHES: usize = 2;

/// Maximum number of requests that wait for a hash or have one computed. Over the limit: 503.
const MAX_PENDING_HASHES: usize = 34;

/// Limits the number of concurrent password hashes.
pub struct PasswordHashLimiter {
    pending: Arc<Semaphore>,
    running: Arc<Semaphore>,
}

impl Default for PasswordHashLimiter {
    fn default() -> Self {
        Self {
            pending: Arc::new(Semaphore::new(MAX_PENDING_HASHES)),
            running: Arc::new(Semaphore::new(MAX_CONCURRENT_HASHES)),
        }
    }
}

impl PasswordHashLimiter {
    /// Runs a hash. The permits move with the work, so a client that disconnects does not make room
    /// for a third hash.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, PageError> {
        let pending_permit = Arc::clone(&self.pending)
            .try_acquire_owned()
            .map_err(|_| PageError::Busy)?;
        let running_permit = Arc::clone(&self.running)
            .acquire_owned()
            .await
            .map_err(|_| PageError::Busy)?;
        run_blocking(move || {
            let value = work();
            drop((running_permit, pending_permit));
            value
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::time::Duration;

    async fn until(what: &str, condition: impl Fn() -> bool) {
        let wait = async {
            while !condition() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), wait)
            .await
            .unwrap_or_else(|_| panic!("{what}"));
    }

    /// Releases all waiting threads when it is dropped, so that a failed test does not leave
    /// threads running forever.
    struct Gate(Arc<AtomicBool>);

    impl Drop for Gate {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn two_passwords_are_hashed_at_one_time_some_wait_and_the_rest_are_sent_away() {
        let hashing = Arc::new(PasswordHashLimiter::default());
        let (go, running) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicUsize::new(0)),
        );
        let gate = Gate(Arc::clone(&go));
        let work = || {
            let (go, running) = (Arc::clone(&go), Arc::clone(&running));
            move || {
                let concurrent = running.fetch_add(1, Ordering::SeqCst);
                while !go.load(Ordering::SeqCst) {
                    std::thread::yield_now();
                }
                running.fetch_sub(1, Ordering::SeqCst);
                concurrent
            }
        };
        let waiting: Vec<_> = (0..MAX_PENDING_HASHES)
            .map(|_| {
                let (hashing, work) = (Arc::clone(&hashing), work());
                tokio::spawn(async move { hashing.run(work).await })
            })
            .collect();
        until("every place is taken", || {
            hashing.pending.available_permits() == 0
        })
        .await;
        until("two work", || {
            running.load(Ordering::SeqCst) == MAX_CONCURRENT_HASHES
        })
        .await;
        assert!(
            matches!(hashing.run(work()).await, Err(PageError::Busy)),
            "one more"
        );
        drop(gate);
        for one in waiting {
            let concurrent = one.await.unwrap().expect("whoever has a place is served");
            assert!(
                concurrent < MAX_CONCURRENT_HASHES,
                "{concurrent} others worked beside it"
            );
        }
        assert!(hashing.run(work()).await.is_ok(), "there is room again");
    }
}
