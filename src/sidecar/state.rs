//! Holds the services behind the pages, and the state that handlers share while the sidecar runs.
//!
//! This file must not depend on a page or a request.

use super::alerts::fresh_secrets::FreshSecrets;
use super::hash_limiter::PasswordHashLimiter;
use super::known_networks::KnownNetworks;
use super::ledger_audit::LedgerAuditRunner;
use super::login_backoff::LoginBackoff;
use super::new_keys::NewKeyTickets;
use super::stream_slots::StreamCounts;
use super::throttle::Throttle;
use crate::billing::Billing;
use crate::payments::Payments;
use crate::refused_requests::RefusedRequests;
use crate::upstreams::EndpointRegistry;
use accounts::Accounts;
use arc_swap::ArcSwap;
use config::Settings;
use std::sync::Arc;
use tokio::sync::{Semaphore, watch};

/// Maximum number of password-reset mails that are being queued. Further requests get a 503.
const MAX_FORGOTTEN: usize = 16;

/// Maximum number of concurrent requests to identity providers. Further requests get a 503.
const MAX_PROVIDER_CALLS: usize = 32;

/// Dependencies that the caller of the sidecar provides.
#[derive(Clone)]
pub struct Sidecar {
    pub accounts: Accounts,
    pub billing: Billing,
    pub settings: Arc<ArcSwap<Settings>>,
    /// Registry of the vendors' endpoints, if this process calls vendors.
    pub endpoint_registry: Option<Arc<EndpointRegistry>>,
    /// Requests that edges refused, if an edge runs in this process.
    pub refused: Option<RefusedRequests>,
    pub(super) audits: Arc<LedgerAuditRunner>,
}

impl Sidecar {
    pub fn new(accounts: Accounts, billing: Billing, settings: Arc<ArcSwap<Settings>>) -> Self {
        Self {
            accounts,
            billing,
            settings,
            endpoint_registry: None,
            refused: None,
            audits: Arc::default(),
        }
    }

    /// Adds the refused requests, in a process that has an edge.
    #[must_use]
    pub fn with_refused_requests(self, refused: RefusedRequests) -> Self {
        Self {
            refused: Some(refused),
            ..self
        }
    }

    /// Adds the endpoint registry, in a process that calls the vendors.
    #[must_use]
    pub fn with_endpoint_registry(self, endpoint_registry: Arc<EndpointRegistry>) -> Self {
        Self {
            endpoint_registry: Some(endpoint_registry),
            ..self
        }
    }
}

/// Shared state of the pages while the sidecar runs.
pub(super) struct SidecarState {
    pub(super) accounts: Accounts,
    pub(super) billing: Billing,
    pub(super) settings: Arc<ArcSwap<Settings>>,
    pub(super) endpoint_registry: Option<Arc<EndpointRegistry>>,
    pub(super) refused: Option<RefusedRequests>,
    pub(super) throttle: Throttle,
    pub(super) login_backoff: LoginBackoff,
    pub(super) known_networks: KnownNetworks,
    pub(super) hashing: PasswordHashLimiter,
    /// Limits the password-reset mails that are being queued.
    pub(super) forgotten: Arc<Semaphore>,
    /// Limits the requests to identity providers.
    pub(super) provider_calls: Semaphore,
    /// Lets one write at a time record the use of a session.
    pub(super) session_touch: Arc<Semaphore>,
    pub(super) audits: Arc<LedgerAuditRunner>,
    pub(super) new_keys: NewKeyTickets,
    pub(super) streams: Arc<StreamCounts>,
    pub(super) payments: Payments,
    /// New webhook secrets that their sessions may see again.
    pub(super) fresh_secrets: FreshSecrets,
    /// True once the sidecar shuts down, which ends all event streams.
    pub(super) closing: watch::Receiver<bool>,
}

impl SidecarState {
    pub(super) fn new(sidecar: Sidecar, closing: watch::Receiver<bool>) -> Self {
        let payments = Payments::new(
            sidecar.accounts.clone(),
            sidecar.billing.clone(),
            Arc::clone(&sidecar.settings),
        );
        Self {
            payments,
            accounts: sidecar.accounts,
            billing: sidecar.billing,
            settings: sidecar.settings,
            endpoint_registry: sidecar.endpoint_registry,
            refused: sidecar.refused,
            throttle: Throttle::default(),
            login_backoff: LoginBackoff::default(),
            known_networks: KnownNetworks::default(),
            hashing: PasswordHashLimiter::default(),
            forgotten: Arc::new(Semaphore::new(MAX_FORGOTTEN)),
            provider_calls: Semaphore::new(MAX_PROVIDER_CALLS),
            session_touch: Arc::new(Semaphore::new(1)),
            audits: sidecar.audits,
            new_keys: NewKeyTickets::default(),
            streams: Arc::default(),
            fresh_secrets: FreshSecrets::default(),
            closing,
        }
    }
}
