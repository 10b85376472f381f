//! Runs calls that may wait for a disk on threads of their own, so that the threads that serve
//! requests never do.
//!
//! The threads of a pool start with its first job and live as long as the process. A disk that does
//! not answer holds up these threads; then jobs wait, and are refused once too many do. This file
//! must not depend on the work.

use crate::queue::{QueueReceiver, QueueSender, bounded_queue};
use std::fmt;
use std::io;
use std::sync::mpsc::TrySendError;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;

/// Maximum number of jobs that wait for a thread of one pool.
const MAX_QUEUED: usize = 1_024;
/// Time after which a caller no longer waits for its job.
pub const DISK_TIMEOUT: Duration = Duration::from_secs(5);

type Job = Box<dyn FnOnce() + Send>;

/// A few threads that may wait for a disk.
pub struct DiskPool {
    name: &'static str,
    threads: usize,
    queue: OnceLock<QueueSender<Job>>,
}

/// The reason why a job has no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskError {
    /// Too many jobs wait. The job will not run.
    Busy,
    /// The job has not ended in time. If it has begun, it still runs.
    Timeout,
    /// The job panicked, or its thread could not start.
    Failed,
}

impl DiskError {
    /// Returns whether the job may have run, or may still run.
    pub fn may_run(self) -> bool {
        self != Self::Busy
    }
}

impl fmt::Display for DiskError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Busy => "too many calls wait for the disk of data_dir",
            Self::Timeout => "the disk of data_dir does not answer",
            Self::Failed => "a thread that uses the disk of data_dir has failed",
        })
    }
}

impl From<DiskError> for io::Error {
    fn from(error: DiskError) -> Self {
        let kind = match error {
            DiskError::Busy => io::ErrorKind::WouldBlock,
            DiskError::Timeout => io::ErrorKind::TimedOut,
            DiskError::Failed => io::ErrorKind::Other,
        };
        Self::new(kind, error.to_string())
    }
}

impl DiskPool {
    pub const fn new(name: &'static str, threads: usize) -> Self {
        Self {
            name,
            threads,
            queue: OnceLock::new(),
        }
    }

    /// Runs `work` on a thread of the pool, and waits for [`DISK_TIMEOUT`] at most. Work for which
    /// nobody waits any more does not begin.
    ///
    /// # Errors
    /// Returns the reason why there is no result in time.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, DiskError> {
        self.run_within(DISK_TIMEOUT, work).await
    }

    /// Runs `work` like [`DiskPool::run`], with another time limit.
    ///
    /// # Errors
    /// Returns the reason why there is no result in time.
    pub async fn run_within<T: Send + 'static>(
        &self,
        timeout: Duration,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, DiskError> {
        let (answer, result) = oneshot::channel();
        let job: Job = Box::new(move || {
            if !answer.is_closed() {
                drop(answer.send(work()));
            }
        });
        match self.queue.get_or_init(|| self.start()).try_send(job) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => return Err(DiskError::Busy),
            Err(TrySendError::Disconnected(_)) => return Err(DiskError::Failed),
        }
        match tokio::time::timeout(timeout, result).await {
            Ok(Ok(result)) => Ok(result),
            Ok(Err(_)) => Err(DiskError::Failed),
            Err(_) => Err(DiskError::Timeout),
        }
    }

    fn start(&self) -> QueueSender<Job> {
        let (sender, receiver) = bounded_queue(MAX_QUEUED);
        let receiver = Arc::new(Mutex::new(receiver));
        for _ in 0..self.threads {
            let receiver = Arc::clone(&receiver);
            let started = std::thread::Builder::new()
                .name(self.name.into())
                .spawn(move || run_jobs(&receiver));
            if let Err(error) = started {
                log::error!("cannot start a thread for the disk: {error}");
            }
        }
        sender
    }
}

fn run_jobs(jobs: &Mutex<QueueReceiver<Job>>) {
    loop {
        // Only this statement holds the lock.
        let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(job) = job else { return };
        // A job that panics answers nothing, and its caller learns that.
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(job));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    static POOL: DiskPool = DiskPool::new("disk-test", 1);

    #[tokio::test]
    async fn a_job_that_does_not_end_holds_up_its_thread_and_no_caller() {
        assert_eq!(POOL.run(|| 1).await, Ok(1));
        let short = Duration::from_millis(20);
        let release = loop {
            let (release, held) = mpsc::sync_channel::<()>(0);
            let (begin, begun) = mpsc::sync_channel(1);
            let stuck = POOL.run_within(short, move || {
                begin.send(()).unwrap();
                held.recv().is_ok()
            });
            assert_eq!(stuck.await, Err(DiskError::Timeout));
            // On a busy machine the time may be over before the thread takes the job: it is
            // dropped then.
            if begun.recv().is_ok() {
                break release;
            }
        };
        // The thread is stuck, so exactly as many jobs as may wait are taken.
        let mut waiting = Vec::new();
        for _ in 0..MAX_QUEUED {
            let mut job = Box::pin(POOL.run_within(Duration::from_secs(60), || ()));
            assert!(futures_now(job.as_mut()).is_none());
            waiting.push(job);
        }
        assert_eq!(POOL.run(|| ()).await, Err(DiskError::Busy));
        release.send(()).unwrap();
        for job in waiting {
            assert_eq!(job.await, Ok(()));
        }
        assert_eq!(
            POOL.run(|| panic!("a job that fails")).await,
            Err::<(), _>(DiskError::Failed)
        );
        assert_eq!(POOL.run(|| 2).await, Ok(2));
    }

    fn futures_now<F: Future>(future: std::pin::Pin<&mut F>) -> Option<F::Output> {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        match future.poll(&mut context) {
            std::task::Poll::Ready(output) => Some(output),
            std::task::Poll::Pending => None,
        }
    }
}
