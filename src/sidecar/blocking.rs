//! Runs slow work of a handler outside the threads that serve requests.
//!
//! This file must not limit concurrent work; for passwords, `hash_limiter.rs` does.

use super::error::PageError;

/// Runs work that may wait for the disk or for another process's lock on a blocking thread.
pub async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, PageError> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| PageError::Internal(error.to_string()))
}
