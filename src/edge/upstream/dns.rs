//! Resolves the names of the vendors' endpoints in the background, and runs their health checks.
//!
//! Each endpoint has one of Pingora's load balancers, whose backends are the addresses behind its
//! name. The balancer resolves the name again, keeps the last good answer, alternates between the
//! addresses and runs the health check against each. This file does not decide which endpoint a
//! request uses, and must not resolve a name on a thread that serves requests.

use crate::upstreams::EndpointRegistry;
use arc_swap::ArcSwap;
use async_trait::async_trait;
use config::catalog::{ActiveHealthCheck, CatalogVendor, HttpVersion, VendorEndpoint};
use config::{Limits, Settings};
use pingora::lb::discovery::ServiceDiscovery;
use pingora::lb::health_check::{HealthCheck as Check, HttpHealthCheck};
use pingora::lb::selection::RoundRobin;
use pingora::lb::{Backend, Backends, LoadBalancer};
use pingora::protocols::l4::socket::SocketAddr as Address;
use pingora::{Error, ErrorType, OrErr as _, Result};
use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const RESOLVE_TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum number of addresses per name.
const MAX_ADDRESSES: usize = 32;
/// Interval of checks whether a lookup or a health check is due.
const TICK_INTERVAL: Duration = Duration::from_millis(200);

/// Resolves a name to addresses.
#[async_trait]
pub trait DnsResolver: Send + Sync {
    async fn addresses(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>>;
}

/// Uses the machine's own resolver, on a thread that may block.
struct SystemResolver;

#[async_trait]
impl DnsResolver for SystemResolver {
    async fn addresses(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        Ok(tokio::net::lookup_host((host, port)).await?.collect())
    }
}

pub struct EndpointResolver {
    resolver: Arc<dyn DnsResolver>,
    /// Load balancers by endpoint. Only the config adds and removes endpoints.
    balancers: Mutex<HashMap<VendorEndpoint, Arc<EndpointBalancer>>>,
}

impl Default for EndpointResolver {
    fn default() -> Self {
        Self::new(Arc::new(SystemResolver))
    }
}

impl EndpointResolver {
    pub fn new(resolver: Arc<dyn DnsResolver>) -> Self {
        Self {
            resolver,
            balancers: Mutex::default(),
        }
    }

    fn balancer(&self, endpoint: &VendorEndpoint, limits: &Limits) -> Arc<EndpointBalancer> {
        let mut balancers = lock(&self.balancers);
        if let Some(balancer) = balancers.get(endpoint) {
            balancer
                .stale_seconds
                .store(limits.dns_stale_seconds, Ordering::Relaxed);
            return Arc::clone(balancer);
        }
        let balancer = Arc::new(EndpointBalancer::new(
            endpoint,
            limits,
            Arc::clone(&self.resolver),
        ));
        balancers.insert(endpoint.clone(), Arc::clone(&balancer));
        balancer
    }

    /// Returns an address of the endpoint that is not among `tried`, healthy ones first.
    ///
    /// # Errors
    /// Returns an error if the name does not resolve or all addresses were tried.
    pub async fn address(
        &self,
        endpoint: &VendorEndpoint,
        tried: &[SocketAddr],
        limits: &Limits,
    ) -> io::Result<SocketAddr> {
        let balancer = self.balancer(endpoint, limits);
        if balancer.is_empty() {
            balancer.refresh().await?;
        }
        balancer
            .next_address(tried)
            .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "no address is left to try"))
    }

    /// Resolves the endpoint's name now.
    ///
    /// # Errors
    /// Returns an error if no resolver answers. The known addresses stay in use.
    #[cfg(test)]
    pub async fn refresh(&self, endpoint: &VendorEndpoint, limits: &Limits) -> io::Result<()> {
        self.balancer(endpoint, limits).refresh().await
    }

    pub fn has_untried(
        &self,
        endpoint: &VendorEndpoint,
        tried: &[SocketAddr],
        limits: &Limits,
    ) -> bool {
        self.balancer(endpoint, limits)
            .addresses()
            .any(|address| !tried.contains(&address))
    }

    /// Starts a thread that resolves names, checks endpoints and logs the vendors' failures for as
    /// long as the process lives.
    ///
    /// # Errors
    /// Returns an error if the thread or its runtime cannot be started.
    pub fn watch(
        self: Arc<Self>,
        settings: Arc<ArcSwap<Settings>>,
        endpoint_registry: Arc<EndpointRegistry>,
    ) -> io::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let watch = async move {
            loop {
                self.tick(&settings.load(), &endpoint_registry);
                endpoint_registry.log_failures(Instant::now(), false);
                tokio::time::sleep(TICK_INTERVAL).await;
            }
        };
        std::thread::Builder::new()
            .name("upstreams".into())
            .spawn(move || runtime.block_on(watch))?;
        Ok(())
    }

    /// Starts the lookups and checks that are due.
    fn tick(&self, settings: &Settings, endpoint_registry: &Arc<EndpointRegistry>) {
        let models = settings.catalog.models().iter();
        let vendors: HashMap<_, _> = models
            .map(|model| (&model.vendor.name, &model.vendor))
            .collect();
        endpoint_registry.retain_vendors(vendors.values().copied());
        // Two vendors may share an address.
        let mut owners: HashMap<&VendorEndpoint, EndpointOwners> = HashMap::new();
        for vendor in vendors.into_values() {
            for (index, endpoint) in vendor.endpoints.iter().enumerate() {
                owners
                    .entry(endpoint)
                    .or_default()
                    .push((Arc::clone(vendor), index));
            }
        }
        lock(&self.balancers).retain(|endpoint, _| owners.contains_key(endpoint));
        let every = Duration::from_secs(settings.limits.dns_refresh_seconds);
        for (endpoint, owners) in owners {
            let balancer = self.balancer(endpoint, &settings.limits);
            balancer.tick(
                owners,
                endpoint.health_check.as_ref(),
                every,
                endpoint_registry,
            );
        }
    }
}

/// The vendors of an endpoint, each with the endpoint's index at that vendor.
type EndpointOwners = Vec<(Arc<CatalogVendor>, usize)>;

struct EndpointBalancer {
    balancer: LoadBalancer<RoundRobin>,
    host: String,
    /// Time for which the last addresses stay in use while no resolver answers. A reload may change
    /// it.
    stale_seconds: Arc<AtomicU64>,
    /// Prevents two lookups of one name at a time.
    refreshing: tokio::sync::Mutex<()>,
    is_busy: AtomicBool,
    /// Start of the last lookup, and of the last health check.
    began: Mutex<(Option<Instant>, Option<Instant>)>,
}

impl EndpointBalancer {
    fn new(endpoint: &VendorEndpoint, limits: &Limits, resolver: Arc<dyn DnsResolver>) -> Self {
        let stale_seconds = Arc::new(AtomicU64::new(limits.dns_stale_seconds));
        let mut backends = Backends::new(Box::new(DnsDiscovery {
            host: endpoint.host.clone(),
            port: endpoint.port,
            stale_seconds: Arc::clone(&stale_seconds),
            good_at: Mutex::new(None),
            resolver,
        }));
        if let Some(check) = &endpoint.health_check {
            backends.set_health_check(Box::new(TimedHealthCheck::new(endpoint, check)));
        }
        Self {
            balancer: LoadBalancer::from_backends(backends),
            host: endpoint.host.clone(),
            stale_seconds,
            refreshing: tokio::sync::Mutex::new(()),
            is_busy: AtomicBool::new(false),
            began: Mutex::default(),
        }
    }

    fn addresses(&self) -> impl Iterator<Item = SocketAddr> + use<> {
        let backends = self.balancer.backends().get_backend();
        let addresses: Vec<_> = backends
            .iter()
            .filter_map(|backend| backend.addr.as_inet().copied())
            .collect();
        addresses.into_iter()
    }

    fn is_empty(&self) -> bool {
        self.balancer.backends().get_backend().is_empty()
    }

    fn next_address(&self, tried: &[SocketAddr]) -> Option<SocketAddr> {
        let untried = |backend: &Backend| {
            backend
                .addr
                .as_inet()
                .is_some_and(|address| !tried.contains(address))
        };
        let chosen = self
            .balancer
            .select_with(b"", MAX_ADDRESSES, |backend, is_well| {
                is_well && untried(backend)
            });
        // With concurrent callers the balancer may skip an address. An unhealthy address is better
        // than none.
        let chosen = chosen.and_then(|backend| backend.addr.as_inet().copied());
        chosen.or_else(|| self.addresses().find(|address| !tried.contains(address)))
    }

    /// Resolves the name. A second caller waits for the first lookup.
    async fn refresh(&self) -> io::Result<()> {
        let requested_at = Instant::now();
        let _refreshing = self.refreshing.lock().await;
        let is_fresh = lock(&self.began)
            .0
            .is_some_and(|began| began >= requested_at);
        if is_fresh && !self.is_empty() {
            return Ok(());
        }
        lock(&self.began).0 = Some(Instant::now());
        self.balancer.update().await.map_err(|error| {
            log::warn!("cannot resolve {}: {error}", self.host);
            io::Error::other(error.to_string())
        })
    }

    /// Starts a lookup or a check that is due. Two never run at once.
    fn tick(
        self: &Arc<Self>,
        owners: EndpointOwners,
        check: Option<&ActiveHealthCheck>,
        refresh_every: Duration,
        endpoint_registry: &Arc<EndpointRegistry>,
    ) {
        let (resolved_at, checked_at) = *lock(&self.began);
        let due = |at: Option<Instant>, every| at.is_none_or(|at| at.elapsed() >= every);
        let lookup_is_due = due(resolved_at, refresh_every);
        let check_is_due = check.is_some_and(|check| due(checked_at, check.interval));
        if !lookup_is_due && !check_is_due || self.is_busy.swap(true, Ordering::AcqRel) {
            return;
        }
        let (balancer, endpoint_registry) = (Arc::clone(self), Arc::clone(endpoint_registry));
        tokio::spawn(async move {
            if lookup_is_due {
                // The resolver has logged the error, and the known addresses stay in use.
                let _ = balancer.refresh().await;
            }
            if check_is_due {
                lock(&balancer.began).1 = Some(Instant::now());
                let backends = balancer.balancer.backends();
                backends.run_health_check(true).await;
                let passes = backends
                    .get_backend()
                    .iter()
                    .any(|backend| backends.ready(backend));
                for (vendor, index) in owners {
                    endpoint_registry
                        .pool_for(&vendor)
                        .set_health_check_result(index, passes);
                }
            }
            balancer.is_busy.store(false, Ordering::Release);
        });
    }
}

struct DnsDiscovery {
    host: String,
    port: u16,
    /// Time for which earlier addresses stay in use when a lookup finds none.
    stale_seconds: Arc<AtomicU64>,
    good_at: Mutex<Option<Instant>>,
    resolver: Arc<dyn DnsResolver>,
}

#[async_trait]
impl ServiceDiscovery for DnsDiscovery {
    /// Resolves the name. After an error the balancer keeps its addresses.
    async fn discover(&self) -> Result<(BTreeSet<Backend>, HashMap<u64, bool>)> {
        let lookup = tokio::time::timeout(
            RESOLVE_TIMEOUT,
            self.resolver.addresses(&self.host, self.port),
        )
        .await;
        let found = lookup.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        let found = found.and_then(|found| match found.is_empty() {
            true => Err(io::Error::new(
                io::ErrorKind::NotFound,
                "the name has no address",
            )),
            false => Ok(found),
        });
        let stale = Duration::from_secs(self.stale_seconds.load(Ordering::Relaxed));
        match found {
            Ok(found) => {
                *lock(&self.good_at) = Some(Instant::now());
                let backend = |address: &SocketAddr| Backend::new(&address.to_string());
                Ok((
                    found
                        .iter()
                        .take(MAX_ADDRESSES)
                        .map(backend)
                        .collect::<Result<_>>()?,
                    HashMap::new(),
                ))
            }
            Err(_) if lock(&self.good_at).is_some_and(|at| at.elapsed() >= stale) => {
                log::error!(
                    "cannot resolve {}: the last known addresses are too old to use",
                    self.host
                );
                *lock(&self.good_at) = None;
                Ok((BTreeSet::new(), HashMap::new()))
            }
            Err(error) => Err(error).or_err(ErrorType::ConnectNoRoute, "the DNS lookup failed"),
        }
    }
}

/// Pingora's HTTP health check with one timeout for the whole check. Pingora's own are per read.
struct TimedHealthCheck {
    check: HttpHealthCheck,
    timeout: Duration,
}

impl TimedHealthCheck {
    fn new(endpoint: &VendorEndpoint, check: &ActiveHealthCheck) -> Self {
        let mut http = HttpHealthCheck::new(&endpoint.host, endpoint.tls);
        // The config validation has checked both values, so this cannot fail.
        let _ = http
            .req
            .insert_header(http::header::HOST, &endpoint.authority);
        http.req.set_uri(check.path.parse().unwrap_or_default());
        if endpoint.http_version == HttpVersion::Http2 {
            http.peer_template.options.alpn = super::target::alpn(endpoint);
            let _ = super::target::use_authority(&mut http.req, endpoint.tls);
        }
        http.peer_template.options.connection_timeout = Some(check.timeout);
        http.peer_template.options.total_connection_timeout = Some(check.timeout);
        http.peer_template.options.read_timeout = Some(check.timeout);
        http.consecutive_success = usize::try_from(check.passes_after).unwrap_or(1);
        http.consecutive_failure = usize::try_from(check.fails_after).unwrap_or(1);
        http.validator = Some(Box::new(|head| match head.status.as_u16() {
            200..400 => Ok(()),
            status => Error::e_explain(
                ErrorType::HTTPStatus(status),
                "the health check got this status",
            ),
        }));
        Self {
            check: http,
            timeout: check.timeout,
        }
    }
}

#[async_trait]
impl Check for TimedHealthCheck {
    async fn check(&self, target: &Backend) -> Result<()> {
        match tokio::time::timeout(self.timeout, self.check.check(target)).await {
            Ok(outcome) => outcome,
            Err(_) => Error::e_explain(ErrorType::ReadTimedout, "the health check timed out"),
        }
    }

    fn health_threshold(&self, success: bool) -> usize {
        self.check.health_threshold(success)
    }

    fn backend_summary(&self, target: &Backend) -> String {
        match &target.addr {
            Address::Inet(address) => address.to_string(),
            Address::Unix(_) => "a Unix socket".to_owned(),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
