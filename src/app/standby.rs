//! Runs a sidecar whose ledger is in PostgreSQL. As a standby it keeps its copy up to date and
//! forwards connections to the holder. When the lease is free, the standby takes it and becomes the
//! holder.
//!
//! This file must not write to the ledger or the accounts: the holder does.

use super::private_listeners::guard_admin;
use super::signals::{StartupSignals, TerminationSignals};
use crate::replica;
use accounts::db::AppDb;
use axum::http::StatusCode;
use axum::routing::get;
use base::telemetry::METRICS;
use config::Settings;
use ledger::Ledger;
use ledger::StoreError;
use ledger::postgres::{LEASE, PostgresHome, PostgresSettings};
use ledger::sqlite;
use std::net::SocketAddr;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// Interval at which a standby tries to take the lease, and brings its copy up to date.
const STANDBY_INTERVAL: Duration = Duration::from_secs(1);
/// Interval at which the holder renews its lease.
const RENEWAL_INTERVAL: Duration = Duration::from_secs(3);
/// Interval at which the holder checks the server's settings again.
const CHECK_INTERVAL: Duration = Duration::from_secs(30);
/// Time limit of connecting to the holder.
const FORWARD_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum number of connections that a standby forwards at a time.
const MAX_FORWARDED: usize = 1_024;

/// Returns the connection to PostgreSQL, or `None` if the ledger is in the data directory.
///
/// # Errors
/// Returns an error if the address is invalid, or if no thread can be started.
pub fn ledger_home(settings: &Settings) -> anyhow::Result<Option<PostgresHome>> {
    let Some(postgres) = &settings.ledger.postgres else {
        return Ok(None);
    };
    let home = PostgresHome::new(PostgresSettings {
        url: postgres.url.reveal().to_owned(),
        require_standby: postgres.require_standby,
        address: settings.sidecar.to_string(),
    })?;
    Ok(Some(home))
}

/// The state of a standby, which its admin listener reports.
#[derive(Clone, Default)]
struct StandbyStatus(Arc<Mutex<Status>>);

#[derive(Clone, Default)]
struct Status {
    /// Address of the holder's sidecar. `None` without a holder.
    holder: Option<SocketAddr>,
    /// The reason why this sidecar is not up to date.
    fault: Option<String>,
}

impl StandbyStatus {
    fn get(&self) -> Status {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn set(&self, status: Status) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = status;
    }
}

/// How the wait for the ledger ended.
pub enum HolderWait {
    /// This sidecar holds the ledger. SIGTERM and SIGINT have been queued since before it took the
    /// lease, which only the end of the process gives back.
    Holds(TerminationSignals),
    /// A signal came before this sidecar took the lease.
    Signalled,
}

/// Waits until this sidecar holds the ledger. It answers on both listeners meanwhile.
///
/// # Errors
/// Returns an error if the server must not be used, or if the copies cannot be opened.
pub fn wait_until_holder(
    settings: &Settings,
    home: &PostgresHome,
    runtime: &tokio::runtime::Runtime,
    listeners: (&std::net::TcpListener, &std::net::TcpListener),
    startup_signals: &mut StartupSignals,
) -> anyhow::Result<HolderWait> {
    let mut end = TerminationSignals::listen()?;
    sqlite::create_dir(&settings.data_dir)?;
    let ledger = Ledger::open_with_home(&settings.data_dir, Some(home))?;
    let app = AppDb::open(&settings.data_dir, Some(home))?;
    let status = StandbyStatus::default();
    let (pages, admin) = (listeners.0.try_clone()?, listeners.1.try_clone()?);
    let copies = Arc::new((ledger, app));
    let holds = runtime.block_on(async {
        let forwarding = tokio::spawn(forward(TcpListener::from_std(pages)?, status.clone()));
        let names = Arc::clone(&settings.admin_names);
        let admin = TcpListener::from_std(admin)?;
        let admin = tokio::spawn(serve_status(admin, status.clone(), names));
        let waited = tokio::select! {
            waited = take_lease(home.clone(), copies, status, &mut end) => waited,
            never = ignore_reload(startup_signals) => never,
        };
        forwarding.abort();
        admin.abort();
        waited
    })?;
    Ok(match holds {
        true => HolderWait::Holds(end),
        false => HolderWait::Signalled,
    })
}

/// Ignores reloads, because a standby keeps the configuration of its start.
async fn ignore_reload(startup_signals: &mut StartupSignals) -> anyhow::Result<bool> {
    loop {
        startup_signals.hup.recv().await;
        log::info!("a standby does not reload its configuration; restart it");
    }
}

/// Tries to take the lease until it succeeds. Returns false if a signal ended the wait between two
/// tries: a try cannot be stopped, and one that succeeds leaves the signal in the queue.
async fn take_lease(
    home: PostgresHome,
    copies: Arc<(Ledger, AppDb)>,
    status: StandbyStatus,
    end: &mut TerminationSignals,
) -> anyhow::Result<bool> {
    let mut reported = Vec::new();
    loop {
        let (home, copies) = (home.clone(), Arc::clone(&copies));
        let tried = tokio::task::spawn_blocking(move || {
            let report = home.prepare()?;
            METRICS.postgres_skew_ms.set(report.skew_ms);
            let taken = replica::take(&copies.0, &copies.1)?;
            Ok::<_, StoreError>((report, taken, home.holder_address()?))
        })
        .await?;
        let now = match tried {
            Ok((report, taken, holder)) => {
                if reported != report.warnings {
                    report
                        .warnings
                        .iter()
                        .for_each(|warning| log::warn!("{warning}"));
                    reported = report.warnings;
                }
                if let Some(epoch) = taken {
                    log::info!("holds the ledger in PostgreSQL, in epoch {epoch}");
                    return Ok(true);
                }
                Status {
                    holder: holder.and_then(|address| address.parse().ok()),
                    fault: None,
                }
            }
            // The operator must act, because a restart would not help.
            Err(error) => Status {
                holder: status.get().holder,
                fault: Some(error.to_string()),
            },
        };
        let before = status.get();
        if before.fault != now.fault
            && let Some(fault) = &now.fault
        {
            log::error!("{fault}; retrying");
        }
        if before.holder != now.holder
            && let Some(holder) = now.holder
        {
            log::info!("the sidecar at {holder} holds the ledger; this one is a standby");
        }
        status.set(now);
        let signalled = tokio::time::timeout(STANDBY_INTERVAL, end.recv()).await;
        if signalled.is_ok() {
            return Ok(false);
        }
    }
}

/// Forwards connections to the holder, byte by byte.
async fn forward(listener: TcpListener, status: StandbyStatus) {
    let slots = Arc::new(tokio::sync::Semaphore::new(MAX_FORWARDED));
    loop {
        let Ok((mut client, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        // Without a holder, or above the limit, the connection is closed, and an edge answers with
        // 502.
        let Some(holder) = status.get().holder else {
            continue;
        };
        let Ok(slot) = Arc::clone(&slots).try_acquire_owned() else {
            continue;
        };
        tokio::spawn(async move {
            let connect = tokio::time::timeout(FORWARD_TIMEOUT, TcpStream::connect(holder));
            if let Ok(Ok(mut upstream)) = connect.await {
                let _ = tokio::io::copy_bidirectional(&mut client, &mut upstream).await;
            }
            drop(slot);
        });
    }
}

async fn serve_status(
    listener: TcpListener,
    status: StandbyStatus,
    names: Arc<[String]>,
) -> std::io::Result<()> {
    let metrics = || async {
        (
            [("content-type", "text/plain; version=0.0.4")],
            METRICS.render(),
        )
    };
    let ready = move || {
        std::future::ready(match status.get() {
            Status {
                fault: Some(fault), ..
            } => (
                StatusCode::SERVICE_UNAVAILABLE,
                format!("not ready: {fault}\n"),
            ),
            Status {
                holder: Some(holder),
                ..
            } => (
                StatusCode::OK,
                format!("ready: a standby of the sidecar at {holder}\n"),
            ),
            Status { .. } => (
                StatusCode::SERVICE_UNAVAILABLE,
                "not ready: no sidecar holds the ledger yet\n".to_owned(),
            ),
        })
    };
    let routes = axum::Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready));
    let service = guard_admin(routes, &names).into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, service).await
}

pub struct LeaseRenewal {
    end: mpsc::SyncSender<()>,
    thread: JoinHandle<()>,
}

impl LeaseRenewal {
    /// Ends the thread and waits for it. A renewal after the lease was released would keep the
    /// lease from all sidecars until it expires.
    pub fn end(self) {
        drop(self.end);
        let _ = self.thread.join();
    }
}

/// Renews the lease until [`LeaseRenewal::end`], or until another sidecar has it. `superseded` then
/// has the reason.
///
/// # Errors
/// Returns an error if the thread cannot be started.
pub fn renew_lease(
    home: PostgresHome,
    epoch: i64,
    superseded: watch::Sender<Option<String>>,
) -> std::io::Result<LeaseRenewal> {
    let (end, ended) = mpsc::sync_channel(1);
    let renew = move || {
        let mut checked = Instant::now();
        loop {
            let mut outcome = home.renew_lease(epoch);
            if outcome.is_ok() && checked.elapsed() >= CHECK_INTERVAL {
                checked = Instant::now();
                outcome = home
                    .prepare()
                    .map(|report| METRICS.postgres_skew_ms.set(report.skew_ms));
            }
            match outcome {
                Ok(()) => {}
                Err(error @ (StoreError::NotHolder(_) | StoreError::Unusable(_))) => {
                    METRICS.ledger_held.set(0);
                    superseded.send_replace(Some(error.to_string()));
                    return;
                }
                Err(error) => log::warn!(
                    "{error}; retrying, a lease is valid for {} s",
                    LEASE.as_secs()
                ),
            }
            if ended.recv_timeout(RENEWAL_INTERVAL) != Err(RecvTimeoutError::Timeout) {
                return;
            }
        }
    };
    std::thread::Builder::new()
        .name("lease".into())
        .spawn(renew)
        .map(|thread| LeaseRenewal { end, thread })
}
