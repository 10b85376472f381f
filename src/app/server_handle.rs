//! Holds the state that the servers of a process share with its signal handling, readiness and
//! shutdown.
//!
//! This file must not start or stop a server: `app.rs` does.

use super::reload::ConfigReloader;
use crate::billing::admission::Admission;
use crate::edge::resource_guard::ResourceGuard;
use crate::edge::shutdown::Shutdown;
use crate::idempotency::IdempotencyKeys;
use crate::pulse::Pulse;
use crate::refused_requests::RefusedRequests;
use crate::upstreams::EndpointRegistry;
use arc_swap::ArcSwap;
use base::telemetry::access::AccessLog;
use base::telemetry::traces::TraceExporter;
use config::{Limits, Settings};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Interval at which a shutdown checks whether all work is done.
pub(super) const DRAIN_POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Interval at which the sidecar checks whether it has a successor.
const SUCCESSION_POLL_INTERVAL: Duration = Duration::from_millis(250);
/// Time without a new request after which a process that has handed over exits.
const HANDOVER_QUIET_INTERVAL: Duration = Duration::from_secs(3);
/// Time that requests have to end themselves after the drain timeout.
const CUTOFF_GRACE_TIMEOUT: Duration = Duration::from_secs(3);

#[derive(Clone)]
pub(super) struct ServerHandle {
    pub(super) settings: Arc<ArcSwap<Settings>>,
    pub(super) reload: Arc<ConfigReloader>,
    pub(super) admission: Arc<dyn Admission>,
    pub(super) idempotency_keys: Arc<dyn IdempotencyKeys>,
    /// True while the edge accepts connections.
    pub(super) ready: Arc<AtomicBool>,
    pub(super) draining: Arc<AtomicBool>,
    pub(super) shutdown: Arc<Shutdown>,
    /// True once a successor has all listening sockets and this process accepts no more
    /// connections.
    pub(super) succeeded: Arc<AtomicBool>,
    pub(super) in_flight: Arc<AtomicUsize>,
    pub(super) pressure: Arc<ResourceGuard>,
    pub(super) pulse: Arc<Pulse>,
    pub(super) access: AccessLog,
    pub(super) traces: TraceExporter,
    pub(super) refused: RefusedRequests,
    pub(super) endpoints: Arc<EndpointRegistry>,
}

impl ServerHandle {
    /// Waits until no request runs, or until the time limit. After a handover the remaining
    /// requests may use their whole time, unless a signal also stops this process. At the end of
    /// the drain time, running requests end themselves. Returns the number of requests that were
    /// cut.
    pub(super) fn wait_for_requests(&self, limits: &Limits) -> usize {
        let (drain, total) = (
            Duration::from_secs(limits.drain_seconds),
            Duration::from_secs(limits.total_seconds),
        );
        let began = Instant::now();
        let (mut quiet_since, mut signal_at) = (Instant::now(), None);
        loop {
            let (running, now) = (self.in_flight.load(Ordering::Acquire), Instant::now());
            let draining = self.draining.load(Ordering::Acquire);
            if running > 0 {
                quiet_since = now;
            }
            // After a handover, a connection that was just accepted may be about to send a request.
            let quiet_for = if draining {
                Duration::ZERO
            } else {
                HANDOVER_QUIET_INTERVAL
            };
            let drain_began = if draining {
                *signal_at.get_or_insert(now)
            } else {
                began
            };
            let end = drain_began + if draining { drain } else { total };
            if draining {
                self.shutdown.set_cutoff(end);
            }
            let is_over = now >= end + CUTOFF_GRACE_TIMEOUT;
            if is_over || running == 0 && quiet_since.elapsed() >= quiet_for {
                return running + self.shutdown.cut_count();
            }
            std::thread::sleep(DRAIN_POLL_INTERVAL);
        }
    }

    /// Returns once a successor has taken over.
    pub(super) async fn wait_for_succession(&self) {
        while !self.succeeded.load(Ordering::Acquire) {
            tokio::time::sleep(SUCCESSION_POLL_INTERVAL).await;
        }
    }

    /// Returns once this process drains or has a successor.
    pub(super) async fn wait_for_leaving(self) {
        while !self.draining.load(Ordering::Acquire) && !self.succeeded.load(Ordering::Acquire) {
            tokio::time::sleep(SUCCESSION_POLL_INTERVAL).await;
        }
    }
}
