//! Runs calls that may wait for a disk on the threads that serve requests.
//!
//! This file must not depend on the work.

use tokio::runtime::{Handle, RuntimeFlavor};

/// Runs work that may wait for a disk. On a worker thread of a runtime, another thread takes over
/// the worker's other tasks meanwhile, which costs some microseconds.
pub fn may_block<T>(work: impl FnOnce() -> T) -> T {
    let flavor = Handle::try_current().map(|handle| handle.runtime_flavor());
    if matches!(flavor, Ok(RuntimeFlavor::MultiThread)) {
        tokio::task::block_in_place(work)
    } else {
        work()
    }
}
