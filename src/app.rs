//! Starts and stops the process: settings → stores → services → servers, and shutdown in reverse.
//! The only file that knows both the edge and the sidecar.
//!
//! Must not handle requests. Next: `app/sidecar.rs` (the sidecar as a process of its own).

mod certificate;
mod private_listeners;
mod readiness;
mod reload;
mod series;
mod sidecar;
mod signals;

use crate::account::{self, Accounts, KeyAuthenticator, SharedKeys};
use crate::admin;
use crate::billing::store_health::StoreHealthMonitor;
use crate::billing::{self, Billing, BillingBackend, SharedBilling};
use crate::clock;
use crate::config::{Limits, MAX_DRAIN_SECONDS, MAX_TOTAL_SECONDS, Settings};
use crate::edge::connections::{ConnectionLimiter, Connections};
use crate::edge::descriptors::{self, DescriptorShares};
use crate::edge::panics::{self, PanicGuard};
use crate::edge::resource_guard::{self, ResourceGuard};
use crate::edge::shutdown::Shutdown;
use crate::edge::{Gateway, Recorders, max_retries};
use crate::idempotency::Idempotency;
use crate::local_link::{LocalAcceptor, LocalConnector, local_link};
use crate::sidecar::{self as pages, Sidecar};
use crate::store::redis::SharedStore;
use crate::store::redis::breaker::StoreBreaker;
use crate::telemetry::METRICS;
use crate::telemetry::access::AccessLog;
use crate::telemetry::traces::TraceExporter;
use crate::upstreams::EndpointRegistry;
use anyhow::Context as _;
use arc_swap::ArcSwap;
use axum::middleware::from_fn;
use axum::routing::get;
use axum::serve::ListenerExt as _;
use certificate::ReloadableCertificate;
use pingora::apps::HttpServerOptions;
use pingora::listeners::tls::{Acceptor, TlsSettings};
use pingora::listeners::{L4BufferSettings, ListenerConfig};
use pingora::protocols::http::v2::server::{H2Options, default_h2_options};
use pingora::server::configuration::{Opt, ServerConf};
use pingora::server::{ExecutionPhase, RunArgs, Server};
use pingora::services::listening::Service;
use private_listeners::{ListenerUntilSuccession, PrivateListener, observe_admin};
use reload::ConfigReloader;
pub use sidecar::run as sidecar;
use signals::{SignalHandler, StartupSignals};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How a process starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartMode {
    Fresh,
    /// As the successor of a running process, which hands over its listening sockets when it
    /// receives SIGQUIT.
    Upgrade,
}

impl StartMode {
    pub fn from_upgrade_flag(upgrade: bool) -> Self {
        if upgrade { Self::Upgrade } else { Self::Fresh }
    }
}

/// Interval at which shutdown checks whether all work is done.
const DRAIN_POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Interval at which the shutdown watch checks whether shutdown has begun. Each check wakes a
/// process that may otherwise be idle.
const SHUTDOWN_POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Interval at which the sidecar checks whether it has a successor.
const SUCCESSION_POLL_INTERVAL: Duration = Duration::from_millis(250);
/// Time without a new request after which a process that has handed over exits.
const HANDOVER_QUIET_INTERVAL: Duration = Duration::from_secs(3);
/// Timeouts of the shared store: while a request waits for the response, and while none does.
const ADMIT_TIMEOUT: Duration = Duration::from_millis(200);
const SETTLE_TIMEOUT: Duration = Duration::from_secs(2);
/// Time that a start waits for another process to release a public address.
const BIND_TIMEOUT: Duration = Duration::from_secs(10);
/// Longer than any shutdown can take.
const MAX_GRACE_SECONDS: u64 = MAX_TOTAL_SECONDS + MAX_DRAIN_SECONDS;
/// Time that requests have to end by themselves after the drain timeout.
const CUTOFF_GRACE_TIMEOUT: Duration = Duration::from_secs(3);
/// Time that the last lines of the access log have to be written.
const ACCESS_LOG_FLUSH_TIMEOUT: Duration = Duration::from_secs(1);
/// Time that the last traces have to be sent.
const TRACES_FLUSH_TIMEOUT: Duration = Duration::from_secs(1);
/// Connections to vendors that are kept for reuse.
const MAX_POOLED_UPSTREAM_CONNECTIONS: usize = 1_024;
/// Bytes that are buffered for writing on a client's connection. The header and body of a response
/// are sent together if they fit; Pingora's default of 1 460 bytes holds hardly more than the
/// header. The header of a stream is never held back.
const CLIENT_WRITE_BUFFER_BYTES: usize = 8_192;
/// Bytes that TLS reads ahead on a client's connection. Plain HTTP has buffers of its own for all
/// its reads.
const CLIENT_READ_BUFFER_BYTES: usize = 16_384;
/// Maximum number of open streams on a client's HTTP/2 connection.
const MAX_H2_STREAMS: u32 = 100;
/// Bytes that a client may send before the gateway reads them, per stream and per connection.
const H2_STREAM_WINDOW_BYTES: u32 = 65_536;
const H2_CONNECTION_WINDOW_BYTES: u32 = 1_048_576;
/// Bytes of a response that may wait for the client of one stream.
const H2_SEND_BUFFER_BYTES: usize = 65_536;

/// State that the servers and the shutdown share.
#[derive(Clone)]
struct ServerHandle {
    settings: Arc<ArcSwap<Settings>>,
    reload: Arc<ConfigReloader>,
    billing: BillingBackend,
    /// Health of the shared store, if there is one.
    store: Option<Arc<StoreHealthMonitor>>,
    /// True while the edge accepts connections.
    ready: Arc<AtomicBool>,
    draining: Arc<AtomicBool>,
    shutdown: Arc<Shutdown>,
    /// True once a successor has all listening sockets and this process accepts no more
    /// connections.
    succeeded: Arc<AtomicBool>,
    in_flight: Arc<AtomicUsize>,
    pressure: Arc<ResourceGuard>,
    access: AccessLog,
    traces: TraceExporter,
    fleet: Arc<EndpointRegistry>,
}

/// Runs the whole service until a signal stops it.
///
/// # Errors
/// Returns an error if the service cannot start.
pub fn run(config_file: &Path, mut settings: Settings, start: StartMode) -> anyhow::Result<()> {
    if settings.store.address().is_some() {
        anyhow::bail!(
            "`model-gateway run` needs store.kind: embedded; with kind: redis, use `model-gateway edge` and `model-gateway sidecar`"
        );
    }
    let early = StartupSignals::listen()?;
    let billing = match start {
        StartMode::Fresh => {
            let billing = Billing::serve(&settings.data_dir, &settings.limits)?;
            // Only a predecessor may share these addresses.
            wait_for_address("listen.sidecar", settings.sidecar)?;
            wait_for_address("listen.admin", settings.admin)?;
            billing
        }
        StartMode::Upgrade => {
            let billing = Billing::serve_as_successor(&settings.data_dir, &settings.limits)?;
            settings = reread_settings(config_file, settings);
            billing.apply_limits(&settings.limits);
            billing
        }
    };
    // Not earlier: opening may migrate the file to a schema that the predecessor does not know.
    let accounts = Accounts::open(&settings.data_dir)?;
    let now_ms = clock::now_ms();
    billing.store_prices(settings.catalog.models(), now_ms)?;
    let completed = account::complete_sign_ups(&accounts, &billing, now_ms)?;
    if completed > 0 {
        log::warn!(
            "completed {completed} sign-ups that a crash had interrupted before their trial credits were granted"
        );
    }
    let settings = Arc::new(ArcSwap::from_pointee(settings));
    let (keys, till) = (
        KeyAuthenticator::Here(accounts.clone()),
        BillingBackend::Here(billing.clone()),
    );
    let (connector, acceptor) = local_link();
    let (mut server, life) = build_edge(
        config_file,
        &settings,
        keys,
        till,
        EdgeDeployment::Sidecar(connector),
        start,
    )?;
    let interface = admin_router(&settings.load(), &accounts, &billing);
    let pages =
        Sidecar::new(accounts, billing, settings).with_endpoint_registry(Arc::clone(&life.fleet));
    let admin = status_router(life.clone()).merge(interface);
    add_private_listeners(&mut server, admin, Some((pages, acceptor)), &life, start)?;
    serve(server, life, early)
}

/// Runs one of several edges with a shared store, until a signal stops it.
///
/// # Errors
/// Returns an error if the edge cannot start.
pub fn run_edge(config_file: &Path, settings: Settings, start: StartMode) -> anyhow::Result<()> {
    let address = settings
        .store
        .address()
        .context("`model-gateway edge` needs store.kind: redis; with kind: embedded, use `model-gateway run`")?;
    let early = StartupSignals::listen()?;
    // Each thread with its own runtime needs its own connection.
    let store = |patience| SharedStore::new(address.clone(), patience);
    let breaker = Arc::new(StoreBreaker::new_open());
    let watch = Arc::new(StoreHealthMonitor::start(
        &address,
        Arc::clone(&breaker),
        settings.allow_volatile,
    )?);
    // Requests wait for this connection: keys, balances, holds.
    let asked = SharedStore::with_breaker(address.clone(), ADMIT_TIMEOUT, breaker);
    let keys = SharedKeys::start(asked.clone(), store(SETTLE_TIMEOUT))?;
    let stores = (asked, store(SETTLE_TIMEOUT));
    let (data_dir, models, limits) = (
        &settings.data_dir,
        settings.catalog.models(),
        &settings.limits,
    );
    let shared = match start {
        StartMode::Fresh => SharedBilling::serve(data_dir, stores, models, limits)?,
        StartMode::Upgrade => SharedBilling::serve_as_successor(data_dir, stores, models, limits)?,
    };
    let till = BillingBackend::Shared(shared);
    let settings = match start {
        StartMode::Fresh => settings,
        StartMode::Upgrade => reread_settings(config_file, settings),
    };
    till.apply_settings(&settings, clock::now_ms())?;
    let settings = Arc::new(ArcSwap::from_pointee(settings));
    let (mut server, life) = build_edge(
        config_file,
        &settings,
        KeyAuthenticator::Shared(keys),
        till,
        EdgeDeployment::Store(watch),
        start,
    )?;
    add_private_listeners(&mut server, status_router(life.clone()), None, &life, start)?;
    serve(server, life, early)
}

/// The admin API on `listen.admin`, for a process with a ledger.
fn admin_router(settings: &Settings, accounts: &Accounts, billing: &Billing) -> axum::Router {
    if !settings.admin.ip().is_loopback() {
        log::warn!(
            "listen.admin {} is not a loopback address: anyone who reaches it with an administrator's key can change balances",
            settings.admin
        );
    }
    admin::router(accounts.clone(), billing.clone())
}

/// The components that an edge depends on.
enum EdgeDeployment {
    /// The sidecar in this process.
    Sidecar(LocalConnector),
    /// A shared store.
    Store(Arc<StoreHealthMonitor>),
}

/// Builds the edge and serves until shutdown.
fn build_edge(
    config_file: &Path,
    settings: &Arc<ArcSwap<Settings>>,
    keys: KeyAuthenticator,
    billing: BillingBackend,
    beside: EdgeDeployment,
    start: StartMode,
) -> anyhow::Result<(Server, ServerHandle)> {
    if billing::UNBILLED {
        log::warn!("this program is a benchmark build and bills nothing");
        anyhow::ensure!(
            settings
                .load()
                .edge
                .iter()
                .all(|address| address.ip().is_loopback()),
            "cannot listen on listen.edge: a benchmark build, which bills nothing, needs loopback addresses"
        );
    }
    let data_dir = settings.load().data_dir.clone();
    let idempotency =
        Idempotency::start(&data_dir, &billing, Arc::clone(settings), clock::now_ms())?;
    let access = open_access_log(&settings.load())?;
    let certificate = settings
        .load()
        .tls
        .as_ref()
        .map(ReloadableCertificate::from_files)
        .transpose()?;
    let traces = TraceExporter::start(settings.load().traces.as_ref())
        .context("cannot start the trace exporter")?;
    let recorders = Recorders {
        access: access.clone(),
        traces: traces.clone(),
    };
    let gateway = Gateway::new(
        Arc::clone(settings),
        keys,
        billing.clone(),
        idempotency,
        recorders,
    );
    let (gateway, store) = match beside {
        EdgeDeployment::Sidecar(connector) => (gateway.with_sidecar(connector), None),
        EdgeDeployment::Store(watch) => (gateway, Some(watch)),
    };
    gateway
        .watch_upstreams()
        .context("cannot start the health checks of the vendors' endpoints")?;
    let shares = DescriptorShares::new(descriptors::raise_limit(), resource_guard::open_files());
    shares.log(settings.load().limits.connections);
    let connections = Connections::new(
        Arc::clone(settings),
        gateway.recorders.clone(),
        shares.clients,
    );
    gateway
        .watch_pressure(Arc::clone(&connections))
        .context("cannot start the memory monitor")?;
    let till = billing.clone();
    series::create(&settings.load());
    let tell_billing = Box::new(move |new: &Settings| {
        series::create(new);
        till.apply_settings(new, clock::now_ms())
    });
    let life = ServerHandle {
        settings: Arc::clone(settings),
        reload: ConfigReloader::new(
            config_file,
            settings,
            certificate.clone(),
            Some(access.clone()),
            tell_billing,
        ),
        billing,
        store,
        ready: Arc::default(),
        draining: Arc::clone(&gateway.draining),
        shutdown: Arc::clone(&gateway.shutdown),
        succeeded: Arc::default(),
        in_flight: Arc::clone(&gateway.in_flight),
        pressure: Arc::clone(&gateway.pressure),
        access,
        traces,
        fleet: Arc::clone(&gateway.fleet),
    };
    let server = build_edge_server(
        &settings.load(),
        gateway,
        (connections, shares),
        certificate.as_ref(),
        start,
    )?;
    watch_execution_phases(&server, Arc::clone(&life.succeeded))?;
    Ok((server, life))
}

fn open_access_log(settings: &Settings) -> anyhow::Result<AccessLog> {
    AccessLog::start(&settings.access_log, settings.limits.access_log_lines)
        .with_context(|| format!("cannot open access_log {:?}", settings.access_log))
}

fn serve(server: Server, life: ServerHandle, early: StartupSignals) -> ! {
    let (draining, succeeded) = (Arc::clone(&life.draining), Arc::clone(&life.succeeded));
    let is_leaving = move || draining.load(Ordering::Acquire) || succeeded.load(Ordering::Acquire);
    if let Err(error) = Arc::clone(&life.reload).watch(is_leaving) {
        log::error!("cannot watch the config file: {error}; send SIGHUP to reload it");
    }
    if let Err(error) = start_shutdown_watch(life.clone()) {
        log::error!(
            "cannot start the shutdown monitor: {error}; a shutdown will take the whole drain time"
        );
    }
    // Returns at the end of the grace period; the shutdown watch exits the process earlier, once
    // everything is settled.
    server.run(RunArgs {
        shutdown_signal: Box::new(SignalHandler::new(life.clone(), early)),
    });
    finish_and_exit(&life, life.shutdown.cut_count())
}

/// Builds the Pingora server with one proxy service on all public addresses.
fn build_edge_server(
    settings: &Settings,
    gateway: Gateway,
    (connections, shares): (Arc<Connections>, DescriptorShares),
    certificate: Option<&Arc<ReloadableCertificate>>,
    start: StartMode,
) -> anyhow::Result<Server> {
    let upgrade_sock = settings.data_dir.join("upgrade.sock").display().to_string();
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let conf = ServerConf {
        threads,
        upgrade_sock,
        upstream_keepalive_pool_size: MAX_POOLED_UPSTREAM_CONNECTIONS
            .min(usize::try_from(shares.upstream / 2).unwrap_or(MAX_POOLED_UPSTREAM_CONNECTIONS)),
        // The shutdown watch exits the process earlier: Pingora would drop requests that still run.
        grace_period_seconds: Some(MAX_GRACE_SECONDS),
        graceful_shutdown_timeout_seconds: Some(1),
        max_retries: max_retries(),
        ..ServerConf::default()
    };
    let options = Opt {
        upgrade: start == StartMode::Upgrade,
        ..Opt::default()
    };
    let mut server = Server::new_with_opt_and_conf(options, conf);
    match start {
        // Pingora would retry without end, while a health check would reach the process that holds
        // the address.
        StartMode::Fresh => settings
            .edge
            .iter()
            .try_for_each(|address| wait_for_address("listen.edge", *address))?,
        StartMode::Upgrade => {}
    }
    // A successor receives the listening sockets here.
    server.bootstrap();
    let recorders = gateway.recorders.clone();
    let mut proxy = pingora::proxy::http_proxy(&server.configuration, gateway);
    let mut options = HttpServerOptions::default();
    options.h2c = settings.tls.is_none();
    options.h2_idle_timeout = Some(Duration::from_secs(settings.limits.keepalive_seconds));
    // Pingora does not count the first request of a connection.
    options.keepalive_request_limit =
        u32::try_from(settings.limits.keepalive_requests.saturating_sub(1)).ok();
    proxy.server_options = Some(options);
    proxy.h2_options = Some(h2_options(&settings.limits));
    panics::install_hook();
    let tls = certificate.map(tls_acceptor).transpose()?;
    let app = ConnectionLimiter::new(PanicGuard::new(proxy, recorders), connections, tls);
    let mut service = Service::new("edge".to_owned(), app);
    let reads = if certificate.is_some() {
        CLIENT_READ_BUFFER_BYTES
    } else {
        0
    };
    for address in &settings.edge {
        let buffers = L4BufferSettings::new(reads, CLIENT_WRITE_BUFFER_BYTES);
        service.add_listener(ListenerConfig::tcp(address.to_string()).l4_buffer(buffers));
    }
    server.add_service(service);
    Ok(server)
}

fn tls_acceptor(certificate: &Arc<ReloadableCertificate>) -> anyhow::Result<Acceptor> {
    let mut tls = TlsSettings::intermediate("", "")
        .map_err(|error| anyhow::anyhow!("cannot set up TLS on listen.edge: {error}"))?;
    tls.set_cert_resolver(Arc::clone(certificate) as _);
    tls.enable_h2();
    Ok(tls.build())
}

/// Rereads the config file, which may have changed while this process waited: the prices that the
/// predecessor used last apply. If the file has faults, the earlier settings stay. The data
/// directory that this process waited for and the limits with which the ledger was opened never
/// change.
fn reread_settings(config_file: &Path, before: Settings) -> Settings {
    match crate::config::load(config_file) {
        Ok(mut now) if now.data_dir == before.data_dir => {
            reload::report_pending_keys(&reload::retain_fixed_limits(
                &before.limits,
                &mut now.limits,
            ));
            now
        }
        Ok(_) => {
            log::warn!("data_dir was changed; the change takes effect at the next start");
            before
        }
        Err(faults) => {
            log::error!(
                "cannot reread the config file, so the settings read at the start stay in force: {faults}"
            );
            before
        }
    }
}

/// Waits until this process can be the only listener on an address. A process that has just handed
/// over may not have closed it yet.
fn wait_for_address(key: &str, address: SocketAddr) -> anyhow::Result<()> {
    let began = Instant::now();
    loop {
        match std::net::TcpListener::bind(address) {
            Ok(_) => return Ok(()),
            Err(error)
                if error.kind() == std::io::ErrorKind::AddrInUse
                    && began.elapsed() < BIND_TIMEOUT =>
            {
                std::thread::sleep(DRAIN_POLL_INTERVAL);
            }
            Err(error) => {
                return Err(error).with_context(|| format!("cannot listen on {key} {address}"));
            }
        }
    }
}

/// Limits for one HTTP/2 connection.
fn h2_options(limits: &Limits) -> H2Options {
    let mut options = default_h2_options();
    options
        .max_concurrent_streams(MAX_H2_STREAMS)
        .max_header_list_size(u32::try_from(limits.header_bytes).unwrap_or(u32::MAX))
        .initial_window_size(H2_STREAM_WINDOW_BYTES)
        .initial_connection_window_size(H2_CONNECTION_WINDOW_BYTES)
        .max_send_buffer_size(H2_SEND_BUFFER_BYTES);
    options
}

/// Starts a thread that sets `succeeded` once the edge has stopped accepting after a
/// handover.
fn watch_execution_phases(server: &Server, succeeded: Arc<AtomicBool>) -> anyhow::Result<()> {
    let mut phases = server.watch_execution_phase();
    std::thread::Builder::new()
        .name("phases".into())
        .spawn(move || {
            let mut handed_over = false;
            while let Ok(phase) = phases.blocking_recv() {
                match phase {
                    ExecutionPhase::GracefulUpgradeCloseTimeout => handed_over = true,
                    ExecutionPhase::ShutdownStarted if handed_over => {
                        succeeded.store(true, Ordering::Release)
                    }
                    _ => {}
                }
            }
        })?;
    Ok(())
}

/// Adds the services that listen on the private addresses.
fn add_private_listeners(
    server: &mut Server,
    admin: axum::Router,
    sidecar: Option<(Sidecar, LocalAcceptor)>,
    life: &ServerHandle,
    start: StartMode,
) -> anyhow::Result<()> {
    let settings = life.settings.load_full();
    let admin = admin.layer(from_fn(observe_admin));
    let serve_admin = |listener: ListenerUntilSuccession| async {
        let closed = listener.close_time();
        // The audit log records the address of the administrator.
        let service = admin.into_make_service_with_connect_info::<SocketAddr>();
        axum::serve(listener.tap_io(|_| ()), service)
            .with_graceful_shutdown(closed)
            .await
    };
    let admin = PrivateListener::new("admin", settings.admin, (start, life), serve_admin)?;
    server.add_service(admin);
    if let Some((sidecar, edge)) = sidecar {
        let serve_pages = |listener: ListenerUntilSuccession| {
            let closed = listener.close_time();
            pages::serve(listener, Some(edge), sidecar, closed)
        };
        let pages = PrivateListener::new("sidecar", settings.sidecar, (start, life), serve_pages)?;
        server.add_service(pages);
    }
    Ok(())
}

/// Builds the router for `/metrics`, `/healthz`, `/readyz` and `/upstreams`, which need no key on
/// the private listener.
fn status_router(life: ServerHandle) -> axum::Router {
    let ready = readiness::handler(life.clone());
    let fleet = Arc::clone(&life.fleet);
    let upstreams = move || std::future::ready(axum::Json(fleet.states(Instant::now())));
    let metrics = move || {
        let billing = life.billing.clone();
        async move {
            billing.update_gauges(clock::now_ms());
            (
                [("content-type", "text/plain; version=0.0.4")],
                METRICS.render(),
            )
        }
    };
    axum::Router::new()
        .route("/metrics", get(metrics))
        .route("/upstreams", get(upstreams))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
}

/// Starts a thread that reports when the edge listens, and exits the process once a drain is done.
/// Pingora alone would sleep through its whole grace period, and then cut requests that still run.
fn start_shutdown_watch(life: ServerHandle) -> anyhow::Result<()> {
    std::thread::Builder::new()
        .name("watch".into())
        .spawn(move || {
            let settings = life.settings.load_full();
            while !settings
                .edge
                .iter()
                .all(|address| TcpStream::connect(address).is_ok())
            {
                std::thread::sleep(Duration::from_millis(2));
            }
            life.ready.store(true, Ordering::Release);
            let edge = settings
                .edge
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join(", ");
            log::info!(
                "listening on {edge} (edge), {} (sidecar), {} (admin)",
                settings.sidecar,
                settings.admin
            );
            while !life.draining.load(Ordering::Acquire) && !life.succeeded.load(Ordering::Acquire)
            {
                std::thread::sleep(SHUTDOWN_POLL_INTERVAL);
            }
            let cut = life.wait_for_requests(&life.settings.load().limits);
            finish_and_exit(&life, cut)
        })?;
    Ok(())
}

/// Settles the last requests and exits the process. `cut`: number of requests that did not
/// end by themselves.
#[expect(
    clippy::disallowed_methods,
    reason = "the one end: everything that ended is in the ledger by now"
)]
fn finish_and_exit(life: &ServerHandle, cut: usize) -> ! {
    life.billing.shut_down();
    life.access.flush(ACCESS_LOG_FLUSH_TIMEOUT);
    life.traces.flush(TRACES_FLUSH_TIMEOUT);
    match cut {
        0 => log::info!("stopped: every request finished, 0 were cut"),
        cut => log::warn!("stopped: {cut} requests were cut after limits.drain_seconds"),
    }
    std::process::exit(0)
}

impl ServerHandle {
    /// Waits until no request runs, or until the time limit. After a handover the remaining
    /// requests may use their whole time, unless a signal also stops this process. At the end of
    /// the drain time, requests that still run end themselves. Returns the number of requests that
    /// were cut.
    fn wait_for_requests(&self, limits: &Limits) -> usize {
        let (drain, total) = (
            Duration::from_secs(limits.drain_seconds),
            Duration::from_secs(limits.total_seconds),
        );
        let began = Instant::now();
        let (mut quiet_since, mut told_at) = (Instant::now(), None);
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
            let told_at = if draining {
                *told_at.get_or_insert(now)
            } else {
                began
            };
            let end = told_at + if draining { drain } else { total };
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
    async fn wait_for_succession(&self) {
        while !self.succeeded.load(Ordering::Acquire) {
            tokio::time::sleep(SUCCESSION_POLL_INTERVAL).await;
        }
    }
}
