//! Runs the housekeeping thread, which resolves keys of dead processes, retries completions,
//! removes expired keys and checkpoints the file.
//!
//! Requests must not use this file.

use super::service::Idempotency;
use crate::idempotency::Retention;
use arc_swap::ArcSwap;
use base::clock;
use config::{Limits, Settings};
use ledger::StoreError;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Runtime;

/// Interval of the housekeeping that checkpoints the write-ahead log. The gateway never replays an
/// expired response, so correctness does not depend on the interval.
const HOUSEKEEPING_INTERVAL: Duration = Duration::from_secs(1);
const CLEANUP_TICKS: u32 = 30;

/// The housekeeping before its thread starts.
pub struct IdempotencyHousekeeping {
    service: Idempotency,
    /// Runtime of the connection to a store, which belongs to one runtime. The thread uses it too.
    runtime: Runtime,
}

impl IdempotencyHousekeeping {
    /// Creates the housekeeping without starting its thread.
    ///
    /// # Errors
    /// Returns an error if the runtime cannot be built.
    pub fn new(service: Idempotency) -> Result<Self, StoreError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(start_error)?;
        Ok(Self { service, runtime })
    }

    /// Resolves the keys of requests that dead processes were answering. The caller must call this
    /// method after the billing service has read their journals, and before this process admits a
    /// request.
    ///
    /// # Errors
    /// Returns an error if the store or the ledger cannot be queried; the thread retries then.
    pub fn resolve_orphaned(&self, limits: &Limits, now_ms: i64) -> Result<(), StoreError> {
        let retention = Retention::from_limits(limits);
        let store = self.service.store();
        self.runtime
            .block_on(store.resolve_orphaned(retention, now_ms))
    }

    /// Starts the thread.
    ///
    /// # Errors
    /// Returns an error if the thread cannot be started.
    pub fn start(self, settings: Arc<ArcSwap<Settings>>) -> Result<(), StoreError> {
        std::thread::Builder::new()
            .name("idempotency".into())
            .spawn(move || self.run(&settings))
            .map(drop)
            .map_err(start_error)
    }

    fn run(&self, settings: &ArcSwap<Settings>) {
        let store = self.service.store();
        let mut tick = 0_u32;
        loop {
            std::thread::sleep(HOUSEKEEPING_INTERVAL);
            tick = tick.wrapping_add(1);
            let limits = &settings.load().limits;
            let outcome = self.runtime.block_on(async {
                let retried = self.service.retry_unwritten().await;
                // A predecessor may have died after it handed over.
                let retention = Retention::from_limits(limits);
                let resolved = store.resolve_orphaned(retention, clock::steady_now_ms());
                let mut outcome = retried.and(resolved.await);
                if tick.is_multiple_of(CLEANUP_TICKS) {
                    outcome = outcome.and(store.clean(limits, clock::steady_now_ms()).await);
                }
                outcome.and(store.checkpoint())
            });
            if let Err(error) = outcome {
                log::warn!("{error}");
            }
        }
    }
}

fn start_error(source: io::Error) -> StoreError {
    StoreError::io("start the idempotency thread", source)
}
