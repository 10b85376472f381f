//! Holds the state that all requests share.
//!
//! This file must not handle a request: `edge.rs` calls the files that do.

use super::activity::ActivityRegistry;
use super::connections::Connections;
use super::cpu_pool::CpuPool;
use super::intake::BodyBytes;
use super::pages::OpenPages;
use super::recorders::Recorders;
use super::resource_guard::ResourceGuard;
use super::shutdown::Shutdown;
use super::upstream::dns::EndpointResolver;
use super::upstream::local_sidecar::LocalSidecar;
use crate::billing::admission::{Admission, LedgerLookup};
use crate::billing::reported_turns::ReportedTurns;
use crate::idempotency::Idempotency;
use crate::local_link::LocalConnector;
use crate::shared_credit::store_health::StoreHealthMonitor;
use crate::upstreams::EndpointRegistry;
use arc_swap::ArcSwap;
use config::Settings;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};

pub struct Gateway {
    pub settings: Arc<ArcSwap<Settings>>,
    pub admission: Arc<dyn Admission>,
    /// The ledger of this process. `None` if the ledger belongs to a sidecar in another process.
    pub(super) ledger: Option<Arc<dyn LedgerLookup>>,
    pub idempotency: Idempotency,
    pub recorders: Recorders,
    /// True once the process accepts no new requests.
    pub draining: Arc<AtomicBool>,
    pub shutdown: Arc<Shutdown>,
    /// Number of requests that are being sent to a vendor or answered.
    pub in_flight: Arc<AtomicUsize>,
    pub(super) body_bytes: BodyBytes,
    pub(super) activity: ActivityRegistry,
    pub(super) pages: OpenPages,
    /// Connector to the sidecar, if the sidecar runs in this process.
    pub(super) sidecar: Option<LocalSidecar>,
    /// Reports the address of a sidecar in another process.
    pub(super) store_health: Option<Arc<StoreHealthMonitor>>,
    pub(super) cpu: Arc<CpuPool>,
    pub pressure: Arc<ResourceGuard>,
    pub endpoint_registry: Arc<EndpointRegistry>,
    /// Token counts that vendors reported for earlier turns. The gateway uses them to estimate
    /// turns for which the vendor has not reported usage.
    pub(super) turns: ReportedTurns,
    pub(super) resolver: Arc<EndpointResolver>,
}

impl Gateway {
    pub fn new(
        settings: Arc<ArcSwap<Settings>>,
        admission: Arc<dyn Admission>,
        ledger: Option<Arc<dyn LedgerLookup>>,
        idempotency: Idempotency,
        recorders: Recorders,
    ) -> Self {
        let cpu = Arc::new(CpuPool::new(settings.load().limits.cpu_threads));
        Self {
            settings,
            admission,
            ledger,
            idempotency,
            recorders,
            draining: Arc::default(),
            shutdown: Arc::default(),
            in_flight: Arc::default(),
            body_bytes: BodyBytes::default(),
            activity: ActivityRegistry::default(),
            pages: OpenPages::default(),
            sidecar: None,
            store_health: None,
            cpu,
            pressure: Arc::default(),
            endpoint_registry: Arc::default(),
            turns: ReportedTurns::default(),
            resolver: Arc::default(),
        }
    }

    /// Sets the sidecar of this process. The gateway reaches it in memory while the sidecar accepts
    /// connections, and at `listen.sidecar` after that.
    #[must_use]
    pub fn with_sidecar(self, sidecar: LocalConnector) -> Self {
        Self {
            sidecar: Some(LocalSidecar::new(sidecar)),
            ..self
        }
    }

    /// Sets a sidecar in another process. The gateway reaches it at the address that the sidecar
    /// announces.
    #[must_use]
    pub fn with_announced_sidecar(self, store_health: Arc<StoreHealthMonitor>) -> Self {
        Self {
            store_health: Some(store_health),
            ..self
        }
    }

    /// Starts a thread that monitors the memory and the open files of this process. When file
    /// descriptors run short, the thread closes idle connections of `connections`.
    ///
    /// # Errors
    /// Returns an error if the thread cannot be started.
    pub fn watch_pressure(&self, connections: Arc<Connections>) -> std::io::Result<()> {
        Arc::clone(&self.pressure).watch(Arc::clone(&self.settings), connections)
    }

    /// Starts a thread that resolves and health-checks the vendors' endpoints.
    ///
    /// # Errors
    /// Returns an error if the thread cannot be started.
    pub fn watch_upstreams(&self) -> std::io::Result<()> {
        Arc::clone(&self.resolver).watch(
            Arc::clone(&self.settings),
            Arc::clone(&self.endpoint_registry),
        )
    }
}
