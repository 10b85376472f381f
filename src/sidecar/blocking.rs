//! Runs slow work of a handler outside the threads that serve requests.
//!
//! Must not limit how much of it runs: `hash_limiter.rs` does, for passwords.

use super::error::PageError;

/// Runs work that may wait for the disk or for another process's lock on a blocking thread.
pub async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, PageError> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| PageError::Internal(error.to_string()))
}
