//! Handles signals: SIGTERM and SIGINT drain the process, SIGQUIT hands over to a successor, and
//! SIGHUP reloads the settings.
//!
//! SIGQUIT and SIGHUP are queued until the process serves. By default they would kill the process,
//! even while it waits for its predecessor or replays a journal. Until then, SIGTERM and SIGINT end
//! the process at once, as by default. This file must not decide when a drain is over.

use super::listening_sockets::UPGRADE_SOCKET;
use super::server_handle::{DRAIN_POLL_INTERVAL, ServerHandle};
use anyhow::Context as _;
use async_trait::async_trait;
use pingora::server::{ShutdownSignal, ShutdownSignalWatch};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Time that a successor has from receiving the right to serve to requesting the sockets.
const SUCCESSOR_READY_TIMEOUT: Duration = Duration::from_secs(60);
/// The same time limit if this process is also being stopped. It is short but not zero, because a
/// live successor could not serve without these sockets.
const SUCCESSOR_SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit of the transfer of the sockets.
const SOCKET_HANDOVER_TIMEOUT: Duration = Duration::from_secs(5);

/// Signals that arrive before the process serves. No signal is lost or handled twice.
pub struct StartupSignals {
    quit: Signal,
    pub hup: Signal,
}

impl StartupSignals {
    /// Begins to queue signals.
    ///
    /// # Errors
    /// Returns an error if the signal handlers cannot be installed.
    pub fn listen() -> anyhow::Result<Self> {
        let listen = || {
            Ok(Self {
                quit: signal(SignalKind::quit())?,
                hup: signal(SignalKind::hangup())?,
            })
        };
        listen_before_serving(listen)
    }
}

/// Listens for signals before a runtime exists. The runtime that polls the streams later receives
/// the queued signals.
fn listen_before_serving<T>(listen: impl FnOnce() -> std::io::Result<T>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let _inside = runtime.enter();
    listen().context("cannot listen for signals")
}

/// The signals that end a process: SIGTERM and SIGINT.
pub struct TerminationSignals {
    term: Signal,
    int: Signal,
}

impl TerminationSignals {
    /// Begins to queue the signals, which no longer end the process by themselves.
    ///
    /// # Errors
    /// Returns an error if the signal handlers cannot be installed.
    pub fn listen() -> anyhow::Result<Self> {
        let listen = || {
            Ok(Self {
                term: signal(SignalKind::terminate())?,
                int: signal(SignalKind::interrupt())?,
            })
        };
        listen_before_serving(listen)
    }

    /// Returns on SIGTERM or SIGINT.
    pub async fn recv(&mut self) {
        tokio::select! {
            _ = self.term.recv() => {}
            _ = self.int.recv() => {}
        }
    }
}

/// Signal handler of a serving process, for Pingora.
pub struct SignalHandler {
    handle: ServerHandle,
    /// `None` once Pingora waits for signals.
    signals: Mutex<Option<(StartupSignals, TerminationSignals)>>,
}

impl SignalHandler {
    /// Creates the handler, from which on SIGTERM and SIGINT drain the process. It must exist
    /// before the process serves, because the first requests may be running when Pingora begins to
    /// wait for signals.
    pub fn new(handle: ServerHandle, startup_signals: StartupSignals) -> Self {
        let end = TerminationSignals::listen().inspect_err(|error| log::error!("{error:#}"));
        Self {
            handle,
            signals: Mutex::new(end.ok().map(|end| (startup_signals, end))),
        }
    }
}

#[async_trait]
impl ShutdownSignalWatch for SignalHandler {
    async fn recv(&self) -> ShutdownSignal {
        let signals = self
            .signals
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let Some((StartupSignals { mut quit, mut hup }, mut end)) = signals else {
            return ShutdownSignal::FastShutdown;
        };
        let handle = &self.handle;
        loop {
            tokio::select! {
                () = end.recv() => break,
                _ = quit.recv() => {
                    let hand_over = handle.hand_over();
                    tokio::pin!(hand_over);
                    let (handed_over, must_stop) = tokio::select! {
                        handed_over = &mut hand_over => (handed_over, false),
                        () = end.recv() => {
                            (tokio::time::timeout(SUCCESSOR_SHUTDOWN_TIMEOUT, hand_over).await.unwrap_or(false), true)
                        }
                    };
                    if handed_over {
                        handle.drain_on_signal(end, must_stop);
                        return ShutdownSignal::GracefulUpgrade;
                    }
                    if must_stop {
                        break;
                    }
                }
                _ = hup.recv() => {
                    handle.reload.reload();
                    handle.access.reopen();
                }
            }
        }
        handle.lame_duck(&mut end).await;
        log::info!("draining: the gateway accepts no new requests");
        handle.draining.store(true, Ordering::Release);
        ShutdownSignal::GracefulTerminate
    }
}

impl ServerHandle {
    /// Reports the process as not ready while it still serves requests, until a load balancer has
    /// noticed. A second signal ends the wait.
    async fn lame_duck(&self, end: &mut TerminationSignals) {
        let seconds = self.settings.load().limits.lame_duck_seconds;
        if seconds == 0 {
            return;
        }
        log::info!(
            "received a stop signal: not ready from now on, but still serving for {seconds} s"
        );
        self.shutdown.begin_lame_duck();
        let _ = tokio::time::timeout(Duration::from_secs(seconds), end.recv()).await;
    }

    /// Gives up the right to admit requests, so that a successor can start. Returns true once the
    /// successor requests the listening sockets. If no successor waits, or it does not get that
    /// far, this process continues to serve.
    async fn hand_over(&self) -> bool {
        let socket = self.settings.load().data_dir.join(UPGRADE_SOCKET);
        // A socket file of an earlier upgrade belongs to no process.
        let _ = std::fs::remove_file(&socket);
        if let Err(error) = self.admission.hand_over() {
            log::error!("{error}; this process continues to serve");
            return false;
        }
        log::info!("handing over to a successor");
        let began = Instant::now();
        while began.elapsed() < SUCCESSOR_READY_TIMEOUT {
            if socket.exists() {
                return true;
            }
            tokio::time::sleep(DRAIN_POLL_INTERVAL).await;
        }
        log::error!(
            "the successor did not request the listening sockets; this process continues to serve"
        );
        false
    }

    /// Handles signals after a handover, when Pingora no longer does.
    fn drain_on_signal(&self, mut end: TerminationSignals, must_stop: bool) {
        let (draining, handle) = (Arc::clone(&self.draining), self.clone());
        tokio::spawn(async move {
            if must_stop {
                // The process may exit once no request runs, but not before the successor has the
                // sockets.
                let _ = tokio::time::timeout(SOCKET_HANDOVER_TIMEOUT, handle.wait_for_succession())
                    .await;
            } else {
                end.recv().await;
            }
            log::info!(
                "received a stop signal: running requests have limits.drain_seconds to finish"
            );
            draining.store(true, Ordering::Release);
        });
    }
}
