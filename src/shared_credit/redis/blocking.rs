//! Calls to the shared store from code that is not asynchronous.

use ledger::StoreError;
use std::future::Future;

/// Runs `work` to completion on a new thread, because a serving thread must not block.
///
/// # Errors
/// Returns the error of `work`, or an error if it could not run.
pub fn block_on<T: Send>(
    work: impl Future<Output = Result<T, StoreError>> + Send,
) -> Result<T, StoreError> {
    let run = || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime
            .map_err(|source| StoreError::io("call the shared store", source))?
            .block_on(work)
    };
    std::thread::scope(|scope| scope.spawn(run).join()).unwrap_or_else(|_| {
        Err(StoreError::Unusable(
            "cannot call the shared store: the calling thread panicked".into(),
        ))
    })
}
