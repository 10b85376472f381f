//! Settings → stores → services → servers, and the way down again. The only file that knows both
//! faces.
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

/// How a process takes up its work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    Fresh,
    /// As the successor of a running one, which hands its listening sockets over when it gets
    /// SIGQUIT.
    Upgrade,
}

impl Start {
    pub fn of(upgrade: bool) -> Self {
        if upgrade { Self::Upgrade } else { Self::Fresh }
    }
}

/// How often the way down looks whether all is done.
const DRAIN_LOOK: Duration = Duration::from_millis(10);
/// How often the watch looks whether the way down has begun: each look wakes a process that may
/// have nothing to do.
const LIFE_LOOK: Duration = Duration::from_millis(50);
/// How often the sidecar looks whether it has a successor.
const SUCCESSION_LOOK: Duration = Duration::from_millis(250);
/// How long nothing must have been asked before a process that has handed over ends.
const LATE_REQUESTS: Duration = Duration::from_secs(3);
/// How long a shared store's answer is waited for where a request waits for it, and where none
/// does.
const ADMIT_PATIENCE: Duration = Duration::from_millis(200);
const SETTLE_PATIENCE: Duration = Duration::from_secs(2);
/// How long a public address may still be another's at the start.
const ADDRESS_PATIENCE: Duration = Duration::from_secs(10);
/// Longer than any way down may take.
const GRACE_SECONDS: u64 = TOTAL_SECONDS_MAX + DRAIN_SECONDS_MAX;
/// How long requests may take to end themselves once their time is over.
const CUTOFF_GRACE: Duration = Duration::from_secs(3);
/// How long the last lines of the access log may take.
const ACCESS_LOG_PATIENCE: Duration = Duration::from_secs(1);
/// How long the last traces may take to be sent.
const TRACES_PATIENCE: Duration = Duration::from_secs(1);
/// Connections to vendors that are kept for reuse.
const UPSTREAM_POOL: usize = 1_024;
/// Bytes that wait to be sent on a client's connection. An answer's header and its body leave at
/// one time where they fit: Pingora's own 1 460 bytes take hardly more than the header. A stream's
/// header never waits.
const CLIENT_WRITES: usize = 8_192;
/// Bytes that TLS reads ahead on a client's connection. Plain HTTP has buffers of its own for all
/// that it reads.
const CLIENT_READS: usize = 16_384;
/// Streams that a client's HTTP/2 connection may have open.
const H2_STREAMS: u32 = 100;
/// Bytes that a client may send ahead of what was read: on one stream, and on the connection.
const H2_STREAM_WINDOW: u32 = 65_536;
const H2_WINDOW: u32 = 1_048_576;
/// Bytes of an answer that wait for one stream's client.
const H2_SEND_BUFFER: usize = 65_536;
/// Connections that wait to be accepted by the sidecar.
const BACKLOG: u32 = 1_024;

/// What the servers and the way down share.
#[derive(Clone)]
struct Life {
    settings: Arc<ArcSwap<Settings>>,
    reload: Arc<Reload>,
    billing: Till,
    /// Of a store that is shared.
    store: Option<Arc<StoreWatch>>,
    /// The edge accepts connections.
    ready: Arc<AtomicBool>,
    draining: Arc<AtomicBool>,
    shutdown: Arc<Shutdown>,
    /// A successor has all listening sockets, and this process accepts no more.
    succeeded: Arc<AtomicBool>,
    in_flight: Arc<AtomicUsize>,
    pressure: Arc<Pressure>,
    access: AccessLog,
    traces: Traces,
    fleet: Arc<Fleet>,
}

/// Runs the whole service until it is told to stop.
///
/// # Errors
/// It cannot start.
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
            // Shared with a predecessor, and with nobody else.
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
    // Not before: it may bring the file to a form that the predecessor does not know.
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

/// Runs one of the edges that share a store, until it is told to stop.
///
/// # Errors
/// It cannot start.
pub fn run_edge(config_file: &Path, settings: Settings, start: Start) -> anyhow::Result<()> {
    let address = settings
        .store
        .address()
        .context("store.kind is embedded: an edge alone needs kind: redis; `model-gateway run` is the whole service")?;
    let early = Early::listen()?;
    // Each thread with a runtime of its own has a connection of its own.
    let store = |patience| SharedStore::new(address.clone(), patience);
    let breaker = Arc::new(Breaker::open());
    let watch = Arc::new(StoreWatch::start(
        &address,
        Arc::clone(&breaker),
        settings.allow_volatile,
    )?);
    // What requests wait for: keys, balances, holds.
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

/// What administrators reach on `listen.admin`, where there is a ledger to post to.
fn admin_interface(settings: &Settings, accounts: &Accounts, billing: &Billing) -> axum::Router {
    if !settings.admin.ip().is_loopback() {
        log::warn!(
            "listen.admin {} is not a loopback address: whoever reaches it with an administrator's key moves money",
            settings.admin
        );
    }
    admin::router(accounts.clone(), billing.clone())
}

/// What an edge stands beside.
enum Beside {
    /// The sidecar of this process.
    Sidecar(LocalConnector),
    /// A store that is shared.
    Store(Arc<StoreWatch>),
}

/// The edge, ready to serve.
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
    // Returns when the grace period is over; the watch ends the process before, once all is
    // settled.
    server.run(RunArgs {
        shutdown_signal: Box::new(Orders::new(life.clone(), early)),
    });
    finish(&life, life.shutdown.cut())
}

/// The Pingora server with one proxy service on all public addresses.
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
        // The watch ends the process before: Pingora would drop what still runs.
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
        // Pingora would try again for ever, beside a health check that finds whoever has the
        // address.
        Start::Fresh => settings
            .edge
            .iter()
            .try_for_each(|address| wait_for_address("listen.edge", *address))?,
        Start::Upgrade => {}
    }
    // A successor gets the listening sockets here.
    server.bootstrap();
    let recorders = gateway.recorders.clone();
    let mut proxy = pingora::proxy::http_proxy(&server.configuration, gateway);
    let mut options = HttpServerOptions::default();
    options.h2c = settings.tls.is_none();
    options.h2_idle_timeout = Some(Duration::from_secs(settings.limits.keepalive_seconds));
    // Pingora counts the requests after the first.
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

/// The config as it stands now: it may have been changed while this process waited, and what its
/// predecessor sold last counts. A file that is no good changes nothing, and nothing changes the
/// folder that was waited for, nor what the books were opened with.
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

/// Makes sure that an address can be listened on alone: one that has just handed over may be about
/// to close it.
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

/// What one HTTP/2 connection may ask of this process at a time.
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

/// A thread that tells when, after a hand-over, the edge has stopped accepting.
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

/// Serves the admin pages, and those of the sidecar where it is part of this process, on a thread
/// and runtime of their own, so that a slow page costs no request.
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
                // The audit log says from where an administrator asked.
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

/// `/metrics`, `/healthz`, `/readyz` and `/upstreams`: what needs no key on the private listener.
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

/// A thread that tells when the edge listens, and ends the process once a drain is done: Pingora by
/// itself would sleep through its whole grace period, and then cut what still runs.
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

/// Settles what is settled, and ends the process. `cut`: the requests that did not end by
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
    /// Waits until nothing runs, for as long as it may: what a successor has left here may take its
    /// whole time, unless this process is told to end. Then requests that still run end themselves
    /// at the drain's end. Returns how many were cut.
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
            // After a hand-over a connection that was just accepted may still be about to ask.
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
