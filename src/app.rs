//! Starts the process (settings → stores → services → servers) and stops it in reverse order. No
//! other file depends on both the edge and the sidecar.
//!
//! This module must not handle requests. Next: `app/sidecar.rs` (the sidecar as a separate
//! process).

mod admin_router;
mod certificate;
mod database_logs;
mod edge_server;
mod listening_sockets;
mod private_listeners;
mod readiness;
mod reload;
mod series;
mod server_handle;
mod settings_diff;
mod sidecar;
mod signals;
mod standby;
mod start_mode;
mod unread_body;
mod upkeep;

use crate::billing::admission::{Admission, LedgerLookup};
use crate::billing::{CreditService, EmbeddedAdmission};
use crate::edge::connections::Connections;
use crate::edge::descriptors::{self, DescriptorShares};
use crate::edge::resource_guard;
use crate::edge::{Gateway, Recorders};
use crate::idempotency::{
    EmbeddedIdempotency, Idempotency, IdempotencyHousekeeping, IdempotencyKeys,
};
use crate::local_link::{LocalAcceptor, LocalConnector, local_link};
use crate::notify::{self, NotifyContext};
use crate::payments::{self, Payments};
use crate::pulse::Pulse;
use crate::refused_requests::RefusedRequests;
use crate::shared_credit::redis::SharedStore;
use crate::shared_credit::redis::breaker::StoreBreaker;
use crate::shared_credit::refusals;
use crate::shared_credit::store_health::StoreHealthMonitor;
use crate::shared_credit::{RedisIdempotency, SharedAdmission, SharedBilling, SharedKeys};
use crate::sidecar::{self as pages, Sidecar};
use accounts::Accounts;
use admin_router::admin_router;
use anyhow::Context as _;
use arc_swap::ArcSwap;
use axum::routing::get;
use axum::serve::ListenerExt as _;
use base::clock;
use base::telemetry::access::AccessLog;
use base::telemetry::traces::TraceExporter;
use base::telemetry::{self, METRICS};
use certificate::ReloadableCertificate;
use config::{FileChecks, Settings};
use edge_server::build_edge_server;
use listening_sockets::{ListenAddresses, ListeningSockets};
use pingora::server::{ExecutionPhase, RunArgs, Server};
use private_listeners::{ListenerUntilSuccession, PrivateListener, guard_admin};
use reload::ConfigReloader;
use server_handle::ServerHandle;
pub use sidecar::run as sidecar;
use signals::{SignalHandler, StartupSignals};
pub use start_mode::StartMode;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Interval at which the shutdown watch checks whether shutdown has begun. Each check wakes a
/// process that may otherwise be idle.
const SHUTDOWN_POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Time limit of a call to the shared store for which no request waits. It exceeds the maximum
/// `store.reply_timeout_ms`.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(2);
/// Time that the last files may take to be written after `limits.drain_seconds`, before the process
/// ends without them.
const FINISH_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit for writing the last lines of the access log.
const ACCESS_LOG_FLUSH_TIMEOUT: Duration = Duration::from_secs(1);
/// Time limit for sending the last traces.
const TRACES_FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// Runs the whole service until a signal stops it.
///
/// # Errors
/// Returns an error if the service cannot start.
pub fn run(config_file: &Path, settings: Settings, start: StartMode) -> anyhow::Result<()> {
    run_with_admission(config_file, settings, start, |embedded| embedded)
}

/// Runs the service like [`run`], with the admission that `wrap` makes of the embedded one. Only
/// benchmarks call it.
///
/// # Errors
/// Returns an error if the service cannot start.
pub fn run_with_admission(
    config_file: &Path,
    settings: Settings,
    start: StartMode,
    wrap: impl FnOnce(Arc<dyn Admission>) -> Arc<dyn Admission>,
) -> anyhow::Result<()> {
    if settings.store.address().is_some() {
        anyhow::bail!(
            "`model-gateway run` needs store.kind: embedded; with kind: redis, use `model-gateway edge` and `model-gateway sidecar`"
        );
    }
    descriptors::check_limit()?;
    let startup_signals = StartupSignals::listen()?;
    let (credit, settings) = open_credit(config_file, settings, start)?;
    // Do not open the file earlier, because that may migrate it to a schema that the predecessor
    // does not know.
    let accounts = Accounts::open(&settings.data_dir)?;
    accounts.open_readers()?;
    let now_ms = clock::now_ms();
    let billing = credit.billing().clone();
    billing.store_prices(settings.catalog.models(), now_ms)?;
    accounts.record_prices(settings.catalog.prices(), now_ms)?;
    upkeep::complete_sign_ups(&accounts, &billing, now_ms)?;
    upkeep::complete_merges(&accounts, &billing)?;
    let keys = EmbeddedIdempotency::open(&settings.data_dir, accounts.clone(), credit.clone())?;
    let embedded = Arc::new(EmbeddedAdmission::new(accounts.clone(), credit));
    METRICS.ledger_held.set(1);
    let refused = RefusedRequests::open(&settings.data_dir)?;
    refused
        .start_writer(Some(accounts.clone()))
        .context("cannot start the thread that writes refused requests")?;
    upkeep::start_database_logs(&settings.data_dir)?;
    let settings = Arc::new(ArcSwap::from_pointee(settings));
    let (connector, acceptor) = local_link();
    let (mut server, handle, sockets) = build_edge(
        config_file,
        &settings,
        EdgeStores {
            admission: wrap(Arc::clone(&embedded) as _),
            ledger: Some(embedded),
            keys: Arc::new(keys),
            refused: refused.clone(),
        },
        EdgeDeployment::Sidecar(connector),
        start,
    )?;
    let interface = admin_router(&settings, &accounts, &billing, &refused)?;
    let context = NotifyContext {
        accounts: accounts.clone(),
        billing: billing.clone(),
        settings: Arc::clone(&settings),
    };
    notify::start(context, handle.clone().wait_for_leaving())
        .context("cannot start the thread of mail, alerts and webhooks")?;
    let shop = Payments::new(accounts.clone(), billing.clone(), Arc::clone(&settings));
    payments::start(shop, handle.clone().wait_for_leaving())
        .context("cannot start the thread that asks about payments")?;
    upkeep::start(&billing, &settings)?;
    let pages = Sidecar::new(accounts, billing, settings)
        .with_endpoint_registry(Arc::clone(&handle.endpoints))
        .with_refused_requests(refused);
    let admin = status_router(handle.clone()).merge(interface);
    let pages = Some((pages, acceptor));
    add_private_listeners(&mut server, admin, pages, &handle, sockets)?;
    serve(server, handle, startup_signals)
}

/// Opens the credit service. A successor waits for its predecessor first, so it rereads the config
/// file afterwards.
fn open_credit(
    config_file: &Path,
    settings: Settings,
    start: StartMode,
) -> anyhow::Result<(CreditService, Settings)> {
    let (data_dir, limits) = (&settings.data_dir, &settings.limits);
    let archive = settings.ledger.archive();
    match start {
        StartMode::Fresh => Ok((CreditService::serve(data_dir, limits, archive)?, settings)),
        StartMode::Upgrade => {
            let credit = CreditService::serve_as_successor(data_dir, limits, archive)?;
            let settings = reread_settings(config_file, settings);
            credit.apply_limits(&settings.limits);
            Ok((credit, settings))
        }
    }
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
    descriptors::check_limit()?;
    let startup_signals = StartupSignals::listen()?;
    let breaker = Arc::new(StoreBreaker::new_open(settings.store_reply_timeout));
    let store_health = Arc::new(StoreHealthMonitor::start(
        &address,
        Arc::clone(&breaker),
        settings.allow_volatile,
        settings.store_reply_timeout,
    )?);
    // Requests wait for this connection, which serves keys, balances and holds.
    let admitting = SharedStore::with_breaker(
        address.clone(),
        settings.store_reply_timeout,
        breaker,
        store_health.clock(),
    );
    // Each thread with its own runtime needs a separate connection.
    let keys = SharedKeys::start(
        admitting.clone(),
        admitting.new_connection(SETTLE_TIMEOUT),
        settings.limits.unknown_key_lookups_per_second,
    )?;
    let refused = refusals::sender(admitting.new_connection(SETTLE_TIMEOUT))
        .context("cannot prepare to send refused requests")?;
    let refused = RefusedRequests::sent_by(refused);
    refused
        .start_writer(None)
        .context("cannot start the thread that sends refused requests")?;
    let relaying = admitting.new_connection(SETTLE_TIMEOUT);
    let connections = (admitting, relaying);
    let (data_dir, models, limits) = (
        &settings.data_dir,
        settings.catalog.models(),
        &settings.limits,
    );
    let billing = match start {
        StartMode::Fresh => SharedBilling::serve(data_dir, connections, models, limits)?,
        StartMode::Upgrade => {
            SharedBilling::serve_as_successor(data_dir, connections, models, limits)?
        }
    };
    let idempotency_keys = RedisIdempotency::new(billing.clone());
    let admission = SharedAdmission::new(keys, billing);
    let settings = match start {
        StartMode::Fresh => settings,
        StartMode::Upgrade => reread_settings(config_file, settings),
    };
    admission.apply_settings(&settings, clock::now_ms())?;
    let settings = Arc::new(ArcSwap::from_pointee(settings));
    let (mut server, handle, sockets) = build_edge(
        config_file,
        &settings,
        EdgeStores {
            admission: Arc::new(admission),
            ledger: None,
            keys: Arc::new(idempotency_keys),
            refused,
        },
        EdgeDeployment::Shared(store_health),
        start,
    )?;
    add_private_listeners(
        &mut server,
        status_router(handle.clone()),
        None,
        &handle,
        sockets,
    )?;
    serve(server, handle, startup_signals)
}

enum EdgeDeployment {
    /// The sidecar runs in this process.
    Sidecar(LocalConnector),
    /// Several edges share the sidecar and the store.
    Shared(Arc<StoreHealthMonitor>),
}

/// The stores of an edge's state.
struct EdgeStores {
    admission: Arc<dyn Admission>,
    /// `None` if the ledger belongs to a sidecar in another process.
    ledger: Option<Arc<dyn LedgerLookup>>,
    keys: Arc<dyn IdempotencyKeys>,
    refused: RefusedRequests,
}

fn build_edge(
    config_file: &Path,
    settings: &Arc<ArcSwap<Settings>>,
    stores: EdgeStores,
    deployment: EdgeDeployment,
    start: StartMode,
) -> anyhow::Result<(Server, ServerHandle, ListeningSockets)> {
    reload::log_warnings(&settings.load());
    let idempotency = start_idempotency(&stores.keys, settings, &deployment)?;
    let tls = settings.load().tls.clone();
    let certificate = tls
        .as_ref()
        .map(ReloadableCertificate::from_files)
        .transpose()?;
    let recorders = start_recorders(&settings.load(), stores.refused.clone())?;
    let addresses = listen_addresses(&settings.load(), &deployment);
    let (gateway, store_health) =
        build_gateway(settings, &stores, deployment, idempotency, recorders);
    gateway
        .watch_upstreams()
        .context("cannot start the health checks of the vendors' endpoints")?;
    let shares = DescriptorShares::new(descriptors::raise_limit(), resource_guard::open_files());
    shares.log(settings.load().limits.connections);
    let connections = Connections::new(
        Arc::clone(settings),
        gateway.recorders.clone(),
        shares.clients,
        Pulse::new(readiness::edge_vitals(&stores.admission, store_health)),
    );
    let pulse = Arc::clone(&connections.pulse);
    pulse
        .watch()
        .context("cannot start the thread that notices when nobody is served")?;
    gateway
        .watch_pressure(Arc::clone(&connections))
        .context("cannot start the memory monitor")?;
    series::create(&settings.load());
    let handle = ServerHandle {
        settings: Arc::clone(settings),
        reload: build_reloader(
            config_file,
            settings,
            certificate.as_ref(),
            &gateway.recorders.access,
            &stores.admission,
        ),
        admission: stores.admission,
        idempotency_keys: stores.keys,
        ready: Arc::default(),
        draining: Arc::clone(&gateway.draining),
        shutdown: Arc::clone(&gateway.shutdown),
        succeeded: Arc::default(),
        in_flight: Arc::clone(&gateway.in_flight),
        pressure: Arc::clone(&gateway.pressure),
        pulse,
        access: gateway.recorders.access.clone(),
        traces: gateway.recorders.traces.clone(),
        refused: stores.refused,
        endpoints: Arc::clone(&gateway.endpoint_registry),
    };
    let upgrade_socket = listening_sockets::upgrade_socket(&settings.load().data_dir)?;
    let mut sockets = match start {
        StartMode::Fresh => ListeningSockets::bind(&addresses)?,
        StartMode::Upgrade => ListeningSockets::receive(&upgrade_socket, &addresses)?,
    };
    let server = build_edge_server(
        &settings.load(),
        gateway,
        (connections, shares),
        certificate.as_ref(),
        (&upgrade_socket, &mut sockets),
    )?;
    watch_execution_phases(&server, Arc::clone(&handle.succeeded))?;
    Ok((server, handle, sockets))
}

/// Opens the access log, and starts the exporter of traces.
fn start_recorders(settings: &Settings, refused: RefusedRequests) -> anyhow::Result<Recorders> {
    let access = open_access_log(settings)?;
    let traces = TraceExporter::start(settings.traces.as_ref())
        .context("cannot start the trace exporter")?;
    Ok(Recorders {
        access,
        traces,
        refused,
    })
}

/// Builds the gateway. Returns it with the monitor of its shared store, if it has one.
fn build_gateway(
    settings: &Arc<ArcSwap<Settings>>,
    stores: &EdgeStores,
    deployment: EdgeDeployment,
    idempotency: Idempotency,
    recorders: Recorders,
) -> (Gateway, Option<Arc<StoreHealthMonitor>>) {
    let gateway = Gateway::new(
        Arc::clone(settings),
        Arc::clone(&stores.admission),
        stores.ledger.clone(),
        idempotency,
        recorders,
    );
    match deployment {
        EdgeDeployment::Sidecar(connector) => (gateway.with_sidecar(connector), None),
        EdgeDeployment::Shared(store_health) => (
            gateway.with_announced_sidecar(Arc::clone(&store_health)),
            Some(store_health),
        ),
    }
}

/// Returns the reloader of the config file, which passes new settings to the metrics and the
/// admission.
fn build_reloader(
    config_file: &Path,
    settings: &Arc<ArcSwap<Settings>>,
    certificate: Option<&Arc<ReloadableCertificate>>,
    access: &AccessLog,
    admission: &Arc<dyn Admission>,
) -> Arc<ConfigReloader> {
    let admission = Arc::clone(admission);
    let apply_settings = Box::new(move |new: &Settings| {
        series::create(new);
        admission.apply_settings(new, clock::now_ms())
    });
    ConfigReloader::new(
        config_file,
        settings,
        certificate.cloned(),
        Some(access.clone()),
        apply_settings,
    )
}

/// Returns the addresses on which the process listens, each with its config key.
fn listen_addresses(settings: &Settings, deployment: &EdgeDeployment) -> ListenAddresses {
    let edge = settings.edge.iter();
    let mut addresses: ListenAddresses = edge.map(|address| ("listen.edge", *address)).collect();
    addresses.push(("listen.admin", settings.admin));
    if matches!(deployment, EdgeDeployment::Sidecar(_)) {
        addresses.push(("listen.sidecar", settings.sidecar));
    }
    addresses
}

/// Starts the idempotency service. A shared store may be unreachable for a time; keys of dead
/// processes are then resolved later.
fn start_idempotency(
    keys: &Arc<dyn IdempotencyKeys>,
    settings: &Arc<ArcSwap<Settings>>,
    deployment: &EdgeDeployment,
) -> anyhow::Result<Idempotency> {
    let idempotency = Idempotency::new(Arc::clone(keys));
    let housekeeping = IdempotencyHousekeeping::new(idempotency.clone())?;
    let resolved = housekeeping.resolve_orphaned(&settings.load().limits, clock::now_ms());
    match (resolved, deployment) {
        (Err(error), EdgeDeployment::Shared(_)) => log::warn!("{error}; retrying"),
        (resolved, _) => resolved?,
    }
    housekeeping.start(Arc::clone(settings))?;
    Ok(idempotency)
}

fn open_access_log(settings: &Settings) -> anyhow::Result<AccessLog> {
    AccessLog::start(&settings.access_log, settings.limits.access_log_lines)
        .with_context(|| format!("cannot open access_log {}", settings.access_log))
}

fn serve(server: Server, handle: ServerHandle, startup_signals: StartupSignals) -> ! {
    let (draining, succeeded) = (Arc::clone(&handle.draining), Arc::clone(&handle.succeeded));
    let is_leaving = move || draining.load(Ordering::Acquire) || succeeded.load(Ordering::Acquire);
    if let Err(error) = Arc::clone(&handle.reload).watch(is_leaving) {
        log::error!("cannot watch the config file: {error}; send SIGHUP to reload it");
    }
    if let Err(error) = start_shutdown_watch(handle.clone()) {
        log::error!(
            "cannot start the shutdown monitor: {error}; a shutdown will take the whole drain time"
        );
    }
    // The call returns at the end of the grace period. The shutdown watch exits the process
    // earlier, once everything is settled.
    server.run(RunArgs {
        shutdown_signal: Box::new(SignalHandler::new(handle.clone(), startup_signals)),
    });
    finish_and_exit(&handle, handle.shutdown.cut_count())
}

/// Rereads the config file, which may have changed while this process waited for its predecessor,
/// so that the latest prices apply. If the file has faults, the earlier settings remain. The data
/// directory and the limits with which the ledger was opened never change.
fn reread_settings(config_file: &Path, before: Settings) -> Settings {
    match config::load(config_file, FileChecks::Edge) {
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

/// Adds the services for the private addresses.
fn add_private_listeners(
    server: &mut Server,
    admin: axum::Router,
    sidecar: Option<(Sidecar, LocalAcceptor)>,
    handle: &ServerHandle,
    mut sockets: ListeningSockets,
) -> anyhow::Result<()> {
    let settings = handle.settings.load_full();
    let admin = guard_admin(admin, &settings.admin_names);
    let serve_admin = |listener: ListenerUntilSuccession| async {
        let closed = listener.close_time();
        // The audit log records the address of the administrator.
        let service = admin.into_make_service_with_connect_info::<SocketAddr>();
        axum::serve(listener.tap_io(|_| ()), service)
            .with_graceful_shutdown(closed)
            .await
    };
    let socket = (settings.admin, sockets.take(settings.admin)?);
    server.add_service(PrivateListener::new("admin", socket, handle, serve_admin));
    if let Some((sidecar, edge)) = sidecar {
        let serve_pages = |listener: ListenerUntilSuccession| {
            let closed = listener.close_time();
            pages::serve(listener, Some(edge), sidecar, closed)
        };
        let socket = (settings.sidecar, sockets.take(settings.sidecar)?);
        server.add_service(PrivateListener::new("sidecar", socket, handle, serve_pages));
    }
    Ok(())
}

/// Builds the router for `/metrics`, `/healthz`, `/readyz` and `/upstreams`, which need no key on
/// the private listener.
fn status_router(handle: ServerHandle) -> axum::Router {
    let asked = handle.clone();
    let ready = readiness::handler(move || asked.unready_reasons());
    let endpoints = Arc::clone(&handle.endpoints);
    let upstreams = move || std::future::ready(axum::Json(endpoints.states(Instant::now())));
    let metrics = move || {
        let store = Arc::clone(&handle.admission);
        async move {
            store.update_gauges(clock::now_ms());
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
/// Pingora alone would sleep through its whole grace period, and then cut running requests.
fn start_shutdown_watch(handle: ServerHandle) -> anyhow::Result<()> {
    std::thread::Builder::new()
        .name("watch".into())
        .spawn(move || {
            let settings = handle.settings.load_full();
            while !settings
                .edge
                .iter()
                .all(|address| TcpStream::connect(address).is_ok())
            {
                std::thread::sleep(Duration::from_millis(2));
            }
            handle.ready.store(true, Ordering::Release);
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
            while !handle.draining.load(Ordering::Acquire)
                && !handle.succeeded.load(Ordering::Acquire)
            {
                std::thread::sleep(SHUTDOWN_POLL_INTERVAL);
            }
            let cut = handle.wait_for_requests(&handle.settings.load().limits);
            if let Err(error) = limit_finish(&handle) {
                log::error!(
                    "cannot limit the time of the shutdown: {error}; it waits for the disk of data_dir"
                );
            }
            finish_and_exit(&handle, cut)
        })?;
    Ok(())
}

/// Starts a thread that exits the process if the last files cannot be written in time, because a
/// disk does not answer. The journals have what the ledger lacks, and the next start enters it.
#[expect(
    clippy::disallowed_methods,
    reason = "the end of a process whose disk does not answer"
)]
fn limit_finish(handle: &ServerHandle) -> std::io::Result<()> {
    let drain = Duration::from_secs(handle.settings.load().limits.drain_seconds);
    let now = Instant::now();
    let drained = handle.shutdown.cutoff().unwrap_or(now + drain);
    let until = drained.max(now) + FINISH_TIMEOUT;
    let limit = move || {
        while let Some(left) = until.checked_duration_since(Instant::now()) {
            std::thread::sleep(left);
        }
        log::error!(
            "stopped without writing the last files: the disk of data_dir does not answer; the next start enters from the journal what the ledger lacks"
        );
        telemetry::flush_log();
        std::process::exit(1)
    };
    std::thread::Builder::new()
        .name("exit-limit".into())
        .spawn(limit)
        .map(drop)
}

/// Settles the last requests and exits the process. `cut` is the number of requests that did not
/// end by themselves.
#[expect(
    clippy::disallowed_methods,
    reason = "the one end: everything that ended is in the ledger by now"
)]
fn finish_and_exit(handle: &ServerHandle, cut: usize) -> ! {
    handle.admission.shut_down();
    handle.idempotency_keys.shut_down();
    handle.refused.flush();
    // After a handover, the successor uses the files.
    if !handle.succeeded.load(Ordering::Acquire) {
        database_logs::write_back(&handle.settings.load().data_dir);
    }
    handle.endpoints.log_failures(Instant::now(), true);
    handle.access.flush(ACCESS_LOG_FLUSH_TIMEOUT);
    handle.traces.flush(TRACES_FLUSH_TIMEOUT);
    match cut {
        0 => log::info!("stopped: every request finished, 0 were cut"),
        cut => log::warn!("stopped: {cut} requests were cut after limits.drain_seconds"),
    }
    telemetry::flush_log();
    std::process::exit(0)
}
