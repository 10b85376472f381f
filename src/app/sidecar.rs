//! Runs the sidecar as a separate process, for edges with a shared store. It has the ledger, the
//! pages and the API that edges call.
//!
//! This file must not admit requests: the shared store does.

use super::admin_router::admin_router;
use super::database_logs;
use super::listening_sockets::bind;
use super::private_listeners::guard_admin;
use super::readiness;
use super::reload::ConfigReloader;
use super::signals::{StartupSignals, TerminationSignals};
use super::standby::{self, HolderWait, LeaseRenewal};
use super::upkeep;
use crate::billing::Billing;
use crate::edge::{descriptors, panics};
use crate::notify::{self, NotifyContext};
use crate::payments::{self, Payments};
use crate::pulse::Pulse;
use crate::refused_requests::RefusedRequests;
use crate::shared_credit::ledger_ingest::LedgerIngest;
use crate::shared_credit::redis::SharedStore;
use crate::shared_credit::{refusals, shared_balances};
use crate::sidecar::{self, Sidecar};
use accounts::Accounts;
use anyhow::Context as _;
use arc_swap::ArcSwap;
use axum::routing::get;
use base::clock;
use base::telemetry::METRICS;
use config::Settings;
use config::redis_address::RedisAddress;
use ledger::postgres::PostgresHome;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::watch;

/// Time limit of a reply of the shared store. A slower reply counts as a failure.
const STORE_TIMEOUT: Duration = Duration::from_secs(2);
/// Time that open pages have to end at shutdown.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// Serves until SIGTERM or SIGINT. The config file is reloaded on SIGHUP or after a change.
///
/// # Errors
/// Returns an error if the sidecar cannot start, or if a listener fails.
pub fn run(config_file: &Path, settings: Settings) -> anyhow::Result<()> {
    let address = settings
        .store
        .address()
        .context("`model-gateway sidecar` needs store.kind: redis; with kind: embedded, use `model-gateway run`")?;
    descriptors::check_limit()?;
    panics::install_hook();
    let mut startup_signals = StartupSignals::listen()?;
    let runtime = tokio::runtime::Runtime::new()?;
    let home = standby::ledger_home(&settings)?;
    let listeners = (
        bind("listen.sidecar", settings.sidecar)?,
        bind("listen.admin", settings.admin)?,
    );
    let data_dir = settings.data_dir.clone();
    upkeep::start_database_logs(&data_dir)?;
    let waited = home.as_ref().map(|home| {
        standby::wait_until_holder(
            &settings,
            home,
            &runtime,
            (&listeners.0, &listeners.1),
            &mut startup_signals,
        )
    });
    let end = match waited.transpose()? {
        Some(HolderWait::Signalled) => {
            database_logs::write_back(&data_dir);
            return Ok(());
        }
        Some(HolderWait::Holds(end)) => Some(end),
        None => None,
    };
    METRICS.ledger_held.set(1);
    let home = home.as_ref();
    let accounts = Accounts::open_with_home(&settings.data_dir, home)?
        .with_shared_store(Some(address.clone()));
    let billing = Billing::open_with_store(
        &settings.data_dir,
        shared_balances(Some(address.clone())),
        home,
    )?;
    // From here on a signal must find the end that closes the files.
    let end = end.map_or_else(TerminationSignals::listen, Ok)?;
    let (superseded, is_superseded) = watch::channel(None);
    let renewal = renew_lease(home, &billing, superseded)?;
    billing.upkeep().set_archive(settings.ledger.archive());
    let now_ms = clock::now_ms();
    billing.store_prices(settings.catalog.models(), now_ms)?;
    accounts.record_prices(settings.catalog.prices(), now_ms)?;
    let ingest = Arc::new(LedgerIngest::start(
        &settings.data_dir,
        &address,
        settings.allow_volatile,
        home,
    )?);
    upkeep::complete_sign_ups(&accounts, &billing, now_ms)?;
    upkeep::complete_merges(&accounts, &billing)?;
    let settings = Arc::new(ArcSwap::from_pointee(settings));
    upkeep::start(&billing, &settings)?;
    let refused = collect_refused(&data_dir, accounts.clone(), &address)?;
    let state = Sidecar::new(accounts, billing.clone(), Arc::clone(&settings))
        .with_refused_requests(refused.clone());
    let reload = start_reloader(config_file, &state)?;
    let billing = state.billing.clone();
    let served = runtime.block_on(serve(
        &reload,
        (startup_signals, end),
        (listeners, is_superseded),
        state,
        Arc::clone(&ingest),
    ));
    runtime.shutdown_timeout(Duration::from_secs(1));
    ingest.shut_down();
    refused.flush();
    if let Some(renewal) = renewal {
        renewal.end();
        billing.give_lease_back();
    }
    database_logs::write_back(&data_dir);
    served
}

/// Opens the refused requests, and starts to receive those of the edges.
fn collect_refused(
    data_dir: &Path,
    accounts: Accounts,
    address: &RedisAddress,
) -> anyhow::Result<RefusedRequests> {
    let refused = RefusedRequests::open(data_dir)?;
    refused
        .start_writer(Some(accounts))
        .context("cannot start the thread that writes refused requests")?;
    let store = SharedStore::new(address.clone(), STORE_TIMEOUT);
    refusals::start_receiver(refused.clone(), store)
        .context("cannot start the thread that takes refused requests from the edges")?;
    Ok(refused)
}

/// Renews the lease on the ledger in PostgreSQL, if this process holds one.
fn renew_lease(
    home: Option<&PostgresHome>,
    billing: &Billing,
    superseded: watch::Sender<Option<String>>,
) -> anyhow::Result<Option<LeaseRenewal>> {
    let (Some(home), Some(epoch)) = (home, billing.held_epoch()?) else {
        return Ok(None);
    };
    let renewal = standby::renew_lease(home.clone(), epoch, superseded);
    renewal
        .map(Some)
        .context("cannot start the thread that renews the lease")
}

/// Reloads the config file after a change, and stores the prices of its models.
fn start_reloader(config_file: &Path, state: &Sidecar) -> anyhow::Result<Arc<ConfigReloader>> {
    let billing = state.billing.clone();
    let accounts = state.accounts.clone();
    let store_prices = Box::new(move |new: &Settings| {
        let now_ms = clock::now_ms();
        billing.store_prices(new.catalog.models(), now_ms)?;
        accounts
            .record_prices(new.catalog.prices(), now_ms)
            .map(drop)
    });
    let reload = ConfigReloader::new(config_file, &state.settings, None, None, store_prices);
    Arc::clone(&reload)
        .watch(|| false)
        .context("cannot watch the config file")?;
    Ok(reload)
}

async fn serve(
    reload: &ConfigReloader,
    (startup_signals, end): (StartupSignals, TerminationSignals),
    ((pages, admin_listener), mut superseded): (
        (std::net::TcpListener, std::net::TcpListener),
        watch::Receiver<Option<String>>,
    ),
    state: Sidecar,
    ingest: Arc<LedgerIngest>,
) -> anyhow::Result<()> {
    let settings = state.settings.load_full();
    let pages = TcpListener::from_std(pages)?;
    let admin_listener = TcpListener::from_std(admin_listener)?;
    let (close, closing) = watch::channel(false);
    let closed = || {
        let mut closing = closing.clone();
        async move { drop(closing.wait_for(|closed| *closed).await) }
    };
    let context = NotifyContext {
        accounts: state.accounts.clone(),
        billing: state.billing.clone(),
        settings: Arc::clone(&state.settings),
    };
    notify::start(context, closed())
        .context("cannot start the thread of mail, alerts and webhooks")?;
    let shop = Payments::new(
        state.accounts.clone(),
        state.billing.clone(),
        Arc::clone(&state.settings),
    );
    payments::start(shop, closed()).context("cannot start the thread that asks about payments")?;
    let pulse = Arc::new(Pulse::new(readiness::sidecar_vitals(&state, ingest)));
    pulse
        .watch()
        .context("cannot start the thread that notices when nobody is served")?;
    pulse.start();
    let pages = tokio::spawn(sidecar::serve_edges(pages, state.clone(), closed()));
    let refused = state.refused.as_ref();
    let refused = refused.context("the sidecar keeps no refused requests")?;
    let interface = admin_router(&state.settings, &state.accounts, &state.billing, refused)?;
    let interface = guard_admin(
        status_router(pulse).merge(interface),
        &state.settings.load().admin_names,
    )
    .into_make_service_with_connect_info::<std::net::SocketAddr>();
    let admin = axum::serve(admin_listener, interface).with_graceful_shutdown(closed());
    let admin = tokio::spawn(async move { admin.await });
    log::info!(
        "listening on {} (sidecar), {} (admin)",
        settings.sidecar,
        settings.admin
    );
    let ended = async {
        tokio::try_join!(async { pages.await? }, async { admin.await? })
            .context("cannot serve the dashboard and the admin listener")
            .map(drop)
    };
    tokio::pin!(ended);
    tokio::select! {
        outcome = &mut ended => return outcome,
        () = wait_for_termination(reload, startup_signals, end) => {}
        // The supervisor restarts this process as a standby.
        Some(why) = wait_until_superseded(&mut superseded) => anyhow::bail!("{why}"),
    }
    log::info!("shutting down");
    close.send_replace(true);
    tokio::time::timeout(SHUTDOWN_TIMEOUT, ended)
        .await
        .unwrap_or(Ok(()))
}

/// Returns the reason once this process may not write to the ledger any more, or `None` if that
/// cannot happen.
async fn wait_until_superseded(superseded: &mut watch::Receiver<Option<String>>) -> Option<String> {
    let why = superseded.wait_for(Option::is_some).await.ok()?;
    why.clone()
}

/// Returns on SIGTERM or SIGINT. Reloads the settings on SIGHUP.
async fn wait_for_termination(
    reload: &ConfigReloader,
    mut startup_signals: StartupSignals,
    mut end: TerminationSignals,
) {
    loop {
        tokio::select! {
            () = end.recv() => return,
            _ = startup_signals.hup.recv() => reload.reload(),
        }
    }
}

/// Builds the router for `/metrics`, `/healthz` and `/readyz`, which need no key.
fn status_router(pulse: Arc<Pulse>) -> axum::Router {
    let metrics = || async {
        (
            [("content-type", "text/plain; version=0.0.4")],
            METRICS.render(),
        )
    };
    let ready = readiness::handler(move || readiness::pulse_reasons(&pulse, "pages"));
    axum::Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
}
