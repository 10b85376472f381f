//! Starts and stops the process: settings → stores → services → servers, and shutdown in reverse.
//! The only file that knows both the edge and the sidecar.
//!
//! Must not handle requests. Next: `app/sidecar.rs` (the sidecar as a process of its own).

mod certificate;
mod readiness;
mod reload;
mod series;
mod sidecar;
mod signals;

use crate::account::{self, Accounts, Keys, SharedKeys};
use crate::admin;
use crate::billing::watch::StoreWatch;
use crate::billing::{self, Billing, SharedBilling, Till};
use crate::clock;
use crate::config::{DRAIN_SECONDS_MAX, Limits, Settings, TOTAL_SECONDS_MAX};
use crate::edge::connections::{Connections, Guarded};
use crate::edge::descriptors::{self, DescriptorShares};
use crate::edge::panics::{self, PanicGuard};
use crate::edge::pressure::{self, Pressure};
use crate::edge::shutdown::Shutdown;
use crate::edge::{Gateway, Recorders, retries_max};
use crate::idempotency::Idempotency;
use crate::local_link::{LocalAcceptor, LocalConnector, local_link};
use crate::sidecar::{self as pages, Sidecar};
use crate::store::redis::SharedStore;
use crate::store::redis::breaker::Breaker;
use crate::telemetry::METRICS;
use crate::telemetry::access::AccessLog;
use crate::telemetry::private;
use crate::telemetry::refusals::RefusalReason;
use crate::telemetry::traces::Traces;
use crate::upstreams::Fleet;
use anyhow::Context as _;
use arc_swap::ArcSwap;
use axum::extract::{ConnectInfo, Request};
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use axum::routing::get;
use certificate::Certificate;
use pingora::apps::HttpServerOptions;
use pingora::listeners::tls::{Acceptor, TlsSettings};
use pingora::listeners::{L4BufferSettings, ListenerConfig};
use pingora::protocols::http::v2::server::{H2Options, default_h2_options};
use pingora::server::configuration::{Opt, ServerConf};
use pingora::server::{ExecutionPhase, RunArgs, Server};
use pingora::services::listening::Service;
use reload::Reload;
pub use sidecar::run as sidecar;
use signals::{Early, Orders};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, TcpSocket};

/// How a process starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    Fresh,
    /// As the successor of a running process, which hands over its listening sockets when it
    /// receives SIGQUIT.
    Upgrade,
}

impl Start {
    pub fn of(upgrade: bool) -> Self {
        if upgrade { Self::Upgrade } else { Self::Fresh }
    }
}

/// Interval at which shutdown checks whether all work is done.
const DRAIN_LOOK: Duration = Duration::from_millis(10);
/// Interval at which the shutdown watch checks whether shutdown has begun. Each check wakes a
/// process that may otherwise be idle.
const LIFE_LOOK: Duration = Duration::from_millis(50);
/// Interval at which the sidecar checks whether it has a successor.
const SUCCESSION_LOOK: Duration = Duration::from_millis(250);
/// Time without a new request after which a process that has handed over exits.
const LATE_REQUESTS: Duration = Duration::from_secs(3);
/// Timeouts of the shared store: while a request waits for the response, and while none does.
const ADMIT_PATIENCE: Duration = Duration::from_millis(200);
const SETTLE_PATIENCE: Duration = Duration::from_secs(2);
/// Time that a start waits for another process to release a public address.
const ADDRESS_PATIENCE: Duration = Duration::from_secs(10);
/// Longer than any shutdown can take.
const GRACE_SECONDS: u64 = TOTAL_SECONDS_MAX + DRAIN_SECONDS_MAX;
/// Time that requests have to end by themselves after the drain timeout.
const CUTOFF_GRACE: Duration = Duration::from_secs(3);
/// Time that the last lines of the access log have to be written.
const ACCESS_LOG_PATIENCE: Duration = Duration::from_secs(1);
/// Time that the last traces have to be sent.
const TRACES_PATIENCE: Duration = Duration::from_secs(1);
/// Connections to vendors that are kept for reuse.
const UPSTREAM_POOL: usize = 1_024;
/// Bytes that are buffered for writing on a client's connection. The header and body of a response
/// are sent together if they fit; Pingora's default of 1 460 bytes holds hardly more than the
/// header. The header of a stream is never held back.
const CLIENT_WRITES: usize = 8_192;
/// Bytes that TLS reads ahead on a client's connection. Plain HTTP has buffers of its own for all
/// its reads.
const CLIENT_READS: usize = 16_384;
/// Maximum number of open streams on a client's HTTP/2 connection.
const H2_STREAMS: u32 = 100;
/// Bytes that a client may send before the gateway reads them, per stream and per connection.
const H2_STREAM_WINDOW: u32 = 65_536;
const H2_WINDOW: u32 = 1_048_576;
/// Bytes of a response that may wait for the client of one stream.
const H2_SEND_BUFFER: usize = 65_536;
/// Connections that may wait for the sidecar to accept them.
const BACKLOG: u32 = 1_024;

/// State that the servers and the shutdown share.
#[derive(Clone)]
struct Life {
    settings: Arc<ArcSwap<Settings>>,
    reload: Arc<Reload>,
    billing: Till,
    /// Health of the shared store, if there is one.
    store: Option<Arc<StoreWatch>>,
    /// True while the edge accepts connections.
    ready: Arc<AtomicBool>,
    draining: Arc<AtomicBool>,
    shutdown: Arc<Shutdown>,
    /// True once a successor has all listening sockets and this process accepts no more
    /// connections.
    succeeded: Arc<AtomicBool>,
    in_flight: Arc<AtomicUsize>,
    pressure: Arc<Pressure>,
    access: AccessLog,
    traces: Traces,
    fleet: Arc<Fleet>,
}

/// Runs the whole service until a signal stops it.
///
/// # Errors
/// Returns an error if the service cannot start.
pub fn run(config_file: &Path, mut settings: Settings, start: Start) -> anyhow::Result<()> {
    if settings.store.address().is_some() {
        anyhow::bail!(
            "store.kind: redis is for `model-gateway edge` and `model-gateway sidecar`; `run` needs kind: embedded"
        );
    }
    let early = Early::listen()?;
    let billing = match start {
        Start::Fresh => {
            let billing = Billing::serve(&settings.data_dir, &settings.limits)?;
            // Only a predecessor may share these addresses.
            wait_for_address("listen.sidecar", settings.sidecar)?;
            wait_for_address("listen.admin", settings.admin)?;
            billing
        }
        Start::Upgrade => {
            let billing = Billing::succeed(&settings.data_dir, &settings.limits)?;
            settings = of_today(config_file, settings);
            billing.take_limits(&settings.limits);
            billing
        }
    };
    // Not earlier: opening may migrate the file to a schema that the predecessor does not know.
    let accounts = Accounts::open(&settings.data_dir)?;
    let now_ms = clock::now_ms();
    billing.keep_prices(settings.catalog.models(), now_ms)?;
    let completed = account::complete_sign_ups(&accounts, &billing, now_ms)?;
    if completed > 0 {
        log::warn!("completed {completed} sign-ups that a crash had left without their grant");
    }
    let settings = Arc::new(ArcSwap::from_pointee(settings));
    let (keys, till) = (Keys::Here(accounts.clone()), Till::Here(billing.clone()));
    let (connector, acceptor) = local_link();
    let (server, life) = edge(
        config_file,
        &settings,
        keys,
        till,
        Beside::Sidecar(connector),
        start,
    )?;
    let interface = admin_interface(&settings.load(), &accounts, &billing);
    let pages = Sidecar::new(accounts, billing, settings).beside(Arc::clone(&life.fleet));
    start_private(
        Some((pages, acceptor)),
        own_state(life.clone()).merge(interface),
        life.clone(),
    )?;
    serve(server, life, early)
}

/// Runs one of several edges with a shared store, until a signal stops it.
///
/// # Errors
/// Returns an error if the edge cannot start.
pub fn run_edge(config_file: &Path, settings: Settings, start: Start) -> anyhow::Result<()> {
    let address = settings
        .store
        .address()
        .context("store.kind is embedded: an edge alone needs kind: redis; `model-gateway run` is the whole service")?;
    let early = Early::listen()?;
    // Each thread with its own runtime needs its own connection.
    let store = |patience| SharedStore::new(address.clone(), patience);
    let breaker = Arc::new(Breaker::open());
    let watch = Arc::new(StoreWatch::start(
        &address,
        Arc::clone(&breaker),
        settings.allow_volatile,
    )?);
    // Requests wait for this connection: keys, balances, holds.
    let asked = SharedStore::guarded(address.clone(), ADMIT_PATIENCE, breaker);
    let keys = SharedKeys::start(asked.clone(), store(SETTLE_PATIENCE))?;
    let stores = (asked, store(SETTLE_PATIENCE));
    let (data_dir, models, limits) = (
        &settings.data_dir,
        settings.catalog.models(),
        &settings.limits,
    );
    let shared = match start {
        Start::Fresh => SharedBilling::serve(data_dir, stores, models, limits)?,
        Start::Upgrade => SharedBilling::succeed(data_dir, stores, models, limits)?,
    };
    let till = Till::Shared(shared);
    let settings = match start {
        Start::Fresh => settings,
        Start::Upgrade => of_today(config_file, settings),
    };
    till.take_settings(&settings, clock::now_ms())?;
    let settings = Arc::new(ArcSwap::from_pointee(settings));
    let (server, life) = edge(
        config_file,
        &settings,
        Keys::Shared(keys),
        till,
        Beside::Store(watch),
        start,
    )?;
    start_private(None, own_state(life.clone()), life.clone())?;
    serve(server, life, early)
}

/// The admin API on `listen.admin`, for a process with a ledger.
fn admin_interface(settings: &Settings, accounts: &Accounts, billing: &Billing) -> axum::Router {
    if !settings.admin.ip().is_loopback() {
        log::warn!(
            "listen.admin {} is not a loopback address: whoever reaches it with an administrator's key moves money",
            settings.admin
        );
    }
    admin::router(accounts.clone(), billing.clone())
}

/// The components that an edge depends on.
enum Beside {
    /// The sidecar in this process.
    Sidecar(LocalConnector),
    /// A shared store.
    Store(Arc<StoreWatch>),
}

/// Builds the edge and serves until shutdown.
fn edge(
    config_file: &Path,
    settings: &Arc<ArcSwap<Settings>>,
    keys: Keys,
    billing: Till,
    beside: Beside,
    start: Start,
) -> anyhow::Result<(Server, Life)> {
    if billing::UNBILLED {
        log::warn!("this program bills nothing: it was built to be measured");
        anyhow::ensure!(
            settings
                .load()
                .edge
                .iter()
                .all(|address| address.ip().is_loopback()),
            "listen on listen.edge: a program that bills nothing takes loopback addresses alone"
        );
    }
    let data_dir = settings.load().data_dir.clone();
    let idempotency =
        Idempotency::start(&data_dir, &billing, Arc::clone(settings), clock::now_ms())?;
    let access = access_log(&settings.load())?;
    let certificate = settings
        .load()
        .tls
        .as_ref()
        .map(Certificate::read)
        .transpose()?;
    let traces = Traces::start(settings.load().traces.as_ref()).context("send traces")?;
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
        Beside::Sidecar(connector) => (gateway.beside(connector), None),
        Beside::Store(watch) => (gateway, Some(watch)),
    };
    gateway
        .watch_upstreams()
        .context("watch the vendors' endpoints")?;
    let shares = DescriptorShares::new(descriptors::raise_limit(), pressure::open_files());
    shares.log(settings.load().limits.connections);
    let connections = Connections::new(
        Arc::clone(settings),
        gateway.recorders.clone(),
        shares.clients,
    );
    gateway
        .watch_pressure(Arc::clone(&connections))
        .context("watch this process's memory")?;
    let till = billing.clone();
    series::create(&settings.load());
    let tell_billing = Box::new(move |new: &Settings| {
        series::create(new);
        till.take_settings(new, clock::now_ms())
    });
    let life = Life {
        settings: Arc::clone(settings),
        reload: Reload::new(
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
    let server = edge_server(
        &settings.load(),
        gateway,
        (connections, shares),
        certificate.as_ref(),
        start,
    )?;
    watch_phases(&server, Arc::clone(&life.succeeded))?;
    Ok((server, life))
}

fn access_log(settings: &Settings) -> anyhow::Result<AccessLog> {
    AccessLog::start(&settings.access_log, settings.limits.access_log_lines)
        .with_context(|| format!("open access_log {:?}", settings.access_log))
}

fn serve(server: Server, life: Life, early: Early) -> ! {
    let (draining, succeeded) = (Arc::clone(&life.draining), Arc::clone(&life.succeeded));
    let is_leaving = move || draining.load(Ordering::Acquire) || succeeded.load(Ordering::Acquire);
    if let Err(error) = Arc::clone(&life.reload).watch(is_leaving) {
        log::error!("watch the config file: {error}; SIGHUP alone reloads it");
    }
    if let Err(error) = start_watch(life.clone()) {
        log::error!("start the watch: {error}; the way down takes the whole drain time");
    }
    // Returns at the end of the grace period; the shutdown watch exits the process earlier, once
    // everything is settled.
    server.run(RunArgs {
        shutdown_signal: Box::new(Orders::new(life.clone(), early)),
    });
    finish(&life, life.shutdown.cut())
}

/// Builds the Pingora server with one proxy service on all public addresses.
fn edge_server(
    settings: &Settings,
    gateway: Gateway,
    (connections, shares): (Arc<Connections>, DescriptorShares),
    certificate: Option<&Arc<Certificate>>,
    start: Start,
) -> anyhow::Result<Server> {
    let upgrade_sock = settings.data_dir.join("upgrade.sock").display().to_string();
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let conf = ServerConf {
        threads,
        upgrade_sock,
        upstream_keepalive_pool_size: UPSTREAM_POOL
            .min(usize::try_from(shares.upstream / 2).unwrap_or(UPSTREAM_POOL)),
        // The shutdown watch exits the process earlier: Pingora would drop requests that still run.
        grace_period_seconds: Some(GRACE_SECONDS),
        graceful_shutdown_timeout_seconds: Some(1),
        max_retries: retries_max(),
        ..ServerConf::default()
    };
    let options = Opt {
        upgrade: start == Start::Upgrade,
        ..Opt::default()
    };
    let mut server = Server::new_with_opt_and_conf(options, conf);
    match start {
        // Pingora would retry without end, while a health check would reach the process that holds
        // the address.
        Start::Fresh => settings
            .edge
            .iter()
            .try_for_each(|address| wait_for_address("listen.edge", *address))?,
        Start::Upgrade => {}
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
    let app = Guarded::new(PanicGuard::new(proxy, recorders), connections, tls);
    let mut service = Service::new("edge".to_owned(), app);
    let reads = if certificate.is_some() {
        CLIENT_READS
    } else {
        0
    };
    for address in &settings.edge {
        let buffers = L4BufferSettings::new(reads, CLIENT_WRITES);
        service.add_listener(ListenerConfig::tcp(address.to_string()).l4_buffer(buffers));
    }
    server.add_service(service);
    Ok(server)
}

fn tls_acceptor(certificate: &Arc<Certificate>) -> anyhow::Result<Acceptor> {
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
fn of_today(config_file: &Path, before: Settings) -> Settings {
    match crate::config::load(config_file) {
        Ok(mut now) if now.data_dir == before.data_dir => {
            reload::tell_waiting(&reload::keep_limits(&before.limits, &mut now.limits));
            now
        }
        Ok(_) => {
            log::warn!("data_dir was changed: that is taken at the next start");
            before
        }
        Err(faults) => {
            log::error!("read the config again, the one read at the start stays: {faults}");
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
                    && began.elapsed() < ADDRESS_PATIENCE =>
            {
                std::thread::sleep(DRAIN_LOOK);
            }
            Err(error) => return Err(error).with_context(|| format!("listen on {key} {address}")),
        }
    }
}

/// Limits for one HTTP/2 connection.
fn h2_options(limits: &Limits) -> H2Options {
    let mut options = default_h2_options();
    options
        .max_concurrent_streams(H2_STREAMS)
        .max_header_list_size(u32::try_from(limits.header_bytes).unwrap_or(u32::MAX))
        .initial_window_size(H2_STREAM_WINDOW)
        .initial_connection_window_size(H2_WINDOW)
        .max_send_buffer_size(H2_SEND_BUFFER);
    options
}

/// Starts a thread that sets `succeeded` once the edge has stopped accepting after a handover.
fn watch_phases(server: &Server, succeeded: Arc<AtomicBool>) -> anyhow::Result<()> {
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

/// Serves the admin routes, and the sidecar's pages if it is part of this process, on a separate
/// thread and runtime, so that a slow page does not delay requests.
fn start_private(
    sidecar: Option<(Sidecar, LocalAcceptor)>,
    admin: axum::Router,
    life: Life,
) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let settings = life.settings.load_full();
    let admin = admin.layer(from_fn(observe_admin));
    let (admin_listener, pages) = runtime.block_on(async {
        let pages = sidecar
            .map(|sidecar| anyhow::Ok((bind("listen.sidecar", settings.sidecar)?, sidecar)))
            .transpose()?;
        anyhow::Ok((bind("listen.admin", settings.admin)?, pages))
    })?;
    std::thread::Builder::new()
        .name("sidecar".into())
        .spawn(move || {
            runtime.block_on(async {
                // The audit log records the address of the administrator.
                let admin = admin.into_make_service_with_connect_info::<SocketAddr>();
                let admin = axum::serve(admin_listener, admin)
                    .with_graceful_shutdown(life.clone().succeeded());
                let dashboard = async {
                    match pages {
                        Some((listener, (sidecar, edge))) => {
                            pages::serve(listener, Some(edge), sidecar, life.succeeded()).await
                        }
                        None => Ok(()),
                    }
                };
                if let Err(error) = tokio::try_join!(dashboard, async { admin.await }) {
                    log::error!("serve the sidecar: {error}");
                }
            });
        })?;
    Ok(())
}

/// Records what the admin listener refuses.
async fn observe_admin(request: Request, next: Next) -> Response {
    let peer = request.extensions().get::<ConnectInfo<SocketAddr>>();
    let client = peer.map(|peer| peer.0.ip());
    private::observe(RefusalReason::AdminListener, client, request, next).await
}

/// A predecessor still has the address while its successor begins: they share it until that closes
/// its own.
fn bind(what: &'static str, address: SocketAddr) -> anyhow::Result<TcpListener> {
    let listen = || {
        let socket = if address.is_ipv4() {
            TcpSocket::new_v4()?
        } else {
            TcpSocket::new_v6()?
        };
        socket.set_reuseaddr(true)?;
        socket.set_reuseport(true)?;
        socket.bind(address)?;
        socket.listen(BACKLOG)
    };
    listen().with_context(|| format!("listen on {what} {address}"))
}

/// Builds the router for `/metrics`, `/healthz`, `/readyz` and `/upstreams`, which need no key on
/// the private listener.
fn own_state(life: Life) -> axum::Router {
    let ready = readiness::handler(life.clone());
    let fleet = Arc::clone(&life.fleet);
    let upstreams = move || std::future::ready(axum::Json(fleet.states(Instant::now())));
    let metrics = move || {
        let billing = life.billing.clone();
        async move {
            billing.observe(clock::now_ms());
            (
                [("content-type", "text/plain; version=0.0.4")],
                METRICS.text(),
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
fn start_watch(life: Life) -> anyhow::Result<()> {
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
                std::thread::sleep(LIFE_LOOK);
            }
            let cut = life.wait_for_requests(&life.settings.load().limits);
            finish(&life, cut)
        })?;
    Ok(())
}

/// Settles the last requests and exits the process. `cut`: number of requests that did not end by
/// themselves.
#[expect(
    clippy::disallowed_methods,
    reason = "the one end: everything that ended is in the ledger by now"
)]
fn finish(life: &Life, cut: usize) -> ! {
    life.billing.finish();
    life.access.flush(ACCESS_LOG_PATIENCE);
    life.traces.flush(TRACES_PATIENCE);
    match cut {
        0 => log::info!("ended: every request was finished, 0 were cut"),
        cut => log::warn!("ended: {cut} requests were cut after limits.drain_seconds"),
    }
    std::process::exit(0)
}

impl Life {
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
                LATE_REQUESTS
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
            let is_over = now >= end + CUTOFF_GRACE;
            if is_over || running == 0 && quiet_since.elapsed() >= quiet_for {
                return running + self.shutdown.cut();
            }
            std::thread::sleep(DRAIN_LOOK);
        }
    }

    /// Returns once a successor has taken over.
    async fn succeeded(self) {
        while !self.succeeded.load(Ordering::Acquire) {
            tokio::time::sleep(SUCCESSION_LOOK).await;
        }
    }
}
