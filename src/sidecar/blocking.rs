//! Runs slow work of a handler outside the threads that serve requests.
//!
//! This file must not limit concurrent work; for passwords, `hash_limiter.rs` does.

use super::error::PageError;
use crate::handler_threads::bound_work;
use std::time::Duration;

/// Time after which a page no longer waits for its work. Reading a large ledger takes less.
const WORK_TIMEOUT: Duration = Duration::from_secs(30);

/// Runs work that may wait for the disk or for another process's lock on a blocking thread. Work
/// that takes too long continues if its change has begun; if not, the change fails.
pub async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, PageError> {
    let work = tokio::task::spawn_blocking(bound_work(WORK_TIMEOUT, work));
    let worked = tokio::time::timeout(WORK_TIMEOUT, work).await;
    let too_long = |_| PageError::Storage("the disk of data_dir does not answer".into());
    worked
        .map_err(too_long)?
        .map_err(|error| PageError::Internal(error.to_string()))
}
