//! Sends refused requests through the shared store from the edges to the sidecar for its pages.
//!
//! This file must not decide what is recorded.

use super::redis::SharedStore;
use crate::refused_requests::{RefusedRequests, SendBatch};
use ledger::StoreError;
use std::collections::VecDeque;
use std::io;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};

/// Interval at which the sidecar takes batches.
const TAKE_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of batches that one call takes.
const MAX_TAKEN: usize = 100;
/// Number of batches that are recognised if they arrive again. The store may have received a batch
/// whose sending seemed to fail.
const MAX_REMEMBERED: usize = 1_000;

fn runtime() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

/// Creates the sender of an edge. `store` is a separate connection.
///
/// # Errors
/// Returns an error if the runtime for the connection cannot be created.
pub fn sender(store: SharedStore) -> io::Result<SendBatch> {
    let runtime = runtime()?;
    Ok(Box::new(move |batch| {
        runtime.block_on(store.refusals().push(batch))
    }))
}

/// Starts the thread of the sidecar that takes the edges' batches. `store` is another connection.
///
/// # Errors
/// Returns an error if the thread cannot start.
pub fn start_receiver(requests: RefusedRequests, store: SharedStore) -> io::Result<()> {
    let runtime = runtime()?;
    let run = move || {
        let (mut known, mut has_failed) = (VecDeque::new(), false);
        loop {
            std::thread::sleep(TAKE_INTERVAL);
            let taken = runtime.block_on(receive(&requests, &store, &mut known));
            if let Err(error) = &taken
                && !has_failed
            {
                log::warn!("{error}; trying again every second");
            }
            has_failed = taken.is_err();
        }
    };
    std::thread::Builder::new()
        .name("refusals".into())
        .spawn(run)
        .map(drop)
}

async fn receive(
    requests: &RefusedRequests,
    store: &SharedStore,
    known: &mut VecDeque<String>,
) -> Result<(), StoreError> {
    for batch in store.refusals().take(MAX_TAKEN).await? {
        match requests.absorb(&batch, |id| known.iter().any(|known| known == id)) {
            Ok(id) => {
                if known.len() >= MAX_REMEMBERED {
                    known.pop_front();
                }
                known.push_back(id);
            }
            // An edge of another version may have sent the batch.
            Err(error) => log::warn!("cannot read the refused requests of an edge: {error}"),
        }
    }
    Ok(())
}
